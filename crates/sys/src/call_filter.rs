//! System calls that a process gives up for good (seccomp(2)), and how many filters of them a process is under.

use std::io;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{
    BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, SECCOMP_RET_ALLOW,
    SECCOMP_RET_ERRNO, sock_filter, sock_fprog,
};

use crate::fork::fork_unannounced;
use crate::given::check;
use crate::own_pages::began_without_filters;
use crate::process_status::ProcessStatus;
use crate::reap::wait4;

/// AUDIT_ARCH_* of include/uapi/linux/audit.h: calls of the other ABIs have other numbers, and are refused.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;
/// Numbers from here on are of x32, which x86-64 kernels take for the same architecture.
const X32: u32 = 0x4000_0000;

/// Filters that [`refuse`] has put this process under.
static OWN: AtomicU32 = AtomicU32::new(0);

/// When a system call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Always.
    Always,
    /// Always, with ENOSYS whatever the others fail with: callers go on with an older call, as on kernels without this one.
    AsMissing,
    /// Where the argument (0 to 5) has one of these bits.
    Bits(u8, u32),
    /// Where the argument (0 to 5) is anything else.
    Not(u8, u32),
    /// Where the lower half of the argument (0 to 5) is this.
    Is(u8, u32),
}

/// From now on the system calls `refused` fail with EPERM ([`When::AsMissing`]: ENOSYS), in this thread and in the threads and processes that it starts: to be
/// called while the process has one thread. Sets no_new_privs, as the kernel asks for.
///
/// # Errors
/// EINVAL, ENOSYS where the kernel has no filters; EACCES, EPERM where a filter forbids them; EINVAL for more calls than a filter has room
/// for (some 800) and for arguments beyond the sixth.
pub fn refuse(refused: &[(i64, When)]) -> io::Result<()> {
    fail(libc::EPERM, refused)?;
    OWN.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// From now on the system calls `failing` fail with `errno` in this thread and in those that it starts: for tests of what follows an error of
/// the kernel's. Sets no_new_privs in the thread.
///
/// # Errors
/// As [`refuse`].
pub fn fail(errno: i32, failing: &[(i64, When)]) -> io::Result<()> {
    install(&program(errno, failing))
}

pub(crate) fn install(program: &[sock_filter]) -> io::Result<()> {
    let len = u16::try_from(program.len()).map_err(|_| rustix::io::Errno::INVAL)?;
    let program = sock_fprog { len, filter: program.as_ptr().cast_mut() };
    rustix::thread::set_no_new_privs(true)?;
    // SAFETY: the kernel copies the program, which lives until the call returns and has the length that it says.
    check(unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) })
}

/// How many filters the system calls of this process were under when it began. Processes of one sandbox have the same number.
pub fn inherited_filters() -> u32 {
    filters_of_this_thread().unwrap_or(0).saturating_sub(OWN.load(Ordering::Relaxed))
}

/// Whether a seccomp filter kills who does what `ask` does: where this process is under filters, a child asks first. `ask` allocates nothing.
pub(crate) fn is_deadly(ask: fn()) -> bool {
    // Where nobody tells, there may be one.
    let may_be_filtered = !began_without_filters() && filters_of_this_thread() != Some(0);
    may_be_filtered && !lives_in_child(ask).unwrap_or(false)
}

/// Whether a child process that calls `ask` comes to its end.
pub(crate) fn lives_in_child(ask: fn()) -> io::Result<bool> {
    // SAFETY: the copy asks, without allocating, and leaves by _exit.
    let Some(child) = (unsafe { fork_unannounced() })? else {
        leave_no_core();
        ask();
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(0) }
    };
    // Of a child whose end is not seen nothing is known.
    Ok(matches!(wait4(child, libc::__WALL), Ok(Some(ended)) if ended.status == 0))
}

