//! Learning from a start as it happens, as any user, without getting in its way.
//!
//! Two things are seen: page faults, which name pages of mapped files; and *stalls*, the system calls in which
//! threads of the program are found asleep, every few milliseconds. A thread that sleeps in read(), open() or stat() on
//! a cold cache waits for the device, so the stalls name just the reads and lookups that are worth having in the
//! profile, the longest most surely. What is served from memory never stalls and is not seen; a later start from a
//! colder cache shows it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use prepage_core::profile::Evidence;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::perf::PerfError;
use prepage_trace::{AddressSpaces, Event, EventKind, FaultEvents, Place, Probe, Stream, now_ns};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::calls::{Peek, Wants, wants};
use crate::sightings::{Findings, Sightings};

/// Pages that one fault maps at most where they are in memory (`fault_around_bytes`, 64 KiB): an aligned window.
pub(crate) const FAULT_AROUND_PAGES: u64 = 16;

/// A ring is cleared page by page before it can be used, while the program is starting: no larger than needed. This
/// holds the faults of 20 ms at a rate no cold start has.
const EVERY_FAULT_RING_BYTES: usize = 512 << 10;
/// For events that come some thousand times a second at most.
const SMALL_RING_BYTES: usize = 64 << 10;

/// How often sleeping threads are looked at. More often sees shorter stalls and takes more of a CPU that the program
/// may want: at every switch, a start of java on two CPUs took twice as long.
const STALL_PERIOD: Duration = Duration::from_millis(1);
/// The same for a start that is prefetched: few stalls are left to be found.
const KNOWN_STALL_PERIOD: Duration = Duration::from_millis(4);

/// Stalls looked at in one start. Each costs a few microseconds on another CPU than the program's; a program that
/// sleeps more often than this has long started.
const STALLS_MAX: u32 = 20_000;

/// Bytes of a stalled read that are noted at most: what the kernel reads ahead goes on by itself.
const STALLED_READ_BYTES_MAX: u64 = 128 << 10;

/// What to watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Every fault and every stall: for a start that is not known yet. Costs the program a few percent.
    EveryFault,
    /// Faults that read from the device, and stalls: for a known start from a cold cache.
    DiskFaultsAndStalls,
    /// Faults that read from the device.
    DiskFaults,
}

/// When watching ends: with the program, or after a while.
#[derive(Debug)]
pub struct Until {
    pidfd: OwnedFd,
    deadline: Instant,
    /// When the process was first seen to have ended, on the clock of [`now_ns`].
    ended_ns: OnceLock<u64>,
}

impl Until {
    /// Until the process of `pidfd` has ended, at most for `window`.
    pub fn new(pidfd: OwnedFd, window: Duration) -> Self {
        Self { pidfd, deadline: Instant::now() + window, ended_ns: OnceLock::new() }
    }

    /// Waits for it.
    pub fn wait(&self) {
        while !self.wait_for(self.remaining()) {}
    }

    /// Waits for it, but no longer than `pause`. Returns whether it has come.
    pub fn wait_for(&self, pause: Duration) -> bool {
        let pause = Timespec::try_from(pause.min(self.remaining())).expect("a window fits an i64 of seconds");
        let ended = poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], Some(&pause));
        self.note(ended.is_ok_and(|count| count > 0)) || self.remaining().is_zero()
    }

    /// When the process was seen to have ended by somebody who waited here for it; `None` while nobody has seen that.
    pub fn ended_ns(&self) -> Option<u64> {
        self.ended_ns.get().copied()
    }

    /// Notes the time if the process `has_ended`, which it returns.
    fn note(&self, has_ended: bool) -> bool {
        if has_ended {
            self.ended_ns.get_or_init(now_ns);
        }
        has_ended
    }

    fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

/// The start is over with the last wait for the device before this long without one; what it needs is learned until no
/// fault touched a file for this long.
const QUIET_NS: u64 = 1_000_000_000;

/// What was seen of a start.
#[derive(Debug)]
pub struct Watched {
    /// What it needed.
    pub findings: Findings,
    /// Records the kernel dropped: what was not seen may have happened nevertheless.
    pub lost: u64,
    /// When the start last waited for a page from the device, on the clock of [`prepage_trace::now_ns`].
    pub last_wait_ns: Option<u64>,
}

