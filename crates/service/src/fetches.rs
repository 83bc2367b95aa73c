//! The prefetches under way: which profile was fetched when, on whose threads, and which of them hang.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use prepage_core::profile::Profile;
use prepage_core::profile::gain::Turn;
use prepage_prefetch::engine::{Engine, Residency, Work};
use prepage_prefetch::memory::Budget;
use prepage_profiles::ProgramKey;
use prepage_profiles::identity::{Skipped, open_to_read};
use prepage_sys::cgroup::Memberships;
use prepage_sys::processes::living_thread;
use prepage_sys::rights::Rights;
use prepage_sys::root::Root;
use prepage_sys::sync::Anyway;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::account::Account;
use crate::askers::{Askers, Unanswered};
use crate::beyond::beyond;
use crate::counters::Counters;
use crate::crew::{Crew, Priority};
use crate::fair_crew::{self, FairCrew};
use crate::holdings::{Holding, Holdings};
use crate::known::Known;
use crate::roots::Roots;

/// Threads of a device, those of one prefetch and half of another's, and the work that waits for them.
const READERS: usize = 64;
const READS_WAITING_MAX: usize = 256;
/// Of them, those that one user's own profiles may have: what they name is the user's choice, and may never answer. One prefetch lends no more.
const READERS_OF_A_USER: usize = 40;
/// Devices with readers of their own; programs on others share.
const DEVICES_MAX: usize = 16;
/// A profile that was fetched or found in memory is left alone for this long.
pub(crate) const APART: Duration = Duration::from_secs(1);
/// A prefetch is past its start by then.
const FETCH_MAX: Duration = Duration::from_secs(30);
/// A prefetch that has not ended this long after it was cancelled hangs.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// A look whether files are in memory that takes longer than this hangs.
const LOOK_HANGS_AFTER: Duration = Duration::from_secs(3);
/// A name below a container's root that takes longer to look up is not in memory: the start is a cold one.
const COLD_NAME: Duration = Duration::from_micros(500);
/// A file system that does not answer is not asked again for this long.
const LEFT_ALONE: Duration = Duration::from_secs(600);
/// The control groups of a budget, and how many tasks they leave, may be so old.
const BUDGET_AGE_MAX: Duration = Duration::from_secs(4);
/// Another one is made this often, so that no prefetch has to.
const BUDGET_EVERY: Duration = Duration::from_secs(2);
/// A service is moved to another control group by hand at most.
const GROUPS_EVERY: Duration = Duration::from_secs(60);
/// Programs that are remembered as fetched.
const RECENT_MAX: usize = 1024;
/// Processes that are remembered as cancelled: more than start within the milliseconds for which that matters.
const CANCELLED_MAX: usize = 1024;

/// What was done for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// Its profile was fetched.
    Fetched,
    /// Its pages were in memory.
    Warm,
    /// It was fetched for this user a moment before.
    Recent,
    /// It is held out, to see what fetching gains.
    HeldOut,
    /// Fetching gains nothing on this device; it is part of a start that is held out, or comes a moment after one for which nothing was fetched; it
    /// was cancelled; prefetches hold too much already, or readers have too much to do; or a file system does not answer.
    LeftAlone,
    /// What its other roles have in common was fetched.
    Guessed,
    /// Nothing is known of it.
    Unknown,
}

/// Prefetches, and the readers of each device. Lock order: none, no two locks are held at once.
#[derive(Debug)]
pub struct Fetches {
    counters: Arc<Counters>,
    readers: Mutex<HashMap<u64, Arc<FairCrew>>>,
    prefetches: Mutex<Prefetches>,
    /// What is over, by the user who may have chosen what it holds open: whose rights it had, or whose container it is.
    over: Mutex<HashMap<u32, Over>>,
    /// What those under way and those that have ended hold.
    holdings: Arc<Holdings>,
    /// Below which roots is looked.
    roots: Roots,
    /// What was done last for each user, program and role: no user is told what was done for another.
    recent: Mutex<HashMap<(u32, String, String), Recent>>,
    /// What is done for a program has come to be known, in `recent`.
    is_done: Condvar,
    /// For the next prefetches, each of which [renews](Budget::renewed) it, and when it was made: to make one takes longer than all else before the first read.
    budget: Mutex<Option<(Instant, Budget)>>,
    /// The control groups of this process, and when they were looked up: that reads all mounts.
    groups: Mutex<Option<(Instant, Memberships)>>,
}

