//! Threads that do work of one kind: how they sleep until there is some, and how many there are.
//!
//! A thread that takes work while no other of its crew is idle has one more started, up to the crew's limit. Threads that were
//! idle for long end, but for one.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, wait_for, wake};

/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(2);

/// What a crew is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Somebody waits for what it does.
    Prompt,
    /// Nobody does: its threads leave the CPU to all others of the process.
    Background,
}

/// The threads of one kind.
///
/// Lock legend: (a) atomic; (c) constant.
#[derive(Debug)]
pub(crate) struct Crew {
    /// (a) Changes with every push of work; idle threads sleep on it.
    pushed: AtomicU32,
    /// (a)
    idle: AtomicU32,
    /// (a) Those that are to be started too.
    threads: AtomicU32,
    /// (a) Of these, those that nobody starts yet.
    missing: AtomicU32,
    /// (c) The most threads.
    most: u32,
}

/// How a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slept {
    /// There may be work.
    Woken,
    /// There was none for long, and others of the crew are idle.
    TooLong,
}

impl Crew {
    pub(crate) fn new(most: u32) -> Self {
        Self {
            pushed: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            missing: AtomicU32::new(0),
            most: most.max(1),
        }
    }

    /// There is work for one thread more. From any context.
    pub(crate) fn call_one(&self) {
        self.pushed.fetch_add(1, Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) > 0 {
            wake(&self.pushed, 1);
        }
    }

    /// Something changed that all threads have to see.
    pub(crate) fn call_all(&self) {
        self.pushed.fetch_add(1, Ordering::SeqCst);
        wake(&self.pushed, u32::MAX >> 1);
    }

    /// What changes with every call: taken before a thread looks for work.
    pub(crate) fn calls(&self) -> u32 {
        self.pushed.load(Ordering::SeqCst)
    }

    /// Sleeps until somebody calls, unless that happened since `calls` was taken.
    pub(crate) fn sleep(&self, calls: u32) -> Slept {
        self.idle.fetch_add(1, Ordering::SeqCst);
        let timed_out = wait_for(&self.pushed, calls, IDLE);
        // The last that is idle stays: whoever took work while it was there has started no other.
        let others_are_idle = |idle| (idle > 1).then_some(idle - 1);
        if timed_out && self.idle.fetch_update(Ordering::SeqCst, Ordering::SeqCst, others_are_idle).is_ok() {
            return Slept::TooLong;
        }
        self.idle.fetch_sub(1, Ordering::SeqCst);
        Slept::Woken
    }

    /// For a thread that takes work: whether another is missing, which it is to have started.
    pub(crate) fn misses_another(&self) -> bool {
        let has_room = |threads| (threads < self.most).then_some(threads + 1);
        let misses = self.idle.load(Ordering::SeqCst) == 0
            && self.threads.fetch_update(Ordering::SeqCst, Ordering::SeqCst, has_room).is_ok();
        self.missing.fetch_add(u32::from(misses), Ordering::SeqCst);
        misses
    }

    /// Whether a thread is missing; who is told so starts it.
    pub(crate) fn take_missing(&self) -> bool {
        let one_less = |missing: u32| missing.checked_sub(1);
        self.missing.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).is_ok()
    }

    /// The first thread is about to be started.
    pub(crate) fn first(&self) {
        self.threads.fetch_add(1, Ordering::SeqCst);
    }

    /// A thread ended, or could not be started.
    pub(crate) fn has_lost_one(&self) {
        self.threads.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    #[test]
    fn the_last_idle_thread_stays() {
        let crew = Crew::new(4);
        crew.idle.store(1, Ordering::SeqCst);
        assert_eq!(crew.sleep(crew.calls()), Slept::TooLong, "another is idle");
        // That one has taken work, and started nobody: this one was idle.
        crew.idle.store(0, Ordering::SeqCst);
        assert_eq!(crew.sleep(crew.calls()), Slept::Woken, "nobody is left to take the next work");
        assert!(crew.misses_another() && crew.take_missing() && !crew.take_missing());
    }
}
