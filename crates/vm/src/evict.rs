//! Frames are taken away, while others map and touch them.

use std::io;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::signals::Masked;

use crate::blocks::BLOCK_PAGES;
use crate::buffers::Buffer;
use crate::error::AccessError;
use crate::fill::PART_PAGES;
use crate::install::block;
use crate::object::{Frames, Object, ObjectCore, clip};
use crate::pages::{Claim, Stamp};
use crate::refill::Sums;
use crate::statistics::{Account, Tally};
use crate::writes::runs_of;

/// Pages that are claimed at once: who touches one of them waits for as many to be taken.
const BATCH_PAGES: u64 = 1024;

impl Object {
    /// Takes the frames of resident pages in `range` away, except pinned and dirty ones, and those of a local file that share an aligned block of 2 MiB with a
    /// pinned one. Returns how many pages these were. The next
    /// touch reads a page again. Private copies stay. A page that comes back with other bytes fails.
    ///
    /// # Errors
    /// When the kernel refuses to free frames; those pages stay. In a child of fork(2).
    pub fn evict(&self, range: PageRange) -> Result<u64, AccessError> {
        self.core.vm.check_process().map_err(|_| AccessError::Forked)?;
        // What was frozen is nowhere else.
        if self.core.is_frozen() {
            return Ok(0);
        }
        // Claims are held: a handler that touched one of the pages would wait for this thread.
        let _masked = Masked::asynchronous();
        take(&self.core, range)
    }
}

/// Takes the frames of resident pages of `range` away; returns how many pages that were. Signals wait meanwhile.
pub(crate) fn take(object: &ObjectCore, range: PageRange) -> Result<u64, AccessError> {
    let Some(frames) = object.frames() else { return Ok(0) };
    let range = clip(range, object.pages());
    // Pages that are taken away are filled again, and until then the kernel may not show them by itself.
    let _taking = frames.whole.take_from_kernel().map_err(AccessError::System)?;
    let mut evicted = 0;
    let mut outcome = Ok(());
    let mut start = range.start();
    while start < range.end() {
        let end = PageIndex((start.0 - start.0 % BATCH_PAGES + BATCH_PAGES).min(range.end().0));
        let taken = evict_batch(object, frames, PageRange::new(start, end), &mut evicted);
        outcome = outcome.and(taken);
        start = end;
    }
    outcome.map(|()| evicted).map_err(AccessError::System)
}

fn evict_batch(object: &ObjectCore, frames: &Frames, range: PageRange, evicted: &mut u64) -> io::Result<()> {
    let mut claimed = Claimed::room_for(object, frames, range.len() as usize)?;
    let pins = object.hold_pins_of_blocks(frames);
    let mut is_beside_a_pin = object.are_beside_a_pin(pins.as_deref());
    let mut page = range.start();
    while page < range.end() {
        let end = if pins.is_some() { block(page, BLOCK_PAGES, range).end() } else { range.end() };
        if is_beside_a_pin(page) {
            page = end;
            continue;
        }
        match frames.pages.claim_resident(page, end) {
            Some((claim, unwired)) => {
                object.rewires(frames, unwired);
                page = claim.range().end();
                claimed.add(claim, None);
            }
            None => page.0 += 1,
        }
    }
    let (taken, outcome) = claimed.take();
    *evicted += taken;
    // Who waits for a frame takes claims for frames that come soon.
    object.vm.pool.core().frames.may_go();
    let tally = Tally { pages_evicted: taken, ..Tally::default() };
    object.vm.figures.add(Account::here().cpu, &tally);
    outcome
}

/// Pages that are claimed to be taken away. Touches of them wait, maybe in a signal handler that interrupted the allocator: so all memory is
/// taken before the first is claimed, and given back when none is any more.
pub(crate) struct Claimed<'a> {
    object: &'a ObjectCore,
    frames: &'a Frames,
    /// Each with a stamp to leave.
    claims: Vec<(Claim, Option<Stamp>)>,
    /// As many pages count as claimed from before the first is: who claims may be interrupted before it can say so.
    counted: u64,
    /// To keep in mind what the pages hold. What was frozen is not read again.
    memory: Option<(&'a Sums, Buffer)>,
}

