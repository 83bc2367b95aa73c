//! The pages read together for one fault, and how often a read got all that its policy wanted.

use std::collections::BTreeMap;

use super::{FaultAt, Residency};
use crate::page::{PageIndex, PageRange};

/// What a policy wants read: pages around, or for reads in the background from, a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The pages wanted, clipped to nothing but the object's first page. For a hard fault it holds the faulting page.
    pub range: PageRange,
    /// Pages wanted before the object's first page: a cluster that has some is truncated, whatever is read.
    pub before_object: u64,
    /// What to do at pages of the range that are resident already.
    pub holes: Holes,
    /// A page to mark: the first fault on it, once it is resident, asks [`super::Policy::soft`].
    pub mark: Option<PageIndex>,
    /// Pages from that on that share the mark, because they come in as one large folio.
    pub mark_pages: u64,
}

/// How a read goes on at a page that is already resident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// It ends there, each way from the faulting page: always one I/O (FreeBSD).
    Stop,
    /// It skips such pages: one I/O for each run of missing ones (Linux).
    Skip,
}

impl Cluster {
    /// The pages of `range`, without a mark.
    pub fn new(range: PageRange, holes: Holes) -> Self {
        Self { range, before_object: 0, holes, mark: None, mark_pages: 1 }
    }

    /// `behind` pages before `page` and `ahead` after it, in one I/O.
    pub fn around(page: PageIndex, behind: u64, ahead: u64) -> Self {
        let start = PageIndex(page.0.saturating_sub(behind));
        let end = PageIndex(page.0.saturating_add(ahead).saturating_add(1));
        let before_object = behind.saturating_sub(page.0);
        Self { before_object, ..Self::new(PageRange::new(start, end), Holes::Stop) }
    }

    /// The one of the aligned clusters of `pages` pages that holds `page`, in one I/O.
    pub fn aligned(page: PageIndex, pages: u32) -> Self {
        let behind = page.0 % u64::from(pages);
        Self::around(page, behind, u64::from(pages) - 1 - behind)
    }

    /// The pages of the cluster that lie in the fault's window.
    pub fn within(&self, window: PageRange) -> PageRange {
        let start = self.range.start().max(window.start());
        let end = self.range.end().min(window.end());
        PageRange::new(start, end.max(start))
    }

    /// The one run of missing pages to read for a hard fault: clipped to the window, then to the first resident page
    /// each way. Other missing pages of a [`Holes::Skip`] cluster lie outside it.
    pub fn clip(&self, fault: &FaultAt, memory: &impl Residency) -> PageRange {
        let wanted = self.within(fault.window);
        let mut start = fault.page;
        while start > wanted.start() && !memory.is_resident(PageIndex(start.0 - 1)) {
            start.0 -= 1;
        }
        let mut end = PageIndex(fault.page.0 + 1);
        while end < wanted.end() && !memory.is_resident(end) {
            end.0 += 1;
        }
        PageRange::new(start, end)
    }

    /// Whether `run`, what [`Cluster::clip`] left, lacks pages that the policy wanted: the ends of the object or of the
    /// entry, or resident pages, cut it short.
    pub fn is_truncated(&self, run: PageRange) -> bool {
        self.before_object > 0 || run != self.range
    }
}

/// How many reads of hard faults had which size, and how many of those were truncated.
///
/// The simulator counts into it read by read; the VM counts in atomics and fills one when it is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterHistogram {
    by_pages: BTreeMap<u64, ClusterCount>,
}

/// Reads of one size, or of all sizes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterCount {
    /// Reads of all the pages the policy wanted.
    pub full: u64,
    /// Reads that lacked some ([`Cluster::is_truncated`]).
    pub truncated: u64,
}

impl ClusterHistogram {
    /// Counts `reads` reads of `pages` pages each.
    pub fn add(&mut self, pages: u64, truncated: bool, reads: u64) {
        let count = self.by_pages.entry(pages).or_default();
        *(if truncated { &mut count.truncated } else { &mut count.full }) += reads;
    }

    /// The reads by their number of pages, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (u64, ClusterCount)> {
        self.by_pages.iter().map(|(&pages, &count)| (pages, count))
    }

    /// The reads of `pages` pages.
    pub fn of(&self, pages: u64) -> ClusterCount {
        self.by_pages.get(&pages).copied().unwrap_or_default()
    }

    /// All reads.
    pub fn total(&self) -> ClusterCount {
        self.by_pages.values().fold(ClusterCount::default(), |sum, count| ClusterCount {
            full: sum.full + count.full,
            truncated: sum.truncated + count.truncated,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(page: u64) -> FaultAt {
        FaultAt { page: PageIndex(page), window: PageRange::new(PageIndex(0), PageIndex(32)) }
    }

    struct Resident(PageRange);

    impl Residency for Resident {
        fn is_resident(&self, page: PageIndex) -> bool {
            self.0.contains(page)
        }
    }

    #[test]
    fn a_read_is_truncated_by_either_end_of_the_object_and_by_resident_pages() {
        let nothing = Resident(PageRange::new(PageIndex(0), PageIndex(0)));
        let sixteen = Resident(PageRange::new(PageIndex(16), PageIndex(17)));
        for (page, memory, pages, truncated) in [
            (4, &nothing, 12, true),
            (28, &nothing, 12, true),
            (8, &nothing, 16, false),
            (10, &sixteen, 14, true),
        ] {
            let cluster = Cluster::around(PageIndex(page), 8, 7);
            let run = cluster.clip(&fault(page), memory);
            assert_eq!((run.len(), cluster.is_truncated(run)), (pages, truncated), "page {page}");
        }
    }

    #[test]
    fn a_histogram_adds_up() {
        let mut histogram = ClusterHistogram::default();
        histogram.add(16, false, 2);
        histogram.add(16, true, 1);
        histogram.add(12, true, 3);
        assert_eq!(histogram.of(16), ClusterCount { full: 2, truncated: 1 });
        assert_eq!(histogram.of(1), ClusterCount::default());
        assert_eq!(histogram.total(), ClusterCount { full: 2, truncated: 4 });
        assert!(histogram.iter().map(|(pages, _)| pages).eq([12, 16]));
    }
}
