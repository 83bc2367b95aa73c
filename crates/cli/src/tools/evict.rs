//! `prepage evict`: sends pages of files out of memory, and says what stays and why.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use prepage_core::PAGE_SIZE;
use prepage_core::quantity::counted;
use prepage_display::number::pages_as_size;
use prepage_residency::evict::{EvictedFile, Stay};
use prepage_residency::{Evicted, User, evict};
use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::output::{print_json, shown};
use crate::table::table;
use crate::targets::{Targets, tell_passed};

/// Files that stayed shown by themselves, where there are more.
const SHOWN_FILES: usize = 20;
/// Processes named as the reason.
const SHOWN_USERS: usize = 3;

/// Options of `prepage evict`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    targets: Targets,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut found = args.targets.find()?;
    let mut evicted = evict(&found.spots);
    found.passed.append(&mut evicted.passed);
    let passed = tell_passed(&found.passed);
    for file in &evicted.files {
        if let Some(error) = &file.error {
            say!("prepage: {}: {error}", file.path.display());
        }
    }
    let mut out = crate::output::text();
    if args.json {
        print_json(&as_json(&evicted, &passed))?;
    } else {
        print(&evicted, &mut out)?;
    }
    let gone = |file: &EvictedFile| file.error.is_none() && file.after.is_none_or(|after| after == 0);
    let complete = passed.is_empty() && evicted.files.iter().all(gone);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(evicted: &Evicted, out: &mut impl Write) -> Result<()> {
    let known: Vec<&EvictedFile> =
        evicted.files.iter().filter(|file| file.before.is_some() && file.after.is_some()).collect();
    let unknown = evicted.files.len() - known.len();
    let sum = |of: fn(&EvictedFile) -> Option<u64>| known.iter().filter_map(|file| of(file)).sum::<u64>();
    let (before, after) = (sum(|file| file.before), sum(|file| file.after));
    if before == 0 && !known.is_empty() {
        writeln!(out, "nothing of {} was in memory", counted(known.len(), "file"))?;
    } else if !known.is_empty() {
        writeln!(
            out,
            "{} in memory, {} before: {after} of {before} pages of {} stay",
            pages_as_size(after),
            pages_as_size(before),
            counted(known.len(), "file"),
        )?;
    }
    if unknown > 0 {
        writeln!(
            out,
            "{} dropped as far as nobody uses them; what stays is shown only to those who may write them",
            counted(unknown, "file"),
        )?;
    }
    let mut stayed: Vec<(&EvictedFile, &Stay)> =
        evicted.files.iter().filter_map(|file| Some((file, file.stay.as_ref()?))).collect();
    if stayed.is_empty() {
        return Ok(());
    }
    stayed.sort_by_key(|(file, _)| std::cmp::Reverse(file.after));
    let mut table = table(&["stays", "why", "file"], &[0]).whole(1);
    for (file, stay) in stayed.iter().take(SHOWN_FILES) {
        let pages = file.after.unwrap_or(0);
        table.add_row([pages_as_size(pages), reasons(stay), shown(&file.path)]);
    }
    writeln!(out, "{}", table.lines(crate::output::width()))?;
    if stayed.len() > SHOWN_FILES {
        writeln!(out, "and of {} (--json)", counted(stayed.len() - SHOWN_FILES, "more file"))?;
    }
    Ok(())
}

/// Why pages stay, as far as the kernel says.
fn reasons(stay: &Stay) -> String {
    if stay.in_memory_file_system {
        return "kept in memory by its file system".to_owned();
    }
    let mut reasons = Vec::new();
    let states = stay.states.unwrap_or_default();
    if states.dirty > 0 {
        let denied = if stay.may_write { "" } else { ", and not yours to write back" };
        reasons.push(format!("{} dirty{denied}", pages_as_size(states.dirty)));
    }
    if states.writeback > 0 {
        reasons.push(format!("{} being written", pages_as_size(states.writeback)));
    }
    let lockers = stay.users.iter().map(|user| user.locked_bytes).filter(|bytes| *bytes > 0);
    if let Some(most) = lockers.clone().max() {
        // Several may have locked the same pages.
        let at_least = if lockers.count() > 1 { "at least " } else { "" };
        reasons.push(format!("{at_least}{} locked", pages_as_size(most / PAGE_SIZE)));
    }
    if !stay.users.is_empty() {
        let named: Vec<String> =
            stay.users.iter().take(SHOWN_USERS).map(|user| format!("{} {}", user.comm, user.pid)).collect();
        let more = match stay.users.len().saturating_sub(SHOWN_USERS) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        reasons.push(format!("mapped by {}{more}", named.join(", ")));
    }
    if reasons.is_empty() {
        let hidden =
            if geteuid().is_root() { "" } else { "mapped by a process that is not shown to you, or " };
        let kept = if stay.is_part { ", or kept together with pages that were not meant" } else { "" };
        reasons.push(format!("in use: {hidden}being read{kept}"));
    }
    reasons.join("; ")
}

fn as_json(evicted: &Evicted, passed: &[Value]) -> Value {
    let user = |user: &User| {
        json!({
            "pid": user.pid,
            "comm": user.comm,
            "mapped_bytes": user.mapped_bytes,
            "locked_bytes": user.locked_bytes,
        })
    };
    let stay = |stay: &Stay| {
        json!({
            "in_memory_file_system": stay.in_memory_file_system,
            "dirty_pages": stay.states.map(|states| states.dirty),
            "writeback_pages": stay.states.map(|states| states.writeback),
            "may_write": stay.may_write,
            "mapped_by": stay.users.iter().map(user).collect::<Vec<_>>(),
        })
    };
    let file = |file: &EvictedFile| {
        json!({
            "path": shown(&file.path),
            "pages": file.pages,
            "resident_pages_before": file.before,
            "resident_pages_after": file.after,
            "error": file.error.as_ref().map(ToString::to_string),
            "stay": file.stay.as_ref().map(stay),
        })
    };
    json!({
        "schema_version": 1,
        "page_bytes": PAGE_SIZE,
        "files": evicted.files.iter().map(file).collect::<Vec<_>>(),
        "failed": passed,
    })
}
