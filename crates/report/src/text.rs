//! Reports for the terminal.

use std::io::{self, Write};

use prepage_core::quantity::counted;
use prepage_core::{FaultClass, Tally};
use prepage_display::number::{self, known, us};
use prepage_display::run;
use prepage_display::table::{Heading, Table, table};
use prepage_display::terminal::printable;

use crate::by::By;
use crate::column::Column;
use crate::cost::CostBin;
use crate::costs::Costs;
use crate::diff::{Change, Diff, Measure};
use crate::page_cache;
use crate::report::Report;

/// Files the overview names.
const OVERVIEW_FILES: usize = 8;
/// Slow faults the overview names.
const OVERVIEW_SLOWEST: usize = 5;
/// How long the longest bar of a histogram is.
const BAR_CHARS: std::ops::RangeInclusive<usize> = 10..=50;
/// Printed where a table of costs would be empty.
const NO_COSTS: &str = "the costs of these faults are not known";
const LEVELS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The default columns of a table over groups.
pub const TABLE_COLUMNS: [Column; 6] =
    [Column::Count, Column::Percent, Column::Disk, Column::Mean, Column::Max, Column::Total];

/// The default columns of the table of classes.
pub fn class_columns(report: &Report) -> Vec<Column> {
    let mut columns = vec![
        Column::Count,
        Column::Percent,
        Column::Mean,
        Column::Cycles,
        Column::P50,
        Column::P99,
        Column::Max,
        Column::Total,
        Column::TotalPercent,
    ];
    columns.retain(|column| *column != Column::Cycles || report.facts.tsc_hz.is_some());
    columns
}

/// What fits one screen of `width` columns ([`prepage_display::terminal::width`]): the run, its classes, the slowest files and
/// faults, when it waited.
pub fn overview(report: &Report, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    for line in facts_lines(report) {
        writeln!(out, "{}", printable(&line))?;
    }
    match why_none(report) {
        Some(why) => writeln!(out, "\nno page faults: {why}")?,
        None => faults(report, width, out)?,
    }
    if let Some(facts) = &report.facts.page_cache {
        writeln!(out)?;
        page_cache::print(facts, OVERVIEW_FILES, OVERVIEW_SLOWEST, width, out)?;
    }
    Ok(())
}

/// The part of the overview that is of faults, where there are some.
fn faults(report: &Report, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let tsc_hz = report.facts.tsc_hz;
    let groups = report.grouped(By::Class, usize::MAX);
    let columns = class_columns(report);
    let table = groups.table(&columns, tsc_hz);
    // The microseconds beside cycles say the same. Columns stand behind the class.
    let spare = [Column::Cycles, Column::P50, Column::P99]
        .map(|spare| columns.iter().position(|column| *column == spare));
    let spare: Vec<usize> = spare.into_iter().flatten().map(|at| at + 1).collect();
    writeln!(out, "\n{}", table.spare(&spare).lines(width))?;
    let files = report.grouped(By::File, OVERVIEW_FILES);
    let columns = [Column::Count, Column::Disk, Column::Mean, Column::Total, Column::TotalPercent];
    writeln!(out, "\n{}", Table { total: None, ..files.table(&columns, tsc_hz) }.lines(width))?;
    if report.is_timed(&report.total().tally) {
        writeln!(out, "\n{}", waiting(report))?;
    }
    if !report.slowest.is_empty() {
        writeln!(out, "\n{}", slowest(report, OVERVIEW_SLOWEST).lines(width))?;
    }
    Ok(())
}

/// Why the report is of no faults, where that is so.
pub fn why_none(report: &Report) -> Option<&'static str> {
    match (report.total().tally.count, report.faults_in_file) {
        (0, 0) => Some("the trace holds none"),
        (0, _) => Some("none passes the filter"),
        _ => None,
    }
}