/// A start for which something is to be fetched.
#[derive(Clone, Copy)]
pub struct Start<'a> {
    pub uid: u32,
    pub pid: u32,
    /// When it came to be known: to [cancel](Fetches::cancel) it stops what is fetched for earlier ones of the process, too.
    pub seen_at: Instant,
    /// When its exec was seen.
    pub executed_at: Instant,
    /// The parent of the process, the parent's parent and so on, as far as its start may be part of theirs.
    pub parents: &'a dyn Fn() -> Vec<u32>,
    /// The root below which files are opened, where it is in a container.
    pub root: Option<&'a Arc<Root>>,
    /// On whose account it is.
    pub starter: u32,
    /// Called before it waits for what is under way for the same process: others of the user's starts may be looked at meanwhile.
    pub gives_way: &'a dyn Fn(),
}

/// What was done for a program in a role.
#[derive(Clone, Copy, Debug)]
struct Recent {
    /// When it was done, or last told to somebody. While it is still under way: when it began.
    at: Instant,
    /// For this process.
    pid: u32,
    /// When the exec of that start was seen.
    executed_at: Instant,
    /// `None` while it is under way.
    done: Option<Done>,
}

impl Recent {
    /// Whether it is of a moment ago.
    fn holds(&self) -> bool {
        self.at.elapsed() < if self.done.is_some() { APART } else { LOOK_HANGS_AFTER }
    }

    /// Whether it is what was done for this `start`, which is seen again once its arguments can be read.
    fn is_of(&self, start: &Start<'_>) -> bool {
        (self.pid, self.executed_at) == (start.pid, start.executed_at)
    }
}

/// Protected by `Fetches::prefetches`.
#[derive(Debug, Default)]
struct Prefetches {
    under_way: Vec<UnderWay>,
    /// When the start of each process that was cancelled last was seen. Its prefetch may reach `under_way` only after that.
    cancelled: HashMap<u32, Instant>,
}

impl Prefetches {
    /// Whether the start of process `pid` that was seen at `seen_at`, or one after it, has been cancelled.
    fn is_cancelled(&self, pid: u32, seen_at: Instant) -> bool {
        self.cancelled.get(&pid).is_some_and(|cancelled| *cancelled >= seen_at)
    }
}

/// What nobody needs any more. To drop it may take for ever: it closes files, and roots of containers.
#[derive(Default)]
struct Over {
    ended: Vec<(Engine, Holding)>,
    /// Work of prefetches that came too late.
    late: Vec<fair_crew::Work>,
}

impl std::fmt::Debug for Over {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Over").field("ended", &self.ended).finish_non_exhaustive()
    }
}

/// A prefetch under way.
#[derive(Debug)]
struct UnderWay {
    engine: Engine,
    holding: Holding,
    known: Arc<Known>,
    /// The root below which, by device and inode, and on whose account. The root itself is held by the readers alone: as long as anybody
    /// holds it the mount of a container that has ended stays in use, and another one cannot be made of its directories.
    root: Option<(u64, u64)>,
    owner: u32,
    /// What is fetched of it.
    planned: Arc<Profile>,
    account: Arc<Account>,
    /// For this process.
    pid: u32,
    seen_at: Instant,
    began: Instant,
    /// Whether threads have it, or have had it.
    has_begun: bool,
    /// Whether not all of it comes: by room, by time, or because somebody stopped it.
    is_cut_short: bool,
    /// Since when its threads are to end early, each after the read that it is at.
    stopped_at: Option<Instant>,
    priority: Priority,
}

