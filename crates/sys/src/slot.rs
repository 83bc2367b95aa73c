//! A place for a value that threads may use from signal handlers while another takes it away.

use std::ops::Deref;
use std::ptr;
use std::sync::Arc;

use crate::sections::{Section, Sections};
use crate::sync::{AtomicPtr, Ordering};

/// Holds an `Arc` or nothing. [`Slot::enter`] takes two atomic operations and no lock, and never waits.
///
/// Lock legend: (a) atomic; `sections` has its own.
#[derive(Debug)]
pub struct Slot<T> {
    /// (a) Owns one strong count while not null.
    value: AtomicPtr<T>,
    /// Those who use the value.
    sections: Sections,
}

/// The value of a slot, which stays until this is dropped.
#[derive(Debug)]
pub struct Entered<'a, T> {
    value: &'a T,
    _section: Section<'a>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { value: AtomicPtr::new(ptr::null_mut()), sections: Sections::default() }
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
        // The section begins before the pointer is read, and `take` removes the pointer before it waits for sections.
        let section = self.sections.enter(hint);
        let value = self.value.load(Ordering::SeqCst);
        if value.is_null() {
            return None;
        }
        // SAFETY: the slot's strong count keeps it alive until `take` has seen this section end.
        Some(Entered { value: unsafe { &*value }, _section: section })
    }

    /// Empties the slot, and returns what it held once nobody uses it any more.
    pub fn take(&self) -> Option<Arc<T>> {
        let value = self.value.swap(ptr::null_mut(), Ordering::SeqCst);
        if value.is_null() {
            return None;
        }
        self.sections.wait();
        // SAFETY: `put` made it from an Arc, whose count this takes over; users that come now find null.
        Some(unsafe { Arc::from_raw(value) })
    }

    /// Returns once nobody uses the value who began to before the call.
    pub fn settle(&self) {
        self.sections.wait();
    }

    /// What the slot takes in memory, in bytes.
    pub fn bytes(&self) -> u64 {
        size_of::<AtomicPtr<T>>() as u64 + self.sections.bytes()
    }
}

impl<T> Drop for Slot<T> {
    fn drop(&mut self) {
        self.take();
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
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
                let taken = slot.take().expect("what was put");
                assert_eq!(Arc::strong_count(&taken), 1);
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(slot.enter(0).is_none() && slot.take().is_none());
    }
}
