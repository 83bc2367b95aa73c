//! What a trace lacks.

use serde::Serialize;

use crate::quantity::counted;
use crate::trace::TraceFacts;

/// One reason why a trace does not show the whole of its run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Missing {
    /// Only some faults were recorded, by this rule.
    #[error("perf recorded only {rule}")]
    Sampled {
        /// The rule: `one event in 20`.
        rule: String,
    },
    /// perf was told to begin later (`-D`), to record one control group only (`-G`), to end at a size (`--max-size`), to leave the
    /// rest to other files (`--switch-output`), to be switched on and off (`--control`), or to filter (`--filter`).
    #[error("faults are missing that perf was told to leave out: {}", options.join(" "))]
    Limited {
        /// The options that say so, as the command line had them.
        options: Vec<String>,
    },
    /// Filters excluded faults.
    #[error("{} left out by {}", counted(*faults as usize, "fault"), filters.join(" "))]
    Filtered {
        /// The filters, as the command line had them.
        filters: Vec<String>,
        /// How many faults they excluded.
        faults: u64,
    },
    /// The recorder was killed, or its file was not copied to the end: what came after the last complete part of the file is not there.
    #[error(
        "the recorder was killed, or this is an incomplete copy: what was saved up to there is all there is"
    )]
    CutShort,
    /// The kernel dropped records because a ring was full.
    #[error("{} lost by the kernel: some faults or their costs are missing, or their files are wrong{}", counted(*records as usize, "record"), of_page_cache(*page_cache))]
    Lost {
        /// How many.
        records: u64,
        /// Whether they may be of the page cache.
        #[serde(skip)]
        page_cache: bool,
    },
    /// The kernel dropped records by which an exact recording hears of mappings and execs. What was touched before these were found
    /// otherwise may be missing.
    #[error("mappings and execs: the kernel had no room for {}", counted(*records as usize, "record"))]
    LostMappings {
        /// How many.
        records: u64,
    },
    /// perf kept the latest records only.
    #[error("older records were overwritten: perf record --overwrite")]
    Overwritten,
    /// Faults on some processors were not recorded: perf was told to leave them out, or they came online later.
    #[error("faults on {} are missing, which were not watched", counted(*unwatched as usize, "processor"))]
    Processors {
        /// How many processors.
        unwatched: u64,
    },
    /// The disk was full.
    #[error("{} not saved because the disk was full", counted(*faults as usize, "fault"))]
    Unsaved {
        /// How many faults the file had no room for.
        faults: u64,
    },
    /// The record of a VM in user space was full.
    #[error("{} for which the VM's record had no room", counted(*faults as usize, "fault"))]
    Unrecorded {
        /// How many faults.
        faults: u64,
    },
    /// Faults that system calls took on the program's memory were hidden from the user.
    #[error("faults taken in system calls were hidden from this user")]
    SystemCalls,
    /// Programs whose faults the kernel does not report to who observes their process.
    #[error(
        "programs that could not be observed (set-user-ID, set-group-ID, with capabilities or unreadable), with \
         all that they started: {programs}"
    )]
    UnobservedPrograms {
        /// How many.
        programs: u64,
    },
    /// Faults of the program's own instructions were not recorded, those in system calls alone.
    #[error("faults outside system calls are missing: perf recorded the kernel's alone")]
    OutsideSystemCalls,
    /// Faults of the threads and processes that were started meanwhile were not recorded.
    #[error("faults of threads and processes that were started meanwhile are missing: perf record -i")]
    Descendants,
    /// Processes of the command ran on after the recording had ended.
    #[error("processes that ran on after the recording had ended: {processes}")]
    StillRunning {
        /// How many.
        processes: u64,
    },
    /// The recorder ran in a container, and left out what ran outside.
    #[error("{} left out of processes outside this container, which have no number in it", counted(*faults as usize, "fault"))]
    Outside {
        /// How many faults.
        faults: u64,
    },
    /// Faults that read nothing from disk were not recorded.
    #[error("faults that read nothing from disk are missing: perf recorded major-faults alone")]
    MinorFaults,
    /// Faults that read from disk were not recorded.
    #[error("faults that read from disk are missing: perf recorded minor-faults alone")]
    MajorFaults,
    /// Which faults read from disk is not known: they have the classes of others, or are unseen.
    #[error("disk faults are not told apart: perf did not record which read from disk")]
    DiskFaults,
    /// No fault has a cost.
    #[error("no costs: perf did not record both the beginning and the end of faults")]
    Costs,
    /// Processes that were being forked as their parent was attached to.
    #[error("faults of {}, forked as the recording began", counted(*processes as usize, "process"))]
    Children {
        /// How many of them ran to its end.
        processes: u64,
    },
    /// Another observer of the same processes lent faults its clock.
    #[error(
        "costs of faults, {} of which are not believed: another observer of these processes (as perf record) lent faults its clock; \
         the file of a fault soon after a mapping may be wrong",
        counted(*times as usize, "time")
    )]
    BorrowedTimes {
        /// How many beginnings and ends of faults.
        times: u64,
    },
    /// Touches of pages that the kernel had mapped by a fault nearby are no faults. Only named where a trace is compared
    /// with one that has them.
    #[error("recorded without --exact: touches near a fault are no faults")]
    Touches,
    /// What recording adds to a cost was not measured, and so not taken off. Only named where a trace is compared with one of which it was, or with one
    /// to which recording added something else.
    #[error("costs hold what recording added to them")]
    ProbeCosts,
    /// What processes had mapped before the recording is unknown, and so are the files of many of their faults.
    #[error("the files that process {} had mapped before are unknown", joined(pids))]
    Mappings {
        /// The processes.
        pids: Vec<u32>,
    },
    /// The recording met more files than the recorder keeps apart: the later ones are one object.
    #[error("mappings of files beyond those the recorder keeps apart: {mappings}")]
    Files {
        /// How many mappings are of files that were not kept apart.
        mappings: u64,
    },
    /// File systems did not answer when the trace ended. Faults are all there.
    #[error("sizes and build-ids of {}, whose file system did not answer", counted(*files as usize, "file"))]
    Unanswered {
        /// How many files were not looked at.
        files: u64,
    },
    /// More pages of files were read in than the recorder watches. Faults are all there.
    #[error(
        "pages read in of which it is not known whether they were touched, beyond those the recorder watches: {pages}"
    )]
    PagesForgotten {
        /// Of how many pages the use is not known.
        pages: u64,
    },
}

