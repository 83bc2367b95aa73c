//! Which pages of files are in memory, for users who may not ask that of every file.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};
use prepage_sys::cachestat::cached_pages;
use rustix::io::{Errno, ReadWriteFlags};

/// Whether `page` is in memory. Where the kernel counts it, it is. Of files that the user can merely read it counts
/// nothing, of those of stacked file systems none that there are: a read that must not wait succeeds at once only where
/// there is nothing to wait for. A page found missing is on its way afterwards.
pub(crate) fn is_resident(file: &File, page: PageIndex) -> bool {
    let one = PageRange::new(page, PageIndex(page.0 + 1));
    cached_pages(file.as_fd(), one).is_ok_and(|count| count > 0) || answers_at_once(file, page)
}

fn answers_at_once(file: &File, page: PageIndex) -> bool {
    /// What is in memory takes a microsecond or two. After longer, the page may be one that this very call had read.
    const AT_ONCE: Duration = Duration::from_micros(20);
    let mut byte = [0u8; 1];
    let mut buffers = [rustix::io::IoSliceMut::new(&mut byte)];
    let began = Instant::now();
    match rustix::io::preadv2(file, &mut buffers, page.offset_bytes(), ReadWriteFlags::NOWAIT) {
        Ok(_) => began.elapsed() < AT_ONCE,
        Err(error) => error != Errno::AGAIN,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use prepage_sys::cachestat::evict;

    use super::*;

    #[test]
    fn pages_that_a_probe_itself_has_read_are_told_from_those_in_memory() {
        const PAGES: u64 = 512;
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; (PAGES * 4096) as usize]).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let there = |is_there: fn(&File, PageIndex) -> bool| {
            (0..PAGES).filter(|&page| is_there(&file, PageIndex(page))).count() as u64
        };
        assert_eq!(there(is_resident), PAGES);
        // A thread that has to wait for its CPU takes its time over what is in memory, too.
        assert!(there(answers_at_once) > PAGES / 2);
        for is_there in [is_resident, answers_at_once] {
            evict(file.as_fd(), Duration::from_secs(1)).unwrap();
            if cached_pages(file.as_fd(), PageRange::new(PageIndex(0), PageIndex(PAGES))).is_ok_and(|n| n > 0)
            {
                return eprintln!(
                    "SKIPPED: this file system keeps pages in memory that fadvise was asked to drop"
                );
            }
            assert_eq!(there(is_there), 0);
        }
    }
}
