//! Recording faults: of a command, of running processes, of the whole machine.

mod scope;
mod urgent;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use prepage_core::{ExactFacts, Fault, Object, Stack, Thread, TraceFacts};
use prepage_sys::clock::now_ns;
use prepage_sys::open_files;
use prepage_sys::perf::PerfError;
use prepage_sys::signals::{self, Signals};
use prepage_sys::spawn::{HowEnded, spawn_waiting};
use prepage_sys::tsc::Moment;

use crate::calibrate::ProbeCost;
use crate::event::{Event, EventKind};
use crate::filter::Filters;
use crate::frames::Frames;
use crate::page_cache::PageCacheWatch;
use crate::pairing::Pairing;
use crate::probe::{FaultEvents, PageCacheEvents, Probe};
use crate::stream::Stream;
use crate::tables::Tables;
use scope::{Left, Observing};
pub use scope::{LeftRunning, Scope};
use urgent::Urgent;

/// The rings are read at least this often: records that a killed recorder had not read are lost.
const ROUND: Duration = Duration::from_millis(500);
/// The same where each fault's frame is looked up: soon, or the page may be elsewhere.
const FRAMES_ROUND: Duration = Duration::from_millis(1);
/// How full a ring may be then: a few faults.
const FRAMES_WAKEUP_BYTES: u32 = 1 << 10;

/// Names of a file that are told with its pages.
const NAMES_MAX: usize = 2;

/// What to record in addition to every fault's time, cost and place.
#[derive(Clone, Debug, Default)]
pub struct RecordOptions {
    /// The calls that led to each fault.
    pub stacks: bool,
    /// The frame that held each page (root). Reads the rings far more often.
    pub frames: bool,
    /// What becomes of files' pages, as [`TraceFacts::page_cache`] (root).
    pub page_cache: bool,
    /// Which faults to keep.
    pub filters: Filters,
    /// What tells which touches of a command are not recorded exactly, for [`TraceFacts::exact`].
    pub exact: Option<ExactSource>,
    /// A command as its user called it, for [`TraceFacts::command`], where the scope's is another.
    pub called: Option<Vec<OsString>>,
    /// Ends the recording after this time.
    pub duration: Option<Duration>,
    /// What is to be done before a command begins.
    pub prepare: Option<Prepare>,
}

/// Called with the process id of a command that waits to begin, observed already. Returns environment variables to be set
/// for it ([`prepage_sys::exec::exec_with`]).
pub type Prepare = Callback<u32, Vec<(&'static str, OsString)>>;

/// What tells which touches are not recorded exactly; called with whether the recording has ended.
pub type ExactSource = Callback<bool, ExactFacts>;

/// What the recorder calls.
#[derive(Clone)]
pub struct Callback<A, R>(pub Arc<dyn Fn(A) -> R + Send + Sync>);

impl<A, R> std::fmt::Debug for Callback<A, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Callback")
    }
}

/// Records faults until the scope has ended, the time is over or a signal asks to end.
///
/// ```no_run
/// use prepage_trace::{Recorder, RecordOptions, Scope};
///
/// let scope = Scope::Command(vec!["gcc".into(), "--version".into()]);
/// let mut recorder = Recorder::start(&scope, &RecordOptions::default())?;
/// let mut faults = Vec::new();
/// while recorder.next_faults(&mut faults)? {
///     // take what is in `faults`, and clear it, to keep memory bounded
/// }
/// println!("{} faults, {} records lost", faults.len(), recorder.finish().facts.lost);
/// # Ok::<(), prepage_trace::RecordError>(())
/// ```
#[derive(Debug)]
pub struct Recorder {
    stream: Stream,
    pub(crate) pairing: Pairing,
    observing: Observing,
    signals: Signals,
    frames: Option<Frames>,
    page_cache: Option<PageCacheWatch>,
    exact: Option<ExactSource>,
    facts: TraceFacts,
    lost_by_second: BTreeMap<u64, u64>,
    /// Before the recording, to find out how many cycles a nanosecond takes.
    moment: Option<Moment>,
    origin_ns: u64,
    deadline: Option<Instant>,
    round: Duration,
    ended: bool,
    _urgent: Urgent,
}

