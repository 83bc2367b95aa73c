//! How eagerly the kernel gives a thread a processor (sched(7)), and a device its reads (ioprio_set(2)).

use std::io;

/// From now on this thread takes the processor from nobody when it wakes up (`SCHED_BATCH`); it gets its share of it as
/// before. Threads that it starts are the same.
///
/// # Errors
/// Where a filter of system calls refuses.
pub fn give_way() -> io::Result<()> {
    set(libc::SCHED_BATCH, 0)
}

/// This thread is scheduled as others are (`SCHED_OTHER`), however the one that started it is.
///
/// # Errors
/// Where a filter of system calls refuses.
pub fn as_others() -> io::Result<()> {
    set(libc::SCHED_OTHER, 0)
}

/// As [`as_others`], where this thread is scheduled in real time or by deadlines: as the one that started it was.
pub fn leave_real_time() {
    // SAFETY: two numbers, for this thread (0). By number: musl's function does nothing.
    let policy =
        unsafe { libc::syscall(libc::SYS_sched_getscheduler, 0) } as i32 & !libc::SCHED_RESET_ON_FORK;
    if [libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_DEADLINE].contains(&policy) {
        // A filter of system calls may refuse: then it goes on as it is.
        let _ = as_others();
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
        // SAFETY: asks for a number, of this thread.
        let policy = || unsafe { libc::sched_getscheduler(0) };
        give_way().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_BATCH);
        read_last().expect("allowed to everybody");
        as_others().expect("allowed to everybody");
        assert_eq!(policy(), libc::SCHED_OTHER);
    }
}