impl Missing {
    /// Whether `other` describes the same gap, so that two traces with these gaps can be compared.
    ///
    /// What was lost by chance, or cut off, is never the same twice.
    fn is_same_gap(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::CutShort
                | Self::Lost { .. }
                | Self::LostMappings { .. }
                | Self::Overwritten
                | Self::BorrowedTimes { .. }
                // Not named where it is the same.
                | Self::ProbeCosts
                | Self::Unsaved { .. }
                | Self::Unrecorded { .. },
                _,
            ) => false,
            (Self::Filtered { filters, .. }, Self::Filtered { filters: others, .. }) => filters == others,
            // Where a size is reached, or when somebody switches events off, is chance.
            (Self::Limited { options }, _)
                if ["--max-size", "--switch-output", "--control"]
                    .iter()
                    .any(|limit| options.iter().any(|option| option.starts_with(limit))) =>
            {
                false
            }
            (Self::Sampled { .. } | Self::Limited { .. } | Self::Processors { .. }, other) => self == other,
            _ => std::mem::discriminant(self) == std::mem::discriminant(other),
        }
    }

    /// Whether faults are whole but for their costs.
    pub fn is_of_costs(&self) -> bool {
        matches!(self, Self::ProbeCosts | Self::BorrowedTimes { .. })
    }

    /// How to record without this gap, as one line; `None` where the gap was asked for or nothing helps.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Sampled { .. }
            | Self::Limited { .. }
            | Self::Overwritten
            | Self::OutsideSystemCalls
            | Self::Descendants
            | Self::MinorFaults
            | Self::MajorFaults
            | Self::DiskFaults
            | Self::Costs => Some("perf record -e page-faults,minor-faults,major-faults -c 1 -d -- CMD"),
            Self::Lost { .. } => {
                Some("record as root, who gets larger rings, or while the machine has less to do")
            }
            Self::LostMappings { .. } => Some("record while the machine has less to do"),
            Self::Unsaved { .. } => Some("free some space, or write to another disk with -o"),
            Self::Unrecorded { .. } => {
                Some("more room with VmOptions::record_faults, or take the trace more often")
            }
            Self::CutShort => Some("take another copy, if this is one"),
            Self::SystemCalls => Some("sudo sysctl kernel.perf_event_paranoid=1, or record as root"),
            Self::UnobservedPrograms { .. } => Some("sudo prepage record --all, which sees every program"),
            Self::Mappings { .. } => Some("record as root, or as the user whose processes they are"),
            Self::Outside { .. } => Some(
                "record outside the container, or in one with the host's processes: docker run --pid=host",
            ),
            Self::Touches => Some("record both with --exact, or neither"),
            Self::Children { .. } => Some("record again: the fork of a large process takes long"),
            Self::BorrowedTimes { .. } => Some(
                "record while nobody else observes page faults, or have the other use perf record -k mono",
            ),
            Self::ProbeCosts => {
                Some("record both with this prepage record, without --page-cache and --frames")
            }
            Self::Filtered { .. }
            | Self::Processors { .. }
            | Self::StillRunning { .. }
            | Self::Files { .. }
            | Self::Unanswered { .. }
            | Self::PagesForgotten { .. } => None,
        }
    }
}

