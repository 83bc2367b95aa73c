//! Maps that children of fork(2) keep.
//!
//! Each test runs in a process of its own: no other test may be in the middle of anything when it forks.

use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_sys::forked::Forked;
use prepage_testing::{Need, assert_passed, unless_refused};
use prepage_vm::{
    Map, MapError, MapOptions, Mode, Object, Request, SnapshotError, Source, SourceError, Vm, VmOptions,
};
use support::{Stop, Words, left_in, of_file, pages, read, vm, write};

mod support;

/// True in the process of the test `name`; elsewhere runs that, and fails where it does.
fn is_alone(name: &str) -> bool {
    if support::is_child(name) {
        return true;
    }
    // A fork or a child that nobody serves waits for ever.
    assert_passed(&support::child(name, &["timeout", "60"]));
    false
}

fn inherited() -> MapOptions {
    MapOptions::private().mode(Mode::Handler).inherit(true)
}

/// Whether this user may have such maps.
fn is_permitted(vm: &Vm) -> bool {
    let map = vm.map(&vm.anonymous(PAGE_SIZE).unwrap(), &inherited());
    unless_refused(map, Need::Root, |error| matches!(error, MapError::Userfaultfd(_))).is_some()
}

/// The number of the first page that is not as it should be, from 1 on; 0 where there is none.
fn first_other(map: &Map, expected: impl Fn(u64) -> u64) -> i32 {
    (0..map.window().len()).find(|&page| read(map, page) != expected(page)).map_or(0, |page| page as i32 + 1)
}

fn exit_of(child: Forked) -> Option<i32> {
    child.wait().unwrap().exit_status()
}

#[test]
fn a_child_keeps_the_map_as_it_was() {
    if !is_alone("a_child_keeps_the_map_as_it_was") {
        return;
    }
    const PAGES: u64 = 200;
    let file = support::file(PAGES * PAGE_SIZE);
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let object = vm.file(file.path()).unwrap();
    let mine = vm.source("words", Words { len_bytes: PAGES * PAGE_SIZE, ..Words::default() }).unwrap();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    for (object, of) in [(&object, of_file as fn(u64) -> u64), (&mine, of_file), (&zeros, |_| 0)] {
        let mut map = vm.map(object, &inherited()).unwrap();
        // Some pages are written, some read, some neither.
        (0..PAGES).step_by(3).for_each(|page| write(&mut map, page, 1000 + page));
        assert_eq!(read(&map, 100), of(100));
        let at_fork = |page: u64| if page.is_multiple_of(3) { 1000 + page } else { of(page) };
        let child = Forked::new(|| {
            if first_other(&map, at_fork) != 0 {
                return first_other(&map, at_fork);
            }
            // Its own changes are seen by it alone, and a system call may touch them.
            let map: *mut u8 = map.as_slice().as_ptr().cast_mut();
            // SAFETY: the bytes lie in the map, which this process has for itself.
            unsafe { map.add(16).cast::<u64>().write_unaligned(77) };
            // SAFETY: as above.
            i32::from(unsafe { map.add(16).cast::<u64>().read_unaligned() } != 77) * 255
        });
        // The parent's changes after the fork are its own, whether or not the child touched the page before.
        let child = child.unwrap();
        (1..PAGES).step_by(3).for_each(|page| write(&mut map, page, 2000 + page));
        assert_eq!(exit_of(child), Some(0));
        let after = |page: u64| if page % 3 == 1 { 2000 + page } else { at_fork(page) };
        assert_eq!(first_other(&map, after), 0);
        // Children of children, of what the parent is now; and the map of which they are goes.
        let child = Forked::new(|| match first_other(&map, after) {
            0 => exit_of(Forked::new(|| first_other(&map, after)).unwrap()).unwrap_or(254),
            page => page,
        });
        let child = child.unwrap();
        drop(map);
        assert_eq!(exit_of(child), Some(0));
    }
    drop((object, mine, zeros));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

#[test]
fn a_child_keeps_a_map_that_the_parent_drops_at_once() {
    if !is_alone("a_child_keeps_a_map_that_the_parent_drops_at_once") {
        return;
    }
    // On one CPU the parent goes on before those are told who serve the child.
    let mut one = rustix::thread::CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    rustix::thread::sched_setaffinity(None, &one).unwrap();
    let [file, other] = [1, 2].map(|byte| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![byte; 64 * PAGE_SIZE as usize]).unwrap();
        file
    });
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let [object, other] = [file, other].map(|file| vm.file(file.path()).unwrap());
    for _ in 0..100 {
        let map = vm.map(&object, &inherited()).unwrap();
        let child = Forked::new(|| {
            std::thread::sleep(Duration::from_millis(3));
            i32::from(map.as_slice()[5 * PAGE_SIZE as usize])
        });
        drop(map);
        // Where the first was, as a rule.
        let map = vm.map(&other, &inherited()).unwrap();
        assert_eq!(exit_of(child.unwrap()), Some(1));
        assert_eq!(map.as_slice()[5 * PAGE_SIZE as usize], 2);
    }
}

