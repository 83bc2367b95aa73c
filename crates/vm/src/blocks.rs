//! Blocks of 2 MiB of a local file, read ahead of touches in order, for a touch that overtakes that, or for a range as a whole, into frames that are one piece of memory.
//!
//! ```text
//!   all pages claimed ─► block made ─► a part read ─► mapped ahead of touches ─► published ─┐
//!                                         ▲                                                 │
//!                                         └─────────────────────────────────────────────────┘
//! ```
//! A memfd gets its pages one by one, and each takes the kernel longer than all else that is done for it. A huge page takes an eighth of the time, and the
//! bytes come into it without a buffer in between. Which blocks are such pages the VM does not remember: its words and counts are of pages of 4 KiB, and
//! where a page of one goes the kernel splits it.

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::block::{BLOCK_BYTES, make_block};
use prepage_sys::signals::Endings;

use crate::buffers::{BUFFER_PAGES, Buffer};
use crate::fill::{PART_PAGES, Wanted, commit_first};
use crate::object::{Bytes, Frames, ObjectCore};
use crate::pages::{Claim, Seen, Waiters};
use crate::pin::Pins;
use crate::source::LocalFile;
use crate::statistics::Account;
use crate::sync::{Anyway, MutexGuard};

/// Pages of a block.
pub(crate) const BLOCK_PAGES: u64 = BLOCK_BYTES / PAGE_SIZE;
/// Objects of fewer pages have none. The first that has some makes the file system for all, which takes an ordinary user a millisecond or more.
pub(crate) const LEAST_IN_BLOCKS: u64 = 8 * BLOCK_PAGES;

impl ObjectCore {
    /// Whether whole blocks of it are read as one. Not where frames are reclaimed: they go one by one, and each time a block would be split.
    pub(crate) fn has_blocks(&self) -> bool {
        self.frames().is_some_and(|frames| {
            matches!(frames.bytes, Bytes::Local(_)) && frames.memfd.has_blocks() && frames.dirty.is_none()
        }) && !self.vm.pool.core().reclaims()
    }

    /// Says of pages whether they share a block with a pinned one: to take them out of a map, or their frames away, would take that out of the map, too.
    /// MADV_DONTNEED of a part clears the entry of the whole block, and where a hole is punched the kernel unmaps the huge page that it splits.
    /// `pins` are those of the object; none need be given where it has no blocks.
    pub(crate) fn are_beside_a_pin(&self, pins: Option<&Pins>) -> impl FnMut(PageIndex) -> bool {
        let pins = pins.filter(|_| self.has_blocks());
        let mut last = None;
        move |page| {
            let Some(pins) = pins else { return false };
            let number = page.0 / BLOCK_PAGES;
            match last {
                Some((of, is_pinned)) if of == number => is_pinned,
                _ => {
                    let start = number * BLOCK_PAGES;
                    let block = PageRange::new(PageIndex(start), PageIndex(start + BLOCK_PAGES));
                    let is_pinned = pins.any_in(block);
                    last = Some((number, is_pinned));
                    is_pinned
                }
            }
        }
    }

