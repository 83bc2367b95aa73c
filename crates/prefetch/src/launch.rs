//! Starting a program with its pages already on their way.
//!
//! ```text
//!  prepage run ─ reads the profile ─┬─ becomes the program (exec)
//!                                   └─ beside it: prefetches ─ watches ─ updates the profile
//! ```
//! The process that was started *is* the program from the exec on: same process id, same parent, streams, signals
//! and exit status, and nothing of prepage between it and its user. What prefetches and learns lives beside it
//! ([`prepage_sys::beside`]) and ends with it. Where there is no profile yet, the program waits until it is watched;
//! where there is one, it waits for nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::Builder;
use std::time::Duration;

use prepage_core::bounds::{LeftOut, bound};
use prepage_core::cold_start::ColdStart;
use prepage_core::gain::Turn;
use prepage_core::profile::Profile;
use prepage_core::profile_file;
use prepage_core::shared::shared;
use prepage_core::{PAGE_SIZE, trial};
use prepage_sys::beside::{allow_inspection_by, run_beside_with};
use prepage_trace::now_ns;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open, setrlimit};

use crate::account::{Told, account, left_out, with_left_out};
use crate::attempt::Attempt;
use crate::cold::drops;
use crate::doctor::chain;
use crate::engine::{Engine, device_of};
use crate::first_start;
use crate::keep::{Origin, Started, keep, keep_start};
use crate::memory::Budget;
use crate::news::{seen_pages, unknown_to};
use crate::outcome::{self, Tried};
use crate::program;
use crate::sightings::Findings;
use crate::store::{ProfileKey, Store, StoreError};
use crate::watch::{Scope, Until, Watch, Watched};

/// How long a program without a profile waits at most until it is watched. Where all is well that takes a fraction
/// of a millisecond; a machine where it does not must still start its programs.
const WATCHED_WAIT: Duration = Duration::from_millis(500);

/// How long a start is watched. Programs that run on are past their start by then.
const WATCH_WINDOW: Duration = Duration::from_secs(30);

/// Disk faults after which a cache that looked warm is taken for a cold one.
const WARM_DISK_FAULTS_MAX: u64 = 4;

/// How a program is to be launched.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Whether to learn from this start.
    pub learn: bool,
    /// Whether to prefetch in this start.
    pub prefetch: bool,
    /// Whether to say on standard error, beside the program, what was prefetched and what was left out.
    pub verbose: bool,
    /// Whether this start may be one of the few in which nothing is prefetched, to see what prefetching is worth.
    pub hold_out: bool,
    /// A known profile is written at most once in this time.
    pub write_interval: Duration,
}

/// What a program does in most starts.
impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            learn: true,
            prefetch: true,
            verbose: false,
            hold_out: true,
            write_interval: Duration::from_secs(60),
        }
    }
}

/// Starts what `command` needs beside this process and returns what its user should be told, if anything. The
/// caller then becomes the program ([`prepage_sys::exec::exec`]), whatever this returns.
pub fn prepare(command: &[OsString], options: &LaunchOptions) -> Option<String> {
    // What is no program gets its message from the exec that fails.
    let key = program::key(command).ok()?;
    let store = match Store::of_user() {
        Ok(store) => store,
        Err(error) => return Some(format!("no prefetch: {error}")),
    };
    let began_ns = now_ns();
    let target = std::process::id();
    let launch = Launch { target, began_ns, command, key, store, options };
    match launch.store.read(&launch.key) {
        Ok(Some(bytes)) => launch.known(&bytes),
        Ok(None) => launch.unknown(None),
        Err(error @ StoreError::Unreadable { .. }) => launch.unknown(Some(chain(&error))),
        Err(error) => Some(format!("no prefetch: {}\n  try: {}", chain(&error), error.remedy())),
    }
}

struct Launch<'a> {
    /// Process id of the program.
    target: u32,
    /// About when it is executed, on the clock of [`now_ns`].
    began_ns: u64,
    command: &'a [OsString],
    key: ProfileKey,
    store: Store,
    options: &'a LaunchOptions,
}