impl Fetches {
    /// None yet.
    pub fn new(counters: Arc<Counters>) -> Self {
        let (readers, prefetches, recent) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (over, budget, groups) = (Mutex::default(), Mutex::default(), Mutex::default());
        let (holdings, is_done) = (Arc::new(Holdings::of_process()), Condvar::new());
        let roots = Roots::default();
        Self { counters, readers, prefetches, over, holdings, roots, recent, is_done, budget, groups }
    }

    /// Makes the budget of the next prefetches, where there is none or one that is not new: it is there at once then.
    pub fn get_ready(&self) {
        if self.budget_since(BUDGET_EVERY).is_some() {
            return;
        }
        let budget = {
            let mut groups = self.groups.lock().anyway();
            groups.take_if(|(looked, _)| looked.elapsed() >= GROUPS_EVERY);
            Budget::of(&groups.get_or_insert_with(|| (Instant::now(), Memberships::of_process())).1)
        };
        *self.budget.lock().anyway() = Some((Instant::now(), budget));
    }

    /// The budget, where it is no older than `most`.
    fn budget_since(&self, most: Duration) -> Option<Budget> {
        let budget = self.budget.lock().anyway();
        budget.as_ref().filter(|(made, _)| made.elapsed() < most).map(|(_, budget)| budget.clone())
    }

    /// Fetches what is known for a `start`, unless it is in memory, on its way already for the process or its parents, or the start has been cancelled
    /// since. One that is to be held out, and cold, is not fetched. Returns what was done for this process, also where that was in an earlier call, or is in
    /// another one: that is waited for.
    pub fn fetch(&self, known: &Arc<Known>, start: &Start<'_>, turn: Turn) -> Done {
        if known.is_left_alone() || start.root.is_some_and(|root| self.roots.is_left_out(root.id())) {
            return Done::LeftAlone;
        }
        let name = name_of(start.uid, &known.key);
        if let Some(done) = self.recent(&name, start) {
            return done;
        }
        let done = self.fetch_now(known, Priority::Start, start, turn);
        self.note(&name, start.pid, done);
        done
    }

    /// Stops what is fetched for the start of process `pid` that was seen at `seen_at`, for which nothing is to be done. The process may run
    /// another program by now: what is fetched for that goes on.
    pub fn cancel(&self, pid: u32, seen_at: Instant) {
        let mut prefetches = self.prefetches.lock().anyway();
        for one in prefetches.under_way.iter_mut().filter(|one| one.pid == pid && one.seen_at <= seen_at) {
            one.engine.cancel();
            one.is_cut_short = true;
        }
        if prefetches.cancelled.len() >= CANCELLED_MAX {
            prefetches.cancelled.clear();
        }
        let last = prefetches.cancelled.entry(pid).or_insert(seen_at);
        *last = seen_at.max(*last);
    }

    /// What is fetched of program `key` for process `pid`, while that is under way or has just ended.
    pub fn account_of(&self, pid: u32, key: &ProgramKey) -> Option<Arc<Account>> {
        let prefetches = self.prefetches.lock().anyway();
        let is_meant = |one: &&UnderWay| one.pid == pid && one.known.key == *key;
        prefetches.under_way.iter().rfind(is_meant).map(|one| one.account.clone())
    }

    /// What is on its way, or has just come, for the process of `start` and its parents. What may not come in whole is not among it.
    fn on_their_way(&self, start: &Start<'_>) -> Vec<Arc<Profile>> {
        if self.prefetches.lock().anyway().under_way.is_empty() {
            return Vec::new();
        }
        let mut pids = (start.parents)();
        pids.push(start.pid);
        let prefetches = self.prefetches.lock().anyway();
        let is_on_its_way = |one: &&UnderWay| {
            pids.contains(&one.pid)
                && one.priority == Priority::Start
                // Below another root the same names are other directories'.
                && one.root == start.root.map(|root| root.id())
                && !one.is_cut_short
                && !one.engine.outcome().memory_was_short
        };
        prefetches.under_way.iter().filter(is_on_its_way).map(|one| one.planned.clone()).collect()
    }

