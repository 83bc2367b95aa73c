//! A touch is served whatever else waits: reads ahead without number, sources that touch other maps, full queues.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use prepage_core::PageIndex;
use prepage_testing::unless_late;
use prepage_vm::{
    AccessError, Advice, Map, MapOptions, Mode, Pool, Priority, Reason, Request, Source, SourceError, Vm,
    VmOptions,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{
    Words, at, child, file, has_no_frame, is_child, keeps_to, left_in, modes, page_bytes, pages, touch,
    until, vm, word,
};

/// Longer than any of this takes; shorter than for ever.
const PATIENCE: Duration = Duration::from_secs(60);

/// Does `work` on another thread; panics where it never ends.
fn within_patience<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    ended.recv_timeout(PATIENCE).expect("nobody sleeps for ever")
}

/// A gate that reads ahead stop at until it opens.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Lets demand through, and has everything else wait.
struct Gated {
    len_bytes: u64,
    gate: Arc<Gate>,
    demanded: Arc<AtomicU64>,
}

impl Source for Gated {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn begin(&self, mut request: Request) {
        if request.priority() == Priority::Demand {
            self.demanded.fetch_add(1, Ordering::SeqCst);
        } else {
            self.gate.pass();
        }
        let page = request.offset_bytes() / 4096;
        for (page, bytes) in (page..).zip(request.bytes().chunks_mut(4096)) {
            bytes[..8].copy_from_slice(&word(page * 4096).to_le_bytes());
        }
        request.complete(Ok(()));
    }
}

#[test]
fn a_touch_goes_before_any_number_of_reads_ahead() {
    let vm = Vm::new(VmOptions::default().fill_threads(2)).unwrap();
    let (gate, demanded) = (Arc::new(Gate::default()), Arc::new(AtomicU64::new(0)));
    // Twice as many pieces of 1 MiB as any queue ever held.
    let source = Gated { len_bytes: 8 << 30, gate: Arc::clone(&gate), demanded: Arc::clone(&demanded) };
    let object = vm.source("gated", source).unwrap();
    for (number, mode) in modes(&vm, &object).into_iter().enumerate() {
        let options = MapOptions::shared().mode(mode).policy("slurp".parse().unwrap());
        let map = Arc::new(vm.map(&object, &options).unwrap());
        let toucher = Arc::clone(&map);
        // Each far from where the reads ahead of the others wait at the gate.
        let first = 1_000_000 + number as u64 * 500_000;
        within_patience(move || {
            for page in [first, first + 100_000, first + 200_000] {
                assert_eq!(touch(&toucher, page), word(page * 4096));
            }
        });
        assert_eq!(vm.take_failures(), []);
        // Many more are asked for, all at once.
        for start in (0..10_000).map(|number| number * 100) {
            map.advise(Advice::WillNeed(pages(start, start + 1))).unwrap();
        }
        let toucher = Arc::clone(&map);
        within_patience(move || assert_eq!(touch(&toucher, first + 300_000), word((first + 300_000) * 4096)));
    }
    assert!(demanded.load(Ordering::SeqCst) >= 4);
    gate.open();
}

/// Counts reads by their priority and that of the thread they came on, against a thread of the program.
#[derive(Default)]
struct Niceness {
    seen: Arc<Mutex<Vec<(Priority, i32)>>>,
}

fn niceness() -> i32 {
    // Linux takes a thread for a process here.
    rustix::process::getpriority_process(None).unwrap()
}

impl Source for Niceness {
    fn len_bytes(&self) -> u64 {
        64 << 20
    }

    fn begin(&self, request: Request) {
        self.seen.lock().unwrap().push((request.priority(), niceness()));
        request.complete(Ok(()));
    }
}

