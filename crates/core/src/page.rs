//! Pages: 4 KiB units of an object or of an address space.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes in a page. prepage runs where the kernel's base page is 4 KiB (x86-64 and most arm64).
pub const PAGE_SIZE: u64 = 4096;

/// The position of a page in its object: byte offset ÷ [`PAGE_SIZE`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageIndex(pub u64);

impl PageIndex {
    /// The page that holds byte `offset_bytes` of the object.
    pub const fn containing(offset_bytes: u64) -> Self {
        Self(offset_bytes / PAGE_SIZE)
    }

    /// The byte offset at which this page starts.
    pub const fn offset_bytes(self) -> u64 {
        self.0 * PAGE_SIZE
    }

    /// The run of this page alone.
    pub const fn alone(self) -> PageRange {
        PageRange { start: self, end: Self(self.0 + 1) }
    }
}

impl fmt::Display for PageIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A half-open run of pages `[start, end)`; `start <= end` always holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PageRange {
    start: PageIndex,
    end: PageIndex,
}

impl PageRange {
    /// The pages from `start` up to, not including, `end`.
    ///
    /// # Panics
    /// When `end < start`: ranges are built from checked arithmetic, so this is a broken invariant.
    pub const fn new(start: PageIndex, end: PageIndex) -> Self {
        assert!(start.0 <= end.0, "a page range ends before it starts");
        Self { start, end }
    }

    /// The pages that bytes `[offset_bytes, offset_bytes + len_bytes)` lie on; empty for no bytes.
    pub const fn covering(offset_bytes: u64, len_bytes: u64) -> Self {
        let start = PageIndex::containing(offset_bytes);
        if len_bytes == 0 {
            return Self { start, end: start };
        }
        let last = PageIndex::containing(offset_bytes.saturating_add(len_bytes - 1));
        Self { start, end: PageIndex(last.0 + 1) }
    }

    /// First page.
    pub const fn start(self) -> PageIndex {
        self.start
    }

    /// One past the last page.
    pub const fn end(self) -> PageIndex {
        self.end
    }

    /// Number of pages.
    pub const fn len(self) -> u64 {
        self.end.0 - self.start.0
    }

    /// Whether there is no page in it.
    pub const fn is_empty(self) -> bool {
        self.start.0 == self.end.0
    }

    /// Number of bytes.
    pub const fn bytes(self) -> u64 {
        self.len() * PAGE_SIZE
    }

    /// Whether `page` lies in the range.
    pub const fn contains(self, page: PageIndex) -> bool {
        self.start.0 <= page.0 && page.0 < self.end.0
    }

    /// Whether a page lies in both ranges.
    pub fn overlaps(self, other: Self) -> bool {
        self.start.max(other.start) < self.end.min(other.end)
    }

    /// The pages in ascending order.
    pub fn iter(self) -> impl Iterator<Item = PageIndex> {
        (self.start.0..self.end.0).map(PageIndex)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn covering_counts_every_page_a_byte_lies_on() {
        assert_eq!(PageRange::covering(4095, 2), PageRange::new(PageIndex(0), PageIndex(2)));
        assert_eq!(PageRange::covering(4096, 4096), PageRange::new(PageIndex(1), PageIndex(2)));
        assert!(PageRange::covering(5000, 0).is_empty());
    }

    #[test]
    fn an_empty_range_overlaps_nothing() {
        let range = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
        assert!(range(0, 3).overlaps(range(2, 4)) && range(1, 2).overlaps(range(0, 3)));
        for (range, other) in
            [(range(0, 2), range(2, 4)), (range(0, 4), range(2, 2)), (range(2, 2), range(2, 2))]
        {
            assert!(!range.overlaps(other) && !other.overlaps(range), "{range:?} {other:?}");
        }
    }

    #[test]
    #[should_panic(expected = "ends before it starts")]
    fn a_reversed_range_is_a_broken_invariant() {
        PageRange::new(PageIndex(2), PageIndex(1));
    }
}
