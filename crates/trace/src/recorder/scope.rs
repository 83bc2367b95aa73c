//! Who is recorded.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use prepage_sys::perf::PerfError;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::process_status::ProcessStatus;
use prepage_sys::processes::processes;
use prepage_sys::signals::Signals;
use prepage_sys::spawn::{Child, Ended, HowEnded, Waiting};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{Prepare, RecordError};
use crate::event::{Event, EventKind};
use crate::pairing::Pairing;
use crate::probe::Target;
use crate::stream::Stream;

/// How often the rings are read while the processes are looked at that run already: in so long they do not fill ([`ring_bytes`](crate::Probe::ring_bytes)).
const COLLECT_EVERY: Duration = Duration::from_millis(100);

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A command, and all that it starts.
    Command(Vec<OsString>),
    /// Processes that run already, and all that they start from now on.
    Processes(Vec<u32>),
    /// Every process of the machine but this one (root).
    System,
}

/// Faults, minor and major.
type MinorMajor = (u64, u64);

/// Who is being recorded, and how to know that it has ended.
#[derive(Debug)]
pub(super) struct Observing {
    who: Who,
    /// Minor and major faults that were observed and are left out: those of the command until it was executed, which are
    /// this program's own, and those of processes that ran already until all their events were switched on.
    pub(super) starting: MinorMajor,
}

#[derive(Debug)]
enum Who {
    /// The command's process exists and has not executed its program yet.
    Waiting {
        waiting: Waiting,
        before: Option<MinorMajor>,
    },
    Child {
        child: Child,
        /// Its faults when it was first observed; `None` where /proc cannot be read.
        before: Option<MinorMajor>,
        ended: bool,
    },
    Processes {
        processes: Vec<Process>,
    },
    System,
}

#[derive(Debug)]
struct Process {
    pid: u32,
    pidfd: OwnedFd,
    ended: bool,
}

/// A command that runs on after its recording has ended.
#[derive(Debug)]
pub struct LeftRunning {
    child: Child,
    signals: Signals,
}

impl Observing {
    pub(super) fn begin(scope: &Scope, waiting: Option<Waiting>) -> Result<Self, RecordError> {
        let who = match (scope, waiting) {
            (_, Some(waiting)) => {
                let before = fault_counts(waiting.pid()).ok();
                Who::Waiting { waiting, before }
            }
            (Scope::Processes(pids), None) => {
                assert!(!pids.is_empty(), "there is a process to record");
                let processes = pids.iter().map(|&pid| Process::open(pid)).collect::<Result<_, _>>()?;
                Who::Processes { processes }
            }
            (Scope::System | Scope::Command(_), None) => Who::System,
        };
        Ok(Self { who, starting: (0, 0) })
    }

    pub(super) fn target(&self) -> Target {
        match &self.who {
            Who::Waiting { waiting, .. } => Target::Processes(vec![waiting.pid()]),
            Who::Child { child, .. } => Target::Processes(vec![child.pid()]),
            Who::Processes { processes } => Target::Processes(processes.iter().map(|p| p.pid).collect()),
            Who::System => Target::System,
        }
    }

    /// Teaches `pairing` the processes that run already, and the `children` that they have forked since, while `stream` observes them, whose rings
    /// are not to overflow meanwhile. Returns those whose mappings could not be read.
    pub(super) fn seed(&self, children: &[u32], pairing: &mut Pairing, stream: &mut Stream) -> Vec<u32> {
        let pids: Vec<u32> = match &self.who {
            Who::Waiting { .. } | Who::Child { .. } => return Vec::new(),
            Who::Processes { processes } => {
                processes.iter().map(|process| process.pid).chain(children.iter().copied()).collect()
            }
            Who::System => processes().filter(|&pid| pid != std::process::id()).collect(),
        };
        let mut unread = Vec::new();
        let mut collected = Instant::now();
        for pid in pids {
            if collected.elapsed() >= COLLECT_EVERY {
                stream.collect();
                collected = Instant::now();
            }
            match pairing.seed(pid) {
                Ok(()) => {}
                // It has ended, and so needs none.
                Err(error) if is_gone(&error) => {}
                Err(_) => unread.push(pid),
            }
        }
        unread
    }

    /// Lets a command begin, prepared.
    pub(super) fn go(self, prepare: Option<&Prepare>) -> io::Result<Self> {
        let who = match self.who {
            Who::Waiting { waiting, before } => {
                let variables = prepare.map(|prepare| prepare.0(waiting.pid())).unwrap_or_default();
                Who::Child { child: waiting.go_with(&variables)?, before, ended: false }
            }
            who => who,
        };
        Ok(Self { who, ..self })
    }

