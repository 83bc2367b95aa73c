//! Buffers between sources and frames.
//!
//! ```text
//!   take ◄─ warm: as many as run at once, with their memory ◄─┐
//!     ▲                                                       ├─ give
//!     └──── cold: the others, whose memory went back       ◄──┘
//! ```
//! A sweep has many reads under way. Once it is over, its buffers are a megabyte each that no frame counts.

use std::io;

use crossbeam_queue::ArrayQueue;
use prepage_core::PAGE_SIZE;
use prepage_sys::region::{Contents, REGION_ALIGN, Region};

use crate::sync::{AtomicU32, Ordering, seq_cst, wait, wake};

/// Pages that are read at once by one call of a source that has no larger grain.
pub(crate) const BUFFER_PAGES: u64 = 256;

/// Pages that a buffer may keep while it is cold: faults that read so few give no memory back, and take none, each time.
const COLD_PAGES: u64 = 4;
/// The fewest buffers that keep their memory.
const LEAST_WARM: usize = 4;

/// Page-aligned memory of [`BUFFER_PAGES`] or more.
#[derive(Debug)]
pub(crate) struct Buffer {
    region: Region,
    /// So many of its first pages may take memory.
    used_pages: u64,
    /// Whether its memory is a huge page, where the kernel finds one.
    is_huge: bool,
}

/// Buffers that nobody uses.
///
/// Lock legend: (a) atomic; (f) atomic, slept on; the queues are of atomics.
#[derive(Debug)]
pub(crate) struct Buffers {
    warm: ArrayQueue<Buffer>,
    cold: ArrayQueue<Buffer>,
    /// (a) Who found no buffer.
    waiting: AtomicU32,
    /// (f) Changes when a buffer comes back that somebody waits for.
    returned: AtomicU32,
}

impl Buffer {
    /// Zeroed memory of this size is mapped, not touched.
    pub(crate) fn new(pages: u64) -> io::Result<Self> {
        let region = Region::map(pages.max(BUFFER_PAGES) * PAGE_SIZE, Contents::Anonymous)?;
        Ok(Self { region, used_pages: 0, is_huge: false })
    }

    /// The first `pages` pages of it, with whatever was left in them.
    pub(crate) fn pages(&mut self, pages: u64) -> &mut [u8] {
        self.used_pages = self.used_pages.max(pages);
        &mut self.region.as_mut_slice()[..(pages * PAGE_SIZE) as usize]
    }

    /// Makes it a huge page, where the kernel finds one: to a device that is one piece of memory, not one for each page, and the disk of a
    /// virtual machine was seen to read more than twice as fast into it. May allocate.
    pub(crate) fn make_huge(&mut self) {
        if self.region.len() < REGION_ALIGN {
            let Ok(larger) = Region::map(REGION_ALIGN, Contents::Anonymous) else { return };
            *self = Self { region: larger, used_pages: 0, is_huge: false };
        }
        if !self.is_huge {
            self.discard();
            self.is_huge = self.region.prefer_huge(true).is_ok();
        }
    }

    /// Gives memory back, but for a little.
    fn cool(&mut self) {
        if self.used_pages > COLD_PAGES {
            self.discard();
        }
        // The next read may be a small one.
        if self.is_huge && self.used_pages == 0 {
            self.is_huge = self.region.prefer_huge(false).is_err();
        }
    }

    fn discard(&mut self) {
        let len = if self.is_huge { self.region.len() } else { self.used_pages * PAGE_SIZE };
        // Where the kernel refuses it is tried again after the next use.
        if len > 0 && self.region.discard(0, len).is_ok() {
            self.used_pages = 0;
        }
    }
}

impl Buffers {
    /// Room for `count`, of which `ready` are made now.
    pub(crate) fn new(count: usize, ready: usize) -> io::Result<Self> {
        let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cold = ArrayQueue::new(count);
        for _ in 0..ready {
            drop(cold.push(Buffer::new(BUFFER_PAGES)?));
        }
        let warm = ArrayQueue::new(at_once.clamp(LEAST_WARM, count.max(LEAST_WARM)));
        Ok(Self { warm, cold, waiting: AtomicU32::new(0), returned: AtomicU32::new(0) })
    }

    /// Takes a buffer if there is one: for those who wait for nobody's read.
    pub(crate) fn pop(&self) -> Option<Buffer> {
        self.warm.pop().or_else(|| self.cold.pop())
    }

