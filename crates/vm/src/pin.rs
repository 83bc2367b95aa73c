//! Pages that stay in memory and in a map for as long as the program says.

use std::sync::Arc;
use std::sync::PoisonError;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::signals::Masked;

use crate::error::AccessError;
use crate::map::Map;
use crate::object::{Frames, ObjectCore};
use crate::reason::Reason;
use crate::segment::places;

/// The pinned ranges of an object, one for each pin.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    ranges: Vec<PageRange>,
}

impl Pins {
    /// Whether a page of `range` is pinned.
    pub(crate) fn any_in(&self, range: PageRange) -> bool {
        self.ranges.iter().any(|pinned| pinned.start() < range.end() && range.start() < pinned.end())
    }
}

/// Pages that stay in memory and in the map until this is dropped: touching them takes no fault, and they can be given to system calls.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::Write;
///
/// use prepage_core::{PageIndex, PageRange};
/// use prepage_vm::{MapOptions, Vm, VmOptions};
///
/// let vm = Vm::new(VmOptions::default().frame_limit_bytes(1 << 20))?;
/// let object = vm.file(std::env::current_exe()?)?;
/// let map = vm.map(&object, &MapOptions::shared())?;
/// // Without the pin reclaim might take the page before the system call reads it.
/// let pinned = map.pin(PageRange::new(PageIndex(0), PageIndex(1)))?;
/// std::io::sink().write_all(&map.as_slice()[..4096])?;
/// drop(pinned);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Pinned<'a> {
    /// Borrowed, so that it stays.
    map: &'a Map,
    /// What was behind its pages when they were pinned.
    of_objects: Vec<(Arc<ObjectCore>, PageRange)>,
}

impl Map {
    /// Brings `range` in and keeps it in memory until the returned [`Pinned`] is dropped. Pages may be pinned more than once.
    ///
    /// # Errors
    /// As [`Map::populate`]; also if more would be pinned than the pool may hold. Nothing is pinned then.
    pub fn pin(&self, range: PageRange) -> Result<Pinned<'_>, AccessError> {
        self.core.vm.check_process().map_err(|_| AccessError::Forked)?;
        self.inside(range)?;
        let mut pinned = Pinned { map: self, of_objects: Vec::new() };
        let count = &self.core.vm.pool.core().frames;
        let too_many = || {
            let object = self.core.laid[0].object.name.clone();
            AccessError::Unavailable { object, page: range.start(), reason: Reason::NoFrames }
        };
        {
            let _masked = Masked::asynchronous();
            for (place, pages) in places(&self.core.shown.current(), range) {
                // What was frozen stays by itself.
                if let Some(frames) = place.frames().filter(|_| !place.object.is_frozen()) {
                    // Words take memory once they are written to: not for what cannot be.
                    if pages > count.most() {
                        return Err(too_many());
                    }
                    let run = PageRange::new(place.page, PageIndex(place.page.0 + pages));
                    place.object.pin(frames, run);
                    pinned.of_objects.push((Arc::clone(place.object), run));
                }
            }
        }
        if count.pinned() > count.most() {
            return Err(too_many());
        }
        self.populate(range)?;
        Ok(pinned)
    }
}

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        let vm = &self.map.core.vm;
        if vm.check_process().is_err() {
            return;
        }
        let _masked = Masked::asynchronous();
        for (object, run) in &self.of_objects {
            object.unpin(object.frames().expect("they are pinned"), *run);
        }
        // Reads may wait for frames that can go now.
        vm.pool.core().frames.may_go();
    }
}

impl ObjectCore {
    fn pin(&self, frames: &Frames, run: PageRange) {
        let _hurry = self.vm.pool.core().hurry();
        // Nobody unwires a page meanwhile: what is mapped from now on stays mapped.
        let mut pins = frames.pins.lock().unwrap_or_else(PoisonError::into_inner);
        pins.ranges.push(run);
        let fresh = run.iter().filter(|&page| frames.pages.set_pinned(page, true)).count();
        self.vm.pool.core().frames.pin(fresh as u64);
    }

    fn unpin(&self, frames: &Frames, run: PageRange) {
        let _hurry = self.vm.pool.core().hurry();
        let mut pins = frames.pins.lock().unwrap_or_else(PoisonError::into_inner);
        let at = pins.ranges.iter().position(|range| *range == run).expect("pinned before");
        pins.ranges.swap_remove(at);
        let is_free = |page: &PageIndex| !pins.ranges.iter().any(|range| range.contains(*page));
        let freed = run.iter().filter(is_free).filter(|&page| frames.pages.set_pinned(page, false)).count();
        self.vm.pool.core().frames.unpin(freed as u64);
    }
}
