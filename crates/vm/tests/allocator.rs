//! A signal handler may interrupt the allocator, whose lock is then held until the handler returns: what it touches must come although whoever
//! reclaims frames waits for that lock.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};
use prepage_vm::{Advice, Map, MapOptions, Mode, Pool, Vm, VmOptions};
use support::{file, modes, read, shared_word, word, write};

/// The thread that holds the allocator's lock, and whether somebody waited for it in vain.
static HOLDER: AtomicU32 = AtomicU32::new(0);
static IN_VAIN: AtomicBool = AtomicBool::new(false);
const PATIENCE: Duration = Duration::from_secs(20);

fn own_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

struct Locked;

/// Pages that the holder has got.
static TOUCHED_SO_FAR: AtomicU64 = AtomicU64::new(0);

/// The first word of page `page`.
fn touch(map: &Map, page: u64) -> u64 {
    let word = support::touch(map, page);
    TOUCHED_SO_FAR.fetch_add(1, Ordering::SeqCst);
    word
}

/// Waits while another thread holds the lock, for as long as that gets on.
fn enter() {
    let is_held = || ![0, own_tid()].contains(&HOLDER.load(Ordering::SeqCst));
    if HOLDER.load(Ordering::Relaxed) == 0 || !is_held() {
        return;
    }
    let mut last = (Instant::now(), TOUCHED_SO_FAR.load(Ordering::SeqCst));
    while is_held() && !IN_VAIN.load(Ordering::SeqCst) {
        let touched = TOUCHED_SO_FAR.load(Ordering::SeqCst);
        if touched != last.1 {
            last = (Instant::now(), touched);
        }
        if last.0.elapsed() > PATIENCE {
            return IN_VAIN.store(true, Ordering::SeqCst);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Locked {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        enter();
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        enter();
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static LOCKED: Locked = Locked;

/// One lock for all tests, which run side by side.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn frames_come_to_who_holds_the_allocators_lock() {
    const LIMIT: u64 = 64;
    const TOUCHED: u64 = 12;
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let local = file((LIMIT + TOUCHED) * 4096);
    for mode in [Mode::Inline, Mode::Handler] {
        let pool = Pool::new(LIMIT * 4096).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let object = vm.file(local.path()).unwrap();
        if !modes(&vm, &object).contains(&mode) {
            continue;
        }
        let options = MapOptions::shared().mode(mode).policy("none".parse().unwrap());
        let map = vm.map(&object, &options).unwrap();
        (0..LIMIT).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
        HOLDER.store(own_tid(), Ordering::SeqCst);
        let right = |page: &u64| touch(&map, *page) == word(page * 4096);
        let seen = (LIMIT..LIMIT + TOUCHED).filter(right).count() as u64;
        HOLDER.store(0, Ordering::SeqCst);
        assert_eq!((seen, IN_VAIN.load(Ordering::SeqCst)), (TOUCHED, false), "{mode:?}");
        support::until(|| support::frames(&vm) <= LIMIT);
    }
}

/// Frames are taken out of a private map meanwhile: for a moment writes wait for that.
#[test]
fn writes_of_who_holds_the_allocators_lock_happen() {
    const PAGES: u64 = 512;
    const ROUNDS: u32 = 100;
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let local = file(PAGES * 4096);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(local.path()).unwrap();
    for mode in modes(&vm, &object) {
        let mut map = vm.map(&object, &MapOptions::private().mode(mode).every_fault()).unwrap();
        let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut right = true;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while begun.load(Ordering::SeqCst) < round {
                        std::hint::spin_loop();
                    }
                    object.unwire(object.pages()).unwrap();
                    ended.store(round, Ordering::SeqCst);
                }
            });
            for round in 1..=ROUNDS {
                // The object's own pages again, between copies.
                map.discard(map.window()).unwrap();
                map.populate(map.window()).unwrap();
                (0..PAGES).step_by(2).for_each(|page| write(&mut map, page, 0));
                let began = Instant::now();
                begun.store(round, Ordering::SeqCst);
                // It is interrupted anywhere.
                while began.elapsed() < Duration::from_micros(u64::from(10 * round)) {}
                HOLDER.store(own_tid(), Ordering::SeqCst);
                (1..PAGES).step_by(2).for_each(|page| write(&mut map, page, 1));
                HOLDER.store(0, Ordering::SeqCst);
                right &= (0..PAGES).all(|page| read(&map, page) == page % 2);
                while ended.load(Ordering::SeqCst) < round {
                    std::thread::yield_now();
                }
            }
        });
        assert!(right);
        assert!(!IN_VAIN.load(Ordering::SeqCst), "{mode:?}");
    }
}

