//! A copy of this process that does one thing and ends, whatever becomes of this process.
//!
//! Who holds another process still ([`crate::arm`]) has to let it go again. SIGSTOP stops all threads of a process and SIGKILL ends them, wherever they are.
//! A copy is not reached by what is sent to this process, and has memory of its own: no lock of it is held by a thread that stands still or is gone.
//!
//! What a copy finds of locks: those of libc (its heap, its streams, its loader, its list of threads) are free, fork(3) sees to that. Any other may be held for
//! good by a thread that the copy does not have, so the copy takes none that other threads of this process take, and starts threads by [`crate::sync::spawn`]
//! alone. What is made once while others wait ([`std::sync::OnceLock`]) is made before.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use crate::given::{check, number};
use crate::reap::{Reaped, wait4};
use crate::thread;

/// What a copy ends with whose work has panicked, or was not begun.
const FAILED: libc::c_int = 101;

/// A copy that is still to be waited for.
#[derive(Debug)]
#[must_use = "a copy that nobody waits for stays a zombie"]
pub struct Copied(libc::pid_t);

impl Copied {
    /// Has a copy of this process do `work` with its copy of `state`, in a thread called `name` (15 bytes of it). Of the descriptors it has those that
    /// `kept` says, and the first three, which are for standard streams: others would keep files locked, sockets connected and mounts in use. So nothing else
    /// that has descriptors may be used, or dropped, by `work`. Here `state` is dropped. The copy closes the others itself, and where FUSE answers for one of them it
    /// waits for the answer.
    ///
    /// Nothing of this process's is run at the copy's end, which SIGCHLD tells of.
    ///
    /// # Errors
    /// Those of fork(2). Where the copy cannot begin its work, it ends.
    pub fn start<S: Send>(
        name: &str,
        state: S,
        kept: fn(&S) -> Vec<BorrowedFd<'_>>,
        work: impl FnOnce(S) + Send,
    ) -> io::Result<Self> {
        let kept = {
            let streams = 0..=2;
            let mut kept: Vec<RawFd> = kept(&state).iter().map(AsRawFd::as_raw_fd).chain(streams).collect();
            kept.sort_unstable();
            kept
        };
        // SAFETY: fork(3) leaves the copy libc's locks in order; the copy leaves by _exit alone.
        match number(unsafe { libc::fork() })? {
            0 => {
                // As processes are listed.
                let _ = CString::new(name).map(|name| rustix::thread::set_name(&name));
                let is_done = close_others(&kept).is_ok() && thread::within(name, || work(state)).is_ok();
                // SAFETY: what lies further up the stack, and handlers of exit(3), are the original's.
                unsafe { libc::_exit(if is_done { 0 } else { FAILED }) }
            }
            copy => Ok(Self(copy as libc::pid_t)),
        }
    }

    /// The copy.
    pub fn pid(&self) -> u32 {
        self.0 as u32
    }

    /// Waits for its end, however it comes.
    ///
    /// # Errors
    /// ECHILD where SIGCHLD is ignored, or somebody else waited for it.
    pub fn wait(self) -> io::Result<Reaped> {
        wait4(self.0, 0)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }
}

