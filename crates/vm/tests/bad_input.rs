//! Bad input and bad luck: typed errors, nothing leaked, other maps unaffected.

mod support;

use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use prepage_core::PageIndex;
use prepage_core::policy::Policy;
use prepage_core::policy::adaptive::Adaptive;
use prepage_core::policy::linux::{Linux, Mapping};
use prepage_sys::region::try_copy;
use prepage_vm::{
    AccessError, Advice, MakeError, MapError, MapOptions, Mode, OpenError, Piece, Pool, PoolOptions, Reason,
    Source, SourceError, Vm, VmOptions,
};
use rustix::fs::inotify;
use rustix::process::{Resource, Rlimit, setrlimit};
use support::{
    Words, child, file, has_no_frame, is_child, keeps_to, left_in, modes, pages, read, swap_directory, touch,
    until, vm, word, write,
};

/// What a bad source does next.
const FINE: u32 = 0;
const FAIL: u32 = 1;
const PANIC: u32 = 2;
const AGAIN_TWICE: u32 = 3;
const AGAIN_FOR_EVER: u32 = 4;
const SHORT: u32 = 5;

/// Words, with one page that can be bad.
struct Moody {
    mood: Arc<AtomicU32>,
    bad_page: u64,
    tries: AtomicU32,
}

impl Source for Moody {
    fn len_bytes(&self) -> u64 {
        64 * 4096
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let bad = (offset_bytes..offset_bytes + into.len() as u64).contains(&(self.bad_page * 4096));
        match self.mood.load(Ordering::SeqCst) {
            FAIL if bad => return Err(SourceError::Other("the tape is torn".to_owned())),
            PANIC if bad => panic!("a source that panics, as it should in this test"),
            AGAIN_TWICE if bad && !self.tries.fetch_add(1, Ordering::SeqCst).is_multiple_of(3) => {
                return Err(SourceError::Again);
            }
            AGAIN_FOR_EVER if bad => return Err(SourceError::Again),
            SHORT if bad => return Err(SourceError::Short { got_bytes: 1, wanted_bytes: into.len() as u64 }),
            _ => {}
        }
        Words { len_bytes: self.len_bytes(), ..Default::default() }.read(offset_bytes, into)
    }
}

fn moody(vm: &Vm, mood: u32) -> (prepage_vm::Object, Arc<AtomicU32>) {
    let mood = Arc::new(AtomicU32::new(mood));
    let source = Moody { mood: Arc::clone(&mood), bad_page: 21, tries: AtomicU32::new(1) };
    (vm.source("moody", source).unwrap(), mood)
}

