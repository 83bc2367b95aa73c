//! Tables as all commands print them.

use prepage_core::FaultClass;
use prepage_display::number::{known, ms, percent};
pub use prepage_display::table::{Table, table};
use prepage_trace::Summary;

/// How many faults of each class were recorded, and what they cost.
pub fn classes(summary: &Summary) -> Table {
    let mut table = table(&["class", "count", "share %", "mean µs", "total ms"], &[1, 2, 3, 4]);
    let all = summary.total();
    let classes = FaultClass::ALL.map(|class| (class.name(), summary.class(class)));
    for (name, tally) in classes.into_iter().filter(|(_, tally)| tally.count > 0).chain([("all", all)]) {
        table.add_row([
            name.to_owned(),
            tally.count.to_string(),
            known(percent(tally.count, all.count), |share| format!("{share:.1}")),
            known(tally.mean_ns(), |ns| format!("{:.2}", ns / 1e3)),
            known((tally.timed > 0).then_some(tally.cost_ns), ms),
        ]);
    }
    table
}
