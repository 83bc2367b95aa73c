//! What happens beside a program that was started: fetch, observe, persist.
//!
//! ```text
//!  Choice ─► Engine (threads of its own) ──────────────┐
//!  Observer ─► Observation, or else ─► Progress ───────┴─► persist
//! ```

use std::cell::LazyCell;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use prepage_core::PageIndex;
use prepage_core::profile::bounds::LeftOut;
use prepage_core::profile::gain::Turn;
use prepage_core::profile::observation::Observation;
use prepage_core::profile::{ColdStart, Fingerprint, Profile};
use prepage_observe::sightings::{FileIndex, Seen, Sightings};
use prepage_observe::{Follower, ObserveOptions, Observer, Until};
use prepage_profiles::identity::Skipped;
use prepage_profiles::{FoundProfile, Layer, StoreError, Stores, chain};
use prepage_sys::cgroup::Memberships;
use prepage_sys::memory_left::Cgroups;
use prepage_sys::open_files;
use prepage_sys::signals::{ENDING, Signals};
use rustix::io::Errno;

use crate::account::{Listener, account, left_out, observed, with_left_out};
use crate::calibrate::cache::Cache;
use crate::choose::Choice;
use crate::dense::DenseReads;
use crate::engine::{Engine, Prefetched, Residency};
use crate::guess::Guessing;
use crate::launch::{FEW_TASKS, LaunchOptions, Word, released_unless};
use crate::memory::{Budget, Tasks};
use crate::persist::{Persisting, Shown};
use crate::progress::Progress;
use crate::start::StartContext;

/// How long a start is served at most. Programs that run on are past their start by then.
const WINDOW: Duration = Duration::from_secs(30);

/// What is still on its way when the start is over is waited for no longer than this: a lookup may hang on a dead network
/// file system.
const FETCH_WAIT: Duration = Duration::from_secs(10);

/// How often it is looked meanwhile whether the program has ended.
const FETCH_LOOK: Duration = Duration::from_millis(10);

/// Disk faults after which a cache that looked warm is taken for a cold one.
const WARM_DISK_FAULTS_MAX: u64 = 4;

/// Why nothing is done for a program that is gone.
const ENDED: &str = "the program has ended already";

/// A start, and how it is to be served.
pub(crate) struct Beside<'a> {
    pub(crate) context: &'a StartContext,
    /// A pidfd of the process of `context`, made while that was sure to have its number.
    pub(crate) process: Option<BorrowedFd<'a>>,
    pub(crate) stores: &'a Stores,
    pub(crate) options: &'a LaunchOptions,
    /// Whether what this start shows is kept.
    pub(crate) is_kept: bool,
    pub(crate) listener: Listener,
}

