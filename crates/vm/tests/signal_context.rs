//! Faults that are served in a signal handler allocate nothing there: the program may be in the middle of an allocation. So it
//! may be while a signal handler of its own waits for a handler thread, which allocates nothing either.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use prepage_core::PageIndex;
use prepage_core::policy::Policy;
use prepage_core::policy::predicted::Predicted;
use prepage_core::profile::Extent;
use prepage_vm::{Advice, Map, MapOptions, Mode, Piece, Source, SourceError, Vm, VmOptions};
use support::{Words, file, modes, pages, word};

/// The thread that touches a map now, and what it allocated meanwhile.
static TOUCHES: AtomicU32 = AtomicU32::new(0);
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Threads that answer messages, and what they allocated.
static ANSWERING: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
static ALLOCATED_BY_THEM: AtomicU64 = AtomicU64::new(0);

/// The thread that lists backings now, and how often it allocated while a signal's handler could run.
static LISTS: AtomicU32 = AtomicU32::new(0);
static ALLOCATED_OPENLY: AtomicU64 = AtomicU64::new(0);

struct Watching;

/// Whether this thread holds signals back.
fn is_masked() -> bool {
    // SAFETY: both only write to the set, which is a plain value.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
        libc::sigismember(&set, libc::SIGUSR1) == 1
    }
}

fn look() {
    if ANSWERING[0].load(Ordering::Relaxed) != 0 {
        let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let answers = ANSWERING.iter().any(|tid| tid.load(Ordering::Relaxed) == own);
        ALLOCATED_BY_THEM.fetch_add(u64::from(answers), Ordering::Relaxed);
    }
    let lists = LISTS.load(Ordering::SeqCst);
    if lists != 0 && rustix::thread::gettid().as_raw_nonzero().get() as u32 == lists && !is_masked() {
        ALLOCATED_OPENLY.fetch_add(1, Ordering::SeqCst);
    }
    let touches = TOUCHES.load(Ordering::SeqCst);
    if touches != 0 && rustix::thread::gettid().as_raw_nonzero().get() as u32 == touches {
        ALLOCATED.fetch_add(1, Ordering::SeqCst);
    }
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        look();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static WATCHING: Watching = Watching;

/// Touches a page of `map`, all of it in signal context.
fn touch(map: &Map, page: u64) -> u64 {
    let at = (map.address() + page * 4096) as *const u64;
    TOUCHES.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
    // SAFETY: a page of the map, and any bytes are a number.
    let found = unsafe { at.read_volatile() };
    TOUCHES.store(0, Ordering::SeqCst);
    found
}

/// Reads from another map.
struct Nested(OnceLock<Map>);

impl Source for Nested {
    fn len_bytes(&self) -> u64 {
        1024 * 4096
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.copy_from_slice(&self.0.get().expect("set").as_slice()[offset_bytes as usize..][..into.len()]);
        Ok(())
    }
}

#[test]
fn a_fault_in_signal_context_allocates_nothing() {
    const PAGES: u64 = 1024;
    let local = file(PAGES * 4096);
    let vm = Vm::new(VmOptions::default().record_faults(1 << 16)).unwrap();
    let words = || Words { len_bytes: PAGES * 4096, reads: Arc::default() };
    let inner = vm.map(&vm.source("inner", words()).unwrap(), &MapOptions::shared()).unwrap();
    let nested = OnceLock::new();
    nested.set(inner).unwrap();
    let objects = [
        vm.file(local.path()).unwrap(),
        vm.source("words", words()).unwrap(),
        vm.source("nested", Nested(nested)).unwrap(),
    ];
    // What is allocated in a handler is seen.
    TOUCHES.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
    drop(std::hint::black_box(Box::new(7)));
    TOUCHES.store(0, Ordering::SeqCst);
    assert_eq!(ALLOCATED.swap(0, Ordering::SeqCst), 2);

    let extents = [Extent::new(pages(0, 1), 0), Extent::new(pages(64, 900), 1)];
    let predicted = Policy::Predicted(Predicted::new(&extents, 16));
    let policies = ["none", "aligned:16", "adaptive", "linux-data", "linux-exec", "sequential:63", "slurp"]
        .map(|text| text.parse().unwrap())
        .into_iter()
        .chain([predicted]);
    for policy in policies {
        for object in &objects {
            object.evict(object.pages()).unwrap();
            let _ = prepage_sys::cachestat::evict(
                std::os::fd::AsFd::as_fd(local.as_file()),
                std::time::Duration::ZERO,
            );
            for options in [MapOptions::shared(), MapOptions::private()] {
                let map = vm.map(object, &options.policy(policy.clone())).unwrap();
                for page in (0..PAGES).step_by(7).chain((0..PAGES).rev().step_by(5)) {
                    assert_eq!(touch(&map, page), word(page * 4096));
                }
                map.advise(Advice::Sequential).unwrap();
                (0..PAGES).step_by(3).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
            }
        }
    }
    let zeros = vm.anonymous(64 << 20).unwrap();
    for options in [MapOptions::private(), MapOptions::private().huge_pages()] {
        let map = vm.map(&zeros, &options).unwrap();
        (0..64 << 8).step_by(111).for_each(|page| assert_eq!(touch(&map, page), 0));
    }
    let pieces = [Piece::new(&objects[0], pages(5, 99)).copied(), Piece::new(&objects[1], pages(0, 50))];
    let map = vm.map_pieces(&pieces, &MapOptions::private()).unwrap();
    (0..94).for_each(|page| assert_eq!(touch(&map, page), word((page + 5) * 4096)));
    (0..50).for_each(|page| assert_eq!(touch(&map, 94 + page), word(page * 4096)));
    // Saved pages are read in the place of the touch.
    let directory = tempfile::tempdir().unwrap();
    let words = vm.map(&objects[1], &MapOptions::private()).unwrap();
    let mut written = vm.map(&zeros, &MapOptions::private()).unwrap();
    written.as_mut_slice()[..words.as_slice().len()].copy_from_slice(words.as_slice());
    written.snapshot().unwrap().save(directory.path()).unwrap();
    let opened = vm.map(&vm.open_snapshot(directory.path()).unwrap(), &MapOptions::private()).unwrap();
    (0..PAGES).step_by(7).for_each(|page| assert_eq!(touch(&opened, page), word(page * 4096)));
    assert!(vm.statistics().counted.soft > 0 && vm.statistics().counted.hard > 0);
    assert_eq!(ALLOCATED.load(Ordering::SeqCst), 0, "allocated or freed in signal handlers");
}

/// The list is made under the lock that reclaim takes, and a handler's touch may wait for what reclaim frees.
#[test]
fn no_handler_runs_while_backings_are_listed() {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.anonymous(16 * 4096).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    LISTS.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, Ordering::SeqCst);
    drop(std::hint::black_box(Box::new(7)));
    let seen = ALLOCATED_OPENLY.swap(0, Ordering::SeqCst);
    let backings = object.backings();
    let openly = ALLOCATED_OPENLY.load(Ordering::SeqCst);
    let mappings = object.mappings_of(PageIndex(0)).unwrap();
    LISTS.store(0, Ordering::SeqCst);
    assert_eq!((seen, openly), (2, 0), "what is allocated openly is seen, and backings are not");
    assert_eq!((backings.len(), mappings.len()), (1, 0));
    drop(map);
}