/// A program being watched.
#[derive(Debug)]
pub struct Watch {
    faults: Stream,
    stalls: Option<Stalls>,
    spaces: AddressSpaces,
    /// Whether the program was seen to be executed; what came before is this program's own.
    executed: bool,
    sightings: Sightings,
    last_wait_ns: Option<u64>,
    /// The last fault on a file or wait for the device in the start; before the first, when watching began.
    last_sign_ns: u64,
}

/// Threads that sleep.
#[derive(Debug)]
struct Stalls {
    switches: Stream,
    /// Fell asleep since the last look, and when; threads that woke again are not among them.
    asleep: HashMap<u32, u64>,
    looks_left: u32,
    period: Duration,
}

impl Watch {
    /// Watches process `pid`, which executes its program about now, and all that it starts.
    pub fn attach(pid: u32, scope: Scope) -> Result<Self, PerfError> {
        let (faults, ring_bytes) = match scope {
            Scope::EveryFault => (FaultEvents::Ends, EVERY_FAULT_RING_BYTES),
            Scope::DiskFaultsAndStalls | Scope::DiskFaults => (FaultEvents::DiskOnly, SMALL_RING_BYTES),
        };
        let faults = Stream::attach(pid, &Probe { faults, ring_bytes, ..Probe::default() })?;
        let stalls = match scope {
            Scope::DiskFaults => None,
            Scope::EveryFault => Some(Stalls::attach(pid, STALL_PERIOD)?),
            Scope::DiskFaultsAndStalls => Some(Stalls::attach(pid, KNOWN_STALL_PERIOD)?),
        };
        let mut spaces = AddressSpaces::new();
        // Of one that has ended already there is nothing to learn.
        let _ = spaces.seed(pid);
        // A known program did not wait for us. An exec from now on is reported.
        let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let executed = program(&pid.to_string()) != program("self");
        let sightings = Sightings::default();
        Ok(Self { faults, stalls, spaces, executed, sightings, last_wait_ns: None, last_sign_ns: now_ns() })
    }

    /// Watches until it is over and returns what was seen.
    pub fn follow(mut self, until: &Until) -> Watched {
        loop {
            let ended = self.wait(until);
            self.look_at_stalls();
            let events: Vec<Event> =
                if ended { self.faults.finish().collect() } else { self.faults.ripe().collect() };
            events.iter().for_each(|event| self.see(event));
            if ended {
                let lost = self.faults.counts().map_or(u64::MAX, |counts| counts.lost);
                // What a program does later, with files that it will not be given again, is no part of its start.
                self.sightings.forget_after(self.last_sign_ns.saturating_add(QUIET_NS));
                let findings = self.sightings.findings();
                return Watched { findings, lost, last_wait_ns: self.last_wait_ns };
            }
        }
    }

    /// Waits for something to look at. Returns whether watching is over.
    fn wait(&mut self, until: &Until) -> bool {
        let remaining = until.remaining();
        let timeout = self.stalls.as_ref().map_or(remaining, |stalls| stalls.period.min(remaining));
        match self.faults.wait(&[until.pidfd.as_fd()], Some(timeout)) {
            Ok(ready) => until.note(ready[0]) || remaining.is_zero(),
            Err(_) => true,
        }
    }

    fn see(&mut self, event: &Event) {
        self.spaces.apply(event);
        match &event.kind {
            EventKind::Name { exec: true, .. } => self.executed = true,
            EventKind::FaultEnd { address, disk, .. } if self.executed => {
                let is_quiet = |since: u64| event.time_ns.saturating_sub(since) > QUIET_NS;
                if *disk && !self.last_wait_ns.is_some_and(is_quiet) {
                    self.last_wait_ns = self.last_wait_ns.max(Some(event.time_ns));
                }
                let place = self.spaces.resolve(event.pid, *address);
                let is_sign = *disk || place.as_ref().is_some_and(|place| place.page.is_some());
                if is_sign && event.time_ns.saturating_sub(self.last_sign_ns) <= QUIET_NS {
                    self.last_sign_ns = self.last_sign_ns.max(event.time_ns);
                }
                if let Some(place) = place {
                    see_fault(&mut self.sightings, event.time_ns, &place, *address);
                }
            }
            _ => {}
        }
    }

