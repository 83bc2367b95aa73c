//! How much there is for guesses.
//!
//! Half of the memory that is available, of the machine, of each control group that this process is in and of the NUMA node that it runs
//! on, and nothing once somebody in these groups waits for memory, or on the machine while it has little left. What is read ahead can be dropped again at any time, but to make room for it the
//! kernel may drop what is needed more. Of tasks, where there is a limit, a quarter
//! of what is left but for those that a large program begins with.

mod node;
mod tasks;

use std::path::{Path, PathBuf};

use node::Node;
use prepage_sys::cgroup::Memberships;
pub use prepage_sys::memory_left::available_kib;
use prepage_sys::memory_left::{Cgroups, Left, of_machine};
use prepage_sys::proc_file;
pub(crate) use tasks::Tasks;

/// The share of the available memory that a prefetch may ask for: 1 in this.
const MEMORY_SHARE: u64 = 2;
/// Available memory below which nothing is read ahead: programs need it to start at all.
const RESERVE_BYTES: u64 = 16 << 20;
/// Time that tasks of this machine or control group may wait for memory while a prefetch runs. Some wait for a moment now
/// and then where there is plenty.
const STALLED_US_MAX: u64 = 2_000;
/// The machine's waits count while less than this part of its memory is available. The kernel adds to them those of every control group
/// that is at a limit of its own, and those for pages that are read back, however much memory there is.
const SHORT_SHARE: u64 = 16;
/// Where the kernel tells how long tasks of the machine waited for memory.
const MACHINE_PRESSURE: &str = "/proc/pressure/memory";

/// What a prefetch may use, looked at again while it runs.
#[derive(Clone, Debug)]
pub struct Budget {
    cgroups: Cgroups,
    /// The node that what is read comes to; `None` where it does not matter.
    node: Option<Node>,
    tasks: Tasks,
    /// Where the machine tells how long tasks waited for memory.
    machine_pressure: PathBuf,
    /// Microseconds that tasks have waited for memory, by each file that tells, the machine's first.
    stalled_us: Vec<u64>,
}

impl Budget {
    /// That of this process, which is in the control groups of the program it serves.
    pub fn of_process() -> Self {
        Self::of(&Memberships::of_process())
    }

    /// That of this process, whose control groups are known.
    pub fn of(memberships: &Memberships) -> Self {
        Self::of_left(memberships, Tasks::left(memberships))
    }

    /// The same, where it is known how many tasks they leave.
    pub(crate) fn of_left(memberships: &Memberships, tasks: Tasks) -> Self {
        Self { node: Node::of_cpu(), ..Self::with(Cgroups::of(memberships), tasks) }
    }

    /// The same for a prefetch that begins now, on this thread: what waited for memory before counts no more. What takes long to find out, control
    /// groups and how many tasks they leave, is kept.
    #[must_use]
    pub fn renewed(self) -> Self {
        let stalled_us = stalls(&self.machine_pressure, &self.cgroups);
        Self { node: Node::of_cpu(), stalled_us, ..self }
    }

    /// The same for what is wanted in memory whichever program uses it: other nodes take what has no room on this one.
    #[must_use]
    pub fn of_all_nodes(self) -> Self {
        Self { node: None, ..self }
    }

    fn with(cgroups: Cgroups, tasks: Tasks) -> Self {
        let machine_pressure = PathBuf::from(MACHINE_PRESSURE);
        let stalled_us = stalls(&machine_pressure, &cgroups);
        Self { cgroups, node: None, tasks, machine_pressure, stalled_us }
    }

    /// How many threads may be started so that the program and others find some left below the limits on them.
    pub fn threads(&self) -> u32 {
        self.tasks.to_spare()
    }

    /// How many of `wanted_bytes` may be read so that memory is left for others.
    pub fn share_of(&self, wanted_bytes: u64) -> u64 {
        let info = rustix::system::sysinfo();
        let free_bytes = (info.freeram as u64).saturating_mul(info.mem_unit.into());
        // Mostly enough, and told by one system call; a start has no time for /proc/meminfo unless it is needed.
        let machine = if wanted_bytes <= free_bytes / MEMORY_SHARE {
            wanted_bytes
        } else {
            available_kib().map_or(wanted_bytes, |kib| wanted_bytes.min(share(kib * 1024)))
        };
        let node = self.node.as_ref().and_then(Node::available_bytes);
        let others = self.cgroups.available_bytes().into_iter().chain(node);
        others.fold(machine, |least, bytes| least.min(share(bytes)))
    }

    /// Whether memory has become short since the beginning, by whomever: there is next to none left for `more_bytes`, or
    /// tasks wait for it.
    pub fn is_short_for(&self, more_bytes: u64) -> bool {
        let stalled = || {
            let now_us = stalls(&self.machine_pressure, &self.cgroups);
            let mut have_waited = self
                .stalled_us
                .iter()
                .zip(&now_us)
                .map(|(before, now)| now.saturating_sub(*before) > STALLED_US_MAX);
            let on_machine = have_waited.next() == Some(true);
            have_waited.any(|in_group| in_group) || on_machine && of_machine().is_none_or(has_little)
        };
        self.share_of(more_bytes) < more_bytes || stalled()
    }
}

