//! Pages of several files asked for in one call.
//!
//! madvise(2) with MADV_WILLNEED asks for all that lies in its range before it hands the requests to the device, so that pages
//! of different files which lie side by side there become one request. One posix_fadvise(2) a file makes each a request of its own.

use std::io;
use std::os::fd::BorrowedFd;

use prepage_core::PageRange;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};

/// Has the kernel read all `pieces` that are not in memory, and waits for none of them.
///
/// # Errors
/// EINVAL for no pages, ENODEV where a file system cannot map, EACCES for files not open to read. Nothing was asked for then.
pub fn will_need(pieces: &[(BorrowedFd<'_>, PageRange)]) -> io::Result<()> {
    let bytes = pieces.iter().map(|(_, pages)| pages.bytes()).sum::<u64>();
    let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    // SAFETY: the kernel chooses the place, so that no memory in use changes.
    let start =
        unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::PRIVATE) }?;
    let mapped = || {
        let mut at = start;
        for (file, pages) in pieces {
            let (len, offset) = (pages.bytes() as usize, pages.start().offset_bytes());
            // SAFETY: the pieces lie one behind another within what was mapped above, which nobody uses.
            unsafe {
                mmap(at, len, ProtFlags::READ, MapFlags::SHARED | MapFlags::FIXED, file, offset)?;
                at = at.byte_add(len);
            }
        }
        // SAFETY: the range is our mapping, and the advice changes nothing in it.
        unsafe { madvise(start, bytes, Advice::WillNeed) }
    };
    let asked = mapped();
    // SAFETY: mapped above, and known to nobody.
    unsafe { munmap(start, bytes) }?;
    Ok(asked?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::time::Duration;

    use prepage_core::PageIndex;
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
}
