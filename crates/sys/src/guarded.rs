//! Settings of the kernel, changed for a while.
//!
//! A guardian process holds locks, the old values and one end of a socket. When the other end closes, because the
//! [`Guarded`] is dropped or because this process was killed in whatever way, it writes the values back and ends.
//! The locks, one of each setting, make two that have a setting in common take turns: otherwise the second would find the first
//! one's value, and restore that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::beside::run_beside_with;
use crate::signals::ignore_endings;

/// What the guardian says: another one has the lock, and later that it has noted the old values.
const WAITS: u8 = 0;
const NOTED: u8 = 1;
/// Of one setting.
const VALUE_BYTES: usize = 64;

/// Settings in force until this is dropped.
#[derive(Debug)]
pub struct Guarded {
    guardian: UnixStream,
}

impl Guarded {
    /// Writes `value` to all `settings`, open to read and write, which all callers give in one order. Waits while another one has them set, and calls `waits` before. They are
    /// put back after `at_most`, which is some time, in any case.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// Those of fork(2) and of reading and writing there. Nothing stays changed then.
    pub fn set(
        settings: &[File],
        value: &str,
        at_most: Option<Duration>,
        waits: impl FnOnce(),
    ) -> io::Result<Self> {
        let (guardian, theirs) = UnixStream::pair()?;
        let copies = settings.iter().map(|setting| setting.try_clone().map(OwnedFd::from));
        let mut kept = copies.collect::<io::Result<Vec<_>>>()?;
        kept.push(theirs.into());
        run_beside_with(kept, |mut kept| {
            // A service manager that stops a whole group of processes means the others. Those end, and so does this.
            ignore_endings();
            // A failure shows on the other side as an end of file.
            if let Some(theirs) = kept.pop() {
                let settings: Vec<File> = kept.into_iter().map(File::from).collect();
                let _ = guard(theirs.into(), &settings, at_most);
            }
        })?;
        // From here on, leaving by an error drops this and so restores.
        let mut guarded = Self { guardian };
        await_notes(&mut guarded.guardian, waits)?;
        for setting in settings {
            write(setting, value)?;
        }
        Ok(guarded)
    }
}

