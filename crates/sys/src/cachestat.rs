//! cachestat(2): how many pages of a file range are in memory, and in which state (Linux 6.5).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};
use rustix::fs::{Advice, fadvise};

use crate::file_system::{OVERLAYFS, kind_of};
use crate::given::check;

#[repr(C)]
struct Range {
    offset_bytes: u64,
    len_bytes: u64,
}

/// Pages of a file range by their state (`struct cachestat`).
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// In memory.
    pub cached: u64,
    /// Of these, changed and not written back.
    pub dirty: u64,
    /// Of these, being written back.
    pub writeback: u64,
    /// Not in memory, and known to have been.
    pub evicted: u64,
    /// Of these, missed: they would still be in memory if there were a little more of it.
    pub recently_evicted: u64,
}

// include/uapi/linux/mman.h
const _: () = assert!(size_of::<Range>() == 16 && size_of::<CacheCounts>() == 40);
// The same number on every architecture.
pub(crate) const SYS_CACHESTAT: libc::c_long = 451;

/// Whether cachestat(2) sees the pages of `file`. Not in an overlay: such a file has no pages of its own (Linux 6.18, mm/filemap.c, `f_mapping`). A
/// mapping is one of the file below, whose pages mincore(2) sees.
pub fn sees(file: BorrowedFd<'_>) -> bool {
    !kind_of(file).is_ok_and(|kind| kind == OVERLAYFS)
}

/// The number of pages of `range` that are in memory.
///
/// # Errors
/// See [`counts`].
pub fn cached_pages(file: BorrowedFd<'_>, range: PageRange) -> io::Result<u64> {
    counts(file, range).map(|counts| counts.cached)
}

/// The pages of `range` by their state.
///
/// # Errors
/// EPERM for a file that the caller neither owns nor may write (since 6.16), ENOSYS before 6.5, EOPNOTSUPP for huge
/// pages of hugetlbfs.
pub fn counts(file: BorrowedFd<'_>, range: PageRange) -> io::Result<CacheCounts> {
    if range.is_empty() {
        return Ok(CacheCounts::default());
    }
    let range = Range { offset_bytes: range.start().offset_bytes(), len_bytes: range.bytes() };
    let mut counts = CacheCounts::default();
    // SAFETY: both structs have the kernel's layout and live through the call; the kernel writes only `counts`.
    check(unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut counts, 0) })?;
    Ok(counts)
}

/// Sends the pages of `file` out of memory. Those that the kernel has in hand at that moment (writes back, ages, moves)
/// stay: it is asked again for as long as `patience`, where it tells that some did. What is mapped or locked stays.
///
/// # Errors
/// Those of posix_fadvise(2).
pub fn evict(file: BorrowedFd<'_>, patience: Duration) -> io::Result<()> {
    let began = Instant::now();
    let all = PageRange::new(PageIndex(0), PageIndex(u64::MAX >> 12));
    loop {
        fadvise(file, 0, None, Advice::DontNeed)?;
        if !matches!(cached_pages(file, all), Ok(1..)) || began.elapsed() >= patience {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use prepage_core::PageIndex;

    use super::*;

    #[test]
    fn pages_just_written_are_in_memory() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 3 * 4096]).unwrap();
        let all = PageRange::new(PageIndex(0), PageIndex(8));
        assert_eq!(cached_pages(file.as_fd(), all).unwrap(), 3);
        assert_eq!(cached_pages(file.as_fd(), PageRange::default()).unwrap(), 0);
    }
}
