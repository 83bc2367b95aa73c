//! A file mapped to be read: its bytes as a program finds them, and which of its pages are in memory.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::given::check;

/// Pages of a file, mapped shared and read-only. Mapping reads nothing.
#[derive(Debug)]
pub struct FileMapping {
    start: NonNull<u8>,
    pages: PageRange,
}

// SAFETY: the mapping belongs to no thread, and stays until it is dropped.
unsafe impl Send for FileMapping {}
// SAFETY: as above; it is only read, which needs no order, or written to by atomics ([`WritableMapping`]).
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps `pages` of `file`. They may lie behind its end, where [`FileMapping::byte`] would end the process.
    ///
    /// # Errors
    /// EINVAL for no pages, ENODEV where the file system cannot map, EACCES for files not open to read.
    pub fn new(file: BorrowedFd<'_>, pages: PageRange) -> io::Result<Self> {
        Self::with(file, pages, ProtFlags::READ)
    }

    /// The same of pages that may be executed, which Linux reads ahead in another way.
    ///
    /// # Errors
    /// As [`FileMapping::new`]; EPERM on file systems mounted `noexec`.
    pub fn executable(file: BorrowedFd<'_>, pages: PageRange) -> io::Result<Self> {
        Self::with(file, pages, ProtFlags::READ | ProtFlags::EXEC)
    }

    fn with(file: BorrowedFd<'_>, pages: PageRange, allowed: ProtFlags) -> io::Result<Self> {
        let len_bytes = usize::try_from(pages.bytes()).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // SAFETY: the kernel chooses the place, so that no memory in use changes.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                len_bytes,
                allowed,
                MapFlags::SHARED,
                file,
                pages.start().offset_bytes(),
            )
        }?;
        let start = NonNull::new(start.cast()).expect("mmap gives no null without MAP_FIXED");
        Ok(Self { start, pages })
    }

    /// The byte at `offset_bytes` of the mapping, read from memory each time it is asked for. Waits for the disk where
    /// its page is not in memory.
    ///
    /// A file that is cut short while mapped ends the process by SIGBUS, as it does every program that maps it.
    ///
    /// # Panics
    /// Outside the mapping.
    #[inline]
    pub fn byte(&self, offset_bytes: u64) -> u8 {
        assert!(offset_bytes < self.pages.bytes(), "a read outside the mapping");
        // SAFETY: within the mapping by the check above, and any byte is a valid u8. Volatile, because other processes
        // may write the file meanwhile.
        unsafe { self.start.as_ptr().add(offset_bytes as usize).read_volatile() }
    }

    /// Tells the kernel that the pages are touched in no order.
    ///
    /// # Errors
    /// EINVAL on kernels without the advice.
    pub fn expect_random(&self) -> io::Result<()> {
        self.expect(rustix::mm::Advice::Random)
    }

    /// Tells the kernel that the pages are touched once and in order: when the mapping goes, it does not count them as used.
    ///
    /// # Errors
    /// EINVAL on kernels without the advice.
    pub fn expect_sequential(&self) -> io::Result<()> {
        self.expect(rustix::mm::Advice::Sequential)
    }

    /// Has the kernel read the huge page of the file in which the mapping begins, if its first page is not in memory, and waits for it. Where
    /// the kernel finds such a page and the file system can use it, the file's 2 MiB lie in one piece of memory then: a device takes less
    /// time for it than for a page in each place, the disk of a virtual machine half of it.
    ///
    /// # Errors
    /// EFAULT behind the end of the file and where it cannot be read, EINVAL on kernels before 5.14 and those without huge pages.
    pub fn fetch_huge(&self) -> io::Result<()> {
        self.expect(rustix::mm::Advice::LinuxHugepage)?;
        // Or the one behind it would be read as well.
        self.expect_random()?;
        let populate = rustix::mm::Advice::LinuxPopulateRead;
        // SAFETY: the mapping has a page at least, and is only read.
        Ok(unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), PAGE_SIZE as usize, populate) }?)
    }

    fn expect(&self, advice: rustix::mm::Advice) -> io::Result<()> {
        // SAFETY: the range is our mapping, and the advice changes nothing in it.
        Ok(unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.pages.bytes() as usize, advice) }?)
    }

    /// Has the kernel read the byte at `offset_bytes` of the mapping into the file `into`: its page is mapped afterwards, and a
    /// file that was cut short meanwhile is an error.
    ///
    /// # Errors
    /// EFAULT where there is no such page any more.
    ///
    /// # Panics
    /// Outside the mapping.
    pub fn touch(&self, offset_bytes: u64, into: BorrowedFd<'_>) -> io::Result<()> {
        use std::os::fd::AsRawFd;
        assert!(offset_bytes < self.pages.bytes(), "a read outside the mapping");
        // SAFETY: one byte within the mapping by the check above, which the kernel reads and nobody here.
        check(unsafe {
            libc::pwrite(into.as_raw_fd(), self.start.as_ptr().add(offset_bytes as usize).cast(), 1, 0)
        })
    }

    /// Waits until page `page` of `file` is in memory. The kernel does not note that as a use of it, as it notes a read(2). One byte
    /// of it is left in `bin`.
    ///
    /// # Errors
    /// EFAULT where there is no such page, ENODEV where the file system cannot map.
    pub fn await_page(file: BorrowedFd<'_>, page: PageIndex, bin: BorrowedFd<'_>) -> io::Result<()> {
        let mapping = Self::new(file, page.alone())?;
        mapping.expect_random()?;
        mapping.touch(0, bin)?;
        mapping.expect_sequential()
    }

    /// Where the mapping begins in this process's address space.
    pub fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Whether each page is in memory (mincore(2)). Says yes of all pages to those who neither own the file nor may
    /// write it: ask [`may_know_residency`] first.
    pub fn resident(&self) -> io::Result<Vec<bool>> {
        let mut pages = vec![0u8; self.pages.len() as usize];
        let len_bytes = pages.len() * PAGE_SIZE as usize;
        // SAFETY: the range is our mapping, and `pages` has one byte for each page of it.
        check(unsafe { libc::mincore(self.start.as_ptr().cast(), len_bytes, pages.as_mut_ptr()) })?;
        // Only the lowest bit is defined.
        Ok(pages.into_iter().map(|page| page & 1 == 1).collect())
    }
}