impl Beside<'_> {
    /// Serves the start of a program with the profile that was `found`, of which `cut` was cut off. Where `is_cold`, for the profile was read from the
    /// device, nobody looks how much of the program is in memory. The program waits for `word` where it is observed, if `is_due` says so of a warm start,
    /// or of a cold one.
    pub(crate) fn known(
        &self,
        found: &FoundProfile,
        cut: &[LeftOut],
        is_cold: bool,
        word: Option<Word>,
        is_due: impl FnOnce(bool) -> bool,
    ) {
        let Some(until) = &self.until() else { return };
        let FoundProfile { profile, layer } = found;
        // A warm start does not ask for a dozen files of control groups, and no program waits for that.
        let groups: LazyCell<Memberships> = LazyCell::new(Memberships::of_process);
        let tasks = LazyCell::new(|| Tasks::left(&groups));
        open_files::allow_many();
        let choice = Choice::new(profile, self.options, self.is_kept);
        let mut engine = Engine::new(choice.planned.clone(), &choice.figures);
        let is_prefetched = choice.turn == Turn::Prefetch;
        let (is_warm, was_cold) = match is_prefetched {
            true => (!is_cold && engine.is_warm(), false),
            false => {
                engine.open_sample();
                let residency = engine.residency();
                (residency == Residency::All, residency == Residency::Little)
            }
        };
        let word = word.and_then(|word| released_unless(is_due(is_warm), word));
        let is_observed = word.is_some();
        let amounts = engine.amounts();
        // To find out how much memory there is takes a while, and the device is asked for names meanwhile.
        let begin_names = |engine: &mut Engine| is_prefetched.then(|| engine.start_names(tasks.to_spare()));
        let begin = |engine: &Engine| match choice.turn {
            Turn::Prefetch => {
                engine.keep_to_memory(Budget::of_left(&groups, *tasks));
                engine.start();
            }
            // Where the start is observed, what was seen is told as well.
            Turn::HoldOut | Turn::Off if is_observed => self.listener.note(choice.turn_in_words()),
            Turn::HoldOut | Turn::Off => self.listener.say(choice.turn_in_words()),
        };
        let mut names = None;
        if !is_warm {
            if is_prefetched && tasks.are_few() {
                return self.leave_alone(word);
            }
            names = begin_names(&mut engine);
        }
        let mut progress = Progress::new(self.context.pid, until);
        // Nobody else repairs for this user what another layer has.
        let mut persisting = self.persisting().upon((*layer != Layer::User).then_some(profile));
        if !is_warm {
            begin(&engine);
        } else if !is_observed {
            if self.listener.is_heard() && self.options.prefetch {
                self.listener.note(&in_memory(profile, &engine.look_at_files(), cut));
            }
            if progress.follow(WARM_DISK_FAULTS_MAX) {
                let changed = changed(profile, &engine.outcome());
                self.persist(&mut persisting, &Shown { changed, ..Shown::default() });
                return;
            }
            if is_prefetched && tasks.are_few() {
                return self.leave_alone(word);
            }
            names = begin_names(&mut engine);
            begin(&engine);
        }
        drop(names);
        let mut fetch = Fetch { engine: Some(engine), ..Fetch::default() };
        let observation =
            word.and_then(|word| self.observe(word, until, (&groups, &tasks), &mut persisting, &mut fetch));
        if is_observed && tasks.are_few() {
            return self.leave_alone(None);
        }
        if observation.is_none() {
            progress.follow(u64::MAX);
        }
        fetch.let_go_after(until);
        // An observation tells of what has changed by itself.
        let changed = if observation.is_none() { changed(profile, &fetch.outcome()) } else { Vec::new() };
        let mut shown = Shown { observation, changed, ..Shown::default() };
        progress.look();
        self.persist(&mut persisting, &shown);
        // How long it took is known later, and not of a start that was cut short.
        if self.is_kept && (is_prefetched || was_cold) && !until.was_stopped() {
            let fetched = is_prefetched.then_some(&*amounts);
            let observed = shown.observation.is_some();
            let wasted_pages = match &shown.observation {
                Some(observation) if is_prefetched => choice.pages_unused_in(observation),
                _ => 0,
            };
            let mut persist = |start: Option<ColdStart>| {
                shown.cold_start = start.map(|start| ColdStart { observed, wasted_pages, ..start });
                if shown.cold_start.is_some() {
                    self.persist(&mut persisting, &shown);
                }
            };
            let (device, began_ns) = (choice.device, self.context.began_ns);
            // This process ends with the first one of its namespace.
            if self.context.pid == 1 {
                persist(progress.cold_start_so_far(device, began_ns, fetched));
            }
            persist(progress.cold_start(device, began_ns, fetched));
        }
        if is_prefetched && !(is_warm && is_observed) {
            let lead = if is_warm { "not all of it was in memory after all: " } else { "" };
            self.finish(&mut fetch, until, profile, cut, lead);
        } else if is_warm && self.options.prefetch {
            self.listener.say(&in_memory(profile, &fetch.outcome().skipped, cut));
        }
    }

    /// A program without a profile gets what the executable's other roles have in common, or else what page maps came with
    /// its files.
    pub(crate) fn unknown(&self, word: Option<Word>) {
        let Some(until) = &self.until() else { return };
        let groups: LazyCell<Memberships> = LazyCell::new(Memberships::of_process);
        let tasks = LazyCell::new(|| Tasks::left(&groups));
        open_files::allow_many();
        let is_to_guess = self.options.prefetch;
        let program = self.context.key.program.as_ref();
        let dense =
            (is_to_guess && word.is_some()).then(|| DenseReads::begin(program, Cache::of_user)).flatten();
        let mut fetch = Fetch { is_to_guess, dense, ..Fetch::default() };
        let mut persisting = self.persisting();
        let observed =
            word.and_then(|word| self.observe(word, until, (&groups, &tasks), &mut persisting, &mut fetch));
        match observed {
            Some(observation) => {
                let shown = Shown { observation: Some(observation), ..Shown::default() };
                self.persist(&mut persisting, &shown);
            }
            None => {
                fetch.dense = None;
                if tasks.are_few() {
                    return self.leave_alone(None);
                }
                self.guess(&mut fetch, &tasks, false);
                until.wait();
            }
        }
        self.finish_guess(&mut fetch, until);
    }

    /// Tells what has come of a guess when the start is over.
    fn finish_guess(&self, fetch: &mut Fetch, until: &Until) {
        fetch.take_guess();
        if fetch.guessing.take().is_some_and(|guess| guess.is_under_way()) || fetch.guess_is_late {
            // Of page maps something may have been brought in.
            self.listener
                .say("the start was over before all was looked up that tells what it is likely to use");
        }
        fetch.let_go_after(until);
        if let Some(guess) = fetch.guess.take() {
            self.finish(fetch, until, &guess, &[], "");
        }
    }

    /// Lets the program go where it may need each task that is left. What runs beside it ends.
    fn leave_alone(&self, word: Option<Word>) {
        self.listener.say(FEW_TASKS);
        word.into_iter().for_each(Word::go);
    }

    /// Begins to guess what the program is likely to use, where that is wanted and there are threads to spare of what `tasks` are left.
    fn guess(&self, fetch: &mut Fetch, tasks: &Tasks, is_observed: bool) {
        if std::mem::take(&mut fetch.is_to_guess) {
            // Where the start is observed, what was seen is told as well.
            let listener = if is_observed { self.listener.kept() } else { self.listener.clone() };
            let (key, threads) = (&self.context.key, tasks.to_spare());
            if threads > 0 {
                fetch.guessing = Some(Guessing::begin(self.stores, key, threads, &listener));
            } else {
                listener.say("nothing prefetched: there are no threads to spare");
            }
        }
    }

    /// Lets the program go, observed, and observes it to the end of its start, within what its control groups and the tasks that are left
    /// allow; `None` where that is refused.
    fn observe(
        &self,
        word: Word,
        until: &Until,
        (groups, tasks): (&LazyCell<Memberships>, &LazyCell<Tasks, impl FnOnce() -> Tasks>),
        persisting: &mut Persisting<'_>,
        fetch: &mut Fetch,
    ) -> Option<Observation> {
        let options = ObserveOptions {
            program: self.context.executable.clone(),
            own_audit: std::env::var_os("LD_AUDIT"),
            gives_way: true,
            ..ObserveOptions::default()
        };
        match Observer::attach(self.context.pid, &options) {
            // It may be another process that has the number by now.
            Ok(observer) if has_ended(until) => {
                observer.end();
                None
            }
            Ok(mut observer) => {
                let variables = observer.program_arguments();
                word.observed(&variables);
                // A static program waits at its exec for this thread.
                observer.enter();
                // Beside the program, which no longer waits.
                if tasks.are_few() {
                    observer.end();
                    return None;
                }
                if tasks.to_spare() == 0 {
                    observer.spare_tasks();
                }
                if let Err(error) = observer.keep_within(Cgroups::of(groups)) {
                    observer.end();
                    self.listener.note(&format!("not observed: {}", chain(&error)));
                    return None;
                }
                // Not before: on a busy machine, threads that begin keep this one from its processor. The one that tries the device mostly waits for it.
                self.guess(fetch, tasks, true);
                let mut following = Following { beside: self, persisting, fetch };
                let observation = observer.follow_with(until, &mut following);
                following.fetch.end_dense();
                let bytes = following.fetch.dense_bytes;
                if bytes > 0 {
                    self.listener
                        .note(&format!("read {:.1} MB ahead, near pages that it used", bytes as f64 / 1e6));
                }
                self.listener.note(&observed(&observation));
                Some(observation)
            }
            Err(error) => {
                word.refused(&format!("{}\n  try: prepage doctor", chain(&error)));
                None
            }
        }
    }

    /// Until the start is over, its time is up, or somebody ends what the program's service, container or session has left
    /// running: what was seen until then is written before this process ends, too.
    fn until(&self) -> Option<Until> {
        let until = match self.process {
            Some(process) => process.try_clone_to_owned().map(|process| Until::new(process, WINDOW)),
            None => Until::ended_or(self.context.pid, WINDOW),
        };
        let why = match until {
            // A program that has all in memory may take less time than the look at its profile, and one that has waited for word in vain less than a
            // file system that did not answer. Then another process may have its number.
            Ok(until) if has_ended(&until) => ENDED.into(),
            Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => ENDED.into(),
            Err(error) => chain(&error),
            Ok(until) => {
                return Some(match Signals::take_over(&ENDING) {
                    Ok(signals) => until.or_readable(signals.into_fd()),
                    Err(_) => until,
                });
            }
        };
        self.listener.say(&format!("nothing prefetched: {why}"));
        None
    }

    /// There is nobody to tell of a failure any more: the streams are the program's. The store stays as it was, and the next
    /// start finds what it lacks, before it is observed.
    fn persist(&self, persisting: &mut Persisting<'_>, shown: &Shown) {
        if self.options.learn && shown.is_anything() {
            match persisting.persist(shown) {
                Ok(()) | Err(StoreError::Busy { .. }) => {}
                Err(_) => self.stores.note_refused(Layer::User),
            }
        }
    }

    /// Where what this start shows is written.
    fn persisting(&self) -> Persisting<'_> {
        Persisting::new(self.stores, &self.context.key, Layer::User)
    }

    /// Lets a prefetch come to its end, unless the program has come to its own, and tells what it did, behind `lead`.
    fn finish(&self, fetch: &mut Fetch, until: &Until, profile: &Profile, cut: &[LeftOut], lead: &str) {
        let since = Instant::now();
        while let Some(engine) = &fetch.engine
            && !engine.wait_for(FETCH_LOOK)
            && since.elapsed() < FETCH_WAIT
            && !until.wait_for(Duration::ZERO)
        {}
        fetch.let_go();
        let outcome = fetch.outcome();
        let account = account(profile, &outcome, &left_out(profile, &outcome.skipped, cut));
        self.listener.say(&format!("{lead}{account}"));
    }
}

