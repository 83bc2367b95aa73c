//! An allocator for a process of few threads that wait for each other as little as possible: a heap for the first thread, and some for
//! the others.
//!
//! One heap has one lock. Whoever loses its processor while it holds that makes all others wait, and the thread that observes a start has
//! programs that wait for it: on a busy machine with two processors, for ten milliseconds at a time.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::{Cell, UnsafeCell};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use dlmalloc::Dlmalloc;

use crate::raw_lock::RawLock;

const HEAPS: usize = 4;

/// In front of each block stands which heap it is of, behind what its alignment asks for.
const HEADER_BYTES: usize = 16;

/// Memory of several heaps, as `#[global_allocator]`.
#[derive(Debug)]
pub struct Heaps;

static ALL: [Heap; HEAPS] = [const { Heap::new() }; HEAPS];

struct Heap {
    lock: RawLock,
    /// Under `lock`.
    inner: UnsafeCell<Dlmalloc>,
}

// SAFETY: `inner` is reached under the lock alone.
unsafe impl Sync for Heap {}

impl Heap {
    const fn new() -> Self {
        Self { lock: RawLock::new(), inner: UnsafeCell::new(Dlmalloc::new()) }
    }

    /// Does `work`, which neither allocates nor panics, while no other thread has the heap.
    fn locked<T>(&self, work: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        self.lock.lock();
        // SAFETY: this thread holds the lock.
        let done = work(unsafe { &mut *self.inner.get() });
        self.lock.unlock();
        done
    }
}

/// Gives the system what the heaps have free at their ends, as far as they can: a process that has done its work and has to wait for
/// others keeps what it uses. A heap that some thread has just now is left as it is: in a copy of a process it may be nobody who ever goes on.
pub fn give_back() {
    for heap in ALL.iter().filter(|heap| heap.lock.try_lock()) {
        // SAFETY: this thread holds the lock, and nothing that is in use moves.
        unsafe { (*heap.inner.get()).trim(0) };
        heap.lock.unlock();
    }
}

/// The number of the calling thread's heap: the first thread that asks has the first one for itself.
fn own() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    const NONE: usize = usize::MAX;
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(NONE) };
    }
    OWN.with(|own| {
        if own.get() == NONE {
            let thread = THREADS.fetch_add(1, Ordering::Relaxed);
            own.set(if thread == 0 { 0 } else { 1 + (thread - 1) % (HEAPS - 1) });
        }
        own.get()
    })
}

/// How far behind the beginning of what the heap gives a block begins.
fn header_bytes(layout: Layout) -> usize {
    HEADER_BYTES.max(layout.align())
}

/// What to ask the heap for; `None` where that is more than there can be.
fn with_header(layout: Layout, size: usize) -> Option<usize> {
    size.checked_add(header_bytes(layout))
}

/// Makes what the heap `number` gave a block.
///
/// # Safety
/// `given` is null or has room for the header of `layout`, aligned as that is.
unsafe fn marked(given: *mut u8, layout: Layout, number: usize) -> *mut u8 {
    if given.is_null() {
        return given;
    }
    // SAFETY: the header has room for it, as the caller says, and its end is aligned for any number.
    unsafe {
        let block = given.add(header_bytes(layout));
        block.cast::<usize>().sub(1).write(number);
        block
    }
}

/// The number of the heap that a block is of, and what that heap gave.
///
/// # Safety
/// `block` is one that [`marked`] made of this `layout`.
unsafe fn taken_apart(block: *mut u8, layout: Layout) -> (usize, *mut u8) {
    // SAFETY: as the caller says.
    unsafe { (block.cast::<usize>().sub(1).read(), block.sub(header_bytes(layout))) }
}

