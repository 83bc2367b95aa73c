//! How eagerly the kernel gives a thread a processor (sched(7)), and a device its reads (ioprio_set(2)).

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether some thread of this process [gives way](give_way).
static SOME_GIVE_WAY: AtomicBool = AtomicBool::new(false);

/// From now on this thread takes the processor from nobody when it wakes up (`SCHED_BATCH`); it gets its share of it as
/// before. Threads that it starts are the same. One that is not scheduled as usual (`SCHED_OTHER`) stays as somebody wanted it.
///
/// # Errors
/// Where a filter of system calls refuses.
pub fn give_way() -> io::Result<()> {
    if policy() == libc::SCHED_OTHER {
        set(libc::SCHED_BATCH, 0)?;
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
    if SOME_GIVE_WAY.load(Ordering::Relaxed) && policy() == libc::SCHED_BATCH {
        set(libc::SCHED_OTHER, 0)?;
    }
    Ok(())
}

/// This thread is scheduled as usual (`SCHED_OTHER`), if that was in real time or by deadlines, as the one that started it was.
pub fn leave_real_time() {
    if [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&policy()) {
        // A filter of system calls may refuse: then it goes on as it is.
        let _ = set(libc::SCHED_OTHER, 0);
    }
}

/// From now on no thread of the processor that this one runs on gets it before this one waits, but for those that are scheduled in real time as well
/// (`SCHED_FIFO` of the lowest priority). Threads that it starts are not.
///
/// # Errors
/// PermissionDenied without CAP_SYS_NICE or a limit of priorities above 0 (RLIMIT_RTPRIO).
pub fn in_real_time() -> io::Result<()> {
    set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1)
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
fn policy() -> i32 {
    // SAFETY: two numbers, for this thread (0). By number: musl's function does nothing.
    let policy = unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } as i32;
    policy & !libc::SCHED_RESET_ON_FORK
}

fn set(policy: i32, priority: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one structure, which has this one member, for this thread (0). By number: musl's function does nothing.
    match unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, policy, &raw const priority) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gives_way_and_stops_doing_so() {
        give_way().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_BATCH);
        read_last().expect("allowed to everybody");
        as_others().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_OTHER);
        // As an administrator may want it.
        set(libc::SCHED_IDLE, 0).expect("allowed to everybody");
        give_way().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_IDLE);
        as_others().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_IDLE);
    }
}
