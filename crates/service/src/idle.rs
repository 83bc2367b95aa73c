//! Idle prediction: the programs that are to be expected are brought in while the machine has nothing else to do.
//!
//! ```text
//! starts ─► Log (who starts what when) ─► expected ─┐
//! /proc, /sys ─► Sampler ─► Reading: idle, spare ───┴─► Brought ─► used, or sent out again ─► Worth: go on, or pause for a day
//! ```
//! One thread does all of it, one program at a time and one read at a time, waits while others use the disk ([`crate::courtesy`]), looks now and then who
//! has used what, and stops where anything is started. Where a file system does not answer it, another takes its place ([`crate::round`]).

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prepage_core::idle::{Calm, Reading, worth::Worth};
use prepage_core::launches::{Expected, Launched};
use prepage_profiles::ProgramKey;
use prepage_sys::clock::unix_s;
use prepage_sys::local_time::utc_offset_s;
use prepage_sys::sync::Anyway;
use serde::Serialize;

use crate::brought::{Brought, Current, Reader, SeenUsed, Settled};
use crate::counters::{Counters, roughly_for};
use crate::crew::{Crew, Priority};
use crate::library::Library;
use crate::log::{Log, asleep};
use crate::pages::write_changed;
use crate::process::Process;
use crate::reading::{Sampler, guesses_bytes_max};
use crate::round::{HANGING_MAX, Next, Round, Rounds};
use crate::searches::Searches;

/// Programs less probable than this are not brought in: what nobody starts is read in vain.
const PROBABILITY_MIN: f64 = 0.75;
/// Programs brought in at once. Each has a watch of its own, of which a user has 128.
const BROUGHT_MAX: usize = 16;
/// Of them, those that one user may have while another expects something too.
const BROUGHT_OF_A_USER_MAX: usize = BROUGHT_MAX / 2;
/// A program has opened the files of its start after this long.
const START: Duration = Duration::from_secs(10);
/// A program whose pages were found in memory is not looked at again for this long.
const IN_MEMORY: Duration = Duration::from_secs(300);
/// While nothing is expected it is looked this seldom whether something is.
const NOTHING: Duration = Duration::from_secs(5);
/// Programs found in memory that are remembered.
const IN_MEMORY_MAX: usize = 256;

/// What is brought in while nothing else happens. Lock order: `writing`, `log`; no others are held at once.
#[derive(Debug)]
pub struct Idle {
    library: Arc<Library>,
    counters: Arc<Counters>,
    crew: Crew,
    /// For how long the machine has to be idle first.
    after: Duration,
    began: Instant,
    current: Current,
    searches: Searches,
    log: Mutex<Log>,
    /// As [`write_changed`] has it.
    writing: Mutex<()>,
    /// Held for a look at /proc and /sys, which may wait for a battery.
    sampler: Mutex<Sampler>,
    state: Mutex<State>,
    /// When the next round is due, and which ones hang.
    rounds: Mutex<Rounds>,
}

/// Protected by `Idle::state`, which is never held over what may wait for a device.
#[derive(Debug, Default)]
struct State {
    calm: Calm,
    /// What the machine is busy with, in a word; `idle` where it is not.
    now: &'static str,
    brought: Vec<Entry>,
    /// Programs that are being brought in, which `brought` has not meanwhile: more than one where others hang.
    bringing: Vec<Bringing>,
    in_memory: HashMap<(u32, Launched), Instant>,
    /// When the last round began in which nothing was expected, and nothing brought in; `None` after another, and after a launch.
    nothing_since: Option<Instant>,
    /// Whether the machine has slept since the last round: what was expected then is over, and nobody could start it.
    has_slept: bool,
}

