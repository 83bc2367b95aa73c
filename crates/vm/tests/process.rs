//! What happens to a whole process: forks, signals, core dumps, locked memory, settings of the system. Each in a process of
//! its own.

mod support;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use prepage_core::PageIndex;
use prepage_sys::forked::Forked;
use prepage_sys::region::is_present;
use prepage_testing::{Need, Swap, has};
use prepage_vm::{
    AccessError, Advice, MakeError, Map, MapError, MapOptions, Mode, Piece, Request, Source, SourceError, Vm,
    VmOptions,
};
use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Signal, WaitStatus, getpid, kill_process};
use support::{Words, child, file, is_child, memfd_pages, memfds, modes, pages, touch, until, vm, word};

/// Runs the test `name` in a child, which must say `said`.
fn passes(name: &str, before: &[&str], said: &str) {
    let output = child(name, before);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains(said), "{:?}: {stderr}", output.status);
}

/// Forks as programs do; the child's `work` says how it ended in a byte.
fn fork(work: impl FnOnce() -> u8) -> WaitStatus {
    Forked::new(|| work().into()).expect("no more processes").wait().expect("nobody else waits")
}

#[test]
fn a_child_of_fork_gets_errors_and_harms_nobody() {
    passes("child_forks", &[], "the parent went on");
}

