//! Which frames hold the pages that faulted.

use std::collections::{HashMap, HashSet};

use prepage_core::{Fault, FrameNumber, Thread};
use prepage_sys::pagemap::PageMap;

use crate::event::{Event, EventKind};

/// Page maps kept open at most.
const MAPS_MAX: usize = 256;

/// Looks up the frames of faults soon after they happened (root).
///
/// A page can move or go in the meantime. What is known to have changed its whole address space since (an exec, an
/// end) is left out.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    maps: HashMap<u32, Option<PageMap>>,
    /// Processes that executed a program or ended since the last look.
    changed: HashSet<u32>,
}

impl Frames {
    /// Whether this user is shown any.
    pub(crate) fn can_be_seen() -> bool {
        let on_the_stack = 0u8;
        let address = std::ptr::from_ref(&on_the_stack).addr() as u64;
        PageMap::of(std::process::id()).is_ok_and(|map| map.frame(address).is_some())
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        let gone = match event.kind {
            EventKind::Name { exec, .. } => exec,
            EventKind::Exit => event.pid == event.tid,
            _ => false,
        };
        if gone {
            self.maps.remove(&event.pid);
            self.changed.insert(event.pid);
        }
    }

    /// Fills in the frames of `faults`, the latest.
    pub(crate) fn look(&mut self, threads: &[Thread], faults: &mut [Fault]) {
        for fault in faults {
            let pid = threads[fault.thread.0 as usize].pid;
            if self.changed.contains(&pid) {
                continue;
            }
            if self.maps.len() >= MAPS_MAX && !self.maps.contains_key(&pid) {
                self.maps.clear();
            }
            let map = self.maps.entry(pid).or_insert_with(|| PageMap::of(pid).ok());
            fault.frame = map.as_ref().and_then(|map| map.frame(fault.address)).and_then(FrameNumber::new);
        }
        self.changed.clear();
    }
}
