//! Mappings whose pages fault each of their own when they are touched first: a userfaultfd that protects nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use prepage_core::PAGE_SIZE;
use rustix::io::Errno;

use crate::call_filter::is_deadly;
use crate::given::check;
use crate::userfaultfd::{OpenError, Userfaultfd};
use crate::userfaultfd_abi::{
    API, Api, FEATURE_WP_ASYNC, IOC_API, IOC_REGISTER, IOC_WRITE_PROTECT, MODE_WRITE_PROTECT, Range,
    Register, USER_MODE_ONLY, WriteProtect,
};

/// Makes each page of `[start, start + len)` fault of its own when it is touched first, in the process that opened
/// `userfaultfd` with the feature WP_ASYNC: nothing is protected and no message comes, but the kernel maps no pages around a
/// fault there. Needs Linux 6.7.
pub(crate) fn register_first_touches(userfaultfd: BorrowedFd<'_>, start: u64, len: u64) -> io::Result<()> {
    let mut register = Register { range: Range { start, len }, mode: MODE_WRITE_PROTECT, ioctls: 0 };
    // SAFETY: the struct has the kernel's layout and lives through the call. Registering alone changes no memory.
    check(unsafe { libc::ioctl(userfaultfd.as_raw_fd(), IOC_REGISTER, &mut register) })
}

/// Whether the address space of `userfaultfd` is gone: its process has ended, or executed another program since. Asks for a page that is not
/// protected to be so no longer, which changes nothing where there is such a page: the kernel looks for the address space first (ESRCH).
pub(crate) fn is_gone(userfaultfd: BorrowedFd<'_>) -> bool {
    /// One that the kernel allows.
    const ANY_ADDRESS: u64 = 1 << 20;
    let mut protect = WriteProtect { range: Range { start: ANY_ADDRESS, len: PAGE_SIZE }, mode: 0 };
    // SAFETY: the struct has the kernel's layout and lives through the call, which changes no contents of memory.
    let result = unsafe { libc::ioctl(userfaultfd.as_raw_fd(), IOC_WRITE_PROTECT, &mut protect) };
    result == -1 && Errno::from_io_error(&io::Error::last_os_error()) == Some(Errno::SRCH)
}

/// Whether this process gets a userfaultfd for first touches, and lives to tell.
pub(crate) fn probe_first_touches() -> Result<(), OpenError> {
    if is_deadly(|| drop(ask_for_first_touches())) {
        return Err(OpenError::NotPermitted);
    }
    ask_for_first_touches()
}

fn ask_for_first_touches() -> Result<(), OpenError> {
    agree_on_first_touches(Userfaultfd::descriptor(USER_MODE_ONLY)?.as_fd())
}

/// Makes a new userfaultfd, of whichever process, one for [`register_first_touches`].
pub(crate) fn agree_on_first_touches(userfaultfd: BorrowedFd<'_>) -> Result<(), OpenError> {
    let mut api = Api { api: API, features: FEATURE_WP_ASYNC, ioctls: 0 };
    // SAFETY: the struct has the kernel's layout and lives through the call.
    if unsafe { libc::ioctl(userfaultfd.as_raw_fd(), IOC_API, &mut api) } == -1 {
        return Err(OpenError::TooOld {
            missing: "write protection that nobody has to answer",
            needs: "6.7",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};
    use std::io;

    use crate::agent::may_arm;
    use crate::call_filter::{kill_for, lives_in_child};
    use crate::forked::Forked;

    /// Where it counted as leave, the next to ask would be killed: the program.
    #[test]
    fn a_probe_that_is_killed_is_no_leave_even_where_nobody_waits_for_children() {
        for disposition in [libc::SIG_DFL, libc::SIG_IGN] {
            let child = Forked::new(|| {
                // SAFETY: SIG_DFL and SIG_IGN install no code.
                unsafe { libc::signal(libc::SIGCHLD, disposition) };
                match kill_for(libc::SYS_userfaultfd) {
                    Err(error) => error.raw_os_error().unwrap_or(2),
                    Ok(()) if may_arm().is_ok() => 1,
                    Ok(()) => 0,
                }
            });
            let code = child.unwrap().wait().unwrap().exit_status().expect("it is not killed");
            let filtered =
                if code == libc::EACCES { Err(io::Error::from_raw_os_error(code)) } else { Ok(code) };
            let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
            match unless_refused(filtered, Need::Path("/proc/sys/kernel/seccomp".into()), denied) {
                Some(code) => assert_eq!(code, 0, "1: it may arm; others: why the filter was refused"),
                None => return,
            }
        }
    }

    /// Nothing else ends it: what is refused above is refused for the filter.
    #[test]
    fn a_probe_in_a_child_comes_to_its_end() {
        for disposition in [libc::SIG_DFL, libc::SIG_IGN] {
            let child = Forked::new(|| {
                // SAFETY: as above.
                unsafe { libc::signal(libc::SIGCHLD, disposition) };
                i32::from(!lives_in_child(|| drop(super::ask_for_first_touches())).unwrap())
            });
            assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
        }
    }
}
