//! `skips`: lists the tests that skipped since the log was last cleared, and fails where the machine allows one of them.
//!
//! `skips --clear` empties the log before a run.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, ExitCode};

use prepage_testing::{Need, Skipped, log_path};

fn main() -> ExitCode {
    let log = log_path();
    if std::env::args().nth(1).as_deref() == Some("--clear") {
        return match std::fs::remove_file(&log) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => failed(&log, &error),
            _ => ExitCode::SUCCESS,
        };
    }
    let skips = match Skipped::read(&log) {
        Ok(skips) => skips,
        Err(error) => return failed(&log, &error),
    };
    let mut by_need: BTreeMap<&Need, Vec<&Skipped>> = BTreeMap::new();
    for skip in &skips {
        by_need.entry(&skip.need).or_default().push(skip);
    }
    println!("tests skipped: {}", skips.len());
    let mut allowed = 0;
    for (need, skips) in by_need {
        let lacks = lacks(need);
        println!("  needs {need} ({}): {}", skips.len(), lacks.as_deref().unwrap_or("THIS MACHINE HAS IT"));
        for skip in &skips {
            println!("    {} ({}): {}", skip.test, skip.location, skip.found);
        }
        allowed += if lacks.is_none() { skips.len() } else { 0 };
    }
    if allowed > 0 {
        let (tests, need) = if allowed == 1 { ("test", "it needs") } else { ("tests", "they need") };
        println!(
            "{allowed} {tests} skipped although this machine has what {need}: the test or the code is broken"
        );
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// What shows that the machine lacks `need`; `None` where it has it.
fn lacks(need: &Need) -> Option<String> {
    match need {
        Need::Doctor(facility) => facility.lacks(&doctor()),
        _ => need.probe().err(),
    }
}

/// What `prepage doctor` reports: of the program that was built with the tests.
fn doctor() -> Vec<u8> {
    let tools = std::env::current_exe().expect("the path of this program").with_file_name("prepage-tools");
    let output = Command::new(&tools).args(["doctor", "--json"]).output();
    output.unwrap_or_else(|error| panic!("{}: {error}", tools.display())).stdout
}

fn failed(log: &Path, error: &std::io::Error) -> ExitCode {
    eprintln!("{}: {error}", log.display());
    ExitCode::FAILURE
}
