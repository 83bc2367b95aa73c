//! The service, running: one thread waits for the kernel and hands on what it says, and never waits for anything else.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prepage_core::profile::gain::Turn;
use prepage_prefetch::clock::unix_s;
use prepage_prefetch::engine::{Engine, Work};
use prepage_prefetch::launch::random;
use prepage_prefetch::memory::Budget;
use prepage_profiles::identity::Skipped;
use prepage_profiles::{Layer, ProgramKey, StoreError};
use prepage_sys::exec_watch::Seen;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::rights::Rights;
use prepage_sys::signals::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use crate::awaited::{Awaited, Begun};
use crate::counters::Counters;
use crate::crew::{Crew, Priority};
use crate::idle::Idle;
use crate::learner::Learner;
use crate::library::{Known, Library};
use crate::looks::Looks;
use crate::names::Names;
use crate::notify;
use crate::process::{LeftAlone, Process, is_switched_off};
use crate::socket::Socket;
use crate::tree::{Kind, Tree};
use crate::watch::Watch;

/// The signals that end it, and the one that has it read profiles and configuration again.
const SIGNALS: [i32; 3] = [2, 15, HANG_UP];
const HANG_UP: i32 = 1;

/// How often is looked at what nobody tells of.
const TICK: Duration = Duration::from_secs(1);
/// Threads that look at starts; two of them may observe.
const LAUNCHERS: usize = 8;
const LAUNCHES_WAITING_MAX: usize = 512;
/// Threads of a device, those of one prefetch and half of another's, and the work that waits for them.
const READERS: usize = 64;
const READS_WAITING_MAX: usize = 256;
/// Devices with readers of their own; programs on others share.
const DEVICES_MAX: usize = 16;
/// A profile that was fetched or found in memory is left alone for this long.
const APART: Duration = Duration::from_secs(1);
/// What a program starts within this time is part of its start.
const START_WINDOW: Duration = Duration::from_secs(3);
/// What `prepage run` has started is its own for as long as it serves a start.
const PREFIX_WINDOW: Duration = Duration::from_secs(30);
/// A prefetch is past its start by then.
const FETCH_MAX: Duration = Duration::from_secs(30);
/// A prefetch that has not ended this long after it was cancelled hangs.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// A file system that does not answer is not asked again for this long.
const LEFT_ALONE: Duration = Duration::from_secs(600);
/// Processes that are looked at after execs were missed.
const RESCANNED_MAX: usize = 512;
/// A machine that was idle for this long is likely to stay so for a while.
const IDLE_AFTER: Duration = Duration::from_secs(30);
/// Starts that are told in the status.
const TOLD_MAX: usize = 64;
/// Where the launch log lies below the machine's profiles.
const LAUNCHES: &str = "launches";
/// Programs that are remembered as fetched.
const RECENT_MAX: usize = 1024;
/// Files without a profile that are remembered.
const STRANGERS_MAX: usize = 4096;

/// What loads programs is opened with each of them, and is none.
const LOADERS: [&str; 6] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux-armhf.so.3",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];

/// How it is to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Directories of profiles for all users, the machine's first, in place of the usual ones.
    pub layers: Option<Vec<PathBuf>>,
    /// Where it answers questions; nowhere where this is `None`.
    pub socket: Option<PathBuf>,
    /// Whether to learn what is started.
    pub learn: bool,
    /// Only programs below this directory are served, where there is one.
    pub below: Option<PathBuf>,
    /// Once the machine was idle for this long, programs that are to be expected are brought in; zero: whatever it does. `None`:
    /// never, and nothing is remembered of launches.
    pub idle_after: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            layers: None,
            socket: Some(crate::socket::USUAL.into()),
            learn: true,
            below: None,
            idle_after: Some(IDLE_AFTER),
        }
    }
}

