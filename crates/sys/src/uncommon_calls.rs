//! Whether a seccomp filter kills who serves a start before that has become its program.
//!
//! Filters that kill (SystemCallFilter= of systemd without SystemCallErrorNumber=) allow what a program of theirs is known to call. The process that
//! is to become the program calls more than that: a filter that has never heard of cachestat(2) would kill it where the program would run.
//! So before it knows, it makes only calls that loaders of programs make, too, and on x86-64 prctl(2) ([`crate::own_pages`] says why).

use std::ptr::{null, null_mut};
use std::sync::OnceLock;

use crate::cachestat::SYS_CACHESTAT;
use crate::call_filter::is_deadly;

/// Whether a filter kills who makes the system calls that serving a start takes before the exec. Then a start is not to be served, and its program
/// found by openat(2) and execve(2) alone. Asks once, and where this process is under no filter, nobody.
///
/// To be called first while the process has one thread.
pub fn are_deadly() -> bool {
    static ARE_DEADLY: OnceLock<bool> = OnceLock::new();
    *ARE_DEADLY.get_or_init(|| is_deadly(make_each_once))
}

/// Makes each call that the starter makes before the exec and that not every loader makes, and one that the process beside it makes first, in a way that
/// fails at once or changes nothing. A filter decides by the number before the kernel looks at arguments.
fn make_each_once() {
    const NO_DESCRIPTOR: libc::c_long = -1;
    let call = |number: libc::c_long, one: libc::c_long| {
        // SAFETY: descriptor -1, or null for a path or place, and null for each further argument: no place is written to.
        unsafe {
            let none = null_mut::<u8>();
            libc::syscall(number, one, none, none, none, none, none);
        }
    };
    for number in [
        libc::SYS_openat2,
        libc::SYS_statx,
        libc::SYS_newfstatat,
        libc::SYS_fstat,
        libc::SYS_fstatfs,
        libc::SYS_faccessat2,
        libc::SYS_readlinkat,
        libc::SYS_preadv2,
        libc::SYS_pread64,
        libc::SYS_lseek,
        libc::SYS_fadvise64,
        SYS_CACHESTAT,
        libc::SYS_fcntl,
        libc::SYS_prctl,
        libc::SYS_pidfd_open,
        // Beside the program: from -1 to 0.
        libc::SYS_close_range,
    ] {
        call(number, NO_DESCRIPTOR);
    }
    for number in [
        libc::SYS_mincore,
        libc::SYS_madvise,
        libc::SYS_pipe2,
        libc::SYS_getcwd,
        libc::SYS_getrandom,
        libc::SYS_sysinfo,
        libc::SYS_clock_gettime,
        libc::SYS_geteuid,
        libc::SYS_getpid,
        libc::SYS_getppid,
    ] {
        call(number, 0);
    }
    #[cfg(target_arch = "x86_64")]
    for number in [libc::SYS_open, libc::SYS_stat, libc::SYS_lstat, libc::SYS_readlink] {
        call(number, 0);
    }
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the places live through the calls; nothing is polled.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NPROC, &mut limit);
        #[cfg(target_arch = "x86_64")]
        libc::poll(null_mut(), 0, 0);
        libc::ppoll(null_mut(), 0, &at_once, null());
    }
}
