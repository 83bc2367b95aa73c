//! What is resident of one object.

use std::collections::BTreeMap;

use prepage_core::policy::Residency;
use prepage_core::{PageIndex, PageRange};

use crate::entry::SUPERPAGE_PAGES;
use crate::pages::{GROUP_PAGES, Pages, bit, groups};

/// What is resident of one object, and what was done with it.
#[derive(Debug, Default)]
pub(crate) struct Resident {
    pub groups: Pages<Group>,
    /// Pages that carry the mark of a cluster: first, and one after the last.
    pub marks: BTreeMap<PageIndex, PageIndex>,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Group {
    pub resident: u64,
    pub touched: u64,
    /// Resident from the beginning.
    pub given: u64,
}

impl Residency for Resident {
    fn is_resident(&self, page: PageIndex) -> bool {
        self.groups.get(page).is_some_and(|group| group.resident & bit(page) != 0)
    }

    fn is_marked(&self, page: PageIndex) -> bool {
        self.marked_folio(page).is_some()
    }

    fn marked_folio(&self, page: PageIndex) -> Option<PageRange> {
        let (&start, &end) = self.marks.range(..=page).next_back()?;
        (page < end).then(|| PageRange::new(start, end))
    }

    fn resident_in(&self, range: PageRange) -> u64 {
        let resident = |(page, bits): (PageIndex, u64)| {
            self.groups.get(page).map_or(0, |group| u64::from((group.resident & bits).count_ones()))
        };
        groups(range).map(resident).sum()
    }
}

impl Resident {
    /// The first page of `[from, end)` whose residency is `resident`.
    pub fn next(&self, from: PageIndex, end: PageIndex, resident: bool) -> Option<PageIndex> {
        if from >= end {
            return None;
        }
        groups(PageRange::new(from, end)).find_map(|(page, bits)| {
            let there = self.groups.get(page).map_or(0, |group| group.resident);
            let found = bits & if resident { there } else { !there };
            let base = page.0 & !(GROUP_PAGES - 1);
            (found != 0).then(|| PageIndex(base + u64::from(found.trailing_zeros())))
        })
    }

    /// Blocks of 512 pages that are wholly resident.
    pub fn full_blocks(&self) -> u64 {
        let per_block = (SUPERPAGE_PAGES / GROUP_PAGES) as usize;
        let full = |block: &&[Group]| block.iter().all(|group| group.resident == u64::MAX);
        let chunks = self.groups.chunks();
        chunks.map(|(_, groups)| groups.chunks(per_block).filter(full).count() as u64).sum()
    }
}
