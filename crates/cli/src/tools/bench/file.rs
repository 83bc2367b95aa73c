//! `prepage bench file`: the experiments of a page-fault study, side by side with what it published.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use prepage_bench::experiment::spread;
use prepage_bench::page::{self, Facts, Shown};
use prepage_bench::{Cache, Experiment, Pattern, STUDY_PAGES, Subject, figure, mapped_pages};
use prepage_core::PAGE_SIZE;
use prepage_sys::mounts::{Mount, mount_of};
use prepage_sys::readahead;

use super::report;
use crate::output::replace;
use crate::read_ahead::{read_ahead_kib, set_read_ahead};
use crate::size::size_above_zero;

/// Options of `prepage bench file`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Orders in which the bytes are read: random, sequential, stride-SIZE [default: those of the study]
    #[arg(short, long, value_name = "PATTERN", value_delimiter = ',')]
    pattern: Vec<Pattern>,
    /// State of the page cache when a run begins
    #[arg(short, long, value_enum, default_value = "both")]
    cache: Caches,
    /// Size of the file [default: 11300 pages, as in the study]
    #[arg(short, long, value_name = "SIZE", value_parser = size_above_zero, conflicts_with = "file")]
    size: Option<u64>,
    /// Directory for the file, on the disk to be measured
    #[arg(short, long, value_name = "DIR", default_value = "/var/tmp", conflicts_with = "file")]
    directory: PathBuf,
    /// Read this file instead of making one
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Read-ahead of all disks during the runs, as in 128k; restored afterwards (root) [default: as found]
    #[arg(short, long, value_name = "SIZE", value_parser = read_ahead_kib)]
    read_ahead: Option<u64>,
    /// Runs of each experiment, each with a random order of its own; the run of median cost is shown, of an even
    /// number the cheaper of the two in the middle
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Also count the pages that each fault maps (one more run of each experiment)
    #[arg(long)]
    fault_around: bool,
    /// Write tables and figures as one HTML file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each figure as an SVG file into DIR
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Caches {
    /// Nothing of the file
    Cold,
    /// All of it
    Warm,
    /// Each in turn
    Both,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    // Before the first thread is started, and in force until all is done.
    let _read_ahead = args.read_ahead.map(set_read_ahead).transpose()?;
    let mount = mount_under(args.file.as_deref().unwrap_or(&args.directory));
    let read_ahead_kib = mount.as_ref().and_then(readahead::of_mount);
    let read_ahead_kib = read_ahead_kib.map_or_else(readahead::in_force, |kib| vec![kib]);
    let subject = match &args.file {
        Some(path) => Subject::open(path),
        None => Subject::create(&args.directory, args.size.unwrap_or(STUDY_PAGES * PAGE_SIZE)),
    }?;
    let program = [std::env::current_exe()?.into_os_string(), "bench".into(), "access".into()];
    let experiments = experiments(args);
    let mut runs = vec![Vec::new(); experiments.len()];
    // Round by round, so that what else the machine does meets all experiments alike.
    for round in 1..=args.rounds {
        for (experiment, runs) in experiments.iter().zip(&mut runs) {
            let Experiment { pattern, cache } = experiment;
            say!("prepage: round {round} of {}: {pattern}, {}", args.rounds, cache.name());
            runs.push(experiment.run(&subject, &program, round.into())?);
        }
    }
    let mut shown = Vec::new();
    for (experiment, mut runs) in experiments.into_iter().zip(runs) {
        let disk_counts = spread(&runs);
        runs.sort_by_key(|run| run.tally(None).cost_ns);
        let run = runs.swap_remove((runs.len() - 1) / 2);
        let mapped = if args.fault_around {
            say!("prepage: counting mapped pages: {}, {}", experiment.pattern, experiment.cache.name());
            Some(mapped_pages(experiment, &subject, 1)?)
        } else {
            None
        };
        shown.push(Shown { run, rounds: args.rounds, disk_counts, mapped });
    }
    let facts = Facts {
        pages: subject.pages(),
        accesses: subject.size_bytes(),
        read_ahead_kib,
        read_ahead_set: args.read_ahead.is_some(),
        file_system: mount.map_or_else(String::new, |mount| format!("{} on {}", mount.kind, mount.source)),
        probe_cost_ns: shown.first().and_then(|one| one.run.facts.probe_cost_ns),
    };
    if let Some(path) = &args.html {
        replace(path, |out| page::write(&facts, &shown, out))?;
    }
    if let Some(directory) = &args.svg {
        fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
        for one in &shown {
            let Experiment { pattern, cache } = one.run.experiment;
            let name = format!("{pattern}-{}.svg", cache.name());
            let drawn = figure::pair(&one.run, facts.pages);
            replace(&directory.join(name), |out| out.write_all(drawn.as_bytes()))?;
        }
    }
    if args.json {
        report::json(&facts, &shown)?
    } else {
        report::print(&facts, &shown)?
    }
    Ok(ExitCode::SUCCESS)
}

fn experiments(args: &Args) -> Vec<Experiment> {
    let patterns = if args.pattern.is_empty() { Pattern::STUDY.to_vec() } else { args.pattern.clone() };
    let caches: &[Cache] = match args.cache {
        Caches::Cold => &[Cache::Cold],
        Caches::Warm => &[Cache::Warm],
        Caches::Both => &[Cache::Cold, Cache::Warm],
    };
    let of = |pattern| caches.iter().map(move |&cache| Experiment { pattern, cache });
    patterns.into_iter().flat_map(of).collect()
}

/// The mount that `path` lies on.
fn mount_under(path: &Path) -> Option<Mount> {
    mount_of(&path.canonicalize().ok()?)
}