#[test]
fn a_map_that_is_dropped_goes_while_a_child_has_it() {
    if !is_alone("a_map_that_is_dropped_goes_while_a_child_has_it") {
        return;
    }
    const PAGES: u64 = 64;
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let file = support::file(PAGES * PAGE_SIZE);
    let mut map = vm.map(&vm.file(file.path()).unwrap(), &inherited()).unwrap();
    write(&mut map, 3, 1003);
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    let child = Forked::new(|| {
        let _ = rustix::io::read(&reading, &mut [0; 1]);
        first_other(&map, |page| if page == 3 { 1003 } else { of_file(page) })
    });
    let child = child.unwrap();
    let (start, end) = (map.address(), map.address() + PAGES * PAGE_SIZE);
    let is_mapped = || {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines().any(|line| line.starts_with(&format!("{start:x}-{end:x} ")))
    };
    assert!(is_mapped());
    drop(map);
    support::until(|| !is_mapped());
    // What lies there now is nobody else's.
    let other = vm.map(&vm.anonymous(PAGES * PAGE_SIZE).unwrap(), &inherited()).unwrap();
    assert_eq!(rustix::io::write(&writing, b"g"), Ok(1));
    assert_eq!(exit_of(child), Some(0));
    assert_eq!(first_other(&other, |_| 0), 0);
}

#[test]
fn a_fork_needs_no_free_descriptor() {
    if !is_alone("a_fork_needs_no_free_descriptor") {
        return;
    }
    let file = support::file(8 * PAGE_SIZE);
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let map = vm.map(&vm.file(file.path()).unwrap(), &inherited()).unwrap();
    assert_eq!(read(&map, 1), of_file(1));
    let limit = rustix::process::Rlimit { current: Some(64), maximum: Some(64) };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    for _ in 0..2 {
        let open: Vec<_> =
            std::iter::repeat_with(|| std::fs::File::open("/dev/null")).map_while(Result::ok).collect();
        assert!(!open.is_empty());
        let child = Forked::new(|| first_other(&map, of_file)).unwrap();
        assert_eq!(exit_of(child), Some(0));
        drop(open);
        // A descriptor is put in reserve again, when the child was found to have ended at the latest. Longer than a busy machine stops whoever does that.
        std::thread::sleep(Duration::from_secs(4));
    }
}

/// A second one could have a higher number than the end of the pipe that has the child killed first.
#[test]
fn a_child_is_served_by_one_descriptor() {
    if !is_alone("a_child_is_served_by_one_descriptor") {
        return;
    }
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let map = vm.map(&vm.anonymous(8 * PAGE_SIZE).unwrap(), &inherited()).unwrap();
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    let fork = || {
        let child = Forked::new(|| {
            let _ = read(&map, 1);
            let _ = rustix::io::write(&writing, b"c");
            std::thread::sleep(Duration::from_secs(60));
            1
        });
        assert_eq!(rustix::io::read(&reading, &mut [0; 1]), Ok(1));
        child.unwrap()
    };
    let descriptors = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().map_while(Result::ok);
        let names = all.filter_map(|one| std::fs::read_link(one.path()).ok());
        names.filter(|name| name.ends_with("anon_inode:[userfaultfd]")).count()
    };
    let first = fork();
    let before = descriptors();
    let children = [(); 3].map(|()| fork());
    assert_eq!(descriptors(), before + children.len());
    for child in children.into_iter().chain([first]) {
        child.kill().unwrap();
    }
}

