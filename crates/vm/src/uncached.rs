//! Reads through the page cache that leave nothing there (RWF_DONTCACHE, Linux 6.14): unlike direct ones they can be waited for awake.

use std::fs::File;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::time::Duration;

use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::spin::{Spin, Tried};
use crate::sync::{AtomicU32, Ordering};

/// A file, opened once more for such reads.
///
/// Lock legend: (c) constant; (a) atomic.
#[derive(Debug)]
pub(crate) struct Uncached {
    /// (c)
    file: File,
    spin: Spin,
    /// (a) Not 0 once the kernel or the file system said that it has no such reads.
    refused: AtomicU32,
}

/// RWF_DONTCACHE.
const DROP_BEHIND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);

impl Uncached {
    /// The file that `direct` is; `None` where it cannot be opened once more.
    pub(crate) fn of(direct: &File) -> Option<Self> {
        // By its descriptor: another file may have the path by now.
        let file = File::open(format!("/proc/self/fd/{}", direct.as_raw_fd())).ok()?;
        // Nothing but what is asked for may come.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).ok()?;
        Some(Self { file, spin: Spin::default(), refused: AtomicU32::new(0) })
    }

    /// Fills `into` with what is at `offset_bytes`, awake for `limit` at most, and does `meanwhile` while the device is busy; false where that is not done, or the device
    /// takes longer. Nothing here allocates.
    pub(crate) fn read(
        &self,
        offset_bytes: u64,
        into: &mut [u8],
        limit: Duration,
        meanwhile: impl FnOnce(),
    ) -> bool {
        if self.refused.load(Ordering::Relaxed) != 0 {
            return false;
        }
        let read =
            self.spin.read(limit, || self.try_read(offset_bytes, into, ReadWriteFlags::NOWAIT), meanwhile);
        // What the tries have begun to bring in stays until it is read.
        read || !limit.is_zero() && self.try_read(offset_bytes, into, ReadWriteFlags::empty()) == Tried::Read
    }

    fn try_read(&self, offset_bytes: u64, into: &mut [u8], flags: ReadWriteFlags) -> Tried {
        let wanted = into.len();
        let read = preadv2(&self.file, &mut [IoSliceMut::new(into)], offset_bytes, flags | DROP_BEHIND);
        if matches!(read, Err(Errno::OPNOTSUPP | Errno::INVAL)) {
            self.refused.store(1, Ordering::Relaxed);
        }
        Tried::of(read, wanted)
    }
}
