use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Instant;

use prepage_core::PageIndex;
use prepage_sys::memory_left::Left;

use super::*;
use crate::frame_count::Reserve;
use crate::{Map, MapOptions, Replacement, Source, SourceError, Vm, VmOptions};

/// So many bytes.
struct Zeros(u64);

impl Source for Zeros {
    fn len_bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.fill(0);
        Ok(())
    }
}

/// A machine that has what it is told to have.
#[derive(Debug)]
struct Told(Arc<Mutex<Option<Left>>>);

/// Look by look, once it has.
struct Looks(Receiver<Option<bool>>);

/// Tells both.
struct Tell {
    left: Arc<Mutex<Option<Left>>>,
    look: SyncSender<Option<bool>>,
}

impl Tell {
    /// Of so much there is. Of 64 MiB two are to stay free.
    fn left(&self, available_bytes: i64) {
        let left = Left { limit_bytes: 64 << 20, available_bytes, shmem_bytes: 0 };
        *self.left.lock().unwrap() = Some(left);
    }

    /// Has the pool look; returns once it did.
    fn look(&self, available_bytes: i64, stalled: bool) {
        self.left(available_bytes);
        self.look.send(Some(stalled)).unwrap();
        self.look.send(None).unwrap();
    }
}

impl Pressure for Looks {
    fn wait(&mut self, _for_all: bool) -> bool {
        self.0.iter().flatten().next().unwrap_or(false)
    }
}

impl Memory for Told {
    fn left(&mut self) -> Vec<Left> {
        self.0.lock().unwrap().into_iter().collect()
    }
}

/// A pool that gives back by what it is told, and keeps 64 pages at least.
fn told(options: PoolOptions) -> (Pool, Tell) {
    let core = Pool::made(&options.gives_back(64 * PAGE_SIZE)).unwrap();
    let (look, looks) = sync_channel(0);
    let tell = Tell { left: Arc::default(), look };
    core.give_back(Told(Arc::clone(&tell.left)), Looks(looks), 64 * PAGE_SIZE).unwrap();
    (Pool { handle: Arc::new(Handle { core }) }, tell)
}

/// The same with a map of `pages` pages of a file that are all in memory.
fn populated(pages: u64) -> (Pool, Vm, Map, Tell) {
    populated_with(PoolOptions::default(), pages)
}

fn populated_with(options: PoolOptions, pages: u64) -> (Pool, Vm, Map, Tell) {
    let (pool, tell) = told(options);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(pages * PAGE_SIZE).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let map = vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared()).unwrap();
    map.populate(map.window()).unwrap();
    (pool, vm, map, tell)
}

