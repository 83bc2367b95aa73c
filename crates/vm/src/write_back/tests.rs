mod background;

use std::cell::Cell;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use prepage_testing::{assert_passed, child, is_child, this_test, unless_late};

use super::*;
use crate::cleaner::{CLEAN_MOST, Cleaner, MOST_HUNG};
use crate::home::Home;
use crate::object::Contents;
use crate::source::LocalFile;
use crate::{AccessError, Map, MapOptions, Reason, VmOptions};

/// A file that fails when it is told to; as a device that was lost, it takes back what was not synced.
#[derive(Debug)]
struct Failing {
    file: File,
    writes_fail: AtomicBool,
    /// Of all pages but these writes succeed.
    refused: Mutex<Vec<PageIndex>>,
    /// How long writes take.
    write_ms: AtomicU64,
    tries: AtomicU64,
    /// Which write of all was the last one here.
    last: AtomicU64,
    /// Held, writes wait.
    writes: Mutex<()>,
    /// The signals that were blocked in each write and sync, as the kernel shows them.
    blocked: Mutex<Vec<String>>,
    /// Held, syncs wait.
    syncs: Mutex<()>,
    /// Syncs that began.
    synced: AtomicU64,
    syncs_fail: AtomicBool,
}

/// Of all files.
static WRITES: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What the next write of this thread does first, as a signal handler may.
    static HANDLER: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

impl Home for Arc<Failing> {
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        self.blocked.lock().unwrap().push(blocked());
        if let Some(handler) = HANDLER.take() {
            handler();
        }
        drop(self.writes.lock().anyway());
        self.tries.fetch_add(1, Ordering::SeqCst);
        self.last.store(WRITES.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(self.write_ms.load(Ordering::SeqCst)));
        if self.writes_fail.load(Ordering::SeqCst) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let range = PageRange::covering(offset_bytes, bytes.len() as u64);
        if self.refused.lock().unwrap().iter().any(|&page| range.contains(page)) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write(offset_bytes, bytes)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.file.len_bytes()
    }

    fn sync(&self) -> io::Result<()> {
        self.blocked.lock().unwrap().push(blocked());
        self.synced.fetch_add(1, Ordering::SeqCst);
        drop(self.syncs.lock().anyway());
        // Once, as the kernel tells of it.
        if self.syncs_fail.swap(false, Ordering::SeqCst) {
            return Err(io::Error::from_raw_os_error(5));
        }
        Ok(())
    }
}

/// The signals that this thread blocks.
fn blocked() -> String {
    blocked_by("/proc/thread-self")
}

fn blocked_by(thread: &str) -> String {
    let status = std::fs::read_to_string(format!("{thread}/status")).unwrap();
    status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().to_owned()
}

/// When who asks a cleaner goes on, at the latest.
fn later() -> Instant {
    Instant::now() + CLEAN_MOST
}

const PAGES: u64 = 8;

fn failing() -> (tempfile::NamedTempFile, Arc<Failing>, Object, Map) {
    failing_in(VmOptions::default())
}

fn failing_in(options: VmOptions) -> (tempfile::NamedTempFile, Arc<Failing>, Object, Map) {
    failing_with(options, PAGES)
}

fn failing_with(options: VmOptions, pages: u64) -> (tempfile::NamedTempFile, Arc<Failing>, Object, Map) {
    failing_of(&quiet(options), pages)
}

/// Writes back nothing by itself, and tells nobody.
fn quiet(options: VmOptions) -> Vm {
    Vm::new(options.explain(false).write_back_after(Duration::from_secs(1 << 20))).unwrap()
}

