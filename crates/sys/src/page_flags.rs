//! Whether pages of files that are in memory were used, or only brought in: the kernel's own notes of each frame
//! (Documentation/admin-guide/mm/pagemap.rst; root).
//!
//! A page that read-ahead or a prefetch brought in is noted as nothing. The first read(2) of it is noted (referenced), the second too
//! (active), and a mapping that goes notes what was touched through it; a mapping that is there is counted. Where a fault maps the
//! neighbours that are in memory too, all of them count.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::mapping::FileMapping;
use crate::pagemap::PageMap;

/// Pages looked at in one mapping.
const PAGES_AT_ONCE: u64 = 1 << 14;
/// Others look at so many pages in some hundredths of a second. Whoever takes longer waits for a file system that may never answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// They are asked this often whether they are done.
const PAUSE: Duration = Duration::from_millis(1);
/// include/uapi/linux/kernel-page-flags.h
const REFERENCED: u64 = 1 << 2;
const ACTIVE: u64 = 1 << 6;
const ENTRY_BYTES: u64 = 8;

/// The kernel's notes of all frames.
#[derive(Debug)]
pub struct PageFlags {
    flags: File,
    mappings: File,
    own: PageMap,
    /// What touched bytes go to.
    bin: OwnedFd,
}

impl PageFlags {
    /// Opens them. Waits for nobody.
    ///
    /// # Errors
    /// PermissionDenied for others than root, NotFound where the kernel keeps none (CONFIG_PROC_PAGE_MONITOR).
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            flags: File::open("/proc/kpageflags")?,
            mappings: File::open("/proc/kpagecount")?,
            own: PageMap::of(std::process::id())?,
            bin: rustix::fs::memfd_create("noted", rustix::fs::MemfdFlags::CLOEXEC)?,
        })
    }

    /// Hands each of `pages` of `file` that is in memory and `wanted` to `see`, with whether somebody has used it since it was brought in.
    /// Brings in nothing, and leaves the notes as they are.
    ///
    /// # Errors
    /// TimedOut where others on this machine look at pages for a second, of whatever files; others where the file cannot be mapped.
    pub fn of(
        &self,
        file: BorrowedFd<'_>,
        pages: PageRange,
        wanted: &dyn Fn(PageIndex) -> bool,
        see: &mut dyn FnMut(PageIndex, bool),
    ) -> io::Result<()> {
        for first in (pages.start().0..pages.end().0).step_by(PAGES_AT_ONCE as usize) {
            let range = PageRange::new(PageIndex(first), PageIndex(pages.end().0.min(first + PAGES_AT_ONCE)));
            // Who looks maps pages, and would be taken for a user of them.
            let _alone = Alone::with(&self.flags, PATIENCE)?;
            let mapping = FileMapping::new(file, range)?;
            mapping.expect_random()?;
            let resident = mapping.resident()?;
            let is_looked_at = |at: &u64| resident[*at as usize] && wanted(PageIndex(first + at));
            for at in (0..range.len()).filter(is_looked_at) {
                // What has left memory meanwhile says nothing.
                if let Some(is_used) = self.is_used(&mapping, at) {
                    see(PageIndex(first + at), is_used);
                }
            }
            mapping.expect_sequential()?;
        }
        Ok(())
    }

    fn is_used(&self, mapping: &FileMapping, at: u64) -> Option<bool> {
        let address = mapping.address() + at * PAGE_SIZE;
        let frame = self.own.frame(address).or_else(|| {
            mapping.touch(at * PAGE_SIZE, self.bin.as_fd()).ok()?;
            self.own.frame(address)
        })?;
        let entry = |file: &File| {
            let mut entry = [0; ENTRY_BYTES as usize];
            file.read_exact_at(&mut entry, frame * ENTRY_BYTES).ok()?;
            Some(u64::from_ne_bytes(entry))
        };
        // One mapping is this process's own.
        Some(entry(&self.flags)? & (REFERENCED | ACTIVE) != 0 || entry(&self.mappings)? > 1)
    }
}

