//! Reports as JSON.

use prepage_core::{FaultClass, Missing};
use serde_json::{Map, Value, json};

use crate::by::{By, Label};
use crate::column::Column;
use crate::costs::Costs;
use crate::report::Report;

/// Version of the JSON. Fields may be added without a new one.
pub const SCHEMA_VERSION: u32 = 2;

/// All that a report says: the run, the groups asked for, the costs, the slowest faults.
pub fn json(report: &Report, by: &[By], top: usize, columns: &[Column]) -> Value {
    let mut groups = Map::new();
    for &by in by {
        groups.insert(by.name().to_owned(), grouped(report, by, top, columns));
    }
    let total = report.total();
    json!({
        "schema_version": SCHEMA_VERSION,
        "facts": report.facts,
        "missing": missing(&report.facts.missing()),
        "filter": report.filter,
        "faults_in_file": report.faults_in_file,
        "duration_ms": report.end_ns as f64 / 1e6,
        "all": figures(report, &total, &total, &Column::ALL),
        "by": groups,
        "cost_histogram": report.cost_bins(1).iter().map(|bin| {
            let counts = FaultClass::ALL.iter().zip(bin.counts).filter(|(_, count)| *count > 0);
            json!({
                "from_us": bin.from_ns / 1e3,
                "to_us": bin.to_ns / 1e3,
                "count": bin.count(),
                "by_class": counts.map(|(class, count)| (class.name().to_owned(), count.into())).collect::<Map<_, Value>>(),
            })
        }).collect::<Vec<_>>(),
        "slowest": report.slowest.iter().map(|fault| {
            let thread = &report.thread_table[fault.thread.0 as usize];
            json!({
                "start_ms": fault.start_ns as f64 / 1e6,
                "cost_us": fault.cost_ns.map(|ns| ns as f64 / 1e3),
                "class": fault.class.name(),
                "comm": thread.comm,
                "pid": thread.pid,
                "tid": thread.tid,
                "address": format!("{:#x}", fault.address),
                "file": fault.object.map(|id| &report.object_table[id.0 as usize].path),
                "page": fault.page,
            })
        }).collect::<Vec<_>>(),
    })
}

fn grouped(report: &Report, by: By, top: usize, columns: &[Column]) -> Value {
    let groups = report.grouped(by, top);
    let rows = groups.rows.iter().map(|row| {
        let mut fields = figures(report, &row.costs, &groups.total, columns);
        if row.files > 1 {
            fields.insert("files".to_owned(), row.files.into());
        }
        for (name, label) in by.labels().iter().zip(&row.labels) {
            let value = match label {
                Label::Text(text) => text.clone().into(),
                Label::Number(number) => (*number).into(),
                Label::Time(ns) => (*ns as f64 / 1e6).into(),
            };
            fields.insert((*name).to_owned(), value);
        }
        Value::Object(fields)
    });
    json!({ "rows": rows.collect::<Vec<_>>(), "left_out": groups.left_out })
}

fn figures(report: &Report, costs: &Costs, total: &Costs, columns: &[Column]) -> Map<String, Value> {
    let figure = |column: &Column| {
        let is_known = (report.is_timed(&costs.tally) || !column.is_sum_of_costs())
            && (report.facts.tells_disk_faults() || !column.is_of_disk());
        let value = match is_known {
            true => column.json(costs, total, report.facts.tsc_hz),
            false => Value::Null,
        };
        (column.field().to_owned(), value)
    };
    columns.iter().map(figure).collect()
}

/// What a trace lacks: each gap as its kind and numbers, and in words.
pub fn missing(gaps: &[Missing]) -> Value {
    let gap = |gap: &Missing| {
        let mut fields = json!(gap);
        fields["text"] = gap.to_string().into();
        fields
    };
    gaps.iter().map(gap).collect()
}