fn reason(error: AccessError) -> Reason {
    match error {
        AccessError::Unavailable { page, reason, .. } => {
            assert_eq!(page.0, 21);
            reason
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_source_that_fails_fails_one_page_and_can_be_tried_again() {
    let vm = vm();
    for (mood, expected) in [
        (FAIL, Reason::Refused(Some("the tape is torn".to_owned()))),
        (PANIC, Reason::Panicked),
        (AGAIN_FOR_EVER, Reason::Again),
        (SHORT, Reason::Short),
    ] {
        let (object, now) = moody(&vm, mood);
        let probe = modes(&vm, &object);
        for mode in probe {
            let map = vm.map(&object, &MapOptions::private().mode(mode)).unwrap();
            // The cluster of 16 that holds the bad page.
            assert_eq!(touch(&map, 20), word(20 * 4096));
            assert_eq!(reason(map.populate(pages(16, 32)).unwrap_err()), expected);
            let mut bytes = [0; 8];
            assert_eq!(reason(map.read_at(21 * 4096, &mut bytes).unwrap_err()), expected);
            assert_eq!(object.resident_pages(), 15);
            now.store(FINE, Ordering::SeqCst);
            map.read_at(21 * 4096, &mut bytes).unwrap();
            assert_eq!(u64::from_le_bytes(bytes), word(21 * 4096));
            now.store(mood, Ordering::SeqCst);
            object.evict(object.pages()).unwrap();
        }
    }
    let (object, _) = moody(&vm, AGAIN_TWICE);
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    assert_eq!(touch(&map, 21), word(21 * 4096));
    assert_eq!(vm.statistics().counted.retries % 2, 0);
    drop((object, map));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

#[test]
fn a_failure_goes_with_its_mapping() {
    let vm = vm();
    let (object, mood) = moody(&vm, FAIL);
    let mut out = tempfile::tempfile().unwrap();
    if !modes(&vm, &object).contains(&Mode::Handler) {
        return;
    }
    for private in [true, false] {
        let options = if private { MapOptions::private() } else { MapOptions::shared() };
        let mut map = vm.map(&object, &options.mode(Mode::Handler)).unwrap();
        let other = vm.map(&object, &MapOptions::shared()).unwrap();
        mood.store(FAIL, Ordering::SeqCst);
        let mut write = |map: &prepage_vm::Map| out.write(&map.as_slice()[21 * 4096..22 * 4096]);
        // Twice: the second time the kernel knows already that the page is bad.
        for _ in 0..2 {
            assert_eq!(
                write(&map).unwrap_err().raw_os_error(),
                Some(14),
                "EFAULT, as from the kernel's maps"
            );
        }
        mood.store(FINE, Ordering::SeqCst);
        assert!(write(&map).is_err(), "until it is tried again");
        if private {
            map.discard(pages(20, 22)).unwrap();
        } else {
            map.advise(Advice::DontNeed(pages(20, 22))).unwrap();
        }
        assert_eq!(write(&map).unwrap(), 4096);
        map.populate(pages(20, 22)).unwrap();

        // Another map brings the page in, and a fault on its neighbour maps both.
        object.evict(object.pages()).unwrap();
        mood.store(FAIL, Ordering::SeqCst);
        assert!(write(&map).is_err());
        mood.store(FINE, Ordering::SeqCst);
        other.populate(pages(20, 22)).unwrap();
        assert_eq!(touch(&map, 20), word(20 * 4096));
        map.populate(pages(20, 22)).unwrap();
        assert_eq!(touch(&map, 21), word(21 * 4096));
        object.evict(object.pages()).unwrap();
    }
}

#[test]
fn a_truncated_file_is_told() {
    let file = file(64 * 4096);
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    file.as_file().set_len(21 * 4096).unwrap();
    assert_eq!(touch(&map, 20), word(20 * 4096));
    assert_eq!(reason(map.populate(pages(21, 22)).unwrap_err()), Reason::Short);
}

#[test]
fn what_was_read_ahead_before_a_file_ends_is_there() {
    let file = file(256 * 4096);
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    file.as_file().set_len(200 * 4096).unwrap();
    map.advise(Advice::WillNeed(map.window())).unwrap();
    until(|| object.is_resident(PageIndex(127)));
    until(|| support::frames(&vm) == object.resident_pages());
    assert!(!object.is_resident(PageIndex(200)));
    assert_eq!(touch(&map, 100), word(100 * 4096));
}

#[test]
fn ranges_and_lengths_are_checked() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 10 * 4096, ..Default::default() }).unwrap();
    let empty = vm.source("empty", Words::default()).unwrap();
    assert!(matches!(vm.map(&empty, &MapOptions::shared()), Err(MapError::Empty { .. })));
    let none = MapOptions::shared().window(pages(3, 3));
    assert!(matches!(vm.map(&object, &none), Err(MapError::Empty { .. })));
    let beyond = vm.map(&object, &MapOptions::shared().window(pages(3, 11))).unwrap_err();
    assert_eq!(beyond.to_string(), "words has 10 pages; pages 3 to 11 were asked for");
    let none = MapOptions::private().zero_cluster(0);
    assert!(matches!(vm.map(&object, &none), Err(MapError::NoCluster)));
    let stranger = self::vm();
    assert!(matches!(stranger.map(&object, &MapOptions::shared()), Err(MapError::OtherVm { .. })));
    assert!(matches!(vm.anonymous(u64::MAX), Err(MakeError::TooLarge { .. })));
    let huge = vm.anonymous(1 << 47).unwrap();
    assert!(matches!(vm.map(&huge, &MapOptions::private()), Err(MapError::Memory { .. })));
    assert!(matches!(vm.file("/nonexistent"), Err(MakeError::File { .. })));
    assert!(matches!(vm.file("/dev/null"), Err(MakeError::File { .. })));

    let map = vm.map(&object, &MapOptions::private().window(pages(2, 6))).unwrap();
    assert!(matches!(map.populate(pages(0, 3)), Err(AccessError::Outside { .. })));
    assert!(matches!(map.read_at(4 * 4096 - 1, &mut [0; 2]), Err(AccessError::Beyond { .. })));
    assert!(matches!(map.read_at(u64::MAX, &mut [0; 2]), Err(AccessError::Beyond { .. })));
    assert!(matches!(map.advise(Advice::DontNeed(pages(2, 3))), Err(AccessError::Private)));
    assert!(matches!(map.advise(Advice::WillNeed(pages(5, 7))), Err(AccessError::Outside { .. })));
    assert_eq!(vm.statistics().maps, 1);
}

#[test]
fn a_fifo_is_no_file_and_nobody_waits_for_its_writer() {
    type Open = fn(&Vm, &std::path::Path) -> Result<prepage_vm::Object, MakeError>;
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let opens: [Open; 3] =
        [|vm, path| vm.file(path), |vm, path| vm.file_direct(path), |vm, path| vm.file_writable(path)];
    // To open it would let go whoever waits to write.
    let opened = std::fs::File::from(inotify::init(inotify::CreateFlags::NONBLOCK).unwrap());
    inotify::add_watch(&opened, home.path(), inotify::WatchFlags::OPEN).unwrap();
    for open in opens {
        let (tell, told) = std::sync::mpsc::channel();
        let path = path.clone();
        std::thread::spawn(move || tell.send(open(&vm(), &path)));
        let refused = told.recv_timeout(std::time::Duration::from_secs(20)).expect("it waits for a writer");
        assert!(matches!(refused, Err(MakeError::File { .. })), "{refused:?}");
    }
    let read = std::io::Read::read(&mut &opened, &mut [0; 4096]);
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "it was opened");
}

