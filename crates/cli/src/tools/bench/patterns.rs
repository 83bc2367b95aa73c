//! `prepage bench patterns`: three patterns of I/O with writes and metadata, by the kernel and by the user-space VM.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_bench::patterns::{Phase, Way, pool_bytes, run as run_patterns};
use prepage_bench::pool::{enter, limit};
use prepage_bench::statistics::median;
use serde_json::json;

use super::{Setting, hand_over, result_of, worker};
use crate::output::print_json;
use crate::remedy::{Remedied, Try};
use crate::size::size;
use crate::table::table;

/// Options of `prepage bench patterns`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A memory control group of version 1 or 2 without processes and groups in it: workers enter it, and its limit is half of
    /// --size meanwhile. `make bench-patterns` makes one and removes it. Without one the VM's pool alone has a limit
    #[arg(short, long, value_name = "DIR")]
    group: Option<PathBuf>,
    /// Size of the large file
    #[arg(short, long, value_name = "SIZE", value_parser = size, default_value = "256M")]
    size: u64,
    /// Small files at the beginning; twice as many transactions
    #[arg(short, long, default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    files: u64,
    #[command(flatten)]
    setting: Setting,
}

/// One run, as [`run`] starts it.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// The control group
    #[arg(long)]
    group: Option<PathBuf>,
    directory: PathBuf,
    way: Way,
    size: u64,
    files: u64,
    /// Bytes for frames
    pool_bytes: u64,
}

/// Runs the patterns in this process.
pub fn work(args: &WorkerArgs) -> Result<ExitCode> {
    if let Some(group) = &args.group {
        enter(group).with_context(|| format!("{} cannot be entered", group.display()))?;
    }
    hand_over(&run_patterns(&args.directory, args.way, args.size, args.files, args.pool_bytes)?)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let pool_bytes = pool_bytes(args.size / 2, args.size);
    if pool_bytes < 4 << 20 {
        bail!("--size is too small: 36M at least, so that half of it holds a process and frames");
    }
    let limited = |group: &PathBuf| {
        limit(group, args.size / 2).or_try(|| {
            let what = format!("the limit of {} cannot be set", group.display());
            Remedied::new(what, "as root, with a group that nobody uses, or: make bench-patterns")
        })
    };
    let _limited = args.group.as_ref().map(limited).transpose()?;
    let mut runs: [Vec<Vec<Phase>>; 3] = Default::default();
    for round in 0..args.setting.rounds {
        let mut turns = [0, 1, 2];
        // In turns, so that what drifts meets all alike.
        turns.rotate_left(round as usize % 3);
        for at in turns {
            runs[at].push(one(args, Way::ALL[at], pool_bytes)?);
        }
    }
    let mut out = crate::output::text();
    if args.setting.json {
        let ways = Way::ALL.iter().zip(&runs);
        let ways: Vec<_> = ways.map(|(way, runs)| json!({ "way": way.name(), "runs": runs })).collect();
        let report = json!({
            "schema_version": 1,
            "file_bytes": args.size,
            "files": args.files,
            "limit_bytes": args.group.as_ref().map(|_| args.size / 2),
            "pool_bytes": pool_bytes,
            "ways": ways,
        });
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{}\n", shown(&runs))?;
    let limit = match &args.group {
        Some(_) => format!("a limit of {} MiB for all of a process", args.size >> 21),
        None => "no limit but that of the pool (see --group)".to_owned(),
    };
    writeln!(
        out,
        "operations a second; a large file of {} MiB, {} small ones, {limit}, {} MiB for the VM's frames; medians of {}",
        args.size >> 20,
        args.files,
        pool_bytes >> 20,
        args.setting.rounds
    )?;
    Ok(ExitCode::SUCCESS)
}

fn one(args: &Args, way: Way, pool_bytes: u64) -> Result<Vec<Phase>> {
    let mut command = worker("patterns-worker")?;
    if let Some(group) = &args.group {
        command.arg("--group").arg(group);
    }
    command.arg(&args.setting.directory).arg(way.name());
    command.args([args.size, args.files, pool_bytes].map(|number| number.to_string()));
    result_of(&mut command, way.name())
}

/// A row of each phase.
fn shown(runs: &[Vec<Vec<Phase>>; 3]) -> String {
    let names = ["pattern", "phase", "read-write", "mmap", "vm", "vm to read-write", "vm to mmap"];
    let mut shown = table(&names, &[2, 3, 4, 5, 6]);
    for (at, phase) in runs[0][0].iter().enumerate() {
        let rates = runs.each_ref().map(|runs| {
            let rates = runs.iter().map(|run| run[at].operations as f64 / run[at].seconds);
            median(&rates.collect::<Vec<_>>())
        });
        let [calls, _, _] = rates;
        let [_, mmap, vm] = rates;
        let cells = rates.map(|rate| format!("{rate:.0}")).into_iter();
        let ratios = [vm / calls, vm / mmap].map(|ratio| format!("{ratio:.2}"));
        let names = [phase.pattern.clone(), phase.name.clone()];
        shown.add_row(names.into_iter().chain(cells).chain(ratios));
    }
    shown.lines(crate::output::width())
}
