//! A pool gives memory back while the machine is short of it, before the kernel has to kill somebody: its limit goes down, and the
//! reclaimer does the rest. Before that, while tasks wait, frames go that were idle from one look to the next.
//!
//! ```text
//!   every second: MemAvailable, limits of control groups ┐           ┌ to spare: the limit, a part of it above what the pool holds
//!   at once: a trigger of PSI, where there is one        ┴─► Allowance ┼ missing: the limit ─► reclaim
//!   half of what it may still take is taken, before reclaim:           └ tasks wait: watched frames that are idle ─► the limit
//!   is more to spare? ─►
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_sys::cgroup::Memberships;
use prepage_sys::memory_left::{Cgroups, Left, of_machine};
use prepage_sys::psi::Trigger;

use crate::allowance::{Allowance, GROW_LEAST, Look};
use crate::pool::PoolCore;
use crate::reclaim;
use crate::sync::Anyway;

/// How often memory is looked at: four small files, 0.1 ms.
const PERIOD: Duration = Duration::from_secs(1);
/// Tasks that wait for memory for so long of two seconds are told of at once.
const STALL: Duration = Duration::from_millis(100);
/// How long triggers are kept: the file of one may have gone and come again.
const REOPEN_AFTER: Duration = Duration::from_secs(60);
/// One in so many bytes of the machine and of each group stays free for others, up to [`MOST_RESERVE_BYTES`].
const RESERVE_PART: u64 = 32;
const MOST_RESERVE_BYTES: u64 = 512 << 20;
/// A pool gives one in so many of the bytes that are missing at least: what others hold may be files in a tmpfs, and nobody's to give. What is
/// missing still is seen by the next look.
const LEAST_SHARE_PART: u64 = 4;

/// Where memory may become short.
pub(crate) trait Memory: Send + std::fmt::Debug + 'static {
    /// What there is.
    fn left(&mut self) -> Vec<Left>;
}

/// What tells that memory is short.
pub(crate) trait Pressure: Send + 'static {
    /// Sleeps until tasks wait for memory, at most [`PERIOD`]; if `for_all`, always that long. Returns whether tasks waited.
    fn wait(&mut self, for_all: bool) -> bool;
}

/// This machine and the control groups of this process.
#[derive(Debug)]
pub(crate) struct Machine {
    memberships: Memberships,
    groups: Cgroups,
}

impl Machine {
    pub(crate) fn new() -> Self {
        let memberships = Memberships::of_process();
        Self { groups: Cgroups::all_of(&memberships), memberships }
    }
}

impl Memory for Machine {
    fn left(&mut self) -> Vec<Left> {
        if !self.memberships.are_current() {
            *self = Self::new();
        }
        of_machine().into_iter().chain(self.groups.left()).collect()
    }
}

/// The triggers of both.
#[derive(Debug)]
pub(crate) struct Triggers {
    memberships: Memberships,
    given: Vec<Trigger>,
    opened: Instant,
}

impl Triggers {
    pub(crate) fn new() -> Self {
        let memberships = Memberships::of_process();
        let groups = Cgroups::all_of(&memberships);
        let files = groups.pressure_files().chain([PathBuf::from("/proc/pressure/memory")]);
        // Where there is none, or it is not permitted, what is left tells alone.
        let given = files.filter_map(|file| Trigger::open(&file, STALL).ok()).collect();
        Self { memberships, given, opened: Instant::now() }
    }
}

impl Pressure for Triggers {
    fn wait(&mut self, for_all: bool) -> bool {
        // One that has gone may come again.
        if self.opened.elapsed() >= REOPEN_AFTER || !self.memberships.are_current() {
            *self = Self::new();
        }
        let limit = if for_all { Duration::ZERO } else { PERIOD };
        std::thread::sleep(PERIOD - limit);
        Trigger::wait(&mut self.given, limit).unwrap_or_else(|_| {
            // They cannot be waited for: that would go on without a pause.
            self.given.clear();
            false
        })
    }
}

/// Decides how much a pool holds.
#[derive(Debug)]
pub(crate) struct Giver {
    memory: Box<dyn Memory>,
    allowance: Allowance,
}

impl Giver {
    /// Memory is looked at before the pool holds anything.
    pub(crate) fn new(memory: impl Memory, allowance: Allowance, pool: &PoolCore) -> Self {
        let mut giver = Self { memory: Box::new(memory), allowance };
        let seen = giver.look(pool);
        giver.limit(pool, &seen);
        giver
    }

    fn look(&mut self, pool: &PoolCore) -> Look {
        let (resident, _) = pool.frames.held();
        let reserved = pool.frames.reserved();
        let (_, free) = pool.frames.watermarks_of(reserved);
        // A promise raises no limit.
        let kept = if reserved > resident { (reserved + free).min(pool.frames.limit()) } else { 0 };
        let promised = kept.saturating_sub(resident);
        Look { stuck: pool.stuck_pages(), promised, ..look(&self.memory.left(), resident) }
    }

    fn limit(&self, pool: &PoolCore, seen: &Look) {
        let (limit, may_rise) = (self.allowance.limit(seen), self.allowance.may_rise(seen));
        pool.frames.set_limit_for_now(limit, may_rise);
    }

    /// The look of every second; gives how many idle frames are to go.
    fn look_and_give(&mut self, pool: &PoolCore, stalled: bool) -> u64 {
        let seen = Look { stalled, refaulted: pool.take_refaulted(), ..self.look(pool) };
        if seen.missing > 0 {
            // What goes may have no other place.
            pool.swap.ask_again();
        }
        self.allowance.after(&seen);
        let due = self.allowance.due();
        // Before the limit: near it frames are unwired, which would not be watched for long.
        if due > 0 {
            // What is to be free below the limit goes too, or the reclaimer would take others for it at once.
            let (_, free) = pool.frames.watermarks_of(seen.resident);
            let gone = reclaim::take_idle(pool, due + free);
            self.allowance.after_giving(&seen, gone.saturating_sub(free));
        }
        self.limit(pool, &seen);
        self.allowance.due()
    }
}