// SAFETY: blocks are parts of what a heap gives, behind a header that keeps their alignment, and go back to the heap that is named there.
unsafe impl GlobalAlloc for Heaps {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(size) = with_header(layout, layout.size()) else { return null_mut() };
        let number = own();
        // SAFETY: the size is not zero, and what is given has it.
        unsafe { marked(ALL[number].locked(|heap| heap.malloc(size, layout.align())), layout, number) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(size) = with_header(layout, layout.size()) else { return null_mut() };
        let number = own();
        // SAFETY: as above.
        unsafe { marked(ALL[number].locked(|heap| heap.calloc(size, layout.align())), layout, number) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller got it here, with this layout.
        unsafe {
            let (number, given) = taken_apart(block, layout);
            let size = layout.size() + header_bytes(layout);
            ALL[number].locked(|heap| heap.free(given, size, layout.align()));
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        let Some(size) = with_header(layout, new_size) else { return null_mut() };
        // SAFETY: as above; the header is kept with the rest.
        unsafe {
            let (number, given) = taken_apart(block, layout);
            let before = layout.size() + header_bytes(layout);
            let given = ALL[number].locked(|heap| heap.realloc(given, before, layout.align(), size));
            marked(given, layout, number)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fills a block with a pattern of its own.
    unsafe fn fill(block: *mut u8, len: usize, seed: u8) {
        // SAFETY: as the caller says.
        unsafe { std::slice::from_raw_parts_mut(block, len) }.fill(seed);
    }

    unsafe fn holds(block: *mut u8, len: usize, seed: u8) -> bool {
        // SAFETY: as the caller says.
        unsafe { std::slice::from_raw_parts(block, len) }.iter().all(|&byte| byte == seed)
    }

    /// Each block is grown by another thread than made it, and freed by a third.
    #[test]
    fn blocks_keep_what_they_hold_whichever_thread_has_them() {
        const BLOCKS: usize = 2000;
        fn layout_of(at: usize) -> Layout {
            Layout::from_size_align(1 + at * 37 % 5000, 1 << (at % 8)).unwrap()
        }
        let pass = |blocks: Vec<usize>, work: fn(usize, *mut u8, Layout) -> usize| -> Vec<usize> {
            let work = move || {
                let all = blocks.into_iter().enumerate();
                all.map(|(at, block)| work(at, block as *mut u8, layout_of(at))).collect()
            };
            std::thread::spawn(work).join().unwrap()
        };
        let made = pass(vec![0; BLOCKS], |at, _, layout| {
            // SAFETY: the size is not zero; the block is as long as it was asked for.
            unsafe {
                let block = if at % 3 == 0 { Heaps.alloc_zeroed(layout) } else { Heaps.alloc(layout) };
                assert!(!block.is_null() && (block as usize).is_multiple_of(layout.align()));
                assert!(at % 3 != 0 || holds(block, layout.size(), 0));
                fill(block, layout.size(), at as u8);
                block as usize
            }
        });
        let grown = pass(made, |at, block, layout| {
            // SAFETY: the block was made with this layout.
            unsafe {
                let block = Heaps.realloc(block, layout, layout.size() * 3);
                assert!(!block.is_null() && (block as usize).is_multiple_of(layout.align()));
                assert!(holds(block, layout.size(), at as u8), "{at}");
                block as usize
            }
        });
        pass(grown, |at, block, layout| {
            let layout = Layout::from_size_align(layout.size() * 3, layout.align()).unwrap();
            // SAFETY: the block was grown to this layout.
            unsafe {
                assert!(holds(block, layout.size() / 3, at as u8), "{at}");
                Heaps.dealloc(block, layout);
            }
            0
        });
    }

    #[test]
    fn more_than_there_can_be_is_not_given() {
        let layout = Layout::from_size_align(isize::MAX as usize - 7, 8).unwrap();
        // SAFETY: the size is not zero.
        assert!(unsafe { Heaps.alloc(layout) }.is_null());
    }

    #[test]
    fn threads_that_follow_each_other_have_different_heaps() {
        let numbers: Vec<usize> = (0..2 * HEAPS).map(|_| std::thread::spawn(own).join().unwrap()).collect();
        assert!(numbers.iter().all(|&number| number < HEAPS), "{numbers:?}");
        // Threads of other tests take their turns meanwhile.
        assert!(
            numbers.iter().filter(|&&number| number == 0).count() <= 1,
            "the first heap is one thread's: {numbers:?}"
        );
    }
}
