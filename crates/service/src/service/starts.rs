//! What is done for a start: its pages are fetched, or it is observed, or followed to its end.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prepage_core::profile::gain::Turn;
use prepage_core::profile::start::Draw;
use prepage_sys::clock::{now_ns, unix_s};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::random::random;
use prepage_sys::root::Root;

use super::Service;
use crate::crew::Priority;
use crate::fair_crew::AtWork;
use crate::fetches::{Done, Start};
use crate::gains::Followed;
use crate::known::Known;
use crate::last_starts::LastStart;
use crate::library::{Found, Wishes};
use crate::moment::Moment;
use crate::process::{Elsewhere, LeftAlone, Process, user_of};
use crate::streaks::{Caller, Need};
use crate::tree::{Below, Kind, WINDOW_MAX};

/// What a program starts within this time is part of its start.
pub(super) const START_WINDOW: Duration = Duration::from_secs(3);
/// What `prepage run` has started is its own for as long as it serves a start.
const PREFIX_WINDOW: Duration = WINDOW_MAX;

/// The root of a process whose names are looked up below `root`, where that is not the machine's.
pub(super) fn below_root(root: Option<&Root>) -> Below {
    Below::Root(root.map(Root::id))
}

/// What is left to do for a start once its pages are on their way.
#[derive(Debug)]
enum Next {
    /// It is to be observed.
    Observe(Process, Option<Arc<Known>>),
    /// It is followed, to see what fetching gains.
    Follow(Process, Followed),
    /// Nothing. What it has needed.
    Done(Need),
}

/// A start that is to be looked at. Dropped before it is, it counts as crowded.
struct Unseen(Option<Arc<Service>>);

impl Unseen {
    /// It is looked at now.
    fn seen(mut self) {
        self.0 = None;
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        self.0.iter().for_each(|service| service.counters.crowded.count());
    }
}

impl Service {
    /// Process `pid`, on the account of user `uid`, runs a program: that in `file`, where that is said, and when it was told to be executed. Where it is
    /// not looked at, it counts as crowded.
    pub(super) fn launch(self: &Arc<Self>, pid: u32, uid: u32, file: Option<(FileHandle, Moment)>) {
        self.idle.iter().for_each(|idle| idle.give_way());
        let unseen = Unseen(Some(self.clone()));
        // A process that is over by the time that it is looked at has needed nothing either.
        let whose = file.as_ref().and_then(|(file, _)| Some((file.clone(), Caller::of(pid)?)));
        let service = self.clone();
        let start = move |look| {
            let place = Cell::new(Some(Err(look)));
            let gives_way = || place.set(place.take().map(|kept| kept.or_else(AtWork::step_aside)));
            let fetch = || {
                unseen.seen();
                service.fetch_for(pid, file, &gives_way)
            };
            let next = service.spent.of(uid, fetch);
            drop(place);
            if !matches!(next, Some(Next::Observe(..))) {
                drop(service.learner.take_expected(pid));
            }
            let Some(next) = next else { return };
            let (file, caller) = whose.unzip();
            if let Some((file, caller)) = file.clone().zip(caller) {
                let need = if let Next::Done(need) = &next { *need } else { Need::Something };
                service.streaks.note(file, caller, need);
            }
            match next {
                Next::Follow(process, start) => {
                    service.learner.spend(service.gains.follow(&process, &start));
                }
                Next::Observe(process, known) => {
                    service.observe(&process, known.as_deref());
                    let (key, uid) = (&process.context.key, process.rights.uid);
                    file.into_iter().for_each(|file| service.library.note_learned(file, key, uid));
                }
                Next::Done(_) => {}
            }
        };
        self.looks.lend(uid, Priority::Start, Box::new(start));
    }

    /// Whether it is to be kept how a cold start of `known` fares that is begun by user `uid` on the account of `starter`. One that is owed
    /// an observation is observed.
    pub(super) fn may_follow(&self, known: &Known, uid: u32, starter: u32, wishes: Wishes) -> bool {
        self.measures(wishes)
            && uid == starter
            && !known.is_change_due()
            && !self.learner.owes(&known.key)
            && !known.past.observation_due(None)
            && self.gains.has_room(uid)
            && self.learner.has_time()
    }

    /// Whether starts are held out and kept of a user with these `wishes`.
    pub(crate) fn measures(&self, wishes: Wishes) -> bool {
        self.learns && wishes.measures
    }

    /// Fetches what is known for a start of a user with these `wishes`. Only one that `may_be_held_out` is, and what it starts with it; `part_of` says
    /// what is done for the start that it belongs to, where that has to be known.
    pub(super) fn fetch_known(
        &self,
        known: &Arc<Known>,
        start: &Start<'_>,
        may_be_held_out: bool,
        wishes: Wishes,
        part_of: &dyn Fn() -> Option<Kind>,
    ) -> Done {
        let decided =
            if wishes.holds_out { self.gains.turn(start.uid, known, false) } else { Turn::Prefetch };
        let mut turn = if may_be_held_out { self.gains.turn(start.uid, known, true) } else { decided };
        if turn != decided || self.tree.holds_out() {
            match part_of() {
                Some(Kind::HeldOut) => return Done::LeftAlone,
                // Nothing is kept of it: nothing is tried out.
                Some(_) => turn = decided,
                None => {}
            }
        }
        self.fetches.fetch(known, start, turn)
    }

