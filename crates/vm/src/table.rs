//! Which map an address belongs to, asked from signal handlers: no lock, no allocation, two loads and two counts.
//!
//! Regions begin at multiples of 2 MiB, so each 2 MiB of address space belongs to one map at most and has one word. Words
//! lie in leaves of 16 GiB each, made when first needed and kept.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use prepage_sys::region::REGION_ALIGN;
use prepage_sys::slot::{Entered, Slot};

use crate::map::MapCore;

const LEAF_WORDS: usize = 1 << 13;
const LEAF_BYTES: u64 = LEAF_WORDS as u64 * REGION_ALIGN;
/// 48 bits of address.
const LEAVES: usize = (1 << 48) / LEAF_BYTES as usize;

const CHUNK_SLOTS: usize = 256;
/// A process may have so many maps: four times what vm.max_map_count allows by default.
const CHUNKS: usize = 1024;

/// 0 where nothing is mapped, else one more than the number of the slot.
static TOP: [OnceLock<Box<[AtomicU32]>>; LEAVES] = [const { OnceLock::new() }; LEAVES];
static SLOTS: [OnceLock<Box<[Slot<MapCore>]>>; CHUNKS] = [const { OnceLock::new() }; CHUNKS];
static FREE: Mutex<Free> = Mutex::new(Free { returned: Vec::new(), next: 0 });

/// Slots that hold no map.
struct Free {
    returned: Vec<u32>,
    /// The first slot never used.
    next: u32,
}

/// A map that may be gone: a slot and the map it held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MapRef {
    slot: u32,
    map: u64,
}

/// Makes `map` findable; `None` when there are too many.
pub(crate) fn insert(map: &Arc<MapCore>) -> Option<MapRef> {
    let slot = {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        free.returned.pop().or_else(|| {
            let fresh = free.next;
            free.next += u32::from((fresh as usize) < CHUNKS * CHUNK_SLOTS);
            (fresh < free.next).then_some(fresh)
        })?
    };
    let chunk = SLOTS[slot as usize / CHUNK_SLOTS]
        .get_or_init(|| (0..CHUNK_SLOTS).map(|_| Slot::default()).collect());
    chunk[slot as usize % CHUNK_SLOTS].put(Arc::clone(map));
    words(map, |word| word.store(slot + 1, Ordering::Release));
    Some(MapRef { slot, map: map.id() })
}

/// Takes `map` away and returns when nobody uses it any more.
pub(crate) fn remove(map: &MapCore, at: MapRef) {
    words(map, |word| word.store(0, Ordering::Release));
    if let Some(slot) = slot(at.slot) {
        slot.take(rustix::thread::sched_yield);
    }
    FREE.lock().unwrap_or_else(PoisonError::into_inner).returned.push(at.slot);
}

/// The map at `address`.
pub(crate) fn find(address: u64, hint: usize) -> Option<(Entered<'static, MapCore>, MapRef)> {
    let leaf = TOP.get((address / LEAF_BYTES) as usize)?.get()?;
    let number =
        leaf[(address / REGION_ALIGN) as usize % LEAF_WORDS].load(Ordering::Acquire).checked_sub(1)?;
    let map = slot(number)?.enter(hint)?;
    // The slot may hold another map already.
    if !map.holds(address) {
        return None;
    }
    let at = MapRef { slot: number, map: map.id() };
    Some((map, at))
}

impl MapRef {
    /// The map, if it still exists.
    pub(crate) fn enter(self, hint: usize) -> Option<Entered<'static, MapCore>> {
        slot(self.slot)?.enter(hint).filter(|map| map.id() == self.map)
    }
}

fn slot(number: u32) -> Option<&'static Slot<MapCore>> {
    Some(&SLOTS[number as usize / CHUNK_SLOTS].get()?[number as usize % CHUNK_SLOTS])
}

fn words(map: &MapCore, each: impl Fn(&AtomicU32)) {
    let (start, end) = map.addresses();
    for chunk in (start..end).step_by(REGION_ALIGN as usize) {
        let leaf = TOP[(chunk / LEAF_BYTES) as usize]
            .get_or_init(|| (0..LEAF_WORDS).map(|_| AtomicU32::new(0)).collect());
        each(&leaf[(chunk / REGION_ALIGN) as usize % LEAF_WORDS]);
    }
}
