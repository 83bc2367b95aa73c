//! The tables of `prepage bench file`, as text and as JSON.

use std::io::Write;

use anyhow::Result;
use prepage_bench::page::{Facts, Shown, cells, note, title};
use prepage_bench::published::{CostRatio, Published, Row, cost_ratios, published};
use prepage_bench::reasons::reason;
use prepage_core::{FaultClass, PAGE_SIZE};
use serde_json::{Value, json};

use crate::output::print_json;
use crate::table::table;

/// Prints a table for each experiment, and why it differs from the study's.
pub fn print(facts: &Facts, shown: &[Shown]) -> Result<()> {
    let mut out = crate::output::text();
    writeln!(out, "{}\n", wrapped(&facts.to_string(), 100))?;
    for one in shown {
        writeln!(out, "{}", title(one))?;
        let mut table = table(&["", "", "disk", "short", "cached", "all"], &[2, 3, 4, 5]);
        for row in cells(facts, one) {
            table.add_row(row);
        }
        writeln!(out, "{}", table.lines(crate::output::width()))?;
        writeln!(out, "{}\n", wrapped(&format!("{} {}", note(facts, one), reason(facts, one)), 100))?;
    }
    for ratio in ratios(facts, shown) {
        let CostRatio { of, to, here, study } = ratio;
        let (of, to) = (of.pattern, to.pattern);
        writeln!(out, "whole cost of faults, {of} to {to}: {here:.2} here, {study:.2} in the study")?;
    }
    Ok(())
}

/// Breaks lines between words, at most `width` characters each.
fn wrapped(text: &str, width: usize) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines.join("\n")
}

/// Prints everything, the single faults included.
pub fn json(facts: &Facts, shown: &[Shown]) -> Result<()> {
    let report = json!({
        "schema_version": 1,
        "page_bytes": PAGE_SIZE,
        "pages": facts.pages,
        "accesses": facts.accesses,
        "read_ahead_kib": facts.read_ahead_kib,
        "read_ahead_set": facts.read_ahead_set,
        "file_system": facts.file_system,
        "probe_cost_ns": facts.probe_cost_ns,
        "cost_ratios": ratios(facts, shown).iter().map(ratio_json).collect::<Vec<_>>(),
        "experiments": shown.iter().map(|one| experiment(facts, one)).collect::<Vec<_>>(),
    });
    Ok(print_json(&report)?)
}

fn experiment(facts: &Facts, one: &Shown) -> Value {
    let run = &one.run;
    let tally = |class| {
        let tally = run.tally(class);
        json!({ "count": tally.count, "mean_us": tally.mean_us(), "p50_us": run.quantile_us(class, 0.5),
            "p90_us": run.quantile_us(class, 0.9), "total_ms": tally.total_ms() })
    };
    let fault = |fault: &prepage_bench::FileFault| {
        json!([fault.page.0, u8::from(fault.class == FaultClass::Disk), fault.cost_ns])
    };
    let mapped = one.mapped.map(|mapped| {
        json!({
            "disk_faults": mapped.disk_faults,
            "pages_mapped_by_disk_faults": mapped.disk_pages,
            "cached_faults": mapped.cached_faults,
            "pages_mapped_by_cached_faults": mapped.cached_pages,
            "sweeps": mapped.sweeps.map(|sweeps| json!({
                "all": sweeps.all,
                "until_mapped": sweeps.until_mapped,
                "later_faults": sweeps.later_faults,
            })),
        })
    });
    json!({
        "pattern": run.experiment.pattern.to_string(),
        "cache": run.experiment.cache.name(),
        "rounds": one.rounds,
        "disk_faults_min": one.disk_counts.0,
        "disk_faults_max": one.disk_counts.1,
        "disk": tally(Some(FaultClass::Disk)),
        "short": tally(Some(FaultClass::Short)),
        "cached": tally(Some(FaultClass::Cached)),
        "all": tally(None),
        "faults_of_other_memory": run.other_faults,
        "records_lost": run.facts.lost,
        "kernel": run.facts.kernel,
        "mapped": mapped,
        "published": published(run.experiment, facts.pages).map(table_json),
        "reason": reason(facts, one),
        "fault_columns": ["page", "disk", "cost_ns"],
        "faults": run.faults.iter().map(fault).collect::<Vec<_>>(),
    })
}

fn ratios(facts: &Facts, shown: &[Shown]) -> Vec<CostRatio> {
    cost_ratios(&shown.iter().map(|one| &one.run).collect::<Vec<_>>(), facts.pages)
}

fn ratio_json(ratio: &CostRatio) -> Value {
    let name = |experiment: prepage_bench::Experiment| experiment.pattern.to_string();
    json!({ "of": name(ratio.of), "to": name(ratio.to), "here": ratio.here, "study": ratio.study })
}

fn table_json(table: Published) -> Value {
    let row = |row: Row| json!({ "count": row.count, "mean_us": row.mean_us, "total_ms": row.total_ms });
    json!({ "disk": row(table.disk), "short": row(table.short), "cached": row(table.cached), "all": row(table.all) })
}
