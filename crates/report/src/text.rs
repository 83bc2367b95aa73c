//! Reports for the terminal.

use std::io::{self, Write};
use std::time::{Duration, UNIX_EPOCH};

use comfy_table::{CellAlignment, Table, presets};
use prepage_core::{FaultClass, TraceFacts};

use crate::by::{By, Grouped, Label};
use crate::column::Column;
use crate::diff::Change;
use crate::report::Report;
use crate::tally::Tally;

/// Files the overview names.
const OVERVIEW_FILES: usize = 8;
/// Dear faults the overview names.
const OVERVIEW_DEAREST: usize = 5;
/// Longer paths lose their beginning in the overview, so that its lines fit a terminal.
const PATH_CHARS: usize = 56;
/// Bars of a histogram are at most this long.
const BAR_CHARS: u64 = 50;
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The default columns of a table over groups.
pub const TABLE_COLUMNS: [Column; 6] =
    [Column::Count, Column::Percent, Column::Disk, Column::Mean, Column::Max, Column::Total];
/// The default columns of the table of classes.
pub const CLASS_COLUMNS: [Column; 8] = [
    Column::Count,
    Column::Percent,
    Column::Mean,
    Column::P50,
    Column::P99,
    Column::Max,
    Column::Total,
    Column::TotalPercent,
];

/// What fits one screen: the run, its classes, the dearest files and faults, when it waited.
pub fn overview(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    for line in facts_lines(report) {
        writeln!(out, "{line}")?;
    }
    let total = report.total();
    if total.count == 0 {
        let why = if report.faults_in_file == 0 { "the trace holds none" } else { "none passes the filter" };
        return writeln!(out, "\nno page faults: {why}");
    }
    writeln!(out, "\n{}", table(&report.grouped(By::Class, usize::MAX), &CLASS_COLUMNS, true))?;
    let mut files = report.grouped(By::File, OVERVIEW_FILES);
    for row in &mut files.rows {
        if let Some(Label::Text(path)) = row.labels.first_mut() {
            *path = shortened(path);
        }
    }
    let columns = [Column::Count, Column::Disk, Column::Mean, Column::Total, Column::TotalPercent];
    writeln!(out, "\n{}", table(&files, &columns, false))?;
    tell_left_out(&files, out)?;
    writeln!(out, "\n{}", waiting(report))?;
    if !report.dearest.is_empty() {
        writeln!(out, "\n{}", dearest(report, OVERVIEW_DEAREST, true))?;
    }
    Ok(())
}

/// One table over groups, with a last row for all faults.
pub fn grouped(
    report: &Report,
    by: By,
    top: usize,
    columns: &[Column],
    out: &mut dyn Write,
) -> io::Result<()> {
    let groups = report.grouped(by, top);
    writeln!(out, "{}", table(&groups, columns, true))?;
    tell_left_out(&groups, out)
}

/// How many faults cost how much, with bars.
pub fn histogram(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let bins = report.cost_bins(1);
    let most = bins.iter().map(super::cost::CostBin::count).max().unwrap_or(0).max(1);
    let mut rows = plain_table(&["from µs", "to µs", "count", "disk"], 4);
    for bin in &bins {
        let count = bin.count();
        // Whatever is there is seen.
        let bar = (count * BAR_CHARS).div_ceil(most) as usize;
        rows.add_row([
            microseconds(bin.from_ns),
            microseconds(bin.to_ns),
            count.to_string(),
            bin.counts[FaultClass::Disk as usize].to_string(),
            "█".repeat(bar),
        ]);
    }
    writeln!(out, "{}", trimmed(&rows))?;
    let total = report.total();
    let percentiles = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0];
    let known = percentiles.into_iter().filter_map(|percent| {
        Some(format!("p{percent} {}", microseconds(total.percentile_ns(percent)? as f64)))
    });
    writeln!(out, "\nµs: {}", known.collect::<Vec<_>>().join("  "))
}

/// The faults that cost most.
pub fn dearest_faults(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{}", dearest(report, usize::MAX, false))
}

