//! An allocator may have handlers of fork(3) that take its locks, as jemalloc has. They run before this crate's handler takes its lock, so
//! nobody who holds that may wait for the allocator.
//!
//! Alone in its process: handlers of fork(3) stay for good.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use prepage_sys::made_once::MadeOnce;
use prepage_sys::region::{Contents, Region};

/// The allocator's lock.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

fn lock() {
    while IS_LOCKED.swap(true, Ordering::Acquire) {
        // SAFETY: the call offers the CPU, and does nothing else.
        unsafe { libc::sched_yield() };
    }
}

fn unlock() {
    IS_LOCKED.store(false, Ordering::Release);
}

extern "C" fn before() {
    lock();
}

extern "C" fn after() {
    unlock();
}

struct Locked;

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Locked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        lock();
        // SAFETY: as the caller promises.
        let at = unsafe { System.alloc(layout) };
        unlock();
        at
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        lock();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) };
        unlock();
    }
}

#[global_allocator]
static LOCKED: Locked = Locked;

/// Forks once, and waits for the child.
fn fork() {
    // SAFETY: the child leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: ends the child without running anything of the parent's.
        unsafe { libc::_exit(0) };
    }
    // SAFETY: nobody asks how it ended.
    assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
}

#[test]
fn who_forks_waits_for_nobody_who_waits_for_the_allocator() {
    // SAFETY: whoever waits for ever is ended.
    unsafe { libc::alarm(60) };
    // SAFETY: the handlers take and give back a lock of this test.
    assert_eq!(unsafe { libc::pthread_atfork(Some(before), Some(after), Some(after)) }, 0);
    // A value that takes a while to be made.
    static VALUE: MadeOnce<Box<u64>> = MadeOnce::new();
    static BEGUN: AtomicU32 = AtomicU32::new(0);
    let makes = thread::spawn(|| {
        **VALUE.get_or_make(|| {
            BEGUN.store(1, Ordering::SeqCst);
            thread::sleep(Duration::from_millis(200));
            Box::new(7)
        })
    });
    while BEGUN.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    fork();
    assert_eq!(makes.join().unwrap(), 7);
    // Regions that come and go.
    let end = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let map = || Region::map(4096, Contents::Anonymous).unwrap();
            while !end.load(Ordering::SeqCst) {
                drop((0..200).map(|_| map()).collect::<Vec<_>>());
            }
        });
        (0..300).for_each(|_| fork());
        end.store(true, Ordering::SeqCst);
    });
}
