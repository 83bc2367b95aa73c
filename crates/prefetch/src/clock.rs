//! The clocks of files and profiles.

use rustix::time::{ClockId, clock_gettime};

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    clock_gettime(ClockId::Realtime).tv_sec as u64
}

/// Nanoseconds since 1970 by the clock that stamps files: a few milliseconds coarse, and so never ahead of a file
/// written later.
pub fn file_time_ns() -> i64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