fn failing_of(vm: &Vm, pages: u64) -> (tempfile::NamedTempFile, Arc<Failing>, Object, Map) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(pages * PAGE_SIZE).unwrap();
    let home = Arc::new(Failing {
        file: file.reopen().unwrap(),
        writes_fail: AtomicBool::new(false),
        refused: Mutex::default(),
        write_ms: AtomicU64::new(0),
        tries: AtomicU64::new(0),
        last: AtomicU64::new(0),
        writes: Mutex::default(),
        blocked: Mutex::default(),
        syncs: Mutex::default(),
        synced: AtomicU64::new(0),
        syncs_fail: AtomicBool::new(false),
    });
    let local = LocalFile::open_writable(file.path()).unwrap();
    let taken = Box::new(Arc::clone(&home));
    let object = vm.object("failing".to_owned(), pages * PAGE_SIZE, None, |len| {
        let frames = Frames::written(len, Bytes::Local(local), taken, vm.core.pool.core())?;
        Ok(Contents::Frames(Box::new(frames)))
    });
    let object = object.unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    (file, home, object, map)
}

/// Whoever opens the file next reads it as it was written.
#[test]
fn what_was_written_is_in_the_file_once_the_last_handle_is_gone_though_a_thread_has_the_object() {
    for map_goes_last in [false, true] {
        let (file, _home, object, map) = failing();
        let held = Arc::clone(&object.core);
        let other = object.clone();
        map.write_at(3 * PAGE_SIZE, &[7]).unwrap();
        let first = || std::fs::read(file.path()).unwrap()[3 * PAGE_SIZE as usize];
        drop(object);
        if map_goes_last {
            drop(other);
            assert_eq!(first(), 0);
            drop(map);
        } else {
            drop(map);
            assert_eq!(first(), 0);
            drop(other);
        }
        assert_eq!((first(), held.dirty().unwrap().pages()), (7, 0));
    }
}

#[test]
fn the_last_handle_waits_for_who_writes_back() {
    let (file, home, object, map) = failing();
    map.write_at(0, &[7]).unwrap();
    let core = Arc::clone(&object.core);
    let (frames, dirty) = (core.frames().unwrap(), core.dirty().unwrap());
    let held = home.writes.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| core.write_back(frames, dirty, core.pages()).unwrap());
        while dirty.first(&frames.pages, core.pages()).is_some() {
            std::thread::yield_now();
        }
        let drops = scope.spawn(|| {
            drop((map, object));
            std::fs::read(file.path()).unwrap()[0]
        });
        // It would be done by then.
        std::thread::sleep(Duration::from_millis(50));
        drop(held);
        assert_eq!(drops.join().unwrap(), 7);
    });
}

/// A file may hang as long as it likes, and nobody has asked for a flush.
#[test]
fn a_program_can_be_ended_while_the_last_handle_writes_back() {
    for map_goes_last in [false, true] {
        let (_file, home, object, map) = failing();
        map.write_at(0, &[7]).unwrap();
        if map_goes_last {
            drop((object, map));
        } else {
            drop((map, object));
        }
        assert_eq!(*home.blocked.lock().unwrap(), [blocked()]);
    }
}

/// As with fsync(2), which a program calls that is about to end.
#[test]
fn a_program_can_be_ended_while_it_flushes() {
    let (_file, home, object, map) = failing();
    let vm = Vm { core: Arc::clone(&object.core.vm) };
    let pool = vm.core.pool.clone();
    let all = object.pages();
    // Each writes once, and all but the first sync.
    let flushes: [(&str, usize, &dyn Fn()); 5] = [
        ("write_back", 1, &|| assert_eq!(object.write_back(all).unwrap(), 1)),
        ("Object::flush", 2, &|| object.flush(all).unwrap()),
        ("Map::flush", 2, &|| map.flush(all).unwrap()),
        ("Vm::flush", 2, &|| vm.flush().unwrap()),
        ("Pool::flush", 2, &|| pool.flush().unwrap()),
    ];
    for (name, calls, flush) in flushes {
        map.write_at(0, &[7]).unwrap();
        home.blocked.lock().unwrap().clear();
        flush();
        assert_eq!(*home.blocked.lock().unwrap(), vec![blocked(); calls], "{name}");
    }
}

