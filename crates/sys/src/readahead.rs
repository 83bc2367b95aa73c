//! Setting the kernel's read-ahead for a while, and restoring it on every way out ([`crate::guarded`]).

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::device_number;
use crate::disk_stat::DiskStat;
use crate::guarded::Guarded;
use crate::mounts::{Mount, mounts};

/// Read-ahead settings in force until this is dropped.
#[derive(Debug)]
pub struct ReadAhead(#[expect(dead_code, reason = "they are put back when this goes")] Guarded);

impl ReadAhead {
    /// Sets the read-ahead of every device under a mounted file system to `kib`. Files opened from now on heed it.
    /// Waits while another prepage has it set, and says so.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// EACCES unless root, EROFS where /sys is read-only (containers). Nothing stays changed then.
    pub fn set(kib: u64) -> io::Result<Self> {
        let open = |file: &PathBuf| File::options().read(true).write(true).open(file);
        let files = settings()?.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        let waits = || {
            let said = "prepage: another program has set the read-ahead: waiting until it ends\n";
            // What is set must be restored, whether or not anybody reads this.
            let _ = io::stderr().write_all(said.as_bytes());
        };
        Guarded::set(&files, &kib.to_string(), None, waits).map(Self)
    }
}

/// Whether this user may set the read-ahead of all devices.
pub fn can_be_set() -> bool {
    let writable = |file: &PathBuf| File::options().write(true).open(file).is_ok();
    settings().is_ok_and(|files| !files.is_empty() && files.iter().all(writable))
}

/// The read-ahead of the devices under mounted file systems, in KiB: each value once, in ascending order.
pub fn in_force() -> Vec<u64> {
    let files = settings().unwrap_or_default();
    let value = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    let values: BTreeSet<u64> = files.iter().filter_map(value).collect();
    values.into_iter().collect()
}

/// The read-ahead of the device under `mount`, in KiB; `None` where it is of no device with such a setting.
pub fn of_mount(mount: &Mount) -> Option<u64> {
    fs::read_to_string(setting_below(mount)?).ok()?.trim().parse().ok()
}

/// The files that hold the read-ahead of the devices below mounted file systems, each once, in an order that all processes agree on.
fn settings() -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = mounts()?.iter().filter_map(setting_below).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// The setting of the device under `mount`, by the one name that it has however it was found; a partition's is that of its disk.
fn setting_below(mount: &Mount) -> Option<PathBuf> {
    let setting = |bdi: PathBuf| bdi.join("read_ahead_kb").canonicalize().ok();
    let device = device_number::of_stat(mount.device);
    // Devices of major 0 are file systems of their own making (proc, tmpfs, overlay). Those that read from
    // somewhere (nfs, fuse) have a setting as well.
    let own = Path::new("/sys/class/bdi").join(device_number::name(device));
    let disk = DiskStat::directory(device).join("../bdi");
    setting(own).or_else(|| setting(disk)).or_else(|| setting(bdi_of_btrfs(mount)?))
}

/// What a mounted Btrfs reads by: it is named by none of the disks that the file system lies on.
fn bdi_of_btrfs(mount: &Mount) -> Option<PathBuf> {
    if mount.kind != "btrfs" {
        return None;
    }
    let disk = DiskStat::directory(fs::metadata(&mount.source).ok()?.rdev()).canonicalize().ok()?;
    let disk = Path::new("devices").join(disk.file_name()?);
    let mut mounted = fs::read_dir("/sys/fs/btrfs").ok()?.flatten().map(|entry| entry.path());
    mounted.find(|file_system| file_system.join(&disk).exists()).map(|file_system| file_system.join("bdi"))
}
