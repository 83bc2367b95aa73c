//! The wait for the kernel's first perf event.
//!
//! Where no event of a process is open on the machine, opening one waits for a grace period of the kernel's (RCU), 8 to
//! 20 ms; the next ones take a tenth of a millisecond. No program should wait for that.

use std::sync::mpsc::{Receiver, TryRecvError, channel};

use prepage_sys::perf::{Observed, PerfError, PerfEvent, Setup, Source, online_cpus};
use prepage_sys::thread::Thread;

/// A thread that opens an event.
#[derive(Debug)]
pub struct Primer(Receiver<Result<PerfEvent, PerfError>>);

impl Primer {
    /// Begins to wait.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn begin() -> Result<Self, PerfError> {
        // One that every user may have who may have any.
        let setup = Setup { exclude_kernel: true, ..Setup::new(Source::Dummy) };
        let (tell, told) = channel();
        let open = move || {
            let cpu = online_cpus().ok().and_then(|cpus| cpus.first().copied()).unwrap_or(0);
            let _ = tell.send(PerfEvent::open(&setup, Observed::Thread(std::process::id()), cpu));
        };
        let started = Thread::start("prime", open);
        started.map(|_| Self(told)).map_err(|source| PerfError::Other { action: "starting a thread", source })
    }

    /// What came of it, once the wait is over: while the event is kept, opening others takes no time.
    pub fn event(&self) -> Option<Result<PerfEvent, PerfError>> {
        match self.0.try_recv() {
            Err(TryRecvError::Empty) => None,
            told => Some(told.expect("opening an event does not panic, and is asked for once")),
        }
    }
}
