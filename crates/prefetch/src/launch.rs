//! Starting a program with its pages already on their way.
//!
//! ```text
//!  prepage run ──┬── reads the program's first page, waits for the verdict ── becomes the program (exec)
//!                └── beside it: loads the profile ── verdict ── prefetches ── watches ── updates the profile
//! ```
//! The process that was started *is* the program from the exec on: same process id, same parent, streams, signals
//! and exit status, and nothing of prepage between it and its user. What prefetches and learns lives beside it
//! ([`prepage_sys::beside`]) and ends with it.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use prepage_core::plan::PlanOptions;
use prepage_core::profile::{Evidence, Profile, ProfiledFile};
use prepage_sys::beside::{allow_inspection_by, run_beside};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::doctor::chain;
use crate::engine::Engine;
use crate::identity::open_to_read;
use crate::keep::{Origin, keep};
use crate::memory::has_room_for;
use crate::program;
use crate::sightings::Findings;
use crate::store::{ProfileKey, Store};
use crate::watch::{Scope, Until, Watch};

/// How long the program waits at most to hear whether there is a profile: a store on a file system that hangs
/// must not keep it from starting. Where all is well the verdict takes a fraction of a millisecond.
const VERDICT_WAIT: Duration = Duration::from_millis(500);

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
}

/// What the process beside tells the one that becomes the program.
#[derive(Debug)]
enum Verdict {
    /// There is a profile.
    Known,
    /// There is none yet; this start is being learned.
    Learning,
    /// Something is to be told: what, and what can be done about it.
    Trouble(String),
}

/// Starts what `command` needs beside this process and returns what its user should be told, if anything. The
/// caller then becomes the program ([`prepage_sys::exec::exec`]), whatever this returns.
pub fn prepare(command: &[OsString], options: &LaunchOptions) -> Option<String> {
    // What is no program gets its message from the exec that fails.
    let key = program::key(command).ok()?;
    let target = std::process::id();
    let (verdict_read, verdict_write) = match rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) {
        Ok(pipe) => pipe,
        Err(error) => return Some(format!("no prefetch: cannot make a pipe: {error}")),
    };
    let beside = Beside { target, command, key: &key, options };
    if let Err(error) = run_beside(verdict_write, |verdict| beside.run(verdict)) {
        return Some(format!("no prefetch: cannot start a process: {error}"));
    }
    // The exec will read this page in any case; meanwhile the other process reads the profile.
    if let Ok(file) = open_to_read(key.program.as_ref()) {
        let _ = rustix::io::pread(&file, &mut [0u8; 1], 0);
    }
    match receive(verdict_read, VERDICT_WAIT)? {
        Verdict::Known => None,
        Verdict::Learning => Some(format!("no profile of {} yet: learning from this start", key.role)),
        Verdict::Trouble(text) => Some(text),
    }
}

/// The process beside the program.
struct Beside<'a> {
    /// Process id of the program.
    target: u32,
    command: &'a [OsString],
    key: &'a ProfileKey,
    options: &'a LaunchOptions,
}

