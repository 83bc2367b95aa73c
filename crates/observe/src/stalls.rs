//! Stalls: system calls in which threads of the program are found asleep, every few milliseconds.
//!
//! A thread that sleeps in read(), open() or stat() on a cold cache waits for the device, so the stalls name just the reads and
//! lookups that are worth having in a profile, the longest most surely. What is served from memory never stalls and
//! is not seen.

use std::collections::HashMap;
use std::time::Duration;

use prepage_core::{PAGE_SIZE, PageRange};
use prepage_sys::perf::PerfError;
use prepage_trace::{EventKind, FaultEvents, Probe, Stream, Target};

use crate::calls::{Peek, Wants, wants};
use crate::elsewhere::is_elsewhere;
use crate::sightings::Sightings;

/// How often sleeping threads are looked at. More often sees shorter stalls and takes more of a CPU that the program
/// may want: at every switch, a start of java on two CPUs took twice as long.
pub const STALL_PERIOD: Duration = Duration::from_millis(1);

/// Events come some thousand times a second at most.
const RING_BYTES: usize = 64 << 10;

/// Stalls looked at in one start. Each costs a few microseconds on another CPU than the program's; a program that
/// sleeps more often than this has long started.
const STALLS_MAX: u32 = 20_000;

/// Bytes of a stalled read that are noted at most: what the kernel reads ahead goes on by itself.
const STALLED_READ_BYTES_MAX: u64 = 128 << 10;

/// Threads that sleep.
#[derive(Debug)]
pub struct Stalls {
    switches: Stream,
    /// Fell asleep since the last look, and when; threads that woke again are not among them.
    asleep: HashMap<u32, u64>,
    looks_left: u32,
}

impl Stalls {
    /// Watches the threads of the processes `pids` and of all that they start.
    pub fn attach(pids: Vec<u32>) -> Result<Self, PerfError> {
        let probe =
            Probe { faults: FaultEvents::None, switches: true, ring_bytes: RING_BYTES, ..Probe::default() };
        let switches = Stream::attach_to(&Target::Processes(pids), &probe)?;
        Ok(Self { switches, asleep: HashMap::new(), looks_left: STALLS_MAX })
    }

    /// Looks at each thread that fell asleep since the last look and sleeps still. Returns whether to go on.
    pub fn look(&mut self, executed: bool, sightings: &mut Sightings) -> bool {
        for event in self.switches.finish() {
            match event.kind {
                EventKind::Switch { out: true, preempted: false } => {
                    self.asleep.insert(event.tid, event.time_ns);
                }
                EventKind::Switch { out: false, .. } | EventKind::Exit => {
                    self.asleep.remove(&event.tid);
                }
                _ => {}
            }
        }
        for (tid, since_ns) in self.asleep.drain() {
            if executed && self.looks_left > 0 {
                self.looks_left -= 1;
                see_stall(sightings, since_ns, tid);
            }
        }
        self.looks_left > 0
    }
}

/// Notes what thread `tid` is asleep in, if it is something that waits for a file.
fn see_stall(sightings: &mut Sightings, time_ns: u64, tid: u32) {
    let peek = Peek::at(tid);
    let is_here = is_elsewhere(tid) == Some(false);
    let Some(wanted) = peek.sleeping_in().and_then(|(number, args)| wants(number, &args)) else { return };
    match wanted {
        Wants::Name { directory, path } => {
            if let Some(path) = peek.path(directory, path).filter(|_| is_here) {
                sightings.lookup(time_ns, &path, false);
            }
        }
        Wants::List { fd } => {
            if let Some(path) = peek.file(fd).filter(|_| is_here) {
                sightings.lookup(time_ns, &path, true);
            }
        }
        Wants::Read { fd, len_bytes, offset_bytes } => {
            let (Some(path), Some(inode)) = (peek.file(fd), peek.inode(fd)) else { return };
            let Some(start) = offset_bytes.or_else(|| peek.position(fd)) else { return };
            let len = len_bytes.unwrap_or(PAGE_SIZE).min(STALLED_READ_BYTES_MAX);
            sightings.read(time_ns, &path, inode, PageRange::covering(start, len));
        }
    }
}
