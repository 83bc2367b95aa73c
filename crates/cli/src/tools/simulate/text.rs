//! The results of `prepage simulate` as tables.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Result;
use prepage_core::TraceFacts;
use prepage_core::policy::cluster::ClusterCount;
use prepage_core::quantity::counted;
use prepage_simulate::input::Unseen;
use prepage_simulate::memory::MemoryFaults;
use prepage_simulate::{Input, Row, tables};

use super::Args;
use crate::table::{Table, table};

/// Objects shown with --by-object.
const TOP_OBJECTS: usize = 20;

/// Prints it.
pub fn print(
    args: &Args,
    input: &Input,
    rows: &[Row<'_>],
    policies: &Table,
    memory: Option<&MemoryFaults>,
) -> Result<()> {
    let mut parts =
        vec![facts(args, input, rows) + "\n", format!("{}\n", policies.lines(crate::output::width()))];
    if args.histogram {
        parts.push(format!(
            "reads by size: full + truncated + in the background\n\n{}\n",
            sizes(rows).lines(crate::output::width())
        ));
    }
    if args.by_object {
        let objects = tables::objects(input, rows, TOP_OBJECTS);
        parts.push(format!("hard faults by object\n\n{}\n", objects.lines(crate::output::width())));
    }
    if let Some(memory) = memory {
        parts.push(format!(
            "faults with too little memory\n\n{}\n",
            tables::memory(memory).lines(crate::output::width())
        ));
    }
    writeln!(crate::output::text(), "{}", parts.join("\n"))?;
    Ok(())
}

/// How much was replayed, and what is missing.
pub fn facts(args: &Args, input: &Input, rows: &[Row<'_>]) -> String {
    let touched = rows.first().map_or(0, |row| row.plain.outcome.touched_pages);
    let runs = if args.runs > 1 { format!(" in {} runs", args.runs) } else { String::new() };
    let others = match input.others {
        0 => String::new(),
        faults => format!(
            "; left out: {} on memory that no disk holds, or on prepage's agent",
            counted(faults as usize, "fault")
        ),
    };
    let gaps = input.facts.as_ref().map(TraceFacts::missing).unwrap_or_default();
    let lacking: String = gaps.iter().map(|gap| format!("\nincomplete: {gap}")).collect();
    let unseen = match input.unseen {
        Unseen::Nothing => String::new(),
        Unseen::AtMost(0) => "; none unseen".to_owned(),
        Unseen::AtMost(pages) => {
            format!("; up to {} may have been touched unseen", counted(pages as usize, "page"))
        }
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
        "{} of {}, {} of {}{sweeps}{runs}{others}{unseen}{lacking}{threads}",
        counted(input.count as usize, "touch"),
        counted(touched as usize, "page"),
        counted(input.layout.objects.len(), "object"),
        counted(input.layout.objects.iter().map(|object| object.pages).sum::<u64>() as usize, "page")
    )
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