#[test]
fn child_forks() {
    if !is_child("child_forks") {
        return;
    }
    let vm = vm();
    let file = file(64 * 4096);
    let local = vm.file(file.path()).unwrap();
    let custom = vm.source("words", Words { len_bytes: 64 * 4096, ..Default::default() }).unwrap();
    for mode in modes(&vm, &local) {
        let stop = Arc::new(AtomicBool::new(false));
        let maps: Vec<Arc<Map>> = [&local, &custom]
            .map(|object| Arc::new(vm.map(object, &MapOptions::shared().mode(mode)).unwrap()))
            .into();
        // Faults are under way whenever the process forks.
        let touchers: Vec<_> = maps
            .iter()
            .map(|map| {
                let (map, stop) = (Arc::clone(map), Arc::clone(&stop));
                thread::spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        (0..64).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
                        map.advise(Advice::DontNeed(pages(0, 64))).unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..20 {
            let status = fork(|| {
                let forked = |error| matches!(error, AccessError::Forked);
                assert!(maps.iter().all(|map| forked(map.populate(pages(0, 1)).unwrap_err())));
                assert!(forked(maps[0].read_at(0, &mut [0; 8]).unwrap_err()));
                assert!(forked(maps[0].advise(Advice::Random).unwrap_err()));
                assert!(forked(local.evict(local.pages()).unwrap_err()));
                assert!(matches!(vm.map(&local, &MapOptions::shared()).unwrap_err(), MapError::Forked));
                assert!(matches!(vm.file(file.path()).unwrap_err(), MakeError::Forked));
                assert_eq!((vm.statistics().maps, vm.take_failures().len()), (0, 0));
                assert!(vm.take_trace().faults.is_empty());
                // Whatever the child maps now, it does not lie where the parent's maps are.
                let start = maps[0].address() as usize;
                for _ in 0..200 {
                    // SAFETY: a new mapping that replaces nothing, and is never used.
                    let at = unsafe {
                        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                        libc::mmap(std::ptr::null_mut(), 2 << 20, libc::PROT_READ, flags, -1, 0) as usize
                    };
                    assert!(at + (2 << 20) <= start || at >= start + 64 * 4096, "in a hole of the parent");
                }
                // It makes a VM of its own, and drops what it inherited.
                let own = Vm::new(VmOptions::default()).unwrap();
                let object = own.file(file.path()).unwrap();
                let map = own.map(&object, &MapOptions::shared().mode(mode)).unwrap();
                assert_eq!(touch(&map, 7), word(7 * 4096));
                drop(map);
                7
            });
            assert_eq!(status.exit_status(), Some(7), "{status:?}");
            let status = fork(|| touch(&maps[0], 0) as u8);
            assert_eq!(status.terminating_signal(), Some(libc::SIGSEGV), "a touch is loud");
        }
        stop.store(true, Ordering::SeqCst);
        touchers.into_iter().for_each(|toucher| toucher.join().unwrap());
    }
    drop((local, custom));
    assert_eq!(vm.statistics().maps, 0);
    eprintln!("the parent went on");
}

#[test]
fn descendants_have_maps_of_their_own_up_to_a_limit() {
    const NAME: &str = "descendants_have_maps_of_their_own_up_to_a_limit";
    const MOST: u8 = 64;
    if !is_child(NAME) {
        return passes(NAME, &["timeout", "100"], "all descended");
    }
    /// How many there are from the `nth` on that have.
    fn descend(nth: u8) -> u8 {
        let vm = Vm::new(VmOptions::default().fill_threads(1)).unwrap();
        let words = vm.source("words", Words { len_bytes: 4096, ..Default::default() }).unwrap();
        match vm.map(&words, &MapOptions::shared()) {
            Ok(map) => {
                assert!(touch(&map, 0) == word(0) && nth < 2 * MOST);
                1 + fork(|| descend(nth + 1)).exit_status().expect("it ends by itself") as u8
            }
            Err(error) => {
                assert!(matches!(error, MapError::TooManyForks), "{error:?}");
                0
            }
        }
    }
    assert_eq!(descend(0), MOST);
    eprintln!("all descended");
}

#[test]
fn write_back_goes_on_where_nobody_can_be_told_of_failures() {
    const NAME: &str = "write_back_goes_on_where_nobody_can_be_told_of_failures";
    if !is_child(NAME) {
        let output = child(NAME, &["sh", "-c", "exec \"$@\" 2> /dev/full", "sh"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    // Who fails here says so where it can be read.
    std::panic::set_hook(Box::new(|panic| println!("{panic}")));
    let file = file(4 * 4096);
    let vm = Vm::new(VmOptions::default().write_back_after(Duration::from_millis(10))).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    let fail_to_write = |map: &Map| {
        let failed = vm.statistics().counted.write_backs_failed;
        map.write_at(3 * 4096, b"mine").unwrap();
        file.as_file().set_len(4096).unwrap();
        until(|| vm.statistics().counted.write_backs_failed > failed + 1);
    };
    fail_to_write(&map);
    file.as_file().set_len(4 * 4096).unwrap();
    until(|| object.dirty_pages() == 0);
    assert_eq!(&std::fs::read(file.path()).unwrap()[3 * 4096..][..4], b"mine");
    // And the object goes.
    fail_to_write(&map);
    drop((map, object));
    // The thread that writes back may be at it.
    until(|| vm.statistics().objects == 0);
}

/// A source that keeps what it is asked.
struct Keeps(Arc<Mutex<Vec<Request>>>);

impl Source for Keeps {
    fn len_bytes(&self) -> u64 {
        64 * 4096
    }

    fn begin(&self, request: Request) {
        self.0.lock().unwrap().push(request);
    }
}

#[test]
fn a_child_of_fork_cannot_serve_its_parents_requests() {
    passes("child_has_requests", &[], "the parent has its frames");
}

#[test]
fn child_has_requests() {
    if !is_child("child_has_requests") {
        return;
    }
    let vm = vm();
    let kept = Arc::new(Mutex::new(Vec::new()));
    let object = vm.source("keeps", Keeps(Arc::clone(&kept))).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let take = || kept.lock().unwrap().pop().unwrap();
    thread::scope(|scope| {
        scope.spawn(|| touch(&map, 3));
        until(|| kept.lock().unwrap().len() == 1);
        let (told, mut tell) = std::io::pipe().unwrap();
        let uses: [fn(Request); 2] = [drop, |request| request.complete(Ok(()))];
        let children = uses.map(|end| {
            let child = || {
                // The parent has served it.
                (&told).read_exact(&mut [0]).unwrap();
                let is_there = object.is_resident(PageIndex(3)) || object.is_wired(PageIndex(3));
                let mut request = take();
                let is_needed = !request.is_cancelled() || !request.bytes().is_empty();
                end(request);
                i32::from(is_there || is_needed)
            };
            Forked::new(child).unwrap()
        });
        let mut request = take();
        request.bytes().fill(7);
        request.complete(Ok(()));
        tell.write_all(&[0; 2]).unwrap();
        for child in children {
            let status = child.wait().unwrap();
            assert_eq!(status.exit_status(), Some(0), "{status:?}");
        }
        assert!(object.is_resident(PageIndex(3)));
    });
    let other = vm.map(&object, &MapOptions::private()).unwrap();
    other.populate(pages(3, 4)).unwrap();
    assert_eq!(touch(&other, 3), u64::from_le_bytes([7; 8]), "the frame has gone");
    eprintln!("the parent has its frames");
}

/// A source that never gives anything, and tells of each read.
struct Hangs(Option<io::PipeWriter>);

impl Source for Hangs {
    fn len_bytes(&self) -> u64 {
        512 * 4096
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        if let Some(mut tell) = self.0.as_ref() {
            tell.write_all(&[0]).unwrap();
        }
        loop {
            thread::park();
        }
    }
}

#[test]
fn a_program_whose_threads_all_wait_for_a_source_ends_when_it_is_asked_to() {
    const NAME: &str = "a_program_whose_threads_all_wait_for_a_source_ends_when_it_is_asked_to";
    if !is_child(NAME) {
        return passes(NAME, &["timeout", "60"], "all ended");
    }
    let waits: [fn(&Map); 2] = [|map| _ = touch(map, 3), |map| _ = map.populate(map.window())];
    for wait in waits {
        let (told, tell) = io::pipe().unwrap();
        let child = Forked::new(|| {
            let vm = vm();
            let object = vm.source("hangs", Hangs(Some(tell))).unwrap();
            wait(&vm.map(&object, &MapOptions::shared()).unwrap());
            0
        });
        let child = child.unwrap();
        (&told).read_exact(&mut [0]).unwrap();
        let pid = rustix::process::Pid::from_raw(child.pid() as i32).unwrap();
        kill_process(pid, Signal::TERM).unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(ended.terminating_signal(), Some(libc::SIGTERM), "{ended:?}");
    }
    eprintln!("all ended");
}

static SIGNALS: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_usr1(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn signals_do_not_wait_for_all_of_what_is_populated() {
    /// The read of its first page sends a signal to the thread that asks for it, and that of the second sees whether it came.
    struct Sends(Arc<AtomicUsize>);
    impl Source for Sends {
        fn len_bytes(&self) -> u64 {
            2 * 4096
        }
        fn read(&self, offset_bytes: u64, _: &mut [u8]) -> Result<(), SourceError> {
            if offset_bytes == 0 {
                // SAFETY: a signal of this thread, with a handler that counts.
                unsafe { libc::raise(libc::SIGUSR1) };
            } else {
                self.0.store(SIGNALS.load(Ordering::SeqCst), Ordering::SeqCst);
            }
            Ok(())
        }
    }
    const NAME: &str = "signals_do_not_wait_for_all_of_what_is_populated";
    if !is_child(NAME) {
        return passes(NAME, &[], "it came");
    }
    // SAFETY: a handler that counts.
    unsafe { libc::signal(libc::SIGUSR1, on_usr1 as *const () as usize) };
    let vm = vm();
    let came = Arc::new(AtomicUsize::new(0));
    let sends = vm.source("sends", Sends(Arc::clone(&came))).unwrap();
    let words = vm.source("words", Words { len_bytes: 4096 * 4096, ..Default::default() }).unwrap();
    // 384 MiB, in 16 MiB of memory.
    let mut pieces = vec![Piece::new(&words, words.pages()); 24];
    pieces.insert(0, Piece::new(&sends, pages(0, 1)));
    pieces.push(Piece::new(&sends, pages(1, 2)));
    let map = vm.map_pieces(&pieces, &MapOptions::private()).unwrap();
    map.populate(map.window()).unwrap();
    assert_eq!(came.load(Ordering::SeqCst), 1);
    eprintln!("it came");
}

#[test]
fn touches_of_a_source_that_hangs_end_at_the_deadline() {
    passes("child_touches_what_hangs", &["timeout", "60"], "all had SIGBUS");
}

static FAILED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn on_sigbus(_: libc::c_int) {
    FAILED.fetch_add(1, Ordering::SeqCst);
    loop {
        rustix::event::pause();
    }
}

#[test]
fn child_touches_what_hangs() {
    if !is_child("child_touches_what_hangs") {
        return;
    }
    // SAFETY: a handler that counts and sleeps.
    unsafe { libc::signal(libc::SIGBUS, on_sigbus as *const () as usize) };
    let probe = vm();
    let modes = modes(&probe, &probe.anonymous(4096).unwrap());
    for mode in &modes {
        // More touches than threads: some wait in the queue only.
        let options = VmOptions::default().fill_threads(1).read_deadline(Duration::from_millis(100));
        let vm = Vm::new(options.explain(false)).unwrap();
        for _ in 0..80 {
            let object = vm.source("hangs", Hangs(None)).unwrap();
            let map = vm.map(&object, &MapOptions::shared().mode(*mode)).unwrap();
            thread::spawn(move || touch(&map, 3));
        }
    }
    until(|| FAILED.load(Ordering::SeqCst) == 80 * modes.len());
    eprintln!("all had SIGBUS");
}

static MAP: AtomicU64 = AtomicU64::new(0);
static TOUCHED: AtomicUsize = AtomicUsize::new(0);

/// Touches the 64 pages of a map, in the middle of whatever this thread does.
extern "C" fn on_signal(_: libc::c_int) {
    let start = MAP.load(Ordering::SeqCst);
    for page in 0..64 {
        // SAFETY: the map lives as long as signals are sent, and any byte is a byte.
        let bytes = unsafe { ((start + page * 4096) as *const u64).read_volatile() };
        if bytes == word(page * 4096) {
            TOUCHED.fetch_add(1, Ordering::SeqCst);
        }
    }
}

#[test]
fn signal_handlers_may_touch_what_is_being_brought_in() {
    passes("child_takes_signals", &[], "all signals came");
}

#[test]
fn child_takes_signals() {
    /// Takes its time, so that signals come while pages are claimed.
    struct Slow;
    impl Source for Slow {
        fn len_bytes(&self) -> u64 {
            64 * 4096
        }
        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            thread::sleep(Duration::from_micros(200));
            Words { len_bytes: self.len_bytes(), ..Default::default() }.read(offset_bytes, into)
        }
    }
    if !is_child("child_takes_signals") {
        return;
    }
    // SAFETY: the handler reads memory and counts, which handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let vm = vm();
    let file = file(64 * 4096);
    for (object, rounds) in [(vm.file(file.path()).unwrap(), 400), (vm.source("slow", Slow).unwrap(), 100)] {
        for mode in modes(&vm, &object) {
            let map =
                vm.map(&object, &MapOptions::shared().mode(mode).policy("none".parse().unwrap())).unwrap();
            MAP.store(map.address(), Ordering::SeqCst);
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::SeqCst) {
                        kill_process(getpid(), Signal::USR1).unwrap();
                        thread::sleep(Duration::from_micros(50));
                    }
                });
                let (done, ended) = mpsc::channel();
                let (map, object) = (&map, &object);
                scope.spawn(move || {
                    for round in 0..rounds {
                        map.populate(pages(0, 64)).unwrap();
                        map.read_at(0, &mut [0; 4096]).unwrap();
                        (0..8).for_each(|page| assert_eq!(touch(map, page * 8), word(page * 8 * 4096)));
                        map.advise(if round % 2 == 0 { Advice::Random } else { Advice::Normal }).unwrap();
                        object.evict(pages(round % 32, 64)).unwrap();
                        map.advise(Advice::DontNeed(pages(0, 32))).unwrap();
                    }
                    done.send(()).unwrap();
                });
                let outcome = ended.recv_timeout(Duration::from_secs(100));
                stop.store(true, Ordering::SeqCst);
                if outcome.is_err() {
                    eprintln!("{mode:?}: a thread waits for itself");
                    std::process::abort();
                }
            });
            // A last signal may come later.
            std::mem::forget(map);
        }
    }
    assert!(TOUCHED.load(Ordering::SeqCst) > 64);
    eprintln!("all signals came");
}