/// A touch in a handler needs a frame, and all of them hold dirty pages of the object that the interrupted thread writes back.
#[test]
fn a_touch_in_the_middle_of_a_flush_gets_a_frame_though_all_are_dirty() {
    const LIMIT: u64 = 64;
    let (_file, home, object, map) =
        failing_with(VmOptions::default().frame_limit_bytes(LIMIT * PAGE_SIZE), LIMIT);
    let vm = Vm { core: Arc::clone(&object.core.vm) };
    let other_file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(other_file.path(), [5; PAGE_SIZE as usize]).unwrap();
    let other = vm.map(&vm.file(other_file.path()).unwrap(), &MapOptions::shared()).unwrap();
    // None of them is clean before the flush, whoever tries.
    home.writes_fail.store(true, Ordering::SeqCst);
    map.write_at(0, &[7; (LIMIT * PAGE_SIZE) as usize]).unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    // Not in a scope, which would wait for it.
    std::thread::spawn(move || {
        let (now, dirty) = (vm.clone(), object.clone());
        HANDLER.set(Some(Box::new(move || {
            assert_eq!((now.core.pool.figures().resident_pages, dirty.dirty_pages()), (LIMIT, LIMIT));
            assert_eq!(other.as_slice()[0], 5);
            home.writes_fail.store(false, Ordering::SeqCst);
        })));
        object.flush(object.pages()).unwrap();
        tell.send(vm.take_failures()).unwrap();
    });
    let failures =
        told.recv_timeout(Duration::from_secs(30)).expect("it waits for the flush that it interrupted");
    assert!(failures.is_empty(), "{failures:?}");
}

/// Its write may hang.
#[test]
fn a_program_can_be_ended_while_its_flush_waits_for_who_writes_back() {
    let (_file, _home, object, map) = failing();
    map.write_at(0, &[7]).unwrap();
    let dirty = object.core.dirty().unwrap();
    let written = dirty.written.lock().unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            tell.send(rustix::thread::gettid().as_raw_nonzero()).unwrap();
            object.flush(object.pages()).unwrap();
        });
        let thread = format!("/proc/self/task/{}", told.recv().unwrap());
        while dirty.syncing.try_lock().anyway().is_some() {
            std::thread::yield_now();
        }
        // It waits by then.
        std::thread::sleep(Duration::from_millis(50));
        let while_it_waits = blocked_by(&thread);
        drop(written);
        assert_eq!(while_it_waits, blocked());
    });
}

/// The flush may wait for that forever, and the program may be ended meanwhile.
#[test]
fn what_hangs_is_flushed_last() {
    let vm = quiet(VmOptions::default());
    let (_file, home, hanging, map) = failing_of(&vm, PAGES);
    let (_other_file, _other_home, other, other_map) = failing_of(&vm, PAGES);
    map.write_at(0, &[1]).unwrap();
    other_map.write_at(0, &[1]).unwrap();
    let flushes: [&(dyn Fn() -> Result<(), FlushError> + Sync); 2] =
        [&|| vm.flush(), &|| vm.core.pool.flush()];
    for flush in flushes {
        let writes = home.writes.lock().unwrap();
        let mut background = Cleaner::default();
        assert!(background.clean(&hanging.core, vec![PageIndex(0)], true, Duration::ZERO, later()).is_none());
        std::thread::scope(|scope| {
            let flushes = scope.spawn(flush);
            let is_durable = is_clean_soon(&other);
            let is_held = hanging.dirty_pages() == 1;
            drop(writes);
            flushes.join().unwrap().unwrap();
            assert!(is_durable && is_held, "{is_durable}, {is_held}");
        });
        assert!(soon(|| !hanging.core.dirty().unwrap().hangs()));
        map.write_at(0, &[2]).unwrap();
        other_map.write_at(0, &[2]).unwrap();
    }
}

#[test]
fn what_a_flush_could_not_sync_is_written_though_the_last_handle_went_meanwhile() {
    let (_file, home, object, map) = failing();
    map.write_at(0, &[7]).unwrap();
    let vm = Vm { core: Arc::clone(&object.core.vm) };
    home.syncs_fail.store(true, Ordering::SeqCst);
    let syncs = home.syncs.lock().unwrap();
    std::thread::scope(|scope| {
        let flushed = scope.spawn(|| vm.flush());
        while home.synced.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop((map, object));
        assert_eq!(home.tries.load(Ordering::SeqCst), 1);
        drop(syncs);
        assert!(matches!(flushed.join().unwrap(), Err(FlushError::Sync { .. })));
    });
    assert_eq!(home.tries.load(Ordering::SeqCst), 2);
}

