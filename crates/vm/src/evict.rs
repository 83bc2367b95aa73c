//! Frames are taken away, while others map and touch them.

use prepage_core::{PageIndex, PageRange};

use prepage_sys::signals::Masked;

use crate::error::AccessError;
use crate::object::{Frames, Object, ObjectCore, clip};
use crate::pages::Claim;
use crate::statistics::{Account, Tally};

/// Pages that are claimed at once: who touches one of them waits for as many to be taken.
const BATCH_PAGES: u64 = 1024;

impl Object {
    /// Takes the frames of resident pages in `range` away, except pinned and dirty ones. Returns how many pages these were. The next
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

fn evict_batch(
    object: &ObjectCore,
    frames: &Frames,
    range: PageRange,
    evicted: &mut u64,
) -> std::io::Result<()> {
    let mut claims = Vec::new();
    let mut page = range.start();
    while page < range.end() {
        match frames.pages.claim_resident(page, range.end()) {
            Some((claim, unwired)) => {
                object.rewires(frames, unwired);
                page = claim.range().end();
                claims.push((claim, 0));
            }
            None => page.0 += 1,
        }
    }
    let (taken, outcome) = take_claimed(object, frames, claims);
    *evicted += taken;
    let tally = Tally { pages_evicted: taken, ..Tally::default() };
    object.vm.figures.add(Account::here().cpu, &tally);
    outcome
}

/// Takes the frames of `claims` away, each wired and with a stamp to leave, 0 for none; gives how many went. Claims of pages that
/// follow each other stand side by side. Those that the kernel refuses to free stay resident.
pub(crate) fn take_claimed(
    object: &ObjectCore,
    frames: &Frames,
    claims: Vec<(Claim, u16)>,
) -> (u64, std::io::Result<()>) {
    if claims.is_empty() {
        return (0, Ok(()));
    }
    frames.sections.wait();
    let mut outcome = Ok(());
    let mut listed = false;
    let mut taken = 0;
    let mut claims = claims.into_iter().peekable();
    while let Some(first) = claims.next() {
        let mut run = first.0.range();
        let mut of_run = vec![first];
        while let Some(next) = claims.next_if(|(claim, _)| claim.range().start() == run.end()) {
            run = PageRange::new(run.start(), next.0.range().end());
            of_run.push(next);
        }
        // One call a run: each makes the kernel interrupt the CPUs that may know the pages.
        let is_read_again = !object.is_frozen();
        let remembered = if is_read_again { remember(object, frames, run) } else { Ok(()) };
        let punched = remembered.and_then(|()| frames.punch(run));
        if punched.is_ok() {
            taken += run.len();
            object.went(frames, run.len());
        }
        for (mut claim, stamp) in of_run {
            let told = match &punched {
                Ok(()) if stamp != 0 => claim.release_stamped(stamp),
                Ok(()) => claim.release(),
                Err(_) => claim.publish(claim.range().len(), None),
            };
            listed |= told.listed;
        }
        outcome = outcome.and(punched);
    }
    if listed {
        object.vm.jobs.serve_listed_soon();
    }
    (taken, outcome)
}

/// Keeps what the pages of `run` hold in mind.
fn remember(object: &ObjectCore, frames: &Frames, run: PageRange) -> std::io::Result<()> {
    let sums = frames.make_sums(object.pages().len())?;
    let mut buffer = object.vm.request_buffers.take_or_make(1)?;
    let mut start = run.start();
    let mut outcome = Ok(());
    while start < run.end() && outcome.is_ok() {
        let pages = (run.end().0 - start.0).min(crate::buffers::BUFFER_PAGES);
        let bytes = buffer.pages(pages);
        outcome = frames.memfd.read_at(bytes, start.offset_bytes());
        if outcome.is_ok() {
            sums.keep(start, bytes);
        }
        start.0 += pages;
    }
    object.vm.request_buffers.give(buffer);
    outcome
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;
    use crate::pages::Seen;
    use crate::{MapOptions, Vm, VmOptions};

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
}
