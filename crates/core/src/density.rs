//! What of a file is likely to be used next, when nothing is known of it but what was used of it a moment ago.
//!
//! ```text
//!  chunks of 128 KiB     ■□□■ □□□□ │ ■■□■ □■□□      ■ used
//!  aligned blocks        └ 2 of 4                   the rest of a block is wanted once three of its chunks and a third
//!  of 4, 8 … 64 chunks   └──── 6 of 16 ────────┘    of them are used: of the largest such block
//! ```
//! A program that touches a file here and there has used most of it before it is started: of the chunks of 18 programs'
//! executables, starts use two thirds. The blocks are those of the prefetcher in NVIDIA's UVM driver (Ganguly, Zhang, Yang and
//! Melhem, "Interplay between hardware prefetcher and page eviction policy in CPU-GPU unified virtual memory", ISCA 2019); here
//! they are counted over what was touched, not over what is resident, so that nothing grows by having been brought in.

use crate::page::{PageIndex, PageRange};

/// Pages of a chunk: what one fault has the kernel read with the usual read-ahead of 128 KiB.
pub const CHUNK_PAGES: u64 = 32;
/// Chunks of the largest block (8 MiB): as many as a word has bits.
const LARGEST_CHUNKS: u64 = u64::BITS as u64;
/// Chunks of the smallest.
const SMALLEST_CHUNKS: u64 = 4;
/// Fewer used chunks say nothing of a block.
const USED_CHUNKS_MIN: u32 = 3;
/// A block is dense where one in so many of its chunks is used.
const DENSE_PART: u32 = 3;

/// What was used of one file, and what was wanted of it therefore.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Density {
    chunks: u64,
    /// One bit a chunk.
    used: Vec<u64>,
    wanted: Vec<u64>,
}

impl Density {
    /// That of a file of so many pages, of which nothing was used yet.
    pub fn of(file_pages: u64) -> Self {
        let chunks = file_pages.div_ceil(CHUNK_PAGES);
        let words = vec![0; chunks.div_ceil(LARGEST_CHUNKS) as usize];
        Self { chunks, used: words.clone(), wanted: words }
    }

    /// Notes that `page` was used. Returns the chunks that are wanted now, none of which was used or returned before.
    pub fn touch(&mut self, page: PageIndex) -> impl Iterator<Item = PageRange> + use<> {
        let chunk = page.0 / CHUNK_PAGES;
        let (word, at) = ((chunk / LARGEST_CHUNKS) as usize, chunk % LARGEST_CHUNKS);
        let mut new = 0;
        if chunk < self.chunks && self.used[word] & (1 << at) == 0 {
            self.used[word] |= 1 << at;
            new = self.dense_block(word, at) & !self.used[word] & !self.wanted[word];
            self.wanted[word] |= new;
        }
        let first = word as u64 * LARGEST_CHUNKS;
        (0..LARGEST_CHUNKS).filter(move |bit| new & (1 << bit) != 0).map(move |bit| pages_of(first + bit))
    }

    /// The chunks of the largest dense block of word `word` that holds its chunk `at`; none where no block is dense.
    fn dense_block(&self, word: usize, at: u64) -> u64 {
        let in_file = match self.chunks - word as u64 * LARGEST_CHUNKS {
            left if left < LARGEST_CHUNKS => (1 << left) - 1,
            _ => u64::MAX,
        };
        let is_dense = |block: &u64| {
            let used = (block & self.used[word]).count_ones();
            used >= USED_CHUNKS_MIN && used * DENSE_PART >= block.count_ones()
        };
        let sizes = std::iter::successors(Some(LARGEST_CHUNKS), |size| Some(size / 2));
        let blocks = sizes.take_while(|&size| size >= SMALLEST_CHUNKS).map(|size| {
            let ones = u64::MAX >> (LARGEST_CHUNKS - size);
            (ones << (at / size * size)) & in_file
        });
        blocks.into_iter().find(is_dense).unwrap_or(0)
    }
}

/// The pages of a chunk. The last one of a file may end beyond its end.
pub fn pages_of(chunk: u64) -> PageRange {
    PageRange::new(PageIndex(chunk * CHUNK_PAGES), PageIndex((chunk + 1) * CHUNK_PAGES))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn touch(density: &mut Density, chunk: u64) -> Vec<u64> {
        density.touch(PageIndex(chunk * CHUNK_PAGES + 7)).map(|range| range.start().0 / CHUNK_PAGES).collect()
    }

    #[test]
    fn the_rest_of_the_largest_dense_block_is_wanted_once() {
        let mut density = Density::of(200 * CHUNK_PAGES);
        assert_eq!(touch(&mut density, 64), []);
        assert_eq!(touch(&mut density, 67), []);
        // Three of four are dense, of eight too, but not of sixteen.
        assert_eq!(touch(&mut density, 65), [66, 68, 69, 70, 71]);
        assert_eq!(touch(&mut density, 65), []);
        // Of sixteen, six are a third: used ones, not those that were wanted.
        assert_eq!((touch(&mut density, 70), touch(&mut density, 75)), (vec![], vec![]));
        assert_eq!(touch(&mut density, 76), [72, 73, 74, 77, 78, 79]);
    }

    #[test]
    fn a_block_that_the_file_ends_in_is_as_large_as_the_file_leaves_it() {
        let mut density = Density::of(65 * CHUNK_PAGES + 1);
        assert_eq!(touch(&mut density, 64), []);
        // There are two chunks, and three are asked for at least.
        assert_eq!(touch(&mut density, 65), []);
        let mut density = Density::of(5 * CHUNK_PAGES);
        assert_eq!((touch(&mut density, 4), touch(&mut density, 0)), (vec![], vec![]));
        assert_eq!(touch(&mut density, 1), [2, 3]);
        // Beyond the end, where a mapping may reach.
        assert_eq!(touch(&mut density, 5), []);
        assert_eq!(touch(&mut Density::of(0), 0), []);
    }

    proptest! {
        #[test]
        fn nothing_is_wanted_twice_after_its_use_or_beyond_the_end(
            chunks in 0..300u64,
            touched in prop::collection::vec(0..320u64, 0..200),
        ) {
            let mut density = Density::of(chunks * CHUNK_PAGES);
            let mut known = std::collections::HashSet::new();
            for chunk in touched {
                known.insert(chunk);
                for wanted in touch(&mut density, chunk) {
                    prop_assert!(wanted < chunks && known.insert(wanted));
                }
            }
        }
    }
}
