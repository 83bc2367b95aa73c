//! Starting a program with its pages already on their way.
//!
//! ```text
//!  prepage run ─ is all in memory? ─ finds the program ─ its first pages ─ waits for word ─ becomes the program (exec)
//!                 │                                                                      ▲
//!                 ├─ yes: nothing is begun ──────────────────────────────────────────────┘
//!                 └─ beside it: configuration, layers of profiles ─► word: go, observed or not ─► fetch ─ observe ─ persist
//! ```
//! The process that was started *is* the program from the exec on: same process id, same parent, streams, signals
//! and exit status, and nothing of prepage between it and its user. What decides, prefetches and observes lives beside it
//! ([`prepage_sys::beside`]) and ends with the start. It gives word as soon as it knows whether the start is observed; if it is, when
//! the observer is attached, a fraction of a millisecond later. A file system that does not answer holds up nobody for long.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use prepage_core::profile::Profile;
use prepage_core::profile::file::Glance;
use prepage_core::profile::start::Draw;
use prepage_profiles::call::Call;
use prepage_profiles::identity::identity_at;
use prepage_profiles::room::BYTES_MAX;
use prepage_profiles::{FoundProfile, Layer, ProgramKey, StoreError, Stored, Stores, chain, program};
use prepage_sys::beside::{allow_inspection_by, run_beside_from};
use prepage_sys::random::random;
use prepage_sys::thread_reads::bytes_read_by_this_thread;
use prepage_sys::{exec, own_pages, uncommon_calls};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use crate::account::Listener;
use crate::ahead;
use crate::beside::Beside;
use crate::config::{self, Config};
use crate::first_pages;
use crate::memory::Tasks;
use crate::start::StartContext;
use crate::warm;

/// How long a program waits at most for word. Where all is well that takes a millisecond or two; a machine where it does not must
/// still start its programs.
const WORD_WAIT: Duration = Duration::from_millis(500);

/// For reading two small files.
const CONFIG_STACK_BYTES: usize = 64 << 10;

/// What is said where the program may need each task that a limit leaves.
pub(crate) const FEW_TASKS: &str =
    "nothing is begun beside the program: it may need the processes that it may start";

/// A script on the command line may be long.
const ROLE_CHARS_SHOWN: usize = 60;

/// Environment variables that a program is to be started with.
pub type Variables = Vec<(String, OsString)>;

/// What is said to the process that waits to become the program. A field is a letter and bytes that end with a zero.
pub(crate) struct Word {
    to: OwnedFd,
    said: Vec<u8>,
    is_verbose: bool,
}

const VARIABLE: u8 = b'v';
const MESSAGE: u8 = b'm';
const OBSERVED: u8 = b'o';
/// Behind all others: nothing is missing.
const END: u8 = b'e';

impl Word {
    /// One that is given by `to`.
    pub(crate) fn to(to: OwnedFd) -> Self {
        Self { to, said: Vec::new(), is_verbose: false }
    }

    /// Says something that the user wants to hear with `-v` alone.
    fn message(&mut self, text: &str) {
        if self.is_verbose {
            self.field(MESSAGE, text.as_bytes());
        }
    }

    /// Lets the program go, observed by this process, with these variables.
    pub(crate) fn observed(mut self, variables: &[(&str, OsString)]) {
        self.field(OBSERVED, std::process::id().to_string().as_bytes());
        for (name, value) in variables {
            self.field(VARIABLE, &[name.as_bytes(), b"=", value.as_bytes()].concat());
        }
        self.go();
    }

    /// Lets the program go unobserved.
    pub(crate) fn refused(mut self, reason: &str) {
        self.message(&format!("not observed: {reason}"));
        self.go();
    }

    /// Lets the program go.
    pub(crate) fn go(mut self) {
        self.field(END, b"");
        // Nobody listens any more when the program waited too long and went ahead.
        let _ = File::from(self.to).write_all(&self.said);
    }

