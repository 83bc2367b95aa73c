//! How eagerly the kernel gives a thread a processor (sched(7)), and a device its reads (ioprio_set(2)).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether some thread of this process [gives way](give_way).
static SOME_GIVE_WAY: AtomicBool = AtomicBool::new(false);

/// A thread that [leaves the processor at once](leave_at_once) wants it for so long at a time. Others ask for nothing, and have 0.7 to 3 ms. Where all processors
/// are busy, who wants a longer time also waits longer.
const SLICE_NS: u64 = 4_000_000;

/// From now on this thread takes the processor from nobody when it wakes up (`SCHED_BATCH`); it gets its share of it as
/// before. Threads that it starts are the same. One that is not scheduled as usual (`SCHED_OTHER`) stays as somebody wanted it.
///
/// # Errors
/// Where a filter of system calls refuses.
pub fn give_way() -> io::Result<()> {
    give_way_with(0)
}

/// The same; and whoever wakes up where this thread runs mostly has the processor at once (Linux 6.12), not only when this thread has used up its slice.
///
/// # Errors
/// As there.
pub fn leave_at_once() -> io::Result<()> {
    give_way_with(SLICE_NS)
}

fn give_way_with(slice_ns: u64) -> io::Result<()> {
    let found = attributes()?;
    if found.sched_policy == libc::SCHED_OTHER as u32 {
        set(found, libc::SCHED_BATCH, slice_ns)?;
        SOME_GIVE_WAY.store(true, Ordering::Relaxed);
    }
    Ok(())
}

/// This thread [gives way](give_way) no longer, whether it did so itself or the one that started it.
///
/// # Errors
/// Where a filter of system calls refuses.
pub fn as_others() -> io::Result<()> {
    // A whole process may be scheduled so, because its administrator wants that.
    if SOME_GIVE_WAY.load(Ordering::Relaxed) {
        let found = attributes()?;
        if found.sched_policy == libc::SCHED_BATCH as u32 {
            set(found, libc::SCHED_OTHER, 0)?;
        }
    }
    Ok(())
}

/// This thread is scheduled as usual (`SCHED_OTHER`), if that was in real time or by deadlines, as the one that started it was.
pub fn leave_real_time() {
    // A filter of system calls may refuse: then it goes on as it is.
    let Ok(found) = attributes() else { return };
    if is_in_real_time(&found) {
        let usual = libc::sched_attr { sched_priority: 0, sched_deadline: 0, sched_period: 0, ..found };
        let _ = set(usual, libc::SCHED_OTHER, 0);
    }
}

/// From now on no thread of the processor that this one runs on gets it before this one waits, but for those that are scheduled in real time as well
/// (`SCHED_FIFO` of the lowest priority). Threads that it starts are not.
///
/// # Errors
/// PermissionDenied without CAP_SYS_NICE or a limit of priorities above 0 (RLIMIT_RTPRIO).
pub fn in_real_time() -> io::Result<()> {
    let found = attributes()?;
    let flags = found.sched_flags | libc::SCHED_FLAG_RESET_ON_FORK as u64;
    set(libc::sched_attr { sched_priority: 1, sched_flags: flags, ..found }, libc::SCHED_FIFO, 0)
}

/// From now on the reads of this thread come after those of all others, where the device's scheduler of reads knows of that.
///
/// # Errors
/// Where a filter of system calls refuses.
pub fn read_last() -> io::Result<()> {
    const OF_PROCESS: libc::c_int = 1;
    const IDLE: libc::c_int = 3 << 13;
    // SAFETY: three numbers, for this thread (0).
    match unsafe { libc::syscall(libc::SYS_ioprio_set, OF_PROCESS, 0, IDLE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// How this thread is scheduled.
fn attributes() -> io::Result<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>() as u32;
    let mut found = libc::sched_attr {
        size,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the kernel writes one structure, of that size, for this thread (0).
    if unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut found, size, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if is_in_real_time(&found) {
        // The kernel keeps it for later, and tells it here alone: 20 less it.
        // SAFETY: two numbers, for this thread (0).
        found.sched_nice = 20 - unsafe { libc::syscall(libc::SYS_getpriority, libc::PRIO_PROCESS, 0) } as i32;
    }
    Ok(found)
}

fn is_in_real_time(found: &libc::sched_attr) -> bool {
    [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&(found.sched_policy as i32))
}

/// Schedules this thread by `policy`, `slice_ns` at once (0: as others), and else as `found`.
fn set(found: libc::sched_attr, policy: i32, slice_ns: u64) -> io::Result<()> {
    let wanted = libc::sched_attr { sched_policy: policy as u32, sched_runtime: slice_ns, ..found };
    // SAFETY: the kernel reads one structure, which says its size, for this thread (0).
    match unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const wanted, 0) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};

    use super::*;

    fn policy() -> i32 {
        attributes().expect("allowed to everybody").sched_policy as i32
    }

    #[test]
    fn a_thread_gives_way_and_stops_doing_so() {
        let before = attributes().expect("allowed to everybody");
        give_way().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_BATCH);
        assert_eq!(attributes().unwrap().sched_runtime, before.sched_runtime);
        as_others().expect("allowed to everybody");
        leave_at_once().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_BATCH);
        // Before Linux 6.12 nothing is said of it.
        let slice_ns = attributes().unwrap().sched_runtime;
        assert!([SLICE_NS, before.sched_runtime].contains(&slice_ns), "{slice_ns}");
        read_last().expect("allowed to everybody");
        as_others().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_OTHER);
        assert_eq!(attributes().unwrap().sched_runtime, before.sched_runtime);
        // As an administrator may want it.
        set(before, libc::SCHED_IDLE, 0).expect("allowed to everybody");
        give_way().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_IDLE);
        as_others().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_IDLE);
    }

    #[test]
    fn who_gives_way_stays_as_nice_as_it_was() {
        let nice = (attributes().unwrap().sched_nice + 1).min(19);
        // SAFETY: numbers, for this thread (0).
        assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }, 0);
        give_way().expect("allowed to everybody");
        as_others().expect("allowed to everybody");
        assert_eq!(attributes().unwrap().sched_nice, nice);
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        if unless_refused(in_real_time(), Need::RealTime, refused).is_some() {
            leave_real_time();
            assert_eq!(policy(), libc::SCHED_OTHER);
            assert_eq!(attributes().unwrap().sched_nice, nice);
        }
    }
}
