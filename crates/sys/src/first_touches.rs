//! Mappings whose pages fault each of their own when they are touched first: a userfaultfd that protects nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::userfaultfd::{OpenError, Userfaultfd};
use crate::userfaultfd_abi::{
    API, Api, FEATURE_WP_ASYNC, IOC_API, IOC_REGISTER, MODE_WRITE_PROTECT, Range, Register, USER_MODE_ONLY,
};

/// Makes each page of `[start, start + len)` fault of its own when it is touched first, in the process that opened
/// `userfaultfd` with the feature WP_ASYNC: nothing is protected and no message comes, but the kernel maps no pages around a
/// fault there. Needs Linux 6.7.
pub(crate) fn register_first_touches(userfaultfd: BorrowedFd<'_>, start: u64, len: u64) -> io::Result<()> {
    let mut register = Register { range: Range { start, len }, mode: MODE_WRITE_PROTECT, ioctls: 0 };
    // SAFETY: the struct has the kernel's layout and lives through the call. Registering alone changes no memory.
    let result = unsafe { libc::ioctl(userfaultfd.as_raw_fd(), IOC_REGISTER, &mut register) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Whether this process gets a userfaultfd for first touches.
pub(crate) fn probe_first_touches() -> Result<(), OpenError> {
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

/// The same, asked by a child process: where seccomp kills who calls userfaultfd, it dies instead of this one.
pub(crate) fn probe_first_touches_in_child() -> Result<(), OpenError> {
    // SAFETY: the child makes two system calls, allocates nothing, and leaves by _exit.
    match unsafe { libc::fork() } {
        -1 => Err(OpenError::Other(io::Error::last_os_error())),
        0 => {
            let code = i32::from(probe_first_touches().is_err());
            // SAFETY: ends the process without running anything of the parent's.
            unsafe { libc::_exit(code) }
        }
        child => {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the result.
            while unsafe { libc::waitpid(child, &mut status, 0) } == -1 {
                if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
                    break;
                }
            }
            if status == 0 { Ok(()) } else { Err(OpenError::NotPermitted) }
        }
    }
}