#[test]
fn a_core_dump_makes_no_memory_of_what_was_never_read() {
    let directory = tempfile::tempdir().unwrap();
    let size = directory.path().join("size");
    let script = format!("cd {} && ulimit -c unlimited && exec \"$@\"", directory.path().display());
    let output = child("child_dumps_core", &["sh", "-c", &script, "sh"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{stderr}");
    // The child watched its memfd from another process while the kernel dumped.
    let told = stderr.lines().find_map(|line| line.strip_prefix("pages after the dump: "));
    let after: u64 = told.unwrap_or_else(|| panic!("{stderr}")).parse().unwrap();
    assert!(after <= 96, "dumping made {after} pages");
    let core = std::fs::read_dir(directory.path()).unwrap().flatten().find(|entry| entry.path() != size);
    if prepage_testing::has(prepage_testing::Need::CoreFiles) {
        let blocks = std::os::unix::fs::MetadataExt::blocks(&core.unwrap().metadata().unwrap());
        assert!(blocks * 512 < 256 << 20, "a core of {} bytes, holes not counted", blocks * 512);
    }
}

#[test]
fn child_dumps_core() {
    if !is_child("child_dumps_core") {
        return;
    }
    let vm = vm();
    let name = std::env::current_dir().unwrap().join("large");
    let large = File::create(&name).unwrap();
    large.set_len(1 << 30).unwrap();
    let object = vm.file(&name).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let private = vm.map(&object, &MapOptions::private()).unwrap();
    let direct = vm.file_direct(&name).unwrap();
    let direct = vm.map(&direct, &MapOptions::shared()).unwrap();
    direct.populate(pages(512, 544)).unwrap();
    assert_eq!((touch(&map, 5), touch(&private, 100), touch(&direct, 5)), (0, 0, 0));
    assert!(memfd_pages() <= 48 + 32);
    let _ = std::fs::remove_file(&name);
    // A process that holds the memfds, too, and outlives this one: it counts when the dump is over.
    let number = |path: &std::path::Path| path.file_name().unwrap().to_string_lossy().parse::<i32>().unwrap();
    let numbers = memfds().iter().map(|(path, _)| number(path)).collect::<Vec<_>>();
    assert_eq!(numbers.len(), 2);
    let (mut reader, writer) = std::io::pipe().unwrap();
    // SAFETY: the child makes system calls and one line of text, and leaves.
    unsafe {
        if libc::fork() == 0 {
            drop(writer);
            // Ends when the process that dumps is gone.
            let _ = reader.read(&mut [0]);
            let pages = numbers.iter().map(|&number| {
                let mut facts: libc::stat = std::mem::zeroed();
                libc::fstat(number, &mut facts);
                facts.st_blocks / 8
            });
            let line = format!("pages after the dump: {}\n", pages.sum::<i64>());
            libc::write(2, line.as_ptr().cast(), line.len());
            libc::_exit(0);
        }
    }
    drop(reader);
    std::mem::forget(writer);
    std::process::abort();
}

#[test]
fn locked_memory_shows_bytes_and_takes_no_more_than_is_touched() {
    passes("child_locks_memory", &[], "locked and right");
}

#[test]
fn child_locks_memory() {
    if !is_child("child_locks_memory") {
        return;
    }
    let locked = mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).map_err(io::Error::from);
    let refused = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::OutOfMemory)
    };
    if prepage_testing::unless_refused(locked, prepage_testing::Need::Root, refused).is_none() {
        return eprintln!("locked and right: nothing was locked");
    }
    let vm = vm();
    let file = file(64 * 4096);
    let local = vm.file(file.path()).unwrap();
    let direct = vm.file_direct(file.path()).unwrap();
    let custom = vm.source("words", Words { len_bytes: 64 * 4096, ..Default::default() }).unwrap();
    let sparse = vm.source("sparse", Words { len_bytes: 64 << 30, ..Default::default() }).unwrap();
    for mode in modes(&vm, &local) {
        for object in [&local, &direct, &custom] {
            for options in [MapOptions::shared(), MapOptions::private()] {
                let mut map = vm.map(object, &options.mode(mode)).unwrap();
                map.populate(pages(16, 48)).unwrap();
                (0..64).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096), "{mode:?}"));
                if map.advise(Advice::DontNeed(pages(0, 8))).is_err() {
                    map.as_mut_slice()[0] ^= 1;
                    map.discard(pages(0, 8)).unwrap();
                }
                assert_eq!(touch(&map, 0), word(0));
            }
            object.evict(object.pages()).unwrap();
        }
        let map = vm.map(&sparse, &MapOptions::shared().mode(mode)).unwrap();
        assert_eq!(touch(&map, 9_000_000), word(9_000_000 * 4096));
        assert!(sparse.resident_pages() <= 16 && memfd_pages() <= 16 + 16, "nothing was filled by itself");
        sparse.evict(sparse.pages()).unwrap();
    }
    eprintln!("locked and right");
}

