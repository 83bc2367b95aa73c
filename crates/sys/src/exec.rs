//! Becoming another program, with everything as this process was given it.
//!
//! Rust's start-up code ignores SIGPIPE and opens `/dev/null` on standard streams that were closed. A program
//! started by `prepage run` must find both as they were, so they are noted before that code runs.

use std::ffi::{CString, OsStr, OsString};
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
    exec_with(program, argv, &[])
}

/// The same, with these environment variables set.
pub fn exec_with(program: &OsStr, argv: &[impl AsRef<OsStr>], set: &[(&str, &OsStr)]) -> io::Error {
    let c_string = |text: &OsStr| CString::new(text.as_bytes());
    let c_strings =
        |texts: &mut dyn Iterator<Item = &OsStr>| texts.map(c_string).collect::<Result<Vec<_>, _>>();
    let pairs: Vec<OsString> = set.iter().map(|(name, value)| variable(OsStr::new(name), value)).collect();
    // Without additions the environment is handed on as it is, whatever its bytes.
    let kept: Vec<OsString> = match set {
        [] => Vec::new(),
        _ => std::env::vars_os()
            .filter(|(name, _)| !set.iter().any(|(added, _)| name == added))
            .map(|(name, value)| variable(&name, &value))
            .collect(),
    };
    let (Ok(file), Ok(args), Ok(variables)) = (
        c_string(program),
        c_strings(&mut argv.iter().map(AsRef::as_ref)),
        c_strings(&mut kept.iter().chain(&pairs).map(OsString::as_os_str)),
    ) else {
        return io::ErrorKind::InvalidInput.into();
    };
    let argv = null_terminated(&args);
    let environment = null_terminated(&variables);
    restore_inherited();
    // SAFETY: both are null-terminated arrays of C strings that outlive the call.
    unsafe {
        if set.is_empty() {
            libc::execvp(file.as_ptr(), argv.as_ptr());
        } else {
            libc::execvpe(file.as_ptr(), argv.as_ptr(), environment.as_ptr());
        }
    }
    let error = io::Error::last_os_error();
    // The caller has a message to print: let a closed reader be an error again, not a signal.
    set_sigpipe(libc::SIG_IGN);
    error
}

fn variable(name: &OsStr, value: &OsStr) -> OsString {
    let mut text = name.to_owned();
    text.push("=");
    text.push(value);
    text
}

fn null_terminated(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect()
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