#[test]
fn the_limit_of_frames_holds_and_other_maps_go_on() {
    let vm = Vm::new(VmOptions::default().frame_limit_bytes(20 * 4096)).unwrap();
    let object = vm.source("words", Words { len_bytes: 64 * 4096, ..Default::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    for page in (0..64).chain((0..64).rev()).chain(0..64) {
        assert_eq!(touch(&map, page), word(page * 4096));
        assert!(keeps_to(20, &vm));
    }
    map.populate(map.window()).unwrap();
    assert!(keeps_to(20, &vm));
    // What is pinned stays, and what can never be had is an error; the rest goes on.
    let pinned = map.pin(pages(8, 27)).unwrap();
    (0..64).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    assert!((8..27).all(|page| object.is_resident(pages(page, page + 1).start())));
    assert!(has_no_frame(&vm, || map.pin(pages(40, 42))));
    let last = map.pin(pages(40, 41)).unwrap();
    assert!(has_no_frame(&vm, || map.populate(pages(50, 51))), "a frame beyond the limit");
    (8..27).chain([40]).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    drop(last);
    assert_eq!(touch(&map, 50), word(50 * 4096));
    drop(pinned);
    (0..64).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    assert_eq!(vm.statistics().pool.pinned_pages, 0);
}

#[test]
fn a_touch_that_fails_ends_in_sigbus_and_says_why() {
    for name in ["child_touches_inline", "child_touches_handler"] {
        let (vm, mode) = (vm(), if name == "child_touches_inline" { Mode::Inline } else { Mode::Handler });
        if !modes(&vm, &moody(&vm, FAIL).0).contains(&mode) {
            continue;
        }
        let output = child(name, &[]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.signal(), Some(7), "{said}");
        let why = "failed: the source failed (Vm::take_failures gives its own words): page 21 of moody\n";
        assert!(said.contains(why), "{said}");
        assert!(!said.contains("came back"), "{said}");
    }
}

fn touch_bad(name: &str, mode: Mode) {
    if is_child(name) {
        let vm = vm();
        let (object, _) = moody(&vm, FAIL);
        match vm.map(&object, &MapOptions::shared().mode(mode)) {
            Ok(map) => eprintln!("came back {}", touch(&map, 21)),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn child_touches_inline() {
    touch_bad("child_touches_inline", Mode::Inline);
}

#[test]
fn child_touches_handler() {
    touch_bad("child_touches_handler", Mode::Handler);
}

#[test]
fn failures_that_nobody_reads_of_hold_up_no_touch() {
    const NAME: &str = "failures_that_nobody_reads_of_hold_up_no_touch";
    if !is_child(NAME) {
        let output = child(NAME, &["timeout", "60"]);
        assert!(output.status.success(), "{:?}", output.status);
        return;
    }
    let vm = vm();
    let (object, _) = moody(&vm, FAIL);
    if !modes(&vm, &object).contains(&Mode::Handler) {
        return;
    }
    let map = vm.map(&object, &MapOptions::shared().mode(Mode::Handler)).unwrap();
    // A reader that rests.
    let (_reader, writer) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&writer, true).unwrap();
    while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&writer, false).unwrap();
    rustix::stdio::dup2_stderr(&writer).unwrap();
    assert_eq!(try_copy(map.address() + 21 * 4096, &mut [0; 8]).unwrap(), 0);
    assert_eq!(vm.take_failures().len(), 1);
    // Nor does what is lost hold up who lets it go.
    let file = support::file(16 * 4096);
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    map.write_at(9 * 4096, &[1]).unwrap();
    file.as_file().set_len(4096).unwrap();
    drop((map, object));
}

#[test]
fn without_permission_the_remedies_are_named() {
    if !prepage_testing::has(prepage_testing::Need::Root) {
        return;
    }
    let output = child(
        "child_without_permission",
        &[
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--bounding-set=-all",
            "--inh-caps=-all",
        ],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("as an ordinary user"), "{said}");
}

#[test]
fn child_without_permission() {
    if !is_child("child_without_permission") {
        return;
    }
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 4 * 4096, ..Default::default() }).unwrap();
    let inline = vm.map(&object, &MapOptions::shared()).unwrap();
    assert_eq!(touch(&inline, 1), word(4096));
    let system = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    match vm.map(&object, &MapOptions::shared().mode(Mode::Handler)) {
        Err(MapError::Userfaultfd(error @ OpenError::NotPermitted)) => {
            let told = error.to_string();
            for remedy in ["CAP_SYS_PTRACE", "vm.unprivileged_userfaultfd", "/dev/userfaultfd"] {
                assert!(told.contains(remedy), "{told}");
            }
        }
        other => assert_eq!(system.trim(), "1", "{other:?}"),
    }
    let vm = Vm::new(VmOptions::default().user_mode_only()).unwrap();
    let object = vm.source("words", Words { len_bytes: 4 * 4096, ..Default::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared().mode(Mode::Handler)).unwrap();
    assert_eq!(touch(&map, 2), word(2 * 4096));
    eprintln!("as an ordinary user");
}

#[test]
fn out_of_descriptors_and_of_mappings_nothing_is_lost() {
    let output = child("child_runs_out", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("ran out twice"), "{said}");
}

#[test]
fn child_runs_out() {
    if !is_child("child_runs_out") {
        return;
    }
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 4 * 4096, ..Default::default() }).unwrap();
    let first = vm.map(&object, &MapOptions::shared()).unwrap();
    // Twenty runs of frozen pages, each long enough for a mapping of its own.
    let zeros = vm.anonymous(20 * 32 * 4096).unwrap();
    let mut written = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..20 * 32).filter(|page| page / 16 % 2 == 0).for_each(|page| write(&mut written, page, page));
    let snapshot = written.snapshot().unwrap();
    drop(written);
    setrlimit(Resource::Nofile, Rlimit { current: Some(20), maximum: Some(20) }).unwrap();
    let mut objects = Vec::new();
    let error = loop {
        match vm.source("words", Words { len_bytes: 4096, ..Default::default() }) {
            Ok(object) => objects.push(object),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, MakeError::System { .. }) && objects.len() < 20);
    let mut maps = Vec::new();
    let error = loop {
        match vm.map(&object, &MapOptions::private()) {
            Ok(map) => maps.push(map),
            Err(error) => break error,
        }
    };
    assert!(matches!(error, MapError::Memory { .. }), "{error:?}");
    assert!(error.to_string().contains("vm.max_map_count"));
    assert_eq!(vm.statistics().maps, 1 + maps.len() as u64);
    // The allocator of a thread of the VM's, or of the test, may want some.
    maps.truncate(maps.len() - 10);
    assert_eq!(touch(&maps[maps.len() / 2], 1), word(4096));
    // Frozen pages do without, also in pieces.
    maps.truncate(maps.len() - 10);
    let clone = vm.map(&snapshot, &MapOptions::private()).unwrap();
    assert_eq!([0, 31, 32].map(|page| read(&clone, page)), [0, 0, 32]);
    drop(clone);
    let pieces = [Piece::new(&snapshot, pages(8, 640)), Piece::new(&object, pages(1, 2))];
    let clone = vm.map_pieces(&pieces, &MapOptions::private()).unwrap();
    assert_eq!([1, 23, 24].map(|page| read(&clone, page)), [9, 0, 32]);
    assert_eq!(touch(&clone, 632), word(4096));
    drop((maps, objects, clone, pieces, snapshot, zeros));
    assert_eq!((vm.statistics().maps, vm.statistics().objects), (1, 1));
    assert_eq!(touch(&first, 2), word(2 * 4096));
    eprintln!("ran out twice");
}

