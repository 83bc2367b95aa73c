//! What is wholly in memory is left to the kernel: maps of objects, of which it maps 16 pages a fault without asking, and for a moment blocks,
//! which it maps at once.
//!
//! A map that is not served for unmapped pages (UFFD's MINOR mode) shows whatever page the memfd holds. That is right while
//! every page is resident, and must end before one is taken away: its frame is filled again, and the kernel would show it
//! while it is. A thread of the VM gives maps to the kernel again when the last page has come, or is wired: but not in a pool that fills up, where
//! the reclaimer would take them back to see which pages are idle; nor soon after they were taken back, for each map is a call of the kernel's. What is owed to the kernel by then is given
//! after the next fault.

use std::io;
use std::sync::Arc;

use prepage_sys::clock::now_ns;
use prepage_sys::userfaultfd::{Served, Writes};

use crate::addresses::MapRef;
use crate::map::MapCore;
use crate::object::{Frames, ObjectCore};
use crate::pool::PoolCore;
use crate::segment::{Install, Segment};
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, AtomicU32, AtomicU64, Mutex, Ordering};

/// Maps stay with the VM for so long after they were taken back, and for twice as long each time that follows soon.
const LEAST_REST_NS: u64 = 100_000_000;
const MOST_REST_NS: u64 = 10_000_000_000;

/// Which maps of an object are the kernel's.
///
/// Lock legend: `given` is held while a map is registered, so that none is given while pages are taken away; (a) atomic.
#[derive(Debug)]
pub(crate) struct Whole {
    given: Mutex<Given>,
    /// (a) Whether a thread is to give the maps to the kernel.
    due: AtomicU32,
    /// (a) From when on maps may be given that were not when they could have been; 0 where there are none.
    owed_ns: AtomicU64,
}

#[derive(Debug, Default)]
struct Given {
    maps: Vec<MapRef>,
    /// Maps of which a block could not be taken back; faults, which may not allocate, find room here.
    parts: Vec<MapRef>,
    /// Who takes pages away now.
    takers: u32,
    /// Until when no map is given.
    rests_until_ns: u64,
    rest_ns: u64,
}

/// While this lives no map of an object is given to the kernel.
#[derive(Debug)]
pub(crate) struct Taking<'a>(&'a Whole);

/// An object that became whole, and its pool.
#[derive(Debug)]
pub(crate) struct Became {
    pool: Arc<PoolCore>,
    object: u64,
}

impl Default for Whole {
    fn default() -> Self {
        let given = Given { parts: Vec::with_capacity(1), ..Given::default() };
        Self { given: Mutex::new(given), due: AtomicU32::new(0), owed_ns: AtomicU64::new(0) }
    }
}

impl Whole {
    /// Takes all maps of the object back before pages are taken away.
    pub(crate) fn take_from_kernel(&self) -> io::Result<Taking<'_>> {
        let mut given = self.given.lock().anyway();
        given.begin_rest();
        let Given { maps, parts, .. } = &mut *given;
        for taken in [maps, parts] {
            while let Some(at) = taken.last() {
                if let Some(map) = at.enter(0) {
                    // More can be registered at any time; a fault that began before has ended when this returns.
                    map.register(Served::MissingAndUnmapped)?;
                    map.is_kernels.store(0, Ordering::SeqCst);
                }
                taken.pop();
            }
        }
        given.takers += 1;
        Ok(Taking(self))
    }

    /// `map` is not given to the kernel while what this returns lives; `None` where it is the kernel's already.
    pub(crate) fn keep_from_kernel(&self, map: &MapCore) -> Option<Taking<'_>> {
        let mut given = self.given.lock().anyway();
        if is_kernels(map) {
            return None;
        }
        given.takers += 1;
        Some(Taking(self))
    }

    /// Whether a fault is to have maps given that are owed to the kernel. From any context.
    pub(crate) fn is_owed(&self) -> bool {
        let owed = self.owed_ns.load(Ordering::Relaxed);
        owed != 0 && owed <= now_ns() && self.owed_ns.swap(0, Ordering::SeqCst) != 0
    }

    /// Whether maps of `object` may be given to the kernel now; if that is to be waited for, it is remembered. With the lock held.
    fn may_give(&self, given: &Given, object: &ObjectCore) -> bool {
        if !object.is_whole() || object.vm.pool.core().frames.fills_up() {
            return false;
        }
        let now = now_ns();
        let may = given.takers == 0 && given.rests_until_ns <= now;
        if !may {
            self.owed_ns.store(given.rests_until_ns.max(now), Ordering::SeqCst);
        }
        may
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.0.given.lock().anyway().takers -= 1;
    }
}

