//! Whether who waits for a device stays awake: a CPU that falls asleep takes long to wake, in a virtual machine above all.

use std::time::{Duration, Instant};

use crate::sync::{AtomicU32, Ordering};

/// After a read for which staying awake was in vain, so many are not tried: it costs a thirtieth of the reads at most.
const SLOW_READS: u32 = 30;
/// Others have work for the CPU where it comes back so late.
const TAKEN: Duration = Duration::from_micros(50);
/// So many reads do not offer it then. Linux gives who offers it no turn before the others had theirs, which takes milliseconds; a read that
/// sleeps takes some 15 µs more than one that does not, and whose device is ready wakes up before its turn.
const BUSY_READS: u32 = 256;

/// What is known of a device's reads.
///
/// Lock legend: (a) atomic hint; what two threads make of it at once does no harm.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// (a) Reads for which it is not worth a try, as the device is too slow for that, or the CPU is not idle meanwhile.
    in_vain: AtomicU32,
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
        if limit.is_zero() || self.is_in_vain() {
            return false;
        }
        let began = Instant::now();
        let reads = loop {
            match read() {
                Tried::Read => return true,
                Tried::Part => continue,
                // A file system that cannot tell, or a file that was truncated.
                Tried::Never => break SLOW_READS,
                Tried::NotYet => {}
            }
            let offered = Instant::now();
            if offered - began >= limit {
                break SLOW_READS;
            }
            // Whoever else has work for this CPU gets it; else this returns at once.
            rustix::thread::sched_yield();
            if offered.elapsed() > TAKEN {
                break BUSY_READS;
            }
        };
        self.in_vain.store(reads, Ordering::Relaxed);
        false
    }

    fn is_in_vain(&self) -> bool {
        let left = self.in_vain.load(Ordering::Relaxed);
        if left > 0 {
            // Counts that another thread's store overwrites do no harm.
            self.in_vain.store(left - 1, Ordering::Relaxed);
        }
        left > 0
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::sync::atomic::AtomicBool;

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

    /// A thread that computes needs the processor more than one that waits: whose offer it took sleeps, and makes no other for a while.
    #[test]
    fn who_shares_a_processor_sleeps_while_it_waits() {
        let stop = AtomicBool::new(false);
        let computing = AtomicBool::new(false);
        let spin = Spin::default();
        let mut here = rustix::thread::CpuSet::new();
        here.set(rustix::thread::sched_getcpu());
        let pin = || rustix::thread::sched_setaffinity(None, &here).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                pin();
                while !stop.load(Ordering::Relaxed) {
                    computing.store(true, Ordering::Relaxed);
                }
            });
            let waiting = scope.spawn(|| {
                pin();
                while !computing.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
                let limit = Duration::from_secs(20);
                assert!(!spin.read(limit, || Tried::NotYet));
                (0..BUSY_READS)
                    .for_each(|_| assert!(!spin.read(limit, || panic!("it offers the processor"))));
                assert!(spin.read(limit, || Tried::Read));
            });
            let outcome = waiting.join();
            stop.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
    }
}
