//! The only door to what threads share in the fault path: std's primitives, or shuttle's or loom's under test.

#[cfg(not(any(feature = "shuttle", feature = "loom")))]
mod real {
    pub(crate) use std::sync::Mutex;
    pub(crate) use std::sync::atomic::{AtomicU32, Ordering};
    pub(crate) use std::thread::yield_now;

    use rustix::thread::futex::{self, Flags};

    /// Nothing: operations that say `SeqCst` have one order.
    pub(crate) fn seq_cst() {}

    /// Sleeps while `word` is `expected`; may return early.
    pub(crate) fn wait(word: &AtomicU32, expected: u32) {
        // Whatever the outcome, callers look at the word again.
        let _ = futex::wait(word, Flags::PRIVATE, expected, None);
    }

    /// Wakes up to `count` of those who sleep on `word`.
    pub(crate) fn wake(word: &AtomicU32, count: u32) {
        let _ = futex::wake(word, Flags::PRIVATE, count);
    }
}
#[cfg(not(any(feature = "shuttle", feature = "loom")))]
pub(crate) use real::*;

/// A futex is modelled by one lock and one condition for all words: early wake-ups abound, lost ones are found.
#[cfg(any(feature = "shuttle", feature = "loom"))]
mod model {
    #[cfg(not(feature = "shuttle"))]
    use loom as checker;
    #[cfg(feature = "shuttle")]
    use shuttle as checker;

    use checker::sync::Condvar;
    pub(crate) use checker::sync::Mutex;
    pub(crate) use checker::sync::atomic::{AtomicU32, Ordering};
    pub(crate) use checker::thread::yield_now;

    /// loom gives operations that say `SeqCst` no more than `AcqRel`, and one order to fences alone.
    pub(crate) fn seq_cst() {
        #[cfg(not(feature = "shuttle"))]
        checker::sync::atomic::fence(Ordering::SeqCst);
    }

    checker::lazy_static! {
        static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    pub(crate) fn wait(word: &AtomicU32, expected: u32) {
        let guard = SLEEPERS.0.lock().expect("no panics with it");
        if word.load(Ordering::SeqCst) == expected {
            drop(SLEEPERS.1.wait(guard));
        }
    }

    pub(crate) fn wake(_: &AtomicU32, _: u32) {
        let _guard = SLEEPERS.0.lock().expect("no panics with it");
        SLEEPERS.1.notify_all();
    }
}
#[cfg(any(feature = "shuttle", feature = "loom"))]
pub(crate) use model::*;