impl Drop for Guarded {
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
fn guard(mut other: UnixStream, settings: &[File], at_most: Option<Duration>) -> io::Result<()> {
    let mut waits = false;
    let mut locked = Vec::new();
    for setting in settings {
        // Whoever opens a file twice and locks it twice waits for itself.
        let file = rustix::fs::fstat(setting)?;
        let file = (file.st_dev, file.st_ino);
        if locked.contains(&file) {
            continue;
        }
        locked.push(file);
        if rustix::fs::flock(setting, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
            if !waits {
                other.write_all(&[WAITS])?;
                waits = true;
            }
            rustix::fs::flock(setting, FlockOperation::LockExclusive)?;
        }
    }
    let old: Vec<String> = settings.iter().map(read).collect::<io::Result<_>>()?;
    other.set_read_timeout(at_most)?;
    // Whoever reads it changes the settings: nothing may fail from here on.
    other.write_all(&[NOTED])?;
    await_end(&mut other);
    for (setting, value) in settings.iter().zip(&old) {
        let _ = write(setting, value);
    }
    Ok(())
}

/// What is set. Files of debugfs have no offsets, and say it once each time they are opened.
pub(crate) fn read(setting: &File) -> io::Result<String> {
    let mut value = [0; VALUE_BYTES];
    let len = match setting.read_at(&mut value, 0) {
        Err(error) if error.raw_os_error() == Some(libc::ESPIPE) => (&*setting).read(&mut value)?,
        read => read?,
    };
    Ok(String::from_utf8_lossy(&value[..len]).trim().to_owned())
}

fn write(setting: &File, value: &str) -> io::Result<()> {
    match setting.write_all_at(value.as_bytes(), 0) {
        Err(error) if error.raw_os_error() == Some(libc::ESPIPE) => (&*setting).write_all(value.as_bytes()),
        written => written,
    }
}

fn await_end(stream: &mut UnixStream) {
    while let Err(error) = stream.read(&mut [0]) {
        if error.kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_another_one_is_told_and_all_is_restored() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("read_ahead_kb");
        std::fs::write(&path, "128\n").unwrap();
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let set = |value: &str| std::fs::write(&path, value).unwrap();
        let guarded = || {
            let (guardian, theirs) = UnixStream::pair().unwrap();
            let settings = [open()];
            (guardian, std::thread::spawn(move || guard(theirs, &settings, None)))
        };
        let (mut first, first_guard) = guarded();
        await_notes(&mut first, || panic!("nobody is there to wait for")).unwrap();
        set("256");
        let (mut second, second_guard) = guarded();
        let mut waited = false;
        await_notes(&mut second, || {
            waited = true;
            drop(first);
            first_guard.join().unwrap().unwrap();
        })
        .unwrap();
        assert!(waited && read(&open()).unwrap() == "128");
        set("512");
        drop(second);
        second_guard.join().unwrap().unwrap();
        assert_eq!(read(&open()).unwrap(), "128");
    }

    /// A disk that was mounted in between comes first of the second one's.
    #[test]
    fn two_that_have_one_setting_of_several_in_common_take_turns() {
        let dir = tempfile::tempdir().unwrap();
        let [new, common] = ["a", "b"].map(|name| dir.path().join(name));
        [&new, &common].iter().for_each(|path| std::fs::write(path, "128").unwrap());
        let guarded = |paths: &[&std::path::PathBuf]| {
            let (guardian, theirs) = UnixStream::pair().unwrap();
            let open =
                |path: &&std::path::PathBuf| File::options().read(true).write(true).open(path).unwrap();
            let settings: Vec<File> = paths.iter().map(open).collect();
            (guardian, std::thread::spawn(move || guard(theirs, &settings, None)))
        };
        let (mut first, first_guard) = guarded(&[&common]);
        await_notes(&mut first, || panic!("nobody is there to wait for")).unwrap();
        std::fs::write(&common, "0").unwrap();
        let (mut second, second_guard) = guarded(&[&new, &common]);
        let mut waited = false;
        await_notes(&mut second, || {
            waited = true;
            drop(first);
            first_guard.join().unwrap().unwrap();
        })
        .unwrap();
        drop(second);
        second_guard.join().unwrap().unwrap();
        assert!(waited);
        assert_eq!(std::fs::read_to_string(&common).unwrap(), "128");
    }

    #[test]
    fn a_setting_that_is_given_twice_is_no_reason_to_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("setting");
        std::fs::write(&path, "128").unwrap();
        let settings = [(); 2].map(|()| File::options().read(true).write(true).open(&path).unwrap());
        let (mut other, theirs) = UnixStream::pair().unwrap();
        let guard = std::thread::spawn(move || guard(theirs, &settings, None));
        await_notes(&mut other, || panic!("it waits for itself")).unwrap();
        std::fs::write(&path, "256").unwrap();
        drop(other);
        guard.join().unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "128");
    }

    #[test]
    fn who_hangs_has_it_for_a_while_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("setting");
        std::fs::write(&path, "128").unwrap();
        let settings = [File::options().read(true).write(true).open(&path).unwrap()];
        let (_never_ends, theirs) = UnixStream::pair().unwrap();
        let at_most = Some(Duration::from_millis(1));
        let guard = std::thread::spawn(move || guard(theirs, &settings, at_most));
        guard.join().unwrap().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "128");
    }

    #[test]
    fn a_time_that_cannot_be_waited_for_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("setting");
        std::fs::write(&path, "128").unwrap();
        let settings = [File::options().read(true).write(true).open(&path).unwrap()];
        let (mut other, theirs) = UnixStream::pair().unwrap();
        let guard = std::thread::spawn(move || guard(theirs, &settings, Some(Duration::ZERO)));
        assert!(await_notes(&mut other, || ()).is_err(), "nobody restores what is set now");
        assert!(guard.join().unwrap().is_err());
    }
}
