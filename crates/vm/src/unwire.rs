//! Frames are taken out of all maps and kept: the next touch of one tells that it is used, and costs a fault that reads nothing.
//!
//! ```text
//!   word: Resident ─► Resident, unwired ─► sections that began before end ─► page tables ─► nobody sees the frame
//!                          └─ a fault clears the flag first, and then maps: it may be unmapped once more, and faults again
//! ```
//! Shared maps can forget a page that the object keeps. A private map may hold a copy of its own by the time it is told: faults on it wait
//! while its pages are write-protected, then looked at, and those that are still the object's are taken out (`private_unwire`). A frame that
//! a map with snapshots may show stays wired until it is reclaimed: there the protection tells what was written.

use std::io;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::signals::Masked;
use prepage_sys::slot::Entered;

use crate::backing::Backing;
use crate::error::AccessError;
use crate::hiding::MOST_WAIT;
use crate::map::MapCore;
use crate::object::{Frames, Object, ObjectCore, clip};
use crate::pages::Unwire;
use crate::private_unwire::PrivateMap;
use crate::statistics::{Account, Tally};
use crate::sync::Anyway;
use crate::writes::runs_of;

/// Pages that are unwired at once: who touches one of them waits for as many to be unmapped.
const BATCH_PAGES: u64 = 1024;

impl Object {
    /// Says that resident pages in `range` will not be needed soon. They are taken out of all maps, and stay in memory until reclaim
    /// takes them. Returns how many pages these were. Pinned and dirty pages, pages of a local file that share an aligned block of 2 MiB with a pinned one, and pages
    /// that a map with snapshots may show, stay wired.
    ///
    /// # Errors
    /// When the kernel cannot unmap pages; they stay wired. In a child of fork(2).
    pub fn unwire(&self, range: PageRange) -> Result<u64, AccessError> {
        self.core.vm.check_process().map_err(|_| AccessError::Forked)?;
        // What was frozen is nowhere else, and is shown to private maps alone.
        let Some(frames) = self.core.frames().filter(|_| !self.core.is_frozen()) else { return Ok(0) };
        let range = clip(range, self.pages());
        let _masked = Masked::asynchronous();
        let mut unwired = 0;
        let mut start = range.start();
        while start < range.end() {
            let end = PageIndex((start.0 + BATCH_PAGES).min(range.end().0));
            let pages: Vec<PageIndex> = PageRange::new(start, end).iter().collect();
            let watched = self.core.unwire(frames, &pages, false).map_err(AccessError::System)?;
            unwired += watched.iter().filter(|&&came| came == Some(Unwire::Done)).count() as u64;
            start = end;
        }
        Ok(unwired)
    }
}

/// A map of the object, and the object's pages that it shows.
pub(crate) struct Shower {
    pub(crate) map: Entered<'static, MapCore>,
    pub(crate) backing: Backing,
}

