//! Programs that the kernel is setting up for a process.

use std::time::Duration;

/// A program that is not loaded after this long is left alone.
pub(crate) const LOADING_MAX: Duration = Duration::from_millis(200);

/// An environment that is empty for this long after the program's auxiliary vector is there is empty.
const EMPTY_ENVIRONMENT_WAIT: Duration = Duration::from_millis(1);

/// Whether the kernel has set up the program that `pid` executes: perf reports an exec `since` before.
pub(crate) fn is_loaded(pid: u32, since: Duration) -> bool {
    let read = |file| std::fs::read(format!("/proc/{pid}/{file}"));
    // The environment comes last, and may be empty.
    let (Ok(auxv), Ok(environ)) = (read("auxv"), read("environ")) else { return true };
    let is_set_up = auxv.len() > 16 && (!environ.is_empty() || since > EMPTY_ENVIRONMENT_WAIT);
    is_set_up || since > LOADING_MAX
}

/// Whether `pid`, which has just executed a program, was given the agent, which will send its userfaultfd.
pub(crate) fn carries_agent(pid: u32) -> bool {
    let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    if environ.split(|&byte| byte == 0).any(|variable| variable.starts_with(b"PREPAGE_AGENT=")) {
        return true;
    }
    // It takes its variable out of the environment once ld.so has mapped it.
    std::fs::read_to_string(format!("/proc/{pid}/maps"))
        .is_ok_and(|maps| maps.contains("/libprepage-agent.so"))
}
