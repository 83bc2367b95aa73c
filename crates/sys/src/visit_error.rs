//! Why a process was not visited.

use std::io;

use crate::userfaultfd::OpenError;

/// Why a process was not armed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VisitError {
    /// It ended.
    #[error("the process has ended")]
    Gone,
    /// It is another user's or has other rights than we, is being traced, or the system forbids ptrace (Yama, seccomp).
    #[error("the process may not be stopped: it has other rights, is being traced, or ptrace is forbidden")]
    Refused(#[source] io::Error),
    /// It traces this process, or one with the same memory. Who is held still by it could not let it go.
    #[error("the process traces the one that was to visit it")]
    Tracer,
    /// Its system calls are filtered (seccomp), and the filter may kill it for one it does not know.
    #[error("the process is in a sandbox")]
    Sandboxed,
    /// A 32-bit program, or one without a vDSO.
    #[error("the process is of another architecture, or has no vDSO")]
    Foreign,
    /// Nobody is visited here.
    #[error("no process is visited on this architecture")]
    Unsupported,
    /// It is stopped, or at a place where it must not be disturbed; a later visit may be welcome.
    #[error("the process cannot be disturbed now")]
    Busy,
    /// It got no userfaultfd.
    #[error("the process got no userfaultfd")]
    NoUserfaultfd(#[source] io::Error),
    /// The kernel lacks something.
    #[error("the kernel cannot do it")]
    Kernel(#[source] OpenError),
}
