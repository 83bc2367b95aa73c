//! What a profile says will be touched.

use std::sync::Arc;

use super::{Cluster, FaultAt, Holes};
use crate::page::PageRange;
use crate::profile::Extent;

/// Reads the predicted pages of the object from its first fault on, in the order of first use and in the background. A
/// fault on a predicted page that has not arrived reads its run; any other page is read with its aligned cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Predicted {
    /// In order of first use.
    opening: Arc<[PageRange]>,
    /// The same runs by position.
    sorted: Arc<[PageRange]>,
    /// Pages in the aligned cluster that a fault on a page not predicted reads, at least 1.
    pub others: u32,
}

impl Predicted {
    /// Predicts the pages of `extents`, which lie apart from one another.
    pub fn new(extents: &[Extent], others: u32) -> Self {
        let mut by_rank: Vec<&Extent> = extents.iter().collect();
        by_rank.sort_by_key(|extent| (extent.rank, extent.range));
        let opening: Arc<[PageRange]> = by_rank.iter().map(|extent| extent.range).collect();
        let mut sorted = opening.to_vec();
        sorted.sort_unstable();
        Self { opening, sorted: sorted.into(), others }
    }

    pub(super) fn opening(&self) -> &[PageRange] {
        &self.opening
    }

    pub(super) fn hard(&self, fault: &FaultAt) -> Cluster {
        let after = self.sorted.partition_point(|run| run.start() <= fault.page);
        match after.checked_sub(1).map(|at| self.sorted[at]) {
            Some(run) if run.contains(fault.page) => Cluster::new(run, Holes::Stop),
            _ => Cluster::aligned(fault.page, self.others),
        }
    }
}
