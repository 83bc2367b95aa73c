//! Memory of this process that is mapped for a purpose, and unmapped when that ends.

use std::io;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use prepage_core::PAGE_SIZE;

use crate::fork::{self, KeptPlace};
use crate::given::{check, mapping, number};
use crate::huge_blocks::HugeBlocks;
use crate::memfd::Memfd;
use crate::pagemap::{PageEntry, PageMap};

/// Where regions begin: at multiples of a huge page, so that one can lie in them and each 2 MiB belong to one region.
pub const REGION_ALIGN: u64 = 2 << 20;

/// UIO_MAXIOV: ranges of one call.
const MOST_RANGES: usize = 1024;

/// No process: generations begin at 1.
const ELSEWHERE: u64 = 0;

/// What a region shows.
#[derive(Clone, Copy, Debug)]
pub enum Contents<'a> {
    /// A memfd from this byte offset on, read-only; what others write to it appears. In no core dump.
    Shared(&'a Memfd, u64),
    /// A memfd from this byte offset on; what is written to the region is written to the memfd. In no core dump.
    SharedWritable(&'a Memfd, u64),
    /// A memfd from this byte offset on; what is written to the region stays in it.
    Private(&'a Memfd, u64),
    /// Zeros, writable.
    Anonymous,
    /// Zeros, writable, in no core dump: what a library keeps for itself.
    Undumped,
    /// Zeros, writable, in huge pages where the kernel finds some.
    AnonymousHuge,
    /// Zeros, writable; whole huge pages are the kernel's once they are given, see [`HugeBlocks`]. Until then they show
    /// this memfd, which is larger than the region and holds nothing. A userfaultfd has to serve the region from before
    /// the first touch on, so that none makes a page of the memfd, which all such regions would share.
    HugeBlocks(&'a Memfd),
}

/// Address space of this process: it stays mapped while this value lives. What lies there is reached by the [`Region`].
#[derive(Debug)]
pub struct Span {
    start: NonNull<u8>,
    len: usize,
    /// Whether nothing but a memfd's own pages ever lies in it.
    shared: bool,
    /// The process that it exists in; [`ELSEWHERE`] where that is another.
    generation: u64,
    kept: KeptPlace,
}

// SAFETY: the value hands out no reference to the memory.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

/// A piece of address space with its contents. Not inherited over fork: a child that touches it dies of SIGSEGV.
#[derive(Debug)]
pub struct Region {
    span: Arc<Span>,
    /// What a region that is shown may be used for.
    protection: libc::c_int,
    blocks: Option<Arc<HugeBlocks>>,
    /// Whether it is: its bytes cannot be borrowed before.
    is_shown: AtomicBool,
}

impl Span {
    /// Its first address.
    pub fn start(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    /// The same addresses in another process, a child that inherited them: what a userfaultfd of that process is called with. Nothing stays
    /// mapped here for it.
    pub fn elsewhere(&self) -> Self {
        let kept = KeptPlace::none();
        Self { start: self.start, len: self.len, shared: self.shared, generation: ELSEWHERE, kept }
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.len as u64
    }

    /// Never: it holds a page at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Takes the pages of `[offset, offset + len)` out of the page table of a shared span; the memfd keeps them, and the next
    /// touch shows them again.
    ///
    /// # Errors
    /// ENOMEM where the kernel has no memory.
    ///
    /// # Panics
    /// Where the span is not shared, and would lose what was written to it.
    pub fn unmap_shared(&self, offset: u64, len: u64) -> io::Result<()> {
        assert!(self.shared, "a private region would lose what was written to it");
        self.unmap(offset, len)
    }

    /// Does what the kernel would at the first write to each page of `[offset, offset + len)` of a shared span, up to the first page whose touch a
    /// userfaultfd would have to be told of. Where the userfaultfd is told of touches in user code alone, that is an error here, and nobody is waited for. The
    /// pages hold what they did.
    ///
    /// # Errors
    /// EFAULT where that ended before the last page; EINVAL where the span is read-only.
    ///
    /// # Panics
    /// Where the span is not shared: its pages would become copies.
    pub fn make_writable(&self, offset: u64, len: u64) -> io::Result<()> {
        assert!(self.shared, "pages of a private region would become copies");
        let start = self.own_at(offset, len);
        // SAFETY: the range lies in the span, and the call changes no byte of it.
        check(unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_POPULATE_WRITE) })
    }

    /// Has the kernel map what the memfd holds at `[offset, offset + len)` of a shared span, a huge page at once. No userfaultfd serves the range, and
    /// the memfd holds all of it: else pages of zeros would be made.
    ///
    /// # Errors
    /// ENOMEM where the kernel has no memory; EHWPOISON where touches of a page are to get SIGBUS.
    ///
    /// # Panics
    /// Where the span is not shared.
    pub fn map_unserved(&self, offset: u64, len: u64) -> io::Result<()> {
        assert!(self.shared, "of a private region no memfd need hold the pages");
        let start = self.own_at(offset, len);
        // SAFETY: the range lies in the span, and the call changes no byte of it.
        check(unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_POPULATE_READ) })
    }

    /// Whether the page at `offset` can be read. It cannot where its memory is broken or a swap device fails, nor where it is missing and a userfaultfd is told of
    /// touches in user code alone. Raises no signal. The span is served by a userfaultfd: else what is missing of it would come by this call. May be called in
    /// signal handlers.
    pub fn can_be_read(&self, offset: u64) -> bool {
        let start = self.own_at(offset, PAGE_SIZE);
        // SAFETY: the page lies in the span, and the call changes no byte of it.
        let read =
            check(unsafe { libc::madvise(start.cast(), PAGE_SIZE as usize, libc::MADV_POPULATE_READ) });
        !read.is_err_and(|error| matches!(error.raw_os_error(), Some(libc::EFAULT | libc::EHWPOISON)))
    }

    fn unmap(&self, offset: u64, len: u64) -> io::Result<()> {
        let start = self.own_at(offset, len);
        // SAFETY: the range lies in the span and shows nothing but a memfd's pages, as callers make sure: the next touch shows the same.
        check(unsafe { libc::madvise(start.cast(), len as usize, libc::MADV_DONTNEED_LOCKED) })
    }

    /// As [`Self::unmap_shared`], of many ranges, each an offset and a length. Since Linux 6.16 that interrupts other CPUs once
    /// for all of them, but for pages that a userfaultfd mapped: they pass for written to, and each is an interrupt of its own. Kernels before 6.13 are asked one by
    /// one.
    ///
    /// # Errors
    /// As `unmap_shared`.
    ///
    /// # Panics
    /// As `unmap_shared`.
    pub fn unmap_shared_ranges(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        assert!(self.shared, "a private region would lose what was written to it");
        self.unmap_ranges(ranges)
    }

    /// As [`Self::unmap_shared_ranges`], of pages of a private span that are the memfd's own. The caller has write-protected them and
    /// then looked whether they are, and lets no page be mapped anew meanwhile: one that is written to becomes a copy, which would be lost.
    ///
    /// # Errors
    /// As `unmap_shared`.
    pub fn unmap_protected_ranges(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.unmap_ranges(ranges)
    }

    /// Gives the page tables of `ranges`, each an offset and a length of whole tables, back to the kernel. The caller has made sure that
    /// there is no page in them and that none is mapped meanwhile: it would be lost. Kernels before Linux 6.14 keep the tables.
    ///
    /// # Errors
    /// As `unmap_shared`.
    pub fn free_empty_tables(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        self.unmap_ranges(ranges)
    }

    fn unmap_ranges(&self, ranges: &[(u64, u64)]) -> io::Result<()> {
        for ranges in ranges.chunks(MOST_RANGES) {
            if ranges.len() == 1 || !self.unmap_at_once(ranges) {
                ranges.iter().try_for_each(|&(offset, len)| self.unmap(offset, len))?;
            }
        }
        Ok(())
    }

    /// Whether all of `ranges`, [`MOST_RANGES`] at most, were taken out of the page table by one call.
    fn unmap_at_once(&self, ranges: &[(u64, u64)]) -> bool {
        // On the stack: other threads may wait for this, one of them with the allocator's lock.
        let mut vector = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MOST_RANGES];
        let vector = &mut vector[..ranges.len()];
        for (into, &(offset, len)) in vector.iter_mut().zip(ranges) {
            *into = libc::iovec { iov_base: self.own_at(offset, len).cast(), iov_len: len as usize };
        }
        let this = rustix::process::getpid();
        let Ok(pidfd) = rustix::process::pidfd_open(this, rustix::process::PidfdFlags::empty()) else {
            return false;
        };
        // SAFETY: as in `unmap`, and the vector lives through the call.
        let unmapped = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                pidfd.as_raw_fd(),
                vector.as_ptr(),
                vector.len(),
                libc::MADV_DONTNEED_LOCKED,
                0,
            )
        };
        u64::try_from(unmapped).is_ok_and(|bytes| bytes == ranges.iter().map(|(_, len)| len).sum::<u64>())
    }

    /// As [`Self::at`], to change what lies there.
    ///
    /// # Panics
    /// As `at`; where the span is another process's, and something else lies there.
    pub(crate) fn own_at(&self, offset: u64, len: u64) -> *mut u8 {
        assert!(self.generation != ELSEWHERE, "the addresses are another process's");
        self.at(offset, len)
    }

    /// The address of `[offset, offset + len)`.
    ///
    /// # Panics
    /// Where that does not lie within.
    pub(crate) fn at(&self, offset: u64, len: u64) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len as u64), "beyond the region");
        // SAFETY: within the mapping, as just checked.
        unsafe { self.start.as_ptr().add(offset as usize) }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if self.generation != fork::generation() {
            // The parent's, and not mapped here.
            return;
        }
        self.kept.let_go();
        // SAFETY: the span is mapped and nobody can borrow it any more. Failure (too many mappings to split one)
        // cannot happen, as whole mappings are removed.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