    fn field(&mut self, letter: u8, bytes: &[u8]) {
        self.said.push(letter);
        self.said.extend(bytes.iter().copied().filter(|&byte| byte != 0));
        self.said.push(0);
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
    /// Whether not to say it either where the configuration wants it said.
    pub quiet: bool,
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
            quiet: false,
            hold_out: true,
            write_interval: Duration::from_secs(60),
            store_bytes_max: BYTES_MAX,
        }
    }
}

impl LaunchOptions {
    /// The same, as far as `config` allows it.
    pub(crate) fn within(&self, config: &Config) -> Self {
        Self {
            learn: self.learn && config.learn,
            hold_out: self.hold_out && config.hold_outs,
            store_bytes_max: config.store_bytes_max,
            verbose: !self.quiet && (self.verbose || config.verbose),
            ..self.clone()
        }
    }
}

/// What the caller does before it becomes the program.
#[derive(Debug, Default)]
pub struct Prepared {
    /// What a user who wants to hear is to be told.
    pub messages: Vec<String>,
    /// Environment variables to start the program with.
    pub variables: Variables,
}

/// A launch that has begun beside this process, or what is said instead.
#[derive(Debug)]
pub struct Launched {
    /// The program, where it was found already, called by the name of its file.
    program: Option<PathBuf>,
    word: Option<OwnedFd>,
    is_prefetched: bool,
    is_verbose: bool,
    messages: Vec<String>,
}

/// Begins to serve a start of `command`, called `name`, beside this process. The caller looks for the program,
/// [waits](Launched::wait), and becomes it ([`prepage_sys::exec::exec_with`]), whatever this returns. Where [`uncommon_calls::are_deadly`] it looks
/// by [`program::there`] alone.
///
/// To be called while the process has one thread.
pub fn begin(command: &[OsString], name: &OsStr, options: &LaunchOptions) -> Launched {
    let mut launched = Launched {
        program: None,
        word: None,
        is_prefetched: options.prefetch,
        is_verbose: options.verbose && !options.quiet,
        messages: Vec::new(),
    };
    if config::is_switched_off() {
        launched.say("switched off by the configuration");
        return launched;
    }
    if uncommon_calls::are_deadly() {
        launched.say("not served: a seccomp filter kills who makes the system calls that this takes");
        return launched;
    }
    let at_hand = match Found::at_hand(command) {
        Some((found, program)) if warm::needs_nothing(&found, name, options) => {
            launched.program = Some(program);
            return launched;
        }
        found => found.map(|(mut found, _program)| {
            found.context.begin();
            found.call.note_directory();
            found
        }),
    };
    if Tasks::left_to_user().are_few() {
        launched.say(FEW_TASKS);
        return launched;
    }
    exec::keep_streams();
    let (answer, to_caller) = match pipe_with(PipeFlags::CLOEXEC) {
        Ok(pipe) => pipe,
        Err(error) => {
            launched.say(&format!("no prefetch: {}", std::io::Error::from(error)));
            return launched;
        }
    };
    let pid = std::process::id();
    let listener = if options.quiet { None } else { std::io::stderr().as_fd().try_clone_to_owned().ok() };
    // Later its number may be another's.
    let process = pidfd_open(getpid(), PidfdFlags::empty()).ok();
    let has_process = process.is_some();
    let keep = std::iter::once(to_caller).chain(process).chain(listener).collect();
    // All depend on the working directory.
    let look = || {
        let stores = Stores::of_user();
        let key = at_hand.as_ref().map(|found| &found.context.key);
        let unfound = at_hand.is_none().then_some(&*command[0]);
        ahead::look_up(stores.as_ref().ok(), key, unfound);
        // Behind what the program waits for.
        own_pages::ask_for_rest();
        // What is no program gets its message from the exec that fails.
        let found = at_hand.or_else(|| Found::of(&program::find(&command[0]).ok()?, pid, command).ok());
        (found, stores)
    };
    let started = run_beside_from(keep, look, |kept, (found, stores)| {
        let mut kept = kept.into_iter();
        let Some(word) = kept.next().map(Word::to) else { return };
        let process = if has_process { kept.next() } else { None };
        let mut listener = kept.next();
        match found {
            Some(found) => {
                // Most users have none, and the kernel knows.
                let has_none = || Config::paths().iter().all(|path| ahead::is_absent(path));
                let config = if has_none() {
                    Config::default()
                } else if options.verbose || listener.is_none() {
                    Config::load()
                } else {
                    config_for(&mut listener)
                };
                serve(found, stores, name, options, &config, Kept { word, process, listener });
            }
            None => word.go(),
        }
    });
    match started {
        Ok(()) => launched.word = Some(answer),
        Err(error) => launched.say(&format!("no prefetch: cannot start a process: {error}")),
    }
    launched
}

