//! What Linux does for mapped files, read-ahead, read-around and fault-around together.

use super::{Cluster, ClusterPolicy, EntryState, FaultAt, Holes, Neighbours, Residency};
use crate::page::{PageIndex, PageRange};

/// Net misses after which Linux stops to read around (`MMAP_LOTSAMISS`).
const MANY_MISSES: u32 = 100;

/// Where `mmap_miss` stops to count.
const MOST_MISSES: u32 = MANY_MISSES * 10;

/// Linux's rule for a mapping without madvise.
///
/// Source: Linux 6.18 `mm/filemap.c` (`do_sync_mmap_readahead`, `do_async_mmap_readahead`, `filemap_map_pages`) and
/// `mm/readahead.c` (`page_cache_async_ra`). Two things differ: reads end at the entry's window where Linux ends a
/// data mapping's at the end of the file, and windows are not rounded for large folios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Linux {
    /// The device's read-ahead, in pages (`read_ahead_kb` ÷ 4).
    pub read_ahead: u32,
    /// Which mapping it is.
    pub mapping: Mapping,
    /// Pages that fault-around maps at once, a power of two; 16 unless `fault_around_bytes` was changed, 1 before Linux
    /// 3.15.
    pub fault_around: u32,
}

/// Executable mappings are read forward, others around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mapping {
    /// As the entry is: [`EntryState::executable`].
    Own,
    /// Half the window before the fault, and at three quarters of it the mark for the next.
    Data,
    /// From the fault on, no mark.
    Exec,
}

impl ClusterPolicy for Linux {
    fn hard(&self, entry: &mut EntryState, fault: &FaultAt, _: &impl Residency) -> Cluster {
        let pages = u64::from(self.read_ahead);
        if pages == 0 {
            return Cluster::around(fault.page, 0, 0);
        }
        entry.misses = (entry.misses + 1).min(MOST_MISSES);
        if entry.misses > MANY_MISSES {
            return Cluster::around(fault.page, 0, 0);
        }
        let executable = match self.mapping {
            Mapping::Own => entry.executable,
            Mapping::Data => false,
            Mapping::Exec => true,
        };
        (entry.next, entry.early) = match executable {
            false => (PageIndex(fault.page.0.saturating_sub(pages / 2)), self.read_ahead / 4),
            true => (fault.page, 0),
        };
        entry.window = self.read_ahead;
        window(entry)
    }

    fn soft(&self, entry: &mut EntryState, fault: &FaultAt, memory: &impl Residency) -> Option<Cluster> {
        if self.fault_around == 1 {
            entry.misses = entry.misses.saturating_sub(1);
        }
        if self.read_ahead == 0 || !memory.is_marked(fault.page) {
            return None;
        }
        let (last, most) = (entry.window, self.read_ahead);
        if fault.page.0 + u64::from(entry.early) == entry.next.0 + u64::from(last) {
            entry.next.0 += u64::from(last);
            entry.window = next_window(last, most);
        } else {
            // A mark left by an earlier window: go on where what is resident ends.
            let missing = (1..=u64::from(most)).map(|ahead| PageIndex(fault.page.0 + ahead));
            entry.next = missing.into_iter().find(|&page| !memory.is_resident(page))?;
            let distance = (entry.next.0 - fault.page.0) as u32;
            entry.window = next_window(distance.saturating_add(most), most);
        }
        entry.early = entry.window;
        Some(window(entry))
    }

    fn mapped(&self, entry: &mut EntryState, pages: u64) {
        // Without fault-around a miss stays one when its own page gets mapped; `soft` counts the hits.
        if self.fault_around == 1 {
            return;
        }
        entry.misses = entry.misses.saturating_sub(pages.min(MOST_MISSES.into()) as u32);
    }

    fn neighbours(&self) -> Neighbours {
        Neighbours::Block(self.fault_around.into())
    }
}

/// The read that `entry` describes.
fn window(entry: &EntryState) -> Cluster {
    let end = PageIndex(entry.next.0 + u64::from(entry.window));
    let mark = (entry.early > 0).then(|| PageIndex(end.0 - u64::from(entry.early)));
    Cluster { range: PageRange::new(entry.next, end), holes: Holes::Skip, mark }
}

/// How windows grow (`get_next_ra_size`).
fn next_window(last: u32, most: u32) -> u32 {
    if last < most / 16 {
        4 * last
    } else if last <= most / 2 {
        2 * last
    } else {
        most
    }
}
