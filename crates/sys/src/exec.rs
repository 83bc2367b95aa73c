//! Becoming another program, with everything as this process was given it.
//!
//! Rust's start-up code ignores SIGPIPE and opens `/dev/null` on standard streams that were closed. A program
//! started by `prepage run` must find both as they were, so they are noted before that code runs, or where a program has a
//! [bare `main`](mod@crate::bare_main), before [`keep_streams`] does as much: one that becomes another without that has nothing to give back.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::own_pages::is_entered;

/// Bits 0 to 2: that standard stream was closed. Bit 3: SIGPIPE was ignored. Bit 4: SIGCHLD was, before [`hear_of_children`]. Bit 5: the others were noted.
static INHERITED: AtomicU8 = AtomicU8::new(0);
const SIGPIPE_IGNORED: u8 = 1 << 3;
const SIGCHLD_IGNORED: u8 = 1 << 4;
const NOTED: u8 = 1 << 5;

extern "C" fn note_before_main() {
    if !is_entered() {
        note_inherited();
    }
}

fn note_inherited() {
    if INHERITED.load(Ordering::Relaxed) & NOTED != 0 {
        return;
    }
    let mut noted = NOTED;
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
    INHERITED.fetch_or(noted, Ordering::Relaxed);
}

// SAFETY: .init_array holds pointers to functions of the C calling convention, which libc runs once before main.
// The function touches nothing that needs an initialised runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_BEFORE_MAIN: extern "C" fn() = note_before_main;

/// Replaces this process by `program`, searched in PATH where it has no slash, with the arguments `argv`
/// (`argv[0]` first) and the environment, streams, signal dispositions and mask this process was started with. A script without
/// `#!` is `/bin/sh`'s, as shells and execvp(3) have it.
///
/// Returns only when that failed, with the reason.
pub fn exec(program: &OsStr, argv: &[impl AsRef<OsStr>]) -> io::Error {
    exec_with(program, argv, &[])
}

/// The same, with these environment variables set; without them where there is no room for them.
pub fn exec_with(program: &OsStr, argv: &[impl AsRef<OsStr>], set: &[(&str, &OsStr)]) -> io::Error {
    let added =
        |(name, value): &(&str, &OsStr)| CString::new([name.as_bytes(), b"=", value.as_bytes()].concat());
    let (Ok(file), Ok(args), Ok(added)) = (
        CString::new(program.as_bytes()),
        argv.iter().map(|arg| CString::new(arg.as_ref().as_bytes())).collect::<Result<Vec<_>, _>>(),
        set.iter().map(added).collect::<Result<Vec<_>, _>>(),
    ) else {
        return io::ErrorKind::InvalidInput.into();
    };
    // As it is, whatever its bytes: not every string in it need be a variable.
    let inherited = inherited_environment();
    let is_set = |text: &CStr| {
        let value_of = |name: &str| text.to_bytes().strip_prefix(name.as_bytes())?.strip_prefix(b"=");
        set.iter().any(|(name, _)| value_of(name).is_some())
    };
    let kept = inherited.iter().copied().filter(|text| !is_set(text));
    let with_added = null_terminated(kept.chain(added.iter().map(CString::as_c_str)));
    let args: Vec<&CStr> = args.iter().map(CString::as_c_str).collect();
    restore_inherited();
    let mut error = execute(&file, &args, &with_added);
    if error.raw_os_error() == Some(libc::E2BIG) && !set.is_empty() {
        error = execute(&file, &args, &null_terminated(inherited.iter().copied()));
    }
    restore_own();
    error
}

fn execute(file: &CStr, args: &[&CStr], environment: &[*const libc::c_char]) -> io::Error {
    let execute = |file: &CStr, args: &[*const libc::c_char]| {
        // SAFETY: both are null-terminated arrays of C strings that outlive the call.
        unsafe { libc::execvpe(file.as_ptr(), args.as_ptr(), environment.as_ptr()) };
        io::Error::last_os_error()
    };
    let error = execute(file, &null_terminated(args.iter().copied()));
    if error.raw_os_error() != Some(libc::ENOEXEC) || !file.to_bytes().contains(&b'/') {
        return error;
    }
    let script = [c"/bin/sh", file].into_iter().chain(args.iter().skip(1).copied());
    execute(c"/bin/sh", &null_terminated(script))
}

/// The strings that this process was given as its environment.
fn inherited_environment() -> Vec<&'static CStr> {
    unsafe extern "C" {
        // environ(7), which the crate libc does not name for musl.
        static environ: *const *const libc::c_char;
    }
    let mut strings = Vec::new();
    // SAFETY: `environ` is null or a null-terminated array of C strings. Nothing here changes variables of this process, which has one
    // thread when it becomes another program.
    unsafe {
        let mut at = environ;
        while !at.is_null() && !(*at).is_null() {
            strings.push(CStr::from_ptr(*at));
            at = at.add(1);
        }
    }
    strings
}