#[test]
fn out_of_address_space_nothing_is_lost() {
    let output = child("child_without_space", &[]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("went on"), "{said}");
}

#[test]
fn child_without_space() {
    if !is_child("child_without_space") {
        return;
    }
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 1 << 30, ..Default::default() }).unwrap();
    let map = vm.map(&object, &MapOptions::shared().window(pages(0, 64))).unwrap();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let size_kib: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
    let limit = (size_kib << 10) + (256 << 20);
    setrlimit(Resource::As, Rlimit { current: Some(limit), maximum: Some(limit) }).unwrap();
    for _ in 0..100 {
        let error = vm.map(&object, &MapOptions::private()).unwrap_err();
        assert!(matches!(error, MapError::Memory { len_bytes: 0x4000_0000, .. }), "{error:?}");
        let large = vm.source("large", Words { len_bytes: 1 << 40, ..Default::default() });
        assert!(matches!(large, Err(MakeError::System { .. })));
        let fits = vm.map(&object, &MapOptions::private().window(pages(64, 128))).unwrap();
        assert_eq!(touch(&fits, 1), word(65 * 4096));
    }
    let statistics = vm.statistics();
    assert_eq!((statistics.maps, statistics.objects, statistics.backings), (1, 1, 1));
    assert_eq!(touch(&map, 2), word(2 * 4096));
    eprintln!("went on");
}

