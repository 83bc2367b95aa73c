//! Receiving signals as data.

use std::io;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::MutexGuard;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Signal, pidfd_send_signal};

use crate::given::{descriptor, number};

/// Signals that ask a program to end: SIGINT, SIGQUIT, SIGTERM, SIGHUP.
pub const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGHUP];

/// [`ENDING`], without SIGHUP where this process was started to ignore that, as by nohup(1) for the time when its terminal is closed: of a signal that is
/// held back it would be told all the same. SIGINT and SIGQUIT stay: shells have commands in the background ignore them, which then are sent on purpose.
pub fn endings() -> Vec<i32> {
    // SAFETY: all-zero bytes are a valid sigaction, and with a null new action the call only reads.
    let outlives_terminal = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut action) == 0
            && action.sa_sigaction == libc::SIG_IGN
    };
    ENDING.into_iter().filter(|&signal| signal != libc::SIGHUP || !outlives_terminal).collect()
}

/// Signals that are read instead of acting on this process, until this is dropped.
pub struct Signals {
    fd: OwnedFd,
    /// The calling thread's mask before, which that thread gets back.
    before: libc::sigset_t,
    /// As a guard of a lock, it may be lent to other threads and not given to them.
    _thread: PhantomData<MutexGuard<'static, ()>>,
}

/// A signal that arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// Whether the kernel sent it, as it does for a terminal's keys and hang-up: then the whole foreground process
    /// group got it. A process that calls kill(2) may have meant this one alone.
    pub by_kernel: bool,
}

