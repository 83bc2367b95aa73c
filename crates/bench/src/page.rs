//! Tables and figures of all experiments in one HTML file, that needs no other and no script.

use std::fmt;
use std::io::{self, Write};

use prepage_core::FaultClass;
use prepage_core::quantity::counted;
use prepage_display::html::Document;
use prepage_display::number::{known, percent};
use prepage_display::table::table;
use serde_json::Value;

use crate::STUDY_PAGES;
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
        if self.pages != STUDY_PAGES {
            write!(f, "; the study's figures, of a file of {STUDY_PAGES} pages, are left out")?;
        }
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
pub fn cells(facts: &Facts, one: &Shown) -> Vec<[String; 6]> {
    let run = &one.run;
    let classes = [Some(FaultClass::Disk), Some(FaultClass::Short), Some(FaultClass::Cached), None];
    let tallies = classes.map(|class| run.tally(class));
    let published = published(run.experiment, facts.pages);
    let mut rows = Vec::new();
    let mut add = |measure: &str, here: [String; 4], theirs: Option<&dyn Fn(Row, Row) -> String>| {
        let [disk, short, cached, all] = here;
        let short = if tallies[1].count == 0 { "in disk".to_owned() } else { short };
        rows.push([measure.to_owned(), "here".to_owned(), disk, short, cached, all]);
        if let Some((table, theirs)) = published.zip(theirs) {
            let [disk, short, cached, all] =
                [table.disk, table.short, table.cached, table.all].map(|row| theirs(row, table.all));
            rows.push([String::new(), "study".to_owned(), disk, short, cached, all]);
        }
    };
    let microseconds = |us| known(us, |us: f64| format!("{us:.2}"));
    let share = |part, whole| known(percent(part, whole), |share| format!("{share:.1}"));
    let shares = tallies.map(|tally| share(tally.count, tallies[3].count));
    add("count", tallies.map(|tally| tally.count.to_string()), Some(&|row, _| row.count.to_string()));
    add("percent", shares, Some(&|row, all| share(row.count, all.count)));
    add(
        "mean µs",
        tallies.map(|tally| microseconds(tally.mean_us())),
        Some(&|row, _| microseconds(row.mean_us)),
    );
    // The study draws single costs and prints no quantiles.
    for (measure, q) in [("median µs", 0.5), ("p90 µs", 0.9)] {
        add(measure, classes.map(|class| microseconds(run.quantile_us(class, q))), None);
    }
    let milliseconds = |ms: f64| format!("{ms:.1}");
    add(
        "total ms",
        tallies.map(|tally| milliseconds(tally.total_ms())),
        Some(&|row, _| milliseconds(row.total_ms)),
    );
    rows
}

