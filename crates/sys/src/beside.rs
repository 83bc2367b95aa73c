//! Running a closure in a process of its own, beside the caller and out of its way.
//!
//! `prepage run` becomes the program it starts (see [`crate::exec`]); what prefetches must therefore live in
//! another process, which the program can neither see as its child nor be held up by.

use std::ffi::CStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, getppid, pidfd_open};

use crate::arm::let_go_of_given_up;
use crate::bare_main::arguments_place;
use crate::fork::{fork_orphan, fork_unannounced};
use crate::given::{check, number};
use crate::heaps;
use crate::process_stat::ProcessStat;

/// Root's processes whose command line begins so are spared by systemd when it leaves an initramfs, and when it shuts down
/// (<https://systemd.io/ROOT_STORAGE_DAEMONS>).
const SPARED: u8 = b'@';

/// Runs `work` in a new process and returns at once in the caller.
///
/// The new process
/// - is nobody's child here: it is handed to init (or the nearest subreaper), and the caller gets no SIGCHLD for
///   it, so `wait()` in whatever the caller becomes never meets a stranger. Where the caller is process 1 or a subreaper
///   itself, which would adopt it, it is a child that wait(2) passes over (`__WCLONE`), and sleeps until the caller has ended: the kernel
///   tells a parent that has executed another program of the end of any child;
/// - is called `prepage`, by the name of its program and by its command line: who looks for processes like the caller by these (pgrep(1),
///   pidof(8), killall(1)) does not meet it. A command line that begins with `@` goes on to do so;
/// - leads its own session, so signals of the terminal do not reach it;
/// - holds no file of the caller but those in `keep`, which `work` gets in the same order: pipes see their end, file
///   systems can be unmounted; its standard streams are `/dev/null` (an empty file where there is none), its working directory is `/`;
/// - ends when `work` returns or panics. Where the program was built so that panics abort, nothing that `work` has is dropped then.
///
/// To be called while the process has one thread: only that one exists in the new process.
///
/// # Errors
/// Those of fork(2); and where the caller is to have a new namespace of processes whose process 1 this would be.
pub fn run_beside_with(keep: Vec<OwnedFd>, work: impl FnOnce(Vec<OwnedFd>)) -> io::Result<()> {
    run_beside_from(keep, || (), |kept, ()| work(kept))
}

/// The same; the new process calls `first` before it leaves the caller's working directory, for what depends on that.
pub fn run_beside_from<T>(
    keep: Vec<OwnedFd>,
    first: impl FnOnce() -> T,
    work: impl FnOnce(Vec<OwnedFd>, T),
) -> io::Result<()> {
    if children_are_elsewhere() {
        return Err(io::Error::other("children of this process belong to another namespace of processes"));
    }
    let work = move || {
        // Of the caller. In the new process their numbers are other files' by the time at which they would be closed.
        let keep = ManuallyDrop::new(keep);
        // A panic ends here: what lies further up the stack is the caller's.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            // Nobody waits for the end of a pipe because a file system does not answer `first`.
            if let Ok(kept) = leave_callers_world(&keep) {
                let found = first();
                if rustix::process::chdir(c"/").is_ok() {
                    work(kept, found);
                }
            }
        }));
    };
    if !adopts_orphans() {
        // SAFETY: this process has one thread, as the caller makes sure.
        return unsafe { fork_orphan(work) };
    }
    let caller = getpid();
    // SAFETY: as above. The copy goes on in place of what fork makes; the number of the caller's thread, which libc goes on using for it, is
    // nobody else's as long as the caller lives.
    if unsafe { fork_unannounced() }?.is_none() {
        work();
        heaps::give_back();
        wait_for_end_of_parent(caller);
        // SAFETY: _exit ends the process without running anything else. The caller's atexit handlers and buffers are not this process's
        // to run or flush.
        unsafe { libc::_exit(0) }
    }
    Ok(())
}

/// Whether [`run_beside_with`] can let go of the caller's files: its process ends at once where it cannot.
///
/// # Errors
/// ENOSYS before Linux 5.9; what a filter of system calls says.
pub fn can_let_go() -> io::Result<()> {
    // SAFETY: closes nothing: no file has this number.
    check(unsafe { libc::syscall(libc::SYS_close_range, libc::c_uint::MAX, libc::c_uint::MAX, 0) })
}