/// Why the service cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// Execs cannot be watched.
    #[error("cannot watch what is executed on this machine")]
    Watch(#[source] io::Error),
    /// There is no place for the machine's profiles.
    #[error("the machine's profiles cannot be found")]
    Store(#[from] StoreError),
    /// It cannot be asked.
    #[error("cannot answer at {}", path.display())]
    Socket {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something else that it needs of the system.
    #[error("cannot wait for events")]
    Wait(#[from] io::Error),
}

/// A start, as the status tells it to who may know.
#[derive(Clone, Debug)]
pub struct Told {
    /// When, seconds since 1970.
    pub unix_s: u64,
    /// Whose.
    pub uid: u32,
    /// The program.
    pub program: String,
    /// How it was called.
    pub role: String,
    /// What was done.
    pub done: Done,
}

/// What was done for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Its profile was fetched.
    Fetched,
    /// Its pages were in memory.
    Warm,
    /// It was fetched for a moment before.
    Recent,
    /// What its other roles have in common was fetched.
    Guessed,
    /// Nothing is known of it.
    Unknown,
}

/// The service.
#[derive(Debug)]
pub struct Service {
    pub(crate) library: Arc<Library>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) learner: Arc<Learner>,
    pub(crate) watch: Watch,
    pub(crate) began: Instant,
    learns: bool,
    below: Option<PathBuf>,
    launchers: Crew,
    readers: Mutex<HashMap<u64, Crew>>,
    names: Names,
    pub(crate) idle: Option<Arc<Idle>>,
    tree: Tree,
    under_way: Mutex<Vec<UnderWay>>,
    looks: Arc<Looks>,
    /// What was fetched when.
    recent: Mutex<HashMap<(String, String), Instant>>,
    /// Whether what is looked at now and then is being looked at.
    is_looking: AtomicBool,
    /// For the next prefetch.
    budget: Mutex<Option<Budget>>,
    told: Mutex<VecDeque<Told>>,
    loaders: Mutex<HashSet<FileHandle>>,
    strangers: Mutex<HashSet<FileHandle>>,
}

/// A prefetch under way.
#[derive(Debug)]
struct UnderWay {
    engine: Engine,
    known: Arc<Known>,
    began: Instant,
}

impl Service {
    /// Runs until SIGTERM or SIGINT. To be called while the process has one thread.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run(options: &Options) -> Result<(), ServiceError> {
        let signals = Signals::take_over(&SIGNALS)?;
        allow_many_files();
        let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        let library = Arc::new(Library::open(options.layers.clone())?);
        let counters = Arc::new(Counters::default());
        let log = library.machine_stores().directory(Layer::Machine)?.join(LAUNCHES);
        let idle = |after| Arc::new(Idle::new(library.clone(), counters.clone(), log, after));
        let service = Arc::new(Self {
            watch: Watch::new().map_err(ServiceError::Watch)?,
            learner: Arc::new(Learner::new(library.clone(), counters.clone(), stop)),
            names: Names::new(library.clone(), counters.clone()),
            idle: options.idle_after.map(idle),
            library,
            counters,
            began: Instant::now(),
            learns: options.learn,
            below: options.below.clone(),
            launchers: Crew::new("launch", LAUNCHERS, LAUNCHES_WAITING_MAX),
            readers: Mutex::default(),
            tree: Tree::default(),
            under_way: Mutex::default(),
            looks: Arc::default(),
            recent: Mutex::default(),
            is_looking: AtomicBool::new(false),
            budget: Mutex::default(),
            told: Mutex::default(),
            loaders: Mutex::default(),
            strangers: Mutex::default(),
        });
        let _socket = match &options.socket {
            Some(path) => {
                let open = Socket::open(path, service.clone());
                Some(open.map_err(|source| ServiceError::Socket { path: path.clone(), source })?)
            }
            None => None,
        };
        if options.learn {
            let learner = service.learner.clone();
            service.launchers.lend(Priority::Start, Box::new(move || learner.get_ready()));
        }
        notify::say("READY=1");
        service.watch_until_told(&signals)?;
        notify::say("STOPPING=1");
        // Observations end with what they have seen, and write it.
        drop(stopper);
        service.wait_for_observations(Duration::from_secs(5));
        service.idle.iter().for_each(|idle| idle.write());
        Ok(())
    }

    /// The one thread that waits for the kernel.
    fn watch_until_told(self: &Arc<Self>, signals: &Signals) -> Result<(), ServiceError> {
        let mut awaited = Awaited::default();
        let watchdog = notify::watchdog().unwrap_or(TICK).min(TICK);
        let (mut ticked, mut drained) = (Instant::now(), boot_ticks());
        loop {
            let pause = awaited.pause().unwrap_or(watchdog).min(watchdog.saturating_sub(ticked.elapsed()));
            let mut ready = [
                PollFd::from_borrowed_fd(self.watch.execs(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.watch.mounts(), PollFlags::PRI),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut ready, Timespec::try_from(pause).ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            let [has_execs, has_mounts, has_signals] = ready.map(|fd| !fd.revents().is_empty());
            if has_execs {
                // Anything that is executed from now on is in the queue.
                let now = boot_ticks();
                let mut lost = false;
                while self.watch.read(&mut |seen| match seen {
                    Seen::Exec { pid, file } => self.see(pid, file, &mut awaited),
                    Seen::Lost => lost = true,
                })? {}
                if lost {
                    self.counters.lost.count();
                    let service = self.clone();
                    self.launchers.lend(Priority::Start, Box::new(move || service.rescan(drained)));
                }
                drained = now;
            }
            awaited.look(&mut |pid, file| self.launch(pid, file));
            if has_mounts {
                self.watch.look_at_mounts()?;
            }
            if has_signals {
                while let Some(arrived) = signals.next()? {
                    if arrived.signal != HANG_UP {
                        return Ok(());
                    }
                    let service = self.clone();
                    let reload = move || {
                        service.library.reload();
                        service.names.want();
                    };
                    self.launchers.lend(Priority::Start, Box::new(reload));
                }
            }
            if ticked.elapsed() >= watchdog {
                ticked = Instant::now();
                notify::say("WATCHDOG=1");
                self.tick();
            }
        }
    }

    /// What is looked at now and then. Whatever may wait for a disk is done elsewhere.
    fn tick(self: &Arc<Self>) {
        let is_quiet = self.look_at_prefetches();
        // Where the last look still waits, another would only take the place of starts.
        if self.is_looking.swap(true, Ordering::Relaxed) {
            return;
        }
        let service = self.clone();
        let look = move || {
            if service.library.refresh() {
                service.names.want();
            }
            *lock(&service.loaders) =
                LOADERS.iter().filter_map(|path| FileHandle::of(Path::new(path)).ok()).collect();
            // Made now, it is there at once for the next start.
            let budget = Budget::of_process();
            *lock(&service.budget) = Some(budget);
            if is_quiet {
                service.names.tick();
            }
            service.idle.iter().for_each(|idle| idle.tick(is_quiet));
            service.is_looking.store(false, Ordering::Relaxed);
        };
        if !self.launchers.lend(Priority::Guess, Box::new(look)) {
            self.is_looking.store(false, Ordering::Relaxed);
        }
    }

    /// A file was opened to be executed.
    fn see(self: &Arc<Self>, pid: u32, file: FileHandle, awaited: &mut Awaited) {
        self.counters.execs.count();
        if pid == 0 || pid == std::process::id() {
            return;
        }
        if lock(&self.loaders).contains(&file) {
            return awaited.hurry(pid);
        }
        let is_known = self.library.is_known(&file);
        if !is_known && lock(&self.strangers).contains(&file) && !self.may_observe() {
            return self.counters.unknown.count();
        }
        let begun = awaited.begin(pid, file.clone());
        match begun {
            Begun::Done => self.launch(pid, file),
            // A program with one role needs no arguments to be told apart: its pages are on their way before it is executed.
            Begun::Awaited if is_known && self.tree.of(pid, &[]) != Some(Kind::ByPrefix) => {
                let service = self.clone();
                self.launchers.lend(Priority::Start, Box::new(move || service.start_early(pid, &file)));
            }
            Begun::Awaited | Begun::Gone => {}
            Begun::Crowded => self.counters.crowded.count(),
        }
    }

    /// Process `pid` is about to execute the program in `file`: with the rights and the environment that it has itself, mostly.
    fn start_early(&self, pid: u32, file: &FileHandle) {
        let Ok(uid) = Rights::of_process(pid).map(|rights| rights.uid) else { return };
        let Some(known) = self.library.only_role(file, uid) else { return };
        let program = Path::new(&known.key.program);
        let name = program.file_name().unwrap_or_default();
        let is_wanted = self.below.as_ref().is_none_or(|below| program.starts_with(below))
            && self.library.is_wanted_by_machine(pid, name, program)
            && self.library.is_wanted_by_user(uid, pid, name, program)
            && is_switched_off(pid).is_ok_and(|is_off| !is_off);
        if is_wanted {
            self.fetch(&known, Priority::Start);
        }
    }

    /// Process `pid` runs the program in `file`.
    fn launch(self: &Arc<Self>, pid: u32, file: FileHandle) {
        // The user that the kernel shows the process's directory as; a process that is gone has none.
        let Ok(uid) = fs::metadata(format!("/proc/{pid}")).map(|process| process.uid()) else { return };
        self.idle.iter().for_each(|idle| idle.give_way());
        let Some(look) = self.looks.begin(uid) else { return self.counters.crowded.count() };
        let service = self.clone();
        let start = move || {
            let process = {
                let _slow = look.at_work();
                service.fetch_for(pid, Some(file))
            };
            process.inspect(|process| service.observe(process));
        };
        if !self.launchers.lend(Priority::Start, Box::new(start)) {
            self.counters.crowded.count();
        }
    }

    /// Chooses and fetches for a start. Returns it where it is to be observed.
    fn fetch_for(&self, pid: u32, file: Option<FileHandle>) -> Option<Process> {
        self.counters.starts.count();
        let process = match Process::of(pid, file.as_ref()) {
            Ok(process) => process,
            Err(why) => {
                match why {
                    LeftAlone::Prepage => self.tree.begin(pid, Kind::ByPrefix, PREFIX_WINDOW),
                    LeftAlone::Elsewhere => self.counters.elsewhere.count(),
                    LeftAlone::SwitchedOff => self.counters.left_alone.count(),
                    LeftAlone::Gone | LeftAlone::Wrapper => {}
                }
                return None;
            }
        };
        let key = &process.context.key;
        let name = key.role.split(' ').next().unwrap_or_default();
        let part_of = self.tree.of(pid, &process.parents);
        let is_wanted = part_of != Some(Kind::ByPrefix)
            && self.below.as_ref().is_none_or(|below| process.program().starts_with(below))
            && self.library.is_wanted_by_machine(pid, name.as_ref(), process.program());
        let found = if is_wanted { self.library.find(pid, key, &process.rights).ok() } else { None };
        let Some(found) = found else {
            self.counters.left_alone.count();
            return None;
        };
        if part_of.is_none() {
            self.idle.iter().for_each(|idle| idle.launched(&process));
        }
        let done = match &found {
            Some(known) => {
                if let Some(file) = file {
                    self.library.note(file, &key.program);
                }
                self.tree.begin(pid, Kind::Covered, START_WINDOW);
                self.fetch(known, Priority::Start)
            }
            None => {
                self.counters.unknown.count();
                self.note_stranger(file);
                if part_of.is_none() { self.fetch_guess(&key.program) } else { Done::Unknown }
            }
        };
        self.tell(&process, done);
        let is_due = match &found {
            Some(known) => known.has_changed() || known.past.observation_due(self.sample(known)),
            None => true,
        };
        let learns = || self.may_observe() && self.library.learns_of(process.context.uid);
        (part_of.is_none() && is_due && learns()).then_some(process)
    }

    /// A number to draw whether a known start is observed; none where it was learned from a moment ago.
    fn sample(&self, known: &Known) -> Option<u64> {
        const APART_S: u64 = 60;
        (unix_s().saturating_sub(known.past.history.updated_unix_s) > APART_S).then(random)
    }

    fn may_observe(&self) -> bool {
        self.learns && self.learner.may_observe()
    }

    fn observe(&self, process: &Process) {
        let Some(place) = self.learner.place() else { return };
        // What a shell or a build starts later is a start of its own.
        self.tree.begin(process.context.pid, Kind::Covered, START_WINDOW);
        place.learn(process);
    }

    /// Fetches what is known, unless it is in memory.
    fn fetch(&self, known: &Arc<Known>, priority: Priority) -> Done {
        if known.turn != Turn::Prefetch || known.is_left_alone() || self.is_recent(&known.key) {
            return Done::Recent;
        }
        let mut engine = Engine::new(known.planned.clone(), &known.figures);
        let budget = lock(&self.budget).take();
        engine.keep_within(budget.unwrap_or_else(Budget::of_process));
        {
            let Ok(_assumed) = known.rights.assume() else { return Done::Unknown };
            match known.look_at(|| engine.is_warm()) {
                Some(false) => {}
                Some(true) => {
                    self.counters.warm.count();
                    return Done::Warm;
                }
                None => {
                    self.counters.hung.count();
                    return Done::Unknown;
                }
            }
        }
        let crew = self.readers_of(known.device);
        engine.start_on(&mut |work: Work| {
            let rights = known.rights.clone();
            crew.lend(
                priority,
                Box::new(move || {
                    // Without these rights nothing is opened.
                    if let Ok(_assumed) = rights.assume() {
                        work();
                    }
                }),
            )
        });
        self.counters.fetched.count();
        let under_way = UnderWay { engine, known: known.clone(), began: Instant::now() };
        lock(&self.under_way).push(under_way);
        Done::Fetched
    }

    /// Whether a program was fetched in this role, by anybody's profile, a moment ago. It counts as fetched now.
    fn is_recent(&self, key: &ProgramKey) -> bool {
        let mut recent = lock(&self.recent);
        if recent.len() >= RECENT_MAX {
            recent.retain(|_, at| at.elapsed() < APART);
        }
        let now = Instant::now();
        let before = recent.insert((key.program.clone(), key.role.clone()), now);
        before.is_some_and(|before| now - before < APART)
    }

    fn fetch_guess(&self, program: &str) -> Done {
        let Some(mut guess) = self.library.guess(program) else { return Done::Unknown };
        guess.program = program.to_owned();
        let known = Arc::new(Known::new(&guess, Rights::of_everybody()));
        match self.fetch(&known, Priority::Guess) {
            Done::Fetched => {
                self.counters.guessed.count();
                Done::Guessed
            }
            done => done,
        }
    }

    fn readers_of(&self, device: u64) -> Crew {
        let mut readers = lock(&self.readers);
        let device = if readers.len() < DEVICES_MAX || readers.contains_key(&device) { device } else { 0 };
        readers.entry(device).or_insert_with(|| Crew::new("read", READERS, READS_WAITING_MAX)).clone()
    }

    /// Takes account of prefetches that have ended, and ends those that take too long. Returns whether there are none.
    fn look_at_prefetches(&self) -> bool {
        let mut under_way = lock(&self.under_way);
        under_way.retain(|UnderWay { engine, known, began }| {
            if !engine.wait_for(Duration::ZERO) {
                if began.elapsed() < FETCH_MAX {
                    return true;
                }
                engine.cancel();
                if began.elapsed() < FETCH_MAX + HANGS_AFTER {
                    return true;
                }
            }
            let outcome = engine.outcome();
            self.counters.fetched_bytes.add(outcome.requested_bytes);
            if outcome.skipped.iter().any(|(_, why)| *why == Skipped::Changed) {
                known.mark_as_changed();
            }
            if engine.is_at_work() {
                known.leave_alone(LEFT_ALONE);
                self.counters.hung.count();
            }
            false
        });
        under_way.is_empty()
    }

    /// Looks at the processes that were started since `since_ticks`: execs were missed.
    fn rescan(&self, since_ticks: u64) {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let is_new = |pid: &u32| {
            ProcessStat::of(*pid)
                .is_ok_and(|stat| stat.started_ticks + 1 >= since_ticks && stat.environment_end > 0)
        };
        for pid in pids.filter(|pid| *pid != std::process::id()).filter(is_new).take(RESCANNED_MAX) {
            self.counters.rescanned.count();
            let process = self.fetch_for(pid, None);
            process.inspect(|process| self.observe(process));
        }
    }

    fn note_stranger(&self, file: Option<FileHandle>) {
        let mut strangers = lock(&self.strangers);
        if strangers.len() >= STRANGERS_MAX {
            strangers.clear();
        }
        strangers.extend(file);
    }

    fn tell(&self, process: &Process, done: Done) {
        let mut told = lock(&self.told);
        if told.len() >= TOLD_MAX {
            told.pop_front();
        }
        let key = &process.context.key;
        told.push_back(Told {
            unix_s: unix_s(),
            uid: process.context.uid,
            program: key.program.clone(),
            role: key.role.clone(),
            done,
        });
    }

    /// The last starts of user `uid`; of all users for root.
    pub(crate) fn told_to(&self, uid: u32) -> Vec<Told> {
        lock(&self.told).iter().filter(|told| uid == 0 || told.uid == uid).cloned().collect()
    }

    /// Threads that launch and that read, and how many of all of them hang.
    pub(crate) fn threads(&self) -> (usize, usize, usize) {
        let (launching, mut hanging) = self.launchers.threads();
        let mut reading = 0;
        for crew in lock(&self.readers).values() {
            let (threads, hang) = crew.threads();
            (reading, hanging) = (reading + threads, hanging + hang);
        }
        (launching, reading, hanging)
    }

    fn wait_for_observations(&self, most: Duration) {
        let until = Instant::now() + most;
        while self.learner.is_at_work() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Clock ticks since the machine was started, as processes' starts are counted.
fn boot_ticks() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    let ns = now.tv_sec as u128 * 1_000_000_000 + now.tv_nsec as u128;
    (ns * u128::from(rustix::param::clock_ticks_per_second()) / 1_000_000_000) as u64
}

/// Prefetches keep the files of their profiles open.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
