//! `prepage learn`: learns a program exactly, in one slow run.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::{Context, Result};
use prepage_core::PAGE_SIZE;
use prepage_core::profile::ProfiledFile;
use prepage_prefetch::keep::{Origin, keep};
use prepage_prefetch::learn::{Learned, can_be_exact, learn};
use prepage_prefetch::program;
use prepage_prefetch::sightings::Findings;
use prepage_prefetch::store::{ProfileKey, Store};

use crate::child::{exit_code, not_started};

/// Options of `prepage learn`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Say nothing but errors
    #[arg(short, long)]
    quiet: bool,
    /// Learn from faults and system calls alone, as an ordinary user must: caches and read-ahead stay as they are
    #[arg(long)]
    approximate: bool,
    /// The command to learn
    #[arg(trailing_var_arg = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let key = program::key(&args.command).map_err(|error| not_started(&args.command, error))?;
    let store = Store::of_user()?;
    store.create_with_room().context("the profile could not be kept")?;
    let exact = !args.approximate && can_be_exact();
    if !exact && !args.approximate && !args.quiet {
        eprintln!(
            "prepage: read-ahead and caches are not this user's to change: learning from faults and system calls"
        );
    }
    let learned = learn(&args.command, exact)?;
    if !args.quiet {
        tell(&key, &learned);
    }
    let origin = if exact { Origin::Exact } else { Origin::Start };
    keep(&store, &key, &args.command, learned.findings, origin).context("the profile could not be kept")?;
    Ok(exit_code(learned.status))
}

fn tell(key: &ProfileKey, learned: &Learned) {
    let Findings { files, lookups, unnamed_pages } = &learned.findings;
    let pages: u64 = files.iter().map(ProfiledFile::pages).sum();
    eprintln!(
        "prepage: learned {}: {pages} pages ({:.1} MB) of {} files, {} names looked up",
        key.role,
        pages as f64 * PAGE_SIZE as f64 / 1e6,
        files.len(),
        lookups.len(),
    );
    if *unnamed_pages > 0 {
        eprintln!("prepage: {unnamed_pages} pages are of files whose name is not known; left out");
    }
    if learned.lost > 0 {
        eprintln!("prepage: the kernel dropped {} records; some pages may be missing", learned.lost);
        eprintln!("  try: learn again while the machine has less to do");
    }
}
