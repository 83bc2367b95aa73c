//! Memory of this process that is mapped for a purpose, and unmapped when that ends.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use prepage_core::PAGE_SIZE;

use crate::huge_blocks::HugeBlocks;

/// Where regions begin: at multiples of a huge page, so that one can lie in them and each 2 MiB belong to one region.
pub const REGION_ALIGN: u64 = 2 << 20;

/// What a region shows.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'a> {
    /// A memfd from this byte offset on, read-only; what others write to it appears.
    Shared(BorrowedFd<'a>, u64),
    /// A memfd from this byte offset on; what is written to the region stays in it.
    Private(BorrowedFd<'a>, u64),
    /// Zeros, writable.
    Anonymous,
    /// Zeros, writable, in huge pages where the kernel finds some.
    AnonymousHuge,
    /// Zeros, writable; whole huge pages are the kernel's once they are given, see [`HugeBlocks`]. Until then they show
    /// this memfd, which is larger than the region and holds nothing. A userfaultfd has to serve the region from before
    /// the first touch on, so that none makes a page of the memfd, which all such regions would share.
    HugeBlocks(BorrowedFd<'a>),
}

/// A piece of address space. Not inherited over fork: a child that touches it dies of SIGSEGV.
#[derive(Debug)]
pub struct Region {
    start: NonNull<u8>,
    len: usize,
    writable: bool,
    blocks: Option<Arc<HugeBlocks>>,
}

// SAFETY: a region is plain memory, owned by this value and reached by borrowing it.
unsafe impl Send for Region {}
// SAFETY: shared borrows only read.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `len` bytes, a positive multiple of the page size, at a multiple of [`REGION_ALIGN`].
    ///
    /// # Errors
    /// ENOMEM when the address space or the number of mappings (vm.max_map_count) is exhausted.
    pub fn map(len: u64, contents: Contents<'_>) -> io::Result<Self> {
        assert!(len > 0 && len.is_multiple_of(PAGE_SIZE), "a region is some whole pages");
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let align = REGION_ALIGN as usize;
        let reserved = len.checked_add(align).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: a fresh reservation at an address of the kernel's choice.
        let base = check(unsafe {
            libc::mmap(
                ptr::null_mut(),
                reserved,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        })?;
        let before = base.as_ptr().align_offset(align);
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let (protection, flags, fd, offset) = match contents {
            Contents::Shared(fd, offset) => (libc::PROT_READ, libc::MAP_SHARED, fd.as_raw_fd(), offset),
            Contents::Private(fd, offset) => (read_write, libc::MAP_PRIVATE, fd.as_raw_fd(), offset),
            Contents::Anonymous | Contents::AnonymousHuge | Contents::HugeBlocks(_) => {
                (read_write, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0)
            }
        };
        // SAFETY: `before + len` lies within the reservation, which nobody else knows; it is replaced, then trimmed.
        let mapped = unsafe {
            let start = base.as_ptr().add(before);
            let mapped = check(libc::mmap(
                start.cast(),
                len,
                protection,
                flags | libc::MAP_FIXED | libc::MAP_NORESERVE,
                fd,
                offset as libc::off_t,
            ));
            if mapped.is_ok() {
                if before > 0 {
                    libc::munmap(base.as_ptr().cast(), before);
                }
                libc::munmap(start.add(len).cast(), align - before);
            } else {
                libc::munmap(base.as_ptr().cast(), reserved);
            }
            mapped
        };
        let writable = protection & libc::PROT_WRITE != 0;
        let mut region = Self { start: mapped?, len, writable, blocks: None };
        if let Contents::HugeBlocks(stand_in) = contents {
            region.lay_blocks(stand_in)?;
        }
        region.advise(0, len as u64, libc::MADV_DONTFORK)?;
        let huge = matches!(contents, Contents::AnonymousHuge);
        let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
        match region.advise(0, len as u64, advice) {
            // Kernels without huge pages know neither advice, and then small pages are all there are.
            Err(error) if huge || error.raw_os_error() != Some(libc::EINVAL) => Err(error),
            _ => Ok(region),
        }
    }

    /// Shows `stand_in` in place of all whole huge pages.
    fn lay_blocks(&mut self, stand_in: BorrowedFd<'_>) -> io::Result<()> {
        let len = self.len - self.len % REGION_ALIGN as usize;
        if len == 0 {
            return Ok(());
        }
        // SAFETY: the range is the beginning of this region, of which nobody knows yet.
        check(unsafe {
            libc::mmap(
                self.start.as_ptr().cast(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED | libc::MAP_NORESERVE,
                stand_in.as_raw_fd(),
                0,
            )
        })?;
        self.blocks = Some(Arc::new(HugeBlocks::new(self.start(), len as u64)?));
        Ok(())
    }

    /// The huge blocks of a region that was made with them and is large enough for one.
    pub fn blocks(&self) -> Option<Arc<HugeBlocks>> {
        self.blocks.clone()
    }

    /// Its first address.
    pub fn start(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Never: a region holds a page at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its contents.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the region is mapped readable as long as this value lives, and changes through `&mut self` only. The
        // memfd behind a shared one is changed by its owner, who keeps published bytes as they are.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// Its contents, to be changed.
    ///
    /// # Panics
    /// Where it is mapped read-only.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.writable, "a shared region is read-only");
        // SAFETY: as above; `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Forgets what `[offset, offset + len)` shows: a memfd's bytes, and zeros where there is none, are shown anew on
    /// the next touch.
    pub fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.advise(offset, len, libc::MADV_DONTNEED)
    }

    /// As [`Self::discard`] for a shared region, where nothing is lost by it.
    ///
    /// # Panics
    /// Where the region is private.
    pub fn unmap_shared(&self, offset: u64, len: u64) -> io::Result<()> {
        assert!(!self.writable, "a private region would lose what was written to it");
        self.advise(offset, len, libc::MADV_DONTNEED)
    }

    /// Takes poison away from a page, and nothing from a page with contents.
    ///
    /// # Panics
    /// Where the page lies outside.
    pub fn unpoison(&self, offset: u64) -> io::Result<()> {
        if is_present(self.start() + offset)? {
            return Ok(());
        }
        self.advise(offset, PAGE_SIZE, libc::MADV_DONTNEED)
    }

    /// Tells the kernel that the pages of a file mapped here are touched in no order.
    pub fn expect_random(&self) -> io::Result<()> {
        self.advise(0, self.len(), libc::MADV_RANDOM)
    }

    fn advise(&self, offset: u64, len: u64, advice: libc::c_int) -> io::Result<()> {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.len as u64),
            "advice beyond the region"
        );
        // SAFETY: the range lies in the region; callers that pass an advice that changes contents hold `&mut self`,
        // or have made sure that there are none.
        let result =
            unsafe { libc::madvise(self.start.as_ptr().add(offset as usize).cast(), len as usize, advice) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(blocks) = &self.blocks {
            blocks.retire();
        }
        // SAFETY: the region is mapped and nobody can borrow it any more. Failure (too many mappings to split one)
        // cannot happen, as whole mappings are removed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Copies from memory of this process at `address` into `to` as far as it can be read: 0 where a fault could not be
/// resolved, or user code alone may resolve it. Never raises a signal.
///
/// # Errors
/// EPERM or ENOSYS where a sandbox forbids process_vm_readv(2).
pub fn try_copy(address: u64, to: &mut [u8]) -> io::Result<usize> {
    let local = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: to.len() };
    // SAFETY: the kernel writes at most `to.len()` bytes to `to`, and reads from wherever it can.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match usize::try_from(copied) {
        Ok(copied) => Ok(copied),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
            error => Err(error),
        },
    }
}

/// Whether this process's page table shows a page at `address`.
pub fn is_present(address: u64) -> io::Result<bool> {
    Ok(page_entry(address)? >> 63 & 1 == 1)
}

/// Whether the page at `address` is one of a file or memfd, not a private copy; `None` where there is no page.
pub fn is_of_object(address: u64) -> io::Result<Option<bool>> {
    let entry = page_entry(address)?;
    Ok((entry >> 63 & 1 == 1).then_some(entry >> 61 & 1 == 1))
}

/// The word of /proc/self/pagemap for `address`.
fn page_entry(address: u64) -> io::Result<u64> {
    use std::os::unix::fs::FileExt;
    let mut entry = [0; 8];
    std::fs::File::open("/proc/self/pagemap")?.read_exact_at(&mut entry, address / PAGE_SIZE * 8)?;
    Ok(u64::from_ne_bytes(entry))
}

fn check(mapped: *mut libc::c_void) -> io::Result<NonNull<u8>> {
    if mapped == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(NonNull::new(mapped.cast()).expect("mmap gives no null"))
}