/// Where all pages of `object` are there now a thread of its VM gives its maps to the kernel, soon and once. From any context.
pub(crate) fn may_be_whole(object: &ObjectCore, account: &mut Account) {
    let pool = object.vm.pool.core();
    let Some(frames) = object.frames().filter(|_| object.is_whole() && !pool.frames.fills_up()) else {
        return;
    };
    account.tally.shared_atomics += 1;
    if frames.whole.due.swap(1, Ordering::SeqCst) == 0 {
        // To call a thread for it.
        account.tally.shared_atomics += 1;
        let became = Became { pool: Arc::clone(pool), object: object.id };
        if !object.vm.jobs.push_whole(became) {
            frames.whole.due.store(0, Ordering::SeqCst);
        }
    }
}

impl Became {
    /// Gives the object's maps to the kernel.
    pub(crate) fn give(self) {
        let maps = {
            // Held for a moment: who drops the object last may be somebody who counts objects.
            let Some(object) = self.pool.object(self.object) else { return };
            let Some(frames) = object.frames() else { return };
            frames.whole.due.store(0, Ordering::SeqCst);
            let may_give = frames.whole.may_give(&frames.whole.given.lock().anyway(), &object);
            if may_give { object.backings.of_maps() } else { return }
        };
        for (_, at) in maps {
            if let Some(map) = at.enter(Account::here().cpu) {
                // One that cannot be given is served as it was.
                let _ = give(&map, at);
            }
        }
    }
}

/// Has the faults of a new map of one object served, by the kernel where all of it is there.
pub(crate) fn register(object: &ObjectCore, map: &MapCore, at: MapRef) -> io::Result<()> {
    let Some(frames) = object.frames() else { return map.register(Served::Missing) };
    let mut given = frames.whole.given.lock().anyway();
    // A thread may have given it meanwhile.
    let may_be_kernels = !is_kernels(map) && !map.every_fault && frames.whole.may_give(&given, object);
    let served = if may_be_kernels || is_kernels(map) { Served::Missing } else { Served::MissingAndUnmapped };
    map.register(served)?;
    if may_be_kernels {
        given.keep(object, map, at);
    }
    Ok(())
}

/// Leaves a map to the kernel if it shows an object's own frames alone, and all of them are there now.
pub(crate) fn give(map: &MapCore, at: MapRef) -> io::Result<()> {
    let shown = map.shown.current();
    // The kernel shows what the map lies over: of a clone that may be another object than the one it shows.
    let ([Segment { object, install: Install::Continue, .. }], [laid]) = (&shown[..], &map.laid[..]) else {
        return Ok(());
    };
    let Some(frames) = object.frames() else { return Ok(()) };
    if map.every_fault || !Arc::ptr_eq(object, &laid.object) {
        return Ok(());
    }
    let mut given = frames.whole.given.lock().anyway();
    // The kernel would leave poison where it is.
    if map.writes.are_told() || !map.poison.is_nowhere() {
        return Ok(());
    }
    if is_kernels(map) || !frames.whole.may_give(&given, object) {
        return Ok(());
    }
    // Fewer modes take effect on a range that is registered anew alone. Nothing can be missed between the two calls: no page
    // is missing, and those that are unmapped are shown as they are.
    map.space.uffd.unregister(&map.span)?;
    map.protects.store(0, Ordering::SeqCst);
    // Whether it can be registered or not: who takes pages away has it served in full first, or takes none.
    given.keep(object, map, at);
    map.register(Served::Missing)
}

