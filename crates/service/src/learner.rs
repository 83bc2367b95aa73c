//! Observe and persist: what programs use that nobody has learned yet, within a share of the processor. Copies of the service do both (`observing`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use prepage_core::profile::role::is_private;
use prepage_profiles::{Layer, ProgramKey};
use prepage_sys::lookups::Lookups;
use prepage_sys::perf::{Observed as Whose, PerfEvent, Setup, Source, online_cpus};
use prepage_sys::sync::Anyway;
use rustix::process::{PidfdFlags, getpid, pidfd_open};
use rustix::thread::gettid;

use crate::allowance::Allowance;
use crate::counters::Counters;
use crate::for_all::is_for_all;
use crate::library::Library;
use crate::moment::Moment;
use crate::process::Process;
use crate::refused::Refused;
use crate::start_names::StartNames;
use crate::writing::checksum;

mod observing;

pub use observing::get_ready;

/// How long a start is observed at most.
const WINDOW: Duration = Duration::from_secs(30);
/// Starts observed at once.
const OBSERVED_MAX: usize = 2;
/// An observation that takes this much longer than it may waits for somebody who may never answer.
const HANGS_AFTER: Duration = Duration::from_secs(30);
/// Starts that may come to be observed and are followed until that is known, for this long at most: an exec waits for a cold disk.
const EXPECTED_MAX: usize = 4;
const EXPECTED: Duration = Duration::from_secs(3);
/// Calls with a text in them that are remembered, and as many with words of somebody's.
const CALLS_MAX: usize = 1 << 14;
/// An observation that has missed something is followed by so many more of the same program at most, until one has seen all.
const AGAIN_MAX: u8 = 2;
/// Programs of which that is remembered.
const UNFINISHED_MAX: usize = 1024;
/// Observations that hang. Others take their places; where as many hang, nothing is learned any more.
const HANGING_MAX: usize = 4;

/// Learns the machine's programs. Lock order: `expected`, then one of the others; no others are held at once.
#[derive(Debug)]
pub struct Learner {
    library: Arc<Library>,
    counters: Arc<Counters>,
    began: Instant,
    /// The processor time that may still be spent.
    allowance: Mutex<Allowance>,
    spent_ns: AtomicU64,
    /// What observations took of it, which are processes of their own.
    observed_ns: AtomicU64,
    observed: Mutex<Observed>,
    /// Checksums of calls that a program's text stands in, and of whose they were.
    texts: Mutex<HashSet<u64>>,
    /// Checksums of calls with words in them that may be anybody's, and on whose account each was made first.
    firsts: Mutex<HashMap<u64, u32>>,
    /// Readable, by who ends the service, once all observations are to end.
    stop: OwnedFd,
    /// Readable once this process has ended: observations outlive it where it is killed.
    service: OwnedFd,
    /// Programs of which the last observations have missed something, and how many of them in a row.
    unfinished: Mutex<HashMap<ProgramKey, u8>>,
    refused: Refused,
    /// What sees the names that starts look up.
    lookups: Option<Arc<Lookups>>,
    /// Why nothing does.
    names_unseen: Option<String>,
    /// The names of starts that may come to be observed, by process, and since when they are seen.
    expected: Mutex<HashMap<u32, (Instant, StartNames)>>,
    /// While it is open the kernel is ready for perf events: opening others takes no time.
    ready: OnceLock<PerfEvent>,
}

/// Leave to observe one start; dropped, it is given back.
#[derive(Debug)]
pub struct Permit {
    learner: Arc<Learner>,
    number: u64,
}

/// The starts that are observed. Protected by `Learner::observed`.
#[derive(Debug, Default)]
struct Observed {
    /// By number: whose start, and since when.
    all: HashMap<u64, (u32, Instant)>,
    next_number: u64,
}

impl Observed {
    fn hanging(&self, now: Instant) -> impl Iterator<Item = u32> {
        let hangs = move |began: Instant| now.saturating_duration_since(began) > WINDOW + HANGS_AFTER;
        self.all.values().filter(move |(_, began)| hangs(*began)).map(|(uid, _)| *uid)
    }

