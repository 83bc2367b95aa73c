//! What looks at each user's starts take of the processor. Most take a fraction of a millisecond; a user whose looks take more has a share for that, so
//! that nobody can have the service compute all the time: by patterns that take long to compare, or by profiles that are read anew for each start.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prepage_sys::processor_time::of_this_thread;
use prepage_sys::sync::Anyway;

/// What a look takes beyond this is spent.
const USUAL: Duration = Duration::from_millis(1);
/// Of each user is spent at most one in this of a processor's time.
const SHARE: u32 = 10;
/// So much may be spent at once: at a login all of the user's profiles are read.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Users of whom it is remembered.
const USERS_MAX: usize = 1024;
const ROOT: u32 = 0;

/// The processor time that was spent on each user's looks. Lock order: there is one lock, never held over a system call.
#[derive(Debug, Default)]
pub struct Spent(Mutex<HashMap<u32, Instant>>);

impl Spent {
    /// Whether at `now` a start of user `uid` may be looked at. All of root's may.
    fn may_look(&self, uid: u32, now: Instant) -> bool {
        // Until when the share of the user pays for what was spent.
        let paid = self.0.lock().anyway().get(&uid).copied();
        paid.is_none_or(|paid| paid.saturating_duration_since(now) <= SHARE * AT_ONCE)
    }

    /// Has a start of user `uid` looked at by this thread; `look` is dropped, and there is nothing to be told, where that was not paid for when its turn
    /// came: how long those before it would take, nobody knew when it was lent.
    pub fn of<T>(&self, uid: u32, look: impl FnOnce() -> T) -> Option<T> {
        if !self.may_look(uid, Instant::now()) {
            return None;
        }
        let before = of_this_thread();
        let seen = look();
        self.note(uid, of_this_thread().saturating_sub(before), Instant::now());
        Some(seen)
    }

    /// A look at a start of user `uid` that ended at `now` `took` so much processor time.
    fn note(&self, uid: u32, took: Duration, now: Instant) {
        let beyond = took.saturating_sub(USUAL);
        if uid == ROOT || beyond.is_zero() {
            return;
        }
        let mut all = self.0.lock().anyway();
        if all.len() >= USERS_MAX {
            all.retain(|_, paid| *paid > now);
        }
        if all.len() < USERS_MAX || all.contains_key(&uid) {
            let paid = all.entry(uid).or_insert(now);
            *paid = now.max(*paid) + SHARE * beyond;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_that_take_long_take_a_tenth_of_a_processor_and_those_of_root_and_of_others_go_on() {
        let (spent, began) = (Spent::default(), Instant::now());
        let minute = Duration::from_secs(60);
        // Two threads look at starts of a user, and there are always some.
        let (took, mut now, mut all) = (Duration::from_millis(20), began, Duration::ZERO);
        while now < began + minute {
            now += took;
            for _ in 0..2 {
                if spent.may_look(7, now) {
                    spent.note(7, took, now);
                    all += took;
                }
                spent.note(ROOT, took, now);
                spent.note(8, USUAL, now);
            }
        }
        assert!(all > minute / SHARE && all < minute / SHARE + 2 * AT_ONCE, "{all:?}");
        assert!(spent.may_look(ROOT, now) && spent.may_look(8, now));
        // Nothing is paid for yet by the clock of the machine.
        assert_eq!((spent.of(7, || ()), spent.of(8, || ())), (None, Some(())), "whatever was lent before");
        assert!(spent.may_look(7, now + minute), "it is paid for");
        (0..2 * USERS_MAX as u32).for_each(|uid| spent.note(uid, minute, now));
        assert!(spent.0.lock().anyway().len() <= USERS_MAX);
    }
}
