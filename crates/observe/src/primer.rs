//! The wait for the kernel's first perf event.
//!
//! Where no event of a process is open on the machine, opening one waits for a grace period of the kernel's (RCU), 8 to
//! 20 ms; the next ones take a tenth of a millisecond. No program should wait for that.

use std::thread::JoinHandle;

use prepage_sys::perf::PerfError;
use prepage_trace::{FaultEvents, Probe, Stream};

/// A thread that opens an event.
#[derive(Debug)]
pub struct Primer(JoinHandle<Result<Stream, PerfError>>);

impl Primer {
    /// Begins to wait.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn begin() -> Result<Self, PerfError> {
        let probe = Probe { faults: FaultEvents::None, ring_bytes: 0, ..Probe::default() };
        let thread = std::thread::Builder::new().spawn(move || Stream::attach(std::process::id(), &probe));
        thread.map(Self).map_err(|source| PerfError::Other { action: "starting a thread", source })
    }

    /// Whether the wait is over.
    pub fn is_ready(&self) -> bool {
        self.0.is_finished()
    }

    /// What came of it: while the stream is kept, opening others takes no time.
    pub fn stream(self) -> Result<Stream, PerfError> {
        self.0.join().expect("opening an event does not panic")
    }
}
