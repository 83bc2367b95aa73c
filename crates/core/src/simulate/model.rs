//! Touches that are generated.

use std::fmt;
use std::str::FromStr;

/// Pages of the modelled code section.
pub const CODE_PAGES: u64 = 11_264;

/// Pages of the modelled file: those of the fault logging study.
pub const FILE_PAGES: u64 = 11_300;

/// Bytes of the modelled file. The study says 45 MB, 11,300 pages, and that 64 sweeps of its 256 KiB stride reach all of
/// them: sizes from here to 63 bytes more are the greatest for which about that many do.
const FILE_BYTES: u64 = 46_280_705;

/// What the modelled program does with one byte of the file.
const ACCESS_NS: u32 = 20;

/// A model of touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// [`code_section`].
    Code {
        /// Of its random numbers.
        seed: u64,
    },
    /// A file, read one byte at a time.
    File(FileOrder),
}

/// The order in which the bytes of a file are read, each once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileOrder {
    /// A random permutation.
    Random {
        /// Of its random numbers.
        seed: u64,
    },
    /// From the first byte to the last.
    Sequential,
    /// Every `bytes`-th byte. What would lie past the end is as far from the start, so that each sweep starts elsewhere.
    Stride {
        /// From one access to the next.
        bytes: u64,
    },
}

/// A string that names no model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{text}` is no model; there are code:SEED, file:random:SEED, file:sequential, file:stride-4k and file:stride-256k"
)]
pub struct ModelError {
    text: String,
}

impl FromStr for Model {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let seed = |text: &str| {
            text.strip_prefix(':').map_or(text.is_empty().then_some(1), |seed| seed.parse().ok())
        };
        let model = match text.strip_prefix("file:") {
            Some("sequential") => Some(Self::File(FileOrder::Sequential)),
            Some("stride-4k") => Some(Self::File(FileOrder::Stride { bytes: 4 << 10 })),
            Some("stride-256k") => Some(Self::File(FileOrder::Stride { bytes: 256 << 10 })),
            Some(order) => {
                order.strip_prefix("random").and_then(seed).map(|seed| Self::File(FileOrder::Random { seed }))
            }
            None => text.strip_prefix("code").and_then(seed).map(|seed| Self::Code { seed }),
        };
        model.ok_or_else(|| ModelError { text: text.to_owned() })
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code { seed } => write!(f, "code:{seed}"),
            Self::File(FileOrder::Random { seed }) => write!(f, "file:random:{seed}"),
            Self::File(FileOrder::Sequential) => f.write_str("file:sequential"),
            Self::File(FileOrder::Stride { bytes }) => {
                write!(f, "file:stride-{}k", bytes / 1024)
            }
        }
    }
}

impl Model {
    /// Pages of its one object.
    pub fn pages(self) -> u64 {
        match self {
            Self::Code { .. } => CODE_PAGES,
            Self::File(_) => FILE_PAGES,
        }
    }

    /// Pages in the order they are first touched, each with what the program did since the one before, in nanoseconds.
    pub fn touches(self) -> Vec<(u64, u32)> {
        let (pages, think_ns) = match self {
            Self::Code { seed } => (code_section(seed), 0),
            Self::File(FileOrder::Sequential) => {
                ((0..FILE_PAGES).collect(), crate::PAGE_SIZE as u32 * ACCESS_NS)
            }
            Self::File(FileOrder::Stride { bytes }) => return strides(bytes),
            Self::File(FileOrder::Random { seed }) => return random_bytes(seed),
        };
        pages.into_iter().map(|page| (page, think_ns)).collect()
    }
}

/// First touches of the pages, reading every `stride`-th byte.
fn strides(stride: u64) -> Vec<(u64, u32)> {
    let mut touched = vec![false; FILE_PAGES as usize];
    let mut touches = Vec::with_capacity(FILE_PAGES as usize);
    let (mut byte, mut think_ns) = (0, 0);
    while touches.len() < FILE_PAGES as usize {
        think_ns += ACCESS_NS;
        let page = byte / crate::PAGE_SIZE;
        if !std::mem::replace(&mut touched[page as usize], true) {
            touches.push((page, think_ns));
            think_ns = 0;
        }
        byte = (byte + stride) % FILE_BYTES;
    }
    touches
}

/// A random permutation of the file's bytes: the first touch of each page, and how many accesses came between.
fn random_bytes(seed: u64) -> Vec<(u64, u32)> {
    let mut random = Random(seed);
    let mut bytes_left = vec![crate::PAGE_SIZE as u32; FILE_PAGES as usize];
    let mut untouched = FILE_PAGES;
    let mut think_ns = 0;
    let mut touches = Vec::with_capacity(FILE_PAGES as usize);
    while untouched > 0 {
        think_ns += ACCESS_NS;
        // A byte that was read is drawn again; what is left is as likely as before.
        let page = random.next() % FILE_PAGES;
        let left = &mut bytes_left[page as usize];
        if random.next() % crate::PAGE_SIZE >= u64::from(*left) {
            continue;
        }
        if u64::from(*left) == crate::PAGE_SIZE {
            touches.push((page, think_ns));
            (think_ns, untouched) = (0, untouched - 1);
        }
        *left -= 1;
    }
    touches
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
    for last in (1..runs.len()).rev() {
        runs.swap(last, random.next() as usize % (last + 1));
    }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_order_touches_every_page_of_the_file_once() {
        for text in ["file:random:3", "file:sequential", "file:stride-4k", "file:stride-256k"] {
            let model: Model = text.parse().unwrap();
            assert_eq!(model.to_string(), text);
            let mut pages: Vec<u64> = model.touches().into_iter().map(|(page, _)| page).collect();
            pages.sort_unstable();
            assert!(pages.into_iter().eq(0..FILE_PAGES), "{text}");
        }
        let stride = |bytes| Model::File(FileOrder::Stride { bytes }).touches();
        assert!(stride(4 << 10).iter().map(|touch| touch.0).eq(0..FILE_PAGES));
        let wide: Vec<u64> = stride(256 << 10).iter().map(|touch| touch.0).collect();
        assert_eq!((wide[..3].to_vec(), wide[177]), (vec![0, 64, 128], 28));
        assert_eq!("code".parse(), Ok(Model::Code { seed: 1 }));
        for slip in ["", "code:x", "codes", "file", "file:random:x", "file:stride-100", "file:stride-0"] {
            assert!(slip.parse::<Model>().is_err(), "{slip}");
        }
    }

    #[test]
    fn the_code_section_is_the_published_one() {
        let touches = code_section(1);
        assert_eq!((touches.len(), touches[0], touches[1]), (7351, 7643, 7644));
    }
}
