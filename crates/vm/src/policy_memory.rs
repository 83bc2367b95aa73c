//! What a policy remembers of a map, shared by the threads that fault on it.

use prepage_core::PageIndex;
use prepage_core::policy::EntryState;

use crate::statistics::Tally;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// An [`EntryState`] that one thread at a time looks at and changes. What it holds is a hint: who finds another thread there
/// decides without it and waits for nobody.
///
/// Lock legend: (c) constant; (a) atomic; (l) changed by who made `lock` 1.
#[derive(Debug)]
pub(crate) struct PolicyMemory {
    /// (c) Whether the policy remembers anything; if not, nothing below but `executable` is used.
    remembers: bool,
    /// (c) Whether the pages may be executed.
    executable: bool,
    /// (a) 1 while held.
    lock: AtomicU32,
    /// (l) The fields of the state.
    next: AtomicU64,
    window: AtomicU32,
    early: AtomicU32,
    order: AtomicU32,
    misses: AtomicU32,
}

impl PolicyMemory {
    pub(crate) fn new(remembers: bool, state: EntryState) -> Self {
        Self {
            remembers,
            executable: state.executable,
            lock: AtomicU32::new(0),
            next: AtomicU64::new(state.next.0),
            window: AtomicU32::new(state.window),
            early: AtomicU32::new(state.early),
            order: AtomicU32::new(state.order),
            misses: AtomicU32::new(state.misses),
        }
    }

    /// Lets `decide` look at and change the state; where another thread does so now, `decide` gets a state as before the
    /// first fault, and its changes are lost.
    pub(crate) fn with<T>(&self, tally: &mut Tally, decide: impl FnOnce(&mut EntryState) -> T) -> T {
        let mut state = EntryState { executable: self.executable, ..EntryState::default() };
        if !self.remembers {
            return decide(&mut state);
        }
        tally.shared_atomics += 1;
        if self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tally.lock_misses += 1;
            return decide(&mut state);
        }
        state.next = PageIndex(self.next.load(Ordering::Relaxed));
        state.window = self.window.load(Ordering::Relaxed);
        state.early = self.early.load(Ordering::Relaxed);
        state.order = self.order.load(Ordering::Relaxed);
        state.misses = self.misses.load(Ordering::Relaxed);
        let result = decide(&mut state);
        self.next.store(state.next.0, Ordering::Relaxed);
        self.window.store(state.window, Ordering::Relaxed);
        self.early.store(state.early, Ordering::Relaxed);
        self.order.store(state.order, Ordering::Relaxed);
        self.misses.store(state.misses, Ordering::Relaxed);
        self.lock.store(0, Ordering::Release);
        result
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_kept_whole() {
        let first = EntryState { executable: true, ..EntryState::default() };
        let memory = PolicyMemory::new(true, first);
        let later =
            EntryState { next: PageIndex(1), window: 2, early: 3, order: 4, misses: 5, executable: true };
        memory.with(&mut Tally::default(), |state| *state = later);
        memory.with(&mut Tally::default(), |state| assert_eq!(*state, later));
    }
}
