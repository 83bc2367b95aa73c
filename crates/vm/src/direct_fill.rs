//! Reads of local files straight into frames.
//!
//! What a page costs beyond its read is done while the device is busy with it: the first try starts the read, then the
//! frames are made. When the bytes are there one copy is left to do; direct reads leave none.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::direct_fill::{Cached, DirectFill};
use prepage_sys::memfd::Memfd;

use crate::reason;
use crate::spin::{Spin, Tried};
use crate::sync::{AtomicU64, Ordering};

/// An object's frames as a place to read to.
///
/// Lock legend: (a) atomic hints; what two threads make of one at once does no harm.
#[derive(Debug)]
pub(crate) struct LocalFill {
    frames: DirectFill,
    /// (a) The pages that the last fill left in the page table, as `start << 16 | len`; 0 for none. The next fill takes
    /// them out, so that frames do not count twice in the process's resident set.
    left: AtomicU64,
    spin: Spin,
}

impl LocalFill {
    /// `None` where the address space has no room: frames are written through their descriptor then.
    pub(crate) fn new(memfd: &Memfd, pages: PageRange) -> Option<Self> {
        let frames = DirectFill::map(memfd, pages.bytes()).ok()?;
        Some(Self { frames, left: AtomicU64::new(0), spin: Spin::default() })
    }

    /// Reads `range` of `file`, all of which lies before the file's end. Stays awake for `spin` before it
    /// sleeps, and does `meanwhile` while the device is busy. Allocates nothing.
    pub(crate) fn fill(
        &self,
        file: &File,
        range: PageRange,
        spin: Duration,
        meanwhile: impl FnOnce(),
    ) -> Result<(), u16> {
        let offset = range.start().offset_bytes();
        self.clear(self.left.swap(0, Ordering::Relaxed));
        self.frames.populate(offset, range.bytes()).map_err(code)?;
        let mut done = 0;
        let read = || {
            let at = offset + done;
            match self.frames.read_cached(file.as_fd(), at, at, range.bytes() - done) {
                Ok(Cached::Read(bytes)) if bytes > 0 => {
                    done += bytes as u64;
                    if done == range.bytes() { Tried::Read } else { Tried::Part }
                }
                Ok(Cached::NotYet) => Tried::NotYet,
                _ => Tried::Never,
            }
        };
        self.spin.read(spin, read, meanwhile);
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
