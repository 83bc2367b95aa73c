//! Maps that write to their file.

mod support;

use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::panic::AssertUnwindSafe;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prepage_core::random::SplitMix;
use prepage_core::{FaultClass, PAGE_SIZE};
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::region::is_present;
use prepage_vm::{AccessError, FlushError, Map, MapError, MapOptions, Mode, Object, Pool, Vm, VmOptions};
use support::{child_command, file, is_child, keeps_to, left_in, modes, page_bytes, pages, until, word};

const PAGE: usize = PAGE_SIZE as usize;

/// Nothing is written back but by who asks.
fn by_hand() -> VmOptions {
    VmOptions::default().write_back_after(Duration::from_secs(1 << 20))
}

fn store(map: &Map, at: usize, value: u64) {
    for (byte, value) in map.as_atomics()[at..at + 8].iter().zip(value.to_le_bytes()) {
        byte.store(value, Ordering::Relaxed);
    }
}

fn load(map: &Map, at: usize) -> u64 {
    let mut bytes = [0; 8];
    for (to, byte) in bytes.iter_mut().zip(&map.as_atomics()[at..at + 8]) {
        *to = byte.load(Ordering::Relaxed);
    }
    u64::from_le_bytes(bytes)
}

fn in_file(file: &tempfile::NamedTempFile, at: usize) -> u64 {
    let mut bytes = [0; 8];
    file.as_file().read_exact_at(&mut bytes, at as u64).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn what_is_written_is_in_the_file_once_it_is_flushed() {
    let file = file(64 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    for (number, mode) in (1..).zip(modes(&vm, &object)) {
        let map = vm.map(&object, &MapOptions::writable().mode(mode)).unwrap();
        let other = vm.map(&object, &MapOptions::writable().mode(mode)).unwrap();
        let reader = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
        for (page, through) in [(3, &map), (4, &other), (40, &map), (3, &other)] {
            let at = page * PAGE + 16 * number;
            store(through, at, number as u64);
            assert_eq!(load(&other, at), number as u64);
            let mut seen = [0; 8];
            reader.read_at(at as u64, &mut seen).unwrap();
            assert_eq!(u64::from_le_bytes(seen), number as u64);
            assert_ne!(in_file(&file, at), number as u64, "written before anybody asked");
        }
        assert_eq!(object.dirty_pages(), 3);
        // A part, and then all of it.
        object.flush(pages(0, 4)).unwrap();
        assert_eq!((in_file(&file, 3 * PAGE + 16 * number), object.dirty_pages()), (number as u64, 2));
        map.flush(map.window()).unwrap();
        assert_eq!((in_file(&file, 40 * PAGE + 16 * number), object.dirty_pages()), (number as u64, 0));
        // A page that was written back is protected again, in both maps.
        let dirtied = vm.statistics().counted.pages_dirtied;
        store(&map, 3 * PAGE, 7);
        store(&other, 3 * PAGE + 8, 8);
        store(&map, 3 * PAGE + 8, 9);
        until(|| vm.statistics().counted.pages_dirtied == dirtied + 1);
        object.flush(object.pages()).unwrap();
        assert_eq!((in_file(&file, 3 * PAGE), in_file(&file, 3 * PAGE + 8)), (7, 9));
        store(&map, 3 * PAGE, word(3 * PAGE_SIZE));
        object.flush(object.pages()).unwrap();
    }
    // What was not written is as it was.
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(bytes[8 * PAGE..9 * PAGE] == page_bytes(8) && bytes.len() == 64 * PAGE);
}

#[test]
fn writes_go_on_where_memory_is_short() {
    let len = 1024 * PAGE;
    let file = file(len as u64);
    // 64 frames.
    let pool = Pool::new(64 * PAGE_SIZE).unwrap();
    let vm = Vm::new(by_hand().pool(&pool)).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::writable().mode(mode)).unwrap();
        for round in 1..3 {
            for page in 0..1024 {
                store(&map, page * PAGE + 8, (round * page) as u64);
            }
            for page in (0..1024).rev() {
                let found = [0, 8].map(|at| load(&map, page * PAGE + at));
                assert_eq!(found, [word(page as u64 * PAGE_SIZE), (round * page) as u64]);
            }
        }
        assert!(keeps_to(64, &vm), "{:?}", pool.figures());
        assert!(object.dirty_pages() <= 64 + pool.figures().beyond_pages_total);
        object.flush(object.pages()).unwrap();
        assert!((0..1024).all(|page| in_file(&file, page * PAGE + 8) == 2 * page as u64));
    }
    drop(object);
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

/// Who brings a page in to write to it lets it be written to as well.
#[test]
fn a_first_write_to_a_page_that_is_not_in_memory_is_one_fault() {
    let (file, vm) = (file(64 * PAGE_SIZE), Vm::new(by_hand()).unwrap());
    let modes = modes(&vm, &vm.file_writable(file.path()).unwrap());
    // In no order: none is opened ahead. With neighbours: one page of each block.
    let ways: [(&str, &[usize]); 2] =
        [("none", &[0, 7, 14, 21, 28, 35, 42, 49, 56, 63]), ("aligned:16", &[5, 20, 47, 60])];
    for (mode, (policy, written)) in modes.into_iter().flat_map(|mode| ways.map(|way| (mode, way))) {
        let objects = [vm.file_writable(file.path()).unwrap(), vm.memory(64 * PAGE_SIZE).unwrap()];
        for (object, is_memory) in objects.iter().zip([false, true]) {
            let options = MapOptions::writable().mode(mode).policy(policy.parse().unwrap());
            let map = vm.map(object, &options).unwrap();
            let before = vm.statistics().counted;
            for &page in written {
                store(&map, page * PAGE + 8, page as u64 + 1);
                let first = if is_memory { 0 } else { word(page as u64 * PAGE_SIZE) };
                assert_eq!([0, 8].map(|at| load(&map, page * PAGE + at)), [first, page as u64 + 1]);
            }
            assert_eq!(object.dirty_pages(), written.len() as u64);
            // Who answers counts after the thread goes on; nobody answers for what is dropped.
            drop(map);
            let now = vm.statistics().counted;
            let faults = (now.hard - before.hard, now.soft - before.soft);
            assert_eq!(faults, (written.len() as u64, 0), "{mode:?}, {policy}, memory: {is_memory}");
        }
        let [of_file, _] = &objects;
        of_file.flush(of_file.pages()).unwrap();
        assert!(written.iter().all(|page| in_file(&file, page * PAGE + 8) == *page as u64 + 1));
    }
}

#[test]
fn dirty_pages_stay_in_memory_until_they_are_written() {
    let file = file(64 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    map.populate(map.window()).unwrap();
    store(&map, 5 * PAGE, 5);
    store(&map, 6 * PAGE, 6);
    assert!(object.is_wired(pages(5, 6).start()));
    assert_eq!(object.unwire(object.pages()).unwrap(), 62);
    assert_eq!(object.evict(object.pages()).unwrap(), 62);
    assert_eq!((object.resident_pages(), load(&map, 6 * PAGE)), (2, 6));
    object.write_back(object.pages()).unwrap();
    assert_eq!(object.evict(object.pages()).unwrap(), 2);
    assert_eq!((load(&map, 5 * PAGE), load(&map, 6 * PAGE)), (5, 6));
    assert_eq!(object.dirty_pages(), 0);
}

#[test]
fn pages_ahead_of_what_is_written_in_order_take_no_fault_and_go_to_the_file_only_if_they_were_written_to() {
    let file = file(256 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let maps = [(); 2].map(|()| vm.map(&object, &MapOptions::writable()).unwrap());
    maps.iter().for_each(|map| map.populate(map.window()).unwrap());
    let faults = || vm.statistics().costs_ns[FaultClass::Cached as usize].len();
    let soft = || vm.statistics().counted.soft;
    let before = (faults(), soft());
    for page in 0..100 {
        store(&maps[0], page * PAGE, page as u64 + 1000);
    }
    assert!(object.dirty_pages() > 100, "pages are let be written to before");
    let took = faults() - before.0;
    assert!((5..20).contains(&took), "{took} faults of 100 pages");
    assert_eq!(soft() - before.1, took);
    // One of these is written to without a fault, one by the other map, one by a call, and one by somebody else to the file.
    store(&maps[0], 102 * PAGE, 102);
    store(&maps[1], 103 * PAGE, 103);
    maps[1].write_at(104 * PAGE_SIZE, &104_u64.to_ne_bytes()).unwrap();
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &106_u64.to_ne_bytes(), 106 * PAGE_SIZE)
        .unwrap();
    object.flush(object.pages()).unwrap();
    assert_eq!(object.dirty_pages(), 0);
    assert!((0..100).all(|page| in_file(&file, page * PAGE) == page as u64 + 1000));
    assert_eq!([102, 103, 104, 106].map(|page| in_file(&file, page * PAGE)), [102, 103, 104, 106]);
    assert_eq!(vm.statistics().counted.pages_written_back, 103);
    // What was let be written to is told again.
    store(&maps[0], 101 * PAGE, 7);
    assert_eq!(object.write_back(object.pages()).unwrap(), 1);
    assert_eq!(in_file(&file, 101 * PAGE), 7);
    // Once more, where sums are known from when pages were written back.
    for page in 0..100 {
        store(&maps[1], page * PAGE, page as u64 + 2000);
    }
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &7_u64.to_ne_bytes(), 104 * PAGE_SIZE).unwrap();
    object.flush(object.pages()).unwrap();
    assert!((0..100).all(|page| in_file(&file, page * PAGE) == page as u64 + 2000));
    assert_eq!([101, 102, 103, 104, 106].map(|page| in_file(&file, page * PAGE)), [7, 102, 103, 7, 106]);
}

#[test]
fn what_is_missing_of_a_long_write_is_read_together() {
    let file = file(64 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    map.write_at(100, &[7; 60 * PAGE]).unwrap();
    assert_eq!(vm.statistics().counted.background_reads, 1);
    object.flush(object.pages()).unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    assert!(bytes[100..][..60 * PAGE].iter().all(|&byte| byte == 7));
    assert!(bytes[..100] == page_bytes(0)[..100] && bytes[63 * PAGE..] == page_bytes(63));
}

/// Writes to the first five pages of a map in order, so that four more are opened with the fifth; gives how many faults of this thread the kernel counts
/// while it writes to those four.
fn faults_of_opened(map: &Map) -> u64 {
    (0..5).for_each(|page| store(map, page * PAGE, 1));
    let faults = || {
        let stat = ProcessStat::of_this_thread().unwrap();
        stat.minor_faults + stat.major_faults
    };
    // What it touches itself is there by the second time.
    faults();
    let before = faults();
    (5..9).for_each(|page| store(map, page * PAGE, 1));
    faults() - before
}

#[test]
fn a_page_that_was_opened_ahead_can_be_written_to_at_once() {
    let file = file(16 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let mut took = Vec::new();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::writable().mode(mode)).unwrap();
        map.populate(map.window()).unwrap();
        // Once without sums of the pages, and once with those of what was written back.
        for _ in 0..2 {
            took.push((mode, faults_of_opened(&map)));
            object.flush(object.pages()).unwrap();
        }
    }
    // One may be of something else.
    assert!(took.iter().all(|(_, faults)| *faults <= 1), "faults of 4 pages: {took:?}");
}

#[test]
fn a_pinned_page_that_is_opened_ahead_stays_in_its_map() {
    let file = file(16 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    if !modes(&vm, &object).contains(&Mode::Handler) {
        return;
    }
    let map = vm.map(&object, &MapOptions::writable().mode(Mode::Handler)).unwrap();
    map.populate(map.window()).unwrap();
    let pinned = map.pin(pages(6, 7)).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let gone = scope.spawn(|| {
            let address = map.address() + 6 * PAGE_SIZE;
            let is_gone = || !is_present(address).unwrap();
            let mut gone = false;
            while !stop.load(Ordering::Relaxed) {
                gone |= is_gone();
            }
            gone
        });
        for _ in 0..2000 {
            (0..5).for_each(|page| store(&map, page * PAGE, 1));
            object.write_back(object.pages()).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        assert!(!gone.join().unwrap(), "a system call would wait for it");
    });
    drop(pinned);
}

#[test]
fn a_file_that_was_truncated_keeps_what_was_written_dirty() {
    let file = file(16 * PAGE_SIZE + 100);
    let vm = Vm::new(by_hand().explain(false)).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    for page in [2, 9, 16] {
        store(&map, page * PAGE, 11);
    }
    file.as_file().set_len(9 * PAGE_SIZE + 4).unwrap();
    let error = object.flush(object.pages()).unwrap_err();
    let len_bytes = 9 * PAGE_SIZE + 4;
    assert!(
        matches!(&error, FlushError::Truncated { page, len_bytes: end, .. } if page.0 == 9 && *end == len_bytes),
        "{error}"
    );
    assert_eq!((in_file(&file, 2 * PAGE), object.dirty_pages()), (11, 2));
    assert_eq!(file.as_file().metadata().unwrap().len(), len_bytes, "nothing makes it longer again");
    assert_eq!(load(&map, 16 * PAGE), 11);
    // What was never read cannot be had.
    let missing = map.write_at(12 * PAGE_SIZE, &[1]).err();
    assert!(matches!(missing, None | Some(AccessError::Unavailable { .. })));
    // Made longer again it takes what was kept, and no byte behind its end.
    file.as_file().set_len(16 * PAGE_SIZE + 100).unwrap();
    object.flush(object.pages()).unwrap();
    assert_eq!((in_file(&file, 9 * PAGE), in_file(&file, 16 * PAGE), object.dirty_pages()), (11, 11, 0));
    assert_eq!(file.as_file().metadata().unwrap().len(), 16 * PAGE_SIZE + 100);
}

/// What one file refuses does not keep what the others take.
#[test]
fn a_vm_flushes_all_its_objects_and_tells_of_the_first_that_refuses() {
    let vm = Vm::new(by_hand()).unwrap();
    flushes_all(&[&vm; 3], || vm.flush());
}

#[test]
fn a_pool_flushes_the_objects_of_all_its_vms() {
    let pool = Pool::new(u64::MAX).unwrap();
    let vms = [0; 2].map(|_| Vm::new(by_hand().pool(&pool)).unwrap());
    flushes_all(&[&vms[0], &vms[1], &vms[0]], || pool.flush());
}

/// Objects of these VMs, by what `flush` does.
fn flushes_all(vms: &[&Vm; 3], flush: impl Fn() -> Result<(), FlushError>) {
    let vm = vms[0];
    let files = [0; 3].map(|_| file(16 * PAGE_SIZE));
    let objects = [0, 1, 2].map(|at| vms[at].file_writable(files[at].path()).unwrap());
    let maps = [0, 1, 2].map(|at| vms[at].map(&objects[at], &MapOptions::writable()).unwrap());
    let memory = vm.memory(16 * PAGE_SIZE).unwrap();
    let of_memory = vm.map(&memory, &MapOptions::writable()).unwrap();
    let _read_only = vm.file(files[0].path()).unwrap();
    let write = |value| maps.iter().chain([&of_memory]).for_each(|map| store(map, 9 * PAGE, value));
    write(1);
    flush().unwrap();
    assert!(files.iter().all(|file| in_file(file, 9 * PAGE) == 1));
    write(2);
    files[1].as_file().set_len(4 * PAGE_SIZE).unwrap();
    let error = flush().unwrap_err();
    assert!(
        matches!(&error, FlushError::Truncated { object, page, .. } if object == objects[1].name() && page.0 == 9),
        "{error}"
    );
    assert_eq!([0, 2].map(|at| in_file(&files[at], 9 * PAGE)), [2, 2]);
    assert_eq!(objects.each_ref().map(Object::dirty_pages), [0, 1, 0]);
    // The object without its handle: its map keeps it.
    let [first, second, third] = objects;
    drop((first, third));
    files[1].as_file().set_len(16 * PAGE_SIZE).unwrap();
    write(3);
    flush().unwrap();
    assert!(files.iter().all(|file| in_file(file, 9 * PAGE) == 3) && second.dirty_pages() == 0);
}

#[test]
fn what_nobody_flushes_is_written_after_a_while_and_when_the_object_goes() {
    let file = file(16 * PAGE_SIZE);
    let vm = Vm::new(VmOptions::default().write_back_after(Duration::from_millis(5))).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    for value in 1..4 {
        store(&map, 8, value);
        let began = Instant::now();
        while in_file(&file, 8) != value {
            assert!(began.elapsed() < Duration::from_secs(120), "nobody writes it back");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    store(&map, 16, 17);
    drop(object);
    assert_ne!(in_file(&file, 16), 17);
    drop(map);
    assert_eq!(in_file(&file, 16), 17);
}

#[test]
fn what_takes_no_writes_says_so() {
    let file = file(4 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let read_only = vm.file(file.path()).unwrap();
    let refused = vm.map(&read_only, &MapOptions::writable());
    assert!(matches!(refused, Err(MapError::ReadOnly { .. })));
    assert!(matches!(read_only.flush(read_only.pages()), Err(FlushError::ReadOnly { .. })));
    let map = vm.map(&read_only, &MapOptions::shared()).unwrap();
    assert!(matches!(map.write_at(0, &[1]), Err(AccessError::ReadOnly)));
    let object = vm.file_writable(file.path()).unwrap();
    assert!(matches!(vm.map(&object, &MapOptions::private()), Err(MapError::Changing { .. })));
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    assert!(matches!(map.write_at(4 * PAGE_SIZE - 1, &[1, 2]), Err(AccessError::Beyond { .. })));
    assert!(std::panic::catch_unwind(AssertUnwindSafe(|| map.as_slice().len())).is_err());
    assert!(vm.file_writable("/").is_err());
}

#[test]
fn random_steps_agree_with_plain_bytes() {
    const PAGES: u64 = 96;
    let len = (PAGES * PAGE_SIZE - 777) as usize;
    let file = file(len as u64);
    let mut plain = std::fs::read(file.path()).unwrap();
    // Fewer frames than pages.
    let pool = Pool::new(40 * PAGE_SIZE).unwrap();
    let vm = Vm::new(by_hand().pool(&pool)).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let first = vm.map(&object, &MapOptions::writable()).unwrap();
    let part = MapOptions::writable().window(pages(32, 64));
    let second = vm.map(&object, &part).unwrap();
    let mut random = SplitMix::new(7);
    for step in 0..3_000 {
        let range = {
            let start = random.below(PAGES);
            pages(start, (start + 1 + random.below(8)).min(PAGES))
        };
        match random.below(8) {
            0 | 1 => {
                let at = random.below(len as u64 - 8) as usize;
                store(&first, at, step);
                plain[at..at + 8].copy_from_slice(&step.to_le_bytes());
            }
            2 => {
                let at = random.below(32 * PAGE_SIZE - 8) as usize;
                store(&second, at, step);
                plain[32 * PAGE + at..][..8].copy_from_slice(&step.to_le_bytes());
            }
            3 => {
                let at = random.below(len as u64 - 1) as usize;
                let bytes = vec![step as u8; random.below(3 * PAGE_SIZE) as usize + 1];
                let bytes = &bytes[..bytes.len().min(len - at)];
                first.write_at(at as u64, bytes).unwrap();
                plain[at..at + bytes.len()].copy_from_slice(bytes);
            }
            4 => {
                object.flush(range).unwrap();
                let start = range.start().offset_bytes() as usize;
                let end = (range.end().offset_bytes() as usize).min(len);
                let mut found = vec![0; end - start];
                file.as_file().read_exact_at(&mut found, start as u64).unwrap();
                assert!(found == plain[start..end], "step {step}");
            }
            5 => drop(object.evict(range).unwrap()),
            6 => drop(object.unwire(range).unwrap()),
            _ => {
                let start = range.start().offset_bytes() as usize;
                let mut found = vec![0; (range.bytes() as usize).min(len - start)];
                first.read_at(start as u64, &mut found).unwrap();
                assert!(found == plain[start..start + found.len()], "step {step}");
            }
        }
    }
    object.flush(object.pages()).unwrap();
    assert!(std::fs::read(file.path()).unwrap() == plain);
}

#[test]
fn a_flush_has_what_was_written_before_it() {
    const PAGES: usize = 32;
    const WRITERS: usize = 3;
    let file = file((PAGES * PAGE) as u64);
    let pool = Pool::new(24 * PAGE_SIZE).unwrap();
    let vm = Vm::new(by_hand().pool(&pool)).unwrap();
    let object: Object = vm.file_writable(file.path()).unwrap();
    let stop = AtomicBool::new(false);
    let known: Vec<AtomicU64> = (0..WRITERS).map(|_| AtomicU64::new(0)).collect();
    std::thread::scope(|scope| {
        for (number, known) in known.iter().enumerate() {
            let map = vm.map(&object, &MapOptions::writable()).unwrap();
            let stop = &stop;
            scope.spawn(move || {
                let mut value = 0;
                while !stop.load(Ordering::Relaxed) {
                    value += 1;
                    // Each its own word of every page.
                    for page in 0..PAGES {
                        store(&map, page * PAGE + 8 * number, value);
                    }
                    known.store(value, Ordering::SeqCst);
                }
            });
        }
        for round in 0..60 {
            let before: Vec<u64> = known.iter().map(|known| known.load(Ordering::SeqCst)).collect();
            object.flush(object.pages()).unwrap();
            for (number, &before) in before.iter().enumerate() {
                for page in 0..PAGES {
                    let found = in_file(&file, page * PAGE + 8 * number);
                    assert!(before == 0 || found >= before && found < 1 << 40, "{found} for {before}");
                }
            }
            if round % 4 == 0 {
                object.evict(object.pages()).unwrap();
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    object.flush(object.pages()).unwrap();
    for (number, known) in known.iter().enumerate() {
        let last = known.load(Ordering::SeqCst);
        assert!((0..PAGES).all(|page| in_file(&file, page * PAGE + 8 * number) == last));
    }
}

#[test]
fn a_process_that_is_killed_loses_nothing_that_a_flush_confirmed() {
    const PAGES: usize = 256;
    let file = file((PAGES * PAGE) as u64);
    for round in 1..5 {
        let mut killed = child_command("child_writes", &[])
            .env("PREPAGE_TEST_FILE", file.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let said = BufReader::new(killed.stdout.take().unwrap()).lines();
        let mut confirmed =
            said.map_while(Result::ok).filter_map(|line| line.strip_prefix("flushed ")?.parse().ok());
        let mut last: u64 = 0;
        for line in confirmed.by_ref().take(5 * round) {
            last = line;
        }
        killed.kill().unwrap();
        killed.wait().unwrap();
        // What it said before it was killed.
        let last = confirmed.last().unwrap_or(last);
        assert!(last >= 5 * round as u64);
        for page in 0..PAGES {
            let found = in_file(&file, page * PAGE + 8);
            assert!((last..=last + 1).contains(&found), "page {page} has {found}, {last} was confirmed");
        }
    }
}

#[test]
fn child_writes() {
    if !is_child("child_writes") {
        return;
    }
    let path = std::env::var_os("PREPAGE_TEST_FILE").unwrap();
    // Written back by others too, at any moment.
    let options =
        VmOptions::default().write_back_after(Duration::from_millis(1)).frame_limit_bytes(100 * PAGE_SIZE);
    let vm = Vm::new(options).unwrap();
    let object = vm.file_writable(path).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    for value in 1.. {
        for page in 0..object.pages().len() as usize {
            store(&map, page * PAGE + 8, value);
        }
        object.flush(object.pages()).unwrap();
        println!("flushed {value}");
    }
}

#[test]
fn what_is_flushed_while_others_make_maps_of_it_is_written() {
    let file = file(64 * PAGE_SIZE);
    let vm = Vm::new(by_hand()).unwrap();
    let object = vm.file_writable(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(vm.map(&object, &MapOptions::writable()).unwrap());
            }
        });
        let flushed = (1..2000).try_for_each(|value| {
            store(&map, value % 64 * PAGE, value as u64);
            object.flush(object.pages())
        });
        stop.store(true, Ordering::Relaxed);
        flushed.unwrap();
    });
    assert_eq!(in_file(&file, 1999 % 64 * PAGE), 1999);
}
