//! Two traces compared: what changed, by class and by file.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io::{self, Write};

use prepage_core::{Missing, Tally, TraceFacts};
use prepage_display::run::subject;
use prepage_display::table::Table;
use serde_json::{Value, json};

use crate::by::{By, Label};
use crate::json::{SCHEMA_VERSION, missing};
use crate::report::Report;
use crate::text;

prepage_core::named! {
    /// What a threshold is of.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Measure {
        /// How long threads waited for all faults.
        #[default]
        Total = "total",
        /// How long they waited for the disk.
        DiskTotal = "disk-total",
        /// The number of faults.
        Count = "count",
        /// The number of faults that read from a device.
        Disk = "disk",
    }
}

impl Measure {
    /// What is measured, in words.
    pub const fn words(self) -> &'static str {
        match self {
            Self::Total => "ms waited for faults",
            Self::DiskTotal => "ms waited for the disk",
            Self::Count => "faults",
            Self::Disk => "disk faults",
        }
    }

    /// In nanoseconds or faults.
    const fn of(self, tally: &Tally) -> u64 {
        match self {
            Self::Total => tally.cost_ns,
            Self::DiskTotal => tally.disk_ns,
            Self::Count => tally.count,
            Self::Disk => tally.disk,
        }
    }

    const fn is_of_costs(self) -> bool {
        matches!(self, Self::Total | Self::DiskTotal)
    }

    const fn is_of_disk(self) -> bool {
        matches!(self, Self::Disk | Self::DiskTotal)
    }
}

/// What one class or file was in two traces.
#[derive(Clone, Debug)]
pub struct Change {
    /// The class or file.
    pub name: String,
    /// In the first trace.
    pub before: Tally,
    /// In the second.
    pub after: Tally,
}

impl Change {
    fn count(&self) -> i128 {
        i128::from(self.after.count) - i128::from(self.before.count)
    }

    fn cost_ns(&self) -> i128 {
        i128::from(self.after.cost_ns) - i128::from(self.before.cost_ns)
    }
}

/// Two traces compared.
#[derive(Clone, Debug)]
pub struct Diff {
    /// What was recorded in the first trace, and in the second; `None` where the trace does not say.
    pub subjects: [Option<String>; 2],
    /// Whether both are of the same command, one perhaps with more in front of it (`perf record … --`), or of the same processes.
    pub is_of_the_same: bool,
    /// How long each was recorded.
    pub durations_ns: [u64; 2],
    /// Whether both show the same: whole runs, or running programs for times that differ by 5 % at most.
    pub is_of_equal_time: bool,
    /// Whether the first trace has costs, and the second.
    pub has_costs: [bool; 2],
    /// Whether the first trace says which faults read from a device, and the second.
    pub tells_disk: [bool; 2],
    /// All faults.
    pub all: Change,
    /// Those of each class that either trace has.
    pub classes: Vec<Change>,
    /// Those on each file that either trace has.
    pub files: Vec<Change>,
    /// What the first trace lacks, and what the second.
    pub missing: [Vec<Missing>; 2],
    /// The gaps that make the traces incomparable: those that only one of them has, and losses.
    pub unequal: Vec<Missing>,
}

impl Diff {
    /// Compares `before` and `after`.
    pub fn of(before: &Report, after: &Report) -> Self {
        let all = Change { name: "all".to_owned(), before: before.total().tally, after: after.total().tally };
        Self {
            subjects: [subject(&before.facts), subject(&after.facts)],
            is_of_the_same: is_of_the_same(&before.facts, &after.facts),
            durations_ns: [before, after].map(|report| report.facts.duration_ns),
            is_of_equal_time: is_of_equal_time(&before.facts, &after.facts),
            has_costs: [before.has_costs, after.has_costs],
            tells_disk: [before.facts.tells_disk_faults(), after.facts.tells_disk_faults()],
            all,
            classes: changes(before, after, By::Class),
            files: changes(before, after, By::File),
            missing: [before.facts.missing_beside(&after.facts), after.facts.missing_beside(&before.facts)],
            unequal: before.facts.unequal_gaps(&after.facts),
        }
    }