#[test]
fn locking_what_is_there_makes_no_frames_of_a_file_that_is_read_past_the_page_cache() {
    passes("child_locks_what_is_there", &[], "as few as before");
}

#[test]
fn child_locks_what_is_there() {
    if !is_child("child_locks_what_is_there") {
        return;
    }
    let vm = vm();
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(128 << 20).unwrap();
    let object = vm.file_direct(file.path()).unwrap();
    vm.map(&object, &MapOptions::shared()).unwrap().populate(pages(7, 7 + 128)).unwrap();
    let before = memfd_pages();
    assert_eq!((object.resident_pages(), before), (128, 128));
    let locked = mlockall(MlockAllFlags::CURRENT).map_err(io::Error::from);
    let refused = |error: &io::Error| {
        matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::OutOfMemory)
    };
    if prepage_testing::unless_refused(locked, prepage_testing::Need::Root, refused).is_some() {
        assert_eq!(memfd_pages(), before);
    }
    eprintln!("as few as before");
}

#[test]
fn an_advice_of_the_program_that_splits_a_mapping_costs_no_page() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 1024 * 4096, ..Default::default() }).unwrap();
    let filled = vm.map(&object, &MapOptions::shared()).unwrap();
    filled.populate(filled.window()).unwrap();
    for mode in modes(&vm, &object) {
        let options = MapOptions::shared().mode(mode).every_fault();
        let map =
            vm.map(&object, &options.neighbours(prepage_core::policy::Neighbours::Block(1024))).unwrap();
        for page in [10, 11, 500, 777] {
            let at = (map.address() + page * 4096) as *mut libc::c_void;
            // SAFETY: an advice that changes nothing but how the kernel keeps the mapping.
            assert_eq!(unsafe { libc::madvise(at, 4096, libc::MADV_RANDOM) }, 0);
        }
        for page in [600, 10, 12, 9, 0, 1023, 11, 500, 777] {
            assert_eq!(touch(&map, page), word(page * 4096), "page {page} in {mode:?}");
        }
        (0..1024).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
        let zeros = vm.anonymous(256 * 4096).unwrap();
        let zeros = vm.map(&zeros, &MapOptions::private().mode(mode)).unwrap();
        let at = (zeros.address() + 20 * 4096) as *mut libc::c_void;
        // SAFETY: as above.
        assert_eq!(unsafe { libc::madvise(at, 4096, libc::MADV_RANDOM) }, 0);
        assert!([0, 20, 21, 63, 64].iter().all(|&page| touch(&zeros, page) == 0));
    }
}