impl Region {
    /// Maps `len` bytes, a positive multiple of the page size, at a multiple of [`REGION_ALIGN`].
    ///
    /// # Errors
    /// ENOMEM when the address space or the number of mappings (vm.max_map_count) is exhausted, EINVAL where the memfd ends before.
    pub fn map(len: u64, contents: Contents<'_>) -> io::Result<Self> {
        let region = Self::map_hidden(len, contents)?;
        region.show(false)?;
        Ok(region)
    }

    /// As [`Self::map`], without any access before [`Self::show`]: a userfaultfd can serve it first. Memory that could be
    /// read would be filled with zeros at once under mlockall(2).
    ///
    /// # Errors
    /// As `map`.
    pub fn map_hidden(len: u64, contents: Contents<'_>) -> io::Result<Self> {
        assert!(len > 0 && len.is_multiple_of(PAGE_SIZE), "a region is some whole pages");
        let len = usize::try_from(len).map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let align = REGION_ALIGN as usize;
        let reserved = len.checked_add(align).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        // SAFETY: a fresh reservation at an address of the kernel's choice.
        let base = mapping(unsafe {
            libc::mmap(
                ptr::null_mut(),
                reserved,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        })?
        .cast::<u8>();
        let before = base.as_ptr().align_offset(align);
        // SAFETY: `before + len` lies within the reservation, which nobody else knows; the rest is trimmed.
        let span = unsafe {
            let start = base.as_ptr().add(before);
            if before > 0 {
                libc::munmap(base.as_ptr().cast(), before);
            }
            libc::munmap(start.add(len).cast(), align - before);
            let start = NonNull::new_unchecked(start);
            let shared = matches!(contents, Contents::Shared(..) | Contents::SharedWritable(..));
            let kept = KeptPlace::new(start.as_ptr() as usize, len);
            Arc::new(Span { start, len, shared, generation: fork::generation(), kept })
        };
        let read_write = libc::PROT_READ | libc::PROT_WRITE;
        let protection = if matches!(contents, Contents::Shared(..)) { libc::PROT_READ } else { read_write };
        let mut region = Self { span, protection, blocks: None, is_shown: AtomicBool::new(false) };
        match contents {
            Contents::Shared(memfd, offset) | Contents::SharedWritable(memfd, offset) => {
                region.lay(0, len as u64, libc::MAP_SHARED, memfd, offset)?;
                region.advise(0, len as u64, libc::MADV_DONTDUMP)?;
            }
            Contents::Private(memfd, offset) => {
                region.lay(0, len as u64, libc::MAP_PRIVATE, memfd, offset)?;
            }
            Contents::Anonymous | Contents::AnonymousHuge => {}
            Contents::Undumped => region.advise(0, len as u64, libc::MADV_DONTDUMP)?,
            Contents::HugeBlocks(stand_in) => {
                let whole = len as u64 - len as u64 % REGION_ALIGN;
                if whole > 0 {
                    region.lay(0, whole, libc::MAP_SHARED, stand_in, 0)?;
                    region.blocks = Some(Arc::new(HugeBlocks::new(Arc::clone(&region.span), whole)?));
                }
            }
        }
        region.advise(0, len as u64, libc::MADV_DONTFORK)?;
        let advice = match contents {
            Contents::AnonymousHuge => libc::MADV_HUGEPAGE,
            // Its file system makes huge pages where they are asked for alone, which nobody does here; those that are there may be shown as such.
            Contents::Shared(memfd, _) if memfd.has_blocks() => return Ok(region),
            _ => libc::MADV_NOHUGEPAGE,
        };
        match region.advise(0, len as u64, advice) {
            // Kernels without huge pages know neither advice, and then small pages are all there are.
            Err(error) if advice == libc::MADV_HUGEPAGE || error.raw_os_error() != Some(libc::EINVAL) => {
                Err(error)
            }
            _ => Ok(region),
        }
    }

    /// Puts a memfd, from byte `from` on, at `[offset, offset + len)` of a region of which nobody knows yet.
    fn lay(&self, offset: u64, len: u64, flags: libc::c_int, memfd: &Memfd, from: u64) -> io::Result<()> {
        if from.checked_add(len).is_none_or(|end| end > memfd.len()) {
            return Err(rustix::io::Errno::INVAL.into());
        }
        // SAFETY: the range lies in this region, of which nobody has borrowed anything.
        mapping(unsafe {
            libc::mmap(
                self.span.at(offset, len).cast(),
                len as usize,
                libc::PROT_NONE,
                flags | libc::MAP_FIXED | libc::MAP_NORESERVE,
                memfd.fd().as_raw_fd(),
                from as libc::off_t,
            )
        })
        .map(drop)
    }

    /// Puts another memfd, from byte `from` on, in place of `[offset, offset + len)` of a private region that is still
    /// hidden.
    ///
    /// # Errors
    /// ENOMEM when the number of mappings (vm.max_map_count) is exhausted, EINVAL behind the end of the memfd.
    ///
    /// # Panics
    /// Where the region is shared.
    pub fn lay_private(&mut self, offset: u64, len: u64, memfd: &Memfd, from: u64) -> io::Result<()> {
        assert!(!self.span.shared, "a shared region shows nothing but a memfd's own pages");
        self.lay(offset, len, libc::MAP_PRIVATE, memfd, from)?;
        self.advise(offset, len, libc::MADV_DONTFORK)
    }

    /// Children of fork(2) keep the region, as it is then.
    ///
    /// # Errors
    /// Those of madvise(2).
    pub fn let_inherit(&self) -> io::Result<()> {
        self.advise(0, self.len(), libc::MADV_DOFORK)?;
        self.span.kept.let_go();
        Ok(())
    }

    /// Lets a hidden region be used, with `executable` as code too. Nothing comes to lie in it by that.
    ///
    /// # Errors
    /// ENOMEM when the number of mappings is exhausted; EACCES and EPERM where code may not be mapped.
    pub fn show(&self, executable: bool) -> io::Result<()> {
        let protection = self.protection | if executable { libc::PROT_EXEC } else { 0 };
        // SAFETY: the region is this value's; what it shows does not change. Unlocked first: what mlockall(2) locks is
        // filled as soon as it can be read.
        check(unsafe {
            libc::munlock(self.span.start.as_ptr().cast(), self.span.len);
            libc::mprotect(self.span.start.as_ptr().cast(), self.span.len, protection)
        })?;
        self.blocks.as_ref().map_or(Ok(()), |blocks| blocks.show(executable))?;
        self.is_shown.store(true, Ordering::Release);
        Ok(())
    }

    /// Whether what lies in an anonymous region from the next touches on is made of huge pages, where the kernel finds some.
    ///
    /// # Errors
    /// EINVAL where the kernel knows no huge pages.
    pub fn prefer_huge(&mut self, huge: bool) -> io::Result<()> {
        self.advise(0, self.len(), if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE })
    }

