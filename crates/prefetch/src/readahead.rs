//! Setting the kernel's read-ahead for a while, and restoring it on every way out.
//!
//! A guardian process holds the old values and one end of a socket. When the other end closes, because the
//! [`ReadAhead`] is dropped or because this process was killed in whatever way, it writes them back and ends.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use prepage_sys::beside::run_beside;

/// Read-ahead settings in force until this is dropped.
#[derive(Debug)]
pub struct ReadAhead {
    guardian: UnixStream,
}

impl ReadAhead {
    /// Sets the read-ahead of every device under a mounted file system to `kib`. Files opened from now on heed it.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// EACCES unless root, EROFS where /sys is read-only (containers). Nothing stays changed then.
    pub fn set(kib: u64) -> io::Result<Self> {
        let mut old = Vec::new();
        for file in settings()? {
            let value = fs::read_to_string(&file)?;
            old.push((file, value));
        }
        let changed: Vec<PathBuf> = old.iter().map(|(file, _)| file.clone()).collect();
        let (guardian, ours) = UnixStream::pair()?;
        run_beside(OwnedFd::from(ours), move |alive| {
            await_end(&mut UnixStream::from(alive));
            for (file, value) in &old {
                let _ = fs::write(file, value.trim());
            }
        })?;
        // From here on, leaving by an error drops this and so restores.
        let guarded = Self { guardian };
        for file in changed {
            fs::write(&file, kib.to_string())?;
        }
        Ok(guarded)
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        let _ = self.guardian.shutdown(Shutdown::Write);
        // The guardian's end closes when all is restored.
        await_end(&mut self.guardian);
    }
}

fn await_end(stream: &mut UnixStream) {
    while let Err(error) = stream.read(&mut [0]) {
        if error.kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
}

/// The read-ahead of the devices under mounted file systems, in KiB: each value once, in ascending order.
pub fn in_force() -> Vec<u64> {
    let files = settings().unwrap_or_default();
    let value = |file: &PathBuf| fs::read_to_string(file).ok()?.trim().parse().ok();
    let values: BTreeSet<u64> = files.iter().filter_map(value).collect();
    values.into_iter().collect()
}

/// The files that hold the read-ahead of the devices below mounted file systems, each once.
pub(crate) fn settings() -> io::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_to_string("/proc/self/mountinfo")?
        .lines()
        .filter_map(|line| setting_of(line.split_ascii_whitespace().nth(2)?))
        .collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// The setting of the device `major:minor`; a partition's is that of its disk.
fn setting_of(device: &str) -> Option<PathBuf> {
    let own = Path::new("/sys/class/bdi").join(device).join("read_ahead_kb");
    if own.exists() {
        // Devices of major 0 are file systems of their own making (proc, tmpfs, overlay). Those that read from
        // somewhere (nfs, fuse, btrfs) have a setting as well.
        return Some(own);
    }
    let disk = Path::new("/sys/dev/block").join(device).join("../queue/read_ahead_kb");
    disk.exists().then_some(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Vec<String> {
        settings().unwrap().iter().map(|file| fs::read_to_string(file).unwrap()).collect()
    }

    #[test]
    fn a_changed_setting_is_restored_also_after_a_kill() {
        let before = values();
        match ReadAhead::set(64) {
            Err(error) => return eprintln!("SKIPPED: read-ahead cannot be set here: {error}"),
            Ok(set) => {
                assert!(values().iter().all(|value| value.trim() == "64"));
                drop(set);
                assert_eq!(values(), before);
            }
        }
        // A process that dies with the setting in force. It reports when it is set by closing the pipe.
        let (mut ready, report) = UnixStream::pair().unwrap();
        run_beside(OwnedFd::from(report), |report| {
            let _set = ReadAhead::set(32);
            drop(report);
            let me = rustix::process::getpid();
            let _ = rustix::process::kill_process(me, rustix::process::Signal::KILL);
        })
        .unwrap();
        await_end(&mut ready);
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while values() != before && std::time::Instant::now() < deadline {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert_eq!(values(), before);
    }
}