    /// Those under way for longer than `most` that do not hang.
    fn long(&self, most: Duration, now: Instant) -> usize {
        let all = self.all.values().filter(|(_, began)| now.saturating_duration_since(*began) > most);
        all.count() - self.hanging(now).count()
    }

    fn has_room(&self, now: Instant) -> bool {
        let hanging = self.hanging(now).count();
        hanging < HANGING_MAX && self.all.len() - hanging < OBSERVED_MAX
    }

    /// The number of a permit for a start of user `uid`, if there is room. A user of whom one hangs is not waited for once more.
    fn take(&mut self, uid: u32, now: Instant) -> Option<u64> {
        if !self.has_room(now) || self.hanging(now).any(|other| other == uid) {
            return None;
        }
        self.next_number += 1;
        self.all.insert(self.next_number, (uid, now));
        Some(self.next_number)
    }
}

impl Learner {
    /// One that ends its observations when `stop` is readable, and sees names by `lookups`, where these are wanted.
    ///
    /// # Errors
    /// Those of pidfd_open(2).
    pub fn new(
        library: Arc<Library>,
        counters: Arc<Counters>,
        stop: OwnedFd,
        lookups: Option<io::Result<Lookups>>,
    ) -> io::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get() as u64);
        let allowance = Mutex::new(Allowance::new(processors, Duration::ZERO));
        let service = pidfd_open(getpid(), PidfdFlags::empty())?;
        let (lookups, names_unseen) = match lookups.transpose() {
            Ok(lookups) => (lookups.map(Arc::new), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(Self {
            library,
            counters,
            began: Instant::now(),
            allowance,
            spent_ns: AtomicU64::new(0),
            observed_ns: AtomicU64::new(0),
            observed: Mutex::default(),
            texts: Mutex::default(),
            firsts: Mutex::default(),
            unfinished: Mutex::default(),
            refused: Refused::default(),
            stop,
            service,
            lookups,
            names_unseen,
            expected: Mutex::default(),
            ready: OnceLock::new(),
        })
    }

    /// Gets the kernel ready for observations. Takes some milliseconds.
    pub fn get_ready(&self) {
        // An event of a thread that has ended costs nobody anything. One that told of mappings would cost each mmap(2) of the machine half a microsecond.
        let setup = Setup { exclude_kernel: true, ..Setup::new(Source::Dummy) };
        let open = move || {
            let own = Whose::Thread(gettid().as_raw_nonzero().get() as u32);
            online_cpus().ok()?.into_iter().find_map(|cpu| PerfEvent::open(&setup, own, cpu).ok())
        };
        let opener = std::thread::Builder::new().spawn(open);
        // Where perf is refused, page tables are looked at.
        if let Some(event) = opener.ok().and_then(|opener| opener.join().ok().flatten()) {
            let _ = self.ready.set(event);
        }
    }

    /// Whether the next start of `key` is to be observed because the last observation has missed something: names that were looked up before it began, or
    /// files that were read and are out of memory by its end.
    pub fn owes(&self, key: &ProgramKey) -> bool {
        self.unfinished().get(key).is_some_and(|missed| *missed <= AGAIN_MAX)
    }

    /// Whether that is so of any program.
    pub fn owes_any(&self) -> bool {
        self.unfinished().values().any(|missed| *missed <= AGAIN_MAX)
    }

    /// Whether that is so of some role of `program`.
    pub fn owes_some_of(&self, program: &str) -> bool {
        self.unfinished().iter().any(|(key, missed)| key.program == program && *missed <= AGAIN_MAX)
    }

    /// An observation of `key` has seen all of a start, or not.
    fn note_whether_whole(&self, key: &ProgramKey, is_whole: bool) {
        let mut unfinished = self.unfinished();
        if is_whole {
            unfinished.remove(key);
            return;
        }
        if unfinished.len() >= UNFINISHED_MAX && !unfinished.contains_key(key) {
            unfinished.clear();
        }
        let missed = unfinished.entry(key.clone()).or_default();
        *missed = missed.saturating_add(1);
    }

    /// An observation of `key` that was owed has seen nothing: the program had ended before. It is not owed for ever.
    fn note_in_vain(&self, key: &ProgramKey) {
        if let Some(missed) = self.unfinished().get_mut(key) {
            *missed = missed.saturating_add(1);
        }
    }

    fn unfinished(&self) -> MutexGuard<'_, HashMap<ProgramKey, u8>> {
        self.unfinished.lock().anyway()
    }

    /// Process `pid`, which was about to execute a program at this `moment`, is to be observed, mostly because nobody knows the program: the names that it looks up are seen from now on, for
    /// until the program is known to be observed it has looked up many. Takes some milliseconds where none was seen a moment ago.
    pub fn expect(&self, pid: u32, moment: Moment) {
        let Some(lookups) = &self.lookups else { return };
        let mut expected = self.expected.lock().anyway();
        if expected.get(&pid).is_some_and(|(_, names)| !names.has_stayed(pid)) {
            expected.remove(&pid);
        }
        if expected.len() < EXPECTED_MAX && self.may_observe() {
            expected.entry(pid).or_insert_with(|| (Instant::now(), StartNames::follow(pid, moment, lookups)));
        }
    }

    /// The names of the start of process `pid`, from when it was expected on. The start is expected no longer.
    pub fn take_expected(&self, pid: u32) -> Option<StartNames> {
        let mut expected = self.expected.lock().anyway();
        expected.remove(&pid).map(|(_, names)| names)
    }

    /// Where no start is observed, nobody looks what names are looked up any more: else each system call of the machine takes longer.
    pub fn rest(&self) {
        let mut expected = self.expected.lock().anyway();
        expected.retain(|_, (since, _)| since.elapsed() < EXPECTED);
        drop(expected);
        self.lookups.iter().for_each(|lookups| lookups.rest());
    }

    /// Why names that are looked up and never opened are not seen.
    pub fn names_unseen(&self) -> Option<&str> {
        self.names_unseen.as_deref()
    }

    /// Whether there is processor time left to observe with.
    pub fn may_observe(&self) -> bool {
        self.has_time() && self.observed().has_room(Instant::now())
    }

    /// Whether more than half of the allowance is left; to observe known programs again then leaves enough for new ones.
    pub fn has_plenty(&self) -> bool {
        self.allowance().has_plenty(self.began.elapsed())
    }

    /// Processor time that is left to learn with, nanoseconds; fewer than none where more was taken than there was.
    pub fn left_ns(&self) -> i64 {
        self.allowance().left_ns(self.began.elapsed())
    }

    /// Whether starts are learned from, and there is processor time left for it.
    pub fn has_time(&self) -> bool {
        self.library.learns() && self.allowance().has_some(self.began.elapsed())
    }

    /// So much processor time was spent on what is learned from starts.
    pub fn spend(&self, spent_ns: u64) {
        self.spent_ns.fetch_add(spent_ns, Ordering::Relaxed);
        self.allowance().spend(spent_ns, self.began.elapsed());
    }

    fn allowance(&self) -> MutexGuard<'_, Allowance> {
        self.allowance.lock().anyway()
    }

    fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().anyway()
    }

    /// How many observations are under way for longer than `most` and do not hang.
    pub fn long(&self, most: Duration) -> usize {
        self.observed().long(most, Instant::now())
    }

    /// Whether anybody observes.
    pub fn is_at_work(&self) -> bool {
        !self.observed().all.is_empty()
    }

    /// Waits until nobody observes, `most` at most.
    pub fn wait(&self, most: Duration) {
        let until = Instant::now() + most;
        while self.is_at_work() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Processor time spent, nanoseconds.
    pub fn spent_ns(&self) -> u64 {
        self.spent_ns.load(Ordering::Relaxed)
    }

    /// What observations took of it, nanoseconds: the kernel counts it for other processes than this.
    pub fn observed_ns(&self) -> u64 {
        self.observed_ns.load(Ordering::Relaxed)
    }

    /// Whether a start of user `uid` that nobody has learned may be one that comes again: a text that stands in the call, such as that of a build's
    /// `sh -c`, mostly does not. The second time it does.
    pub fn may_come_again(&self, uid: u32, key: &ProgramKey) -> bool {
        if !is_private(&key.role) {
            return true;
        }
        let mut texts = self.texts.lock().anyway();
        if texts.len() >= CALLS_MAX {
            texts.clear();
        }
        !texts.insert(checksum(&(uid, key)))
    }

    /// Whether nothing of a start of `process` is to be observed for now: what the last ones showed could not be kept.
    pub fn is_refused(&self, process: &Process) -> bool {
        self.refused.is_in_pause(process.rights.uid, &process.context.key, Instant::now())
    }

    /// Has what could not be kept observed again: the configuration or something else has changed.
    pub fn forget_refused(&self) {
        self.refused.forget_all();
    }

    /// Whether what a start of `process` shows may be kept, as far as that is known before. A user of whom all was kept so far is not asked for: that takes
    /// a while, and the start goes on.
    fn may_keep(&self, process: &Process) -> bool {
        if let Some(root) = &process.root {
            let _entered = root.enter();
            // There is nobody in a container whose own it could be.
            return is_for_all(process);
        }
        !self.refused.has_some_of(process.rights.uid)
            || self.told_of(process).layer_of(process) == Layer::Machine
            || self.library.room_of_user(process).is_ok()
    }

    /// Whether a call that is made on the account of user `starter` was made on that of another before.
    fn has_come_from_another(&self, key: &ProgramKey, starter: u32) -> bool {
        let mut firsts = self.firsts.lock().anyway();
        if firsts.len() >= CALLS_MAX {
            firsts.clear();
        }
        *firsts.entry(checksum(key)).or_insert(starter) != starter
    }

    /// Leave to observe a start of user `uid`, if not too many are observed.
    pub fn permit(self: &Arc<Self>, uid: u32) -> Option<Permit> {
        if !self.may_observe() {
            return None;
        }
        let number = self.observed().take(uid, Instant::now())?;
        Some(Permit { learner: self.clone(), number })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.learner.observed().all.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use prepage_prefetch::start::StartContext;
    use prepage_sys::rights::Rights;

    use super::*;

    #[test]
    fn an_observation_that_takes_long_goes_on_until_it_takes_longer_than_it_may() {
        let mut observed = Observed::default();
        let began = Instant::now();
        observed.take(7, began).unwrap();
        let long = |after: Duration| observed.long(Duration::from_secs(20), began + after);
        assert_eq!([10, 25, 55].map(|seconds| long(Duration::from_secs(seconds))), [0, 1, 1]);
        assert_eq!(long(WINDOW + 2 * HANGS_AFTER), 0, "it hangs");
    }

    /// A program whose observations always miss something is not observed for ever.
    #[test]
    fn what_has_missed_something_is_observed_again_until_all_was_seen_and_not_for_ever() {
        let directory = tempfile::tempdir().unwrap();
        let library = Arc::new(Library::open(Some(vec![directory.path().into()])).unwrap());
        let (stop, _stopper) = rustix::pipe::pipe().unwrap();
        let learner = Learner::new(library, Arc::default(), stop, None).unwrap();
        let key = |role: &str| ProgramKey { program: "/bin/x".into(), role: role.into() };
        let mut owes = Vec::new();
        for is_whole in [false, true, false, false, false, false] {
            learner.note_whether_whole(&key("x"), is_whole);
            owes.push(learner.owes(&key("x")));
        }
        assert_eq!(owes, [true, false, true, true, false, false]);
        assert!(!learner.owes(&key("x -a")) && !learner.owes_any());
        learner.note_whether_whole(&key("y"), false);
        assert!(learner.owes_some_of("/bin/x") && !learner.owes_some_of("/bin/z"));
        let owes = [(); 3].map(|()| {
            learner.note_in_vain(&key("y"));
            learner.note_in_vain(&key("z"));
            (learner.owes(&key("y")), learner.owes(&key("z")))
        });
        assert_eq!(owes, [(true, false), (false, false), (false, false)], "what ends too soon is let be");
        (0..2 * UNFINISHED_MAX).for_each(|at| learner.note_whether_whole(&key(&at.to_string()), false));
        assert!(learner.unfinished().len() <= UNFINISHED_MAX);
    }

    /// Everybody may read the machine's profiles.
    #[test]
    fn words_that_a_user_gives_a_program_stay_with_the_user_until_another_gives_them_too() {
        if !prepage_testing::has(prepage_testing::Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let library = Arc::new(Library::open(Some(vec![directory.path().into()])).unwrap());
        let (stop, _stopper) = rustix::pipe::pipe().unwrap();
        let learner = Learner::new(library, Arc::default(), stop, None).unwrap();
        let installed = tempfile::tempdir_in("/usr/share").unwrap();
        std::fs::set_permissions(installed.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        for name in ["git", "git-log", "busybox", "env", "build.sh"] {
            std::fs::write(installed.path().join(name), "").unwrap();
        }
        let [program, script] = ["env", "build.sh"].map(|name| installed.path().join(name));
        let place = |name: &str| (name == "build.sh").then(|| script.to_str().unwrap().to_owned());
        let process = |uid: u32, starter: u32, call: &[&str]| {
            let role = prepage_core::profile::role::role(call, &place);
            let key = ProgramKey { program: program.to_str().unwrap().into(), role };
            let executable = Some(program.clone());
            let context = StartContext { pid: 1, uid, executable, key, began_ns: 0 };
            let rights = Rights { uid, ..Rights::of_everybody() };
            let (places, search, home, parents) = (vec![script.clone()], Vec::new(), None, vec![1]);
            let (moment, program, root) = (Moment::after_exec(), program.clone(), None);
            Process { context, rights, root, program, starter, places, search, home, parents, moment }
        };
        let layer_of = |process: &Process| learner.told_of(process).layer_of(process);
        let of = |uid: u32, call: &[&str]| layer_of(&process(uid, uid, call));
        for call in [
            &["env"][..],
            &["-env", "-v", "a.txt"],
            // What root has installed.
            &["git", "log", "x"],
            &["busybox", "env"],
            &["sh", "-e", "build.sh", "x"],
        ] {
            assert_eq!(of(1001, call), Layer::Machine, "{call:?}");
        }
        for call in [
            &["git", "project-x-offer"][..],
            &["git", "../bin/env"],
            &["npm", "run", "project-x"],
            &["env", "--project-x=1"],
            &["project-x"],
            &["python3", "-m", "project_x"],
            &["java", "-cp", "/project/x", "-version"],
            &["sh", "project-x@0badcafe"],
        ] {
            assert_eq!((of(1001, call), of(1001, call)), (Layer::User, Layer::User), "{call:?}");
            // Of the same user's, in a user namespace.
            assert_eq!(layer_of(&process(100_000, 1001, call)), Layer::User, "{call:?}");
            assert_eq!(of(1002, call), Layer::Machine, "{call:?}");
        }
        // What root has set up.
        assert_eq!((of(0, &["git", "a"]), of(999, &["git", "b"])), (Layer::Machine, Layer::Machine));
    }

    #[test]
    fn observations_that_hang_leave_their_places_to_those_of_other_users() {
        let mut observed = Observed::default();
        let began = Instant::now();
        assert!(observed.take(7, began).is_some() && observed.take(7, began).is_some());
        assert_eq!(observed.take(8, began + WINDOW), None);
        let later = began + WINDOW + 2 * HANGS_AFTER;
        assert_eq!(observed.take(7, later), None, "of this user two hang");
        assert!(observed.take(8, later).is_some() && observed.take(9, later).is_some());
        assert_eq!(observed.take(10, later), None);
        let end = later + WINDOW + 2 * HANGS_AFTER;
        assert_eq!(observed.take(10, end), None, "too many hang");
        let first = *observed.all.keys().min().unwrap();
        observed.all.remove(&first);
        assert!(observed.take(10, end).is_some());
    }
}
