//! Buffers between sources and frames.
//!
//! ```text
//!   take ◄─ warm: as many as run at once, with their memory ◄─┐
//!     ▲                                                       ├─ give
//!     └──── cold: the others, whose memory went back       ◄──┘
//! ```
//! A sweep has many reads under way. Once it is over, its buffers are a megabyte each that no frame counts. So the buffer that is taken is the first that is
//! warm: as many have memory as reads were under way at once. Long direct reads share one huge page, and where no part of it is free they read less at once.

use std::io;
use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use prepage_core::PAGE_SIZE;
use prepage_sys::part::Part;
use prepage_sys::region::{Contents, REGION_ALIGN, Region};

use crate::fill::PART_PAGES;
use crate::sync::{AtomicU32, AtomicU64, Ordering, seq_cst, wait, wake};

/// Pages that are read at once by one call of a source that has no larger grain.
pub(crate) const BUFFER_PAGES: u64 = 256;
/// Pages of a part of the huge page that long direct reads share: three reads of one run ahead, and one that a touch waits for.
pub(crate) const LONG_PAGES: u64 = 128;

/// Pages that a buffer may keep while it is cold: faults that read so few give no memory back, and take none, each time.
const COLD_PAGES: u64 = 4;
/// The fewest buffers that keep their memory.
const LEAST_WARM: usize = 4;
/// And the most: a bit of a word for each.
const MOST_WARM: usize = 64;

/// Page-aligned memory of [`BUFFER_PAGES`] or more.
#[derive(Debug)]
pub(crate) struct Buffer {
    memory: Part,
    /// Whether it is of the huge page that long reads share.
    is_long: bool,
    /// So many of its first pages may take memory.
    used_pages: u64,
}

/// Buffers that nobody uses.
///
/// Lock legend: (a) atomic; (f) atomic, slept on; the queues are of atomics.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Places of one each.
    warm: Box<[ArrayQueue<Buffer>]>,
    /// (a) Bits of the places that hold a buffer, and of those that hold none. Who takes one's bit may take or put a buffer there.
    full: AtomicU64,
    empty: AtomicU64,
    cold: ArrayQueue<Buffer>,
    /// Parts of a huge page, where the kernel finds one: to a device that is one piece of memory, not one for each page, and the disk of a virtual machine was seen to
    /// read more than twice as fast into it. It takes memory from its first use on.
    long: Arc<ArrayQueue<Buffer>>,
    /// (a) Who found no buffer.
    waiting: AtomicU32,
    /// (f) Changes when a buffer comes back that somebody waits for.
    returned: AtomicU32,
}

impl Buffer {
    /// Zeroed memory of this size is mapped, not touched.
    pub(crate) fn new(pages: u64) -> io::Result<Self> {
        let len = pages.max(BUFFER_PAGES) * PAGE_SIZE;
        let memory = Part::cut(Region::map(len, Contents::Undumped)?, len).remove(0);
        Ok(Self { memory, is_long: false, used_pages: 0 })
    }

    /// The first `pages` pages of it, with whatever was left in them.
    pub(crate) fn pages(&mut self, pages: u64) -> &mut [u8] {
        self.used_pages = self.used_pages.max(pages);
        &mut self.memory.as_mut_slice()[..(pages * PAGE_SIZE) as usize]
    }

    /// Pages that a long read brings into it at once. No frame counts a buffer, and those that are taken first keep their memory.
    pub(crate) fn part_pages(&self) -> u64 {
        if self.is_long { LONG_PAGES } else { PART_PAGES }
    }

    /// Gives memory back, but for a little.
    fn cool(&mut self) {
        // Where the kernel refuses it is tried again after the next use.
        if self.used_pages > COLD_PAGES && self.memory.discard(self.used_pages * PAGE_SIZE).is_ok() {
            self.used_pages = 0;
        }
    }
}

