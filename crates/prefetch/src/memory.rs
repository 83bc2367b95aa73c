//! How much memory there is for guesses.

use std::fs;

/// The share of the available memory that a prefetch may ask for: 1 in this.
const MEMORY_SHARE: u64 = 2;

/// `MemAvailable` of /proc/meminfo: what programs could still get without swapping.
pub fn available_kib() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Whether reading `bytes` leaves memory for others.
pub fn has_room_for(bytes: u64) -> bool {
    available_kib().is_none_or(|kib| bytes / 1024 <= kib / MEMORY_SHARE)
}