    /// Takes a buffer; sleeps while there is none. Allocates nothing: for faults, whose fills always end.
    pub(crate) fn take(&self) -> Buffer {
        self.pop().unwrap_or_else(|| self.wait())
    }

    fn wait(&self) -> Buffer {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        seq_cst();
        let buffer = loop {
            let returned = self.returned.load(Ordering::SeqCst);
            if let Some(buffer) = self.pop() {
                break buffer;
            }
            wait(&self.returned, returned);
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        buffer
    }

    /// Takes a buffer of at least `pages`, or makes one.
    ///
    /// # Errors
    /// ENOMEM when the address space is exhausted.
    pub(crate) fn take_or_make(&self, pages: u64) -> io::Result<Buffer> {
        if pages * PAGE_SIZE > REGION_ALIGN {
            // None so large is kept.
            return Buffer::new(pages);
        }
        match self.pop() {
            Some(buffer) if buffer.region.len() >= pages * PAGE_SIZE => Ok(buffer),
            too_small => {
                too_small.into_iter().for_each(|buffer| self.give(buffer));
                Buffer::new(pages)
            }
        }
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Buffer) {
        if buffer.region.len() > REGION_ALIGN {
            // Of a source with a large grain: too much to keep.
            return;
        }
        if let Err(mut buffer) = self.warm.push(buffer) {
            buffer.cool();
            if self.cold.push(buffer).is_err() {
                return;
            }
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
    use prepage_sys::region::is_present;

    use super::*;

    #[test]
    fn who_finds_no_buffer_gets_one_that_comes_back() {
        let buffers = Buffers::new(2, 2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                // Who is not woken waits for ever.
                scope.spawn(|| (0..2_000).for_each(|_| buffers.give(buffers.take())));
            }
        });
        let free = buffers.warm.len() + buffers.cold.len();
        assert_eq!((free, buffers.waiting.load(Ordering::SeqCst)), (2, 0));
    }

    #[test]
    fn when_many_reads_end_few_buffers_keep_their_memory() {
        let buffers = Buffers::new(256, 0).unwrap();
        let count = buffers.warm.capacity() + 30;
        let read = |pages: u64| {
            let taken: Vec<Buffer> = (0..count)
                .map(|_| {
                    let mut buffer = buffers.take_or_make(pages).unwrap();
                    buffer.pages(pages).fill(1);
                    buffer
                })
                .collect();
            taken.into_iter().for_each(|buffer| buffers.give(buffer));
        };
        let present = |buffer: &Buffer| is_present(buffer.region.start()).unwrap();
        read(BUFFER_PAGES);
        assert!(buffers.warm.is_full());
        let cold: Vec<Buffer> = std::iter::from_fn(|| buffers.cold.pop()).collect();
        assert_eq!(cold.len(), 30);
        assert!(!cold.iter().any(present), "memory of buffers that nobody uses");
        let warm: Vec<Buffer> = std::iter::from_fn(|| buffers.warm.pop()).collect();
        assert!(warm.iter().all(present));
        // Small reads leave it where it is.
        cold.into_iter().chain(warm).for_each(|buffer| buffers.give(buffer));
        read(1);
        let all: Vec<Buffer> = std::iter::from_fn(|| buffers.pop()).collect();
        assert!(all.iter().all(present));
        all.into_iter().for_each(|buffer| buffers.give(buffer));
        // Neither do reads for which they are too small.
        for pages in [BUFFER_PAGES + 1, REGION_ALIGN / PAGE_SIZE + 1] {
            read(pages);
            assert!(buffers.warm.len() + buffers.cold.len() >= count);
        }
    }

    #[test]
    fn a_buffer_that_was_a_huge_page_takes_no_more_than_it_needs_once_it_was_cold() {
        let mut buffer = Buffer::new(1).unwrap();
        buffer.pages(1).fill(1);
        buffer.make_huge();
        let second = |buffer: &Buffer| is_present(buffer.region.start() + PAGE_SIZE).unwrap();
        buffer.pages(BUFFER_PAGES).fill(1);
        assert!(second(&buffer));
        buffer.cool();
        assert!(!second(&buffer));
        buffer.pages(1).fill(1);
        assert!(!second(&buffer), "a page was written to, and has made 2 MiB");
        buffer.make_huge();
        assert!(buffer.pages(BUFFER_PAGES).iter().all(|&byte| byte == 0));
    }
}
