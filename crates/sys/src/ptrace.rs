//! ptrace(2): stopping a process tree at its system calls.

use std::io;

/// Why a traced thread stands still, or that it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// About to enter or just back from a system call.
    Syscall,
    /// About to receive `signal`, to be handed on with [`resume`].
    Signal(i32),
    /// Stopped with its whole process (SIGSTOP, SIGTSTP …): to be left standing with [`leave_stopped`].
    Group,
    /// A new thread or process appeared, or the program replaced itself; nothing to hand on.
    Event,
    /// The thread ended. The wait status says how.
    Gone(i32),
}

/// What a thread stopped at a system call is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syscall {
    /// Entering call `number` with its arguments.
    Entry {
        /// System call number.
        number: u64,
        /// The six arguments.
        args: [u64; 6],
    },
    /// Returning `result`: negative errno, or the value.
    Exit {
        /// What the call gives the program.
        result: i64,
    },
    /// Neither could be told, or the program is of another architecture, whose numbers mean other calls.
    Unknown,
}

/// AUDIT_ARCH of this architecture (include/uapi/linux/audit.h): 64 bit, little-endian, and the ELF machine number.
#[cfg(target_arch = "x86_64")]
const NATIVE_ARCH: u32 = 0xc000_0000 | 62;
#[cfg(target_arch = "aarch64")]
const NATIVE_ARCH: u32 = 0xc000_0000 | 183;

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Attaches to the running process `pid` and, from now on, to all its new threads and children, without stopping
/// it. They are let go when the tracer ends, however it ends.
///
/// # Errors
/// EPERM when another tracer has it or the system forbids it (Yama's ptrace_scope, seccomp).
pub fn seize(pid: u32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEEXEC;
    // SAFETY: PTRACE_SEIZE takes its options by value; no memory is handed over.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid as libc::pid_t, 0usize, options as usize) })
}

/// Stops `pid` (not its process group) so that [`resume`] can start it towards its next system call.
pub fn interrupt(pid: u32) -> io::Result<()> {
    // SAFETY: PTRACE_INTERRUPT takes no memory.
    check(unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, pid as libc::pid_t, 0usize, 0usize) })
}

/// Lets a stopped thread run to the next entry or exit of a system call, with `signal` delivered (0: none).
pub fn resume(tid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: PTRACE_SYSCALL takes the signal by value.
    check(unsafe { libc::ptrace(libc::PTRACE_SYSCALL, tid as libc::pid_t, 0usize, signal as usize) })
}

/// Leaves a thread in its group stop; it goes on at SIGCONT.
pub fn leave_stopped(tid: u32) -> io::Result<()> {
    // SAFETY: PTRACE_LISTEN takes no memory.
    check(unsafe { libc::ptrace(libc::PTRACE_LISTEN, tid as libc::pid_t, 0usize, 0usize) })
}

/// Lets a stopped thread go for good; it continues untraced.
pub fn detach(tid: u32) -> io::Result<()> {
    // SAFETY: PTRACE_DETACH takes the signal (none) by value.
    check(unsafe { libc::ptrace(libc::PTRACE_DETACH, tid as libc::pid_t, 0usize, 0usize) })
}

/// What system call the stopped thread `tid` is at.
pub fn syscall(tid: u32) -> io::Result<Syscall> {
    // SAFETY: all-zero bytes are a valid ptrace_syscall_info (plain integers in a union).
    let mut info: libc::ptrace_syscall_info = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes at most the size passed, and `info` is that large.
    check(unsafe {
        libc::ptrace(
            libc::PTRACE_GET_SYSCALL_INFO as _,
            tid as libc::pid_t,
            size_of::<libc::ptrace_syscall_info>(),
            &mut info,
        )
    })?;
    if info.arch != NATIVE_ARCH {
        return Ok(Syscall::Unknown);
    }
    Ok(match info.op {
        // SAFETY: `op` names the member of the union that the kernel filled in.
        libc::PTRACE_SYSCALL_INFO_ENTRY => unsafe {
            Syscall::Entry { number: info.u.entry.nr, args: info.u.entry.args }
        },
        // SAFETY: as above.
        libc::PTRACE_SYSCALL_INFO_EXIT => unsafe { Syscall::Exit { result: info.u.exit.sval } },
        _ => Syscall::Unknown,
    })
}

/// Waits until some traced thread or child stops or ends. Returns its thread id and why.
///
/// # Errors
/// ECHILD when there is nothing left to wait for; EINTR when a signal came first.
pub fn wait() -> io::Result<(u32, Stop)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    let tid = unsafe { libc::waitpid(-1, &mut status, libc::__WALL) };
    if tid == -1 {
        return Err(io::Error::last_os_error());
    }
    let stop = if !libc::WIFSTOPPED(status) {
        Stop::Gone(status)
    } else {
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            0 => Stop::Signal(signal),
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => Stop::Group,
            _ => Stop::Event,
        }
    };
    Ok((tid as u32, stop))
}