#[test]
fn reads_ahead_leave_the_cpu_to_those_that_somebody_waits_for() {
    let vm = vm();
    let source = Niceness::default();
    let seen = Arc::clone(&source.seen);
    let object = vm.source("nice", source).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.advise(Advice::WillNeed(pages(0, 1024))).unwrap();
    map.populate(pages(4096, 8192)).unwrap();
    touch(&map, 12_000);
    let count = |priority| seen.lock().unwrap().iter().filter(|(of, _)| *of == priority).count();
    within_patience(move || {
        while object.resident_pages() < 1024 + 4096 + 1 {
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(count(Priority::Ahead) > 0 && count(Priority::Wanted) > 0 && count(Priority::Demand) > 0);
    for (priority, nice) in seen.lock().unwrap().iter() {
        let expected = if *priority == Priority::Ahead { (niceness() + 10).min(19) } else { niceness() };
        assert_eq!(*nice, expected, "of {priority:?}");
    }
}

/// Reads pages by touching another map.
struct Nested {
    inner: OnceLock<Map>,
}

impl Source for Nested {
    fn len_bytes(&self) -> u64 {
        64 * 4096
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let inner = self.inner.get().expect("set before it is read");
        into.copy_from_slice(&inner.as_slice()[offset_bytes as usize..][..into.len()]);
        Ok(())
    }
}

fn nested(vm: &Vm, mode: Mode, depth: u32) -> Map {
    let source = Words { len_bytes: 64 * 4096, ..Default::default() };
    let options = MapOptions::shared().mode(mode).policy("aligned:4".parse().unwrap());
    let mut map = vm.map(&vm.source("words", source).unwrap(), &options).unwrap();
    for _ in 0..depth {
        let inner = OnceLock::new();
        inner.set(map).unwrap();
        map = vm.map(&vm.source("nested", Nested { inner }).unwrap(), &options).unwrap();
    }
    map
}

#[test]
fn sources_that_touch_maps_need_no_thread_to_be_free() {
    let vm = Vm::new(VmOptions::default().fill_threads(1)).unwrap();
    let probe = vm.anonymous(4096).unwrap();
    for mode in modes(&vm, &probe) {
        let map = nested(&vm, mode, 3);
        within_patience(move || {
            (0..32).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
            map.populate(pages(32, 64)).unwrap();
            assert_eq!(touch(&map, 63), word(63 * 4096));
        });
    }
}

#[test]
fn a_background_read_that_fails_is_read_once_and_fails_nobody() {
    struct Dead(Arc<AtomicU64>);
    impl Source for Dead {
        fn len_bytes(&self) -> u64 {
            1 << 30
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Err(SourceError::Other("gone".to_owned()))
        }
    }
    let vm = vm();
    let reads = Arc::new(AtomicU64::new(0));
    let object = vm.source("dead", Dead(Arc::clone(&reads))).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.advise(Advice::WillNeed(map.window())).unwrap();
    until(|| reads.load(Ordering::SeqCst) > 0);
    // Time for those that are not to come.
    thread::sleep(Duration::from_millis(100));
    // What was under way when the first failed, and no more of 1024 pieces.
    drop(map);
    assert!((1..=64).contains(&reads.load(Ordering::SeqCst)), "{reads:?}");
    assert_eq!(vm.statistics().counted.pages_failed, 0, "nobody needed them");
}

#[test]
fn a_page_that_failed_comes_back_with_its_cluster() {
    struct Recovers(Arc<AtomicBool>);
    impl Source for Recovers {
        fn len_bytes(&self) -> u64 {
            16 * 4096
        }
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            if self.0.load(Ordering::SeqCst) {
                into.fill(1);
                return Ok(());
            }
            Err(SourceError::Other("not yet".to_owned()))
        }
    }
    let vm = vm();
    let well = Arc::new(AtomicBool::new(false));
    let object = vm.source("recovers", Recovers(Arc::clone(&well))).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    assert!(map.populate(pages(5, 6)).is_err());
    well.store(true, Ordering::SeqCst);
    assert_eq!(touch(&map, 5), 0x0101_0101_0101_0101);
    assert_eq!(object.resident_pages(), 16, "by the policy, as a first touch");
}

#[test]
fn a_demand_that_fits_gets_its_frames_while_another_does_not_fit() {
    // Of 64 frames each populate asks for many at once, most of which do not fit; one page always does.
    let vm = Vm::new(VmOptions::default().frame_limit_bytes(64 * 4096)).unwrap();
    let large = vm.source("large", Words { len_bytes: 4096 * 4096, ..Default::default() }).unwrap();
    let small = vm.source("small", Words { len_bytes: 32 * 4096, ..Default::default() }).unwrap();
    let greedy = vm.map(&large, &MapOptions::shared()).unwrap();
    let options = MapOptions::shared().policy("none".parse().unwrap());
    let modest = vm.map(&small, &options).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    // At most 32 frames, by pages that fail for want of more.
                    let _ = greedy.populate(pages(0, 16));
                    let _ = greedy.advise(Advice::WillNeed(pages(1024, 4096)));
                    large.evict(large.pages()).unwrap();
                }
            });
        }
        for _ in 0..200 {
            for page in 0..8 {
                modest.populate(pages(page, page + 1)).unwrap();
            }
            small.evict(small.pages()).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    drop((greedy, modest));
    large.evict(large.pages()).unwrap();
    small.evict(small.pages()).unwrap();
}

