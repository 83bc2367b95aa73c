//! Which programs one user starts after which, on arrival, and at which hour; and which are to be expected now.
//!
//! Launches are counted in *visits*: a stretch of time that something began. A visit counts each program once, however often it is
//! launched meanwhile, and has its counters ([`Counts`]) ended with it: programs that came gain, programs that did not lose. So what
//! is no longer done is forgotten within a few visits, by the same rule as pages that are no longer used.
//!
//! ```text
//! Context            a visit begins with                      and lasts
//! Arrival            a login, or a launch after four hours    ten minutes
//! Hour(h)            the hour of the day on the wall          one hour, whether anything is launched in it or not
//! After(program)     a launch of the program                  ten minutes
//! ```
//! Memory is bounded: [`PROGRAMS_MAX`] programs, [`FOLLOWERS_MAX`] for each context. Programs launched longest ago go
//! first (one that was launched only once counts as launched a week earlier than it was), and followers that came least; new followers are first those known for longest. Time is
//! handed in as seconds since 1970, and a clock that jumps ends all visits without counting them, as does a machine that [slept](Launches::slept); how far the clock on the wall is ahead of
//! that is said separately ([`Launches::set_zone`]), and moves hours alone.

mod saved;

use std::collections::BTreeMap;

use crate::idle::worth::Worth;
use crate::profile::counts::{Counts, Use};

pub use saved::SavedError;

/// Programs of one user that are remembered.
pub const PROGRAMS_MAX: usize = 256;
/// Programs that are counted in one context.
pub const FOLLOWERS_MAX: usize = 24;
/// A program or a role with a longer name is not remembered.
pub const NAME_BYTES_MAX: usize = 1024;
/// What has begun with a launch or an arrival lasts this long.
pub const VISIT_S: u64 = 600;
const HOUR_S: u64 = 3600;
/// Someone who launches nothing for this long is away.
const AWAY_S: u64 = 4 * HOUR_S;
/// Someone who launches nothing for this long is not expected to arrive any more: what others expect needs the memory.
const GONE_S: u64 = 7 * 24 * HOUR_S;
/// A program that was launched once makes room as if that had been so much earlier: a suite of tests has more programs than are remembered, and
/// launches each of them once.
const ONCE_S: u64 = 7 * 24 * HOUR_S;
/// Programs of the coming hour are expected this long before it.
const AHEAD_S: u64 = 600;
/// Visits at once: two, and one for each program launched lately.
const OPEN_MAX: usize = 32;
/// Visits that say something: less may be chance. In sixteenths, as [`Counts`] have them, after some decay.
const OBSERVED_MIN: u8 = 40;

/// What is launched: an executable, and how it is called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Launched {
    /// Absolute path of the executable.
    pub program: String,
    /// Its role ([`crate::profile::role`]).
    pub role: String,
}

/// What launches are counted after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Context {
    Arrival,
    Hour(u8),
    /// A slot of [`Launches::programs`].
    After(u16),
}

/// A program that is remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    what: Launched,
    first_unix_s: u64,
    last_unix_s: u64,
}

impl Program {
    /// When it was launched last, as far as it counts.
    fn counted_as_last_unix_s(&self) -> u64 {
        let is_once = self.first_unix_s == self.last_unix_s;
        self.last_unix_s.saturating_sub(if is_once { ONCE_S } else { 0 })
    }
}

/// What was counted in a context.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counted {
    visits: u32,
    /// By slot of the program.
    followers: BTreeMap<u16, Counts>,
}

/// A visit under way.
#[derive(Clone, Debug)]
struct Visit {
    context: Context,
    until_unix_s: u64,
    /// Slots of the programs launched so far: [`PROGRAMS_MAX`] at most.
    launched: Vec<u16>,
}

/// A program that is to be expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Expected {
    /// Which.
    pub what: Launched,
    /// How probable it is that it is launched before what lets it be expected is over.
    pub probability: f64,
}

/// The launches of one user.
#[derive(Clone, Debug, Default)]
pub struct Launches {
    /// Slots keep their place; a slot that is given up is `None`.
    programs: Vec<Option<Program>>,
    counted: BTreeMap<Context, Counted>,
    open: Vec<Visit>,
    last_launch_unix_s: u64,
    /// What it was worth to bring in what was to be expected.
    pub worth: Worth,
    now_unix_s: u64,
    /// Seconds that the clock on the wall is ahead of UTC; not saved.
    utc_offset_s: i64,
}

impl Launches {
    /// Clocks on the wall are `utc_offset_s` seconds ahead of UTC from now on; at first they are not.
    pub fn set_zone(&mut self, utc_offset_s: i64) {
        self.utc_offset_s = utc_offset_s;
    }

