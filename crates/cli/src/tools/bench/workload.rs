//! `prepage bench workload`: work like that of compilers under three ways to manage memory, beside what a change of FreeBSD's buffer
//! cache was measured by.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use prepage_bench::Subject;
use prepage_bench::workload::{JOBS, Management, PUBLISHED, Published, Took, build, file_bytes};
use prepage_prefetch::statistics::median;
use serde_json::json;

use super::{hand_over, result_of, worker};
use crate::output::print_json;
use crate::size::size;
use crate::table::table;

/// Options of `prepage bench workload`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Memory for frames, 8M at least
    #[arg(short, long, value_name = "SIZE", value_parser = memory, default_value = "64M")]
    memory: u64,
    /// Runs of each, in turns
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Directory for the file and for swap, on the disk to be measured
    #[arg(short, long, value_name = "DIR", default_value = "/var/tmp")]
    directory: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One run, as [`run`] starts it.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// The file
    file: PathBuf,
    /// Where swap files go
    swap: PathBuf,
    management: Management,
    workers: u64,
    /// Bytes for frames
    memory: u64,
}

fn memory(text: &str) -> Result<u64, String> {
    size(text)
        .and_then(|bytes| if bytes >= 8 << 20 { Ok(bytes) } else { Err("8M are needed at least".into()) })
}

/// Does the work in this process.
pub fn work(args: &WorkerArgs) -> Result<ExitCode> {
    hand_over(&build(&args.file, &args.swap, args.management, args.workers, JOBS, args.memory)?)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let file = Subject::create(&args.directory, file_bytes(args.memory, JOBS))?;
    let mut runs = [(); PUBLISHED.len()].map(|()| Management::ALL.map(|_| Vec::new()));
    for round in 0..args.rounds {
        for (level, runs) in PUBLISHED.iter().zip(&mut runs) {
            let mut turns = [0, 1, 2];
            // In turns, so that what drifts meets all alike.
            turns.rotate_left(round as usize % 3);
            for at in turns {
                runs[at].push(one(args, &file, Management::ALL[at], level.workers)?);
            }
        }
    }
    let medians = runs.each_ref().map(|runs| runs.each_ref().map(|runs| typical(runs)));
    let mut out = crate::output::text();
    if args.json {
        let level = |(level, runs): (&Published, &[Vec<Took>; 3])| {
            let rows = Management::ALL.iter().zip(runs);
            let rows: Vec<_> = rows
                .map(|(management, runs)| json!({ "management": management.name(), "runs": runs }))
                .collect();
            json!({ "workers": level.workers, "managements": rows })
        };
        let levels: Vec<_> = PUBLISHED.iter().zip(&runs).map(level).collect();
        let report = json!({ "schema_version": 1, "memory_bytes": args.memory, "levels": levels });
        print_json(&report)?;
    } else {
        print(&medians, &mut out)?;
        writeln!(out, "\n{} MiB for frames; medians of {}", args.memory >> 20, args.rounds)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn one(args: &Args, file: &Subject, management: Management, workers: u64) -> Result<Took> {
    let mut command = worker("workload-worker")?;
    command.args([file.path(), &args.directory]);
    command.args([management.name(), &workers.to_string(), &args.memory.to_string()]);
    result_of(&mut command, &format!("{} with {workers} workers", management.name()))
}

fn typical(runs: &[Took]) -> Took {
    let of = |what: fn(&Took) -> f64| median(&runs.iter().map(what).collect::<Vec<_>>());
    Took {
        real_s: of(|took| took.real_s),
        user_s: of(|took| took.user_s),
        system_s: of(|took| took.system_s),
        swaps: of(|took| took.swaps as f64) as u64,
        hit_ratio: of(|took| took.hit_ratio),
    }
}

fn print(medians: &[[Took; 3]; 4], out: &mut impl Write) -> Result<()> {
    let mut shown =
        table(&["workers", "memory", "real s", "user s", "sys s", "swaps", "hits %"], &[0, 2, 3, 4, 5, 6]);
    let mut row = |workers: u64, name: &str, took: &Took| {
        let seconds = [took.real_s, took.user_s, took.system_s].map(|seconds| format!("{seconds:.2}"));
        let hits =
            if took.hit_ratio.is_nan() { "-".into() } else { format!("{:.1}", 100.0 * took.hit_ratio) };
        let ends = [took.swaps.to_string(), hits];
        let cells = [workers.to_string(), name.to_owned()].into_iter().chain(seconds).chain(ends);
        shown.add_row(cells);
    };
    for (level, medians) in PUBLISHED.iter().zip(medians) {
        for (management, took) in Management::ALL.iter().zip(medians) {
            row(level.workers, management.name(), took);
        }
        row(level.workers, "published: baseline", &level.baseline);
        row(level.workers, "published: patch", &level.patch);
    }
    writeln!(
        out,
        "{}\n\ndont-need to static, as the source's patch to its baseline:\n",
        shown.lines(crate::output::width())
    )?;
    let mut signs = table(&["workers", "of", "published", "here", "sign"], &[0, 2, 3]);
    for (level, [fixed, dont_need, _]) in PUBLISHED.iter().zip(medians) {
        let figures: [(&str, Figure); 3] = [
            ("real", |took| took.real_s),
            ("sys", |took| took.system_s),
            ("swaps", |took| took.swaps as f64),
        ];
        for (name, of) in figures {
            let [published, here] = [(&level.baseline, &level.patch), (fixed, dont_need)]
                .map(|(old, new)| Change::of(of(old), of(new)));
            let is_same = if published.sign() == here.sign() { "same" } else { "other" };
            signs.add_row([
                level.workers.to_string(),
                name.into(),
                published.text(),
                here.text(),
                is_same.into(),
            ]);
        }
    }
    writeln!(out, "{}", signs.lines(crate::output::width()))?;
    Ok(())
}

/// One of what a run took.
type Figure = fn(&Took) -> f64;

/// From a figure to another.
struct Change {
    old: f64,
    new: f64,
}

impl Change {
    const fn of(old: f64, new: f64) -> Self {
        Self { old, new }
    }

    fn sign(&self) -> std::cmp::Ordering {
        self.new.total_cmp(&self.old)
    }

    fn text(&self) -> String {
        match self.old {
            0.0 if self.new == 0.0 => "none".into(),
            0.0 => format!("0 to {:.0}", self.new),
            old => format!("{:+.1} %", 100.0 * (self.new - old) / old),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_have_the_signs_of_the_source() {
        let texts =
            PUBLISHED.map(|level| Change::of(level.baseline.swaps as f64, level.patch.swaps as f64).text());
        assert_eq!(texts, ["none", "none", "-45.4 %", "-12.3 %"]);
        assert_eq!(Change::of(0.0, 3.0).text(), "0 to 3");
        assert!(
            PUBLISHED
                .iter()
                .all(|level| Change::of(level.baseline.real_s, level.patch.real_s).sign().is_lt())
        );
    }

    #[test]
    fn tables_have_a_row_of_each() {
        let mut out = Vec::new();
        print(&PUBLISHED.map(|level| [level.baseline, level.patch, level.patch]), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text.matches("published: patch").count(), 4);
        assert_eq!((text.matches(" same").count(), text.matches(" other").count()), (12, 0), "{text}");
    }
}
