//! A process that begins without Rust's start-up code, for programs that are run before others and have no time for it: that code makes thirteen system calls
//! and a stack for signals.
//!
//! What it does that may be missed: [`crate::exec::keep_streams`]. The standard library knows no arguments then with some C libraries, and overflowing stacks end
//! the process without a message.

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

/// Where the arguments lie, as the kernel has put them there, side by side.
static ARGUMENTS: OnceLock<Range<usize>> = OnceLock::new();

/// Makes the function `$main` what the C library calls when the process begins. It gets the arguments, and returns the exit code. Of a crate with `#![no_main]`.
#[macro_export]
macro_rules! bare_main {
    ($main:path) => {
        #[unsafe(no_mangle)]
        extern "C" fn main(
            count: ::std::ffi::c_int,
            arguments: *const *const ::std::ffi::c_char,
        ) -> ::std::ffi::c_int {
            let main: fn(&[::std::ffi::OsString]) -> u8 = $main;
            // SAFETY: this is what a C library calls with them, once.
            main(&unsafe { $crate::bare_main::arguments(count, arguments) }).into()
        }
    };
}

/// The arguments, as a C library hands them to `main`.
///
/// # Safety
/// So many C strings stand at `arguments`.
pub unsafe fn arguments(count: c_int, arguments: *const *const c_char) -> Vec<OsString> {
    // SAFETY: as the caller says.
    let argument = |at| unsafe { CStr::from_ptr(*arguments.add(at)) };
    let of_string = |string: &CStr| {
        let start = string.as_ptr().expose_provenance();
        start..start + string.count_bytes() + 1
    };
    if let Some(last) = (count as usize).checked_sub(1) {
        let _ = ARGUMENTS.set(of_string(argument(0)).start..of_string(argument(last)).end);
    }
    (0..count as usize).map(|at| OsStr::from_bytes(argument(at).to_bytes()).to_owned()).collect()
}

/// Where the arguments of this process lie; `None` where it has not begun here.
pub(crate) fn arguments_place() -> Option<Range<usize>> {
    ARGUMENTS.get().cloned()
}
