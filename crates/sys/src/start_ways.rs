//! Starting a program as a child and waiting for its end, by each of the ways that the C library has.

use std::ffi::CStr;
use std::io;
use std::ptr;

use crate::given::number;
use crate::reap::wait4;

/// How a child comes to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartWay {
    /// fork(2): the child has a copy of this process's page tables.
    Fork,
    /// What vfork(2) does: the child uses this process's memory, on a stack of its own, until it executes the program.
    Vfork,
    /// posix_spawn(3), which on glibc is the same with signals kept away.
    Spawn,
}

/// Stack of a child of [`StartWay::Vfork`], which makes two system calls.
const STACK_BYTES: usize = 64 << 10;

impl StartWay {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Fork, Self::Vfork, Self::Spawn];

    /// The name in tables and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fork => "fork",
            Self::Vfork => "vfork",
            Self::Spawn => "posix_spawn",
        }
    }

    /// Runs `program`, without arguments and with an empty environment, and returns its wait status, as
    /// [`std::os::unix::process::ExitStatusExt::from_raw`] takes it. A program that cannot be executed exits with 127.
    ///
    /// # Errors
    /// When there can be no further process. [`StartWay::Spawn`] also fails where the program cannot be executed.
    pub fn run(self, program: &CStr) -> io::Result<i32> {
        let pid = match self {
            Self::Fork => fork(program),
            Self::Vfork => vfork(program),
            Self::Spawn => spawn(program),
        }?;
        let reaped = wait4(pid, 0)?;
        Ok(reaped.expect("a wait that blocks ends with a child").status)
    }
}

fn fork(program: &CStr) -> io::Result<libc::pid_t> {
    // SAFETY: the child makes system calls only, which a child of a process with threads may.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            execute(program.as_ptr().cast_mut().cast());
            unreachable!("the child has ended");
        }
        pid => Ok(pid),
    }
}

fn vfork(program: &CStr) -> io::Result<libc::pid_t> {
    let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
    let top = stack.as_mut_ptr_range().end;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    let argument = program.as_ptr().cast_mut().cast();
    // SAFETY: `top` is the aligned end of a stack that lives until the call returns, and with CLONE_VFORK it returns when
    // the child uses neither the stack nor `program` any more.
    number(unsafe { libc::clone(execute, top.cast(), flags, argument) })
}

/// Becomes the program whose name, a C string, `program` points to.
extern "C" fn execute(program: *mut libc::c_void) -> libc::c_int {
    let program: *const libc::c_char = program.cast_const().cast();
    let (argv, environment) = ([program, ptr::null()], [ptr::null::<libc::c_char>()]);
    // SAFETY: both callers pass a C string; the arrays end with null.
    unsafe {
        libc::execve(program, argv.as_ptr(), environment.as_ptr());
        libc::_exit(127)
    }
}

fn spawn(program: &CStr) -> io::Result<libc::pid_t> {
    let argv = [program.as_ptr().cast_mut(), ptr::null_mut()];
    let environment = [ptr::null_mut()];
    let mut pid = 0;
    // SAFETY: the arrays end with null, and without actions and attributes nothing else is read.
    let error = unsafe {
        libc::posix_spawn(
            &mut pid,
            program.as_ptr(),
            ptr::null(),
            ptr::null(),
            argv.as_ptr(),
            environment.as_ptr(),
        )
    };
    if error == 0 { Ok(pid) } else { Err(io::Error::from_raw_os_error(error)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_run_to_their_end_and_say_how() {
        for way in StartWay::ALL {
            assert_eq!(way.run(c"/bin/true").unwrap(), 0, "{}", way.name());
            assert_eq!(libc::WEXITSTATUS(way.run(c"/bin/false").unwrap()), 1, "{}", way.name());
        }
        for way in [StartWay::Fork, StartWay::Vfork] {
            assert_eq!(libc::WEXITSTATUS(way.run(c"/no/such/program").unwrap()), 127, "{}", way.name());
        }
        let error = StartWay::Spawn.run(c"/no/such/program").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
