//! When a machine has nothing to do, how much memory is free for guesses then, and whether past guesses were worth it.
//!
//! Decisions about numbers that somebody else has read, so that they can be tested without a machine.

use crate::named;
use crate::page::PAGE_SIZE;

/// The share of time in which a disk had something to do, above which it is busy.
const DISK_BUSY: f64 = 0.05;
/// The share of all processors' time that was used, above which they are busy.
const PROCESSOR_BUSY: f64 = 0.25;
/// The share of time in which somebody waited for a disk or for memory (PSI), above which it is short.
const STALLED: f64 = 0.01;
/// Free memory that stays free: 1 in this of the machine's, and at least [`RESERVE_BYTES_MIN`].
const RESERVE: u64 = 16;
const RESERVE_BYTES_MIN: u64 = 64 << 20;
/// Of the free memory beyond the reserve, 1 in this is for guesses.
const SPARE: u64 = 2;
/// What all guesses together may take.
const GUESSES_BYTES_MAX: u64 = 512 << 20;

/// What a machine did during the last moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The share of time in which the busiest disk had something to do.
    pub disk_busy: f64,
    /// The share of all processors' time that was used.
    pub processor_busy: f64,
    /// The share of time in which somebody waited for a disk, where the kernel counts that.
    pub io_stalled: Option<f64>,
    /// The share of time in which somebody waited for memory, where the kernel counts that.
    pub memory_stalled: Option<f64>,
    /// Whether it runs on a battery.
    pub is_on_battery: bool,
    /// Memory that nobody uses, not even the page cache.
    pub free_bytes: u64,
    /// All memory.
    pub total_bytes: u64,
}

named! {
    /// What a machine is busy with.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Busy {
        /// It runs on a battery.
        Battery = "battery",
        /// Next to no memory is free, or somebody waits for it.
        Memory = "memory",
        /// A disk has something to do.
        Disk = "disk",
        /// The processors have.
        Processor = "processor",
    }
}

impl Reading {
    /// What the machine is busy with; `None` where it is idle.
    pub fn busy(&self) -> Option<Busy> {
        let above = |share: Option<f64>| share.is_some_and(|share| share > STALLED);
        if self.is_on_battery {
            Some(Busy::Battery)
        } else if self.is_short() || above(self.memory_stalled) {
            Some(Busy::Memory)
        } else if self.disk_busy > DISK_BUSY || above(self.io_stalled) {
            Some(Busy::Disk)
        } else if self.processor_busy > PROCESSOR_BUSY {
            Some(Busy::Processor)
        } else {
            None
        }
    }

    /// What keeps it from work that is worth doing on a battery, too, and that takes no memory to speak of: on a machine that has run for a while the
    /// page cache leaves next to none free.
    pub fn busy_at_work(&self) -> Option<Busy> {
        Self { is_on_battery: false, free_bytes: u64::MAX, ..*self }.busy()
    }

    /// Whether so little memory is free that guesses are to be given up.
    pub fn is_short(&self) -> bool {
        self.free_bytes < self.reserve_bytes()
    }

    /// What more guesses may take now, where `taken_bytes` are guesses already.
    pub fn spare_bytes(&self, taken_bytes: u64) -> u64 {
        let spare = self.free_bytes.saturating_sub(self.reserve_bytes()) / SPARE;
        spare.min(GUESSES_BYTES_MAX.saturating_sub(taken_bytes)) / PAGE_SIZE * PAGE_SIZE
    }

    fn reserve_bytes(&self) -> u64 {
        (self.total_bytes / RESERVE).max(RESERVE_BYTES_MIN)
    }
}

/// For how long a machine has been idle, in whatever unit its caller counts time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Calm {
    since: Option<u64>,
}

impl Calm {
    /// At `now` the machine was idle, or was not. Returns for how long it has been idle without a break.
    pub fn see(&mut self, is_idle: bool, now: u64) -> u64 {
        if !is_idle {
            self.since = None;
            return 0;
        }
        now.saturating_sub(*self.since.get_or_insert(now))
    }
}

/// Guesses that were settled, from which follows whether there are to be more.
pub mod worth {
    use minicbor::{Decode, Encode};

    /// Guesses before which nothing is said of them.
    const GUESSES_MIN: u32 = 4;
    /// The least share of the bytes that somebody has to use.
    const USED_MIN: f64 = 0.6;
    /// Each guess takes 1 in this from what was counted before.
    const MEMORY: u64 = 8;
    /// Where too little is used, nothing is guessed for this long. Then one guess is tried.
    const PAUSE_S: u64 = 24 * 3600;

    /// Bytes that were brought in and bytes of them that were used; later ones count more.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Encode, Decode)]
    pub struct Worth {
        #[n(0)]
        guesses: u32,
        #[n(1)]
        brought_bytes: u64,
        #[n(2)]
        used_bytes: u64,
        #[n(3)]
        paused_until_unix_s: u64,
    }

    impl Worth {
        /// A guess of so many bytes is settled.
        pub fn settle(&mut self, brought_bytes: u64, used_bytes: u64, now_unix_s: u64) {
            let fade = |sum: u64, more: u64| (sum - sum / MEMORY).saturating_add(more);
            self.brought_bytes = fade(self.brought_bytes, brought_bytes);
            self.used_bytes = fade(self.used_bytes, used_bytes.min(brought_bytes));
            self.guesses = self.guesses.saturating_add(1);
            if self.guesses >= GUESSES_MIN && self.used_share().is_some_and(|share| share < USED_MIN) {
                self.paused_until_unix_s = now_unix_s + PAUSE_S;
                // What is tried then counts as much as all before.
                let share = self.used_share().unwrap_or(0.0);
                self.guesses = GUESSES_MIN - 1;
                self.brought_bytes = self.brought_bytes.min(brought_bytes.max(1));
                self.used_bytes = (share * self.brought_bytes as f64) as u64;
            }
        }

