//! What Linux does for mapped files, read-ahead, read-around and fault-around together.

use super::{Cluster, EntryState, FaultAt, Holes, Residency};
use crate::page::{PageIndex, PageRange};

/// Net misses after which Linux stops to read around (`MMAP_LOTSAMISS`).
const MANY_MISSES: u32 = 100;

/// Where `mmap_miss` stops to count.
const MOST_MISSES: u32 = MANY_MISSES * 10;

/// Pages below one node of the page cache's tree (`XA_CHUNK_SIZE`).
const NODE_PAGES: u64 = 64;

/// Linux's rule for a mapping without madvise.
///
/// Source: Linux 6.18 `mm/filemap.c` (`do_sync_mmap_readahead`, `do_async_mmap_readahead`, `filemap_map_pages`) and
/// `mm/readahead.c` (`page_cache_async_ra`, `page_cache_ra_order`), on a file system with large folios (ext4, XFS). One
/// thing differs: reads end at the entry's window where Linux ends a data mapping's at the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Linux {
    /// The device's read-ahead, in pages (`read_ahead_kb` ÷ 4).
    pub read_ahead: u32,
    /// Which mapping it is.
    pub mapping: Mapping,
    /// Pages that fault-around maps at once, a power of two; 16 unless `fault_around_bytes` was changed. 1 stands for Linux
    /// before 3.15, which had neither fault-around nor large folios.
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

impl Linux {
    pub(super) fn hard(&self, entry: &mut EntryState, fault: &FaultAt) -> Cluster {
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
        (entry.window, entry.order) = (self.read_ahead, 0);
        window(entry)
    }

    pub(super) fn soft(
        &self,
        entry: &mut EntryState,
        fault: &FaultAt,
        memory: &impl Residency,
    ) -> Option<Cluster> {
        if self.fault_around == 1 {
            entry.misses = entry.misses.saturating_sub(1);
        }
        let folio = memory.marked_folio(fault.page).filter(|_| self.read_ahead > 0)?;
        let most = self.read_ahead;
        let expected = (entry.next.0 + u64::from(entry.window)).saturating_sub(entry.early.into());
        if fault.page.0 == expected - expected % folio.len() {
            entry.next.0 += u64::from(entry.window);
            entry.window = next_window(entry.window, most);
        } else {
            // A mark left by an earlier window: go on where what is resident ends.
            entry.next = next_missing(fault.page, folio, most.into(), memory)?;
            let distance = (entry.next.0 - fault.page.0) as u32;
            entry.window = next_window(distance.saturating_add(most), most);
        }
        if entry.window == 0 {
            // Another entry left the mark, and this one has read nothing yet.
            return None;
        }
        if self.fault_around > 1 {
            self.round_to_folios(entry);
        }
        entry.early = entry.window;
        let first = first_folio(entry, fault.window);
        let alone = first.len() == 1 || memory.resident_in(first) > 0;
        Some(Cluster { mark_pages: if alone { 1 } else { first.len() }, ..window(entry) })
    }

    pub(super) fn mapped(&self, entry: &mut EntryState, pages: u64) {
        // Without fault-around a miss stays one when its own page gets mapped; `soft` counts the hits.
        if self.fault_around == 1 {
            return;
        }
        entry.misses = entry.misses.saturating_sub(pages.min(MOST_MISSES.into()) as u32);
    }

    /// Each read in the background uses larger folios than the one before, and ends where one of them does.
    fn round_to_folios(&self, entry: &mut EntryState) {
        entry.order += 2;
        let folio = 1_u64 << entry.order.min(self.read_ahead.trailing_zeros());
        let end = entry.next.0 + u64::from(entry.window);
        let rounded = end - end % folio;
        if rounded > entry.next.0 {
            entry.window = (rounded - entry.next.0) as u32;
        }
        entry.order = entry.order.min(entry.window.ilog2());
    }
}