/// One table over groups in lines of `width`, with a last row for all faults.
pub fn grouped(
    report: &Report,
    by: By,
    top: usize,
    columns: &[Column],
    width: Option<usize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let groups = report.grouped(by, top);
    writeln!(out, "{}", groups.table(columns, report.facts.tsc_hz).lines(width))
}

/// How many faults cost how much, in lines of `width`: each class in a column of its own, all classes as bars.
pub fn histogram(report: &Report, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    let bins = report.cost_bins(1);
    if bins.is_empty() {
        return writeln!(out, "{NO_COSTS}");
    }
    let most = bins.iter().map(CostBin::count).max().unwrap_or(0).max(1);
    let timed = |class: &FaultClass| report.classes[*class as usize].tally.timed > 0;
    let classes: Vec<FaultClass> = FaultClass::ALL.into_iter().filter(timed).collect();
    let headings = ["from µs", "to µs", "count"].into_iter().chain(classes.iter().map(|class| class.name()));
    let headings: Vec<&str> = headings.collect();
    let mut rows = table(&headings, &(0..headings.len()).collect::<Vec<_>>());
    for bin in &bins {
        let mut cells = vec![us(bin.from_ns), us(bin.to_ns), bin.count().to_string()];
        cells.extend(classes.iter().map(|class| bin.counts[*class as usize].to_string()));
        rows.add_row(cells);
    }
    let numbers = rows.width();
    let longest = width.map_or(usize::MAX, |width| width.saturating_sub(numbers + 2));
    let longest = longest.clamp(*BAR_CHARS.start(), *BAR_CHARS.end()) as u64;
    rows.headings.push(Heading::text(""));
    for (row, bin) in rows.rows.iter_mut().zip(&bins) {
        // Whatever is there is seen.
        row.push("█".repeat((bin.count() * longest).div_ceil(most) as usize).into());
    }
    writeln!(out, "{}\n", rows.whole(headings.len()).lines(width))?;
    let percentiles = [50.0, 75.0, 90.0, 95.0, 99.0, 99.9, 100.0];
    let mut line = |name: &str, costs: &Costs| {
        let known = percentiles
            .into_iter()
            .filter_map(|percent| Some(format!("p{percent} {}", us(costs.percentile_ns(percent)? as f64))));
        writeln!(out, "µs, {name}: {}", known.collect::<Vec<_>>().join("  "))
    };
    line("all", &report.total())?;
    classes.iter().try_for_each(|class| line(class.name(), &report.classes[*class as usize]))
}

/// The faults that cost most, in lines of `width`.
pub fn slowest_faults(report: &Report, width: Option<usize>, out: &mut dyn Write) -> io::Result<()> {
    match report.total().tally.timed {
        0 => writeln!(out, "{NO_COSTS}"),
        _ => writeln!(out, "{}", slowest(report, usize::MAX).lines(width)),
    }
}

/// What changed from one trace of `diff` to the other, for who is interested in `measure`: counts, and disk faults and costs before and after
/// where that trace tells them.
pub fn changes<'a>(
    heading: &str,
    diff: &Diff,
    measure: Measure,
    changes: impl Iterator<Item = &'a Change>,
) -> Table {
    let headings =
        [heading, "faults", "after", "change", "disk", "after", "change", "total ms", "after", "change"];
    let numbers: Vec<usize> = (1..headings.len()).collect();
    let mut table = table(&headings, &numbers);
    for Change { name, before, after } in changes {
        let counts = |before: Option<u64>, after: Option<u64>| {
            let change = before.zip(after).map(|(before, after)| i128::from(after) - i128::from(before));
            let count = |count| known(count, |count: u64| count.to_string());
            [count(before), count(after), known(change, |change| format!("{change:+}"))]
        };
        let disk = |tally: &Tally, tells_disk: bool| tells_disk.then_some(tally.disk);
        let ms = |tally: &Tally, has_costs| (tally.is_timed() && has_costs).then(|| tally.total_ms());
        let (before_ms, after_ms) = (ms(before, diff.has_costs[0]), ms(after, diff.has_costs[1]));
        // Rounded to nothing, it has no sign of its own: adding zero makes -0 positive.
        let both_ms = before_ms.zip(after_ms).filter(|_| diff.compares_costs(measure));
        let change_ms = both_ms.map(|(before, after)| ((after - before) * 100.0).round() / 100.0 + 0.0);
        let in_ms = |ms| known(ms, |ms: f64| format!("{ms:.2}"));
        let times = [in_ms(before_ms), in_ms(after_ms), known(change_ms, |ms| format!("{ms:+.2}"))];
        let faults = counts(Some(before.count), Some(after.count));
        let disk_faults = counts(disk(before, diff.tells_disk[0]), disk(after, diff.tells_disk[1]));
        let figures = [faults, disk_faults, times];
        table.add_row(std::iter::once(name.clone()).chain(figures.into_iter().flatten()));
    }
    table
}

