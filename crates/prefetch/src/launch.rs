//! Starting a program with its pages already on their way.
//!
//! ```text
//!  prepage run ─ reads the profile ─┬─ becomes the program (exec)
//!                                   └─ beside it: fetch ─ observe ─ persist
//! ```
//! The process that was started *is* the program from the exec on: same process id, same parent, streams, signals
//! and exit status, and nothing of prepage between it and its user. What prefetches and observes lives beside it
//! ([`prepage_sys::beside`]) and ends with the start. A start that is observed waits until the observer is attached, a
//! fraction of a millisecond; any other waits for nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use prepage_profiles::room::BYTES_MAX;
use prepage_profiles::{Layer, StoreError, Stored, Stores};
use prepage_sys::beside::{allow_inspection_by, run_beside_with};
use prepage_trace::now_ns;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::pipe::{PipeFlags, pipe_with};

use crate::account::Told;
use crate::beside::Beside;
use crate::doctor::chain;
use crate::random::SplitMix;
use crate::start::StartContext;

/// How long a program waits at most until it is observed. Where all is well that takes a fraction of a millisecond; a
/// machine where it does not must still start its programs.
const OBSERVED_WAIT: Duration = Duration::from_millis(500);

/// A script on the command line may be long.
const ROLE_CHARS_SHOWN: usize = 60;

/// Environment variables that a program is to be started with.
pub type Variables = Vec<(String, OsString)>;

/// Tells the waiting program that it is observed, or why not.
pub(crate) struct Release(OwnedFd);

impl Release {
    /// Lets the program go, observed by this process, with these variables.
    pub(crate) fn observed(self, variables: &[(&str, OsString)]) {
        let mut message = std::process::id().to_ne_bytes().to_vec();
        message.push(b'+');
        for (name, value) in variables {
            message.extend([name.as_bytes(), b"=", value.as_bytes(), b"\0"].concat());
        }
        self.send(&message);
    }

    /// Lets the program go unobserved.
    pub(crate) fn refused(self, reason: &str) {
        let mut message = std::process::id().to_ne_bytes().to_vec();
        message.push(b'-');
        message.extend_from_slice(reason.as_bytes());
        self.send(&message);
    }

    fn send(self, message: &[u8]) {
        // Nobody listens any more when the program waited too long and went ahead.
        let _ = File::from(self.0).write_all(message);
    }

    /// The program's side: waits for the word, at most [`OBSERVED_WAIT`].
    fn wait(from: OwnedFd) -> Result<Variables, String> {
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: OBSERVED_WAIT.subsec_nanos().into() };
        let mut ready = [PollFd::new(&from, PollFlags::IN)];
        let readable = poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0);
        let mut message = Vec::new();
        if !readable || File::from(from).read_to_end(&mut message).is_err() {
            return Err(format!("the observer did not answer within {} ms", OBSERVED_WAIT.as_millis()));
        }
        let (sender, rest) = message.split_first_chunk().ok_or("the observer failed")?;
        match rest.split_first() {
            Some((b'+', variables)) => {
                allow_inspection_by(u32::from_ne_bytes(*sender));
                let variables = variables.split(|&byte| byte == 0).filter_map(|variable| {
                    let at = variable.iter().position(|&byte| byte == b'=')?;
                    let name = String::from_utf8(variable[..at].to_vec()).ok()?;
                    Some((name, OsString::from_vec(variable[at + 1..].to_vec())))
                });
                Ok(variables.collect())
            }
            Some((_, reason)) => Err(String::from_utf8_lossy(reason).into_owned()),
            None => Err("the observer failed".into()),
        }
    }
}

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
    /// Within this time of the last writing of a profile, a start is written only if it is observed because a program is
    /// new or has changed, or finds files changed.
    pub write_interval: Duration,
    /// What all profiles of the user may take, in bytes.
    pub store_bytes_max: u64,
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
            store_bytes_max: BYTES_MAX,
        }
    }
}

/// What the caller does before it becomes the program.
#[derive(Debug, Default)]
pub struct Prepared {
    /// What a user who wants to hear should be told.
    pub message: Option<String>,
    /// Environment variables to start the program with.
    pub variables: Variables,
}

impl Prepared {
    fn saying(message: impl Into<String>) -> Self {
        Self { message: Some(message.into()), ..Self::default() }
    }
}

