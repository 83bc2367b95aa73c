//! A visit to another process: stopped, made to open a userfaultfd and close it again, and let go.
//!
//! A mapping registered with userfaultfd for asynchronous write protection (Linux 6.7) is protected nowhere and delivers
//! no message, but the kernel maps one page a fault in it, so that each first touch of a page is a fault. A userfaultfd
//! belongs to the address space that opened it, not to its holder: a [`Visit`] stops a process for some tens of
//! microseconds, has it open one and close it again, and takes a duplicate out in between (pidfd_getfd(2)). From then on
//! [`FirstTouches::register`] works from outside, and the process is not stopped again. Nothing stays in the process: no
//! descriptor, no page, no tracer. This is for programs that the agent ([`crate::agent`]) cannot enter.
//!
//! ```text
//!  seize ─ interrupt ─► stop ─► [signals blocked] userfaultfd ─ pidfd_getfd ─ close ─► registers, mask restored ─► register ─► detach
//! ```

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::agent::FirstTouches;
use crate::auxv;
use crate::call_filter::{filters_in, inherited_filters};
use crate::first_touches::agree_on_first_touches;
use crate::given::descriptor;
use crate::process_status::ProcessStatus;
use crate::ptrace::{self, Registers, Stop};
use crate::userfaultfd_abi::USER_MODE_ONLY;
pub use crate::visit_error::VisitError;

/// A process asked to stop that may not have done so yet.
///
/// The thread that began a visit must be the one that ends or drops it. Dropped before it could end, it waits 10 ms for the process to
/// stop, and lets it go. One that has not stopped by then, as it waits for something that nothing interrupts, is for the thread to
/// [let go](let_go_of_given_up), or for its end.
#[derive(Debug)]
pub struct Visit {
    pid: u32,
    pidfd: OwnedFd,
    /// Whether it stops by itself, when it has executed a program.
    at_exec: bool,
    /// Whether it was asked to stop and not let go yet.
    is_held: bool,
    begun: Instant,
}

const SYSCALL_INSTRUCTION: [u8; 2] = [0x0f, 0x05];

/// Between two looks whether a process has stopped that does not do so at once.
const PAUSE: Duration = Duration::from_micros(50);

impl Visit {
    /// Asks the first thread of `pid` to stop, which must not be a child of this process that it waits for elsewhere.
    ///
    /// # Errors
    /// [`VisitError`], before the process noticed anything.
    pub fn begin(pid: u32) -> Result<Self, VisitError> {
        let mut visit = Self::of(pid, false)?;
        if !is_interruptible(pid) {
            return Err(VisitError::Busy);
        }
        ptrace::seize_alone(pid).map_err(|error| refused(pid, error))?;
        visit.is_held = true;
        ptrace::interrupt(pid).map_err(|error| refused(pid, error))?;
        Ok(visit)
    }