#[test]
fn children_share_frames() {
    if !is_alone("children_share_frames") {
        return;
    }
    const PAGES: u64 = 4096;
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let words = Words { len_bytes: PAGES * PAGE_SIZE, ..Words::default() };
    let object = vm.source("words", words).unwrap();
    let map = vm.map(&object, &inherited()).unwrap();
    assert_eq!(first_other(&map, of_file), 0);
    let before = vm.statistics();
    let children: Vec<_> = (0..8)
        .map(|_| {
            let touch_all = || {
                if first_other(&map, of_file) != 0 {
                    return 1;
                }
                // What is its own, in KiB: a few pages of stack and heap.
                let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
                let own = rollup.lines().find_map(|line| line.strip_prefix("Private_Dirty:")).unwrap();
                let own_kib: u64 = own.trim().trim_end_matches(" kB").parse().unwrap();
                if own_kib < PAGES * 4 / 4 { 0 } else { 2 }
            };
            Forked::new(touch_all).unwrap()
        })
        .collect();
    for child in children {
        assert_eq!(exit_of(child), Some(0));
    }
    let after = vm.statistics();
    assert_eq!(
        (support::held(&after), after.counted.pages_read),
        (support::held(&before), before.counted.pages_read)
    );
    // What is taken away from under a child comes back for it.
    let child = Forked::new(|| {
        let expected = [3, 4000].map(of_file);
        for _ in 0..50 {
            if [3, 4000].map(|page| read(&map, page)) != expected {
                return 1;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        first_other(&map, of_file)
    });
    let child = child.unwrap();
    for _ in 0..20 {
        object.evict(pages(0, PAGES)).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(exit_of(child), Some(0));
}

/// A source that panics when it is dropped.
struct Parting(Words);

impl Source for Parting {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        self.0.read(offset_bytes, into)
    }
}

impl Drop for Parting {
    fn drop(&mut self) {
        self.0.reads.store(u64::MAX, Ordering::SeqCst);
        panic!("on the way out");
    }
}

#[test]
fn a_source_that_goes_with_the_last_child_ends_nobody() {
    if !is_alone("a_source_that_goes_with_the_last_child_ends_nobody") {
        return;
    }
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let zeros = vm.map(&vm.anonymous(8 * PAGE_SIZE).unwrap(), &inherited()).unwrap();
    for lives_on in [true, false] {
        let words = Words { len_bytes: 8 * PAGE_SIZE, ..Words::default() };
        let reads = std::sync::Arc::clone(&words.reads);
        let object = vm.source("parting", Parting(words)).unwrap();
        let map = vm.map(&object, &inherited()).unwrap();
        let child = Forked::new(|| {
            if lives_on {
                std::thread::sleep(Duration::from_millis(300));
            }
            first_other(&map, of_file)
        });
        drop(object);
        if !lives_on {
            assert_eq!(exit_of(child.unwrap()), Some(0));
            drop(map);
        } else {
            drop(map);
            assert_eq!(exit_of(child.unwrap()), Some(0));
        }
        // It is found to have ended after a while.
        support::until(|| reads.load(Ordering::SeqCst) == u64::MAX);
        // Others are still served.
        assert_eq!(exit_of(Forked::new(|| first_other(&zeros, |_| 0)).unwrap()), Some(0));
    }
}

/// A source that takes its time, now and then.
struct Slow(Words);

impl Source for Slow {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        if (offset_bytes / PAGE_SIZE).is_multiple_of(5) {
            std::thread::sleep(Duration::from_micros(300));
        }
        self.0.read(offset_bytes, into)
    }
}

/// A source that holds back one page until it is let go.
struct Held(Words, std::sync::Arc<AtomicBool>);

impl Source for Held {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        while offset_bytes == 7 * PAGE_SIZE && !self.1.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.0.read(offset_bytes, into)
    }
}