/// Fewer than a cluster, and fewer than three frames that are free, filled and taken away at a time.
#[test]
fn where_a_few_frames_are_all_there_are_every_page_can_be_had() {
    const PAGES: u64 = 40;
    let local = file(PAGES * 4096);
    for limit in 1..=3 {
        for is_local in [true, false] {
            let vm = Vm::new(VmOptions::default().frame_limit_bytes(limit * 4096)).unwrap();
            let object = match is_local {
                true => vm.file(local.path()),
                false => vm.source("words", Words { len_bytes: PAGES * 4096, ..Default::default() }),
            };
            let object = object.unwrap();
            for mode in modes(&vm, &object) {
                let what = format!("{limit} frames, {mode:?}, a file: {is_local}");
                let map = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
                for page in (0..PAGES).chain((0..PAGES).rev()) {
                    assert_eq!(touch(&map, page), word(page * 4096), "{what}");
                    assert!(keeps_to(limit, &vm), "{what}");
                }
                map.populate(map.window()).unwrap();
                let mut bytes = vec![0; (PAGES * 4096) as usize];
                map.read_at(0, &mut bytes).unwrap();
                assert!((0..PAGES).all(|page| bytes[at(page)..at(page + 1)] == page_bytes(page)), "{what}");
                let pinned = map.pin(pages(7, 7 + limit)).unwrap();
                (7..7 + limit).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096), "{what}"));
                assert!(has_no_frame(&vm, || map.populate(pages(20, 21))), "{what}");
                drop(pinned);
                assert_eq!(touch(&map, 20), word(20 * 4096), "{what}");
            }
            drop(object);
            assert_eq!(left_in(&vm), (0, 0, 0, 0), "{limit} frames, a file: {is_local}");
        }
    }
}

/// Keeps requests, and completes them when it is told.
#[derive(Default)]
struct Later {
    waiting: Arc<Mutex<Vec<Request>>>,
}

impl Source for Later {
    fn len_bytes(&self) -> u64 {
        1024 * 4096
    }

    fn grain_bytes(&self) -> u64 {
        64 * 4096
    }

    fn begin(&self, request: Request) {
        self.waiting.lock().unwrap().push(request);
    }
}

fn answer(mut request: Request) {
    let page = request.offset_bytes() / 4096;
    for (page, bytes) in (page..).zip(request.bytes().chunks_mut(4096)) {
        bytes[..8].copy_from_slice(&word(page * 4096).to_le_bytes());
    }
    request.complete(Ok(()));
}

#[test]
fn a_source_that_works_by_completion_reads_whole_grains_from_any_thread() {
    let vm = Vm::new(VmOptions::default().fill_threads(1)).unwrap();
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let object = vm.source("later", Later { waiting: Arc::clone(&waiting) }).unwrap();
    for mode in modes(&vm, &object) {
        let map = Arc::new(vm.map(&object, &MapOptions::shared().mode(mode)).unwrap());
        let touchers: Vec<_> = [70, 200, 900]
            .map(|page| {
                let map = Arc::clone(&map);
                thread::spawn(move || assert_eq!(touch(&map, page), word(page * 4096)))
            })
            .into();
        // All at once, with one thread of the VM.
        let wait_for = |count| {
            (0..60_000).take_while(|_| waiting.lock().unwrap().len() < count).for_each(|_| {
                thread::sleep(Duration::from_millis(1));
            });
        };
        wait_for(3);
        let requests = std::mem::take(&mut *waiting.lock().unwrap());
        let mut ranges: Vec<_> = requests.iter().map(Request::offset_bytes).collect();
        ranges.sort_unstable();
        assert_eq!(ranges, [64 * 4096, 192 * 4096, 896 * 4096]);
        assert!(
            requests.iter().all(|request| request.priority() == Priority::Demand && !request.is_cancelled())
        );
        requests.into_iter().for_each(answer);
        touchers.into_iter().for_each(|toucher| within_patience(move || toucher.join().unwrap()));
        assert_eq!(object.resident_pages(), 3 * 64, "each grain was read once, and all of it is there");
        object.evict(object.pages()).unwrap();
    }
    // A request that is thrown away fails, and says so.
    let map = Arc::new(vm.map(&object, &MapOptions::shared()).unwrap());
    let populates = Arc::clone(&map);
    let populate = thread::spawn(move || populates.populate(pages(0, 1)));
    (0..60_000).take_while(|_| !populate.is_finished()).for_each(|_| {
        waiting.lock().unwrap().clear();
        thread::sleep(Duration::from_millis(1));
    });
    let error = populate.join().unwrap().unwrap_err();
    assert!(matches!(error, AccessError::Unavailable { reason: Reason::Dropped, .. }), "{error}");
}

