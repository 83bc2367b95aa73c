//! Pages that stay in memory and in a map for as long as the program says.

use std::sync::Arc;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::signals::{Endings, Masked};

use crate::error::AccessError;
use crate::map::Map;
use crate::object::{Frames, ObjectCore, clip};
use crate::reason::Reason;
use crate::segment::places;
use crate::sync::{Anyway, MutexGuard};

/// The pinned ranges of an object, one for each pin.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    ranges: Vec<PageRange>,
}

impl Pins {
    /// Whether a page of `range` is pinned.
    pub(crate) fn any_in(&self, range: PageRange) -> bool {
        self.ranges.iter().any(|pinned| pinned.overlaps(range))
    }

    /// Puts into `left`, which has room for it, what is left of `range` without the aligned runs of `unit` pages in which a page is pinned.
    pub(crate) fn leave_out(&self, range: PageRange, unit: u64, left: &mut Unpinned) {
        let units = |pinned: &PageRange| {
            let start = pinned.start().0 - pinned.start().0 % unit;
            PageRange::new(PageIndex(start), PageIndex(pinned.end().0.next_multiple_of(unit)))
        };
        let Unpinned { pinned, free, .. } = left;
        pinned.clear();
        let units = self.ranges.iter().filter(|pinned| !pinned.is_empty()).map(units);
        pinned.extend(units.filter(|run| run.overlaps(range)));
        pinned.sort_unstable_by_key(|run| run.start());
        free.clear();
        let mut at = range.start();
        for run in pinned.iter().map(|run| clip(*run, range)) {
            if at < run.start() {
                free.push(PageRange::new(at, run.start()));
            }
            at = at.max(run.end());
        }
        if at < range.end() {
            free.push(PageRange::new(at, range.end()));
        }
    }
}

/// What is left of a range without pinned pages. Its memory is there before the pins are held: whoever has them allocates and frees nothing,
/// since a thread that has the allocator's lock may wait for them.
#[derive(Debug, Default)]
pub(crate) struct Unpinned {
    /// The units in which a page is pinned.
    pinned: Vec<PageRange>,
    /// Pages of the object.
    pub(crate) free: Vec<PageRange>,
    /// Room for as many places of a map: offsets and lengths in bytes.
    pub(crate) places: Vec<(u64, u64)>,
}

impl Unpinned {
    fn has_room_for(&self, pins: &Pins) -> bool {
        let count = pins.ranges.len();
        self.pinned.capacity() >= count && self.free.capacity() > count && self.places.capacity() > count
    }

    /// Makes room for so many pins, between which there may be one free run more.
    fn make_room(&mut self, count: usize) {
        *self = Self {
            pinned: Vec::with_capacity(count),
            free: Vec::with_capacity(count + 1),
            places: Vec::with_capacity(count + 1),
        };
    }
}

impl Frames {
    /// Holds the pins, once `left` has room for them.
    pub(crate) fn hold_pins(&self, left: &mut Unpinned) -> MutexGuard<'_, Pins> {
        loop {
            let pins = self.pins.lock().anyway();
            if left.has_room_for(&pins) {
                return pins;
            }
            let count = pins.ranges.len();
            drop(pins);
            left.make_room(count);
        }
    }
}