/// What there is to know of the numbers of a table.
pub fn note(facts: &Facts, one: &Shown) -> String {
    let run = &one.run;
    let (least, most) = one.disk_counts;
    let mut note = match one.rounds {
        1 => "One run.".to_owned(),
        rounds if least == most => {
            let faults = counted(least as usize, "disk fault");
            format!("The run of median cost of {rounds}, all with {faults}.")
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
        note += &format!(" Records of the recording that were lost: {}.", run.facts.lost);
    }
    if let Some(mapped) = one.mapped {
        let rate = |pages: u64, faults: u64| pages as f64 / faults.max(1) as f64;
        let part = |faults: u64, noun: &str, on: &str, pages: u64| {
            let (mapped, each) = (counted(pages as usize, "page"), rate(pages, faults));
            (faults > 0)
                .then(|| format!("{}{on} mapped {mapped} ({each:.1} each)", counted(faults as usize, noun)))
        };
        let disk = part(mapped.disk_faults, "disk fault", "", mapped.disk_pages);
        let cached = part(mapped.cached_faults, "fault", " on pages in memory", mapped.cached_pages);
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
        cells(facts, one).into_iter().for_each(|row| table.add_row(row));
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

#[cfg(test)]
mod tests {
    use prepage_core::{PageIndex, TraceFacts};
    use prepage_simulate::pattern::Pattern;

    use super::*;
    use crate::experiment::{Experiment, FileFault};

    fn shown(pattern: Pattern, cache: Cache, faults: impl IntoIterator<Item = (FaultClass, u64)>) -> Shown {
        let fault = |(class, cost_ns)| FileFault { page: PageIndex(0), class, cost_ns: Some(cost_ns) };
        let run = Run {
            experiment: Experiment { pattern, cache },
            faults: faults.into_iter().map(fault).collect(),
            other_faults: 0,
            facts: TraceFacts::default(),
        };
        Shown { run, rounds: 3, disk_counts: (1, 1), mapped: None }
    }

    fn facts(pages: u64) -> Facts {
        Facts {
            pages,
            accesses: pages << 12,
            read_ahead_kib: vec![128],
            read_ahead_set: false,
            file_system: String::new(),
            probe_cost_ns: None,
        }
    }

    #[test]
    fn the_studys_figures_stand_beside_those_of_a_file_of_its_size_alone() {
        let shown = |pattern| shown(pattern, Cache::Cold, [(FaultClass::Disk, 1000)]);
        for (pages, pattern, rows) in [
            (STUDY_PAGES, Pattern::Random, 10),
            (STUDY_PAGES, Pattern::Stride { pages: 2 }, 6),
            (100, Pattern::Random, 6),
        ] {
            let (facts, one) = (facts(pages), shown(pattern));
            assert_eq!(cells(&facts, &one).len(), rows, "{pages} {pattern}");
            assert_eq!(facts.to_string().contains("left out"), pages != STUDY_PAGES);
            assert!(note(&facts, &one).contains("of 3, all with 1 disk fault."), "{}", note(&facts, &one));
        }
        for pattern in Pattern::STUDY {
            let of_study = |pages| reason(&facts(pages), &shown(pattern)).contains("The study's 7224");
            assert_eq!(of_study(STUDY_PAGES), pattern == Pattern::Stride { pages: 64 }, "{pattern}");
            assert!(!of_study(100), "{pattern}");
        }
    }

    #[test]
    fn the_share_of_accesses_that_read_from_the_disk_is_of_cold_runs() {
        let facts = facts(STUDY_PAGES);
        let disk = [(FaultClass::Disk, 1000); 477].into_iter().chain([(FaultClass::Cached, 10); 731]);
        let cold = note(&facts, &shown(Pattern::Random, Cache::Cold, disk));
        assert!(cold.contains(" 477 of 46284800 accesses, 0.0010 %, had to read"), "{cold}");
        // The study's own: it prints 0.01 %.
        let study = shown(Pattern::Random, Cache::Cold, [(FaultClass::Disk, 1000); 6198]);
        let study = note(&Facts { accesses: 45_000_000, ..facts.clone() }, &study);
        assert!(study.contains(" 6198 of 45000000 accesses, 0.0138 %"), "{study}");
        let warm = note(&facts, &shown(Pattern::Random, Cache::Warm, [(FaultClass::Cached, 10)]));
        assert!(!warm.contains("accesses"), "{warm}");
        let none = note(&Facts { accesses: 0, ..facts }, &shown(Pattern::Random, Cache::Cold, []));
        assert!(none.contains(" 0 of 0 accesses, 0.0000 %"), "{none}");
    }

    #[test]
    fn quantiles_are_of_each_class_and_have_no_published_ones_beside_them() {
        let cached = (1..=11).map(|us| (FaultClass::Cached, us * 1000));
        let one = shown(Pattern::Random, Cache::Cold, cached.chain([(FaultClass::Disk, 500_000)]));
        let rows = cells(&facts(STUDY_PAGES), &one);
        let row = |measure: &str| rows.iter().position(|row| row[0] == measure).unwrap();
        assert_eq!(rows[row("median µs")][2..], ["500.00", "in disk", "6.00", "6.50"]);
        assert_eq!(rows[row("p90 µs")][2..5], ["500.00", "in disk", "10.00"]);
        let whose: Vec<&str> = rows.iter().map(|row| row[1].as_str()).collect();
        let both = ["here", "study"];
        assert_eq!(whose, [&both[..], &both, &both, &["here", "here"], &both].concat());
        let none = cells(&facts(STUDY_PAGES), &shown(Pattern::Random, Cache::Warm, []));
        assert_eq!(none[row("median µs")][2], none[row("mean µs")][2], "unknown");
    }
}
