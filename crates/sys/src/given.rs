//! What calls of libc have given, as results: where one fails, the error is that of errno.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;

/// The number that a call has given, which is -1 where it fails.
pub(crate) fn number<N: Copy + PartialEq + From<i8>>(given: N) -> io::Result<N> {
    if given == N::from(-1) { Err(io::Error::last_os_error()) } else { Ok(given) }
}

/// The same where the number tells nothing else.
pub(crate) fn check<N: Copy + PartialEq + From<i8>>(given: N) -> io::Result<()> {
    number(given).map(drop)
}

/// The new mapping that mmap(2) has given.
pub(crate) fn mapping(given: *mut libc::c_void) -> io::Result<NonNull<libc::c_void>> {
    NonNull::new(given).filter(|_| given != libc::MAP_FAILED).ok_or_else(io::Error::last_os_error)
}

/// The descriptor that a call has given.
///
/// # Safety
/// It is new: nobody else closes it.
pub(crate) unsafe fn descriptor<N: Copy + PartialEq + From<i8> + Into<i64>>(given: N) -> io::Result<OwnedFd> {
    let given: i64 = number(given)?.into();
    // SAFETY: it is open, and the caller promises the rest.
    Ok(unsafe { OwnedFd::from_raw_fd(given as i32) })
}