#[test]
fn a_pool_without_all_of_its_threads_is_none_and_leaves_none() {
    const NAME: &str = "a_pool_without_all_of_its_threads_is_none_and_leaves_none";
    if is_child(NAME) {
        // The one more that may be had each time is a thread of a pool.
        for limit in 1..1000 {
            setrlimit(Resource::Nproc, Rlimit { current: Some(limit), maximum: Some(1000) }).unwrap();
            let pool = Pool::with(&PoolOptions::default().limit_bytes(1 << 20).gives_back(4096));
            match pool {
                Ok(_) if limit > 1 => return,
                Ok(_) => panic!("this user has as many threads as it likes"),
                Err(error) => assert!(matches!(error, MakeError::System { what: "a thread", .. }), "{error}"),
            }
            until(|| threads_of_vms() == 0);
        }
        panic!("it has no thread yet");
    }
    if prepage_testing::has(prepage_testing::Need::Root) {
        let output = child(NAME, &["setpriv", "--reuid=65533", "--regid=65533", "--clear-groups"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Threads of this process that are not the tests' own.
fn threads_of_vms() -> usize {
    let names = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|thread| {
        // It may have ended.
        std::fs::read_to_string(thread.unwrap().path().join("comm")).ok()
    });
    names.filter(|name| name.starts_with("prepage-")).count()
}

/// A source that does not know what it is best read by.
struct Grainless;

impl Source for Grainless {
    fn len_bytes(&self) -> u64 {
        4096
    }

    fn grain_bytes(&self) -> u64 {
        panic!("a source that panics, as it should in this test")
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        Ok(())
    }
}

#[test]
fn a_source_that_panics_before_it_is_an_object_is_not_counted() {
    let vm = vm();
    let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| vm.source("grainless", Grainless)));
    assert!(made.is_err());
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

#[test]
fn pages_of_a_long_map_that_nobody_touched_take_no_memory() {
    const NAME: &str = "pages_of_a_long_map_that_nobody_touched_take_no_memory";
    const LEN_BYTES: u64 = 1 << 37;
    if !is_child(NAME) {
        // Alone, so that no other test takes memory meanwhile.
        let output = child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let resident_kib = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let anonymous = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        anonymous.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let vm = Vm::new(VmOptions::default().frame_limit_bytes(1 << 20)).unwrap();
    let mut zeros = vm.map(&vm.anonymous(LEN_BYTES).unwrap(), &MapOptions::private()).unwrap();
    zeros.as_mut_slice()[0] = 1;
    let snapshot = zeros.snapshot().unwrap();
    let words = vm.source("words", Words { len_bytes: LEN_BYTES, ..Words::default() }).unwrap();
    let map = vm.map(&words, &MapOptions::shared()).unwrap();
    let before = resident_kib();
    zeros.discard(zeros.window()).unwrap();
    let refused = map.pin(map.window()).map(drop);
    assert!(matches!(refused, Err(AccessError::Unavailable { reason: Reason::NoFrames, .. })), "{refused:?}");
    let more = resident_kib().saturating_sub(before);
    assert!(more < 16 << 10, "{more} KiB");
    drop((zeros, snapshot));
}

#[test]
fn records_of_more_faults_than_any_memory_holds_are_refused() {
    for faults in [usize::MAX, usize::MAX >> 1, 1 << 50] {
        let refused = Vm::new(VmOptions::default().record_faults(faults));
        assert!(matches!(refused, Err(MakeError::System { .. })), "{faults}: {refused:?}");
    }
}

#[test]
fn a_cluster_without_pages_is_refused() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 4096, ..Default::default() }).unwrap();
    let linux = Linux { read_ahead: 32, mapping: Mapping::Data, fault_around: 0 };
    for policy in [
        Policy::Aligned(0),
        Policy::Adaptive(Adaptive { max: 8, cluster: 0 }),
        Policy::ReadAround(0),
        Policy::Linux(linux),
    ] {
        let refused = vm.map(&object, &MapOptions::shared().policy(policy.clone()));
        assert!(matches!(refused, Err(MapError::NoCluster)), "{policy:?}");
    }
}

