//! `prepage bench pool`: a file twice as large as memory, by the kernel and by the user-space VM.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use prepage_bench::Subject;
use prepage_bench::pool::{Order, Served, Way, enter, limit, overhead_bytes, serve, simulated};
use prepage_bench::statistics::{known_median, median};
use prepage_core::PAGE_SIZE;
use prepage_sys::readahead::ReadAhead;
use serde_json::json;

use super::{Setting, hand_over, result_of, worker};
use crate::output::print_json;
use crate::remedy::{Remedied, Try};
use crate::size::size;
use crate::table::table;

/// Options of `prepage bench pool`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A memory control group of version 1 or 2 without processes and groups in it: workers enter it, and its limit is half of
    /// --size meanwhile. `make bench-pool` makes one and removes it
    #[arg(short, long, value_name = "DIR")]
    group: PathBuf,
    /// Size of the file
    #[arg(short, long, value_name = "SIZE", value_parser = size, default_value = "512M")]
    size: u64,
    /// Touches that are timed, after as many as make memory full
    #[arg(short, long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1000..))]
    touches: u64,
    /// Orders of touches
    #[arg(short, long, value_name = "ORDERS", value_delimiter = ',', default_value = "uniform,zipf,scan")]
    order: Vec<Order>,
    /// Ways to serve them
    #[arg(
        short,
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        default_value = "kernel-random,kernel,vm,vm-clusters,vm-default,vm-dont-need,vm-static,vm-unlimited"
    )]
    way: Vec<Way>,
    /// Threads that touch, each every so many-th pair of pages; each number has a table of its own
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=256))]
    threads: Vec<u32>,
    /// The kernel's read-ahead meanwhile, in KiB: by default what Linux has where nobody set it
    #[arg(long, value_name = "KIB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(4..=65_536))]
    read_ahead: u64,
    #[command(flatten)]
    setting: Setting,
}

/// One run, as [`run`] starts it.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// The control group
    group: PathBuf,
    /// The file
    file: PathBuf,
    way: Way,
    order: Order,
    touches: u64,
    /// Bytes for frames
    pool_bytes: u64,
    threads: u32,
}

/// All touches of a file of `pages` pages, and how many of them come before those that are timed: as many as the file has pages,
/// twice what memory holds.
fn touches(order: Order, pages: u64, timed: u64) -> (Vec<u64>, usize) {
    (order.touches(pages, pages + timed), pages as usize)
}

/// Serves the touches in this process.
pub fn work(args: &WorkerArgs) -> Result<ExitCode> {
    enter(&args.group).with_context(|| format!("{} cannot be entered", args.group.display()))?;
    let pages = std::fs::metadata(&args.file)?.len() / PAGE_SIZE;
    let (mut touches, mut before) = touches(args.order, pages, args.touches);
    if args.way == Way::VmUnlimited {
        // A quarter of the file, each page once, in the order of the others.
        let mut seen = std::collections::HashSet::new();
        touches.retain(|&page| seen.len() < pages as usize / 4 && seen.insert(page));
        before = 0;
    }
    hand_over(&serve(&args.file, args.way, args.pool_bytes, &touches, before, args.threads as usize)?)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let limit_bytes = args.size / 2;
    if limit_bytes < 4 * overhead_bytes(args.size, args.touches) {
        bail!(
            "--size is too small: half of it must be four times the memory that a process takes for other things than frames"
        );
    }
    // The guardian of the setting is a process beside this one: before there are threads.
    let read_ahead = ReadAhead::set(args.read_ahead)
        .or_try(|| Remedied::new("the kernel's read-ahead cannot be set", "as root, or: make bench-pool"))?;
    let limited = limit(&args.group, limit_bytes).or_try(|| {
        let what = format!("the limit of {} cannot be set", args.group.display());
        Remedied::new(what, "as root, with a group that nobody uses, or: make bench-pool")
    })?;
    let file = Subject::create(&args.setting.directory, args.size)?;
    let cases = cases(args);
    let mut runs: Vec<Vec<Vec<Served>>> = vec![vec![Vec::new(); args.way.len()]; cases.len()];
    for round in 0..args.setting.rounds {
        for (&(order, threads), runs) in cases.iter().zip(&mut runs) {
            // In turns, and every other round backwards, so that what drifts meets all alike.
            let mut turns: Vec<usize> = (0..args.way.len()).collect();
            if round % 2 == 1 {
                turns.reverse();
            }
            for at in turns {
                runs[at].push(one(args, &file, order, args.way[at], threads)?);
            }
        }
    }
    drop((limited, read_ahead));
    print(args, &runs)
}

