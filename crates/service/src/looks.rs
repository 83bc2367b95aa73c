//! Starts that are being looked at: a user whose starts take long, for they name files that a hostile file system answers for, holds
//! up the threads of nobody else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Looking at a start takes a millisecond. One that takes longer than this waits for a file system that may never answer.
const SLOW: Duration = Duration::from_secs(2);
/// So many slow ones of one user are waited for.
const SLOW_MAX: usize = 2;

/// The starts that threads are at. Lock order: none, there is one lock.
#[derive(Debug, Default)]
pub struct Looks {
    state: Mutex<State>,
}

/// Protected by `Looks::state`.
#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Whose, and since when.
    at_work: HashMap<u64, (u32, Instant)>,
}

/// A start that may be looked at.
#[derive(Debug)]
pub struct Look {
    looks: Arc<Looks>,
    uid: u32,
}

/// A start that is looked at, until this is dropped.
#[derive(Debug)]
pub struct AtWork {
    looks: Arc<Looks>,
    number: u64,
}

impl Looks {
    /// A start of user `uid` is to be looked at. `None` where those under way take so long that no more of this user's are.
    pub fn begin(self: &Arc<Self>, uid: u32) -> Option<Look> {
        self.begin_at(uid, Instant::now())
    }

    fn begin_at(self: &Arc<Self>, uid: u32, now: Instant) -> Option<Look> {
        let is_slow =
            |&&(of, began): &&(u32, Instant)| of == uid && now.saturating_duration_since(began) > SLOW;
        let slow = self.lock().at_work.values().filter(is_slow).count();
        (slow < SLOW_MAX).then(|| Look { looks: self.clone(), uid })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Look {
    /// It is looked at from now on. How long it waited for a thread says nothing of the user.
    pub fn at_work(self) -> AtWork {
        let mut state = self.looks.lock();
        let number = state.next;
        state.next += 1;
        state.at_work.insert(number, (self.uid, Instant::now()));
        drop(state);
        AtWork { looks: self.looks, number }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.looks.lock().at_work.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_slow_starts_is_served_again_when_they_end_and_others_always() {
        let looks = Arc::new(Looks::default());
        let later = Instant::now() + Duration::from_secs(3600);
        let waiting: Vec<Look> = (0..SLOW_MAX).map(|_| looks.begin(7).unwrap()).collect();
        assert!(looks.begin_at(7, later).is_some(), "nobody looks at them yet");
        let mut slow: Vec<AtWork> = waiting.into_iter().map(Look::at_work).collect();
        assert!(looks.begin(7).is_some(), "they have just begun");
        assert!(looks.begin_at(7, Instant::now() + 2 * SLOW).is_none());
        assert!(looks.begin_at(8, Instant::now() + 2 * SLOW).is_some());
        slow.pop();
        assert!(looks.begin_at(7, Instant::now() + 2 * SLOW).is_some());
        drop(slow);
        assert!(looks.lock().at_work.is_empty());
    }

    #[test]
    fn a_start_that_ends_before_anybody_asks_again_leaves_nothing_behind() {
        let looks = Arc::new(Looks::default());
        for _ in 0..100 {
            let look = looks.begin(7).unwrap();
            let looked = std::thread::spawn(move || drop(look.at_work()));
            looked.join().unwrap();
            // Work that panics, and work that is dropped.
            let look = looks.begin(7).unwrap();
            let _ = std::thread::spawn(move || {
                let _at_work = look.at_work();
                std::panic::resume_unwind(Box::new(()));
            })
            .join();
            drop(looks.begin(7));
        }
        assert!(looks.begin_at(7, Instant::now() + 2 * SLOW).is_some());
    }
}
