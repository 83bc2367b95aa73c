//! When observing ends.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use prepage_sys::clock::now_ns;
use prepage_sys::processor_time::of_this_process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The end of a process, or a while.
#[derive(Debug)]
pub struct Until {
    pidfd: OwnedFd,
    stops: Vec<OwnedFd>,
    /// Whether one of `stops` was seen to be readable.
    stopped: AtomicBool,
    deadline: Instant,
    /// Processor time of whoever waits, where that is limited.
    spent_max: Option<Duration>,
    /// When the process was first seen to have ended, on the clock of [`now_ns`].
    ended_ns: OnceLock<u64>,
}

impl Until {
    /// Until the process of `pidfd` has ended, at most for `window`.
    pub fn new(pidfd: OwnedFd, window: Duration) -> Self {
        let deadline = Instant::now() + window;
        Self {
            pidfd,
            stops: Vec::new(),
            stopped: AtomicBool::new(false),
            deadline,
            spent_max: None,
            ended_ns: OnceLock::new(),
        }
    }

    /// Until process `pid` has ended, at most for `window`.
    ///
    /// # Errors
    /// ESRCH when it is gone.
    pub fn ended_or(pid: u32, window: Duration) -> io::Result<Self> {
        let pid = Pid::from_raw(pid as i32).ok_or(rustix::io::Errno::SRCH)?;
        Ok(Self::new(pidfd_open(pid, PidfdFlags::empty())?, window))
    }

    /// Or until `stop` is readable, such as a signalfd or a pipe.
    pub fn or_readable(mut self, stop: OwnedFd) -> Self {
        self.stops.push(stop);
        self
    }

    /// Or until this process has had so much processor time; that is seen between two waits.
    #[must_use]
    pub fn or_spent(self, most: Duration) -> Self {
        Self { spent_max: Some(most), ..self }
    }

    /// Waits for it.
    pub fn wait(&self) {
        while !self.wait_for(self.remaining()) {}
    }

    /// Waits for it, but no longer than `pause`. Returns whether it has come.
    pub fn wait_for(&self, pause: Duration) -> bool {
        let pause = Timespec::try_from(pause.min(self.remaining())).expect("a window fits an i64 of seconds");
        let ends = self.descriptors();
        let mut fds: Vec<PollFd<'_>> =
            ends.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        let _ = poll(&mut fds, Some(&pause));
        self.note(&fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>())
    }

    /// When the process was seen to have ended by somebody who waited here for it; `None` while nobody has seen that.
    pub fn ended_ns(&self) -> Option<u64> {
        self.ended_ns.get().copied()
    }

    /// Whether what was given to [`Self::or_readable`] was seen to be readable, or the time of [`Self::or_spent`] to be spent, by somebody who waited here:
    /// then the start was cut short.
    pub fn was_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether somebody who waited here saw the process end, or the start cut short: not only the time is up.
    pub fn has_come_to_an_end(&self) -> bool {
        self.ended_ns().is_some() || self.was_stopped()
    }

    /// What becomes readable when it comes: first the process, then what else was given.
    pub(crate) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(&self.pidfd).chain(&self.stops).map(OwnedFd::as_fd).collect()
    }

    /// Notes which of [`Self::descriptors`] are `ready`. Returns whether it has come.
    pub(crate) fn note(&self, ready: &[bool]) -> bool {
        if ready.first() == Some(&true) {
            self.ended_ns.get_or_init(now_ns);
        }
        let is_spent = self.spent_max.is_some_and(|most| of_this_process() >= most);
        if is_spent || ready.iter().skip(1).any(|is_ready| *is_ready) {
            self.stopped.store(true, Ordering::Relaxed);
        }
        is_spent || ready.contains(&true) || self.remaining().is_zero()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_is_dated_when_it_comes_not_when_it_is_asked_for() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let until = Until::ended_or(child.id(), Duration::from_secs(10)).unwrap();
        assert!(!until.wait_for(Duration::ZERO) && until.ended_ns().is_none());
        drop(child.stdin.take());
        until.wait();
        let seen_ns = now_ns();
        std::thread::sleep(Duration::from_millis(30));
        assert!(until.wait_for(Duration::ZERO));
        assert!(until.ended_ns().is_some_and(|ended_ns| ended_ns <= seen_ns));
        child.wait().unwrap();
    }

    #[test]
    fn what_ends_a_wait_is_told() {
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let (stop, stopper) = std::io::pipe().unwrap();
        let until = Until::ended_or(child.id(), Duration::from_secs(10)).unwrap().or_readable(stop.into());
        assert!(!until.wait_for(Duration::ZERO) && !until.was_stopped());
        drop(stopper);
        until.wait();
        assert!(until.was_stopped() && until.ended_ns().is_none());
        drop(child.stdin.take());
        child.wait().unwrap();
        let own = || Until::ended_or(std::process::id(), Duration::from_secs(3600)).unwrap();
        let until = own().or_spent(Duration::MAX);
        assert!(!until.wait_for(Duration::ZERO) && !until.was_stopped());
        let until = own().or_spent(of_this_process());
        // It computes.
        while !until.wait_for(Duration::ZERO) {}
        assert!(until.was_stopped() && until.ended_ns().is_none());
        let until = Until::ended_or(std::process::id(), Duration::ZERO).unwrap();
        until.wait();
        assert!(!until.was_stopped());
    }
}
