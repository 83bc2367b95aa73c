//! `prepage vm`: processes that use the user-space VM.

mod top;

use std::process::ExitCode;

use anyhow::Result;

/// Commands of `prepage vm`.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show the memory of your running processes that use prepage-vm
    ///
    /// It shows what their pools hold, and how many faults and reads there were. On a terminal the table is drawn again every second until Ctrl-C, and
    /// its counts are per second. Elsewhere it is printed once, and its counts are since the VMs were made.
    Top(top::Args),
}

/// Runs the command.
pub fn run(command: &Command) -> Result<ExitCode> {
    match command {
        Command::Top(args) => top::run(args),
    }
}
