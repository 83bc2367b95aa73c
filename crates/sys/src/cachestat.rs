//! How many pages of a file range are in memory, by cachestat(2), which also tells their state (Linux 6.5), or mincore(2).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use rustix::fs::{Advice, fadvise, fstat};
use rustix::io::Errno;

use crate::file_system::{OVERLAYFS, kind_of};
use crate::given::check;
use crate::mapping::{FileMapping, may_know_residency};

/// Pages that mincore(2) looks at in one go: a vector of 256 KiB.
const WINDOW_PAGES: u64 = 1 << 18;

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

/// The number of pages of `range` that are in memory; before Linux 6.5 by mincore(2).
///
/// # Errors
/// EPERM where the kernel does not tell the caller (cachestat(2) since 6.16, mincore(2) always), EOPNOTSUPP for huge pages of hugetlbfs; before
/// 6.5 those of mapping the file.
pub fn cached_pages(file: BorrowedFd<'_>, range: PageRange) -> io::Result<u64> {
    match counts(file, range) {
        Err(error) if error.raw_os_error() == Some(libc::ENOSYS) => mapped_pages(file, range),
        counted => counted.map(|counts| counts.cached),
    }
}

/// The number of pages of `range` that mincore(2) finds in memory.
fn mapped_pages(file: BorrowedFd<'_>, range: PageRange) -> io::Result<u64> {
    if !may_know_residency(file)? {
        return Err(Errno::PERM.into());
    }
    let end = range.end().0.min((fstat(file)?.st_size as u64).div_ceil(PAGE_SIZE));
    let mut pages = 0;
    for start in (range.start().0..end).step_by(WINDOW_PAGES as usize) {
        let window = PageRange::new(PageIndex(start), PageIndex(end.min(start + WINDOW_PAGES)));
        let resident = FileMapping::new(file, window)?.resident()?;
        pages += resident.into_iter().filter(|&is_there| is_there).count() as u64;
    }
    Ok(pages)
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

    use prepage_testing::{Need, unless_refused};

    use super::*;
    use crate::call_filter::{When, fail};

    #[test]
    fn pages_just_written_are_in_memory() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 3 * 4096]).unwrap();
        let all = PageRange::new(PageIndex(0), PageIndex(8));
        assert_eq!(cached_pages(file.as_fd(), all).unwrap(), 3);
        assert_eq!(cached_pages(file.as_fd(), PageRange::default()).unwrap(), 0);
    }
    /// As before Linux 6.5.
    #[test]
    fn without_cachestat_pages_are_counted_by_mincore() {
        let counted = std::thread::spawn(|| {
            let filter = fail(libc::ENOSYS, &[(SYS_CACHESTAT, When::Always)]);
            let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            unless_refused(filter, Need::Path("/proc/sys/kernel/seccomp".into()), denied)?;
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[7; 3 * 4096]).unwrap();
            let behind = PageRange::new(PageIndex(5), PageIndex(8));
            let all_but_one = PageRange::new(PageIndex(1), PageIndex(u64::MAX >> 12));
            Some([behind, all_but_one].map(|range| cached_pages(file.as_fd(), range).unwrap()))
        });
        assert!(matches!(counted.join().unwrap(), None | Some([0, 2])));
    }
}