/// What changed: counts and costs before and after.
pub fn changes<'a>(heading: &str, changes: impl Iterator<Item = &'a Change>) -> String {
    let headings =
        [heading, "faults", "after", "change", "disk", "after", "change", "total ms", "after", "change"];
    let mut table = plain_table(&headings, headings.len());
    align(&mut table, 0, CellAlignment::Left);
    for Change { name, before, after } in changes {
        let counts = |before: u64, after: u64| {
            [before.to_string(), after.to_string(), format!("{:+}", i128::from(after) - i128::from(before))]
        };
        let [before_ms, after_ms] = [before, after].map(|tally| tally.cost_ns as f64 / 1e6);
        // Rounded to nothing, it has no sign of its own: adding zero makes -0 positive.
        let change_ms = ((after_ms - before_ms) * 100.0).round() / 100.0 + 0.0;
        let times = [format!("{before_ms:.2}"), format!("{after_ms:.2}"), format!("{change_ms:+.2}")];
        let figures = [counts(before.count, after.count), counts(before.disk, after.disk), times];
        table.add_row(
            std::iter::once(shortened(name)).chain(figures.into_iter().flatten()).collect::<Vec<_>>(),
        );
    }
    trimmed(&table)
}

/// The run, in a few lines: what, when, where, and what is missing.
pub fn facts_lines(report: &Report) -> Vec<String> {
    let facts = &report.facts;
    let mut lines = Vec::new();
    if !facts.command.is_empty() {
        lines.push(shell_words(&facts.command));
    }
    let total = report.total();
    let of = if report.filter.is_empty() {
        String::new()
    } else {
        format!(" (of {} recorded)", report.faults_in_file)
    };
    lines.push(format!(
        "{} page faults{of} in {:.1} ms; threads waited {:.1} ms for them, {:.1} ms of it for the disk",
        total.count,
        facts.duration_ns as f64 / 1e6,
        total.cost_ns as f64 / 1e6,
        total.disk_ns as f64 / 1e6,
    ));
    let mut machine = Vec::new();
    if !facts.kernel.is_empty() {
        machine.push(format!("Linux {}", facts.kernel));
    }
    if let Some(started) = started(facts) {
        machine.push(format!("recorded {started}"));
    }
    machine.push(losses(facts));
    lines.push(machine.join(", "));
    lines
}

/// What of the run is not in the trace, in words.
pub fn losses(facts: &TraceFacts) -> String {
    let mut missing = Vec::new();
    if facts.lost > 0 {
        missing.push(format!("{} records lost by the kernel", facts.lost));
    }
    if facts.unsaved > 0 {
        missing.push(format!("{} faults not saved, for the disk was full", facts.unsaved));
    }
    if facts.cut_short {
        missing.push("the recorder was killed: what it had saved until then is all there is".to_owned());
    }
    if facts.system_calls_hidden {
        missing.push("faults in system calls not seen".to_owned());
    }
    if facts.survivors > 0 {
        missing.push(format!("{} processes still ran at the end", facts.survivors));
    }
    if missing.is_empty() { "nothing lost".to_owned() } else { missing.join(", ") }
}

/// When the run began, in UTC; `None` where the trace does not say.
pub fn started(facts: &TraceFacts) -> Option<String> {
    let since = Duration::from_nanos(facts.started_unix_ns);
    (facts.started_unix_ns > 0).then(|| humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string())
}

/// A command line that a shell would read as these arguments.
pub fn shell_words(arguments: &[String]) -> String {
    let word = |argument: &String| {
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
        if !argument.is_empty() && argument.chars().all(plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', r"'\''"))
        }
    };
    arguments.iter().map(word).collect::<Vec<_>>().join(" ")
}

