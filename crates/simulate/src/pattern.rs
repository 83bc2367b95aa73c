//! An order in which all bytes of a file are read, each once: what `prepage bench file` does to a real file, and what the
//! model of that file replays.

use std::fmt;
use std::ops::ControlFlow;
use std::str::FromStr;

use prepage_core::quantity::parse_size;
use prepage_core::random::mix;
use prepage_core::{PAGE_SIZE, PageIndex};

use crate::description::DescriptionError;

/// The order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A random permutation of all bytes.
    Random,
    /// From the first byte to the last.
    Sequential,
    /// The first byte of every `pages`-th page. A sweep that runs over the end goes on as many pages from the start as it
    /// ran over, and where that is a page it has been to, one page on: 64 sweeps of a stride of 64 pages touch every page
    /// of the study's file, as the study says. Then the second byte of each page, and so on.
    Stride {
        /// From one access to the next; at least 1.
        pages: u64,
    },
}

impl Pattern {
    /// Those of the study, in its order.
    pub const STUDY: [Self; 4] =
        [Self::Random, Self::Sequential, Self::Stride { pages: 1 }, Self::Stride { pages: 64 }];

    /// Calls `visit` with the offset of every byte of a file of `size_bytes`, in this order. `seed` chooses the
    /// permutation.
    pub fn each(self, size_bytes: u64, seed: u64, mut visit: impl FnMut(u64)) {
        let visit = |offset| {
            visit(offset);
            ControlFlow::Continue(())
        };
        let _ = self.each_until(size_bytes, seed, visit);
    }

    /// The same until `visit` breaks.
    pub fn each_until(
        self,
        size_bytes: u64,
        seed: u64,
        mut visit: impl FnMut(u64) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        match self {
            Self::Random => {
                let permutation = Permutation::new(size_bytes, seed);
                (0..size_bytes).try_for_each(|at| visit(permutation.at(at)))
            }
            Self::Sequential => (0..size_bytes).try_for_each(visit),
            Self::Stride { pages: stride } => {
                let pages = size_bytes.div_ceil(PAGE_SIZE).max(1);
                // From one of these pages on, the stride never comes to another of them.
                let (step, starts) = (stride % pages, gcd(stride, pages));
                for (byte, start) in
                    (0..PAGE_SIZE).flat_map(|byte| (0..starts).map(move |start| (byte, start)))
                {
                    let mut page = start;
                    loop {
                        let offset = page * PAGE_SIZE + byte;
                        if offset < size_bytes {
                            visit(offset)?;
                        }
                        page += step;
                        if page >= pages {
                            page -= pages;
                        }
                        if page == start {
                            break;
                        }
                    }
                }
                ControlFlow::Continue(())
            }
        }
    }

    /// The accesses that touch a page for the first time.
    pub fn first_touches(self, size_bytes: u64, seed: u64) -> FirstTouches {
        let pages = size_bytes.div_ceil(PAGE_SIZE);
        let mut touched = vec![false; pages as usize];
        let mut found =
            FirstTouches { touches: Vec::with_capacity(pages as usize), sweeps: 1, rest: size_bytes };
        let (mut accesses, mut before) = (0, 0);
        let _ = self.each_until(size_bytes, seed, |offset| {
            accesses += 1;
            found.sweeps += u64::from(offset < before);
            before = offset;
            let page = offset / PAGE_SIZE;
            if !std::mem::replace(&mut touched[page as usize], true) {
                found.touches.push((PageIndex(page), accesses));
                (found.rest, accesses) = (found.rest - accesses, 0);
            }
            if found.touches.len() as u64 == pages {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        });
        found
    }
}

/// The accesses of a [`Pattern`] that touch a page for the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstTouches {
    /// In order: the page, and how many accesses it is away from the one before in this list; its own counts.
    pub touches: Vec<(PageIndex, u64)>,
    /// Sweeps over the file until all pages are touched: one, and one more each time the offset falls. Of a random order
    /// no meaningful number.
    pub sweeps: u64,
    /// Accesses after the last of them.
    pub rest: u64,
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Random => f.write_str("random"),
            Self::Sequential => f.write_str("sequential"),
            Self::Stride { pages } => write!(f, "stride-{}k", pages * PAGE_SIZE / 1024),
        }
    }
}

