//! Which kind of file system a file lies in, by its number (`f_type` of statfs(2), include/uapi/linux/magic.h).

use std::io;
use std::os::fd::AsFd;

/// Shows the files of others. Its pages are theirs, and the kernel's events name theirs.
pub const OVERLAYFS: u32 = 0x794c_7630;
/// Each subvolume shows a device of its own to stat(2), where the kernel's events name the file system's.
pub const BTRFS: u32 = 0x9123_683e;
/// Lies in memory.
pub const TMPFS: u32 = 0x0102_1994;

/// Lie in memory, or are made up by the kernel.
const WITHOUT_DEVICE: [(u32, &str); 10] = [
    (TMPFS, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x9fa0, "proc"),
    (0x6265_6572, "sysfs"),
    (0x1cd1, "devpts"),
    (0x2765_6b6a, "cgroup"),
    (0x6367_7270, "cgroup2"),
    (0x6462_6720, "debugfs"),
    (0x7472_6163, "tracefs"),
    (0x9584_58f6, "hugetlbfs"),
];

/// The kind of the one that `file` lies in.
///
/// # Errors
/// Those of fstatfs(2).
pub fn kind_of(file: impl AsFd) -> io::Result<u32> {
    Ok(rustix::fs::fstatfs(file)?.f_type as u32)
}

/// The name of a file system of this `kind` that reads from no device; `None` of others.
pub fn without_device(kind: u32) -> Option<&'static str> {
    WITHOUT_DEVICE.iter().find(|(known, _)| *known == kind).map(|&(_, name)| name)
}
