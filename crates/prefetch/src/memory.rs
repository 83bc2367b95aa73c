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

/// How many of `wanted_bytes` may be read so that memory is left for others.
pub fn share_of(wanted_bytes: u64) -> u64 {
    let info = rustix::system::sysinfo();
    let free_bytes = (info.freeram as u64).saturating_mul(info.mem_unit.into());
    // Mostly enough, and told by one system call; a start has no time for /proc/meminfo unless it is needed.
    if wanted_bytes <= free_bytes / MEMORY_SHARE {
        return wanted_bytes;
    }
    available_kib().map_or(wanted_bytes, |kib| wanted_bytes.min(kib * 1024 / MEMORY_SHARE))
}
