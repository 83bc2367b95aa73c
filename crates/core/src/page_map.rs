//! A page map: which pages of one file programs need when they start, one bit a page.
//!
//! It speaks of one file and of no role, so it can travel with the file: in a section of it, or beside it under a name
//! made from its content. All integers are little-endian.
//!
//! ```text
//! offset  size  what
//!      0     8  magic "PREPGMAP"
//!      8     4  format version, 1
//!     12     4  CRC-32 of everything from byte 16 to the end of the map
//!     16     4  length of the map in bytes, this header included
//!     20     2  what tells the file's content: 1 build-id, 2 CRC-32 of its first and last page
//!     22     2  f: length of that in bytes
//!     24     8  size of the file in bytes when the map was made
//!     32     8  when that was, seconds since 1970
//!     40     4  pages in the map
//!     44     2  p: length of the path in bytes
//!     46     2  zero
//!     48     f  the build-id, or the CRC-32
//!   48+f     p  path of the file, UTF-8: for people and for finding stale maps, never for finding the file
//! 48+f+p     b  the bitmap: page i is bit i mod 8 of byte i / 8; 32 bytes a MiB of file
//! ```
//! `b` is the number of pages of the file, rounded up to whole bytes; bits of pages the file does not have are zero.
//! Bytes behind the map are not part of it: a section may be padded.

use crate::page::{PAGE_SIZE, PageIndex, PageRange};
use crate::profile::Fingerprint;
use crate::profile_file::checksum;

/// The version this crate writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// The largest map: a file of 128 GiB. A bound on what a damaged length can make us read.
pub const MAP_BYTES_MAX: usize = 4 << 20;

/// Bytes of a map before its fingerprint.
pub const HEADER_BYTES: usize = 48;

const MAGIC: [u8; 8] = *b"PREPGMAP";
const BUILD_ID: u16 = 1;
const ENDS: u16 = 2;
/// The longest build-id: linkers make 8 to 20 bytes.
const FINGERPRINT_BYTES_MAX: usize = 64;
const PATH_BYTES_MAX: usize = 4096;

/// Which pages of a file are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageMap {
    /// What the file holds.
    pub fingerprint: Fingerprint,
    /// Its size when the map was made. A file that was stripped since may be shorter.
    pub size_bytes: u64,
    /// When the map was made, seconds since 1970.
    pub made_unix_s: u64,
    /// Where the file was; may be empty.
    pub path: String,
    /// Sorted, apart from one another, not empty, within the file.
    pub pages: Vec<PageRange>,
}

