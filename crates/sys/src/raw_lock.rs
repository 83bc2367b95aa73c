//! A lock of one word, for where no lock of the standard library can stand: in an allocator, and held over a fork.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::futex::{self, Flags};

/// 0 free, 1 held, 2 held and waited for. Whoever locks it unlocks it.
#[derive(Debug)]
pub(crate) struct RawLock(AtomicU32);

impl RawLock {
    pub(crate) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub(crate) fn lock(&self) {
        if self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            while self.0.swap(2, Ordering::Acquire) != 0 {
                let _ = futex::wait(&self.0, Flags::PRIVATE, 2, None);
            }
        }
    }

    /// Returns whether it was free.
    pub(crate) fn try_lock(&self) -> bool {
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn unlock(&self) {
        if self.0.swap(0, Ordering::Release) == 2 {
            let _ = futex::wake(&self.0, Flags::PRIVATE, 1);
        }
    }
}
