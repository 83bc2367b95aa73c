//! What happened in a replay, counted.

use std::collections::BTreeMap;

use prepage_core::policy::cluster::{ClusterCount, ClusterHistogram};

/// Counts of one replay under one policy. Times are estimates of a device model and null without one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Touches replayed.
    pub touches: u64,
    /// Different pages of objects that were touched.
    pub touched_pages: u64,
    /// Faults on pages that were missing and had to be read.
    pub hard: u64,
    /// Faults on pages that were resident, or on their way, and had to be mapped.
    pub soft: u64,
    /// Of the soft ones: those that waited for a read that was under way.
    pub late: u64,
    /// Under Linux's policies: second faults that mapped a page whose read the first one had waited for. They are no
    /// part of `hard` and `soft`, and their cost is in that of the first.
    pub short: u64,
    /// Reads, those in the background included.
    pub io: u64,
    /// Of the reads: those no fault waited for when they were asked for, by their number of pages.
    pub background: BTreeMap<u64, u64>,
    /// Pages read.
    pub read: u64,
    /// Pages read and never touched.
    pub never: u64,
    /// Blocks of 512 pages, aligned in their object, that were wholly resident at the end.
    pub full512: u64,
    /// Mappings of whole such blocks over all runs, where the replay was to make them.
    pub superpages: u64,
    /// How many reads of hard faults had which size.
    pub clusters: ClusterHistogram,
    /// By object: hard faults, pages read, pages never touched.
    pub objects: Vec<ObjectOutcome>,
    /// How long the program waited for reads, in nanoseconds.
    pub stall_ns: u64,
    /// What faults took: waiting for reads, and their own time, in nanoseconds.
    pub fault_ns: u64,
    /// How long the run took: faults and everything between and after them, in nanoseconds.
    pub time_ns: u64,
}

/// What happened to one object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ObjectOutcome {
    /// See [`Outcome::hard`].
    pub hard: u64,
    /// See [`Outcome::read`].
    pub read: u64,
    /// See [`Outcome::never`].
    pub never: u64,
}

impl Outcome {
    /// Share of the pages read that were never touched, in percent; 0 where nothing was read.
    pub fn never_percent(&self) -> f64 {
        if self.read == 0 { 0.0 } else { 100.0 * self.never as f64 / self.read as f64 }
    }

    /// Mean number of pages of a read; 0 where nothing was read.
    pub fn mean_read_pages(&self) -> f64 {
        if self.io == 0 { 0.0 } else { self.read as f64 / self.io as f64 }
    }

    /// Reads of hard faults that got all they wanted, and those cut short.
    pub fn full_and_truncated(&self) -> (u64, u64) {
        let ClusterCount { full, truncated } = self.clusters.total();
        (full, truncated)
    }

    /// Faults as a log of the kernel's handler has them: disk faults, which waited for a device; short ones; cached
    /// ones, of pages that were there.
    pub fn logged(&self) -> [u64; 3] {
        [self.hard + self.late, self.short, self.soft - self.late]
    }
}