    fn fetch_now(&self, known: &Arc<Known>, priority: Priority, start: &Start<'_>, turn: Turn) -> Done {
        let Start { uid, pid, seen_at, root, .. } = *start;
        let owner = if root.is_some() { start.starter } else { known.rights.uid };
        let mut planned = known.planned.clone();
        // A start that is held out has nothing on its way.
        let on_their_way = if turn == Turn::Prefetch { self.on_their_way(start) } else { Vec::new() };
        if !on_their_way.is_empty() {
            planned = Arc::new(beyond(&planned, &on_their_way));
            if planned.files.is_empty() && planned.lookups.is_empty() {
                return Done::Recent;
            }
        }
        let mut engine = Engine::new(planned.clone(), &known.figures);
        // Made by another thread, a while ago: a moment's wait for memory since then is not to cut short each prefetch of a burst.
        let made = self.budget_since(BUDGET_AGE_MAX).map(Budget::renewed);
        let budget = made.unwrap_or_else(Budget::of_process);
        let wanted_bytes = engine.planned_bytes();
        engine.keep_within(budget);
        let is_cut_short = engine.planned_bytes() < wanted_bytes;
        let Ok(assumed) = known.rights.assume() else { return Done::Unknown };
        let entered = root.map(Root::enter);
        let mut device = None;
        let look = || {
            // A start of which something is on its way is a cold one, however little is left of it.
            let is_cold = turn == Turn::Prefetch && !on_their_way.is_empty();
            if is_cold || turn == Turn::Prefetch && root.is_none() {
                let is_warm = !is_cold && engine.is_warm();
                device = engine.device();
                return if is_warm { Residency::All } else { Residency::Most };
            }
            // A new container's names are in nobody's memory, and to wait for all that are looked at takes longer than what is left of the start.
            if root.is_some() && !engine.open_sample_at_once(COLD_NAME) {
                return Residency::Most;
            }
            engine.open_sample();
            device = engine.device();
            // This process's own rights let the kernel say what is in memory, so that no page has to be read to find out: in an overlay it says so to no other.
            drop((assumed, entered));
            match engine.residency() {
                Residency::Little if turn == Turn::Prefetch => Residency::Most,
                residency => residency,
            }
        };
        let asked = if root.is_some() { Ok(()) } else { ask_for(known) };
        let looked = match (asked, root) {
            (Ok(()), None) => known.look_at(look),
            (Ok(()), Some(root)) => self.roots.look_at(root.id(), &known.key, look),
            (Err(Unanswered), _) => {
                self.counters.hung.count();
                return Done::LeftAlone;
            }
        };
        if looked.is_ok() {
            mark_if_changed(known, &planned, &engine);
        }
        match (looked, turn) {
            (Ok(Residency::All), _) => return Done::Warm,
            (Ok(_), Turn::Off) => return Done::LeftAlone,
            (Ok(Residency::Little), Turn::HoldOut) => return Done::HeldOut,
            // Where half of it is in memory, to hold it out would show nothing.
            (Ok(_), _) => {}
            (Err(since), _) => {
                if since.elapsed() > LOOK_HANGS_AFTER {
                    self.counters.hung.count();
                    root.into_iter().for_each(|root| self.roots.leave_out(root.id()));
                }
                return Done::LeftAlone;
            }
        }
        let holder = if root.is_some() { owner } else { uid };
        let Some(holding) = self.holdings.take(holder, known.planned.files.len(), known.bytes) else {
            self.counters.crowded.count();
            return Done::LeftAlone;
        };
        let account = Arc::new(Account::begin(start.executed_at, engine.amounts()));
        let under_way = UnderWay {
            engine: engine.clone(),
            holding,
            known: known.clone(),
            root: root.map(|root| root.id()),
            owner,
            planned,
            account: account.clone(),
            pid,
            seen_at,
            began: Instant::now(),
            has_begun: false,
            is_cut_short,
            stopped_at: None,
            priority,
        };
        {
            let mut prefetches = self.prefetches.lock().anyway();
            // To look took a while.
            if prefetches.is_cancelled(pid, seen_at) {
                return Done::LeftAlone;
            }
            // What the process executes next may come before all threads have their work.
            prefetches.under_way.push(under_way);
        }
        // Each container's overlay is a device of its own, and most of them lie on one disk.
        let crew = if root.is_some() { self.readers_of(0) } else { self.readers_on(device, known.device) };
        let (mut lent, mut refused) = (0, 0);
        engine.start_on(&mut |work: Work| {
            let (rights, account, root) = (known.rights.clone(), account.clone(), root.cloned());
            let is_of_machine = known.rights == Rights::of_everybody() && root.is_none();
            let work = move || {
                let _entered = root.as_ref().map(Root::enter);
                // Without these rights nothing is opened.
                if let Ok(_assumed) = rights.assume() {
                    work();
                }
                account.note_end();
            };
            let is_lent = if is_of_machine {
                crew.of_nobody().lend(priority, Box::new(work))
            } else {
                let work = move |_at_work| work();
                crew.lend(owner, priority, Box::new(work))
            };
            *(if is_lent { &mut lent } else { &mut refused }) += 1;
            is_lent
        });
        let is_own = |one: &UnderWay| Arc::ptr_eq(&one.account, &account);
        let mut prefetches = self.prefetches.lock().anyway();
        if refused > 0 && lent == 0 {
            let own: Vec<UnderWay> = prefetches.under_way.extract_if(.., |one| is_own(one)).collect();
            drop(prefetches);
            self.put_away(own);
            self.counters.crowded.count();
            return Done::LeftAlone;
        }
        if let Some(own) = prefetches.under_way.iter_mut().find(|one| is_own(one)) {
            own.has_begun = true;
            own.is_cut_short |= refused > 0;
        }
        Done::Fetched
    }

