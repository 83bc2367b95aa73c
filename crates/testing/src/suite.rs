//! `suite`: runs `cargo test` with its own arguments, and a test that failed once more, alone.
//!
//! Most tests here ask the real kernel and share the machine with others that run meanwhile. A test that fails among
//! others and passes alone is *unsteady*: it is listed at the end, to be mended, and does not fail the run. One that
//! fails alone too does, and so do more than [`UNSTEADY_MAX`], which chance does not explain.

use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::process::{Command, ExitCode, ExitStatus};

use prepage_testing::{Failed, Failures};

/// More than these failed for one reason.
const UNSTEADY_MAX: usize = 5;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("suite: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> io::Result<ExitCode> {
    let mut failures = Failures::default();
    let status = cargo_test(&[arguments, &["--no-fail-fast".into()]].concat(), |line| failures.line(line))?;
    if status.success() {
        return Ok(ExitCode::SUCCESS);
    }
    let count: usize = failures.by_target.iter().map(|failed| failed.tests.len().max(1)).sum();
    if count == 0 || count > UNSTEADY_MAX {
        return Ok(ExitCode::FAILURE);
    }
    println!("\n{count} failed among others; once more, alone:");
    for failed in &failures.by_target {
        if !passes_alone(failed)? {
            return Ok(ExitCode::FAILURE);
        }
    }
    println!("unsteady tests: {count}");
    for failed in &failures.by_target {
        println!("  {}: {}", failed.target.join(" "), failed.tests.join(", "));
    }
    Ok(ExitCode::SUCCESS)
}

fn passes_alone(failed: &Failed) -> io::Result<bool> {
    let alone = ["--".into(), "--test-threads=1".into(), "--exact".into()];
    // Of the workspace, where `-p` would choose other features of its dependencies and compile them anew.
    let target = failed.target.iter().skip_while(|argument| *argument != "-p").skip(2).cloned().collect();
    let workspace = vec!["--locked".into(), "--workspace".into()];
    let arguments = [workspace, target, alone.into(), failed.tests.clone()].concat();
    // A name that no longer fits runs no test, and proves nothing.
    let mut passed = 0;
    let status = cargo_test(&arguments, |line| {
        passed += usize::from(line.starts_with("test ") && line.ends_with(" ... ok"));
    })?;
    Ok(status.success() && passed >= failed.tests.len().max(1))
}

/// Runs `cargo test`. What it prints is passed on, line by line, and shown to `see`.
fn cargo_test(arguments: &[String], mut see: impl FnMut(&str)) -> io::Result<ExitStatus> {
    let (printed, writer): (PipeReader, _) = io::pipe()?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("test").args(arguments).stdout(writer.try_clone()?).stderr(writer);
    let mut child = cargo.spawn()?;
    // Holds the pipe's other end.
    drop(cargo);
    let mut out = io::stdout();
    for line in BufReader::new(printed).split(b'\n') {
        let line = line?;
        out.write_all(&line)?;
        out.write_all(b"\n")?;
        see(&String::from_utf8_lossy(&line));
    }
    child.wait()
}