/// A file mapped to be written to: what programs that use no [`prepage-vm`](https://docs.rs/prepage-vm) do, to compare with.
#[derive(Debug)]
pub struct WritableMapping(FileMapping);

impl WritableMapping {
    /// Maps `pages` of `file`, shared.
    ///
    /// # Errors
    /// As [`FileMapping::new`]; EACCES for files not open to be written.
    pub fn new(file: BorrowedFd<'_>, pages: PageRange) -> io::Result<Self> {
        FileMapping::with(file, pages, ProtFlags::READ | ProtFlags::WRITE).map(Self)
    }

    /// Writes the byte at `offset_bytes` of the mapping, which other threads may read and write meanwhile.
    ///
    /// # Panics
    /// Outside the mapping.
    #[inline]
    pub fn set_byte(&self, offset_bytes: u64, byte: u8) {
        self.at(offset_bytes).store(byte, Ordering::Relaxed);
    }

    /// The byte at `offset_bytes` of the mapping, as [`FileMapping::byte`] reads it.
    ///
    /// # Panics
    /// Outside the mapping.
    #[inline]
    pub fn byte(&self, offset_bytes: u64) -> u8 {
        self.at(offset_bytes).load(Ordering::Relaxed)
    }

    #[inline]
    fn at(&self, offset_bytes: u64) -> &AtomicU8 {
        assert!(offset_bytes < self.0.pages.bytes(), "a touch outside the mapping");
        // SAFETY: within the mapping by the check above, which is writable since `new`, and reached by atomics alone.
        unsafe { AtomicU8::from_ptr(self.0.start.as_ptr().add(offset_bytes as usize)) }
    }

    /// Makes what was written durable: msync(2) with MS_SYNC.
    ///
    /// # Errors
    /// Those of writing to the file.
    pub fn sync(&self) -> io::Result<()> {
        let len_bytes = self.0.pages.bytes() as usize;
        // SAFETY: the range is our mapping.
        Ok(unsafe {
            rustix::mm::msync(self.0.start.as_ptr().cast(), len_bytes, rustix::mm::MsyncFlags::SYNC)
        }?)
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // SAFETY: nobody holds a pointer into the mapping; `byte` returns values.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.pages.bytes() as usize) };
    }
}

/// How far behind a file's last page one lies that no folio of the file reaches: these have 2 MiB at most.
const BEHIND_PAGES: u64 = 512;