    /// Where it lies. It stays mapped, without its slices, while somebody holds this.
    pub fn span(&self) -> &Arc<Span> {
        &self.span
    }

    /// The huge blocks of a region that was made with them and is large enough for one.
    pub fn blocks(&self) -> Option<Arc<HugeBlocks>> {
        self.blocks.clone()
    }

    /// Its first address.
    pub fn start(&self) -> u64 {
        self.span.start()
    }

    /// Its bytes.
    pub fn len(&self) -> u64 {
        self.span.len()
    }

    /// Never: a region holds a page at least.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Its contents.
    ///
    /// # Panics
    /// Where it is hidden, and where what is written to it is written to a memfd: others may change the bytes meanwhile.
    pub fn as_slice(&self) -> &[u8] {
        self.assert_shown();
        assert!(!self.writes_through(), "others change what the region shows: as_atomics");
        // SAFETY: the region is mapped as long as this value lives, and changes through `&mut self` only. The memfd behind
        // it is as long, for good, and who writes to it keeps published bytes as they are.
        unsafe { std::slice::from_raw_parts(self.span.start.as_ptr(), self.span.len) }
    }

    /// Its contents, which other threads and regions may read and change meanwhile. Who stores to them makes sure that no region that shows the same memfd
    /// lends these bytes as a slice: in `prepage-vm` no object that takes writes has slices.
    ///
    /// # Panics
    /// Where it is hidden, and where what is written to it is not written to a memfd: then its bytes can be borrowed as they are.
    pub fn as_atomics(&self) -> &[AtomicU8] {
        self.assert_shown();
        assert!(self.writes_through(), "nobody else changes what the region shows: as_slice");
        // SAFETY: mapped writably as long as this value lives; atomics may be shared, and have no invalid bytes.
        unsafe { std::slice::from_raw_parts(self.span.start.as_ptr().cast(), self.span.len) }
    }