/// Pages that stay in memory and in the map until this is dropped: to read them takes no fault, and system calls can be given them to read.
///
/// Writes to a [`writable`](crate::MapOptions::writable) map fault as without a pin: once after each write back, which goes on by itself. In
/// [`Mode::Inline`](crate::Mode) a system call that writes into such a page, as read(2), gets EFAULT then: give it memory of the program's own and
/// [`Map::write_at`] what comes, or use [`Mode::Handler`](crate::Mode).
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
    /// Brings `range` in and keeps it in memory until the returned [`Pinned`] is dropped. Pages may be pinned more than once. Waits for who reads the rest of a block of
    /// 2 MiB in which a page of `range` lies. Pool, eviction and advice leave pinned pages alone; a kernel with swap space may still write them out.
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
        let are_settled = pinned.of_objects.iter().all(|(object, run)| object.are_blocks_settled(*run));
        self.populate(range)?;
        if !are_settled {
            // A block that was given up meanwhile is in no map.
            for (object, run) in &pinned.of_objects {
                object.wait_for_blocks(*run, Endings::default());
            }
            self.populate(range)?;
        }
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
        let mut pins = frames.pins.lock().anyway();
        pins.ranges.push(run);
        let fresh = run.iter().filter(|&page| frames.pages.set_pinned(page, true)).count();
        self.vm.pool.core().frames.pin(fresh as u64);
    }

    fn unpin(&self, frames: &Frames, run: PageRange) {
        let _hurry = self.vm.pool.core().hurry();
        let mut left = Unpinned::default();
        let mut pins = frames.hold_pins(&mut left);
        let at = pins.ranges.iter().position(|range| *range == run).expect("pinned before");
        pins.ranges.swap_remove(at);
        // Pages that no other pin holds, found without looking at each pin for each page: others wait meanwhile.
        pins.leave_out(run, 1, &mut left);
        let free = left.free.iter().flat_map(|range| range.iter());
        let freed = free.filter(|&page| frames.pages.set_pinned(page, false)).count();
        let pool = self.vm.pool.core();
        pool.frames.unpin(freed as u64);
        // While they were pinned the order of reclaim may have forgotten them.
        left.free.iter().for_each(|range| pool.arrived(self.id, *range));
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::PAGE_SIZE;

    use super::*;
    use crate::{Advice, MapOptions, Pool, Vm, VmOptions};

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    #[test]
    fn units_with_a_pinned_page_are_left_out() {
        let cases: [(&[PageRange], PageRange, u64, &[PageRange]); 8] = [
            (&[], pages(3, 9), 1, &[pages(3, 9)]),
            (&[], pages(3, 3), 1, &[]),
            (&[pages(5, 6)], pages(3, 9), 1, &[pages(3, 5), pages(6, 9)]),
            (&[pages(8, 12), pages(1, 5)], pages(3, 9), 1, &[pages(5, 8)]),
            (&[pages(0, 20)], pages(3, 9), 1, &[]),
            (&[pages(20, 30), pages(0, 2)], pages(3, 9), 1, &[pages(3, 9)]),
            (&[pages(5, 6), pages(6, 6)], pages(0, 16), 4, &[pages(0, 4), pages(8, 16)]),
            (&[pages(5, 9), pages(7, 8)], pages(2, 6), 4, &[pages(2, 4)]),
        ];
        for (pinned, range, unit, left) in cases {
            let pins = Pins { ranges: pinned.to_vec() };
            let mut found = Unpinned::default();
            found.make_room(pinned.len());
            let capacities = (found.pinned.capacity(), found.free.capacity());
            assert!(found.has_room_for(&pins));
            pins.leave_out(range, unit, &mut found);
            assert_eq!(found.free, left, "{pinned:?} {range:?} {unit}");
            assert_eq!((found.pinned.capacity(), found.free.capacity()), capacities, "memory was taken");
        }
    }

    #[test]
    fn what_is_pinned_stays_in_a_map_that_is_said_to_need_it_no_longer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let map = vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared()).unwrap();
        map.populate(map.window()).unwrap();
        let pinned = map.pin(pages(5, 6)).unwrap();
        let shown = || -> Vec<u64> {
            let is_shown =
                |page: &u64| prepage_sys::region::is_present(map.address() + page * PAGE_SIZE).unwrap();
            (0..16).filter(is_shown).collect()
        };
        map.advise(Advice::DontNeed(map.window())).unwrap();
        assert_eq!(shown(), [5]);
        drop(pinned);
        map.advise(Advice::DontNeed(map.window())).unwrap();
        assert!(shown().is_empty());
    }

    #[test]
    fn what_other_pins_hold_stays_pinned() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 * PAGE_SIZE).unwrap();
        let pool = Pool::new(1 << 20).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let frames = object.core.frames().unwrap();
        let pinned =
            || -> Vec<u64> { (0..16).filter(|&page| frames.pages.is_pinned(PageIndex(page))).collect() };
        let all = map.pin(pages(0, 16)).unwrap();
        let others = [(14, 16), (3, 5), (4, 6), (9, 10)].map(|(start, end)| map.pin(pages(start, end)));
        assert_eq!(pool.figures().pinned_pages, 16);
        drop(all);
        assert_eq!((pinned(), pool.figures().pinned_pages), (vec![3, 4, 5, 9, 14, 15], 6));
        let [_end, first, second, _alone] = others.map(Result::unwrap);
        drop(second);
        assert_eq!((pinned(), pool.figures().pinned_pages), (vec![3, 4, 9, 14, 15], 5));
        drop(first);
        assert_eq!((pinned(), pool.figures().pinned_pages), (vec![9, 14, 15], 3));
    }
}