#[test]
fn what_cannot_be_written_stays_and_is_written_later() {
    let (file, home, object, map) = failing();
    map.populate(map.window()).unwrap();
    home.writes_fail.store(true, Ordering::SeqCst);
    map.write_at(2 * PAGE_SIZE, &[2; 2 * PAGE_SIZE as usize]).unwrap();
    map.write_at(6 * PAGE_SIZE, &[6]).unwrap();
    let failed = object.flush(object.pages()).unwrap_err();
    assert!(matches!(failed, FlushError::Write { page: PageIndex(2), .. }), "{failed}");
    assert_eq!(object.dirty_pages(), 3);
    assert_eq!(object.core.vm.figures.counted().write_backs_failed, 3);
    assert_eq!(object.core.vm.pool.reclaim(PAGES), PAGES - 3, "what is nowhere else stays");
    // A write meanwhile is not lost either.
    map.write_at(6 * PAGE_SIZE, &[7]).unwrap();
    home.writes_fail.store(false, Ordering::SeqCst);
    object.flush(object.pages()).unwrap();
    assert_eq!(object.dirty_pages(), 0);
    let bytes = std::fs::read(file.path()).unwrap();
    assert_eq!([2 * PAGE_SIZE, 4 * PAGE_SIZE - 1, 6 * PAGE_SIZE].map(|at| bytes[at as usize]), [2, 2, 7]);
}

#[test]
fn neighbours_of_pages_that_cannot_be_written_are_written() {
    let (file, home, object, map) = failing();
    *home.refused.lock().unwrap() = vec![PageIndex(2), PageIndex(3)];
    map.write_at(0, &[1; (PAGES * PAGE_SIZE) as usize]).unwrap();
    let failed = object.flush(object.pages()).unwrap_err();
    assert!(matches!(failed, FlushError::Write { page: PageIndex(2), .. }), "{failed}");
    assert_eq!(object.dirty_pages(), 2);
    let firsts = || {
        let bytes = std::fs::read(file.path()).unwrap();
        bytes.iter().copied().step_by(PAGE_SIZE as usize).collect::<Vec<_>>()
    };
    assert_eq!(firsts(), [1, 1, 0, 0, 1, 1, 1, 1]);
    let counted = object.core.vm.figures.counted();
    assert_eq!((counted.pages_written_back, counted.write_backs_failed), (PAGES - 2, 2));
    home.refused.lock().unwrap().clear();
    object.flush(object.pages()).unwrap();
    assert_eq!((firsts(), object.dirty_pages()), (vec![1; PAGES as usize], 0));
}

/// Each try may take as long as a dead server is waited for.
#[test]
fn who_does_not_answer_is_not_asked_for_long() {
    const MANY: u64 = 2 * BATCH_PAGES as u64;
    let (_file, home, object, map) = failing_with(VmOptions::default(), MANY);
    map.write_at(0, &vec![1; (MANY * PAGE_SIZE) as usize]).unwrap();
    let fails = |fails, write_ms| {
        home.writes_fail.store(fails, Ordering::SeqCst);
        home.write_ms.store(write_ms, Ordering::SeqCst);
    };
    fails(true, 300);
    object.flush(object.pages()).unwrap_err();
    let (tries, failed) =
        (home.tries.load(Ordering::SeqCst), object.core.vm.figures.counted().write_backs_failed);
    assert!((1..=7).contains(&tries), "{tries} times 0.3 s");
    assert_eq!((failed, object.dirty_pages()), (BATCH_PAGES as u64, MANY), "the rest is left alone");
    fails(false, 0);
    object.flush(object.pages()).unwrap();
    assert_eq!(object.dirty_pages(), 0);
}

#[test]
fn pages_before_the_end_of_a_file_that_was_cut_are_written() {
    let (file, home, object, map) = failing();
    map.write_at(0, &[1; (PAGES * PAGE_SIZE) as usize]).unwrap();
    home.file.set_len(5 * PAGE_SIZE).unwrap();
    let failed = object.flush(object.pages()).unwrap_err();
    assert!(matches!(failed, FlushError::Truncated { page: PageIndex(5), .. }), "{failed}");
    assert_eq!(object.dirty_pages(), PAGES - 5);
    assert_eq!(std::fs::read(file.path()).unwrap(), [1; 5 * PAGE_SIZE as usize]);
}

