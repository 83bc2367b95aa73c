//! The results of `prepage simulate` as tables.

use std::collections::BTreeSet;
use std::io::{self, Write};

use anyhow::Result;
use prepage_core::TraceFacts;
use prepage_core::policy::cluster::ClusterCount;
use prepage_simulate::Outcome;
use prepage_simulate::input::Unseen;
use prepage_simulate::memory::MemoryFaults;
use prepage_simulate::{Input, Row};

use super::Args;
use crate::table::{Table, table};

/// Objects shown with --by-object.
const TOP_OBJECTS: usize = 20;

/// Prints it.
pub fn print(args: &Args, input: &Input, rows: &[Row<'_>], memory: Option<&MemoryFaults>) -> Result<()> {
    let mut parts = vec![facts(args, input, rows) + "\n", format!("{}\n", policies(args, rows).trim_fmt())];
    if args.histogram {
        parts.push(format!(
            "reads by size: full + truncated + in the background\n\n{}\n",
            sizes(rows).trim_fmt()
        ));
    }
    if args.by_object {
        parts.push(format!("hard faults by object\n\n{}\n", objects(input, rows).trim_fmt()));
    }
    if let Some(memory) = memory {
        parts.push(format!("faults with too little memory\n\n{}\n", memory_table(memory).trim_fmt()));
    }
    writeln!(io::stdout().lock(), "{}", parts.join("\n"))?;
    Ok(())
}

/// How much was replayed, and what is missing.
pub fn facts(args: &Args, input: &Input, rows: &[Row<'_>]) -> String {
    let touched = rows.first().map_or(0, |row| row.plain.outcome.touched_pages);
    let runs = if args.runs > 1 { format!(" in {} runs", args.runs) } else { String::new() };
    let shared = match input.shared_memory {
        0 => String::new(),
        faults => format!("; {faults} faults on memory that no disk holds left out"),
    };
    let gaps = input.facts.as_ref().map(TraceFacts::missing).unwrap_or_default();
    let lacking: String = gaps.iter().map(|gap| format!("\nincomplete: {gap}")).collect();
    let unseen = match input.unseen {
        Unseen::Nothing => String::new(),
        Unseen::AtMost(0) => "; none unseen".to_owned(),
        Unseen::AtMost(pages) => format!("; up to {pages} pages may have been touched unseen"),
        Unseen::Unknown if let Some(exact) = input.facts.as_ref().and_then(|facts| facts.exact.as_ref()) => {
            format!("\nnot exact: {}", exact.unarmed_programs.join("; "))
        }
        Unseen::Unknown => {
            "\nnot recorded exactly (record --exact): touches of pages that were mapped along with others are missing".to_owned()
        }
    };
    let sweeps = match input.sweeps {
        Some(1) => "; one sweep touches all".to_owned(),
        Some(sweeps) => format!("; {sweeps} sweeps until all are touched"),
        None => String::new(),
    };
    let threads = match input.threads {
        threads @ 2.. if !args.device.is_empty() => {
            format!(
                "\nfaults of {threads} threads are replayed one after the other: times are of one thread that does all"
            )
        }
        _ => String::new(),
    };
    format!(
        "{} touches of {touched} pages, {} objects of {} pages{sweeps}{runs}{shared}{unseen}{lacking}{threads}",
        input.count,
        input.layout.objects.len(),
        input.layout.objects.iter().map(|object| object.pages).sum::<u64>()
    )
}

fn policies(args: &Args, rows: &[Row<'_>]) -> Table {
    let mut headings: Vec<String> = [
        "policy",
        "hard",
        "±%",
        "soft",
        "I/Os",
        "pages read",
        "a read",
        "never",
        "never %",
        "full",
        "truncated",
        "2 MiB",
    ]
    .map(str::to_owned)
    .to_vec();
    if args.runs > 1 {
        headings.push("superpages".to_owned());
    }
    if args.cost.is_some() {
        headings.push("cost ms".to_owned());
    }
    for (device, _) in rows.first().into_iter().flat_map(|row| &row.timed) {
        headings.extend([
            format!("{device} ms"),
            "faults ms".to_owned(),
            "waits ms".to_owned(),
            "late".to_owned(),
        ]);
    }
    let texts: Vec<&str> = headings.iter().map(String::as_str).collect();
    let mut table = table(&texts, &(1..headings.len()).collect::<Vec<_>>());
    let base = rows.first().map_or(0, |row| row.plain.outcome.hard);
    for row in rows {
        let outcome = &row.plain.outcome;
        let (full, cut) = outcome.full_and_truncated();
        let mut cells = vec![
            row.name.to_owned(),
            outcome.hard.to_string(),
            change(base, outcome.hard),
            outcome.soft.to_string(),
            outcome.io.to_string(),
            outcome.read.to_string(),
            format!("{:.1}", outcome.mean_read_pages()),
            outcome.never.to_string(),
            format!("{:.2}", outcome.never_percent()),
            full.to_string(),
            cut.to_string(),
            outcome.full512.to_string(),
        ];
        if args.runs > 1 {
            cells.push(outcome.superpages.to_string());
        }
        cells.extend(args.cost.map(|cost| milliseconds(cost.of(outcome))));
        for (_, timed) in &row.timed {
            let Outcome { time_ns, fault_ns, stall_ns, late, .. } = timed.outcome;
            cells.extend([time_ns, fault_ns, stall_ns].map(milliseconds));
            cells.push(late.to_string());
        }
        table.add_row(cells);
    }
    table
}

/// From `base` to `count`, in percent.
fn change(base: u64, count: u64) -> String {
    if base == 0 || base == count {
        return "0".to_owned();
    }
    format!("{:+.1}", 100.0 * (count as f64 - base as f64) / base as f64)
}

fn milliseconds(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1e6)
}

fn sizes(rows: &[Row<'_>]) -> Table {
    let mut headings = vec!["pages"];
    headings.extend(rows.iter().map(|row| row.name));
    let mut table = table(&headings, &(0..headings.len()).collect::<Vec<_>>());
    let of = |row: &Row<'_>| {
        let outcome = &row.plain.outcome;
        let hard = outcome.clusters.iter().map(|(pages, _)| pages);
        hard.chain(outcome.background.keys().copied()).collect::<Vec<_>>()
    };
    for size in rows.iter().flat_map(of).collect::<BTreeSet<_>>() {
        let mut cells = vec![size.to_string()];
        cells.extend(rows.iter().map(|row| {
            let reads = row.plain.outcome.clusters.of(size);
            match row.plain.outcome.background.get(&size) {
                Some(background) => format!("{} + {} + {background}", reads.full, reads.truncated),
                None if reads == ClusterCount::default() => "-".to_owned(),
                None => format!("{} + {}", reads.full, reads.truncated),
            }
        }));
        table.add_row(cells);
    }
    table
}

fn objects(input: &Input, rows: &[Row<'_>]) -> Table {
    let mut headings = vec!["object", "pages"];
    headings.extend(rows.iter().map(|row| row.name));
    let mut table = table(&headings, &(1..headings.len()).collect::<Vec<_>>());
    let most = |at: &usize| rows.iter().map(|row| row.plain.outcome.objects[*at].hard).max();
    let mut order: Vec<usize> = (0..input.layout.objects.len()).collect();
    order.sort_by_key(|at| std::cmp::Reverse(most(at)));
    for at in order.into_iter().take(TOP_OBJECTS) {
        let object = &input.layout.objects[at];
        let mut cells = vec![object.name.clone(), object.pages.to_string()];
        cells.extend(rows.iter().map(|row| row.plain.outcome.objects[at].hard.to_string()));
        table.add_row(cells);
    }
    table
}

fn memory_table(memory: &MemoryFaults) -> Table {
    let mut headings = vec!["pages"];
    headings.extend(memory.names());
    let mut table = table(&headings, &(0..headings.len()).collect::<Vec<_>>());
    for (size, faults) in &memory.faults {
        let mut cells = vec![size.to_string()];
        cells.extend(faults.iter().map(u64::to_string));
        table.add_row(cells);
    }
    table
}
