//! The thread that arms a process tree, where perf tells of execs and mappings.

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use prepage_sys::perf::PerfError;
use prepage_sys::scheduling;
use prepage_sys::thread::Thread;
use prepage_trace::{Event, EventKind, FaultEvents, Probe, Stream, Target};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::armed::{ArmedRanges, SharedRanges};
use crate::armer::{Armer, PAUSE};

/// Holds the execs and mappings of some milliseconds.
const RING_BYTES: usize = 64 << 10;

/// How the first process of a tree is entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// It runs its program already.
    Executed,
    /// It is stopped before its program's first instruction: one without rights of its own, which no agent enters.
    AtExec,
    /// By the agent, or by a visit as soon as its exec is reported.
    AfterExec,
    /// It is armed already.
    Armed,
}

/// How often the thread looks for execs and mappings: between these, after an eighth of the time for which it found nothing to
/// do. If perf woke it for each record, every mmap(2) of the program would raise an interrupt on the program's own CPU. Agents
/// arm most mappings before this thread hears of them; what is touched between another mapping and its arming is seen by
/// windows only.
const LOOK_PERIOD: RangeInclusive<Duration> = Duration::from_micros(500)..=Duration::from_millis(4);

/// A process tree that is being armed, until this is dropped.
///
/// A thread looks for execs and mappings as perf reports them.
#[derive(Debug)]
pub struct Arming {
    ranges: SharedRanges,
    thread: Option<(OwnedFd, Thread)>,
}

impl Arming {
    /// The execs and mappings of the processes `pids`, and of all that they start, for [`Self::begin`].
    ///
    /// # Errors
    /// When perf does not tell of them.
    pub fn listen(pids: Vec<u32>) -> Result<Stream, PerfError> {
        let probe = Probe { faults: FaultEvents::None, ring_bytes: RING_BYTES, ..Probe::default() };
        Stream::attach_to(&Target::Processes(pids), &probe)
    }

    /// Arms process `pid` and all that it starts, of which `stream` tells.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn begin(mut stream: Stream, pid: u32, when: Entry, mut armer: Armer) -> Result<Self, PerfError> {
        let failed = |source| PerfError::Other { action: "starting a thread", source };
        let (stopped, stop) = pipe_with(PipeFlags::CLOEXEC).map_err(|error| failed(error.into()))?;
        armer.tell_times();
        let ranges = armer.ranges();
        let (is_ready, ready) = std::sync::mpsc::channel::<()>();
        let work = move || {
            drop(armer.take_endings());
            match when {
                Entry::Executed => armer.executed(pid, 0),
                Entry::AtExec => armer.visit_at_exec(pid),
                Entry::AfterExec | Entry::Armed => {}
            }
            drop(is_ready);
            // Mappings should be armed soon. Where that is refused, they are armed later.
            let _ = scheduling::as_others();
            let mut last_work = Instant::now();
            // For how many records the kernel was found to have had no room, and whether there may be more.
            let (mut lost, mut may_have_lost) = (0, false);
            let lost_of = |stream: &Stream| stream.counts().map_or(0, |counts| counts.lost);
            loop {
                let quiet = (last_work.elapsed() / 8).clamp(*LOOK_PERIOD.start(), *LOOK_PERIOD.end());
                let pause = if armer.is_waiting() { PAUSE } else { quiet };
                let mut others = vec![stopped.as_fd()];
                others.extend(armer.descriptor());
                let Ok(ready) = stream.wait(&others, Some(pause)) else { return };
                if ready[0] {
                    armer.expect_no_more();
                    armer.ranges().now().lost_records = lost_of(&stream).max(lost);
                    return;
                }
                // Before perf is asked for execs, and mappings are seen before perf is asked when they were made.
                let sent = armer.receive();
                for event in stream.finish() {
                    may_have_lost |= matches!(event.kind, EventKind::Lost { .. });
                    if tell(&mut armer, &event) {
                        last_work = Instant::now();
                    }
                }
                if armer.go_on(sent) {
                    for event in stream.finish() {
                        may_have_lost |= matches!(event.kind, EventKind::Lost { .. });
                        tell(&mut armer, &event);
                    }
                }
                armer.judge();
                // Perf tells of their last faults.
                drop(armer.take_endings());
                // Nobody stands still for that.
                if may_have_lost && !armer.is_visiting() {
                    // The kernel tells of a loss in front of the next record that finds room. Whether there was one since only it knows, and
                    // is interrupted on each processor to be asked.
                    let before = std::mem::replace(&mut lost, lost_of(&stream));
                    may_have_lost = lost != before;
                    if may_have_lost {
                        armer.ranges().now().lost_records = lost;
                        armer.arm_untold();
                    }
                }
            }
        };
        let thread = Thread::start("arm", work).map_err(failed)?;
        // Its sender is dropped: the program may go on.
        let _ = ready.recv();
        Ok(Self { ranges, thread: Some((stop, thread)) })
    }

    /// What is armed until now.
    pub fn ranges(&self) -> MutexGuard<'_, ArmedRanges> {
        self.ranges.now()
    }

    /// Disarms everything. Returns why programs were not armed.
    pub fn end(&mut self) -> Vec<String> {
        if let Some((stop, thread)) = self.thread.take() {
            // The other end of its pipe tells the thread to end.
            drop(stop);
            let _ = thread.join();
        }
        self.ranges().refusals()
    }
}

/// Returns whether there was something to arm, or will soon be.
fn tell(armer: &mut Armer, event: &Event) -> bool {
    match &event.kind {
        EventKind::Map(mapped) => return armer.mapped(event.pid, mapped, event.time_ns),
        EventKind::Name { exec: true, .. } => armer.executed(event.pid, event.time_ns),
        EventKind::Fork { parent_pid, .. } if *parent_pid != event.pid => {
            armer.forked(event.pid, *parent_pid, event.time_ns);
        }
        EventKind::Exit if event.pid == event.tid => armer.ended(event.pid),
        _ => {}
    }
    matches!(event.kind, EventKind::Name { exec: true, .. })
}

impl Drop for Arming {
    fn drop(&mut self) {
        self.end();
    }
}