/// From now on no end of this process leaves a core, neither in a file nor with the program that core_pattern names (core(5)).
pub(crate) fn leave_no_core() {
    // SAFETY: the limit lives through the call; PR_SET_DUMPABLE takes a number.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}

fn filters_of_this_thread() -> Option<u32> {
    Some(filters_in(&ProcessStatus::of("thread-self").ok()?))
}

/// How many filters the system calls of a process are under.
pub(crate) fn filters_in(status: &ProcessStatus) -> u32 {
    let number = |name: &str| -> u32 { status.field(name).and_then(|value| value.parse().ok()).unwrap_or(0) };
    // The count came with Linux 5.9.
    number("Seccomp_filters").max(number("Seccomp").min(1))
}

/// One comparison a call, which jumps to what refuses it or to its own test; what is left is allowed.
fn program(errno: i32, refused: &[(i64, When)]) -> Vec<sock_filter> {
    let load = |offset: usize| statement(BPF_LD | BPF_W | BPF_ABS, offset as u32);
    let give = |what: u32| statement(BPF_RET | BPF_K, what);
    let (allow, refuse) = (give(SECCOMP_RET_ALLOW), give(SECCOMP_RET_ERRNO | errno as u32));
    let mut program = vec![
        load(offset_of!(libc::seccomp_data, arch)),
        jump(BPF_JEQ, ARCHITECTURE, 1, 0),
        refuse,
        load(offset_of!(libc::seccomp_data, nr)),
        jump(BPF_JGE, X32, 0, 1),
        refuse,
    ];
    for (number, when) in refused {
        let argument = |at: u8| {
            // The lower half of a number of 64 bits, on machines that store it first.
            load(offset_of!(libc::seccomp_data, args) + usize::from(at) * 8)
        };
        let case = match *when {
            When::Always => vec![refuse],
            When::AsMissing => vec![give(SECCOMP_RET_ERRNO | libc::ENOSYS as u32)],
            When::Bits(at, bits) => vec![argument(at), jump(BPF_JSET, bits, 0, 1), refuse, allow],
            When::Not(at, value) => vec![argument(at), jump(BPF_JEQ, value, 1, 0), refuse, allow],
            When::Is(at, value) => vec![argument(at), jump(BPF_JEQ, value, 0, 1), refuse, allow],
        };
        program.push(jump(BPF_JEQ, *number as u32, 0, case.len() as u8));
        program.extend(case);
    }
    program.push(allow);
    program
}

pub(crate) fn statement(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

pub(crate) fn jump(comparison: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | comparison | BPF_K) as u16, jt, jf, k }
}

/// From now on system call `number` kills this process.
#[cfg(test)]
pub(crate) fn kill_for(number: i64) -> io::Result<()> {
    install(&[
        statement(BPF_LD | BPF_W | BPF_ABS, offset_of!(libc::seccomp_data, nr) as u32),
        jump(BPF_JEQ, number as u32, 0, 1),
        statement(BPF_RET | BPF_K, libc::SECCOMP_RET_KILL_PROCESS),
        statement(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    ])
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};

    use super::*;

    /// A filter is a thread's own: other tests go on as before.
    #[test]
    fn what_is_refused_fails_and_all_else_works() {
        let before = filters_of_this_thread().unwrap();
        let refused = [
            (libc::SYS_chroot, When::Always),
            (libc::SYS_socket, When::Not(0, libc::AF_UNIX as u32)),
            (libc::SYS_mprotect, When::Bits(2, libc::PROT_EXEC as u32)),
            (libc::SYS_clone3, When::AsMissing),
            (libc::SYS_clone, When::Bits(0, libc::CLONE_NEWUSER as u32)),
        ];
        std::thread::spawn(move || {
            let filter = fail(libc::EPERM, &refused);
            let has_none = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            if unless_refused(filter, Need::Path("/proc/sys/kernel/seccomp".into()), has_none).is_none() {
                return;
            }
            assert_eq!(filters_of_this_thread(), Some(before + 1));
            let code =
                |result: i64| if result < 0 { io::Error::last_os_error().raw_os_error() } else { None };
            // SAFETY: numbers, a path that ends in a zero byte, and memory that is made here and given back.
            unsafe {
                // Without the filter: ENOENT.
                assert_eq!(code(libc::chroot(c"/no/such".as_ptr()).into()), Some(libc::EPERM));
                let socket = |family| libc::socket(family, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
                assert_eq!(code(socket(libc::AF_INET).into()), Some(libc::EPERM));
                let unix = socket(libc::AF_UNIX);
                assert_eq!((code(unix.into()), libc::close(unix)), (None, 0));
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
                let protect = |how| code(libc::mprotect(page, 4096, how).into());
                assert_eq!(protect(libc::PROT_READ | libc::PROT_EXEC), Some(libc::EPERM));
                assert_eq!(protect(libc::PROT_READ | libc::PROT_WRITE), None);
                assert_eq!(libc::munmap(page, 4096), 0);
                // Without the filter: EINVAL, both.
                let clone3 = libc::syscall(libc::SYS_clone3, std::ptr::null::<u8>(), 0_usize);
                assert_eq!(code(clone3), Some(libc::ENOSYS));
                let flags = libc::CLONE_NEWUSER | libc::CLONE_FS;
                assert_eq!(code(libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0)), Some(libc::EPERM));
            }
            // A thread that it starts has the filter too.
            let is_refused = || std::os::unix::fs::chroot("/no/such").unwrap_err().raw_os_error();
            assert_eq!(std::thread::spawn(is_refused).join().unwrap(), Some(libc::EPERM));
        })
        .join()
        .unwrap();
        assert_eq!(filters_of_this_thread(), Some(before));
    }
}
