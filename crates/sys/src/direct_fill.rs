//! A part of a memfd in this process's memory for reads to go to: without a copy in between, and without the lock that write(2)
//! takes on a whole memfd.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::given::{check, mapping, number};
use crate::memfd::Memfd;

/// Pages of a memfd while they are read to, writable by the kernel on this process's behalf. Nothing is borrowed from them: whoever reads
/// the bytes has a mapping of their own, and what is written here is to them as if write(2) had written it. Not inherited over fork.
///
/// They are mapped for that time alone: in a mapping that stays mlockall(2) makes a page of each hole (MCL_CURRENT), and a core dump too.
#[derive(Debug)]
pub struct DirectFill {
    start: NonNull<libc::c_void>,
    len: usize,
}

impl DirectFill {
    /// Makes the pages of `memfd` at `[offset, offset + len)`; what it did not hold yet are zeros.
    ///
    /// # Errors
    /// ENOMEM where memory, the address space or the number of mappings (vm.max_map_count) is exhausted; EAGAIN under mlockall(2) where no more may be
    /// locked; EFAULT behind the end of the memfd. It may hold some of the pages then.
    pub fn make(memfd: &Memfd, offset: u64, len: u64) -> io::Result<Self> {
        let pages = Self::map(memfd, offset, len, libc::PROT_READ | libc::PROT_WRITE)?;
        for advice in [libc::MADV_DONTFORK, libc::MADV_POPULATE_WRITE] {
            pages.advise(advice)?;
        }
        Ok(pages)
    }

    /// Without any pages so far, unless mlockall(2) makes some of what may be read.
    pub(crate) fn map(memfd: &Memfd, offset: u64, len: u64, protection: libc::c_int) -> io::Result<Self> {
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let (len, offset) =
            (usize::try_from(len).map_err(invalid)?, libc::off_t::try_from(offset).map_err(invalid)?);
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let fd = memfd.fd().as_raw_fd();
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, fd, offset) };
        Ok(Self { start: mapping(start)?, len })
    }

    pub(crate) fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is the mapping, and no advice used in this crate changes the memfd's bytes.
        check(unsafe { libc::madvise(self.start.as_ptr(), self.len, advice) })
    }

    /// Lets pages be made that were mapped without access, and by no mlockall(2) before that is asked for.
    pub(crate) fn show(&self) -> io::Result<()> {
        // SAFETY: the mapping is this value's. What mlockall(2) locks is filled as soon as it can be read.
        check(unsafe {
            libc::munlock(self.start.as_ptr(), self.len);
            libc::mprotect(self.start.as_ptr(), self.len, libc::PROT_READ | libc::PROT_WRITE)
        })
    }

    /// Reads up to `len` bytes of `file` at `file_offset` to `at` of the pages. As with [`Memfd::write_at`], the caller owns the pages: no region lends
    /// them as a slice.
    ///
    /// # Errors
    /// Those of pread(2).
    ///
    /// # Panics
    /// Beyond the pages.
    pub fn read(&self, file: BorrowedFd<'_>, file_offset: u64, at: u64, len: u64) -> io::Result<usize> {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.len as u64), "beyond the pages");
        let file_offset = libc::off_t::try_from(file_offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel writes within the mapping, as just checked, of which there are no references.
        let read = unsafe {
            let to = self.start.as_ptr().byte_add(at as usize);
            libc::pread(file.as_raw_fd(), to, len as usize, file_offset)
        };
        number(read).map(|read| read as usize)
    }

    #[cfg(test)]
    pub(crate) fn start(&self) -> u64 {
        self.start.as_ptr() as u64
    }
}

impl Drop for DirectFill {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it. The thread that made it is not in a child of fork(2), where it is not mapped.
        unsafe { libc::munmap(self.start.as_ptr(), self.len) };
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
        let memfd = Memfd::create("pages", 4 * 4096).unwrap();
        let pages = DirectFill::make(&memfd, 4096, 2 * 4096).unwrap();
        assert_eq!(pages.read(file.as_fd(), 0, 0, 2 * 4096).unwrap(), 2 * 4096);
        // Past the end of the file there is nothing to wait for.
        assert_eq!(pages.read(file.as_fd(), 3 * 4096, 0, 4096).unwrap(), 0);
        drop(pages);
        assert_eq!(memfd.next_data(0).unwrap(), Some((4096, 3 * 4096)));
        let mut bytes = [1; 4 * 4096];
        memfd.read_at(&mut bytes, 0).unwrap();
        assert!(bytes[..4096].iter().chain(&bytes[3 * 4096..]).all(|&byte| byte == 0));
        assert!(bytes[4096..3 * 4096].iter().all(|&byte| byte == 7));
        let behind = DirectFill::make(&memfd, 4 * 4096, 4096).unwrap_err();
        assert_eq!(behind.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    #[should_panic(expected = "beyond the pages")]
    fn reads_stay_within_it() {
        let file = tempfile::tempfile().unwrap();
        let memfd = Memfd::create("pages", 4096).unwrap();
        let pages = DirectFill::make(&memfd, 0, 4096).unwrap();
        let _ = pages.read(file.as_fd(), 0, 0, 4097);
    }
}
