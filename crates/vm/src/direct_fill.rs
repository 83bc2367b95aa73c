//! Direct reads of local files straight into frames, which leave no copy to be made.

use std::fs::File;
use std::os::fd::AsFd;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::direct_fill::DirectFill;
use prepage_sys::memfd::Memfd;

use crate::reason;
use crate::sync::{AtomicU64, Ordering};

/// An object's frames as a place to read to.
///
/// Lock legend: (a) atomic hint; what two threads make of it at once does no harm.
#[derive(Debug)]
pub(crate) struct LocalFill {
    frames: DirectFill,
    /// (a) The pages that the last fill left in the page table, as `start << 16 | len`; 0 for none. The next fill takes
    /// them out, so that frames do not count twice in the process's resident set.
    left: AtomicU64,
}

impl LocalFill {
    /// `None` where the address space has no room: frames are written through their descriptor then.
    pub(crate) fn new(memfd: &Memfd, pages: PageRange) -> Option<Self> {
        let frames = DirectFill::map(memfd, pages.bytes()).ok()?;
        Some(Self { frames, left: AtomicU64::new(0) })
    }

    /// Reads `range` of `file`, all of which lies before the file's end. Allocates nothing.
    pub(crate) fn fill(&self, file: &File, range: PageRange) -> Result<(), u16> {
        let offset = range.start().offset_bytes();
        self.clear(self.left.swap(0, Ordering::Relaxed));
        self.frames.populate(offset, range.bytes()).map_err(code)?;
        let mut done = 0;
        while done < range.bytes() {
            let at = offset + done;
            match self.frames.read(file.as_fd(), at, at, range.bytes() - done) {
                Ok(0) => return Err(reason::SHORT),
                Ok(bytes) => done += bytes as u64,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                // A direct read goes on at a block alone; the rest of a page says that the file was truncated.
                Err(error) if error.raw_os_error() == Some(INVALID) && done > 0 => return Err(reason::SHORT),
                Err(error) => return Err(code(error)),
            }
        }
        self.clear(self.left.swap(packed(range), Ordering::Relaxed));
        Ok(())
    }

    fn clear(&self, left: u64) {
        if left != 0 {
            let start = PageIndex(left >> 16);
            let range = PageRange::new(start, PageIndex(start.0 + (left & 0xffff)));
            // What stays in the page table does no harm.
            let _ = self.frames.forget(range.start().offset_bytes(), range.bytes());
        }
    }
}

/// EINVAL.
const INVALID: i32 = 22;

/// Reads are of a buffer's length at most, and objects of 2^35 pages.
fn packed(range: PageRange) -> u64 {
    range.start().0 << 16 | range.len()
}

#[allow(clippy::needless_pass_by_value)]
fn code(error: std::io::Error) -> u16 {
    reason::of_errno(error.raw_os_error())
}