fn table(groups: &Grouped, columns: &[Column], with_total: bool) -> String {
    let labels = groups.by.labels();
    // Stacks are longer than any line: figures behind them would not be seen.
    let ahead = if groups.by == By::Stack { labels.len() } else { 0 };
    let in_order = |mut cells: Vec<String>| {
        cells.rotate_left(ahead);
        cells
    };
    let headings = labels.iter().copied().chain(columns.iter().map(|column| column.heading()));
    let headings = in_order(headings.map(str::to_owned).collect());
    let mut table = plain_table(&headings, headings.len());
    for (place, label) in labels.iter().enumerate() {
        let text = groups.rows.iter().any(|row| matches!(row.labels[place], Label::Text(_)));
        if text || *label == "class" {
            align(&mut table, (place + headings.len() - ahead) % headings.len(), CellAlignment::Left);
        }
    }
    let figures = |tally: &Tally| -> Vec<String> {
        columns.iter().map(|column| column.text(tally, &groups.total)).collect()
    };
    for row in &groups.rows {
        table.add_row(in_order(row.labels.iter().map(label_text).chain(figures(&row.tally)).collect()));
    }
    if with_total {
        let name =
            std::iter::once("all".to_owned()).chain(std::iter::repeat_n(String::new(), labels.len() - 1));
        table.add_row(in_order(name.chain(figures(&groups.total)).collect()));
    }
    trimmed(&table)
}

fn tell_left_out(groups: &Grouped, out: &mut dyn Write) -> io::Result<()> {
    if groups.left_out > 0 {
        writeln!(out, " and {} more (--by {} --top N)", groups.left_out, groups.by.name())?;
    }
    Ok(())
}

/// A line of bars: how long threads waited in each slice of time.
fn waiting(report: &Report) -> String {
    let costs: Vec<u64> =
        report.slices.iter().map(|classes| classes.iter().map(|tally| tally.cost_ns).sum()).collect();
    let most = costs.iter().copied().max().unwrap_or(0).max(1);
    let bar = |&cost: &u64| LEVELS[(cost as f64 * 8.0 / most as f64).ceil() as usize];
    let line: String = costs.iter().map(bar).collect();
    format!(
        " waited over time, {:.2} ms a column, at most {:.2} ms in one\n |{line}|",
        report.slice_ns() / 1e6,
        most as f64 / 1e6
    )
}

fn dearest(report: &Report, count: usize, short: bool) -> String {
    let mut table = plain_table(&["dearest µs", "at ms", "class", "comm", "tid", "page", "file"], 7);
    for column in [2, 3, 6] {
        align(&mut table, column, CellAlignment::Left);
    }
    for fault in report.dearest.iter().take(count) {
        let thread = &report.thread_table[fault.thread.0 as usize];
        let path = report.path(fault.object);
        table.add_row([
            fault.cost_ns.map_or_else(|| "-".to_owned(), |ns| microseconds(ns as f64)),
            format!("{:.2}", fault.start_ns as f64 / 1e6),
            fault.class.name().to_owned(),
            thread.comm.clone(),
            thread.tid.to_string(),
            fault.page.map_or_else(|| format!("{:#x}", fault.address), |page| page.to_string()),
            if short { shortened(path) } else { path.to_owned() },
        ]);
    }
    trimmed(&table)
}

/// A table without lines, every cell aligned to the right.
fn plain_table(headings: &[impl AsRef<str>], columns: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(headings.iter().map(AsRef::as_ref));
    (0..columns).for_each(|column| align(&mut table, column, CellAlignment::Right));
    table
}

fn align(table: &mut Table, column: usize, alignment: CellAlignment) {
    if let Some(column) = table.column_mut(column) {
        column.set_cell_alignment(alignment);
    }
}

fn trimmed(table: &Table) -> String {
    table.trim_fmt()
}

fn label_text(label: &Label) -> String {
    match label {
        Label::Text(text) => text.clone(),
        Label::Number(number) => number.to_string(),
        Label::Time(ns) => format!("{:.2}", *ns as f64 / 1e6),
    }
}

fn microseconds(ns: f64) -> String {
    let us = ns / 1e3;
    if us < 10.0 { format!("{us:.2}") } else { format!("{us:.1}") }
}

/// `path` without its beginning, where it would make a line of a table longer than a terminal.
pub fn shortened(path: &str) -> String {
    let chars = path.chars().count();
    if chars <= PATH_CHARS {
        return path.to_owned();
    }
    let end: String = path.chars().skip(chars - PATH_CHARS + 1).collect();
    format!("…{end}")
}