    /// Of the gaps that make the traces incomparable, those that matter to `measure`.
    pub fn unequal_in(&self, measure: Measure) -> Vec<&Missing> {
        let matters = |gap: &&Missing| measure.is_of_costs() || !gap.is_of_costs();
        self.unequal.iter().filter(matters).collect()
    }

    /// Whether a change of costs says something. Who asks for the costs of traces with unequal ones wants them compared anyway.
    pub(crate) fn compares_costs(&self, measure: Measure) -> bool {
        measure.is_of_costs() || !self.unequal.iter().any(Missing::is_of_costs)
    }

    /// The files and by how much they changed, the greatest change of cost first, or of the number of faults where costs cannot be compared.
    fn sorted_files(&self, measure: Measure) -> Vec<((u128, u128), &Change)> {
        let compares_costs = self.compares_costs(measure);
        let key = |change: &Change| {
            let cost_ns = if compares_costs { change.cost_ns().unsigned_abs() } else { 0 };
            (cost_ns, change.count().unsigned_abs())
        };
        let mut files: Vec<_> = self.files.iter().map(|change| (key(change), change)).collect();
        files.sort_by_key(|&(key, change)| (Reverse(key), &change.name));
        files
    }

    /// By how many percent the second trace is worse (or, negative, better) in `measure`; infinitely where the first had
    /// nothing. `None` where `measure` is not known of both.
    pub fn percent(&self, measure: Measure) -> Option<f64> {
        let Change { before, after, .. } = &self.all;
        let are_timed = before.is_timed() && after.is_timed() && self.has_costs == [true, true];
        if measure.is_of_costs() && !are_timed || measure.is_of_disk() && self.tells_disk != [true, true] {
            return None;
        }
        let (before, after) = (measure.of(before), measure.of(after));
        Some(match (before, after) {
            (0, 0) => 0.0,
            (0, _) => f64::INFINITY,
            // Of whole numbers, so that a threshold that is just reached is not exceeded by rounding.
            _ => 100.0 * (i128::from(after) - i128::from(before)) as f64 / before as f64,
        })
    }

    /// What changed in `measure`, in one line.
    pub fn verdict(&self, measure: Measure) -> String {
        let Some(percent) = self.percent(measure) else { return format!("{}: not known", measure.words()) };
        let (digits, unit) = if measure.is_of_costs() { (2, 1e6) } else { (0, 1.0) };
        let [before, after] =
            [&self.all.before, &self.all.after].map(|tally| measure.of(tally) as f64 / unit);
        format!("{}: {before:.digits$} before, {after:.digits$} after, {percent:+.1} %", measure.words())
    }

    /// The tables for who is interested in `measure`, by class and by file, at most `top` files, in lines of `width`.
    pub fn print(
        &self,
        measure: Measure,
        top: usize,
        width: Option<usize>,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        let classes = self.classes.iter().chain([&self.all]);
        writeln!(out, "{}", text::changes("class", self, measure, classes).lines(width))?;
        let mut changed = self.sorted_files(measure);
        changed.retain(|(key, _)| *key != (0, 0));
        let files = Table {
            left_out: changed.len().saturating_sub(top),
            shown_by: "--top N".into(),
            ..text::changes("file", self, measure, changed.iter().map(|(_, change)| *change).take(top))
        };
        if changed.is_empty() { Ok(()) } else { writeln!(out, "\n{}", files.lines(width)) }
    }

