//! Many atomic words, all zero at first, that take memory only where they are used.

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
        let bytes = (count.max(1) as u64 * size_of::<AtomicU32>() as u64).next_multiple_of(PAGE_SIZE);
        Ok(Self { region: Region::map(bytes, Contents::Anonymous)?, count })
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
