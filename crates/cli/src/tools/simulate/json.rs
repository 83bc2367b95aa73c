//! The results of `prepage simulate` as JSON.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::Result;
use prepage_core::TraceFacts;
use prepage_simulate::input::Unseen;
use prepage_simulate::memory::MemoryFaults;
use prepage_simulate::outcome::ObjectOutcome;
use prepage_simulate::{Input, Row, Simulated};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Args;

/// Version of the JSON this command prints.
const SCHEMA_VERSION: u32 = 1;

#[derive(Serialize)]
struct Report {
    schema_version: u32,
    /// Of the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    facts: Option<TraceFacts>,
    runs: u32,
    touches: u64,
    touched_pages: u64,
    /// Touches that may be missing; null where the trace does not say.
    unseen_pages: Option<u64>,
    shared_memory_faults: u64,
    /// Of files that are read in a pattern: sweeps until all pages are touched.
    #[serde(skip_serializing_if = "Option::is_none")]
    sweeps: Option<u64>,
    /// Threads that touched, whose touches are replayed one after the other.
    threads: usize,
    policies: Map<String, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<BTreeMap<&'static str, BTreeMap<u64, u64>>>,
}

#[derive(Serialize)]
struct Policy<'a> {
    hard: u64,
    soft: u64,
    io: u64,
    background_io: u64,
    read: u64,
    never: u64,
    pct: f64,
    full512: u64,
    superpages: u64,
    /// Reads of hard faults by their number of pages: full ones, truncated ones.
    clusters: BTreeMap<u64, [u64; 2]>,
    /// Reads in the background by their number of pages.
    background: &'a BTreeMap<u64, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_ns: Option<u64>,
    objects: Vec<Object<'a>>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    devices: BTreeMap<String, Times>,
}

#[derive(Serialize)]
struct Object<'a> {
    path: &'a str,
    pages: u64,
    hard: u64,
    read: u64,
    never: u64,
}

#[derive(Serialize)]
struct Times {
    time_ns: u64,
    fault_ns: u64,
    stall_ns: u64,
    hard: u64,
    late: u64,
    soft: u64,
    /// As a log of the kernel's handler counts them: disk, short, cached.
    logged: [u64; 3],
}

/// Prints it.
pub fn print(args: &Args, input: &Input, rows: &[Row<'_>], memory: Option<&MemoryFaults>) -> Result<()> {
    let mut policies = Map::new();
    for row in rows {
        policies.insert(row.name.to_owned(), serde_json::to_value(policy(args, input, row))?);
    }
    let first = rows.first().map(|row| &row.plain.outcome);
    let report = Report {
        schema_version: SCHEMA_VERSION,
        facts: input.facts.clone(),
        runs: args.runs,
        unseen_pages: match input.unseen {
            Unseen::Nothing => Some(0),
            Unseen::AtMost(pages) => Some(pages),
            Unseen::Unknown => None,
        },
        shared_memory_faults: input.shared_memory,
        sweeps: input.sweeps,
        threads: input.threads,
        touches: first.map_or(0, |outcome| outcome.touches),
        touched_pages: first.map_or(0, |outcome| outcome.touched_pages),
        policies,
        memory: memory.map(MemoryFaults::by_rule),
    };
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &report)?;
    writeln!(out)?;
    Ok(())
}

fn policy<'a>(args: &Args, input: &'a Input, row: &Row<'a>) -> Policy<'a> {
    let outcome = &row.plain.outcome;
    let objects = input.layout.objects.iter().zip(&outcome.objects);
    let times = |simulated: &Simulated| Times {
        time_ns: simulated.outcome.time_ns,
        fault_ns: simulated.outcome.fault_ns,
        stall_ns: simulated.outcome.stall_ns,
        hard: simulated.outcome.hard,
        late: simulated.outcome.late,
        soft: simulated.outcome.soft,
        logged: simulated.outcome.logged(),
    };
    Policy {
        hard: outcome.hard,
        soft: outcome.soft,
        io: outcome.io,
        background_io: outcome.background.values().sum(),
        read: outcome.read,
        never: outcome.never,
        // To two decimals, ties to the even one, as the published tables are.
        pct: format!("{:.2}", outcome.never_percent()).parse().unwrap_or(0.0),
        full512: outcome.full512,
        superpages: outcome.superpages,
        clusters: outcome
            .clusters
            .iter()
            .map(|(pages, reads)| (pages, [reads.full, reads.truncated]))
            .collect(),
        background: &outcome.background,
        cost_ns: args.cost.map(|cost| cost.of(outcome)),
        objects: objects
            .map(|(object, &ObjectOutcome { hard, read, never })| Object {
                path: &object.name,
                pages: object.pages,
                hard,
                read,
                never,
            })
            .collect(),
        devices: row.timed.iter().map(|(device, of)| (device.to_string(), times(of))).collect(),
    }
}
