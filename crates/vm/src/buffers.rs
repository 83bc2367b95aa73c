//! Buffers between sources and frames.

use crossbeam_queue::ArrayQueue;
use prepage_core::PAGE_SIZE;

use crate::sync::{AtomicU32, Ordering, seq_cst, wait, wake};

/// Pages that are read at once by one call of a source that has no larger grain.
pub(crate) const BUFFER_PAGES: u64 = 256;

/// Page-aligned memory of [`BUFFER_PAGES`] or more.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

/// Buffers that nobody uses.
///
/// Lock legend: (a) atomic; (f) atomic, slept on; the queue is one of atomics.
#[derive(Debug)]
pub(crate) struct Buffers {
    free: ArrayQueue<Buffer>,
    /// (a) Who found no buffer.
    waiting: AtomicU32,
    /// (f) Changes when a buffer comes back that somebody waits for.
    returned: AtomicU32,
}

impl Buffer {
    /// Zeroed memory of this size is mapped, not touched.
    pub(crate) fn new(pages: u64) -> Self {
        // One page more, to begin at a page: direct reads demand it.
        let bytes = vec![0; ((pages.max(BUFFER_PAGES) + 1) * PAGE_SIZE) as usize];
        let start = bytes.as_ptr().align_offset(PAGE_SIZE as usize);
        Self { bytes, start }
    }

    /// The first `pages` pages of it, with whatever was left in them.
    pub(crate) fn pages(&mut self, pages: u64) -> &mut [u8] {
        &mut self.bytes[self.start..][..(pages * PAGE_SIZE) as usize]
    }

    fn room_pages(&self) -> u64 {
        self.bytes.len() as u64 / PAGE_SIZE - 1
    }
}

impl Buffers {
    /// Room for `count`, of which `ready` are made now.
    pub(crate) fn new(count: usize, ready: usize) -> Self {
        let free = ArrayQueue::new(count);
        (0..ready).for_each(|_| drop(free.push(Buffer::new(BUFFER_PAGES))));
        Self { free, waiting: AtomicU32::new(0), returned: AtomicU32::new(0) }
    }

    /// Takes a buffer; sleeps while there is none. Allocates nothing: for faults, whose fills always end.
    pub(crate) fn take(&self) -> Buffer {
        self.free.pop().unwrap_or_else(|| self.wait())
    }

    fn wait(&self) -> Buffer {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        seq_cst();
        let buffer = loop {
            let returned = self.returned.load(Ordering::SeqCst);
            if let Some(buffer) = self.free.pop() {
                break buffer;
            }
            wait(&self.returned, returned);
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        buffer
    }

    /// Takes a buffer of at least `pages`, or makes one.
    pub(crate) fn take_or_make(&self, pages: u64) -> Buffer {
        self.free.pop().filter(|buffer| buffer.room_pages() >= pages).unwrap_or_else(|| Buffer::new(pages))
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Buffer) {
        if buffer.room_pages() > BUFFER_PAGES {
            // Of a source with a large grain: too much to keep.
            return;
        }
        if self.free.push(buffer).is_err() {
            return;
        }
        // Who waits was counted before it looked into the queue, and the buffer is there before this looks for who waits.
        seq_cst();
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.returned.fetch_add(1, Ordering::SeqCst);
            wake(&self.returned, 1);
        }
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    #[test]
    fn who_finds_no_buffer_gets_one_that_comes_back() {
        let buffers = Buffers::new(2, 2);
        std::thread::scope(|scope| {
            for _ in 0..6 {
                // Who is not woken waits for ever.
                scope.spawn(|| (0..2_000).for_each(|_| buffers.give(buffers.take())));
            }
        });
        assert_eq!((buffers.free.len(), buffers.waiting.load(Ordering::SeqCst)), (2, 0));
    }
}