impl Buffers {
    /// Room for `count`, of which `ready` are made now.
    pub(crate) fn new(count: usize, ready: usize) -> io::Result<Self> {
        let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let cold = ArrayQueue::new(count);
        if ready > 0 {
            // In one mapping: each takes a dozen calls to be made, and one in every child of fork(2).
            let len = BUFFER_PAGES * PAGE_SIZE;
            let region = Region::map(ready as u64 * len, Contents::Undumped)?;
            for memory in Part::cut(region, len) {
                drop(cold.push(Buffer { memory, is_long: false, used_pages: 0 }));
            }
        }
        let warm = at_once.clamp(LEAST_WARM, count.clamp(LEAST_WARM, MOST_WARM));
        let empty = AtomicU64::new(u64::MAX >> (MOST_WARM - warm));
        let warm = (0..warm).map(|_| ArrayQueue::new(1)).collect();
        Ok(Self {
            warm,
            full: AtomicU64::new(0),
            empty,
            cold,
            long: Arc::new(ArrayQueue::new(1)),
            waiting: AtomicU32::new(0),
            returned: AtomicU32::new(0),
        })
    }

    /// As [`Self::new`], all made now: of touches, and of reads that no touch waits for. Their long reads share parts of one huge page.
    pub(crate) fn of_reads(count: usize) -> io::Result<[Self; 2]> {
        let mut region = Region::map(REGION_ALIGN, Contents::Undumped)?;
        // Where the kernel knows no huge pages they are small ones.
        let _ = region.prefer_huge(true);
        let parts = Part::cut(region, LONG_PAGES * PAGE_SIZE);
        let long = Arc::new(ArrayQueue::new(parts.len()));
        for memory in parts {
            drop(long.push(Buffer { memory, is_long: true, used_pages: 0 }));
        }
        let of_ahead = Self { long: Arc::clone(&long), ..Self::new(count, count)? };
        Ok([Self { long, ..Self::new(count, count)? }, of_ahead])
    }

    /// As [`Self::take`], a part of the huge page if one is free.
    pub(crate) fn take_long(&self) -> Buffer {
        self.long.pop().unwrap_or_else(|| self.take())
    }