    /// What was done a moment ago for a user's program in a role, by anybody's profile, as the process of `start` is to be told; `None` where
    /// nothing was, and it is to be done and [noted](Self::note). It counts as done now. What is under way for this process is waited for.
    fn recent(&self, name: &(u32, String, String), start: &Start<'_>) -> Option<Done> {
        let Start { pid, executed_at, .. } = *start;
        let mut recent = self.recent.lock().anyway();
        if recent.len() >= RECENT_MAX {
            recent.retain(|_, one| one.holds());
            if recent.len() >= RECENT_MAX {
                recent.clear();
            }
        }
        let is_under_way =
            |one: Option<&Recent>| one.is_some_and(|one| one.pid == pid && one.done.is_none() && one.holds());
        if is_under_way(recent.get(name)) {
            drop(recent);
            (start.gives_way)();
            recent = self.recent.lock().anyway();
        }
        // A look that takes longer hangs.
        let waited = self
            .is_done
            .wait_timeout_while(recent, LOOK_HANGS_AFTER, |recent| is_under_way(recent.get(name)));
        let mut recent = waited.anyway().0;
        let is_told = |one: &&mut Recent| one.holds() || one.done.is_some() && one.is_of(start);
        let Some(one) = recent.get_mut(name).filter(is_told) else {
            recent.insert(name.clone(), Recent { at: Instant::now(), pid, executed_at, done: None });
            return None;
        };
        if one.done.is_some() {
            one.at = Instant::now();
        }
        Some(match one.done {
            Some(done) if one.is_of(start) || [Done::Warm, Done::Unknown].contains(&done) => done,
            // Nothing was fetched.
            Some(Done::HeldOut | Done::LeftAlone) => Done::LeftAlone,
            _ => Done::Recent,
        })
    }

