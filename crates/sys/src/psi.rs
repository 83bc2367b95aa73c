//! Being told when tasks wait for memory (Documentation/accounting/psi.rst).

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The kernel lets every user ask for windows that are multiples of this.
const WINDOW: Duration = Duration::from_secs(2);

/// Tells when some task waited for memory for longer than it says, within any two seconds.
#[derive(Debug)]
pub struct Trigger {
    file: File,
}

impl Trigger {
    /// `file` is /proc/pressure/memory, or the memory.pressure of a control group of version 2. Needs Linux 6.5, or CAP_SYS_RESOURCE.
    ///
    /// # Errors
    /// ENOENT and EOPNOTSUPP where the kernel does not count, EACCES where the file may not be written to, EINVAL before Linux 6.5.
    pub fn open(file: &Path, stall: Duration) -> io::Result<Self> {
        let mut file = File::options().read(true).write(true).open(file)?;
        let asked = format!("some {} {}\0", stall.as_micros(), WINDOW.as_micros());
        file.write_all(asked.as_bytes())?;
        Ok(Self { file })
    }

    /// Sleeps until one of `triggers` tells, `limit` at most; whether one did. Those whose group has gone tell nothing any more, and go too.
    ///
    /// # Errors
    /// ENOMEM, and EINVAL for more triggers than the process may have files.
    pub fn wait(triggers: &mut Vec<Self>, limit: Duration) -> io::Result<bool> {
        let mut polled: Vec<PollFd<'_>> = triggers
            .iter()
            .map(|trigger| PollFd::from_borrowed_fd(trigger.file.as_fd(), PollFlags::PRI))
            .collect();
        let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
        match poll(&mut polled, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let told: Vec<PollFlags> = polled.iter().map(PollFd::revents).collect();
        let mut has_gone = told.iter().map(|told| told.contains(PollFlags::ERR));
        triggers.retain(|_| !has_gone.next().expect("one for each"));
        Ok(told.iter().any(|told| told.contains(PollFlags::PRI) && !told.contains(PollFlags::ERR)))
    }
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};

    use super::*;

    #[test]
    fn a_trigger_that_is_given_is_waited_for_and_ends() {
        let file = Path::new("/proc/pressure/memory");
        let refused = |error: &io::Error| {
            const OLD_OR_OFF: [i32; 4] = [libc::ENOENT, libc::EOPNOTSUPP, libc::EACCES, libc::EINVAL];
            error.raw_os_error().is_some_and(|code| OLD_OR_OFF.contains(&code))
        };
        let trigger = Trigger::open(file, Duration::from_millis(1900));
        let Some(trigger) = unless_refused(trigger, Need::Pressure, refused) else { return };
        assert!(Trigger::wait(&mut vec![trigger], Duration::from_millis(1)).is_ok());
        assert!(!Trigger::wait(&mut Vec::new(), Duration::ZERO).unwrap());
        assert!(Trigger::open(Path::new("/proc/self/status"), Duration::from_secs(1)).is_err());
    }
}
