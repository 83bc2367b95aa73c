//! Which threads are those of a VM.

use std::sync::atomic::AtomicU64;

use prepage_sys::fork;
use prepage_sys::made_once::MadeOnce;

use crate::sync::{Ordering, thread_number};

/// The numbers of all VMs' threads in this process, below the generation of the process; 0 where there is none. A child of fork(2) has those of
/// its parent's threads too, which its own threads may get later. No thread-local word: in a library that is loaded late, the first use of
/// one allocates.
///
/// Lock legend: (a) atomic; (c) constant once it is made.
struct Workers {
    /// (a)
    numbers: [AtomicU64; 1024],
    /// (c) Made once there is no place left here.
    more: MadeOnce<Box<Self>>,
}

static WORKERS: Workers = Workers::none();
/// The generation stands above so many bits.
const GENERATION: u32 = 32;

impl Workers {
    const fn none() -> Self {
        Self { numbers: [const { AtomicU64::new(0) }; 1024], more: MadeOnce::new() }
    }
}

/// Whether the calling thread is one of a VM's, so that it may not wait for another to be free.
pub(crate) fn is_worker() -> bool {
    is_at_work(thread_number())
}

fn is_at_work(number: u32) -> bool {
    let wanted = fork::generation() << GENERATION | u64::from(number);
    let more = |workers: &&'static Workers| workers.more.get().map(|more| &**more);
    std::iter::successors(Some(&WORKERS), more)
        .any(|workers| workers.numbers.iter().any(|worker| worker.load(Ordering::Relaxed) == wanted))
}

/// While this lives, its thread is known as one of a VM's.
pub(crate) struct AtWork(&'static AtomicU64);

impl AtWork {
    pub(crate) fn here() -> Self {
        let generation = fork::generation();
        let this = generation << GENERATION | u64::from(thread_number());
        let enter = |worker: &&AtomicU64| {
            let before = worker.load(Ordering::Relaxed);
            // Those of a process that this one was forked from are not here.
            before >> GENERATION != generation
                && worker.compare_exchange(before, this, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        let mut workers = &WORKERS;
        loop {
            if let Some(place) = workers.numbers.iter().find(enter) {
                return Self(place);
            }
            workers = workers.more.get_or_make(|| Box::new(Workers::none()));
        }
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_sys::forked::Forked;

    use super::*;

    /// As where many VMs have all their threads.
    #[test]
    fn a_thread_beyond_a_thousand_is_known_too() {
        let mut all: Vec<_> = (0..2000).map(|_| AtWork::here()).collect();
        let last = all.pop();
        drop(all);
        assert!(is_worker());
        drop(last);
        assert!(!is_worker());
    }

    #[test]
    fn a_number_of_a_thread_of_the_parent_is_no_worker_of_the_child() {
        let _at_work = AtWork::here();
        let number = thread_number();
        assert!(is_at_work(number) && is_worker());
        let child = Forked::new(|| i32::from(is_at_work(number)));
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
    }
}