    /// Chooses and fetches for a start that was told when the moment beside `file` says. It `gives_way` before it waits for somebody.
    fn fetch_for(&self, pid: u32, file: Option<(FileHandle, Moment)>, gives_way: &dyn Fn()) -> Next {
        self.counters.starts.count();
        let now = Instant::now();
        let (file, moment) = file.unzip();
        let executed_at = moment.map_or(now, |moment| moment.at);
        let mut process = match Process::of(pid, file.as_ref()) {
            Ok(process) => process,
            Err(why) => return Next::Done(self.leave_alone(pid, why, file, executed_at)),
        };
        if let Some(moment) = moment {
            process.context.began_ns = now_ns().saturating_sub(moment.at.elapsed().as_nanos() as u64);
            process.moment = moment;
        }
        let (key, uid, root) = (&process.context.key, process.context.uid, process.root.clone());
        if root.is_some() {
            self.counters.in_containers.count();
        }
        let name = key.role.split(' ').next().unwrap_or_default();
        let below_this = below_root(root.as_deref());
        let part_of = self.tree.of(pid, below_this, &process.parents);
        let is_served = self.below.as_ref().is_none_or(|below| process.program().starts_with(below));
        let is_wanted = part_of != Some(Kind::ByPrefix)
            && is_served
            && self.library.is_wanted_by_machine(pid, name.as_ref(), process.program());
        let (found, to_mark, wishes) = match is_wanted.then(|| self.library.find(&process)) {
            Some(Found { known, to_mark, wishes }) => (known.ok(), to_mark, wishes),
            None => (None, None, self.library.wishes(Some(uid))),
        };
        // What the user wants is known from here on. Nothing is remembered of what containers start: their users are none of this machine.
        let predicts = root.is_none() && wishes.predicts;
        if !predicts && root.is_none() {
            self.idle.iter().for_each(|idle| idle.forget(uid));
        }
        if root.is_none() && !self.measures(wishes) {
            self.gains.forget(uid);
        }
        let Some(found) = found else {
            self.take_back(pid, executed_at);
            // What it starts is part of its start, as it is where nothing is left alone.
            let covers = is_served && part_of.is_none();
            if covers {
                self.tree.begin(pid, below_this, Kind::Covered, START_WINDOW);
            }
            if let Some(file) = file.filter(|_| !self.library.may_be_wanted(uid, process.program())) {
                self.files.begin_rest(file, uid, true);
            }
            return Next::Done(Need::Nothing { covers });
        };
        // What a user starts by ids without number says nothing of a user, and would leave no room for others.
        let is_of_user = process.starter == uid;
        let may_come_again = found.is_some() || self.learner.may_come_again(uid, key);
        let parents = || process.parents.clone();
        let (starter, root) = (process.starter, root.as_ref());
        let start =
            Start { uid, pid, seen_at: now, executed_at, parents: &parents, root, starter, gives_way };
        let mut may_follow = false;
        let done = match &found {
            Some(known) => {
                if let Some(file) = &file {
                    self.library.note(file.clone(), &key.program);
                }
                self.tree.begin(pid, below_this, Kind::Covered, START_WINDOW);
                may_follow = part_of.is_none()
                    && root.is_none()
                    && moment.is_some()
                    && self.may_follow(known, uid, process.starter, wishes);
                let done = self.fetch_known(known, &start, may_follow, wishes, &|| part_of);
                if done == Done::HeldOut {
                    self.tree.begin(pid, below_this, Kind::HeldOut, START_WINDOW);
                }
                done
            }
            None => {
                self.counters.unknown.count();
                file.iter().for_each(|file| self.files.note_stranger(file.clone()));
                if part_of.is_none() {
                    let guess = || self.library.guess(&key.program);
                    self.fetches.fetch_guess(&key.program, guess, &start)
                } else {
                    Done::Unknown
                }
            }
        };
        // Of what nobody has learned nothing can be brought in, and a build's programs would leave no room for others.
        if part_of.is_none() && predicts && is_of_user && found.is_some() {
            self.idle.iter().for_each(|idle| idle.launched(&process));
        }
        match done {
            Done::Fetched => self.counters.fetched.count(),
            Done::HeldOut => self.counters.held_out.count(),
            Done::Guessed => self.counters.guessed.count(),
            Done::Warm if found.is_some() => self.counters.warm.count(),
            Done::Warm | Done::Recent | Done::LeftAlone | Done::Unknown => {}
        }
        let account = self.fetches.account_of(pid, key);
        self.last_starts.note(LastStart::new(uid, pid, executed_at, key, done, account.clone()));
        // This may wait for a disk, until after the prefetch is over.
        to_mark.iter().for_each(|layer| self.library.mark_as_used(&process, *layer));
        if let Some(file) = &file
            && !matches!(done, Done::Warm | Done::Recent | Done::Unknown)
        {
            self.to_forget.note(file.clone());
        }
        let is_due = self.is_due(&process, found.as_ref(), done, may_come_again);
        if is_due && part_of.is_none() && self.may_learn_of(&process, found.as_ref(), wishes) {
            return Next::Observe(process, found);
        }
        if let (Some(_), Some(file)) = (&found, file)
            && self.library.only_role(&file, process.rights.uid).is_some()
        {
            // Once there is time to observe it, that is soon seen. Where nothing is learned there never is.
            let is_owed = is_due && self.learns;
            self.files.begin_rest(file, process.rights.uid, done == Done::Warm && !is_owed);
        }
        let fetched = match done {
            Done::Fetched => account.map(|account| Some(account.amounts.clone())),
            Done::HeldOut => Some(None),
            Done::Warm | Done::Recent | Done::Unknown => {
                return Next::Done(Need::Nothing { covers: found.is_some() });
            }
            // What a start that is left alone starts is fetched: it is no measure of a start for which nothing is.
            Done::LeftAlone | Done::Guessed => None,
        };
        match (found, fetched.filter(|_| may_follow)) {
            (Some(known), Some(fetched)) => Next::Follow(process, Followed { known, fetched }),
            _ => Next::Done(Need::Something),
        }
    }

