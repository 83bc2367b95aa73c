//! cachestat(2): how many pages of a file range are in memory (Linux 6.5).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use prepage_core::PageRange;

#[repr(C)]
struct Range {
    offset_bytes: u64,
    len_bytes: u64,
}

#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

// include/uapi/linux/mman.h
const _: () = assert!(size_of::<Range>() == 16 && size_of::<Counts>() == 40);
// The same number on every architecture.
const SYS_CACHESTAT: libc::c_long = 451;

/// The number of pages of `range` that are in memory.
///
/// # Errors
/// EPERM for a file that the caller neither owns nor may write (since 6.16), ENOSYS before 6.5.
pub fn cached_pages(file: BorrowedFd<'_>, range: PageRange) -> io::Result<u64> {
    if range.is_empty() {
        return Ok(0);
    }
    let range = Range { offset_bytes: range.start().offset_bytes(), len_bytes: range.bytes() };
    let mut counts = Counts::default();
    // SAFETY: both structs have the kernel's layout and live through the call; the kernel writes only `counts`.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file.as_raw_fd(), &range, &mut counts, 0) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(counts.cached) }
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
