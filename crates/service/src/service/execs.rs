//! What begins with an exec that is seen: mostly nothing.

use std::cell::LazyCell;
use std::path::PathBuf;
use std::sync::Arc;

use prepage_observe::elsewhere::is_elsewhere;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::rights::Rights;
use prepage_sys::root::Root;

use super::Service;
use super::starts::{START_WINDOW, below_root};
use crate::awaited::{Awaited, Begun};
use crate::fetches::Start;
use crate::files::Resting;
use crate::hot::Needless;
use crate::last_starts::LastStart;
use crate::moment::Moment;
use crate::place::{is_of_container, path_of, root_of};
use crate::process::{is_prepages, is_switched_on, recent_parents, starter_of, user_of};
use crate::streaks::Caller;
use crate::tree::{Below, Kind};

impl Service {
    /// A file was opened to be executed. Returns what it is, where the same need not be seen for a while.
    pub(super) fn see(
        self: &Arc<Self>,
        pid: u32,
        file: &FileHandle,
        awaited: &mut Awaited,
    ) -> Option<Needless> {
        self.counters.execs.count();
        if pid == 0 {
            return None;
        }
        if self.files.is_loader(file) {
            return (!awaited.hurry(pid)).then_some(Needless::Loader);
        }
        let is_known = self.library.is_known(file);
        // One that is gone needs nothing any more.
        let Some(uid) = user_of(pid) else { return (!is_known).then_some(Needless::Always) };
        let is_elsewhere = || is_elsewhere(pid) == Some(true);
        if let Some(resting) = self.files.is_at_rest(file, uid, is_elsewhere) {
            if self.tree.of(pid, Below::AnyRoot, &[]).is_none() {
                self.tree.begin(pid, Below::AnyRoot, Kind::Covered, START_WINDOW);
            }
            self.counters.passed.count();
            return match resting {
                Resting::AllTheTime => Some(Needless::Always),
                Resting::ForNow => Some(Needless::ForNow),
                Resting::ElsewhereForNow => None,
            };
        }
        let is_stranger = !is_known && self.files.is_stranger(file);
        if is_stranger && !self.may_observe() {
            self.counters.passed.count();
            return Some(Needless::Always);
        }
        // Another caller's starts of the same file may need something: the kernel is not to pass over it.
        if let Some(covers) =
            Caller::of_user(uid, pid).and_then(|caller| self.streaks.passes_over(file, caller))
        {
            if covers && self.tree.of(pid, Below::AnyRoot, &[]).is_none() {
                self.tree.begin(pid, Below::AnyRoot, Kind::Covered, START_WINDOW);
            }
            self.counters.passed.count();
            return None;
        }
        if is_stranger {
            let parent = ProcessStat::of(pid).map_or(0, |stat| stat.parent);
            if self.tree.of(pid, Below::AnyRoot, &[parent]).is_some() {
                self.counters.passed.count();
                return None;
            }
        }
        let begun = self.await_start(pid, file, is_known, awaited);
        // One that is over before it is looked at needs nothing either. Of a known program that says nothing: its next start may.
        (begun == Begun::Gone && !is_known).then_some(Needless::Always)
    }