#[test]
fn a_child_that_is_killed_during_a_read_for_it_holds_up_nobody() {
    if !is_alone("a_child_that_is_killed_during_a_read_for_it_holds_up_nobody") {
        return;
    }
    const PAGES: u64 = 100;
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let words = Words { len_bytes: 8 * PAGE_SIZE, ..Words::default() };
    let (reads, go) = (std::sync::Arc::clone(&words.reads), std::sync::Arc::new(AtomicBool::new(false)));
    let object = vm.source("held", Held(words, std::sync::Arc::clone(&go))).unwrap();
    let options = inherited().policy("none".parse().unwrap()).zero_cluster(1);
    let map = vm.map(&object, &options).unwrap();
    let zeros = vm.map(&vm.anonymous(PAGES * PAGE_SIZE).unwrap(), &options).unwrap();
    let child =
        Forked::new(|| i32::from(read(&map, 6) != of_file(6) || read(&map, 7) != of_file(7))).unwrap();
    support::until(|| reads.load(Ordering::SeqCst) == 1);
    std::thread::sleep(Duration::from_millis(50));
    child.kill().unwrap();
    // That it has ended is noticed meanwhile.
    for page in 0..PAGES {
        assert_eq!(read(&zeros, page), 0);
        std::thread::sleep(Duration::from_millis(20));
    }
    go.store(true, Ordering::SeqCst);
    drop((map, zeros, object));
    support::until(|| left_in(&vm) == (0, 0, 0, 0));
}

/// Keeps requests until they are answered.
#[derive(Clone, Default)]
struct Kept(std::sync::Arc<std::sync::Mutex<Vec<Request>>>);

impl Source for Kept {
    fn len_bytes(&self) -> u64 {
        8 * PAGE_SIZE
    }

    fn begin(&self, request: Request) {
        self.0.lock().unwrap().push(request);
    }
}

impl Kept {
    fn next(&self) -> Option<Request> {
        self.0.lock().unwrap().pop()
    }

    fn wait_for_next(&self) -> Request {
        support::until(|| !self.0.lock().unwrap().is_empty());
        self.next().unwrap()
    }
}

