//! Parts of a region that several threads write to, each to its own.

use std::io;
use std::sync::Arc;

use crate::given::check;
use crate::region::{Region, Span};

/// A part of a region, which stays mapped while one of its parts lives.
#[derive(Debug)]
pub struct Part {
    span: Arc<Span>,
    offset: u64,
    len: u64,
}

impl Part {
    /// Cuts `region` into parts of `len` bytes each, as many as there are.
    ///
    /// # Panics
    /// Where `region` could not be written to ([`Region::as_mut_slice`]), or `len` is 0.
    pub fn cut(mut region: Region, len: u64) -> Vec<Self> {
        let count = region.as_mut_slice().len() as u64 / len;
        let span = region.span();
        (0..count).map(|number| Self { span: Arc::clone(span), offset: number * len, len }).collect()
    }

    /// Where it lies.
    pub fn start(&self) -> u64 {
        self.span.at(self.offset, self.len) as u64
    }

    /// Bytes of it.
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Gives the memory of its first `len` bytes back: zeros are there next.
    ///
    /// # Errors
    /// Those of madvise(2).
    ///
    /// # Panics
    /// Where it is not so long.
    pub fn discard(&mut self, len: u64) -> io::Result<()> {
        assert!(len <= self.len, "beyond the part");
        let start = self.span.own_at(self.offset, len);
        // SAFETY: as below: the bytes are this part's, and nobody borrows them.
        check(unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_DONTNEED_LOCKED) })
    }

    /// Its bytes, with whatever was left in them.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let start = self.span.at(self.offset, self.len);
        // SAFETY: `cut` took the only value that lends the region, which is mapped and writable as long as its span lives; parts do not overlap,
        // and `&mut self` makes this the only borrow of this one.
        unsafe { std::slice::from_raw_parts_mut(start, self.len as usize) }
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::PAGE_SIZE;

    use super::*;
    use crate::region::Contents;

    #[test]
    fn each_part_has_bytes_of_its_own_as_long_as_it_lives() {
        let region = Region::map(9 * PAGE_SIZE, Contents::Anonymous).unwrap();
        let mut parts = Part::cut(region, 2 * PAGE_SIZE);
        std::thread::scope(|scope| {
            for (number, part) in (1..).zip(&mut parts) {
                scope.spawn(move || part.as_mut_slice().fill(number));
            }
        });
        let mut last = parts.pop().unwrap();
        assert_eq!(parts.len(), 3);
        parts[1].discard(PAGE_SIZE).unwrap();
        let (gone, kept) = parts[1].as_mut_slice().split_at(4096);
        assert!(gone.iter().all(|&byte| byte == 0) && kept.iter().all(|&byte| byte == 2));
        parts[1].as_mut_slice().fill(2);
        for (number, part) in (1..).zip(&mut parts) {
            assert!(
                part.as_mut_slice().len() == 8192 && part.as_mut_slice().iter().all(|&byte| byte == number)
            );
        }
        drop(parts);
        assert!(last.as_mut_slice().iter().all(|&byte| byte == 4));
    }
}
