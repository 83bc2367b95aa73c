//! The aligned cluster that holds the faulting page.

use super::{Cluster, ClusterPolicy, EntryState, FaultAt, Residency};

/// Reads the whole cluster of `pages` pages that the faulting page lies in; clusters begin at multiples of `pages` in
/// the *object*, so that all maps of it agree and neighbours never cut each other short.
///
/// Source: FreeBSD, "Revamp the default page clustering strategy that is used by the page fault handler" (2015).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Aligned {
    /// Pages in a cluster, at least 1.
    pub pages: u32,
}

impl ClusterPolicy for Aligned {
    fn hard(&self, _: &mut EntryState, fault: &FaultAt, _: &impl Residency) -> Cluster {
        let pages = u64::from(self.pages);
        let behind = fault.page.0 % pages;
        Cluster::around(fault.page, behind, pages - 1 - behind)
    }
}