fn until(pool: &Pool, what: &str, is_so: impl Fn(PoolFigures) -> bool) {
    let began = Instant::now();
    while !is_so(pool.figures()) {
        assert!(began.elapsed() < Duration::from_secs(120), "{what}: {:?}", pool.figures());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_is_missing_is_given_back_and_taken_again_later() {
    const PAGES: u64 = 1024;
    let (pool, _vm, map, tell) = populated(PAGES);
    assert_eq!(pool.figures().resident_pages, PAGES);
    // 256 pages are missing.
    tell.look(1 << 20, false);
    until(&pool, "too little is given", |now| now.resident_pages <= PAGES - 256);
    assert_eq!(pool.figures().limit_pages, PAGES - 256);
    assert!(pool.figures().resident_pages > PAGES / 2, "more than was missing");
    // Everything can still be touched, in what is left.
    assert!(map.as_slice().iter().all(|&byte| byte == 0));
    let now = pool.figures();
    assert!(now.resident_pages <= PAGES - 256 + now.beyond_pages_total, "{now:?}");
    // The least is kept beside what is pinned, though more is missing than there is.
    let pinned = map.pin(PageRange::new(PageIndex(0), PageIndex(128))).unwrap();
    tell.look(-(1 << 30), false);
    assert_eq!(pool.figures().limit_pages, 128 + 64);
    until(&pool, "it goes", |now| now.resident_pages <= 128 + 64);
    map.populate(PageRange::new(PageIndex(500), PageIndex(516))).unwrap();
    drop(pinned);
    (0..200).for_each(|_| tell.look(64 << 20, false));
    assert!(pool.figures().limit_pages > PAGES);
    map.populate(map.window()).unwrap();
    assert_eq!(pool.figures().resident_pages, PAGES);
}

/// Places of pages that are away make room for nobody.
#[test]
fn the_least_is_kept_beside_memory_that_cannot_go_to_a_full_swap_file() {
    let directory = tempfile::tempdir().unwrap();
    let (pool, tell) = told(PoolOptions::default().swap(directory.path(), 128 * PAGE_SIZE));
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let memory = vm.memory(512 * PAGE_SIZE).unwrap();
    let map = vm.map(&memory, &MapOptions::writable()).unwrap();
    (0..256).for_each(|page| map.write_at(page * PAGE_SIZE, &[1]).unwrap());
    // What takes long to be written is given up, and tried again.
    until(&pool, "it takes no more", |_| {
        pool.reclaim(memory.dirty_pages().saturating_sub(128));
        memory.dirty_pages() <= 128
    });
    assert_eq!((memory.dirty_pages(), pool.figures().swap_pages), (128, 128));
    tell.look(-(1 << 30), false);
    assert_eq!(pool.figures().limit_pages, 128 + 64);
}

/// As is told of by PSI before memory is short.
#[test]
fn while_tasks_wait_idle_frames_go_though_none_is_missing() {
    const PAGES: u64 = 1024;
    let (pool, vm, _map, tell) = populated(PAGES);
    const SPARE: u64 = 64;
    let look = |stalled| tell.look((2 << 20) + (SPARE * PAGE_SIZE) as i64, stalled);
    // Which are idle is seen from the first look to the second.
    look(true);
    let kept = (PAGES + SPARE / 4, PAGES);
    assert_eq!((pool.figures().limit_pages, pool.figures().resident_pages), kept);
    look(false);
    let due = PAGES / 8 - SPARE;
    assert_eq!(pool.figures().limit_pages, PAGES - due);
    let resident = pool.figures().resident_pages;
    assert!((PAGES * 3 / 4..=PAGES - due).contains(&resident), "some more, which are to be free: {resident}");
    // Of those that are seen to be idle by now. Nothing that went has come back.
    look(true);
    let more = resident / 8 - SPARE;
    assert_eq!(pool.figures().limit_pages, resident - more);
    assert!(vm.statistics().counted.pages_reclaimed >= due + more);
}

/// Nothing tells which of them are idle.
#[test]
fn a_static_pool_gives_back_nothing_and_looks_at_no_frame_while_tasks_wait() {
    const PAGES: u64 = 1024;
    let (pool, _vm, _map, tell) =
        populated_with(PoolOptions::default().replacement(Replacement::Static), PAGES);
    let looks = || pool.core().reclaim.lock().unwrap().looks();
    let before = looks();
    (0..3).for_each(|_| tell.look((2 << 20) + (64 * PAGE_SIZE) as i64, true));
    assert_eq!((pool.figures().resident_pages, looks()), (PAGES, before));
    // What is missing goes.
    tell.look(1 << 20, false);
    until(&pool, "too little is given", |now| now.resident_pages <= PAGES - 256);
}

/// No touch of a dirty page is seen, so none goes.
#[test]
fn while_tasks_wait_no_page_goes_that_may_be_in_use() {
    const PAGES: u64 = 1024;
    let directory = tempfile::tempdir().unwrap();
    let (pool, tell) = told(PoolOptions::default().swap(directory.path(), PAGES * PAGE_SIZE));
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let memory = vm.memory(PAGES * PAGE_SIZE).unwrap();
    let map = vm.map(&memory, &MapOptions::writable()).unwrap();
    (0..PAGES).for_each(|page| map.write_at(page * PAGE_SIZE, &[1]).unwrap());
    let look = || tell.look((2 << 20) + (64 * PAGE_SIZE) as i64, true);
    let swapped = || vm.statistics().counted.pages_swapped;
    for _ in 0..3 {
        look();
        map.as_atomics().iter().step_by(PAGE_SIZE as usize).for_each(|byte| byte.store(2, Ordering::Relaxed));
    }
    assert_eq!((swapped(), pool.figures().resident_pages), (0, PAGES));
    // Beside these what is idle goes. It comes while there is room.
    tell.look(64 << 20, false);
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGES / 4 * PAGE_SIZE).unwrap();
    let idle = vm.file(file.path()).unwrap();
    let of_file = vm.map(&idle, &MapOptions::shared()).unwrap();
    of_file.populate(of_file.window()).unwrap();
    (0..3).for_each(|_| look());
    assert!(idle.resident_pages() < PAGES / 4 && swapped() == 0, "{:?}", pool.figures());
    // What is missing goes whoever uses it.
    tell.look(-(1 << 20), false);
    until(&pool, "too little is given", |now| now.swap_pages >= PAGES / 4);
    assert!(
        map.as_atomics().iter().step_by(PAGE_SIZE as usize).all(|byte| byte.load(Ordering::Relaxed) == 2)
    );
}

#[test]
fn no_frame_goes_for_a_snapshot_while_memory_has_room_for_it() {
    const PAGES: u64 = 1024;
    let (_pool, vm, _map, tell) = populated(PAGES);
    // Of 2048 pages to spare the pool takes 512.
    tell.look(10 << 20, false);
    let zeros = vm.anonymous(1000 * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    map.as_mut_slice().fill(7);
    let snapshot = map.snapshot().unwrap();
    assert_eq!((snapshot.resident_pages(), vm.statistics().counted.pages_reclaimed), (1000, 0));
}

/// What it had to spare was seen up to a second ago.
#[test]
fn memory_is_looked_at_again_before_frames_are_taken_away() {
    const PAGES: u64 = 1024;
    let (pool, vm, map, tell) = populated(PAGES);
    tell.look(8 << 20, false);
    assert_eq!(pool.figures().limit_pages, PAGES + 1536 / 4);
    let other = vm.source("more", Zeros(PAGES * PAGE_SIZE)).unwrap();
    let other = vm.map(&other, &MapOptions::shared()).unwrap();
    let read = || assert!(other.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
    tell.left(64 << 20);
    read();
    let grown = (2 * PAGES, 0);
    assert_eq!(
        (pool.figures().resident_pages, vm.statistics().counted.pages_reclaimed),
        grown,
        "{:?}",
        pool.figures()
    );
    // Others took it.
    tell.look(2 << 20, false);
    until(&pool, "some are free", |now| now.resident_pages < 2 * PAGES);
    map.populate(map.window()).unwrap();
    read();
    let now = pool.figures();
    assert!(now.resident_pages <= 2 * PAGES + now.beyond_pages_total, "{now:?}");
}

/// It reads on when its pool may take more, or gives up after a while.
struct Patient(Zeros, Arc<PoolCore>);

impl Source for Patient {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let began = Instant::now();
        let is_near = || self.1.frames.limit() < self.1.frames.reserved() + 1024;
        while is_near() && began.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.read(offset_bytes, into)
    }
}

/// They take no frame that somebody would have to wait for, and stop where there is no other.
#[test]
fn memory_is_looked_at_again_before_reads_ahead_stop() {
    const PAGES: u64 = 8192;
    let (pool, vm, _map, tell) = populated(64);
    tell.look(64 << 20, false);
    let limit = pool.figures().limit_pages;
    assert!(limit < PAGES / 2, "{limit}");
    let object = vm.source("more", Patient(Zeros(PAGES * PAGE_SIZE), Arc::clone(pool.core()))).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.advise(crate::Advice::WillNeed(map.window())).unwrap();
    until(&pool, "reads ahead stop", |now| now.resident_pages == 64 + PAGES);
    assert_eq!(vm.statistics().counted.pages_reclaimed, 0);
}

/// From the promise on it has its frames, though memory is looked at before they hold anything.
#[test]
fn a_look_takes_no_frame_back_that_a_snapshot_was_promised() {
    const PAGES: u64 = 1024;
    let (pool, vm, _map, tell) = populated(PAGES);
    tell.look(10 << 20, false);
    // Half of what is to spare, less what is to be free then.
    let pages = 1000;
    assert!(give_back::makes_room(pool.core(), pages));
    assert_eq!(pool.core().frames.reserve(pages), Reserve::Got);
    tell.look(10 << 20, false);
    assert!(pool.figures().limit_pages >= PAGES + pages, "{:?}", pool.figures());
    assert_eq!(vm.statistics().counted.pages_reclaimed, 0);
    pool.core().frames.release(pages);
}

#[test]
fn while_tasks_wait_what_is_used_now_and_then_stays_though_it_came_first() {
    const PAGES: u64 = 4096;
    let (pool, vm, map, tell) = populated(PAGES);
    // It takes a look for each quarter of the frames. So much is to spare that none goes for the low watermark.
    for _ in 0..6 {
        tell.look((2 << 20) + (512 << 10), true);
        // Frames are unwired ahead where the limit is near, as many as are to be idle.
        let unwired = || pool.figures().unwired_pages;
        while {
            let before = unwired();
            pool.reclaim(0);
            unwired() > before
        } {}
        let busy = map.as_slice()[..(PAGES / 2 * PAGE_SIZE) as usize].iter();
        assert!(busy.step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
    }
    assert!(pool.figures().resident_pages <= PAGES * 7 / 8, "{:?}", pool.figures());
    let again = vm.statistics().counted.pages_read - PAGES;
    assert!(again < 128, "{again} pages were read again, {:?}", pool.figures());
}

/// Else an old object would have the number of a new one, and would be lost with it.
#[test]
fn numbers_of_objects_do_not_end() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGE_SIZE).unwrap();
    let vm = Vm::new(VmOptions::default()).unwrap();
    let old = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&old, &MapOptions::writable()).unwrap();
    map.write_at(0, &[7]).unwrap();
    vm.core.pool.core().next_object.store(u32::MAX.into(), Ordering::SeqCst);
    (0..3).for_each(|_| drop(vm.memory(PAGE_SIZE).unwrap()));
    vm.flush().unwrap();
    assert_eq!((old.dirty_pages(), std::fs::read(file.path()).unwrap()[0]), (0, 7));
    assert_eq!(vm.core.pool.objects().len(), 1);
}