    /// The machine slept: visits under way end without being counted, for nobody could come in them.
    pub fn slept(&mut self) {
        self.open.clear();
    }

    /// It is `now_unix_s`. Ends the visits that are over, and begins that of the hour. Returns whether anything was counted: of an hour in which
    /// nothing ever comes, nothing is.
    pub fn tick(&mut self, now_unix_s: u64) -> bool {
        // Somebody set the clock, or the machine was off.
        if now_unix_s < self.now_unix_s || now_unix_s > self.now_unix_s.saturating_add(2 * HOUR_S) {
            self.open.clear();
            // What was launched in the future was launched by another clock: it is to grow old by this one.
            let before = now_unix_s.saturating_sub(1);
            self.last_launch_unix_s = self.last_launch_unix_s.min(before);
            for program in self.programs.iter_mut().flatten() {
                program.first_unix_s = program.first_unix_s.min(before);
                program.last_unix_s = program.last_unix_s.min(before);
            }
        }
        self.now_unix_s = now_unix_s;
        let mut over = Vec::new();
        self.open.retain(|visit| {
            let goes_on = visit.until_unix_s > now_unix_s;
            if !goes_on {
                over.push(visit.clone());
            }
            goes_on
        });
        let mut has_counted = false;
        over.iter().for_each(|visit| has_counted |= self.count(visit));
        if !self.open.iter().any(|visit| matches!(visit.context, Context::Hour(_))) {
            let since_s = self.since_the_hour_s();
            // Of an hour that began long ago nobody knows what came before.
            if since_s < AHEAD_S {
                self.begin(Context::Hour(self.hour_at(now_unix_s)), now_unix_s + HOUR_S - since_s);
            }
        }
        has_counted
    }

    /// `what` was launched now; `arrives` says that the user has just logged in.
    pub fn launched(&mut self, what: &Launched, arrives: bool, now_unix_s: u64) {
        self.tick(now_unix_s);
        if what.program.len().max(what.role.len()) > NAME_BYTES_MAX {
            return;
        }
        let is_away = self.is_away();
        self.last_launch_unix_s = now_unix_s;
        if arrives || is_away {
            self.begin(Context::Arrival, now_unix_s + VISIT_S);
        }
        self.note(what, now_unix_s);
    }

    /// The same of a job of the user's (cron, at): nobody has come for it.
    pub fn launched_by_job(&mut self, what: &Launched, now_unix_s: u64) {
        self.tick(now_unix_s);
        if what.program.len().max(what.role.len()) <= NAME_BYTES_MAX {
            self.note(what, now_unix_s);
        }
    }

    fn note(&mut self, what: &Launched, now_unix_s: u64) {
        let slot = self.slot(what);
        for visit in &mut self.open {
            if visit.context != Context::After(slot) && !visit.launched.contains(&slot) {
                visit.launched.push(slot);
            }
        }
        self.begin(Context::After(slot), now_unix_s + VISIT_S);
    }

    /// What is to be expected now, the likeliest first: at least with `probability_min`.
    pub fn expected(&self, probability_min: f64) -> Vec<Expected> {
        let mut found: BTreeMap<u16, f64> = BTreeMap::new();
        let mut see = |context: Context, launched: &[u16]| {
            let followers = self.counted.get(&context).map(|counted| &counted.followers);
            for (&slot, counts) in followers.into_iter().flatten() {
                let probability = counts.probability();
                if counts.sixteenths().1 >= OBSERVED_MIN
                    && probability >= probability_min
                    && !launched.contains(&slot)
                {
                    let most = found.entry(slot).or_insert(0.0);
                    *most = most.max(probability);
                }
            }
        };
        for visit in &self.open {
            see(visit.context, &visit.launched);
        }
        if self.is_away() && self.now_unix_s - self.last_launch_unix_s <= GONE_S {
            see(Context::Arrival, &[]);
        }
        if self.since_the_hour_s() >= HOUR_S - AHEAD_S {
            see(Context::Hour(self.hour_at(self.now_unix_s + AHEAD_S)), &[]);
        }
        let expected = found.into_iter().filter_map(|(slot, probability)| {
            Some(Expected { what: self.program(slot)?.what.clone(), probability })
        });
        let mut expected: Vec<Expected> = expected.collect();
        expected.sort_by(|a, b| b.probability.total_cmp(&a.probability));
        expected
    }

    /// When the user last launched something; 0 if never. Jobs do not count, for they run without the user.
    pub fn last_launch_unix_s(&self) -> u64 {
        self.last_launch_unix_s
    }

    /// When something was last launched on the user's account, jobs included; 0 where nothing was.
    pub fn last_unix_s(&self) -> u64 {
        let programs = self.programs.iter().flatten().map(|program| program.last_unix_s);
        programs.fold(self.last_launch_unix_s, u64::max)
    }