impl<'a> Claimed<'a> {
    /// None yet, with room for `most` claims of a page, or fewer of more.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn room_for(object: &'a ObjectCore, frames: &'a Frames, most: usize) -> io::Result<Self> {
        let memory = match object.is_frozen() {
            true => None,
            false => {
                let sums = frames.make_sums(object.pages().len())?;
                Some((sums, object.vm.request_buffers.take_or_make(1)?))
            }
        };
        let claims = Vec::with_capacity(most);
        let counted = most as u64;
        object.vm.pool.core().frames.claim(counted);
        Ok(Self { object, frames, claims, counted, memory })
    }

    /// Also these, wired; those that follow each other are added one after the other.
    pub(crate) fn add(&mut self, claim: Claim, stamp: Option<Stamp>) {
        debug_assert!(self.claims.len() < self.claims.capacity(), "nothing is allocated now");
        self.claims.push((claim, stamp));
    }

    /// Takes their frames away; gives how many went. Those that the kernel refuses to free stay resident.
    pub(crate) fn take(mut self) -> (u64, io::Result<()>) {
        let (object, frames) = (self.object, self.frames);
        if !self.claims.is_empty() {
            frames.sections.wait();
        }
        let mut outcome = Ok(());
        let mut taken = 0;
        let follows = |(claim, _): &(Claim, Option<Stamp>), (next, _): &(Claim, Option<Stamp>)| {
            claim.range().end() == next.range().start()
        };
        for claims in self.claims.chunk_by_mut(follows) {
            let run = PageRange::new(claims[0].0.range().start(), claims[claims.len() - 1].0.range().end());
            // One call a run: each makes the kernel interrupt the CPUs that may know the pages.
            let remembered =
                self.memory.as_mut().map_or(Ok(()), |(sums, buffer)| remember(frames, run, sums, buffer));
            let punched = remembered.and_then(|()| frames.punch(run));
            if punched.is_ok() {
                taken += run.len();
                object.went(frames, run.len());
            }
            let mut listed = false;
            for (claim, stamp) in claims {
                let told = match &punched {
                    Ok(()) => claim.release_stamped(*stamp),
                    Err(_) => claim.publish(claim.range().len(), None, claim.range().start()),
                };
                listed |= told.listed;
            }
            if listed {
                object.vm.jobs.serve_listed_soon();
            }
            outcome = outcome.and(punched);
        }
        (taken, outcome)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.object.vm.pool.core().frames.let_go(self.counted);
        if let Some((_, buffer)) = self.memory.take() {
            self.object.vm.request_buffers.give(buffer);
        }
    }
}

/// Which of `pages`, which ascend, the kernel would have to bring back from its swap space before they can go.
pub(crate) fn swapped_out(frames: &Frames, pages: impl Iterator<Item = PageIndex>) -> Vec<PageIndex> {
    let are_some = |run: PageRange| {
        let is_known = frames.sums().is_some_and(|sums| sums.know_all(run));
        !is_known && frames.memfd.pages_in_memory(run).is_ok_and(|pages| pages < run.len())
    };
    let runs = runs_of(pages).into_iter().filter(|run| are_some(*run));
    runs.flat_map(|run| run.iter()).filter(|page| are_some(page.alone())).collect()
}

