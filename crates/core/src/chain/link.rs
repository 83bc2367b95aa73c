//! One object of a chain, and which object of its chain holds each page.

use std::ops::Range;

use rangemap::RangeMap;

use super::LinkId;
use crate::page::{PageIndex, PageRange};

#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) pages: u64,
    /// By page, the link of this chain that holds it. What stands here for no page is held by the terminal link.
    pub(super) extents: RangeMap<u64, LinkId>,
    /// The last link of the chain, where that holds every page.
    pub(super) terminal: Option<LinkId>,
    pub(super) below: Option<LinkId>,
    /// The links directly above.
    pub(super) above: Vec<LinkId>,
    /// Maps and handles that look at it directly.
    pub(super) maps: u32,
}

impl Link {
    pub(super) fn new(pages: u64) -> Self {
        let extents = RangeMap::new();
        Self { pages, extents, terminal: None, below: None, above: Vec::new(), maps: 1 }
    }
}

/// The parts of `pages` that `holder` holds.
pub(super) fn parts(extents: &RangeMap<u64, LinkId>, pages: PageRange, holder: LinkId) -> Vec<PageRange> {
    let range = pages.start().0..pages.end().0;
    let overlapping = extents.overlapping(range.clone()).filter(|(_, found)| **found == holder);
    overlapping.map(|(part, _)| page_range(&(part.start.max(range.start)..part.end.min(range.end)))).collect()
}

pub(super) fn page_range(pages: &Range<u64>) -> PageRange {
    PageRange::new(PageIndex(pages.start), PageIndex(pages.end))
}