    /// For who takes frames away: the pins of an object that has blocks, so that nobody pins a page meanwhile, and what is pinned from then on is mapped after
    /// these frames have gone.
    pub(crate) fn hold_pins_of_blocks<'a>(&self, frames: &'a Frames) -> Option<MutexGuard<'a, Pins>> {
        self.has_blocks().then(|| frames.pins.lock().anyway())
    }

    /// Whether no block in which a page of `run` lies is being filled as one, nor will be while that page is pinned: a block that cannot be read to its end is taken out
    /// of all maps. Where this is false, it is so once `run` is in memory and [`Self::wait_for_blocks`] has returned.
    pub(crate) fn are_blocks_settled(&self, run: PageRange) -> bool {
        let Some(frames) = self.frames().filter(|_| self.has_blocks()) else { return true };
        self.blocks_of(run).all(|block| {
            let mut is_begun = false;
            let is_filled = block.iter().any(|page| match frames.pages.see(page) {
                Seen::Filling => true,
                seen => {
                    is_begun |= matches!(seen, Seen::Resident { .. });
                    false
                }
            });
            is_begun && !is_filled
        })
    }

    /// Waits for who fills pages of blocks in which a page of `run` lies.
    pub(crate) fn wait_for_blocks(&self, run: PageRange, endings: Endings) {
        let Some(frames) = self.frames().filter(|_| self.has_blocks()) else { return };
        self.blocks_of(run).flat_map(PageRange::iter).for_each(|page| _ = frames.pages.wait(page, endings));
    }

    /// The blocks in which a page of `run` lies, as far as the object goes.
    fn blocks_of(&self, run: PageRange) -> impl Iterator<Item = PageRange> {
        let end = self.pages().end();
        let starts = (run.start().0 / BLOCK_PAGES..run.end().0.div_ceil(BLOCK_PAGES))
            .map(|number| number * BLOCK_PAGES);
        starts.map(move |start| PageRange::new(PageIndex(start), PageIndex((start + BLOCK_PAGES).min(end.0))))
    }

    /// Pages of one step of a run that is read ahead or for a range: the most that is claimed at once.
    pub(crate) fn step_pages(&self) -> u64 {
        if self.has_blocks() { BLOCK_PAGES } else { self.piece_pages() }
    }

    /// Where a claim ends that begins at `at` and is one of a step that ends at `end`: with a block that is missing as a whole, or one read later.
    pub(crate) fn end_of_claim(&self, frames: &Frames, at: PageIndex, end: PageIndex) -> PageIndex {
        let block = PageRange::new(at, PageIndex((at.0 + BLOCK_PAGES).min(end.0)));
        let is_block = self.is_missing_block(frames, block);
        if is_block { block.end() } else { PageIndex((at.0 + self.piece_pages()).min(end.0)) }
    }

    /// Whether `range` is a block of which every page is missing.
    pub(crate) fn is_missing_block(&self, frames: &Frames, range: PageRange) -> bool {
        range.len() == BLOCK_PAGES
            && range.start().0.is_multiple_of(BLOCK_PAGES)
            && self.has_blocks()
            && range.iter().all(|page| frames.pages.see(page) == Seen::Absent)
    }

    /// What is read ahead of `range`, which a policy asks for in `window`: where it is long, blocks from the one on in which it begins. That in which it ends is
    /// left to the read that follows, unless the window ends there or `mark` lies in it, which asks for that read.
    pub(crate) fn in_blocks(
        &self,
        range: PageRange,
        window: PageRange,
        mark: Option<PageIndex>,
    ) -> PageRange {
        if range.len() < BLOCK_PAGES || !self.has_blocks() {
            return range;
        }
        let begin = |page: PageIndex| PageIndex(page.0 - page.0 % BLOCK_PAGES);
        let end = begin(range.end());
        let is_whole = range.end() == window.end() || mark.is_some_and(|mark| end <= mark);
        let end = if is_whole { range.end() } else { end };
        PageRange::new(begin(range.start()).max(window.start()), end)
    }
}

/// Whether `range` is one block that [`fill`] can bring in: it lies before the end of the file.
pub(crate) fn is_block(object: &ObjectCore, range: PageRange) -> bool {
    range.len() == BLOCK_PAGES
        && range.start().0.is_multiple_of(BLOCK_PAGES)
        && range.end().offset_bytes() <= object.len_bytes
        && object.has_blocks()
}

