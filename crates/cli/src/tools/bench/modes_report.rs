//! The tables of `prepage bench modes`.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;

use prepage_bench::bitmap_study::{Printed, PrintedProgram, printed_of};
use prepage_bench::modes::{Classes, Counted, Row};
use prepage_bench::start::{Measured, Phase};
use prepage_bench::statistics::{mean, median, standard_deviation};
use prepage_core::quantity::counted;
use prepage_display::number::known;
use prepage_residency::cold::Chill;
use serde::Serialize;

use crate::table::table;

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    schema_version: u32,
    command: Vec<String>,
    kernel: String,
    processors: usize,
    read_ahead_kib: Vec<u64>,
    chill: &'static str,
    /// What could not be measured.
    missing: Vec<String>,
    /// What the study printed of the same program.
    study: Option<&'static PrintedProgram>,
    ways: Vec<ReportedRow>,
}

#[derive(Debug, Serialize)]
struct ReportedRow {
    #[serde(flatten)]
    row: Row,
    /// Reads of block devices by whom they were for, over all starts; empty where they cannot be seen.
    reads: Vec<ReadSizes>,
    /// Records of such reads that found no room: each may be a read that is not among them.
    lost_records: u64,
    /// Faults that a plain start takes and this one does not.
    avoided: Option<Avoided>,
}

impl ReportedRow {
    /// What the disk of /usr was asked to read in all starts: requests and bytes; `None` where it has no disk.
    fn disk_sums(&self) -> Option<(f64, f64)> {
        let sum =
            |value: fn(&Measured) -> Option<u64>| self.row.starts.iter().map(value).sum::<Option<u64>>();
        let (reads, bytes) = sum(|start| start.disk_reads).zip(sum(|start| start.disk_read_bytes))?;
        Some((reads as f64, bytes as f64))
    }
}

/// Reads of one phase.
#[derive(Debug, Serialize)]
struct ReadSizes {
    phase: &'static str,
    reads_a_start: f64,
    mean_bytes: f64,
    median_bytes: f64,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct Avoided {
    file_faults: i64,
    zero_fill_faults: i64,
}

impl Report {
    /// Sums up `rows`, the first of which is the plain starts'.
    pub fn new(
        command: &[OsString],
        read_ahead_kib: Vec<u64>,
        chill: Chill,
        rows: Vec<Row>,
        missing: Vec<String>,
    ) -> Self {
        let name = Path::new(&command[0]).file_name().unwrap_or_default().to_string_lossy();
        let plain = rows.first().and_then(|row| row.counted);
        let reported = |row: Row| ReportedRow {
            reads: read_sizes(&row.starts),
            lost_records: row.starts.iter().filter_map(|start| Some(start.io.as_ref()?.seen.lost)).sum(),
            avoided: plain.zip(row.counted).map(|(plain, with)| avoided(plain.faults, with.faults)),
            row,
        };
        Self {
            schema_version: 1,
            command: prepage_profiles::key::readable(command),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            read_ahead_kib,
            chill: chill.in_words(),
            missing,
            study: printed_of(&name),
            ways: rows.into_iter().map(reported).collect(),
        }
    }

    /// Prints the tables.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let read_ahead: Vec<String> = self.read_ahead_kib.iter().map(u64::to_string).collect();
        writeln!(out, "{}", self.command.join(" "))?;
        writeln!(
            out,
            "Linux {}, {}, read-ahead {} KiB; means of {} each, in turns; {}",
            self.kernel,
            counted(self.processors, "CPU"),
            read_ahead.join("/"),
            counted(self.ways.first().map_or(0, |way| way.row.starts.len()), "cold start"),
            self.chill
        )?;
        for line in &self.missing {
            writeln!(out, "not measured: {line}")?;
        }
        self.print_times(out)?;
        self.print_phases(out)?;
        self.print_faults(out)?;
        self.print_reads(out)
    }

