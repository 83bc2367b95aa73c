//! Which pages of files are in memory, for users who may not ask that of every file.

use std::fs::File;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use prepage_core::PageIndex;
use prepage_sys::cachestat::cached_pages;
use prepage_sys::file_system::{BTRFS, TMPFS, kind_of};
use prepage_sys::mapping::are_resident;
use prepage_sys::thread_reads::{are_counted, bytes_read_by_this_thread};
use rustix::fs::{Advice, AtFlags, StatxAttributes, StatxFlags, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

/// What is in memory takes a microsecond or two to read. A page that takes longer may be one that this very call has had read, or the thread had to wait for
/// its CPU meanwhile.
pub(crate) const AT_ONCE: Duration = Duration::from_micros(20);

/// File systems that keep what they read of a file in the page cache, and with that very file (statfs(2)). Others may keep it in a cache of
/// their own (ZFS), or with another file (overlayfs; FUSE with passthrough).
const WITH_PAGES: [u32; 14] = [
    0xef53,      // ext2, ext3, ext4
    0x5846_5342, // xfs
    BTRFS,
    0xf2f5_2010, // f2fs
    0xca45_1a4e, // bcachefs
    0xe0f5_e1e2, // erofs
    0x7371_7368, // squashfs
    0x9660,      // iso9660
    0x4d44,      // vfat
    0x2011_bab0, // exfat
    0x6969,      // nfs
    0xff53_4d42, // cifs
    0xfe53_4d42, // smb3
    TMPFS,
];

/// Whether `page` is in memory. The kernel's count is believed where it counts the page. It says nothing of files that the
/// caller neither owns nor may write (EPERM, since Linux 6.16), and counts nothing in those of some file systems. There a read of one byte tells
/// that the kernel ends before it would wait, in an overlay mincore(2), and where neither does, the time that an ordinary read takes. A page that a
/// read found missing is in memory or on its way afterwards.
pub(crate) fn is_resident(file: &File, page: PageIndex) -> bool {
    let told = counted(file, page).or_else(|| answers_without_waiting(file, page));
    told.unwrap_or_else(|| answers_within(file, page, AT_ONCE))
}

/// Whether all of `pages` are, asked so that nobody waits for the device: what the kernel does not say is missing. A page that is looked for is all that is ever
/// read.
pub(crate) fn are_at_hand(file: &File, pages: &[PageIndex]) -> bool {
    let is_counted = |page: &PageIndex| counted(file, *page);
    match pages.iter().map(is_counted).find(|is_there| *is_there != Some(true)) {
        None => true,
        Some(Some(_)) => false,
        Some(None) => {
            let _ = fadvise(file, 0, None, Advice::Random);
            let before = bytes_read_by_this_thread();
            pages.iter().all(|page| answers(file, *page, before) == Some(true))
        }
    }
}

/// Whether the kernel counts `page` among those in memory; `None` where its count says nothing.
fn counted(file: &File, page: PageIndex) -> Option<bool> {
    match cached_pages(file.as_fd(), page.alone()) {
        Ok(1..) => Some(true),
        Ok(0) if has_pages(file) => Some(false),
        _ => None,
    }
}

/// Whether what is in memory of `file` is in the page cache. What lies in memory itself (DAX) is not.
fn has_pages(file: &File) -> bool {
    let is_known = kind_of(file).is_ok_and(|kind| WITH_PAGES.contains(&kind));
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let is_dax = |file| {
        let attributes = rustix::fs::statx(file, "", flags, StatxFlags::empty());
        attributes.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::DAX))
    };
    is_known && !is_dax(file)
}

/// Whether the kernel answers a read of `page` from memory, by a read that ends before it would wait for the device; `None` where the kernel
/// has no such reads, and cannot be asked in another way. A fast device may answer within the call. So an answer counts only if it comes at
/// once, or if the kernel's count of what devices have read for this thread is as before.
fn answers_without_waiting(file: &File, page: PageIndex) -> Option<bool> {
    answers(file, page, bytes_read_by_this_thread())
}

