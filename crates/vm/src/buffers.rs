//! Buffers between sources and frames.

use std::sync::{Mutex, MutexGuard, TryLockError};

use prepage_core::PAGE_SIZE;

/// Pages that are read by one call of a source.
pub(crate) const BUFFER_PAGES: u64 = 256;

/// As many fills as can be under way at once; memory is taken by those that ever were.
const BUFFERS: usize = 128;

/// Buffers, each for one fill at a time.
#[derive(Debug)]
pub(crate) struct Buffers {
    buffers: Box<[Mutex<Vec<u8>>]>,
}

/// A buffer in use.
#[derive(Debug)]
pub(crate) struct Buffer<'a> {
    bytes: MutexGuard<'a, Vec<u8>>,
    start: usize,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        // One page more, to begin at a page: direct reads demand it. Zeroed memory of this size is mapped, not touched.
        let len = ((BUFFER_PAGES + 1) * PAGE_SIZE) as usize;
        Self { buffers: (0..BUFFERS).map(|_| Mutex::new(vec![0; len])).collect() }
    }

    /// Takes a buffer; waits, without a lock, while all are in use.
    pub(crate) fn take(&self) -> Buffer<'_> {
        loop {
            for buffer in &self.buffers {
                // Low ones first: they are in the caches.
                let bytes = match buffer.try_lock() {
                    Ok(bytes) => bytes,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) => continue,
                };
                let start = bytes.as_ptr().align_offset(PAGE_SIZE as usize);
                return Buffer { bytes, start };
            }
            rustix::thread::sched_yield();
        }
    }
}

impl Buffer<'_> {
    /// The first `pages` pages of it, with whatever was left in them.
    pub(crate) fn pages(&mut self, pages: u64) -> &mut [u8] {
        &mut self.bytes[self.start..][..(pages * PAGE_SIZE) as usize]
    }
}