    /// Notes what was `done` for process `pid`, and tells whoever waits for that.
    fn note(&self, name: &(u32, String, String), pid: u32, done: Done) {
        if let Some(one) = self.recent.lock().anyway().get_mut(name).filter(|one| one.pid == pid) {
            (one.at, one.done) = (Instant::now(), Some(done));
        }
        self.is_done.notify_all();
    }

    /// The same of what the roles of `program` have in common: `guess` is asked for that where nothing was done a moment ago.
    pub fn fetch_guess(
        &self,
        program: &str,
        guess: impl FnOnce() -> Option<Profile>,
        start: &Start<'_>,
    ) -> Done {
        let name = (start.uid, program.to_owned(), String::new());
        if let Some(done) = self.recent(&name, start) {
            return done;
        }
        let fetch = |mut guess: Profile| {
            guess.program = program.to_owned();
            let known = Arc::new(Known::new(&guess, Rights::of_everybody()));
            match self.fetch_now(&known, Priority::Guess, start, Turn::Prefetch) {
                Done::Fetched => Done::Guessed,
                done => done,
            }
        };
        let done = guess().map_or(Done::Unknown, fetch);
        self.note(&name, start.pid, done);
        done
    }

    /// The readers of the `device` that files were seen to lie on. What number a profile has `learned` for it says little: after a boot it is another one's,
    /// and users write what they like into theirs. Where no file was opened, the learned number is used only if that device already has readers.
    fn readers_on(&self, device: Option<u64>, learned: u64) -> Arc<FairCrew> {
        let is_there = || self.readers.lock().anyway().contains_key(&learned);
        self.readers_of(device.unwrap_or_else(|| if is_there() { learned } else { 0 }))
    }

    fn readers_of(&self, device: u64) -> Arc<FairCrew> {
        let mut readers = self.readers.lock().anyway();
        if readers.len() >= DEVICES_MAX && !readers.contains_key(&device) {
            // What nobody has read from for a while may be unmounted.
            readers.retain(|_, crew| crew.threads().0 > 0);
        }
        let device = if readers.len() < DEVICES_MAX || readers.contains_key(&device) { device } else { 0 };
        let crew = || Crew::of_readers("read", READERS, READS_WAITING_MAX);
        readers.entry(device).or_insert_with(|| Arc::new(FairCrew::of(crew(), READERS_OF_A_USER))).clone()
    }

    /// Counts the prefetches that have ended, and stops those that take too long. Returns whether no prefetch is left, and the users on whose
    /// account files are to be [closed](Self::close).
    pub fn look(&self) -> (bool, Vec<u32>) {
        self.look_at(Instant::now())
    }

    fn look_at(&self, now: Instant) -> (bool, Vec<u32>) {
        let readers: Vec<_> = self.readers.lock().anyway().values().cloned().collect();
        for (uid, work) in readers.iter().flat_map(|crew| crew.take_late(now)) {
            self.over.lock().anyway().entry(uid).or_default().late.push(work);
        }
        let is_of_container = |one: &&UnderWay| one.root.is_some();
        let prefetches = self.prefetches.lock().anyway();
        let mut over: Vec<u32> =
            prefetches.under_way.iter().filter(is_of_container).map(|one| one.pid).collect();
        drop(prefetches);
        over.retain(|pid| living_thread(*pid).is_none());
        let has_ended = |one: &mut UnderWay| {
            if one.has_begun && !one.engine.is_at_work() {
                return true;
            }
            // What has ended in a container needs nothing of it any more, and mostly the container has ended as well: not so where a daemon goes on
            // as a child.
            let is_over = one.root.is_some() && over.contains(&one.pid);
            let is_too_long = now.saturating_duration_since(one.began) >= FETCH_MAX;
            if is_too_long || is_over {
                one.engine.cancel();
                one.is_cut_short = true;
            }
            // It may have been cancelled by `cancel`, or because memory was short.
            if is_too_long || one.has_begun && one.engine.wait_for(Duration::ZERO) {
                one.stopped_at.get_or_insert(now);
            }
            one.stopped_at.is_some_and(|at| now.saturating_duration_since(at) >= HANGS_AFTER)
        };
        let (ended, is_quiet) = {
            let under_way = &mut self.prefetches.lock().anyway().under_way;
            let ended: Vec<UnderWay> = under_way.extract_if(.., has_ended).collect();
            (ended, under_way.is_empty())
        };
        for UnderWay { engine, known, planned, root, .. } in &ended {
            self.counters.fetched_bytes.add(engine.amounts().requested_bytes());
            mark_if_changed(known, planned, engine);
            if engine.is_at_work() {
                match *root {
                    Some(root) => self.roots.leave_out(root),
                    None => known.leave_alone(LEFT_ALONE),
                }
                self.counters.hung.count();
            }
        }
        self.put_away(ended);
        (is_quiet, self.over.lock().anyway().keys().copied().collect())
    }

