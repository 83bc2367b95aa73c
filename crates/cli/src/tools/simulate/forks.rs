//! `prepage simulate --forks`: processes that fork and write, on shadow chains.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use anyhow::{Context, Result};
use prepage_core::quantity::counted;
use prepage_simulate::forks::{Forked, replay};
use serde_json::json;

use crate::output::print_json;
use crate::table::table;

/// Follows the script in file `path` and prints what it did.
pub fn run(path: &Path, json: bool) -> Result<()> {
    let context = || path.display().to_string();
    let file = File::open(path).with_context(context)?;
    let forked = replay(BufReader::new(file)).with_context(context)?;
    match json {
        true => print_json(&as_json(&forked))?,
        false => writeln!(crate::output::text(), "{}", as_text(&forked))?,
    }
    Ok(())
}

fn as_json(forked: &Forked) -> serde_json::Value {
    let counts = forked.counts;
    let collapse = |&(fork, copies): &(u64, u64)| json!({ "after_fork": fork, "copies": copies });
    json!({
        "schema_version": 1,
        "forks": forked.forks,
        "copies": counts.write_copies + counts.collapse_copies,
        "write_copies": counts.write_copies,
        "collapse_copies": counts.collapse_copies,
        "collapses": forked.collapses.iter().map(collapse).collect::<Vec<_>>(),
        "zeros": counts.zeros,
        "merges": counts.merges,
        "moved": counts.moved,
        "destroyed": counts.destroyed,
        "depth_max": counts.depth_max,
        "processes": forked.processes,
        "links": forked.links,
        "pages": forked.pages,
    })
}

fn as_text(forked: &Forked) -> String {
    let counts = forked.counts;
    let headings = [
        "page copies",
        "by writes",
        "by collapses",
        "zeros",
        "collapses",
        "greatest depth",
        "merges",
        "moved",
        "destroyed",
    ];
    let mut table = table(&headings, &(0..headings.len()).collect::<Vec<_>>());
    let cells = [
        counts.write_copies + counts.collapse_copies,
        counts.write_copies,
        counts.collapse_copies,
        counts.zeros,
        counts.collapses,
        counts.depth_max.into(),
        counts.merges,
        counts.moved,
        counts.destroyed,
    ];
    table.add_row(cells.map(|count| count.to_string()));
    let collapses: Vec<String> =
        forked.collapses.iter().map(|(fork, copies)| format!("{fork} ({copies})")).collect();
    let collapses = match collapses.is_empty() {
        true => String::new(),
        false => format!("\n\ncollapses after fork (pages copied): {}", collapses.join(", ")),
    };
    format!(
        "{}; left: {}, and {} with {} of their own\n\n{}{collapses}",
        counted(forked.forks as usize, "fork"),
        counted(forked.processes, "process"),
        counted(forked.links, "link"),
        counted(forked.pages as usize, "page"),
        table.lines(crate::output::width())
    )
}
