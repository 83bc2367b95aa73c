//! The last starts, as the status shows them to who may know.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use prepage_profiles::ProgramKey;
use prepage_sys::clock::unix_s;
use prepage_sys::sync::Anyway;

use crate::account::Account;
use crate::fetches::Done;
use crate::place::is_of_container;

/// Older starts are forgotten.
const STARTS_MAX: usize = 64;

/// The last starts of all users.
#[derive(Debug, Default)]
pub struct LastStarts(Mutex<VecDeque<LastStart>>);

/// A start, and what was done for it.
#[derive(Clone, Debug)]
pub struct LastStart {
    /// When, seconds since 1970.
    pub unix_s: u64,
    pub uid: u32,
    pub pid: u32,
    /// When its exec was told: the process may execute the same program again.
    executed_at: Instant,
    /// The program, and how it was called.
    pub key: ProgramKey,
    pub done: Done,
    /// What was fetched, where something was.
    pub account: Option<Arc<Account>>,
    /// Whether its arguments are not known yet.
    is_early: bool,
}

impl LastStart {
    /// A start now, by process `pid` of user `uid`, told at `executed_at`, and what was `done` for it. Its arguments are known.
    pub fn new(
        uid: u32,
        pid: u32,
        executed_at: Instant,
        key: &ProgramKey,
        done: Done,
        account: Option<Arc<Account>>,
    ) -> Self {
        Self { unix_s: unix_s(), uid, pid, executed_at, key: key.clone(), done, account, is_early: false }
    }

    /// The same, of which the arguments are not known yet.
    pub fn early(self) -> Self {
        Self { is_early: true, ..self }
    }
}

impl LastStarts {
    /// Notes a start. One whose arguments are known takes the place of what was noted of it early: the program may be called in another way than the
    /// one that was known.
    pub fn note(&self, start: LastStart) {
        let mut starts = self.0.lock().anyway();
        let is_same = |one: &&mut LastStart| {
            (one.is_early || start.is_early)
                && (one.pid, one.executed_at, one.uid, &one.key.program)
                    == (start.pid, start.executed_at, start.uid, &start.key.program)
        };
        if let Some(same) = starts.iter_mut().rfind(is_same) {
            // Either may be noted first.
            let other = if start.is_early && !same.is_early { start } else { std::mem::replace(same, start) };
            if other.key == same.key {
                same.account = same.account.take().or(other.account);
            }
            return;
        }
        if starts.len() >= STARTS_MAX {
            // The oldest of whoever has most: nobody pushes out all of another user's.
            let of = |uid| starts.iter().filter(|one| one.uid == uid).count();
            // Of equals that is the last, and so whose start is the oldest.
            let most = starts.iter().rev().map(|one| one.uid).max_by_key(|uid| of(*uid));
            let oldest = starts.iter().position(|one| Some(one.uid) == most);
            oldest.map(|at| starts.remove(at));
        }
        starts.push_back(start);
    }

    /// The start of process `pid` is to be left alone: what was begun for it before that was known is not told.
    pub fn take_back(&self, pid: u32) {
        self.0.lock().anyway().retain(|one| one.pid != pid || !one.is_early);
    }

    pub fn forget(&self, uid: u32) {
        self.0.lock().anyway().retain(|start| start.uid != uid);
    }

    /// Those of user `uid`; of all users and containers for root. Who has the user's number in a container may be another.
    pub fn of(&self, uid: u32) -> Vec<LastStart> {
        let is_own = |start: &&LastStart| start.uid == uid && !is_of_container(&start.key.program);
        self.0.lock().anyway().iter().filter(|start| uid == 0 || is_own(start)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_start_that_is_noted_before_its_arguments_are_known_is_one_start() {
        let starts = LastStarts::default();
        let [shell, program] =
            ["sh", "x"].map(|name| ProgramKey { program: format!("/bin/{name}"), role: name.into() });
        let then = Instant::now();
        let again = then + Duration::from_millis(1);
        let account = || Some(Arc::new(Account::begin(then, Arc::default())));
        starts.note(LastStart::new(7, 1, then, &shell, Done::Fetched, account()).early());
        starts.note(LastStart::new(7, 1, then, &program, Done::Recent, None));
        starts.note(LastStart::new(7, 1, then, &shell, Done::Fetched, None));
        starts.note(LastStart::new(8, 2, then, &shell, Done::Warm, None));
        starts.note(LastStart::new(8, 2, then, &shell, Done::Warm, None).early());
        let of =
            |uid| starts.of(uid).into_iter().map(|one| (one.done, one.account.is_some())).collect::<Vec<_>>();
        assert_eq!(of(7), [(Done::Fetched, true), (Done::Recent, false)]);
        assert_eq!((of(8), of(0).len()), (vec![(Done::Warm, false)], 3));
        starts.note(LastStart::new(8, 2, then, &program, Done::Fetched, account()).early());
        (1..3).for_each(|pid| starts.take_back(pid));
        assert_eq!((of(7).len(), of(8).len()), (2, 1), "what is certain stays");
        starts.note(LastStart::new(7, 1, again, &shell, Done::Recent, None).early());
        starts.note(LastStart::new(7, 1, again, &shell, Done::Recent, None));
        let both = [(Done::Fetched, true), (Done::Recent, false), (Done::Recent, false)];
        assert_eq!(of(7), both, "a program that executes itself again has started twice");
        let other = ProgramKey { role: "sh --other".into(), ..shell.clone() };
        for is_early_first in [true, false] {
            let early = LastStart::new(9, 3, then, &shell, Done::HeldOut, account()).early();
            let certain = LastStart::new(9, 3, then, &other, Done::Unknown, None);
            let both = if is_early_first { [early, certain] } else { [certain, early] };
            both.into_iter().for_each(|start| starts.note(start));
            assert_eq!(of(9), [(Done::Unknown, false)], "it was called in another way");
            starts.forget(9);
        }
        let contained = ProgramKey { program: "container:1-1-00/bin/x".into(), ..shell.clone() };
        starts.note(LastStart::new(7, 9, then, &contained, Done::Warm, None));
        assert_eq!((of(7).len(), starts.of(0).iter().filter(|one| one.key == contained).count()), (3, 1));
        (0..2 * STARTS_MAX as u32)
            .for_each(|pid| starts.note(LastStart::new(7, pid, then, &shell, Done::Warm, None)));
        assert_eq!(
            (starts.of(0).len(), of(8).len()),
            (STARTS_MAX, 1),
            "whoever starts most has no others forgotten"
        );
        let uids = 100..100 + STARTS_MAX as u32 + 1;
        let starts = LastStarts::default();
        uids.clone().for_each(|uid| starts.note(LastStart::new(uid, uid, then, &shell, Done::Warm, None)));
        let told: Vec<u32> = starts.of(0).iter().map(|one| one.uid).collect();
        assert_eq!(told, uids.skip(1).collect::<Vec<_>>(), "of users with one each the oldest");
    }
}
