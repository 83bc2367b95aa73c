//! ptrace(2): stopping a process tree at its system calls.

use std::io;

use crate::given::{check, number};
use crate::process_status::ProcessStatus;

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

/// Attaches to the running process `pid` and, from now on, to all its new threads and children, without stopping
/// it. They are let go when the tracer ends, however it ends.
///
/// # Errors
/// EPERM when another tracer has it or the system forbids it (Yama's ptrace_scope, seccomp).
pub fn seize(pid: u32) -> io::Result<()> {
    let children = libc::PTRACE_O_TRACEFORK | libc::PTRACE_O_TRACEVFORK | libc::PTRACE_O_TRACECLONE;
    seize_with(pid, children | libc::PTRACE_O_TRACEEXEC)
}

fn seize_with(pid: u32, options: libc::c_int) -> io::Result<()> {
    let options = (libc::PTRACE_O_TRACESYSGOOD | options) as usize;
    // SAFETY: PTRACE_SEIZE takes its options by value; no memory is handed over.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid as libc::pid_t, 0usize, options) })
}

/// Attaches to the running process `pid` alone, without stopping it and without following what it starts.
///
/// # Errors
/// As [`seize`].
#[cfg(target_arch = "x86_64")]
pub(crate) fn seize_alone(pid: u32) -> io::Result<()> {
    seize_with(pid, 0)
}

/// The same, and stops it when it has executed its next program, before that runs.
///
/// A set-user-id program executed under a tracer without rights of its own does not get its user's.
#[cfg(target_arch = "x86_64")]
pub(crate) fn seize_until_exec(pid: u32) -> io::Result<()> {
    seize_with(pid, libc::PTRACE_O_TRACEEXEC)
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

/// Lets a stopped thread run, with `signal` delivered (0: none), to wherever it stops next for another reason.
pub fn go_on(tid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: PTRACE_CONT takes the signal by value.
    check(unsafe { libc::ptrace(libc::PTRACE_CONT, tid as libc::pid_t, 0usize, signal as usize) })
}

/// Lets a stopped thread go for good; it continues untraced.
pub fn detach(tid: u32) -> io::Result<()> {
    detach_with(tid, 0)
}

/// [`detach`], with `signal` delivered (0: none) if it was about to be.
pub fn detach_with(tid: u32, signal: i32) -> io::Result<()> {
    // SAFETY: PTRACE_DETACH takes the signal by value.
    check(unsafe { libc::ptrace(libc::PTRACE_DETACH, tid as libc::pid_t, 0usize, signal as usize) })
}

/// What system call the stopped thread `tid` is at.
pub fn syscall(tid: u32) -> io::Result<Syscall> {
    // The structure of linux/ptrace.h, which not every libc has.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        kind: u8,
        _padding: [u8; 3],
        arch: u32,
        _instruction_and_stack: [u64; 2],
        /// At an entry the number and the arguments, at an exit the result.
        values: [u64; 7],
    }
    const _: () = assert!(size_of::<Info>() == 80);
    const ENTRY: u8 = 1;
    const EXIT: u8 = 2;
    let mut info = Info::default();
    // SAFETY: the kernel writes at most the size passed, and `info` is that large.
    check(unsafe {
        libc::ptrace(PTRACE_GET_SYSCALL_INFO as _, tid as libc::pid_t, size_of::<Info>(), &raw mut info)
    })?;
    let [first, args @ ..] = info.values;
    Ok(match info.kind {
        ENTRY if info.arch == NATIVE_ARCH => Syscall::Entry { number: first, args },
        EXIT if info.arch == NATIVE_ARCH => Syscall::Exit { result: first as i64 },
        _ => Syscall::Unknown,
    })
}

/// Waits until some traced thread or child stops or ends. Returns its thread id and why.
///
/// # Errors
/// ECHILD when there is nothing left to wait for; EINTR when a signal came first.
pub fn wait() -> io::Result<(u32, Stop)> {
    let (tid, status) = wait_for(-1, libc::__WALL)?;
    Ok((tid, stop_from(status)))
}