    /// How many programs are remembered.
    pub fn programs(&self) -> usize {
        self.programs.iter().flatten().count()
    }

    /// The hour that the clock on the wall shows at `unix_s`.
    fn hour_at(&self, unix_s: u64) -> u8 {
        (unix_s.saturating_add_signed(self.utc_offset_s) / HOUR_S % 24) as u8
    }

    /// How long ago that clock showed a full hour.
    fn since_the_hour_s(&self) -> u64 {
        self.now_unix_s.saturating_add_signed(self.utc_offset_s) % HOUR_S
    }

    fn is_away(&self) -> bool {
        self.now_unix_s.saturating_sub(self.last_launch_unix_s) > AWAY_S
    }

    fn program(&self, slot: u16) -> Option<&Program> {
        self.programs.get(usize::from(slot))?.as_ref()
    }

    /// Begins a visit, unless one of the same context is under way.
    fn begin(&mut self, context: Context, until_unix_s: u64) {
        if self.open.iter().any(|visit| visit.context == context) {
            return;
        }
        if self.open.len() >= OPEN_MAX {
            // Not the hour: it would count as one in which nothing came.
            let oldest = self.open.iter().position(|visit| matches!(visit.context, Context::After(_)));
            self.open.remove(oldest.unwrap_or(0));
        }
        self.open.push(Visit { context, until_unix_s, launched: Vec::new() });
    }

    /// Counts a visit that is over. Returns whether there was anything to count.
    fn count(&mut self, visit: &Visit) -> bool {
        if visit.launched.is_empty() && !self.counted.contains_key(&visit.context) {
            return false;
        }
        let counted = self.counted.entry(visit.context).or_default();
        for (slot, counts) in &mut counted.followers {
            *counts = counts.after(if visit.launched.contains(slot) { Use::Sure } else { Use::None });
        }
        counted.followers.retain(|_, counts| !counts.is_forgotten());
        let new = Counts::unused_in(counted.visits).after(Use::Sure);
        // Programs known for long come first: what is started once is not to crowd out what is started each time.
        let mut launched = visit.launched.clone();
        launched.sort_by_key(|slot| self.programs[usize::from(*slot)].as_ref().map(|one| one.first_unix_s));
        for slot in launched {
            if counted.followers.contains_key(&slot) {
                continue;
            }
            if counted.followers.len() >= FOLLOWERS_MAX {
                // The least probable one makes room, unless it is as probable as one that has come once.
                let by_probability = |a: &(&u16, &Counts), b: &(&u16, &Counts)| {
                    a.1.probability().total_cmp(&b.1.probability())
                };
                let least = counted.followers.iter().min_by(by_probability);
                match least.map(|(slot, counts)| (*slot, counts.probability())) {
                    Some((least, probability)) if probability < new.probability() => {
                        counted.followers.remove(&least);
                    }
                    _ => continue,
                }
            }
            counted.followers.insert(slot, new);
        }
        counted.visits = counted.visits.saturating_add(1);
        if counted.followers.is_empty() {
            self.counted.remove(&visit.context);
        }
        true
    }

    /// The slot of a program; a new one takes the place of that launched longest ago where there are too many.
    fn slot(&mut self, what: &Launched) -> u16 {
        let now = self.now_unix_s;
        let known = self.programs.iter().position(|one| one.as_ref().is_some_and(|one| one.what == *what));
        let at = known.or_else(|| self.programs.iter().position(Option::is_none)).unwrap_or_else(|| {
            if self.programs.len() < PROGRAMS_MAX {
                self.programs.push(None);
                return self.programs.len() - 1;
            }
            let last = |at: &usize| self.programs[*at].as_ref().map(Program::counted_as_last_unix_s);
            let oldest = (0..self.programs.len()).min_by_key(last).unwrap_or(0);
            self.forget(oldest as u16);
            oldest
        });
        let first_unix_s = self.programs[at].as_ref().map_or(now, |program| program.first_unix_s);
        self.programs[at] = Some(Program { what: what.clone(), first_unix_s, last_unix_s: now });
        at as u16
    }

    /// Forgets a program and all that was counted of it.
    fn forget(&mut self, slot: u16) {
        self.programs[usize::from(slot)] = None;
        self.counted.remove(&Context::After(slot));
        self.open.retain(|visit| visit.context != Context::After(slot));
        self.open.iter_mut().for_each(|visit| visit.launched.retain(|other| *other != slot));
        self.counted.values_mut().for_each(|counted| counted.followers.retain(|other, _| *other != slot));
    }
}

#[cfg(test)]
mod tests;