#[test]
fn a_read_that_fails_is_not_asked_for_again_from_within_its_completion() {
    type Kept = (Vec<thread::ThreadId>, Vec<Request>);
    /// Keeps requests, and who asked.
    struct Refuses(Arc<Mutex<Kept>>);
    impl Source for Refuses {
        fn len_bytes(&self) -> u64 {
            64 * 4096
        }
        fn begin(&self, request: Request) {
            let mut kept = self.0.lock().unwrap();
            kept.0.push(thread::current().id());
            kept.1.push(request);
        }
    }
    let vm = Vm::new(VmOptions::default().fill_threads(1)).unwrap();
    let kept = Arc::new(Mutex::new(Kept::default()));
    let object = vm.source("refuses", Refuses(Arc::clone(&kept))).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    thread::scope(|scope| {
        let populate = scope.spawn(|| map.populate(pages(0, 64)));
        while !populate.is_finished() {
            let requests = std::mem::take(&mut kept.lock().unwrap().1);
            for mut request in requests {
                let first = request.offset_bytes() / 4096;
                // One page of them all is bad.
                if (first..first + request.bytes().len() as u64 / 4096).contains(&40) {
                    request.complete(Err(SourceError::Other("not this one".to_owned())));
                } else {
                    answer(request);
                }
            }
            thread::sleep(Duration::from_millis(1));
        }
        let error = populate.join().unwrap().unwrap_err();
        assert!(matches!(error, AccessError::Unavailable { page: PageIndex(40), .. }), "{error}");
    });
    let asked = &kept.lock().unwrap().0;
    assert!(asked.len() > 6, "{asked:?}");
    assert!(!asked.contains(&thread::current().id()), "by who completes: {asked:?}");
    assert_eq!(object.resident_pages(), 63);
}

#[test]
fn what_is_read_of_a_grain_does_not_span_a_page_that_failed() {
    struct Bad(Arc<Mutex<Vec<(u64, usize)>>>);
    impl Source for Bad {
        fn len_bytes(&self) -> u64 {
            64 * 4096
        }
        fn grain_bytes(&self) -> u64 {
            16 * 4096
        }
        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            let (first, count) = (offset_bytes / 4096, into.len() / 4096);
            self.0.lock().unwrap().push((first, count));
            match (first..first + count as u64).any(|page| [7, 23].contains(&page)) {
                true => Err(SourceError::Other("bad".to_owned())),
                false => Ok(()),
            }
        }
    }
    let vm = vm();
    let reads = Arc::new(Mutex::new(Vec::new()));
    let object = vm.source("bad", Bad(Arc::clone(&reads))).unwrap();
    let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
    let error = map.populate(pages(0, 16)).unwrap_err();
    assert!(matches!(error, AccessError::Unavailable { page: PageIndex(7), .. }), "{error}");
    object.evict(pages(0, 3)).unwrap();
    object.evict(pages(5, 9)).unwrap();
    object.evict(pages(12, 13)).unwrap();
    let read = |page| {
        reads.lock().unwrap().clear();
        assert_eq!(touch(&map, page), 0);
        reads.lock().unwrap().clone()
    };
    // What lies between is in memory, and stays as it is.
    assert_eq!(read(8), [(8, 5)]);
    assert_eq!(read(1), [(0, 7)]);
    assert_eq!(object.resident_pages(), 15);
    // Nor does one that is not known yet harm what is read with it.
    assert_eq!(read(20), [(16, 16), (20, 1)]);
    assert_eq!(read(22), [(16, 16), (21, 11), (22, 1)]);
    assert_eq!(read(21), [(16, 16), (21, 1)]);
}