impl Launched {
    /// The program, where it was found already: no link that `prepage enable` made stands in front of it.
    pub fn program(&self) -> Option<PathBuf> {
        self.program.clone()
    }

    /// Waits for word, at most half a second, and has meanwhile brought in what `program` needs first.
    pub fn wait(mut self, program: &Path) -> Prepared {
        let Some(from) = self.word.take() else { return self.prepared(Variables::new()) };
        if self.is_prefetched {
            first_pages::ask_for(program);
        }
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: WORD_WAIT.subsec_nanos().into() };
        let mut ready = [PollFd::new(&from, PollFlags::IN)];
        let readable = poll(&mut ready, Some(&timeout)).is_ok_and(|count| count > 0);
        let mut said = Vec::new();
        let mut variables = Variables::new();
        let mut has_ended = false;
        if readable && read_word(&from, &mut said).is_ok() {
            for field in said.split(|&byte| byte == 0) {
                let Some((letter, bytes)) = field.split_first() else { continue };
                match *letter {
                    MESSAGE => self.messages.push(String::from_utf8_lossy(bytes).into_owned()),
                    OBSERVED => {
                        let observer = std::str::from_utf8(bytes).ok().and_then(|pid| pid.parse().ok());
                        observer.into_iter().for_each(allow_inspection_by);
                    }
                    VARIABLE => variables.extend(variable(bytes)),
                    END => has_ended = true,
                    _ => {}
                }
            }
        }
        if !readable {
            self.say(&format!("no word within {} ms: the program does not wait", WORD_WAIT.as_millis()));
        } else if !has_ended {
            self.say("what serves this start has failed");
        }
        self.prepared(variables)
    }

    fn say(&mut self, message: &str) {
        if self.is_verbose {
            self.messages.push(message.into());
        }
    }

    fn prepared(self, variables: Variables) -> Prepared {
        Prepared { messages: self.messages, variables }
    }
}

/// Reads from a pipe what is said there, until that ends or the pipe does. Whoever has said it may not get round to closing the pipe for
/// milliseconds where others want its processor.
fn read_word(pipe: &OwnedFd, into: &mut Vec<u8>) -> rustix::io::Result<()> {
    let mut piece = [0; 4096];
    loop {
        match rustix::io::read(pipe, &mut piece) {
            Ok(0) => return Ok(()),
            Ok(len) => into.extend_from_slice(&piece[..len]),
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error),
        }
        // No other field is this letter alone.
        if into.strip_suffix(&[END, 0]).is_some_and(|before| before.last().is_none_or(|&byte| byte == 0)) {
            return Ok(());
        }
    }
}

/// `name=value`.
fn variable(bytes: &[u8]) -> Option<(String, OsString)> {
    let at = bytes.iter().position(|&byte| byte == b'=')?;
    let name = String::from_utf8(bytes[..at].to_vec()).ok()?;
    Some((name, OsString::from_vec(bytes[at + 1..].to_vec())))
}

/// What is kept of the process that becomes the program.
struct Kept {
    word: Word,
    /// A pidfd, where the kernel gives one.
    process: Option<OwnedFd>,
    /// The standard error of who may want to hear.
    listener: Option<OwnedFd>,
}

