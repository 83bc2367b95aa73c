//! `prepage residency`: which pages of files are in memory.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use prepage_core::PAGE_SIZE;
use prepage_core::quantity::counted;
use prepage_display::number::{pages_as_size, percent};
use prepage_residency::{Opened, Passed, Residency, ResidencyError};
use serde_json::{Value, json};

use crate::output::{print_json, shown};
use crate::table::table;
use crate::targets::{Targets, tell_passed};
use prepage_profiles::chain;

/// Files shown by themselves, where there are more.
const SHOWN_FILES: usize = 20;

/// Options of `prepage residency`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    targets: Targets,
    /// Show every file, not only those with most in memory
    #[arg(short, long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

struct Row {
    path: String,
    size_bytes: u64,
    residency: Residency,
}

#[derive(Default)]
struct Report {
    rows: Vec<Row>,
    not_allowed: Vec<String>,
    failed: Vec<(String, String)>,
    passed: Vec<Passed>,
    directories: u64,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let found = args.targets.find()?;
    let mut report = Report { passed: found.passed, directories: found.directories, ..Report::default() };
    for spot in &found.spots {
        match spot.open() {
            Ok(opened) => report.add(&opened),
            Err(error) => report.passed.push(Passed { path: spot.path.clone(), error }),
        }
    }
    let passed = tell_passed(&report.passed);
    for (path, reason) in &report.failed {
        say!("prepage: {path}: {reason}");
    }
    let mut out = crate::output::text();
    if args.json {
        print_json(&report.json(&passed))?;
    } else {
        report.print(args.all, &mut out)?;
    }
    report.tell_not_allowed();
    let complete = report.passed.is_empty() && report.failed.is_empty() && report.not_allowed.is_empty();
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Report {
    fn add(&mut self, opened: &Opened) {
        let path = shown(&opened.path);
        match Residency::of(opened) {
            Ok(residency) => self.rows.push(Row { path, size_bytes: opened.size_bytes, residency }),
            Err(ResidencyError::NotAllowed) => self.not_allowed.push(path),
            Err(error) => self.failed.push((path, chain(&error))),
        }
    }

    fn resident_pages(&self) -> u64 {
        self.rows.iter().map(|row| row.residency.resident_pages()).sum()
    }

    fn pages(&self) -> u64 {
        self.rows.iter().map(|row| row.residency.asked_pages()).sum()
    }

    /// All rows as one, for a strip of the whole. Files follow one another.
    fn shares(&self, cells: usize) -> Vec<f64> {
        let mut whole = Residency::default();
        let mut at = 0;
        let moved = |range: prepage_core::PageRange, by: u64| {
            let shift = |page: prepage_core::PageIndex| prepage_core::PageIndex(page.0 + by);
            prepage_core::PageRange::new(shift(range.start()), shift(range.end()))
        };
        for row in &self.rows {
            whole.asked.extend(row.residency.asked.iter().map(|range| moved(*range, at)));
            whole.resident.extend(row.residency.resident.iter().map(|range| moved(*range, at)));
            at += row.residency.asked.last().map_or(0, |last| last.end().0);
        }
        whole.shares(cells)
    }

    fn print(&self, all: bool, out: &mut impl Write) -> Result<()> {
        let mut rows: Vec<&Row> = self.rows.iter().collect();
        let hidden = if all || rows.len() <= SHOWN_FILES {
            0
        } else {
            rows.sort_by_key(|row| std::cmp::Reverse(row.residency.resident_pages()));
            rows.truncate(SHOWN_FILES);
            rows.retain(|row| row.residency.resident_pages() > 0);
            self.rows.len() - rows.len()
        };
        let longest = rows.iter().map(|row| row.path.chars().count()).max().unwrap_or(0);
        let cells = strip_cells(38 + longest);
        let mut table = table(&["resident", "of", "pages", "%", "", "file"], &[0, 1, 2, 3]).whole(4);
        for row in &rows {
            let residency = &row.residency;
            let strip = strip(&residency.shares(cells));
            table.add_row(line(residency.resident_pages(), residency.asked_pages(), strip, row.path.clone()));
        }
        if self.rows.len() > 1 {
            let strip = strip(&self.shares(cells));
            let what = match self.directories {
                0 => format!("all {} files", self.rows.len()),
                1 => format!("all {} files in 1 directory", self.rows.len()),
                directories => format!("all {} files in {directories} directories", self.rows.len()),
            };
            table.add_row(line(self.resident_pages(), self.pages(), strip, what));
        }
        if !self.rows.is_empty() {
            writeln!(out, "{}", table.lines(crate::output::width()))?;
        }
        if hidden > 0 {
            let hidden = counted(hidden, "file");
            writeln!(out, "not shown (--all): {hidden} with less or nothing in memory")?;
        }
        let dirty: u64 = self.rows.iter().filter_map(|row| Some(row.residency.states?.dirty)).sum();
        if dirty > 0 {
            writeln!(out, "{dirty} of the pages in memory are dirty")?;
        }
        Ok(())
    }

    fn json(&self, passed: &[Value]) -> Value {
        let file = |row: &Row| {
            let residency = &row.residency;
            let ranges: Vec<[u64; 2]> =
                residency.resident.iter().map(|range| [range.start().0, range.end().0]).collect();
            json!({
                "path": row.path,
                "size_bytes": row.size_bytes,
                "pages": residency.asked_pages(),
                "resident_pages": residency.resident_pages(),
                "resident_bytes": residency.resident_pages() * PAGE_SIZE,
                "resident_percent": percent(residency.resident_pages(), residency.asked_pages()),
                "dirty_pages": residency.states.map(|states| states.dirty),
                "writeback_pages": residency.states.map(|states| states.writeback),
                "evicted_pages": residency.states.map(|states| states.evicted),
                "recently_evicted_pages": residency.states.map(|states| states.recently_evicted),
                "resident_ranges_pages": ranges,
            })
        };
        let failed = |(path, reason): &(String, String)| json!({ "path": path, "reason": reason });
        json!({
            "schema_version": 1,
            "page_bytes": PAGE_SIZE,
            "files": self.rows.iter().map(file).collect::<Vec<_>>(),
            "directories": self.directories,
            "total": {
                "files": self.rows.len(),
                "pages": self.pages(),
                "resident_pages": self.resident_pages(),
                "resident_bytes": self.resident_pages() * PAGE_SIZE,
                "resident_percent": percent(self.resident_pages(), self.pages()),
            },
            "not_allowed": self.not_allowed,
            "failed": passed.iter().cloned().chain(self.failed.iter().map(failed)).collect::<Vec<_>>(),
        })
    }

    fn tell_not_allowed(&self) {
        let Some(first) = self.not_allowed.first() else { return };
        let others = match self.not_allowed.len() {
            1 => String::new(),
            many => format!(" and {} more", many - 1),
        };
        say!(
            "prepage: {first}{others}: the kernel shows only a file's owner and those who may write it which \
             pages are in memory"
        );
        say!("  try: as root");
    }
}

fn line(resident: u64, all: u64, strip: String, name: String) -> [String; 6] {
    let counts = format!("{resident}/{all}");
    let share = percent(resident, all).map_or_else(|| "-".to_owned(), |share| format!("{share:.1}"));
    [pages_as_size(resident), pages_as_size(all), counts, share, strip, name]
}

/// Cells of a strip of pages: as many as fit beside the numbers.
fn strip_cells(beside: usize) -> usize {
    crate::output::width().unwrap_or(80).saturating_sub(beside).clamp(20, 64)
}

/// A strip of pages, one character a cell: empty, and the darker the more of the cell is in memory.
fn strip(shares: &[f64]) -> String {
    let shade = |&share: &f64| match share {
        share if share <= 0.0 => '·',
        share if share >= 1.0 => '█',
        share if share < 1.0 / 3.0 => '░',
        share if share < 2.0 / 3.0 => '▒',
        _ => '▓',
    };
    shares.iter().map(shade).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_cell_is_drawn_full_and_only_an_empty_one_empty() {
        assert_eq!(strip(&[0.0, 0.001, 0.5, 0.999, 1.0]), "·░▒▓█");
    }
}