    /// The same when `pid` has executed its next program, before that runs. Only for a program without rights of its own:
    /// it would not get them. The process goes on meanwhile.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn at_exec(pid: u32) -> Result<Self, VisitError> {
        let mut visit = Self::of(pid, true)?;
        ptrace::seize_until_exec(pid).map_err(|error| refused(pid, error))?;
        visit.is_held = true;
        Ok(visit)
    }

    fn of(pid: u32, at_exec: bool) -> Result<Self, VisitError> {
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(VisitError::Gone)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty()).map_err(|_| VisitError::Gone)?;
        let status = ProcessStatus::of(pid).ok().filter(|status| !has_ended(status));
        let status = status.ok_or(VisitError::Gone)?;
        if traces_visitor(pid) {
            return Err(VisitError::Tracer);
        }
        is_free(pid, &status)?;
        Ok(Self { pid, pidfd, at_exec, is_held: false, begun: Instant::now() })
    }

    /// Where the process, which stands still, has a system call instruction. Programs can unmap their vDSO (valgrind does).
    fn instruction(&self) -> Option<u64> {
        let at = vdso_of(self.pid)?.checked_add((*OWN_OFFSET)?)?;
        let mut there = [0; SYSCALL_INSTRUCTION.len()];
        File::open(format!("/proc/{}/mem", self.pid))
            .and_then(|memory| memory.read_exact_at(&mut there, at))
            .ok()?;
        (there == SYSCALL_INSTRUCTION).then_some(at)
    }

    /// The process visited.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether it was begun by [`Self::at_exec`].
    pub fn is_at_exec(&self) -> bool {
        self.at_exec
    }

    /// Whether the process may be expected to stop at any moment. One that has not within 0.1 s waits for something that nothing
    /// interrupts.
    pub fn is_soon_over(&self) -> bool {
        self.at_exec || self.begun.elapsed() < Duration::from_millis(100)
    }

    /// Ends the visit, if the process has stopped by now: `None` if not. `arm` gets the process's userfaultfd while it
    /// stands still, as it was before the visit: it runs on when this returns a result or panics, and also where this process ends within `arm`.
    ///
    /// # Panics
    /// As `arm` does.
    pub fn end<T>(&mut self, arm: impl FnOnce(FirstTouches) -> T) -> Option<Result<T, VisitError>> {
        // Let go also where `arm` panics.
        let is_held = std::mem::take(&mut self.is_held);
        let ended = self.end_if_stopped(arm);
        self.is_held = is_held && ended.is_none();
        ended
    }

    fn end_if_stopped<T>(&self, arm: impl FnOnce(FirstTouches) -> T) -> Option<Result<T, VisitError>> {
        let mut next = ptrace::stop_of(self.pid, false);
        loop {
            let stop = match next {
                Ok(None) => return None,
                Ok(Some(stop)) => stop,
                Err(_) => return Some(Err(VisitError::Gone)),
            };
            let went_on = match stop {
                Stop::Gone(_) => return Some(Err(VisitError::Gone)),
                // Out of the exec first: the kernel still sets its result.
                Stop::Event if self.at_exec => ptrace::resume(self.pid, 0),
                Stop::Syscall | Stop::Event => {
                    let ended = self.at_stop(arm);
                    if matches!(ended, Err(VisitError::Gone)) {
                        take_note(self.pid);
                    }
                    return Some(ended);
                }
                Stop::Signal(signal) if self.at_exec => ptrace::go_on(self.pid, signal),
                Stop::Group if self.at_exec => ptrace::leave_stopped(self.pid),
                Stop::Signal(signal) => return Some(self.leave(signal, VisitError::Busy)),
                Stop::Group => return Some(self.leave(0, VisitError::Busy)),
            };
            if went_on.is_err() {
                take_note(self.pid);
                return Some(Err(VisitError::Gone));
            }
            // Out of the exec it steps within microseconds.
            next = match stop {
                Stop::Event => stop_within(self.pid, Duration::ZERO),
                _ => ptrace::stop_of(self.pid, false),
            };
        }
    }

    fn leave<T>(&self, signal: i32, why: VisitError) -> Result<T, VisitError> {
        if ptrace::detach_with(self.pid, signal).is_err() {
            take_note(self.pid);
        }
        Err(why)
    }

    fn at_stop<T>(&self, arm: impl FnOnce(FirstTouches) -> T) -> Result<T, VisitError> {
        let mut registers = match Registers::of(self.pid) {
            Ok(Some(registers)) => registers,
            Ok(None) => return self.leave(0, VisitError::Foreign),
            Err(_) => return self.leave(0, VisitError::Gone),
        };
        // A call that it began just before it stopped, and that failed for that: it makes it again.
        if registers.was_interrupted() && !has_signals(self.pid) {
            registers.call_again();
            if registers.set(self.pid).is_err() {
                return self.leave(0, VisitError::Gone);
            }
        }
        let Ok(status) = ProcessStatus::of(self.pid) else { return self.leave(0, VisitError::Gone) };
        // It may have entered a sandbox until it stopped.
        if let Err(error) = is_free(self.pid, &status) {
            return self.leave(0, error);
        }
        if ptrace::answers_own_calls(self.pid) {
            return self.leave(0, VisitError::Sandboxed);
        }
        match ptrace::is_in_rseq(self.pid) {
            Ok(false) => {}
            _ => return self.leave(0, VisitError::Busy),
        }
        // In a call that waits with other signals blocked: which ones, the kernel would forget.
        match (ptrace::signal_mask(self.pid), signals(&status, "SigBlk")) {
            (Ok(after_the_call), Some(now)) if after_the_call == now => {}
            _ => return self.leave(0, VisitError::Busy),
        }
        let Some(instruction) = self.instruction() else { return self.leave(0, VisitError::Foreign) };
        // No signal may meet the registers of the calls below: they wait until the process is as it was.
        let Ok(mask) = ptrace::block_signals(self.pid) else { return self.leave(0, VisitError::Gone) };
        let made = self.make(&registers, instruction);
        // Whatever happens to this process from here on, the other goes on as it was.
        self.restore(&registers, mask)?;
        let armed = made.map(|uffd| {
            catch_unwind(AssertUnwindSafe(|| {
                agree_on_first_touches(uffd.as_fd()).map_err(VisitError::Kernel)?;
                Ok(arm(FirstTouches::of(uffd, self.pid)))
            }))
        });
        let detached = ptrace::detach(self.pid);
        // Where `arm` has panicked nobody else does.
        if detached.is_err() {
            take_note(self.pid);
        }
        let ended = armed.map(|armed| armed.unwrap_or_else(|panic| resume_unwind(panic)));
        detached.map_err(|_| VisitError::Gone)?;
        ended?
    }

    fn make(&self, registers: &Registers, instruction: u64) -> Result<OwnedFd, VisitError> {
        const PATIENCE: Duration = Duration::from_millis(50);
        /// Longer, for a process that does not come to close the descriptor keeps it.
        const PATIENCE_TO_CLOSE: Duration = Duration::from_secs(1);
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | USER_MODE_ONLY;
        let fd = self.call(registers, instruction, (libc::SYS_userfaultfd, flags as u64), PATIENCE)?;
        if fd < 0 {
            return Err(VisitError::NoUserfaultfd(io::Error::from_raw_os_error(-fd as i32)));
        }
        // SAFETY: takes numbers only, and the descriptor is new.
        let taken =
            unsafe { descriptor(libc::syscall(libc::SYS_pidfd_getfd, self.pidfd.as_raw_fd(), fd, 0)) }
                .map_err(VisitError::Refused);
        self.call(registers, instruction, (libc::SYS_close, fd as u64), PATIENCE_TO_CLOSE)?;
        taken
    }

    /// Has the process make a system call, of this number and with this argument, by the instruction at `instruction`. Returns the result;
    /// [`VisitError::Busy`] where the process has not begun the call within `patience`.
    fn call(
        &self,
        registers: &Registers,
        instruction: u64,
        (number, argument): (libc::c_long, u64),
        patience: Duration,
    ) -> Result<i64, VisitError> {
        let gone = |_| VisitError::Gone;
        registers.calling(instruction, number as u64, argument).set(self.pid).map_err(gone)?;
        self.run_to_call(Some(patience))?;
        // Behind the call it stops before it can be frozen.
        self.run_to_call(None)?;
        Ok(Registers::of(self.pid).map_err(gone)?.ok_or(VisitError::Foreign)?.result())
    }

    /// Lets the process run to the entry or the exit of a system call. With [`VisitError::Busy`] it has not come there within `patience`, and
    /// stands still in a stop like the first: it is frozen, or got no processor.
    fn run_to_call(&self, mut patience: Option<Duration>) -> Result<(), VisitError> {
        let gone = |_| VisitError::Gone;
        let mut is_given_up = false;
        ptrace::resume(self.pid, 0).map_err(gone)?;
        loop {
            let stop = match patience {
                Some(patience) => stop_within(self.pid, patience),
                None => ptrace::stop_of(self.pid, true),
            };
            let signal = match stop.map_err(gone)? {
                Some(Stop::Syscall) => return Ok(()),
                Some(Stop::Gone(_)) => return Err(VisitError::Gone),
                // SIGSTOP, which cannot be blocked. It takes effect when the process is let go.
                Some(Stop::Signal(other)) => other,
                Some(Stop::Group | Stop::Event) if is_given_up => return Err(VisitError::Busy),
                Some(Stop::Group | Stop::Event) => 0,
                None => {
                    // Stops a process that is frozen by a control group of version 2, too.
                    ptrace::interrupt(self.pid).map_err(gone)?;
                    (patience, is_given_up) = (None, true);
                    continue;
                }
            };
            ptrace::resume(self.pid, signal).map_err(gone)?;
        }
    }

    /// Makes the process what it was. It still stands still.
    fn restore(&self, registers: &Registers, mask: u64) -> Result<(), VisitError> {
        let gone = |_| VisitError::Gone;
        if registers.is_to_restart() {
            // The interrupted call is restarted, or fails for a signal, on the way out of a stop like the first only.
            ptrace::interrupt(self.pid).map_err(gone)?;
            loop {
                ptrace::go_on(self.pid, 0).map_err(gone)?;
                match ptrace::stop_of(self.pid, true).map_err(gone)? {
                    Some(Stop::Event | Stop::Group) => break,
                    Some(Stop::Gone(_)) => return Err(VisitError::Gone),
                    Some(Stop::Signal(_) | Stop::Syscall) | None => {}
                }
            }
        }
        registers.set(self.pid).map_err(gone)?;
        ptrace::set_signal_mask(self.pid, mask).map_err(gone)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        if !self.is_held {
            return;
        }
        const PATIENCE: Duration = Duration::from_millis(10);
        let _ = ptrace::interrupt(self.pid);
        let until = Instant::now() + PATIENCE;
        while !let_go_if_stopped(self.pid) {
            if Instant::now() > until {
                return GIVEN_UP.with_borrow_mut(|given_up| given_up.push(self.pid));
            }
            std::thread::sleep(PAUSE);
        }
    }
}