#[test]
fn pages_that_are_mapped_already_take_no_call_each_to_be_populated() {
    const NAME: &str = "pages_that_are_mapped_already_take_no_call_each_to_be_populated";
    if is_child(NAME) {
        let vm = vm();
        let object = vm.source("words", Words { len_bytes: 1024 * 4096, ..Default::default() }).unwrap();
        for mode in modes(&vm, &object) {
            let map = vm.map(&object, &MapOptions::shared().mode(mode).every_fault()).unwrap();
            map.populate(map.window()).unwrap();
            // Each gap is filled, and none stands for another.
            map.advise(Advice::DontNeed(pages(100, 101))).unwrap();
            map.advise(Advice::DontNeed(pages(700, 900))).unwrap();
            map.populate(map.window()).unwrap();
            let is_there = |page: &u64| is_present(map.address() + page * 4096).unwrap();
            assert_eq!((0..1024).filter(is_there).count(), 1024, "{mode:?}");
            // The same of what threads of the VM do.
            let gap = 4 * 256 - 1;
            map.advise(Advice::DontNeed(pages(gap, gap + 1))).unwrap();
            map.advise(Advice::WillNeed(map.window())).unwrap();
            until(|| is_there(&gap));
        }
        return;
    }
    if !prepage_testing::has(prepage_testing::Need::Tool("strace".to_owned())) {
        return;
    }
    let calls = tempfile::NamedTempFile::new().unwrap();
    let before = ["strace", "-f", "-e", "trace=ioctl", "-o", calls.path().to_str().unwrap()];
    prepage_testing::assert_passed(&child(NAME, &before));
    let calls = std::fs::read_to_string(calls.path()).unwrap().matches("ioctl(").count();
    assert!((1..200).contains(&calls), "{calls}");
}

