//! `prepage bench sweep`: starts with many numbers of readers, sizes of holes and read-aheads of the kernel.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use prepage_bench::statistics::{known_median, median, median_ratio};
use prepage_bench::tuning_sweep::{KernelReads, Point, Sweep};
use prepage_core::quantity::counted;
use prepage_display::number::known;
use serde::Serialize;

use super::bench_start::{Prepared, library_for, prepare};
use crate::output::print_json;
use crate::read_ahead::{check_read_ahead, read_ahead_kib};
use crate::remedy::{Remedied, Try};
use crate::table::table;

/// Options of `prepage bench sweep`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Starts at each point
    #[arg(short = 'n', long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Numbers of concurrent readers
    #[arg(long, value_delimiter = ',', default_value = "8,16,32", value_parser = clap::value_parser!(u32).range(1..=256))]
    readers: Vec<u32>,
    /// Largest holes that are read over, in pages
    #[arg(long, value_delimiter = ',', default_value = "0,2,8", value_parser = clap::value_parser!(u64).range(..=512))]
    holes: Vec<u64>,
    /// Read-aheads of all disks, as in 0,128k; restored afterwards (root). With `:random` behind it, or alone, the program's own files are read
    /// without (POSIX_FADV_RANDOM, MADV_RANDOM) [default: as found]
    #[arg(long, value_name = "SIZE", value_delimiter = ',', value_parser = kernel_reads)]
    read_ahead: Vec<KernelReads>,
    /// The library for `:random` [default: libprepage-early-fault.so next to this binary]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Print JSON, with every single start
    #[arg(long)]
    json: bool,
    /// The program and its arguments; its streams are /dev/null
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    command: Vec<String>,
    kernel: String,
    processors: usize,
    missing: &'a [String],
    points: &'a [Point],
}

/// A `SIZE`, `SIZE:random` or `random`.
fn kernel_reads(text: &str) -> Result<KernelReads, String> {
    let kib = |text| read_ahead_kib(text).map(Some);
    match text.split_once(':') {
        None if text == "random" => Ok(KernelReads { kib: None, random: true }),
        None => Ok(KernelReads { kib: kib(text)?, random: false }),
        Some((before, "random")) => Ok(KernelReads { kib: kib(before)?, random: true }),
        Some(_) => Err("neither SIZE, SIZE:random nor random".into()),
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.read_ahead.iter().any(|one| one.kib.is_some()) {
        check_read_ahead()?;
    }
    let Prepared { mut bench, missing, directory: _directory } = prepare(&args.command, None, false)?;
    let mut read_aheads = args.read_ahead.clone();
    if read_aheads.is_empty() {
        read_aheads.push(KernelReads::default());
    }
    let library = match read_aheads.iter().any(|one| one.random) {
        true => Some(library_for(args.library.as_deref()).or_try(|| {
            Remedied::new(
                "no libprepage-early-fault.so next to this binary",
                "make build, and --library build/libprepage-early-fault.so",
            )
        })?),
        false => None,
    };
    let sweep = Sweep { readers: args.readers.clone(), holes: args.holes.clone(), read_aheads, library };
    let points = sweep.run(&mut bench, args.rounds, |what| say!("prepage: {what}"))?;
    let report = Report {
        schema_version: 1,
        command: prepage_profiles::key::readable(&args.command),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        processors: std::thread::available_parallelism().map_or(1, usize::from),
        missing: &missing,
        points: &points,
    };
    let mut out = crate::output::text();
    if args.json {
        print_json(&report)?;
    } else {
        print(&report, args.rounds, &mut out)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn print(report: &Report<'_>, rounds: u32, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "{}", report.command.join(" "))?;
    writeln!(
        out,
        "Linux {}, {}; medians of {} each, in turns; ratio to the start without prefetch at the same read-ahead",
        report.kernel,
        counted(report.processors, "CPU"),
        counted(rounds as usize, "cold start")
    )?;
    for line in report.missing {
        writeln!(out, "not measured: {line}")?;
    }
    let headings = [
        "read-ahead",
        "readers",
        "holes",
        "wall ms",
        "ratio",
        "95 %",
        "read MB",
        "reads",
        "KiB a read",
        "disk faults",
    ];
    let mut table = table(&headings, &(0..headings.len()).collect::<Vec<_>>());
    for point in report.points {
        let plain = report
            .points
            .iter()
            .find(|other| other.read_ahead == point.read_ahead && other.readers_and_holes.is_none());
        let Some(plain) = plain else { continue };
        let ratio = median_ratio(&point.wall_ms, &plain.wall_ms);
        let of = |values: &[u64]| median(&values.iter().map(|&value| value as f64).collect::<Vec<_>>());
        let of_known = |values: &[Option<u64>]| {
            known_median(&values.iter().map(|value| value.map(|value| value as f64)).collect::<Vec<_>>())
        };
        let (bytes, reads) = (of_known(&point.disk_read_bytes), of_known(&point.disk_reads));
        let tuning = point.readers_and_holes;
        let number = |value: Option<u64>| value.map_or("-".into(), |value| value.to_string());
        table.add_row([
            point.read_ahead.to_string(),
            number(tuning.map(|(readers, _)| readers.into())),
            number(tuning.map(|(_, holes)| holes)),
            format!("{:.1}", median(&point.wall_ms)),
            format!("{:.2}", ratio.value),
            ratio.interval(2),
            known(bytes, |bytes| format!("{:.1}", bytes / 1e6)),
            known(reads, |reads| format!("{reads:.0}")),
            known(bytes.zip(reads), |(bytes, reads)| format!("{:.1}", bytes / reads.max(1.0) / 1024.0)),
            format!("{:.0}", of(&point.disk_faults)),
        ]);
    }
    writeln!(out, "{}", table.lines(crate::output::width()))
}