/// The run, in a few lines: what, when, where, and what is missing.
pub fn facts_lines(report: &Report) -> Vec<String> {
    let facts = &report.facts;
    let mut lines: Vec<String> = run::subject(facts).into_iter().collect();
    let total = report.total().tally;
    let of = if report.filter.is_empty() {
        String::new()
    } else {
        format!(" (of {} recorded)", report.faults_in_file)
    };
    let costs = if report.is_timed(&total) {
        let (all, disk) = (total.total_ms(), total.disk_ns as f64 / 1e6);
        match facts.tells_disk_faults() {
            true => format!("threads waited {all:.1} ms for them, {disk:.1} ms of it for the disk"),
            false => format!("threads waited {all:.1} ms for {} of them", total.timed),
        }
    } else {
        "their costs are not known".to_owned()
    };
    lines.push(format!(
        "{}{of} in {:.1} ms; {costs}",
        counted(total.count as usize, "page fault"),
        facts.duration_ns as f64 / 1e6
    ));
    let kernel = (!facts.kernel.is_empty()).then(|| format!("Linux {}", facts.kernel));
    let started = run::started(facts).map(|started| format!("recorded {started}"));
    let complete = facts.missing().is_empty().then(|| facts.completeness());
    lines.push(kernel.into_iter().chain(started).chain(complete).collect::<Vec<_>>().join(", "));
    lines.extend(facts.missing().iter().map(|gap| format!("incomplete: {gap}")));
    lines.retain(|line| !line.is_empty());
    lines
}

/// A line of bars: how long threads waited in each slice of time.
fn waiting(report: &Report) -> String {
    let all = |sum: u64, costs: &Costs| sum.saturating_add(costs.tally.cost_ns);
    let costs: Vec<u64> = report.slices.iter().map(|classes| classes.iter().fold(0, all)).collect();
    let most = costs.iter().copied().max().unwrap_or(0).max(1);
    let bar = |&cost: &u64| LEVELS[(cost as f64 * 8.0 / most as f64).ceil() as usize];
    let line: String = costs.iter().map(bar).collect();
    let (column, most) = (number::ms(report.slice_ns() as u64), number::ms(most));
    format!(" waited over time, {column} ms a column, at most {most} ms in one\n |{line}|")
}

fn slowest(report: &Report, count: usize) -> Table {
    let headings = ["slowest µs", "at ms", "class", "comm", "tid", "page", "file"];
    let mut table = table(&headings, &[0, 1, 4, 5]);
    for fault in report.slowest.iter().take(count) {
        let thread = &report.thread_table[fault.thread.0 as usize];
        table.add_row([
            known(fault.cost_ns, |ns| us(ns as f64)),
            number::ms(fault.start_ns),
            fault.class.name().to_owned(),
            thread.comm.clone(),
            thread.tid.to_string(),
            fault.page.map_or_else(|| format!("{:#x}", fault.address), |page| page.to_string()),
            report.path(fault.object).to_owned(),
        ]);
    }
    table
}