impl ObjectCore {
    /// Unwires `pages`, which ascend; gives what came of each, `None` where a map with snapshots may show it. The reclaimer's thread `is_patient`: faults may do
    /// a part of it, and wired pages between may go with them.
    pub(crate) fn unwire(
        &self,
        frames: &Frames,
        pages: &[PageIndex],
        is_patient: bool,
    ) -> io::Result<Vec<Option<Unwire>>> {
        let pool = self.vm.pool.core();
        let _hurry = (!is_patient).then(|| pool.hurry());
        let pins = frames.pins.lock().anyway();
        // What is left to the kernel is shown without a fault. Later none is left to it while a page is unwired.
        let _taking = frames.whole.take_from_kernel()?;
        let mut account = Account::here();
        let (shared, private) = self.showers(account.cpu);
        let private: Vec<PrivateMap<'_>> = PrivateMap::all(&private).collect();
        let mut is_beside_a_pin = self.are_beside_a_pin(Some(&pins));
        let asked = pages;
        // Who writes, or may have copies of its own, has to know of each page. One thread does it without interrupting anybody.
        let takes_between =
            is_patient && private.is_empty() && frames.dirty.is_none() && pool.hiding.are_of_several();
        let with_between = if takes_between { frames.with_between(pages) } else { Vec::new() };
        let pages = if takes_between { &with_between[..] } else { asked };
        let came: Vec<Option<Unwire>> = pages
            .iter()
            .map(|&page| {
                let is_kept = private.iter().any(|map| map.keeps(page));
                (!is_kept).then(|| match is_beside_a_pin(page) {
                    true => Unwire::No,
                    false => {
                        frames.pages.unwire(page, || self.unwires(frames, 1), || self.rewires(frames, 1))
                    }
                })
            })
            .collect();
        let done: Vec<PageIndex> = pages
            .iter()
            .zip(&came)
            .filter(|(_, came)| **came == Some(Unwire::Done))
            .map(|(page, _)| *page)
            .collect();
        let came = of_asked(asked, pages, came);
        if done.is_empty() {
            return Ok(came);
        }
        frames.sections.wait();
        let runs = runs_of(done.iter().copied());
        let runs = if takes_between { frames.joined(runs) } else { runs };
        // Who writes to a private map, or takes a snapshot of it, waits for what is held of it here.
        let may_offer = is_patient && private.is_empty();
        let outcome = shared.iter().try_for_each(|shower| shower.hide(&runs, may_offer));
        let outcome = outcome.and_then(|()| private.iter().try_for_each(|map| map.hide(frames, &runs)));
        if let Err(error) = outcome {
            let rewired = done.iter().filter(|&&page| frames.pages.rewire(page)).count();
            self.rewires(frames, rewired as u64);
            return Err(error);
        }
        account.tally = Tally { pages_unwired: done.len() as u64, ..Tally::default() };
        self.vm.figures.settle(&mut account);
        Ok(came)
    }

    /// The maps that lie over the object's frames, shared ones and private ones.
    fn showers(&self, cpu: usize) -> (Vec<Shower>, Vec<Shower>) {
        let showers = self
            .backings
            .of_maps()
            .into_iter()
            .filter_map(|(backing, at)| Some(Shower { map: at.enter(cpu)?, backing }));
        showers.partition(|shower| !shower.map.private)
    }
}

impl Shower {
    /// Where the object's pages `runs` are in the map, as offset and length.
    pub(crate) fn places(&self, runs: &[PageRange]) -> Vec<(u64, u64)> {
        let window = self.backing.window;
        let start = self.backing.start_address - self.map.span.start();
        let here = runs.iter().map(|run| clip(*run, window)).filter(|run| !run.is_empty());
        here.map(|run| (start + (run.start().0 - window.start().0) * PAGE_SIZE, run.bytes())).collect()
    }

    /// Takes the object's pages `runs` out of a shared map, as far as it shows them.
    fn hide(&self, runs: &[PageRange], may_offer: bool) -> io::Result<()> {
        let here = self.places(runs);
        if here.is_empty() {
            return Ok(());
        }
        // Poison goes with what is unmapped.
        let mut poisoned = self.map.poison.hold();
        let pool = self.map.vm.pool.core();
        // Who maps a page where there is poison waits for what is held here.
        let may_offer = may_offer && self.map.poison.is_nowhere() && pool.frames.may_rest();
        if may_offer && pool.hiding.is_worth(&self.map, Account::here().cpu) {
            let rest = |is_over: &dyn Fn() -> bool| {
                if pool.frames.may_rest() {
                    pool.frames.rest_until(MOST_WAIT, is_over);
                }
            };
            pool.hiding.hide(&self.map, &here, rest)?;
        } else {
            self.map.span.unmap_shared_ranges(&here)?;
        }
        poisoned.forget(|page| {
            let offset = self.map.offset_of(page);
            here.iter().any(|&(start, len)| start <= offset && offset < start + len)
        });
        Ok(())
    }
}

/// What came of the pages `asked` for, of what `came` of all `pages`, which hold these.
fn of_asked<T>(asked: &[PageIndex], pages: &[PageIndex], came: Vec<T>) -> Vec<T> {
    let mut asked = asked.iter().peekable();
    let came = pages.iter().zip(came);
    came.filter(|(page, _)| asked.next_if_eq(page).is_some()).map(|(_, came)| came).collect()
}
