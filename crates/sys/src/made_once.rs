//! A value that a process makes once, when it is needed first, while none of its threads forks.
//!
//! A child of fork(2) has one thread. With a `OnceLock`, a child that was forked while another thread made the value would wait for that thread for ever.
//! The `OnceLock`s that stand alone in this crate and in prepage-vm keep no child waiting: they lie in values that children do not use (a VM's objects and
//! maps, what watches starts), are set while a value of this module is made (`sigbus`), are made before the service is [copied](crate::copied) (`arm`, `perf`),
//! or are needed by the service alone, whose copies do not ask for them (`user_namespace`).

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

    /// The value, made by `make` unless it was before. Meanwhile calls of fork(3), and other threads that make such a value, wait, and the thread takes no signals:
    /// `make` may neither fork nor make such a value nor a [`crate::region`].
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
        fork::without_forks(|| match self.0.get() {
            Some(made) => Ok(made),
            None => make().map(|made| self.0.get_or_init(|| made)),
        })
    }
}

impl<T> Default for MadeOnce<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

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
            let (fork, forking) = channel();
            let forks = scope.spawn(move || {
                fork.send(()).unwrap();
                let child = Forked::new(|| {
                    // SAFETY: a child that waits for ever is ended.
                    unsafe { libc::alarm(30) };
                    *VALUE.get_or_make(|| 8) as i32
                });
                child.unwrap().wait().unwrap()
            });
            forking.recv().unwrap();
            // Time to fork, if that does not wait.
            thread::sleep(Duration::from_millis(200));
            end.send(()).unwrap();
            let ended = forks.join().unwrap();
            assert_eq!((ended.exit_status(), makes.join().unwrap()), (Some(7), 7), "{ended:?}");
        });
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