#[test]
fn what_a_failed_sync_makes_dirty_again_is_written_in_the_background() {
    let (_file, home, object, map) = failing();
    let writer = &object.core.vm.writer;
    writer.enter(&object.core, Duration::from_millis(5)).unwrap();
    map.write_at(0, &[1]).unwrap();
    assert!(is_clean_soon(&object));
    home.syncs_fail.store(true, Ordering::SeqCst);
    assert!(matches!(object.flush(object.pages()), Err(FlushError::Sync { .. })));
    assert!(is_clean_soon(&object));
}

/// Whether the background writes it.
fn is_clean_soon(object: &Object) -> bool {
    soon(|| object.dirty_pages() == 0)
}

fn soon(mut happens: impl FnMut() -> bool) -> bool {
    (0..6000).any(|_| {
        std::thread::sleep(Duration::from_millis(5));
        happens()
    })
}

#[test]
fn what_was_written_without_a_fault_and_could_not_be_written_back_is_written_later() {
    let (file, home, object, map) = failing();
    map.populate(map.window()).unwrap();
    for value in 1..4 {
        let before = object.core.vm.figures.costs_ns()[prepage_core::FaultClass::Cached as usize].len();
        for page in 0..PAGES {
            map.as_atomics()[(page * PAGE_SIZE) as usize].store(value, Ordering::Relaxed);
        }
        let faults =
            object.core.vm.figures.costs_ns()[prepage_core::FaultClass::Cached as usize].len() - before;
        assert_eq!(faults, 5, "pages 5 to 7 were opened with page 4");
        home.writes_fail.store(true, Ordering::SeqCst);
        (0..2).for_each(|_| drop(object.flush(object.pages()).unwrap_err()));
        home.writes_fail.store(false, Ordering::SeqCst);
        object.flush(object.pages()).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes.iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == value), "{value}");
    }
}

#[test]
fn reclaim_waits_for_what_others_write_back() {
    let (_file, home, object, map) = failing();
    map.write_at(0, &[1; (PAGES * PAGE_SIZE) as usize]).unwrap();
    let written = home.writes.lock().unwrap();
    let frames = object.core.frames().unwrap();
    let dirty = object.core.dirty().unwrap();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| object.write_back(object.pages()).unwrap());
        while dirty.first(&frames.pages, object.pages()).is_some() {
            std::thread::yield_now();
        }
        let reclaiming = scope.spawn(|| {
            // A write that takes long is not waited for.
            let mut reclaimed = 0;
            while reclaimed < PAGES {
                reclaimed += object.core.vm.pool.reclaim(PAGES - reclaimed);
            }
        });
        // It has looked by then.
        std::thread::sleep(Duration::from_millis(50));
        drop(written);
        assert_eq!(writing.join().unwrap(), PAGES);
        reclaiming.join().unwrap();
    });
}

