//! The clocks of files and profiles.

use rustix::time::{ClockId, clock_gettime};

/// Seconds since 1970.
pub fn unix_s() -> u64 {
    clock_gettime(ClockId::Realtime).tv_sec as u64
}