    /// Has somebody close what prefetches have open that are under way no longer.
    fn put_away(&self, ended: Vec<UnderWay>) {
        let mut over = self.over.lock().anyway();
        for UnderWay { engine, holding, owner, .. } in ended {
            over.entry(owner).or_default().ended.push((engine, holding));
        }
    }

    /// Closes what prefetches on user `uid`'s account had open that have ended. May wait for ever: a program that answers for a file system
    /// is asked at each.
    pub fn close(&self, uid: u32) {
        let over = self.over.lock().anyway().remove(&uid);
        drop(over);
    }

    /// How many threads read, and how many of them hang.
    pub fn threads(&self) -> (usize, usize) {
        let of_each = self.readers.lock().anyway().values().map(|crew| crew.threads()).collect::<Vec<_>>();
        of_each.into_iter().fold((0, 0), |(all, hanging), (more, hang)| (all + more, hanging + hang))
    }
}

/// Has each file system that may not answer look up one of the names that are to be fetched, with the rights of the calling thread: what does not answer
/// holds up this thread, and no other.
fn ask_for(known: &Known) -> Result<(), Unanswered> {
    let askers = Askers::of_machine();
    let names = || {
        let files = known.planned.files.iter().map(|file| (file.path.as_str(), true));
        files.chain(known.planned.lookups.iter().map(|name| (name.path.as_str(), false)))
    };
    let mut asked: Vec<&Path> = Vec::new();
    // Mounts are few and names are many. Most names are told from a mount's by their bytes.
    for point in askers.points().iter() {
        let is_below = |path: &str| {
            path.as_bytes().starts_with(point.as_os_str().as_bytes()) && Path::new(path).starts_with(point)
        };
        if asked.iter().any(|path| path.starts_with(point)) {
            continue;
        }
        let Some((path, is_file)) = names().find(|(path, _)| is_below(path)) else { continue };
        let path = Path::new(path);
        let _asking = askers.ask(path)?;
        // For an open file servers are asked anew, whatever is remembered of its name.
        match is_file {
            true => drop(open_to_read(path)),
            false => drop(statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE)),
        }
        asked.push(path);
    }
    Ok(())
}

/// The next start of `known` is to be observed if `engine`, which fetches what is `planned` of it, has found that its files hold something else now.
fn mark_if_changed(known: &Known, planned: &Profile, engine: &Engine) {
    let skipped = engine.outcome().skipped.into_iter();
    let changed = skipped.filter(|(_, why)| *why == Skipped::Changed).map(|(at, _)| &planned.files[at]);
    let changed: Vec<_> = changed.map(|file| (file.path.clone(), file.fingerprint.clone())).collect();
    if !changed.is_empty() {
        known.mark_as_changed(changed);
    }
}

/// As `recent` has it.
fn name_of(uid: u32, key: &ProgramKey) -> (u32, String, String) {
    (uid, key.program.clone(), key.role.clone())
}

#[cfg(test)]
mod tests;