/// Closes all descriptors but those `kept`, which ascend.
fn close_others(kept: &[RawFd]) -> io::Result<()> {
    let ends = kept.iter().map(|fd| fd - 1).chain([RawFd::MAX]);
    let mut starts = std::iter::once(0).chain(kept.iter().map(|fd| fd + 1));
    let mut gaps =
        ends.filter_map(|end| starts.next().filter(|start| *start <= end).map(|start| (start, end)));
    let close = |(start, end): (RawFd, RawFd)| {
        // SAFETY: nobody here uses any of them, the caller of `Copied::start` answers for it.
        check(unsafe { libc::syscall(libc::SYS_close_range, start, end, 0) })
    };
    gaps.try_for_each(close).or_else(|_| {
        // Before Linux 5.9, or where it is refused.
        let open = fs::read_dir("/proc/self/fd")?.flatten();
        let open: Vec<RawFd> = open.filter_map(|one| one.file_name().to_str()?.parse().ok()).collect();
        for fd in open.into_iter().filter(|fd| kept.binary_search(fd).is_err()) {
            // SAFETY: as above. That of the list itself is closed already.
            unsafe { libc::close(fd) };
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::sync::Mutex;

    use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

    use super::*;
    use crate::call_filter::{When, fail};
    use crate::forked::Forked;

    /// Has a copy do `work` with the end of a pipe, and returns what it says there, and its end.
    fn said_by_copy(work: impl FnOnce(&mut dyn Write) + Send) -> (Vec<u8>, Reaped) {
        let (mut read, write) = io::pipe().unwrap();
        let copied =
            Copied::start("copied", write, |write| vec![write.as_fd()], |mut write| work(&mut write));
        let mut said = Vec::new();
        read.read_to_end(&mut said).unwrap();
        (said, copied.unwrap().wait().unwrap())
    }

    #[test]
    fn it_is_another_process_with_memory_and_descriptors_of_its_own() {
        let seen = Mutex::new(Vec::new());
        let (of_others, others) = (File::open("/").unwrap(), File::open("/").unwrap());
        let (said, ended) = said_by_copy(|write| {
            seen.lock().unwrap().push(1);
            let open = fs::read_dir("/proc/self/fd").unwrap().flatten().count();
            let name = fs::read_to_string("/proc/thread-self/comm").unwrap();
            write!(write, "{} {open} {}", std::process::id(), name.trim()).unwrap();
        });
        // The list's own among them.
        let expected = format!("{} 5 copied", ended.pid);
        assert_eq!((String::from_utf8(said).unwrap(), ended.status), (expected, 0));
        assert!(seen.into_inner().unwrap().is_empty());
        assert!(of_others.metadata().is_ok() && others.metadata().is_ok());
        assert!(ended.cpu > std::time::Duration::ZERO);
    }

    #[test]
    fn where_ranges_cannot_be_closed_each_descriptor_is() {
        let child = Forked::new(|| {
            fail(libc::ENOSYS, &[(libc::SYS_close_range, When::Always)]).unwrap();
            let _others = [File::open("/").unwrap(), File::open("/").unwrap()];
            let (said, _) = said_by_copy(|write| {
                let open = fs::read_dir("/proc/self/fd").unwrap().count();
                write!(write, "{open}").unwrap();
            });
            i32::from(said != b"5")
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
    }

    #[test]
    fn one_that_panics_or_is_killed_ends_alone() {
        let panicked = said_by_copy(|_| panic!("as a copy may")).1;
        assert!(libc::WIFEXITED(panicked.status) && libc::WEXITSTATUS(panicked.status) == FAILED);
        let killed = said_by_copy(|_| kill_process(getpid(), Signal::KILL).unwrap()).1;
        assert_eq!(libc::WTERMSIG(killed.status), libc::SIGKILL);
    }

    #[test]
    fn who_stops_or_kills_this_process_does_not_reach_it() {
        let (questions, mut ask) = io::pipe().unwrap();
        let (mut answers, answer) = io::pipe().unwrap();
        let child = Forked::new(|| {
            let copied = Copied::start(
                "copied",
                (questions, answer),
                |(questions, answer)| vec![questions.as_fd(), answer.as_fd()],
                |(mut questions, mut answer)| {
                    let mut byte = [0];
                    while questions.read_exact(&mut byte).is_ok() {
                        answer.write_all(&byte).unwrap();
                    }
                },
            );
            copied.unwrap().wait().map_or(1, |_| 0)
        })
        .unwrap();
        let child = Pid::from_raw(child.pid() as i32).unwrap();
        let mut says = |byte: u8| {
            ask.write_all(&[byte]).unwrap();
            let mut said = [0];
            answers.read_exact(&mut said).map(|()| said[0]).ok()
        };
        assert_eq!(says(1), Some(1));
        kill_process(child, Signal::STOP).unwrap();
        assert!(waitpid(Some(child), WaitOptions::UNTRACED).unwrap().unwrap().1.stopped());
        assert_eq!(says(2), Some(2));
        kill_process(child, Signal::KILL).unwrap();
        assert!(waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap().1.signaled());
        assert_eq!(says(3), Some(3));
    }
}
