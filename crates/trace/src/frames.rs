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
/// end, another process with the same number) is left out.
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
            // The record of the end of who had this number before was lost.
            EventKind::Fork { .. } => event.pid == event.tid && self.maps.contains_key(&event.pid),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_is_given_anew_has_another_map() {
        let mut frames = Frames::default();
        let pid = std::process::id();
        frames.maps.insert(pid, PageMap::of(pid).ok());
        let fork = |tid| {
            let kind = EventKind::Fork { parent_pid: 1, parent_tid: 1 };
            Event { time_ns: 1, pid, tid, kind, is_time_borrowed: false }
        };
        frames.apply(&fork(pid + 1));
        assert!(frames.maps.contains_key(&pid) && frames.changed.is_empty(), "a thread has its process's");
        frames.apply(&fork(pid));
        assert!(!frames.maps.contains_key(&pid) && frames.changed.contains(&pid));
        // Its map is opened by the next look.
        frames.look(&[], &mut []);
        frames.apply(&fork(pid));
        assert!(frames.changed.is_empty(), "nothing was known of that number");
    }
}