impl Launch<'_> {
    /// There is a profile: the program need not wait, unless every fault of this start is to be seen.
    fn known(&self, bytes: &[u8]) -> Option<String> {
        let learns = self.learns();
        let look = learns && profile_file::history(bytes).is_some_and(|history| history.looks_due > 0);
        let prefetch = |to_program: Option<OwnedFd>, told: Told| {
            allow_many_files();
            match self.store.decode(&self.key, bytes) {
                Ok(Some(mut profile)) => {
                    let cut = bound(&mut profile);
                    self.prefetch(&profile, learns, to_program, &cut, &told);
                }
                // Another program's, or of a form that makes no sense: learned anew and replaced, if anything is learned.
                Ok(None) | Err(_) if self.options.learn => self.learn(to_program, told),
                Ok(None) | Err(_) => self.prefetch_what_came_along(told),
            }
        };
        let started = if look {
            // Whether it can be watched or not, it is prefetched: nothing to tell.
            self.beside_and_wait(prefetch).map(drop)
        } else {
            run_beside_with(self.listener(), |mut kept| prefetch(None, Told::to(kept.pop())))
        };
        started.err().map(|error| not_started(&error))
    }

    /// There is no profile, or (`damaged`) none that can be read: this start is learned from.
    fn unknown(&self, damaged: Option<String>) -> Option<String> {
        if !self.options.learn {
            return self.unknown_and_not_learned(damaged);
        }
        let before = damaged.as_ref().map_or(String::new(), |text| format!("{text}; "));
        let refused = |why: String| Some(format!("{before}not learning: {why}"));
        // Nobody hears the process beside once the program runs: what can go wrong must be found now.
        if let Err(error) = self.store.create_with_room() {
            return refused(format!("{}\n  try: {}", chain(&error), error.remedy()));
        }
        let started = self.beside_and_wait(|to_program, told| self.learn(to_program, told));
        match started {
            Err(error) => refused(format!("cannot start a process: {error}")),
            Ok(Err(why)) => refused(why),
            Ok(Ok(())) if damaged.is_some() => Some(format!("{before}learning anew")),
            Ok(Ok(())) => {
                Some(format!("no profile of {} yet: learning from this start", one_line(&self.key.role)))
            }
        }
    }

    /// Runs `work` beside the program and waits for what it tells by the pipe it gets.
    fn beside_and_wait(&self, work: impl FnOnce(Option<OwnedFd>, Told)) -> io::Result<Result<(), String>> {
        let (answer, to_program) = pipe_with(PipeFlags::CLOEXEC)?;
        let keep = std::iter::once(to_program).chain(self.listener()).collect();
        run_beside_with(keep, |kept| {
            let mut kept = kept.into_iter();
            let to_program = kept.next();
            work(to_program, Told::to(kept.next()));
        })?;
        Ok(receive(answer))
    }

    /// There is no profile, and none is wanted. What came with the files can be prefetched all the same.
    fn unknown_and_not_learned(&self, damaged: Option<String>) -> Option<String> {
        if !self.options.prefetch {
            return damaged;
        }
        let started = run_beside_with(self.listener(), |mut kept| {
            allow_many_files();
            self.prefetch_what_came_along(Told::to(kept.pop()));
        });
        let refused = started.err().map(|error| not_started(&error));
        [damaged, refused].into_iter().flatten().reduce(|damaged, refused| format!("{damaged}; {refused}"))
    }

    /// Beside a program without profile, of which nothing is to be learned.
    fn prefetch_what_came_along(&self, told: Told) {
        let Some(until) = self.until().filter(|_| self.options.prefetch) else { return };
        let _prefetch = first_start::begin(&self.key.program, told);
        until.wait();
    }

    /// Standard error, where somebody wants to hear from the process beside.
    fn listener(&self) -> Vec<OwnedFd> {
        let copy = || std::io::stderr().as_fd().try_clone_to_owned().ok();
        self.options.verbose.then(copy).flatten().into_iter().collect()
    }

    /// Beside a program without profile.
    fn learn(&self, to_program: Option<OwnedFd>, told: Told) {
        let tell = |refusal: &str| {
            if let Some(to_program) = to_program {
                send(to_program, refusal);
            }
        };
        // Before the program is let go: one that ends at once would leave nothing to wait for.
        let Some(until) = self.until() else { return };
        match Watch::attach(self.target, Scope::EveryFault) {
            Ok(watch) => {
                tell("");
                let (guess, mut findings) = std::thread::scope(|scope| {
                    // Where no thread can be had, this start shows what the next will have ahead.
                    let guess = Builder::new().spawn_scoped(scope, || self.prefetch_guess(&until, told));
                    let findings = watch.follow(&until).findings;
                    let guess = guess.ok().and_then(|guess| guess.join().ok());
                    (guess.unwrap_or_default(), findings)
                });
                // Faults tell which pages are used whether these were read ahead or not.
                findings.add_guess(guess);
                self.keep(findings);
            }
            Err(error) => {
                tell(&format!("{}\n  try: prepage doctor", chain(&error)));
                self.prefetch_guess(&until, told);
            }
        }
    }

    /// Prefetches what the executable's other roles have in common, or what came with its files, until it is over.
    /// Returns the former; empty where there are no other roles.
    fn prefetch_guess(&self, until: &Until, told: Told) -> Profile {
        /// Those written last: enough to tell what most have in common, and soon read.
        const RELATIVES_MAX: usize = 8;
        if !self.options.prefetch {
            until.wait();
            return Profile::default();
        }
        let mut shared = shared(&self.store.relatives(&self.key, RELATIVES_MAX));
        let cut = bound(&mut shared);
        if shared.files.is_empty() {
            let _prefetch = first_start::begin(&self.key.program, told);
            until.wait();
            return shared;
        }
        allow_many_files();
        let mut engine = Engine::new(&shared, &device_of(&shared));
        engine.keep_within(Budget::of_process());
        let prefetch = || {
            let outcome = engine.run();
            let left = left_out(&shared, &outcome.skipped, &cut);
            told.say(&format!("of other calls: {}", account(&shared, &outcome, &left)));
        };
        std::thread::scope(|scope| {
            if Builder::new().spawn_scoped(scope, prefetch).is_err() {
                // The program may end before it, which then goes on to its own end.
                prefetch();
            }
            until.wait();
            engine.cancel();
        });
        shared
    }

    /// Beside a program with a profile. The program waits for `to_program` where every fault is to be seen.
    fn prefetch(
        &self,
        profile: &Profile,
        learns: bool,
        mut to_program: Option<OwnedFd>,
        cut: &[LeftOut],
        told: &Told,
    ) {
        let mut attempt = Attempt::new(profile, self.options, learns, to_program.is_some());
        let mut release = || {
            if let Some(to_program) = to_program.take() {
                send(to_program, "");
                return true;
            }
            false
        };
        let planned = std::mem::take(&mut attempt.planned);
        let mut engine = Engine::new(&planned, &attempt.figures);
        engine.leave_out(&attempt.tests);
        let Some(until) = self.until() else { return };
        engine.keep_within(Budget::of_process());
        if engine.is_warm() {
            release();
            if told.is_heard() && self.options.prefetch {
                let left = left_out(profile, &engine.look_at_files(), cut);
                told.say(&with_left_out("nothing prefetched: what is there is in memory already", &left));
            }
            if self.stays_warm(&until) {
                return;
            }
        }
        let is_prefetched = attempt.turn == Turn::Prefetch;
        let was_cold = !is_prefetched && engine.is_cold();
        let read_before = own_read_bytes();
        let run_engine = || {
            let outcome = engine.run();
            told.say(&account(profile, &outcome, &left_out(profile, &outcome.skipped, cut)));
            outcome
        };
        let look_for_missing = || (drops(), outcome::missing(profile, &attempt.tests));
        let ((drops_before, missing_before), looked, prefetch, watched) = std::thread::scope(|scope| {
            let prefetch = is_prefetched.then(|| Builder::new().spawn_scoped(scope, run_engine));
            if !is_prefetched {
                told.say(attempt.turn_in_words());
            }
            let missing = Builder::new().spawn_scoped(scope, look_for_missing);
            // Where no thread can be had, what must be done is done here, before the program is watched.
            let missing = missing.map_err(|_| look_for_missing());
            let prefetch = prefetch.map(|prefetch| prefetch.map_err(|_| run_engine()));
            let watched = learns.then(|| Watch::attach(self.target, attempt.scope));
            // Released only now: from here on nothing happens unseen.
            let looked = release() && watched.as_ref().is_some_and(Result::is_ok);
            let watched = match watched {
                Some(Ok(watch)) => Some(watch.follow(&until)),
                _ => {
                    until.wait();
                    None
                }
            };
            engine.cancel();
            let prefetch =
                prefetch.and_then(|prefetch| prefetch.map_or_else(Some, |thread| thread.join().ok()));
            let missing = missing.map_or_else(Some, |thread| thread.join().ok());
            (missing.unwrap_or_default(), looked, prefetch, watched)
        });
        let Some(watched) = watched else { return };
        let took_us = if looked { 0 } else { self.took_us(&until, &watched) };
        let read_bytes = own_read_bytes().saturating_sub(read_before);
        let waited_pages = if looked { 0 } else { seen_pages(&watched.findings) };
        // Where the program was quicker, it read what was to be prefetched.
        let read_pages = read_bytes / PAGE_SIZE + waited_pages;
        let is_cold = prefetch
            .map_or(was_cold, |prefetch| 2 * read_pages * PAGE_SIZE >= prefetch.requested_bytes.max(1));
        let nothing = Profile::default();
        let tried = Tried {
            profile,
            planned: if is_prefetched { &planned } else { &nothing },
            tests: &attempt.tests,
            missing_before: &missing_before,
            read_ahead_pages: attempt.read_ahead_pages,
            looked,
        };
        let news = unknown_to(profile, &watched.findings);
        let is_intact = || engine.is_intact() && drops() == drops_before;
        let outcome = tried.outcome(&watched, seen_pages(&news), is_intact);
        let count = |used| outcome.tests.iter().filter(|test| test.1 == used).count() as u32;
        let start = is_cold.then(|| ColdStart {
            unix_s: 0,
            device: attempt.device,
            held_out: !is_prefetched,
            took_us,
            prefetched_pages: u32::try_from(read_bytes / PAGE_SIZE).unwrap_or(u32::MAX),
            missed_pages: u32::try_from(waited_pages).unwrap_or(u32::MAX),
            tested_used_pages: count(true),
            tested_unused_pages: count(false),
            waste_permille: (1000.0 * trial::expected_waste(&planned)) as u16,
        });
        let started = Started { profile, news, outcome, start };
        // There is nobody to tell of a failure any more: see `Self::keep`.
        let _ = keep_start(&self.store, &self.key, self.command, started, self.options.write_interval);
    }

    /// How long the start took: to the end of a short program, else to its last wait for the device.
    fn took_us(&self, until: &Until, watched: &Watched) -> u32 {
        /// Longer ones do other things than to start, and their time says little about it.
        const SHORT_NS: u64 = 5_000_000_000;
        let end = until.ended_ns().filter(|end| end.saturating_sub(self.began_ns) < SHORT_NS);
        let took_ns = end.or(watched.last_wait_ns).map_or(0, |end| end.saturating_sub(self.began_ns));
        u32::try_from(took_ns / 1000).unwrap_or(u32::MAX)
    }

    /// Whether what this start shows will be kept: only then is anything tried out and watched.
    fn learns(&self) -> bool {
        self.options.learn && !self.store.was_just_written(&self.key, self.options.write_interval)
    }

    /// Waits for the end of the start as long as the program finds everything in memory. Returns false when it does
    /// not. Costs the program nothing: its fault counters are read now and then.
    fn stays_warm(&self, until: &Until) -> bool {
        let before = disk_faults(self.target);
        let mut pause = Duration::from_millis(2);
        loop {
            if until.wait_for(pause) {
                return true;
            }
            if disk_faults(self.target).saturating_sub(before) >= WARM_DISK_FAULTS_MAX {
                return false;
            }
            pause = (pause * 2).min(Duration::from_millis(100));
        }
    }

    fn until(&self) -> Option<Until> {
        let pid = Pid::from_raw(self.target as i32)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Until::new(pidfd, WATCH_WINDOW))
    }

    /// There is nobody to tell of a failure any more: the streams are the program's. The store stays as it was, and
    /// the next start says again what it lacks.
    fn keep(&self, findings: Findings) {
        let _ = keep(&self.store, &self.key, self.command, findings, Origin::Start);
    }
}