/// Brings in the block that is claimed, for which frames are reserved. Returns what is left of the claim where a part cannot be had, and who waited for
/// the others.
pub(crate) fn fill(
    object: &ObjectCore,
    frames: &Frames,
    file: &LocalFile,
    mut claim: Claim,
    wanted: Wanted,
    buffer: &mut Buffer,
    account: &mut Account,
) -> Result<Waiters, (Claim, Waiters)> {
    let range = claim.range();
    let mut waiters = Waiters::default();
    let Ok(block) = make_block(&frames.memfd, range.start().offset_bytes()) else {
        // Some of its memory may have been made.
        frames.abandon(range);
        return Err((claim, waiters));
    };
    // A direct read is one request, and a map shows a whole block by one entry of the page table.
    let is_in_order =
        || wanted.in_order_for.and_then(|at| at.enter(account.cpu)).is_some_and(|map| map.is_in_order());
    let is_one = file.direct || !wanted.marks_in(range) && is_in_order();
    let part_pages = if is_one { BLOCK_PAGES } else { PART_PAGES };
    if !file.direct {
        file.begin_huge(range);
    }
    while !claim.range().is_empty() {
        let start = claim.range().start();
        let part = PageRange::new(start, PageIndex(start.0 + part_pages));
        let read = file.read_straight(&block, range, part).and_then(|()| verify(frames, part, buffer));
        if read.is_err() {
            // No page of the block is pinned: whoever pins one waits until the block is filled or given up.
            frames.abandon(claim.range());
            return Err((claim, waiters));
        }
        if let Some(at) = wanted.in_order_for
            && let Some(map) = at.enter(account.cpu)
        {
            map.show_ahead(at, object, frames, part, wanted.mark, account);
        }
        // Counted with its last pages, before others see these.
        account.tally.blocks_read += u64::from(part.end() == range.end());
        waiters.listed |= commit_first(object, frames, &mut claim, part.len(), wanted, account).listed;
    }
    Ok(waiters)
}

/// Whether what stands in the frames of `part` is what they held when they were evicted.
fn verify(frames: &Frames, part: PageRange, buffer: &mut Buffer) -> Result<(), u16> {
    let mut start = part.start();
    while start < part.end() {
        let some = PageRange::new(start, PageIndex((start.0 + BUFFER_PAGES).min(part.end().0)));
        frames.verify_frames(some, buffer.pages(some.len()))?;
        start = some.end();
    }
    Ok(())
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::time::{Duration, Instant};

    use prepage_sys::region::is_present;
    use prepage_testing::{Need, has};

    use super::*;
    use crate::frame_count::Reserve;
    use crate::request::Priority;
    use crate::{MapOptions, Vm, VmOptions};

    /// Where a block cannot be read to its end, the kernel splits the huge page and takes it out of all maps.
    #[test]
    fn who_pins_a_page_waits_until_its_block_is_filled_or_given_up() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(LEAST_IN_BLOCKS * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let (core, frames) = (&object.core, object.core.frames().unwrap());
        if !core.has_blocks() {
            assert!(!has(Need::Root), "root may have a file system of its own");
            return;
        }
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let start = PageIndex(2 * BLOCK_PAGES);
        let range = PageRange::new(start, PageIndex(start.0 + BLOCK_PAGES));
        let mut claim = frames.pages.claim(start).unwrap();
        claim.extend(range);
        assert_eq!(claim.range(), range);
        let count = &vm.core.pool.core().frames;
        assert_eq!(count.reserve(range.len()), Reserve::Got);
        let block = make_block(&frames.memfd, start.offset_bytes()).unwrap();
        let wanted = Wanted {
            needed: start,
            mark: None,
            priority: Priority::Ahead,
            in_order_for: None,
            whole_grains: false,
        };
        let waiters = commit_first(core, frames, &mut claim, PART_PAGES, wanted, &mut Account::here());
        assert!(!waiters.listed);
        drop(block);
        let page = PageIndex(start.0 + 3);
        let is_in_map = || is_present(map.address() + page.offset_bytes()).unwrap();
        std::thread::scope(|scope| {
            let pins = scope.spawn(|| map.pin(PageRange::new(page, PageIndex(page.0 + 1))).unwrap());
            let began = Instant::now();
            while !is_in_map() {
                assert!(began.elapsed() < Duration::from_secs(60), "it is not brought in");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(50));
            assert!(!pins.is_finished(), "the rest of the block is being read");
            // As `fill` does where that fails.
            frames.abandon(claim.range());
            vm.core.release_frames(claim.range().len());
            assert!(!claim.release().listed);
            let pinned = pins.join().unwrap();
            assert!(is_in_map());
            drop(pinned);
        });
        assert_eq!((object.resident_pages(), count.reserved()), (PART_PAGES, PART_PAGES));
        let end = PageIndex(start.0 + PART_PAGES).offset_bytes();
        assert_eq!(
            frames.memfd.next_data(0).unwrap(),
            Some((start.offset_bytes(), end)),
            "memory that nobody counts"
        );
    }
}
