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

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use prepage_core::bounds::{LeftOut, bound};
use prepage_core::profile::{Evidence, Profile, ProfiledFile, Touches};
use prepage_core::{PageIndex, PageRange};
use prepage_sys::beside::{allow_inspection_by, run_beside_with};
use prepage_trace::now_ns;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, Resource, getrlimit, pidfd_open, setrlimit};

use crate::account::{Told, account, left_out, with_left_out};
use crate::doctor::chain;
use crate::engine::{Engine, device_of};
use crate::first_start;
use crate::keep::{Origin, keep};
use crate::memory::Budget;
use crate::program;
use crate::sightings::Findings;
use crate::store::{ProfileKey, Store, StoreError};
use crate::watch::{Scope, Until, Watch};

/// How long a program without a profile waits at most until it is watched. Where all is well that takes a fraction
/// of a millisecond; a machine where it does not must still start its programs.
const WATCHED_WAIT: Duration = Duration::from_millis(500);

/// How long a start is watched. Programs that run on are past their start by then.
const WATCH_WINDOW: Duration = Duration::from_secs(30);

/// Disk faults after which a cache that looked warm is taken for a cold one.
const WARM_DISK_FAULTS_MAX: u64 = 4;

/// Stalls are watched in one of this many prefetched starts: looking for them takes some percent of such a start, and
/// finds little that is new.
const STALL_WATCH_EVERY: u64 = 8;

/// How a program is to be launched.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Whether to learn from this start.
    pub learn: bool,
    /// Whether to prefetch in this start.
    pub prefetch: bool,
    /// Whether to say on standard error, beside the program, what was prefetched and what was left out.
    pub verbose: bool,
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
    let launch = Launch { target: std::process::id(), command, key, store, options };
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
    command: &'a [OsString],
    key: ProfileKey,
    store: Store,
    options: &'a LaunchOptions,
}

impl Launch<'_> {
    /// There is a profile: the program need not wait.
    fn known(&self, bytes: &[u8]) -> Option<String> {
        let started = run_beside_with(self.listener(), |mut kept| {
            let told = Told::to(kept.pop());
            allow_many_files();
            match self.store.decode(&self.key, bytes) {
                Ok(Some(mut profile)) => {
                    let cut = bound(&mut profile);
                    self.prefetch(&profile, &cut, &told);
                }
                // Another program's, or of a form that makes no sense: learned anew, and replaced.
                Ok(None) | Err(_) => self.learn(None, told),
            }
        });
        started.err().map(|error| format!("no prefetch: cannot start a process: {error}"))
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
        let started =
            pipe_with(PipeFlags::CLOEXEC).map_err(io::Error::from).and_then(|(answer, to_program)| {
                let keep = std::iter::once(to_program).chain(self.listener()).collect();
                run_beside_with(keep, |kept| {
                    let mut kept = kept.into_iter();
                    let to_program = kept.next();
                    self.learn(to_program, Told::to(kept.next()));
                })?;
                Ok(answer)
            });
        match started.map(receive) {
            Err(error) => refused(format!("cannot start a process: {error}")),
            Ok(Err(why)) => refused(why),
            Ok(Ok(())) if damaged.is_some() => Some(format!("{before}learning anew")),
            Ok(Ok(())) => {
                Some(format!("no profile of {} yet: learning from this start", one_line(&self.key.role)))
            }
        }
    }

    /// There is no profile, and none is wanted. What came with the files can be prefetched all the same.
    fn unknown_and_not_learned(&self, damaged: Option<String>) -> Option<String> {
        if self.options.prefetch {
            // Without it the program starts as it would anyway.
            let _ = run_beside_with(self.listener(), |mut kept| {
                allow_many_files();
                let Some(until) = self.until() else { return };
                let _prefetch = first_start::begin(&self.key.program, Told::to(kept.pop()));
                until.wait();
            });
        }
        damaged
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
        let prefetch = self.options.prefetch;
        match Watch::attach(self.target, Scope::EveryFault) {
            Ok(watch) => {
                tell("");
                // Faults tell which pages are used whether these were read ahead or not.
                let _prefetch = prefetch.then(|| first_start::begin(&self.key.program, told));
                self.keep(watch.follow(&until));
            }
            Err(error) => {
                tell(&format!("{}\n  try: prepage doctor", chain(&error)));
                let _prefetch = prefetch.then(|| first_start::begin(&self.key.program, told));
                until.wait();
            }
        }
    }

    /// Beside a program with a profile.
    fn prefetch(&self, profile: &Profile, cut: &[LeftOut], told: &Told) {
        let mut engine = Engine::new(profile, &device_of(profile));
        let Some(until) = self.until() else { return };
        engine.keep_within(Budget::of_process());
        if engine.is_warm() {
            if told.is_heard() && self.options.prefetch {
                let left = left_out(profile, &engine.look_at_files(), cut);
                told.say(&with_left_out("nothing prefetched: what is there is in memory already", &left));
            }
            if self.stays_warm(&until) {
                return;
            }
        }
        std::thread::scope(|scope| {
            if self.options.prefetch {
                scope.spawn(|| {
                    let outcome = engine.run();
                    told.say(&account(profile, &outcome, &left_out(profile, &outcome.skipped, cut)));
                });
            }
            let sampled = now_ns().is_multiple_of(STALL_WATCH_EVERY);
            let watched = if sampled { Scope::DiskFaultsAndStalls } else { Scope::DiskFaults };
            if self.options.learn
                && let Ok(watch) = Watch::attach(self.target, watched)
            {
                let findings = watch.follow(&until);
                engine.cancel();
                self.keep(unknown_to(profile, findings));
            } else {
                until.wait();
                engine.cancel();
            }
        });
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

/// What of `findings` is not in `profile`.
fn unknown_to(profile: &Profile, findings: Findings) -> Findings {
    let known_files: HashMap<&str, &ProfiledFile> =
        profile.files.iter().map(|file| (file.path.as_str(), file)).collect();
    let known_names: HashMap<&str, bool> =
        profile.lookups.iter().map(|lookup| (lookup.path.as_str(), lookup.list)).collect();
    let exact = profile.history.exact_runs > 0;
    // A fault on a page of the profile only came before its prefetch. Neighbours of a fault are worth a guess where
    // all is guessed, and not where the pages that are touched are known one by one.
    let news = |file: ProfiledFile| {
        let known = known_files.get(file.path.as_str()).filter(|known| known.fingerprint == file.fingerprint);
        let mut pages = Touches::default();
        let mut seen = false;
        for extent in file.extents.iter().filter(|extent| !exact || extent.evidence != Evidence::Near) {
            for page in extent.range.iter().filter(|page| known.is_none_or(|known| !known.contains(*page))) {
                seen |= extent.evidence != Evidence::Near;
                let page = PageRange::new(page, PageIndex(page.0 + 1));
                if extent.by_read {
                    pages.read_range(page, extent.rank, extent.evidence);
                } else {
                    pages.touch_range(page, extent.rank, extent.evidence);
                }
            }
        }
        seen.then(|| ProfiledFile { extents: pages.extents(), ..file })
    };
    Findings {
        files: findings.files.into_iter().filter_map(news).collect(),
        lookups: findings
            .lookups
            .into_iter()
            .filter(|lookup| known_names.get(lookup.path.as_str()).is_none_or(|&list| lookup.list && !list))
            .collect(),
        unnamed_pages: findings.unnamed_pages,
    }
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
