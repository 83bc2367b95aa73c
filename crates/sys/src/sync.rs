//! The only door to what threads share in the VM's fault path: std's primitives, or shuttle's or loom's under test, or words that count what is done
//! to them. And what a lock is worth whose holder has panicked, anywhere in prepage ([`Anyway`]).

use std::sync::{LockResult, PoisonError, TryLockResult};

/// What a lock guards, whoever has panicked while it was held.
///
/// A thread that panics takes no other thread with it: whatever changes under a lock is fit for use after each step, so the next thread goes on
/// from where that one has left it. This holds for every lock of prepage.
pub trait Anyway {
    /// What is returned.
    type Guarded;

    /// Passes over the panic.
    fn anyway(self) -> Self::Guarded;
}

impl<G> Anyway for LockResult<G> {
    type Guarded = G;

    fn anyway(self) -> G {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

/// `None` where another thread holds the lock.
impl<G> Anyway for TryLockResult<G> {
    type Guarded = Option<G>;

    fn anyway(self) -> Option<G> {
        match self {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }
}

#[cfg(not(any(feature = "shuttle", feature = "loom")))]
mod real {
    use std::time::Duration;

    use rustix::thread::futex::{self, Flags, Timespec};

    #[cfg(feature = "counted")]
    pub use crate::counted::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
    pub use std::sync::atomic::Ordering;
    #[cfg(not(feature = "counted"))]
    pub use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
    pub use std::sync::{Mutex, MutexGuard};
    pub use std::thread::{sleep, yield_now};

    pub use crate::thread::Thread;

    /// Nothing: operations that say `SeqCst` have one order.
    pub fn seq_cst() {}

    /// The word that the kernel is told of.
    #[cfg(not(feature = "counted"))]
    fn of_std(word: &AtomicU32) -> &AtomicU32 {
        word
    }

    #[cfg(feature = "counted")]
    fn of_std(word: &AtomicU32) -> &std::sync::atomic::AtomicU32 {
        &word.0
    }

    /// Sleeps while `word` is `expected`; may return early.
    pub fn wait(word: &AtomicU32, expected: u32) {
        // Whatever the outcome, callers look at the word again.
        let _ = futex::wait(of_std(word), Flags::PRIVATE, expected, None);
    }

    /// As [`wait`], for `limit` at most; true where the time is over.
    pub fn wait_for(word: &AtomicU32, expected: u32, limit: Duration) -> bool {
        let limit = Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        futex::wait(of_std(word), Flags::PRIVATE, expected, Some(&limit)) == Err(rustix::io::Errno::TIMEDOUT)
    }

    /// Wakes up to `count` of those who sleep on `word`.
    pub fn wake(word: &AtomicU32, count: u32) {
        let _ = futex::wake(of_std(word), Flags::PRIVATE, count);
    }

    /// A number that no other thread of the process has now.
    pub fn thread_number() -> u32 {
        rustix::thread::gettid().as_raw_nonzero().get() as u32
    }

    /// Lets threads of the priority `usual` have the CPU before the calling thread, and before those that it starts.
    pub fn be_patient(usual: i32) {
        // A tenth of what the others get of a CPU that both want: far down, short of waiting for ever while others compute.
        const PATIENT: i32 = 10;
        // Nobody can forbid it.
        let _ = rustix::process::setpriority_process(None, (usual + PATIENT).min(19));
    }

    /// The priority of the calling thread, which those that it starts inherit.
    pub fn priority() -> i32 {
        rustix::process::getpriority_process(None).unwrap_or(0)
    }

    /// Starts a thread in which all signals that come from outside are blocked: handlers of the program do not run there, where they could wait for
    /// what the thread itself is about to do. Children of fork(3) start threads too, whatever others did at the time of the fork: see
    /// [`crate::thread`].
    ///
    /// # Errors
    /// EAGAIN where no thread is left.
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<Thread> {
        Thread::start(name, work)
    }
}
#[cfg(not(any(feature = "shuttle", feature = "loom")))]
pub use real::*;

/// A futex is modelled by one lock and one condition for all words: early wake-ups abound, lost ones are found.
#[cfg(any(feature = "shuttle", feature = "loom"))]
mod model {
    use std::time::Duration;

    #[cfg(not(feature = "shuttle"))]
    use loom as checker;
    #[cfg(feature = "shuttle")]
    use shuttle as checker;

    use checker::sync::Condvar;
    pub use checker::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
    pub use checker::sync::{Mutex, MutexGuard};
    pub use checker::thread::{JoinHandle, yield_now};

    use super::Anyway;

    /// loom gives operations that say `SeqCst` no more than `AcqRel`, and one order to fences alone.
    pub fn seq_cst() {
        #[cfg(not(feature = "shuttle"))]
        checker::sync::atomic::fence(Ordering::SeqCst);
    }

    checker::lazy_static! {
        static ref SLEEPERS: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());
    }

    /// Sleeps while `word` is `expected`; may return early.
    pub fn wait(word: &AtomicU32, expected: u32) {
        let guard = SLEEPERS.0.lock().anyway();
        if word.load(Ordering::SeqCst) == expected {
            drop(SLEEPERS.1.wait(guard));
        }
    }

    /// Time does not pass in a model.
    pub fn wait_for(word: &AtomicU32, expected: u32, _: Duration) -> bool {
        wait(word, expected);
        false
    }

    /// See above: others go on.
    pub fn sleep(_: Duration) {
        yield_now();
    }

    /// Wakes all that sleep.
    pub fn wake(_: &AtomicU32, _: u32) {
        let _guard = SLEEPERS.0.lock().anyway();
        SLEEPERS.1.notify_all();
    }

    /// A number that no other thread of the model has.
    pub fn thread_number() -> u32 {
        // The model's numbers are shown, and not told.
        let shown = format!("{:?}", checker::thread::current().id());
        let digits: String = shown.chars().filter(char::is_ascii_digit).collect();
        1 + digits.parse::<u32>().unwrap_or(0)
    }

    /// Threads of a model have no priorities.
    pub fn be_patient(_: i32) {}

    /// See above.
    pub fn priority() -> i32 {
        0
    }

    /// Starts a thread of the model.
    pub fn spawn(_: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<JoinHandle<()>> {
        Ok(checker::thread::spawn(work))
    }
}
#[cfg(any(feature = "shuttle", feature = "loom"))]
pub use model::*;
