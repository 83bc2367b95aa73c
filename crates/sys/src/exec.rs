//! Becoming another program, with everything as this process was given it.
//!
//! Rust's start-up code ignores SIGPIPE and opens `/dev/null` on standard streams that were closed. A program
//! started by `prepage run` must find both as they were, so they are noted before that code runs.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicU8, Ordering};

/// Bits 0 to 2: that standard stream was closed. Bit 3: SIGPIPE was ignored.
static INHERITED: AtomicU8 = AtomicU8::new(0);
const SIGPIPE_IGNORED: u8 = 1 << 3;

extern "C" fn note_inherited() {
    let mut noted = 0;
    for stream in 0..3 {
        // SAFETY: F_GETFD reads a flag of a descriptor number and fails harmlessly where there is none.
        if unsafe { libc::fcntl(stream, libc::F_GETFD) } == -1 {
            noted |= 1 << stream;
        }
    }
    // SAFETY: all-zero bytes are a valid sigaction, and with a null new action the call only reads.
    let ignored = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGPIPE, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    if ignored {
        noted |= SIGPIPE_IGNORED;
    }
    INHERITED.store(noted, Ordering::Relaxed);
}

// SAFETY: .init_array holds pointers to functions of the C calling convention, which libc runs once before main.
// The function touches nothing that needs an initialised runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_INHERITED: extern "C" fn() = note_inherited;

/// Replaces this process by `program`, searched in PATH where it has no slash, with the arguments `argv`
/// (`argv[0]` first) and the environment, streams, signal dispositions and mask this process was started with.
///
/// Returns only when that failed, with the reason.
pub fn exec(program: &OsStr, argv: &[impl AsRef<OsStr>]) -> io::Error {
    let c_string = |text: &OsStr| CString::new(text.as_bytes());
    let Ok(file) = c_string(program) else { return io::ErrorKind::InvalidInput.into() };
    let Ok(args) = argv.iter().map(|arg| c_string(arg.as_ref())).collect::<Result<Vec<_>, _>>() else {
        return io::ErrorKind::InvalidInput.into();
    };
    let mut pointers: Vec<*const libc::c_char> = args.iter().map(|arg| arg.as_ptr()).collect();
    pointers.push(std::ptr::null());
    restore_inherited();
    // SAFETY: `pointers` is a null-terminated array of C strings that outlive the call.
    unsafe { libc::execvp(file.as_ptr(), pointers.as_ptr()) };
    let error = io::Error::last_os_error();
    // The caller has a message to print: let a closed reader be an error again, not a signal.
    set_sigpipe(libc::SIG_IGN);
    error
}

pub(crate) fn restore_inherited() {
    let noted = INHERITED.load(Ordering::Relaxed);
    for stream in (0..3).filter(|stream| noted & (1 << stream) != 0) {
        // SAFETY: the descriptor is the /dev/null that the runtime put where there was none; nothing owns it.
        unsafe { libc::close(stream) };
    }
    set_sigpipe(if noted & SIGPIPE_IGNORED != 0 { libc::SIG_IGN } else { libc::SIG_DFL });
}

fn set_sigpipe(disposition: libc::sighandler_t) {
    // SAFETY: SIG_IGN and SIG_DFL install no code.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
}
