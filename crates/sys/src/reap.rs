//! Waiting for children, and what each of them used.

use std::io;
use std::mem::MaybeUninit;
use std::time::Duration;

use crate::given::number;

/// What waiting for any child gave.
#[derive(Debug)]
pub enum Reap {
    /// A child has ended.
    Ended(Reaped),
    /// None of the children has ended yet.
    NotYet,
    /// The process has no children.
    NoChildren,
}

/// A child that has ended, and what it used, it and all descendants that it waited for.
#[derive(Clone, Copy, Debug)]
pub struct Reaped {
    /// Its process id, which may now become another's.
    pub pid: u32,
    /// Its wait status, as [`std::os::unix::process::ExitStatusExt::from_raw`] takes it.
    pub status: i32,
    /// Processor time in user and kernel mode.
    pub cpu: Duration,
    /// Page faults without a read from a device.
    pub minor_faults: u64,
    /// Page faults with one.
    pub major_faults: u64,
    /// The largest resident set of any of these processes, in bytes.
    pub resident_bytes_max: u64,
}

/// Waits for the end of any child, adopted ones ([`crate::beside::adopt_orphans`]) too; returns at once with
/// [`Reap::NotYet`] unless it is to `block`.
pub fn reap(block: bool) -> io::Result<Reap> {
    match wait4(-1, if block { 0 } else { libc::WNOHANG }) {
        Ok(None) => Ok(Reap::NotYet),
        Ok(Some(reaped)) => Ok(Reap::Ended(reaped)),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Reap::NoChildren),
        Err(error) => Err(error),
    }
}

/// wait4(2), again where a signal came between; `None` where WNOHANG found nobody.
pub(crate) fn wait4(pid: libc::pid_t, flags: libc::c_int) -> io::Result<Option<Reaped>> {
    let mut status = 0;
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    let waited = loop {
        // SAFETY: both places are valid for the results.
        match number(unsafe { libc::wait4(pid, &mut status, flags, usage.as_mut_ptr()) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(0) => return Ok(None),
            waited => break waited?,
        }
    };
    // SAFETY: wait4 gave a process and so filled it in.
    let usage = unsafe { usage.assume_init() };
    let time = |time: libc::timeval| {
        Duration::new(time.tv_sec as u64, 0) + Duration::from_micros(time.tv_usec as u64)
    };
    Ok(Some(Reaped {
        pid: waited as u32,
        status,
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        minor_faults: usage.ru_minflt as u64,
        major_faults: usage.ru_majflt as u64,
        // ru_maxrss is in KiB on Linux (getrusage(2)).
        resident_bytes_max: usage.ru_maxrss as u64 * 1024,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::zombie_processes, reason = "wait4 waits for it")]
    fn what_a_child_used_is_told_once() {
        let child = std::process::Command::new("/bin/sh").args(["-c", "exit 3"]).spawn().unwrap();
        let reaped = wait4(child.id() as libc::pid_t, 0).unwrap().unwrap();
        assert_eq!((reaped.pid, libc::WEXITSTATUS(reaped.status)), (child.id(), 3));
        assert!(reaped.minor_faults + reaped.major_faults > 0 && reaped.resident_bytes_max > 0);
        let again = wait4(child.id() as libc::pid_t, 0).unwrap_err();
        assert_eq!(again.raw_os_error(), Some(libc::ECHILD));
    }
}