thread_local! {
    /// Processes whose visits this thread has given up, and that have not stopped yet.
    static GIVEN_UP: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// Lets go those processes that have stopped by now of which this thread has given up the visits. Returns whether there are others.
pub fn let_go_of_given_up() -> bool {
    GIVEN_UP.with_borrow_mut(|given_up| {
        given_up.retain(|&pid| !let_go_if_stopped(pid));
        !given_up.is_empty()
    })
}

/// A process is let go only when it stands still. Yes also of one that has ended, or is not traced any more.
fn let_go_if_stopped(pid: u32) -> bool {
    let signal = match ptrace::stop_of(pid, false) {
        Ok(None) => return false,
        Ok(Some(Stop::Signal(signal))) => signal,
        Ok(Some(_)) | Err(_) => 0,
    };
    if ptrace::detach_with(pid, signal).is_err() {
        take_note(pid);
    }
    true
}

/// Why `pid` stands still, once it does; `None` if it does not within `patience`.
fn stop_within(pid: u32, patience: Duration) -> io::Result<Option<Stop>> {
    /// A process that runs takes some microseconds.
    const AT_ONCE: Duration = Duration::from_micros(200);
    let began = Instant::now();
    loop {
        match (ptrace::stop_of(pid, false), began.elapsed()) {
            (Ok(None), waited) if waited < AT_ONCE => std::thread::yield_now(),
            (Ok(None), waited) if waited < patience => std::thread::sleep(PAUSE),
            (stop, _) => return stop,
        }
    }
}

/// Somebody has killed the process while it stood still. Its parent hears of that only once we have.
fn take_note(pid: u32) {
    let _ = ptrace::stop_of(pid, true);
}

/// Whether `pid` traces this process.
fn traces_visitor(pid: u32) -> bool {
    ProcessStatus::of("self").is_ok_and(|status| status.field("TracerPid") == Some(&pid.to_string()))
}

fn refused(pid: u32, error: io::Error) -> VisitError {
    match error.raw_os_error() {
        Some(libc::ESRCH) => VisitError::Gone,
        // The kernel's answer for one that has ended, as long as nobody has taken note of its end.
        Some(libc::EPERM) if ProcessStatus::of(pid).map_or(true, |status| has_ended(&status)) => {
            VisitError::Gone
        }
        _ => VisitError::Refused(error),
    }
}

/// Whether it is a zombie, or not even that any more.
fn has_ended(status: &ProcessStatus) -> bool {
    matches!(state(status), None | Some('Z' | 'X'))
}

fn state(status: &ProcessStatus) -> Option<char> {
    status.field("State")?.chars().next()
}

/// Whether the process has no rights that a user who may start it has not, and may make every system call.
fn is_free(pid: u32, status: &ProcessStatus) -> Result<(), VisitError> {
    if !has_rights_of_one(status) || is_hidden(pid, status) {
        // One that is just ending is hidden, too.
        let is_there = |status: &ProcessStatus| !has_ended(status) && status.field("VmSize").is_some();
        return Err(match ProcessStatus::of(pid).ok().filter(is_there) {
            Some(_) => VisitError::Refused(io::ErrorKind::PermissionDenied.into()),
            None => VisitError::Gone,
        });
    }
    if filters_in(status) == inherited_filters() { Ok(()) } else { Err(VisitError::Sandboxed) }
}

/// Whether its real, effective, saved and file system ids are one user's and one group's. Other ones are those of a set-user-ID program.
fn has_rights_of_one(status: &ProcessStatus) -> bool {
    ["Uid", "Gid"].into_iter().filter_map(|name| status.field(name)).all(|ids| {
        let mut ids = ids.split_ascii_whitespace();
        let first = ids.next();
        ids.all(|id| Some(id) == first)
    })
}

/// Whether the kernel lets nobody but root look at it, not even its own user (PR_SET_DUMPABLE): it had other rights before, or keeps secrets.
fn is_hidden(pid: u32, status: &ProcessStatus) -> bool {
    let user = status.field("Uid").and_then(|ids| ids.split_ascii_whitespace().next()?.parse().ok());
    let shown_as = std::fs::metadata(format!("/proc/{pid}/auxv")).map(|facts| facts.uid()).ok();
    user != shown_as
}

/// A set of signals of the first thread of a process, by its field (proc_pid_status(5)).
fn signals(status: &ProcessStatus, name: &str) -> Option<u64> {
    u64::from_str_radix(status.field(name)?, 16).ok()
}

/// Whether a signal is there for the first thread of `pid` that it does not block. Yes where that cannot be told.
fn has_signals(pid: u32) -> bool {
    let Ok(status) = ProcessStatus::of(pid) else { return true };
    match ["SigPnd", "ShdPnd", "SigBlk"].map(|name| signals(&status, name)) {
        [Some(own), Some(shared), Some(blocked)] => (own | shared) & !blocked != 0,
        _ => true,
    }
}

/// Whether the first thread of `pid` runs, or waits in a system call that goes on as if nothing had been when the thread is
/// stopped. Others fail with EINTR, even though no signal comes, or begin to count their time anew (signal(7)). Who seizes a
/// process that waits within execve(2) waits with it, and takes a set-user-ID program its rights.
fn is_interruptible(pid: u32) -> bool {
    const CALLS: [libc::c_long; 11] = [
        libc::SYS_wait4,
        libc::SYS_waitid,
        libc::SYS_futex,
        libc::SYS_nanosleep,
        libc::SYS_clock_nanosleep,
        libc::SYS_poll,
        libc::SYS_ppoll,
        libc::SYS_select,
        libc::SYS_pselect6,
        libc::SYS_pause,
        libc::SYS_rt_sigsuspend,
    ];
    /// An exec, and waits for a child that has its parent's memory, as long as it likes.
    const NEVER: [libc::c_long; 5] =
        [libc::SYS_execve, libc::SYS_execveat, libc::SYS_vfork, libc::SYS_clone, libc::SYS_clone3];
    /// Waits that nothing interrupts: for a disk.
    const DISK: char = 'D';
    let call = std::fs::read_to_string(format!("/proc/{pid}/syscall")).unwrap_or_default();
    // `running`, or -1 of a thread that waits, but not in a call: for a page.
    match call.split_ascii_whitespace().next().and_then(|number| number.parse().ok()) {
        Some(-1) | None => true,
        Some(number) => {
            let is_for_disk = || ProcessStatus::of(pid).is_ok_and(|status| state(&status) == Some(DISK));
            CALLS.contains(&number) || !NEVER.contains(&number) && is_for_disk()
        }
    }
}

/// Whether two processes have one address space, as a child of vfork(2) and its parent do. Yes where that cannot be told.
pub fn shares_memory(pid: u32, with: u32) -> bool {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: takes numbers only.
    let order =
        unsafe { libc::syscall(libc::SYS_kcmp, pid as libc::pid_t, with as libc::pid_t, KCMP_VM, 0, 0) };
    // Who has outlived the other has its own.
    let has_ended = order < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
    order <= 0 && !has_ended
}

/// Looks up what visits look up once: to be called before this process is [copied](crate::copied), by threads that wait for each other then.
pub fn get_ready() {
    LazyLock::force(&OWN_OFFSET);
}

/// Where the vDSO of `pid` lies; `None` where it has none, or the process is a 32-bit one.
fn vdso_of(pid: u32) -> Option<u64> {
    let (_, address) = auxv::entries(pid).into_iter().find(|&(kind, _)| kind == libc::AT_SYSINFO_EHDR)?;
    (address % 4096 == 0).then_some(address)
}

/// How far into the vDSO a system call instruction stands. The kernel maps the same one into all 64-bit processes.
static OWN_OFFSET: LazyLock<Option<u64>> = LazyLock::new(|| {
    let base = vdso_of(std::process::id())?;
    let mut code = [0; 4096];
    let memory = File::open("/proc/self/mem").ok()?;
    let read = memory.read_at(&mut code, base).ok()?;
    let at = code[..read].windows(2).position(|bytes| bytes == SYSCALL_INSTRUCTION)?;
    Some(at as u64)
});

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::path::PathBuf;
    use std::process::Command;

    use prepage_testing::{Need, freezing_groups, has};

    use super::*;
    use crate::forked::Forked;
    use crate::processor_time;

    #[test]
    fn a_visit_that_is_given_up_leaves_the_process_running() {
        let mut child = Command::new("sleep").arg("1").spawn().unwrap();
        for begin in [Visit::begin, Visit::at_exec] {
            // While it is loaded it cannot be disturbed.
            while matches!(begin(child.id()).map(drop), Err(VisitError::Busy)) {
                std::thread::yield_now();
            }
        }
        assert!(child.wait().unwrap().success());
    }

    /// It may wait for what its user does.
    #[test]
    fn who_gives_up_a_visit_to_a_process_that_cannot_stop_does_not_wait_for_it() {
        if !has(Need::Tracing) {
            return;
        }
        let child = Forked::new(|| {
            // SAFETY: without CLONE_VM a fork, whose parent waits until the child ends.
            match unsafe { libc::syscall(libc::SYS_clone, libc::CLONE_VFORK | libc::SIGCHLD, 0, 0, 0, 0) } {
                0 => {
                    std::thread::sleep(Duration::from_secs(6));
                    0
                }
                _ => 7,
            }
        })
        .unwrap();
        let pid = child.pid();
        while state(&ProcessStatus::of(pid).unwrap()) != Some('D') {
            assert!(!has_ended(&ProcessStatus::of(pid).unwrap()), "it was not looked at in time");
            std::thread::yield_now();
        }
        let took = std::thread::spawn(move || {
            let mut visit = Visit::of(pid, false).unwrap();
            ptrace::seize_alone(pid).unwrap();
            ptrace::interrupt(pid).unwrap();
            visit.is_held = true;
            let began = std::time::Instant::now();
            assert!(visit.end(|_| ()).is_none());
            drop(visit);
            began.elapsed()
        });
        let took = took.join().unwrap();
        let tracer = ProcessStatus::of(pid).unwrap().field("TracerPid").map(str::to_owned);
        assert_eq!(child.wait().unwrap().exit_status(), Some(7));
        assert_eq!(tracer.as_deref(), Some("0"));
        assert!(took < Duration::from_secs(3), "{took:?}");
    }

    #[test]
    fn who_traces_the_visitor_is_not_visited() {
        if !has(Need::Tracing) {
            return;
        }
        let (mut told, mut tell) = std::io::pipe().unwrap();
        let traced = std::process::id();
        let tracer = Forked::new(|| {
            ptrace::seize_alone(traced).unwrap();
            tell.write_all(&std::process::id().to_ne_bytes()).unwrap();
            loop {
                std::thread::park();
            }
        });
        let mut pid = [0; 4];
        told.read_exact(&mut pid).unwrap();
        let pid = u32::from_ne_bytes(pid);
        let is_left_alone = matches!(Visit::begin(pid), Err(VisitError::Tracer));
        tracer.unwrap().kill().unwrap();
        assert!(is_left_alone);
    }

    #[test]
    fn a_visitor_that_panics_leaves_the_process_running() {
        let mut child = Command::new("sleep").arg("3").spawn().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let pid = child.id();
        std::thread::spawn(move || {
            let panicked = catch_unwind(|| {
                loop {
                    match visited(pid, || panic!("as a visitor may")) {
                        Some(Ok(())) => unreachable!("it panics"),
                        // It got no processor.
                        Some(Err(VisitError::Busy)) => {}
                        ended => return ended.map(|ended| ended.unwrap_err()),
                    }
                }
            });
            let _ = tell.send(panicked.map_err(drop));
        });
        let limit = std::time::Duration::from_secs(60);
        let panicked = told.recv_timeout(limit).expect("it waits for a process that stands still");
        assert!(child.wait().unwrap().success());
        match panicked {
            // There can be none here, and that is counted.
            Err(()) | Ok(None) => {}
            Ok(error) => panic!("{error:?}"),
        }
    }

    /// Runs `act` while a visit holds `pid`. Returns how the visit ended; `None` where there can be none.
    fn visited<T>(pid: u32, act: impl Fn() -> T) -> Option<Result<T, VisitError>> {
        let mut visit = loop {
            match Visit::begin(pid) {
                Ok(visit) => break visit,
                Err(VisitError::Busy) => std::thread::yield_now(),
                Err(error) => return Some(Err(error)),
            }
        };
        loop {
            match visit.end(|_| act()) {
                Some(Err(VisitError::NoUserfaultfd(error))) => {
                    prepage_testing::skip(Need::Root, error);
                    return None;
                }
                Some(ended) => return Some(ended),
                None => std::thread::yield_now(),
            }
        }
    }

    /// As the kernel does when memory is short.
    #[test]
    fn a_visitor_that_is_killed_leaves_the_process_running() {
        if !has(Need::Tracing) || !has(Need::Linux(6, 7)) {
            return;
        }
        let sleeps = || {
            std::thread::sleep(Duration::from_secs(3));
            7
        };
        let works = || {
            let until = Instant::now() + Duration::from_secs(3);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            7
        };
        for work in [sleeps as fn() -> i32, works] {
            let child = Forked::new(work).unwrap();
            let visitor = Forked::new(|| {
                let die = || {
                    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                };
                loop {
                    match visited(child.pid(), die) {
                        // It got no processor.
                        Some(Err(VisitError::Busy)) => {}
                        ended => return i32::from(ended.is_some()),
                    }
                }
            });
            let visitor = visitor.unwrap().wait().unwrap();
            let ended = child.wait().unwrap();
            if visitor.exit_status() == Some(0) {
                return;
            }
            assert_eq!(visitor.terminating_signal(), Some(libc::SIGKILL));
            assert_eq!((ended.exit_status(), ended.terminating_signal()), (Some(7), None));
        }
    }

    #[test]
    fn a_visitor_that_panics_while_the_process_is_killed_panics_all_the_same() {
        if !has(Need::Tracing) || !has(Need::Linux(6, 7)) {
            return;
        }
        let child = Forked::new(|| {
            std::thread::sleep(Duration::from_secs(60));
            7
        })
        .unwrap();
        let pid = child.pid();
        let visitor = Forked::new(|| {
            let kill_and_panic = || -> () {
                let process = Pid::from_raw(pid as i32).unwrap();
                rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
                while !has_ended(&ProcessStatus::of(pid).unwrap()) {
                    std::thread::yield_now();
                }
                resume_unwind(Box::new("as a visitor may"))
            };
            loop {
                match catch_unwind(|| visited(pid, kill_and_panic)) {
                    Err(_) => return 0,
                    Ok(None) => return 1,
                    // It got no processor.
                    Ok(Some(Err(VisitError::Busy))) => {}
                    Ok(Some(_)) => return 2,
                }
            }
        });
        let visitor = visitor.unwrap().wait().unwrap().exit_status();
        let killed = if visitor == Some(0) { child.wait() } else { child.kill() };
        assert!(matches!(visitor, Some(0 | 1)), "{visitor:?}");
        assert_eq!(killed.unwrap().terminating_signal(), Some(libc::SIGKILL));
    }

    /// A control group of version 2 whose processes are frozen until it is dropped.
    struct Frozen(PathBuf);

    impl Frozen {
        fn with(pid: u32) -> Self {
            let group = Self(freezing_groups().join(format!("prepage-test-{pid}")));
            std::fs::create_dir(&group.0).unwrap();
            let write = |file: &str, text: &str| std::fs::write(group.0.join(file), text).unwrap();
            write("cgroup.procs", &pid.to_string());
            write("cgroup.freeze", "1");
            while !std::fs::read_to_string(group.0.join("cgroup.events")).unwrap().contains("frozen 1") {
                std::thread::yield_now();
            }
            group
        }
    }

    impl Drop for Frozen {
        fn drop(&mut self) {
            let processes = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            processes.lines().for_each(|pid| _ = std::fs::write(freezing_groups().join("cgroup.procs"), pid));
            let _ = std::fs::remove_dir(&self.0);
        }
    }

    #[test]
    fn a_process_that_is_frozen_is_not_waited_for() {
        if !has(Need::FreezingGroup) {
            return;
        }
        let child = Forked::new(|| {
            std::thread::sleep(Duration::from_secs(1));
            7
        })
        .unwrap();
        let pid = child.pid();
        let frozen = Frozen::with(pid);
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let ended = visited(pid, || ());
            tell.send((ended, processor_time::of_this_thread()))
        });
        let told = told.recv_timeout(Duration::from_secs(10));
        let tracer = ProcessStatus::of(pid).unwrap().field("TracerPid").map(str::to_owned);
        drop(frozen);
        let exited = child.wait().unwrap().exit_status();
        assert!(matches!(told, Ok((None | Some(Err(VisitError::Busy)), _))), "{told:?}");
        // Of 50 ms.
        assert!(told.as_ref().unwrap().1 < Duration::from_millis(20), "{told:?}");
        assert_eq!((tracer.as_deref(), exited), (Some("0"), Some(7)));
    }

    /// Programs that end at once are common, and nobody refused anything.
    #[test]
    fn a_process_that_has_ended_is_gone_and_not_refused() {
        let mut child = Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        let how = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(pid), how).unwrap();
        assert!(matches!(Visit::begin(child.id()), Err(VisitError::Gone)));
        assert!(matches!(refused(child.id(), io::Error::from_raw_os_error(libc::EPERM)), VisitError::Gone));
        child.wait().unwrap();
        for nobody in [child.id(), 0, u32::MAX] {
            assert!(matches!(Visit::begin(nobody), Err(VisitError::Gone)), "{nobody}");
        }
    }
}
