//! Why perf events could not be had, and what to do about it.

use std::io;

use super::Observed;

/// A perf facility failed. [`PerfError::remedy`] names what to change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PerfError {
    /// `kernel.perf_event_paranoid` keeps this user out altogether (levels above 2 are a distribution's patch).
    #[error("perf events are switched off for this user (kernel.perf_event_paranoid is {level})")]
    SwitchedOff {
        /// The level found.
        level: i32,
    },
    /// The kernel has no perf_event_open, or a seccomp filter (as container runtimes set) hides it.
    #[error("perf_event_open is not available here{}", if *.filtered { ": a seccomp filter forbids it" } else { "" })]
    Unavailable {
        /// Whether it is forbidden rather than missing.
        filtered: bool,
    },
    /// The process belongs to another user.
    #[error("this user may not observe process {pid}")]
    NotYours {
        /// The process.
        pid: u32,
    },
    /// Only root may observe every process.
    #[error("this user may not observe every process (kernel.perf_event_paranoid is {level})")]
    NotSystem {
        /// The level found.
        level: i32,
    },
    /// A list of the kernel's could not be read.
    #[error("{path} cannot be read")]
    Proc {
        /// Which.
        path: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The process is gone.
    #[error("there is no process {pid}")]
    NoProcess {
        /// The process.
        pid: u32,
    },
    /// Events need a descriptor for each CPU and thread, and the limit is reached.
    #[error("too many open files{}: each event needs one a CPU and thread", if *.of_machine { " on this machine" } else { "" })]
    TooManyFiles {
        /// Whether the limit is the machine's rather than the process's.
        of_machine: bool,
    },
    /// No ring of even the smallest size could be mapped.
    #[error("no memory for the perf ring of {bytes} bytes a CPU")]
    Ring {
        /// Size of the last attempt.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A tracepoint could not be found.
    #[error("tracepoint {tracepoint} cannot be read from tracefs")]
    Tracefs {
        /// `system:name`.
        tracepoint: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// Any other refusal.
    #[error("perf: {action} failed")]
    Other {
        /// What was tried.
        action: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

impl PerfError {
    /// What to change so that it works, as one line; `None` where nothing helps.
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::SwitchedOff { .. } => "sudo sysctl kernel.perf_event_paranoid=2, or run as root",
            Self::Unavailable { filtered: true } => {
                "run outside the container, or give it --cap-add=PERFMON (Docker, Podman)"
            }
            Self::Unavailable { filtered: false } => "a kernel built with CONFIG_PERF_EVENTS",
            Self::NotYours { .. } => "run as root, or as the user who owns the process",
            Self::NotSystem { .. } => "run as root, or sudo sysctl kernel.perf_event_paranoid=0",
            Self::Proc { path, .. } if path.starts_with("/sys/") => "mount -t sysfs sysfs /sys",
            Self::Proc { .. } => "mount -t proc proc /proc (and without hidepid, or run as root)",
            // Recorders have raised the soft limit to the hard one. Events of the whole machine are a few for each CPU.
            Self::TooManyFiles { of_machine: false } => {
                "a higher hard limit (ulimit -Hn), or, to record, as root: record --all with --comm or another filter"
            }
            Self::TooManyFiles { of_machine: true } => "sudo sysctl fs.file-max=N, higher than now",
            Self::Ring { .. } => {
                "sudo sysctl kernel.perf_event_mlock_kb=2048, or end other recordings of this user"
            }
            Self::Tracefs { .. } => "run as root, on a kernel built with CONFIG_EVENT_TRACING",
            Self::NoProcess { .. } | Self::Other { .. } => return None,
        })
    }

    pub(super) fn from_open(error: io::Error, observed: Observed, level: Option<i32>) -> Self {
        let pid = match (observed, error.raw_os_error()) {
            (Observed::Thread(tid), _) => tid,
            (Observed::System, Some(libc::EACCES | libc::EPERM)) if level.is_some_and(|level| level > 0) => {
                return Self::NotSystem { level: level.unwrap_or_default() };
            }
            (Observed::System, _) => 0,
        };
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => match level {
                Some(level) if level > 2 => Self::SwitchedOff { level },
                // At levels up to 2 the kernel refuses one's own processes nothing that we ask for, and answers
                // EACCES for those of others. What is left is a filter in front of it.
                _ if error.raw_os_error() == Some(libc::EACCES) => Self::NotYours { pid },
                _ => Self::Unavailable { filtered: true },
            },
            Some(libc::ENOSYS) => Self::Unavailable { filtered: false },
            Some(libc::ESRCH) => Self::NoProcess { pid },
            Some(libc::EMFILE) => Self::TooManyFiles { of_machine: false },
            Some(libc::ENFILE) => Self::TooManyFiles { of_machine: true },
            _ => Self::Other { action: "perf_event_open", source: error },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_told_by_its_cause() {
        let open = |errno, level| {
            PerfError::from_open(io::Error::from_raw_os_error(errno), Observed::Thread(7), level)
        };
        assert!(matches!(open(libc::EACCES, Some(3)), PerfError::SwitchedOff { level: 3 }));
        assert!(matches!(open(libc::EPERM, Some(2)), PerfError::Unavailable { filtered: true }));
        assert!(matches!(open(libc::EACCES, Some(2)), PerfError::NotYours { pid: 7 }));
        assert!(matches!(open(libc::ENOSYS, None), PerfError::Unavailable { filtered: false }));
        assert!(matches!(open(libc::EMFILE, Some(2)), PerfError::TooManyFiles { of_machine: false }));
        assert!(matches!(open(libc::ENFILE, Some(2)), PerfError::TooManyFiles { of_machine: true }));
        let error = io::Error::from_raw_os_error(libc::EACCES);
        let system = PerfError::from_open(error, Observed::System, Some(2));
        assert!(matches!(system, PerfError::NotSystem { level: 2 }));
    }

    #[test]
    fn messages_name_cause_and_remedy() {
        let error = PerfError::Unavailable { filtered: true };
        assert!(error.to_string().contains("seccomp"));
        assert!(error.remedy().is_some_and(|remedy| remedy.contains("PERFMON")));
        // The soft limit is the hard one already (`open_files::allow_many`).
        let remedy = PerfError::TooManyFiles { of_machine: false }.remedy().expect("one");
        assert!(remedy.contains("--all") && !remedy.contains("ulimit -n "), "{remedy}");
    }
}