/// What has a table of its own.
fn cases(args: &Args) -> Vec<(Order, u32)> {
    args.order.iter().flat_map(|&order| args.threads.iter().map(move |&threads| (order, threads))).collect()
}

/// What is left of the limit for frames.
fn pool_bytes(args: &Args) -> u64 {
    args.size / 2 - overhead_bytes(args.size, args.touches)
}

fn one(args: &Args, file: &Subject, order: Order, way: Way, threads: u32) -> Result<Served> {
    file.prepare(prepage_bench::subject::Cache::Cold)?;
    let mut command = worker("pool-worker")?;
    command.args([&args.group, file.path()]).args([way.name(), order.name()]);
    command.args([args.touches, pool_bytes(args), threads.into()].map(|number| number.to_string()));
    result_of(&mut command, &format!("{} of {}", way.name(), order.name()))
}

fn of(runs: &[Served], what: impl Fn(&Served) -> f64) -> f64 {
    median(&runs.iter().map(what).collect::<Vec<_>>())
}

/// The same of what is known of each run.
fn of_known(runs: &[Served], what: impl Fn(&Served) -> Option<f64>) -> Option<f64> {
    known_median(&runs.iter().map(what).collect::<Vec<_>>())
}

fn print(args: &Args, runs: &[Vec<Vec<Served>>]) -> Result<ExitCode> {
    let mut out = crate::output::text();
    let pages = args.size / PAGE_SIZE;
    let frames = pool_bytes(args) / PAGE_SIZE;
    let mut reports = Vec::new();
    for ((order, threads), runs) in cases(args).into_iter().zip(runs) {
        let (touches, before) = touches(order, pages, args.touches);
        let simulated = simulated(&touches, before, frames);
        if args.setting.json {
            let rows: Vec<_> = args
                .way
                .iter()
                .zip(runs)
                .map(|(way, runs)| json!({ "way": way.name(), "runs": runs }))
                .collect();
            let simulated: serde_json::Map<_, _> =
                simulated.iter().map(|(rule, misses)| ((*rule).to_owned(), json!(misses))).collect();
            reports.push(json!({ "order": order.name(), "threads": threads, "ways": rows, "simulated_misses": simulated }));
            continue;
        }
        let names = ["way", "touches/s", "misses", "of touches %", "cpu s", "rewired", "waits", "p99 µs"];
        let mut shown = table(&names, &[1, 2, 3, 4, 5, 6, 7]);
        let known = |figure: Option<f64>| figure.map_or("-".to_owned(), |figure| format!("{figure:.0}"));
        for (way, runs) in args.way.iter().zip(runs) {
            let misses = of(runs, |served| served.misses as f64);
            let count = if *way == Way::VmUnlimited { misses } else { args.touches as f64 };
            shown.add_row([
                way.name().to_owned(),
                format!("{:.0}", count / of(runs, |served| served.seconds)),
                format!("{misses:.0}"),
                format!("{:.1}", 100.0 * misses / count),
                format!("{:.2}", of(runs, |served| served.cpu_seconds)),
                known(of_known(runs, |served| served.rewired.map(|count| count as f64))),
                known(of_known(runs, |served| served.frame_waits.map(|count| count as f64))),
                known(of_known(runs, |served| served.p99_us)),
            ]);
        }
        let simulated = simulated.map(|(rule, misses)| format!("{rule} {misses}")).join(", ");
        writeln!(
            out,
            "{}, threads: {threads}\n\n{}\n\nsimulated misses: {simulated}\n",
            order.name(),
            shown.lines(crate::output::width())
        )?;
        let p99_us = |of_way: Way| {
            let at = args.way.iter().position(|way| *way == of_way)?;
            of_known(&runs[at], |served| served.p99_us)
        };
        if let (Some(under), Some(without)) = (p99_us(Way::Vm), p99_us(Way::VmUnlimited)) {
            writeln!(
                out,
                "p99 of a fault that reads: {under:.0} µs under pressure, {without:.0} µs without, {:.2} of that (aim: 3)\n",
                under / without
            )?;
        }
    }
    if args.setting.json {
        let report = json!({
            "schema_version": 1,
            "file_bytes": args.size,
            "limit_bytes": args.size / 2,
            "pool_bytes": frames * PAGE_SIZE,
            "touches": args.touches,
            "orders": reports,
        });
        print_json(&report)?;
    } else {
        writeln!(
            out,
            "a file of {} MiB, a limit of {} MiB for all of a process, of it {} MiB for frames; medians of {}",
            args.size >> 20,
            args.size >> 21,
            (frames * PAGE_SIZE) >> 20,
            args.setting.rounds
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
