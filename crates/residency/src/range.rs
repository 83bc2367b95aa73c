//! Sizes and byte ranges as people write them: `4k`, `100M`, `4k-100M`, `1G-`.

use std::str::FromStr;

use prepage_core::{PageIndex, PageRange, quantity};

/// Text that is not a size or not a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// Not a size.
    #[error("{text:?} is not a size: bytes, or a number with k, M, G or T (4k is 4096)")]
    Size {
        /// What was given.
        text: String,
    },
    /// Not a range.
    #[error("{text:?} is not a range: FROM-TO, FROM- or -TO, as in 4k-100M")]
    Range {
        /// What was given.
        text: String,
    },
    /// The end is not behind the beginning.
    #[error("the range {text:?} is empty: it ends where it begins, or before")]
    Empty {
        /// What was given.
        text: String,
    },
}

/// Bytes for `4096`, `4k`, `100M`, `2GiB`: units of 1024, in either case.
pub fn parse_size(text: &str) -> Result<u64, RangeError> {
    quantity::parse_size(text).ok_or_else(|| RangeError::Size { text: text.to_owned() })
}

/// Bytes `[start, end)` of a file; `end` missing means up to its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// One past the last byte.
    pub end: Option<u64>,
}

impl ByteRange {
    /// The pages of a file of `size_bytes` that the range touches.
    pub fn pages(self, size_bytes: u64) -> PageRange {
        let end = self.end.map_or(size_bytes, |end| end.min(size_bytes));
        if end <= self.start {
            return PageRange::new(PageIndex(0), PageIndex(0));
        }
        PageRange::covering(self.start, end - self.start)
    }
}

impl FromStr for ByteRange {
    type Err = RangeError;

    fn from_str(text: &str) -> Result<Self, RangeError> {
        let (start, end) = text.split_once('-').ok_or_else(|| RangeError::Range { text: text.to_owned() })?;
        if start.is_empty() && end.is_empty() {
            return Err(RangeError::Range { text: text.to_owned() });
        }
        let start = if start.is_empty() { 0 } else { parse_size(start)? };
        let end = if end.is_empty() { None } else { Some(parse_size(end)?) };
        match end {
            Some(end) if end <= start => Err(RangeError::Empty { text: text.to_owned() }),
            _ => Ok(Self { start, end }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_one_open_end_at_most() {
        let range = |text: &str| text.parse::<ByteRange>();
        assert_eq!(range("4k-100M"), Ok(ByteRange { start: 4096, end: Some(100 << 20) }));
        assert_eq!(range("-8k"), Ok(ByteRange { start: 0, end: Some(8192) }));
        assert_eq!(range("1G-"), Ok(ByteRange { start: 1 << 30, end: None }));
        assert!(matches!(range("8k-4k"), Err(RangeError::Empty { .. })));
        assert!(matches!(range("4k-4k"), Err(RangeError::Empty { .. })));
        assert!(matches!(range("4k"), Err(RangeError::Range { .. })));
        assert!(matches!(range("-"), Err(RangeError::Range { .. })));
        assert!(matches!(range("1-2-3"), Err(RangeError::Size { .. })));
    }

    #[test]
    fn a_range_covers_every_page_it_touches_and_ends_with_the_file() {
        let pages = |text: &str, size| text.parse::<ByteRange>().unwrap().pages(size);
        assert_eq!(pages("4095-4097", 1 << 20), PageRange::new(PageIndex(0), PageIndex(2)));
        assert_eq!(pages("4k-", 10_000), PageRange::new(PageIndex(1), PageIndex(3)));
        assert_eq!(pages("4k-1G", 10_000), PageRange::new(PageIndex(1), PageIndex(3)));
        assert!(pages("1G-", 10_000).is_empty());
    }
}
