//! A build of a generated C project of fixed size in memory, and what share of it the kernel takes.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use prepage_sys::process_stat::ProcessStat;

use super::seconds;

/// Functions of each file.
const FUNCTIONS: usize = 40;

/// What one build took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Built {
    /// Seconds by the clock.
    pub real_s: f64,
    /// Seconds of processor time in the programs' own code.
    pub user_s: f64,
    /// Seconds of processor time in the kernel.
    pub system_s: f64,
}

impl Built {
    /// The kernel's share of the processor time, in percent.
    pub fn system_percent(&self) -> f64 {
        100.0 * self.system_s / (self.user_s + self.system_s)
    }
}

/// Writes the project's sources, `files` of them, into `directory`.
///
/// # Errors
/// When they cannot be written.
pub fn generate(directory: &Path, files: usize) -> io::Result<Vec<PathBuf>> {
    (0..files)
        .map(|file| {
            let mut text = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n");
            for function in 0..FUNCTIONS {
                let number = file * FUNCTIONS + function;
                writeln!(
                    text,
                    "int f{number}(int a, int b) {{ int s = 0; for (int i = 0; i < a; i++) {{ s += (i * {number}) ^ b; \
                     if (s % {} == 3) s -= b; }} return s; }}",
                    number + 7
                )
                .expect("a string takes all text");
            }
            if file == 0 {
                text.push_str("int main(int c, char **v) { return f0(c, 1) == 12345; }\n");
            }
            let path = directory.join(format!("part{file}.c"));
            fs::write(&path, text).map(|()| path)
        })
        .collect()
}

/// Compiles `sources` with gcc on `workers` threads, and links them.
///
/// # Errors
/// When gcc is missing or fails.
pub fn build(sources: &[PathBuf], workers: usize) -> io::Result<Built> {
    let next = AtomicUsize::new(0);
    let before = ProcessStat::of(std::process::id())?;
    let mut result = Ok(());
    let real_s = seconds(|| {
        let compiled: io::Result<()> = thread::scope(|scope| {
            let work = || -> io::Result<()> {
                while let Some(source) = sources.get(next.fetch_add(1, Ordering::Relaxed)) {
                    gcc(Command::new("gcc").args(["-O2", "-c", "-o"]).arg(object(source)).arg(source))?;
                }
                Ok(())
            };
            let threads: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("a worker does not panic"))
        });
        let program = sources[0].with_file_name("program");
        result = compiled
            .and_then(|()| gcc(Command::new("gcc").arg("-o").arg(program).args(sources.iter().map(object))));
    });
    result?;
    let after = ProcessStat::of(std::process::id())?;
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    let seconds = |before: u64, after: u64| (after - before) as f64 / per_second;
    Ok(Built {
        real_s,
        user_s: seconds(before.children_user_ticks, after.children_user_ticks),
        system_s: seconds(before.children_system_ticks, after.children_system_ticks),
    })
}

fn object(source: impl AsRef<Path>) -> PathBuf {
    source.as_ref().with_extension("o")
}

fn gcc(command: &mut Command) -> io::Result<()> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!("gcc failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_builds_and_its_time_is_that_of_the_compilers() {
        if !prepage_testing::has(prepage_testing::Need::Tool("gcc".into())) {
            return;
        }
        let directory = tempfile::tempdir().expect("a directory");
        let sources = generate(directory.path(), 2).expect("sources");
        let built = build(&sources, 2).expect("a build");
        assert!(built.user_s > 0.0 && (0.0..100.0).contains(&built.system_percent()), "{built:?}");
        assert!(Command::new(directory.path().join("program")).status().expect("the program").success());
        fs::write(&sources[1], "not C").expect("written");
        let error = build(&sources, 2).expect_err("gcc refuses it");
        assert!(error.to_string().contains("gcc failed"), "{error}");
    }
}
