//! `prepage-tools`: every command of prepage but the start of programs, which `prepage` does itself.
#![forbid(unsafe_code)]

mod child;
mod learn;

use std::process::ExitCode;

use clap::Parser;

/// See every page fault, predict it, and stop programs waiting for it.
#[derive(Debug, Parser)]
#[command(name = "prepage", version, arg_required_else_help = true)]
enum Command {
    /// Learn a program exactly, in one slow run of it (root)
    Learn(learn::Args),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Learn(args) => learn::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("prepage: {error:#}");
        match error.downcast_ref::<child::NotStarted>() {
            Some(not_started) => not_started.exit_code(),
            None => child::OWN_FAILURE.into(),
        }
    })
}
