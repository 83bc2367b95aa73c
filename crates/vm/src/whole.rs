//! What is wholly in memory is left to the kernel: maps of objects, of which it maps 16 pages a fault without asking, and for a moment blocks,
//! which it maps at once.
//!
//! A map that is not served for unmapped pages (UFFD's MINOR mode) shows whatever page the memfd holds. That is right while
//! every page is resident, and must end before one is taken away: its frame is filled again, and the kernel would show it
//! while it is.

use std::io;
use std::sync::{Arc, Weak};

use prepage_sys::userfaultfd::{Served, Writes};

use crate::addresses::MapRef;
use crate::map::MapCore;
use crate::object::{Frames, ObjectCore};
use crate::segment::{Install, Segment};
use crate::statistics::Tally;
use crate::sync::{Anyway, Mutex, Ordering};

/// Which maps of an object are the kernel's.
///
/// Lock legend: `given` is held while a map is registered, so that none is given while pages are taken away.
#[derive(Debug)]
pub(crate) struct Whole {
    given: Mutex<Given>,
}

#[derive(Debug, Default)]
struct Given {
    maps: Vec<Weak<MapCore>>,
    /// Maps of which a block could not be taken back; faults, which may not allocate, find room here.
    parts: Vec<MapRef>,
    /// Who takes pages away now.
    takers: u32,
}

/// While this lives no map is given to the kernel.
#[derive(Debug)]
pub(crate) struct Taking<'a>(&'a Whole);

impl Default for Whole {
    fn default() -> Self {
        Self { given: Mutex::new(Given { parts: Vec::with_capacity(1), ..Given::default() }) }
    }
}

impl Whole {
    /// Takes all maps back, before pages are taken away.
    pub(crate) fn take_from_kernel(&self) -> io::Result<Taking<'_>> {
        let mut given = self.given.lock().anyway();
        while let Some(map) = given.maps.last() {
            if let Some(map) = map.upgrade() {
                // More can be registered at any time; a fault that began before has ended when this returns.
                map.register(Served::MissingAndUnmapped)?;
            }
            given.maps.pop();
        }
        while let Some(at) = given.parts.last() {
            if let Some(map) = at.enter(0) {
                map.register(Served::MissingAndUnmapped)?;
            }
            given.parts.pop();
        }
        given.takers += 1;
        Ok(Taking(self))
    }

    /// `map` is not given to the kernel while what this returns lives; `None` where it is the kernel's already.
    pub(crate) fn keep_from_kernel(&self, map: &MapCore) -> Option<Taking<'_>> {
        let mut given = self.given.lock().anyway();
        if given.maps.iter().any(|other| std::ptr::eq(other.as_ptr(), map)) {
            return None;
        }
        given.takers += 1;
        Some(Taking(self))
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.given.lock().anyway().takers -= 1;
    }
}

/// Has the faults of a new map of one object served, by the kernel where all of it is there.
pub(crate) fn register(object: &ObjectCore, map: &Arc<MapCore>) -> io::Result<()> {
    let Some(frames) = object.frames() else { return map.register(Served::Missing) };
    let mut given = frames.whole.given.lock().anyway();
    let is_kernels = !map.every_fault && given.takers == 0 && object.is_whole();
    let served = if is_kernels { Served::Missing } else { Served::MissingAndUnmapped };
    map.register(served)?;
    if is_kernels {
        given.keep(object, map);
    }
    Ok(())
}

/// Leaves a map to the kernel if it shows an object's own frames alone, and all of them are there now.
pub(crate) fn give(map: &Arc<MapCore>) -> io::Result<()> {
    let shown = map.shown.current();
    // The kernel shows what the map lies over: of a clone that may be another object than the one it shows.
    let ([Segment { object, install: Install::Continue, .. }], [laid]) = (&shown[..], &map.laid[..]) else {
        return Ok(());
    };
    let Some(frames) = object.frames() else { return Ok(()) };
    if map.every_fault || !Arc::ptr_eq(object, &laid.object) || !object.is_whole() {
        return Ok(());
    }
    let mut given = frames.whole.given.lock().anyway();
    if map.writes.are_told() {
        return Ok(());
    }
    let is_given = given.maps.iter().any(|other| other.as_ptr() == Arc::as_ptr(map));
    if is_given || given.takers > 0 || !object.is_whole() {
        return Ok(());
    }
    // Fewer modes take effect on a range that is registered anew alone. Nothing can be missed between the two calls: no page
    // is missing, and those that are unmapped are shown as they are.
    map.space.uffd.unregister(&map.span)?;
    map.protects.store(0, Ordering::SeqCst);
    // Whether it can be registered or not: who takes pages away has it served in full first, or takes none.
    given.keep(object, map);
    map.register(Served::Missing)
}

