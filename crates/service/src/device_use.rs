//! How much a device is used, and how much of that is this thread's own doing.
//!
//! The device: `stat` below /sys/dev/block (Documentation/block/stat.rst), of the whole disk where a file system lies on a partition, and of all
//! disks below where it lies on a device made of others. The thread: /proc/thread-self/io (proc_pid_io(5)), which counts what it had read from
//! devices, the file system's own blocks included.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use prepage_sys::disk_stat::DiskStat;

use crate::courtesy::Use;

/// Devices lie on devices this often at most.
const DEPTH_MAX: u32 = 8;

/// The figures of one device and of the thread that made this. They are open: whoever takes on other rights can still look.
#[derive(Debug)]
pub struct DeviceUse {
    disks: Vec<File>,
    own: File,
}

impl DeviceUse {
    /// Of the device with this number (st_dev).
    ///
    /// # Errors
    /// Where the number is no block device's (Btrfs, overlayfs, network), or the kernel does not count.
    pub fn of(device: u64) -> io::Result<Self> {
        let mut disks = Vec::new();
        open_disks(&DiskStat::directory(device), DEPTH_MAX, &mut disks)?;
        let own = File::open("/proc/thread-self/io")?;
        let opened = Self { disks, own };
        opened.look()?;
        Ok(opened)
    }

    /// What they say now. To be called by the thread that made this.
    ///
    /// # Errors
    /// Where the device is gone.
    pub fn look(&self) -> io::Result<Use> {
        // First the thread's: it reads nothing meanwhile, and others do.
        let own_bytes = own_bytes(&text(&self.own)?).ok_or(io::ErrorKind::InvalidData)?;
        let mut all = Use { own_bytes, ..Use::default() };
        for disk in &self.disks {
            let disk = DiskStat::parse(&text(disk)?).ok_or(io::ErrorKind::InvalidData)?;
            all.device_bytes += disk.read_bytes + disk.written_bytes;
            all.in_flight += disk.in_flight;
        }
        Ok(all)
    }
}

fn open_disks(device: &Path, depth: u32, disks: &mut Vec<File>) -> io::Result<()> {
    // The kernel's path of a partition goes through its disk.
    let device = device.canonicalize()?;
    let disk = if device.join("partition").exists() { device.parent().unwrap_or(&device) } else { &device };
    let below: Vec<PathBuf> = match fs::read_dir(disk.join("slaves")) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    if below.is_empty() || depth == 0 {
        disks.push(File::open(disk.join("stat"))?);
        return Ok(());
    }
    below.iter().try_for_each(|one| open_disks(one, depth - 1, disks))
}

fn text(file: &File) -> io::Result<String> {
    let mut buffer = [0; 512];
    let len = file.read_at(&mut buffer, 0)?;
    Ok(String::from_utf8_lossy(&buffer[..len]).into_owned())
}

fn own_bytes(io: &str) -> Option<u64> {
    io.lines().find_map(|line| line.strip_prefix("read_bytes: "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    use std::time::{Duration, Instant};

    use prepage_sys::cachestat::evict;
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn what_the_kernel_says_is_understood() {
        assert_eq!(own_bytes("rchar: 1\nread_bytes: 4096\nwrite_bytes: 2\n"), Some(4096));
        assert_eq!(own_bytes(""), None);
        assert!(DeviceUse::of(0).is_err());
    }

    /// Counters only grow, and whatever others do meanwhile adds to the device's alone.
    #[test]
    fn reads_count_for_the_device_and_for_the_thread_that_makes_them() {
        const BYTES: u64 = 256 << 10;
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let device = fs::metadata(&directory).unwrap().dev();
        // overlayfs and Btrfs have no device of their own.
        let needs = [DiskStat::directory(device), "/proc/thread-self/io".into()];
        if !has(Need::Eviction(directory.clone())) || !needs.map(Need::Path).into_iter().all(has) {
            return;
        }
        let counted = DeviceUse::of(device).unwrap();
        let place = tempfile::tempdir_in(&directory).unwrap();
        let path = place.path().join("file");
        fs::write(&path, vec![1; BYTES as usize]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        let read_cold = || {
            let file = File::open(&path).unwrap();
            evict(file.as_fd(), Duration::from_secs(60)).unwrap();
            file.read_exact_at(&mut vec![0; BYTES as usize], 0).unwrap();
        };
        let before = counted.look().unwrap();
        read_cold();
        let own = counted.look().unwrap();
        assert!(own.own_bytes >= before.own_bytes + BYTES, "{before:?}, {own:?}");
        std::thread::scope(|scope| scope.spawn(read_cold).join().unwrap());
        let wanted = before.device_bytes + 2 * BYTES;
        let until = Instant::now() + Duration::from_secs(60);
        while counted.look().unwrap().device_bytes < wanted && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        let after = counted.look().unwrap();
        assert!(after.device_bytes >= wanted, "{before:?}, {after:?}");
        assert_eq!(after.own_bytes, own.own_bytes, "the other thread's reads are not this one's");
    }
}
