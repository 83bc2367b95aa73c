//! The wait for the kernel's first perf event.
//!
//! Where no event of a process is open on the machine, opening one waits for a grace period of the kernel's (RCU), 8 to
//! 20 ms; the next ones take a tenth of a millisecond. No program should wait for that.

use std::thread::JoinHandle;

use prepage_sys::perf::{Observed, PerfError, PerfEvent, Setup, Source, online_cpus};

/// A thread that opens an event.
#[derive(Debug)]
pub struct Primer(JoinHandle<Result<PerfEvent, PerfError>>);

impl Primer {
    /// Begins to wait.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn begin() -> Result<Self, PerfError> {
        // One that every user may have who may have any.
        let setup = Setup { exclude_kernel: true, ..Setup::new(Source::Dummy) };
        let open = move || {
            let cpu = online_cpus().ok().and_then(|cpus| cpus.first().copied()).unwrap_or(0);
            PerfEvent::open(&setup, Observed::Thread(std::process::id()), cpu)
        };
        let thread = std::thread::Builder::new().spawn(open);
        thread.map(Self).map_err(|source| PerfError::Other { action: "starting a thread", source })
    }

    /// Whether the wait is over.
    pub fn is_ready(&self) -> bool {
        self.0.is_finished()
    }

    /// What came of it: while the event is kept, opening others takes no time.
    pub fn event(self) -> Result<PerfEvent, PerfError> {
        self.0.join().expect("opening an event does not panic")
    }
}