/// The folio that the window's first page lies in: as large as its alignment and what is read allow.
fn first_folio(entry: &EntryState, file: PageRange) -> PageRange {
    let start = entry.next.0;
    let end = (start + u64::from(entry.window)).min(file.end().0.max(start + 1));
    let mut order = entry.order.min(start.trailing_zeros());
    while start + (1 << order) > end {
        order -= 1;
    }
    PageRange::new(entry.next, PageIndex(start + (1 << order)))
}

/// The page after `page` that is taken for the next missing one; `None` if none is found within `most` pages.
///
/// The walk through the page cache's tree that looks for it (`page_cache_next_miss`) starts at the page after. Where that
/// lies in the same folio, the walk goes back to the folio's first slot and counts on from the page, so that up to the end
/// of the tree's node it is so many pages too far; what it passes there stays missing.
fn next_missing(page: PageIndex, folio: PageRange, most: u64, memory: &impl Residency) -> Option<PageIndex> {
    let first = page.0 + 1;
    let lag = match folio.contains(PageIndex(first)) && folio.len() < NODE_PAGES {
        true => first - folio.start().0,
        false => 0,
    };
    let node = folio.start().0 / NODE_PAGES;
    let looked_at = |at: u64| if (at - lag) / NODE_PAGES == node { at - lag } else { at };
    (first..first + most)
        .find(|&at| !memory.is_resident(PageIndex(looked_at(at))))
        .filter(|&at| at - page.0 <= most)
        .map(PageIndex)
}

/// The read that `entry` describes.
fn window(entry: &EntryState) -> Cluster {
    let end = PageIndex(entry.next.0 + u64::from(entry.window));
    let mark = (entry.early > 0).then(|| PageIndex(end.0 - u64::from(entry.early)));
    Cluster { mark, ..Cluster::new(PageRange::new(entry.next, end), Holes::Skip) }
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

#[cfg(test)]
mod tests {
    use super::*;

    const LINUX: Linux = Linux { read_ahead: 32, mapping: Mapping::Data, fault_around: 16 };

    /// Pages up to one, of which a folio is marked.
    struct Memory {
        resident: u64,
        folio: PageRange,
    }

    impl Residency for Memory {
        fn is_resident(&self, page: PageIndex) -> bool {
            page.0 < self.resident
        }

        fn marked_folio(&self, page: PageIndex) -> Option<PageRange> {
            Some(self.folio).filter(|folio| folio.contains(page))
        }
    }

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    /// What a fault at `page`, in the marked `folio` of pages resident up to `resident`, reads after a fault at page 0.
    fn reads_on(page: u64, folio: PageRange, resident: u64) -> Option<Cluster> {
        let window = range(0, 4096);
        let mut entry = EntryState::default();
        LINUX.hard(&mut entry, &FaultAt { page: PageIndex(0), window });
        LINUX.soft(&mut entry, &FaultAt { page: PageIndex(page), window }, &Memory { resident, folio })
    }

    #[test]
    fn the_next_window_carries_its_mark_in_a_folio_of_four_pages() {
        let cluster = reads_on(24, range(24, 25), 32).unwrap();
        assert_eq!(
            (cluster.range, cluster.mark, cluster.mark_pages),
            (range(32, 64), Some(PageIndex(32)), 4)
        );
    }

    /// Where the mark is not of the last window, Linux looks for the next missing page; from inside a folio it counts one
    /// too far, and in this case finds none within the read-ahead.
    #[test]
    fn a_search_that_starts_inside_a_folio_misses_the_page() {
        assert_eq!(reads_on(72, range(72, 73), 80).unwrap().range.start(), PageIndex(80));
        assert_eq!(reads_on(64, range(64, 96), 96), None);
        assert_eq!(reads_on(64, range(64, 65), 96).unwrap().range.start(), PageIndex(96));
    }

    #[test]
    fn a_mark_of_another_entry_is_no_reason_to_read() {
        let window = range(0, 64);
        let memory = Memory { resident: 32, folio: range(0, 1) };
        assert_eq!(
            LINUX.soft(&mut EntryState::default(), &FaultAt { page: PageIndex(0), window }, &memory),
            None
        );
    }
}
