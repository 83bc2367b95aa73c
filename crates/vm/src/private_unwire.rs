//! Frames are taken out of private maps, and what was written to the maps stays in them.
//!
//! ```text
//!   who would map a page waits ─► those that began before end ─┐
//!    ┌─────────────────────────────────────────────────────────┘
//!    └► page table: which pages are the object's own ─► protect those ─► which still are ─► unmap these ─► unprotect ─► they go on
//! ```
//! A page that became a copy before it was protected is one at the second look. Whoever faults on the map meanwhile waits until the end: by a
//! write to a protected page, or by a touch of one that was discarded or evicted after that look. Mapped anew it would not be protected, and
//! what is written to it would go with the pages that are unmapped.

use std::io;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::pagemap::{PageEntry, PageMap};
use prepage_sys::userfaultfd::Served;

use crate::map::MapCore;
use crate::object::Frames;
use crate::sync::{MutexGuard, Ordering};
use crate::unwire::Shower;

/// A private map that shows pages of an object in one or more places.
pub(crate) struct PrivateMap<'a> {
    places: &'a [Shower],
    /// Keeps the map from having its writes told meanwhile; `None` where they are, or its pages cannot be protected.
    untold: Option<MutexGuard<'a, ()>>,
}

impl<'a> PrivateMap<'a> {
    /// The maps of `places`, of which those of a map stand side by side.
    pub(crate) fn all(places: &'a [Shower]) -> impl Iterator<Item = Self> {
        places.chunk_by(|place, next| place.map.id() == next.map.id()).map(|places| {
            let map: &'a MapCore = &places[0].map;
            // Of a map that children inherit there are page tables in other processes, too.
            let untold = map.writes.stay_untold().filter(|_| !map.inherit && map.make_protectable().is_ok());
            Self { places, untold }
        })
    }

    /// Whether it may show `page` and cannot let it go.
    pub(crate) fn keeps(&self, page: PageIndex) -> bool {
        self.untold.is_none() && self.places.iter().any(|place| place.backing.window.contains(page))
    }

    /// Takes the pages `runs` of the object of `frames` out of the map, but for copies.
    pub(crate) fn hide(&self, frames: &Frames, runs: &[PageRange]) -> io::Result<()> {
        if self.untold.is_none() {
            return Ok(());
        }
        let map = &self.places[0].map;
        let table = map.vm.page_map()?;
        let here: Vec<_> = self.places.iter().flat_map(|place| place.places(runs)).collect();
        if here.is_empty() {
            return Ok(());
        }
        // Faults wait meanwhile, maybe in a signal handler that interrupted the allocator: so all memory is taken before, and given back after.
        let most = here.iter().map(|(_, len)| (len / PAGE_SIZE) as usize).sum();
        let mut entries = vec![PageEntry::default(); most];
        let (mut own, mut still) = (Vec::with_capacity(most), Vec::with_capacity(most));
        let _held = map.keep_pages_out([&frames.sections]);
        of_object(table, map, &here, &mut entries, &mut own)?;
        let uffd = &map.space.uffd;
        let protected = own.iter().try_for_each(|&(at, len)| uffd.protect(&map.span, at, len));
        let hidden = protected
            .and_then(|()| of_object(table, map, &own, &mut entries, &mut still))
            .and_then(|()| map.span.unmap_protected_ranges(&still));
        // Of what was unmapped, too: the kernel keeps a mark.
        let unprotected = own.iter().map(|&(at, len)| uffd.unprotect(&map.span, at, len));
        let unprotected = unprotected.fold(Ok(()), Result::and);
        hidden.and(unprotected)
    }
}

impl MapCore {
    /// From here on its pages can be protected.
    fn make_protectable(&self) -> io::Result<()> {
        if self.protects.swap(1, Ordering::SeqCst) != 0 {
            return Ok(());
        }
        self.register(Served::MissingAndUnmapped).inspect_err(|_| {
            self.protects.store(0, Ordering::SeqCst);
        })
    }
}

/// Puts the runs of pages of `ranges`, as offset and length, that are the object's own into `found`, which has room for as many as
/// there are pages, as `entries` has.
fn of_object(
    table: &PageMap,
    map: &MapCore,
    ranges: &[(u64, u64)],
    entries: &mut [PageEntry],
    found: &mut Vec<(u64, u64)>,
) -> io::Result<()> {
    for &(at, len) in ranges {
        let entries = &mut entries[..(len / PAGE_SIZE) as usize];
        table.entries(map.span.start() + at, entries)?;
        for (number, _) in (0..).zip(&*entries).filter(|(_, entry)| entry.is_of_file()) {
            let page = at + number * PAGE_SIZE;
            match found.last_mut() {
                Some((start, len)) if *start + *len == page => *len += PAGE_SIZE,
                _ => found.push((page, PAGE_SIZE)),
            }
        }
    }
    Ok(())
}
