//! `prepage-tools`: every command of prepage but the start of programs, which `prepage` does itself.
#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod child;
mod diff;
mod doctor;
mod evict;
mod export;
mod import;
mod learn;
mod measure;
mod output;
mod profile;
mod record;
mod remedy;
mod report;
mod residency;
mod run;
mod simulate;
mod table;
mod targets;
mod warm;

use std::process::ExitCode;

use clap::Parser;

/// See every page fault, predict it, and stop programs waiting for it.
#[derive(Debug, Parser)]
#[command(name = "prepage", bin_name = "prepage", version, arg_required_else_help = true)]
enum Command {
    /// Start a program with the pages it will need already on their way
    Run(run::Args),
    /// Learn a program exactly, in one slow run of it (root)
    Learn(learn::Args),
    /// Record every page fault of a command, of running processes or of the machine
    Record(record::Args),
    /// Make a trace of page faults that perf recorded (perf.data)
    Import(import::Args),
    /// Say what a trace tells: classes, files, threads, costs, the dearest faults
    Report(report::Args),
    /// Write a trace for other tools: Perfetto, the Firefox Profiler, flame graphs, spreadsheets
    Export(export::Args),
    /// Compare two traces: what changed, by class and by file
    Diff(diff::Args),
    /// Measure what prefetching gains for a command: cold, prefetched, warm
    Measure(measure::Args),
    /// Replay a trace under other clustering policies and on other devices
    Simulate(simulate::Args),
    /// Show which pages of files are in memory
    Residency(residency::Args),
    /// Bring pages of files into memory
    Warm(warm::Args),
    /// Send pages of files out of memory, and say what stays and why
    Evict(evict::Args),
    /// Measure the device that programs lie on: latency, bandwidth, how many reads at once
    Calibrate(calibrate::Args),
    /// Experiments with the page cache
    #[command(subcommand)]
    Bench(bench::Command),
    /// What was learned: look at it, remove it, put it into files, carry it to other machines
    #[command(subcommand)]
    Profile(profile::Command),
    /// Say what this kernel and user allow, and what to do about the rest
    Doctor(doctor::Args),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Run(_) => {
            Err(anyhow::anyhow!("`run` is a command of the prepage binary, not of prepage-tools"))
        }
        Command::Learn(args) => learn::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Measure(args) => measure::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Residency(args) => residency::run(&args),
        Command::Warm(args) => warm::run(&args),
        Command::Evict(args) => evict::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Bench(command) => bench::run(&command),
        Command::Profile(command) => profile::run(&command),
        Command::Doctor(args) => doctor::run(&args),
    };
    result.unwrap_or_else(|error| {
        if is_broken_pipe(&error) {
            return ExitCode::SUCCESS;
        }
        eprintln!("prepage: {error:#}");
        if let Some(remedy) = remedy::remedy(&error) {
            eprintln!("  try: {remedy}");
        }
        match error.downcast_ref::<child::NotStarted>() {
            Some(not_started) => not_started.exit_code(),
            None => child::OWN_FAILURE.into(),
        }
    })
}

/// Whether `error` only says that nobody reads on.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let kind = match cause.downcast_ref::<serde_json::Error>() {
            Some(json) => json.io_error_kind(),
            None => cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind),
        };
        kind == Some(std::io::ErrorKind::BrokenPipe)
    })
}
