//! How a start fares that nobody observes: when it has ended, and how often it waited for the disk.
//!
//! The kernel's own counters are read now and then (`majflt` and `cmajflt` of /proc/PID/stat, proc_pid_stat(5)): the
//! program notices nothing.

use std::time::Duration;

use prepage_core::PAGE_SIZE;
use prepage_core::profile::ColdStart;
use prepage_observe::{Silence, Until};
use prepage_sys::clock::{now_ns, unix_s};
use prepage_sys::process_stat::ProcessStat;

use crate::engine::Amounts;

/// A start is over this long after it last waited for the disk, unless it waits still ([`Silence`]).
const QUIET: Duration = Duration::from_secs(1);

/// Longer starts do other things than to start, and their time says little about prefetching.
const SHORT_NS: u64 = 5_000_000_000;

const PAUSE_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(100);

/// A start under way.
#[derive(Debug)]
pub struct Progress<'a> {
    pid: u32,
    until: &'a Until,
    before: u64,
    /// Disk faults of the program and of the children it waited for, since this was made.
    pub disk_faults: u64,
    /// When the last of them was seen, on the clock of [`now_ns`]; at first, when this was made.
    pub last_wait_ns: u64,
    silence: Silence,
}

impl<'a> Progress<'a> {
    /// Begins to count the disk faults of process `pid`.
    pub fn new(pid: u32, until: &'a Until) -> Self {
        let before = disk_faults(pid).unwrap_or(0);
        Self { pid, until, before, disk_faults: 0, last_wait_ns: now_ns(), silence: Silence::of(pid) }
    }

    /// Reads the counters once.
    pub fn look(&mut self) {
        let disk_faults =
            disk_faults(self.pid).map_or(self.disk_faults, |now| now.saturating_sub(self.before));
        if disk_faults > self.disk_faults {
            (self.disk_faults, self.last_wait_ns) = (disk_faults, now_ns());
        }
    }

