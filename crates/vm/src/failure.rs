//! Touches that ended in SIGBUS: the record of why.

use std::fmt::{self, Write};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use prepage_core::PageIndex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::object::ObjectCore;
use crate::reason::Reason;
use crate::sync::{AtomicU64, Ordering};

/// As many are kept.
pub(crate) const KEPT: usize = 256;

/// A touch that ended in SIGBUS.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failure {
    /// The object.
    pub object: String,
    /// Its page.
    pub page: PageIndex,
    /// The address that was touched.
    pub address: u64,
    /// Why the page could not be had.
    pub reason: Reason,
}

/// A failure in words.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) object: u64,
    pub(crate) page: u64,
    pub(crate) address: u64,
    pub(crate) code: u16,
}

/// The last failures.
///
/// Lock legend: (a) atomic.
#[derive(Debug)]
pub(crate) struct Failures {
    kept: ArrayQueue<Kept>,
    /// (a) How many there have been.
    count: AtomicU64,
    explain: bool,
}

impl Failures {
    pub(crate) fn new(explain: bool) -> Self {
        Self { kept: ArrayQueue::new(KEPT), count: AtomicU64::new(0), explain }
    }

    /// Keeps a failure, in any context, and tells of it on stderr.
    pub(crate) fn keep(&self, object: &ObjectCore, page: PageIndex, address: u64, code: u16) {
        self.kept.force_push(Kept { object: object.id, page: page.0, address, code });
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.explain {
            let mut line = Line { bytes: [0; LINE_BYTES + 1], len: 0 };
            let _ = write!(line, "prepage: a fault at {address:#x} failed: ");
            let _ = match Reason::of(code, None) {
                // The system's own words are asked for memory.
                Reason::System(errno) => write!(line, "errno {errno}"),
                // The source's are behind a lock.
                Reason::Refused(_) => {
                    line.write_str("the source failed (Vm::take_failures gives its own words)")
                }
                reason => write!(line, "{reason}"),
            };
            // Last: a long name is cut.
            let _ = write!(line, ": page {page} of {}", object.name);
            line.bytes[line.len] = b'\n';
            tell(&line.bytes[..=line.len], Duration::ZERO);
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// How many there have been, of which the last [`KEPT`] may still be here.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    pub(crate) fn take(&self) -> Option<Kept> {
        self.kept.pop()
    }
}

/// Tells of a failure on stderr, outside signal handlers.
pub(crate) fn say(failure: fmt::Arguments<'_>) {
    /// Whether the last line was not taken: whoever waited for that one need not be waited for by each of the next.
    static RESTS: std::sync::atomic::AtomicBool = std::sync::atomic::AtomicBool::new(false);
    let mut line = format!("prepage: {failure}").into_bytes();
    line.truncate(TAKEN_WHOLE - 1);
    line.push(b'\n');
    // Long enough for a reader that is at work: what is said here may be said nowhere else.
    let patience = if RESTS.load(Ordering::Relaxed) { Duration::ZERO } else { Duration::from_secs(1) };
    RESTS.store(!tell(&line, patience), Ordering::Relaxed);
}

/// So many bytes a pipe takes without waiting where poll(2) says that it takes any (PIPE_BUF).
const TAKEN_WHOLE: usize = 4096;

/// Writes `line` to stderr, if that takes it within `patience`: a reader that rests holds up neither touches nor threads of the VM, unless others fill the pipe
/// between the two calls. Nobody is there to tell where stderr fails, which is no reason for a thread to end.
/// Whether it took the line.
fn tell(line: &[u8], patience: Duration) -> bool {
    let stderr = rustix::stdio::stderr();
    let until = Instant::now() + patience;
    let takes_it = loop {
        let left = Timespec::try_from(until.saturating_duration_since(Instant::now())).unwrap_or_default();
        match poll(&mut [PollFd::new(&stderr, PollFlags::OUT)], Some(&left)) {
            Err(Errno::INTR) => {}
            polled => break polled == Ok(1),
        }
    };
    takes_it && rustix::io::write(stderr, line).is_ok()
}

/// The longest line, without its end.
const LINE_BYTES: usize = 255;

/// Text without memory of its own to ask for: this runs in signal handlers.
struct Line {
    bytes: [u8; LINE_BYTES + 1],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.len..LINE_BYTES];
        let fits = text.len().min(room.len());
        room[..fits].copy_from_slice(&text.as_bytes()[..fits]);
        self.len += fits;
        Ok(())
    }
}
