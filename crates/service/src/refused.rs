//! Programs whose profiles could not be kept: each is observed again after a pause, and after twice as long a one where it cannot be kept then either.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prepage_profiles::ProgramKey;
use prepage_sys::sync::Anyway;

/// A disk may be full for a moment, and a home that is not there now is not there in an hour either.
const PAUSE_MIN: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);
/// Programs that are remembered.
const PROGRAMS_MAX: usize = 1024;

/// All of them, by the user whose starts they are. Lock order: none, there is one lock.
#[derive(Debug, Default)]
pub struct Refused(Mutex<HashMap<(u32, ProgramKey), Pause>>);

#[derive(Clone, Copy, Debug)]
struct Pause {
    length: Duration,
    until: Instant,
}

impl Refused {
    /// At `now` nothing could be kept of a start of `key` by user `uid`.
    pub fn note(&self, uid: u32, key: &ProgramKey, now: Instant) {
        let (mut all, key) = (self.lock(), (uid, key.clone()));
        if all.len() >= PROGRAMS_MAX
            && !all.contains_key(&key)
            && let Some(first) = all.iter().min_by_key(|(_, pause)| pause.until).map(|(key, _)| key.clone())
        {
            all.remove(&first);
        }
        let length = all.get(&key).map_or(PAUSE_MIN, |pause| (2 * pause.length).min(PAUSE_MAX));
        all.insert(key, Pause { length, until: now + length });
    }

    /// What a start of `key` by user `uid` showed was kept.
    pub fn forget(&self, uid: u32, key: &ProgramKey) {
        self.lock().remove(&(uid, key.clone()));
    }

    /// Whether starts of `key` by user `uid` are not to be observed at `now`.
    pub fn is_in_pause(&self, uid: u32, key: &ProgramKey, now: Instant) -> bool {
        self.lock().get(&(uid, key.clone())).is_some_and(|pause| pause.until > now)
    }

    /// Whether something of user `uid` could not be kept when it was tried last.
    pub fn has_some_of(&self, uid: u32) -> bool {
        self.lock().keys().any(|(of, _)| *of == uid)
    }

    /// Ends all pauses: somebody has set something right.
    pub fn forget_all(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, ProgramKey), Pause>> {
        self.0.lock().anyway()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(role: &str) -> ProgramKey {
        ProgramKey { program: "/bin/x".into(), role: role.into() }
    }

    #[test]
    fn what_cannot_be_kept_is_tried_less_and_less() {
        let (refused, began) = (Refused::default(), Instant::now());
        let mut tries = Vec::new();
        for second in 0..24 * 3600 {
            let now = began + Duration::from_secs(second);
            if !refused.is_in_pause(7, &key("x"), now) {
                tries.push(second);
                refused.note(7, &key("x"), now);
            }
        }
        assert_eq!(tries[..4], [0, 60, 180, 420]);
        assert!(tries.len() < 32, "{tries:?}");
        assert!(!refused.is_in_pause(8, &key("x"), began) && !refused.is_in_pause(7, &key("y"), began));
        assert_eq!([7, 8].map(|uid| refused.has_some_of(uid)), [true, false]);
        refused.forget(7, &key("x"));
        assert!(!refused.is_in_pause(7, &key("x"), began) && !refused.has_some_of(7));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_waits_longest_stays() {
        let (refused, now) = (Refused::default(), Instant::now());
        (0..5).for_each(|_| refused.note(7, &key("often"), now));
        (0..2 * PROGRAMS_MAX).for_each(|at| refused.note(8, &key(&at.to_string()), now));
        assert_eq!(refused.lock().len(), PROGRAMS_MAX);
        assert!(refused.is_in_pause(7, &key("often"), now));
        refused.forget_all();
        assert!(!refused.has_some_of(7));
    }
}
