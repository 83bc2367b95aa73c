//! How threads that sleep in a read of a userfaultfd are told to end: by a fault for each of them.

use std::io;
use std::sync::Arc;

use prepage_core::PAGE_SIZE;
use prepage_sys::region::{Contents, Region, Span};
use prepage_sys::userfaultfd::Served;

use crate::space::Space;
use crate::sync::{AtomicU32, Ordering};

/// Pages of zeros whose faults mean that a thread has to end: one for each thread.
#[derive(Debug)]
pub(crate) struct StopPages {
    region: Region,
}

/// What the threads know of these pages.
///
/// Lock legend: (c) constant; (a) atomic.
#[derive(Debug)]
pub(crate) struct Stop {
    /// (c)
    span: Arc<Span>,
    /// (a) Not 0 once the faults mean it: before, somebody locked all memory.
    meant: AtomicU32,
}

impl StopPages {
    /// For up to `threads` threads that serve `space`.
    pub(crate) fn new(space: &Space, threads: usize) -> io::Result<(Self, Stop)> {
        let region = Region::map_hidden(threads.max(1) as u64 * PAGE_SIZE, Contents::Anonymous)?;
        space.uffd.register(region.span(), Served::Missing)?;
        region.show(false)?;
        let stop = Stop { span: Arc::clone(region.span()), meant: AtomicU32::new(0) };
        Ok((Self { region }, stop))
    }

    /// Has `threads` threads that read messages, or will, see one each that tells them to end; returns when they have.
    pub(crate) fn touch(&mut self, threads: usize) {
        // What was touched before would touch nothing now. Fails for no region.
        let _ = self.region.discard(0, self.region.len());
        for page in 0..threads {
            std::hint::black_box(std::hint::black_box(self.region.as_slice())[page * PAGE_SIZE as usize]);
        }
    }
}

impl Stop {
    pub(crate) fn mean_it(&self) {
        self.meant.store(1, Ordering::SeqCst);
    }

    pub(crate) fn is_meant(&self) -> bool {
        self.meant.load(Ordering::SeqCst) != 0
    }

    /// Answers a fault on one of the pages; false where `address` is none of theirs.
    pub(crate) fn answer(&self, space: &Space, address: u64) -> bool {
        let offset = address.checked_sub(self.span.start()).filter(|&offset| offset < self.span.len());
        let Some(offset) = offset else { return false };
        // Whatever came of it, who waits looks again.
        let _ = space.uffd.map_zero(&self.span, offset, PAGE_SIZE);
        let _ = space.uffd.wake(address, PAGE_SIZE);
        true
    }
}
