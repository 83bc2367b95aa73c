//! A memfd in this process's memory for reads to go to: without a copy in between, and without the lock that write(2)
//! takes on a whole memfd.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::fork;
use crate::given::{check, mapping, number};
use crate::memfd::Memfd;

/// All of a memfd, writable by the kernel on this process's behalf. Nothing is borrowed from it: whoever reads the bytes
/// has a mapping of their own, and what is written here is to them as if write(2) had written it. Not inherited over fork.
/// It is in no core dump, which would make a page of each hole.
#[derive(Debug)]
pub struct DirectFill {
    start: NonNull<u8>,
    len: usize,
    /// The process that it exists in.
    generation: u64,
}

// SAFETY: the value hands out no reference to the memory; the kernel alone writes to it.
unsafe impl Send for DirectFill {}
// SAFETY: as above.
unsafe impl Sync for DirectFill {}

impl DirectFill {
    /// Of the first `len` bytes of `memfd`. What lies behind its end cannot be read to.
    ///
    /// # Errors
    /// ENOMEM when the address space or the number of mappings (vm.max_map_count) is exhausted.
    pub fn map(memfd: &Memfd, len: u64) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let fd = memfd.fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = mapping(unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, fd, 0) })?;
        let start = start.cast::<u8>();
        let view = Self { start, len, generation: fork::generation() };
        fork::keep(start.as_ptr() as usize, len);
        view.advise(0, view.len as u64, libc::MADV_DONTFORK)?;
        view.advise(0, view.len as u64, libc::MADV_DONTDUMP)?;
        // SAFETY: the mapping is this value's. Under mlockall(2) a readable one would be filled with zeros at once.
        check(unsafe {
            libc::munlock(start.as_ptr().cast(), len);
            libc::mprotect(start.as_ptr().cast(), len, libc::PROT_READ | libc::PROT_WRITE)
        })?;
        Ok(view)
    }

    /// Makes sure that the memfd has pages at `[offset, offset + len)`, zeros where it had none, and shows them.
    pub fn populate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.advise(offset, len, libc::MADV_POPULATE_WRITE)
    }

    /// Shows `[offset, offset + len)` no longer, until it is read to again. The memfd keeps its pages.
    pub fn forget(&self, offset: u64, len: u64) -> io::Result<()> {
        self.advise(offset, len, libc::MADV_DONTNEED_LOCKED)
    }

    /// Reads up to `len` bytes of `file` at `file_offset` to `offset`. As with [`Memfd::write_at`], the caller owns the pages: no region lends them as
    /// a slice.
    ///
    /// # Errors
    /// Those of pread(2).
    pub fn read(&self, file: BorrowedFd<'_>, file_offset: u64, offset: u64, len: u64) -> io::Result<usize> {
        let (to, file_offset) = (self.at(offset, len), file_offset as libc::off_t);
        // SAFETY: the kernel writes within the mapping, of which there are no references.
        let read = number(unsafe { libc::pread(file.as_raw_fd(), to, len as usize, file_offset) })?;
        Ok(read as usize)
    }

    fn at(&self, offset: u64, len: u64) -> *mut libc::c_void {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len as u64), "beyond the memfd");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.start.as_ptr().add(offset as usize).cast() }
    }

    fn advise(&self, offset: u64, len: u64, advice: libc::c_int) -> io::Result<()> {
        let start = self.at(offset, len);
        // SAFETY: the range lies in the mapping, and no advice used here changes the memfd's bytes.
        check(unsafe { libc::madvise(start, len as usize, advice) })
    }
}

impl Drop for DirectFill {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // The parent's, and not mapped here.
            return;
        }
        fork::let_go(self.start.as_ptr() as usize);
        // SAFETY: the mapping is this value's, and nothing refers to it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn reads_go_to_the_memfd_and_stay_there() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &[7; 3 * 4096]).unwrap();
        let memfd = Memfd::create("view", 4 * 4096).unwrap();
        let view = DirectFill::map(&memfd, 4 * 4096).unwrap();
        view.populate(4096, 2 * 4096).unwrap();
        assert_eq!(view.read(file.as_fd(), 0, 4096, 2 * 4096).unwrap(), 2 * 4096);
        view.forget(4096, 2 * 4096).unwrap();
        let mut bytes = [1; 4 * 4096];
        memfd.read_at(&mut bytes, 0).unwrap();
        assert!(bytes[..4096].iter().chain(&bytes[3 * 4096..]).all(|&byte| byte == 0));
        assert!(bytes[4096..3 * 4096].iter().all(|&byte| byte == 7));
        // Past the end of the file there is nothing to wait for.
        assert_eq!(view.read(file.as_fd(), 3 * 4096, 0, 4096).unwrap(), 0);
    }

    #[test]
    #[should_panic(expected = "beyond the memfd")]
    fn reads_stay_within_it() {
        let file = tempfile::tempfile().unwrap();
        let memfd = Memfd::create("view", 4096).unwrap();
        let view = DirectFill::map(&memfd, 4096).unwrap();
        let _ = view.read(file.as_fd(), 0, 0, 4097);
    }
}
