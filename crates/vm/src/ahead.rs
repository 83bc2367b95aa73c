//! What one fault has read in the background.

use prepage_core::policy::{Cluster, FaultAt, Holes};
use prepage_core::{PageIndex, PageRange};

use crate::fault::Fault;
use crate::object::Frames;
use crate::segment::Place;
use crate::work::{READERS, read_ahead};

impl Fault<'_> {
    /// Has what the policy of the map reads first read in the background, where this is the first fault on the object that was mapped: it names pages of that
    /// one. What a snapshot's store shows in its place has its own numbers.
    pub(crate) fn begin_opening(&mut self, place: &Place<'_>) {
        if place.object.is_frozen() {
            return;
        }
        if let Some(opening) = self.map.take_opening() {
            opening.start(place.object, READERS as usize, &mut self.account);
        }
    }

    /// Has what is `wanted` of a cluster beside what the fault `reads` itself read in the background.
    pub(crate) fn read_others(
        &mut self,
        place: &Place<'_>,
        cluster: &Cluster,
        wanted: PageRange,
        reads: PageRange,
    ) {
        if wanted == reads {
            return;
        }
        let before = PageRange::new(wanted.start(), reads.start().max(wanted.start()));
        let after = PageRange::new(reads.end().min(wanted.end()), wanted.end());
        // A cluster that ends at what is there is no part of a longer one.
        let window = if cluster.holes == Holes::Stop { wanted } else { place.window };
        // Nothing follows what lies before this fault.
        let until_here = PageRange::new(window.start(), before.end());
        for (range, window) in [(after, window), (before, until_here)] {
            read_ahead(place.object, range, window, cluster.mark, self.at, &mut self.account);
        }
    }

    /// A marked page was touched: what its policy wants read in the background.
    pub(crate) fn ask_to_read_on(&mut self, place: &Place<'_>, frames: &Frames) {
        let fault = FaultAt { page: place.page, window: place.window };
        let (policy, memory) = self.map.policy();
        // The mark was there when the fault began, and this fault took it.
        let marked = Marked { frames, page: place.page };
        let cluster = memory.with(&mut self.account.tally, |state| policy.soft(state, &fault, &marked));
        if let Some(cluster) = cluster {
            let range = cluster.within(place.window);
            read_ahead(place.object, range, place.window, cluster.mark, self.at, &mut self.account);
        }
    }
}

/// Residency as it was before this fault took the mark of `page`.
struct Marked<'a> {
    frames: &'a Frames,
    page: PageIndex,
}

impl prepage_core::policy::Residency for Marked<'_> {
    fn is_resident(&self, page: PageIndex) -> bool {
        self.frames.pages.is_resident(page)
    }

    fn is_marked(&self, page: PageIndex) -> bool {
        page == self.page || self.frames.pages.is_marked(page)
    }
}