/// What is read for a start, until it is let go: when the program has ended, the file systems that it used can be unmounted.
#[derive(Default)]
struct Fetch {
    /// Whether it is still to be guessed what the program is likely to use.
    is_to_guess: bool,
    guessing: Option<Guessing>,
    /// Whether that was still under way when the program had ended.
    guess_is_late: bool,
    /// What was guessed by the executable's other roles.
    guess: Option<Profile>,
    engine: Option<Engine>,
    /// Where nothing is known of the program, what it is likely to use next is read by what it has used.
    dense: Option<DenseReads>,
    /// What was asked for in this way, once that has ended.
    dense_bytes: u64,
    /// What the engine did that was let go.
    outcome: Prefetched,
}

impl Fetch {
    /// What the engine has done so far.
    fn outcome(&self) -> Prefetched {
        self.engine.as_ref().map_or_else(|| self.outcome.clone(), Engine::outcome)
    }

    /// Takes what was guessed, once it is there.
    fn take_guess(&mut self) {
        if let Some((profile, engine)) = self.guessing.as_ref().and_then(Guessing::take) {
            self.end_dense();
            (self.guess, self.engine) = (Some(profile), Some(engine));
        }
    }

    /// Ends what is read by what was used.
    fn end_dense(&mut self) {
        if let Some(dense) = self.dense.take() {
            self.dense_bytes = dense.bytes();
        }
    }

