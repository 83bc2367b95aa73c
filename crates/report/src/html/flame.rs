//! The tree of a flame graph.

use std::collections::BTreeMap;

use prepage_core::Tally;
use serde_json::{Value, json};

use crate::report::Report;

/// Branches with a smaller share of both faults and cost are not drawn: they would be narrower than a pixel.
const SMALLEST_SHARE: f64 = 0.0003;

/// Calls, the outermost first.
#[derive(Debug, Default)]
struct Branch {
    count: u64,
    cost_ns: u64,
    calls: BTreeMap<String, Branch>,
}

/// The tree of all stacks; where none were recorded, of the files whose code faulted and their functions.
pub fn tree(report: &Report) -> Value {
    let stacked = report.stacks.keys().any(Option::is_some);
    let mut root = Branch::default();
    if stacked {
        for (stack, costs) in &report.stacks {
            let names = match stack {
                None => vec!["[no stack]".to_owned()],
                Some(id) => report.calls(*id).into_iter().rev().collect(),
            };
            root.add(names, &costs.tally);
        }
    } else {
        for (place, costs) in &report.codes {
            root.add(vec![report.code_path(*place).to_owned(), report.symbol(*place)], &costs.tally);
        }
    }
    let total = report.total().tally;
    let smallest = (total.count as f64 * SMALLEST_SHARE, total.cost_ns as f64 * SMALLEST_SHARE);
    json!({ "stacked": stacked, "root": root.json("all", smallest) })
}

impl Branch {
    fn add(&mut self, names: Vec<String>, tally: &Tally) {
        let mut branch = self;
        branch.count(tally);
        for name in names {
            branch = branch.calls.entry(name).or_default();
            branch.count(tally);
        }
    }

    fn count(&mut self, tally: &Tally) {
        self.count += tally.count;
        self.cost_ns = self.cost_ns.saturating_add(tally.cost_ns);
    }

    /// Name, faults, nanoseconds and, where there are any, the calls.
    fn json(&self, name: &str, smallest: (f64, f64)) -> Value {
        let drawn = self.calls.iter().filter(|(_, call)| {
            call.count as f64 >= smallest.0 || call.cost_ns as f64 >= smallest.1.max(1.0)
        });
        let calls: Vec<Value> = drawn.map(|(name, call)| call.json(name, smallest)).collect();
        if calls.is_empty() {
            json!([name, self.count, self.cost_ns])
        } else {
            json!([name, self.count, self.cost_ns, calls])
        }
    }
}
