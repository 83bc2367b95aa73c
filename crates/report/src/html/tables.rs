//! The parts of the page that are plain HTML: the run and the tables.

use std::io;

use prepage_core::FaultClass;
use prepage_display::html::Document;
use prepage_display::table::{Cell, Table, table};

use crate::by::By;
use crate::column::Column;
use crate::page_cache;
use crate::report::Report;
use crate::text;

/// Rows of each table.
const TOP: usize = 100;

/// The classes, and what they mean.
pub fn classes(report: &Report, document: &mut Document<'_>) -> io::Result<()> {
    grouped(report, By::Class, "Faults by class", &text::class_columns(report), document)?;
    document.raw("<details><summary>What the classes mean</summary><dl>")?;
    for (class, costs) in FaultClass::ALL.into_iter().zip(&report.classes) {
        if costs.tally.count > 0 {
            document.raw(&format!("<dt>{}</dt><dd>{}</dd>", class.name(), meaning(class)))?;
        }
    }
    document.raw("</dl></details>\n")
}

const fn meaning(class: FaultClass) -> &'static str {
    match class {
        FaultClass::Disk => "bytes had to be read from a device: the kernel's major fault",
        FaultClass::Short => "the retry right after a disk fault",
        FaultClass::Cached => {
            "the page was in memory and had to be mapped, or another thread was reading it already"
        }
        FaultClass::ZeroFill => "a page of zeros was made, for memory that belongs to no file",
        FaultClass::CopyOnWrite => {
            "the first write to a page that may not be written in place: it was copied"
        }
        FaultClass::Failed => "ended in an error or a signal; what it cost is not known",
        FaultClass::Unseen => {
            "records were lost, or the recording ended, before its end: what it had to do and what it cost are not known"
        }
    }
}

/// All tables but that of classes.
pub fn body(report: &Report, document: &mut Document<'_>) -> io::Result<()> {
    let columns = [
        Column::Count,
        Column::Percent,
        Column::Disk,
        Column::Mean,
        Column::Max,
        Column::DiskTotal,
        Column::Total,
        Column::TotalPercent,
    ];
    document.raw("<section id=\"tables\">")?;
    grouped(report, By::File, "Faults by file", &columns, document)?;
    slowest(report, document)?;
    grouped(report, By::Symbol, "Faults by function", &columns, document)?;
    grouped(report, By::Mapping, "Faults by mapping", &columns, document)?;
    grouped(report, By::Thread, "Faults by thread", &columns, document)?;
    if let Some(facts) = &report.facts.page_cache {
        page_cache::document(facts, TOP, document)?;
    }
    losses(report, document)?;
    document.raw("</section>\n")
}

fn grouped(
    report: &Report,
    by: By,
    caption: &str,
    columns: &[Column],
    document: &mut Document<'_>,
) -> io::Result<()> {
    let groups = report.grouped(by, TOP);
    if groups.rows.is_empty() {
        return Ok(());
    }
    document.table(caption, &groups.table(columns, report.facts.tsc_hz))
}

fn slowest(report: &Report, document: &mut Document<'_>) -> io::Result<()> {
    if report.slowest.is_empty() {
        return Ok(());
    }
    let headings = ["cost µs", "at ms", "class", "comm", "pid", "tid", "file", "page", "address"];
    let mut table = table(&headings, &[0, 1, 4, 5, 7, 8]);
    for fault in &report.slowest {
        let thread = &report.thread_table[fault.thread.0 as usize];
        table.add_row::<Cell>([
            fault.cost_ns.map_or_else(String::new, |ns| format!("{:.2}", ns as f64 / 1e3)).into(),
            format!("{:.3}", fault.start_ns as f64 / 1e6).into(),
            fault.class.name().into(),
            thread.comm.as_str().into(),
            u64::from(thread.pid).into(),
            u64::from(thread.tid).into(),
            report.path(fault.object).into(),
            fault.page.map_or_else(String::new, |page| page.to_string()).into(),
            format!("{:#x}", fault.address).into(),
        ]);
    }
    document.table("The faults that cost most", &table)
}

fn losses(report: &Report, document: &mut Document<'_>) -> io::Result<()> {
    let lost = &report.facts.lost_by_second;
    if lost.is_empty() {
        return Ok(());
    }
    let rows = lost.iter().take(TOP).map(|&(second, records)| vec![second.into(), records.into()]).collect();
    let left_out = lost.len().saturating_sub(TOP);
    let table = Table { rows, left_out, ..table(&["second", "records lost"], &[0, 1]) };
    document.table("Losses by second", &table)
}