    /// Ends it if the program has ended, or its start was cut short.
    fn let_go_after(&mut self, until: &Until) {
        if until.has_come_to_an_end() {
            self.let_go();
        }
    }

    /// Ends it. Its files are closed as soon as each of its threads is done with the read that it is at.
    fn let_go(&mut self) {
        self.take_guess();
        self.guess_is_late |= self.guessing.take().is_some_and(|guess| guess.is_under_way());
        self.dense = None;
        if let Some(engine) = self.engine.take() {
            engine.cancel();
            self.outcome = engine.outcome();
        }
    }
}

/// What is done about an observed start while it goes on.
struct Following<'a, 'b> {
    beside: &'a Beside<'a>,
    persisting: &'a mut Persisting<'b>,
    fetch: &'a mut Fetch,
}

impl Follower for Following<'_, '_> {
    fn wants_pages(&self) -> bool {
        self.fetch.dense.as_ref().is_some_and(|dense| !dense.is_over())
    }

    fn used(&mut self, place: FileIndex, file: &Seen, page: PageIndex) {
        if let Some(dense) = &mut self.fetch.dense {
            dense.used(place, file, page);
        }
    }

    fn look(&mut self, _last: bool, _: &mut Sightings) {
        self.fetch.take_guess();
    }

    fn wants_so_far(&self) -> bool {
        self.beside.options.learn
    }