/// Has the kernel map `len` bytes at `offset` of `map`, which is the map `at` and shows frames of the object as they are: by one entry of the page table, where
/// they are one huge page. All of them are there, and the caller has claimed their pages, so that nobody takes one away meanwhile. False where it was not done.
pub(crate) fn map_at_once(frames: &Frames, map: &MapCore, at: MapRef, offset: u64, len: u64) -> bool {
    // A fault may do this, in the place of a thread that holds the lock.
    let Some(mut given) = frames.whole.given.try_lock().anyway() else { return false };
    let is_given = given.maps.iter().any(|other| std::ptr::eq(other.as_ptr(), map));
    // Nothing can be missed until it is served again: no page is missing, and those that are unmapped are shown as they are.
    let has_room = given.parts.len() < given.parts.capacity();
    if is_given || !has_room || map.space.uffd.unregister_part(&map.span, offset, len).is_err() {
        return false;
    }
    let is_mapped = map.span.map_unserved(offset, len).is_ok();
    let (served, writes) = (Served::MissingAndUnmapped, Writes::Free);
    if map.space.uffd.register_part(&map.span, offset, len, served, writes).is_err() {
        // Who takes pages away has it served first, or takes none.
        given.parts.push(at);
    }
    is_mapped
}

/// Has a map whose writes are to be told from here on served in full, for good.
pub(crate) fn take_back(map: &MapCore) -> io::Result<()> {
    // Nobody gives it to the kernel meanwhile: not who saw that its writes were told to none.
    let _given: Vec<_> = map
        .laid
        .iter()
        .take(1)
        .filter_map(|laid| laid.object.frames())
        .map(|frames| frames.whole.given.lock().anyway())
        .collect();
    map.register(Served::MissingAndUnmapped)
}

impl Given {
    fn keep(&mut self, object: &ObjectCore, map: &Arc<MapCore>) {
        if self.maps.len() == self.maps.capacity() {
            self.maps.retain(|map| map.strong_count() > 0);
        }
        self.maps.push(Arc::downgrade(map));
        object.vm.figures.add(0, &Tally { maps_given: 1, ..Tally::default() });
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

    use crate::sync::Anyway;
    use crate::{MapOptions, Vm, VmOptions};

    const PAGES: u64 = 64;

    /// As a block of which the registration failed.
    #[test]
    fn a_part_that_was_left_to_the_kernel_is_served_before_a_page_goes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        // Left to the kernel as a whole it would be served again for that.
        let options = MapOptions::shared().policy("none".parse().unwrap()).every_fault();
        let map = vm.map(&object, &options).unwrap();
        map.populate(map.window()).unwrap();
        let frames = object.core.frames().unwrap();
        map.core.space.uffd.unregister_part(&map.core.span, 16 * PAGE_SIZE, 32 * PAGE_SIZE).unwrap();
        frames.whole.given.lock().anyway().parts.push(map.at);
        assert_eq!(object.evict(PageRange::new(PageIndex(20), PageIndex(24))).unwrap(), 4);
        assert!(frames.whole.given.lock().anyway().parts.is_empty());
        let hard = || vm.statistics().counted.hard;
        let before = hard();
        assert!(map.as_slice().iter().all(|&byte| byte == 7));
        assert_eq!(hard() - before, 4, "the kernel showed pages that were gone");
    }

    /// While a block is mapped at once it is registered nowhere.
    #[test]
    fn what_the_kernel_shows_for_a_moment_does_not_end_a_populate() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        vm.map(&object, &MapOptions::shared()).unwrap().populate(object.pages()).unwrap();
        let map = vm.map(&object, &MapOptions::shared().every_fault()).unwrap();
        map.core.space.uffd.unregister_part(&map.core.span, 16 * PAGE_SIZE, 16 * PAGE_SIZE).unwrap();
        map.populate(map.window()).unwrap();
        let is_shown = |page| prepage_sys::region::is_present(map.address() + page * PAGE_SIZE).unwrap();
        assert!((0..16).chain(32..PAGES).all(is_shown));
    }
}
