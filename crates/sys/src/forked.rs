//! A child of fork(2) that goes on in this program: for tests and benches of what such children find.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};

/// What a child exits with whose work panicked.
const PANICKED: i32 = 101;

/// A child that is still to be waited for.
#[derive(Debug)]
#[must_use = "a child that nobody waits for stays a zombie"]
pub struct Forked(Pid);

impl Forked {
    /// Forks. The child runs `work` with one thread, and exits with what that returns; nothing of its parent's is run at its exit. It
    /// is killed when the thread that forked it ends.
    ///
    /// # Errors
    /// Those of fork(2).
    pub fn new(work: impl FnOnce() -> i32) -> io::Result<Self> {
        // SAFETY: fork(3) of libc leaves the child an allocator in order; the child leaves by _exit alone.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
                let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(PANICKED);
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(code) }
            }
            child => Ok(Self(Pid::from_raw(child).expect("fork gives a process id"))),
        }
    }

    /// The child.
    pub fn pid(&self) -> u32 {
        self.0.as_raw_nonzero().get() as u32
    }

    /// Waits for the child's end.
    ///
    /// # Errors
    /// Those of waitpid(2): somebody else waited for it.
    pub fn wait(self) -> io::Result<WaitStatus> {
        loop {
            match waitpid(Some(self.0), WaitOptions::empty()) {
                Ok(Some((_, status))) => return Ok(status),
                Ok(None) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Kills the child, and waits for its end.
    ///
    /// # Errors
    /// As [`Self::wait`].
    pub fn kill(self) -> io::Result<WaitStatus> {
        kill_process(self.0, Signal::KILL)?;
        self.wait()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_exits_with_what_its_work_returns() {
        assert_eq!(Forked::new(|| 7).unwrap().wait().unwrap().exit_status(), Some(7));
        let waiting = Forked::new(|| {
            loop {
                std::thread::park();
            }
        });
        assert_eq!(waiting.unwrap().kill().unwrap().terminating_signal(), Some(libc::SIGKILL));
    }
}
