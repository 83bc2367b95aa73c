//! Which service owns a socket: a file beside it names the process.
//!
//! The socket itself cannot tell. A service that is stopped (SIGSTOP) accepts no calls, and once as many wait as the kernel keeps, the next one fails as
//! if nobody were there. A lock that lasts as long as its holder cannot quite tell either: an observation that was just begun has the service's files until it
//! has closed them ([`prepage_sys::copied`]), and the service may be killed before.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use prepage_profiles::trust::create_directory;
use prepage_sys::process_stat::ProcessStat;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;

/// A process and when it was started: two numbers.
const LINE_BYTES_MAX: u64 = 64;

/// This process, as the owner of a socket; nobody is once this is dropped.
#[derive(Debug)]
pub struct Owner(File);

impl Owner {
    /// Takes the socket at `path`, whether or not it is there yet; its directory is made. Services in different PID namespaces do not know of each other.
    ///
    /// # Errors
    /// AddrInUse where another process that lives, stopped or not, has it or is about to take it; else as open(2) and write(2).
    pub fn take(path: &Path) -> io::Result<Self> {
        if let Some(directory) = path.parent() {
            create_directory(directory, 0o755)?;
        }
        // Whoever may open it could hold the lock.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut file = File::from(open(beside(path), flags, Mode::RUSR | Mode::WUSR)?);
        // The lock lasts while it is decided whose the socket is.
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::AddrInUse.into()),
            other => other?,
        }
        let mut line = Vec::new();
        (&file).take(LINE_BYTES_MAX).read_to_end(&mut line)?;
        if is_of_another(&line) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        file.set_len(0)?;
        io::Seek::rewind(&mut file)?;
        file.write_all(line_of(std::process::id())?.as_bytes())?;
        flock(&file, FlockOperation::Unlock)?;
        Ok(Self(file))
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        // The file stays: another service may have opened it already.
        let _ = self.0.set_len(0);
    }
}

/// Where the owner of the socket at `path` is named.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn line_of(pid: u32) -> io::Result<String> {
    Ok(format!("{pid} {}\n", ProcessStat::of(pid)?.started_ticks))
}

/// Whether `line` names a process other than this one, and it lives.
fn is_of_another(line: &[u8]) -> bool {
    let named = || -> Option<(u32, u64)> {
        let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
        Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
    };
    let Some((pid, started_ticks)) = named() else { return false };
    // The same number may be another process's by now.
    let lives = |stat: ProcessStat| stat.started_ticks == started_ticks && !matches!(stat.state, b'Z' | b'X');
    pid != std::process::id() && ProcessStat::of(pid).is_ok_and(lives)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use prepage_testing::wait_until;
    use rustix::process::{Pid, Signal, kill_process};

    use super::*;

    fn is_in_use(path: &Path) -> bool {
        match Owner::take(path) {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
                true
            }
        }
    }

    #[test]
    fn who_lives_keeps_a_socket_stopped_or_not_and_who_has_ended_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        std::fs::write(beside(&path), line_of(child.id()).unwrap()).unwrap();
        assert!(is_in_use(&path));
        kill_process(Pid::from_child(&child), Signal::STOP).unwrap();
        assert!(is_in_use(&path));
        child.kill().unwrap();
        // Its end is not noted yet: it is a zombie.
        wait_until(|| !is_in_use(&path), "it never ends");
        child.wait().unwrap();
        assert!(!is_in_use(&path));
    }

    #[test]
    fn a_number_that_another_process_has_by_now_and_what_is_not_understood_name_nobody() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        for line in ["", "1", "1 99999999999999", "x y", "\u{0}\u{0}"] {
            std::fs::write(beside(&path), line).unwrap();
            assert!(!is_in_use(&path), "{line:?}");
        }
        // Who has let go has it no more, and what was written is gone.
        assert_eq!(std::fs::read(beside(&path)).unwrap(), b"");
    }

    #[test]
    fn nobody_takes_it_while_it_is_decided_whose_it_is_and_a_link_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let owner = Owner::take(&path).unwrap();
        assert_eq!(std::fs::read_to_string(beside(&path)).unwrap(), line_of(std::process::id()).unwrap());
        let other = File::open(beside(&path)).unwrap();
        flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
        assert!(is_in_use(&path));
        drop((owner, other));
        std::fs::remove_file(beside(&path)).unwrap();
        let target = directory.path().join("target");
        std::fs::write(&target, "text").unwrap();
        std::os::unix::fs::symlink(&target, beside(&path)).unwrap();
        assert_eq!(Owner::take(&path).unwrap_err().raw_os_error(), Some(Errno::LOOP.raw_os_error()));
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "text");
    }
}
