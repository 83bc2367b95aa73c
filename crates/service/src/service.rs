//! The service, running: one thread waits for the kernel and hands on what it says, and never waits for anything else.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prepage_profiles::Layer;
use prepage_sys::exec_watch::Seen;
use prepage_sys::lookups::Lookups;
use prepage_sys::open_files;
use prepage_sys::scheduling;
use prepage_sys::signals::Signals;
use prepage_sys::sync::Anyway;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::accounts::Accounts;
use crate::awaited::Awaited;
use crate::confined::Confined;
use crate::counters::Counters;
use crate::crew::{Crew, HANGS_AFTER, Priority};
use crate::fair_crew::FairCrew;
use crate::fetches::Fetches;
use crate::files::Files;
use crate::gains::{FOLLOWED_MAX, Gains};
use crate::hot::{Forgotten, Hot, ToForget};
use crate::idle::Idle;
use crate::last_starts::LastStarts;
use crate::learner::{self, Learner};
use crate::library::Library;
use crate::names::Names;
use crate::notify;
use crate::options::{Options, ServiceError};
use crate::owner::Owner;
use crate::pace::Pace;
use crate::pages::remove_all;
use crate::process::{boot_ticks, started_since, starter_of};
use crate::socket::Socket;
use crate::spent::Spent;
use crate::streaks::Streaks;
use crate::tree::Tree;
use crate::watch::Watch;

mod execs;
mod starts;

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
    pub(crate) names: Names,
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
    spent: Spent,
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

impl Service {
    /// Runs until SIGTERM or SIGINT. To be called while the process has one thread.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn run(options: &Options) -> Result<(), ServiceError> {
        let signals = Signals::take_over(&SIGNALS)?;
        open_files::allow_many();
        prepage_sys::heap::share_one();
        if options.learn {
            learner::get_ready();
        }
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
            names: Names::new(library.clone(), counters.clone(), options.idle_after != Some(Duration::ZERO)),
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
            spent: Spent::default(),
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
        // An exec that it hears of goes on where it is; to look at it in its place would make the exec longer.
        let _ = scheduling::give_way();
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
        // Starts among them count as crowded. They hold nothing that takes long to drop.
        drop(self.looks.take_late(Instant::now()));
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
                service.learner.forget_refused();
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

    /// Looks at the processes that were started since `since_ticks`: execs were missed.
    fn rescan(self: &Arc<Self>, since_ticks: u64) {
        // What was started last is waited for still.
        let mut found = started_since(since_ticks);
        self.counters.crowded.add(found.len().saturating_sub(RESCANNED_MAX) as u64);
        found.truncate(RESCANNED_MAX);
        for pid in found {
            self.counters.rescanned.count();
            if let Some(uid) = starter_of(pid) {
                self.launch(pid, uid, None);
            }
        }
    }

    /// Threads that launch and that read, and how many of these and of all others hang.
    pub(crate) fn threads(&self) -> (usize, usize, usize) {
        let (launching, hanging) = self.looks.threads();
        // A start may be observed for longer than anything else takes.
        let hanging = hanging.saturating_sub(self.learner.long(HANGS_AFTER));
        let (reading, hang) = self.fetches.threads();
        let idle = self.idle.as_ref().map_or(0, |idle| idle.hanging());
        let others = self.watch.hanging() + self.names.hanging() + idle + self.upkeep.threads().1;
        (launching, reading, hanging + hang + others)
    }
}
