//! Read more where much has been read already.

use super::aligned::Aligned;
use super::{Cluster, ClusterPolicy, EntryState, FaultAt, Holes, Residency};
use crate::page::{PageIndex, PageRange};

/// Begins with the aligned block of `least` pages and doubles it as long as, with it, at least `percent` of the doubled
/// block would be resident: faults that come close to one another make the blocks around them grow, scattered ones stay
/// small.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Density {
    /// Pages of the first block, at least 1.
    pub least: u32,
    /// Pages of the largest.
    pub most: u32,
    /// How full a block must be to be filled.
    pub percent: u32,
    /// 1: skip
    pub skip: u32,
}

impl ClusterPolicy for Density {
    fn hard(&self, entry: &mut EntryState, fault: &FaultAt, memory: &impl Residency) -> Cluster {
        let mut range = Aligned { pages: self.least }.hard(entry, fault, memory).within(fault.window);
        let mut pages = u64::from(self.least);
        while pages < u64::from(self.most) {
            pages *= 2;
            let start = PageIndex(fault.page.0 - fault.page.0 % pages);
            let block = Cluster::around(start, 0, pages - 1).within(fault.window);
            let resident = memory.resident_in(block) + range.len() - memory.resident_in(range);
            if resident * 100 < block.len() * u64::from(self.percent) {
                break;
            }
            range = PageRange::new(block.start(), block.end());
        }
        let holes = if self.skip == 1 { Holes::Skip } else { Holes::Stop };
        Cluster { range, holes, mark: None }
    }
}