#[test]
fn what_is_pinned_is_looked_at_once() {
    const PAGES: u64 = 1024;
    let pool = Pool::new((PAGES + 64) * PAGE_SIZE).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(2 * PAGES * PAGE_SIZE).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let map = vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared()).unwrap();
    let pinned = map.pin(PageRange::new(PageIndex(0), PageIndex(PAGES))).unwrap();
    let pass = || assert!(map.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
    let looks = || pool.core().reclaim.lock().unwrap().looks();
    pass();
    let (before, reclaimed) = (looks(), vm.statistics().counted.pages_reclaimed);
    pass();
    let (looks, reclaimed) = (looks() - before, vm.statistics().counted.pages_reclaimed - reclaimed);
    assert!(looks as u64 <= 4 * reclaimed + PAGES, "{looks} looks for {reclaimed} frames");
    drop(pinned);
    pool.reclaim(2 * PAGES);
    assert_eq!(pool.figures().resident_pages, 0);
}

#[test]
fn what_did_not_fit_into_the_list_of_arrivals_is_found_by_the_next_look() {
    let pool = Pool::new(64 * PAGE_SIZE).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(64 * PAGE_SIZE).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
    let touch = |page: u64| assert_eq!(map.as_slice()[(page * PAGE_SIZE) as usize], 0);
    let reclaim = pool.core().reclaim.lock().unwrap();
    for _ in 0..3 {
        (0..32).for_each(touch);
        object.evict(object.pages()).unwrap();
    }
    (32..64).step_by(2).for_each(touch);
    drop(reclaim);
    pool.reclaim(0);
    assert_eq!(pool.core().reclaim.lock().unwrap().len(), 16);
}

