//! An end of this process that needs no thread (alarm(2)).

use std::time::Duration;

/// Ends this process after a while, unless this is dropped before. A process has one alarm.
#[derive(Debug)]
pub struct Alarm(());

impl Alarm {
    /// Once `time` is over, in whole seconds and one at least: by SIGALRM, and without a word. A handler that says
    /// one would not run: whoever waits for a file system that does not answer can only be killed.
    pub fn after(time: Duration) -> Self {
        // SAFETY: one number.
        unsafe { libc::alarm(u32::try_from(time.as_secs()).unwrap_or(u32::MAX).max(1)) };
        Self(())
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        // SAFETY: one number, which says that there is to be none.
        unsafe { libc::alarm(0) };
    }
}
