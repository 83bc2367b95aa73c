//! When what a boot or a session needed is over: the machine has been quiet for a while, or the time is up.

use std::time::Duration;

use prepage_core::idle::{Busy, Reading};

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The machine is quiet.
    Quiet,
    /// It has not become quiet in the time there is.
    TimeIsUp,
}

/// Waits for a quiet machine; looks at one reading a second.
#[derive(Clone, Copy, Debug)]
pub struct Quiet {
    wanted: u32,
    at_most: Duration,
    seconds: u32,
}

impl Quiet {
    /// After so many quiet seconds in a row, and so long after the beginning in any case.
    pub fn new(wanted: u32, at_most: Duration) -> Self {
        Self { wanted, at_most, seconds: 0 }
    }

    /// What the machine did in the last second, `elapsed` after the beginning, and whether this process is at work itself.
    pub fn see(&mut self, reading: Option<Reading>, is_at_work: bool, elapsed: Duration) -> Option<End> {
        let busy = reading.map(|reading| reading.busy_at_work());
        self.seconds = if is_at_work || busy != Some(None) { 0 } else { self.seconds + 1 };
        if self.seconds >= self.wanted.max(1) {
            Some(End::Quiet)
        } else {
            (elapsed >= self.at_most).then_some(End::TimeIsUp)
        }
    }
}

/// Whether memory was so short in the last second, with `available_bytes` left at its end (MemAvailable), that pages may have left it that were used a
/// moment before.
pub fn is_short_of_memory(reading: Reading, available_bytes: u64) -> bool {
    let busy = Reading { is_on_battery: false, free_bytes: available_bytes, ..reading }.busy();
    busy == Some(Busy::Memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn reading(disk_busy: f64) -> Option<Reading> {
        let memory = Reading { free_bytes: GIB, total_bytes: 2 * GIB, ..Reading::default() };
        Some(Reading { disk_busy, is_on_battery: true, ..memory })
    }

    #[test]
    fn quiet_seconds_count_in_a_row_and_those_of_ones_own_work_do_not() {
        let mut quiet = Quiet::new(3, Duration::from_secs(100));
        let mut see =
            |disk_busy, is_at_work, at| quiet.see(reading(disk_busy), is_at_work, Duration::from_secs(at));
        assert_eq!([see(0.0, false, 1), see(0.0, false, 2), see(0.5, false, 3)], [None; 3]);
        assert_eq!([see(0.0, false, 4), see(0.0, true, 5), see(0.0, false, 6)], [None; 3]);
        assert_eq!([see(0.0, false, 7), see(0.0, false, 8)], [None, Some(End::Quiet)]);
    }

    /// The page cache takes what nobody else does, on any machine that has run for a while.
    #[test]
    fn a_machine_whose_memory_is_full_of_files_is_quiet_and_one_that_waits_for_memory_is_not() {
        let full = Reading { free_bytes: GIB / 100, total_bytes: GIB, ..Reading::default() };
        let waits = Reading { memory_stalled: Some(0.1), ..full };
        let mut quiet = Quiet::new(1, Duration::from_secs(10));
        let mut see = |reading| quiet.see(Some(reading), false, Duration::ZERO);
        assert_eq!([see(waits), see(full)], [None, Some(End::Quiet)]);
        let is_short = |reading, bytes| is_short_of_memory(reading, bytes);
        assert_eq!(
            [is_short(full, GIB / 2), is_short(full, GIB / 100), is_short(waits, GIB / 2)],
            [false, true, true]
        );
    }

    #[test]
    fn a_machine_that_never_rests_is_not_waited_for() {
        let mut quiet = Quiet::new(3, Duration::from_secs(10));
        assert_eq!(quiet.see(reading(1.0), true, Duration::from_secs(9)), None);
        assert_eq!(quiet.see(reading(1.0), true, Duration::from_secs(10)), Some(End::TimeIsUp));
        assert_eq!(quiet.see(None, false, Duration::from_secs(9)), None, "nothing is known yet");
    }
}