/// Whether the kernel tells this process which pages of the regular file `file` are in memory: to its owner, to those who may write it, and to
/// CAP_FOWNER (`can_do_mincore` in mm/mincore.c). Which owner counts, and for which user namespace, only the kernel knows. To others
/// mincore(2) says that all is in memory, what lies behind the end as well: that is what is asked for here. A file that grows meanwhile may
/// count as one of which nothing is told.
///
/// # Errors
/// EACCES for files not open to read.
pub fn may_know_residency(file: BorrowedFd<'_>) -> io::Result<bool> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    // What FUSE and network file systems know is enough, and others know it by themselves.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let end = statx(file, "", flags, StatxFlags::SIZE)?.stx_size.div_ceil(PAGE_SIZE);
    let behind = PageIndex(end + BEHIND_PAGES).alone();
    match FileMapping::new(file, behind) {
        Ok(mapping) => Ok(mapping.resident()? == [false]),
        // What cannot be mapped has no pages of which mincore(2) could tell.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Whether all of `pages` are in memory (mincore(2)); of a file in an overlay, those of the file below. `None` where the kernel does not tell this
/// process.
pub fn are_resident(file: BorrowedFd<'_>, pages: PageRange) -> Option<bool> {
    if !may_know_residency(file).ok()? {
        return None;
    }
    let there = FileMapping::new(file, pages).ok()?.resident().ok()?;
    Some(there.into_iter().all(|is_there| is_there))
}

/// Whether this process may write the file, which may be open for reading only.
pub fn may_write(file: BorrowedFd<'_>) -> bool {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = rustix::fs::AtFlags::EACCESS;
    rustix::fs::accessat(rustix::fs::CWD, path, rustix::fs::Access::WRITE_OK, flags).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use prepage_core::PageIndex;
    use prepage_testing::{Need, assert_passed, child_command, child_output, has, is_child, this_test};

    use super::*;

    fn file_of(bytes: &[u8]) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    #[test]
    fn bytes_are_those_of_the_file_from_the_first_page_mapped() {
        let content: Vec<u8> = (0..3 * PAGE_SIZE).map(|at| (at / PAGE_SIZE) as u8 + 1).collect();
        let file = file_of(&content);
        let mapping = FileMapping::new(file.as_fd(), PageRange::new(PageIndex(1), PageIndex(3))).unwrap();
        assert_eq!((mapping.byte(0), mapping.byte(PAGE_SIZE), mapping.byte(2 * PAGE_SIZE - 1)), (2, 3, 3));
    }

    #[test]
    fn what_was_just_written_is_in_memory_and_what_lies_behind_the_end_is_not() {
        let file = file_of(&[7; 2 * PAGE_SIZE as usize]);
        let mapping = FileMapping::new(file.as_fd(), PageRange::new(PageIndex(0), PageIndex(4))).unwrap();
        assert!(may_know_residency(file.as_fd()).unwrap() && may_write(file.as_fd()));
        assert_eq!(mapping.resident().unwrap(), [true, true, false, false]);
    }

    /// CAP_FOWNER counts for owners alone whom the user namespace knows.
    #[test]
    fn a_users_own_namespace_is_not_told_which_pages_of_others_files_are_in_memory() {
        const FILE: &str = "PREPAGE_TEST_FILE";
        let name = this_test();
        if is_child(&name) {
            let file = std::fs::File::open(std::env::var_os(FILE).unwrap()).unwrap();
            let pages = PageRange::new(PageIndex(0), PageIndex(1));
            assert!(!may_know_residency(file.as_fd()).unwrap());
            assert_eq!(are_resident(file.as_fd(), pages), None);
            return;
        }
        if !has(Need::Root) || !has(Need::UserNamespace) {
            return;
        }
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[7; PAGE_SIZE as usize]).unwrap();
        std::os::unix::fs::fchown(&file, Some(65_533), Some(65_533)).unwrap();
        std::fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert!(may_know_residency(file.as_fd()).unwrap(), "outside, root counts as the owner");
        let namespace = ["unshare", "-U", "--map-root-user"];
        assert_passed(&child_output(child_command(&name, &namespace).env(FILE, file.path())));
    }

    #[test]
    fn a_huge_page_of_a_file_comes_whole_and_behind_its_end_is_an_error() {
        const HUGE_PAGES: u64 = 512;
        let here = env!("CARGO_MANIFEST_DIR");
        if !has(Need::Eviction(here.into())) {
            return;
        }
        let mut file = tempfile::tempfile_in(here).unwrap();
        file.write_all(&vec![7; (2 * HUGE_PAGES * PAGE_SIZE) as usize]).unwrap();
        file.sync_all().unwrap();
        let resident = |pages: std::ops::Range<u64>| {
            let pages = PageRange::new(PageIndex(pages.start), PageIndex(pages.end));
            let there = FileMapping::new(file.as_fd(), pages).unwrap().resident().unwrap();
            there.into_iter().filter(|&there| there).count() as u64
        };
        while resident(0..2 * HUGE_PAGES) > 0 {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        }
        let fetch = |page| {
            let page = PageRange::new(PageIndex(page), PageIndex(page + 1));
            FileMapping::new(file.as_fd(), page).unwrap().fetch_huge()
        };
        fetch(HUGE_PAGES + 100).unwrap();
        assert_eq!(resident(HUGE_PAGES + 100..HUGE_PAGES + 101), 1);
        // Small pages that stand in for it are on their way still.
        while resident(HUGE_PAGES..2 * HUGE_PAGES) < HUGE_PAGES {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        assert_eq!(resident(0..HUGE_PAGES), 0, "no more than that was read");
        assert_eq!(fetch(2 * HUGE_PAGES).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    #[should_panic(expected = "outside the mapping")]
    fn reading_past_the_mapping_is_a_broken_invariant() {
        let file = file_of(&[7; PAGE_SIZE as usize]);
        FileMapping::new(file.as_fd(), PageRange::new(PageIndex(0), PageIndex(1))).unwrap().byte(PAGE_SIZE);
    }
}