    /// Its contents, to be changed.
    ///
    /// # Panics
    /// Where it is hidden or mapped read-only, or other regions may show the same.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        self.assert_shown();
        assert!(self.is_writable() && !self.span.shared, "others may show what a shared region shows");
        // SAFETY: as above; `&mut self` makes this the only borrow.
        unsafe { std::slice::from_raw_parts_mut(self.span.start.as_ptr(), self.span.len) }
    }

    fn assert_shown(&self) {
        assert!(self.is_shown.load(Ordering::Acquire), "the region is hidden: show");
    }

    fn is_writable(&self) -> bool {
        self.protection & libc::PROT_WRITE != 0
    }

    /// Whether what is written to the region is written to a memfd.
    fn writes_through(&self) -> bool {
        self.span.shared && self.is_writable()
    }

    /// Forgets what `[offset, offset + len)` shows: a memfd's bytes, and zeros where there is none, are shown anew on
    /// the next touch.
    pub fn discard(&mut self, offset: u64, len: u64) -> io::Result<()> {
        self.advise(offset, len, libc::MADV_DONTNEED_LOCKED)
    }

    /// Takes poison away from a page, and nothing from a page that `table`, which is this process's, shows with contents. The caller has made sure that
    /// the page was not mapped since it was poisoned, and is not meanwhile: a private copy on a swap device looks as poison does, and would be lost.
    /// Allocates nothing.
    ///
    /// # Panics
    /// Where the page lies outside.
    pub fn unpoison(&self, table: &PageMap, offset: u64) -> io::Result<()> {
        let mut entry = [PageEntry::default()];
        table.entries(self.start() + offset, &mut entry)?;
        if entry[0].is_present() {
            return Ok(());
        }
        self.advise(offset, PAGE_SIZE, libc::MADV_DONTNEED_LOCKED)
    }

    fn advise(&self, offset: u64, len: u64, advice: libc::c_int) -> io::Result<()> {
        let start = self.span.at(offset, len);
        // SAFETY: the range lies in the region; callers that pass an advice that changes contents hold `&mut self`,
        // or have made sure that there are none.
        check(unsafe { libc::madvise(start.cast(), len as usize, advice) })
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
    match number(unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) }) {
        Ok(copied) => Ok(copied as usize),
        Err(error) if error.raw_os_error() == Some(libc::EFAULT) => Ok(0),
        Err(error) => Err(error),
    }
}