impl Beside<'_> {
    fn run(&self, verdict: OwnedFd) {
        let store = match Store::of_user() {
            Ok(store) => store,
            Err(error) => return send(verdict, &Verdict::Trouble(format!("no prefetch: {error}"))),
        };
        match store.load(self.key) {
            Ok(Some(profile)) => self.prefetch(&store, &profile, verdict),
            Ok(None) => self.learn(&store, verdict, None),
            Err(error) => self.learn(&store, verdict, Some(chain(&error))),
        }
    }

    /// There is no profile, or (`damaged`) none that can be read.
    fn learn(&self, store: &Store, verdict: OwnedFd, damaged: Option<String>) {
        let before = damaged.as_ref().map_or(String::new(), |text| format!("{text}; "));
        let refused = |why: String| Verdict::Trouble(format!("{before}not learning: {why}"));
        if !self.options.learn {
            return send(verdict, &damaged.map_or(Verdict::Known, Verdict::Trouble));
        }
        if let Err(error) = store.create_with_room() {
            let remedy = "try: set PREPAGE_STORE to a directory of your own";
            return send(verdict, &refused(format!("{}\n  {remedy}", chain(&error))));
        }
        let watch = match Watch::attach(self.target, Scope::EveryFault) {
            Ok(watch) => watch,
            Err(error) => {
                return send(verdict, &refused(format!("{}\n  try: prepage doctor", chain(&error))));
            }
        };
        let told = match damaged {
            Some(text) => Verdict::Trouble(format!("{text}; learning anew")),
            None => Verdict::Learning,
        };
        send(verdict, &told);
        let Some(until) = self.until() else { return };
        self.keep(store, watch.follow(&until, |_| {}));
    }

    fn prefetch(&self, store: &Store, profile: &Profile, verdict: OwnedFd) {
        send(verdict, &Verdict::Known);
        let Some(until) = self.until() else { return };
        let engine = Engine::new(profile, PlanOptions::default());
        if self.options.prefetch && !has_room_for(engine.planned_bytes()) {
            return;
        }
        let warm = engine.is_warm();
        std::thread::scope(|scope| {
            if self.options.prefetch && !warm {
                scope.spawn(|| engine.run());
            }
            let scope = if warm { Scope::DiskFaults } else { Scope::DiskFaultsAndStalls };
            if self.options.learn
                && let Ok(watch) = Watch::attach(self.target, scope)
            {
                let findings = watch.follow(&until, |disk_faults| {
                    if self.options.prefetch && warm && disk_faults == WARM_DISK_FAULTS_MAX {
                        engine.run();
                    }
                });
                engine.cancel();
                self.keep(store, unknown_to(profile, findings));
            } else {
                until.wait();
                engine.cancel();
            }
        });
    }

    fn until(&self) -> Option<Until> {
        let pid = Pid::from_raw(self.target as i32)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Until::new(pidfd, WATCH_WINDOW))
    }

    /// There is nobody to tell of a failure any more: the streams are the program's. The store stays as it was, and
    /// the next start says again what it lacks.
    fn keep(&self, store: &Store, findings: Findings) {
        let _ = keep(store, self.key, self.command, findings, Origin::Start);
    }
}

/// What of `findings` is not in `profile`.
fn unknown_to(profile: &Profile, findings: Findings) -> Findings {
    let known_files: HashMap<&str, &ProfiledFile> =
        profile.files.iter().map(|file| (file.path.as_str(), file)).collect();
    let known_names: HashMap<&str, bool> =
        profile.lookups.iter().map(|lookup| (lookup.path.as_str(), lookup.list)).collect();
    let is_news = |file: &ProfiledFile| match known_files.get(file.path.as_str()) {
        // A fault on a page of the profile only came before its prefetch. Its neighbours are no news either.
        Some(known) if known.fingerprint == file.fingerprint => file
            .extents
            .iter()
            .filter(|extent| extent.evidence != Evidence::Near)
            .any(|extent| extent.range.iter().any(|page| !known.contains(page))),
        _ => true,
    };
    Findings {
        files: findings.files.into_iter().filter(is_news).collect(),
        lookups: findings
            .lookups
            .into_iter()
            .filter(|lookup| known_names.get(lookup.path.as_str()).is_none_or(|&list| lookup.list && !list))
            .collect(),
        unnamed_pages: findings.unnamed_pages,
    }
}

const KNOWN: u8 = b'k';
const LEARNING: u8 = b'l';
const TROUBLE: u8 = b't';

/// Message layout: kind (1 byte), process id of the sender (4 bytes), text.
fn send(to: OwnedFd, verdict: &Verdict) {
    let (kind, text) = match verdict {
        Verdict::Known => (KNOWN, ""),
        Verdict::Learning => (LEARNING, ""),
        Verdict::Trouble(text) => (TROUBLE, text.as_str()),
    };
    let mut message = vec![kind];
    message.extend_from_slice(&std::process::id().to_ne_bytes());
    message.extend_from_slice(text.as_bytes());
    // Nobody listens any more when the program waited too long for us and went ahead.
    let _ = File::from(to).write_all(&message);
}

/// Waits for the verdict. `None` when none came in time: the program goes ahead.
fn receive(from: OwnedFd, wait: Duration) -> Option<Verdict> {
    let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() };
    let mut ready = [PollFd::new(&from, PollFlags::IN)];
    let readable = poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0);
    let mut message = Vec::new();
    if !readable || File::from(from).read_to_end(&mut message).is_err() {
        return None;
    }
    let (&kind, rest) = message.split_first()?;
    let (sender, text) = rest.split_first_chunk()?;
    allow_inspection_by(u32::from_ne_bytes(*sender));
    Some(match kind {
        KNOWN => Verdict::Known,
        LEARNING => Verdict::Learning,
        _ => Verdict::Trouble(String::from_utf8_lossy(text).into_owned()),
    })
}