/// Looks at memory before frames are taken away for want of others, or reads ahead stop, where the limit is that of a look up to a second ago and may rise.
/// Whether it did, by [`GROW_LEAST`]: else frames are taken away until the next second.
pub(crate) fn look_again(pool: &PoolCore) -> bool {
    if !pool.frames.may_rise() {
        return false;
    }
    // Held by one that looks already.
    let Some(mut giver) = pool.giver.try_lock().anyway() else { return false };
    let Some(giver) = giver.as_mut() else { return false };
    let before = pool.frames.limit();
    let seen = giver.look(pool);
    giver.limit(pool, &seen);
    let rises = pool.frames.limit() >= before + GROW_LEAST;
    if !rises && pool.frames.wanted() > 0 {
        pool.frames.rises_no_more();
    }
    rises
}

/// Raises the limit by `pages` that are needed at once, where memory has twice as many to spare now.
pub(crate) fn makes_room(pool: &PoolCore, pages: u64) -> bool {
    let Some(mut giver) = pool.giver.try_lock().anyway() else { return false };
    let Some(giver) = giver.as_mut() else { return false };
    let seen = giver.look(pool);
    giver.allowance.has_room_for(&seen, pages) && pool.frames.grow(pages)
}

/// What `left` means for a pool that holds so many frames.
pub(crate) fn look(left: &[Left], resident: u64) -> Look {
    let beyond = |left: &Left| {
        let reserve = (left.limit_bytes / RESERVE_PART).min(MOST_RESERVE_BYTES);
        left.available_bytes.saturating_sub(reserve as i64)
    };
    let frames = |bytes: u64| bytes.div_ceil(PAGE_SIZE);
    let missing = |left: &Left| {
        frames(share(beyond(left).min(0).unsigned_abs(), resident * PAGE_SIZE, left.shmem_bytes))
    };
    // Where nothing tells nothing is short.
    let spare = left.iter().map(beyond).min().unwrap_or(i64::MAX).max(0) as u64;
    let missing = left.iter().map(missing).max().unwrap_or(0);
    Look { missing, spare: frames(spare), resident, ..Look::default() }
}

/// How much of `missing` bytes a pool gives that holds `own_bytes` of all `shmem_bytes`: other pools give theirs.
fn share(missing: u64, own_bytes: u64, shmem_bytes: u64) -> u64 {
    let part = u128::from(missing) * u128::from(own_bytes) / u128::from(shmem_bytes.max(1));
    (part.min(missing.into()) as u64).max(missing.div_ceil(LEAST_SHARE_PART))
}

/// The thread.
pub(crate) fn work(pool: &Arc<PoolCore>, mut pressure: impl Pressure) {
    let mut due = 0;
    loop {
        // Frames that are watched are watched for a while.
        let stalled = pressure.wait(due > 0);
        if pool.is_stopped() {
            return;
        }
        due = pool.giver.lock().anyway().as_mut().map_or(0, |giver| giver.look_and_give(pool, stalled));
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::fs;

    use prepage_sys::forked::Forked;
    use prepage_testing::{Need, skip, unless_refused};

    use super::*;

    #[test]
    fn pools_share_what_is_missing() {
        let left =
            |available_bytes, shmem_bytes| Left { limit_bytes: 64 << 30, available_bytes, shmem_bytes };
        let missing = |left: &[Left], own_bytes: u64| look(left, own_bytes / PAGE_SIZE).missing * PAGE_SIZE;
        // 512 MiB are to stay free.
        assert_eq!(missing(&[left(512 << 20, 0)], 1 << 30), 0);
        assert_eq!(missing(&[left(256 << 20, 1 << 30)], 1 << 30), 256 << 20, "a lone pool");
        assert_eq!(missing(&[left(256 << 20, 1 << 30)], 2 << 30), 256 << 20, "counted later");
        assert_eq!(
            missing(&[left((512 << 20) - (4 << 30), 0)], 4 << 30),
            4 << 30,
            "nothing else is counted yet"
        );
        assert_eq!(missing(&[left(-(512 << 20), 32 << 30)], 16 << 30), 512 << 20, "one of two");
        assert_eq!(missing(&[left(-(512 << 20), 80 << 30)], 4 << 30), 256 << 20, "a quarter at least");
        let group = Left { limit_bytes: 1 << 30, available_bytes: 0, shmem_bytes: 1 << 30 };
        assert_eq!(missing(&[left(1 << 40, 1 << 40), group], 1 << 30), 32 << 20, "of the group");
        assert_eq!(look(&[left(768 << 20, 0)], 0).spare * PAGE_SIZE, 256 << 20);
    }

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
            let (mut machine, mut triggers) = (Machine::new(), Triggers::new());
            fs::write(own.directory.join("cgroup.procs"), "0").unwrap();
            fs::remove_dir(&left).unwrap();
            triggers.wait(false);
            machine.left();
            let (now, fresh) = (triggers.given.len(), Triggers::new().given.len());
            i32::from(now != fresh || machine.groups.pressure_files().any(|file| file.starts_with(&left)))
        });
        let exit = moved.unwrap().wait().unwrap().exit_status();
        let _ = fs::remove_dir(&left);
        assert_eq!(exit, Some(0));
    }
}
