//! Runs of pages of one file of which the same is known.

use std::collections::BTreeMap;

use super::counts::{Counts, Use};
use super::observation::UsedPages;
use crate::page::{PageIndex, PageRange};

/// A run of pages of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extent {
    /// The pages.
    pub range: PageRange,
    /// Position in the order of first use among all pages of the start that showed them first, or of the last one that was seen in exact order, moved
    /// halfway to that of each later one whose order looks showed; smaller is earlier.
    pub rank: u32,
    /// In how many starts they were used.
    pub counts: Counts,
    /// Whether read() uses them rather than a mapping.
    pub by_read: bool,
}

impl Extent {
    /// Pages that one start used.
    pub fn new(range: PageRange, rank: u32) -> Self {
        Self { range, rank, counts: Counts::once(Use::Sure), by_read: false }
    }

    /// Whether the same is known of the pages of both, their rank aside.
    fn is_known_as(&self, other: &Self) -> bool {
        (self.counts, self.by_read) == (other.counts, other.by_read)
    }
}

impl From<&UsedPages> for Extent {
    fn from(pages: &UsedPages) -> Self {
        let counts = Counts::once(if pages.is_sure { Use::Sure } else { Use::Half });
        Self { range: pages.range, rank: pages.rank, counts, by_read: pages.by_read }
    }
}

/// Goes through both lists at once, each sorted and without overlaps, and makes something of each stretch that nothing
/// changes in: `make` gets what each list has there.
pub(crate) fn overlay<A: Copy, B: Copy, C>(
    one: &[A],
    other: &[B],
    range_of: &(impl Fn(&A) -> PageRange, impl Fn(&B) -> PageRange),
    mut make: impl FnMut(PageRange, Option<A>, Option<B>) -> Option<C>,
) -> Vec<C> {
    let mut made = Vec::with_capacity(one.len().max(other.len()));
    let (mut a, mut b) = (0, 0);
    let mut cursor = PageIndex(0);
    loop {
        a += one[a..].iter().take_while(|item| range_of.0(item).end() <= cursor).count();
        b += other[b..].iter().take_while(|item| range_of.1(item).end() <= cursor).count();
        let ranges = [one.get(a).map(&range_of.0), other.get(b).map(&range_of.1)];
        let Some(start) = ranges.iter().flatten().map(|range| range.start().max(cursor)).min() else { break };
        let edges = ranges.iter().flatten().flat_map(|range| [range.start(), range.end()]);
        let end = edges.filter(|edge| *edge > start).min().unwrap_or(start);
        let holds = |range: Option<PageRange>| range.is_some_and(|range| range.contains(start));
        let (in_one, in_other) = (holds(ranges[0]), holds(ranges[1]));
        made.extend(make(
            PageRange::new(start, end),
            one.get(a).copied().filter(|_| in_one),
            other.get(b).copied().filter(|_| in_other),
        ));
        cursor = end;
    }
    made
}

/// Ranks that lie in the same stretch of this many count as one: neighbours further apart in the order of use stay apart,
/// or what is used last would be read with what is used first, before all that is used between. On exact traces of java
/// and gdb, a model of their starts loses 7 to 9 % by joining all neighbours, and nothing by stretches of 256.
const ORDER_RANKS: u32 = 256;

/// Whether pages with these ranks are used about the same time.
pub fn are_used_together(one: u32, other: u32) -> bool {
    one / ORDER_RANKS == other / ORDER_RANKS
}

/// Neighbours of which the same is known and that are used about the same time, made into one with the earlier of their
/// ranks: they are read together anyway, and the profile stays small.
pub fn simplified(extents: &[Extent]) -> Vec<Extent> {
    let mut simple: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        match simple.last_mut() {
            Some(last)
                if last.range.end() == extent.range.start()
                    && last.is_known_as(extent)
                    && are_used_together(last.rank, extent.rank) =>
            {
                last.range = PageRange::new(last.range.start(), extent.range.end());
                last.rank = last.rank.min(extent.rank);
            }
            _ => simple.push(*extent),
        }
    }
    simple
}

/// What either list knows of one file, each sorted and without overlaps. Of pages that both know, the more certain counters and the earlier
/// rank.
pub fn union(one: &[Extent], other: &[Extent]) -> Vec<Extent> {
    let range_of = |extent: &Extent| extent.range;
    let all = overlay(one, other, &(range_of, range_of), |range, a, b| {
        let of_both = |a: Extent, b: Extent| Extent {
            range,
            rank: a.rank.min(b.rank),
            counts: if a.counts.probability() >= b.counts.probability() { a.counts } else { b.counts },
            by_read: a.by_read || b.by_read,
        };
        let of_one = |known: Extent| Extent { range, ..known };
        a.zip(b).map(|(a, b)| of_both(a, b)).or(a.or(b).map(of_one))
    });
    simplified(&all)
}

/// What is `known` of one file, and what `other` knows of pages that are not in there; each sorted and without overlaps.
pub(crate) fn known_or(known: &[Extent], other: &[Extent]) -> Vec<Extent> {
    let range_of = |extent: &Extent| extent.range;
    let new = overlay(known, other, &(range_of, range_of), |range, known, other| {
        other.filter(|_| known.is_none()).map(|other| Extent { range, ..other })
    });
    let mut all = [known, &new].concat();
    all.sort_unstable_by_key(|extent| extent.range.start());
    if new.is_empty() { all } else { simplified(&all) }
}

