//! Roots of containers below which somebody looks, and those that are left out because nothing answered there.
//!
//! A profile is for all containers of an image, so what hangs in one of them must not keep the others from it: it is noted of the root.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prepage_profiles::ProgramKey;
use prepage_sys::sync::Anyway;

/// A root that did not answer is left out this long.
const LEFT_OUT: Duration = Duration::from_secs(600);
/// More than look at starts at once, and roots that are left out.
const LOOKS_MAX: usize = 256;
const LEFT_OUT_MAX: usize = 1024;

/// Device and inode of a root directory.
type Id = (u64, u64);

/// All of them. Lock order: none, there is one lock, never held over a system call.
#[derive(Debug, Default)]
pub struct Roots(Mutex<State>);

/// Protected by `Roots`.
#[derive(Debug, Default)]
struct State {
    /// Since when somebody looks for a program's files below a root.
    looks: HashMap<(Id, ProgramKey), Instant>,
    /// Until when.
    left_out: HashMap<Id, Instant>,
}

/// Somebody looks, until this is dropped, be it by a panic.
struct Looking<'a>(&'a Roots, (Id, ProgramKey));

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        self.0.0.lock().anyway().looks.remove(&self.1);
    }
}

impl Roots {
    /// Has `look` open some of the files of the profile of `key` below the root `id`, unless somebody waits for them there already.
    ///
    /// # Errors
    /// Since when somebody waits.
    pub fn look_at<T>(&self, id: Id, key: &ProgramKey, look: impl FnOnce() -> T) -> Result<T, Instant> {
        let (what, now) = ((id, key.clone()), Instant::now());
        {
            let looks = &mut self.0.lock().anyway().looks;
            if let Some(since) = looks.get(&what) {
                return Err(*since);
            }
            if looks.len() >= LOOKS_MAX {
                return Err(now);
            }
            looks.insert(what.clone(), now);
        }
        let _looking = Looking(self, what);
        Ok(look())
    }

    /// Leaves the root `id` out for a while: something below it does not answer.
    pub fn leave_out(&self, id: Id) {
        let (left_out, now) = (&mut self.0.lock().anyway().left_out, Instant::now());
        if left_out.len() >= LEFT_OUT_MAX {
            left_out.retain(|_, until| *until > now);
        }
        if left_out.len() >= LEFT_OUT_MAX
            && let Some(first) = left_out.iter().min_by_key(|(_, until)| **until).map(|(id, _)| *id)
        {
            left_out.remove(&first);
        }
        left_out.insert(id, now + LEFT_OUT);
    }

    pub fn is_left_out(&self, id: Id) -> bool {
        self.0.lock().anyway().left_out.get(&id).is_some_and(|until| *until > Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_below_one_root_keeps_nobody_from_another() {
        let roots = Roots::default();
        let [key, other] =
            ["x", "y"].map(|role| ProgramKey { program: "container:1".into(), role: role.into() });
        let looks = roots.look_at((1, 1), &key, || {
            assert!(roots.look_at((1, 1), &key, || ()).is_err(), "somebody waits");
            [roots.look_at((2, 1), &key, || 2), roots.look_at((1, 1), &other, || 3)]
        });
        assert_eq!(looks, Ok([Ok(2), Ok(3)]));
        let look = || roots.look_at((1, 1), &key, || panic!("a defect"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).is_err());
        assert_eq!(roots.look_at((1, 1), &key, || 4), Ok(4));
        roots.leave_out((1, 1));
        assert!(roots.is_left_out((1, 1)) && !roots.is_left_out((2, 1)));
        (0..3 * LEFT_OUT_MAX as u64).for_each(|inode| roots.leave_out((3, inode)));
        assert_eq!(roots.0.lock().anyway().left_out.len(), LEFT_OUT_MAX);
        assert!(!roots.is_left_out((1, 1)), "the oldest makes room");
    }
}