#[test]
fn a_page_that_a_killed_child_asked_for_comes_for_who_waits_for_it_too() {
    if !is_alone("a_page_that_a_killed_child_asked_for_comes_for_who_waits_for_it_too") {
        return;
    }
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let kept = Kept::default();
    let object = vm.source("kept", kept.clone()).unwrap();
    let policy = || "none".parse().unwrap();
    let map = vm.map(&object, &inherited().policy(policy())).unwrap();
    for mode in [Mode::Inline, Mode::Handler] {
        let other = vm.map(&object, &MapOptions::shared().mode(mode).policy(policy())).unwrap();
        let child = Forked::new(|| i32::from(read(&map, 7) != of_file(7))).unwrap();
        let request = kept.wait_for_next();
        assert!(!request.is_cancelled());
        child.kill().unwrap();
        support::until(|| request.is_cancelled());
        std::thread::scope(|scope| {
            let touches = scope.spawn(|| read(&other, 7));
            support::until(|| !request.is_cancelled());
            drop(request);
            while !touches.is_finished() {
                if let Some(mut request) = kept.next() {
                    request.bytes().copy_from_slice(&support::page_bytes(7));
                    request.complete(Ok(()));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(touches.join().unwrap(), of_file(7), "{mode:?}");
        });
        object.evict(object.pages()).unwrap();
    }
}

#[test]
fn forks_happen_while_faults_are_in_flight() {
    if !is_alone("forks_happen_while_faults_are_in_flight") {
        return;
    }
    const PAGES: u64 = 512;
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let source = Slow(Words { len_bytes: PAGES * PAGE_SIZE, ..Words::default() });
    let object = vm.source("slow", source).unwrap();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let options = inherited().policy("none".parse().unwrap()).zero_cluster(1);
    let (map, other) = (vm.map(&object, &options).unwrap(), vm.map(&zeros, &options).unwrap());
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stopping = Stop(&stop);
        for step in [7, 11] {
            let (map, other, stop, rounds) = (&map, &other, &stop, &rounds);
            scope.spawn(move || {
                for page in (0..).step_by(step).map(|page| page % PAGES) {
                    assert_eq!((read(map, page), read(other, page)), (of_file(page), 0));
                    rounds.fetch_add(1, Ordering::Relaxed);
                    // Allocates, as forking programs do: fork holds the allocator's locks.
                    std::hint::black_box(vec![page; 1000]);
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                object.evict(object.pages()).unwrap();
            }
        });
        for round in 0..30 {
            let before = rounds.load(Ordering::Relaxed);
            let child = Forked::new(|| {
                let wrong = |page: u64| read(&map, page) != of_file(page) || read(&other, page) != 0;
                i32::from((0..PAGES).step_by(3 + round % 5).any(wrong))
            });
            assert_eq!(exit_of(child.unwrap()), Some(0), "{round}");
            let deadline = Instant::now() + Duration::from_secs(60);
            while rounds.load(Ordering::Relaxed) == before {
                assert!(Instant::now() < deadline, "nobody faults any more");
                std::thread::yield_now();
            }
        }
        drop(stopping);
    });
}

#[test]
fn children_end_with_who_serves_them() {
    const NAME: &str = "children_end_with_who_serves_them";
    if !support::is_child(NAME) {
        let child = support::child(NAME, &[]);
        let said = String::from_utf8_lossy(&child.stdout);
        // The output has ended, so no child is left that could write to it.
        assert!(!said.contains("survived"), "{said}");
        assert!(
            child.status.code() == Some(9) || said.contains("not permitted"),
            "{:?} {said}",
            child.status
        );
        return;
    }
    let vm = vm();
    if !is_permitted(&vm) {
        println!("not permitted");
        return;
    }
    let map = vm.map(&vm.anonymous(64 * PAGE_SIZE).unwrap(), &inherited()).unwrap();
    let live_on = || {
        // Not by this, which the test's own children have.
        let _ = rustix::process::set_parent_process_death_signal(None);
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("survived");
        i32::from(read(&map, 1) != 0)
    };
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    let child = Forked::new(|| {
        let grandchild = Forked::new(|| {
            let _ = rustix::io::write(&writing, b"g");
            live_on()
        });
        let _ = rustix::io::write(&writing, b"c");
        let code = live_on();
        drop(grandchild);
        code
    });
    let mut there = [0; 2];
    assert_eq!(rustix::io::read(&reading, &mut there[..1]), Ok(1));
    assert_eq!(rustix::io::read(&reading, &mut there[1..]), Ok(1));
    let _child = child.unwrap();
    std::process::exit(9);
}

/// With many descriptors it takes the kernel a while to close them all.
#[test]
fn children_in_a_fault_read_nothing_when_who_serves_them_is_killed() {
    const NAME: &str = "children_in_a_fault_read_nothing_when_who_serves_them_is_killed";
    const CHILDREN: u64 = 32;
    if !support::is_child(NAME) {
        let child = support::child(NAME, &[]);
        let said = String::from_utf8_lossy(&child.stdout);
        // The output has ended, so no child is left that could write to it.
        assert!(!said.contains("read a page"), "{said}");
        assert!(
            child.status.signal() == Some(libc::SIGKILL) || said.contains("not permitted"),
            "{:?} {said}",
            child.status
        );
        return;
    }
    let vm = vm();
    if !is_permitted(&vm) {
        println!("not permitted");
        return;
    }
    let words = Words { len_bytes: 8 * PAGE_SIZE, ..Words::default() };
    let object = vm.source("held", Held(words, std::sync::Arc::new(AtomicBool::new(false)))).unwrap();
    let map = vm.map(&object, &inherited().policy("none".parse().unwrap())).unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let limit =
        rustix::process::Rlimit { current: limit.maximum.map(|most| most.min(4096)).or(Some(4096)), ..limit };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, limit).unwrap();
    let mut others: Vec<_> = (0..1628).map_while(|_| std::fs::File::open("/dev/null").ok()).collect();
    // Some numbers are left where a hard limit ends them.
    others.truncate(others.len().saturating_sub(128));
    let (reading, writing) = rustix::pipe::pipe().unwrap();
    let touch = || {
        // Not by this, which the test's own children have.
        let _ = rustix::process::set_parent_process_death_signal(None);
        let _ = rustix::io::write(&writing, b"c");
        let word = read(&map, 7);
        let _ = rustix::io::write(rustix::stdio::stdout(), format!("read a page: {word}\n").as_bytes());
        0
    };
    let children: Vec<_> = (0..CHILDREN).map(|_| Forked::new(touch).unwrap()).collect();
    for _ in 0..CHILDREN {
        assert_eq!(rustix::io::read(&reading, &mut [0; 1]), Ok(1));
    }
    std::thread::sleep(Duration::from_millis(300));
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    drop((children, others));
}