    /// The same as JSON, with the verdict in `measure`.
    pub fn json(&self, measure: Measure, threshold_percent: Option<f64>) -> Value {
        let change = |change: &Change| {
            let tally = |tally: &Tally, side: usize| {
                let known = |ns: u64| (tally.is_timed() && self.has_costs[side]).then_some(ns as f64 / 1e6);
                let tells_disk = self.tells_disk[side];
                json!({
                    "count": tally.count,
                    "disk_count": tells_disk.then_some(tally.disk),
                    "total_ms": known(tally.cost_ns),
                    "disk_total_ms": known(tally.disk_ns).filter(|_| tells_disk),
                })
            };
            json!({
                "name": change.name,
                "before": tally(&change.before, 0),
                "after": tally(&change.after, 1),
            })
        };
        let percent = self.percent(measure);
        json!({
            "schema_version": SCHEMA_VERSION,
            "subjects": { "before": self.subjects[0], "after": self.subjects[1] },
            "duration_ms": { "before": self.durations_ns[0] as f64 / 1e6, "after": self.durations_ns[1] as f64 / 1e6 },
            "missing": { "before": missing(&self.missing[0]), "after": missing(&self.missing[1]) },
            "comparable": self.unequal_in(measure).is_empty() && self.is_of_equal_time,
            "all": change(&self.all),
            "classes": self.classes.iter().map(change).collect::<Vec<_>>(),
            "files": self.sorted_files(measure).into_iter().map(|(_, file)| change(file)).collect::<Vec<_>>(),
            "of": measure.name(),
            // JSON has no infinity: where there was nothing before, there is no percentage.
            "worse_percent": percent.filter(|percent| percent.is_finite()),
            "threshold_percent": threshold_percent,
            "worse": threshold_percent.and_then(|threshold| Some(percent? > threshold)),
        })
    }
}

fn is_of_the_same(before: &TraceFacts, after: &TraceFacts) -> bool {
    let (one, other) = (&before.command, &after.command);
    let is_in_front_of = |all: &[String], of: &[String]| !of.is_empty() && all.ends_with(of);
    is_in_front_of(one, other) || is_in_front_of(other, one) || subject(before) == subject(after)
}

fn is_of_equal_time(before: &TraceFacts, after: &TraceFacts) -> bool {
    // Of a whole run the length is a result, though it may leave a server running.
    let is_part = |facts: &TraceFacts| facts.ended_early || facts.is_of_running();
    let (one_ns, other_ns) = (before.duration_ns, after.duration_ns);
    !(is_part(before) || is_part(after)) || one_ns.abs_diff(other_ns) <= one_ns.max(other_ns) / 20
}

fn changes(before: &Report, after: &Report, by: By) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (report, second) in [(before, false), (after, true)] {
        for row in report.grouped(by, usize::MAX).rows {
            let Some(Label::Text(name)) = row.labels.into_iter().next() else { continue };
            let place = *places.entry(name.clone()).or_insert_with(|| {
                changes.push(Change { name, before: Tally::default(), after: Tally::default() });
                changes.len() - 1
            });
            let side = if second { &mut changes[place].after } else { &mut changes[place].before };
            *side = row.costs.tally;
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_whole_percents_is_told_as_such() {
        for (before, after, percent) in [(20, 21, 5.0), (1000, 1100, 10.0), (1_000_000, 1_100_000, 10.0)] {
            let tally = |number| Tally {
                count: number,
                timed: number,
                cost_ns: number,
                disk: number,
                disk_ns: number,
                ..Tally::default()
            };
            let all = Change { name: "all".into(), before: tally(before), after: tally(after) };
            let diff = Diff {
                subjects: [None, None],
                is_of_the_same: true,
                durations_ns: [0, 0],
                is_of_equal_time: true,
                has_costs: [true, true],
                tells_disk: [true, true],
                all,
                classes: Vec::new(),
                files: Vec::new(),
                missing: [Vec::new(), Vec::new()],
                unequal: Vec::new(),
            };
            for measure in [Measure::Total, Measure::DiskTotal, Measure::Count, Measure::Disk] {
                assert_eq!(diff.percent(measure), Some(percent), "{measure:?}");
            }
        }
    }
}
