//! The memory through which events of one CPU report.

use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::bindings::perf_event_mmap_page;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::PerfEvent;

/// Records are handed back to the kernel in portions of this size, so that a full ring takes new ones again
/// before all of it is read, without a write to the shared line for every record.
const RELEASE_BYTES: u64 = 64 << 10;

const HEADER_BYTES: u64 = 8;
const PAGE_BYTES: usize = 4096;

/// A ring that the kernel fills and this process empties.
///
/// One page of control words, then `data_bytes` of records. The kernel owns the bytes from `data_head` round to
/// `data_tail`, we own those from `data_tail` to `data_head` (linux/perf_event.h, `perf_event_mmap_page`).
#[derive(Debug)]
pub struct Ring {
    control: NonNull<perf_event_mmap_page>,
    data: NonNull<u8>,
    data_bytes: usize,
    /// Our copy of `data_tail`; only we write it.
    tail: u64,
    /// A record that wraps round the ring's end, put together again.
    joined: Vec<u8>,
}

// SAFETY: the mapping belongs to this value alone and is not tied to the thread that made it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring of `data_bytes`, a power of two of at least a page, for `event` and those that report through
    /// it.
    ///
    /// # Errors
    /// EPERM when the user's limit on locked memory (`kernel.perf_event_mlock_kb`) is reached, EBUSY for an event that has or had a ring: two
    /// would each give back what the other still reads.
    pub fn map(event: &PerfEvent, data_bytes: usize) -> io::Result<Self> {
        assert!(
            data_bytes.is_power_of_two() && data_bytes >= PAGE_BYTES,
            "a ring is a power of two of pages"
        );
        if event.has_ring.swap(true, Ordering::Relaxed) {
            return Err(rustix::io::Errno::BUSY.into());
        }
        let len = PAGE_BYTES + data_bytes;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces nothing.
        let base = unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, event.as_fd(), 0) };
        event.has_ring.store(base.is_ok(), Ordering::Relaxed);
        let base = base?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap never returns null");
        // SAFETY: the mapping is one page longer than the data.
        let data = unsafe { base.add(PAGE_BYTES) };
        Ok(Self { control: base.cast(), data, data_bytes, tail: 0, joined: Vec::new() })
    }

    /// Bytes for records.
    pub fn data_bytes(&self) -> usize {
        self.data_bytes
    }

    /// Hands every record that is complete now to `each`, oldest first, and frees its place.
    pub fn drain(&mut self, mut each: impl FnMut(&[u8])) {
        let head = self.head().load(Ordering::Acquire);
        let mut released = self.tail;
        while self.tail < head {
            let Some(len) = self.record_bytes(head) else {
                // The kernel writes whole records only; were that ever untrue, the rest could not be told apart.
                self.tail = head;
                break;
            };
            self.with_record(len, &mut each);
            self.tail += len as u64;
            if self.tail - released >= RELEASE_BYTES {
                self.release();
                released = self.tail;
            }
        }
        self.release();
    }

    /// The length in the header of the record at `tail`; `None` if that cannot be a record's.
    fn record_bytes(&self, head: u64) -> Option<usize> {
        let mut header = [0; HEADER_BYTES as usize];
        let available = head - self.tail;
        if available < HEADER_BYTES {
            return None;
        }
        // Records are multiples of eight bytes, so a header never wraps.
        header.copy_from_slice(self.bytes(self.tail, HEADER_BYTES as usize)?);
        let len = u16::from_ne_bytes([header[6], header[7]]);
        let fits = u64::from(len) <= available && usize::from(len) <= self.data_bytes;
        (u64::from(len) >= HEADER_BYTES && fits).then_some(len.into())
    }

    fn with_record(&mut self, len: usize, each: &mut impl FnMut(&[u8])) {
        if let Some(record) = self.bytes(self.tail, len) {
            return each(record);
        }
        let mut joined = std::mem::take(&mut self.joined);
        joined.clear();
        let before_end = self.data_bytes - self.offset(self.tail);
        joined.extend_from_slice(self.bytes(self.tail, before_end).expect("up to the end does not wrap"));
        let rest = self.tail + before_end as u64;
        joined.extend_from_slice(
            self.bytes(rest, len - before_end).expect("a record is shorter than the ring"),
        );
        each(&joined);
        self.joined = joined;
    }

    /// `len` bytes at ring position `at`, which must be ours; `None` when they wrap.
    fn bytes(&self, at: u64, len: usize) -> Option<&[u8]> {
        let offset = self.offset(at);
        if offset + len > self.data_bytes {
            return None;
        }
        // SAFETY: in bounds by the check above. Callers ask only for bytes between tail and the head they loaded
        // with acquire: the kernel finished them before it moved the head and writes there again only after
        // `release` moved the tail, which needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(self.data.as_ptr().add(offset), len) })
    }

    fn offset(&self, at: u64) -> usize {
        (at & (self.data_bytes as u64 - 1)) as usize
    }

    fn release(&mut self) {
        // SAFETY: `control` points to the mapped control page; the word is aligned, and both sides use it
        // atomically.
        let tail = unsafe { AtomicU64::from_ptr(&raw mut (*self.control.as_ptr()).data_tail) };
        tail.store(self.tail, Ordering::Release);
    }

    fn head(&self) -> &AtomicU64 {
        // SAFETY: as in `release`; the mapping lives as long as `self`.
        unsafe { AtomicU64::from_ptr(&raw mut (*self.control.as_ptr()).data_head) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the whole mapping made by `map`; no borrow of it outlives `self`. It cannot fail for a mapping
        // that exists.
        let _ = unsafe { munmap(self.control.as_ptr().cast(), PAGE_BYTES + self.data_bytes) };
    }
}

const _: () = assert!(size_of::<perf_event_mmap_page>() <= PAGE_BYTES);

#[cfg(test)]
mod tests {
    use prepage_testing::{Doctor, Need, unless_refused};

    use super::*;
    use crate::perf::{Observed, PerfError, Setup, Source};

    #[test]
    fn an_event_has_one_ring() {
        let mut setup = Setup::new(Source::Dummy);
        setup.exclude_kernel = true;
        let refused = |error: &PerfError| !matches!(error, PerfError::Other { .. });
        let event = PerfEvent::open(&setup, Observed::Thread(std::process::id()), 0);
        let Some(event) = unless_refused(event, Need::Doctor(Doctor::Faults), refused) else { return };
        let _ring = Ring::map(&event, PAGE_BYTES).unwrap();
        let again = Ring::map(&event, PAGE_BYTES).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::EBUSY));
    }
}
