//! SIGBUS, seen first by a resolver of this process and otherwise by whoever handled it before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fork::without_forks;
use crate::signals::Endings;

/// Resolves the fault that a signal tells of, in the context of the signal: it may not allocate, nor take a lock that
/// code holds while it touches memory the resolver answers for.
pub type Resolver = fn(&BusFault) -> Verdict;

/// What a SIGBUS tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusFault {
    /// The address that was touched.
    pub address: u64,
    /// The instruction that touched it; 0 where this architecture is not known.
    pub ip: u64,
    /// Whether it was written to; `None` where this architecture is not known.
    pub write: Option<bool>,
    /// Whether a page was there that may not be touched so; false where this architecture is not known.
    pub protected: bool,
    /// What may end the process while the fault is resolved.
    pub endings: Endings,
}

/// What a resolver found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The touch can be repeated.
    Resolved,
    /// The address is not one it answers for.
    NotOurs,
    /// It is, and cannot be resolved. The handler from before, and by default the end of the process, follow.
    Failed,
}

struct Installed {
    resolver: Resolver,
    before: libc::sigaction,
    /// Whether `before` was for one signal (SA_RESETHAND) and has had it: the default action has taken its place, as the kernel
    /// would have it.
    is_spent: AtomicBool,
}

static INSTALLED: OnceLock<Installed> = OnceLock::new();

/// Installs `resolver` for the whole process, once: later calls change nothing.
///
/// Signals that it does not resolve go to the action that was installed before, with its mask and flags but SA_ONSTACK: it runs on the
/// stack that was interrupted, whatever alternate stack there is. Threads that block SIGBUS cannot use what the resolver answers for: the
/// kernel ends the process.
pub fn install(resolver: Resolver) -> io::Result<()> {
    static OUTCOME: OnceLock<Result<(), i32>> = OnceLock::new();
    // No child waits for a thread that has begun it here.
    let outcome =
        *OUTCOME.get().unwrap_or_else(|| without_forks(|| OUTCOME.get_or_init(|| install_first(resolver))));
    outcome.map_err(io::Error::from_raw_os_error)
}

/// Allocates nothing.
fn install_first(resolver: Resolver) -> Result<(), i32> {
    let mut before = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the first call only reads the action in force.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), before.as_mut_ptr()) } == -1 {
        return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    // SAFETY: sigaction filled it in.
    let before = unsafe { before.assume_init() };
    // Known before the handler can run.
    let _ = INSTALLED.set(Installed { resolver, before, is_spent: AtomicBool::new(false) });
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: zeros are a valid sigaction; the handler has the signature that SA_SIGINFO asks for and keeps to
    // what signal handlers may do as far as the resolver does.
    let result = unsafe {
        let action = action.assume_init_mut();
        action.sa_sigaction = on_signal as *const () as usize;
        // On the thread's own stack: alternate stacks are often too small for what a fault may do (Rust's have 8 KiB).
        // Not deferred: a resolver may touch other memory that it answers for, in the middle of a resolution. The kernel
        // would end the process for it.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_NODEFER;
        // Other signals wait, as they do for the kernel's own faults: a handler of theirs that touched the page
        // which this thread is bringing in would wait for itself. Who sleeps in a resolution heeds those that end the process (`Endings`).
        libc::sigfillset(&mut action.sa_mask);
        libc::sigdelset(&mut action.sa_mask, libc::SIGBUS);
        libc::sigaction(libc::SIGBUS, action, ptr::null_mut())
    };
    if result == -1 { Err(io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(()) }
}

/// Whether SIGBUS still goes to the resolver: a handler that was installed after [`install`] takes its place.
pub fn is_installed() -> bool {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: the call only reads the action in force into a place for it; zeros are a valid one should it fail.
    let now = unsafe {
        libc::sigaction(libc::SIGBUS, ptr::null(), now.as_mut_ptr());
        now.assume_init()
    };
    now.sa_sigaction == on_signal as *const () as usize
}

extern "C" fn on_signal(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno belongs to this thread.
    let errno = unsafe { *libc::__errno_location() };
    let installed = INSTALLED.get().expect("set before the handler was installed");
    // SAFETY: the kernel gives a siginfo; code and address are plain words.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as u64) };
    // A page that could not be had. Other codes tell of broken memory (BUS_MCEERR_AR), which no resolver mends, or were sent
    // by kill(2) and the like.
    let verdict = if code == libc::BUS_ADRERR {
        let (ip, write, protected) = registers(context);
        // SAFETY: with SA_SIGINFO the kernel passes a ucontext, with the mask of the code that was interrupted.
        let endings = Endings::unblocked(unsafe { &(*context.cast::<libc::ucontext_t>()).uc_sigmask });
        (installed.resolver)(&BusFault { address, ip, write, protected, endings })
    } else {
        Verdict::NotOurs
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if verdict != Verdict::Resolved {
        pass_on(installed, signal, info, context);
    }
}

/// Does what would have been done without this module.
fn pass_on(
    installed: &Installed,
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let before = &installed.before;
    let is_for_one = before.sa_flags & libc::SA_RESETHAND != 0;
    let is_spent = is_for_one && installed.is_spent.swap(true, Ordering::Relaxed);
    let handler = if is_spent { libc::SIG_DFL } else { before.sa_sigaction };
    if handler == libc::SIG_IGN || handler == libc::SIG_DFL {
        // A fault cannot be ignored. The default action ends the process when this handler returns and the touch is
        // repeated; a signal of no touch is sent again.
        // SAFETY: installs no code; raise and the siginfo's plain word are safe in handlers.
        unsafe {
            // Sent by kill(2) and the like, or memory was found broken that nobody has touched.
            let is_of_no_touch = (*info).si_code <= 0 || (*info).si_code == libc::BUS_MCEERR_AO;
            if handler == libc::SIG_IGN && is_of_no_touch {
                return;
            }
            let mut default = MaybeUninit::<libc::sigaction>::zeroed();
            default.assume_init_mut().sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, default.as_ptr(), ptr::null_mut());
            if is_of_no_touch {
                libc::raise(signal);
            }
        }
        return;
    }
    // SAFETY: the address is that of the handler that was installed for this signal, with the signature that its flags
    // tell, and it gets what the kernel would have given it, under the mask that it asked for over that of the code
    // that was interrupted, which the context holds.
    unsafe {
        let mut wanted = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
        for other in 1..=libc::SIGRTMAX() {
            if libc::sigismember(&before.sa_mask, other) == 1 {
                libc::sigaddset(&mut wanted, other);
            }
        }
        if before.sa_flags & libc::SA_NODEFER == 0 {
            libc::sigaddset(&mut wanted, signal);
        }
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        libc::pthread_sigmask(libc::SIG_SETMASK, &wanted, mask.as_mut_ptr());
        if before.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                std::mem::transmute(handler);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(libc::c_int) = std::mem::transmute(handler);
            handler(signal);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, mask.as_ptr(), ptr::null_mut());
    }
}