    /// Takes a buffer if there is one: for those who wait for nobody's read.
    pub(crate) fn pop(&self) -> Option<Buffer> {
        let warm = take_first(&self.full).and_then(|place| {
            let buffer = self.warm[place].pop();
            self.empty.fetch_or(1 << place, Ordering::SeqCst);
            buffer
        });
        warm.or_else(|| self.cold.pop())
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
            Some(buffer) if buffer.memory.len_bytes() >= pages * PAGE_SIZE => Ok(buffer),
            too_small => {
                too_small.into_iter().for_each(|buffer| self.give(buffer));
                Buffer::new(pages)
            }
        }
    }

    /// Gives a buffer back.
    pub(crate) fn give(&self, buffer: Buffer) {
        if buffer.is_long {
            return drop(self.long.push(buffer));
        }
        if buffer.memory.len_bytes() > REGION_ALIGN {
            // Of a source with a large grain: too much to keep.
            return;
        }
        if let Some(place) = take_first(&self.empty) {
            drop(self.warm[place].push(buffer));
            self.full.fetch_or(1 << place, Ordering::SeqCst);
        } else {
            let mut buffer = buffer;
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

/// Takes the lowest bit that is set.
fn take_first(bits: &AtomicU64) -> Option<usize> {
    let mut now = bits.load(Ordering::SeqCst);
    while now != 0 {
        match bits.compare_exchange(now, now & (now - 1), Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) => return Some(now.trailing_zeros() as usize),
            Err(other) => now = other,
        }
    }
    None
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::time::{Duration, Instant};

    use prepage_core::{PageIndex, PageRange};
    use prepage_sys::region::is_present;
    use prepage_testing::{Need, has};

    use super::*;
    use crate::{Advice, MapOptions, Vm, VmOptions};

    /// Whether its first page takes memory.
    fn present(buffer: &Buffer) -> bool {
        is_present(buffer.memory.start()).unwrap()
    }

    #[test]
    fn who_finds_no_buffer_gets_one_that_comes_back() {
        let buffers = Buffers::new(2, 2).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..6 {
                // Who is not woken waits for ever.
                scope.spawn(|| (0..2_000).for_each(|_| buffers.give(buffers.take())));
            }
        });
        let free = std::iter::from_fn(|| buffers.pop()).count();
        assert_eq!((free, buffers.waiting.load(Ordering::SeqCst)), (2, 0));
    }

    #[test]
    fn when_many_reads_end_few_buffers_keep_their_memory() {
        let buffers = Buffers::new(256, 0).unwrap();
        let count = buffers.warm.len() + 30;
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
        read(BUFFER_PAGES);
        assert!(buffers.warm.iter().all(ArrayQueue::is_full));
        let cold: Vec<Buffer> = std::iter::from_fn(|| buffers.cold.pop()).collect();
        assert_eq!(cold.len(), 30);
        assert!(!cold.iter().any(present), "memory of buffers that nobody uses");
        let warm: Vec<Buffer> = std::iter::from_fn(|| buffers.pop()).collect();
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
            let all: Vec<Buffer> = std::iter::from_fn(|| buffers.pop()).collect();
            assert!(all.len() >= count);
            all.into_iter().for_each(|buffer| buffers.give(buffer));
        }
    }

    #[test]
    fn one_read_after_the_other_uses_one_buffer() {
        let buffers = Buffers::new(8, 8).unwrap();
        for _ in 0..8 {
            let mut buffer = buffers.take();
            buffer.pages(BUFFER_PAGES).fill(1);
            buffers.give(buffer);
        }
        let all: Vec<Buffer> = std::iter::from_fn(|| buffers.pop()).collect();
        assert_eq!(all.iter().filter(|buffer| present(buffer)).count(), 1);
    }

    /// Whoever reads.
    #[test]
    fn parts_of_the_huge_page_come_back() {
        const READS: u64 = 8;
        let home = std::env::temp_dir();
        if !has(Need::DirectReads(home.clone())) {
            return;
        }
        let file = tempfile::NamedTempFile::new_in(home).unwrap();
        file.as_file().set_len(READS * BUFFER_PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().frame_limit_bytes(64 << 20)).unwrap();
        let object = vm.file_direct(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
        for read in 0..READS {
            let of_read = |at| PageRange::new(PageIndex(at), PageIndex(at + BUFFER_PAGES / 2));
            let first = read * BUFFER_PAGES;
            map.advise(Advice::WillNeed(of_read(first))).unwrap();
            map.populate(of_read(first)).unwrap();
            map.populate(of_read(first + BUFFER_PAGES / 2)).unwrap();
        }
        let began = Instant::now();
        while vm.core.buffers.long.len() < 4 {
            assert!(began.elapsed() < Duration::from_secs(60), "{} are left", vm.core.buffers.long.len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn long_reads_ahead_share_a_huge_page() {
        let [buffers, of_ahead] = Buffers::of_reads(8).unwrap();
        let mut taken: Vec<Buffer> = (0..5).map(|_| buffers.take_long()).collect();
        let parts = [LONG_PAGES, LONG_PAGES, LONG_PAGES, LONG_PAGES, PART_PAGES];
        assert_eq!(taken.iter().map(Buffer::part_pages).collect::<Vec<_>>(), parts);
        for buffer in &mut taken {
            buffer.pages(buffer.part_pages()).fill(1);
        }
        // A part finds its place again, whoever had it.
        taken.into_iter().for_each(|buffer| of_ahead.give(buffer));
        assert_eq!(buffers.long.len(), parts.len() - 1);
        assert_eq!((buffers.take().part_pages(), buffers.take_long().part_pages()), (PART_PAGES, LONG_PAGES));
    }
}