/// The same, where devices had read so many bytes for this thread `before`.
fn answers(file: &File, page: PageIndex, before: u64) -> Option<bool> {
    let began = Instant::now();
    match read(file, page, ReadWriteFlags::NOWAIT) {
        // Overlayfs. Whoever counts as the owner may ask of the pages of the file below.
        Err(Errno::OPNOTSUPP) => are_resident(file.as_fd(), page.alone()),
        Err(_) => Some(false),
        Ok(_) => {
            let is_at_once = began.elapsed() < AT_ONCE;
            let asks_no_device = || before == bytes_read_by_this_thread() && are_counted() && has_pages(file);
            Some(is_at_once || asks_no_device())
        }
    }
}

/// How long an ordinary read takes tells as much, if no device is counted as asked meanwhile: a fast one may answer as soon.
fn answers_within(file: &File, page: PageIndex, time: Duration) -> bool {
    let (began, before) = (Instant::now(), bytes_read_by_this_thread());
    let is_read = read(file, page, ReadWriteFlags::empty()).is_ok();
    is_read && began.elapsed() < time && before == bytes_read_by_this_thread()
}

fn read(file: &File, page: PageIndex, flags: ReadWriteFlags) -> Result<usize, Errno> {
    let mut byte = [0u8; 1];
    preadv2(file, &mut [rustix::io::IoSliceMut::new(&mut byte)], page.offset_bytes(), flags)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use prepage_profiles::at_hand::at_hand;
    use prepage_sys::cachestat::evict;
    use prepage_testing::{Need, has, skip, unless_caches_dropped};

    use super::*;

    #[test]
    fn pages_that_a_probe_itself_has_read_are_told_from_those_in_memory() {
        const PAGES: u64 = 512;
        if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
            return;
        }
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&[7; (PAGES * 4096) as usize]).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let there = |is_there: fn(&File, PageIndex) -> bool| {
            (0..PAGES).filter(|&page| is_there(&file, PageIndex(page))).count() as u64
        };
        assert_eq!(there(is_resident), PAGES);
        let is_at_hand = |file: &File, page| are_at_hand(file, &[page]);
        let answers = |file: &File, page| answers_without_waiting(file, page) == Some(true);
        let answers_at_once = |file: &File, page| answers_within(file, page, AT_ONCE);
        // As a device would that is faster than memory.
        let answers_soon = |file: &File, page| answers_within(file, page, Duration::from_secs(60));
        assert_eq!((there(is_at_hand), there(answers_soon)), (PAGES, PAGES));
        // A thread that has to wait for its CPU takes its time over what is in memory, too.
        assert!(there(answers_at_once) > PAGES / 2);
        for is_there in [is_resident, is_at_hand, answers_at_once, answers, answers_soon] {
            evict(file.as_fd(), Duration::from_secs(60)).unwrap();
            assert_eq!(there(is_there), 0);
        }
    }

    /// The service asks with the rights of everybody, whom the kernel answers by such reads alone: a start on a busy machine would pass for a cold one.
    #[test]
    fn pages_in_memory_are_told_where_the_thread_has_to_wait_for_its_cpu() {
        const PAGES: u64 = 64;
        if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) || !has(Need::Path("/proc/self/io".into()))
        {
            return;
        }
        unless_caches_dropped(|| {
            let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            file.write_all(&[7; (PAGES * 4096) as usize]).unwrap();
            file.sync_all().unwrap();
            let (is_over, all) =
                (AtomicBool::new(false), std::thread::available_parallelism().unwrap().get());
            std::thread::scope(|scope| {
                for _ in 0..2 * all {
                    scope.spawn(|| {
                        while !is_over.load(Ordering::Relaxed) {
                            std::hint::spin_loop();
                        }
                    });
                }
                let until = Instant::now() + Duration::from_secs(60);
                let (mut missing, mut late) = (0, 0);
                while missing == 0 && late < 20 && Instant::now() < until {
                    for page in (0..PAGES).map(PageIndex) {
                        let began = Instant::now();
                        missing += u32::from(answers_without_waiting(&file, page) != Some(true));
                        late += u32::from(began.elapsed() >= AT_ONCE);
                    }
                }
                is_over.store(true, Ordering::Relaxed);
                assert_eq!((missing, late >= 20), (0, true), "{late} answers were late");
            });
        });
    }

    /// An overlay of two directories, unmounted when dropped.
    struct Overlay {
        directory: tempfile::TempDir,
    }

    impl Overlay {
        fn mount() -> rustix::io::Result<Self> {
            let directory =
                tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("this crate's directory is writable");
            for name in ["lower", "upper", "work", "merged"] {
                std::fs::create_dir(directory.path().join(name)).expect("it is new");
            }
            let at = |name: &str| directory.path().join(name).to_string_lossy().into_owned();
            let options = format!("lowerdir={},upperdir={},workdir={}", at("lower"), at("upper"), at("work"));
            let options = std::ffi::CString::new(options).expect("paths hold no zero bytes");
            let flags = rustix::mount::MountFlags::empty();
            rustix::mount::mount("overlay", at("merged"), "overlay", flags, Some(&*options))?;
            Ok(Self { directory })
        }
    }

    impl Drop for Overlay {
        fn drop(&mut self) {
            let merged = self.directory.path().join("merged");
            let _ = rustix::mount::unmount(merged, rustix::mount::UnmountFlags::DETACH);
        }
    }

    #[test]
    fn a_cold_file_on_an_overlay_is_not_taken_for_one_in_memory() {
        const PAGES: u64 = 256;
        let overlay = match Overlay::mount() {
            Ok(overlay) => overlay,
            Err(error @ Errno::PERM) => return skip(Need::Mounts, error),
            Err(error @ Errno::NODEV) => return skip(Need::Path("/sys/module/overlay".into()), error),
            Err(error) => panic!("{error}"),
        };
        let below = overlay.directory.path().join("lower/file");
        std::fs::write(&below, vec![7; (PAGES * 4096) as usize]).unwrap();
        let below = File::open(below).unwrap();
        below.sync_all().unwrap();
        let file = File::open(overlay.directory.path().join("merged/file")).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
        let there = |is_there: fn(&File, PageIndex) -> bool| {
            (0..PAGES).filter(|&page| is_there(&file, PageIndex(page))).count() as u64
        };
        let is_at_hand = |file: &File, page| are_at_hand(file, &[page]);
        let answers_at_once = |file: &File, page| answers_within(file, page, AT_ONCE);
        evict(below.as_fd(), Duration::from_secs(60)).unwrap();
        assert_eq!((there(is_resident), there(is_at_hand)), (0, 0));
        let cold = there(answers_at_once);
        assert!(cold < PAGES / 4, "{cold} of {PAGES} pages that were just dropped are said to be in memory");
        // That has read them all.
        assert_eq!((there(is_resident), there(is_at_hand)), (PAGES, PAGES));
        let path = overlay.directory.path().join("merged/file");
        let read = || at_hand(&path).unwrap().read(PAGES * 4096);
        assert_eq!(read().unwrap().len() as u64, PAGES * 4096);
        evict(below.as_fd(), Duration::from_secs(60)).unwrap();
        assert_eq!(read().unwrap_err(), Errno::AGAIN);
        there(answers_at_once);
        // A thread that has to wait for its CPU takes its time over some: the best round of several.
        let warm = (0..20).map(|_| there(answers_at_once)).max().unwrap();
        assert!(warm > PAGES / 2, "{warm} of {PAGES} pages in memory are said to be there");
    }
}