/// The pages of one file that a start touched, while it is being watched, in any order.
#[derive(Clone, Debug, Default)]
pub struct Touches {
    pages: BTreeMap<PageIndex, UsedPages>,
}

impl Touches {
    /// Notes that `page` was used as the `rank`-th of its start.
    pub fn touch(&mut self, page: PageIndex, rank: u32) {
        let range = page.alone();
        self.add(UsedPages { range, rank, by_read: false, is_sure: true });
    }

    /// Notes all of `pages`. The first use stays, and what is sure.
    pub fn add(&mut self, pages: UsedPages) {
        for page in pages.range.iter() {
            let one = UsedPages { range: page.alone(), ..pages };
            let known = self.pages.entry(page).or_insert(one);
            known.rank = known.rank.min(one.rank);
            known.by_read |= one.by_read;
            known.is_sure |= one.is_sure;
        }
    }

    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Forgets pages from `end` on: what lies beyond the end of the file.
    pub fn truncate(&mut self, end: PageIndex) {
        self.pages.split_off(&end);
    }

    /// The touched pages as runs, as an observation has them: the earliest use leads.
    pub fn used(&self) -> Vec<UsedPages> {
        let used = |extent: &Extent| UsedPages {
            range: extent.range,
            rank: extent.rank,
            by_read: extent.by_read,
            is_sure: extent.counts == Counts::once(Use::Sure),
        };
        self.extents().iter().map(used).collect()
    }

    /// The touched pages as runs of a profile.
    pub fn extents(&self) -> Vec<Extent> {
        simplified(&self.pages.values().map(Extent::from).collect::<Vec<_>>())
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
        touches.touch(PageIndex(5), 9);
        touches.touch(PageIndex(4), 12);
        touches.add(UsedPages { range: range(4, 5), rank: 2, by_read: false, is_sure: false });
        touches.touch(PageIndex(9), 1);
        touches.add(UsedPages { range: range(10, 12), rank: 3, by_read: true, is_sure: true });
        touches.add(UsedPages { range: range(12, 13), rank: 4, by_read: true, is_sure: false });
        let extents = touches.extents();
        assert_eq!(extents.len(), 4);
        assert_eq!(extents[0], Extent::new(range(4, 6), 2));
        assert_eq!(extents[1].rank, 1);
        assert!(extents[2].by_read && extents[2].range == range(10, 12));
        assert!(!touches.used()[3].is_sure && touches.used()[2].is_sure);
    }

    #[test]
    fn an_overlay_cuts_where_something_changes_and_only_there() {
        let one = [range(0, 10), range(20, u64::MAX)];
        let other = [range(4, 6), range(6, 7), range(10, 12), range(15, 30)];
        let mut seen = Vec::new();
        let identity = |range: &PageRange| *range;
        overlay(&one, &other, &(identity, identity), |piece, a, b| {
            seen.push((piece.start().0, piece.end().0, a.is_some(), b.is_some()));
            None::<Extent>
        });
        let expected = [
            (0, 4, true, false),
            (4, 6, true, true),
            (6, 7, true, true),
            (7, 10, true, false),
            (10, 12, false, true),
            (15, 20, false, true),
            (20, 30, true, true),
            (30, u64::MAX, true, false),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_union_has_the_pages_of_both_in_any_order() {
        let half = Counts::once(Use::Half);
        let one = [Extent::new(range(0, 10), 7), Extent::new(range(20, 30), 300)];
        let other = [Extent { counts: half, ..Extent::new(range(5, 15), 3) }];
        let expected = [
            Extent::new(range(0, 10), 3),
            Extent { counts: half, ..Extent::new(range(10, 15), 3) },
            Extent::new(range(20, 30), 300),
        ];
        assert_eq!([union(&one, &other), union(&other, &one)], [expected, expected]);
    }

    #[test]
    fn neighbours_used_long_after_one_another_stay_apart() {
        let page = |at: u64, rank| Extent::new(range(at, at + 1), rank);
        let simple = simplified(&[page(0, 3), page(1, 5000), page(2, 4999), page(3, 7)]);
        let shape: Vec<_> = simple.iter().map(|e| (e.range.start().0, e.range.end().0, e.rank)).collect();
        assert_eq!(shape, [(0, 1, 3), (1, 3, 4999), (3, 4, 7)]);
        let unlike = [page(0, 3), Extent { counts: Counts::once(Use::Half), ..page(1, 3) }];
        assert_eq!(simplified(&unlike), unlike);
    }

    proptest::proptest! {
        #[test]
        fn what_is_simple_stays_as_it_is(ranks in proptest::collection::vec(0u32..2000, 1..200)) {
            let pages: Vec<Extent> =
                (0..).zip(&ranks).map(|(at, &rank)| Extent::new(range(at, at + 1), rank)).collect();
            let simple = simplified(&pages);
            proptest::prop_assert_eq!(&simplified(&simple), &simple);
            proptest::prop_assert_eq!(simple.iter().map(|extent| extent.range.len()).sum::<u64>(), ranks.len() as u64);
        }
    }
}
