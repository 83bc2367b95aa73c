//! A pool gives memory back while the machine is short of it, before the kernel has to kill somebody: its limit goes down, and the
//! reclaimer does the rest.
//!
//! ```text
//!   every second: MemAvailable, limits of control groups ┐
//!   at once: a trigger of PSI, where there is one        ┴─► Allowance ─► the pool's limit ─► reclaim
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prepage_core::PAGE_SIZE;
use prepage_sys::cgroup::Memberships;
use prepage_sys::memory_left::{Cgroups, Left, of_machine};
use prepage_sys::psi::Trigger;

use crate::allowance::{Allowance, Look};
use crate::pool::PoolCore;

/// How often memory is looked at: four small files, 0.1 ms.
const PERIOD: Duration = Duration::from_secs(1);
/// Tasks that wait for memory for so long of two seconds are told of at once.
const STALL: Duration = Duration::from_millis(100);
/// One in so many bytes of the machine and of each group stays free for others, up to [`MOST_RESERVE_BYTES`].
const RESERVE_PART: u64 = 32;
const MOST_RESERVE_BYTES: u64 = 512 << 20;

/// Where memory may become short.
pub(crate) trait Memory: Send + 'static {
    /// Sleeps until tasks wait for memory, for [`PERIOD`] at most; whether they do.
    fn wait(&mut self) -> bool;

    /// What there is.
    fn left(&mut self) -> Vec<Left>;
}

/// This machine and the control groups of this process.
#[derive(Debug)]
pub(crate) struct Machine {
    memberships: Memberships,
    groups: Cgroups,
    triggers: Vec<Trigger>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let memberships = Memberships::of_process();
        let groups = Cgroups::all_of(&memberships);
        let files = groups.pressure_files().chain([PathBuf::from("/proc/pressure/memory")]);
        // Where there is none, or it is not permitted, what is left tells alone.
        let triggers = files.filter_map(|file| Trigger::open(&file, STALL).ok()).collect();
        Self { memberships, groups, triggers }
    }
}

impl Memory for Machine {
    fn wait(&mut self) -> bool {
        match Trigger::wait(&self.triggers, PERIOD) {
            Ok(stalled) => stalled,
            Err(_) => {
                // A group went, with its trigger: this process is in another one, whose triggers come with the next look. Or they cannot
                // be waited for: that would go on without a pause.
                self.triggers.clear();
                false
            }
        }
    }

    fn left(&mut self) -> Vec<Left> {
        if !self.memberships.are_current() {
            *self = Self::new();
        }
        of_machine().into_iter().chain(self.groups.left()).collect()
    }
}

/// What `left` means for a pool.
pub(crate) fn look(left: &[Left]) -> Look {
    let beyond = |left: &Left| {
        let reserve = (left.limit_bytes / RESERVE_PART).min(MOST_RESERVE_BYTES);
        left.available_bytes.saturating_sub(reserve as i64)
    };
    let frames = |bytes: i64| (bytes.max(0) as u64).div_ceil(PAGE_SIZE);
    // Where nothing tells nothing is short.
    let least = left.iter().map(beyond).min().unwrap_or(i64::MAX);
    Look { missing: frames(least.saturating_neg()), spare: frames(least), ..Look::default() }
}

/// The thread.
pub(crate) fn work(pool: &Arc<PoolCore>, mut memory: impl Memory, mut allowance: Allowance) {
    loop {
        let stalled = memory.wait();
        if pool.is_stopped() {
            return;
        }
        let (resident, _) = pool.frames.held();
        let seen = Look { stalled, resident, refaulted: pool.take_refaulted(), ..look(&memory.left()) };
        pool.frames.set_limit(allowance.after(&seen));
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::fs;

    use prepage_sys::forked::Forked;
    use prepage_testing::{Need, skip, unless_refused};

    use super::*;

    /// A service manager moves processes, and removes the groups that they leave.
    #[test]
    fn a_process_is_told_of_pressure_in_the_groups_that_it_is_in_by_now() {
        // The groups of version 2 have all controllers' files of pressure.
        let Some(own) = Memberships::of_process().of("none").next() else {
            return skip(Need::Path("/sys/fs/cgroup/cgroup.procs".into()), "no control groups of version 2");
        };
        let left = own.directory.join(format!("prepage-test-{}", std::process::id()));
        let refused = |error: &std::io::Error| {
            matches!(
                error.kind(),
                std::io::ErrorKind::PermissionDenied | std::io::ErrorKind::ReadOnlyFilesystem
            )
        };
        let Some(()) = unless_refused(fs::create_dir(&left), Need::Root, refused) else { return };
        let moved = Forked::new(|| {
            fs::write(left.join("cgroup.procs"), "0").unwrap();
            let mut machine = Machine::new();
            fs::write(own.directory.join("cgroup.procs"), "0").unwrap();
            fs::remove_dir(&left).unwrap();
            machine.wait();
            machine.left();
            let (now, fresh) = (machine.triggers.len(), Machine::new().triggers.len());
            i32::from(now != fresh || machine.groups.pressure_files().any(|file| file.starts_with(&left)))
        });
        let exit = moved.unwrap().wait().unwrap().exit_status();
        let _ = fs::remove_dir(&left);
        assert_eq!(exit, Some(0));
    }
}
