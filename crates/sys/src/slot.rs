//! A place for a value that threads may use from signal handlers while another takes it away.

use std::ops::Deref;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// Counters of users; threads spread over them by CPU.
const SHARDS: usize = 4;

/// Alone on its cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
struct Users(AtomicU32);

/// Holds an `Arc` or nothing. [`Slot::enter`] takes two atomic operations and no lock, and never waits.
#[derive(Debug)]
pub struct Slot<T> {
    /// Owns one strong count while not null.
    value: AtomicPtr<T>,
    /// Who entered and has not left, by shard.
    users: [Users; SHARDS],
}

/// The value of a slot, which stays until this is dropped.
#[derive(Debug)]
pub struct Entered<'a, T> {
    value: &'a T,
    users: &'a AtomicU32,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), users: Default::default() }
    }
}

impl<T> Slot<T> {
    /// Puts `value` into an empty slot.
    ///
    /// # Panics
    /// When there is a value already.
    pub fn put(&self, value: Arc<T>) {
        let old = self.value.swap(Arc::into_raw(value).cast_mut(), Ordering::SeqCst);
        assert!(old.is_null(), "a slot holds one value");
    }

    /// Uses the value, if there is one; `hint` (a CPU's number) spreads the counting.
    pub fn enter(&self, hint: usize) -> Option<Entered<'_, T>> {
        let users = &self.users[hint % SHARDS].0;
        // The count goes up before the pointer is read, and `take` removes the pointer before it reads counts; in the
        // one order of these operations either the count is seen or the pointer is gone.
        users.fetch_add(1, Ordering::SeqCst);
        let value = self.value.load(Ordering::SeqCst);
        if value.is_null() {
            users.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        // SAFETY: the slot's strong count keeps it alive until `take` has seen this shard at zero.
        Some(Entered { value: unsafe { &*value }, users })
    }

    /// Empties the slot once nobody uses the value any more. Waits for users with `wait`, called until they are gone.
    pub fn take(&self, mut wait: impl FnMut()) -> Option<Arc<T>> {
        let value = self.value.swap(ptr::null_mut(), Ordering::SeqCst);
        if value.is_null() {
            return None;
        }
        for users in &self.users {
            while users.0.load(Ordering::SeqCst) != 0 {
                wait();
            }
        }
        // SAFETY: `put` made it from an Arc, whose count this takes over; users that come now find null.
        Some(unsafe { Arc::from_raw(value) })
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        self.take(std::hint::spin_loop);
    }
}

// The pointer stands for an Arc<T>, and users borrow the value from several threads.
// SAFETY: as for Arc<T>.
unsafe impl<T: Send + Sync> Send for Slot<T> {}
// SAFETY: as for Arc<T>.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> Drop for Entered<'_, T> {
    fn drop(&mut self) {
        self.users.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::thread;

    use super::*;

    /// Says so when it is used after it was freed.
    struct Alive(AtomicBool);

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_value_outlives_its_users() {
        let slot = Slot::<Alive>::default();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for hint in 0..2 {
                let (slot, stop) = (&slot, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        if let Some(value) = slot.enter(hint) {
                            assert!(value.0.load(Ordering::SeqCst), "used after it was taken away");
                        }
                    }
                });
            }
            for _ in 0..2000 {
                slot.put(Arc::new(Alive(AtomicBool::new(true))));
                let taken = slot.take(thread::yield_now).expect("what was put");
                assert_eq!(Arc::strong_count(&taken), 1);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(slot.enter(0).is_none() && slot.take(|| ()).is_none());
    }
}
