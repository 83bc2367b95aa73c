//! How a start fares that nobody observes: when it has ended, and how often it waited for the disk.
//!
//! The kernel's own counters are read now and then (`majflt` and `cmajflt` of /proc/PID/stat, proc_pid_stat(5)): the
//! program notices nothing.

use std::time::Duration;

use prepage_observe::Until;
use prepage_sys::process_stat::ProcessStat;
use prepage_trace::now_ns;

/// A start is over this long after it last waited for the disk.
const QUIET_NS: u64 = 1_000_000_000;

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
}

/// Disk faults of a process and of the children it waited for. `None` once the process is gone.
fn disk_faults(pid: u32) -> Option<u64> {
    ProcessStat::of(pid).ok().map(|stat| stat.major_faults + stat.children_major_faults)
}
