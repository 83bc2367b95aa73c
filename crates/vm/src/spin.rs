//! Whether who waits for a device stays awake: a CPU that falls asleep takes long to wake, in a virtual machine above all.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::sync::{AtomicU32, Ordering};

/// After a read for which staying awake was in vain one is not tried, after the next in a row two, and so many at most: a slow device costs a
/// thirtieth of its reads, and a fast one is not judged by the few for which it takes long.
const SLOW_READS: u32 = 32;
/// Others have work for the CPU where it comes back so late.
const TAKEN: Duration = Duration::from_micros(50);
/// What a read that stays awake gains over one that sleeps. Linux gives who offers a CPU no turn before the others had theirs, which takes
/// milliseconds; a read that sleeps, and whose device is ready, wakes up before its turn. So as many reads sleep as would have gained what one offer lost.
const GAIN: Duration = Duration::from_micros(15);
/// But no more: a process that was stopped for long says nothing of the reads to come.
const TAKEN_READS: u32 = 256;

/// What is known of a device's reads.
///
/// Lock legend: (a) atomic hint; what two threads make of it at once does no harm.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// (a) Reads for which it is not worth a try, as the device is too slow for that, or the CPU is not idle meanwhile.
    in_vain: AtomicU32,
    /// (a) How many they were after the last read that was too slow, if none was read awake since.
    slow: AtomicU32,
}

/// What a try to read without sleeping gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tried {
    /// All that was asked for.
    Read,
    /// The device is still busy with it.
    NotYet,
    /// It fails, or cannot be done without sleeping.
    Never,
}

impl Tried {
    /// What a read of `wanted` bytes gave that may not sleep.
    pub(crate) fn of(read: rustix::io::Result<usize>, wanted: usize) -> Self {
        match read {
            Ok(read) if read == wanted => Self::Read,
            // Some pages are there, and the kernel reads the others.
            Ok(1..) | Err(Errno::AGAIN) => Self::NotYet,
            _ => Self::Never,
        }
    }
}

impl Spin {
    /// Tries until all is read, for as long as `limit`; false where it was not. The first try has the device begin: what is to be done `meanwhile` costs no time.
    pub(crate) fn read(
        &self,
        limit: Duration,
        mut read: impl FnMut() -> Tried,
        meanwhile: impl FnOnce(),
    ) -> bool {
        if limit.is_zero() || self.is_in_vain() {
            return false;
        }
        let began = Instant::now();
        let mut tried = read();
        if tried == Tried::NotYet && began.elapsed() < limit {
            meanwhile();
            tried = read();
        }
        self.go_on(tried, began, limit, read)
    }

    /// As [`Self::read`], of what comes only once others had the CPU.
    pub(crate) fn offer(&self, limit: Duration, read: impl FnMut() -> Tried) -> bool {
        !self.is_in_vain() && self.go_on(Tried::NotYet, Instant::now(), limit, read)
    }

    fn go_on(
        &self,
        mut tried: Tried,
        began: Instant,
        limit: Duration,
        mut read: impl FnMut() -> Tried,
    ) -> bool {
        let reads = loop {
            match tried {
                Tried::Read => {
                    self.slow.store(0, Ordering::Relaxed);
                    return true;
                }
                // A kernel or a file system that cannot tell, or a file that was truncated.
                Tried::Never => break SLOW_READS,
                Tried::NotYet => {}
            }
            let offered = Instant::now();
            if offered - began >= limit {
                let reads = (2 * self.slow.load(Ordering::Relaxed)).clamp(1, SLOW_READS);
                self.slow.store(reads, Ordering::Relaxed);
                break reads;
            }
            // Whoever else has work for this CPU gets it; else this returns at once.
            rustix::thread::sched_yield();
            let lost = offered.elapsed();
            if lost > TAKEN {
                break reads_for(lost);
            }
            tried = read();
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

/// How many reads would have gained what an offer lost.
fn reads_for(lost: Duration) -> u32 {
    TAKEN_READS.min(lost.div_duration_f64(GAIN) as u32)
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn a_slow_device_is_tried_once_in_a_while() {
        let spin = Spin::default();
        let limit = Duration::from_micros(1);
        let tries = |reads: u32| {
            let mut tries = 0;
            for _ in 0..reads {
                let slow = || {
                    tries += 1;
                    std::thread::sleep(2 * limit);
                    Tried::NotYet
                };
                assert!(!spin.read(limit, slow, || ()));
            }
            tries
        };
        // Tries, and 1, 2, 4, 8, 16 and 32 reads without one.
        assert_eq!(tries(6 + 63), 6);
        assert_eq!(tries(2 * (SLOW_READS + 1)), 2);
        assert!(spin.read(limit, || Tried::Read, || ()));
        // It is not slow for good.
        assert_eq!(tries(2), 1);
        assert!(spin.read(limit, || Tried::Read, || ()));
        assert!(!spin.read(Duration::ZERO, || panic!("it may not stay awake"), || ()));
        assert!(!spin.offer(Duration::ZERO, || panic!("it may not stay awake")));
        assert!(!spin.offer(limit, || panic!("it is tried again at once")));
        while !spin.offer(Duration::from_secs(20), || Tried::Read) {}
    }

    #[test]
    fn what_is_done_meanwhile_is_done_once_and_only_while_the_device_is_busy() {
        for busy in [0, 1, 5] {
            let (tries, done) = (Cell::new(0), Cell::new(0));
            let read = || {
                tries.set(tries.get() + 1);
                if tries.get() > busy { Tried::Read } else { Tried::NotYet }
            };
            let meanwhile = || {
                assert_eq!(tries.get(), 1);
                done.set(done.get() + 1);
            };
            // Where others take the processor it sleeps for the rest.
            let read_all = Spin::default().read(Duration::from_secs(20), read, meanwhile);
            assert!(read_all || tries.get() > 1, "{busy}");
            assert_eq!(done.get(), u32::from(busy > 0), "{busy}");
        }
    }

    #[test]
    fn a_lost_turn_is_made_up_for_but_no_more_than_so() {
        let reads = [0, 15, 50, 1500, 3_000_000].map(|us| reads_for(Duration::from_micros(us)));
        assert_eq!(reads, [0, 1, 3, 100, TAKEN_READS]);
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
                assert!(!spin.read(limit, || Tried::NotYet, || ()));
                // How long the processor was away only the read knows.
                (0..reads_for(TAKEN))
                    .for_each(|_| assert!(!spin.read(limit, || panic!("it offers the processor"), || ())));
                while !spin.read(limit, || Tried::Read, || ()) {}
            });
            let outcome = waiting.join();
            stop.store(true, Ordering::Relaxed);
            outcome.unwrap();
        });
    }
}
