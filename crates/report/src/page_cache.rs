//! What became of files' pages, where it was recorded: the tables of `record`, `report` and its page.

use std::io::{self, Write};

use prepage_core::quantity::counted;
use prepage_core::{FilePages, PageCacheFacts, Thread};
use prepage_display::html::Document;
use prepage_display::number::ms;
use prepage_display::table::{Cell, Table, table};

/// Prints at most `files` files and `waits` waits, in lines of `width`.
pub fn print(
    facts: &PageCacheFacts,
    files: usize,
    waits: usize,
    width: Option<usize>,
    out: &mut dyn Write,
) -> io::Result<()> {
    for (nth, table) in
        [Some(of_files(facts, files)), of_waits(facts, waits)].into_iter().flatten().enumerate()
    {
        if nth > 0 {
            writeln!(out)?;
        }
        writeln!(out, "{}", table.lines(width))?;
    }
    Ok(())
}

/// Writes at most `top` files and as many waits.
pub(crate) fn document(facts: &PageCacheFacts, top: usize, document: &mut Document<'_>) -> io::Result<()> {
    document.table("Pages of files", &of_files(facts, top))?;
    let waits = of_waits(facts, top);
    waits.map_or(Ok(()), |waits| document.table("Who waited for whose read", &waits))
}

fn of_files(facts: &PageCacheFacts, top: usize) -> Table {
    let row = |name: String, file: &FilePages| {
        let pages = [
            file.pages_read_in,
            file.pages_untouched,
            file.pages_mapped_nearby,
            file.pages_by_read,
            file.read_waits,
        ];
        let figures = pages.map(|pages| pages.to_string()).into_iter().chain([ms(file.read_wait_ns)]);
        std::iter::once(name).chain(figures).map(Cell::from).collect()
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
    let headings = ["pages of", "read in", "untouched", "only mapped", "by read()", "waits", "waited ms"];
    Table {
        rows: facts.files.iter().take(top).map(|file| row(file.name(), file)).collect(),
        total: Some(row(format!("all {}", counted(facts.files.len(), "file")), &all)),
        left_out: facts.files.len().saturating_sub(top),
        ..table(&headings, &[1, 2, 3, 4, 5, 6])
    }
}

fn of_waits(facts: &PageCacheFacts, top: usize) -> Option<Table> {
    let name = |thread: &Thread| format!("{} {}", thread.comm, thread.tid);
    let rows = facts.waits.iter().take(top).map(|wait| {
        let reader = if wait.reader == wait.waiter { "itself".to_owned() } else { name(&wait.reader) };
        vec![name(&wait.waiter).into(), reader.into(), wait.count.into(), ms(wait.wait_ns).into()]
    });
    (!facts.waits.is_empty()).then(|| Table {
        rows: rows.collect(),
        left_out: facts.waits.len().saturating_sub(top),
        ..table(&["waited", "for a read by", "times", "ms"], &[2, 3])
    })
}
