//! Which map an address belongs to, asked from signal handlers: no lock, no allocation, some loads and two counts.
//!
//! Regions begin at multiples of 2 MiB, so each 2 MiB of address space belongs to one map at most and has one word. Words
//! lie in leaves of 16 GiB each, made when first needed and kept.

use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use prepage_sys::fork;
use prepage_sys::made_once::MadeOnce;
use prepage_sys::region::REGION_ALIGN;
use prepage_sys::slot::{Entered, Slot};

use crate::map::MapCore;
use crate::sparse::Sparse;
use crate::sync::Anyway;

const LEAF_WORDS: usize = 1 << 13;
const LEAF_BYTES: u64 = LEAF_WORDS as u64 * REGION_ALIGN;
/// 48 bits of address.
const LEAVES: usize = (1 << 48) / LEAF_BYTES as usize;

const CHUNK_SLOTS: usize = 64;
/// There may be so many maps: four times what vm.max_map_count allows by default.
const CHUNKS: usize = 4096;

/// Slots that are made together.
type Chunk = Box<[Slot<MapCore>]>;

/// The maps of one address space that one kind of fault can happen in.
///
/// Lock legend: (o) set once; (a) atomic; `free` is a lock of its own, never taken by faults.
pub(crate) struct Addresses {
    /// (o), words (a): 0 where nothing is mapped, else one more than the number of the slot.
    leaves: Sparse<Box<[AtomicU32]>>,
    /// (o)
    slots: Sparse<Chunk>,
    free: Mutex<Free>,
    /// (a) Bytes of slots and leaves, without the lists of them.
    bytes: AtomicU64,
}

/// Slots that hold no map.
struct Free {
    returned: Vec<u32>,
    /// The first slot never used.
    next: u32,
}

/// A map that may be gone: a slot and the map it held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapRef {
    addresses: &'static Addresses,
    slot: u32,
    map: u64,
}

/// So many processes may come from one another by fork alone, and have maps each.
const DESCENDANTS: usize = 64;

