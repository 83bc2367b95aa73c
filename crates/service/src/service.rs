//! The service, running: one thread waits for the kernel and hands on what it says, and never waits for anything else.

use std::cell::LazyCell;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prepage_observe::elsewhere::is_elsewhere;
use prepage_prefetch::clock::unix_s;
use prepage_profiles::Layer;
use prepage_sys::exec_watch::Seen;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::lookups::Lookups;
use prepage_sys::open_files;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::random::random;
use prepage_sys::rights::Rights;
use prepage_sys::root::Root;
use prepage_sys::signals::Signals;
use prepage_sys::sync::Anyway;
use prepage_trace::now_ns;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::accounts::Accounts;
use crate::awaited::{Awaited, Begun};
use crate::confined::Confined;
use crate::counters::Counters;
use crate::crew::{Crew, HANGS_AFTER, Priority};
use crate::fair_crew::FairCrew;
use crate::fetches::{Done, Fetches, Start};
use crate::files::{Files, Resting};
use crate::gains::{FOLLOWED_MAX, Followed, Gains};
use crate::hot::{Forgotten, Hot, Needless, ToForget};
use crate::idle::Idle;
use crate::known::Known;
use crate::last_starts::{LastStart, LastStarts};
use crate::learner::Learner;
use crate::library::Library;
use crate::moment::Moment;
use crate::names::Names;
use crate::notify;
use crate::options::{Options, ServiceError};
use crate::owner::Owner;
use crate::pace::Pace;
use crate::pages::remove_all;
use crate::place::{is_of_container, path_of, root_of};
use crate::process::{
    Elsewhere, LeftAlone, Process, boot_ticks, is_switched_off, recent_parents, started_since, starter_of,
    user_of,
};
use crate::socket::Socket;
use crate::streaks::{Caller, Need, Streaks};
use crate::tree::{Below, Kind, Tree, WINDOW_MAX};
use crate::watch::Watch;

/// The signals that end it, and the one that has it read profiles and configuration again.
const SIGNALS: [i32; 3] = [2, 15, HANG_UP];
const HANG_UP: i32 = 1;

/// How often is looked at what nobody tells of.
const TICK: Duration = Duration::from_secs(1);
/// A look at the mounts that fails counts as having taken this long: the next one follows a second later.
const MOUNTS_FAIL: Duration = Duration::from_millis(50);
/// So many of these looks later it is looked again which files load programs: an upgrade replaces them.
const LOADERS_EVERY: u64 = 30;
/// Execs are looked at for this long at a time. Where more come than can be looked at, there is other work as well.
const LOOK_MAX: Duration = Duration::from_millis(5);
/// Threads that look at starts; two of them may observe, and some follow starts.
const LAUNCHERS: usize = 8 + FOLLOWED_MAX;
/// Work that waits for the thread that does what is done now and then.
const UPKEEP_WAITING_MAX: usize = 8;
/// What a program starts within this time is part of its start.
const START_WINDOW: Duration = Duration::from_secs(3);
/// What `prepage run` has started is its own for as long as it serves a start.
const PREFIX_WINDOW: Duration = WINDOW_MAX;
/// Processes that are looked at after execs were missed.
const RESCANNED_MAX: usize = 512;
/// Where the launch log lies below the machine's profiles.
const LAUNCHES: &str = "launches";
/// Where lies what fetching gains.
const GAINS: &str = "gains";
/// Where this machine's accounts are.
const PASSWD: &str = "/etc/passwd";

/// The service.
#[derive(Debug)]
pub struct Service {
    pub(crate) library: Arc<Library>,
    pub(crate) counters: Arc<Counters>,
    pub(crate) learner: Arc<Learner>,
    pub(crate) confined: Confined,
    pub(crate) watch: Watch,
    pub(crate) began: Instant,
    pub(crate) gains: Gains,
    learns: bool,
    below: Option<PathBuf>,
    /// What is done now and then: no start takes its thread.
    upkeep: Crew,
    /// What nobody has begun yet.
    due: Mutex<Due>,
    /// Used by one thread at a time.
    accounts: Mutex<Accounts>,
    fetches: Fetches,
    names: Names,
    pub(crate) idle: Option<Arc<Idle>>,
    tree: Tree,
    /// What looks at starts.
    looks: Arc<FairCrew>,
    /// Whether what is looked at now and then is being looked at.
    is_looking: AtomicBool,
    /// Looks so far.
    ticks: AtomicU64,
    pub(crate) last_starts: LastStarts,
    files: Files,
    streaks: Streaks,
    /// For [`Hot`], which is the watching thread's.
    to_forget: ToForget,
}