    /// The study's own table: CPU and memory, mean, standard deviation, ratio to a plain start.
    fn print_times(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\nCPU of the program and of what prefetches for it; the study's own figures on the right"
        )?;
        let headings = [
            "",
            "wall ms",
            "sd",
            "ratio",
            "CPU ms",
            "sd",
            "CPU %",
            "RSS MB",
            "RSS %",
            "read MB",
            "study CPU s",
            "sd",
            "CPU %",
            "memory %",
        ];
        let mut table = table(&headings, &(1..headings.len()).collect::<Vec<_>>());
        let of = |way: &ReportedRow, value: fn(&Measured) -> u64, unit: f64| -> Vec<f64> {
            way.row.starts.iter().map(|start| value(start) as f64 / unit).collect()
        };
        let Some(plain) = self.ways.first() else { return Ok(()) };
        let base = |value, unit| mean(&of(plain, value, unit));
        let percent = |value: f64, base: f64| format!("{:+.1}", 100.0 * (value / base - 1.0));
        for way in &self.ways {
            let wall = of(way, |start| start.wall_ns, 1e6);
            let cpu = of(way, |start| start.cpu_ns, 1e6);
            let resident = mean(&of(way, |start| start.resident_bytes_max, 1e6));
            let mut cells = vec![
                way.row.name.clone(),
                format!("{:.1}", mean(&wall)),
                format!("{:.1}", standard_deviation(&wall)),
                format!("{:.2}", mean(&wall) / base(|start| start.wall_ns, 1e6)),
                format!("{:.1}", mean(&cpu)),
                format!("{:.1}", standard_deviation(&cpu)),
                percent(mean(&cpu), base(|start| start.cpu_ns, 1e6)),
                format!("{resident:.1}"),
                percent(resident, base(|start| start.resident_bytes_max, 1e6)),
                known(way.disk_sums(), |(_, bytes)| {
                    format!("{:.1}", bytes / 1e6 / way.row.starts.len() as f64)
                }),
            ];
            if let Some((Printed { cpu_s, cpu_sd_s, memory }, plain)) = self.printed(&way.row.name) {
                let others = [percent(cpu_s, plain.cpu_s), percent(memory, plain.memory)];
                cells.extend([format!("{cpu_s:.2}"), format!("{cpu_sd_s:.2}")]);
                cells.extend(others);
            }
            table.add_row(cells);
        }
        writeln!(out, "{}", table.lines(crate::output::width()))
    }

    /// What the study printed of the way called `name`, and of a plain start.
    fn printed(&self, name: &str) -> Option<(Printed, Printed)> {
        let study = self.study?;
        let printed = match name {
            "plain" => study.plain,
            "slurp" => study.slurp,
            "sync, early fault" => study.bitmap,
            _ => return None,
        };
        Some((printed, study.plain))
    }

    fn print_phases(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\nphases, ms, and system calls a page: the program waits for reading the profile, starting the reads and mapping"
        )?;
        let headings = [
            "",
            "profile",
            "starting reads",
            "until all read",
            "mapping",
            "pages",
            "calls/page",
            "mapped",
            "calls/page",
        ];
        let mut table = table(&headings, &(1..headings.len()).collect::<Vec<_>>());
        for way in &self.ways {
            let starts = &way.row.starts;
            let ms = |value: fn(&Measured) -> u64| {
                let values: Vec<f64> = starts.iter().map(|start| value(start) as f64 / 1e6).collect();
                if values.iter().all(|&value| value == 0.0) {
                    "-".into()
                } else {
                    format!("{:.2}", mean(&values))
                }
            };
            let sum = |value: fn(&Measured) -> u64| starts.iter().map(value).sum::<u64>();
            let count = |total: u64| match total {
                0 => "-".into(),
                total => format!("{:.0}", total as f64 / starts.len() as f64),
            };
            let a_page = |calls: Option<u64>, pages: u64| match calls {
                Some(calls) if pages > 0 => format!("{:.3}", calls as f64 / pages as f64),
                _ => "-".into(),
            };
            let pages = sum(|start| start.prefetched_pages);
            let counted = way.row.counted.as_ref();
            let calls = counted.and_then(|counted| counted.prefetch_system_calls);
            let mapped = sum(|start| start.mapped.file_pages + start.mapped.zero_pages);
            table.add_row([
                way.row.name.clone(),
                ms(|start| start.phases.profile_read_ns),
                ms(|start| start.phases.reads_started_ns),
                ms(|start| start.phases.reads_done_ns),
                ms(|start| start.phases.mapping_ns),
                count(pages),
                a_page(calls, counted.map_or(0, |counted| counted.prefetched_pages)),
                count(mapped),
                a_page(Some(sum(|start| start.mapped.calls)), mapped),
            ]);
        }
        writeln!(out, "{}", table.lines(crate::output::width()))
    }

    fn print_faults(&self, out: &mut impl Write) -> io::Result<()> {
        writeln!(
            out,
            "\nfaults: all as getrusage counts them, those from disk, and one recorded start's by class (faults inside madvise are \
             none of those)"
        )?;
        let headings = [
            "",
            "all",
            "disk",
            "recorded disk",
            "cached",
            "zero-fill",
            "copies",
            "avoided: file",
            "zero-fill",
        ];
        let mut table = table(&headings, &(1..headings.len()).collect::<Vec<_>>());
        for way in &self.ways {
            let average = |value: fn(&Measured) -> u64| {
                let values: Vec<f64> = way.row.starts.iter().map(|start| value(start) as f64).collect();
                format!("{:.0}", mean(&values))
            };
            let mut cells =
                vec![way.row.name.clone(), average(|start| start.faults), average(|start| start.disk_faults)];
            if let Some(Counted { faults: Classes { disk, cached, zero_fill, copy_on_write }, .. }) =
                way.row.counted
            {
                cells.extend([disk, cached, zero_fill, copy_on_write].map(|count| count.to_string()));
            }
            if let Some(Avoided { file_faults, zero_fill_faults }) = way.avoided {
                cells.extend([file_faults.to_string(), zero_fill_faults.to_string()]);
            }
            table.add_row(cells);
        }
        writeln!(out, "{}", table.lines(crate::output::width()))
    }

    fn print_reads(&self, out: &mut impl Write) -> io::Result<()> {
        let traced = self.ways.iter().any(|way| !way.reads.is_empty());
        let source = if traced {
            "block:block_rq_issue, by who asked (block:block_bio_queue)"
        } else {
            "diskstats of the disk with /usr"
        };
        writeln!(out, "\nreads of the disk a start, and their size in KiB, mean (median): {source}")?;
        let headings = ["", "all", "KiB", "profile", "KiB", "prefetch", "KiB", "program", "KiB"];
        let mut table = table(&headings, &(1..headings.len()).collect::<Vec<_>>());
        for way in &self.ways {
            let mut cells = vec![way.row.name.clone()];
            if traced {
                for ReadSizes { reads_a_start, mean_bytes, median_bytes, .. } in &way.reads {
                    cells.push(format!("{reads_a_start:.0}"));
                    cells.push(match reads_a_start {
                        0.0 => "-".into(),
                        _ => format!("{:.1} ({:.0})", mean_bytes / 1024.0, median_bytes / 1024.0),
                    });
                }
            } else {
                let starts = way.row.starts.len().max(1) as f64;
                cells.push(known(way.disk_sums(), |(reads, _)| format!("{:.0}", reads / starts)));
                let mean = |(reads, bytes): (f64, f64)| format!("{:.1}", bytes / reads.max(1.0) / 1024.0);
                cells.push(known(way.disk_sums(), mean));
            }
            table.add_row(cells);
        }
        writeln!(out, "{}", table.lines(crate::output::width()))?;
        match self.ways.iter().map(|way| way.lost_records).sum() {
            0 => Ok(()),
            lost => writeln!(
                out,
                "{} of reads found no room: some may be missing",
                counted(lost as usize, "record")
            ),
        }
    }
}

fn avoided(plain: Classes, with: Classes) -> Avoided {
    let difference = |plain: u64, with: u64| plain as i64 - with as i64;
    Avoided {
        file_faults: difference(plain.of_files(), with.of_files()),
        zero_fill_faults: difference(plain.zero_fill, with.zero_fill),
    }
}

/// Of all reads, then of each phase.
fn read_sizes(starts: &[Measured]) -> Vec<ReadSizes> {
    let seen: Vec<_> = starts.iter().filter_map(|start| start.io.as_ref()).collect();
    if seen.is_empty() {
        return Vec::new();
    }
    let of = |phase: Option<Phase>| {
        let sizes: Vec<f64> = seen.iter().flat_map(|io| io.sizes(phase)).map(|bytes| bytes as f64).collect();
        ReadSizes {
            phase: phase.map_or("all", Phase::name),
            reads_a_start: sizes.len() as f64 / seen.len() as f64,
            mean_bytes: if sizes.is_empty() { 0.0 } else { mean(&sizes) },
            median_bytes: if sizes.is_empty() { 0.0 } else { median(&sizes) },
        }
    };
    std::iter::once(None).chain(Phase::ALL.map(Some)).map(of).collect()
}