/// What happens beside the process that becomes the program.
fn serve(
    found: Found,
    stores: Result<Stores, StoreError>,
    name: &OsStr,
    options: &LaunchOptions,
    config: &Config,
    Kept { mut word, process, listener }: Kept,
) {
    let options = &options.within(config);
    word.is_verbose = options.verbose;
    config.mistakes.iter().for_each(|mistake| word.message(&mistake.to_string()));
    if !found.is_wanted_by(config, name) {
        word.message(if config.enabled {
            "excluded by the configuration"
        } else {
            "switched off by the configuration"
        });
        return word.go();
    }
    if !config.learn {
        word.message("nothing is learned: learn = no in the configuration");
    }
    // Whoever reads the program's messages to their end does not wait for this process.
    let listener = Listener::to(listener.filter(|_| options.verbose));
    let stores = match stores {
        Ok(stores) => stores.keeping(options.store_bytes_max),
        Err(error) => {
            word.message(&format!("no prefetch: {error}"));
            return word.go();
        }
    };
    let mut launch = Launch { found, process, stores, options, listener };
    let mut known = launch.read();
    if !matches!(&known, Ok(Some(known)) if known.is_as_learned)
        && let Ok(Some(call)) = launch.found.call.in_the_end()
    {
        launch.found.context.key = call.key();
        if !launch.found.is_wanted_by(config, name) {
            word.message("what runs the script is excluded by the configuration");
            return word.go();
        }
        known = launch.read();
    }
    match known {
        Ok(Some(known)) => return launch.known(&known, word),
        Ok(None) => {}
        Err(error @ StoreError::Unreadable { .. }) => word.message(&chain(&error)),
        Err(error) => {
            word.message(&format!("no prefetch: {}\n  try: {}", chain(&error), error.remedy()));
            return word.go();
        }
    }
    launch.unknown(word);
}

/// The configuration, which may say that somebody wants to hear. Where its file system does not answer within the time that the program
/// waits for word, the program's standard error is let go: else whoever reads that to its end would wait for the file system.
fn config_for(listener: &mut Option<OwnedFd>) -> Config {
    let (read, config) = mpsc::channel();
    let load = move || drop(read.send(Config::load()));
    if ahead::aside(CONFIG_STACK_BYTES, load).is_err() {
        listener.take();
        return Config::load();
    }
    let config_or_end = config.recv_timeout(WORD_WAIT).or_else(|_| {
        listener.take();
        config.recv()
    });
    config_or_end.unwrap_or_default()
}

/// A start, as far as it is known before anything of it is looked up in a store.
pub(crate) struct Found {
    /// With the key of the program as it is called. That it is a script is asked only where there is no profile of that, or another file has
    /// taken its place since: a start of a known program takes no look into its file.
    pub(crate) context: StartContext,
    pub(crate) call: Call,
    /// The path by which the program was called, made absolute.
    pub(crate) called: PathBuf,
    /// A number that no two starts share.
    pub(crate) random: u64,
}

impl Found {
    /// Of the start of `program` by process `pid`.
    fn of(program: &Path, pid: u32, command: &[OsString]) -> std::io::Result<Self> {
        let called = std::path::absolute(program)?;
        let executable = called.canonicalize()?;
        let call = Call::of_found(&called, &executable, command)?;
        let mut context = StartContext::new(pid, executable, call.key());
        context.begin();
        Ok(Self { context, call, called, random: random() })
    }

    /// Of this process, with the program, where that is found in memory.
    fn at_hand(command: &[OsString]) -> Option<(Self, PathBuf)> {
        let program = program::find_at_hand(&command[0])?;
        let (called, executable) = program.paths().ok()?;
        let call = Call::of_found_at_hand(&called, &executable, command)?;
        let context = StartContext::new(std::process::id(), executable, call.key_at_hand()?);
        Some((Self { context, call, called, random: random() }, program.path))
    }

    /// Whether a start of the program, called as `name`, is to be served.
    pub(crate) fn is_wanted_by(&self, config: &Config, name: &OsStr) -> bool {
        // Under the path by which it was called, and under that of the file, by which a service knows it; and what runs it, if it is a script.
        let mut paths = std::iter::once(&*self.called).chain(self.context.executable.as_deref());
        paths.all(|path| config.wants(name, path))
            && is_wanted(config, &self.context.key)
            && config.wants_groups_of(self.context.pid)
    }
}