#[test]
fn a_page_that_cannot_be_had_ends_the_child() {
    if !is_alone("a_page_that_cannot_be_had_ends_the_child") {
        return;
    }
    struct Failing;
    impl Source for Failing {
        fn len_bytes(&self) -> u64 {
            8 * PAGE_SIZE
        }
        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            Err(SourceError::Other("gone for good".to_owned()))
        }
    }
    let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
    if !is_permitted(&vm) {
        return;
    }
    let object = vm.source("failing", Failing).unwrap();
    let map = vm.map(&object, &inherited()).unwrap();
    let child = Forked::new(|| i32::from(read(&map, 3) == 0)).unwrap();
    let status = child.wait().unwrap();
    assert_eq!(status.terminating_signal(), Some(libc::SIGBUS));
    assert_eq!(vm.take_failures().len(), 1);
    // A program that a child executes lives on without the map.
    let executed = std::process::Command::new("true").status().unwrap();
    assert_eq!((executed.code(), executed.signal()), (Some(0), None));
}

#[test]
fn what_cannot_be_inherited_says_so() {
    let vm = vm();
    let object: Object = vm.anonymous(8 * PAGE_SIZE).unwrap();
    for options in [
        MapOptions::shared().mode(Mode::Handler).inherit(true),
        MapOptions::private().inherit(true),
        inherited().huge_pages(),
    ] {
        assert!(matches!(vm.map(&object, &options), Err(MapError::Inherit)));
    }
    if is_permitted(&vm) {
        let map = vm.map(&object, &inherited()).unwrap();
        assert!(matches!(map.snapshot(), Err(SnapshotError::Inherited)));
    }
}

/// Where the program split the mapping each page takes two calls of the kernel, and a fork may begin between the two.
#[test]
fn zeros_of_a_mapping_that_is_split_are_populated_while_children_are_forked() {
    const NAME: &str = "zeros_of_a_mapping_that_is_split_are_populated_while_children_are_forked";
    if !is_alone(NAME) {
        return;
    }
    const PAGES: u64 = 512;
    let vm = vm();
    if !is_permitted(&vm) {
        return;
    }
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = Stop(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(exit_of(Forked::new(|| 0).unwrap()), Some(0));
            }
        });
        for _ in 0..50 {
            let map = vm.map(&zeros, &inherited()).unwrap();
            for page in (0..PAGES).step_by(2) {
                let at = (map.address() + page * PAGE_SIZE) as *mut libc::c_void;
                // SAFETY: an advice that changes nothing but how the kernel keeps the mapping.
                assert_eq!(unsafe { libc::madvise(at, 4096, libc::MADV_RANDOM) }, 0);
            }
            map.populate(map.window()).unwrap();
            let is_there = |page| prepage_sys::region::is_present(map.address() + page * PAGE_SIZE).unwrap();
            let missing: Vec<u64> = (0..PAGES).filter(|&page| !is_there(page)).collect();
            assert!(missing.is_empty(), "{missing:?}");
        }
        drop(stop);
    });
}
