//! The parts of the page that are plain HTML: the run and the tables.

use std::io::{self, Write};

use prepage_core::FaultClass;

use super::escaped;
use crate::by::{By, Label};
use crate::column::Column;
use crate::report::Report;
use crate::text;

/// Rows of each table.
const TOP: usize = 100;

/// The title, the run and the classes.
pub fn header(report: &Report, title: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "<header><p class=\"tool\">prepage · page faults</p><h1>{title}</h1>")?;
    let skip = usize::from(!report.facts.command.is_empty());
    for line in text::facts_lines(report).iter().skip(skip) {
        writeln!(out, "<p>{}</p>", escaped(line))?;
    }
    grouped(report, By::Class, "Faults by class", &text::CLASS_COLUMNS, out)?;
    writeln!(out, "<details><summary>What the classes mean</summary><dl>")?;
    for (class, tally) in FaultClass::ALL.into_iter().zip(&report.classes) {
        if tally.count > 0 {
            writeln!(out, "<dt>{}</dt><dd>{}</dd>", class.name(), meaning(class))?;
        }
    }
    writeln!(out, "</dl></details></header>")
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
    }
}

/// All tables but that of classes.
pub fn body(report: &Report, out: &mut dyn Write) -> io::Result<()> {
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
    writeln!(out, "<section id=\"tables\">")?;
    grouped(report, By::File, "Faults by file", &columns, out)?;
    dearest(report, out)?;
    grouped(report, By::Symbol, "Faults by function", &columns, out)?;
    grouped(report, By::Mapping, "Faults by mapping", &columns, out)?;
    grouped(report, By::Thread, "Faults by thread", &columns, out)?;
    page_cache(report, out)?;
    losses(report, out)?;
    writeln!(out, "</section>")
}

fn grouped(
    report: &Report,
    by: By,
    caption: &str,
    columns: &[Column],
    out: &mut dyn Write,
) -> io::Result<()> {
    let groups = report.grouped(by, TOP);
    if groups.rows.is_empty() {
        return Ok(());
    }
    let headings: Vec<Heading> = by
        .labels()
        .iter()
        .map(|label| Heading { text: label.replace('_', " "), number: matches!(*label, "pid" | "tid") })
        .chain(columns.iter().map(|column| Heading { text: column.heading().to_owned(), number: true }))
        .collect();
    begin(caption, &headings, out)?;
    for row in &groups.rows {
        let labels = row.labels.iter().map(|label| match label {
            Label::Text(text) => text.clone(),
            Label::Number(number) => number.to_string(),
            Label::Time(ns) => format!("{:.2}", *ns as f64 / 1e6),
        });
        let figures = columns.iter().map(|column| column.text(&row.tally, &groups.total));
        cells(&headings, labels.chain(figures), out)?;
    }
    write!(out, "</tbody><tfoot>")?;
    let empty = std::iter::repeat_n(String::new(), by.labels().len() - 1);
    let figures = columns.iter().map(|column| column.text(&groups.total, &groups.total));
    cells(&headings, std::iter::once("all".to_owned()).chain(empty).chain(figures), out)?;
    end("tfoot", groups.left_out, out)
}

fn dearest(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    if report.dearest.is_empty() {
        return Ok(());
    }
    let headings = ["cost µs", "at ms", "class", "comm", "pid", "tid", "file", "page", "address"];
    let headings = headings
        .map(|text| Heading { text: text.to_owned(), number: !matches!(text, "class" | "comm" | "file") });
    begin("The faults that cost most", &headings, out)?;
    for fault in &report.dearest {
        let thread = &report.thread_table[fault.thread.0 as usize];
        let row = [
            fault.cost_ns.map_or_else(String::new, |ns| format!("{:.2}", ns as f64 / 1e3)),
            format!("{:.3}", fault.start_ns as f64 / 1e6),
            fault.class.name().to_owned(),
            thread.comm.clone(),
            thread.pid.to_string(),
            thread.tid.to_string(),
            report.path(fault.object).to_owned(),
            fault.page.map_or_else(String::new, |page| page.to_string()),
            format!("{:#x}", fault.address),
        ];
        cells(&headings, row.into_iter(), out)?;
    }
    end("tbody", 0, out)
}

/// What became of files' pages, where it was recorded.
fn page_cache(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Some(facts) = &report.facts.page_cache else { return Ok(()) };
    let number = |text: &str| Heading { text: text.to_owned(), number: true };
    let name = |text: &str| Heading { text: text.to_owned(), number: false };
    let headings = [
        name("file"),
        number("pages read in"),
        number("asked for by read()"),
        number("untouched"),
        number("waits for a read under way"),
        number("waited ms"),
    ];
    begin("Pages of files", &headings, out)?;
    for file in facts.files.iter().take(TOP) {
        let path = match file.path.as_str() {
            "" => format!("inode {} of device {:#x}", file.inode, file.device),
            path => path.to_owned(),
        };
        let row = [
            path,
            file.pages_read_in.to_string(),
            file.pages_by_read.to_string(),
            file.pages_untouched.to_string(),
            file.read_waits.to_string(),
            format!("{:.2}", file.read_wait_ns as f64 / 1e6),
        ];
        cells(&headings, row.into_iter(), out)?;
    }
    end("tbody", facts.files.len().saturating_sub(TOP), out)?;
    if facts.waits.is_empty() {
        return Ok(());
    }
    let headings = [name("who waited"), name("for the read of"), number("faults"), number("waited ms")];
    begin("Who waited for whose read", &headings, out)?;
    for wait in facts.waits.iter().take(TOP) {
        let thread = |thread: &prepage_core::Thread| format!("{} {}", thread.comm, thread.tid);
        let ms = format!("{:.2}", wait.wait_ns as f64 / 1e6);
        let row = [thread(&wait.waiter), thread(&wait.reader), wait.count.to_string(), ms];
        cells(&headings, row.into_iter(), out)?;
    }
    end("tbody", facts.waits.len().saturating_sub(TOP), out)
}

fn losses(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    if report.facts.lost_by_second.is_empty() {
        return Ok(());
    }
    let headings = ["second", "records lost"].map(|text| Heading { text: text.to_owned(), number: true });
    begin("Losses by second", &headings, out)?;
    for (second, records) in &report.facts.lost_by_second {
        cells(&headings, [second.to_string(), records.to_string()].into_iter(), out)?;
    }
    end("tbody", 0, out)
}

/// The heading of a column.
struct Heading {
    text: String,
    number: bool,
}

fn begin(caption: &str, headings: &[Heading], out: &mut dyn Write) -> io::Result<()> {
    write!(out, "<div class=\"table\"><table><caption>{}</caption><thead><tr>", escaped(caption))?;
    for heading in headings {
        let class = if heading.number { " class=\"number\"" } else { "" };
        write!(out, "<th scope=\"col\"{class}>{}</th>", escaped(&heading.text))?;
    }
    writeln!(out, "</tr></thead><tbody>")
}

fn cells(headings: &[Heading], texts: impl Iterator<Item = String>, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "<tr>")?;
    for (heading, text) in headings.iter().zip(texts) {
        let class = if heading.number { " class=\"number\"" } else { "" };
        write!(out, "<td{class}>{}</td>", escaped(&text))?;
    }
    writeln!(out, "</tr>")
}

fn end(part: &str, left_out: usize, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "</{part}></table>")?;
    if left_out > 0 {
        write!(out, "<p class=\"note\">and {left_out} more</p>")?;
    }
    writeln!(out, "</div>")
}
