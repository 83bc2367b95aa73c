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
    let of_running = input.facts.as_ref().is_some_and(TraceFacts::is_of_running);
    let unseen = match input.unseen {
        Unseen::Nothing => String::new(),
        Unseen::AtMost(pages) => {
            let pages = match pages {
                0 => "none".to_owned(),
                pages => format!("up to {} may have been touched", counted(pages as usize, "page")),
            };
            format!("; {pages} unseen, not counting folios of 2 MiB")
        }
        Unseen::Unknown if of_running => {
            "\npages touched before the recording are missing: never and pages read are too high".to_owned()
        }
        Unseen::Unknown if let Some(exact) = input.facts.as_ref().and_then(|facts| facts.exact.as_ref()) => {
            match exact.unarmed_programs.is_empty() {
                // What the trace lacks is told above.
                true => String::new(),
                false => format!("\nnot exact: {}", exact.unarmed_programs.join("; ")),
            }
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
    let costs = match input.without_cost {
        faults @ 1.. if !args.device.is_empty() => format!(
            "\ntimes hold the recording's own waits: {} without a cost",
            counted(faults as usize, "fault")
        ),
        _ => String::new(),
    };
    let reuse = match (&args.memory, &input.facts) {
        (Some(_), Some(_)) => {
            "\n--memory: a trace has each page's first touch in a process: re-use is not in it, as it is in --model and --touches"
        }
        _ => "",
    };
    format!(
        "{} of {}, {} of {}{sweeps}{runs}{others}{unseen}{lacking}{threads}{costs}{}{reuse}",
        counted(input.count as usize, "touch"),
        counted(touched as usize, "page"),
        counted(input.layout.objects.len(), "object"),
        counted(input.layout.objects.iter().map(|object| object.pages).sum::<u64>() as usize, "page"),
        in_background(args, rows)
    )
}

/// Whose waits are not in the column of hard faults: what is read in the background is there at once where there is no device.
fn in_background(args: &Args, rows: &[Row<'_>]) -> String {
    let of_background = rows.iter().filter(|row| !row.plain.outcome.background.is_empty());
    let names: Vec<&str> = of_background.map(|row| row.name).collect();
    let shown = match args.device.is_empty() {
        true => "show only with --device",
        false => "are in the column waits, not in hard",
    };
    match names.is_empty() {
        true => String::new(),
        false => format!("\nread in the background by {}: waits for these {shown}", names.join(", ")),
    }
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
