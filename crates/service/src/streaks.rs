//! Programs that are started one after the other from the same terminal or job, while none of these starts needs anything, however the program is
//! called: a build's shell, compiler and assembler. Their next starts from there are passed over for a moment.
//!
//! A program that is called in one way rests for all starts of its user ([`crate::files`]). What a start of one that is called in many ways needs
//! is known once its arguments are read, and to read them is most of what a start costs. Another script that the user starts from another terminal
//! is looked at meanwhile: that is another session of processes (setsid(2)).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prepage_sys::file_handle::FileHandle;
use prepage_sys::session_id::session_id;
use prepage_sys::sync::Anyway;

use crate::process::user_of;

/// So many starts in a row that needed nothing begin a pause. A shell script starts a program a few times, a build hundreds of times.
const STARTS: u32 = 16;
/// For this long starts are passed over. The next one is looked at again.
const PAUSE: Duration = Duration::from_secs(2);
/// A start that comes later than this after the one before begins another row.
const APART: Duration = Duration::from_secs(1);
/// More programs than a few builds execute at once.
const STREAKS_MAX: usize = 1024;

/// As whom, and from which session of processes, a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    /// The user that the kernel shows the process's directory as.
    pub uid: u32,
    pub session: u32,
}

/// What a start has needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// It was fetched for, held out, observed, or is to be told apart from others.
    Something,
    /// Nothing was done. What such a program starts itself is part of its start, or a start of its own.
    Nothing {
        /// Whether it is part of its start.
        covers: bool,
    },
}

/// The programs of all callers. Lock order: none, there is one lock.
#[derive(Debug, Default)]
pub struct Streaks(Mutex<HashMap<(FileHandle, Caller), Streak>>);

/// Starts in a row that needed nothing.
#[derive(Clone, Copy, Debug)]
struct Streak {
    starts: u32,
    last: Instant,
    /// Until when starts are passed over.
    until: Instant,
    covers: bool,
}

impl Caller {
    /// That of process `pid`; `None` where it is gone.
    pub fn of(pid: u32) -> Option<Self> {
        Self::of_user(user_of(pid)?, pid)
    }

    /// That of process `pid` of user `uid`.
    pub fn of_user(uid: u32, pid: u32) -> Option<Self> {
        Some(Self { uid, session: session_id(pid)? })
    }
}

impl Streak {
    fn is_over(&self, now: Instant) -> bool {
        now > self.last.max(self.until) + APART
    }
}

impl Streaks {
    /// A start of the program in `file` was looked at, and has needed this.
    pub fn note(&self, file: FileHandle, caller: Caller, need: Need) {
        self.note_at((file, caller), need, Instant::now());
    }

    fn note_at(&self, whose: (FileHandle, Caller), need: Need, now: Instant) {
        let mut streaks = self.lock();
        let Need::Nothing { covers } = need else {
            streaks.remove(&whose);
            return;
        };
        if streaks.len() >= STREAKS_MAX && !streaks.contains_key(&whose) {
            streaks.retain(|_, streak| !streak.is_over(now));
            if streaks.len() >= STREAKS_MAX {
                return;
            }
        }
        let new = Streak { starts: 0, last: now, until: now, covers };
        let streak = streaks.entry(whose).or_insert(new);
        if streak.is_over(now) {
            *streak = new;
        }
        streak.starts = streak.starts.saturating_add(1);
        (streak.last, streak.covers) = (now, covers);
        if streak.starts >= STARTS {
            streak.until = now + PAUSE;
        }
    }

    /// Whether the caller's starts of the program in `file` are passed over now, and if so, whether what it starts is part of its start.
    pub fn passes_over(&self, file: &FileHandle, caller: Caller) -> Option<bool> {
        self.passes_over_at(&(file.clone(), caller), Instant::now())
    }

    fn passes_over_at(&self, whose: &(FileHandle, Caller), now: Instant) -> Option<bool> {
        self.lock().get(whose).filter(|streak| streak.until > now).map(|streak| streak.covers)
    }

    /// Forgets all: what is wanted has changed.
    pub fn forget(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(FileHandle, Caller), Streak>> {
        self.0.lock().anyway()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Need = Need::Nothing { covers: true };

    fn whose(file: u32, session: u32) -> (FileHandle, Caller) {
        let file = FileHandle { file_system: 1, kind: 1, bytes: file.to_ne_bytes().into() };
        (file, Caller { uid: 7, session })
    }

    #[test]
    fn starts_in_a_row_that_need_nothing_are_passed_over_from_there_for_a_moment() {
        let (streaks, began) = (Streaks::default(), Instant::now());
        let passes = |session, now| streaks.passes_over_at(&whose(1, session), now);
        let (mut now, step) = (began, APART / 2);
        for _ in 1..STARTS {
            streaks.note_at(whose(1, 1), NOTHING, now);
            now += step;
        }
        assert_eq!(passes(1, now), None, "one is missing");
        streaks.note_at(whose(1, 1), Need::Nothing { covers: false }, now);
        assert_eq!((passes(1, now), passes(2, now)), (Some(false), None), "of this session alone");
        assert_eq!(streaks.passes_over_at(&whose(2, 1), now), None);
        now += PAUSE;
        assert_eq!(passes(1, now), None, "one is looked at");
        streaks.note_at(whose(1, 1), NOTHING, now + step);
        assert_eq!(passes(1, now + step), Some(true));
        streaks.note_at(whose(1, 1), Need::Something, now + step);
        streaks.note_at(whose(1, 1), NOTHING, now + step);
        assert_eq!(passes(1, now + step), None, "it begins anew");
    }

    #[test]
    fn starts_now_and_then_are_none_in_a_row() {
        let (streaks, mut now) = (Streaks::default(), Instant::now());
        for _ in 0..4 * STARTS {
            streaks.note_at(whose(1, 1), NOTHING, now);
            assert_eq!(streaks.passes_over_at(&whose(1, 1), now), None);
            now += APART + Duration::from_nanos(1);
        }
    }

    #[test]
    fn of_any_number_of_callers_few_are_remembered_and_old_ones_make_room() {
        let (streaks, now) = (Streaks::default(), Instant::now());
        (0..4 * STREAKS_MAX as u32).for_each(|session| streaks.note_at(whose(1, session), NOTHING, now));
        assert_eq!(streaks.lock().len(), STREAKS_MAX);
        streaks.note_at(whose(1, u32::MAX), NOTHING, now + 2 * APART);
        assert!(streaks.lock().contains_key(&whose(1, u32::MAX)));
    }

    #[test]
    fn a_child_calls_from_the_session_of_its_parent() {
        let own = Caller::of(std::process::id()).unwrap();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = Caller::of(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((of_child, Caller::of(child.id())), (Some(own), None));
    }
}
