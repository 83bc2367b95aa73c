//! What happens beside a program that was started: fetch, observe, persist.
//!
//! ```text
//!  Choice ─► Engine (threads of its own) ──────────────┐
//!  Observer ─► Observation, or else ─► Progress ───────┴─► persist
//! ```

use std::time::Duration;

use prepage_core::profile::bounds::LeftOut;
use prepage_core::profile::gain::Turn;
use prepage_core::profile::merge::shared;
use prepage_core::profile::observation::Observation;
use prepage_core::profile::{ColdStart, Fingerprint, Profile};
use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_observe::sightings::{Place, Seen};
use prepage_observe::{Follower, ObserveOptions, Observer, Until};
use prepage_profiles::identity::Skipped;
use prepage_profiles::{Layer, Stores};
use prepage_sys::scheduling;
use prepage_sys::signals::{ENDING, Signals};
use rustix::process::{Resource, getrlimit, setrlimit};

use crate::account::{Told, account, left_out, observed, with_left_out};
use crate::calibrate::cache::Cache;
use crate::choose::Choice;
use crate::clock;
use crate::dense::DenseReads;
use crate::doctor::chain;
use crate::engine::{Engine, Outcome, device_of};
use crate::first_start;
use crate::launch::{LaunchOptions, Word};
use crate::memory::Budget;
use crate::persist::{Persisting, Shown};
use crate::progress::Progress;
use crate::start::StartContext;

/// How long a start is served at most. Programs that run on are past their start by then.
const WINDOW: Duration = Duration::from_secs(30);

/// What is still on its way when the start is over is waited for no longer than this: a lookup may hang on a dead network
/// file system.
const FETCH_WAIT: Duration = Duration::from_secs(10);

/// Disk faults after which a cache that looked warm is taken for a cold one.
const WARM_DISK_FAULTS_MAX: u64 = 4;

/// Longer starts do other things than to start, and their time says little about prefetching.
const SHORT_NS: u64 = 5_000_000_000;

/// The profiles of the same executable in other roles that a start without a profile goes by: those written last, enough to
/// show what most have in common, and soon read.
const RELATIVES_MAX: usize = 8;

/// A start, and how it is to be served.
pub(crate) struct Beside<'a> {
    pub(crate) context: &'a StartContext,
    pub(crate) stores: &'a Stores,
    pub(crate) options: &'a LaunchOptions,
    /// Whether what this start shows is kept.
    pub(crate) is_kept: bool,
    pub(crate) told: Told,
}

