//! No signal handler runs while fork(3) holds the lock of the regions that children do not inherit.
//!
//! Alone in its process: handlers of fork(3) stay for good.

use std::sync::atomic::{AtomicI32, Ordering};

/// Whether SIGALRM was blocked when a handler ran between this crate's: -1 before it ran.
static BLOCKED: AtomicI32 = AtomicI32::new(-1);

fn is_blocked(signal: i32) -> bool {
    let mut mask = std::mem::MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `mask` is a valid place for the mask, which pthread_sigmask fills in whole.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), mask.as_mut_ptr());
        libc::sigismember(mask.as_ptr(), signal) == 1
    }
}

extern "C" fn between() {
    BLOCKED.store(is_blocked(libc::SIGALRM).into(), Ordering::SeqCst);
}

/// Handlers that run before the fork run in reverse order: this one, registered first, after the crate's.
extern "C" fn register() {
    // SAFETY: the handler asks for a mask and stores a number.
    let kept = unsafe { libc::pthread_atfork(Some(between), None, None) };
    assert_eq!(kept, 0, "no memory for three addresses");
}

// SAFETY: .init_array holds pointers to functions of the C calling convention, which libc runs once before main. Those with a number
// come first, so before the crate's. The function touches nothing that needs an initialised runtime.
#[used]
#[unsafe(link_section = ".init_array.00101")]
static REGISTER: extern "C" fn() = register;

#[test]
fn signals_wait_until_the_fork_is_over() {
    prepage_sys::fork::generation();
    assert!(!is_blocked(libc::SIGALRM));
    // SAFETY: the child asks for its mask and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(is_blocked(libc::SIGALRM).into()) };
    }
    assert_eq!(BLOCKED.load(Ordering::SeqCst), 1, "no handler may run between");
    assert!(!is_blocked(libc::SIGALRM), "the parent goes on with its own mask");
    let mut status = -1;
    // SAFETY: `status` is a valid place for the result.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "and so does the child");
}