fn of_page_cache(is_watched: bool) -> &'static str {
    if is_watched { "; figures of the page cache are too low or, of untouched pages, too high" } else { "" }
}

fn joined(pids: &[u32]) -> String {
    pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ")
}

impl TraceFacts {
    /// What the trace lacks; empty where it is complete.
    pub fn missing(&self) -> Vec<Missing> {
        let imported = self.imported.as_ref();
        let some = |count: u64, missing: Missing| (count > 0).then_some(missing);
        let forgotten =
            self.page_cache.iter().flat_map(|pages| &pages.files).map(|file| file.pages_forgotten);
        let forgotten = forgotten.fold(0, u64::saturating_add);
        let lost_mappings = self.exact.as_ref().map_or(0, |exact| exact.lost_records);
        [
            imported.and_then(|from| from.sampled.clone()).map(|rule| Missing::Sampled { rule }),
            imported
                .filter(|from| !from.limits.is_empty())
                .map(|from| Missing::Limited { options: from.limits.clone() }),
            some(
                self.filtered_out,
                Missing::Filtered { filters: self.filters.clone(), faults: self.filtered_out },
            ),
            self.cut_short.then_some(Missing::CutShort),
            some(self.lost, Missing::Lost { records: self.lost, page_cache: self.page_cache.is_some() }),
            some(lost_mappings, Missing::LostMappings { records: lost_mappings }),
            imported.filter(|from| from.overwritten).map(|_| Missing::Overwritten),
            some(self.unwatched_cpus, Missing::Processors { unwatched: self.unwatched_cpus }),
            some(self.unsaved, Missing::Unsaved { faults: self.unsaved }),
            some(self.unrecorded, Missing::Unrecorded { faults: self.unrecorded }),
            self.system_calls_hidden.then_some(Missing::SystemCalls),
            imported.filter(|from| from.program_hidden).map(|_| Missing::OutsideSystemCalls),
            imported.filter(|from| from.descendants_hidden).map(|_| Missing::Descendants),
            some(
                self.unobserved_programs,
                Missing::UnobservedPrograms { programs: self.unobserved_programs },
            ),
            // Who records running processes ends the recording when he likes.
            some(self.survivors, Missing::StillRunning { processes: self.survivors })
                .filter(|_| !self.is_of_running()),
            some(self.outside_faults, Missing::Outside { faults: self.outside_faults }),
            imported.filter(|from| from.minor_missing).map(|_| Missing::MinorFaults),
            imported.filter(|from| from.major_missing).map(|_| Missing::MajorFaults),
            imported.filter(|from| from.disk_unknown).map(|_| Missing::DiskFaults),
            imported.filter(|from| from.costs_unknown).map(|_| Missing::Costs),
            some(self.unseen_children, Missing::Children { processes: self.unseen_children }),
            some(self.borrowed_times, Missing::BorrowedTimes { times: self.borrowed_times }),
            (!self.unread_maps.is_empty()).then(|| Missing::Mappings { pids: self.unread_maps.clone() }),
            some(self.unnamed_mappings, Missing::Files { mappings: self.unnamed_mappings }),
            some(self.unanswered_files, Missing::Unanswered { files: self.unanswered_files }),
            some(forgotten, Missing::PagesForgotten { pages: forgotten }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Whether the trace says which faults read from a device.
    pub fn tells_disk_faults(&self) -> bool {
        self.imported.as_ref().is_none_or(|from| !from.disk_unknown && !from.major_missing)
    }

    /// What the trace lacks that is compared with `other`.
    pub fn missing_beside(&self, other: &Self) -> Vec<Missing> {
        let touches = (self.exact.is_none() && other.exact.is_some()).then_some(Missing::Touches);
        let has_costs = self.imported.as_ref().is_none_or(|from| !from.costs_unknown);
        // What --page-cache adds is not what --frames adds.
        let is_alike =
            other.probe_cost_ns.is_none() && self.page_cache.is_some() == other.page_cache.is_some();
        let is_probe_in_costs = has_costs && self.probe_cost_ns.is_none() && !is_alike;
        let probe_costs = is_probe_in_costs.then_some(Missing::ProbeCosts);
        self.missing().into_iter().chain(touches).chain(probe_costs).collect()
    }

    /// What the trace lacks, in one line; "nothing lost" where it is complete.
    pub fn completeness(&self) -> String {
        let missing: Vec<String> = self.missing().iter().map(Missing::to_string).collect();
        if missing.is_empty() {
            "nothing lost".to_owned()
        } else {
            format!("incomplete: {}", missing.join("; "))
        }
    }

    /// The gaps that only one of two traces has, which makes their faults incomparable; empty where they can be compared.
    pub fn unequal_gaps(&self, other: &Self) -> Vec<Missing> {
        let of_faults = |facts: &Self, other| {
            let mut gaps = facts.missing_beside(other);
            gaps.retain(|gap| !matches!(gap, Missing::Unanswered { .. } | Missing::PagesForgotten { .. }));
            gaps
        };
        let (ours, theirs) = (of_faults(self, other), of_faults(other, self));
        let without = |gaps: &[Missing], others: &[Missing]| -> Vec<Missing> {
            gaps.iter().filter(|gap| !others.iter().any(|other| gap.is_same_gap(other))).cloned().collect()
        };
        [without(&ours, &theirs), without(&theirs, &ours)].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{ExactFacts, FilePages, ImportFacts, PageCacheFacts};

    /// Facts with one gap each.
    fn incomplete() -> Vec<TraceFacts> {
        let imported = |imported| TraceFacts { imported: Some(imported), ..TraceFacts::default() };
        vec![
            imported(ImportFacts { sampled: Some("one event in 20".into()), ..ImportFacts::default() }),
            imported(ImportFacts { minor_missing: true, ..ImportFacts::default() }),
            imported(ImportFacts { major_missing: true, ..ImportFacts::default() }),
            imported(ImportFacts { disk_unknown: true, ..ImportFacts::default() }),
            imported(ImportFacts { program_hidden: true, ..ImportFacts::default() }),
            imported(ImportFacts { descendants_hidden: true, ..ImportFacts::default() }),
            imported(ImportFacts { costs_unknown: true, ..ImportFacts::default() }),
            imported(ImportFacts { overwritten: true, ..ImportFacts::default() }),
            imported(ImportFacts { limits: vec!["-D 100".into()], ..ImportFacts::default() }),
            TraceFacts { unwatched_cpus: 1, ..TraceFacts::default() },
            TraceFacts { filters: vec!["--comm a".into()], filtered_out: 1, ..TraceFacts::default() },
            TraceFacts { cut_short: true, ..TraceFacts::default() },
            TraceFacts { lost: 1, ..TraceFacts::default() },
            TraceFacts {
                exact: Some(ExactFacts { lost_records: 1, ..ExactFacts::default() }),
                ..TraceFacts::default()
            },
            TraceFacts { unsaved: 1, ..TraceFacts::default() },
            TraceFacts { unrecorded: 1, ..TraceFacts::default() },
            TraceFacts { system_calls_hidden: true, ..TraceFacts::default() },
            TraceFacts { unobserved_programs: 1, ..TraceFacts::default() },
            TraceFacts { outside_faults: 1, ..TraceFacts::default() },
            TraceFacts { unseen_children: 1, pids: vec![7], ..TraceFacts::default() },
            TraceFacts { borrowed_times: 1, ..TraceFacts::default() },
            TraceFacts { survivors: 1, ..TraceFacts::default() },
            TraceFacts { unread_maps: vec![7], pids: vec![7], ..TraceFacts::default() },
            TraceFacts { unnamed_mappings: 1, ..TraceFacts::default() },
        ]
    }

    #[test]
    fn every_gap_is_named_and_makes_a_trace_incomparable_with_a_complete_one() {
        let complete = TraceFacts::default();
        assert_eq!((complete.missing(), complete.completeness().as_str()), (vec![], "nothing lost"));
        for facts in incomplete() {
            let [gap] = facts.missing().try_into().expect("one gap");
            assert!(facts.completeness().contains(&gap.to_string()), "{facts:?}");
            let complete = TraceFacts {
                exact: facts.exact.as_ref().map(|_| ExactFacts::default()),
                ..TraceFacts::default()
            };
            assert_eq!(facts.unequal_gaps(&complete), std::slice::from_ref(&gap));
            assert_eq!(complete.unequal_gaps(&facts), [gap]);
        }
        let running = TraceFacts { survivors: 3, pids: vec![7], ..TraceFacts::default() };
        assert_eq!(running.missing(), []);
    }

    #[test]
    fn what_is_not_known_of_files_leaves_faults_comparable() {
        let files = vec![FilePages { pages_forgotten: 2, ..FilePages::default() }; 2];
        let page_cache = Some(PageCacheFacts { files, ..PageCacheFacts::default() });
        let facts = TraceFacts { page_cache, unanswered_files: 3, ..TraceFacts::default() };
        assert_eq!(facts.missing(), [Missing::Unanswered { files: 3 }, Missing::PagesForgotten { pages: 4 }]);
        let complete = TraceFacts { page_cache: Some(PageCacheFacts::default()), ..TraceFacts::default() };
        assert_eq!(facts.unequal_gaps(&complete), []);
    }

    #[test]
    fn equal_rules_can_be_compared_and_losses_cannot() {
        for facts in incomplete() {
            let is_overwritten = facts.imported.as_ref().is_some_and(|from| from.overwritten);
            let by_chance = facts.lost + facts.borrowed_times + facts.unsaved + facts.unrecorded > 0
                || facts.cut_short
                || is_overwritten
                || facts.exact.as_ref().is_some_and(|exact| exact.lost_records > 0);
            assert_eq!(facts.unequal_gaps(&facts).is_empty(), !by_chance, "{facts:?}");
        }
        let (plain, exact) = (
            TraceFacts::default(),
            TraceFacts { exact: Some(ExactFacts::default()), ..TraceFacts::default() },
        );
        assert_eq!(plain.unequal_gaps(&exact), [Missing::Touches]);
        assert_eq!(exact.unequal_gaps(&plain), [Missing::Touches]);
        assert_eq!((exact.unequal_gaps(&exact), exact.missing()), (vec![], vec![]));
        let timed = TraceFacts { probe_cost_ns: Some(600), ..TraceFacts::default() };
        assert_eq!(plain.unequal_gaps(&timed), [Missing::ProbeCosts]);
        assert_eq!(timed.unequal_gaps(&plain), [Missing::ProbeCosts]);
        assert_eq!(timed.unequal_gaps(&TraceFacts { probe_cost_ns: Some(700), ..TraceFacts::default() }), []);
        let page_cache = TraceFacts { page_cache: Some(PageCacheFacts::default()), ..TraceFacts::default() };
        assert_eq!(plain.unequal_gaps(&page_cache), [Missing::ProbeCosts, Missing::ProbeCosts]);
        assert_eq!(page_cache.unequal_gaps(&page_cache), []);
        let filtered = |comm: &str, filtered_out| TraceFacts {
            filters: vec![comm.into()],
            filtered_out,
            ..TraceFacts::default()
        };
        assert_eq!(filtered("--comm a", 1).unequal_gaps(&filtered("--comm b", 2)).len(), 2);
        assert_eq!(filtered("--comm a", 1).unequal_gaps(&filtered("--comm a", 2)), []);
        let unwatched = |unwatched_cpus| TraceFacts { unwatched_cpus, ..TraceFacts::default() };
        assert_eq!(unwatched(1).unequal_gaps(&unwatched(3)).len(), 2);
        assert_eq!(filtered("--comm a", 0).missing(), [], "a filter that left out nothing");
        let limited = |option: &str| TraceFacts {
            imported: Some(ImportFacts { limits: vec![option.into()], ..ImportFacts::default() }),
            ..TraceFacts::default()
        };
        for (option, gaps) in
            [("-D 100", 0), ("--filter ip>4", 0), ("--max-size 1M", 2), ("--control fifo:a", 2)]
        {
            assert_eq!(limited(option).unequal_gaps(&limited(option)).len(), gaps, "{option}");
        }
    }

    #[test]
    fn one_of_a_kind_is_not_told_as_many() {
        for (gap, text) in [
            (Missing::Lost { records: 1, page_cache: false }, "1 record lost by"),
            (Missing::Lost { records: 2, page_cache: false }, "2 records lost by"),
            (Missing::Unsaved { faults: 1 }, "1 fault not saved"),
            (Missing::Processors { unwatched: 1 }, "faults on 1 processor are"),
            (
                Missing::StillRunning { processes: 1 },
                "processes that ran on after the recording had ended: 1",
            ),
        ] {
            assert!(gap.to_string().starts_with(text), "{gap}");
        }
    }
}