#[test]
fn memfds_are_made_where_executable_ones_are_forbidden() {
    // For a PID namespace of its own.
    if !prepage_testing::has(prepage_testing::Need::Root) {
        return;
    }
    // The setting belongs to the namespace, which goes with the child.
    let script = "echo 2 > /proc/sys/vm/memfd_noexec && exec \"$@\"";
    let before = ["unshare", "--fork", "--pid", "--mount-proc", "sh", "-c", script, "sh"];
    passes("child_without_executable_memfds", &before, "made none the less");
}

#[test]
fn child_without_executable_memfds() {
    if !is_child("child_without_executable_memfds") {
        return;
    }
    let set = std::fs::read_to_string("/proc/sys/vm/memfd_noexec").unwrap();
    assert_eq!(set.trim(), "2");
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 4 * 4096, ..Default::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    assert_eq!(touch(&map, 1), word(4096));
    eprintln!("made none the less");
}

/// To bring the page in once more would mend nothing, and the touch would be repeated for ever.
#[test]
fn memory_of_a_map_that_the_kernel_finds_broken_ends_the_process() {
    const AT_ADDRESS: usize = 16;
    let ended = fork(|| {
        let vm = vm();
        let words = Words { len_bytes: 64 * 4096, ..Default::default() };
        let map = vm.map(&vm.source("words", words).unwrap(), &MapOptions::shared()).unwrap();
        assert_eq!(touch(&map, 3), word(3 * 4096));
        // SAFETY: zeros are a siginfo, of which the kernel reads the words set here; who sends it is who gets it.
        let sent = unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            (info.si_signo, info.si_code) = (libc::SIGBUS, libc::BUS_MCEERR_AR);
            (&raw mut info).byte_add(AT_ADDRESS).cast::<u64>().write(map.address() + 3 * 4096);
            assert_eq!(info.si_addr() as u64, map.address() + 3 * 4096);
            let (process, thread) = (libc::getpid(), libc::gettid());
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, libc::SIGBUS, &raw const info)
        };
        assert_eq!(sent, 0);
        // In place of the touch, which the kernel would have repeated.
        touch(&map, 40);
        0
    });
    assert_eq!(ended.terminating_signal(), Some(libc::SIGBUS), "{ended:?}");
}

