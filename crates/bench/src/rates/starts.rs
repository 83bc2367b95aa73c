//! How many programs that do nothing can be started and waited for a second.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use prepage_sys::clock::now_ns;
use prepage_sys::start_ways::StartWay;

use crate::error::{BenchError, failed};

/// A program that does nothing.
const NOTHING: &str = "int main(void) { return 0; }\n";

prepage_core::named! {
    /// How the program is linked, and how many files there are of it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Linked {
        /// Dynamically: all workers start the same file, and share the C library.
        SharedDynamic = "one dynamic program",
        /// Statically: each worker starts a file of its own.
        OwnStatic = "static programs",
    }
}

/// Makes `copies` programs in `directory`: one file for [`Linked::SharedDynamic`].
///
/// # Errors
/// Without gcc or its libraries.
pub fn programs(directory: &Path, linked: Linked, copies: usize) -> Result<Vec<PathBuf>, BenchError> {
    let work = || failed(format!("workers cannot be started in {}", directory.display()));
    let source = directory.join("nothing.c");
    fs::write(&source, NOTHING).map_err(work())?;
    let first = directory.join(if linked == Linked::OwnStatic { "static-0" } else { "dynamic" });
    let mut gcc = Command::new("gcc");
    gcc.arg("-O2").args((linked == Linked::OwnStatic).then_some("-static"));
    let unmade = format!("gcc cannot make a {} that does nothing", linked.name());
    let output = gcc.arg("-o").arg(&first).arg(&source).output().map_err(failed(&*unmade))?;
    if !output.status.success() {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(BenchError::Void(format!("{unmade}: {}", reason.trim())));
    }
    let mut programs = vec![first];
    if linked == Linked::OwnStatic {
        for copy in 1..copies {
            let path = directory.join(format!("static-{copy}"));
            fs::copy(&programs[0], &path).map_err(work())?;
            programs.push(path);
        }
    }
    Ok(programs)
}

/// Starts a second of `workers` processes together, each of which starts a program of `programs` again and again for
/// `duration`. `worker` is a command that calls [`work`], with the name of the way, the milliseconds and the program
/// behind it. All begin at one moment, and the time counts until the last has ended.
///
/// # Errors
/// A worker that could not be started, or failed.
pub fn concurrently(
    worker: &[OsString],
    way: StartWay,
    programs: &[PathBuf],
    workers: usize,
    duration: Duration,
) -> Result<f64, BenchError> {
    let unstarted = || failed(format!("workers cannot be started in {}", programs[0].display()));
    let (held, hold) = io::pipe().map_err(unstarted())?;
    let start = |number: usize| {
        let mut child = Command::new(&worker[0])
            .args(&worker[1..])
            .args([way.name(), &duration.as_millis().to_string()])
            .arg(&programs[number % programs.len()])
            .stdin(held.try_clone()?)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let said = BufReader::new(child.stdout.take().expect("a pipe"));
        io::Result::Ok((child, said))
    };
    let mut children = (0..workers).map(start).collect::<Result<Vec<_>, _>>().map_err(unstarted())?;
    for (_, said) in &mut children {
        // One that fails says so below.
        said.read_line(&mut String::new()).map_err(unstarted())?;
    }
    let began_ns = now_ns();
    drop(hold);
    let (mut starts, mut ended_ns) = (0, began_ns + 1);
    for (child, mut said) in children {
        let mut line = String::new();
        said.read_line(&mut line).map_err(unstarted())?;
        let output = child.wait_with_output().map_err(unstarted())?;
        let counted =
            line.trim().split_once(' ').and_then(|(count, at)| Some((count.parse().ok()?, at.parse().ok()?)));
        let Some((count, at_ns)) = counted.filter(|_: &(u64, u64)| output.status.success()) else {
            let reason = String::from_utf8_lossy(&output.stderr);
            let failure = format!("a worker that starts programs failed: {}", reason.trim());
            return Err(BenchError::Void(failure));
        };
        starts += count;
        ended_ns = at_ns.max(ended_ns);
    }
    Ok(starts as f64 / Duration::from_nanos(ended_ns - began_ns).as_secs_f64())
}

/// What a worker of [`concurrently`] does: says on `out` that it is there, waits for the end of `held`, and says how many starts it
/// counted until when, in nanoseconds of CLOCK_MONOTONIC.
///
/// # Errors
/// When a program cannot be started, and where nobody listens.
pub fn work(
    way: StartWay,
    program: PathBuf,
    duration: Duration,
    mut held: impl Read,
    mut out: impl Write,
) -> io::Result<()> {
    writeln!(out, "ready")?;
    out.flush()?;
    held.read_to_end(&mut Vec::new())?;
    let starts = count(way, program, duration)?;
    writeln!(out, "{starts} {}", now_ns())
}

/// Starts `program` again and again for `duration`, and returns how often: once at least, on a machine that is busy for so long. Fails where it cannot be
/// started, or does not end with 0.
fn count(way: StartWay, program: PathBuf, duration: Duration) -> io::Result<u64> {
    let program = CString::new(program.into_os_string().into_vec())?;
    let begun = Instant::now();
    let mut starts = 0;
    loop {
        let status = way.run(&program)?;
        if status != 0 {
            return Err(io::Error::other(format!("the program ended with status {status:#x}")));
        }
        starts += 1;
        if begun.elapsed() >= duration {
            return Ok(starts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_are_counted_and_failures_are_none() {
        for way in StartWay::ALL {
            assert!(count(way, "/bin/true".into(), Duration::from_millis(20)).expect("starts") > 0);
            assert!(count(way, "/bin/false".into(), Duration::from_millis(20)).is_err(), "{}", way.name());
        }
    }

    #[test]
    fn each_worker_has_a_static_program_of_its_own() {
        if !prepage_testing::has(prepage_testing::Need::Tool("gcc".into())) {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let own = programs(directory.path(), Linked::OwnStatic, 3).expect("static programs");
        let shared = programs(directory.path(), Linked::SharedDynamic, 3).expect("a dynamic program");
        assert_eq!((own.len(), shared.len()), (3, 1));
        let bytes = own.iter().chain(&shared).map(|path| fs::metadata(path).expect("a file").len());
        let bytes: Vec<u64> = bytes.collect();
        assert!(bytes[0] == bytes[2] && bytes[0] > 10 * bytes[3], "{bytes:?}");
    }
}
