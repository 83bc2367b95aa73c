//! `prepage warm`: brings pages of files into memory.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use prepage_core::PAGE_SIZE;
use prepage_core::quantity::counted;
use prepage_display::number::{pages_as_size, percent};
use prepage_display::terminal::printable;
use prepage_residency::warm::WarmedFile;
use prepage_residency::{Stopped, Warmed, warm};
use serde_json::{Value, json};

use crate::output::{print_json, shown};
use crate::size::size;
use crate::targets::{Targets, tell_passed};

/// Options of `prepage warm`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    targets: Targets,
    /// Read at most SIZE [default: half of the memory available]
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    limit: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut found = args.targets.find()?;
    let mut warmed = warm(&found.spots, args.limit);
    found.passed.append(&mut warmed.passed);
    let passed = tell_passed(&found.passed);
    for file in &warmed.files {
        if let Some(error) = &file.error {
            say!("prepage: {}: not read to the end: {error}", file.spot.path.display());
        }
    }
    let mut out = crate::output::text();
    if args.json {
        print_json(&as_json(&warmed, found.spots.len(), &passed))?;
    } else {
        print(&warmed, &mut out)?;
    }
    tell_stopped(&warmed, found.spots.len());
    let complete = passed.is_empty() && warmed.stopped.is_none() && warmed.files.iter().all(is_in);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_in(file: &WarmedFile<'_>) -> bool {
    file.error.is_none() && file.after.is_none_or(|after| after == file.pages)
}

fn print(warmed: &Warmed<'_>, out: &mut impl Write) -> Result<()> {
    let known = |file: &&WarmedFile<'_>| file.before.is_some() && file.after.is_some();
    let (known, unknown): (Vec<_>, Vec<_>) = warmed.files.iter().partition(known);
    let sum = |of: &dyn Fn(&WarmedFile<'_>) -> u64| known.iter().map(|file| of(file)).sum::<u64>();
    let (pages, before) = (sum(&|file| file.pages), sum(&|file| file.before.unwrap_or(0)));
    let after = sum(&|file| file.after.unwrap_or(0));
    if pages == 0 && !known.is_empty() {
        writeln!(
            out,
            "nothing to read: no bytes, or none in the range, or only holes, in {}",
            counted(known.len(), "file")
        )?;
    } else if !known.is_empty() {
        writeln!(
            out,
            "{} of {} in memory ({:.1} %), {} before: {} of {} pages of {}",
            pages_as_size(after),
            pages_as_size(pages),
            percent(after, pages).unwrap_or(100.0),
            pages_as_size(before),
            after,
            pages,
            counted(known.len(), "file"),
        )?;
    }
    let hole_pages: u64 = warmed.files.iter().map(|file| file.hole_pages).sum();
    if hole_pages > 0 {
        writeln!(out, "{} not read: these are holes, in which nothing is stored", pages_as_size(hole_pages))?;
    }
    if !unknown.is_empty() {
        // Of the last file less, where reading stopped in it.
        let read = unknown.iter().map(|file| file.read_bytes / PAGE_SIZE).sum::<u64>();
        writeln!(
            out,
            "{} of {} read; whether it stays in memory is shown only to those who may write them",
            pages_as_size(read),
            counted(unknown.len(), "file"),
        )?;
    }
    for file in known.iter().filter(|file| file.error.is_none() && !is_in(file)) {
        let missing = file.pages - file.after.unwrap_or(0);
        writeln!(out, "{} not in memory: {}", pages_as_size(missing), printable(&shown(&file.spot.path)))?;
    }
    Ok(())
}

fn tell_stopped(warmed: &Warmed<'_>, files: usize) {
    let at = format!("stopped in file {} of {files}", warmed.files.len());
    match warmed.stopped {
        Some(Stopped::Limit { limit_bytes }) => {
            let limit = match limit_bytes % PAGE_SIZE {
                0 => pages_as_size(limit_bytes / PAGE_SIZE),
                _ => counted(limit_bytes as usize, "byte"),
            };
            say!("prepage: {at}: more than {limit} would be read");
            say!("  try: --limit SIZE, with memory for it");
        }
        Some(Stopped::MemoryShort { available_bytes }) => {
            let left = pages_as_size(available_bytes / PAGE_SIZE);
            say!("prepage: {at}: only {left} of memory are left to programs");
            say!("  try: less at once, or ending programs that hold memory");
        }
        None => {}
    }
}

fn as_json(warmed: &Warmed<'_>, files: usize, passed: &[Value]) -> Value {
    let file = |file: &WarmedFile<'_>| {
        json!({
            "path": shown(&file.spot.path),
            "pages": file.pages,
            "hole_pages": file.hole_pages,
            "resident_pages_before": file.before,
            "resident_pages_after": file.after,
            "error": file.error.as_ref().map(ToString::to_string),
        })
    };
    let stopped = warmed.stopped.map(|stopped| match stopped {
        Stopped::Limit { limit_bytes } => json!({ "why": "limit", "limit_bytes": limit_bytes }),
        Stopped::MemoryShort { available_bytes } => {
            json!({ "why": "memory short", "available_bytes": available_bytes })
        }
    });
    json!({
        "schema_version": 1,
        "page_bytes": PAGE_SIZE,
        "files": warmed.files.iter().map(file).collect::<Vec<_>>(),
        "files_asked": files,
        "read_bytes": warmed.read_bytes,
        "stopped": stopped,
        "failed": passed,
    })
}