/// Whether this process's page table shows a page at `address`.
pub fn is_present(address: u64) -> io::Result<bool> {
    Ok(page_entry(address)?.is_present())
}

fn page_entry(address: u64) -> io::Result<PageEntry> {
    let mut entry = [PageEntry::default()];
    PageMap::of(std::process::id())?.entries(address, &mut entry)?;
    Ok(entry[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "hidden")]
    fn bytes_that_nobody_may_touch_are_no_slice() {
        Region::map_hidden(PAGE_SIZE, Contents::Anonymous).unwrap().as_slice();
    }

    #[test]
    #[should_panic(expected = "as_atomics")]
    fn bytes_that_others_change_are_no_slice() {
        let memfd = Memfd::create("shared", PAGE_SIZE).unwrap();
        let region = Region::map(PAGE_SIZE, Contents::SharedWritable(&memfd, 0)).unwrap();
        region.as_slice();
    }

    #[test]
    #[should_panic(expected = "as_slice")]
    fn bytes_of_a_slice_are_no_atomics() {
        let region = Region::map(PAGE_SIZE, Contents::Anonymous).unwrap();
        region.as_atomics();
    }

    /// A touch there would end the process.
    #[test]
    fn a_memfd_is_shown_up_to_its_end() {
        let memfd = Memfd::create("short", 2 * PAGE_SIZE).unwrap();
        for (len, from) in [(3, 0), (2, 1), (1, 2), (1, u64::MAX / PAGE_SIZE)] {
            let (len, from) = (len * PAGE_SIZE, from * PAGE_SIZE);
            for contents in [
                Contents::Shared(&memfd, from),
                Contents::SharedWritable(&memfd, from),
                Contents::Private(&memfd, from),
            ] {
                let error = Region::map(len, contents).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{contents:?}");
            }
            let mut region = Region::map_hidden(4 * PAGE_SIZE, Contents::Anonymous).unwrap();
            assert!(region.lay_private(0, len, &memfd, from).is_err());
        }
    }
}