impl State {
    /// What was brought in beyond a user's share, the least likely, and waits for its start, while there is no room for what another expects.
    fn too_many(&self, expected: &[(u32, Expected)]) -> Vec<(u32, Launched)> {
        let is_wanted = |uid: u32, what: &Launched| {
            !self.brought.iter().any(|entry| entry.is_of(uid, what))
                && !self.in_memory.contains_key(&(uid, what.clone()))
        };
        if self.brought.len() < BROUGHT_MAX {
            return Vec::new();
        }
        let mut shares: HashMap<u32, usize> = HashMap::new();
        for entry in self.brought.iter().filter(|entry| entry.started.is_some()) {
            *shares.entry(entry.uid).or_default() += 1;
        }
        let waits = |entry: &Entry| entry.started.is_none();
        let brought = expected.iter().filter_map(|(uid, expected)| {
            self.brought.iter().find(|entry| entry.is_of(*uid, &expected.what) && waits(entry))
        });
        let mut too_many = Vec::new();
        for entry in brought {
            let share = shares.entry(entry.uid).or_default();
            *share += 1;
            let is_another_s =
                |(uid, expected): &(u32, Expected)| *uid != entry.uid && is_wanted(*uid, &expected.what);
            if *share > BROUGHT_OF_A_USER_MAX && expected.iter().any(is_another_s) {
                too_many.push((entry.uid, entry.what.clone()));
            }
        }
        too_many
    }
}

/// A program that was brought in.
#[derive(Debug)]
struct Entry {
    uid: u32,
    what: Launched,
    brought: Brought,
    /// Whether all of it was brought in: nothing came between, and nothing of another one, which may share files with it, was sent out since.
    is_whole: bool,
    started: Option<Instant>,
}

/// A program that is being brought in.
#[derive(Debug)]
struct Bringing {
    uid: u32,
    what: Launched,
    /// When it was started meanwhile.
    started: Option<Instant>,
}

impl Entry {
    fn is_of(&self, uid: u32, what: &Launched) -> bool {
        self.uid == uid && self.what == *what
    }
}

/// What is said of it.
#[derive(Clone, Debug, Serialize)]
pub struct IdleStatus {
    /// `idle`, or what the machine is busy with.
    pub machine: &'static str,
    /// Programs in the launch log.
    pub remembered_programs: usize,
    /// Programs that are brought in now.
    pub brought_programs: usize,
    /// Bytes brought in for them; in steps of 64 MiB, but for root.
    pub brought_bytes: u64,
    /// What may be brought in at most, as long as no more memory gets free or is used; in such steps.
    pub predicted_bytes_max: u64,
    /// The share of the bytes that somebody used, lately, of those brought in for whoever asks; of all for root.
    pub used_share: Option<f64>,
    /// Whether nothing is brought in for whoever asks, for a day, because too little was used; for root, whether that is so of all users for whom
    /// anything was.
    pub is_paused: bool,
    /// What is expected of whoever asks; of all users for root.
    pub expected: Vec<ExpectedStatus>,
}

/// A program that is expected.
#[derive(Clone, Debug, Serialize)]
pub struct ExpectedStatus {
    pub uid: u32,
    pub program: String,
    pub role: String,
    pub probability: f64,
    pub is_brought: bool,
}

impl Idle {
    /// With the launch log in `directory`. Programs are brought in once the machine was idle for `after`; where that is zero,
    /// whatever it does.
    pub fn new(library: Arc<Library>, counters: Arc<Counters>, directory: PathBuf, after: Duration) -> Self {
        Self {
            library,
            counters,
            crew: Crew::new("idle", 1 + HANGING_MAX, 1),
            after,
            began: Instant::now(),
            current: Current::default(),
            searches: Searches::default(),
            log: Mutex::new(Log::read(directory)),
            writing: Mutex::default(),
            sampler: Mutex::default(),
            state: Mutex::default(),
            rounds: Mutex::default(),
        }
    }

    pub fn hanging(&self) -> usize {
        self.rounds.lock().anyway().all_hanging()
    }

    /// Something is started: whatever is read now for guesses gives way.
    pub fn give_way(&self) {
        self.current.stop();
    }

    /// Forgets user `uid`, who does not want to be remembered.
    pub fn forget(&self, uid: u32) {
        self.log.lock().anyway().forget(uid);
        self.searches.forget(uid);
    }

    /// Whether the log of somebody is still to be removed.
    pub fn is_forgetting(&self) -> bool {
        self.log.lock().anyway().as_mut().is_forgetting()
    }

