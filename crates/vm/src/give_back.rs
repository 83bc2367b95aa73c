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

/// How often memory is looked at: three small files, 0.1 ms.
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
    groups: Cgroups,
    triggers: Vec<Trigger>,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let groups = Cgroups::all_of(&Memberships::of_process());
        let files = groups.pressure_files().chain([PathBuf::from("/proc/pressure/memory")]);
        // Where there is none, or it is not permitted, what is left tells alone.
        let triggers = files.filter_map(|file| Trigger::open(&file, STALL).ok()).collect();
        Self { groups, triggers }
    }
}

impl Memory for Machine {
    fn wait(&mut self) -> bool {
        match Trigger::wait(&self.triggers, PERIOD) {
            Ok(stalled) => stalled,
            Err(_) => {
                // A group went, with its trigger.
                self.triggers.clear();
                false
            }
        }
    }

    fn left(&mut self) -> Vec<Left> {
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
