//! What a fault has others read, in the background.

use std::sync::Arc;

use prepage_core::policy::{Cluster, ClusterPolicy, FaultAt, Holes};
use prepage_core::{PageIndex, PageRange};

use crate::buffers::BUFFER_PAGES;
use crate::jobs::Job;
use crate::map::MapCore;
use crate::object::Frames;
use crate::statistics::Tally;
use crate::table::MapRef;

/// What a hard fault wants beside the run it reads itself, in the background.
pub(crate) fn read_others(map: &MapCore, at: MapRef, cluster: &Cluster, reads: PageRange, tally: &mut Tally) {
    if let Some(opening) = map.take_opening() {
        map.object.vm.jobs.sweep(&opening, at, tally);
    }
    let wanted = cluster.within(map.window);
    if cluster.holes == Holes::Stop || wanted == reads {
        return;
    }
    let before = PageRange::new(wanted.start(), reads.start().max(wanted.start()));
    let after = PageRange::new(reads.end().min(wanted.end()), wanted.end());
    for range in [after, before] {
        push_reads(map, range, cluster.mark, tally);
    }
}

/// A marked page was touched: what its policy wants read in the background.
pub(crate) fn ask_to_read_on(map: &MapCore, frames: &Frames, page: PageIndex, tally: &mut Tally) {
    let fault = FaultAt { page, window: map.window };
    let (policy, entry) = map.policy();
    // The mark was there when the fault began, and this fault took it.
    let memory = Marked { frames, page };
    if let Some(cluster) = entry.with(tally, |state| policy.soft(state, &fault, &memory)) {
        push_reads(map, cluster.within(map.window), cluster.mark, tally);
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

fn push_reads(map: &MapCore, range: PageRange, mark: Option<PageIndex>, tally: &mut Tally) {
    let mut start = range.start();
    while start < range.end() {
        let end = PageIndex((start.0 + BUFFER_PAGES).min(range.end().0));
        let job = Job::Read { object: Arc::clone(&map.object), range: PageRange::new(start, end), mark };
        if map.object.vm.jobs.push(job).is_err() {
            tally.dropped += 1;
            return;
        }
        start = end;
    }
}