        /// Of these and of `other` guesses together: they are paused while both are.
        #[must_use]
        pub fn with(self, other: Self) -> Self {
            Self {
                guesses: self.guesses.saturating_add(other.guesses),
                brought_bytes: self.brought_bytes.saturating_add(other.brought_bytes),
                used_bytes: self.used_bytes.saturating_add(other.used_bytes),
                paused_until_unix_s: self.paused_until_unix_s.min(other.paused_until_unix_s),
            }
        }

        /// The share of the bytes that was used, lately. `None` before the first guess.
        pub fn used_share(&self) -> Option<f64> {
            (self.brought_bytes > 0).then(|| self.used_bytes as f64 / self.brought_bytes as f64)
        }

        /// Whether nothing is to be guessed now. A pause that is longer than any is one of another clock.
        pub fn is_paused(&self, now_unix_s: u64) -> bool {
            (now_unix_s..=now_unix_s.saturating_add(PAUSE_S)).contains(&self.paused_until_unix_s)
                && self.paused_until_unix_s > now_unix_s
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn guesses_that_nobody_uses_stop_for_a_day_and_are_tried_again() {
            let mut worth = Worth::default();
            assert_eq!((worth.used_share(), worth.is_paused(0)), (None, false));
            for _ in 0..3 {
                worth.settle(1 << 20, 0, 100);
                assert!(!worth.is_paused(100), "too few to tell");
            }
            worth.settle(1 << 20, 0, 100);
            assert!(
                worth.is_paused(100) && worth.is_paused(100 + PAUSE_S - 1) && !worth.is_paused(100 + PAUSE_S)
            );
            assert!(!worth.is_paused(50), "the clock was set back");
            let later = 200 + PAUSE_S;
            worth.settle(1 << 20, 0, later);
            assert!(worth.is_paused(later), "one more is enough");
            for day in 2..6 {
                worth.settle(1 << 20, 1 << 20, day * later);
            }
            assert!(worth.used_share().unwrap() > USED_MIN && !worth.is_paused(6 * later));
        }

        #[test]
        fn guesses_of_two_are_paused_while_both_are() {
            let settled = |used_bytes| {
                let mut worth = Worth::default();
                (0..4).for_each(|_| worth.settle(1 << 20, used_bytes, 100));
                worth
            };
            let [vain, used] = [settled(0), settled(1 << 20)];
            assert!(vain.is_paused(101) && vain.with(vain).is_paused(101) && !vain.with(used).is_paused(101));
            assert!(vain.with(used).used_share().is_some_and(|share| share > 0.0 && share < 1.0));
        }

        #[test]
        fn guesses_of_which_most_is_used_go_on() {
            let mut worth = Worth::default();
            for at in 0..100 {
                worth.settle(1 << 20, if at % 5 == 0 { 0 } else { 1 << 20 }, at);
                assert!(!worth.is_paused(at), "{at}");
            }
            assert!((0.7..0.9).contains(&worth.used_share().unwrap()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Reading = Reading {
        disk_busy: 0.0,
        processor_busy: 0.01,
        io_stalled: Some(0.0),
        memory_stalled: None,
        is_on_battery: false,
        free_bytes: 4 << 30,
        total_bytes: 8 << 30,
    };

    #[test]
    fn a_machine_is_idle_where_nothing_speaks_against_it() {
        assert_eq!(IDLE.busy(), None);
        for (reading, busy) in [
            (Reading { disk_busy: 0.2, ..IDLE }, Busy::Disk),
            (Reading { io_stalled: Some(0.1), ..IDLE }, Busy::Disk),
            (Reading { processor_busy: 0.5, ..IDLE }, Busy::Processor),
            (Reading { memory_stalled: Some(0.1), ..IDLE }, Busy::Memory),
            (Reading { free_bytes: 100 << 20, ..IDLE }, Busy::Memory),
            (Reading { is_on_battery: true, disk_busy: 1.0, ..IDLE }, Busy::Battery),
        ] {
            assert_eq!(reading.busy(), Some(busy), "{reading:?}");
        }
    }

    #[test]
    fn guesses_take_part_of_what_is_free_and_no_more() {
        assert_eq!(IDLE.spare_bytes(0), GUESSES_BYTES_MAX);
        assert_eq!(IDLE.spare_bytes(GUESSES_BYTES_MAX + 1), 0);
        let tight = Reading { free_bytes: (512 << 20) + (10 << 20), ..IDLE };
        assert_eq!((tight.spare_bytes(0), tight.is_short()), (5 << 20, false));
        let short = Reading { free_bytes: 511 << 20, ..IDLE };
        assert_eq!((short.spare_bytes(0), short.is_short()), (0, true));
        let small = Reading { total_bytes: 128 << 20, free_bytes: 80 << 20, ..IDLE };
        assert_eq!(small.spare_bytes(0), 8 << 20);
    }

    #[test]
    fn calm_lasts_until_something_happens_and_clocks_may_go_back() {
        let mut calm = Calm::default();
        assert_eq!([calm.see(true, 10), calm.see(true, 15), calm.see(false, 16)], [0, 5, 0]);
        assert_eq!([calm.see(true, 20), calm.see(true, 5), calm.see(true, 21)], [0, 0, 1]);
    }
}