/// Why bytes are not a page map.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageMapError {
    /// The magic is missing.
    #[error("not a page map (it does not start with the magic of one)")]
    Foreign,
    /// Another version of the format.
    #[error("page map version {found}, this prepage reads version {VERSION}")]
    Version {
        /// The version found.
        found: u32,
    },
    /// Fewer bytes than it promises, or more than any map has.
    #[error("page map of {promised_bytes} bytes in {found_bytes} bytes: it was cut off or overwritten")]
    Length {
        /// Bytes there are.
        found_bytes: usize,
        /// Bytes there should be.
        promised_bytes: usize,
    },
    /// The checksum differs.
    #[error("page map checksum does not match: it is damaged")]
    Checksum,
    /// The checksum holds but the content makes no sense.
    #[error("page map is malformed: {0}")]
    Malformed(&'static str),
    /// What is to be written has no place in the format.
    #[error("{0}")]
    TooLarge(&'static str),
}

impl PageMap {
    /// Number of pages in the map.
    pub fn page_count(&self) -> u64 {
        self.pages.iter().map(|range| range.len()).sum()
    }

    /// The map as bytes.
    ///
    /// # Errors
    /// [`PageMapError::TooLarge`] for files beyond 128 GiB.
    ///
    /// # Panics
    /// When a range lies beyond the file: maps are made of files that were looked at.
    pub fn encode(&self) -> Result<Vec<u8>, PageMapError> {
        let (kind, crc);
        let fingerprint: &[u8] = match &self.fingerprint {
            Fingerprint::BuildId(id) => {
                kind = BUILD_ID;
                id
            }
            Fingerprint::Ends(ends) => {
                kind = ENDS;
                crc = ends.to_le_bytes();
                &crc
            }
        };
        if fingerprint.is_empty() || fingerprint.len() > FINGERPRINT_BYTES_MAX {
            return Err(PageMapError::TooLarge("the build-id is empty or longer than 64 bytes"));
        }
        let path = if self.path.len() <= PATH_BYTES_MAX { self.path.as_bytes() } else { b"" };
        let bitmap_bytes = bitmap_bytes(self.size_bytes);
        let total = (HEADER_BYTES + fingerprint.len() + path.len()) as u64 + bitmap_bytes;
        if total > MAP_BYTES_MAX as u64 {
            return Err(PageMapError::TooLarge("page maps are for files of up to 128 GiB"));
        }
        let mut bitmap = vec![0u8; bitmap_bytes as usize];
        for page in self.pages.iter().flat_map(|range| range.iter()) {
            assert!(page.0 < pages_of(self.size_bytes), "a page map lies within its file");
            bitmap[(page.0 / 8) as usize] |= 1 << (page.0 % 8);
        }
        let mut bytes = Vec::with_capacity(total as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&(total as u32).to_le_bytes());
        bytes.extend_from_slice(&kind.to_le_bytes());
        bytes.extend_from_slice(&(fingerprint.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&self.size_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.made_unix_s.to_le_bytes());
        bytes.extend_from_slice(&(self.page_count() as u32).to_le_bytes());
        bytes.extend_from_slice(&(path.len() as u16).to_le_bytes());
        bytes.extend_from_slice(&[0; 2]);
        bytes.extend_from_slice(fingerprint);
        bytes.extend_from_slice(path);
        bytes.extend_from_slice(&bitmap);
        let crc = checksum(&[&bytes[16..]]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        Ok(bytes)
    }

    /// The map at the start of `bytes`.
    ///
    /// # Errors
    /// Why there is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, PageMapError> {
        let total = encoded_bytes(bytes)?;
        let Some(bytes) = bytes.get(..total) else {
            return Err(PageMapError::Length { found_bytes: bytes.len(), promised_bytes: total });
        };
        if checksum(&[&bytes[16..]]) != u32_at(bytes, 12) {
            return Err(PageMapError::Checksum);
        }
        let (kind, fingerprint_bytes) = (u16_at(bytes, 20), usize::from(u16_at(bytes, 22)));
        let size_bytes = u64_at(bytes, 24);
        let path_bytes = usize::from(u16_at(bytes, 44));
        if u16_at(bytes, 46) != 0 {
            return Err(PageMapError::Malformed("a reserved field is in use"));
        }
        let (fingerprint, rest) = bytes[HEADER_BYTES..]
            .split_at_checked(fingerprint_bytes)
            .ok_or(PageMapError::Malformed("length of the fingerprint"))?;
        let (path, bitmap) =
            rest.split_at_checked(path_bytes).ok_or(PageMapError::Malformed("length of the path"))?;
        let fingerprint = match (kind, fingerprint.len()) {
            (BUILD_ID, 1..=FINGERPRINT_BYTES_MAX) => Fingerprint::BuildId(fingerprint.to_vec()),
            (ENDS, 4) => Fingerprint::Ends(u32_at(fingerprint, 0)),
            _ => return Err(PageMapError::Malformed("kind of fingerprint")),
        };
        if bitmap.len() as u64 != bitmap_bytes(size_bytes) {
            return Err(PageMapError::Malformed("the bitmap does not fit the size of the file"));
        }
        let map = Self {
            fingerprint,
            size_bytes,
            made_unix_s: u64_at(bytes, 32),
            path: String::from_utf8(path.to_vec()).map_err(|_| PageMapError::Malformed("path"))?,
            pages: runs(bitmap),
        };
        if map.pages.last().is_some_and(|last| last.end().0 > pages_of(size_bytes)) {
            return Err(PageMapError::Malformed("pages past the end of the file"));
        }
        if map.page_count() != u64::from(u32_at(bytes, 40)) {
            return Err(PageMapError::Malformed("number of pages"));
        }
        Ok(map)
    }
}

/// Length of the map that begins with `bytes`, of which only the first [`HEADER_BYTES`] need to be there.
///
/// # Errors
/// When these are not the beginning of a map.
pub fn encoded_bytes(bytes: &[u8]) -> Result<usize, PageMapError> {
    if !bytes.starts_with(&MAGIC) {
        return Err(PageMapError::Foreign);
    }
    if bytes.len() < HEADER_BYTES {
        return Err(PageMapError::Length { found_bytes: bytes.len(), promised_bytes: HEADER_BYTES });
    }
    let found = u32_at(bytes, 8);
    if found != VERSION {
        return Err(PageMapError::Version { found });
    }
    let total = u32_at(bytes, 16) as usize;
    if (HEADER_BYTES..=MAP_BYTES_MAX).contains(&total) {
        Ok(total)
    } else {
        Err(PageMapError::Length { found_bytes: bytes.len(), promised_bytes: total })
    }
}

/// Pages of a file of `size_bytes`.
fn pages_of(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(PAGE_SIZE)
}

/// Bytes of the bitmap of a file of `size_bytes`.
fn bitmap_bytes(size_bytes: u64) -> u64 {
    pages_of(size_bytes).div_ceil(8)
}

/// The runs of set bits.
fn runs(bitmap: &[u8]) -> Vec<PageRange> {
    let mut runs: Vec<PageRange> = Vec::new();
    for (at, &byte) in bitmap.iter().enumerate().filter(|(_, byte)| **byte != 0) {
        for bit in (0..8).filter(|bit| byte & (1 << bit) != 0) {
            let page = PageIndex(at as u64 * 8 + bit);
            let end = PageIndex(page.0 + 1);
            match runs.last_mut() {
                Some(last) if last.end() == page => *last = PageRange::new(last.start(), end),
                _ => runs.push(PageRange::new(page, end)),
            }
        }
    }
    runs
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn maps() -> impl Strategy<Value = PageMap> {
        let pages = prop::collection::btree_set(0u64..700, 0..200);
        (pages, 0u64..PAGE_SIZE, "(/[a-zé]{1,9}){0,3}", any::<u64>(), any::<u32>()).prop_map(
            |(pages, spare, path, made_unix_s, id)| {
                let last = pages.iter().next_back().map_or(0, |last| last + 1);
                PageMap {
                    fingerprint: if id % 3 == 0 {
                        Fingerprint::Ends(id)
                    } else {
                        Fingerprint::BuildId(id.to_le_bytes().repeat(5))
                    },
                    size_bytes: last * PAGE_SIZE + spare,
                    made_unix_s,
                    path,
                    pages: ranges(&pages),
                }
            },
        )
    }

    fn ranges(pages: &BTreeSet<u64>) -> Vec<PageRange> {
        let mut ranges: Vec<PageRange> = Vec::new();
        for &page in pages {
            match ranges.last_mut() {
                Some(last) if last.end().0 == page => {
                    *last = PageRange::new(last.start(), PageIndex(page + 1));
                }
                _ => ranges.push(PageRange::new(PageIndex(page), PageIndex(page + 1))),
            }
        }
        ranges
    }

    #[test]
    fn a_mebibyte_of_file_takes_32_bytes() {
        let map = |size_bytes| PageMap {
            fingerprint: Fingerprint::BuildId(vec![7; 20]),
            size_bytes,
            made_unix_s: 0,
            path: String::new(),
            pages: vec![],
        };
        let empty = map(0).encode().unwrap().len();
        assert_eq!(empty, HEADER_BYTES + 20);
        assert_eq!(map(1 << 20).encode().unwrap().len() - empty, 32);
        assert_eq!(map(180 << 20).encode().unwrap().len() - empty, 180 * 32);
        assert!(matches!(map(1 << 40).encode(), Err(PageMapError::TooLarge(_))));
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let map = PageMap {
            fingerprint: Fingerprint::BuildId(vec![0xab, 0xcd]),
            size_bytes: 9 * PAGE_SIZE + 1,
            made_unix_s: 3,
            path: "/a".into(),
            pages: vec![
                PageRange::new(PageIndex(0), PageIndex(2)),
                PageRange::new(PageIndex(9), PageIndex(10)),
            ],
        };
        let bytes = map.encode().unwrap();
        assert_eq!(&bytes[..12], b"PREPGMAP\x01\0\0\0");
        assert_eq!(bytes[16..20], 54u32.to_le_bytes());
        assert_eq!(bytes[20..24], [1, 0, 2, 0]);
        assert_eq!(bytes[24..32], (9 * 4096 + 1u64).to_le_bytes());
        assert_eq!(bytes[32..48], [3, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[48..], [0xab, 0xcd, b'/', b'a', 0b11, 0b10]);
    }

    #[test]
    fn pages_that_the_file_does_not_have_are_refused() {
        let mut bytes = PageMap {
            fingerprint: Fingerprint::Ends(1),
            size_bytes: 3 * PAGE_SIZE,
            made_unix_s: 0,
            path: String::new(),
            pages: vec![],
        }
        .encode()
        .unwrap();
        *bytes.last_mut().unwrap() = 0b1000;
        let crc = checksum(&[&bytes[16..]]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(PageMap::decode(&bytes), Err(PageMapError::Malformed("pages past the end of the file")));
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again_whatever_follows(map in maps(), behind in prop::collection::vec(any::<u8>(), 0..50)) {
            let mut bytes = map.encode().unwrap();
            prop_assert_eq!(encoded_bytes(&bytes[..HEADER_BYTES]), Ok(bytes.len()));
            bytes.extend_from_slice(&behind);
            prop_assert_eq!(PageMap::decode(&bytes), Ok(map));
        }

        #[test]
        fn one_flipped_bit_never_goes_unnoticed(map in maps(), at in any::<prop::sample::Index>(), bit in 0..8) {
            let mut bytes = map.encode().unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= 1u8 << bit;
            prop_assert!(PageMap::decode(&bytes).is_err());
        }

        #[test]
        fn a_cut_map_is_an_error(map in maps(), keep in any::<prop::sample::Index>()) {
            let bytes = map.encode().unwrap();
            prop_assert!(PageMap::decode(&bytes[..keep.index(bytes.len())]).is_err());
        }
    }
}
