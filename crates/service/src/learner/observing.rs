//! One observation: what of it the service does, and what a process of its own.
//!
//! A program stands still for a moment when it is visited. Whoever stops or kills the service in that moment must not leave the program so. So a copy of the service
//! observes ([`prepage_sys::copied`]), which waits for no thread of the service: what it needs of what threads share it gets before, or asks for
//! ([`crate::line`]). It also writes what was seen. The service reads that again.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use prepage_core::profile::Fingerprint;
use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::profile::role::is_private;
use prepage_observe::{ObserveOptions, Observer, Until};
use prepage_prefetch::persist::{Shown, persist};
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, public};
use prepage_sys::copied::Copied;
use prepage_sys::processor_time::of_this_thread;
use prepage_sys::root::Root;

use super::{Learner, Permit, WINDOW};
use crate::askers::{Askers, leave_to_ask};
use crate::for_all::{Owners, has_words_of_its_own, is_called_by_root, is_for_all, keep_what_is_of_root};
use crate::known::Known;
use crate::line::{Ended, Line, line};
use crate::process::Process;
use crate::start_names::StartNames;
use crate::start_opens::StartOpens;
use crate::watch::Watch;
use crate::writing::Writing;

/// Makes what is made once, while nobody waits for it: a copy would for ever.
pub fn get_ready() {
    prepage_observe::elsewhere::get_ready();
    let _ = StartContextPaths::of_environment();
}

/// What decides which layer a start goes into, and is the service's alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Told {
    /// Whether root has called it, or it is of others than this user as well.
    is_told: bool,
    /// Whether the user has a profile of it that is served before that of all.
    is_own: bool,
}

impl Told {
    /// The layer that what a start shows goes into: the machine's where it may be told to all users, and where words of the call that stand in the role are no
    /// user's secret. What a user has learned apart goes on so: it is what the user's starts are served from.
    pub fn layer_of(self, process: &Process) -> Layer {
        let is_for_all =
            is_for_all(process) && (self.is_told || !has_words_of_its_own(process)) && !self.is_own;
        if is_for_all { Layer::Machine } else { Layer::User }
    }
}

/// What a copy observes with.
struct Observing<'a> {
    process: &'a Process,
    opens: StartOpens,
    /// Files that are learned anew.
    changed: Vec<(String, Fingerprint)>,
    told: Told,
    writing: Writing,
    sees_names: bool,
    /// Processor time that it may have.
    spent_max: Duration,
    /// Each readable once it is to end: when the service stops, and when it has ended.
    ends: [OwnedFd; 2],
    line: Line,
    /// The mounts that may not answer.
    points: Arc<[PathBuf]>,
}

impl Permit {
    /// Observes a start to its end, and writes what it showed into the machine's layer; what is one user's own, with that user's
    /// rights into the user's.
    /// What is `known` of the program decides nothing but which of its files are learned anew.
    pub fn learn(self, process: &Process, known: Option<&Known>, watch: &Watch) {
        let (learner, before) = (&self.learner, of_this_thread());
        let observed = learner.observe(process, known, watch);
        learner.observed_ns.fetch_add(observed.as_nanos() as u64, Ordering::Relaxed);
        learner.spend((observed + of_this_thread().saturating_sub(before)).as_nanos() as u64);
    }
}

impl Learner {
    /// Returns the processor time of the copy.
    fn observe(&self, process: &Process, known: Option<&Known>, watch: &Watch) -> Duration {
        let (pid, uid, key) = (process.context.pid, process.rights.uid, &process.context.key);
        let names = self.take_expected(pid);
        if !self.may_keep(process) {
            self.refused.note(uid, key, Instant::now());
            return Duration::ZERO;
        }
        let names = names.filter(|names| names.has_stayed(pid));
        let follow = |lookups| StartNames::follow(pid, process.moment, lookups);
        let names = names.or_else(|| self.lookups.as_ref().map(follow));
        let Ok((copied, answers)) = self.copied(process, known, watch, names.as_ref()) else {
            self.take(process, known, None);
            return Duration::ZERO;
        };
        let ended = answers.give(names, Askers::of_machine());
        let waited = copied.wait();
        self.take(process, known, ended);
        // Nobody knows where SIGCHLD was ignored already when the service began.
        waited.map_or_else(|_| self.allowance().of_a_piece(), |ended| ended.cpu)
    }

    /// A copy that observes, and the line to it.
    fn copied(
        &self,
        process: &Process,
        known: Option<&Known>,
        watch: &Watch,
        names: Option<&StartNames>,
    ) -> std::io::Result<(Copied, crate::line::Answers)> {
        let spent_max = self.allowance().of_a_piece();
        let (answers, line) = line()?;
        let observing = Observing {
            process,
            opens: StartOpens::follow(process, watch, names, spent_max),
            changed: known.map(Known::changes).unwrap_or_default(),
            told: self.told_of(process),
            writing: self.library.writing(),
            sees_names: self.lookups.is_some(),
            spent_max,
            ends: [self.stop.try_clone()?, self.service.try_clone()?],
            line,
            points: Askers::of_machine().points(),
        };
        let copied = Copied::start("observe", observing, Observing::descriptors, Observing::observe)?;
        Ok((copied, answers))
    }

