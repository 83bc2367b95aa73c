//! What it takes to know who maps which page: measured for maps of one object, beside a record for each page and map.

use std::io;

use prepage_core::policy::Neighbours;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};

use crate::{MapOptions, Object, Source, SourceError, Statistics, Vm, VmOptions};

/// Bytes of a record for each page and map: DragonFly's pv_entry before its rework, on 64 bits.
pub const RECORD_BYTES: u64 = 80;

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackingError {
    /// The object cannot be made.
    #[error("cannot make an object")]
    Make(#[from] crate::MakeError),
    /// It cannot be mapped so often.
    #[error("cannot map it")]
    Map(#[from] crate::MapError),
    /// Its pages cannot be had.
    #[error("cannot bring its pages in")]
    Access(#[from] crate::AccessError),
    /// The page tables cannot be read.
    #[error("cannot read /proc/self/pagemap")]
    Read(#[from] io::Error),
}

/// What `maps` maps of `pages` pages took, all pages of all of them touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tracking {
    /// Maps of one object.
    pub maps: u64,
    /// Pages of the object.
    pub pages: u64,
    /// Faults, one a page and map.
    pub faults: u64,
    /// Bytes of backings and of the table from addresses to maps, as they are in memory.
    pub tracking_bytes: u64,
    /// Records put in and taken out of lists.
    pub list_operations: u64,
    /// The same with a record for each page and map.
    pub record_operations: u64,
    /// Atomic operations of the faults on words that other threads may write, counted by what does them.
    pub fault_atomics: u64,
    /// Locks that the faults found held.
    pub lock_waits: u64,
    /// Maps that the backings tell of one page, verified against the page table: must be all of them.
    pub found: u64,
}

impl Tracking {
    /// What a record for each page and map takes.
    pub fn record_bytes(&self) -> u64 {
        self.maps * self.pages * RECORD_BYTES
    }
}

struct Zeros(u64);

impl Source for Zeros {
    fn len_bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.fill(1);
        Ok(())
    }
}

/// Maps an object of `pages` pages `maps` times, and touches every page of each.
///
/// # Errors
/// See [`TrackingError`]; a process may have vm.max_map_count maps.
///
/// # Panics
/// For no maps or no pages.
pub fn measure(maps: u64, pages: u64) -> Result<Tracking, TrackingError> {
    assert!(maps > 0 && pages > 0, "something to measure");
    let vm = Vm::new(VmOptions::default())?;
    let object = vm.source("tracked", Zeros(pages * PAGE_SIZE))?;
    // By way of a map that goes again.
    let first = vm.map(&object, &MapOptions::shared())?;
    first.populate(first.window())?;
    drop(first);
    let before = vm.statistics();
    let options = MapOptions::private().policy("none".parse().expect("a policy"));
    let options = options.neighbours(Neighbours::Block(1));
    let all = (0..maps).map(|_| vm.map(&object, &options)).collect::<Result<Vec<_>, _>>()?;
    for map in &all {
        for page in map.as_slice().chunks(PAGE_SIZE as usize) {
            std::hint::black_box(page[0]);
        }
    }
    let found = found(&object, pages)?;
    let mapped = vm.statistics();
    drop(all);
    let after = vm.statistics().counted;
    Ok(summed(maps, pages, &before, &mapped, after.backing_operations, found))
}

/// How many maps show the last page.
fn found(object: &Object, pages: u64) -> io::Result<u64> {
    let last = PageRange::new(PageIndex(pages - 1), PageIndex(pages));
    Ok(object.mappings_of(last.start())?.len() as u64)
}

fn summed(
    maps: u64,
    pages: u64,
    before: &Statistics,
    mapped: &Statistics,
    operations: u64,
    found: u64,
) -> Tracking {
    let (was, is) = (&before.counted, &mapped.counted);
    Tracking {
        maps,
        pages,
        faults: is.soft - was.soft,
        // The table keeps what it ever took, so it is counted whole.
        tracking_bytes: mapped.tracking_bytes,
        list_operations: operations - was.backing_operations,
        record_operations: 2 * (is.pages_mapped - was.pages_mapped),
        fault_atomics: is.shared_atomics - was.shared_atomics,
        lock_waits: is.lock_waits - was.lock_waits,
        found,
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    #[test]
    fn maps_cost_the_same_however_many_pages_they_show() {
        let [few, many] = [16, 1024].map(|pages| measure(20, pages).unwrap());
        assert_eq!((few.faults, many.faults), (20 * 16, 20 * 1024));
        assert_eq!((few.found, many.found), (20, 20));
        assert_eq!((few.list_operations, many.list_operations), (40, 40));
        assert_eq!(many.record_operations, 2 * 20 * 1024);
        assert_eq!(many.fault_atomics, 4 * many.faults, "to enter and leave the map and the object");
        assert_eq!(many.record_bytes(), 20 * 1024 * 80);
        assert!(many.tracking_bytes < many.record_bytes() / 4, "{}", many.tracking_bytes);
    }
}