    /// Notes a start.
    pub fn launched(&self, process: &Process) {
        let key = &process.context.key;
        let what = Launched { program: key.program.clone(), role: key.role.clone() };
        let uid = process.context.uid;
        self.searches.note(&process.rights, &process.search);
        let has_slept = {
            let mut log = self.log.lock().anyway();
            let has_slept = log.see_sleep(asleep());
            log.launched(uid, &what, process.login(), unix_s());
            has_slept
        };
        {
            let mut state = self.state.lock().anyway();
            state.has_slept |= has_slept;
            state.nothing_since = None;
        }
        self.note_start(uid, &what);
    }

    /// Notes the start of what may be brought in.
    fn note_start(&self, uid: u32, what: &Launched) {
        let mut state = self.state.lock().anyway();
        let bringing = state.bringing.iter_mut().filter(|one| one.uid == uid && one.what == *what);
        bringing.for_each(|one| _ = one.started.get_or_insert_with(Instant::now));
        let expected = state.brought.iter_mut().find(|entry| entry.is_of(uid, what));
        if let Some(entry) = expected.filter(|entry| entry.started.is_none()) {
            entry.started = Some(Instant::now());
            self.counters.predicted_starts.count();
        }
    }

    /// To be called each second. `is_quiet` says that nothing is fetched for any start.
    pub fn tick(self: &Arc<Self>, is_quiet: bool) {
        if self.state.lock().anyway().nothing_since.is_some_and(|since| since.elapsed() < NOTHING) {
            return;
        }
        let Next::Begin { round, hangs } = self.rounds.lock().anyway().next(Instant::now()) else { return };
        if hangs {
            self.counters.hung.count();
            // Should it ever be answered, it asks for nothing more.
            self.current.stop();
        }
        let idle = self.clone();
        self.crew.lend(Priority::Guess, Box::new(move || idle.round(is_quiet, &round)));
    }

    /// Writes the log. To be called at the end.
    pub fn write(&self) {
        self.write_log(true);
    }

    fn round(&self, is_quiet: bool, round: &Arc<Round>) {
        let now_unix_s = unix_s();
        let (expected, has_slept) = {
            let mut log = self.log.lock().anyway();
            let has_slept = log.see_sleep(asleep());
            log.tick(now_unix_s, utc_offset_s(now_unix_s));
            (log.expected(PROBABILITY_MIN), has_slept)
        };
        let reading = self.sampler.lock().anyway().look();
        let seen: Vec<(u32, SeenUsed)> = {
            let mut state = self.state.lock().anyway();
            state.has_slept |= has_slept;
            let has_nothing = expected.is_empty() && state.brought.is_empty();
            state.nothing_since = has_nothing.then(Instant::now);
            // While whoever has opened something is likely to be there still.
            let look = |entry: &mut Entry| {
                let uid = entry.uid;
                entry.brought.look().into_iter().map(move |seen| (uid, seen))
            };
            state.brought.iter_mut().flat_map(look).collect()
        };
        for (uid, seen) in seen {
            round.is_for(uid);
            seen.end(round);
        }
        let is_short = reading.is_some_and(|reading| reading.is_short());
        self.settle(&expected, is_short, now_unix_s, round);
        if let Some(reading) = reading
            && self.may_bring(&reading, is_quiet)
            && let Some((uid, what)) = self.next(&self.of_use(expected, now_unix_s))
        {
            self.bring(uid, what, &reading, round);
            // What the disk did meanwhile was this.
            self.sampler.lock().anyway().forget();
        }
        self.write_log(false);
    }

    fn may_bring(&self, reading: &Reading, is_quiet: bool) -> bool {
        let mut state = self.state.lock().anyway();
        let busy = if is_quiet { reading.busy().map(|busy| busy.name()) } else { Some("starts") };
        state.now = busy.unwrap_or("idle");
        let calm_ms = state.calm.see(busy.is_none(), self.began.elapsed().as_millis() as u64);
        self.after.is_zero() || busy.is_none() && u128::from(calm_ms) >= self.after.as_millis()
    }