    /// What the service knows for [`Told::layer_of`].
    pub(super) fn told_of(&self, process: &Process) -> Told {
        let key = &process.context.key;
        let is_told = || {
            is_called_by_root(process)
                || self.library.is_for_all(key)
                || public::is_for_all(process.program())
                    && !is_private(&key.role)
                    && self.has_come_from_another(key, process.starter)
        };
        // In a container all of it is for all.
        let is_told = process.root.is_none() && is_told();
        Told { is_told, is_own: self.library.is_own(key, process.rights.uid) }
    }

    /// What became of an observation; nothing is said of one that was killed.
    fn take(&self, process: &Process, known: Option<&Known>, ended: Option<Ended>) {
        let (uid, key) = (process.rights.uid, &process.context.key);
        let note_in_vain = || {
            self.note_in_vain(key);
            known.into_iter().for_each(Known::note_in_vain);
        };
        match ended {
            None => {
                note_in_vain();
                return self.counters.not_kept.count();
            }
            Some(Ended::NotBegun) => return note_in_vain(),
            Some(Ended::Nothing) => note_in_vain(),
            Some(Ended::Refused) => {
                self.refused.note(uid, key, Instant::now());
                self.note_in_vain(key);
            }
            Some(Ended::Written { layer, is_kept, is_whole, versions }) => {
                self.note_whether_whole(key, is_whole);
                let is_private = layer == Layer::User && process.root.is_none();
                if is_private {
                    self.counters.private.count();
                }
                if is_kept {
                    self.take_written(process, is_private, versions);
                    self.refused.forget(uid, key);
                    self.counters.learned.count();
                } else {
                    self.refused.note(uid, key, Instant::now());
                    self.counters.not_kept.count();
                }
            }
        }
        self.counters.observed.count();
    }

    fn take_written(&self, process: &Process, is_private: bool, versions: [u64; 2]) {
        let (library, key) = (&self.library, &process.context.key);
        match (&process.root, is_private) {
            (Some(_), _) => library.take_written_of_container(key),
            (None, true) => library.take_written_of_user(process, versions),
            (None, false) => library.take_written(key),
        }
    }
}

impl Observing<'_> {
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let root = self.process.root.as_ref().map(|root| root.descriptor());
        let ends = self.ends.iter().map(AsFd::as_fd);
        ends.chain([self.line.as_fd()]).chain(root).chain(self.opens.descriptors()).collect()
    }

    fn observe(self) {
        let Self { process, mut opens, changed, told, writing, sees_names, spent_max, ends, line, points } =
            self;
        // Until the process ends.
        let line: &'static Line = Box::leak(Box::new(line));
        Askers::ask_by(line, points);
        opens.ask_by(line);
        let [stop, service] = ends;
        let until = Until::ended_or(process.context.pid, WINDOW);
        let (rights, root) = (Some(process.rights_to_read()), process.root.clone());
        let leave = root.is_none().then_some(leave_to_ask as _);
        let options = ObserveOptions { rights, root, leave, ..ObserveOptions::default() };
        let (Ok(until), Ok(observer)) = (until, Observer::attach(process.context.pid, &options)) else {
            return line.tell(Ended::NotBegun);
        };
        let until = until.or_readable(stop).or_readable(service).or_spent(spent_max);
        let mut observation = observer.follow_with(&until, &mut opens);
        let is_whole = is_whole(&observation, sees_names);
        let has_files = !observation.files.is_empty();
        let layer = {
            let _entered = process.root.as_ref().map(Root::enter);
            let layer = if process.root.is_some() { Layer::Machine } else { told.layer_of(process) };
            if layer == Layer::Machine {
                keep_what_is_of_root(&mut observation, &mut Owners::of(process));
            }
            layer
        };
        if observation.files.is_empty() {
            return line.tell(if has_files { Ended::Refused } else { Ended::Nothing });
        }
        let key: &ProgramKey = &process.context.key;
        let shown = Shown { observation: Some(observation), changed, ..Shown::default() };
        let written = writing.write(process, layer, |stores, layer| persist(stores, key, layer, &shown));
        let (is_kept, versions) = (written.is_ok(), written.unwrap_or_default());
        line.tell(Ended::Written { layer, is_kept, is_whole, versions });
    }
}

/// Whether `observation` has missed nothing that another may see.
fn is_whole(observation: &Observation, sees_names: bool) -> bool {
    observation.reads_coverage != Coverage::Partial
        && !(sees_names && observation.names_coverage == Coverage::Partial)
}
