//! `prepage bench maps`: the memory and the work that it takes to know who maps which page.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use prepage_bench::tracking::{self, Load, RECORD_BYTES, Tracking};
use serde_json::json;

use crate::output::print_json;
use crate::remedy::{Remedied, Try};
use crate::table::table;

/// Options of `prepage bench maps`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Numbers of maps of one object
    #[arg(long, value_delimiter = ',', default_value = "1,10,50,200", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    maps: Vec<u64>,
    /// Numbers of pages of the object; every map touches all of them
    #[arg(long, value_delimiter = ',', default_value = "256,4096,16384", value_parser = clap::value_parser!(u64).range(1..=1 << 22))]
    pages: Vec<u64>,
    /// Numbers of children of fork(2) that inherit the maps and touch all pages too (root)
    #[arg(long, value_delimiter = ',', default_value = "0", value_parser = clap::value_parser!(u64).range(0..=1000))]
    children: Vec<u64>,
    /// Numbers of threads that touch each map at once, each its share of the pages
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1000))]
    threads: Vec<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut measured = Vec::new();
    for load in loads(args) {
        measured.push(tracking::measure(load).or_try(|| {
            let Load { maps, pages, children, threads } = load;
            let remedy = if children > 0 {
                "as root, or without --children"
            } else {
                "fewer --maps, --pages or --threads"
            };
            let of = format!("{maps} maps of {pages} pages with {children} children and {threads} threads");
            Remedied::new(format!("{of} were not measured"), remedy)
        })?);
    }
    let mut out = crate::output::text();
    if args.json {
        let rows: Vec<_> = measured.iter().map(row).collect();
        let report = json!({ "schema_version": 1, "record_bytes": RECORD_BYTES, "measured": rows });
        print_json(&report)?;
        return Ok(ExitCode::SUCCESS);
    }
    let headings = [
        "maps",
        "pages",
        "children",
        "threads",
        "tracking KiB",
        "records KiB",
        "times",
        "list ops",
        "record ops",
        "times",
        "atomics/fault",
        "lock waits",
        "found",
    ];
    let mut table = table(&headings, &(0..headings.len()).collect::<Vec<_>>());
    for it in &measured {
        table.add_row([
            it.load.maps.to_string(),
            it.load.pages.to_string(),
            it.load.children.to_string(),
            it.load.threads.to_string(),
            format!("{:.1}", it.tracking_bytes as f64 / 1024.0),
            format!("{:.1}", it.record_bytes() as f64 / 1024.0),
            format!("{:.1}", it.record_bytes() as f64 / it.tracking_bytes as f64),
            it.list_operations.to_string(),
            it.record_operations.to_string(),
            format!("{:.1}", it.record_operations as f64 / it.list_operations as f64),
            format!("{:.2}", it.fault_atomics as f64 / it.faults as f64),
            it.lock_waits.to_string(),
            it.found.to_string(),
        ]);
    }
    writeln!(out, "{}\n", table.lines(crate::output::width()))?;
    writeln!(
        out,
        "records: what {RECORD_BYTES} bytes for each page, map and process would take, made and taken away once (DragonFly's pv_entry before its \
         rework);\ntracking: measured, and counts the tables from addresses to maps with their counters, one for each process, \
         which other maps use too;\nfound: maps that show a page, by the records and the page tables: the fewest of any page"
    )?;
    Ok(ExitCode::SUCCESS)
}

/// All that is asked for, the maps changing fastest.
fn loads(args: &Args) -> impl Iterator<Item = Load> {
    args.children.iter().flat_map(move |&children| {
        args.threads.iter().flat_map(move |&threads| {
            let of_pages =
                move |&pages| args.maps.iter().map(move |&maps| Load { maps, pages, threads, children });
            args.pages.iter().flat_map(of_pages)
        })
    })
}

fn row(it: &Tracking) -> serde_json::Value {
    json!({
        "maps": it.load.maps,
        "pages": it.load.pages,
        "children": it.load.children,
        "threads": it.load.threads,
        "faults": it.faults,
        "tracking_bytes": it.tracking_bytes,
        "record_bytes": it.record_bytes(),
        "list_operations": it.list_operations,
        "record_operations": it.record_operations,
        "fault_atomics": it.fault_atomics,
        "lock_waits": it.lock_waits,
        "found_maps": it.found,
    })
}
