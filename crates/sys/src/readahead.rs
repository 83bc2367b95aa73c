//! Setting the kernel's read-ahead for a while, and restoring it on every way out.
//!
//! A guardian process holds a lock, the old values and one end of a socket. When the other end closes, because the
//! [`ReadAhead`] is dropped or because this process was killed in whatever way, it writes the values back and ends.
//! The lock makes two that want different settings take turns: otherwise the second would find the first one's
//! setting, and restore that.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::beside::run_beside;
use crate::mounts::{Mount, mounts};
use crate::signals::ignore_endings;
use rustix::fs::FlockOperation;
use rustix::io::Errno;

/// What the guardian says: another one has the lock, and later that it has noted the old values.
const WAITS: u8 = 0;
const NOTED: u8 = 1;

/// Read-ahead settings in force until this is dropped.
#[derive(Debug)]
pub struct ReadAhead {
    guardian: UnixStream,
}

impl ReadAhead {
    /// Sets the read-ahead of every device under a mounted file system to `kib`. Files opened from now on heed it.
    /// Waits while another prepage has it set, and says so.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// EACCES unless root, EROFS where /sys is read-only (containers). Nothing stays changed then.
    pub fn set(kib: u64) -> io::Result<Self> {
        let files = settings()?;
        for file in &files {
            File::options().write(true).open(file)?;
        }
        let (guardian, theirs) = UnixStream::pair()?;
        run_beside(Some(theirs.into()), |theirs| {
            // A service manager that stops a whole group of processes means the others. Those end, and so does this.
            ignore_endings();
            // A failure shows on the other side as an end of file.
            let _ = theirs.map(|theirs| guard(theirs.into(), &files));
        })?;
        // From here on, leaving by an error drops this and so restores.
        let mut guarded = Self { guardian };
        await_notes(&mut guarded.guardian, || {
            let said = "prepage: another program has set the read-ahead: waiting until it ends\n";
            // What is set must be restored, whether or not anybody reads this.
            let _ = io::stderr().write_all(said.as_bytes());
        })?;
        for file in &files {
            fs::write(file, kib.to_string())?;
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

/// Waits until the guardian has noted the old values; calls `waits` if it first waits for another one.
fn await_notes(guardian: &mut UnixStream, waits: impl FnOnce()) -> io::Result<()> {
    let mut said = [0];
    guardian.read_exact(&mut said)?;
    if said == [WAITS] {
        waits();
        guardian.read_exact(&mut said)?;
    }
    Ok(())
}

/// The guardian: locks, notes, says so, waits for the end of the other side, restores. It has no standard error.
fn guard(mut other: UnixStream, files: &[PathBuf]) -> io::Result<()> {
    let Some(first) = files.first() else { return other.write_all(&[NOTED]) };
    let lock = File::open(first)?;
    if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        other.write_all(&[WAITS])?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    }
    let old: Vec<String> = files.iter().map(fs::read_to_string).collect::<io::Result<_>>()?;
    other.write_all(&[NOTED])?;
    await_end(&mut other);
    for (file, value) in files.iter().zip(&old) {
        let _ = fs::write(file, value.trim());
    }
    Ok(())
}

fn await_end(stream: &mut UnixStream) {
    while let Err(error) = stream.read(&mut [0]) {
        if error.kind() != io::ErrorKind::Interrupted {
            break;
        }
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

/// The files that hold the read-ahead of the devices below mounted file systems, each once.
fn settings() -> io::Result<Vec<PathBuf>> {
    let setting = |mount: Mount| setting_of((mount.device >> 20) as u32, mount.device as u32 & 0xf_ffff);
    let mut files: Vec<PathBuf> = mounts()?.into_iter().filter_map(setting).collect();
    files.sort();
    files.dedup();
    Ok(files)
}

/// The setting of a device; a partition's is that of its disk.
fn setting_of(major: u32, minor: u32) -> Option<PathBuf> {
    let device = format!("{major}:{minor}");
    let own = Path::new("/sys/class/bdi").join(&device).join("read_ahead_kb");
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

    #[test]
    fn who_waits_for_another_one_is_told_and_all_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let setting = dir.path().join("read_ahead_kb");
        fs::write(&setting, "128\n").unwrap();
        let guarded = || {
            let (guardian, theirs) = UnixStream::pair().unwrap();
            let files = [setting.clone()];
            (guardian, std::thread::spawn(move || guard(theirs, &files)))
        };
        let (mut first, first_guard) = guarded();
        await_notes(&mut first, || panic!("nobody is there to wait for")).unwrap();
        fs::write(&setting, "0").unwrap();
        let (mut second, second_guard) = guarded();
        let mut waited = false;
        await_notes(&mut second, || {
            waited = true;
            drop(first);
            first_guard.join().unwrap().unwrap();
        })
        .unwrap();
        assert!(waited && fs::read_to_string(&setting).unwrap() == "128");
        fs::write(&setting, "4096").unwrap();
        drop(second);
        second_guard.join().unwrap().unwrap();
        assert_eq!(fs::read_to_string(&setting).unwrap(), "128");
    }
}
