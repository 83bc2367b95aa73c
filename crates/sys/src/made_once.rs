//! A value that a process makes when it is needed first, whichever of its threads forks meanwhile.
//!
//! A child of fork(2) has one thread. With a `OnceLock`, a child that was forked while another thread made the value would wait for that thread for ever.
//! Here threads that need the value at the same time make one each, of which all keep the first; it is put into its place while nobody forks.
//! The `OnceLock`s that stand alone in this crate and in prepage-vm keep no child waiting: they lie in values that children do not use (a VM's objects and
//! maps, what watches starts), are set while nobody forks (`sigbus`), are made before the service is [copied](crate::copied) (`arm`, `perf`),
//! are needed by the service alone, whose copies do not ask for them (`user_namespace`), or by one thread, before there are others
//! (`uncommon_calls`, `bare_main`).

use std::convert::Infallible;
use std::sync::OnceLock;

use crate::fork;

/// A value, or the place for one.
#[derive(Debug)]
pub struct MadeOnce<T>(OnceLock<T>);

impl<T> MadeOnce<T> {
    /// A place without a value.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// The value, if it was made. May be called in signal handlers.
    pub fn get(&self) -> Option<&T> {
        self.0.get()
    }

    /// The value, made by `make` unless it was before. Where other threads make one at the same time, all but the first value are dropped.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        self.try_get_or_make(|| Ok::<T, Infallible>(make())).unwrap_or_else(|never| match never {})
    }

    /// As [`Self::get_or_make`], by a `make` that can fail: the next call tries again.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn try_get_or_make<E>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<&T, E> {
        if let Some(made) = self.0.get() {
            return Ok(made);
        }
        let made = make()?;
        // A later one is dropped after the lock is released: see `fork` for what may not be done under it.
        let later = fork::without_forks(|| self.0.set(made));
        drop(later);
        Ok(self.0.get().expect("it was set here, or before"))
    }
}

impl<T> Default for MadeOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;
    use crate::forked::Forked;

    #[test]
    fn a_child_that_is_forked_while_a_value_is_made_waits_for_nobody() {
        static VALUE: MadeOnce<u32> = MadeOnce::new();
        thread::scope(|scope| {
            let (begin, begun) = channel();
            let (end, ends) = channel();
            let makes = scope.spawn(move || {
                let make = || {
                    begin.send(()).unwrap();
                    ends.recv().unwrap();
                    7
                };
                *VALUE.get_or_make(make)
            });
            begun.recv().unwrap();
            let child = Forked::new(|| {
                // SAFETY: a child that waits for ever is ended.
                unsafe { libc::alarm(30) };
                *VALUE.get_or_make(|| 8) as i32
            });
            assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(8));
            end.send(()).unwrap();
            assert_eq!(makes.join().unwrap(), 7);
        });
    }

    #[test]
    fn of_values_that_are_made_at_the_same_time_the_first_stays() {
        let value = MadeOnce::new();
        let (first, later) = (Arc::new(1), Arc::new(2));
        let make_later = || {
            assert_eq!(**value.get_or_make(|| Arc::clone(&first)), 1);
            Arc::clone(&later)
        };
        assert_eq!(**value.get_or_make(make_later), 1);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&later)), (2, 1));
    }

    #[test]
    fn what_failed_or_panicked_is_tried_again() {
        let value = MadeOnce::new();
        assert_eq!((value.try_get_or_make(|| Err("not yet")), value.get()), (Err("not yet"), None));
        let panics = || value.get_or_make(|| panic!("as it may"));
        assert!(thread::scope(|scope| scope.spawn(panics).join().is_err()));
        assert_eq!((value.get_or_make(|| 3), value.get()), (&3, Some(&3)));
        assert_eq!(value.try_get_or_make(|| Err("never")), Ok(&3));
    }
}