/// Keeps what the pages of `run` hold in mind.
fn remember(frames: &Frames, run: PageRange, sums: &Sums, buffer: &mut Buffer) -> io::Result<()> {
    // Claimed pages are clean: what has a sum was compared with it when it came in, or was written back with it.
    if sums.know_all(run) {
        return Ok(());
    }
    let mut start = run.start();
    while start < run.end() {
        let pages = (run.end().0 - start.0).min(PART_PAGES);
        let bytes = buffer.pages(pages);
        frames.memfd.read_at(bytes, start.offset_bytes())?;
        sums.keep(start, bytes);
        start.0 += pages;
    }
    Ok(())
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;
    use crate::pages::Seen;
    use crate::{Map, MapOptions, Object, Pool, Vm, VmOptions};

    #[test]
    fn who_touches_pages_behind_a_batch_does_not_wait_for_it() {
        let pages = 4 * BATCH_PAGES;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(pages * prepage_core::PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        map.populate(map.window()).unwrap();
        let frames = object.core.frames().unwrap();
        std::thread::scope(|scope| {
            // A fault that is mapping a page: the first batch waits for it.
            let section = frames.sections.enter(0);
            let evicting = scope.spawn(|| object.evict(object.pages()).unwrap());
            let began = std::time::Instant::now();
            while frames.pages.see(PageIndex(BATCH_PAGES - 1)) != Seen::Filling {
                assert!(began.elapsed().as_secs() < 60 && !evicting.is_finished(), "nothing is claimed");
                std::thread::yield_now();
            }
            let behind = (BATCH_PAGES..pages).filter(|&page| !object.is_resident(PageIndex(page)));
            assert_eq!(behind.count(), 0, "pages are claimed long before they are taken");
            drop(section);
            assert_eq!(evicting.join().unwrap(), pages);
        });
    }

    /// A pool of 16 frames, all of them taken by the first pages of a file.
    fn full() -> (Pool, Object, Map) {
        let pool = Pool::new(16 * prepage_core::PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(32 * prepage_core::PAGE_SIZE).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
        (0..16).for_each(|at| map.populate(page(at)).unwrap());
        (pool, object, map)
    }

    fn page(at: u64) -> PageRange {
        PageRange::new(PageIndex(at), PageIndex(at + 1))
    }

    /// The thread that takes them may be interrupted as soon as it has claimed them.
    #[test]
    fn who_needs_a_frame_waits_for_those_that_are_claimed_to_be_taken_away() {
        let (pool, object, map) = full();
        let frames = object.core.frames().unwrap();
        let mut claimed = Claimed::room_for(&object.core, frames, 16).unwrap();
        let all: Vec<_> = object
            .pages()
            .iter()
            .filter_map(|at| frames.pages.claim_resident(at, PageIndex(at.0 + 1)))
            .collect();
        let count = &pool.core().frames;
        // What reclaim took away before is another's by now.
        let free = count.limit() - count.reserved();
        assert_eq!(count.reserve(free), crate::frame_count::Reserve::Got);
        count.fill(free);
        std::thread::scope(|scope| {
            let needing = scope.spawn(|| map.populate(page(31)));
            while !count.is_waited_for() && !needing.is_finished() {
                std::thread::yield_now();
            }
            // It looks again after each of these.
            for _ in 0..5 {
                count.has_nothing();
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            for (claim, unwired) in all {
                object.core.rewires(frames, unwired);
                claimed.add(claim, None);
            }
            claimed.take().1.unwrap();
            needing.join().unwrap().unwrap();
        });
        count.empty(free);
        count.release(free);
    }

    #[test]
    fn who_needs_a_frame_waits_for_those_that_are_being_taken_away() {
        let (pool, object, map) = full();
        let frames = object.core.frames().unwrap();
        std::thread::scope(|scope| {
            let section = frames.sections.enter(0);
            let evicting = scope.spawn(|| object.evict(object.pages()).unwrap());
            let is_there = |at| matches!(frames.pages.see(PageIndex(at)), Seen::Resident { .. });
            while (0..16).any(is_there) {
                std::thread::yield_now();
            }
            let needing = scope.spawn(|| map.populate(page(31)));
            let count = &pool.core().frames;
            // It looks again after each of these.
            for _ in 0..5 {
                count.has_nothing();
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            drop(section);
            evicting.join().unwrap();
            needing.join().unwrap().unwrap();
        });
    }
}
