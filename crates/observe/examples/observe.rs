//! Runs a command and prints what its start used: a line a run of pages, then a summary on standard error.
//!
//! ```text
//! AGENT=build/libprepage-agent.so cargo run -p prepage-observe --example observe -- PROGRAM ARGUMENTS…
//!
//! WITHOUT_PERF=1: as where perf is forbidden. WITHOUT_AGENT=1: by visits alone.
//! ```

use std::error::Error;
use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use prepage_observe::{ObserveOptions, Observer, Until};
use prepage_sys::spawn::{HowEnded, spawn_waiting};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let command: Vec<OsString> = std::env::args_os().skip(1).collect();
    let waiting = spawn_waiting(&command)?;
    let set = |name| std::env::var_os(name).is_some();
    let options = ObserveOptions {
        program: (!set("WITHOUT_AGENT")).then(|| command[0].clone().into()),
        agent: std::env::var_os("AGENT").map(Into::into),
        without_perf: set("WITHOUT_PERF"),
        ..ObserveOptions::default()
    };
    let observer = Observer::attach(waiting.pid(), &options)?;
    let until = Until::ended_or(waiting.pid(), Duration::from_secs(30))?;
    let child = waiting.go_with(&observer.program_arguments())?;
    let observation = observer.follow(&until);
    for file in &observation.files {
        for used in &file.pages {
            let (range, rank) = (used.range, used.rank);
            let how = if used.by_read { "read" } else { "mapped" };
            let sure = if used.is_sure { "sure" } else { "near" };
            println!("{} {} {rank} {how} {sure} {}", range.start().0, range.end().0, file.path);
        }
    }
    let pages = |wanted: bool| {
        let runs = observation.files.iter().flat_map(|file| &file.pages);
        runs.filter(|used| used.is_sure == wanted).map(|used| used.range.len()).sum::<u64>()
    };
    eprintln!(
        "{} files, {} pages used, {} near them, {:?}; {} names, {:?}",
        observation.files.len(),
        pages(true),
        pages(false),
        observation.coverage,
        observation.names.len(),
        observation.names_coverage
    );
    if set("NAMES") {
        observation.names.iter().for_each(|name| println!("name {}", name.path));
    }
    observation.unseen.iter().for_each(|line| eprintln!("{line}"));
    Ok(match child.wait()?.how {
        HowEnded::Exited(code) => ExitCode::from(code as u8),
        HowEnded::Killed(_) | HowEnded::NotExecuted(_) => ExitCode::FAILURE,
    })
}
