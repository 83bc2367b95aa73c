//! A value that is replaced while threads use it, also in signal handlers.

use std::ops::Deref;
use std::ptr;
use std::sync::{Arc, OnceLock};

use crate::sections::{Section, Sections};
use crate::sync::{Anyway, AtomicPtr, Mutex, Ordering};

/// Holds an `Arc`, and those before it as long as somebody may use them.
///
/// Until the value is replaced, using it takes no atomic operation but one load; from then on two. Nobody ever waits.
#[derive(Debug)]
pub struct Versions<T> {
    /// Kept for good: who found that nothing replaced it is not counted.
    first: Arc<T>,
    later: OnceLock<Later<T>>,
}

/// Lock legend: (a) atomic; `kept` is changed by who replaces.
#[derive(Debug)]
struct Later<T> {
    /// (a) Lies in the last of `kept`.
    current: AtomicPtr<T>,
    /// Those who use a later value.
    sections: Sections,
    /// Those that may be in use and the current value, which is the last; with the counters of `sections` that may still count a use.
    kept: Mutex<Vec<(Arc<T>, u32)>>,
}

/// A value that stays until this is dropped.
#[derive(Debug)]
pub struct Used<'a, T> {
    value: &'a T,
    section: Option<Section<'a>>,
}

impl<T> Versions<T> {
    /// Holds `first`.
    pub fn new(first: Arc<T>) -> Self {
        Self { first, later: OnceLock::new() }
    }

    /// Uses the value of now; `hint` (a CPU's number) spreads the counting. May be called in signal handlers.
    pub fn enter(&self, hint: usize) -> Used<'_, T> {
        let Some(later) = self.later.get() else { return Used { value: &self.first, section: None } };
        // The section begins before the pointer is read, and values go once the sections that began before have ended.
        let section = later.sections.enter(hint);
        let value = later.current.load(Ordering::SeqCst);
        // SAFETY: it lies in an Arc of `kept`, from which `replace` takes it no sooner than it was replaced and all sections
        // have ended that began before.
        Used { value: unsafe { &*value }, section: Some(section) }
    }

    /// The value of now, for as long as the caller likes. Takes a lock: not for signal handlers.
    pub fn current(&self) -> Arc<T> {
        let Some(later) = self.later.get() else { return Arc::clone(&self.first) };
        let kept = later.kept.lock().anyway();
        Arc::clone(kept.last().map_or(&self.first, |(value, _)| value))
    }

    /// The value of now, and those before it that may be in use. Takes a lock: not for signal handlers.
    pub fn in_use(&self) -> Vec<Arc<T>> {
        let mut values = vec![Arc::clone(&self.first)];
        if let Some(later) = self.later.get() {
            let kept = later.kept.lock().anyway();
            values.extend(kept.iter().map(|(value, _)| Arc::clone(value)));
        }
        values
    }

    /// Puts `value` in place of the one of now.
    pub fn replace(&self, value: &Arc<T>) {
        let later = self.later.get_or_init(|| Later {
            current: AtomicPtr::new(Arc::as_ptr(&self.first).cast_mut()),
            sections: Sections::default(),
            kept: Mutex::default(),
        });
        let mut kept = later.kept.lock().anyway();
        later.current.store(ptr::from_ref(&**value).cast_mut(), Ordering::SeqCst);
        // Those that cannot go now go with one of the next.
        let ended = later.sections.ended();
        kept.retain_mut(|(_, counters)| {
            *counters &= !ended;
            *counters != 0
        });
        kept.push((Arc::clone(value), later.sections.counters()));
    }
}

impl<T> Used<'_, T> {
    /// Whether using it was counted, in two atomic operations.
    pub fn is_counted(&self) -> bool {
        self.section.is_some()
    }
}

impl<T> Deref for Used<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    use super::*;

    /// Counts how many there are, and says so when it is used after it was freed.
    struct Alive<'a>(AtomicBool, &'a AtomicU64);

    impl Drop for Alive<'_> {
        fn drop(&mut self) {
            self.0.store(false, Ordering::SeqCst);
            self.1.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn alive(there: &AtomicU64) -> Arc<Alive<'_>> {
        there.fetch_add(1, Ordering::SeqCst);
        Arc::new(Alive(AtomicBool::new(true), there))
    }

    #[test]
    fn values_outlive_their_users_and_go_after_them() {
        let there = AtomicU64::new(0);
        let make = || alive(&there);
        let versions = Versions::new(make());
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for hint in 0..2 {
                let (versions, stop) = (&versions, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let used = versions.enter(hint);
                        assert!(used.0.load(Ordering::SeqCst), "used after it was freed");
                        assert!(versions.current().0.load(Ordering::SeqCst));
                    }
                });
            }
            (0..2000).for_each(|_| versions.replace(&make()));
            stop.store(true, Ordering::Relaxed);
        });
        let held = versions.enter(0);
        versions.replace(&make());
        versions.replace(&make());
        assert!(there.load(Ordering::SeqCst) >= 4, "the first, the held one, and what came after it");
        drop(held);
        versions.replace(&make());
        assert_eq!(there.load(Ordering::SeqCst), 2, "the first and the last");
        drop(versions);
        assert_eq!(there.load(Ordering::SeqCst), 0);
    }

    /// One use begins before another ends, so that there is never none.
    #[test]
    fn values_go_while_others_are_in_use_all_the_time() {
        let there = AtomicU64::new(0);
        let make = || alive(&there);
        let versions = Versions::new(make());
        versions.replace(&make());
        let mut held = versions.enter(0);
        for turn in 0..1000 {
            versions.replace(&make());
            let next = versions.enter(turn);
            versions.replace(&make());
            assert!(held.0.load(Ordering::SeqCst), "used after it was freed");
            held = next;
        }
        let most = 64;
        assert!(there.load(Ordering::SeqCst) < most, "{}", there.load(Ordering::SeqCst));
    }
}