    /// Process `pid` is about to execute the program in `file`, for which something may be to be done.
    fn await_start(
        self: &Arc<Self>,
        pid: u32,
        file: &FileHandle,
        is_known: bool,
        awaited: &mut Awaited,
    ) -> Begun {
        let moment = Moment::before_exec_of(pid);
        let starter = LazyCell::new(|| starter_of(pid));
        let begun = awaited.begin(pid, moment, || *starter, file.clone());
        match begun {
            Begun::Done => {
                if let Some(uid) = *starter {
                    self.launch(pid, uid, Some((file.clone(), Moment::after_exec())));
                }
            }
            // A program with one role needs no arguments to be told apart: its pages are on their way before it is executed.
            Begun::Awaited
                if is_known
                    && self.library.may_have_one_role(file)
                    && self.tree.of(pid, Below::AnyRoot, &[]) != Some(Kind::ByPrefix) =>
            {
                if let Some(uid) = *starter {
                    let file = file.clone();
                    self.look_early(uid, move |service| service.start_early(pid, uid, &file, moment));
                }
            }
            Begun::Awaited if !is_known || self.may_be_owed(file) => {
                let file = file.clone();
                let expect = move |service: &Self| {
                    let is_loader = |path: PathBuf| service.files.note_if_loader(&file, &path);
                    if !is_known && service.watch.path_of(&file).is_some_and(is_loader)
                        || !service.may_observe()
                    {
                        return;
                    }
                    let stat = ProcessStat::of(pid);
                    let below = Below::Root(root_of(pid));
                    if service.tree.of(pid, below, &recent_parents(stat.as_ref().ok())).is_none() {
                        service.learner.expect(pid, moment);
                    }
                };
                if let Some(uid) = *starter {
                    self.look_early(uid, expect);
                }
            }
            Begun::Awaited | Begun::Gone => {}
            Begun::Crowded => self.counters.crowded.count(),
        }
        begun
    }

    /// Has a start of user `uid` looked at before its arguments are known, where a thread is free for that: behind others of the user's it would come as
    /// late as the look at what was executed, and take that one's room.
    fn look_early(self: &Arc<Self>, uid: u32, look: impl FnOnce(&Self) + Send + 'static) {
        let service = self.clone();
        self.looks.lend_now(uid, Box::new(move |_look| _ = service.spent.of(uid, || look(&service))));
    }

    /// Whether a start of the program in `file` may be owed another observation: in which role it starts is not known yet.
    fn may_be_owed(&self, file: &FileHandle) -> bool {
        self.learner.owes_any()
            && self.library.program_in(file).is_some_and(|program| self.learner.owes_some_of(&program))
    }

    /// At this `moment` process `pid`, on the account of user `starter`, was about to execute the program in `file`: with the rights that it has
    /// itself, mostly. What environment it gives to the program, and under what name it calls it, is known afterwards: [`Self::launch`]
    /// stops what was not wanted.
    fn start_early(&self, pid: u32, starter: u32, file: &FileHandle, moment: Moment) {
        let Ok(uid) = Rights::of_process(pid).map(|rights| rights.uid) else { return };
        let Some(known) = self.library.only_role(file, uid) else { return };
        let program = path_of(&known.key.program);
        // A container's files are those below its root, and its users none of this machine.
        let is_in_container = is_of_container(&known.key.program);
        let root = if is_in_container { Root::of_process(pid).ok().map(Arc::new) } else { None };
        if root.is_some() != is_in_container || root.as_ref().is_some_and(|root| root.is_own()) {
            return;
        }
        let called = known.key.role.split(' ').next().unwrap_or_default();
        let is_wanted = self.below.as_ref().is_none_or(|below| program.starts_with(below))
            && self.library.is_wanted_by_machine(pid, called.as_ref(), program)
            && (is_in_container || self.library.is_wanted_by_user(uid, pid, called.as_ref(), program))
            // What prepage's own tools start says only in its own environment whether it is to be left alone, as a plain start of `prepage measure` is.
            // In this order: should the program be executed between the two, the second sees what it was given.
            && !is_prepages(pid)
            && is_switched_on(pid);
        if is_wanted {
            let wishes = self.library.wishes(Some(uid));
            let may_follow = !is_in_container && self.may_follow(&known, uid, starter, wishes);
            let parents = || recent_parents(ProcessStat::of(pid).as_ref().ok());
            let (at, root, below) = (moment.at, root.as_ref(), below_root(root.as_deref()));
            let gives_way = &|| {};
            let start =
                Start { uid, pid, seen_at: at, executed_at: at, parents: &parents, root, starter, gives_way };
            let done = self
                .fetch_known(&known, &start, may_follow, wishes, &|| self.tree.of(pid, below, &parents()));
            let account = self.fetches.account_of(pid, &known.key);
            self.last_starts.note(LastStart::new(uid, pid, moment.at, &known.key, done, account).early());
            if self.learner.owes(&known.key) && self.may_observe() {
                self.learner.expect(pid, moment);
            }
        }
    }
}