/// Whether the caller is in one PID namespace and its children will be in another (unshare -p, nsenter --no-fork). In a new one the
/// first child is process 1, with whose end all others are killed and no more can be started: that is to be a child of the program.
fn children_are_elsewhere() -> bool {
    let inode = |name| Some(rustix::fs::stat(name).ok()?.st_ino);
    // A new namespace has no inode as long as there is no process in it.
    inode(c"/proc/self/ns/pid") != inode(c"/proc/self/ns/pid_for_children")
}

/// Whether orphans among the descendants of this process become its children.
fn adopts_orphans() -> bool {
    let mut is_subreaper: libc::c_int = 0;
    // SAFETY: PR_GET_CHILD_SUBREAPER writes one int to a valid place.
    unsafe { libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &mut is_subreaper, 0, 0, 0) };
    is_subreaper != 0 || std::process::id() == 1
}

/// Sleeps until `parent`, which made this process, has ended. It may have by now.
fn wait_for_end_of_parent(parent: Pid) {
    let Ok(end) = pidfd_open(parent, PidfdFlags::empty()) else { return };
    // Else the number is somebody else's.
    if getppid() == Some(parent) {
        let mut ready = [PollFd::new(&end, PollFlags::IN)];
        // The parent may wait for one of them.
        const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
        let mut is_over = false;
        while !is_over && let_go_of_given_up() {
            is_over = matches!(poll(&mut ready, Some(&PAUSE)), Ok(1..));
        }
        while !is_over && poll(&mut ready, None) == Err(Errno::INTR) {}
    }
}

/// Gives this process, a copy of its caller, a name and a command line of its own.
fn take_own_name() {
    const NAME: &CStr = c"prepage";
    // SAFETY: PR_SET_NAME reads a string that ends with a zero byte.
    unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    // The kernel is asked where nobody has noted it. Without a /proc nobody can look, either; and not by number, which is another process's where
    // /proc is of another namespace.
    let told = || {
        let stat = ProcessStat::of_this_thread().ok()?;
        Some(stat.arguments_at as usize..stat.arguments_end as usize)
    };
    let Some(place) = arguments_place().or_else(told).filter(|place| place.start != 0 && !place.is_empty())
    else {
        return;
    };
    let bytes = place.len();
    // SAFETY: there the kernel has put the arguments of this program, on a stack that is this process's own copy. Who still has pointers to them,
    // as the standard library has, finds strings there that end in the arguments or in the environment behind them.
    unsafe {
        let arguments = std::ptr::with_exposed_provenance_mut::<u8>(place.start);
        // What systemd spares for it, as the caller, it is to spare here too.
        let kept = usize::from(arguments.read() == SPARED);
        let (arguments, bytes) = (arguments.add(kept), bytes - kept);
        let name = NAME.to_bytes_with_nul();
        if bytes > name.len() {
            arguments.copy_from_nonoverlapping(name.as_ptr(), name.len());
            // Where the last byte is no zero, the first string is all (get_mm_cmdline of fs/proc/base.c): the others need not be touched.
            arguments.add(bytes - 1).write(b'-');
        } else {
            // There is no room for it. Programs that show command lines show the name above instead.
            arguments.write_bytes(0, bytes);
        }
    }
}

/// Drops every tie to the caller's files and terminal. Returns `keep` under numbers of its own.
fn leave_callers_world(keep: &[OwnedFd]) -> io::Result<Vec<OwnedFd>> {
    const FIRST_KEPT: i32 = 3;
    let first_closed = FIRST_KEPT + keep.len() as i32;
    // First: a filter may kill this process for any call that it makes.
    // SAFETY: the limit lives through the call.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 }) };
    take_own_name();
    // SAFETY: plain system calls on numbers. Every descriptor closed or replaced here belonged to values of the
    // caller's copy of memory that this process never uses again: `work` gets only what this function returns.
    unsafe {
        libc::setsid();
        // Out of the way first: one of them may have the number that another is to get.
        let mut moved = Vec::with_capacity(keep.len());
        for fd in keep {
            moved.push(number(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, first_closed))?);
        }
        for (number, fd) in (FIRST_KEPT..).zip(moved) {
            check(libc::dup3(fd, number, libc::O_CLOEXEC))?;
        }
        check(libc::syscall(libc::SYS_close_range, first_closed, libc::c_uint::MAX, 0))?;
        // A bare root (chroot, an image that is being made) may have no devices: an empty file in memory reads and takes as much.
        let null = number(libc::open(c"/dev/null".as_ptr(), libc::O_RDWR))
            .or_else(|_| number(libc::memfd_create(c"null".as_ptr(), 0)))?;
        for stream in 0..FIRST_KEPT {
            check(libc::dup2(null, stream))?;
        }
        if null >= FIRST_KEPT {
            libc::close(null);
        }
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        // Whatever the program is to be limited by: what is written here is complete, its owner can use it, and no file is left of
        // a failure.
        libc::umask(libc::umask(0) & !0o700);
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        Ok((FIRST_KEPT..first_closed).map(|number| OwnedFd::from_raw_fd(number)).collect())
    }
}