/// Why the traced process `pid` stands still; `None` if it does not. `until_it_does` waits for it.
///
/// The end of a child of this process stays to be waited for; that of another's child goes to its parent.
///
/// # Errors
/// ECHILD when this thread does not trace it.
pub fn stop_of(pid: u32, until_it_does: bool) -> io::Result<Option<Stop>> {
    let hang = if until_it_does { 0 } else { libc::WNOHANG };
    let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT | libc::__WALL | hang;
    // SAFETY: all-zero bytes are a valid siginfo_t.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: `info` is a valid place for the result.
        match check(unsafe { libc::waitid(libc::P_PID, pid, &mut info, flags) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            ended => break ended?,
        }
    }
    // SAFETY: waitid fills in the members that tell of a child, with a zero process id where there is nothing to tell.
    let nothing = unsafe { info.si_pid() } == 0;
    let has_ended = !matches!(info.si_code, libc::CLD_STOPPED | libc::CLD_TRAPPED);
    if nothing {
        return Ok(None);
    }
    if has_ended && is_own_child(pid) {
        return Ok(Some(Stop::Gone(0)));
    }
    let (found, status) = wait_for(pid as libc::pid_t, libc::__WALL | libc::WNOHANG)?;
    Ok((found != 0).then(|| stop_from(status)))
}

/// Whether this process started `pid`, which has ended and was not waited for.
fn is_own_child(pid: u32) -> bool {
    let parent = ProcessStatus::of(pid).ok().and_then(|status| status.field("PPid")?.parse().ok());
    parent == Some(std::process::id())
}

fn wait_for(pid: libc::pid_t, flags: i32) -> io::Result<(u32, i32)> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the result.
    let tid = number(unsafe { libc::waitpid(pid, &mut status, flags) })?;
    Ok((tid as u32, status))
}

fn stop_from(status: i32) -> Stop {
    if !libc::WIFSTOPPED(status) {
        Stop::Gone(status)
    } else {
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            0 if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            0 => Stop::Signal(signal),
            libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => Stop::Group,
            _ => Stop::Event,
        }
    }
}

/// The registers of a stopped thread.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Registers(libc::user_regs_struct);

#[cfg(target_arch = "x86_64")]
impl std::fmt::Debug for Registers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Registers {{ ip: {:#x}, call: {} }}", self.0.rip, self.0.orig_rax as i64)
    }
}

/// Kind of register set (include/uapi/linux/elf.h).
#[cfg(target_arch = "x86_64")]
const NT_PRSTATUS: usize = 1;
/// Code segment of 64-bit programs.
#[cfg(target_arch = "x86_64")]
const USER_CODE_64: u64 = 0x33;

#[cfg(target_arch = "x86_64")]
impl Registers {
    /// Those of `tid`; `None` when it runs 32-bit code.
    pub fn of(tid: u32) -> io::Result<Option<Self>> {
        // SAFETY: all-zero bytes are a valid user_regs_struct (plain integers).
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        let mut place =
            libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of_val(&registers) };
        // SAFETY: the kernel writes at most `iov_len` bytes to `registers`, both of which outlive the call.
        check(unsafe {
            libc::ptrace(libc::PTRACE_GETREGSET, tid as libc::pid_t, NT_PRSTATUS, &raw mut place)
        })?;
        let is_native = place.iov_len == size_of_val(&registers) && registers.cs == USER_CODE_64;
        Ok(is_native.then_some(Self(registers)))
    }

    /// Makes them those of `tid`.
    pub fn set(&self, tid: u32) -> io::Result<()> {
        let mut registers = self.0;
        let mut place =
            libc::iovec { iov_base: (&raw mut registers).cast(), iov_len: size_of_val(&registers) };
        // SAFETY: the kernel reads `iov_len` bytes of `registers`, both of which outlive the call.
        check(unsafe {
            libc::ptrace(libc::PTRACE_SETREGSET, tid as libc::pid_t, NT_PRSTATUS, &raw mut place)
        })
    }

    /// These, about to make system call `number` with one argument by the instruction at `address`.
    pub fn calling(&self, address: u64, number: u64, argument: u64) -> Self {
        // No number in orig_rax: the kernel is not to restart a call that the thread was interrupted in.
        let orig_rax = u64::MAX;
        Self(libc::user_regs_struct { rip: address, rax: number, rdi: argument, orig_rax, ..self.0 })
    }

    /// What the last system call returned: a negative errno, or the value.
    pub fn result(&self) -> i64 {
        self.0.rax as i64
    }