#[test]
fn a_thread_that_answers_messages_allocates_nothing() {
    const PAGES: u64 = 1024;
    let local = file(PAGES * 4096);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(local.path()).unwrap();
    if !modes(&vm, &object).contains(&Mode::Handler) {
        return;
    }
    let options = MapOptions::shared().mode(Mode::Handler).every_fault().policy("none".parse().unwrap());
    let map = vm.map(&object, &options).unwrap();
    // Every page once: the threads have started, and the file is in the page cache.
    (0..PAGES).for_each(|page| assert_eq!(support::touch(&map, page), word(page * 4096)));
    object.evict(object.pages()).unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let answering = tasks.filter(|task| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == "prepage-fault")
    });
    let tids: Vec<u32> = answering.map(|task| task.file_name().to_str().unwrap().parse().unwrap()).collect();
    assert!(!tids.is_empty());
    ANSWERING.iter().zip(tids).rev().for_each(|(place, tid)| place.store(tid, Ordering::SeqCst));
    std::thread::scope(|scope| {
        for part in 0..2 {
            let map = &map;
            scope.spawn(move || {
                for _ in 0..4 {
                    for page in part * PAGES / 2..(part + 1) * PAGES / 2 {
                        assert_eq!(support::touch(map, page), word(page * 4096));
                    }
                    map.advise(Advice::DontNeed(pages(part * PAGES / 2, (part + 1) * PAGES / 2))).unwrap();
                }
            });
        }
    });
    ANSWERING.iter().for_each(|place| place.store(0, Ordering::SeqCst));
    assert_eq!(ALLOCATED_BY_THEM.load(Ordering::SeqCst), 0);
}