/// The tables of this process and of those it was forked from, with the generation of each.
static OF_PROCESSES: [MadeOnce<(u64, &'static Addresses)>; DESCENDANTS] =
    [const { MadeOnce::new() }; DESCENDANTS];
/// Which of them is this process's.
static DEPTH: AtomicUsize = AtomicUsize::new(0);

/// Tables that no descriptor uses. They are kept for good, so that a [`MapRef`] is a plain value.
static SPARE: Mutex<Vec<&'static Addresses>> = Mutex::new(Vec::new());
/// So often is tried to have them.
const SPARE_TRIES: usize = 1000;

impl Addresses {
    fn new() -> &'static Self {
        Box::leak(Box::new(Self {
            leaves: Sparse::new(LEAVES),
            slots: Sparse::new(CHUNKS),
            free: Mutex::new(Free { returned: Vec::new(), next: 0 }),
            bytes: AtomicU64::new(0),
        }))
    }

    /// A table for one descriptor.
    pub(crate) fn of_descriptor() -> &'static Self {
        spare().and_then(|mut spare| spare.pop()).unwrap_or_else(Self::new)
    }

    /// The descriptor has gone, and all its maps.
    pub(crate) fn give_back(&'static self) {
        // Else the table is lost.
        if let Some(mut spare) = spare() {
            spare.push(self);
        }
    }

    #[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
    pub(crate) fn locked_spare() -> std::sync::MutexGuard<'static, Vec<&'static Self>> {
        SPARE.lock().unwrap()
    }

    /// The table for maps whose faults the touching threads serve: that of the process, but in a model, whose runs may not
    /// know of one another. `None` where this is the descendant by fork(2) of as many processes with maps as there may be.
    pub(crate) fn of_faults_here() -> Option<&'static Self> {
        if cfg!(any(feature = "shuttle", feature = "loom")) {
            Some(Self::of_descriptor())
        } else {
            Self::of_process()
        }
    }

    /// The one table of all maps whose faults the touching threads of this process serve; made where there is none yet.
    fn of_process() -> Option<&'static Self> {
        let generation = fork::generation();
        for (depth, table) in OF_PROCESSES.iter().enumerate() {
            let mut own = None;
            // Not one that was used: who was inside one of its slots as this process was forked is there for good here.
            let (of, table) = table.get_or_make(|| (generation, *own.insert(Self::new())));
            if let Some(own) = own
                && !std::ptr::eq(own, *table)
            {
                // Another thread made it first.
                own.give_back();
            }
            if *of == generation {
                DEPTH.store(depth, Ordering::Relaxed);
                return Some(table);
            }
        }
        None
    }

    /// As [`Self::of_process`], in signal handlers: `None` where there is none.
    pub(crate) fn of_process_now() -> Option<&'static Self> {
        let (generation, table) = OF_PROCESSES[DEPTH.load(Ordering::Relaxed)].get()?;
        (*generation == fork::generation()).then_some(table)
    }

    /// Makes `map` findable; `None` when there are too many.
    pub(crate) fn insert(&'static self, map: &Arc<MapCore>) -> Option<MapRef> {
        let slot = {
            let mut free = self.free.lock().anyway();
            free.returned.pop().or_else(|| {
                let fresh = free.next;
                free.next += u32::from((fresh as usize) < CHUNKS * CHUNK_SLOTS);
                (fresh < free.next).then_some(fresh)
            })?
        };
        let chunk = self.slots.get_or_make(slot as usize / CHUNK_SLOTS, || {
            let slots: Chunk = (0..CHUNK_SLOTS).map(|_| Slot::default()).collect();
            self.bytes.fetch_add(slots.iter().map(Slot::bytes).sum(), Ordering::Relaxed);
            slots
        });
        chunk[slot as usize % CHUNK_SLOTS].put(Arc::clone(map));
        self.words(map, |word| word.store(slot + 1, Ordering::Release));
        Some(MapRef { addresses: self, slot, map: map.id() })
    }

    /// The map at `address`.
    pub(crate) fn find(
        &'static self,
        address: u64,
        hint: usize,
    ) -> Option<(Entered<'static, MapCore>, MapRef)> {
        let leaf = self.leaves.get((address / LEAF_BYTES) as usize)?;
        let number =
            leaf[(address / REGION_ALIGN) as usize % LEAF_WORDS].load(Ordering::Acquire).checked_sub(1)?;
        let map = self.slot(number)?.enter(hint)?;
        // The slot may hold another map already.
        if !map.holds(address) {
            return None;
        }
        let at = MapRef { addresses: self, slot: number, map: map.id() };
        Some((map, at))
    }

    /// What the table takes in memory, whole, for the maps it ever held at once, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        size_of::<Self>() as u64
            + self.leaves.bytes()
            + self.slots.bytes()
            + self.bytes.load(Ordering::Relaxed)
    }

    fn slot(&self, number: u32) -> Option<&Slot<MapCore>> {
        Some(&self.slots.get(number as usize / CHUNK_SLOTS)?[number as usize % CHUNK_SLOTS])
    }

    fn words(&self, map: &MapCore, each: impl Fn(&AtomicU32)) {
        let (start, end) = map.addresses();
        for chunk in (start..end).step_by(REGION_ALIGN as usize) {
            let leaf = self.leaves.get_or_make((chunk / LEAF_BYTES) as usize, || {
                self.bytes.fetch_add((LEAF_WORDS * size_of::<AtomicU32>()) as u64, Ordering::Relaxed);
                (0..LEAF_WORDS).map(|_| AtomicU32::new(0)).collect()
            });
            each(&leaf[(chunk / REGION_ALIGN) as usize % LEAF_WORDS]);
        }
    }
}

impl MapRef {
    /// The map, if it still exists.
    pub(crate) fn enter(self, hint: usize) -> Option<Entered<'static, MapCore>> {
        self.addresses.slot(self.slot)?.enter(hint).filter(|map| map.id() == self.map)
    }

    /// Returns once the faults on the map that began before have ended.
    pub(crate) fn settle(self) {
        if let Some(slot) = self.addresses.slot(self.slot) {
            slot.settle();
        }
    }

    /// The number of the map.
    pub(crate) fn map_id(self) -> u64 {
        self.map
    }

    /// Takes `map` away and returns when nobody uses it any more.
    pub(crate) fn remove(self, map: &MapCore) {
        self.addresses.words(map, |word| word.store(0, Ordering::Release));
        if let Some(slot) = self.addresses.slot(self.slot) {
            slot.take();
        }
        let mut free = self.addresses.free.lock().anyway();
        free.returned.push(self.slot);
    }
}

/// Who has it gives it back at once, but for a thread that a child of fork(2) does not have.
fn spare() -> Option<MutexGuard<'static, Vec<&'static Addresses>>> {
    (0..SPARE_TRIES).find_map(|_| {
        SPARE.try_lock().anyway().or_else(|| {
            std::thread::yield_now();
            None
        })
    })
}

impl std::fmt::Debug for Addresses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Addresses").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