/// What is done by [`Service::upkeep`] once it was asked for, however busy that is. Protected by `Service::due`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Due {
    /// Profiles and configuration are to be read again.
    reload: bool,
    /// Execs were missed since this time ([`boot_ticks`]).
    missed_since: Option<u64>,
}

/// What is looked at now and then is being looked at, until this is dropped.
struct Looking(Arc<Service>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.is_looking.store(false, Ordering::Relaxed);
    }
}

/// The root of a process whose names are looked up below `root`, where that is not the machine's.
fn below_root(root: Option<&Root>) -> Below {
    Below::Root(root.map(Root::id))
}

/// What is left to do for a start once its pages are on their way.
#[derive(Debug)]
enum Next {
    /// It is to be observed.
    Observe(Process),
    /// It is followed, to see what fetching gains.
    Follow(Process, Followed),
    /// Nothing. What it has needed.
    Done(Need),
}

impl Service {
    /// Runs until SIGTERM or SIGINT. To be called while the process has one thread.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run(options: &Options) -> Result<(), ServiceError> {
        let signals = Signals::take_over(&SIGNALS)?;
        open_files::allow_many();
        // The programs that see names are made before the right to make any is given up.
        let lookups = options.learn.then(Lookups::new);
        // Threads have what the one that starts them has.
        let confined = Confined::begin();
        let (stop, stopper) = pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from)?;
        let library = Arc::new(Library::open(options.layers.clone())?);
        let counters = Arc::new(Counters::default());
        let stores = library.machine_stores();
        let [log, gains] =
            [LAUNCHES, GAINS].map(|name| stores.directory(Layer::Machine).map(|one| one.join(name)));
        let (log, gains) = (log?, gains?);
        let accounts = Accounts::read(stores.directory(Layer::Machine)?.to_owned());
        let watch = Watch::new().map_err(ServiceError::Watch)?;
        let cannot_answer = |path: &PathBuf, source| ServiceError::Socket { path: path.clone(), source };
        let owned = match &options.socket {
            Some(path) => Some((path, Owner::take(path).map_err(|error| cannot_answer(path, error))?)),
            None => None,
        };
        // A service that is refused leaves what the one that runs keeps.
        if options.idle_after.is_none() {
            remove_all(&log);
        }
        if !options.learn {
            remove_all(&gains);
        }
        let idle = |after| Arc::new(Idle::new(library.clone(), counters.clone(), log, after));
        let service = Arc::new(Self {
            confined,
            watch,
            learner: Arc::new(Learner::new(library.clone(), counters.clone(), stop, lookups)?),
            names: Names::new(library.clone(), counters.clone()),
            idle: options.idle_after.map(idle),
            fetches: Fetches::new(counters.clone()),
            gains: Gains::read(gains, counters.clone()),
            library,
            counters,
            began: Instant::now(),
            learns: options.learn,
            below: options.below.clone(),
            upkeep: Crew::new("upkeep", 1, UPKEEP_WAITING_MAX),
            due: Mutex::default(),
            accounts: Mutex::new(accounts),
            tree: Tree::default(),
            looks: Arc::new(FairCrew::new("launch", LAUNCHERS)),
            is_looking: AtomicBool::new(false),
            ticks: AtomicU64::new(0),
            last_starts: LastStarts::default(),
            files: Files::default(),
            streaks: Streaks::default(),
            to_forget: ToForget::default(),
        });
        let open = |(path, owner): (&PathBuf, _)| {
            Socket::open(path, owner, service.clone()).map_err(|error| cannot_answer(path, error))
        };
        let _socket = owned.map(open).transpose()?;
        if options.learn {
            let learner = service.learner.clone();
            service.upkeep.lend(Priority::Start, Box::new(move || learner.get_ready()));
        }
        notify::say("READY=1");
        service.watch_until_told(&signals)?;
        notify::say("STOPPING=1");
        // Observations end with what they have seen, and write it.
        drop(stopper);
        service.learner.wait(Duration::from_secs(5));
        service.idle.iter().for_each(|idle| idle.write());
        service.gains.write(true);
        Ok(())
    }

    /// The one thread that waits for the kernel.
    fn watch_until_told(self: &Arc<Self>, signals: &Signals) -> Result<(), ServiceError> {
        let mut awaited = Awaited::default();
        let watchdog = notify::watchdog();
        let every = watchdog.unwrap_or(TICK).min(TICK);
        let (mut ticked, mut drained) = (Instant::now(), boot_ticks());
        let mut told = ticked;
        let (mut mounts, mut hot) = (Pace::new(ticked), Hot::new(ticked));
        // Until loaders are known, each looks like a program that is to be looked at.
        self.tick();
        loop {
            let pause = awaited.pause().unwrap_or(every).min(every.saturating_sub(ticked.elapsed()));
            let pause = mounts.pause(Instant::now()).unwrap_or(pause).min(pause);
            let [execs, others] = self.watch.execs();
            let mut ready = [
                PollFd::from_borrowed_fd(execs, PollFlags::IN),
                PollFd::from_borrowed_fd(others, PollFlags::IN),
                PollFd::from_borrowed_fd(self.watch.mounts(), PollFlags::PRI),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut ready, Timespec::try_from(pause).ok().as_ref()) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
            let [has_execs, has_others, has_mounts, has_signals] = ready.map(|fd| !fd.revents().is_empty());
            match self.to_forget.take() {
                Forgotten::Files(files) => files.iter().for_each(|file| hot.forget(file)),
                Forgotten::All => {
                    hot = Hot::new(Instant::now());
                    self.watch.pass_over_none()?;
                }
            }
            if has_execs || has_others {
                // Anything that is executed from now on is in the queue.
                let now = boot_ticks();
                let (mut lost, mut hot_ones) = (false, Vec::new());
                let (mut has_more, until) = (true, Instant::now() + LOOK_MAX);
                while has_more && Instant::now() < until {
                    has_more = self.watch.read(&mut |seen| match seen {
                        Seen::Exec { pid, file } => {
                            if let Some(what) = self.see(pid, &file, &mut awaited)
                                && hot.see(&file, what)
                            {
                                hot_ones.push(file);
                            }
                        }
                        Seen::Lost => lost = true,
                    })?;
                }
                if lost {
                    self.counters.lost.count();
                    self.due().missed_since.get_or_insert(drained);
                    self.do_what_is_due();
                }
                // What a later event tells of was missed after this one was read.
                if lost || !has_more {
                    drained = now;
                }
                if !hot_ones.is_empty() {
                    let service = self.clone();
                    let pass_over = move || service.watch.pass_over(&hot_ones);
                    self.upkeep.lend(Priority::Guess, Box::new(pass_over));
                }
            }
            awaited.look(&mut |pid, uid, file, moment| self.launch(pid, uid, Some((file, moment))));
            if has_mounts {
                mounts.want();
            }
            // A machine may have thousands, and change them all the time.
            let began = Instant::now();
            if mounts.take(began) {
                // Where they cannot be read, for want of memory or of descriptors, they are read a little later.
                let is_done = self.watch.look_at_mounts().is_ok();
                let taken = if is_done { began.elapsed() } else { MOUNTS_FAIL };
                mounts.done(Instant::now(), taken);
                if !is_done {
                    mounts.want();
                }
            }
            if has_signals {
                while let Some(arrived) = signals.next()? {
                    if arrived.signal != HANG_UP {
                        return Ok(());
                    }
                    self.due().reload = true;
                    self.do_what_is_due();
                }
            }
            if ticked.elapsed() >= every {
                ticked = Instant::now();
                // Each time that systemd is told, it wakes up and looks who has told it.
                if watchdog.is_some_and(|watchdog| told.elapsed() + every > watchdog) {
                    told = ticked;
                    notify::say("WATCHDOG=1");
                }
                if hot.tick(ticked) {
                    self.watch.pass_over_none()?;
                }
                self.tick();
            }
        }
    }

    /// What is looked at now and then. Whatever may wait for a disk is done elsewhere.
    fn tick(self: &Arc<Self>) {
        let (is_quiet, users) = self.fetches.look();
        // Where a user's files cannot be closed, none of the user's starts are looked at.
        for uid in users {
            let service = self.clone();
            self.looks.lend(uid, Priority::Start, Box::new(move |_look| service.fetches.close(uid)));
        }
        self.counters.crowded.add(self.looks.drop_late() as u64);
        self.do_what_is_due();
        // Where the last look still waits, another would only take the place of starts.
        if self.is_looking.swap(true, Ordering::Relaxed) {
            return;
        }
        // Dropped, done or not, it is over.
        let looking = Looking(self.clone());
        let look = move || {
            let service = &looking.0;
            if service.library.refresh() {
                service.names.want();
            }
            if service.ticks.fetch_add(1, Ordering::Relaxed).is_multiple_of(LOADERS_EVERY) {
                service.files.look_for_loaders();
            }
            service.fetches.get_ready();
            if is_quiet {
                service.names.tick();
            }
            service.idle.iter().for_each(|idle| idle.tick(is_quiet));
            service.look_at_accounts();
            service.learner.rest();
            service.gains.write(false);
        };
        self.upkeep.lend(Priority::Guess, Box::new(look));
    }

    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().anyway()
    }

    /// Has it done as soon as a thread can. Where too much waits already, the next tick asks again.
    fn do_what_is_due(self: &Arc<Self>) {
        if *self.due() == Due::default() {
            return;
        }
        let service = self.clone();
        let catch_up = move || {
            let Due { reload, missed_since } = std::mem::take(&mut *service.due());
            if reload {
                service.library.reload();
                service.files.end_rests();
                service.streaks.forget();
                service.to_forget.note_all();
                service.names.want();
            }
            missed_since.into_iter().for_each(|since_ticks| service.rescan(since_ticks));
        };
        self.upkeep.lend(Priority::Start, Box::new(catch_up));
    }

    /// Removes what is kept of users whose accounts were removed.
    fn look_at_accounts(&self) {
        let mut accounts = self.accounts.lock().anyway();
        let gone = accounts.look(Path::new(PASSWD));
        for uid in &gone {
            self.idle.iter().for_each(|idle| idle.forget(*uid));
            self.gains.forget(*uid);
            self.last_starts.forget(*uid);
        }
        let is_forgetting =
            || self.gains.is_forgetting() || self.idle.iter().any(|idle| idle.is_forgetting());
        if is_forgetting() {
            self.idle.iter().for_each(|idle| idle.write());
            self.gains.write(true);
        }
        // Both are tried again with the next look; until nothing is left, the next service has to notice too.
        if !is_forgetting() {
            let _ = accounts.write();
        }
    }

    /// A file was opened to be executed. Returns what it is, where the same need not be seen for a while.
    fn see(self: &Arc<Self>, pid: u32, file: &FileHandle, awaited: &mut Awaited) -> Option<Needless> {
        self.counters.execs.count();
        if pid == 0 {
            return None;
        }
        if self.files.is_loader(file) {
            return (!awaited.hurry(pid)).then_some(Needless::Loader);
        }
        let is_known = self.library.is_known(file);
        // One that is gone needs nothing any more.
        let Some(uid) = user_of(pid) else { return (!is_known).then_some(Needless::Always) };
        let is_elsewhere = || is_elsewhere(pid) == Some(true);
        if let Some(resting) = self.files.is_at_rest(file, uid, is_elsewhere) {
            if self.tree.of(pid, Below::AnyRoot, &[]).is_none() {
                self.tree.begin(pid, Below::AnyRoot, Kind::Covered, START_WINDOW);
            }
            self.counters.passed.count();
            return match resting {
                Resting::AllTheTime => Some(Needless::Always),
                Resting::ForNow => Some(Needless::ForNow),
                Resting::ElsewhereForNow => None,
            };
        }
        let is_stranger = !is_known && self.files.is_stranger(file);
        if is_stranger && !self.may_observe() {
            self.counters.unknown.count();
            return Some(Needless::Always);
        }
        // Another caller's starts of the same file may need something: the kernel is not to pass over it.
        if let Some(covers) =
            Caller::of_user(uid, pid).and_then(|caller| self.streaks.passes_over(file, caller))
        {
            if covers && self.tree.of(pid, Below::AnyRoot, &[]).is_none() {
                self.tree.begin(pid, Below::AnyRoot, Kind::Covered, START_WINDOW);
            }
            self.counters.passed.count();
            return None;
        }
        if is_stranger {
            let parent = ProcessStat::of(pid).map_or(0, |stat| stat.parent);
            if self.tree.of(pid, Below::AnyRoot, &[parent]).is_some() {
                self.counters.passed.count();
                return None;
            }
        }
        let begun = self.await_start(pid, file, is_known, awaited);
        // One that is over before it is looked at needs nothing either. Of a known program that says nothing: its next start may.
        (begun == Begun::Gone && !is_known).then_some(Needless::Always)
    }

    /// Process `pid` is about to execute the program in `file`, for which something may be to be done.
    fn await_start(
        self: &Arc<Self>,
        pid: u32,
        file: &FileHandle,
        is_known: bool,
        awaited: &mut Awaited,
    ) -> Begun {
        let moment = Moment::before_exec_of(pid);
        let starter = LazyCell::new(|| starter_of(pid));
        let begun = awaited.begin(pid, moment, || *starter, file.clone());
        match begun {
            Begun::Done => {
                if let Some(uid) = *starter {
                    self.launch(pid, uid, Some((file.clone(), Moment::after_exec())));
                }
            }
            // A program with one role needs no arguments to be told apart: its pages are on their way before it is executed.
            Begun::Awaited
                if is_known
                    && self.library.may_have_one_role(file)
                    && self.tree.of(pid, Below::AnyRoot, &[]) != Some(Kind::ByPrefix) =>
            {
                if let Some(uid) = *starter {
                    let (service, file) = (self.clone(), file.clone());
                    let start = move |_look| service.start_early(pid, uid, &file, moment);
                    self.looks.lend(uid, Priority::Start, Box::new(start));
                }
            }
            Begun::Awaited if (!is_known || self.may_be_owed(file)) && self.may_observe() => {
                let service = self.clone();
                let expect = move || {
                    let stat = ProcessStat::of(pid);
                    let below = Below::Root(root_of(pid));
                    if service.tree.of(pid, below, &recent_parents(stat.as_ref().ok())).is_none() {
                        service.learner.expect(pid, moment);
                    }
                };
                if let Some(uid) = *starter {
                    self.looks.lend(uid, Priority::Start, Box::new(move |_look| expect()));
                }
            }
            Begun::Awaited | Begun::Gone => {}
            Begun::Crowded => self.counters.crowded.count(),
        }
        begun
    }

    /// Whether a start of the program in `file` may be owed another observation: in which role it starts is not known yet.
    fn may_be_owed(&self, file: &FileHandle) -> bool {
        self.learner.owes_any()
            && self.library.program_in(file).is_some_and(|program| self.learner.owes_some_of(&program))
    }

    /// At this `moment` process `pid`, on the account of user `starter`, was about to execute the program in `file`: with the rights that it has
    /// itself, mostly. What environment it gives to the program, and under what name it calls it, is known afterwards: [`Self::fetch_for`]
    /// stops what was not wanted.
    fn start_early(&self, pid: u32, starter: u32, file: &FileHandle, moment: Moment) {
        let Ok(uid) = Rights::of_process(pid).map(|rights| rights.uid) else { return };
        let Some(known) = self.library.only_role(file, uid) else { return };
        let program = path_of(&known.key.program);
        // A container's files are those below its root, and its users none of this machine.
        let is_in_container = is_of_container(&known.key.program);
        let root = if is_in_container { Root::of_process(pid).ok().map(Arc::new) } else { None };
        if root.is_some() != is_in_container || root.as_ref().is_some_and(|root| root.is_own()) {
            return;
        }
        let called = known.key.role.split(' ').next().unwrap_or_default();
        let is_wanted = self.below.as_ref().is_none_or(|below| program.starts_with(below))
            && self.library.is_wanted_by_machine(pid, called.as_ref(), program)
            && (is_in_container || self.library.is_wanted_by_user(uid, pid, called.as_ref(), program))
            && is_switched_off(pid).is_ok_and(|is_off| !is_off);
        if is_wanted {
            let may_follow = !is_in_container && self.may_follow(&known, uid, starter);
            let parents = || recent_parents(ProcessStat::of(pid).as_ref().ok());
            let (at, root, below) = (moment.at, root.as_ref(), below_root(root.as_deref()));
            let start = Start { uid, pid, seen_at: at, executed_at: at, parents: &parents, root, starter };
            let done = self.fetch_known(&known, &start, may_follow, &|| self.tree.of(pid, below, &parents()));
            let account = self.fetches.account_of(pid, &known.key);
            self.last_starts.note(LastStart::new(uid, pid, moment.at, &known.key, done, account).early());
            if self.learner.owes(&known.key) && self.may_observe() {
                self.learner.expect(pid, moment);
            }
        }
    }

    /// Process `pid`, on the account of user `uid`, runs a program: that in `file`, where that is said, and when it was told to be executed.
    fn launch(self: &Arc<Self>, pid: u32, uid: u32, file: Option<(FileHandle, Moment)>) {
        self.idle.iter().for_each(|idle| idle.give_way());
        let service = self.clone();
        // A process that is over by the time that it is looked at has needed nothing either.
        let whose = file.as_ref().and_then(|(file, _)| Some((file.clone(), Caller::of(pid)?)));
        let start = move |look| {
            let next = service.fetch_for(pid, file);
            drop(look);
            if !matches!(next, Next::Observe(_)) {
                drop(service.learner.take_expected(pid));
            }
            if let Some((file, caller)) = whose {
                let need = if let Next::Done(need) = &next { *need } else { Need::Something };
                service.streaks.note(file, caller, need);
            }
            match next {
                Next::Follow(process, start) => {
                    service.learner.spend(service.gains.follow(&process, &start));
                }
                Next::Observe(process) => service.observe(&process),
                Next::Done(_) => {}
            }
        };
        if !self.looks.lend(uid, Priority::Start, Box::new(start)) {
            self.counters.crowded.count();
        }
    }

    /// Whether it is to be kept how a cold start of `known` fares that is begun by user `uid` on the account of `starter`. One that is owed
    /// an observation is observed.
    fn may_follow(&self, known: &Known, uid: u32, starter: u32) -> bool {
        self.measures(uid)
            && uid == starter
            && !known.has_changed()
            && !self.learner.owes(&known.key)
            && !known.past.observation_due(None)
            && self.gains.has_room(uid)
            && self.learner.has_time()
    }

    /// Whether starts of user `uid` are held out and kept, as far as is known.
    pub(crate) fn measures(&self, uid: u32) -> bool {
        self.learns && self.library.measures(uid)
    }

    /// Fetches what is known for a start. Only one that `may_be_held_out` is, and what it starts with it; `part_of` says what is done
    /// for the start that it belongs to, where that has to be known.
    fn fetch_known(
        &self,
        known: &Arc<Known>,
        start: &Start<'_>,
        may_be_held_out: bool,
        part_of: &dyn Fn() -> Option<Kind>,
    ) -> Done {
        let decided = self.gains.turn(start.uid, known, false);
        let mut turn = if may_be_held_out { self.gains.turn(start.uid, known, true) } else { decided };
        if turn != decided || self.tree.holds_out() {
            match part_of() {
                Some(Kind::HeldOut) => return Done::LeftAlone,
                // Nothing is kept of it: nothing is tried out.
                Some(_) => turn = decided,
                None => {}
            }
        }
        self.fetches.fetch(known, start, turn)
    }

    /// Chooses and fetches for a start that was told when the moment beside `file` says.
    fn fetch_for(&self, pid: u32, file: Option<(FileHandle, Moment)>) -> Next {
        self.counters.starts.count();
        let now = Instant::now();
        let (file, moment) = file.unzip();
        let executed_at = moment.map_or(now, |moment| moment.at);
        let mut process = match Process::of(pid, file.as_ref()) {
            Ok(process) => process,
            Err(why) => {
                let mut need = Need::Something;
                match why {
                    LeftAlone::Prepage => {
                        self.tree.begin(pid, Below::AnyRoot, Kind::ByPrefix, PREFIX_WINDOW);
                    }
                    LeftAlone::Elsewhere(why) => {
                        self.counters.elsewhere.count();
                        match why {
                            Elsewhere::OnAnotherMount => &self.counters.elsewhere_mount,
                            Elsewhere::Hidden => &self.counters.elsewhere_hidden,
                            Elsewhere::NotTold => &self.counters.elsewhere_missed,
                        }
                        .count();
                        if let (Some(file), Some(uid)) = (file, user_of(pid)) {
                            let is_known = self.library.is_known(&file);
                            self.files.begin_rest_elsewhere(file, uid, is_known);
                        }
                    }
                    LeftAlone::SwitchedOff => {
                        self.fetches.cancel(pid, executed_at);
                        self.last_starts.take_back(pid);
                        self.counters.left_alone.count();
                        need = Need::Nothing { covers: false };
                    }
                    LeftAlone::Unanswered => self.counters.hung.count(),
                    LeftAlone::Gone => need = Need::Nothing { covers: false },
                    LeftAlone::Wrapper => {}
                }
                return Next::Done(need);
            }
        };
        if let Some(moment) = moment {
            process.context.began_ns = now_ns().saturating_sub(moment.at.elapsed().as_nanos() as u64);
            process.moment = moment;
        }
        let (key, uid, root) = (&process.context.key, process.context.uid, process.root.clone());
        if root.is_some() {
            self.counters.in_containers.count();
        }
        let name = key.role.split(' ').next().unwrap_or_default();
        let below_this = below_root(root.as_deref());
        let part_of = self.tree.of(pid, below_this, &process.parents);
        let is_served = self.below.as_ref().is_none_or(|below| process.program().starts_with(below));
        let is_wanted = part_of != Some(Kind::ByPrefix)
            && is_served
            && self.library.is_wanted_by_machine(pid, name.as_ref(), process.program());
        let found = if is_wanted { self.library.find(&process).ok() } else { None };
        // What the user wants is known from here on. Nothing is remembered of what containers start: their users are none of this machine.
        let predicts = root.is_none() && self.library.predicts(uid);
        if !predicts && root.is_none() {
            self.idle.iter().for_each(|idle| idle.forget(uid));
        }
        if root.is_none() && !self.measures(uid) {
            self.gains.forget(uid);
        }
        let Some(found) = found else {
            self.fetches.cancel(pid, executed_at);
            self.last_starts.take_back(pid);
            self.counters.left_alone.count();
            // What it starts is part of its start, as it is where nothing is left alone.
            let covers = is_served && part_of.is_none();
            if covers {
                self.tree.begin(pid, below_this, Kind::Covered, START_WINDOW);
            }
            if let Some(file) = file.filter(|_| !self.library.may_be_wanted(uid, process.program())) {
                self.files.begin_rest(file, uid, true);
            }
            return Next::Done(Need::Nothing { covers });
        };
        // What a user starts by ids without number says nothing of a user, and would leave no room for others; nor would what never comes again.
        let is_of_user = process.starter == uid;
        let may_come_again = found.is_some() || self.learner.may_come_again(uid, key);
        let parents = || process.parents.clone();
        let (starter, root) = (process.starter, root.as_ref());
        let start = Start { uid, pid, seen_at: now, executed_at, parents: &parents, root, starter };
        let mut may_follow = false;
        let done = match &found {
            Some(known) => {
                if let Some(file) = &file {
                    self.library.note(file.clone(), &key.program);
                }
                self.tree.begin(pid, below_this, Kind::Covered, START_WINDOW);
                may_follow = part_of.is_none()
                    && root.is_none()
                    && moment.is_some()
                    && self.may_follow(known, uid, process.starter);
                let done = self.fetch_known(known, &start, may_follow, &|| part_of);
                if done == Done::HeldOut {
                    self.tree.begin(pid, below_this, Kind::HeldOut, START_WINDOW);
                }
                done
            }
            None => {
                self.counters.unknown.count();
                file.iter().for_each(|file| self.files.note_stranger(file.clone()));
                if part_of.is_none() {
                    let guess = || self.library.guess(&key.program);
                    self.fetches.fetch_guess(&key.program, guess, &start)
                } else {
                    Done::Unknown
                }
            }
        };
        if part_of.is_none() && predicts && is_of_user && may_come_again {
            self.idle.iter().for_each(|idle| idle.launched(&process));
        }
        let account = self.fetches.account_of(pid, key);
        self.last_starts.note(LastStart::new(uid, pid, executed_at, key, done, account.clone()));
        let is_due = match &found {
            Some(_) if done == Done::HeldOut => false,
            Some(known) => {
                known.has_changed()
                    || self.learner.owes(key)
                    || known.past.observation_due(self.sample(known))
            }
            None => may_come_again,
        };
        let is_known = found.as_ref().is_some_and(|known| !known.has_changed());
        let is_affordable = self.may_observe() && (!is_known || self.learner.has_plenty());
        let learns = root.is_some() || self.library.learns_of(uid);
        let is_observed = part_of.is_none() && is_due && is_affordable && learns;
        if let Some(file) = &file
            && !matches!(done, Done::Warm | Done::Recent | Done::Unknown)
        {
            self.to_forget.note(file.clone());
        }
        if let (Some(_), Some(file), false) = (&found, file, is_observed)
            && self.library.only_role(&file, process.rights.uid).is_some()
        {
            // Once there is time to observe it, that is soon seen. Where nothing is learned there never is.
            let is_owed = is_due && self.learns;
            self.files.begin_rest(file, process.rights.uid, done == Done::Warm && !is_owed);
        }
        if is_observed {
            return Next::Observe(process);
        }
        let fetched = match done {
            Done::Fetched => account.map(|account| Some(account.amounts.clone())),
            Done::HeldOut | Done::Off => Some(None),
            Done::Warm | Done::Recent | Done::Unknown => {
                return Next::Done(Need::Nothing { covers: found.is_some() });
            }
            Done::LeftAlone | Done::Guessed => None,
        };
        match (found, fetched.filter(|_| may_follow)) {
            (Some(known), Some(fetched)) => Next::Follow(process, Followed { known, fetched }),
            _ => Next::Done(Need::Something),
        }
    }

    /// A number to draw whether a known start is observed; none where it was learned from a moment ago.
    fn sample(&self, known: &Known) -> Option<u64> {
        (!known.was_just_learned(unix_s())).then(random)
    }

    fn may_observe(&self) -> bool {
        self.learns && self.learner.may_observe()
    }

    fn observe(&self, process: &Process) {
        let pid = process.context.pid;
        let Some(permit) = self.learner.permit(process.starter) else { return };
        // What a shell or a build starts later is a start of its own.
        self.tree.begin(pid, below_root(process.root.as_deref()), Kind::Covered, START_WINDOW);
        permit.learn(process, &self.watch);
    }

    /// Looks at the processes that were started since `since_ticks`: execs were missed.
    fn rescan(self: &Arc<Self>, since_ticks: u64) {
        for pid in started_since(since_ticks).into_iter().take(RESCANNED_MAX) {
            self.counters.rescanned.count();
            if let Some(uid) = starter_of(pid) {
                self.launch(pid, uid, None);
            }
        }
    }

    /// Threads that launch and that read, and how many of all of them hang.
    pub(crate) fn threads(&self) -> (usize, usize, usize) {
        let (launching, hanging) = self.looks.threads();
        // A start may be observed for longer than anything else takes.
        let hanging = hanging.saturating_sub(self.learner.long(HANGS_AFTER));
        let (reading, hang) = self.fetches.threads();
        (launching, reading, hanging + hang)
    }
}
