//! SIGBUS is seen by the resolver first, and by the handler from before where it is not the resolver's.
//!
//! One test: a process has one action for a signal.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use prepage_core::{PageIndex, PageRange};
use prepage_sys::mapping::FileMapping;
use prepage_sys::sigbus::{self, BusFault, Verdict};

/// Where the file is mapped.
static MAPPED: AtomicU64 = AtomicU64::new(0);
static TRUNCATED: AtomicU64 = AtomicU64::new(0);
static RESOLVED: AtomicU64 = AtomicU64::new(0);
static PASSED_ON: AtomicU64 = AtomicU64::new(0);
static PASSED_CODE: AtomicI32 = AtomicI32::new(0);
static USR1_BLOCKED: AtomicBool = AtomicBool::new(false);
static USR2_BLOCKED: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);
static INTERRUPTED_WHILE_RESOLVING: AtomicBool = AtomicBool::new(false);

/// Which page of the truncated file the resolver answers for.
const OURS: u64 = 3;

fn is_blocked(signal: i32) -> bool {
    // SAFETY: reads this thread's mask into a set that the call fills in.
    unsafe {
        let mut mask = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut mask);
        libc::sigismember(&mask, signal) == 1
    }
}

fn grow() {
    let memfd = TRUNCATED.load(Ordering::SeqCst) as i32;
    // SAFETY: the descriptor is open as long as the test runs.
    assert_eq!(unsafe { libc::ftruncate(memfd, 8 * 4096) }, 0);
}

/// Resolves page [`OURS`] and no other.
fn resolve(fault: &BusFault) -> Verdict {
    if (fault.address - MAPPED.load(Ordering::SeqCst)) / 4096 != OURS {
        return Verdict::NotOurs;
    }
    assert_eq!(fault.write, cfg!(target_arch = "x86_64").then_some(false));
    // SAFETY: raising a signal that is blocked marks it as pending.
    unsafe { libc::raise(libc::SIGUSR2) };
    INTERRUPTED_WHILE_RESOLVING.store(INTERRUPTED.load(Ordering::SeqCst) > 0, Ordering::SeqCst);
    grow();
    RESOLVED.fetch_add(1, Ordering::SeqCst);
    Verdict::Resolved
}

extern "C" fn on_usr2(_: i32) {
    INTERRUPTED.fetch_add(1, Ordering::SeqCst);
}

extern "C" fn earlier(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: installed with SA_SIGINFO.
    PASSED_CODE.store(unsafe { (*info).si_code }, Ordering::SeqCst);
    USR1_BLOCKED.store(is_blocked(libc::SIGUSR1), Ordering::SeqCst);
    USR2_BLOCKED.store(is_blocked(libc::SIGUSR2), Ordering::SeqCst);
    PASSED_ON.fetch_add(1, Ordering::SeqCst);
    grow();
}

#[test]
fn the_resolver_is_asked_first_and_the_earlier_handler_next() {
    // SAFETY: handlers of the right signatures, that keep to what signal handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = earlier as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaddset(&mut action.sa_mask, libc::SIGUSR1);
        assert_eq!(libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_usr2 as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()), 0);
    }
    sigbus::install(resolve).unwrap();
    let memfd = rustix::fs::memfd_create("truncated", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(memfd);
    TRUNCATED.store(std::os::fd::AsRawFd::as_raw_fd(&file) as u64, Ordering::SeqCst);
    file.set_len(8 * 4096).unwrap();
    let mapping = FileMapping::new(file.as_fd(), PageRange::new(PageIndex(0), PageIndex(8))).unwrap();
    MAPPED.store(mapping.address(), Ordering::SeqCst);
    let touch = |page: u64| {
        file.set_len(0).unwrap();
        assert_eq!(mapping.byte(page * 4096), 0);
    };

    touch(OURS);
    assert_eq!((RESOLVED.load(Ordering::SeqCst), PASSED_ON.load(Ordering::SeqCst)), (1, 0));
    assert!(!INTERRUPTED_WHILE_RESOLVING.load(Ordering::SeqCst), "other signals wait for a fault");
    assert_eq!(INTERRUPTED.load(Ordering::SeqCst), 1, "and come after it");

    touch(OURS + 1);
    assert_eq!((RESOLVED.load(Ordering::SeqCst), PASSED_ON.load(Ordering::SeqCst)), (1, 1));
    assert_eq!(PASSED_CODE.load(Ordering::SeqCst), libc::BUS_ADRERR, "as the kernel told it");
    assert!(USR1_BLOCKED.load(Ordering::SeqCst), "its own mask holds");
    assert!(!USR2_BLOCKED.load(Ordering::SeqCst), "and no other");

    // SAFETY: a signal to this thread, for which there is a handler.
    unsafe { libc::raise(libc::SIGBUS) };
    assert_eq!((RESOLVED.load(Ordering::SeqCst), PASSED_ON.load(Ordering::SeqCst)), (1, 2));
    assert!(!is_blocked(libc::SIGUSR1) && !is_blocked(libc::SIGBUS), "masks are as before");
}
