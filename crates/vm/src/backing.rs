//! Who maps an object: one small record a map.
//!
//! No record is kept of a page and its mappings. "Who maps this page?" looks through the object's backings, so that N
//! maps of M pages cost N records, not N·M, and a fault changes none of them.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

use crate::addresses::MapRef;
use crate::sync::Anyway;

/// One map's window into an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backing {
    /// The map, unique among all maps that ever were in this process.
    pub map: u64,
    /// The pages of the object that it shows.
    pub window: PageRange,
    /// Where the window's first page is mapped.
    pub start_address: u64,
}

impl Backing {
    /// Where `page` of the object is mapped, where it lies in the window.
    pub fn address_of(&self, page: PageIndex) -> Option<u64> {
        self.window.contains(page).then(|| self.start_address + (page.0 - self.window.start().0) * PAGE_SIZE)
    }
}

/// The backings of an object, by map and piece of the map.
///
/// Lock legend: one lock, held for a change of the tree or a copy of it; never taken by faults.
#[derive(Debug, Default)]
pub(crate) struct Backings {
    by_map: Mutex<BTreeMap<(u64, u32), (Backing, MapRef)>>,
}

/// What a node of the tree takes for an entry at least as full as trees are: two thirds.
const ENTRY_BYTES: u64 = (size_of::<((u64, u32), (Backing, MapRef))>() * 3 / 2) as u64;

impl Backings {
    pub(crate) fn put(&self, piece: u32, backing: Backing, at: MapRef) {
        self.locked().insert((backing.map, piece), (backing, at));
    }

    pub(crate) fn remove(&self, map: u64, piece: u32) {
        self.locked().remove(&(map, piece));
    }

    /// What they take in memory, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.locked().len() as u64 * ENTRY_BYTES
    }

    pub(crate) fn all(&self) -> Vec<Backing> {
        self.locked().values().map(|(backing, _)| *backing).collect()
    }

    /// All of them, with where to find the map.
    pub(crate) fn of_maps(&self) -> Vec<(Backing, MapRef)> {
        self.locked().values().copied().collect()
    }

    pub(crate) fn locked(&self) -> MutexGuard<'_, BTreeMap<(u64, u32), (Backing, MapRef)>> {
        self.by_map.lock().anyway()
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;
    use crate::{MapOptions, Vm, VmOptions};

    /// What tells whether the records are right has to be able to fail: the page tables are looked at where records say, and one that is missing is missed.
    #[test]
    fn a_map_without_its_backing_is_not_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(16 * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let maps = [(); 2].map(|()| vm.map(&object, &MapOptions::shared()).unwrap());
        maps.iter().for_each(|map| map.populate(map.window()).unwrap());
        let page = PageIndex(3);
        let told = || -> Vec<u64> {
            let mut told: Vec<_> =
                object.mappings_of(page).unwrap().iter().map(|(address, _)| *address).collect();
            told.sort_unstable();
            told
        };
        let mut shown = maps.each_ref().map(|map| map.address() + page.offset_bytes());
        shown.sort_unstable();
        assert_eq!(told(), shown);
        let key = (maps[0].id(), 0);
        let taken = object.core.backings.locked().remove(&key).unwrap();
        assert_eq!(told(), [maps[1].address() + page.offset_bytes()]);
        assert!(shown.iter().all(|&address| prepage_sys::region::is_present(address).unwrap()));
        object.core.backings.locked().insert(key, taken);
        assert_eq!(told(), shown);
    }
}