/// Whether `config` wants starts of `command` by this process to be prefetched and learned: by the name and the path by which it is called, by its file,
/// by what wrappers in front of it start and what runs it where it is a script, and by the control groups of this process.
///
/// # Errors
/// Where the program, or what runs it, is not found.
pub fn wants(config: &Config, command: &[OsString]) -> std::io::Result<bool> {
    let name = &command[0];
    let mut found = Found::of(&program::find(name)?, std::process::id(), command)?;
    if found.is_wanted_by(config, name)
        && let Some(call) = found.call.in_the_end()?
    {
        found.context.key = call.key();
    }
    Ok(found.is_wanted_by(config, name))
}

/// Whether `config` wants starts with this key.
pub(crate) fn is_wanted(config: &Config, key: &ProgramKey) -> bool {
    config.wants(key.role.split(' ').next().unwrap_or_default().as_ref(), Path::new(&key.program))
}

struct Launch<'a> {
    found: Found,
    process: Option<OwnedFd>,
    stores: Stores,
    options: &'a LaunchOptions,
    listener: Listener,
}

/// A profile of the program.
struct Known {
    stored: Stored,
    /// Its history and its starts; `None` where the bytes make no sense.
    past: Option<Profile>,
    /// Whether the program's file is the one that it was learned of.
    is_as_learned: bool,
    /// Whether the device was asked for it, as far as the kernel counts that, and its beginning was out of memory. Each start reads the beginning: once that
    /// is gone, so is what the program needs.
    was_read: bool,
}

impl Launch<'_> {
    fn read(&self) -> Result<Option<Known>, StoreError> {
        let key = &self.found.context.key;
        let before = bytes_read_by_this_thread();
        // To ask for what is not there has the kernel begin to read it.
        let is_at_hand = matches!(self.stores.read_at_hand(key), Ok(Some(_)) | Err(Errno::STALE));
        let Some(stored) = self.stores.read(key)? else { return Ok(None) };
        let was_read = !is_at_hand && bytes_read_by_this_thread() > before;
        let glance = stored.glance().ok();
        let learned = glance.as_ref().and_then(Glance::program_identity);
        let now = || identity_at(Path::new(&key.program));
        let is_as_learned = learned.is_some_and(|learned| now().is_ok_and(|now| now.is_same(&learned)));
        let past = glance.map(|glance| glance.past);
        Ok(Some(Known { stored, past, is_as_learned, was_read }))
    }

    fn known(&self, known: &Known, mut word: Word) {
        let Known { stored, past, .. } = known;
        // A start whose outcome is not written is not held out, and only observed where that is owed: a sample can wait. Where the bytes make no
        // sense, the start is learned from in any case.
        let may_wait = stored.was_just_written(self.options.write_interval);
        let is_due = |draw: fn(u64) -> Draw| {
            let draw = (!may_wait).then_some(draw(self.found.random));
            self.options.learn && past.as_ref().is_none_or(|past| past.observation_due(draw))
        };
        // Which of them it is shows before the program goes.
        let (cold, warm) = (is_due(Draw::Cold), is_due(Draw::Warm));
        let is_observed = (cold || warm) && self.has_room(&mut word);
        let is_kept = self.options.learn && (is_observed || !may_wait);
        let word = released_unless(is_observed, word);
        match stored.decode() {
            Ok((profile, cut)) if self.found.context.key.is_of(&profile) => {
                let found = FoundProfile { profile, layer: stored.layer };
                let is_due = |is_warm| if is_warm { warm } else { cold };
                self.beside(is_kept).known(&found, &cut, known.was_read, word, is_due);
            }
            // Another program's, or bytes that make no sense: learned anew and replaced, if anything is learned.
            Ok(_) | Err(_) => self.beside(is_kept).unknown(word),
        }
    }

    /// There is no profile, or none that can be read.
    fn unknown(&self, mut word: Word) {
        let learns = self.options.learn && self.has_room(&mut word);
        if learns {
            let role: String = self.found.context.key.role.escape_debug().take(ROLE_CHARS_SHOWN).collect();
            word.message(&format!("no profile of {role} yet: learning from this start"));
        }
        self.beside(learns).unknown(released_unless(learns, word));
    }

    /// Whether what this start shows can be written. Nobody hears this process once the program runs: what can go wrong must be found now, or each
    /// start would be observed anew.
    fn has_room(&self, word: &mut Word) -> bool {
        let room = self.stores.room(Layer::User);
        if let Err(error) = &room {
            word.message(&format!("not learning: {}\n  try: {}", chain(error), error.remedy()));
        }
        room.is_ok()
    }

    fn beside(&self, is_kept: bool) -> Beside<'_> {
        Beside {
            context: &self.found.context,
            process: self.process.as_ref().map(OwnedFd::as_fd),
            stores: &self.stores,
            options: self.options,
            is_kept,
            listener: self.listener.clone(),
        }
    }
}