#[test]
fn a_process_that_may_not_make_long_files_is_told() {
    const NAME: &str = "a_process_that_may_not_make_long_files_is_told";
    if !is_child(NAME) {
        let output = child(NAME, &[]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let directory = swap_directory();
    let most = 1 << 20;
    setrlimit(Resource::Fsize, Rlimit { current: Some(most), maximum: Some(most) }).unwrap();
    let vm = Vm::new(VmOptions::default()).unwrap();
    let words = |len_bytes| vm.source("words", Words { len_bytes, ..Default::default() });
    let fits = words(most).unwrap();
    assert_eq!(touch(&vm.map(&fits, &MapOptions::shared()).unwrap(), 255), word(255 * 4096));
    assert!(matches!(words(most + 1), Err(MakeError::System { .. })));
    // Memory without a file, too, with and without a place for a swap file.
    let with_swap = directory.map(|directory| {
        let swap = PoolOptions::default().swap(directory, 1 << 30);
        Vm::new(VmOptions::default().pool(&Pool::with(&swap).unwrap())).unwrap()
    });
    for vm in [&vm].into_iter().chain(&with_swap) {
        let memory = vm.memory(most).unwrap();
        vm.map(&memory, &MapOptions::writable()).unwrap().write_at(most - 1, &[1]).unwrap();
        assert!(matches!(vm.memory(most + 1), Err(MakeError::System { .. })));
    }
    let zeros = vm.anonymous(1 << 30).unwrap();
    let huge = vm.map(&zeros, &MapOptions::private().huge_pages());
    assert!(matches!(huge, Err(MapError::Memory { .. })), "{huge:?}");
    vm.map(&zeros, &MapOptions::private()).unwrap().as_mut_slice()[5 << 20] = 1;
}