    /// Without those of users of whom too little was used, or whose file systems do not answer.
    fn of_use(&self, mut expected: Vec<(u32, Expected)>, now_unix_s: u64) -> Vec<(u32, Expected)> {
        let paused: Vec<u32> = {
            let log = self.log.lock().anyway();
            log.worths().filter(|(_, worth)| worth.is_paused(now_unix_s)).map(|(uid, _)| uid).collect()
        };
        let rounds = self.rounds.lock().anyway();
        expected.retain(|(uid, _)| !paused.contains(uid) && !rounds.is_too_much_of(*uid));
        expected
    }

    /// The likeliest program that is neither brought in, all of it, nor in memory.
    fn next(&self, expected: &[(u32, Expected)]) -> Option<(u32, Launched)> {
        let mut state = self.state.lock().anyway();
        state.in_memory.retain(|_, seen| seen.elapsed() < IN_MEMORY);
        let has_room = |uid: u32, what: &Launched| {
            let is_begun = state.brought.iter().any(|entry| entry.is_of(uid, what));
            let share = state.brought.iter().filter(|entry| entry.uid == uid).count();
            let is_within = share < BROUGHT_OF_A_USER_MAX || expected.iter().all(|(other, _)| *other == uid);
            is_begun || state.brought.len() < BROUGHT_MAX && is_within
        };
        let is_new = |(uid, expected): &&(u32, Expected)| {
            let what = &expected.what;
            let is_done = |entry: &Entry| entry.is_whole || entry.started.is_some();
            !state.brought.iter().any(|entry| entry.is_of(*uid, what) && is_done(entry))
                && !state.in_memory.contains_key(&(*uid, what.clone()))
                && state.in_memory.len() < IN_MEMORY_MAX
                && has_room(*uid, what)
        };
        expected.iter().find(is_new).map(|(uid, expected)| (*uid, expected.what.clone()))
    }

    fn bring(&self, uid: u32, what: Launched, reading: &Reading, round: &Arc<Round>) {
        round.is_for(uid);
        let (spare_bytes, begun) = {
            let mut state = self.state.lock().anyway();
            let taken_bytes = state.brought.iter().map(|entry| entry.brought.bytes()).sum();
            let begun = state.brought.extract_if(.., |entry| entry.is_of(uid, &what)).next();
            state.bringing.push(Bringing { uid, what: what.clone(), started: None });
            (reading.spare_bytes(taken_bytes), begun)
        };
        let started_before = begun.as_ref().and_then(|begun| begun.started);
        let begun_bytes = begun.as_ref().map_or(0, |begun| begun.brought.bytes());
        let key = ProgramKey { program: what.program.clone(), role: what.role.clone() };
        let known = self.library.expected(&key, uid).filter(|_| self.library.wishes(Some(uid)).predicts);
        // Who wants it done whatever the machine does waits for nobody.
        let reader = Reader::new(!self.after.is_zero(), round.clone());
        let reader = self.current.set(reader);
        let brought = match (known.filter(|known| !known.is_left_alone()), begun) {
            (Some(known), Some(Entry { mut brought, .. })) => {
                let _ = brought.go_on(&known.planned, spare_bytes, &reader);
                Some(brought)
            }
            (Some(known), None) => {
                self.searches.look_up(uid, what.role.split(' ').next().unwrap_or_default(), round);
                Brought::bring(&known.planned, &known.rights, spare_bytes, &reader).ok().flatten()
            }
            (None, begun) => begun.map(|begun| begun.brought),
        };
        let has_left = reader.has_left();
        let mut state = self.state.lock().anyway();
        if has_left {
            state.calm = Calm::default();
        }
        let at = state.bringing.iter().position(|one| one.uid == uid && one.what == what);
        let started_meanwhile = at.and_then(|at| state.bringing.swap_remove(at).started);
        let started = started_before.or(started_meanwhile);
        match brought {
            Some(brought) => {
                self.counters.predicted_bytes.add(brought.bytes() - begun_bytes);
                if begun_bytes == 0 {
                    self.counters.predicted.count();
                }
                if started.is_some() && started_before.is_none() {
                    self.counters.predicted_starts.count();
                }
                // What something came between is gone on with.
                let is_whole = !reader.is_stopped();
                state.brought.push(Entry { uid, what, brought, is_whole, started });
            }
            // It is tried again.
            None if reader.is_stopped() => {}
            None => drop(state.in_memory.insert((uid, what), Instant::now())),
        }
    }

