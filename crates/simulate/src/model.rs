//! Touches that are generated.

use std::fmt;
use std::str::FromStr;

use prepage_core::{PAGE_SIZE, PageIndex};

use crate::description::DescriptionError;
use crate::pattern::Pattern;

/// Pages of the modelled code section.
pub const CODE_PAGES: u64 = 11_264;

/// Pages of the modelled file: those of the page-fault study's.
pub const FILE_PAGES: u64 = 11_300;

/// How long a modelled file can be: up to 4 GiB, so that each of its bytes is soon accounted for.
const FILE_SIZES: std::ops::RangeInclusive<u64> = 1..=1 << 20;

/// What the modelled program computes with one byte of the file.
const ACCESS_NS: u64 = 20;

/// A model of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// [`code_section`].
    Code {
        /// Of its random numbers.
        seed: u64,
    },
    /// A file that is read one byte at a time, each byte once.
    File {
        /// How long it is.
        pages: u64,
        /// In which order.
        pattern: Pattern,
        /// Of a random one.
        seed: u64,
    },
}

/// What a model touches.
#[derive(Clone, Debug)]
pub struct ModelTouches {
    /// Pages in the order they are first touched, each with how long the program computed since the one before, in
    /// nanoseconds.
    pub touches: Vec<(PageIndex, u32)>,
    /// How long it computes after the last of them, in nanoseconds.
    pub rest_ns: u64,
    /// Sweeps over the file until all its pages are touched.
    pub sweeps: Option<u64>,
}

impl FromStr for Model {
    type Err = DescriptionError;

    fn from_str(text: &str) -> Result<Self, DescriptionError> {
        let seed = |text: &str| {
            text.strip_prefix(':').map_or(text.is_empty().then_some(1), |seed| seed.parse().ok())
        };
        let file = |text: &str| {
            let (order, pages) = match text.split_once(",pages=") {
                Some((order, pages)) => {
                    (order, pages.parse().ok().filter(|pages| FILE_SIZES.contains(pages))?)
                }
                None => (text, FILE_PAGES),
            };
            match order.strip_prefix("random") {
                Some(rest) => Some(Self::File { pages, pattern: Pattern::Random, seed: seed(rest)? }),
                None => Some(Self::File { pages, pattern: order.parse().ok()?, seed: 1 }),
            }
        };
        let model = match text.strip_prefix("file:") {
            Some(text) => file(text),
            None => text.strip_prefix("code").and_then(seed).map(|seed| Self::Code { seed }),
        };
        model.ok_or_else(|| {
            DescriptionError(format!(
                "`{text}` is not a model; there are code:SEED, file:random:SEED, file:sequential and file:stride-SIZE with SIZE a \
                 multiple of 4k; ,pages=N after a file's changes its length"
            ))
        })
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code { seed } => write!(f, "code:{seed}"),
            Self::File { pages, pattern, seed } => {
                write!(f, "file:{pattern}")?;
                if *pattern == Pattern::Random {
                    write!(f, ":{seed}")?;
                }
                if *pages == FILE_PAGES { Ok(()) } else { write!(f, ",pages={pages}") }
            }
        }
    }
}

impl Model {
    /// Pages of its one object.
    pub fn pages(self) -> u64 {
        match self {
            Self::Code { .. } => CODE_PAGES,
            Self::File { pages, .. } => pages,
        }
    }

    /// What it touches. Every order of the file computes equally long in all.
    pub fn touches(self) -> ModelTouches {
        match self {
            Self::Code { seed } => {
                let touches = code_section(seed).into_iter().map(|page| (PageIndex(page), 0)).collect();
                ModelTouches { touches, rest_ns: 0, sweeps: None }
            }
            Self::File { pages, pattern, seed } => {
                let found = pattern.first_touches(pages * PAGE_SIZE, seed);
                let timed = |(page, accesses): (PageIndex, u64)| {
                    (page, (accesses * ACCESS_NS).min(u32::MAX.into()) as u32)
                };
                ModelTouches {
                    touches: found.touches.into_iter().map(timed).collect(),
                    rest_ns: found.rest * ACCESS_NS,
                    sweeps: (pattern != Pattern::Random).then_some(found.sweeps),
                }
            }
        }
    }
}

/// A compiler's code section (44 MiB), as pages in the order they are first touched.
///
/// The section is cut into runs of 1 to 11 pages, 64 % of them are used, in random order, each from its start to its end.
/// The random numbers are those of a 64-bit linear congruential generator that starts at `seed`, so the same seed gives
/// the same touches everywhere.
pub fn code_section(seed: u64) -> Vec<u64> {
    const USED: f64 = 0.64;
    let mut random = Random(seed);
    let mut runs = Vec::new();
    let mut start = 0;
    while start < CODE_PAGES {
        let end = CODE_PAGES.min(start + 1 + random.next() % 11);
        runs.push(start..end);
        start = end;
    }
    runs.retain(|_| random.share() < USED);
    random.shuffle(&mut runs);
    runs.into_iter().flatten().collect()
}

/// The generator of [`code_section`] (Knuth's MMIX constants, upper 31 bits).
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number below 2³¹.
    #[expect(clippy::should_implement_trait, reason = "it never ends")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// The next number in [0, 1).
    pub fn share(&mut self) -> f64 {
        self.next() as f64 / (1_u64 << 31) as f64
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.next() as usize % (last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_touches_every_page_once_and_computes_equally_long() {
        for (text, sweeps) in [
            ("file:random:3", None),
            ("file:sequential", Some(1)),
            ("file:stride-4k", Some(1)),
            ("file:stride-256k", Some(64)),
        ] {
            let model: Model = text.parse().unwrap();
            assert_eq!(model.to_string(), text);
            let found = model.touches();
            let mut pages: Vec<u64> = found.touches.iter().map(|(page, _)| page.0).collect();
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..FILE_PAGES), "{text}");
            let computed_ns = found.touches.iter().map(|&(_, ns)| u64::from(ns)).sum::<u64>() + found.rest_ns;
            assert_eq!(computed_ns, FILE_PAGES * PAGE_SIZE * ACCESS_NS, "{text}");
            assert_eq!(found.sweeps, sweeps, "{text}");
        }
        assert_eq!("code".parse(), Ok(Model::Code { seed: 1 }));
        for text in [
            "",
            "code:x",
            "codes",
            "file",
            "file:random:x",
            "file:stride-100",
            "file:stride-0",
            "file:sequential,pages=0",
        ] {
            assert!(text.parse::<Model>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_code_section_is_the_published_one() {
        let touches = code_section(1);
        assert_eq!((touches.len(), touches[0], touches[1]), (7351, 7643, 7644));
    }
}
