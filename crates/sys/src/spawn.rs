//! Starting a program that waits for leave to begin, so that it can be observed from its first instruction.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::given::check;
use crate::reap::wait4;

/// A child process that has not executed its program yet. Dropped, it ends without having done so.
#[derive(Debug)]
pub struct Waiting {
    // Declared before the child: closed first, it makes the child end, for which the child's drop then waits.
    go: OwnedFd,
    child: Child,
}

/// A child process. Dropped, it is waited for: no zombie is left behind.
#[derive(Debug)]
pub struct Child {
    pid: u32,
    pidfd: OwnedFd,
    /// Carries the errno of an exec that failed, and closes when one succeeds.
    failure: OwnedFd,
    reaped: bool,
}

/// How a child ended and what it used, it and all descendants it waited for.
#[derive(Debug)]
pub struct Ended {
    /// How.
    pub how: HowEnded,
    /// Page faults without a read from a device.
    pub minor_faults: u64,
    /// Page faults with one.
    pub major_faults: u64,
}

/// How a child ended.
#[derive(Debug)]
pub enum HowEnded {
    /// It exited with this code.
    Exited(i32),
    /// This signal killed it.
    Killed(i32),
    /// Its program could not be executed.
    NotExecuted(io::Error),
}

/// What a waiting child is told: to go, or to go with variables that follow (their length in four bytes, then names and
/// values, each ended by a zero).
const GO: u8 = 1;
const GO_WITH: u8 = 2;
/// What a pipe takes at once (PIPE_BUF).
const PIPE_BYTES: usize = 4096;

/// Starts a child that will execute `command` (searched in PATH where it has no slash) once [`Waiting::go`] says so.
///
/// It inherits this process's streams, directory, environment and signal mask, and the dispositions this process
/// was started with. On return it stands still, having touched every page it needs until then.
///
/// To be called while no other thread may hold a lock of the C library: between fork and exec the child calls only
/// execvp beside plain system calls, and with [`Waiting::go_with`] allocates memory.
///
/// # Panics
/// When `command` is empty.
pub fn spawn_waiting(command: &[OsString]) -> io::Result<Waiting> {
    assert!(!command.is_empty(), "a command has at least its program");
    let args = command.iter().map(|arg| c_string(arg)).collect::<io::Result<Vec<_>>>()?;
    let mut argv: Vec<*const libc::c_char> = args.iter().map(|arg| arg.as_ptr()).collect();
    argv.push(std::ptr::null());
    let (go_read, go) = pipe_with(PipeFlags::CLOEXEC)?;
    let (failure, failure_write) = pipe_with(PipeFlags::CLOEXEC)?;
    // The child reads this byte first, so that the code of read() is mapped before it stands still.
    rustix::io::write(&go, &[0])?;

    // SAFETY: the child side runs `wait_and_exec` only, which never returns; no lock of the allocator is held elsewhere.
    let pid = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => {
            drop(go);
            wait_and_exec(&go_read, &failure_write, command, &argv)
        }
        pid => pid as u32,
    };
    drop((go_read, failure_write));
    let raw = Pid::from_raw(pid as i32).expect("fork returns no zero to the parent");
    let pidfd = match pidfd_open(raw, PidfdFlags::empty()) {
        Ok(pidfd) => pidfd,
        Err(error) => {
            // The child ends once nobody can give it leave.
            drop(go);
            wait4(pid as libc::pid_t, 0)?;
            return Err(error.into());
        }
    };
    let waiting = Waiting { go, child: Child { pid, pidfd, failure, reaped: false } };
    // Dropped on the way out, it is waited for.
    read_full(&waiting.child.failure, &mut [0])?;
    Ok(waiting)
}

impl Waiting {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.pid
    }

    /// Lets it execute its program.
    pub fn go(self) -> io::Result<Child> {
        rustix::io::write(&self.go, &[GO])?;
        Ok(self.child)
    }

    /// The same with these environment variables set, as [`crate::exec::exec_with`] does.
    ///
    /// # Errors
    /// InvalidInput for more than fits a pipe at once, 4 KiB, and for variables with a zero in them.
    pub fn go_with(self, variables: &[(&str, OsString)]) -> io::Result<Child> {
        if variables.is_empty() {
            return self.go();
        }
        let mut text = Vec::new();
        for (name, value) in variables {
            text.extend_from_slice(CString::new(*name)?.as_bytes_with_nul());
            text.extend_from_slice(CString::new(value.as_bytes())?.as_bytes_with_nul());
        }
        let mut message = vec![GO_WITH];
        message.extend_from_slice(&(text.len() as u32).to_ne_bytes());
        message.append(&mut text);
        if message.len() > PIPE_BYTES {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::io::write(&self.go, &message)?;
        Ok(self.child)
    }
}