/// As on a file system that is frozen for a backup, or where a server does not answer.
#[test]
fn a_write_that_hangs_holds_up_no_other_page_of_the_pool() {
    const LIMIT: u64 = 256;
    const DIRTY: u64 = LIMIT / 2;
    let (file, home, object, map) =
        failing_with(VmOptions::default().frame_limit_bytes(LIMIT * PAGE_SIZE), DIRTY);
    map.write_at(0, &vec![7; (DIRTY * PAGE_SIZE) as usize]).unwrap();
    let others = tempfile::NamedTempFile::new().unwrap();
    others.as_file().set_len(4 * LIMIT * PAGE_SIZE).unwrap();
    let vm = Vm { core: Arc::clone(&object.core.vm) };
    let options = MapOptions::shared().policy("none".parse().unwrap());
    let others = vm.map(&vm.file(others.path()).unwrap(), &options).unwrap();
    let is_hung = || object.core.dirty().unwrap().hangs();
    std::thread::scope(|scope| {
        let hangs = home.writes.lock().unwrap();
        scope.spawn(|| vm.core.pool.reclaim(LIMIT));
        let began = Instant::now();
        let mut reads = 0;
        while reads < 4 * LIMIT || !is_hung() {
            assert!(began.elapsed() < Duration::from_secs(30), "{reads} pages were read");
            assert_eq!(others.as_slice()[(reads % (4 * LIMIT) * PAGE_SIZE) as usize], 0);
            reads += 1;
        }
        assert_eq!(object.dirty_pages(), DIRTY);
        drop(hangs);
    });
    object.flush(object.pages()).unwrap();
    assert!(std::fs::read(file.path()).unwrap().iter().all(|&byte| byte == 7));
    while is_hung() {
        std::thread::yield_now();
    }
    vm.core.pool.reclaim(2 * LIMIT);
    assert_eq!((vm.core.pool.figures().resident_pages, object.dirty_pages()), (0, 0));
}

/// As where the kernel holds up who writes faster than the disk.
#[test]
fn writes_that_are_slow_are_waited_for() {
    unless_late(Duration::from_secs(2), || {
        const RUNS: u64 = 8;
        let (_file, home, object, map) = failing_with(VmOptions::default(), 2 * RUNS);
        (0..RUNS).for_each(|run| map.write_at(2 * run * PAGE_SIZE, &[7]).unwrap());
        home.write_ms.store(200, Ordering::SeqCst);
        let reclaimed = object.core.vm.pool.reclaim(RUNS);
        assert_eq!((reclaimed, object.dirty_pages()), (RUNS, 0));
    });
}

#[test]
fn a_flush_that_goes_on_does_not_keep_who_reclaims() {
    let (_file, _home, object, map) = failing();
    map.write_at(3 * PAGE_SIZE, &[9]).unwrap();
    let frames = object.core.frames().unwrap();
    let dirty = frames.dirty.as_ref().unwrap();
    let is_over = AtomicBool::new(false);
    let took = std::thread::scope(|scope| {
        let mut written = dirty.written.lock().unwrap();
        let cleans = scope.spawn(|| {
            let began = Instant::now();
            let came =
                Cleaner::default().clean(&object.core, vec![PageIndex(3)], true, Duration::ZERO, later());
            is_over.store(true, Ordering::SeqCst);
            assert!(came.is_none(), "{came:?}");
            began.elapsed()
        });
        // One batch after the other, as of a large file.
        let began = Instant::now();
        while !is_over.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(20) {
            map.write_at(0, &[7]).unwrap();
            assert!(dirty.begin(&frames.pages, PageIndex(0)));
            object.core.write_batch(frames, dirty, &[PageIndex(0)], &mut written, Duration::ZERO, None);
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(dirty.hangs() && is_over.load(Ordering::SeqCst), "it waits for the flush");
        drop(written);
        cleans.join().unwrap()
    });
    assert!(took < Duration::from_secs(10), "{took:?}");
    // What was left to the other thread is done.
    let began = Instant::now();
    while (dirty.hangs() || object.dirty_pages() > 0) && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((dirty.hangs(), object.dirty_pages()), (false, 0));
}

#[test]
fn no_read_fails_while_all_that_could_go_waits_for_a_write_that_hangs() {
    const LIMIT: u64 = 64;
    let (file, home, object, map) =
        failing_with(VmOptions::default().frame_limit_bytes(LIMIT * PAGE_SIZE), LIMIT + 3);
    let hangs = home.writes.lock().unwrap();
    (0..LIMIT + 3).for_each(|page| map.write_at(page * PAGE_SIZE, &[7]).unwrap());
    drop(hangs);
    object.flush(object.pages()).unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(bytes.iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 7));
}

#[test]
fn a_pool_reclaims_though_a_thread_panicked_while_it_wrote() {
    let (_file, _home, object, map) = failing();
    map.write_at(3 * PAGE_SIZE, &[9]).unwrap();
    let frames = object.core.frames().unwrap();
    let dirty = frames.dirty.as_ref().unwrap();
    std::thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let _held = dirty.written.lock().unwrap();
            panic!("in the middle");
        });
        assert!(panics.join().is_err());
    });
    object.core.clean(frames, &[PageIndex(3)], false, Duration::ZERO, None);
    assert_eq!(object.dirty_pages(), 0);
}

