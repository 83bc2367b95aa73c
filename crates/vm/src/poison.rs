//! Pages of a map that raise SIGBUS, since they could not be had, until they are tried again: in handler mode, where the
//! thread that touched one sleeps in the kernel.

use std::sync::PoisonError;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::userfaultfd::Progress;

use crate::error::AccessError;
use crate::map::{Map, MapCore};
use crate::segment::Place;
use crate::sync::{AtomicU32, Mutex, MutexGuard, Ordering};

/// The poisoned pages of a map.
///
/// Lock legend: (a) atomic; `pages` is held while poison is laid or taken away, never in signal handlers.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    pages: Mutex<Vec<PageIndex>>,
    /// (a) How many there are or are about to be; changed under `pages`.
    count: AtomicU32,
}

/// While this lives no poison is laid or taken away by others.
pub(crate) struct Held<'a> {
    pages: MutexGuard<'a, Vec<PageIndex>>,
    count: &'a AtomicU32,
}

impl Poison {
    pub(crate) fn hold(&self) -> Held<'_> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        Held { pages, count: &self.count }
    }

    fn is_nowhere(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
}

impl Held<'_> {
    /// Poison is gone from the pages of which `which` is true.
    pub(crate) fn forget(&mut self, which: impl Fn(PageIndex) -> bool) {
        self.pages.retain(|&page| !which(page));
        self.count.store(self.pages.len() as u32, Ordering::SeqCst);
    }
}

impl Map {
    /// Pages of `range` that raise SIGBUS do so no longer.
    pub(crate) fn forget_poison(&self, range: PageRange) -> Result<(), AccessError> {
        if self.core.poison.is_nowhere() {
            return Ok(());
        }
        let mut poisoned = self.core.poison.hold();
        // Those that were mapped since are no longer in the list: nothing that was written is lost.
        let here: Vec<PageIndex> =
            poisoned.pages.iter().copied().filter(|&page| range.contains(page)).collect();
        for page in here {
            self.region.unpoison(self.core.offset_of(page)).map_err(AccessError::System)?;
            poisoned.forget(|other| other == page);
        }
        Ok(())
    }
}

impl MapCore {
    /// Lets threads that wait for `page`, and those that touch it, get SIGBUS, until it is tried again.
    pub(crate) fn poison(&self, page: PageIndex) {
        let mut poisoned = self.poison.hold();
        // Known before the poison is laid: whoever maps over it looks here afterwards.
        poisoned.count.store(poisoned.pages.len() as u32 + 1, Ordering::SeqCst);
        let laid = self.space.uffd.poison(&self.span, self.offset_of(page), PAGE_SIZE);
        if matches!(laid, Ok(Progress::Done)) {
            poisoned.pages.push(page);
        } else {
            poisoned.count.store(poisoned.pages.len() as u32, Ordering::SeqCst);
            // It is there after all, or going: the touch is repeated.
            self.wake(page);
        }
    }

    /// The object's pages `run` were mapped at `place`: poison that lay there is gone, and what the program writes there from
    /// now on is to stay.
    pub(crate) fn forget_poisoned(&self, place: &Place<'_>, run: PageRange) {
        if self.poison.is_nowhere() {
            return;
        }
        let start = self.page_at(self.span.start() + place.offset_of(run.start()));
        let mapped = PageRange::new(start, PageIndex(start.0 + run.len()));
        self.poison.hold().forget(|page| mapped.contains(page));
    }
}
