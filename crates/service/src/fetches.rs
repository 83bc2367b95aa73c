//! The prefetches under way: which profile was fetched when, on whose threads, and which of them hang.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prepage_core::profile::Profile;
use prepage_core::profile::gain::Turn;
use prepage_prefetch::engine::{Amounts, Engine, Work};
use prepage_prefetch::memory::Budget;
use prepage_profiles::ProgramKey;
use prepage_profiles::identity::Skipped;
use prepage_sys::cgroup::Memberships;
use prepage_sys::rights::Rights;

use crate::counters::Counters;
use crate::crew::{Crew, Priority};
use crate::known::Known;

/// Threads of a device, those of one prefetch and half of another's, and the work that waits for them.
const READERS: usize = 64;
const READS_WAITING_MAX: usize = 256;
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
/// A file system that does not answer is not asked again for this long.
const LEFT_ALONE: Duration = Duration::from_secs(600);
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
    /// Fetching gains nothing on this device.
    Off,
    /// It is part of a start that is held out, or a file system does not answer.
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
    readers: Mutex<HashMap<u64, Crew>>,
    prefetches: Mutex<Prefetches>,
    /// What was done last for each user, program and role: no user is told what was done for another.
    recent: Mutex<HashMap<(u32, String, String), Recent>>,
    /// For the next prefetch.
    budget: Mutex<Option<Budget>>,
    /// The control groups of this process, and when they were looked up: that reads all mounts.
    groups: Mutex<Option<(Instant, Memberships)>>,
}

/// What was done for a program in a role.
#[derive(Clone, Copy, Debug)]
struct Recent {
    at: Instant,
    /// For this process.
    pid: u32,
    /// [`Done::Recent`] until that is known.
    done: Done,
}

/// Protected by `Fetches::prefetches`.
#[derive(Debug, Default)]
struct Prefetches {
    under_way: Vec<UnderWay>,
    /// When the start of each process was cancelled. Its prefetch may reach `under_way` only after that.
    cancelled: HashMap<u32, Instant>,
}

impl Prefetches {
    /// Whether the start of process `pid` that was seen at `seen_at` has been cancelled since.
    fn is_cancelled(&self, pid: u32, seen_at: Instant) -> bool {
        self.cancelled.get(&pid).is_some_and(|cancelled| *cancelled >= seen_at)
    }
}

/// A prefetch under way.
#[derive(Debug)]
struct UnderWay {
    engine: Engine,
    known: Arc<Known>,
    /// For this process.
    pid: u32,
    began: Instant,
}

impl Fetches {
    /// None yet.
    pub fn new(counters: Arc<Counters>) -> Self {
        let (readers, prefetches, recent) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { counters, readers, prefetches, recent, budget: Mutex::default(), groups: Mutex::default() }
    }

    /// Makes the budget of the next prefetch: it is there at once then.
    pub fn get_ready(&self) {
        let budget = {
            let mut groups = lock(&self.groups);
            groups.take_if(|(looked, _)| looked.elapsed() >= GROUPS_EVERY);
            Budget::of(&groups.get_or_insert_with(|| (Instant::now(), Memberships::of_process())).1)
        };
        *lock(&self.budget) = Some(budget);
    }

    /// Fetches what is known for a start by process `pid` of user `uid` that was seen at `seen_at`, unless it is in memory or the start
    /// has been cancelled since. One that is to be held out, and cold, is not fetched. Returns what was done for this process, also where that
    /// was in an earlier call.
    pub fn fetch(
        &self,
        known: &Arc<Known>,
        priority: Priority,
        uid: u32,
        pid: u32,
        seen_at: Instant,
        turn: Turn,
    ) -> Done {
        if known.is_left_alone() {
            return Done::LeftAlone;
        }
        let name = name_of(uid, &known.key);
        if let Some(done) = self.recent(&name, pid) {
            return done;
        }
        let done = self.fetch_now(known, priority, pid, seen_at, turn);
        if let Some(recent) = lock(&self.recent).get_mut(&name).filter(|one| one.pid == pid) {
            recent.done = done;
        }
        done
    }

    /// Stops what is fetched for process `pid`, for which nothing is to be done.
    pub fn cancel(&self, pid: u32) {
        let mut prefetches = lock(&self.prefetches);
        prefetches.under_way.iter().filter(|one| one.pid == pid).for_each(|one| one.engine.cancel());
        if prefetches.cancelled.len() >= CANCELLED_MAX {
            prefetches.cancelled.clear();
        }
        prefetches.cancelled.insert(pid, Instant::now());
    }