    /// Takes account of programs that were started, and of those that are no longer expected; sends out what nobody used.
    fn settle(&self, expected: &[(u32, Expected)], is_short: bool, now_unix_s: u64, round: &Round) {
        let is_expected = |entry: &Entry| {
            expected.iter().any(|(uid, expected)| *uid == entry.uid && expected.what == entry.what)
        };
        let is_over = |entry: &mut Entry| match entry.started {
            Some(started) => is_short || started.elapsed() >= START,
            None => is_short || !is_expected(entry),
        };
        let (has_slept, over, too_many): (bool, Vec<Entry>, Vec<Entry>) = {
            let mut state = self.state.lock().anyway();
            let over = state.brought.extract_if(.., is_over).collect();
            let too_many = state.too_many(expected);
            (
                std::mem::take(&mut state.has_slept),
                over,
                state
                    .brought
                    .extract_if(.., |entry| too_many.contains(&(entry.uid, entry.what.clone())))
                    .collect(),
            )
        };
        let all = over
            .into_iter()
            .map(|entry| (entry, true))
            .chain(too_many.into_iter().map(|entry| (entry, false)));
        for (Entry { uid, brought, started, .. }, is_over) in all {
            round.is_for(uid);
            let bytes = brought.bytes();
            let Settled { used_bytes, unused_bytes, sent_out_bytes } =
                brought.settle(started.is_some() && !is_short, round);
            self.counters.predicted_used_bytes.add(used_bytes);
            self.counters.predicted_unused_bytes.add(unused_bytes);
            self.counters.predicted_sent_out_bytes.add(sent_out_bytes);
            if sent_out_bytes > 0 {
                let mut state = self.state.lock().anyway();
                // Programs share libraries: what is missing of the others now is brought in once more.
                let others = state.brought.iter_mut().filter(|entry| entry.started.is_none());
                others.for_each(|entry| entry.is_whole = false);
            }
            // That memory got short, that the machine slept, or that others need the place, says nothing of the guess.
            if is_over && (started.is_some() || !is_short && !has_slept) {
                self.log.lock().anyway().settle(uid, bytes, used_bytes, now_unix_s);
            }
        }
    }

    fn write_log(&self, all: bool) {
        write_changed(&self.writing, &self.log, all, &self.counters.log_not_written);
    }

    /// What user `uid` may know of it.
    pub fn status(&self, uid: u32) -> IdleStatus {
        let may_know = |of: u32| uid == 0 || uid == of;
        let (expected, (_, remembered_programs), worth) = {
            let log = self.log.lock().anyway();
            let guessed = log.worths().filter(|(of, worth)| may_know(*of) && worth.used_share().is_some());
            let worth = guessed.map(|(_, worth)| worth).reduce(Worth::with).unwrap_or_default();
            (log.expected(PROBABILITY_MIN), log.size(), worth)
        };
        let state = self.state.lock().anyway();
        let expected = expected.into_iter().filter(|(of, _)| may_know(*of));
        let expected = expected.map(|(uid, Expected { what, probability })| {
            let is_brought = state.brought.iter().any(|entry| entry.uid == uid && entry.what == what);
            let Launched { program, role } = what;
            ExpectedStatus { uid, program, role, probability, is_brought }
        });
        let brought_bytes = state.brought.iter().map(|entry| entry.brought.bytes()).sum();
        IdleStatus {
            machine: state.now,
            remembered_programs,
            expected: expected.collect(),
            brought_programs: state.brought.len(),
            brought_bytes: roughly_for(uid, brought_bytes),
            predicted_bytes_max: roughly_for(uid, guesses_bytes_max(brought_bytes)),
            used_share: worth.used_share(),
            is_paused: worth.is_paused(unix_s()),
        }
    }
}

#[cfg(test)]
mod tests;