    /// Notes that nothing is done for process `pid`, for this reason; what it has needed.
    fn leave_alone(&self, pid: u32, why: LeftAlone, file: Option<FileHandle>, executed_at: Instant) -> Need {
        match why {
            LeftAlone::Prepage => self.tree.begin(pid, Below::AnyRoot, Kind::ByPrefix, PREFIX_WINDOW),
            LeftAlone::Elsewhere(why) => {
                self.counters.elsewhere.count();
                match why {
                    Elsewhere::OnAnotherMount => &self.counters.elsewhere_mount,
                    Elsewhere::Hidden => &self.counters.elsewhere_hidden,
                    Elsewhere::NotTold => &self.counters.elsewhere_missed,
                }
                .count();
                if let (Some(file), Some(uid)) = (file, user_of(pid)) {
                    let is_known = self.library.is_known(&file);
                    self.files.begin_rest_elsewhere(file, uid, is_known);
                }
            }
            LeftAlone::SwitchedOff => {
                self.take_back(pid, executed_at);
                return Need::Nothing { covers: false };
            }
            LeftAlone::Unanswered => self.counters.hung.count(),
            LeftAlone::Gone => return Need::Nothing { covers: false },
            LeftAlone::Wrapper => {}
        }
        Need::Something
    }

    /// Stops what was begun early for process `pid`, which wants nothing.
    fn take_back(&self, pid: u32, executed_at: Instant) {
        self.fetches.cancel(pid, executed_at);
        self.last_starts.take_back(pid);
        self.counters.left_alone.count();
    }

    /// Whether a start of `process`, of which `known` is known and for which this was `done`, is to be observed once there is time.
    fn is_due(
        &self,
        process: &Process,
        known: Option<&Arc<Known>>,
        done: Done,
        may_come_again: bool,
    ) -> bool {
        if self.learner.is_refused(process) {
            return false;
        }
        match known {
            Some(_) if done == Done::HeldOut => false,
            Some(known) => {
                let draw = if matches!(done, Done::Warm | Done::Recent) { Draw::Warm } else { Draw::Cold };
                let is_owed = known.is_change_due() || self.learner.owes(&process.context.key);
                let is_drawn = || known.past.observation_due(self.sample(known).map(draw));
                is_owed
                    || is_drawn() && {
                        known.mark_as_drawn(unix_s());
                        true
                    }
            }
            None => may_come_again,
        }
    }

    /// Whether starts of known programs are not observed for now: what is left is for new ones.
    pub(crate) fn learning_waits(&self) -> bool {
        self.learns && !self.learner.has_plenty()
    }

    /// Whether there is time to observe `process`, of which `known` is known, and the `wishes` of its user let it be observed.
    fn may_learn_of(&self, process: &Process, known: Option<&Arc<Known>>, wishes: Wishes) -> bool {
        let is_known = known.is_some_and(|known| !known.is_new_change());
        self.may_observe()
            && (!is_known || self.learner.has_plenty())
            && (process.root.is_some() || wishes.learns)
    }

    /// A number to draw whether a known start is observed; none where it was learned from a moment ago.
    fn sample(&self, known: &Known) -> Option<u64> {
        (!known.was_just_learned(unix_s())).then(random)
    }

    pub(super) fn may_observe(&self) -> bool {
        self.learns && self.learner.may_observe()
    }

    fn observe(&self, process: &Process, known: Option<&Known>) {
        let pid = process.context.pid;
        let Some(permit) = self.learner.permit(process.starter) else {
            drop(self.learner.take_expected(pid));
            return;
        };
        // What a shell or a build starts later is a start of its own.
        self.tree.begin(pid, below_root(process.root.as_deref()), Kind::Covered, START_WINDOW);
        permit.learn(process, known, &self.watch);
    }
}
