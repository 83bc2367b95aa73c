//! Memory without a name in any file system, which any number of regions can show.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use prepage_core::PageRange;
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, SeekFrom};
use rustix::process::Resource;

use crate::cachestat;
use crate::given::number;
use crate::own_tmpfs;
use crate::region::Span;

/// What keeps a memfd as long as it is, whoever opens it.
const FIXED: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// A sparse memfd: pages that nobody wrote take no memory.
///
/// Regions that show it are plain memory to whoever borrows their bytes. So its length is sealed, or nobody may open it, and
/// whoever writes to it or takes pages away owns those pages at the time: in `prepage-vm` the one who holds their claim.
#[derive(Debug)]
pub struct Memfd {
    fd: OwnedFd,
    len: u64,
    has_blocks: bool,
}

/// Whether this process may make files of `len_bytes` (`ulimit -f`).
///
/// # Errors
/// EFBIG where it may not: the kernel would end it with SIGXFSZ.
pub fn check_len(len_bytes: u64) -> io::Result<()> {
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(most) if most < len_bytes => Err(rustix::io::Errno::FBIG.into()),
        _ => Ok(()),
    }
}

/// Makes an empty memfd, called `name` in /proc/PID/maps. It can never be executed as a file, which systems under
/// vm.memfd_noexec=2 demand. Needs Linux 6.3.
///
/// # Errors
/// EMFILE where no descriptor is left; [`io::ErrorKind::Unsupported`] where the kernel is too old.
pub fn without_exec(name: &str) -> io::Result<OwnedFd> {
    match rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::NOEXEC_SEAL) {
        // Who asks for such memfds serves faults of them, which takes more than the flag does.
        Err(rustix::io::Errno::INVAL) => Err(io::Error::new(
            io::ErrorKind::Unsupported,
            "this kernel has no memfds that cannot be executed; Linux 6.6 has all that maps need",
        )),
        made => Ok(made?),
    }
}

impl Memfd {
    /// Makes one of `len_bytes`, by [`without_exec`].
    ///
    /// # Errors
    /// As `without_exec`; EFBIG as [`check_len`].
    pub fn create(name: &str, len_bytes: u64) -> io::Result<Self> {
        check_len(len_bytes)?;
        let fd = without_exec(name)?;
        rustix::fs::ftruncate(&fd, len_bytes)?;
        rustix::fs::fcntl_add_seals(&fd, FIXED)?;
        Ok(Self { fd, len: len_bytes, has_blocks: false })
    }

    /// As [`Self::create`], and blocks of it may be huge pages ([`crate::block`]) where this process may have a file system of its own. It is a file of that then,
    /// which takes no seals; but only who has its descriptor, or all rights, can open it and change its length.
    ///
    /// # Errors
    /// As `create`.
    pub fn create_with_blocks(name: &str, len_bytes: u64) -> io::Result<Self> {
        check_len(len_bytes)?;
        let Some(fd) = own_tmpfs::file(name) else { return Self::create(name, len_bytes) };
        rustix::fs::ftruncate(&fd, len_bytes)?;
        Ok(Self { fd, len: len_bytes, has_blocks: true })
    }

    /// Whether blocks of it may be huge pages.
    pub fn has_blocks(&self) -> bool {
        self.has_blocks
    }

    /// One that [`Self::create`] made, in this process or another that keeps it open, by its path in /proc/PID/fd.
    ///
    /// # Errors
    /// Those of open(2); EINVAL for another file, whose length is not sealed.
    pub fn open(path: &Path) -> io::Result<Self> {
        let fd = OwnedFd::from(OpenOptions::new().read(true).write(true).open(path)?);
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(FIXED) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        let len = rustix::fs::fstat(&fd)?.st_size as u64;
        Ok(Self { fd, len, has_blocks: false })
    }

    /// Its bytes, holes among them.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Writes all of `bytes` at `offset`. May be called in signal handlers.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.fd, &bytes[done..], offset + done as u64) {
                Ok(written) => done += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Writes what `[from, from + len)` of `span` holds at `offset`, as far as it can be read without a fault that user code
    /// would have to resolve; returns the bytes written. May be called in signal handlers.
    ///
    /// # Panics
    /// Where the range does not lie in the span, or the span is another process's.
    pub fn write_from(&self, span: &Span, from: u64, len: u64, offset: u64) -> io::Result<u64> {
        let source = span.own_at(from, len);
        loop {
            // SAFETY: the kernel reads from the span, which is mapped while it lives, and gives EFAULT for what cannot be read.
            let written = unsafe {
                libc::pwrite(self.fd.as_raw_fd(), source.cast(), len as usize, offset as libc::off_t)
            };
            match number(written) {
                Ok(written) => return Ok(written as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => return Ok(0),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads `into.len()` bytes at `offset`, all of which lie within the length. May be called in signal handlers.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < into.len() {
            match rustix::io::pread(&self.fd, &mut into[done..], offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Takes the pages of `[offset, offset + len)` away, out of all regions that show them; private copies stay.
    pub fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(
            &self.fd,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            offset,
            len,
        )?)
    }

    /// How many pages of `range` are in memory; the others are holes, or lie in swap space.
    ///
    /// # Errors
    /// As [`cachestat::counts`].
    pub fn pages_in_memory(&self, range: PageRange) -> io::Result<u64> {
        Ok(cachestat::counts(self.fd.as_fd(), range)?.cached)
    }

    /// The first run of bytes at or after `offset` that holds pages, as far as the kernel knows; `None` where none follows.
    ///
    /// # Errors
    /// Those of lseek(2).
    pub fn next_data(&self, offset: u64) -> io::Result<Option<(u64, u64)>> {
        let start = match rustix::fs::seek(&self.fd, SeekFrom::Data(offset)) {
            Ok(start) => start,
            Err(rustix::io::Errno::NXIO) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(&self.fd, SeekFrom::Hole(start))?;
        Ok((end > start).then_some((start, end)))
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_here_is_opened_and_nothing_else() {
        let path = |fd: BorrowedFd<'_>| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let own = Memfd::create("opened", 4096).unwrap();
        own.write_at(&[7], 5).unwrap();
        let mut byte = [0];
        Memfd::open(path(own.fd()).as_ref()).unwrap().read_at(&mut byte, 5).unwrap();
        assert_eq!(byte, [7]);
        // One that takes no seals, and one that whoever has it may still truncate.
        let [other, unsealed] = [MemfdFlags::empty(), MemfdFlags::ALLOW_SEALING]
            .map(|flags| rustix::fs::memfd_create("other", MemfdFlags::CLOEXEC | flags).unwrap());
        for other in [path(other.as_fd()), path(unsealed.as_fd()), "/dev/null".to_owned()] {
            let error = Memfd::open(other.as_ref()).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{other}");
        }
    }

    #[test]
    fn nobody_changes_its_length() {
        let memfd = Memfd::create("sealed", 2 * 4096).unwrap();
        for len in [4096, 3 * 4096] {
            let error = rustix::fs::ftruncate(memfd.fd(), len).unwrap_err();
            assert_eq!(error, rustix::io::Errno::PERM, "{len}");
        }
        memfd.write_at(&[7], 4096).unwrap();
        memfd.punch(4096, 4096).unwrap();
        assert_eq!(memfd.next_data(0).unwrap(), None);
    }
}