impl FromStr for Pattern {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        let stride = |size: &str| {
            let bytes = parse_size(size)?;
            (bytes > 0 && bytes % PAGE_SIZE == 0).then_some(Self::Stride { pages: bytes / PAGE_SIZE })
        };
        match text {
            "random" => Ok(Self::Random),
            "sequential" => Ok(Self::Sequential),
            _ => text.strip_prefix("stride-").and_then(stride).ok_or_else(|| {
                DescriptionError(format!(
                    "{text:?} is not a pattern: random, sequential, or stride-SIZE with SIZE a multiple of 4k (stride-256k)"
                ))
            }),
        }
    }
}

/// A permutation of `0..len` that takes no memory: a Feistel network over the next even power of two, applied again as
/// long as it leads outside (cycle walking; Black and Rogaway 2002). A table of 45 million entries would compete with
/// the file for the caches.
struct Permutation {
    len: u64,
    half_bits: u32,
    keys: [u64; 4],
}

impl Permutation {
    fn new(len: u64, seed: u64) -> Self {
        let bits = u64::BITS - len.saturating_sub(1).leading_zeros();
        let keys = [0, 1, 2, 3].map(|round| mix(seed.wrapping_mul(4).wrapping_add(round)));
        Self { len, half_bits: bits.div_ceil(2).max(1), keys }
    }

    fn at(&self, index: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let mut value = index;
        loop {
            let (mut left, mut right) = (value >> self.half_bits, value & mask);
            for key in self.keys {
                (left, right) = (right, left ^ (mix(right ^ key) & mask));
            }
            value = left << self.half_bits | right;
            if value < self.len {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_byte_is_visited_once(size_bytes in 0..70_000u64, pages in 1..20u64, seed: u64) {
            for pattern in [Pattern::Random, Pattern::Sequential, Pattern::Stride { pages }] {
                let mut visits = vec![0u8; size_bytes as usize];
                pattern.each(size_bytes, seed, |offset| visits[offset as usize] += 1);
                prop_assert!(visits.iter().all(|&count| count == 1), "{pattern}");
            }
        }
    }

    /// Whatever the file's size, its last page among them: full, of one byte, or the stride a divisor of it.
    #[test]
    fn sixty_four_sweeps_of_the_wide_stride_touch_every_page() {
        for size_bytes in [11_300 * PAGE_SIZE, 11_299 * PAGE_SIZE + 1, 6400 * PAGE_SIZE, 45_000_000] {
            let pages = size_bytes.div_ceil(PAGE_SIZE);
            let found = Pattern::Stride { pages: 64 }.first_touches(size_bytes, 0);
            assert_eq!((found.sweeps, found.rest), (64, size_bytes - pages), "{size_bytes}");
            assert_eq!(found.touches[..3], [0, 64, 128].map(|page| (PageIndex(page), 1)));
            let narrow = Pattern::Stride { pages: 1 }.first_touches(size_bytes, 0);
            assert_eq!((narrow.sweeps, narrow.rest), (1, size_bytes - pages), "{size_bytes}");
        }
    }

    #[test]
    fn first_touches_and_what_is_left_are_all_accesses() {
        let size_bytes = 100 * PAGE_SIZE - 7;
        for pattern in Pattern::STUDY {
            let found = pattern.first_touches(size_bytes, 3);
            let mut pages: Vec<u64> = found.touches.iter().map(|(page, _)| page.0).collect();
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..100), "{pattern}");
            let before = found.touches.iter().map(|(_, accesses)| accesses).sum::<u64>();
            assert_eq!(before + found.rest, size_bytes, "{pattern}");
        }
    }

    /// Accesses that follow one another are far apart in the file: read-ahead would see a sequence otherwise.
    #[test]
    fn the_random_order_is_spread_over_the_file() {
        let size_bytes = 1 << 20;
        let mut order = Vec::new();
        Pattern::Random.each(size_bytes, 1, |offset| order.push(offset));
        let near = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < size_bytes / 100).count();
        // Of two random places, 1.99 % are that close.
        assert!((0.018..0.022).contains(&(near as f64 / size_bytes as f64)), "{near}");
        let mut other = Vec::new();
        Pattern::Random.each(size_bytes, 2, |offset| other.push(offset));
        assert_ne!(order, other);
    }

    #[test]
    fn names_are_read_as_they_are_written() {
        for pattern in Pattern::STUDY {
            assert_eq!(pattern.to_string().parse(), Ok(pattern));
        }
        assert_eq!("stride-1M".parse(), Ok(Pattern::Stride { pages: 256 }));
        for text in ["", "stride", "stride-", "stride-0", "stride-100", "Random"] {
            assert!(text.parse::<Pattern>().is_err(), "{text:?} is taken for a pattern");
        }
    }
}
