//! The results of `prepage simulate` as JSON.

use std::collections::BTreeMap;

use anyhow::Result;
use prepage_core::TraceFacts;
use prepage_report::json::missing;
use prepage_simulate::input::Unseen;
use prepage_simulate::memory::MemoryFaults;
use prepage_simulate::outcome::ObjectOutcome;
use prepage_simulate::{Input, Outcome, Row};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::Args;
use crate::output::print_json;

#[derive(Serialize)]
struct Report {
    schema_version: u32,
    /// Of the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<TraceFacts>,
    /// What the recording lacks.
    missing: Value,
    runs: u32,
    touches: u64,
    touched_pages: u64,
    /// Touches that may be missing; null where the trace does not say.
    unseen_pages: Option<u64>,
    left_out_faults: u64,
    /// Touches of which it is not known how long they waited in the recording: times hold that.
    touches_without_cost: u64,
    /// Of files that are read in a pattern: sweeps until all pages are touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    sweeps: Option<u64>,
    /// Threads that touched, whose touches are replayed one after the other.
    threads: usize,
    policies: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<BTreeMap<&'static str, BTreeMap<u64, u64>>>,
}

/// Prints it.
pub fn print(args: &Args, input: &Input, rows: &[Row<'_>], memory: Option<&MemoryFaults>) -> Result<()> {
    let mut policies = Map::new();
    for row in rows {
        policies.insert(row.name.to_owned(), policy(args, input, row));
    }
    let first = rows.first().map(|row| &row.plain.outcome);
    let report = Report {
        schema_version: 2,
        facts: input.facts.clone(),
        missing: missing(&input.facts.as_ref().map(TraceFacts::missing).unwrap_or_default()),
        runs: args.runs,
        unseen_pages: match input.unseen {
            Unseen::Nothing => Some(0),
            Unseen::AtMost(pages) => Some(pages),
            Unseen::Unknown => None,
        },
        left_out_faults: input.others,
        touches_without_cost: input.without_cost,
        sweeps: input.sweeps,
        threads: input.threads,
        touches: first.map_or(0, |outcome| outcome.touches),
        touched_pages: first.map_or(0, |outcome| outcome.touched_pages),
        policies,
        memory: memory.map(MemoryFaults::by_rule),
    };
    Ok(print_json(&report)?)
}

fn policy(args: &Args, input: &Input, row: &Row<'_>) -> Value {
    let outcome = &row.plain.outcome;
    let objects = input.layout.objects.iter().zip(&outcome.objects);
    let objects = objects.map(|(object, &ObjectOutcome { hard, read, never })| {
        json!({ "path": object.name, "pages": object.pages, "hard": hard, "read": read, "never": never })
    });
    let clusters = outcome.clusters.iter().map(|(pages, reads)| (pages, [reads.full, reads.truncated]));
    let mut policy = json!({
        "hard": outcome.hard,
        "soft": outcome.soft,
        "io": outcome.io,
        "background_io": outcome.background.values().sum::<u64>(),
        "read": outcome.read,
        "never": outcome.never,
        // To two decimals, ties to the even one, as the published tables are.
        "pct": format!("{:.2}", outcome.never_percent()).parse().unwrap_or(0.0),
        "full512": outcome.full512,
        "superpages": outcome.superpages,
        // Reads of hard faults by their number of pages: full ones, truncated ones.
        "clusters": clusters.collect::<BTreeMap<_, _>>(),
        // Reads in the background by their number of pages.
        "background": outcome.background,
        "objects": objects.collect::<Vec<_>>(),
    });
    if let Some(cost) = args.cost {
        policy["cost_ns"] = cost.of(outcome).into();
    }
    for (device, of) in &row.timed {
        policy["devices"][device.to_string()] = times(&of.outcome);
    }
    policy
}

fn times(outcome: &Outcome) -> Value {
    json!({
        "time_ns": outcome.time_ns,
        "fault_ns": outcome.fault_ns,
        "stall_ns": outcome.stall_ns,
        "hard": outcome.hard,
        "late": outcome.late,
        "soft": outcome.soft,
        // As a log of the kernel's handler counts them: disk, short, cached.
        "logged": outcome.logged(),
    })
}
