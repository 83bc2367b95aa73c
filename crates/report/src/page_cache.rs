//! What became of files' pages, where it was recorded: the tables of `record`, `report` and its page.

use std::io::{self, Write};

use prepage_core::{FilePages, PageCacheFacts, Thread};
use prepage_display::html::{Cell, Document, Heading};
use prepage_display::number::ms;
use prepage_display::terminal;

/// A table: names first, then numbers.
struct Rows {
    headings: &'static [&'static str],
    names: usize,
    rows: Vec<Vec<String>>,
    total: Option<Vec<String>>,
    left_out: usize,
}

/// Prints at most `files` files and `waits` waits.
pub fn print(facts: &PageCacheFacts, files: usize, waits: usize, out: &mut dyn Write) -> io::Result<()> {
    for (nth, rows) in
        [Some(of_files(facts, files)), of_waits(facts, waits)].into_iter().flatten().enumerate()
    {
        if nth > 0 {
            writeln!(out)?;
        }
        let numbers: Vec<usize> = (rows.names..rows.headings.len()).collect();
        let mut table = terminal::table(rows.headings, &numbers);
        rows.rows.into_iter().chain(rows.total).for_each(|row| table.add_row(row));
        writeln!(out, "{}", table.trim_fmt())?;
        if rows.left_out > 0 {
            writeln!(out, " and {} more", rows.left_out)?;
        }
    }
    Ok(())
}

/// Writes at most `top` files and as many waits.
pub(crate) fn document(facts: &PageCacheFacts, top: usize, document: &mut Document<'_>) -> io::Result<()> {
    let captions = ["Pages of files", "Who waited for whose read"];
    for (caption, rows) in captions.into_iter().zip([Some(of_files(facts, top)), of_waits(facts, top)]) {
        let Some(rows) = rows else { continue };
        let heading = |(at, text): (usize, &&str)| match at < rows.names {
            true => Heading::text(*text),
            false => Heading::number(*text),
        };
        let headings: Vec<Heading> = rows.headings.iter().enumerate().map(heading).collect();
        let cells = |row: Vec<String>| row.into_iter().map(Cell::from).collect::<Vec<_>>();
        let (total, left_out) = (rows.total.map(cells), rows.left_out);
        document.table(caption, &headings, rows.rows.into_iter().map(cells), total, left_out)?;
    }
    Ok(())
}

fn of_files(facts: &PageCacheFacts, top: usize) -> Rows {
    let row = |name: String, file: &FilePages| {
        let pages = [
            file.pages_read_in,
            file.pages_untouched,
            file.pages_mapped_nearby,
            file.pages_by_read,
            file.read_waits,
        ];
        let figures = pages.map(|pages| pages.to_string()).into_iter().chain([ms(file.read_wait_ns)]);
        std::iter::once(name).chain(figures).collect::<Vec<String>>()
    };
    let sum = |of: fn(&FilePages) -> u64| facts.files.iter().map(of).fold(0, u64::saturating_add);
    let all = FilePages {
        pages_read_in: sum(|file| file.pages_read_in),
        pages_untouched: sum(|file| file.pages_untouched),
        pages_mapped_nearby: sum(|file| file.pages_mapped_nearby),
        pages_by_read: sum(|file| file.pages_by_read),
        read_waits: sum(|file| file.read_waits),
        read_wait_ns: sum(|file| file.read_wait_ns),
        ..FilePages::default()
    };
    Rows {
        headings: &["pages of", "read in", "untouched", "only mapped", "by read()", "waits", "waited ms"],
        names: 1,
        rows: facts.files.iter().take(top).map(|file| row(file.name(), file)).collect(),
        total: Some(row(format!("all {} files", facts.files.len()), &all)),
        left_out: facts.files.len().saturating_sub(top),
    }
}

fn of_waits(facts: &PageCacheFacts, top: usize) -> Option<Rows> {
    let name = |thread: &Thread| format!("{} {}", thread.comm, thread.tid);
    let rows = facts.waits.iter().take(top).map(|wait| {
        let reader = if wait.reader == wait.waiter { "itself".into() } else { name(&wait.reader) };
        vec![name(&wait.waiter), reader, wait.count.to_string(), ms(wait.wait_ns)]
    });
    (!facts.waits.is_empty()).then(|| Rows {
        headings: &["waited", "for a read by", "times", "ms"],
        names: 2,
        rows: rows.collect(),
        total: None,
        left_out: facts.waits.len().saturating_sub(top),
    })
}