    /// Waits for the end of the start, or until it took so many disk faults. Returns whether it is over: the program has
    /// ended, has not waited for the disk for a second, or the time is up.
    pub fn follow(&mut self, disk_faults_max: u64) -> bool {
        let mut pause = PAUSE_MIN;
        loop {
            let has_ended = self.until.wait_for(pause);
            self.look();
            if has_ended || self.silence.has_lasted(self.last_wait_ns, QUIET) {
                return true;
            }
            if self.disk_faults >= disk_faults_max {
                return false;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The same as [`Self::cold_start_so_far`], once it is known how long the start took; that is waited for. `None` also of a start that was cut
    /// short.
    pub fn cold_start(&self, device: u64, began_ns: u64, fetched: Option<&Amounts>) -> Option<ColdStart> {
        let start = self.cold_start_so_far(device, began_ns, fetched)?;
        self.wait_until_known(began_ns).then(|| ColdStart { took_us: self.took_us(began_ns), ..start })
    }

    /// What is kept of a cold start that began at `began_ns`, on the clock of [`now_ns`], of a program on file system `device`: `fetched` is what
    /// was prefetched for it, where it was not held out. `None` where most of what was prefetched was in memory, and where the prefetch ended early
    /// because memory got short.
    pub fn cold_start_so_far(
        &self,
        device: u64,
        began_ns: u64,
        fetched: Option<&Amounts>,
    ) -> Option<ColdStart> {
        let read_bytes = fetched.map_or(Some(0), |fetched| self.read_bytes(fetched))?;
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Some(ColdStart {
            unix_s: unix_s(),
            device,
            held_out: fetched.is_none(),
            waited_us: micros(self.last_wait_ns.saturating_sub(began_ns)),
            prefetched_pages: number(read_bytes / PAGE_SIZE),
            missed_pages: number(self.disk_faults),
            ..ColdStart::default()
        })
    }

    /// How much was read ahead, where the start was a cold one and all of `fetched` was for it.
    fn read_bytes(&self, fetched: &Amounts) -> Option<u64> {
        let (requested_bytes, read_bytes) = (fetched.requested_bytes(), fetched.read_bytes());
        // Where all was in memory, nothing was asked for.
        if requested_bytes == 0 || fetched.memory_was_short() {
            return None;
        }
        // Where the program was quicker, it read what was to be prefetched.
        let missing_bytes = read_bytes + self.disk_faults * PAGE_SIZE;
        if requested_bytes <= 2 * missing_bytes {
            return Some(read_bytes);
        }
        // FUSE, ZFS and network file systems read in threads of their own.
        (read_bytes == 0 && fetched.were_missing()).then_some(requested_bytes)
    }

    /// Waits for the end of a short program: one that only computes has not ended because it does not wait for the disk. Returns false
    /// where the start was cut short.
    fn wait_until_known(&self, began_ns: u64) -> bool {
        loop {
            let left_ns = (began_ns + SHORT_NS).saturating_sub(now_ns());
            if left_ns == 0 || self.until.wait_for(Duration::from_nanos(left_ns)) {
                return !self.until.was_stopped();
            }
        }
    }

    /// How long a short program took; 0 of a longer one.
    fn took_us(&self, began_ns: u64) -> u32 {
        let took_ns = self.until.ended_ns().map(|ended_ns| ended_ns.saturating_sub(began_ns));
        took_ns.filter(|ns| *ns < SHORT_NS).map_or(0, micros)
    }
}

/// At least 1: 0 is not known.
fn micros(ns: u64) -> u32 {
    u32::try_from(ns / 1000).unwrap_or(u32::MAX).max(1)
}

/// Disk faults of a process and of the children it waited for. `None` once the process is gone.
fn disk_faults(pid: u32) -> Option<u64> {
    ProcessStat::of(pid).ok().map(|stat| stat.major_faults + stat.children_major_faults)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// It computes for longer than the second without a wait for the disk that ends a start.
    #[test]
    fn a_short_program_takes_until_its_end_whether_it_waits_for_the_disk_or_not() {
        let began_ns = now_ns();
        let mut child = Command::new("sleep").arg("1.6").spawn().unwrap();
        let until = Until::ended_or(child.id(), Duration::from_secs(30)).unwrap();
        let mut progress = Progress::new(child.id(), &until);
        assert!(progress.follow(u64::MAX));
        let start = progress.cold_start(7, began_ns, None).unwrap();
        assert!((1_600_000..5_000_000).contains(&start.took_us), "{start:?}");
        assert!((1..start.took_us).contains(&start.waited_us), "{start:?}");
        assert!(start.held_out && start.device == 7);
        child.wait().unwrap();
    }

    #[test]
    fn a_start_that_found_its_pages_in_memory_teaches_nothing() {
        let mut child = Command::new("sleep").arg("0.1").spawn().unwrap();
        let until = Until::ended_or(child.id(), Duration::from_secs(30)).unwrap();
        let mut progress = Progress::new(child.id(), &until);
        progress.follow(u64::MAX);
        // Nothing was asked for, and the program waited for the disk no more than once.
        for disk_faults in [0, 1] {
            progress.disk_faults = disk_faults;
            assert_eq!(progress.cold_start(7, now_ns(), Some(&Amounts::default())), None);
        }
        child.wait().unwrap();
    }

    /// On FUSE, ZFS and network file systems the kernel counts nothing as read for the thread that asks.
    #[test]
    fn where_the_kernel_counts_no_reads_a_sample_tells_a_cold_start() {
        let mut child = Command::new("true").spawn().unwrap();
        let until = Until::ended_or(child.id(), Duration::from_secs(30)).unwrap();
        let mut progress = Progress::new(child.id(), &until);
        progress.follow(u64::MAX);
        let start = |sample_bytes: u64, missing_bytes: u64| {
            let amounts = Amounts::uncounted(1 << 20);
            amounts.sample(sample_bytes, missing_bytes);
            progress.cold_start(7, now_ns(), Some(&amounts)).map(|start| start.prefetched_pages)
        };
        assert_eq!(start(8 * PAGE_SIZE, 8 * PAGE_SIZE), Some(256));
        assert_eq!(start(8 * PAGE_SIZE, 4 * PAGE_SIZE), Some(256));
        assert_eq!(start(8 * PAGE_SIZE, 3 * PAGE_SIZE), None);
        assert_eq!(start(0, 0), None);
        child.wait().unwrap();
    }
}