/// Pages are frozen meanwhile, and page tables given back: for a moment writes and touches wait for either.
#[test]
fn touches_of_who_holds_the_allocators_lock_wait_for_no_snapshot_and_no_page_tables() {
    const PAGES: u64 = 2048;
    const ROUNDS: u32 = 100;
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let local = file(PAGES * 4096);
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = vm.file(local.path()).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::private().mode(mode).every_fault()).unwrap();
        let shown = vm.map(&object, &MapOptions::shared().mode(mode).every_fault()).unwrap();
        let write = |page: u64| shared_word(&map, page * 4096).store(7, Ordering::SeqCst);
        let (begun, ended) = (AtomicU32::new(0), AtomicU32::new(0));
        let mut right = true;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=ROUNDS {
                    while begun.load(Ordering::SeqCst) < round {
                        std::hint::spin_loop();
                    }
                    drop(map.snapshot().unwrap());
                    vm.prune_page_tables().unwrap();
                    ended.store(round, Ordering::SeqCst);
                }
            });
            for round in 1..=ROUNDS {
                object.evict(object.pages()).unwrap();
                let began = Instant::now();
                begun.store(round, Ordering::SeqCst);
                // It is interrupted anywhere. Pages that lie apart are many runs.
                (0..PAGES)
                    .step_by(8)
                    .cycle()
                    .take_while(|_| began.elapsed() < Duration::from_micros(u64::from(50 * round)))
                    .for_each(write);
                HOLDER.store(own_tid(), Ordering::SeqCst);
                for page in (0..PAGES).step_by(32) {
                    write(page);
                    right &= touch(&shown, page + 3) == word((page + 3) * 4096);
                }
                HOLDER.store(0, Ordering::SeqCst);
                while ended.load(Ordering::SeqCst) < round {
                    std::thread::yield_now();
                }
            }
        });
        assert!(right);
        assert!(!IN_VAIN.load(Ordering::SeqCst), "{mode:?}");
    }
}

/// A thread of the VM has claimed the pages, and is about to read them.
#[test]
fn what_is_read_ahead_comes_to_who_holds_the_allocators_lock() {
    const PAGES: u64 = 2048;
    const ROUNDS: u64 = 40;
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let local = file(PAGES * 4096);
    // Threads that end give back what they hold, and are none of those that are waited for.
    let mut kept = Vec::new();
    for mode in [Mode::Inline, Mode::Handler] {
        for round in 0..ROUNDS {
            // One that has no buffers yet.
            let vm = Vm::new(VmOptions::default()).unwrap();
            let object = vm.file(local.path()).unwrap();
            if !modes(&vm, &object).contains(&mode) {
                break;
            }
            let map =
                vm.map(&object, &MapOptions::shared().mode(mode).policy("none".parse().unwrap())).unwrap();
            // Its threads have begun.
            assert_eq!(touch(&map, 0), word(0));
            let began = Instant::now();
            map.advise(Advice::WillNeed(PageRange::new(PageIndex(1), PageIndex(PAGES)))).unwrap();
            // It is interrupted anywhere.
            while began.elapsed() < Duration::from_micros(10 * round) {}
            HOLDER.store(own_tid(), Ordering::SeqCst);
            let right = (0..PAGES).step_by(16).all(|page| touch(&map, page) == word(page * 4096));
            HOLDER.store(0, Ordering::SeqCst);
            assert_eq!((right, IN_VAIN.load(Ordering::SeqCst)), (true, false), "{mode:?}, {round}");
            kept.push((vm, object, map));
        }
    }
}