/// The result of a recording, apart from its faults.
#[derive(Debug)]
pub struct Recorded {
    /// The run.
    pub facts: TraceFacts,
    /// How the command ended; `None` where there was none, or it runs on.
    pub how_ended: Option<HowEnded>,
    /// The command, when its recording ended before it did.
    pub left_running: Option<LeftRunning>,
    /// What the faults' object ids mean.
    pub objects: Vec<Object>,
    /// What the faults' thread indices mean.
    pub threads: Vec<Thread>,
    /// What the faults' stack ids mean.
    pub stacks: Vec<Stack>,
    /// What could not be found out at the end.
    pub failure: Option<RecordError>,
    /// Those that ask this process to end, held back until this is dropped: what was recorded is still to be saved.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "the starter writes no trace files"))]
    pub(crate) signals: Option<Signals>,
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
    /// A thread was named that is not the first of its process.
    #[error("{tid} is a thread of process {pid}")]
    Thread {
        /// What was named.
        tid: u32,
        /// The process.
        pid: u32,
    },
    /// This process could not be waited for.
    #[error("process {0} cannot be watched")]
    Watch(u32, #[source] io::Error),
    /// The kernel shows this user no frame numbers.
    #[error("this user may not see frame numbers")]
    Frames,
    /// Waiting for the command or for faults failed.
    #[error("waiting for faults failed")]
    Wait(#[source] io::Error),
    /// The file to record into could not be created.
    #[cfg(feature = "parquet")]
    #[error(transparent)]
    File(#[from] crate::parquet::TraceFileError),
}

impl RecordError {
    /// What to change so that it works, as one line; `None` where nothing helps.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::Perf(error) => error.remedy(),
            Self::Frames => Some("run as root"),
            Self::Thread { .. } => Some("-p with the process, all threads of which are recorded"),
            #[cfg(feature = "parquet")]
            Self::File(error) => Some(error.remedy()),
            Self::Start(_) | Self::Watch(..) | Self::Wait(_) => None,
        }
    }
}

impl Recorder {
    /// Begins to record `scope`. A command's exit, and whether it could be executed at all, show in
    /// [`Recorder::finish`].
    ///
    /// What observing a fault costs is measured first, on this process, but not with [`RecordOptions::page_cache`] or [`RecordOptions::frames`]. It gets the highest ordinary priority, where
    /// it may (root), so that it can keep up, and as many open files as it may have. From when all is observed, before a command begins, signals that
    /// ask to end ([`signals::endings`]) do not end this process: they go to the command, or end the recording where there is none.
    ///
    /// # Panics
    /// When the command or the list of processes is empty.
    pub fn start(scope: &Scope, options: &RecordOptions) -> Result<Self, RecordError> {
        Self::start_with(scope, options, || Ok(())).map(|(recorder, ())| recorder)
    }

    /// The same, and what `open` returns, where the faults will go: it is called when all is observed and a command has not begun. Until then a signal
    /// ends this process.
    pub(crate) fn start_with<T>(
        scope: &Scope,
        options: &RecordOptions,
        open: impl FnOnce() -> Result<T, RecordError>,
    ) -> Result<(Self, T), RecordError> {
        if options.frames && !Frames::can_be_seen() {
            return Err(RecordError::Frames);
        }
        let probe = probe(options);
        // First, because the command is to inherit this process's limits and priority as they were.
        let (command, waiting) = match scope {
            Scope::Command(command) => {
                (command.as_slice(), Some(spawn_waiting(command).map_err(RecordError::Start)?))
            }
            Scope::Processes(_) | Scope::System => (<&[OsString]>::default(), None),
        };
        // Each thread takes some open files for each CPU.
        open_files::allow_many();
        let moment = Moment::now();
        // What the tracepoints of the page cache and a recorder that wakes up every few faults add depends on the fault: a figure of others' would be wrong.
        let is_steady = !options.page_cache && !options.frames;
        let cost = is_steady.then(|| ProbeCost::measure(&probe)).transpose()?;
        // It opens file systems, which may take a while: nobody waits for that yet.
        let page_cache = options.page_cache.then(PageCacheWatch::new);
        let observing = Observing::begin(scope, waiting)?;
        let mut pairing = Pairing::new(0);
        pairing.filters = options.filters.clone();
        pairing.probe_cost_ns = cost.map_or(0, |cost| cost.inside_ns);
        let mut unread_maps = Vec::new();
        let stream = match scope {
            Scope::Command(_) => Stream::attach_to(&observing.target(), &probe)?,
            Scope::Processes(pids) => {
                let (mut stream, children) = Stream::attach_while_forking(pids, &probe)?;
                unread_maps = observing.seed(&children, &mut pairing, &mut stream);
                stream
            }
            Scope::System => Stream::attach_to_system(&probe, |stream| {
                unread_maps = observing.seed(&[], &mut pairing, stream);
            })?,
        };
        // Until now, with nothing to be saved, they end this process, even where it waits for a look at another's memory.
        let signals = Signals::take_over(&signals::endings()).map_err(RecordError::Start)?;
        let opened = open()?;
        // Not before: a page that was touched meanwhile may count as touched before its fault.
        let origin_ns = now_ns();
        pairing.origin_ns = origin_ns;
        let called = options.called.as_deref().unwrap_or(command);
        let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let facts = TraceFacts {
            command: called.iter().map(|arg| arg.to_string_lossy().into_owned()).collect(),
            pids: if let Scope::Processes(pids) = scope { pids.clone() } else { Vec::new() },
            unread_maps,
            system_wide: matches!(scope, Scope::System),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            started_unix_ns: started.as_nanos() as u64,
            system_calls_hidden: !stream.sees_system_calls(),
            probe_cost_ns: cost.map(|cost| cost.inside_ns),
            probe_total_ns: cost.map(|cost| cost.total_ns),
            filters: options.filters.texts().to_vec(),
            ended_early: true,
            ..TraceFacts::default()
        };
        let urgent = Urgent::begin();
        let observing = observing.go(options.prepare.as_ref()).map_err(RecordError::Start)?;
        let recorder = Self {
            stream,
            pairing,
            observing,
            signals,
            frames: options.frames.then(Frames::default),
            page_cache,
            exact: options.exact.clone(),
            facts,
            lost_by_second: BTreeMap::new(),
            moment,
            origin_ns,
            deadline: options.duration.map(|duration| Instant::now() + duration),
            round: if options.frames { FRAMES_ROUND } else { ROUND },
            ended: false,
            _urgent: urgent,
        };
        Ok((recorder, opened))
    }

