//! How many frames there are and may be.

use crate::sync::{AtomicU64, Ordering};

/// The frames of a VM.
///
/// Lock legend: (a) atomic; (c) constant.
#[derive(Debug)]
pub(crate) struct FrameCount {
    /// (a) Pages reserved for frames: those that hold one and those about to.
    reserved: AtomicU64,
    /// (c)
    limit: u64,
}

/// What came of asking for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// They are the caller's to fill.
    Got,
    /// There are none until others give theirs back.
    Wait,
}

impl FrameCount {
    pub(crate) fn new(limit: u64) -> Self {
        Self { reserved: AtomicU64::new(0), limit }
    }

    /// Makes sure that there may be `pages` more frames. What does not fit is never counted: others that do fit get theirs.
    pub(crate) fn reserve(&self, pages: u64) -> Reserve {
        let mut now = self.reserved.load(Ordering::Relaxed);
        loop {
            if now + pages > self.limit {
                return Reserve::Wait;
            }
            match self.reserved.compare_exchange(now, now + pages, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Reserve::Got,
                Err(other) => now = other,
            }
        }
    }

    pub(crate) fn release(&self, pages: u64) {
        self.reserved.fetch_sub(pages, Ordering::AcqRel);
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::Acquire)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }
}
