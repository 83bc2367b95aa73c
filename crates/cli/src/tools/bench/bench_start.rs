//! What `bench modes`, `bench sweep` and `bench yardstick` have in common: a program that is known and can be started.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use prepage_bench::block_reads::BlockReads;
use prepage_bench::early_fault::{EarlyFault, library_beside};
use prepage_bench::modes::silently;
use prepage_bench::start::Bench;
use prepage_bench::yardstick::{Yardstick, learn_exactly};
use prepage_core::PAGE_SIZE;
use prepage_core::quantity::counted;
use prepage_profiles::{ProgramKey, Stores};
use prepage_residency::cold::Chill;
use prepage_sys::beside::adopt_orphans;

use crate::child::not_started;
use crate::starter::starter;

/// A program to be started, and the directory where its profile lies if no other was named.
pub struct Prepared {
    pub bench: Bench,
    /// What cannot be measured here, and why: one line each.
    pub missing: Vec<String>,
    /// Removed when dropped.
    pub directory: tempfile::TempDir,
}

/// Prepares starts of `command`. What is not known of it is learned first, by the yardstick.
pub fn prepare(command: &[OsString], library: Option<&Path>, maps_ahead: bool) -> Result<Prepared> {
    let key = ProgramKey::of(command).map_err(|error| not_started(command, error))?;
    // On a disk: the temporary directory may be in memory.
    let directory = tempfile::Builder::new().prefix("prepage-").tempdir_in("/var/tmp").context("/var/tmp")?;
    let stores = match std::env::var_os("PREPAGE_STORE") {
        Some(_) => Stores::of_user()?,
        None => Stores::at(directory.path().join("store")),
    };
    let mut missing = Vec::new();
    let profile = match stores.find(&key)? {
        Some(found) => found.profile,
        None => {
            say!("prepage: no profile of {} yet: learning it first", key.role);
            let learned = silently(|| learn_exactly(command, &stores))??;
            ensure!(learned.status == 0, "{} failed while it was learned", key.role);
            stores.find(&key)?.context("the command touched no file that could be prefetched")?.profile
        }
    };
    let early_fault = match maps_ahead.then(|| library_for(library)).flatten() {
        Some(library) => Some(
            EarlyFault::prepare(&library, directory.path(), &profile)
                .context("pages cannot be mapped ahead")?,
        ),
        None => {
            if maps_ahead {
                missing.push(
                    "early fault: no libprepage-early-fault.so next to this binary (make build)".into(),
                );
            }
            None
        }
    };
    let chill = Chill::best();
    missing.extend(chill.leaves_warm().map(str::to_owned));
    let block_reads = match BlockReads::watch() {
        Ok(watch) => Some(watch),
        Err(error) => {
            missing.push(format!("reads one by one: {:#}; sums are diskstats'", anyhow::Error::from(error)));
            None
        }
    };
    adopt_orphans()?;
    let starter = starter()?;
    let bench = Bench {
        command: command.to_vec(),
        starter,
        stores,
        chill,
        early_fault,
        advise_random: None,
        block_reads,
    };
    Ok(Prepared { bench, missing, directory })
}

/// The library `named`, or the one next to this binary.
pub fn library_for(named: Option<&Path>) -> Option<PathBuf> {
    match named {
        Some(library) => Some(library.to_owned()),
        None => library_beside(&std::env::current_exe().ok()?),
    }
}

/// `prepage bench yardstick`.
pub fn yardstick(command: &[OsString], quiet: bool) -> Result<std::process::ExitCode> {
    ProgramKey::of(command).map_err(|error| not_started(command, error))?;
    let Yardstick { pages, files, names, lost, status } = learn_exactly(command, &Stores::of_user()?)?;
    if !quiet {
        let megabytes = pages as f64 * PAGE_SIZE as f64 / 1e6;
        let [pages, files, names] = [(pages as usize, "page"), (files, "file"), (names, "name")]
            .map(|(count, noun)| counted(count, noun));
        say!("prepage: learned exactly: {pages} ({megabytes:.1} MB) of {files}, {names}");
    }
    if lost > 0 {
        let lost = counted(lost as usize, "record");
        say!("prepage: the kernel dropped {lost}; some pages may be missing");
        say!("  try: again while the machine has less to do");
    }
    Ok(crate::child::exit_code(status))
}
