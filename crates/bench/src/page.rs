//! Tables and figures of all experiments in one HTML file, that needs no other and no script.

use std::fmt;
use std::io::{self, Write};

use prepage_core::{FaultClass, Tally};
use prepage_display::html::Document;
use prepage_display::number::{known, percent};
use prepage_display::table::table;
use serde_json::Value;

use crate::experiment::Run;
use crate::figure;
use crate::mapped::MappedPages;
use crate::published::{Row, published};
use crate::reasons::reason;
use crate::subject::Cache;

/// What holds for all experiments.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Pages of the file.
    pub pages: u64,
    /// Bytes read of it, each once.
    pub accesses: u64,
    /// The read-ahead of the file's disk; where that is not known, of all mounted disks, each value once.
    pub read_ahead_kib: Vec<u64>,
    /// Whether it was set for the experiments, and not found so.
    pub read_ahead_set: bool,
    /// Type and device of the file system.
    pub file_system: String,
    /// What the recorder adds to a fault on average, and has been taken off every cost.
    pub probe_cost_ns: Option<u64>,
}

/// What is shown of one experiment.
#[derive(Clone, Debug)]
pub struct Shown {
    /// The run of median cost.
    pub run: Run,
    /// Of how many.
    pub rounds: u32,
    /// The least and the greatest number of disk faults among them.
    pub disk_counts: (u64, u64),
    /// Pages mapped by faults, in another run.
    pub mapped: Option<MappedPages>,
}

impl fmt::Display for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let read_ahead: Vec<String> = self.read_ahead_kib.iter().map(|kib| format!("{kib} KiB")).collect();
        let set = if self.read_ahead_set { "set for these runs" } else { "as found" };
        write!(
            f,
            "a file of {} pages, {} accesses of one byte, {}, read-ahead {} ({set})",
            self.pages,
            self.accesses,
            self.file_system,
            read_ahead.join(" and ")
        )?;
        match self.probe_cost_ns {
            Some(ns) => write!(f, "; costs are without the {ns} ns that recording adds to a fault"),
            None => Ok(()),
        }
    }
}

/// The heading of an experiment.
pub fn title(one: &Shown) -> String {
    let experiment = one.run.experiment;
    format!("{}, {} cache", experiment.pattern, experiment.cache.name())
}

/// The table of an experiment: what was measured here, and beside it what was published. Columns: measure, whose, disk,
/// short, cached, all.
pub fn cells(one: &Shown) -> Vec<[String; 6]> {
    let run = &one.run;
    let of = |class| run.tally(Some(class));
    let tallies = [of(FaultClass::Disk), of(FaultClass::Short), of(FaultClass::Cached), run.tally(None)];
    let published = published(run.experiment);
    let mut rows = Vec::new();
    let mut add = |measure: &str, here: &dyn Fn(Tally) -> String, theirs: &dyn Fn(Row, Row) -> String| {
        let [disk, short, cached, all] = tallies.map(here);
        let short = if tallies[1].count == 0 { "in disk".to_owned() } else { short };
        rows.push([measure.to_owned(), "here".to_owned(), disk, short, cached, all]);
        if let Some(table) = published {
            let [disk, short, cached, all] =
                [table.disk, table.short, table.cached, table.all].map(|row| theirs(row, table.all));
            rows.push([String::new(), "study".to_owned(), disk, short, cached, all]);
        }
    };
    let microseconds = |mean| known(mean, |mean: f64| format!("{mean:.2}"));
    add("count", &|tally| tally.count.to_string(), &|row, _| row.count.to_string());
    let share = |part, whole| known(percent(part, whole), |share| format!("{share:.1}"));
    add("percent", &|tally| share(tally.count, tallies[3].count), &|row, all| share(row.count, all.count));
    add("mean µs", &|tally| microseconds(tally.mean_us()), &|row, _| microseconds(row.mean_us));
    add("total ms", &|tally| format!("{:.1}", tally.total_ms()), &|row, _| format!("{:.1}", row.total_ms));
    rows
}

/// What there is to know of the numbers of a table.
pub fn note(facts: &Facts, one: &Shown) -> String {
    let run = &one.run;
    let (least, most) = one.disk_counts;
    let mut note = match one.rounds {
        1 => "One run.".to_owned(),
        rounds if least == most => {
            format!("The run of median cost of {rounds}, all with {least} disk faults.")
        }
        rounds => format!("The run of median cost of {rounds}, which had {least} to {most} disk faults."),
    };
    if run.experiment.cache == Cache::Cold {
        let disk = run.tally(Some(FaultClass::Disk)).count;
        let percent = 100.0 * disk as f64 / facts.accesses.max(1) as f64;
        note +=
            &format!(" {disk} of {} accesses, {percent:.4} %, had to read from the disk.", facts.accesses);
    }
    if run.facts.lost > 0 {
        note += &format!(" {} records of the recording were lost.", run.facts.lost);
    }
    if let Some(mapped) = one.mapped {
        let rate = |pages: u64, faults: u64| pages as f64 / faults.max(1) as f64;
        let part = |faults: u64, what: &str, pages: u64| match faults {
            0 => None,
            _ => Some(format!("{faults} {what} mapped {pages} pages ({:.1} each)", rate(pages, faults))),
        };
        let disk = part(mapped.disk_faults, "disk faults", mapped.disk_pages);
        let cached = part(mapped.cached_faults, "faults on pages in memory", mapped.cached_pages);
        let parts: Vec<String> = disk.into_iter().chain(cached).collect();
        note += &format!(
            " In another run {}: without fault-around, all {} pages would have faulted.",
            parts.join(" and "),
            facts.pages,
        );
        if let Some(sweeps) = mapped.sweeps {
            note += &format!(
                " After {} of {} sweeps over the file every page was mapped; the rest took {} faults.",
                sweeps.until_mapped, sweeps.all, sweeps.later_faults
            );
        }
    }
    note
}

/// Writes the page.
///
/// # Errors
/// When `out` cannot be written.
pub fn write(facts: &Facts, shown: &[Shown], out: &mut dyn Write) -> io::Result<()> {
    let mut document = Document::begin(out, "page faults of reading a file", "")?;
    document.header(
        "prepage bench file",
        "Page faults of reading a file",
        &[facts.to_string(), CLASSES.to_owned()],
    )?;
    for one in shown {
        let mut table = table(&["", "", "disk", "short", "cached", "all"], &[2, 3, 4, 5]);
        cells(one).into_iter().for_each(|row| table.add_row(row));
        document.table(&title(one), &table)?;
        document.paragraph("", &note(facts, one))?;
        document.paragraph("", &reason(facts, one))?;
        document.raw(&figure::pair(&one.run, facts.pages))?;
    }
    if let Some(one) = shown.first() {
        let lost: u64 = shown.iter().map(|one| one.run.facts.lost).sum();
        document.footer(&[
            format!("Linux {}", one.run.facts.kernel),
            "pages of 4096 bytes".to_owned(),
            format!("{lost} records lost"),
            format!("prepage {} bench file --html", env!("CARGO_PKG_VERSION")),
        ])?;
    }
    document.end(&Value::Null, &[])
}

const CLASSES: &str = "Only faults of the file's own mapping count. “short” is the retry right after a disk fault; where \
    the kernel maps the page within the disk fault, there is none. “cached” is the study's “long non-disk”. In the figures, \
    disk faults are black, short ones blue, and faults on pages in memory orange.";