/// Several threads may have put runs there since one looked.
#[test]
fn a_list_of_arrivals_that_is_more_than_half_full_is_looked_at() {
    let pool = Pool::new(64 * PAGE_SIZE).unwrap();
    let core = pool.core();
    let arrivals = core.arrivals.as_ref().unwrap();
    let run = Arrival { object: 7, range: PageRange::new(PageIndex(0), PageIndex(1)) };
    until(&pool, "the reclaimer sleeps", |_| core.frames.is_asleep());
    (0..=arrivals.capacity() / 2).for_each(|_| arrivals.push(run).unwrap());
    core.arrived(run.object, run.range);
    until(&pool, "it is called", |_| arrivals.is_empty());
}

#[test]
fn what_is_gone_is_forgotten_though_memory_is_not_short() {
    const PAGES: u64 = 4096;
    let pool = Pool::new(64 * PAGES * PAGE_SIZE).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    for _ in 0..8 {
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        map.populate(map.window()).unwrap();
        pool.reclaim(0);
    }
    // Another thread may hold the last one for a moment.
    let began = std::time::Instant::now();
    while pool.figures().resident_pages > 0 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(pool.reclaim(0), 0);
    let known = pool.core().reclaim.lock().unwrap().len();
    assert!(known <= 1024, "{known} frames that are gone are known");
}

/// How many pages of those that are read in turns come back soon after they were reclaimed.
fn refaulted(pool: &Pool) -> u64 {
    const PAGES: u64 = 4096;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
    let vm = Vm::new(VmOptions::default().pool(pool)).unwrap();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
    for _ in 0..2 {
        assert!(map.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
    }
    vm.statistics().counted.pages_refaulted
}

#[test]
fn what_comes_back_soon_is_told_by_the_limit_of_now() {
    let lowered = Pool::made(&PoolOptions::default().gives_back(64 * PAGE_SIZE)).unwrap();
    lowered.frames.set_limit(512);
    let lowered = Pool { handle: Arc::new(Handle { core: lowered }) };
    // Eight times what fits: nothing comes back before as much was reclaimed as the pool holds, but for what it kept until then.
    let both = [refaulted(&Pool::new(512 * PAGE_SIZE).unwrap()), refaulted(&lowered)];
    assert!(both.iter().all(|&pages| pages <= 512), "{both:?} of 4096");
}

#[test]
fn a_pool_that_gave_memory_back_grows_for_a_snapshot() {
    let core = Pool::made(&PoolOptions::default().gives_back(64 * PAGE_SIZE)).unwrap();
    core.frames.set_limit(64);
    let pool = Pool { handle: Arc::new(Handle { core }) };
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let zeros = vm.anonymous(256 * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    map.as_mut_slice().fill(7);
    let snapshot = map.snapshot().unwrap();
    assert_eq!((snapshot.resident_pages(), pool.figures().limit_pages), (256, 64 + 256));
}
