//! Runs of pages of one file of which the same is known.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::counts::Counts;
use crate::page::{PageIndex, PageRange};

/// How well it is known that the pages of an extent are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Evidence {
    /// Each page was seen to be brought in for the program alone, with the kernel's read-ahead off.
    Exact,
    /// A fault or a read() named these pages.
    Seen,
    /// Neighbours of a fault. The kernel's fault-around maps up to 16 cached pages at once and hides which of
    /// them the program then touches.
    Near,
}

impl Evidence {
    /// The counters of a page that one run showed in this way.
    pub fn counts(self) -> Counts {
        match self {
            Self::Exact => Counts::EXACT,
            Self::Seen => Counts::SEEN,
            Self::Near => Counts::default(),
        }
    }
}

/// A run of pages of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The pages.
    pub range: PageRange,
    /// Position in the order of first use among all pages of the profile; smaller is earlier.
    pub rank: u32,
    /// How well they are known.
    pub evidence: Evidence,
    /// What tests showed of them.
    pub counts: Counts,
    /// Whether a read() was seen to use them. That the program takes no page fault there means nothing then.
    pub by_read: bool,
}

impl Extent {
    /// Pages that one run showed.
    pub fn new(range: PageRange, rank: u32, evidence: Evidence) -> Self {
        Self { range, rank, evidence, counts: evidence.counts(), by_read: false }
    }

    /// Whether the same is known of the pages of both, their rank aside.
    pub fn is_known_as(&self, other: &Self) -> bool {
        (self.evidence, self.counts, self.by_read) == (other.evidence, other.counts, other.by_read)
    }

    /// The same knowledge of other pages.
    pub(crate) fn over(&self, start: PageIndex, end: PageIndex) -> Self {
        Self { range: PageRange::new(start, end), ..*self }
    }

    fn join(&self, other: &Self) -> Self {
        Self {
            range: self.range,
            rank: self.rank.min(other.rank),
            evidence: self.evidence.min(other.evidence),
            counts: self.counts.join(other.counts),
            by_read: self.by_read || other.by_read,
        }
    }
}

/// Pages of either list, both sorted and each without overlaps. For pages in both: the earlier rank, the better
/// evidence, the larger of each counter. Of every page by itself, and so commutative, associative and idempotent.
pub fn join(one: &[Extent], other: &[Extent]) -> Vec<Extent> {
    let mut joined = Vec::with_capacity(one.len().max(other.len()));
    let (mut one, mut other) = (one.iter().copied().peekable(), other.iter().copied().peekable());
    let (mut a, mut b) = (one.next(), other.next());
    loop {
        // The earlier of the two, up to where the other begins or, where they start together, the shorter one ends.
        let (piece, end) = match (a, b) {
            (None, None) => break,
            (Some(a), None) => (a, a.range.end()),
            (None, Some(b)) => (b, b.range.end()),
            (Some(a), Some(b)) if a.range.start() < b.range.start() => {
                (a, a.range.end().min(b.range.start()))
            }
            (Some(a), Some(b)) if b.range.start() < a.range.start() => {
                (b, b.range.end().min(a.range.start()))
            }
            (Some(a), Some(b)) => (a.join(&b), a.range.end().min(b.range.end())),
        };
        push(&mut joined, piece.over(piece.range.start(), end));
        a = a.and_then(|a| rest(a, end)).or_else(|| a.and_then(|_| one.next()));
        b = b.and_then(|b| rest(b, end)).or_else(|| b.and_then(|_| other.next()));
    }
    joined
}

/// What of `extent` lies at or behind `end`; `None` when nothing does.
fn rest(extent: Extent, end: PageIndex) -> Option<Extent> {
    (extent.range.end() > end).then(|| extent.over(extent.range.start().max(end), extent.range.end()))
}

/// Adds an extent behind all others: one with the one before where nothing tells them apart.
fn push(extents: &mut Vec<Extent>, extent: Extent) {
    if extent.range.is_empty() {
        return;
    }
    match extents.last_mut() {
        Some(last)
            if last.range.end() == extent.range.start()
                && last.rank == extent.rank
                && last.is_known_as(&extent) =>
        {
            *last = last.over(last.range.start(), extent.range.end());
        }
        _ => extents.push(extent),
    }
}

/// Ranks that lie in the same stretch of this many count as one: neighbours further apart in the order of use stay apart,
/// or what is used last would be read with what is used first, before all that is used between. On exact traces of java
/// and gdb, a model of their starts loses 7 to 9 % by joining all neighbours, and nothing by stretches of 256.
const ORDER_RANKS: u32 = 256;

/// Neighbours of which the same is known and that are used about the same time, made into one with the earlier of their
/// ranks: they are read together anyway, and the profile stays small.
pub fn simplified(extents: &[Extent]) -> Vec<Extent> {
    let mut simple: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match simple.last_mut() {
            Some(last)
                if last.range.end() == extent.range.start()
                    && last.is_known_as(extent)
                    && last.rank / ORDER_RANKS == extent.rank / ORDER_RANKS =>
            {
                *last = last.over(last.range.start(), extent.range.end());
                last.rank = last.rank.min(extent.rank);
            }
            _ => simple.push(*extent),
        }
    }
    simple
}

/// The pages of one file that a run touched, while it is being watched.
#[derive(Clone, Debug, Default)]
pub struct Touches {
    pages: BTreeMap<PageIndex, Touch>,
}