#[test]
fn a_read_that_is_too_late_fails_and_what_comes_then_is_thrown_away() {
    // Where a thread came too late to ask for it, nothing comes.
    assert!((0..5).any(|_| is_thrown_away()));
}

/// Whether the source was asked, and what it gave too late thrown away.
fn is_thrown_away() -> bool {
    let vm = Vm::new(VmOptions::default().read_deadline(Duration::from_millis(50))).unwrap();
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let object = vm.source("later", Later { waiting: Arc::clone(&waiting) }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let error = map.populate(pages(3, 4)).unwrap_err();
    assert!(
        matches!(error, AccessError::Unavailable { page: PageIndex(3), reason: Reason::TimedOut, .. }),
        "{error}"
    );
    let requests = std::mem::take(&mut *waiting.lock().unwrap());
    if requests.is_empty() {
        return false;
    }
    assert!(requests.iter().all(|late| late.is_cancelled() && late.deadline().is_some()));
    requests.into_iter().for_each(answer);
    assert_eq!((object.resident_pages(), support::frames(&vm)), (0, 0));
    true
}

/// The next request that waits to be answered.
fn next_of(waiting: &Mutex<Vec<Request>>) -> Request {
    until(|| !waiting.lock().unwrap().is_empty());
    waiting.lock().unwrap().remove(0)
}

#[test]
fn a_read_ahead_is_needed_as_a_touch_is_once_a_thread_waits_for_it() {
    let vm = vm();
    let waiting = Arc::new(Mutex::new(Vec::new()));
    let object = vm.source("later", Later { waiting: Arc::clone(&waiting) }).unwrap();
    for mode in modes(&vm, &object) {
        let map = Arc::new(vm.map(&object, &MapOptions::shared().mode(mode)).unwrap());
        let ask = || {
            let ahead = vm.map(&object, &MapOptions::shared()).unwrap();
            ahead.advise(Advice::WillNeed(pages(64, 128))).unwrap();
            (next_of(&waiting), ahead)
        };
        let touch_in_it = || {
            let map = Arc::clone(&map);
            thread::spawn(move || assert_eq!(touch(&map, 100), word(100 * 4096)))
        };
        let (request, ahead) = ask();
        assert_eq!((request.priority(), request.is_cancelled()), (Priority::Ahead, false));
        let toucher = touch_in_it();
        until(|| request.priority() == Priority::Demand);
        drop(ahead);
        assert!(!request.is_cancelled(), "{mode:?}: the thread waits for it");
        answer(request);
        within_patience(|| toucher.join().unwrap());
        object.evict(object.pages()).unwrap();
        // And the other way round: the source hears that nobody needs it, and throws it away when somebody does.
        let (request, ahead) = ask();
        drop(ahead);
        assert!(request.is_cancelled(), "{mode:?}: nobody waits for it");
        let toucher = touch_in_it();
        until(|| !request.is_cancelled());
        drop(request);
        answer(next_of(&waiting));
        within_patience(|| toucher.join().unwrap());
        object.evict(object.pages()).unwrap();
    }
    assert_eq!(vm.take_failures(), []);
}

#[test]
fn a_source_that_asks_for_patience_is_not_asked_again_after_the_deadline() {
    struct Busy(Arc<AtomicU64>);
    impl Source for Busy {
        fn len_bytes(&self) -> u64 {
            4096
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            self.0.fetch_add(1, Ordering::SeqCst);
            Err(SourceError::Again)
        }
    }
    let is_left_alone = || {
        // Within the last pause, which lasts half a second.
        let vm = Vm::new(VmOptions::default().read_deadline(Duration::from_millis(300))).unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let object = vm.source("busy", Busy(Arc::clone(&asked))).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let error = map.populate(map.window()).unwrap_err();
        assert!(matches!(error, AccessError::Unavailable { reason: Reason::TimedOut, .. }), "{error}");
        let before = asked.load(Ordering::SeqCst);
        thread::sleep(Duration::from_millis(800));
        let after = asked.load(Ordering::SeqCst);
        drop((map, object));
        assert_eq!(left_in(&vm), (0, 0, 0, 0));
        after == before
    };
    // Who was about to ask may have lost the processor before the deadline.
    assert!((0..3).any(|_| is_left_alone()));
}

#[test]
fn a_thread_that_could_not_be_had_is_asked_for_again() {
    const NAME: &str = "a_thread_that_could_not_be_had_is_asked_for_again";
    /// Its first page hangs until it is let go.
    struct Hangs([Arc<AtomicBool>; 2]);
    impl Source for Hangs {
        fn len_bytes(&self) -> u64 {
            2 * 4096
        }
        fn read(&self, offset_bytes: u64, _: &mut [u8]) -> Result<(), SourceError> {
            let [hangs, let_go] = &self.0;
            while offset_bytes == 0 && !let_go.load(Ordering::SeqCst) {
                hangs.store(true, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        }
    }
    if !is_child(NAME) {
        if prepage_testing::has(prepage_testing::Need::Root) {
            let output = child(NAME, &["setpriv", "--reuid=65532", "--regid=65532", "--clear-groups"]);
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        return;
    }
    let states = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
    let vm = vm();
    let object = vm.source("hangs", Hangs(states.clone())).unwrap();
    let map = Arc::new(vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap());
    let touchers = [0, 1].map(|page| {
        let ((go, told), (done, ended)) = (mpsc::channel(), mpsc::channel());
        let map = Arc::clone(&map);
        thread::spawn(move || {
            told.recv().unwrap();
            done.send(touch(&map, page)).unwrap();
        });
        (go, ended)
    });
    let whole = getrlimit(Resource::Nproc);
    setrlimit(Resource::Nproc, Rlimit { current: Some(1), ..whole }).unwrap();
    touchers[0].0.send(()).unwrap();
    until(|| states[0].load(Ordering::SeqCst));
    touchers[1].0.send(()).unwrap();
    thread::sleep(Duration::from_millis(50));
    setrlimit(Resource::Nproc, whole).unwrap();
    let came = touchers[1].1.recv_timeout(Duration::from_secs(20));
    states[1].store(true, Ordering::SeqCst);
    assert_eq!((came, touchers[0].1.recv()), (Ok(0), Ok(0)), "one thread hangs, and no other was started");
}

/// A source whose reads hang until they are let go.
struct Hangs(Arc<AtomicBool>);

impl Source for Hangs {
    fn len_bytes(&self) -> u64 {
        1024 * 4096
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        while !self.0.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }
}

#[test]
fn who_waits_for_a_source_that_hangs_has_an_error_in_time() {
    type Wait = fn(&Map, u64) -> Result<(), AccessError>;
    for fill_threads in [1, 4] {
        let let_go = Arc::new(AtomicBool::new(false));
        let options = VmOptions::default().fill_threads(fill_threads);
        let vm = Vm::new(options.read_deadline(Duration::from_millis(100))).unwrap();
        let object = vm.source("hangs", Hangs(Arc::clone(&let_go))).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let began = Instant::now();
        thread::scope(|scope| {
            // More than there are threads for; a range of one page, and one of several reads.
            let waits: [Wait; 3] = [
                |map, number| map.populate(pages(number, number + 1)),
                |map, _| map.populate(map.window()),
                |map, number| map.read_at((number + 600) * 4096, &mut [0]),
            ];
            let waiting = (0..12_u64).map(|number| {
                let (wait, map) = (waits[number as usize % 3], &map);
                scope.spawn(move || wait(map, number))
            });
            let waiting: Vec<_> = waiting.collect();
            let is_over = || waiting.iter().all(|waits| waits.is_finished());
            while !is_over() && began.elapsed() < Duration::from_secs(20) {
                thread::sleep(Duration::from_millis(1));
            }
            let was_over = is_over();
            let_go.store(true, Ordering::SeqCst);
            for waits in waiting {
                let error = waits.join().unwrap().unwrap_err();
                assert!(
                    matches!(error, AccessError::Unavailable { reason: Reason::TimedOut, .. }),
                    "{error}"
                );
            }
            assert!(was_over, "somebody waits for what never comes");
        });
        // Its threads come back.
        until(|| map.populate(map.window()).is_ok());
    }
}

#[test]
fn a_queue_is_no_reason_to_be_late() {
    unless_late(Duration::from_secs(4), || {
        /// Takes an eighth of the deadline for a read.
        struct Slow;
        impl Source for Slow {
            fn len_bytes(&self) -> u64 {
                64 * 4096
            }
            fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
                thread::sleep(Duration::from_millis(250));
                Ok(())
            }
        }
        let options = VmOptions::default().fill_threads(1).read_deadline(Duration::from_millis(2000));
        let vm = Vm::new(options).unwrap();
        let object = vm.source("slow", Slow).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        thread::scope(|scope| {
            let waiting = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11].map(|page| {
                let map = &map;
                scope.spawn(move || map.populate(pages(page, page + 1)))
            });
            waiting.into_iter().for_each(|waits| waits.join().unwrap().unwrap());
        });
    });
}

#[test]
fn no_clock_reaches_a_deadline_that_is_for_ever() {
    let pool = Pool::new(64 * 4096).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool).read_deadline(Duration::MAX)).unwrap();
    let object = vm.source("words", Words { len_bytes: 64 * 4096, ..Default::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.populate(pages(3, 4)).unwrap();
    assert_eq!((touch(&map, 3), pool.figures().promised_pages), (word(3 * 4096), 0));
}

#[test]
fn a_source_that_fills_nothing_shows_zeros_not_what_another_left() {
    struct Lazy;
    impl Source for Lazy {
        fn len_bytes(&self) -> u64 {
            16 * 4096
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            Ok(())
        }
    }
    let vm = vm();
    let words = vm.source("words", Words { len_bytes: 16 * 4096, ..Default::default() }).unwrap();
    let first = vm.map(&words, &MapOptions::shared()).unwrap();
    assert_eq!(touch(&first, 3), word(3 * 4096));
    let lazy = vm.source("lazy", Lazy).unwrap();
    let map = vm.map(&lazy, &MapOptions::shared()).unwrap();
    assert!(map.as_slice().iter().all(|&byte| byte == 0));
}

#[test]
fn pages_that_come_back_different_fail_and_are_not_shown() {
    struct Changes(Arc<AtomicU64>);
    impl Source for Changes {
        fn len_bytes(&self) -> u64 {
            16 * 4096
        }
        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            into.fill(self.0.load(Ordering::SeqCst) as u8);
            Ok(())
        }
    }
    let vm = vm();
    let version = Arc::new(AtomicU64::new(1));
    let object = vm.source("changes", Changes(Arc::clone(&version))).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    touch(&map, 0);
    assert_eq!(object.evict(object.pages()).unwrap(), 16);
    version.store(2, Ordering::SeqCst);
    let error = map.populate(pages(0, 1)).unwrap_err();
    assert!(matches!(error, AccessError::Unavailable { reason: Reason::Changed, .. }), "{error}");
    version.store(1, Ordering::SeqCst);
    assert_eq!(touch(&map, 0), 0x0101_0101_0101_0101, "as it was");

    // A file that is written to.
    let file = support::file(64 * 4096);
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    (0..64).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    object.evict(object.pages()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &[9; 8], 20 * 4096).unwrap();
    let error = map.populate(map.window()).unwrap_err();
    assert!(
        matches!(error, AccessError::Unavailable { page: PageIndex(20), reason: Reason::Changed, .. }),
        "{error}"
    );
    assert_eq!(object.resident_pages(), 63);
}

/// Threads that fault get the processor in between.
#[test]
fn the_pools_thread_rests_between_batches() {
    let out = child("child_fills_a_pool", &[]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// In a process of its own, where no other pool has such a thread.
#[test]
fn child_fills_a_pool() {
    const PAGES: u64 = 16 << 10;
    if !is_child("child_fills_a_pool") {
        return;
    }
    const BATCHES: u64 = 8;
    let pool = Pool::new(PAGES * 4096).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.source("words", Words { len_bytes: PAGES * 4096, ..Default::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    // Once three quarters are full frames are unwired, BATCHES times 128 for one call.
    map.populate(pages(0, PAGES * 3 / 4 - 128)).unwrap();
    until(|| sleeps_of_reclaim() > 0);
    let before = sleeps_of_reclaim();
    map.populate(pages(PAGES * 3 / 4 - 128, PAGES * 3 / 4 + 256)).unwrap();
    until(|| pool.figures().unwired_pages >= BATCHES * 128);
    let sleeps = sleeps_of_reclaim() - before;
    assert!(sleeps >= BATCHES - 1, "{sleeps} sleeps in {BATCHES} batches");
}

/// How often the thread of this process's only pool went to sleep.
fn sleeps_of_reclaim() -> u64 {
    let status = std::fs::read_dir("/proc/self/task").unwrap().map(|thread| {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status"));
        status.unwrap_or_default()
    });
    let reclaim = status.into_iter().find(|status| status.starts_with("Name:\tprepage-reclaim")).unwrap();
    let sleeps = reclaim.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    sleeps.trim().parse().unwrap()
}