    /// Waits for more faults and appends them to `faults`, in the order they ended. False when the recording is over
    /// and these are the last.
    ///
    /// # Errors
    /// When waiting fails. What was recorded until then is whole, and [`Recorder::finish`] completes it.
    pub fn next_faults(&mut self, faults: &mut Vec<Fault>) -> Result<bool, RecordError> {
        let before = faults.len();
        let mut ended = self.wait()?;
        ended |= self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        self.read(ended, faults);
        if let Some(frames) = &mut self.frames {
            frames.look(self.pairing.tables().threads, &mut faults[before..]);
        }
        Ok(!ended)
    }

    /// What the faults' numbers mean, so far.
    pub fn tables(&self) -> Tables<'_> {
        self.pairing.tables()
    }

    /// What is known of the run, so far.
    pub fn facts(&self) -> TraceFacts {
        let facts = self.pairing.noticed(self.facts.clone());
        TraceFacts {
            duration_ns: if self.ended { self.facts.duration_ns } else { now_ns() - self.origin_ns },
            lost: self.lost_by_second.values().sum(),
            lost_by_second: self.lost_by_second.iter().map(|(&second, &records)| (second, records)).collect(),
            outside_faults: self.stream.outside_faults(),
            borrowed_times: self.stream.borrowed_times(),
            unwatched_cpus: self.stream.unwatched_cpus(),
            tsc_hz: self.moment.and_then(|moment| moment.hz()),
            exact: self.exact.as_ref().map(|exact| exact.0(self.ended).of(self.tables().objects)),
            ..facts
        }
    }

    /// Ends the recording with the next faults.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "the starter writes no trace files"))]
    pub(crate) fn end(&mut self) {
        self.deadline = Some(Instant::now());
    }

    /// How long the recording took so far, and how many records were lost.
    pub fn progress(&self) -> (Duration, u64) {
        (Duration::from_nanos(now_ns() - self.origin_ns), self.lost_by_second.values().sum())
    }