/// Starts what `command` needs beside this process. The caller then becomes the program
/// ([`prepage_sys::exec::exec_with`]), whatever this returns.
pub fn prepare(command: &[OsString], options: &LaunchOptions) -> Prepared {
    // What is no program gets its message from the exec that fails.
    let Ok(context) = StartContext::of_this_process(command) else { return Prepared::default() };
    let stores = match Stores::of_user() {
        Ok(stores) => stores.keeping(options.store_bytes_max),
        Err(error) => return Prepared::saying(format!("no prefetch: {error}")),
    };
    let told = match stores.read(&context.key) {
        Ok(Some(stored)) => return Launch { context, stores, options }.known(&stored),
        Ok(None) => None,
        Err(error @ StoreError::Unreadable { .. }) => Some(chain(&error)),
        Err(error) => {
            return Prepared::saying(format!("no prefetch: {}\n  try: {}", chain(&error), error.remedy()));
        }
    };
    let mut prepared = Launch { context, stores, options }.unknown();
    prepared.message =
        told.into_iter().chain(prepared.message).reduce(|told, more| format!("{told}; {more}"));
    prepared
}

struct Launch<'a> {
    context: StartContext,
    stores: Stores,
    options: &'a LaunchOptions,
}

impl Launch<'_> {
    fn known(&self, stored: &Stored) -> Prepared {
        // A start whose outcome is not written is not held out, and only observed where that is owed: a sample can wait.
        let may_wait = stored.was_just_written(self.options.write_interval);
        let is_observed = self.options.learn && stored.is_observation_due((!may_wait).then(random));
        let is_kept = self.options.learn && (is_observed || !may_wait);
        self.start(is_observed, is_kept, |beside, release| match stored.decode() {
            Ok((profile, cut)) if self.context.key.is_of(&profile) => beside.known(&profile, &cut, release),
            // Another program's, or bytes that make no sense: learned anew and replaced, if anything is learned.
            Ok(_) | Err(_) => beside.unknown(release),
        })
    }

    /// There is no profile, or none that can be read.
    fn unknown(&self) -> Prepared {
        if !self.options.learn {
            return self.start(false, false, |beside, release| beside.unknown(release));
        }
        // Nobody hears the process beside once the program runs: what can go wrong must be found now.
        if let Err(error) = self.stores.room(Layer::User) {
            let prepared = self.start(false, false, |beside, release| beside.unknown(release));
            let refused = format!("not learning: {}\n  try: {}", chain(&error), error.remedy());
            return Prepared { message: prepared.message.or(Some(refused)), ..prepared };
        }
        let mut prepared = self.start(true, true, |beside, release| beside.unknown(release));
        let role: String = self.context.key.role.escape_debug().take(ROLE_CHARS_SHOWN).collect();
        prepared.message.get_or_insert_with(|| format!("no profile of {role} yet: learning from this start"));
        prepared
    }

    /// Has `work` done beside the program, which is told to wait for an observer where it is observed.
    fn start(
        &self,
        is_observed: bool,
        is_kept: bool,
        work: impl FnOnce(&Beside<'_>, Option<Release>),
    ) -> Prepared {
        let pipe = if is_observed { pipe_with(PipeFlags::CLOEXEC).ok() } else { None };
        let (answer, to_program) = pipe.unzip();
        let is_observed = to_program.is_some();
        let listener = || std::io::stderr().as_fd().try_clone_to_owned().ok();
        let keep = to_program.into_iter().chain(self.options.verbose.then(listener).flatten()).collect();
        let started = run_beside_with(keep, |kept| {
            let mut kept = kept.into_iter();
            let release = if is_observed { kept.next().map(Release) } else { None };
            let told = Told::to(kept.next());
            work(
                &Beside {
                    context: &self.context,
                    stores: &self.stores,
                    options: self.options,
                    is_kept,
                    told,
                },
                release,
            );
        });
        match (started, answer) {
            (Err(error), _) => Prepared::saying(format!("no prefetch: cannot start a process: {error}")),
            (Ok(()), None) => Prepared::default(),
            (Ok(()), Some(answer)) => match Release::wait(answer) {
                Ok(variables) => Prepared { message: None, variables },
                Err(why) => Prepared::saying(format!("not observed: {why}")),
            },
        }
    }
}

/// A number that no two starts share.
pub fn random() -> u64 {
    SplitMix::new(now_ns() ^ (u64::from(std::process::id()) << 32)).next()
}
