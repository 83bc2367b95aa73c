//! The tables of a comparison, for the terminal and for the page.

use prepage_display::table::{Cell, Table, table};

use crate::comparison::Row;
use crate::cost::CostModel;
use crate::input::Input;
use crate::memory::MemoryFaults;
use crate::outcome::Outcome;

/// Columns of policies that a narrow terminal does without: parts of others, the least telling first.
const SPARE: [&str; 6] = ["waits ms", "faults ms", "2 MiB", "truncated", "full", "waits"];

/// A table of names and, after them, numbers.
fn named(headings: &[impl AsRef<str>]) -> Table {
    table(headings, &(1..headings.len()).collect::<Vec<_>>())
}

/// All policies after `runs` runs, with their `cost` and their times on each device.
pub fn policies(rows: &[Row<'_>], runs: u32, cost: Option<CostModel>) -> Table {
    let counts = ["policy", "hard", "±%", "soft", "I/Os", "pages read", "a read", "never", "never %"];
    let mut headings = [&counts[..], &["full", "truncated", "2 MiB"]]
        .concat()
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    if runs > 1 {
        headings.push("superpages".to_owned());
    }
    if cost.is_some() {
        headings.push("cost ms".to_owned());
    }
    let mut kinds = headings.clone();
    let timed = rows.first().map_or(&[][..], |row| &row.timed);
    for (device, _) in timed {
        headings.push(format!("{device} ms"));
        kinds.push(String::new());
        for kind in ["faults ms", "waits ms", "waits"] {
            // Of several devices each says which one's it is.
            headings.push(if timed.len() > 1 { format!("{device} {kind}") } else { kind.to_owned() });
            kinds.push(kind.to_owned());
        }
    }
    let of_kind = |name: &str| (0..kinds.len()).rev().filter(|at| kinds[*at] == name).collect::<Vec<_>>();
    let spare: Vec<usize> = SPARE.into_iter().flat_map(of_kind).collect();
    // Policies differ in the ends of their names.
    let mut table = named(&headings).whole(0).spare(&spare);
    let base = rows.first().map_or(0, |row| row.plain.outcome.hard);
    for row in rows {
        let outcome = &row.plain.outcome;
        let (full, truncated) = outcome.full_and_truncated();
        let mut cells = vec![
            row.name.into(),
            Cell::compared(outcome.hard, base),
            change(base, outcome.hard).into(),
            outcome.soft.into(),
            outcome.io.into(),
            outcome.read.into(),
            format!("{:.1}", outcome.mean_read_pages()).into(),
            outcome.never.into(),
            format!("{:.2}", outcome.never_percent()).into(),
            full.into(),
            truncated.into(),
            outcome.full512.into(),
        ];
        if runs > 1 {
            cells.push(outcome.superpages.into());
        }
        cells.extend(cost.map(|cost| milliseconds(cost.of(outcome))));
        for (_, timed) in &row.timed {
            let Outcome { time_ns, fault_ns, stall_ns, .. } = timed.outcome;
            cells.extend([time_ns, fault_ns, stall_ns].map(milliseconds));
            let [waits, ..] = timed.outcome.logged();
            cells.push(waits.into());
        }
        table.add_row(cells);
    }
    table
}

/// From `base` to `count`, in percent; `-` where there is no percentage, for there was nothing.
fn change(base: u64, count: u64) -> String {
    match base {
        _ if base == count => "0".to_owned(),
        0 => "-".to_owned(),
        _ => format!("{:+.1}", 100.0 * (count as f64 - base as f64) / base as f64),
    }
}

fn milliseconds(ns: u64) -> Cell {
    format!("{:.1}", ns as f64 / 1e6).into()
}

/// Hard faults in the `top` objects with the most; what a policy saves or adds against the first is coloured.
pub fn objects(input: &Input, rows: &[Row<'_>], top: usize) -> Table {
    let names = rows.iter().map(|row| row.name);
    let mut table = named(&["object", "pages"].into_iter().chain(names).collect::<Vec<_>>());
    let hard = |row: &Row<'_>, at: usize| row.plain.outcome.objects[at].hard;
    let mut order: Vec<usize> = (0..input.layout.objects.len()).collect();
    order.sort_by_key(|&at| std::cmp::Reverse(rows.iter().map(|row| hard(row, at)).max()));
    table.left_out = order.len().saturating_sub(top);
    table.shown_by = "--json has all".into();
    for at in order.into_iter().take(top) {
        let object = &input.layout.objects[at];
        let counts = rows.iter().map(|row| Cell::compared(hard(row, at), hard(&rows[0], at)));
        table.add_row([object.name.as_str().into(), object.pages.into()].into_iter().chain(counts));
    }
    table
}

/// Faults with too little memory: a row for each size, a column for each rule.
pub fn memory(memory: &MemoryFaults) -> Table {
    let mut headings = vec!["pages"];
    headings.extend(memory.names());
    let mut table = table(&headings, &(0..headings.len()).collect::<Vec<_>>());
    for (size, faults) in &memory.faults {
        table.add_row([size].into_iter().chain(faults).copied());
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn from_nothing_to_something_is_no_percentage() {
        assert_eq!([change(0, 0), change(0, 7), change(4, 3)], ["0", "-", "-25.0"]);
    }
}