#[test]
fn a_handler_of_sigbus_that_takes_our_place_is_noticed() {
    passes("child_loses_sigbus", &[], "noticed");
}

#[test]
fn child_loses_sigbus() {
    extern "C" fn other(_: libc::c_int) {}
    if !is_child("child_loses_sigbus") {
        return;
    }
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 4 * 4096, ..Default::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    assert_eq!(touch(&map, 1), word(4096));
    // SAFETY: a handler that does nothing.
    unsafe { libc::signal(libc::SIGBUS, other as *const () as usize) };
    assert!(matches!(vm.map(&object, &MapOptions::shared()).unwrap_err(), MapError::SigbusTaken));
    assert!(matches!(self::vm().map(&object, &MapOptions::shared()), Err(MapError::OtherVm { .. })));
    let other = self::vm();
    let again = other.anonymous(4096).unwrap();
    assert!(matches!(other.map(&again, &MapOptions::private()).unwrap_err(), MapError::SigbusTaken));
    eprintln!("noticed");
}

/// Each mapping is one that the kernel copies at fork(2), and one of vm.max_map_count.
#[test]
fn a_vm_takes_few_mappings() {
    let status = fork(|| {
        let mappings = || std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let before = mappings();
        let _vm = vm();
        u8::try_from(mappings() - before).unwrap_or(u8::MAX)
    });
    let more = status.exit_status().unwrap();
    // Its threads' stacks and guards are among them, and for a thread that has allocated by now two lines of the allocator's. Buffers of 64 reads that were
    // mapped one by one would be 128 more.
    assert!((1..64).contains(&more), "{more}");
}

