//! FreeBSD's default: detect sequential faults, else read aligned clusters.

use super::{Cluster, EntryState, FaultAt};
use crate::page::PageRange;

/// Pages by which the window of a sequential reader grows, less one (`VM_FAULT_READ_AHEAD_MIN`).
const STEP: u32 = 7;

/// Window of an entry that has not faulted yet (`VM_FAULT_READ_AHEAD_INIT`).
const FIRST_WINDOW: u32 = 15;

/// A fault on the page after the last read makes the window grow, up to `max`, and reads only ahead. Any other fault
/// closes the window and reads the aligned cluster.
///
/// Source: FreeBSD `sys/vm/vm_fault.c`, `vm_fault_readahead` and `vm_fault_behind_ahead`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Adaptive {
    /// Largest window, in pages ahead.
    pub max: u32,
    /// Pages in the aligned cluster that a fault out of sequence reads, at least 1.
    pub cluster: u32,
}

impl Adaptive {
    pub(super) fn entry(window: PageRange) -> EntryState {
        EntryState { next: window.start(), window: FIRST_WINDOW, ..EntryState::default() }
    }

    pub(super) fn hard(self, entry: &mut EntryState, fault: &FaultAt) -> Cluster {
        if fault.page != entry.next {
            entry.window = 0;
            return Cluster::aligned(fault.page, self.cluster);
        }
        let grown = if entry.window == 0 { STEP } else { entry.window.saturating_add(STEP + 1) };
        entry.window = grown.min(self.max);
        Cluster::around(fault.page, 0, entry.window.into())
    }
}