#[cfg(test)]
impl Budget {
    /// That of a control group whose files are in `directory`.
    pub(crate) fn in_directory(directory: &std::path::Path) -> Self {
        Self::with(Cgroups::in_directory(directory), Tasks::sparing(u32::MAX))
    }

    /// With so many threads, and no limit on anything else.
    pub(crate) fn of_threads(threads: u32) -> Self {
        Self::with(Cgroups::default(), Tasks::sparing(threads))
    }
}

/// Whether the machine's memory is so full that whoever waits for memory may wait for what a prefetch takes.
fn has_little(machine: Left) -> bool {
    machine.available_bytes < (machine.limit_bytes / SHORT_SHARE) as i64
}

fn share(available_bytes: u64) -> u64 {
    available_bytes.saturating_sub(RESERVE_BYTES) / MEMORY_SHARE
}

/// Microseconds that some task had to wait for memory, of the machine and of the control groups that tell
/// (Documentation/accounting/psi.rst). Empty where the kernel does not count.
fn stalls(machine_pressure: &Path, cgroups: &Cgroups) -> Vec<u64> {
    let total = |text: String| text.lines().next()?.split("total=").nth(1)?.trim().parse().ok();
    let machine = proc_file::read_text(machine_pressure).ok().and_then(total);
    // One that cannot be read now is kept in its place: the lists are compared one by one.
    let groups =
        cgroups.pressure_files().map(|file| proc_file::read_text(file).ok().and_then(total).unwrap_or(0));
    std::iter::once(machine.unwrap_or(0)).chain(groups).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_group_near_its_limit_or_waiting_for_memory_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        let waited = |us: u32| {
            write("memory.pressure", &format!("some avg10=0.00 total={us}\nfull avg10=0.00 total=0\n"))
        };
        write("memory.max", "1000000000");
        write("memory.current", "800000000");
        waited(1_000);
        let budget = Budget::in_directory(dir.path());
        assert_eq!(budget.share_of(1 << 40), (200_000_000 - RESERVE_BYTES) / 2);
        assert!(!budget.is_short_for(4 << 20));
        waited(1_500);
        assert!(!budget.is_short_for(4 << 20));
        waited(40_000);
        assert!(budget.is_short_for(4 << 20), "tasks wait");
        let next = budget.clone().renewed();
        assert!(!next.is_short_for(4 << 20), "they waited before it began");
        waited(80_000);
        assert!(next.is_short_for(4 << 20), "tasks wait again");
        waited(1_000);
        write("memory.current", "980000000");
        assert!(budget.is_short_for(4 << 20), "20 MB are left");
        write("memory.current", "1000001000");
        assert_eq!(budget.share_of(4096), 0);
    }

    /// The kernel adds the waits of every group to the machine's, those at its own limit as well.
    #[test]
    fn waits_of_others_count_where_the_machine_itself_is_short_of_memory() {
        let dir = tempfile::tempdir().unwrap();
        let machine_pressure = dir.path().join("memory");
        let waited = |us: u32| {
            fs::write(&machine_pressure, format!("some avg10=0.00 total={us}\nfull avg10=0.00 total=0\n"))
                .unwrap();
        };
        waited(1_000);
        let budget = Budget { machine_pressure: machine_pressure.clone(), ..Budget::of_threads(1) }.renewed();
        waited(41_000);
        assert!(!budget.is_short_for(4 << 20), "there is plenty for this prefetch");
        let left = |available_bytes| Left { limit_bytes: 16 << 30, available_bytes, shmem_bytes: 0 };
        assert_eq!([1 << 30, (1 << 30) - 1].map(|bytes| has_little(left(bytes))), [false, true]);
    }

    #[test]
    fn a_nearly_full_node_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let node = || Some(Node { directory: dir.path().into() });
        let budget = Budget { node: node(), ..Budget::of_threads(1) };
        let left = |kib: u64| {
            let text = format!(
                "Node 1 MemTotal: 9000000 kB\nNode 1 MemFree: {kib} kB\nNode 1 Inactive(file): 0 kB\n"
            );
            fs::write(dir.path().join("meminfo"), text).unwrap();
        };
        left(100 << 10);
        assert_eq!(budget.share_of(1 << 30), ((100 << 20) - RESERVE_BYTES) / 2);
        assert!(!budget.is_short_for(4 << 20));
        left(20 << 10);
        assert!(budget.is_short_for(4 << 20));
        assert!(!budget.of_all_nodes().is_short_for(4 << 20));
    }

    #[test]
    fn a_little_is_allowed_here_and_more_than_the_machine_has_is_not() {
        let budget = Budget::of_process();
        let allowed = budget.share_of(u64::MAX);
        assert!(allowed < u64::MAX, "{allowed}");
        assert!(budget.share_of(4096) <= 4096);
        assert!(budget.is_short_for(u64::MAX));
    }
}