#[test]
fn what_could_not_be_made_durable_is_written_again() {
    let (file, home, object, map) = failing();
    map.write_at(0, &[1]).unwrap();
    object.flush(object.pages()).unwrap();
    for page in [3, 4] {
        map.write_at(page * PAGE_SIZE, &[9]).unwrap();
    }
    // One goes by the background, and out of memory; the other is in the flush that fails.
    let page = |page| PageRange::new(PageIndex(page), PageIndex(page + 1));
    assert_eq!(object.write_back(page(3)).unwrap(), 1);
    assert_eq!(object.evict(page(3)).unwrap(), 1);
    home.syncs_fail.store(true, Ordering::SeqCst);
    let failed = object.flush(page(4)).unwrap_err();
    assert!(matches!(failed, FlushError::Sync { .. }), "{failed}");
    assert_eq!(object.dirty_pages(), 1, "page 0 was durable before, page 3 is not here");
    let written = object.core.vm.figures.counted().pages_written_back;
    object.flush(object.pages()).unwrap();
    assert_eq!(object.core.vm.figures.counted().pages_written_back, written + 2);
    let bytes = std::fs::read(file.path()).unwrap();
    assert_eq!([3, 4].map(|page| bytes[page * PAGE_SIZE as usize]), [9, 9]);
}

#[test]
fn what_the_device_lost_is_an_error_and_not_what_was_there_before() {
    let (_file, home, object, map) = failing();
    map.write_at(3 * PAGE_SIZE, &[9]).unwrap();
    assert_eq!(object.write_back(object.pages()).unwrap(), 1);
    object.evict(object.pages()).unwrap();
    home.syncs_fail.store(true, Ordering::SeqCst);
    assert!(matches!(object.flush(object.pages()), Err(FlushError::Sync { .. })));
    home.file.write(3 * PAGE_SIZE, &[0]).unwrap();
    let lost = object.flush(object.pages()).unwrap_err();
    let is_lost = matches!(lost, FlushError::Lost { page: PageIndex(3), reason: Reason::Changed, .. });
    assert!(is_lost, "{lost}");
    let mut bytes = [0];
    let read = map.read_at(3 * PAGE_SIZE, &mut bytes);
    assert!(matches!(read, Err(AccessError::Unavailable { reason: Reason::Changed, .. })));
    // All else goes on.
    map.write_at(4 * PAGE_SIZE, &[1]).unwrap();
    object.flush(object.pages()).unwrap();
}

#[test]
fn what_cannot_be_read_for_now_is_written_by_a_later_flush() {
    let (_file, home, object, map) = failing_in(VmOptions::default().frame_limit_bytes(64 * PAGE_SIZE));
    [3, 5].into_iter().for_each(|page| map.write_at(page * PAGE_SIZE, &[9]).unwrap());
    assert_eq!(object.write_back(object.pages()).unwrap(), 2);
    object.evict(object.pages()).unwrap();
    home.syncs_fail.store(true, Ordering::SeqCst);
    assert!(matches!(object.flush(object.pages()), Err(FlushError::Sync { .. })));
    let others = tempfile::NamedTempFile::new().unwrap();
    others.as_file().set_len(64 * PAGE_SIZE).unwrap();
    let vm = Vm { core: Arc::clone(&object.core.vm) };
    let others = vm.map(&vm.file(others.path()).unwrap(), &MapOptions::shared()).unwrap();
    let pinned = others.pin(others.window()).unwrap();
    for _ in 0..2 {
        let unread = object.flush(object.pages()).unwrap_err();
        let is_kept =
            matches!(unread, FlushError::Unread { page: PageIndex(3), reason: Reason::NoFrames, .. });
        assert!(is_kept, "{unread}");
    }
    drop(pinned);
    object.flush(object.pages()).unwrap();
    assert_eq!(object.core.vm.figures.counted().pages_written_back, 4);
}
