//! A block of 2 MiB of a memfd, in one piece of memory where the kernel finds one: made, and read to.
//!
//! To make such a block takes the kernel an eighth of the time that its 512 pages take one by one, and a device fills it in one request of one piece.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};

use crate::given::{check, mapping, number};
use crate::memfd::Memfd;
use crate::region::REGION_ALIGN;

/// The bytes of a block; one begins at a multiple of them.
pub const BLOCK_BYTES: u64 = REGION_ALIGN;

/// A block while it is read to. Nothing is borrowed from it: whoever reads the bytes has a mapping of their own. Not inherited over fork, and in no core dump.
///
/// It is mapped for that time alone: where a mapping that asks for huge pages stays, the kernel looks for small ones in it to put together (khugepaged), and
/// takes them out of all mappings meanwhile.
#[derive(Debug)]
pub struct Block {
    start: NonNull<libc::c_void>,
}

// SAFETY: the value hands out no reference to the memory; the kernel alone writes to it.
unsafe impl Send for Block {}

impl Block {
    /// Makes the block of `memfd` at `offset`; what it did not hold yet are zeros. In a huge page where [`Memfd::has_blocks`], it held nothing
    /// and memory is not too scattered.
    ///
    /// # Errors
    /// ENOMEM where memory, the address space or the number of mappings is exhausted; EFAULT behind the end of the memfd; EINVAL where the kernel knows no huge
    /// pages.
    ///
    /// # Panics
    /// Where no block begins there.
    pub fn make(memfd: &Memfd, offset: u64) -> io::Result<Self> {
        assert!(offset.is_multiple_of(BLOCK_BYTES), "blocks begin at multiples");
        let offset = libc::off_t::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let (len, fd) = (BLOCK_BYTES as usize, memfd.fd().as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let start = mapping(unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, fd, offset) })?;
        let block = Self { start };
        for advice in [libc::MADV_DONTFORK, libc::MADV_DONTDUMP, libc::MADV_HUGEPAGE] {
            block.advise(advice)?;
        }
        // SAFETY: the mapping is this value's. Under mlockall(2) one that can be read would be filled with small pages at once.
        check(unsafe {
            libc::munlock(start.as_ptr(), len);
            libc::mprotect(start.as_ptr(), len, libc::PROT_READ | libc::PROT_WRITE)
        })?;
        block.advise(libc::MADV_POPULATE_WRITE)?;
        Ok(block)
    }

    /// Reads up to `len` bytes of `file` at `file_offset` to `at` of the block. As with [`Memfd::write_at`], the caller owns the pages: no region lends them as
    /// a slice.
    ///
    /// # Errors
    /// Those of pread(2).
    ///
    /// # Panics
    /// Beyond the block.
    pub fn read(&self, file: BorrowedFd<'_>, file_offset: u64, at: u64, len: u64) -> io::Result<usize> {
        assert!(at.checked_add(len).is_some_and(|end| end <= BLOCK_BYTES), "beyond the block");
        let file_offset = libc::off_t::try_from(file_offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel writes within the mapping, as just checked, of which there are no references.
        let read = unsafe {
            libc::pread(
                file.as_raw_fd(),
                self.start.as_ptr().byte_add(at as usize),
                len as usize,
                file_offset,
            )
        };
        number(read).map(|read| read as usize)
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is the mapping, and no advice used here changes the memfd's bytes.
        check(unsafe { libc::madvise(self.start.as_ptr(), BLOCK_BYTES as usize, advice) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing refers to it. The thread that made it is not in a child of fork(2), where it is not mapped.
        unsafe { libc::munmap(self.start.as_ptr(), BLOCK_BYTES as usize) };
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;

    use prepage_testing::{Need, has};

    use super::*;

    /// KiB of a mapping of this process at `start` that huge pages hold.
    fn huge_kib(start: u64) -> u64 {
        let maps = fs::read_to_string("/proc/self/smaps").unwrap();
        let of_mapping = maps.lines().skip_while(|line| !line.starts_with(&format!("{start:x}-")));
        let field = of_mapping.skip(1).find_map(|line| line.strip_prefix("ShmemPmdMapped:"));
        field.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
    }

    #[test]
    fn a_block_is_made_where_the_memfd_has_a_hole_and_stays_there() {
        let memfd = Memfd::create_with_blocks("blocks", 3 * BLOCK_BYTES).unwrap();
        if !has(Need::Root) {
            return;
        }
        assert!(memfd.has_blocks(), "root may have a file system of its own");
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &[7; 4 * 4096]).unwrap();
        let block = Block::make(&memfd, BLOCK_BYTES).unwrap();
        if has(Need::MemoryBytes(1 << 30)) {
            assert_eq!(huge_kib(block.start.as_ptr() as u64), BLOCK_BYTES >> 10);
        }
        assert_eq!(block.read(file.as_fd(), 4096, BLOCK_BYTES - 4096, 4096).unwrap(), 4096);
        assert_eq!(block.read(file.as_fd(), 4 * 4096, 0, 4096).unwrap(), 0, "behind the end of the file");
        drop(block);
        assert_eq!(memfd.next_data(0).unwrap(), Some((BLOCK_BYTES, 2 * BLOCK_BYTES)));
        let mut bytes = vec![1; 2 * 4096];
        memfd.read_at(&mut bytes, 2 * BLOCK_BYTES - 2 * 4096).unwrap();
        assert!(bytes[..4096].iter().all(|&byte| byte == 0) && bytes[4096..].iter().all(|&byte| byte == 7));
        // A page of it goes, and the others stay.
        memfd.punch(BLOCK_BYTES, 4096).unwrap();
        assert_eq!(memfd.next_data(0).unwrap(), Some((BLOCK_BYTES + 4096, 2 * BLOCK_BYTES)));
        memfd.read_at(&mut bytes, 2 * BLOCK_BYTES - 2 * 4096).unwrap();
        assert!(bytes[4096..].iter().all(|&byte| byte == 7));
        let behind = Block::make(&memfd, 3 * BLOCK_BYTES).unwrap_err();
        assert_eq!(behind.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    #[should_panic(expected = "beyond the block")]
    fn reads_stay_within_it() {
        let memfd = Memfd::create("block", BLOCK_BYTES).unwrap();
        let block = Block::make(&memfd, 0).unwrap();
        let _ = block.read(tempfile::tempfile().unwrap().as_fd(), 0, BLOCK_BYTES - 4095, 4096);
    }
}