impl Beside<'_> {
    /// Serves the start of a program with a profile, of which `cut` was cut off. The program waits for `word` where it
    /// is observed.
    pub(crate) fn known(&self, profile: &Profile, cut: &[LeftOut], word: Option<Word>) {
        let Some(until) = &self.until() else { return };
        allow_many_files();
        let choice = Choice::new(profile, self.options, self.is_kept);
        let mut engine = Engine::new(choice.planned.clone(), &choice.figures);
        engine.keep_within(Budget::of_process());
        let is_warm = engine.is_warm();
        let was_cold = choice.turn != Turn::Prefetch && engine.is_cold();
        let read_before = own_read_bytes();
        let fetch = || match choice.turn {
            Turn::Prefetch => engine.start(),
            Turn::HoldOut | Turn::Off => self.told.say(choice.turn_in_words()),
        };
        let mut progress = Progress::new(self.context.pid, until);
        let mut persisting = self.persisting();
        if !is_warm {
            fetch();
        } else if word.is_none() {
            if self.told.is_heard() && self.options.prefetch {
                let left = left_out(profile, &engine.look_at_files(), cut);
                self.told
                    .say(&with_left_out("nothing prefetched: what is there is in memory already", &left));
            }
            if progress.follow(WARM_DISK_FAULTS_MAX) {
                let changed = changed(profile, &engine.outcome());
                self.persist(&mut persisting, &Shown { changed, ..Shown::default() });
                return;
            }
            fetch();
        }
        let observation = word.and_then(|word| self.observe(word, until, &mut persisting, false));
        if observation.is_none() {
            progress.follow(u64::MAX);
        }
        // An observation tells of what has changed by itself.
        let changed = if observation.is_none() { changed(profile, &engine.outcome()) } else { Vec::new() };
        let mut shown = Shown { observation, changed, ..Shown::default() };
        // How long it took is not known of a start that was cut short.
        if self.is_kept && !until.was_stopped() {
            progress.look();
            let read_pages = own_read_bytes().saturating_sub(read_before) / PAGE_SIZE;
            let is_prefetched = choice.turn == Turn::Prefetch;
            let is_cold = if is_prefetched {
                // Where the program was quicker, it read what was to be prefetched.
                2 * (read_pages + progress.disk_faults) * PAGE_SIZE >= engine.outcome().requested_bytes.max(1)
            } else {
                was_cold
            };
            shown.cold_start = is_cold.then(|| ColdStart {
                unix_s: clock::unix_s(),
                device: choice.device,
                held_out: !is_prefetched,
                observed: shown.observation.is_some(),
                took_us: self.took_us(until, &progress),
                prefetched_pages: u32::try_from(read_pages).unwrap_or(u32::MAX),
                missed_pages: u32::try_from(progress.disk_faults).unwrap_or(u32::MAX),
                wasted_pages: match &shown.observation {
                    Some(observation) if is_prefetched => choice.pages_unused_in(observation),
                    _ => 0,
                },
            });
        }
        self.persist(&mut persisting, &shown);
        self.finish(&engine, until, profile, cut);
    }

    /// A program without a profile gets what the executable's other roles have in common, or else what page maps came with
    /// its files.
    pub(crate) fn unknown(&self, word: Option<Word>) {
        let Some(until) = &self.until() else { return };
        allow_many_files();
        let guess = if self.options.prefetch { self.guess() } else { Profile::default() };
        let engine = (!guess.files.is_empty()).then(|| {
            let mut engine = Engine::new(guess.clone(), &device_of(&guess));
            engine.keep_within(Budget::of_process());
            engine.start();
            engine
        });
        // Where the start is observed, what was seen is told as well.
        let first_told = if word.is_some() { self.told.kept() } else { self.told.clone() };
        let maps = (self.options.prefetch && engine.is_none())
            .then(|| first_start::begin(&self.context.key.program, self.stores, &first_told));
        let goes_by_density = self.options.prefetch && engine.is_none();
        let mut persisting = self.persisting();
        match word.and_then(|word| self.observe(word, until, &mut persisting, goes_by_density)) {
            Some(observation) => {
                let shown = Shown { observation: Some(observation), ..Shown::default() };
                self.persist(&mut persisting, &shown);
            }
            None => until.wait(),
        }
        if let Some(engine) = engine {
            self.finish(&engine, until, &guess, &[]);
        }
        drop(maps);
    }

    /// What the executable's other roles have in common.
    fn guess(&self) -> Profile {
        shared(&self.stores.relatives(&self.context.key, RELATIVES_MAX))
    }

    /// Lets the program go, observed, and observes it to the end of its start; `None` where that is refused. What it is likely to use
    /// next is read meanwhile where the start `goes_by_density`.
    fn observe(
        &self,
        word: Word,
        until: &Until,
        persisting: &mut Persisting<'_>,
        goes_by_density: bool,
    ) -> Option<Observation> {
        let options = ObserveOptions {
            program: self.context.executable.clone(),
            own_audit: std::env::var_os("LD_AUDIT"),
            ..ObserveOptions::default()
        };
        match Observer::attach(self.context.pid, &options) {
            Ok(observer) => {
                let variables = observer.program_arguments();
                word.observed(&variables);
                let program = self.context.key.program.as_ref();
                let dense = goes_by_density.then(|| DenseReads::begin(program, Cache::of_user().as_ref()));
                let mut following = Following { beside: self, persisting, dense: dense.flatten() };
                // The program comes first. Where that is refused, they share the processors.
                let _ = scheduling::give_way();
                let observation = observer.follow_with(until, &mut following);
                if let Some(bytes) = following.dense.map(|dense| dense.bytes()).filter(|bytes| *bytes > 0) {
                    self.told.note(&format!("read {:.1} MB ahead by what it used", bytes as f64 / 1e6));
                }
                self.told.note(&observed(&observation));
                Some(observation)
            }
            Err(error) => {
                word.refused(&format!(
                    "{}\n  try: {}",
                    chain(&error),
                    error.remedy().unwrap_or("prepage doctor")
                ));
                None
            }
        }
    }

    /// Until the start is over, its time is up, or somebody ends what the program's service, container or session has left
    /// running: what was seen until then is written before this process ends, too.
    fn until(&self) -> Option<Until> {
        let until = Until::ended_or(self.context.pid, WINDOW).ok()?;
        Some(match Signals::take_over(&ENDING) {
            Ok(signals) => until.or_readable(signals.into_fd()),
            Err(_) => until,
        })
    }

    /// There is nobody to tell of a failure any more: the streams are the program's. The store stays as it was, and the next
    /// start finds what it lacks.
    fn persist(&self, persisting: &mut Persisting<'_>, shown: &Shown) {
        if self.options.learn && shown.is_anything() {
            let _ = persisting.persist(shown);
        }
    }

    /// Where what this start shows is written.
    fn persisting(&self) -> Persisting<'_> {
        Persisting::new(self.stores, &self.context.key, Layer::User)
    }

    /// Lets a prefetch come to its end, unless the program has come to its own, and tells what it did.
    fn finish(&self, engine: &Engine, until: &Until, profile: &Profile, cut: &[LeftOut]) {
        if until.ended_ns().is_some() || until.was_stopped() {
            engine.cancel();
        }
        engine.wait_for(FETCH_WAIT);
        engine.cancel();
        let outcome = engine.outcome();
        self.told.say(&account(profile, &outcome, &left_out(profile, &outcome.skipped, cut)));
    }

    /// How long the start took: to the end of a short program, else to its last wait for the disk.
    fn took_us(&self, until: &Until, progress: &Progress) -> u32 {
        let since_began = |ns: u64| ns.saturating_sub(self.context.began_ns);
        let ended_ns = until.ended_ns().map(since_began).filter(|ns| *ns < SHORT_NS);
        let took_ns = ended_ns.unwrap_or(since_began(progress.last_wait_ns));
        u32::try_from(took_ns / 1000).unwrap_or(u32::MAX)
    }
}

