//! A window of fixed size around the faulting page.

use super::{Cluster, ClusterPolicy, EntryState, FaultAt, Residency};

/// Reads `behind` pages before the faulting one and `ahead` after it.
///
/// FreeBSD read 8/7 before it aligned its clusters; 0/0 reads single pages (`none`, MADV_RANDOM), 0/1 is one-block
/// lookahead (`obl`; Smith, "Sequentiality and prefetching in database systems", 1978), 0/31 what FreeBSD reads under
/// MADV_SEQUENTIAL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Around {
    /// Pages before.
    pub behind: u32,
    /// Pages after.
    pub ahead: u32,
}

impl ClusterPolicy for Around {
    fn hard(&self, _: &mut EntryState, fault: &FaultAt, _: &impl Residency) -> Cluster {
        Cluster::around(fault.page, self.behind.into(), self.ahead.into())
    }
}

/// Reads `pages` pages, the faulting one in the middle; at the object's start as many, all from page 0.
///
/// Linux's read-around of mapped files, without all that surrounds it (see [`super::linux`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReadAround {
    /// Pages in the window.
    pub pages: u32,
}

impl ClusterPolicy for ReadAround {
    fn hard(&self, _: &mut EntryState, fault: &FaultAt, _: &impl Residency) -> Cluster {
        let pages = u64::from(self.pages);
        let behind = fault.page.0.min(pages / 2);
        Cluster::around(fault.page, behind, pages - 1 - behind)
    }
}
