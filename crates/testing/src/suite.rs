//! `suite`: runs `cargo test` with its own arguments, and a test that failed some times more, alone.
//!
//! Most tests here ask the real kernel and share the machine with others that run meanwhile. A test that fails among
//! others and passes alone each time is *unsteady*: it is listed at the end, to be mended, and does not fail the run. What fails the run is
//! a test that fails alone too, more than [`UNSTEADY_MAX`], which chance does not explain, a program of tests that a signal ended or that
//! does not say which tests failed, and silence: what hangs is ended after [`SILENCE_MAX`].

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, PipeReader, Write};
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use prepage_testing::{Failed, Failures};
use rustix::process::{Pid, Signal, kill_process};

/// More than these failed for one reason.
const UNSTEADY_MAX: usize = 5;
/// So often the tests of a target are run alone: of those that fail every second time one in 256 passes each time.
const RUNS_ALONE: u32 = 8;
/// After so long they are not run again: all of a run has to end in time.
const ALONE_MAX: Duration = Duration::from_secs(120);
/// Longer than any compilation or test says nothing. `PREPAGE_SUITE_SILENCE_S` is another time, in seconds.
const SILENCE_MAX: Duration = Duration::from_secs(600);

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
    let Some(failed) = failures.all() else {
        println!("\nnot all that failed is known by its tests: nothing is run once more");
        return Ok(ExitCode::FAILURE);
    };
    let count: usize = failed.iter().map(|failed| failed.tests.len()).sum();
    if count > UNSTEADY_MAX {
        return Ok(ExitCode::FAILURE);
    }
    println!("\n{count} failed among others; once more, alone:");
    for failed in failed {
        let began = Instant::now();
        for run in 0..RUNS_ALONE {
            if run > 0 && began.elapsed() > ALONE_MAX {
                break;
            }
            if !passes_alone(failed)? {
                return Ok(ExitCode::FAILURE);
            }
        }
    }
    println!("unsteady tests: {count}");
    for failed in failed {
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
        let count =
            line.strip_prefix("test result: ok. ").and_then(|rest| rest.split(' ').next()?.parse().ok());
        passed += count.unwrap_or(0);
    })?;
    Ok(status.success() && passed >= failed.tests.len())
}

/// Runs `cargo test`. What it prints is passed on, line by line, and shown to `see`.
///
/// # Errors
/// TimedOut where nothing was printed for too long; all is ended then.
fn cargo_test(arguments: &[String], mut see: impl FnMut(&str)) -> io::Result<ExitStatus> {
    let silence_max = std::env::var("PREPAGE_SUITE_SILENCE_S").ok().and_then(|text| text.parse().ok());
    let silence_max = silence_max.map_or(SILENCE_MAX, Duration::from_secs);
    let (printed, writer): (PipeReader, _) = io::pipe()?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.arg("test").args(arguments).stdout(writer.try_clone()?).stderr(writer);
    let mut child = cargo.spawn()?;
    // Holds the pipe's other end.
    drop(cargo);
    let (tell, lines) = mpsc::channel();
    std::thread::spawn(move || BufReader::new(printed).split(b'\n').try_for_each(|line| tell.send(line)));
    let mut out = io::stdout();
    loop {
        match lines.recv_timeout(silence_max) {
            Ok(line) => {
                let line = line?;
                out.write_all(&line)?;
                out.write_all(b"\n")?;
                see(&String::from_utf8_lossy(&line));
            }
            Err(RecvTimeoutError::Disconnected) => return child.wait(),
            Err(RecvTimeoutError::Timeout) => {
                let ended = end(&mut child)?;
                let text =
                    format!("nothing was said for {} s; ended: {}", silence_max.as_secs(), ended.join(", "));
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
        }
    }
}

/// Ends `child` and all that it has started; their names.
fn end(child: &mut Child) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let mut found = vec![child.id()];
    let parents = parents()?;
    while let Some(pid) = found.pop() {
        found.extend(parents.iter().filter(|(_, parent)| **parent == pid).map(|(child, _)| *child));
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        names.push(format!("{} ({pid})", name.trim()));
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    child.wait()?;
    Ok(names)
}

/// All processes, each with the one that started it or took it over.
fn parents() -> io::Result<BTreeMap<u32, u32>> {
    let parent = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?;
        Some((pid, parent.trim().parse().ok()?))
    };
    let entries = std::fs::read_dir("/proc")?.map_while(Result::ok);
    Ok(entries.filter_map(|entry| parent(entry.file_name().to_str()?.parse().ok()?)).collect())
}