/// Makes the calling process adopt its orphaned descendants, so that it can wait for processes started by
/// [`run_beside_with`] of a command it runs.
pub fn adopt_orphans() -> io::Result<()> {
    // SAFETY: PR_SET_CHILD_SUBREAPER takes one flag and touches no memory.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })
}

/// Lets `reader` inspect this process under Yama's ptrace_scope 1, also after exec. Without Yama it does nothing.
pub fn allow_inspection_by(reader: u32) {
    // SAFETY: PR_SET_PTRACER takes a process id. EINVAL (no Yama) means that nothing needs allowing.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::c_ulong::from(reader), 0, 0, 0) };
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::forked::Forked;
    use crate::process_status::ProcessStatus;

    /// Leaves the process's number in a file when it is dropped.
    struct Leaves(PathBuf);

    impl Drop for Leaves {
        fn drop(&mut self) {
            let _ = std::fs::write(&self.0, format!("{}\n", std::process::id()));
        }
    }

    /// systemd spares it, and waits for it no more than for the caller when it shuts down.
    #[test]
    fn beside_a_caller_that_systemd_spares_is_one_that_it_spares() {
        const FILE: &str = "PREPAGE_TEST_COMMAND_LINE";
        if let Some(file) = std::env::var_os(FILE) {
            let caller = Forked::new(|| {
                let begun = run_beside_with(Vec::new(), |_| {
                    let _ = std::fs::write(&file, std::fs::read("/proc/self/cmdline").unwrap_or_default());
                });
                i32::from(begun.is_err())
            });
            assert_eq!(caller.unwrap().wait().unwrap().exit_status(), Some(0));
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let command_line_beside = |name: &str| {
            let file = directory.path().join(name);
            // A program whose arguments begin so.
            let status = Command::new(std::env::current_exe().unwrap())
                .arg0(name)
                .args(["--exact", "beside::tests::beside_a_caller_that_systemd_spares_is_one_that_it_spares"])
                .env(FILE, &file)
                .stdout(Stdio::null())
                .status();
            assert!(status.unwrap().success());
            let until = Instant::now() + Duration::from_secs(60);
            loop {
                match std::fs::read(&file) {
                    Ok(line) if !line.is_empty() => return String::from_utf8(line).unwrap(),
                    _ => assert!(Instant::now() < until, "{name}: nothing is written"),
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert_eq!(["@prepaged", "prepaged"].map(command_line_beside), ["@prepage\0", "prepage\0"]);
    }

    /// What the caller has on its stack is the caller's: its guards would remove files and unlock locks a second time.
    #[test]
    fn work_that_panics_runs_nothing_of_the_callers() {
        for adopts in [false, true] {
            let directory = tempfile::tempdir().unwrap();
            let [own, callers] = ["own", "callers"].map(|name| directory.path().join(name));
            let caller = Forked::new(|| {
                if adopts {
                    adopt_orphans().unwrap();
                }
                let kept_for_good = Leaves(callers.clone());
                let begun = run_beside_with(Vec::new(), |_| {
                    let _own = Leaves(own.clone());
                    std::panic::set_hook(Box::new(|_| ()));
                    panic!("as work may");
                });
                std::mem::forget(kept_for_good);
                i32::from(begun.is_err())
            });
            assert_eq!(caller.unwrap().wait().unwrap().exit_status(), Some(0));
            let until = Instant::now() + Duration::from_secs(60);
            let has_ended = || {
                let pid = std::fs::read_to_string(&own).ok()?.strip_suffix('\n')?.to_owned();
                let status = ProcessStatus::of(pid).ok();
                status.is_none_or(|status| status.field("State").unwrap().starts_with('Z')).then_some(())
            };
            while has_ended().is_none() {
                assert!(Instant::now() < until, "adopts: {adopts}");
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!callers.exists(), "adopts: {adopts}");
        }
    }
}
