//! What a policy remembers of a map, shared by the threads that fault on it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use prepage_core::PageIndex;
use prepage_core::policy::EntryState;

use crate::statistics::Tally;

/// An [`EntryState`] under a lock of one word, held for the few instructions in which a policy decides: never over a
/// read, a call of the kernel or an allocation.
#[derive(Debug)]
pub(crate) struct EntryCell {
    /// Whether the policy remembers anything; if not, nothing below is used.
    remembers: bool,
    /// 1 while held.
    lock: AtomicU32,
    /// The fields of the state, changed under the lock.
    next: AtomicU64,
    window: AtomicU32,
    early: AtomicU32,
    misses: AtomicU32,
}

impl EntryCell {
    pub(crate) fn new(remembers: bool, state: EntryState) -> Self {
        Self {
            remembers,
            lock: AtomicU32::new(0),
            next: AtomicU64::new(state.next.0),
            window: AtomicU32::new(state.window),
            early: AtomicU32::new(state.early),
            misses: AtomicU32::new(state.misses),
        }
    }

    /// Lets `decide` look at and change the state, alone.
    pub(crate) fn with<T>(&self, tally: &mut Tally, decide: impl FnOnce(&mut EntryState) -> T) -> T {
        if !self.remembers {
            return decide(&mut EntryState::default());
        }
        tally.shared_atomics += 1;
        let mut spins = 0;
        while self.lock.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tally.lock_waits += u64::from(spins == 0);
            spins += 1;
            if spins % 64 == 0 {
                // The holder may have lost its CPU.
                rustix::thread::sched_yield();
            }
            std::hint::spin_loop();
        }
        let mut state = EntryState {
            next: PageIndex(self.next.load(Ordering::Relaxed)),
            window: self.window.load(Ordering::Relaxed),
            early: self.early.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            executable: false,
        };
        let result = decide(&mut state);
        self.next.store(state.next.0, Ordering::Relaxed);
        self.window.store(state.window, Ordering::Relaxed);
        self.early.store(state.early, Ordering::Relaxed);
        self.misses.store(state.misses, Ordering::Relaxed);
        self.lock.store(0, Ordering::Release);
        result
    }
}