#[derive(Clone, Copy, Debug)]
struct Touch {
    rank: u32,
    evidence: Evidence,
    by_read: bool,
}

impl Touches {
    /// Notes that `page` was used as the `rank`-th of its run. The first use and the best evidence stay.
    pub fn touch(&mut self, page: PageIndex, rank: u32, evidence: Evidence) {
        self.note(page, Touch { rank, evidence, by_read: false });
    }

    /// Notes every page of `range`.
    pub fn touch_range(&mut self, range: PageRange, rank: u32, evidence: Evidence) {
        range.iter().for_each(|page| self.touch(page, rank, evidence));
    }

    /// Notes every page of `range` as used by a read().
    pub fn read_range(&mut self, range: PageRange, rank: u32, evidence: Evidence) {
        range.iter().for_each(|page| self.note(page, Touch { rank, evidence, by_read: true }));
    }

    /// Notes that `page` was used as `extent` says.
    pub fn add(&mut self, page: PageIndex, extent: &Extent) {
        let Extent { rank, evidence, by_read, .. } = *extent;
        self.note(page, Touch { rank, evidence, by_read });
    }

    fn note(&mut self, page: PageIndex, touch: Touch) {
        self.pages
            .entry(page)
            .and_modify(|known| {
                known.rank = known.rank.min(touch.rank);
                known.evidence = known.evidence.min(touch.evidence);
                known.by_read |= touch.by_read;
            })
            .or_insert(touch);
    }

    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Forgets pages from `end` on: what lies beyond the end of the file.
    pub fn truncate(&mut self, end: PageIndex) {
        self.pages.split_off(&end);
    }

    /// The touched pages as runs: neighbours of the same evidence join, and the earliest use leads.
    pub fn extents(&self) -> Vec<Extent> {
        let pages: Vec<Extent> = self
            .pages
            .iter()
            .map(|(&page, touch)| {
                let range = PageRange::new(page, PageIndex(page.0 + 1));
                Extent { by_read: touch.by_read, ..Extent::new(range, touch.rank, touch.evidence) }
            })
            .collect();
        simplified(&pages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    #[test]
    fn touches_join_into_extents_that_keep_the_first_use() {
        let mut touches = Touches::default();
        touches.touch(PageIndex(5), 9, Evidence::Exact);
        touches.touch(PageIndex(4), 12, Evidence::Exact);
        touches.touch(PageIndex(4), 2, Evidence::Near);
        touches.touch(PageIndex(9), 1, Evidence::Exact);
        touches.read_range(range(10, 12), 3, Evidence::Exact);
        let extents = touches.extents();
        assert_eq!(extents.len(), 3);
        assert_eq!(extents[0], Extent::new(range(4, 6), 2, Evidence::Exact));
        assert_eq!(extents[1].rank, 1);
        assert!(extents[2].by_read && extents[2].range == range(10, 12));
    }

    #[test]
    fn a_join_cuts_where_knowledge_changes_and_only_there() {
        let extent = |start, end, rank, evidence| Extent::new(range(start, end), rank, evidence);
        let one = [extent(0, 10, 5, Evidence::Near), extent(20, u64::MAX, 1, Evidence::Seen)];
        let other = [extent(4, 6, 7, Evidence::Seen), extent(10, 12, 5, Evidence::Near)];
        let joined = join(&one, &other);
        let shape: Vec<_> = joined.iter().map(|e| (e.range.start().0, e.range.end().0, e.rank)).collect();
        assert_eq!(shape, [(0, 4, 5), (4, 6, 5), (6, 12, 5), (20, u64::MAX, 1)]);
        assert_eq!(joined[1].evidence, Evidence::Seen);
        assert_eq!(joined, join(&other, &one));
    }

    #[test]
    fn the_same_is_made_simple_though_ranks_differ() {
        let simple = simplified(&[
            Extent::new(range(0, 2), 9, Evidence::Seen),
            Extent::new(range(2, 3), 4, Evidence::Seen),
            Extent::new(range(3, 4), 1, Evidence::Near),
        ]);
        assert_eq!(simple.len(), 2);
        assert_eq!((simple[0].range, simple[0].rank), (range(0, 3), 4));
    }

    #[test]
    fn neighbours_used_long_after_one_another_stay_apart() {
        let page = |at: u64, rank| Extent::new(range(at, at + 1), rank, Evidence::Exact);
        let simple = simplified(&[page(0, 3), page(1, 5000), page(2, 4999), page(3, 7)]);
        let shape: Vec<_> = simple.iter().map(|e| (e.range.start().0, e.range.end().0, e.rank)).collect();
        assert_eq!(shape, [(0, 1, 3), (1, 3, 4999), (3, 4, 7)]);
    }

    proptest::proptest! {
        #[test]
        fn what_is_simple_stays_as_it_is(ranks in proptest::collection::vec(0u32..2000, 1..200)) {
            let pages: Vec<Extent> = (0..)
                .zip(&ranks)
                .map(|(at, &rank)| Extent::new(range(at, at + 1), rank, Evidence::Seen))
                .collect();
            let simple = simplified(&pages);
            proptest::prop_assert_eq!(&simplified(&simple), &simple);
            proptest::prop_assert_eq!(simple.iter().map(|extent| extent.range.len()).sum::<u64>(), ranks.len() as u64);
        }
    }
}
