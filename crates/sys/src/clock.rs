//! The time of day, and the time that nobody sets.

use std::mem::MaybeUninit;
use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_MONOTONIC, the clock of perf events.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    clock_gettime(ClockId::Realtime).tv_sec as u64
}

/// What [`SystemTime::now`] tells, by a system call, for who asks once. C libraries ask the vDSO: faster each time but the first, when they look it up there in two page faults.
pub fn now() -> SystemTime {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel fills the structure, which lives through the call, or leaves zeros, which are a time too.
    let time = unsafe {
        libc::syscall(libc::SYS_clock_gettime, libc::CLOCK_REALTIME, time.as_mut_ptr());
        time.assume_init()
    };
    // Both are of the kernel, which knows no time before 1970 and no second longer than one.
    SystemTime::UNIX_EPOCH + Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_time_of_the_standard_library() {
        let (before, now, after) = (SystemTime::now(), now(), SystemTime::now());
        // Nothing sets the clock back meanwhile, for who tests.
        assert!(before <= now && now <= after, "{before:?} {now:?} {after:?}");
    }
}
