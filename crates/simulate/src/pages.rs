//! A few bits for each page of an object.

use std::collections::BTreeMap;

use prepage_core::{PageIndex, PageRange};

/// Pages described by one group: the bits of a word.
pub const GROUP_PAGES: u64 = 64;

/// Groups allocated together: 1,024 pages, 4 MiB of the object. The trace of a build has tens of thousands of entries with a few touched pages
/// each, and every policy that is compared has its own.
const CHUNK_GROUPS: usize = 16;

/// Chunks found by their number, 64 GiB of the object: 128 KiB at most. Those of a touch far beyond are found in a map, in which every look takes
/// longer: a place for each chunk before it would take megabytes.
const NEAR_CHUNKS: usize = 1 << 14;

/// Pages of the largest object: what a process can map with 48-bit addresses.
pub const MOST_PAGES: u64 = 1 << 36;

/// Pages of an object that a policy may read at once, or that may be resident at the start: 1 TiB. More takes tens of
/// gigabytes and minutes.
pub const MOST_AT_ONCE: u64 = 1 << 28;

/// Groups of 64 pages, found by page. Chunks exist once something in them was written, so an object costs memory for the
/// parts that are used.
#[derive(Clone, Debug)]
pub struct Pages<G> {
    near: Vec<Option<Chunk<G>>>,
    far: BTreeMap<usize, Chunk<G>>,
}

type Chunk<G> = Box<[G; CHUNK_GROUPS]>;

impl<G> Default for Pages<G> {
    fn default() -> Self {
        Self { near: Vec::new(), far: BTreeMap::new() }
    }
}

impl<G: Copy + Default> Pages<G> {
    /// The group that holds `page`, if anything near it was ever written.
    #[inline]
    pub fn get(&self, page: PageIndex) -> Option<&G> {
        let (chunk, group) = place(page);
        let groups = if chunk < NEAR_CHUNKS { self.near.get(chunk)?.as_ref() } else { self.far.get(&chunk) };
        groups.map(|groups| &groups[group])
    }

    /// The group that holds `page`, to be changed.
    #[inline]
    pub fn get_mut(&mut self, page: PageIndex) -> &mut G {
        let (chunk, group) = place(page);
        if chunk >= NEAR_CHUNKS {
            return &mut self.far.entry(chunk).or_insert_with(empty)[group];
        }
        if chunk >= self.near.len() {
            self.near.resize_with(chunk + 1, || None);
        }
        &mut self.near[chunk].get_or_insert_with(empty)[group]
    }

    /// Calls `change` for each group that holds pages of `range`, with the bits that stand for them.
    pub fn change(&mut self, range: PageRange, mut change: impl FnMut(&mut G, u64)) {
        for (page, bits) in groups(range) {
            change(self.get_mut(page), bits);
        }
    }

    /// The groups of each chunk in use, with the chunk's first page.
    pub fn chunks(&self) -> impl Iterator<Item = (PageIndex, &[G; CHUNK_GROUPS])> {
        let near = self.near.iter().enumerate().filter_map(|(at, chunk)| Some((at, chunk.as_deref()?)));
        let far = self.far.iter().map(|(at, chunk)| (*at, &**chunk));
        near.chain(far).map(|(at, groups)| (PageIndex(at as u64 * CHUNK_GROUPS as u64 * GROUP_PAGES), groups))
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        let used = self.near.iter().flatten().count() + self.far.len();
        let places =
            self.near.capacity() * size_of::<usize>() + self.far.len() * size_of::<(usize, Chunk<G>)>();
        used * size_of::<[G; CHUNK_GROUPS]>() + places
    }
}

#[cold]
fn empty<G: Copy + Default>() -> Chunk<G> {
    Box::new([G::default(); CHUNK_GROUPS])
}

impl Pages<u64> {
    /// How many bits of `range` are set.
    pub fn count(&self, range: PageRange) -> u64 {
        let of_chunk = |(first, _): (PageIndex, _)| {
            let end = (first.0 + CHUNK_GROUPS as u64 * GROUP_PAGES).min(range.end().0);
            let start = first.0.max(range.start().0).min(end);
            let parts = groups(PageRange::new(PageIndex(start), PageIndex(end)));
            parts
                .map(|(page, bits)| u64::from((self.get(page).unwrap_or(&0) & bits).count_ones()))
                .sum::<u64>()
        };
        self.chunks().map(of_chunk).sum()
    }
}

/// The bit that stands for `page` in its group.
#[inline]
pub fn bit(page: PageIndex) -> u64 {
    1 << (page.0 % GROUP_PAGES)
}

/// For each group that holds pages of `range`: a page of it, and the bits of those pages.
pub fn groups(range: PageRange) -> impl Iterator<Item = (PageIndex, u64)> {
    let mut next = range.start().0;
    let end = range.end().0;
    std::iter::from_fn(move || {
        let first = next;
        if first >= end {
            return None;
        }
        let after = (first / GROUP_PAGES + 1) * GROUP_PAGES;
        next = after.min(end);
        let bits = (u64::MAX >> (GROUP_PAGES - (next - first))) << (first % GROUP_PAGES);
        Some((PageIndex(first), bits))
    })
}

#[inline]
fn place(page: PageIndex) -> (usize, usize) {
    let group = page.0 / GROUP_PAGES;
    ((group / CHUNK_GROUPS as u64) as usize, (group % CHUNK_GROUPS as u64) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_become_the_bits_of_their_groups() {
        let range = PageRange::new(PageIndex(62), PageIndex(130));
        let parts: Vec<_> = groups(range).map(|(page, bits)| (page.0, bits.count_ones())).collect();
        assert_eq!(parts, [(62, 2), (64, 64), (128, 2)]);
        assert_eq!(groups(range).next().unwrap().1, 0b11 << 62);
        assert_eq!(groups(PageRange::new(PageIndex(5), PageIndex(5))).count(), 0);
    }

    #[test]
    fn bits_are_counted_within_a_range() {
        let mut pages = Pages::<u64>::default();
        for page in [0, 63, 64, 32_767, 32_768, 1 << 30].map(PageIndex) {
            *pages.get_mut(page) |= bit(page);
        }
        let count = |start, end| pages.count(PageRange::new(PageIndex(start), PageIndex(end)));
        assert_eq!((count(0, 1 << 36), count(1, 64), count(63, 65), count(32_767, 32_769)), (6, 1, 2, 2));
        assert_eq!((count(40_000, 1 << 30), count(5, 5)), (0, 0));
    }

    /// As an entry of one program of a build, of which there are tens of thousands: 20 pages of the first 10 MiB.
    #[test]
    fn a_few_pages_cost_little() {
        let mut pages = Pages::<[u64; 2]>::default();
        (0..20).for_each(|nth| pages.get_mut(PageIndex(nth * 128))[0] = 1);
        assert!(pages.bytes() < 1000, "20 pages take {} bytes", pages.bytes());
    }

    #[test]
    fn far_pages_cost_one_chunk() {
        let mut pages = Pages::<u64>::default();
        let last = [(1 << 24) - 1, 1 << 24, MOST_PAGES - 1].map(PageIndex);
        for page in last {
            *pages.get_mut(page) = page.0;
        }
        assert!(pages.bytes() < 140_000, "256 TiB take {} bytes", pages.bytes());
        assert_eq!(last.map(|page| *pages.get(page).unwrap()), last.map(|page| page.0));
        assert_eq!(pages.get(PageIndex(0)), None);
        assert!(pages.chunks().is_sorted_by_key(|(first, _)| first) && pages.chunks().count() == 3);
    }
}
