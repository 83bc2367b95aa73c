//! `prepage-tools`: every command of prepage but the start of programs, which `prepage` does itself.
#![forbid(unsafe_code)]
// They panic where nobody reads.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod say;

mod bench;
mod calibrate;
mod child;
mod completion;
mod config;
mod desktop;
mod diff;
mod doctor;
mod enable;
mod evict;
mod examples;
mod export;
mod help;
mod import;
mod learn;
mod man;
mod measure;
mod missing;
mod newest;
mod output;
mod profile;
mod read_ahead;
mod record;
mod remedy;
mod report;
mod residency;
mod run;
mod service;
mod simulate;
mod size;
mod starter;
mod status;
mod stores;
mod table;
mod targets;
mod usage;
mod vm;
mod warm;

use std::process::ExitCode;

use anyhow::Result;
use clap::{FromArgMatches, Parser};

/// See every page fault, predict it, and stop programs waiting for it.
#[derive(Debug, Parser)]
#[command(name = "prepage", bin_name = "prepage", version, arg_required_else_help = true)]
enum Command {
    /// Start a program and prefetch the pages it will need; learn from the start
    Run(run::Args),
    /// Prefetch programs each time they are started by name or from menus
    Enable(enable::EnableArgs),
    /// Undo what `enable` did
    Disable(enable::DisableArgs),
    /// Show the configuration in force, and which file set it
    Config(config::Args),
    /// Learn a program now, in one observed run of it
    ///
    /// It is learned whatever the configuration says of learning, and of programs to leave alone.
    Learn(learn::Args),
    /// Measure what prefetching gains for a command: cold, prefetched, warm
    Measure(measure::Args),
    /// List, show and remove what was learned; embed it in files; carry it to other machines
    #[command(subcommand)]
    Profile(profile::Command),
    /// Show what the service knows, does and gains
    Status(status::Args),
    /// Install or remove the service, which prefetches every program of the machine
    #[command(subcommand)]
    Service(service::Command),
    /// Check what this kernel and user allow, and how to get what is missing
    Doctor(doctor::Args),
    /// Record the page faults of a command, of running processes or of the machine
    Record(record::Args),
    /// Summarize a trace: classes, files, threads, costs, the slowest faults
    Report(report::Args),
    /// Compare two traces, by class and by file
    Diff(diff::Args),
    /// Convert a trace for Perfetto, the Firefox Profiler, flame graphs, spreadsheets
    Export(export::Args),
    /// Convert the page faults that perf recorded (perf.data) to a trace
    Import(import::Args),
    /// Show which pages of files are in memory
    Residency(residency::Args),
    /// Read pages of files into memory
    Warm(warm::Args),
    /// Drop pages of files from memory; say which pages stay, and why
    Evict(evict::Args),
    /// Look at processes that use the user-space VM
    #[command(subcommand)]
    Vm(vm::Command),
    /// Replay a trace under other clustering policies and on other devices
    Simulate(simulate::Args),
    /// Repeat published experiments with page faults, files and program starts
    #[command(subcommand)]
    Bench(bench::Command),
    /// Measure a disk: latency, bandwidth, how many concurrent reads make it faster
    Calibrate(calibrate::Args),
    /// Write the manual pages
    #[command(hide = true)]
    Man(man::Args),
}

fn main() -> ExitCode {
    prepage_sys::exec::hear_of_children();
    run().unwrap_or_else(|error| {
        if output::is_unread(&error) {
            return ExitCode::SUCCESS;
        }
        remedy::say("", &error);
        child::code_of(&error)
    })
}

fn run() -> Result<ExitCode> {
    if completion::answer()? {
        return Ok(ExitCode::SUCCESS);
    }
    let matches = help::command().try_get_matches_from(help::arguments(std::env::args_os()));
    let command = match matches.and_then(|matches| Command::from_arg_matches(&matches)) {
        Ok(command) => command,
        // Help or the version was asked for.
        Err(asked) if !asked.use_stderr() => {
            output::by_others(asked.print())?;
            return Ok(ExitCode::SUCCESS);
        }
        Err(wrong) => usage::refuse(wrong),
    };
    match command {
        Command::Run(_) => {
            Err(anyhow::anyhow!("`run` is a command of the prepage binary, not of prepage-tools"))
        }
        Command::Enable(args) => enable::enable(&args),
        Command::Disable(args) => enable::disable(&args),
        Command::Config(args) => config::run(&args),
        Command::Learn(args) => learn::run(&args),
        Command::Record(args) => record::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Measure(args) => measure::run(&args),
        Command::Simulate(args) => simulate::run(args),
        Command::Residency(args) => residency::run(&args),
        Command::Warm(args) => warm::run(&args),
        Command::Evict(args) => evict::run(&args),
        Command::Calibrate(args) => calibrate::run(&args),
        Command::Bench(command) => bench::run(&command),
        Command::Profile(command) => profile::run(&command),
        Command::Status(args) => status::run(&args),
        Command::Service(command) => service::run(&command),
        Command::Vm(command) => vm::run(&command),
        Command::Doctor(args) => doctor::run(&args),
        Command::Man(args) => man::run(&args),
    }
}