    /// Whether the thread was interrupted in a system call that the kernel restarts on the way back to the program.
    pub fn is_to_restart(&self) -> bool {
        /// ERESTARTSYS to ERESTART_RESTARTBLOCK (include/linux/errno.h), which programs never see.
        const ERESTART: std::ops::RangeInclusive<i64> = -516..=-512;
        self.0.orig_rax as i64 != -1 && ERESTART.contains(&(self.0.rax as i64))
    }

    /// Whether the thread comes from a system call that has failed with EINTR and can be made again: a descriptor is closed then, and its
    /// number may be another thread's by now.
    pub fn was_interrupted(&self) -> bool {
        let call = self.0.orig_rax as i64;
        call >= 0 && call != libc::SYS_close && self.0.rax as i64 == -i64::from(libc::EINTR)
    }

    /// Makes them those of the thread before the system call that it comes from.
    pub fn call_again(&mut self) {
        /// Of the instruction.
        const LEN: u64 = 2;
        (self.0.rax, self.0.orig_rax) = (self.0.orig_rax, u64::MAX);
        self.0.rip -= LEN;
    }
}

const PTRACE_GETSIGMASK: libc::c_uint = 0x420a;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420b;
const PTRACE_GET_SYSCALL_INFO: libc::c_uint = 0x420e;
const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// Which signals of a stopped thread are blocked once the system call that it is in has returned.
pub fn signal_mask(tid: u32) -> io::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes eight bytes, the size of its signal set, to `mask`.
    check(unsafe {
        libc::ptrace(PTRACE_GETSIGMASK as _, tid as libc::pid_t, size_of::<u64>(), &raw mut mask)
    })?;
    Ok(mask)
}

/// Blocks all signals of a stopped thread. Returns its mask from before, for [`set_signal_mask`].
pub fn block_signals(tid: u32) -> io::Result<u64> {
    let before = signal_mask(tid)?;
    set_signal_mask(tid, u64::MAX)?;
    Ok(before)
}

/// Whether system calls of a stopped thread may be answered by itself (PR_SET_SYSCALL_USER_DISPATCH): made from elsewhere than where it
/// allows them, they raise SIGSYS. No on kernels without that.
pub fn answers_own_calls(tid: u32) -> bool {
    /// struct ptrace_sud_config: mode, selector, offset and length.
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        mode: u64,
        rest: [u64; 3],
    }
    let mut configuration = Configuration::default();
    // SAFETY: the kernel writes at most the size passed to `configuration`.
    let known = check(unsafe {
        libc::ptrace(
            PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG as _,
            tid as libc::pid_t,
            size_of::<Configuration>(),
            &raw mut configuration,
        )
    });
    known.is_ok() && configuration.mode != 0
}

/// Sets which signals of a stopped thread are blocked.
pub fn set_signal_mask(tid: u32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads eight bytes of `mask`.
    check(unsafe {
        libc::ptrace(PTRACE_SETSIGMASK as _, tid as libc::pid_t, size_of::<u64>(), &raw const mask)
    })
}

/// Whether a stopped thread is within a restartable sequence (rseq(2)), which would go wrong if its registers were used
/// for anything else in between.
pub fn is_in_rseq(tid: u32) -> io::Result<bool> {
    /// struct ptrace_rseq_configuration: address, size, signature, flags, padding.
    #[repr(C)]
    #[derive(Default)]
    struct Configuration {
        address: u64,
        rest: [u32; 4],
    }
    const _: () = assert!(size_of::<Configuration>() == 24);
    /// Where struct rseq keeps the address of the sequence that runs.
    const CURRENT: u64 = 8;
    let mut configuration = Configuration::default();
    // SAFETY: the kernel writes at most the size passed to `configuration`.
    check(unsafe {
        libc::ptrace(
            PTRACE_GET_RSEQ_CONFIGURATION as _,
            tid as libc::pid_t,
            size_of::<Configuration>(),
            &raw mut configuration,
        )
    })?;
    if configuration.address == 0 {
        return Ok(false);
    }
    // SAFETY: reads a word of the other process by its address; nothing of this process is touched. The word returned
    // is -1 with errno set on failure, which as an address of a sequence means "in one", the safe answer.
    let current = unsafe {
        libc::ptrace(libc::PTRACE_PEEKDATA, tid as libc::pid_t, configuration.address + CURRENT, 0usize)
    };
    Ok(current != 0)
}