    /// Ends the recording. A command that has ended is waited for; one that runs on is handed back.
    pub fn finish(mut self) -> Recorded {
        let mut facts = self.facts();
        let mut failure = None;
        match self.stream.counts_at_end() {
            Ok(counts) => {
                // The last losses are counted and no record names them.
                let untold = counts.lost.saturating_sub(facts.lost);
                if untold > 0 {
                    *self.lost_by_second.entry(facts.duration_ns / 1_000_000_000).or_default() += untold;
                    facts.lost_by_second = self.lost_by_second.into_iter().collect();
                }
                facts.lost = facts.lost.max(counts.lost);
                let (minor, major) = self.observing.starting;
                facts.counted =
                    Some((counts.minor.saturating_sub(minor), counts.major.saturating_sub(major)));
            }
            Err(error) => failure = Some(error.into()),
        }
        // No more faults are observed, nor paid for, while the command is waited for.
        drop(self.stream);
        let mut signals = Some(self.signals);
        let Left { how_ended, rusage, left_running } = match self.observing.leave(&mut signals) {
            Ok(left) => left,
            Err(error) => {
                failure = Some(RecordError::Wait(error));
                Left::default()
            }
        };
        facts.rusage = rusage;
        if facts.lost > 0 {
            self.pairing.forget_gone();
        }
        facts.survivors = self.pairing.spaces().processes() as u64;
        let (objects, threads, stacks) = self.pairing.into_tables(&mut facts);
        facts.page_cache = self.page_cache.map(|watch| {
            // Of several, those after the first are links, or files that the kernel does not tell apart here.
            let mut paths: HashMap<_, Vec<&str>> = HashMap::new();
            for object in &objects {
                object.inode.into_iter().for_each(|inode| paths.entry(inode).or_default().push(&object.path));
            }
            let mut named = |inode| paths.remove(&inode).into_iter().flatten().take(NAMES_MAX);
            watch.into_facts(|inode| named(inode).map(str::to_owned).collect())
        });
        Recorded { facts, how_ended, left_running, objects, threads, stacks, failure, signals }
    }

    /// Waits for something to happen. Returns whether the recording is over.
    fn wait(&mut self) -> Result<bool, RecordError> {
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let timeout = left.map_or(self.round, |left| left.min(self.round));
        let mut others = vec![self.signals.as_fd()];
        others.extend(self.observing.ends());
        let ready = self.stream.wait(&others, Some(timeout)).map_err(RecordError::Wait)?;
        let mut ended = self.observing.ended(&ready[1..]);
        self.facts.ended_early = !ended;
        while let Some(arrived) = self.signals.next().map_err(RecordError::Wait)? {
            match self.observing.child() {
                // The terminal's own keys reach the command without us. It can only fail because the child has just
                // ended, which the next round notices.
                Some(child) if !arrived.by_kernel && !ended => drop(child.signal(arrived.signal)),
                Some(_) => {}
                None => ended = true,
            }
        }
        Ok(ended)
    }

    fn read(&mut self, ended: bool, faults: &mut Vec<Fault>) {
        let Self { stream, pairing, observing, facts, frames, page_cache, lost_by_second, .. } = self;
        let origin_ns = self.origin_ns;
        // Of those that are forked later no fault is reported either.
        let looks_for_children = ended && !facts.pids.is_empty();
        let silent = if looks_for_children { pairing.silent_children() } else { Vec::new() };
        let mut take = |event: Event| {
            if facts.execs == 0 && observing.is_start(&event) {
                return;
            }
            if event.time_ns < origin_ns && event.kind.is_of_fault() {
                // Some of its events were not yet switched on.
                observing.leave_out(&event);
                return pairing.feed_early(&event);
            }
            match event.kind {
                EventKind::Name { exec: true, .. } => facts.execs += 1,
                EventKind::Lost { records } => {
                    let second = event.time_ns.saturating_sub(origin_ns) / 1_000_000_000;
                    *lost_by_second.entry(second).or_default() += records;
                }
                _ => {}
            }
            pairing.feed(&event, faults);
            if let Some(frames) = frames {
                frames.apply(&event);
            }
            if let Some(page_cache) = page_cache {
                page_cache.apply(&event, pairing);
            }
        };
        stream.look_at_cpus(ended);
        if ended {
            // Nothing more is to happen while the last is read.
            let end_ns = now_ns();
            let _ = stream.set_enabled(false);
            // A child that is forked meanwhile may go on reporting beginnings alone.
            let is_whole =
                |event: &Event| event.time_ns < end_ns || !matches!(event.kind, EventKind::FaultBegin { .. });
            stream.finish().filter(is_whole).for_each(&mut take);
            facts.unseen_children = pairing.still_silent(&silent);
            pairing.finish(faults);
            facts.duration_ns = end_ns - origin_ns;
            self.ended = true;
        } else {
            stream.ripe().for_each(&mut take);
            self.pairing.forget_gone_of_many();
        }
    }
}

fn probe(options: &RecordOptions) -> Probe {
    Probe {
        faults: FaultEvents::Costs,
        stacks: options.stacks,
        switches: options.page_cache,
        page_cache: if options.page_cache { PageCacheEvents::All } else { PageCacheEvents::None },
        wakeup_bytes: options.frames.then_some(FRAMES_WAKEUP_BYTES),
        ..Probe::default()
    }
}
