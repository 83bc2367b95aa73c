//! `prepage vm`: processes that use the user-space VM.

mod top;

use std::process::ExitCode;

use anyhow::Result;

/// Commands of `prepage vm`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the memory of your running processes that use prepage-vm
    Top(top::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Top(args) => top::run(args),
    }
}
