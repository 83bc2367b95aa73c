//! Recording the faults of a command.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::time::{SystemTime, UNIX_EPOCH};

use prepage_core::{Fault, Object, Stack, Thread, TraceFacts};
use prepage_sys::perf::PerfError;
use prepage_sys::signals::{self, Signals};
use prepage_sys::spawn::{Child, HowEnded, spawn_waiting};

use crate::event::{Event, EventKind};
use crate::pairing::Pairing;
use crate::probe::Probe;
use crate::stream::{Stream, now_ns};
use crate::tables::Tables;

/// Runs a command and records the faults of its process tree, from its exec until it ends.
///
/// ```no_run
/// use prepage_trace::Recorder;
///
/// let mut recorder = Recorder::start(&["gcc".into(), "--version".into()])?;
/// let mut faults = Vec::new();
/// while recorder.next_faults(&mut faults)? {
///     // take what is in `faults`, and clear it, to keep memory bounded
/// }
/// println!("{} faults, {} records lost", faults.len(), recorder.finish()?.facts.lost);
/// # Ok::<(), prepage_trace::RecordError>(())
/// ```
#[derive(Debug)]
pub struct Recorder {
    stream: Stream,
    pairing: Pairing,
    child: Child,
    signals: Signals,
    facts: TraceFacts,
    origin_ns: u64,
    /// Minor and major faults of the child when it was first observed.
    before: (u64, u64),
    /// Minor and major faults from then until it executed the command: this program's own, and left out.
    starting: (u64, u64),
    _urgent: Urgent,
}

/// What there is to say when the command has ended.
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub facts: TraceFacts,
    /// How the command ended.
    pub how_ended: HowEnded,
    /// What the faults' object ids mean.
    pub objects: Vec<Object>,
    /// What the faults' thread indices mean.
    pub threads: Vec<Thread>,
    /// What the faults' stack ids mean.
    pub stacks: Vec<Stack>,
}

impl Recorded {
    /// What the faults' numbers mean.
    pub fn tables(&self) -> Tables<'_> {
        Tables { objects: &self.objects, threads: &self.threads, stacks: &self.stacks }
    }
}

/// Recording failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Page faults cannot be observed.
    #[error("page faults cannot be recorded")]
    Perf(#[from] PerfError),
    /// No process could be started for the command.
    #[error("no process could be started")]
    Start(#[source] io::Error),
    /// Waiting for the command failed.
    #[error("waiting for the command failed")]
    Wait(#[source] io::Error),
}

impl RecordError {
    /// What to change so that it works, as one line; `None` where nothing helps.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Perf(error) => error.remedy(),
            Self::Start(_) | Self::Wait(_) => None,
        }
    }
}

/// The highest ordinary priority for this process, until dropped. The command may keep all CPUs busy, and what is not
/// read in time is lost. Only root may raise a priority; for others nothing changes.
#[derive(Debug)]
struct Urgent {
    before: Option<i32>,
}

impl Urgent {
    fn begin() -> Self {
        let before = rustix::process::getpriority_process(None).ok();
        let raised = before.is_some() && rustix::process::setpriority_process(None, -20).is_ok();
        Self { before: before.filter(|_| raised) }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = rustix::process::setpriority_process(None, before);
        }
    }
}

impl Recorder {
    /// Starts `command`. Its exit, and whether it could be executed at all, show in [`Recorder::finish`].
    ///
    /// This process gets the highest ordinary priority, where it may (root), so that it can keep up. From now on
    /// signals that ask to end ([`signals::ENDING`]) do not end this process: they go to the command.
    ///
    /// # Panics
    /// When `command` is empty.
    pub fn start(command: &[OsString]) -> Result<Self, RecordError> {
        let waiting = spawn_waiting(command).map_err(RecordError::Start)?;
        let signals = Signals::take_over(&signals::ENDING).map_err(RecordError::Start)?;
        let stream = Stream::attach(waiting.pid(), &Probe::default())?;
        let before = fault_counts(waiting.pid()).map_err(RecordError::Start)?;
        let origin_ns = now_ns();
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let facts = TraceFacts {
            command: command.iter().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            started_unix_ns: started.as_nanos() as u64,
            system_calls_hidden: !stream.sees_system_calls(),
            ..TraceFacts::default()
        };
        // The command was started before and keeps its priority.
        let urgent = Urgent::begin();
        let child = waiting.go().map_err(RecordError::Start)?;
        let pairing = Pairing::new(origin_ns);
        Ok(Self {
            stream,
            pairing,
            child,
            signals,
            facts,
            origin_ns,
            before,
            starting: (0, 0),
            _urgent: urgent,
        })
    }

    /// Waits for more faults and appends them to `faults`, in the order they ended. False when the command has
    /// ended and these are the last.
    pub fn next_faults(&mut self, faults: &mut Vec<Fault>) -> Result<bool, RecordError> {
        let others = [self.child.as_fd(), self.signals.as_fd()];
        let ready = self.stream.wait(&others, None).map_err(RecordError::Wait)?;
        let ended = ready[0];
        while let Some(arrived) = self.signals.next().map_err(RecordError::Wait)? {
            if !arrived.by_kernel && !ended {
                // It can only fail because the child has just ended, which the next round notices.
                let _ = self.child.signal(arrived.signal);
            }
        }
        let Self { stream, pairing, child, facts, starting, .. } = self;
        let mut take = |event: Event| {
            if facts.execs == 0 && event.pid == child.pid() {
                match event.kind {
                    EventKind::FaultBegin { .. } => return,
                    EventKind::FaultEnd { disk, .. } => {
                        *(if disk { &mut starting.1 } else { &mut starting.0 }) += 1;
                        return;
                    }
                    _ => {}
                }
            }
            if matches!(event.kind, EventKind::Name { exec: true, .. }) {
                facts.execs += 1;
            }
            pairing.feed(&event, faults);
        };
        if ended {
            stream.finish().for_each(&mut take);
            pairing.finish(faults);
            facts.duration_ns = now_ns() - self.origin_ns;
        } else {
            stream.ripe().for_each(&mut take);
        }
        Ok(!ended)
    }

    /// What the faults' numbers mean, so far.
    pub fn tables(&self) -> Tables<'_> {
        self.pairing.tables()
    }

    /// Takes leave of the command, waiting for its end if [`Recorder::next_faults`] did not see it.
    pub fn finish(self) -> Result<Recorded, RecordError> {
        let mut facts = self.facts;
        let counts = self.stream.counts()?;
        let ended = self.child.wait().map_err(RecordError::Wait)?;
        let (minor, major) = self.starting;
        facts.lost = counts.lost;
        facts.counted = Some((counts.minor.saturating_sub(minor), counts.major.saturating_sub(major)));
        facts.rusage = Some((
            ended.minor_faults.saturating_sub(self.before.0 + minor),
            ended.major_faults.saturating_sub(self.before.1 + major),
        ));
        facts.survivors = self.pairing.spaces().processes() as u64;
        let (objects, threads, stacks) = self.pairing.into_tables();
        Ok(Recorded { facts, how_ended: ended.how, objects, threads, stacks })
    }
}

/// The minor and major faults of process `pid` until now (proc_pid_stat(5), fields 10 and 12).
fn fault_counts(pid: u32) -> io::Result<(u64, u64)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold anything, so fields are counted from its end: the next one is the third.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let mut fields = after_name.split_ascii_whitespace();
    let minor = fields.nth(10 - 3).and_then(|field| field.parse().ok());
    let major = fields.nth(1).and_then(|field| field.parse().ok());
    minor
        .zip(major)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not a stat line: {stat:?}")))
}
