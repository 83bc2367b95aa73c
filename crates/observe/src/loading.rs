//! Programs that the kernel is setting up for a process.

use std::time::Duration;

use prepage_sys::proc_file;

/// A program that is not loaded after this long is left alone.
pub(crate) const LOADING_MAX: Duration = Duration::from_millis(200);

/// An environment that is empty for this long after the program's auxiliary vector is there is empty.
const EMPTY_ENVIRONMENT_WAIT: Duration = Duration::from_millis(1);

/// How far the kernel is with a program that a process has just executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loading {
    /// It still sets the program up.
    UnderWay,
    /// The program was given the agent, which will send its userfaultfd.
    WithAgent,
    /// The program was not given the agent, or does not come.
    WithoutAgent,
}

/// Whether `auxv`, the auxiliary vector of a process, has more than its end: the kernel fills it in a moment after the exec shows.
pub(crate) fn has_vector(auxv: &[u8]) -> bool {
    auxv.len() > 16
}

impl Loading {
    /// That of process `pid`, of which perf reports an exec `since` before.
    pub(crate) fn of(pid: u32, since: Duration) -> Self {
        let read = |file| proc_file::read(format!("/proc/{pid}/{file}"));
        // The environment comes last, and may be empty.
        let (Ok(auxv), Ok(environ)) = (read("auxv"), read("environ")) else { return Self::WithoutAgent };
        let is_set_up = has_vector(&auxv) && (!environ.is_empty() || since > EMPTY_ENVIRONMENT_WAIT);
        if !is_set_up && since <= LOADING_MAX {
            return Self::UnderWay;
        }
        let is_in = |text: &[u8], part: &[u8]| text.windows(part.len()).any(|at| at == part);
        let is_told =
            environ.split(|&byte| byte == 0).any(|variable| variable.starts_with(b"PREPAGE_AGENT="));
        // It takes its variable out of the environment once it has mapped the log.
        match is_told || read("maps").is_ok_and(|maps| is_in(&maps, b"/memfd:prepage-log")) {
            true => Self::WithAgent,
            false => Self::WithoutAgent,
        }
    }
}