    pub(super) fn child(&self) -> Option<&Child> {
        if let Who::Child { child, .. } = &self.who { Some(child) } else { None }
    }

    /// Readable when a process has ended: in the order that [`Observing::ended`] expects.
    pub(super) fn ends(&self) -> Vec<BorrowedFd<'_>> {
        match &self.who {
            Who::Child { child, .. } => vec![child.as_fd()],
            Who::Processes { processes } => processes
                .iter()
                .filter(|process| !process.ended)
                .map(|process| process.pidfd.as_fd())
                .collect(),
            Who::Waiting { .. } | Who::System => Vec::new(),
        }
    }

    /// Takes note of who has ended, and says whether all have.
    pub(super) fn ended(&mut self, ready: &[bool]) -> bool {
        match &mut self.who {
            Who::Child { ended, .. } => {
                *ended = ready[0];
                *ended
            }
            Who::Processes { processes } => {
                let running = processes.iter_mut().filter(|process| !process.ended);
                running.zip(ready).for_each(|(process, &ready)| process.ended = ready);
                processes.iter().all(|process| process.ended)
            }
            Who::Waiting { .. } | Who::System => false,
        }
    }

    /// Whether `event` is a fault that the command's process took before it executed anything.
    pub(super) fn is_start(&mut self, event: &Event) -> bool {
        let Who::Child { child, .. } = &self.who else { return false };
        let is_start = event.pid == child.pid() && event.kind.is_of_fault();
        if is_start {
            self.leave_out(event);
        }
        is_start
    }

    /// Takes the fault that `event` is of off what the kernel counted.
    pub(super) fn leave_out(&mut self, event: &Event) {
        if let EventKind::FaultEnd { disk, .. } = event.kind {
            *(if disk { &mut self.starting.1 } else { &mut self.starting.0 }) += 1;
        }
    }

    /// Ends the recording: waits for a command that has ended, and hands back one that runs on, which the `signals` that arrive from
    /// now on are for.
    pub(super) fn leave(self, signals: &mut Option<Signals>) -> io::Result<Left> {
        let (minor, major) = self.starting;
        match self.who {
            Who::Child { child, ended: false, .. } => {
                let signals = signals.take().expect("nobody took them before");
                Ok(Left { left_running: Some(LeftRunning { child, signals }), ..Left::default() })
            }
            Who::Child { child, before, .. } => {
                let Ended { how, minor_faults, major_faults } = child.wait()?;
                let since = |before: MinorMajor| {
                    (
                        minor_faults.saturating_sub(before.0 + minor),
                        major_faults.saturating_sub(before.1 + major),
                    )
                };
                Ok(Left { how_ended: Some(how), rusage: before.map(since), left_running: None })
            }
            Who::Waiting { .. } | Who::Processes { .. } | Who::System => Ok(Left::default()),
        }
    }
}

/// What a command leaves behind.
#[derive(Debug, Default)]
pub(super) struct Left {
    pub(super) how_ended: Option<HowEnded>,
    /// Minor and major faults by getrusage.
    pub(super) rusage: Option<MinorMajor>,
    /// It, when it has not ended.
    pub(super) left_running: Option<LeftRunning>,
}

impl LeftRunning {
    /// Waits for its end, and hands on to it the signals that ask this process to end.
    pub fn wait(self) -> io::Result<HowEnded> {
        self.signals.pass_on_until_end(&self.child)?;
        Ok(self.child.wait()?.how)
    }
}

impl Process {
    fn open(pid: u32) -> Result<Self, RecordError> {
        let gone = || RecordError::Perf(PerfError::NoProcess { pid });
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or_else(gone)?;
        match pidfd_open(raw, PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self { pid, pidfd, ended: false }),
            Err(rustix::io::Errno::SRCH) => Err(gone()),
            Err(error) => Err(match process_of(pid) {
                Some(process) if process != pid => RecordError::Thread { tid: pid, pid: process },
                _ => RecordError::Watch(pid, error.into()),
            }),
        }
    }
}

/// The process of thread `tid`, as /proc tells.
fn process_of(tid: u32) -> Option<u32> {
    ProcessStatus::of(tid).ok()?.field("Tgid")?.parse().ok()
}

fn is_gone(error: &io::Error) -> bool {
    let gone = rustix::io::Errno::SRCH.raw_os_error();
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(gone)
}

/// The minor and major faults of process `pid` until now.
fn fault_counts(pid: u32) -> io::Result<MinorMajor> {
    let stat = ProcessStat::of(pid)?;
    Ok((stat.minor_faults, stat.major_faults))
}
