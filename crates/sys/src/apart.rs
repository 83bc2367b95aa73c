//! Running a closure as a process of its own in this process's memory, which may enter namespaces that no thread of this one may.
//!
//! The closure is run by a task that shares memory, descriptors and signal handlers with this process, as its threads do, and is not one of them. No handler of
//! fork(3) runs: it may be called where those would wait for the caller.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::given::{check, mapping, number};
use crate::signals::Masked;

/// As much as a thread of the standard library has.
const STACK_BYTES: usize = 2 << 20;
/// Below the stack, and never touched.
const GUARD_BYTES: usize = 64 << 10;

/// What is handed to the new process and comes back from it.
struct Job<W, T> {
    work: Option<W>,
    /// The caller's own signal mask.
    mask: libc::sigset_t,
    result: Option<Result<T, Box<dyn Any + Send>>>,
}

/// Has `work` run by a process that shares memory and descriptors with this one, and waits for its end.
///
/// # Errors
/// Those of mmap(2) and clone(2); `work` was not begun then.
///
/// # Panics
/// As `work` does. Where the new process is killed, this one aborts: it may have held any lock.
pub(crate) fn run_apart<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    run(work)
}

fn run<W: FnOnce() -> T, T>(work: W) -> io::Result<T> {
    let stack = Stack::new()?;
    // No handler may run here meanwhile: this thread has lent its thread-local memory.
    let masked = Masked::asynchronous();
    let mut job = Job { work: Some(work), mask: *masked.before(), result: None };
    let flags =
        libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_SYSVSEM;
    let argument: *mut Job<W, T> = &raw mut job;
    // SAFETY: the stack and the job outlive the child, which is waited for below. The child uses the thread-local memory of this thread, as a
    // child of vfork(2) does: until the child has ended this thread makes one system call, by which no errno is set as all signals are blocked.
    let pid = number(unsafe { libc::clone(begin::<W, T>, stack.top(), flags, argument.cast()) })?;
    let mut status: libc::c_int = 0;
    loop {
        let options = libc::__WALL;
        // SAFETY: the place for the status is valid; a child that sends no signal at its end is waited for by this thread's process alone.
        let waited = unsafe { libc::syscall(libc::SYS_wait4, pid, &raw mut status, options, 0) };
        if waited >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            break;
        }
    }
    drop(masked);
    let Some(result) = job.result else {
        eprintln!("a process that shares memory with this one was killed (wait status {status})");
        std::process::abort();
    };
    result.map_or_else(|panic| resume_unwind(panic), Ok)
}

extern "C" fn begin<W: FnOnce() -> T, T>(job: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the caller of clone(2) made the job and leaves it alone until this process has ended; the mask is one that pthread_sigmask gave.
    let job = unsafe {
        let job = &mut *job.cast::<Job<W, T>>();
        libc::pthread_sigmask(libc::SIG_SETMASK, &job.mask, std::ptr::null_mut());
        job
    };
    let work = job.work.take();
    job.result = Some(catch_unwind(AssertUnwindSafe(|| work.map(|work| work()).expect("it is there"))));
    0
}

/// Memory for a stack, with a guard below.
struct Stack(*mut libc::c_void);

impl Stack {
    fn new() -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_STACK;
        let (bytes, none) = (GUARD_BYTES + STACK_BYTES, libc::PROT_NONE);
        // SAFETY: a new mapping, and the rights of its own upper part.
        unsafe {
            let start = mapping(libc::mmap(std::ptr::null_mut(), bytes, none, flags, -1, 0))?.as_ptr();
            let stack = Self(start);
            let both = libc::PROT_READ | libc::PROT_WRITE;
            check(libc::mprotect(start.byte_add(GUARD_BYTES), STACK_BYTES, both)).map(|()| stack)
        }
    }

    fn top(&self) -> *mut libc::c_void {
        // SAFETY: the end of the mapping.
        unsafe { self.0.byte_add(GUARD_BYTES + STACK_BYTES) }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping of this value, on which nobody runs any more.
        unsafe { libc::munmap(self.0, GUARD_BYTES + STACK_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::Mutex;

    use rustix::process::{Signal, getpid, kill_process};

    use super::*;

    #[test]
    fn it_is_another_process_with_the_same_memory_and_its_threads_are_too() {
        let (own, seen) = (getpid(), Mutex::new(Vec::new()));
        let (read, write) = std::io::pipe().unwrap();
        let length = run_apart(|| {
            let note = || seen.lock().unwrap().push((getpid(), rustix::process::getppid()));
            note();
            std::thread::scope(|scope| scope.spawn(note).join().unwrap());
            drop(write);
            "text".to_owned().len()
        });
        assert_eq!(length.unwrap(), 4);
        let seen = seen.into_inner().unwrap();
        assert!(seen[0].0 != own && seen[0] == seen[1] && seen[0].1 == Some(own), "{seen:?} of {own:?}");
        // Closed there is closed here.
        assert_eq!({ read }.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn a_panic_there_is_one_here_and_a_process_that_is_killed_takes_this_one_along() {
        let panicked = catch_unwind(|| run_apart(|| -> u32 { panic!("there") }));
        assert_eq!(*panicked.unwrap_err().downcast::<&str>().unwrap(), "there");
        let killed = crate::forked::Forked::new(|| {
            let _ = run_apart(|| kill_process(getpid(), Signal::KILL));
            0
        });
        assert_eq!(killed.unwrap().wait().unwrap().terminating_signal(), Some(libc::SIGABRT));
    }
}