#[test]
fn what_is_written_over_poison_stays() {
    struct Heals(Arc<AtomicBool>);
    impl Source for Heals {
        fn len_bytes(&self) -> u64 {
            16 * 4096
        }
        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            let bad = (offset_bytes..offset_bytes + into.len() as u64).contains(&(5 * 4096));
            if bad && !self.0.load(Ordering::SeqCst) {
                return Err(SourceError::Other("not yet".to_owned()));
            }
            Words { len_bytes: self.len_bytes(), ..Default::default() }.read(offset_bytes, into)
        }
    }
    let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
    let well = Arc::new(AtomicBool::new(false));
    let object = vm.source("heals", Heals(Arc::clone(&well))).unwrap();
    if !modes(&vm, &object).contains(&Mode::Handler) {
        return;
    }
    let mut map = vm.map(&object, &MapOptions::private().mode(Mode::Handler)).unwrap();
    let out = tempfile::tempfile().unwrap();
    // A system call gets EFAULT for the page that is poisoned now.
    let write = |map: &Map| std::io::Write::write(&mut &out, &map.as_slice()[5 * 4096..6 * 4096]);
    assert!(write(&map).is_err());
    well.store(true, Ordering::SeqCst);
    // Another map brings the page in, a touch of a neighbour maps over the poison, and the program writes there.
    let other = vm.map(&object, &MapOptions::shared()).unwrap();
    other.populate(other.window()).unwrap();
    assert_eq!(touch(&map, 4), word(4 * 4096));
    map.as_mut_slice()[5 * 4096..][..8].copy_from_slice(&7_u64.to_le_bytes());
    let swap = has(Need::Swap).then(|| Swap::on(16 << 20));
    let at = map.address() + 5 * 4096;
    until(|| {
        // SAFETY: writes the page out where there is swap; its contents stay the same.
        unsafe { libc::madvise(at as *mut libc::c_void, 4096, libc::MADV_PAGEOUT) };
        swap.is_none() || !is_present(at).unwrap()
    });
    map.populate(map.window()).unwrap();
    assert_eq!(touch(&map, 5), 7, "what was written is lost");
    assert_eq!(object.resident_pages(), 16);
}