    fn look_at_stalls(&mut self) {
        let Some(stalls) = &mut self.stalls else { return };
        stalls.look(self.executed, &mut self.sightings);
        if stalls.looks_left == 0 {
            self.stalls = None;
        }
    }
}

impl Stalls {
    fn attach(pid: u32, period: Duration) -> Result<Self, PerfError> {
        let probe = Probe {
            faults: FaultEvents::None,
            switches: true,
            ring_bytes: SMALL_RING_BYTES,
            ..Probe::default()
        };
        let switches = Stream::attach(pid, &probe)?;
        Ok(Self { switches, asleep: HashMap::new(), looks_left: STALLS_MAX, period })
    }

    /// Looks at each thread that fell asleep since the last look and sleeps still.
    fn look(&mut self, executed: bool, sightings: &mut Sightings) {
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
    }
}

/// Notes the page that faulted.
pub(crate) fn see_page(sightings: &mut Sightings, time_ns: u64, place: &Place<'_>) {
    let Some(page) = place.page else { return };
    let range = PageRange::new(page, PageIndex(page.0 + 1));
    sightings.pages(time_ns, Path::new(&place.object.path), range, Evidence::Seen);
}

/// Notes the page that faulted, and as possible neighbours the window that one fault can map.
pub(crate) fn see_fault(sightings: &mut Sightings, time_ns: u64, place: &Place<'_>, address: u64) {
    let Some(page) = place.page else { return };
    see_page(sightings, time_ns, place);
    // The window is aligned in the address space, and ends where the mapping ends.
    let into_window = PageIndex::containing(address).0 % FAULT_AROUND_PAGES;
    let mapping_start = PageIndex::containing(place.mapping.offset_bytes).0;
    let pages_left = (place.mapping.end - address).div_ceil(PAGE_SIZE);
    let near_start = page.0.saturating_sub(into_window).max(mapping_start);
    let near_end = page.0 + (FAULT_AROUND_PAGES - into_window).min(pages_left);
    let near = PageRange::new(PageIndex(near_start), PageIndex(near_end));
    sightings.pages(time_ns, Path::new(&place.object.path), near, Evidence::Near);
}

/// Notes what thread `tid` is asleep in, if it is something that waits for a file.
fn see_stall(sightings: &mut Sightings, time_ns: u64, tid: u32) {
    let peek = Peek::at(tid);
    let Some(wanted) = peek.sleeping_in().and_then(|(number, args)| wants(number, &args)) else { return };
    match wanted {
        Wants::Name { directory, path } => {
            if let Some(path) = peek.path(directory, path) {
                sightings.lookup(time_ns, &path, false);
            }
        }
        Wants::List { fd } => {
            if let Some(path) = peek.file(fd) {
                sightings.lookup(time_ns, &path, true);
            }
        }
        Wants::Read { fd, len_bytes, offset_bytes } => {
            let Some(path) = peek.file(fd) else { return };
            let Some(start) = offset_bytes.or_else(|| peek.position(fd)) else { return };
            let len = len_bytes.unwrap_or(PAGE_SIZE).min(STALLED_READ_BYTES_MAX);
            sightings.read(time_ns, &path, PageRange::covering(start, len), Evidence::Seen);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    #[test]
    fn the_end_is_dated_when_it_comes_not_when_it_is_asked_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).unwrap();
        let until = Until::new(pidfd, Duration::from_secs(10));
        assert!(!until.wait_for(Duration::ZERO) && until.ended_ns().is_none());
        drop(child.stdin.take());
        until.wait();
        let seen_ns = now_ns();
        std::thread::sleep(Duration::from_millis(30));
        assert!(until.wait_for(Duration::ZERO));
        assert!(until.ended_ns().is_some_and(|ended_ns| ended_ns <= seen_ns));
        child.wait().unwrap();
    }
}
