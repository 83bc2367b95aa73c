//! What a page held when its frame was taken away. A map that showed those bytes shows the same again, or none: somebody may
//! hold a reference to them.

use std::io;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::words::Words;
use std::sync::atomic::Ordering;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::reason;

/// A sum of 64 bits for each page that was ever evicted, written back or let be written to ahead. While a page is clean, its sum is that of its bytes.
///
/// Lock legend: (c) constant; a page's words are written and read by who holds its claim, has marked it as ahead, or writes it back.
#[derive(Debug)]
pub(crate) struct Sums {
    /// Two words a page: 0 where it has no sum. They take memory where they are used.
    words: Words,
    /// (c) Nobody outside knows which bytes have the same sum.
    seed: u64,
}

impl Sums {
    pub(crate) fn new(pages: u64) -> io::Result<Self> {
        let seed = std::hash::BuildHasher::hash_one(&std::collections::hash_map::RandomState::new(), pages);
        Ok(Self { words: Words::zeroed(2 * pages as usize)?, seed })
    }

    /// Keeps the sum of each page of `bytes`, the first of which is `at`.
    pub(crate) fn keep(&self, at: PageIndex, bytes: &[u8]) {
        for (page, bytes) in (at.0 as usize..).zip(bytes.chunks(PAGE_SIZE as usize)) {
            let sum = self.sum(bytes);
            self.words[2 * page].store(sum as u32, Ordering::Relaxed);
            self.words[2 * page + 1].store((sum >> 32) as u32, Ordering::Relaxed);
        }
    }

    /// Keeps the sum of `bytes`, which `page` holds; true where it is the one that was kept before.
    pub(crate) fn replace(&self, page: PageIndex, bytes: &[u8]) -> bool {
        let before = self.of(page.0 as usize);
        self.keep(page, bytes);
        before == self.of(page.0 as usize)
    }

    /// Whether a page of `range` has a sum.
    pub(crate) fn knows(&self, range: PageRange) -> bool {
        range.iter().any(|page| self.of(page.0 as usize) != 0)
    }

    /// Whether each page of `range` has a sum.
    pub(crate) fn know_all(&self, range: PageRange) -> bool {
        range.iter().all(|page| self.of(page.0 as usize) != 0)
    }

    /// Whether the pages of `bytes`, the first of which is `at`, are as they were.
    pub(crate) fn verify(&self, at: PageIndex, bytes: &[u8]) -> Result<(), u16> {
        for (page, bytes) in (at.0 as usize..).zip(bytes.chunks(PAGE_SIZE as usize)) {
            let known = self.of(page);
            if known != 0 && known != self.sum(bytes) {
                return Err(reason::CHANGED);
            }
        }
        Ok(())
    }

    fn of(&self, page: usize) -> u64 {
        let [low, high] = [0, 1].map(|half| u64::from(self.words[2 * page + half].load(Ordering::Relaxed)));
        high << 32 | low
    }

    /// Never 0.
    fn sum(&self, page: &[u8]) -> u64 {
        xxh3_64_with_seed(page, self.seed) | 1
    }
}