fn null_terminated<'a>(strings: impl Iterator<Item = &'a CStr>) -> Vec<*const libc::c_char> {
    strings.map(CStr::as_ptr).chain([std::ptr::null()]).collect()
}

/// The path by which the kernel executed this program (AT_EXECFN), without a system call; empty where the kernel does not say.
pub fn executed() -> &'static OsStr {
    // SAFETY: getauxval reads what the kernel has put above the stack.
    let place = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const libc::c_char;
    if place.is_null() {
        return OsStr::new("");
    }
    // SAFETY: there the kernel has put a C string, which stays.
    OsStr::from_bytes(unsafe { CStr::from_ptr(place) }.to_bytes())
}

/// Whether this process was started with standard stream `stream` (0 to 2) closed. Something else has its number by now.
pub fn was_closed(stream: u8) -> bool {
    INHERITED.load(Ordering::Relaxed) & 1 << stream != 0
}

/// Has the kernel keep how children of this process ended until that is asked for, also where SIGCHLD was inherited as ignored:
/// programs that this crate executes find it so.
pub fn hear_of_children() {
    // SAFETY: SIG_DFL installs no code.
    if unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) } == libc::SIG_IGN {
        INHERITED.fetch_or(SIGCHLD_IGNORED, Ordering::Relaxed);
    }
}

/// Has `command` find SIGCHLD as this process was given it.
pub fn give_inherited(command: &mut Command) {
    if INHERITED.load(Ordering::Relaxed) & SIGCHLD_IGNORED != 0 {
        // SAFETY: between fork and exec there is one system call.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGCHLD, libc::SIG_IGN);
                Ok(())
            })
        };
    }
}

/// Does what Rust's start-up code does, in a process that began without it: what is written to a pipe that nobody reads is an error and
/// not the end, and what is opened is not taken for a standard stream that was closed. To be called before anything is opened that stays open: what has the number of
/// such a stream by then is taken for one that was given.
pub fn keep_streams() {
    note_inherited();
    // SAFETY: as in `note_inherited`.
    for _closed in (0..3).filter(|stream| unsafe { libc::fcntl(*stream, libc::F_GETFD) } == -1) {
        // The lowest free number is this stream's.
        // SAFETY: the path ends with a zero; the descriptor is to stay open.
        unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) };
    }
    set_sigpipe(libc::SIG_IGN);
}

pub(crate) fn restore_inherited() {
    let noted = INHERITED.load(Ordering::Relaxed);
    if noted & SIGCHLD_IGNORED != 0 {
        // SAFETY: SIG_IGN installs no code.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    }
    if noted & NOTED == 0 {
        return;
    }
    for stream in (0..3).filter(|stream| noted & (1 << stream) != 0) {
        // SAFETY: the descriptor is the /dev/null that the runtime put where there was none; nothing owns it.
        unsafe { libc::close(stream) };
    }
    set_sigpipe(if noted & SIGPIPE_IGNORED != 0 { libc::SIG_IGN } else { libc::SIG_DFL });
}

/// What this process goes on with where it has not become another program: as before [`restore_inherited`].
fn restore_own() {
    let noted = INHERITED.load(Ordering::Relaxed);
    if noted & SIGCHLD_IGNORED != 0 {
        // SAFETY: SIG_DFL installs no code.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
    }
    // The caller has a message to print.
    keep_streams();
}

fn set_sigpipe(disposition: libc::sighandler_t) {
    // SAFETY: SIG_IGN and SIG_DFL install no code.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forked::Forked;

    #[test]
    fn who_did_not_become_another_program_goes_on_as_before() {
        let child = Forked::new(|| {
            INHERITED.store(NOTED | 1 | SIGPIPE_IGNORED | SIGCHLD_IGNORED, Ordering::Relaxed);
            let error = exec("/no/such/program".as_ref(), &["program"]);
            let opened = std::fs::File::open("/proc/self/stat").unwrap();
            // SAFETY: with a null new action the calls only read, and zeros are a valid one.
            let disposition = |signal| unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, std::ptr::null(), &mut action);
                action.sa_sigaction
            };
            assert_eq!(error.kind(), io::ErrorKind::NotFound);
            assert_ne!(std::os::fd::AsRawFd::as_raw_fd(&opened), 0, "taken for standard input");
            assert_eq!(disposition(libc::SIGCHLD), libc::SIG_DFL);
            assert_eq!(disposition(libc::SIGPIPE), libc::SIG_IGN);
            0
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
    }
}