impl Signals {
    /// Takes over `signals` in the calling thread and the threads it starts from now on.
    pub fn take_over(signals: &[i32]) -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the set, the successful pthread_sigmask the old one; the other calls only
        // read them. The descriptor is new and nobody else's.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            for &signal in signals {
                libc::sigaddset(set.as_mut_ptr(), signal);
            }
            let fd = descriptor(libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))?;
            // The last that can fail: until here nothing has changed.
            let mut before = MaybeUninit::<libc::sigset_t>::uninit();
            let error = libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Self { fd, before: before.assume_init(), _thread: PhantomData })
        }
    }

    /// Has the program that `command` starts begin with the signal mask of before.
    pub fn leave_to(&self, command: &mut Command) {
        let before = self.before;
        // SAFETY: one system call on a set that pthread_sigmask gave; it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || {
                match libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) {
                    0 => Ok(()),
                    error => Err(io::Error::from_raw_os_error(error)),
                }
            });
        }
    }

    /// The descriptor, readable once a signal has arrived. They are taken over for good.
    pub fn into_fd(self) -> OwnedFd {
        let kept = std::mem::ManuallyDrop::new(self);
        // SAFETY: `kept` is neither used nor dropped any more, so the descriptor has one owner.
        unsafe { std::ptr::read(&kept.fd) }
    }

    /// The next signal that has arrived, if any.
    pub fn next(&self) -> io::Result<Option<Arrived>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::zeroed();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: `info` has room for `size` bytes.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        match number(got) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(None);
            }
            got => got?,
        };
        // SAFETY: the struct is plain numbers, valid for any bytes; the kernel reads whole ones only.
        let info = unsafe { info.assume_init() };
        Ok(Some(Arrived { signal: info.ssi_signo as i32, by_kernel: info.ssi_code == libc::SI_KERNEL }))
    }

    /// Hands on to the process of `child` (a pidfd) what has arrived; returns the last of it. The terminal's own keys reach the
    /// process without this one.
    ///
    /// # Errors
    /// When the signals cannot be read.
    pub fn pass_on(&self, child: impl AsFd) -> io::Result<Option<i32>> {
        let mut last = None;
        while let Some(arrived) = self.next()? {
            last = Some(arrived.signal);
            if let Some(signal) = Signal::from_named_raw(arrived.signal).filter(|_| !arrived.by_kernel) {
                // It can only fail because the child has just ended.
                let _ = pidfd_send_signal(&child, signal);
            }
        }
        Ok(last)
    }

    /// Hands on to `child` (a pidfd) what arrives until it has ended, and returns the last of it. What came by then does not end this
    /// process later.
    ///
    /// # Errors
    /// When the signals cannot be waited for or read.
    pub fn pass_on_until_end(&self, child: impl AsFd) -> io::Result<Option<i32>> {
        let mut last = None;
        loop {
            let mut fds = [PollFd::new(&child, PollFlags::IN), PollFd::new(self, PollFlags::IN)];
            retry_on_intr(|| poll(&mut fds, None))?;
            let has_ended = !fds[0].revents().is_empty();
            last = self.pass_on(&child)?.or(last);
            if has_ended {
                return Ok(last);
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the mask is one that pthread_sigmask gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

impl std::fmt::Debug for Signals {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Signals").field("fd", &self.fd).finish_non_exhaustive()
    }
}

/// Lets this process outlive signals that ask it to end, for good.
pub fn ignore_endings() {
    for signal in ENDING {
        // SAFETY: SIG_IGN installs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// While this lives, its thread takes no signal from outside; what comes meanwhile comes then. Signals of the thread's own
/// faults are taken.
///
/// Code that holds what a fault may wait for runs so: a handler of the program that touched it would wait for its own
/// thread.
pub struct Masked {
    before: libc::sigset_t,
    /// A mask belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Masked {
    /// Blocks all signals but those that tell of the thread's own faults.
    pub fn asynchronous() -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset initialises the set, and pthread_sigmask, which fails for wrong arguments alone, the old one.
        unsafe {
            libc::sigfillset(set.as_mut_ptr());
            for own in [libc::SIGBUS, libc::SIGSEGV, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS]
            {
                libc::sigdelset(set.as_mut_ptr(), own);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init(), _thread: PhantomData }
        }
    }

    /// The thread's mask before.
    pub(crate) fn before(&self) -> &libc::sigset_t {
        &self.before
    }

    /// What may end the process meanwhile.
    pub fn endings(&self) -> Endings {
        Endings::unblocked(&self.before)
    }
}

impl Drop for Masked {
    fn drop(&mut self) {
        // SAFETY: the mask is one that pthread_sigmask gave.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.before, std::ptr::null_mut()) };
    }
}

impl std::fmt::Debug for Masked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Masked").finish_non_exhaustive()
    }
}

/// Those of [`ENDING`] that a thread would take, but for a mask that blocks all signals for a while: of [`Masked`], or of a signal handler. Who sleeps
/// meanwhile heeds them, as the kernel does while it serves a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Endings([bool; ENDING.len()]);

impl Endings {
    /// Those that `mask`, the one from before, lets through.
    pub(crate) fn unblocked(mask: &libc::sigset_t) -> Self {
        // SAFETY: the call only reads the set, which is one.
        Self(ENDING.map(|signal| unsafe { libc::sigismember(mask, signal) } == 0))
    }

    /// Ends the process if one of them has come and its action is the default one. Else nothing happens: handlers of the program wait. Safe in
    /// signal handlers.
    pub fn heed(self) {
        for (signal, _) in ENDING.into_iter().zip(self.0).filter(|&(_, is_unblocked)| is_unblocked) {
            // SAFETY: zeros are valid sets and a valid sigaction, which the calls fill in or only read; the mask of this thread is as before at the end.
            // A handler runs meanwhile only if another thread installs it at this moment.
            unsafe {
                let mut pending: libc::sigset_t = std::mem::zeroed();
                let mut action: libc::sigaction = std::mem::zeroed();
                libc::sigpending(&mut pending);
                libc::sigaction(signal, std::ptr::null(), &mut action);
                if libc::sigismember(&pending, signal) == 1 && action.sa_sigaction == libc::SIG_DFL {
                    let mut ends: libc::sigset_t = std::mem::zeroed();
                    libc::sigaddset(&mut ends, signal);
                    // It comes at once, unless another thread has just taken it.
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &ends, std::ptr::null_mut());
                    libc::pthread_sigmask(libc::SIG_BLOCK, &ends, std::ptr::null_mut());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forked::Forked;
    use crate::spawn::spawn_waiting;

    #[test]
    fn what_asks_a_program_to_end_ends_it_unless_the_program_blocks_or_handles_it() {
        extern "C" fn handler(_: libc::c_int) {
            // SAFETY: _exit runs nothing of this process's.
            unsafe { libc::_exit(2) }
        }
        // SAFETY: a signal of this thread.
        let raise = |signal| unsafe { libc::raise(signal) };
        let block = || std::mem::forget(Masked::asynchronous());
        // SAFETY: the handler does what handlers may do.
        let handle = || _ = unsafe { libc::signal(libc::SIGTERM, handler as *const () as usize) };
        let nothing = || ();
        let prepare: [(&dyn Fn(), Option<i32>); 3] =
            [(&nothing, Some(libc::SIGTERM)), (&block, None), (&handle, None)];
        for (before, ended_by) in prepare {
            let child = Forked::new(|| {
                before();
                let masked = Masked::asynchronous();
                masked.endings().heed();
                raise(libc::SIGTERM);
                masked.endings().heed();
                // SAFETY: ends the process at once, before the mask is as it was.
                unsafe { libc::_exit(7) }
            });
            let ended = child.unwrap().wait().unwrap();
            assert_eq!(ended.terminating_signal(), ended_by, "{ended:?}");
            assert_eq!(ended.exit_status(), ended_by.is_none().then_some(7));
        }
    }

    #[test]
    fn what_arrives_as_the_child_ends_does_not_end_this_process_later() {
        let child = spawn_waiting(&["true".into()]).expect("forked").go().expect("begun");
        let signals = Signals::take_over(&[libc::SIGUSR1]).expect("taken over");
        retry_on_intr(|| poll(&mut [PollFd::new(&child, PollFlags::IN)], None)).expect("ended");
        // SAFETY: a signal of this thread, which is blocked.
        unsafe { libc::raise(libc::SIGUSR1) };
        signals.pass_on_until_end(&child).expect("ended");
        // It would be delivered once the signals are given back.
        assert_eq!(signals.next().expect("read"), None);
    }

    #[test]
    fn what_cannot_be_taken_over_stays_as_it_was() {
        let child = Forked::new(|| {
            let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, none).unwrap();
            let error = Signals::take_over(&[libc::SIGUSR1]).expect_err("no descriptor is left");
            let mut mask = MaybeUninit::<libc::sigset_t>::zeroed();
            // SAFETY: with a null new mask the call only tells the one in force, and zeros are one.
            let is_blocked = unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
                libc::sigismember(mask.as_ptr(), libc::SIGUSR1)
            };
            i32::from(error.raw_os_error() != Some(libc::EMFILE)) + 2 * is_blocked
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0), "2: blocked");
    }
}