fn not_started(error: &io::Error) -> String {
    format!("no prefetch: cannot start a process: {error}")
}

/// Bytes that this process has had read from devices (proc_pid_io(5)); 0 where the kernel does not count them.
fn own_read_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("read_bytes: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// A role for a message: a script on the command line may have many lines.
fn one_line(role: &str) -> String {
    const CHARS_MAX: usize = 60;
    let shown: String = role.escape_debug().take(CHARS_MAX).collect();
    if role.chars().count() > CHARS_MAX { shown + "…" } else { shown }
}

/// Lets this process (never the program) keep all files of a profile open: the usual soft limit is 1024, for the sake of
/// programs that use select(2).
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = setrlimit(Resource::Nofile, limit);
}

/// Disk faults of process `pid` and the children it waited for: fields 12 and 13 of /proc/PID/stat, counted behind
/// the program's name.
fn disk_faults(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let behind_name = stat.rsplit(')').next().unwrap_or_default();
    let fields = behind_name.split_ascii_whitespace().skip(9).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Tells the waiting program that it is watched, or why not. Message layout: process id of the sender (4 bytes), then
/// the reason.
fn send(to: OwnedFd, refusal: &str) {
    let mut message = std::process::id().to_ne_bytes().to_vec();
    message.extend_from_slice(refusal.as_bytes());
    // Nobody listens any more when the program waited too long for us and went ahead.
    let _ = File::from(to).write_all(&message);
}

/// Waits for what [`send`] tells, or for [`WATCHED_WAIT`].
fn receive(from: OwnedFd) -> Result<(), String> {
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: WATCHED_WAIT.subsec_nanos().into() };
    let mut ready = [PollFd::new(&from, PollFlags::IN)];
    let readable = poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0);
    let mut message = Vec::new();
    if !readable || File::from(from).read_to_end(&mut message).is_err() {
        return Err(format!(
            "the process that watches did not answer within {} ms",
            WATCHED_WAIT.as_millis()
        ));
    }
    let (sender, refusal) = message.split_first_chunk().ok_or("the process that watches failed")?;
    if !refusal.is_empty() {
        return Err(String::from_utf8_lossy(refusal).into_owned());
    }
    allow_inspection_by(u32::from_ne_bytes(*sender));
    Ok(())
}