/// Has the kernel map `len` bytes at `offset` of `map`, which is the map `at` and shows frames of the object as they are: by one entry of the page table, where
/// they are one huge page. All of them are there, and the caller has claimed their pages, so that nobody takes one away meanwhile. False where it was not done.
pub(crate) fn map_at_once(frames: &Frames, map: &MapCore, at: MapRef, offset: u64, len: u64) -> bool {
    // A fault may do this, in the place of a thread that holds the lock.
    let Some(mut given) = frames.whole.given.try_lock().anyway() else { return false };
    let is_given = is_kernels(map);
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

/// Whether the map is left to the kernel; with the lock held.
fn is_kernels(map: &MapCore) -> bool {
    map.is_kernels.load(Ordering::SeqCst) != 0
}

impl Given {
    /// The maps are about to be taken back.
    fn begin_rest(&mut self) {
        if self.maps.is_empty() {
            return;
        }
        let now = now_ns();
        // Soon is within four times as long as they rested.
        let is_soon = now < self.rests_until_ns.saturating_add(3 * self.rest_ns);
        let rest = if is_soon { 2 * self.rest_ns } else { LEAST_REST_NS };
        self.rest_ns = rest.clamp(LEAST_REST_NS, MOST_REST_NS);
        self.rests_until_ns = now + self.rest_ns;
    }

    fn keep(&mut self, object: &ObjectCore, map: &MapCore, at: MapRef) {
        if self.maps.len() == self.maps.capacity() {
            self.maps.retain(|at| at.enter(0).is_some());
        }
        self.maps.push(at);
        map.is_kernels.store(1, Ordering::SeqCst);
        object.vm.figures.add(0, &Tally { maps_given: 1, ..Tally::default() });
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::time::{Duration, Instant};

    use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

    use super::*;
    use crate::{MapOptions, Vm, VmOptions};

    const PAGES: u64 = 64;

    fn until(is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "it does not happen");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// By whichever map the last page came, and again after a page was away.
    #[test]
    fn a_map_is_left_to_the_kernel_when_its_object_becomes_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::private()).unwrap();
        // This one sees all faults, for good.
        let other = vm.map(&object, &MapOptions::shared().every_fault()).unwrap();
        let soft = || vm.statistics().counted.soft;
        let given = || vm.statistics().counted.maps_given;
        let page = |at| PageRange::new(PageIndex(at), PageIndex(at + 1));
        for nth in 1..=3 {
            other.populate(other.window()).unwrap();
            until(|| given() == nth);
            let before = soft();
            assert!(map.as_slice().iter().all(|&byte| byte == 7));
            assert_eq!(soft(), before, "the VM serves what the kernel could");
            // It is taken back for a page that goes, or is to be watched.
            match nth {
                1 => assert_eq!(object.evict(page(5)).unwrap(), 1),
                _ => assert_eq!(object.unwire(page(5)).unwrap(), 1),
            }
            // By then it may be given again.
            std::thread::sleep(Duration::from_nanos(LEAST_REST_NS << (nth - 1)));
            assert!(object.core.frames().unwrap().whole.given.lock().anyway().maps.is_empty());
            assert_eq!(other.as_slice()[5 * PAGE_SIZE as usize], 7);
        }
        until(|| given() == 4);
    }

    /// There they would be taken back soon, to see which pages are idle.
    #[test]
    fn maps_stay_with_the_vm_where_the_pool_fills_up() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().frame_limit_bytes((PAGES + 8) * PAGE_SIZE)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        assert!(map.as_slice().iter().all(|&byte| byte == 0));
        let core = &object.core;
        assert!(core.vm.pool.core().frames.fills_up());
        let whole = &core.frames().unwrap().whole;
        // Nothing is to be given, and nothing is if it were; neither is a new map, nor one that was populated.
        assert_eq!(whole.due.load(Ordering::SeqCst), 0);
        Became { pool: Arc::clone(core.vm.pool.core()), object: core.id }.give();
        map.populate(map.window()).unwrap();
        let other = vm.map(&object, &MapOptions::shared()).unwrap();
        assert_eq!((other.as_slice()[0], vm.statistics().counted.maps_given), (0, 0));
        assert!(whole.given.lock().anyway().maps.is_empty());
    }

    /// Each map that is taken back and given again is three calls of the kernel.
    #[test]
    fn maps_that_were_taken_back_soon_rest_longer_each_time() {
        const CLONES: u64 = 200;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let first = vm.map(&object, &MapOptions::private()).unwrap();
        first.populate(first.window()).unwrap();
        let _clones: Vec<_> = (1..CLONES).map(|_| vm.map(&object, &MapOptions::private()).unwrap()).collect();
        let given = || vm.statistics().counted.maps_given;
        let began = Instant::now();
        let before = given();
        let mut rounds = 0;
        while rounds < 50 || began.elapsed() < Duration::from_millis(500) {
            rounds += 1;
            let page = rounds % PAGES;
            assert_eq!(object.evict(PageRange::new(PageIndex(page), PageIndex(page + 1))).unwrap(), 1);
            assert_eq!(first.as_slice()[(page * PAGE_SIZE) as usize], 0);
        }
        // After 100 ms, 200 more, 400 more and so on.
        let most = 1 + (began.elapsed().as_millis() as u64 / 100 + 1).ilog2();
        assert!(
            given() - before <= u64::from(most) * CLONES,
            "{} in {:?}",
            given() - before,
            began.elapsed()
        );
        // A fault that reads nothing sees to what is owed by then.
        let whole = &object.core.frames().unwrap().whole;
        assert_eq!(object.evict(PageRange::new(PageIndex(0), PageIndex(1))).unwrap(), 1);
        let rests_until_ns = now_ns() + 2_000_000_000;
        whole.given.lock().anyway().rests_until_ns = rests_until_ns;
        let before = given();
        assert_eq!(first.as_slice()[0], 0);
        let other = vm.map(&object, &MapOptions::shared()).unwrap();
        until(|| now_ns() > rests_until_ns);
        assert_eq!(other.as_slice()[0], 0);
        until(|| given() >= before + CLONES);
    }

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
