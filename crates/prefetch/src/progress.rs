//! How a start fares that nobody observes: when it has ended, and how often it waited for the disk.
//!
//! The kernel's own counters are read now and then (`majflt` and `cmajflt` of /proc/PID/stat, proc_pid_stat(5)): the
//! program notices nothing.

use std::time::Duration;

use prepage_core::PAGE_SIZE;
use prepage_core::profile::ColdStart;
use prepage_observe::Until;
use prepage_sys::process_stat::ProcessStat;
use prepage_trace::now_ns;

use crate::clock::unix_s;
use crate::engine::Amounts;

/// A start is over this long after it last waited for the disk.
const QUIET_NS: u64 = 1_000_000_000;

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
}

impl<'a> Progress<'a> {
    /// Begins to count the disk faults of process `pid`.
    pub fn new(pid: u32, until: &'a Until) -> Self {
        let before = disk_faults(pid).unwrap_or(0);
        Self { pid, until, before, disk_faults: 0, last_wait_ns: now_ns() }
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
            if has_ended || now_ns().saturating_sub(self.last_wait_ns) > QUIET_NS {
                return true;
            }
            if self.disk_faults >= disk_faults_max {
                return false;
            }
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// What is kept of a cold start that began at `began_ns`, on the clock of [`now_ns`], of a program on file system `device`: `fetched` is what
    /// was prefetched for it, where it was not held out. `None` where most of that was in memory.
    pub fn cold_start(&self, device: u64, began_ns: u64, fetched: Option<&Amounts>) -> Option<ColdStart> {
        let read_bytes = fetched.map_or(0, Amounts::read_bytes);
        // Where the program was quicker, it read what was to be prefetched.
        let missing_bytes = read_bytes + self.disk_faults * PAGE_SIZE;
        let is_cold = fetched.is_none_or(|fetched| 2 * missing_bytes >= fetched.requested_bytes().max(1));
        let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        is_cold.then(|| ColdStart {
            unix_s: unix_s(),
            device,
            held_out: fetched.is_none(),
            took_us: self.took_us(began_ns),
            prefetched_pages: number(read_bytes / PAGE_SIZE),
            missed_pages: number(self.disk_faults),
            ..ColdStart::default()
        })
    }

    /// How long the start took: to the end of a short program, else to its last wait for the disk.
    fn took_us(&self, began_ns: u64) -> u32 {
        let since_began = |ns: u64| ns.saturating_sub(began_ns);
        let ended_ns = self.until.ended_ns().map(since_began).filter(|ns| *ns < SHORT_NS);
        let took_ns = ended_ns.unwrap_or(since_began(self.last_wait_ns));
        u32::try_from(took_ns / 1000).unwrap_or(u32::MAX)
    }
}

/// Disk faults of a process and of the children it waited for. `None` once the process is gone.
fn disk_faults(pid: u32) -> Option<u64> {
    ProcessStat::of(pid).ok().map(|stat| stat.major_faults + stat.children_major_faults)
}