    /// What is fetched for process `pid`, while that is under way or has just ended.
    pub fn amounts_of(&self, pid: u32) -> Option<Arc<Amounts>> {
        let prefetches = lock(&self.prefetches);
        prefetches.under_way.iter().rfind(|one| one.pid == pid).map(|one| one.engine.amounts())
    }

    fn fetch_now(
        &self,
        known: &Arc<Known>,
        priority: Priority,
        pid: u32,
        seen_at: Instant,
        turn: Turn,
    ) -> Done {
        let mut engine = Engine::new(known.planned.clone(), &known.figures);
        let budget = lock(&self.budget).take();
        engine.keep_within(budget.unwrap_or_else(Budget::of_process));
        let Ok(assumed) = known.rights.assume() else { return Done::Unknown };
        let look = || {
            if turn == Turn::Prefetch {
                return (engine.is_warm(), false);
            }
            engine.open_sample();
            // This process's own rights let the kernel say what is in memory, so that no page has to be read to find out.
            drop(assumed);
            (engine.is_warm(), engine.is_cold())
        };
        match known.look_at(look) {
            Ok((true, _)) => {
                self.counters.warm.count();
                return Done::Warm;
            }
            Ok((false, is_cold)) if turn == Turn::Off => {
                return if is_cold { Done::Off } else { Done::LeftAlone };
            }
            Ok((false, true)) => {
                self.counters.held_out.count();
                return Done::HeldOut;
            }
            // Where half of it is in memory, to hold it out would show nothing.
            Ok((false, false)) => {}
            Err(since) => {
                if since.elapsed() > LOOK_HANGS_AFTER {
                    self.counters.hung.count();
                }
                return Done::LeftAlone;
            }
        }
        // To look took a while.
        if lock(&self.prefetches).is_cancelled(pid, seen_at) {
            return Done::LeftAlone;
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
        let under_way = UnderWay { engine, known: known.clone(), pid, began: Instant::now() };
        let mut prefetches = lock(&self.prefetches);
        if prefetches.is_cancelled(pid, seen_at) {
            under_way.engine.cancel();
        }
        prefetches.under_way.push(under_way);
        Done::Fetched
    }

    /// What was done a moment ago for a user's program in a role, by anybody's profile, as process `pid` is to be told; `None` where
    /// nothing was. It counts as done now.
    fn recent(&self, name: &(u32, String, String), pid: u32) -> Option<Done> {
        let mut recent = lock(&self.recent);
        if recent.len() >= RECENT_MAX {
            recent.retain(|_, one| one.at.elapsed() < APART);
            if recent.len() >= RECENT_MAX {
                recent.clear();
            }
        }
        let at = Instant::now();
        let before = recent.get(name).filter(|one| at - one.at < APART).copied();
        let holds = |one: &Recent| one.pid == pid || one.done == Done::Warm;
        let done = match before {
            Some(one) if holds(&one) => one.done,
            Some(one) if matches!(one.done, Done::HeldOut | Done::Off) => Done::LeftAlone,
            _ => Done::Recent,
        };
        recent.insert(name.clone(), Recent { at, pid, done });
        before.map(|_| done)
    }

    /// The same of what the roles of `program` have in common.
    pub fn fetch_guess(
        &self,
        program: &str,
        guess: Option<Profile>,
        uid: u32,
        pid: u32,
        seen_at: Instant,
    ) -> Done {
        let Some(mut guess) = guess else { return Done::Unknown };
        guess.program = program.to_owned();
        let known = Arc::new(Known::new(&guess, Rights::of_everybody()));
        match self.fetch(&known, Priority::Guess, uid, pid, seen_at, Turn::Prefetch) {
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
        readers.entry(device).or_insert_with(|| Crew::of_readers("read", READERS, READS_WAITING_MAX)).clone()
    }

    /// Counts the prefetches that have ended, and stops those that take too long. Returns whether no prefetch is left.
    pub fn look(&self) -> bool {
        let under_way = &mut lock(&self.prefetches).under_way;
        under_way.retain(|UnderWay { engine, known, began, .. }| {
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

    /// How many threads read, and how many of them hang.
    pub fn threads(&self) -> (usize, usize) {
        let of_each = lock(&self.readers).values().map(Crew::threads).collect::<Vec<_>>();
        of_each.into_iter().fold((0, 0), |(all, hanging), (more, hang)| (all + more, hanging + hang))
    }
}

/// As `recent` has it.
fn name_of(uid: u32, key: &ProgramKey) -> (u32, String, String) {
    (uid, key.program.clone(), key.role.clone())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use prepage_core::profile::{ProfiledFile, Touches};
    use prepage_core::{PAGE_SIZE, PageIndex};
    use prepage_profiles::identity::{content_of, identity_of, open_to_read};
    use prepage_sys::cachestat::evict;
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn no_user_is_told_what_was_done_for_another() {
        let fetches = Fetches::new(Arc::default());
        let key = ProgramKey { program: "/bin/program".into(), role: "program".into() };
        let name = |uid| name_of(uid, &key);
        assert_eq!(fetches.recent(&name(7), 1), None);
        assert_eq!(fetches.recent(&name(8), 2), None);
        assert_eq!(fetches.recent(&name(7), 3), Some(Done::Recent));
        lock(&fetches.recent).get_mut(&name(8)).unwrap().done = Done::HeldOut;
        assert_eq!(fetches.recent(&name(8), 2), Some(Done::HeldOut));
        assert_eq!(fetches.recent(&name(8), 3), Some(Done::LeftAlone), "nothing was fetched a moment before");
        (0..3 * RECENT_MAX as u32).for_each(|uid| _ = fetches.recent(&name(uid), uid));
        assert!(lock(&fetches.recent).len() <= RECENT_MAX, "more at once than fit");
    }

    #[test]
    fn what_is_left_alone_is_not_said_to_be_fetched_and_only_what_takes_long_to_hang() {
        let counters = Arc::new(Counters::default());
        let fetches = Fetches::new(counters.clone());
        let known = Arc::new(Known::new(&Profile::default(), Rights::of_everybody()));
        let now = Instant::now();
        let looked = known.look_at(|| fetches.fetch(&known, Priority::Start, 7, 1, now, Turn::Prefetch));
        assert_eq!(looked, Ok(Done::LeftAlone), "somebody looks already");
        assert_eq!(counters.hung.get(), 0);
        known.leave_alone(LEFT_ALONE);
        assert_eq!(fetches.fetch(&known, Priority::Start, 8, 2, now, Turn::Prefetch), Done::LeftAlone);
    }

    #[test]
    fn what_is_cancelled_before_it_is_under_way_is_not_fetched_and_the_next_start_of_the_process_is() {
        let directory = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        if !has(Need::Eviction(directory.clone())) {
            return;
        }
        let directory = tempfile::tempdir_in(directory).unwrap();
        let path = directory.path().canonicalize().unwrap().join("file");
        std::fs::write(&path, [1; 64 * PAGE_SIZE as usize]).unwrap();
        let file = open_to_read(&path).unwrap();
        let mut touches = Touches::default();
        (8..12).for_each(|page| touches.touch(PageIndex(page), page as u32));
        let profiled = ProfiledFile {
            path: path.to_str().unwrap().into(),
            identity: identity_of(&file).unwrap(),
            fingerprint: content_of(&file).unwrap(),
            learned_unix_s: 1,
            extents: touches.extents(),
        };
        file.sync_all().unwrap();
        let profile = Profile { program: "x".into(), files: vec![profiled], ..Profile::default() };
        let known = Arc::new(Known::new(&profile, Rights::of_process(std::process::id()).unwrap()));
        let fetches = Fetches::new(Arc::default());
        let fetch = |uid, seen_at| {
            evict(file.as_fd(), Duration::from_secs(60)).unwrap();
            fetches.fetch(&known, Priority::Start, uid, 1, seen_at, Turn::Prefetch)
        };
        let seen_at = Instant::now();
        fetches.cancel(1);
        assert_eq!(fetch(7, seen_at), Done::LeftAlone);
        // For another user: what was done for one a moment ago is not done again.
        assert_eq!(fetch(8, Instant::now()), Done::Fetched);
        (0..2 * CANCELLED_MAX as u32).for_each(|pid| fetches.cancel(pid));
        assert!(lock(&fetches.prefetches).cancelled.len() <= CANCELLED_MAX);
    }
}
