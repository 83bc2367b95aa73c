//! A child of fork(2) starts threads although one of its parent's was just ending.
//!
//! Alone in its process: the allocator is all of the program's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use prepage_sys::forked::Forked;
use prepage_sys::sync::spawn;

/// The length of a name that nothing else here has. The standard library frees its copy when the thread ends, under the lock of its list of threads.
const NAME_BYTES: usize = 97;
/// 1 once a thread of such a name ends, which goes on when it is 2.
static ENDING: AtomicU32 = AtomicU32::new(0);

struct Slow;

// SAFETY: it is the system's, but for a wait.
unsafe impl GlobalAlloc for Slow {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, len: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, len) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        let is_name = layout.size() == NAME_BYTES && layout.align() == 1;
        if is_name && ENDING.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            while ENDING.load(Ordering::SeqCst) != 2 {
                std::thread::yield_now();
            }
        }
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Slow = Slow;

#[test]
fn a_child_starts_threads_though_one_of_its_parents_was_just_ending() {
    let ending = std::thread::Builder::new().name("n".repeat(NAME_BYTES)).spawn(|| {}).unwrap();
    let began = Instant::now();
    while ENDING.load(Ordering::SeqCst) != 1 {
        assert!(began.elapsed() < Duration::from_secs(60), "the thread does not end, or keeps its name");
        std::thread::yield_now();
    }
    let child = Forked::new(|| {
        // SAFETY: ends a child that would wait for ever.
        unsafe { libc::alarm(20) };
        let (tell, told) = channel();
        let started = spawn("of-a-child", move || tell.send(0).unwrap());
        started.map_or(1, |_| told.recv().unwrap_or(2))
    });
    ENDING.store(2, Ordering::SeqCst);
    ending.join().unwrap();
    let status = child.unwrap().wait().unwrap();
    assert_eq!(status.exit_status(), Some(0), "{status:?}");
}
