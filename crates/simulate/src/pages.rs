//! A few bits for each page of an object.

use prepage_core::{PageIndex, PageRange};

/// Pages described by one group: the bits of a word.
pub const GROUP_PAGES: u64 = 64;

/// Groups allocated together: 32 768 pages, 128 MiB of the object.
const CHUNK_GROUPS: usize = 512;

/// Pages of the largest object: what a process can map with 48-bit addresses.
pub const MOST_PAGES: u64 = 1 << 36;

/// Pages of an object that a policy may read at once, or that may be resident at the start: 1 TiB. More takes tens of
/// gigabytes and minutes.
pub const MOST_AT_ONCE: u64 = 1 << 28;

/// Groups of 64 pages, found by page. Chunks exist once something in them was written, so an object costs memory for the
/// parts that are used.
#[derive(Clone, Debug)]
pub struct Pages<G> {
    chunks: Vec<Option<Box<[G; CHUNK_GROUPS]>>>,
}

impl<G> Default for Pages<G> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<G: Copy + Default> Pages<G> {
    /// The group that holds `page`, if anything near it was ever written.
    #[inline]
    pub fn get(&self, page: PageIndex) -> Option<&G> {
        let (chunk, group) = place(page);
        self.chunks.get(chunk)?.as_deref().map(|groups| &groups[group])
    }

    /// The group that holds `page`, to be changed.
    #[inline]
    pub fn get_mut(&mut self, page: PageIndex) -> &mut G {
        let (chunk, group) = place(page);
        if chunk >= self.chunks.len() || self.chunks[chunk].is_none() {
            self.make(chunk);
        }
        match &mut self.chunks[chunk] {
            Some(groups) => &mut groups[group],
            None => unreachable!("the chunk was made above"),
        }
    }

    /// Calls `change` for each group that holds pages of `range`, with the bits that stand for them.
    pub fn change(&mut self, range: PageRange, mut change: impl FnMut(&mut G, u64)) {
        for (page, bits) in groups(range) {
            change(self.get_mut(page), bits);
        }
    }

    /// The groups of each chunk in use, with the chunk's first page.
    pub fn chunks(&self) -> impl Iterator<Item = (PageIndex, &[G; CHUNK_GROUPS])> {
        let chunks = self.chunks.iter().enumerate();
        chunks.filter_map(|(at, chunk)| {
            let first = PageIndex(at as u64 * CHUNK_GROUPS as u64 * GROUP_PAGES);
            chunk.as_deref().map(|groups| (first, groups))
        })
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> usize {
        let used = self.chunks.iter().flatten().count();
        used * size_of::<[G; CHUNK_GROUPS]>() + self.chunks.capacity() * size_of::<usize>()
    }

    #[cold]
    fn make(&mut self, chunk: usize) {
        if chunk >= self.chunks.len() {
            self.chunks.resize_with(chunk + 1, || None);
        }
        self.chunks[chunk] = Some(Box::new([G::default(); CHUNK_GROUPS]));
    }
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

    #[test]
    fn far_pages_cost_one_chunk() {
        let mut pages = Pages::<u64>::default();
        *pages.get_mut(PageIndex((1 << 28) - 1)) = 7;
        assert!(pages.bytes() < 200_000, "a terabyte takes {} bytes", pages.bytes());
        assert_eq!(pages.get(PageIndex((1 << 28) - 1)), Some(&7));
        assert_eq!(pages.get(PageIndex(0)), None);
    }
}