    fn so_far(&mut self, seen: &Observation) {
        let shown = Shown { observation: Some(seen.clone()), ..Shown::default() };
        // As in [`Beside::persist`]; and the end of the start is still to come.
        let _ = self.persisting.persist_so_far(&shown);
    }

    fn ended(&mut self) {
        self.fetch.end_dense();
        self.fetch.let_go();
    }
}

/// Whether the program has ended.
fn has_ended(until: &Until) -> bool {
    until.wait_for(Duration::ZERO) && until.ended_ns().is_some()
}

/// One line: why nothing is prefetched of `profile`.
fn in_memory(profile: &Profile, skipped: &[(usize, Skipped)], cut: &[LeftOut]) -> String {
    let left = left_out(profile, skipped, cut);
    with_left_out("nothing prefetched: what is there is in memory already", &left)
}

/// Files of `profile` that hold something else now, and mapped ones that are gone: a library has another name after an upgrade.
fn changed(profile: &Profile, outcome: &Prefetched) -> Vec<(String, Fingerprint)> {
    let skipped = outcome.skipped.iter().filter_map(|(at, why)| Some((profile.files.get(*at)?, why)));
    let changed = skipped.filter(|(file, why)| match why {
        Skipped::Changed => true,
        Skipped::Missing => file.extents.iter().any(|extent| !extent.by_read),
        _ => false,
    });
    changed.map(|(file, _)| (file.path.clone(), file.fingerprint.clone())).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use prepage_core::PageRange;
    use prepage_core::profile::{Extent, ProfiledFile};
    use prepage_profiles::ProgramKey;
    use prepage_profiles::identity::profiled;
    use prepage_testing::wait_until;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    /// The start of `path` by process `of`.
    fn context(of: &std::process::Child, path: &str) -> StartContext {
        let executable = Path::new(path).canonicalize().unwrap();
        StartContext::new(of.id(), executable, ProgramKey::of(&[path.into()]).unwrap())
    }

    fn beside<'a>(
        context: &'a StartContext,
        stores: &'a Stores,
        options: &'a LaunchOptions,
        listener: Listener,
    ) -> Beside<'a> {
        Beside { context, process: None, stores, options, is_kept: true, listener }
    }

    /// Of the first page of the file at `path`.
    fn profile_of(path: &Path) -> Profile {
        Profile { files: vec![profiled(path, [0]).unwrap()], ..Profile::default() }
    }

    fn is_open(path: &Path) -> bool {
        let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|target| target == path)
    }

    #[test]
    fn whoever_wants_to_hear_is_told_of_a_program_that_has_ended_already() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut program = Command::new("true").spawn().unwrap();
        program.wait().unwrap();
        let context = context(&program, "/bin/true");
        let (stores, options) = (Stores::at(dir.path().into()), LaunchOptions::default());
        for is_known in [true, false] {
            let (mut read, write) = std::io::pipe().unwrap();
            let listener = Listener::to(Some(write.into()));
            let beside = beside(&context, &stores, &options, listener);
            match is_known {
                true => {
                    let found = FoundProfile { profile: Profile::default(), layer: Layer::User };
                    beside.known(&found, &[], false, None, |_| true);
                }
                false => beside.unknown(None),
            }
            drop(beside);
            let mut heard = String::new();
            std::io::Read::read_to_string(&mut read, &mut heard).unwrap();
            assert_eq!(heard, "prepage: nothing prefetched: the program has ended already\n");
        }
    }

    /// Where a file system does not answer, the program does not wait, and its number may be given again before anybody looks.
    #[test]
    fn a_process_that_has_got_the_number_of_the_program_is_left_alone() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut program = Command::new("true").spawn().unwrap();
        let process = pidfd_open(Pid::from_child(&program), PidfdFlags::empty()).unwrap();
        program.wait().unwrap();
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let context = context(&other, "/bin/cat");
        let (stores, options) = (Stores::at(dir.path().into()), LaunchOptions::default());
        let beside = Beside {
            process: Some(process.as_fd()),
            ..beside(&context, &stores, &options, Listener::to(None))
        };
        assert!(beside.until().is_none());
        // It may end at any time.
        let until = Until::new(process.try_clone().unwrap(), WINDOW);
        let (_from, to) = std::io::pipe().unwrap();
        let groups: LazyCell<Memberships> = LazyCell::new(Memberships::of_process);
        let tasks = LazyCell::new(|| Tasks::left(&groups));
        let (mut persisting, mut fetch) = (beside.persisting(), Fetch::default());
        let observed =
            beside.observe(Word::to(to.into()), &until, (&groups, &tasks), &mut persisting, &mut fetch);
        assert!(observed.is_none());
        assert!(other.try_wait().unwrap().is_none());
        drop(other.stdin.take());
        other.wait().unwrap();
    }

    /// A look at what is in memory would wait for one file after the other.
    #[test]
    fn where_the_profile_was_read_from_the_device_the_start_is_a_cold_one() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().canonicalize().unwrap().join("data");
        std::fs::write(&path, vec![1; 4096]).unwrap();
        let found = FoundProfile { profile: profile_of(&path), layer: Layer::User };
        let (stores, options) = (Stores::at(dir.path().into()), LaunchOptions::default());
        for is_cold in [false, true] {
            let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let context = context(&program, "/bin/cat");
            let beside = Beside { is_kept: false, ..beside(&context, &stores, &options, Listener::to(None)) };
            let mut taken_for_warm = None;
            let stdin = program.stdin.take();
            let (_from, to) = std::io::pipe().unwrap();
            beside.known(&found, &[], is_cold, Some(Word::to(to.into())), |is_warm| {
                taken_for_warm = Some(is_warm);
                drop(stdin);
                false
            });
            assert_eq!(taken_for_warm, Some(!is_cold));
            program.wait().unwrap();
        }
    }

    #[test]
    fn whoever_wants_to_hear_is_told_of_a_guess_that_comes_too_late() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let context = context(&program, "/bin/cat");
        let until = Until::ended_or(program.id(), WINDOW).unwrap();
        drop(program.stdin.take());
        until.wait();
        let (stores, options) = (Stores::at(dir.path().into()), LaunchOptions::default());
        let (mut read, write) = std::io::pipe().unwrap();
        let listener = Listener::to(Some(write.into()));
        let beside = beside(&context, &stores, &options, listener);
        let mut fetch = Fetch { guessing: Some(Guessing::under_way()), ..Fetch::default() };
        // As whoever follows an observed start hears first.
        fetch.let_go();
        beside.finish_guess(&mut fetch, &until);
        drop(beside);
        let mut heard = String::new();
        std::io::Read::read_to_string(&mut read, &mut heard).unwrap();
        assert!(heard.contains("before all was looked up that tells what it is likely to use"), "{heard}");
        program.wait().unwrap();
    }

    #[test]
    fn a_library_that_is_gone_is_a_change_and_a_file_that_was_read_is_none() {
        let file = |path: &str, by_read| {
            let pages = PageRange::new(PageIndex(0), PageIndex(1));
            let extents = vec![Extent { by_read, ..Extent::new(pages, 0) }];
            ProfiledFile { path: path.into(), extents, ..ProfiledFile::default() }
        };
        let files = vec![file("/lib/x.so.1", false), file("/tmp/read", true), file("/lib/y.so", false)];
        let profile = Profile { files, ..Profile::default() };
        let found = |skipped| {
            let changed = changed(&profile, &Prefetched { skipped, ..Prefetched::default() });
            changed.into_iter().map(|(path, _)| path).collect::<Vec<_>>()
        };
        let missing = (0..2).map(|at| (at, Skipped::Missing)).collect();
        assert_eq!(found(missing), ["/lib/x.so.1"]);
        assert_eq!(found(vec![(1, Skipped::Changed), (2, Skipped::Denied)]), ["/tmp/read"]);
    }

    #[test]
    fn no_file_of_the_program_is_held_once_it_has_ended() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = dir.path().canonicalize().unwrap().join("data");
        std::fs::write(&path, vec![1; 4096]).unwrap();
        let engine = Engine::new(profile_of(&path), &Default::default());
        engine.open_sample();
        let mut fetch = Fetch { engine: Some(engine), ..Fetch::default() };
        let mut program = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let until = Until::ended_or(program.id(), WINDOW).unwrap();
        until.wait_for(Duration::ZERO);
        fetch.let_go_after(&until);
        assert!(is_open(&path), "the program runs, and the file is still to be read");
        drop(program.stdin.take());
        until.wait();
        fetch.let_go_after(&until);
        wait_until(|| !is_open(&path), "its last thread does not end");
        assert_eq!(fetch.outcome().skipped, []);
        program.wait().unwrap();
    }
}