/// Nobody else on this machine has this of the same file, until it is dropped.
struct Alone<'a>(&'a File);

impl<'a> Alone<'a> {
    /// Once nobody else has it, within `most`.
    fn with(file: &'a File, most: Duration) -> io::Result<Self> {
        let began = Instant::now();
        loop {
            match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self(file)),
                Err(Errno::WOULDBLOCK) if began.elapsed() < most => std::thread::sleep(PAUSE),
                Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        let _ = rustix::fs::flock(self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use prepage_testing::{Need, has};

    use super::*;
    use crate::cachestat::evict;

    const PAGES: u64 = 64;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// What is noted of each page in memory.
    fn noted(flags: &PageFlags, file: &File) -> Vec<(u64, bool)> {
        let mut all = Vec::new();
        let pages = PageRange::new(PageIndex(0), PageIndex(PAGES));
        flags.of(file.as_fd(), pages, &|_| true, &mut |page, is_used| all.push((page.0, is_used))).unwrap();
        all
    }

    /// Tries again where the kernel was short of memory: it takes back its notes then.
    fn in_the_end(is_so: impl Fn() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < until, "not within a minute");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// By one who waits for a file system that does not answer, or who is stopped.
    #[test]
    fn who_looks_for_long_keeps_others_waiting_for_a_while_and_from_opening_not_at_all() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let [first, second] = [(), ()].map(|()| File::open(file.path()).unwrap());
        let looks = Alone::with(&first, PATIENCE).unwrap();
        let began = Instant::now();
        let most = Duration::from_millis(50);
        assert_eq!(Alone::with(&second, most).map(drop).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= most);
        drop(looks);
        assert!(Alone::with(&second, Duration::ZERO).is_ok());
        assert!(Alone::with(&first, Duration::ZERO).is_ok(), "it is let go");
        if !has(Need::Root) || !has(Need::Path("/proc/kpageflags".into())) {
            return;
        }
        let (done, opened) = std::sync::mpsc::channel();
        let flags = File::open("/proc/kpageflags").unwrap();
        let looks = Alone::with(&flags, PATIENCE);
        std::thread::spawn(move || done.send(PageFlags::open().map(drop)));
        let is_open = opened.recv_timeout(PATIENCE).is_ok_and(|opened| opened.is_ok());
        drop(looks);
        assert!(is_open, "it waits for others");
    }

    #[test]
    fn pages_that_were_read_or_are_mapped_are_told_from_those_brought_in() {
        if !has(Need::Root) || !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
            return;
        }
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; (PAGES * PAGE_SIZE) as usize]).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let flags = PageFlags::open().unwrap();
        in_the_end(|| {
            evict(file.as_fd(), PATIENCE).unwrap();
            // Pages 32 to 47 are brought in and awaited, and 40 is read.
            let half = std::num::NonZeroU64::new(16 * PAGE_SIZE);
            rustix::fs::fadvise(&file, 32 * PAGE_SIZE, half, rustix::fs::Advice::WillNeed).unwrap();
            for page in 32..48 {
                FileMapping::await_page(file.as_fd(), PageIndex(page), flags.bin.as_fd()).unwrap();
            }
            file.read_exact_at(&mut [0; PAGE_SIZE as usize], 40 * PAGE_SIZE).unwrap();
            // Looking changes nothing.
            (0..3).all(|_| {
                let all = noted(&flags, &file);
                let used: Vec<u64> = all.iter().filter(|one| one.1).map(|one| one.0).collect();
                assert!(used.is_empty() || used == [40], "{all:?}");
                used == [40] && all.len() == 16
            })
        });
        // A mapping that stays: its page counts.
        let mapping = FileMapping::new(file.as_fd(), PageRange::new(PageIndex(0), PageIndex(PAGES))).unwrap();
        mapping.expect_random().unwrap();
        in_the_end(|| {
            mapping.byte(3 * PAGE_SIZE);
            noted(&flags, &file).contains(&(3, true))
        });
    }
}