/// The instruction, whether it wrote, and whether a page was there.
#[cfg(target_arch = "x86_64")]
fn registers(context: *mut libc::c_void) -> (u64, Option<bool>, bool) {
    // Bits of the page fault's error code.
    const PROTECTED: i64 = 1 << 0;
    const WRITE: i64 = 1 << 1;
    // SAFETY: with SA_SIGINFO the kernel passes a ucontext.
    let registers = unsafe { (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let error = registers[libc::REG_ERR as usize];
    (registers[libc::REG_RIP as usize] as u64, Some(error & WRITE != 0), error & PROTECTED != 0)
}

#[cfg(not(target_arch = "x86_64"))]
fn registers(_: *mut libc::c_void) -> (u64, Option<bool>, bool) {
    (0, None, false)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use super::*;
    use crate::forked::Forked;

    /// A handler that lets the default action follow returns or raises the signal again.
    #[test]
    fn a_handler_for_one_signal_gets_one() {
        static CALLS: AtomicU32 = AtomicU32::new(0);
        extern "C" fn for_one(signal: libc::c_int) {
            match CALLS.fetch_add(1, Ordering::Relaxed) {
                // SAFETY: raise may be called in handlers; the signal waits until this one returns.
                0 => drop(unsafe { libc::raise(signal) }),
                // SAFETY: so may _exit, which runs nothing of this process's.
                _ => unsafe { libc::_exit(3) },
            }
        }
        let child = Forked::new(|| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: zeros are a valid sigaction; the handler does what handlers may do. The signal is for this thread.
            unsafe {
                let told = action.assume_init_mut();
                (told.sa_sigaction, told.sa_flags) = (for_one as *const () as usize, libc::SA_RESETHAND);
                libc::sigaction(libc::SIGBUS, action.as_ptr(), ptr::null_mut());
                install(|_| Verdict::NotOurs).unwrap();
                libc::raise(libc::SIGBUS);
            }
            4
        });
        let ended = child.unwrap().wait().unwrap();
        assert_eq!(
            ended.terminating_signal(),
            Some(libc::SIGBUS),
            "3: it got another one, 4: none follows: {ended:?}"
        );
    }

    /// A touch is repeated, and ends the process then. Here nobody has touched anything.
    #[test]
    fn memory_that_is_found_broken_ends_the_process_unless_that_is_ignored() {
        for (disposition, signal) in [(libc::SIG_DFL, Some(libc::SIGBUS)), (libc::SIG_IGN, None)] {
            let child = Forked::new(|| {
                // SAFETY: SIG_DFL and SIG_IGN install no code.
                unsafe { libc::signal(libc::SIGBUS, disposition) };
                install(|_| Verdict::NotOurs).unwrap();
                let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
                // SAFETY: zeros are a siginfo, of which the kernel reads the words set here; the signal is for this process.
                let sent = unsafe {
                    let told = info.assume_init_mut();
                    (told.si_signo, told.si_code) = (libc::SIGBUS, libc::BUS_MCEERR_AO);
                    libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), libc::SIGBUS, info.as_ptr())
                };
                i32::from(sent != 0 || !(is_installed() || disposition == libc::SIG_DFL))
            });
            let ended = child.unwrap().wait().unwrap();
            assert_eq!(ended.terminating_signal(), signal);
            assert_eq!(ended.exit_status(), signal.is_none().then_some(0));
        }
    }
}