/// What is done about an observed start while it goes on.
struct Following<'a, 'b> {
    beside: &'a Beside<'a>,
    persisting: &'a mut Persisting<'b>,
    dense: Option<DenseReads>,
}

impl Follower for Following<'_, '_> {
    fn wants_pages(&self) -> bool {
        self.dense.as_ref().is_some_and(|dense| !dense.is_over())
    }

    fn used(&mut self, place: Place, file: &Seen, page: PageIndex) {
        if let Some(dense) = &mut self.dense {
            dense.used(place, file, page);
        }
    }

    fn so_far(&mut self, seen: &Observation) {
        let shown = Shown { observation: Some(seen.clone()), ..Shown::default() };
        self.beside.persist(self.persisting, &shown);
    }
}

/// Files of `profile` that hold something else now.
fn changed(profile: &Profile, outcome: &Outcome) -> Vec<(String, Fingerprint)> {
    let changed = outcome.skipped.iter().filter(|(_, why)| *why == Skipped::Changed);
    let files = changed.filter_map(|&(at, _)| profile.files.get(at));
    files.map(|file| (file.path.clone(), file.fingerprint.clone())).collect()
}

/// Bytes that this process has had read from devices (proc_pid_io(5)); 0 where the kernel does not count them.
fn own_read_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// Lets this process (never the program) keep all files of a profile open: the usual soft limit is 1024, for the sake of
/// programs that use select(2).
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}