/// Lets the program go, unless it is to be observed first.
pub(crate) fn released_unless(is_observed: bool, word: Word) -> Option<Word> {
    if is_observed {
        return Some(word);
    }
    word.go();
    None
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;

    use prepage_sys::cachestat::evict;
    use prepage_testing::{Need, has};

    use super::*;

    fn waiting_for(word: OwnedFd) -> Launched {
        Launched {
            program: None,
            word: Some(word),
            is_prefetched: false,
            is_verbose: true,
            messages: Vec::new(),
        }
    }

    /// Who gives word may lose its processor before it closes the pipe.
    #[test]
    fn the_end_of_the_word_is_waited_for_and_not_that_of_the_pipe() {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let kept = to.try_clone().unwrap();
        let mut word = Word { to, said: Vec::new(), is_verbose: true };
        word.message("e");
        // The pipe holds it: on a busy machine a thread that gives it may get no processor in time.
        word.observed(&[("NAME", "value".into())]);
        let (waited, over) = mpsc::channel::<()>();
        let letgo = std::thread::spawn(move || {
            let is_over_first =
                over.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Disconnected);
            drop(kept);
            is_over_first
        });
        let launched = waiting_for(from);
        let prepared = launched.wait("/no/such/program".as_ref());
        drop(waited);
        assert_eq!(prepared.messages, ["e"]);
        assert_eq!(prepared.variables, [("NAME".to_owned(), "value".into())]);
        assert!(letgo.join().unwrap(), "the pipe ended first");
    }

    #[test]
    fn a_profile_that_was_out_of_memory_is_told_from_others() {
        let here = env!("CARGO_MANIFEST_DIR");
        if !has(Need::Eviction(here.into())) || !has(Need::Path("/proc/self/io".into())) {
            return;
        }
        let dir = tempfile::tempdir_in(here).unwrap();
        let found = Found::of("/bin/true".as_ref(), std::process::id(), &["true".into()]).unwrap();
        let key = found.context.key.clone();
        let stores = Stores::at(dir.path().into());
        let profile = key.empty_profile();
        stores.update(&key, Layer::User, |_| Some(profile.clone())).unwrap();
        let file = File::open(stores.path_of(&key, Layer::User).unwrap()).unwrap();
        let options = &LaunchOptions::default();
        let launch = Launch { found, process: None, stores, options, listener: Listener::to(None) };
        let was_read = || launch.read().unwrap().unwrap().was_read;
        assert!(!was_read());
        evict(file.as_fd(), Duration::from_secs(60)).unwrap();
        assert_eq!([(); 2].map(|()| was_read()), [true, false]);
    }

    #[test]
    fn a_word_that_breaks_off_is_told() {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        File::from(to).write_all(b"vNAME=value\0me").unwrap();
        let launched = waiting_for(from);
        let prepared = launched.wait("/no/such/program".as_ref());
        assert_eq!(prepared.messages, ["e", "what serves this start has failed"]);
    }
}
