//! Many atomic words, all zero at first, that take memory only where they are used. In no core dump.

use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU32;

use prepage_core::PAGE_SIZE;

use crate::region::{Contents, Region};

/// A slice of atomic words in memory of its own.
#[derive(Debug)]
pub struct Words {
    region: Region,
    count: usize,
}

impl Words {
    /// `count` words of zero.
    ///
    /// # Errors
    /// ENOMEM when the address space is exhausted.
    pub fn zeroed(count: usize) -> io::Result<Self> {
        let bytes = (count.max(1) as u64).checked_mul(size_of::<AtomicU32>() as u64);
        let whole_pages = bytes.and_then(|bytes| bytes.checked_next_multiple_of(PAGE_SIZE));
        let region = Region::map(whole_pages.ok_or(rustix::io::Errno::NOMEM)?, Contents::Undumped)?;
        Ok(Self { region, count })
    }
}

impl Deref for Words {
    type Target = [AtomicU32];

    fn deref(&self) -> &[AtomicU32] {
        // SAFETY: the region is page-aligned, writable, at least as long, lives as long as this value and is borrowed in
        // no other way; zeros are valid words.
        unsafe { std::slice::from_raw_parts(self.region.start() as *const AtomicU32, self.count) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_words_than_there_are_addresses_are_refused() {
        for count in [usize::MAX, usize::MAX / size_of::<AtomicU32>() + 2] {
            assert_eq!(Words::zeroed(count).unwrap_err().raw_os_error(), Some(libc::ENOMEM), "{count}");
        }
        assert_eq!(Words::zeroed(0).unwrap().len(), 0);
    }

    #[test]
    fn words_are_in_no_core_dump() {
        let words = Words::zeroed(1024).unwrap();
        let address = words.as_ptr() as u64;
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let range_of = |line: &str| {
            let (start, end) = line.split_once(' ')?.0.split_once('-')?;
            Some(hex(start)?..hex(end)?)
        };
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut of_words =
            maps.lines().skip_while(|line| !range_of(line).is_some_and(|range| range.contains(&address)));
        let flags = of_words.find_map(|line| line.strip_prefix("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| flag == "dd"), "{flags}");
    }
}
