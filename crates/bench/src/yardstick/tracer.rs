//! Watching every system call of a process tree: which names it looks up, which files it reads and lists.
//!
//! Exact and complete, and slow (two stops a call). A process that asks to be traced by its parent (PTRACE_TRACEME, a debugger's child) is let go first, so a
//! debugger that starts its program works while it is learned; one that attaches to a running process does not. As
//! under any tracer, set-uid programs run without their privilege unless the user is root.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use prepage_core::PageRange;
use prepage_sys::clock::now_ns;
use prepage_sys::ptrace::{self, Stop, Syscall};
use prepage_sys::sync::Anyway;
use prepage_sys::syscalls as nr;

use prepage_observe::calls::{Peek, Wants, wants};
use prepage_observe::sightings::Sightings;

/// Traces a process tree until its first process has ended.
#[derive(Debug)]
pub struct Tracer {
    root: u32,
    /// Whether it has executed the program.
    executed: bool,
    /// Where it looked for the program last, until it has executed it: only the file that was executed is a name of the program's.
    tried: Option<PathBuf>,
    /// By thread: the call it is in.
    entered: HashMap<u32, (u64, [u64; 6])>,
}

impl Tracer {
    /// Attaches to `root`, a child of this process that has not started its program yet. What is traced belongs to the
    /// calling thread, and is let go when that thread ends.
    pub fn attach(root: u32) -> io::Result<Self> {
        ptrace::seize(root)?;
        ptrace::interrupt(root)?;
        Ok(Self { root, executed: false, tried: None, entered: HashMap::new() })
    }

    /// Follows the tree until its first process has ended; what was seen goes into `sightings`. Returns that
    /// process's wait status. Descendants that live on are let go when this thread ends.
    pub fn follow(mut self, sightings: &Mutex<Sightings>) -> io::Result<i32> {
        loop {
            let (tid, stop) = match ptrace::wait() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            };
            let moved_on = match stop {
                Stop::Gone(status) if tid == self.root => return Ok(status),
                Stop::Gone(_) => {
                    self.entered.remove(&tid);
                    Ok(())
                }
                Stop::Syscall => self.at_syscall(tid, sightings),
                Stop::Signal(signal) => ptrace::resume(tid, signal),
                Stop::Group => ptrace::leave_stopped(tid),
                Stop::Event => {
                    // The first event is the interruption that attached it, before it has tried anything.
                    if tid == self.root
                        && let Some(path) = self.tried.take()
                    {
                        self.executed = true;
                        look_up(&path, sightings);
                    }
                    // After an exec by another thread than the first, this thread is in a call it never entered.
                    self.entered.remove(&tid);
                    ptrace::resume(tid, 0)
                }
            };
            match moved_on {
                // ESRCH: killed while it stood still. Its end is reported next.
                Err(error) if error.raw_os_error() != Some(rustix::io::Errno::SRCH.raw_os_error()) => {
                    return Err(error);
                }
                _ => {}
            }
        }
    }

    fn at_syscall(&mut self, tid: u32, sightings: &Mutex<Sightings>) -> io::Result<()> {
        match ptrace::syscall(tid)? {
            Syscall::Entry { number: nr::PTRACE, args } if args[0] == nr::PTRACE_TRACEME => {
                return ptrace::detach(tid);
            }
            Syscall::Entry { number, args } => {
                self.entered.insert(tid, (number, args));
                // After a successful exec the memory that held the path is gone.
                if let (nr::EXECVE | nr::EXECVEAT, Some(Wants::Name { directory, path })) =
                    (number, wants(number, &args))
                {
                    let path = Peek::at(tid).path(directory, path);
                    match self.executed {
                        true => path.iter().for_each(|path| look_up(path, sightings)),
                        false => self.tried = path,
                    }
                }
            }
            Syscall::Exit { result } => {
                if let Some((number, args)) = self.entered.remove(&tid)
                    && self.executed
                    && let Some(wanted) = wants(number, &args)
                {
                    returned(tid, wanted, result, sightings);
                }
            }
            Syscall::Unknown => {}
        }
        ptrace::resume(tid, 0)
    }
}

/// Notes a call that has come back. Only now is its memory looked at: before, we would fault in pages that it is
/// the program's to fault in, and that the page-cache events must ascribe to it.
fn returned(tid: u32, wanted: Wants, result: i64, sightings: &Mutex<Sightings>) {
    let now = now_ns();
    match wanted {
        Wants::Name { directory, path } => {
            sightings.lock().anyway().process(tid);
            Peek::at(tid).path(directory, path).iter().for_each(|path| look_up(path, sightings));
        }
        Wants::List { fd } => {
            if let Some(path) = Peek::at(tid).file(fd) {
                sightings.lock().anyway().lookup(now, &path, true);
            }
        }
        Wants::Read { fd, offset_bytes, .. } if result > 0 => {
            let (Some(path), Some(inode)) = (Peek::at(tid).file(fd), Peek::at(tid).inode(fd)) else { return };
            let len = result as u64;
            let end = Peek::at(tid).position(fd);
            if let Some(start) = offset_bytes.or_else(|| end?.checked_sub(len)) {
                sightings.lock().anyway().read(now, &path, inode, PageRange::covering(start, len));
            }
        }
        Wants::Read { .. } => {}
    }
}

fn look_up(path: &Path, sightings: &Mutex<Sightings>) {
    let now = now_ns();
    // Page-cache events of this file are then known by its name.
    sightings.lock().anyway().opened(path);
    sightings.lock().anyway().lookup(now, path, false);
}
