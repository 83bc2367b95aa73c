//! `prepage doctor`: what this kernel and user allow, and the remedy for each thing missing.

mod checks;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use checks::{Check, State, examine};
use serde::Serialize;

use crate::output::print_json;

/// Options of `prepage doctor`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report<'a> {
    schema_version: u32,
    kernel: String,
    user: u32,
    checks: &'a [Check],
}

/// Runs the command. Fails when `prepage run` could not do its work.
pub fn run(args: &Args) -> Result<ExitCode> {
    let checks = examine();
    let report = Report {
        schema_version: 1,
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        user: rustix::process::geteuid().as_raw(),
        checks: &checks,
    };
    let mut out = crate::output::text();
    let printed = if args.json { print_json(&report) } else { print(&report, &mut out) };
    if let Err(error) = printed
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        return Err(error.into());
    }
    let broken = checks.iter().any(|check| check.essential && check.state == State::Missing);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn print(report: &Report<'_>, out: &mut impl Write) -> std::io::Result<()> {
    let user = if report.user == 0 { "root".into() } else { format!("user {}", report.user) };
    writeln!(out, "Linux {}, {user}", report.kernel)?;
    let longest = report.checks.iter().map(|check| check.name.len()).max().unwrap_or(0);
    for check in report.checks {
        let state = match check.state {
            State::Ok => "ok",
            State::Limited => "limited",
            State::Missing => "missing",
        };
        writeln!(out, "{state:8} {:longest$} {}", check.name, check.found)?;
        if let Some(remedy) = &check.remedy {
            writeln!(out, "{:8} {:longest$} try: {remedy}", "", "")?;
        }
    }
    Ok(())
}