impl Child {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it `signal`.
    pub fn signal(&self, signal: i32) -> io::Result<()> {
        // SAFETY: takes numbers only; the descriptor names our own child, which cannot be another's by reuse.
        check(unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.pidfd.as_raw_fd(), signal, 0usize, 0u32)
        })
    }

    /// Waits for its end.
    pub fn wait(mut self) -> io::Result<Ended> {
        self.reap()
    }

    /// Why its program could not be executed, if so. Waits until the child has executed it, failed to, or ended; gives
    /// the answer once.
    pub fn not_executed(&self) -> Option<io::Error> {
        let mut errno = [0; 4];
        read_full(&self.failure, &mut errno).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }

    fn reap(&mut self) -> io::Result<Ended> {
        self.reaped = true;
        let ended = loop {
            let Some(reaped) = wait4(self.pid as libc::pid_t, 0)? else { continue };
            // Anything else is the stop of a child that is being traced.
            if libc::WIFEXITED(reaped.status) || libc::WIFSIGNALED(reaped.status) {
                break reaped;
            }
        };
        let status = ended.status;
        let how = if let Some(error) = self.not_executed() {
            HowEnded::NotExecuted(error)
        } else if libc::WIFSIGNALED(status) {
            HowEnded::Killed(libc::WTERMSIG(status))
        } else {
            HowEnded::Exited(libc::WEXITSTATUS(status))
        };
        Ok(Ended { how, minor_faults: ended.minor_faults, major_faults: ended.major_faults })
    }
}

impl AsFd for Child {
    /// The pidfd: readable when the child has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.reap();
        }
    }
}

fn c_string(text: &OsStr) -> io::Result<CString> {
    Ok(CString::new(text.as_bytes())?)
}

fn read_full(fd: &OwnedFd, bytes: &mut [u8]) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match rustix::io::read(fd, &mut bytes[filled..]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => filled += got,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// The child's side.
fn wait_and_exec(go: &OwnedFd, failure: &OwnedFd, command: &[OsString], argv: &[*const libc::c_char]) -> ! {
    let mut byte = [0];
    let exit = |code| -> ! {
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(code) }
    };
    if read_full(go, &mut byte).is_err() || rustix::io::write(failure, &[0]).is_err() {
        exit(1);
    }
    if read_full(go, &mut byte).is_err() {
        exit(0);
    }
    let error = if byte == [GO_WITH] {
        match read_variables(go) {
            Ok(variables) => {
                let set: Vec<_> =
                    variables.iter().map(|(name, value)| (name.as_str(), value.as_os_str())).collect();
                crate::exec::exec_with(&command[0], command, &set)
            }
            Err(error) => error,
        }
    } else {
        crate::exec::restore_inherited();
        // SAFETY: `argv` is a null-terminated array of C strings, copied with the process.
        unsafe { libc::execvp(argv[0], argv.as_ptr()) };
        io::Error::last_os_error()
    };
    let errno = error.raw_os_error().unwrap_or(libc::EINVAL);
    let _ = rustix::io::write(failure, &errno.to_ne_bytes());
    exit(127)
}

fn read_variables(go: &OwnedFd) -> io::Result<Vec<(String, OsString)>> {
    let mut len = [0; 4];
    read_full(go, &mut len)?;
    let mut text = vec![0; u32::from_ne_bytes(len) as usize];
    read_full(go, &mut text)?;
    let mut parts = text.split(|&byte| byte == 0).map(OsStr::from_bytes);
    let mut variables = Vec::new();
    while let (Some(name), Some(value)) = (parts.next(), parts.next()) {
        variables.push((name.to_string_lossy().into_owned(), value.to_owned()));
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};

    use super::*;
    use crate::call_filter::{When, refuse};
    use crate::forked::Forked;

    #[test]
    fn a_child_that_cannot_be_watched_leaves_no_zombie() {
        let child = Forked::new(|| {
            if let Err(error) = refuse(&[(libc::SYS_pidfd_open, When::Always)]) {
                return error.raw_os_error().unwrap_or(2);
            }
            let refused = spawn_waiting(&["true".into()]).is_err();
            // SAFETY: asks for nothing but whether there is a child.
            let waited = unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) };
            i32::from(!refused || waited != -1)
        });
        let code = child.unwrap().wait().unwrap().exit_status().expect("it is not killed");
        let filtered = if code == libc::EACCES { Err(io::Error::from_raw_os_error(code)) } else { Ok(code) };
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let Some(code) = unless_refused(filtered, Need::Path("/proc/sys/kernel/seccomp".into()), denied)
        else {
            return;
        };
        assert_eq!(code, 0, "1: there is a child still; others: why the filter was refused");
    }
}
