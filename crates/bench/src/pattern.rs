//! An order in which all bytes of a file are read, each once.

use std::fmt;
use std::str::FromStr;

use prepage_core::PAGE_SIZE;
use prepage_residency::parse_size;

/// The order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// A random permutation of all bytes.
    Random,
    /// From the first byte to the last.
    Sequential,
    /// The first byte of every `pages`-th page, in as many sweeps as it takes to reach all pages; then the second byte
    /// of each, and so on. With one page that is 4096 sweeps over the file, with 64 the file has been touched after
    /// 64 sweeps, as the study says.
    Stride {
        /// From one access to the next; at least 1.
        pages: u64,
    },
}

/// Text that names no pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no pattern: random, sequential, or stride-SIZE with SIZE a multiple of 4k (stride-256k)"
)]
pub struct PatternError {
    text: String,
}

impl Pattern {
    /// Those of the study, in its order.
    pub const STUDY: [Self; 4] =
        [Self::Random, Self::Sequential, Self::Stride { pages: 1 }, Self::Stride { pages: 64 }];

    /// Calls `visit` with the offset of every byte of a file of `size_bytes`, in this order. `seed` chooses the
    /// permutation.
    pub fn each(self, size_bytes: u64, seed: u64, mut visit: impl FnMut(u64)) {
        match self {
            Self::Random => {
                let permutation = Permutation::new(size_bytes, seed);
                (0..size_bytes).for_each(|at| visit(permutation.at(at)));
            }
            Self::Sequential => (0..size_bytes).for_each(visit),
            Self::Stride { pages } => {
                let stride_bytes = pages as usize * PAGE_SIZE as usize;
                for byte in 0..PAGE_SIZE {
                    for sweep in 0..pages {
                        let first = sweep * PAGE_SIZE + byte;
                        (first..size_bytes).step_by(stride_bytes).for_each(&mut visit);
                    }
                }
            }
        }
    }
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
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        let stride = |size: &str| {
            let bytes = parse_size(size).ok()?;
            (bytes > 0 && bytes % PAGE_SIZE == 0).then_some(Self::Stride { pages: bytes / PAGE_SIZE })
        };
        match text {
            "random" => Ok(Self::Random),
            "sequential" => Ok(Self::Sequential),
            _ => text
                .strip_prefix("stride-")
                .and_then(stride)
                .ok_or_else(|| PatternError { text: text.to_owned() }),
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

/// The output function of SplitMix64 (Steele, Lea, Flood 2014).
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
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

    #[test]
    fn the_first_sweeps_of_a_stride_reach_all_pages() {
        let mut pages = Vec::new();
        Pattern::Stride { pages: 64 }.each(1000 * PAGE_SIZE, 0, |offset| pages.push(offset / PAGE_SIZE));
        assert_eq!(pages[..3], [0, 64, 128]);
        pages.truncate(1000);
        pages.sort_unstable();
        assert_eq!(pages, (0..1000).collect::<Vec<_>>());
    }

    /// Neighbours in time are no neighbours in the file: read-ahead would see a sequence otherwise.
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
