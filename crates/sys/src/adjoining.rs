//! Pages of several files asked for in one call.
//!
//! madvise(2) with MADV_WILLNEED asks for all that lies in its range before it hands the requests to the device, so that pages
//! of different files which lie side by side there become one request. One posix_fadvise(2) a file makes each a request of its own.

use std::ffi::c_void;
use std::io;
use std::os::fd::BorrowedFd;
use std::ptr;

use prepage_core::PageRange;
use rustix::mm::{
    Advice, MapFlags, MremapFlags, ProtFlags, madvise, mmap, mmap_anonymous, mremap_fixed, munmap,
};

/// Has the kernel read all `pieces` that are not in memory, and waits for none of them.
///
/// # Errors
/// EINVAL for no pages, ENODEV where a file system cannot map, EACCES for files not open to read. Nothing was asked for then.
pub fn will_need(pieces: &[(BorrowedFd<'_>, PageRange)]) -> io::Result<()> {
    let add = |sum: u64, (_, pages): &(_, PageRange)| sum.checked_add(pages.bytes());
    let bytes = pieces.iter().try_fold(0, add).and_then(|bytes| usize::try_from(bytes).ok());
    let mut place = Place::of(bytes.ok_or(io::ErrorKind::FileTooLarge)?)?;
    pieces.iter().try_for_each(|(file, pages)| place.add(*file, *pages))?;
    // SAFETY: the range is our mapping, and the advice changes nothing in it.
    Ok(unsafe { madvise(place.start, place.len, Advice::WillNeed) }?)
}

/// Address space in which mappings of files lie one behind another.
struct Place {
    start: *mut c_void,
    len: usize,
    /// How much of it files have.
    filled: usize,
}

impl Place {
    fn of(len: usize) -> rustix::io::Result<Self> {
        // SAFETY: the kernel chooses the place, so that no memory in use changes.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE) }?;
        Ok(Self { start, len, filled: 0 })
    }

    /// Puts `pages` of `file`, for which there is room, behind what is there.
    fn add(&mut self, file: BorrowedFd<'_>, pages: PageRange) -> rustix::io::Result<()> {
        let (len, offset) = (pages.bytes() as usize, pages.start().offset_bytes());
        // Elsewhere first: a file system that refuses does so when the kernel has already removed what lay in the place asked for, and
        // what another thread maps in the hole would be unmapped with this.
        // SAFETY: the kernel chooses the place.
        let elsewhere =
            unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, file, offset) }?;
        // SAFETY: the mapping is new and nobody else's, and moves to a part of the place that nobody uses.
        unsafe {
            let to = self.start.byte_add(self.filled);
            if let Err(error) = mremap_fixed(elsewhere, len, len, MremapFlags::MAYMOVE, to) {
                // The kernel has no memory, and may have left a hole: what lies there is left alone.
                munmap(elsewhere, len)?;
                if self.filled > 0 {
                    munmap(self.start, self.filled)?;
                }
                (self.start, self.len, self.filled) = (to.byte_add(len), self.len - self.filled - len, 0);
                return Err(error);
            }
        }
        self.filled += len;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.len > 0 {
            // SAFETY: mapped by this value, and known to nobody.
            let _ = unsafe { munmap(self.start, self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use prepage_core::{PAGE_SIZE, PageIndex};
    use prepage_testing::{Need, has};

    use super::*;
    use crate::cachestat::evict;
    use crate::mapping::FileMapping;

    #[test]
    fn pages_of_all_files_are_brought_in_and_no_others() {
        let place = env!("CARGO_MANIFEST_DIR");
        if !has(Need::Eviction(place.into())) {
            return;
        }
        let file = |_| {
            let mut file = tempfile::tempfile_in(place).unwrap();
            file.write_all(&[7; 64 << 10]).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
            evict(file.as_fd(), Duration::from_secs(60)).unwrap();
            file
        };
        let files: [File; 3] = std::array::from_fn(file);
        let pages = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
        let wanted = [pages(0, 1), pages(3, 7), pages(15, 16)];
        let pieces: Vec<_> = files.iter().map(AsFd::as_fd).zip(wanted).collect();
        will_need(&pieces).unwrap();
        for (file, wanted) in files.iter().zip(wanted) {
            let mapping = FileMapping::new(file.as_fd(), pages(0, 16)).unwrap();
            let resident = || -> Vec<u64> {
                let resident = mapping.resident().unwrap();
                (0..16).filter(|&at| resident[at as usize]).collect()
            };
            // Nothing waits for the device.
            let until = std::time::Instant::now() + Duration::from_secs(60);
            while resident() != wanted.iter().map(|page| page.0).collect::<Vec<_>>() {
                assert!(std::time::Instant::now() < until, "{:?} instead of {wanted:?}", resident());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        assert!(will_need(&[]).is_err());
    }

    #[test]
    fn more_than_there_are_addresses_is_refused() {
        let file = tempfile::tempfile().unwrap();
        let all = PageRange::new(PageIndex(0), PageIndex(u64::MAX / PAGE_SIZE));
        let error = will_need(&[(file.as_fd(), all), (file.as_fd(), all)]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }

    /// The kernel finds out that a socket cannot be mapped only after it has made room for it.
    #[test]
    fn what_cannot_be_mapped_takes_nothing_of_other_threads_away() {
        let child = crate::forked::Forked::new(|| {
            let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let pages = PageRange::new(PageIndex(0), PageIndex(16));
            let stop = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        // A page that is unmapped meanwhile ends this process.
                        crate::fresh_pages::touch(16).unwrap();
                    }
                });
                for _ in 0..100_000 {
                    let error = will_need(&[(socket.as_fd(), pages)]).unwrap_err();
                    assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
                }
                stop.store(true, std::sync::atomic::Ordering::Relaxed);
            });
            0
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
    }
}
