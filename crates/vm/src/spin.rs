//! Whether who waits for a device stays awake: a CPU that falls asleep takes long to wake, in a virtual machine above all.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, Ordering};

/// After a read for which staying awake was in vain, so many are not tried: it costs a thirtieth of the reads at most.
const SLOW_READS: u32 = 30;

/// What is known of a device's reads.
///
/// Lock legend: (a) atomic hint; what two threads make of it at once does no harm.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// (a) Reads for which it is not worth a try, as the device is too slow for that.
    slow: AtomicU32,
}

/// What a try to read without sleeping gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// All that was asked for.
    Read,
    /// Some of it.
    Part,
    /// The device is still busy with it.
    NotYet,
    /// It fails, or cannot be done without sleeping.
    Never,
}

impl Spin {
    /// Tries until all is read, for as long as `limit`; false where it was not.
    pub(crate) fn read(&self, limit: Duration, mut read: impl FnMut() -> Tried) -> bool {
        if limit.is_zero() || self.is_slow() {
            return false;
        }
        let began = Instant::now();
        loop {
            match read() {
                Tried::Read => return true,
                Tried::Part => {}
                // Whoever else has work for this CPU gets it; else this returns at once.
                Tried::NotYet if began.elapsed() < limit => rustix::thread::sched_yield(),
                // Too late; or a file system that cannot tell, or a file that was truncated.
                Tried::NotYet | Tried::Never => {
                    self.slow.store(SLOW_READS, Ordering::Relaxed);
                    return false;
                }
            }
        }
    }

    fn is_slow(&self) -> bool {
        let slow = self.slow.load(Ordering::Relaxed);
        if slow > 0 {
            // Counts that another thread's store overwrites do no harm.
            self.slow.store(slow - 1, Ordering::Relaxed);
        }
        slow > 0
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    #[test]
    fn a_slow_device_is_tried_once_in_a_while() {
        let spin = Spin::default();
        let limit = Duration::from_micros(1);
        let mut tries = 0;
        let slow = |tries: &mut u32| {
            *tries += 1;
            std::thread::sleep(2 * limit);
            Tried::NotYet
        };
        for _ in 0..2 * (SLOW_READS + 1) {
            assert!(!spin.read(limit, || slow(&mut tries)));
        }
        assert_eq!(tries, 2);
        let mut answers = [Tried::Read, Tried::Part].into_iter();
        assert!(spin.read(limit, || answers.next_back().unwrap()));
        assert!(!spin.read(Duration::ZERO, || panic!("it may not stay awake")));
    }
}
