//! Frames under a limit: who has to go, what is told of it, and what the program sees, which is nothing.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prepage_core::policy::Neighbours;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::process_status::ProcessStatus;
use prepage_testing::{Need, has, is_child, passes_as_child, this_test};
use prepage_vm::{
    Advice, Map, MapOptions, Mode, Object, Pool, PoolOptions, Reason, Replacement, Source, SourceError, Vm,
    VmOptions,
};
use support::{Words, file, keeps_to, memfds, modes, pages, swap_directory, touch, until, vm, word};

const MIB: u64 = 1 << 20;

fn limited(frames: u64) -> (Pool, Vm) {
    with(frames, Replacement::default())
}

fn with(frames: u64, replacement: Replacement) -> (Pool, Vm) {
    let pool =
        Pool::with(&PoolOptions::default().limit_bytes(frames * 4096).replacement(replacement)).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    (pool, vm)
}

fn words(vm: &Vm, pages: u64) -> Object {
    vm.source("words", Words { len_bytes: pages * 4096, ..Default::default() }).unwrap()
}

/// One page a fault: what is touched is what is mapped.
fn exact(options: MapOptions) -> MapOptions {
    options.policy("none".parse().unwrap()).neighbours(Neighbours::Block(1))
}

fn bytes(pool: &Pool) -> [u64; 3] {
    let figures = pool.figures();
    assert_eq!(figures.resident_pages, figures.wired_pages + figures.unwired_pages);
    [figures.resident_pages, figures.wired_pages, figures.reserved_pages].map(|pages| pages * 4096)
}

#[test]
fn figures_are_those_of_the_accounting_vector() {
    let pool = Pool::new(u64::MAX).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    // Ten buffers of 16 KiB, all busy.
    let mut buffers: Vec<(Object, Map)> = (0..10)
        .map(|_| {
            let object = words(&vm, 4);
            let map = vm.map(&object, &exact(MapOptions::shared())).unwrap();
            map.populate(map.window()).unwrap();
            (object, map)
        })
        .collect();
    assert_eq!(bytes(&pool), [163_840, 163_840, 163_840]);
    for (object, _) in &buffers[..6] {
        assert_eq!(object.unwire(object.pages()).unwrap(), 4);
    }
    assert_eq!(bytes(&pool), [163_840, 65_536, 163_840]);
    for (object, _) in &buffers[..2] {
        assert_eq!(object.evict(object.pages()).unwrap(), 4);
    }
    assert_eq!(bytes(&pool), [131_072, 65_536, 163_840]);
    // One is used again.
    (0..4).for_each(|page| assert_eq!(touch(&buffers[2].1, page), word(page * 4096)));
    assert_eq!(bytes(&pool), [131_072, 81_920, 163_840]);
    assert_eq!(pool.objects().iter().filter(|object| object.unwired_pages == 4).count(), 3);
    buffers.drain(..2);
    assert_eq!(bytes(&pool), [131_072, 81_920, 131_072]);
    let counted = vm.statistics().counted;
    assert_eq!([counted.pages_unwired, counted.pages_rewired, counted.pages_evicted], [24, 4, 8]);
    drop(buffers);
    assert_eq!(bytes(&pool), [0, 0, 0]);
}

#[test]
fn unwired_pages_are_in_no_map_and_come_back_without_a_read() {
    let vm = vm();
    let reads = Arc::new(AtomicU64::new(0));
    let source = Words { len_bytes: 64 * 4096, reads: Arc::clone(&reads) };
    let object = vm.source("words", source).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &exact(MapOptions::shared()).mode(mode)).unwrap();
        map.populate(map.window()).unwrap();
        // Wholly in memory, it is left to the kernel, which tells of no touch.
        let plain = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
        (0..64).for_each(|page| assert_eq!(touch(&plain, page), word(page * 4096)));
        let before = (reads.load(Ordering::SeqCst), vm.statistics().counted);
        assert_eq!(object.unwire(pages(8, 24)).unwrap(), 16);
        for page in 0..64 {
            let shown = object.mappings_of(PageIndex(page)).unwrap().len();
            assert_eq!(shown, if (8..24).contains(&page) { 0 } else { 2 }, "page {page}");
            assert_eq!(object.is_wired(PageIndex(page)), shown > 0);
        }
        // By each map one touch of each page, none behind the one before; the first of them rewires.
        for map in [&plain, &map] {
            let scattered = (0..16).map(|at| 8 + at * 7 % 16);
            scattered.for_each(|page| assert_eq!(touch(map, page), word(page * 4096)));
        }
        // A handler counts its fault once the touch has gone on.
        let counted = || vm.statistics().counted;
        until(|| counted().soft - before.1.soft >= 32);
        assert_eq!(
            counted().soft - before.1.soft,
            32,
            "a touch of an unwired page maps no other unwired page"
        );
        assert_eq!(counted().pages_rewired - before.1.pages_rewired, 16);
        assert_eq!(reads.load(Ordering::SeqCst), before.0);
        assert_eq!(vm.statistics().pool.unwired_pages, 0);
        // The next plain map may be the kernel's again by then.
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn more_than_fits_is_read_again_and_again_in_every_way() {
    for replacement in [Replacement::TwoQueues, Replacement::DontNeed, Replacement::Static] {
        let all: &[u64] = if replacement == Replacement::TwoQueues { &[1, 3, 64, 300] } else { &[64] };
        for &frames in all {
            // Where one page fits each touch waits for the last one's frame.
            let [up, down] = if frames < 8 { [63, 70] } else { [7, 5] };
            let (pool, vm) = with(frames, replacement);
            let file = support::file(1024 * 4096);
            let objects = [words(&vm, 1024), vm.file(file.path()).unwrap()];
            for object in &objects {
                for mode in modes(&vm, object) {
                    let shared = vm.map(object, &MapOptions::shared().mode(mode)).unwrap();
                    let mut private = vm.map(object, &MapOptions::private().mode(mode)).unwrap();
                    let mut written = std::collections::HashSet::new();
                    for page in (0..1024).step_by(up).chain((0..1024).rev().step_by(down)) {
                        assert_eq!(touch(&shared, page), word(page * 4096));
                        let first = &mut private.as_mut_slice()[(page * 4096) as usize];
                        // What was written stays, whatever frames go.
                        assert_eq!(*first, word(page * 4096) as u8 ^ u8::from(written.contains(&page)));
                        if page % 3 == 0 && written.insert(page) {
                            *first ^= 1;
                        }
                        assert!(keeps_to(frames, &vm), "{:?}", pool.figures());
                    }
                    for &page in &written {
                        assert_eq!(private.as_slice()[(page * 4096) as usize], word(page * 4096) as u8 ^ 1);
                    }
                }
            }
            let counted = vm.statistics().counted;
            assert!(
                counted.pages_reclaimed > 0 && counted.failed == 0,
                "{replacement:?} {frames}: {counted:?}"
            );
        }
    }
}

#[test]
fn two_vms_share_a_pool() {
    let (pool, first) = limited(256);
    let second = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let objects = [words(&first, 1024), words(&second, 1024)];
    let maps = [
        first.map(&objects[0], &MapOptions::shared()).unwrap(),
        second.map(&objects[1], &MapOptions::shared()).unwrap(),
    ];
    for page in 0..1024 {
        maps.iter().for_each(|map| assert_eq!(touch(map, page), word(page * 4096)));
        assert!(keeps_to(256, &first), "{:?}", pool.figures());
    }
    // The reclaimer may take some between the two.
    let held = || objects.iter().map(Object::resident_pages).sum::<u64>();
    until(|| pool.objects().iter().map(|object| object.resident_pages).sum::<u64>() == held());
    // An idle VM's frames go to the other.
    for _ in 0..3 {
        (0..192).for_each(|page| assert_eq!(touch(&maps[0], page), word(page * 4096)));
    }
    assert!(objects[0].resident_pages() > objects[1].resident_pages());
    drop((maps, objects, second));
    // The reclaimer may look at them this moment.
    until(|| pool.figures().reserved_pages == 0 && pool.figures().resident_pages == 0);
    drop(first);
}

#[test]
fn reads_ahead_leave_the_last_frames_to_touches() {
    let (pool, vm) = limited(1024);
    let object = words(&vm, 8192);
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let low = pool.figures().low_pages;
    assert!(low > 0);
    map.advise(Advice::WillNeed(map.window())).unwrap();
    // All reads end, most of them without frames.
    let counted = || vm.statistics().counted;
    until(|| counted().background_reads > 0 && pool.figures().promised_pages == 0);
    assert!(pool.figures().resident_pages <= 1024 - low, "{:?}", pool.figures());
    assert_eq!(counted().pages_failed, 0);
    assert_eq!(counted().pages_reclaimed, 0, "a guess takes no frame from others");
    assert_eq!(touch(&map, 8000), word(8000 * 4096));
}

#[test]
fn what_is_populated_in_a_pool_with_room_takes_no_fault() {
    let (pool, vm) = limited(1024);
    let object = words(&vm, 700);
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.populate(map.window()).unwrap();
    // What the pool's thread does once it is called.
    pool.reclaim(0);
    let before = vm.statistics().counted;
    (0..700).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    let counted = vm.statistics().counted;
    assert_eq!((counted.soft - before.soft, counted.pages_unwired), (0, 0));
}

#[test]
fn pages_that_are_used_again_outlive_those_that_are_not() {
    // A hot set of an eighth of memory beside a scan of four times as much as memory holds.
    let (pool, vm) = limited(512);
    let object = words(&vm, 4096);
    let map = vm.map(&object, &exact(MapOptions::shared())).unwrap();
    let hot = |round: u64| (round * 16..round * 16 + 16).map(|page| page % 64);
    let scan = |round: u64| (round * 16..round * 16 + 16).map(|page| 64 + page % 2048);
    for round in 0..512 {
        hot(round).chain(scan(round)).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    }
    let before = vm.statistics().counted;
    for round in 0..128 {
        hot(round).chain(scan(round)).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    }
    let counted = vm.statistics().counted;
    // Of 2048 touches of the hot set at most a few percent are read, though every scan page is new.
    let hard = counted.hard - before.hard;
    assert!((1500..2048 + 200).contains(&hard), "{hard} reads; {:?}", pool.figures());
    // What is a little larger than memory comes back soon after it went.
    (0..8 * 640).for_each(|turn| {
        touch(&map, 3000 + turn % 640);
    });
    let looped = vm.statistics().counted;
    assert!(looped.pages_refaulted > counted.pages_refaulted, "{looped:?}");
}

#[test]
fn code_goes_after_data() {
    let (_pool, vm) = limited(512);
    let (code, data) = (words(&vm, 64), words(&vm, 4096));
    let text = vm.map(&code, &exact(MapOptions::shared().executable())).unwrap();
    let map = vm.map(&data, &exact(MapOptions::shared())).unwrap();
    (0..64).for_each(|page| assert_eq!(touch(&text, page), word(page * 4096)));
    (0..4096).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    assert_eq!(code.resident_pages(), 64);
    // Not where code is all there is.
    let more = words(&vm, 2048);
    let text = vm.map(&more, &exact(MapOptions::shared().executable())).unwrap();
    (0..2048).for_each(|page| assert_eq!(touch(&text, page), word(page * 4096)));
    assert!(more.resident_pages() > 256);
}

#[test]
fn what_no_map_of_code_shows_any_more_goes_as_data_does() {
    let (_pool, vm) = limited(512);
    let (code, data) = (words(&vm, 64), words(&vm, 1024));
    drop(vm.map(&code, &exact(MapOptions::shared().executable())).unwrap());
    let plain = vm.map(&code, &exact(MapOptions::shared())).unwrap();
    let map = vm.map(&data, &exact(MapOptions::shared())).unwrap();
    (0..64).for_each(|page| assert_eq!(touch(&plain, page), word(page * 4096)));
    (0..16 * 640).for_each(|turn| {
        touch(&map, turn % 640);
    });
    assert!(code.resident_pages() < 64);
}

#[test]
fn what_is_pinned_stays_and_can_be_handed_to_system_calls() {
    use std::io::Write;
    let (pool, vm) = limited(64);
    let object = words(&vm, 1024);
    let map = vm.map(&object, &MapOptions::shared().mode(Mode::Inline)).unwrap();
    let twice = [map.pin(pages(10, 20)).unwrap(), map.pin(pages(15, 30)).unwrap()];
    assert_eq!(pool.figures().pinned_pages, 20);
    let [first, second] = twice;
    let check = |range: PageRange| {
        for page in range.iter() {
            assert!(object.is_wired(page));
            let (_reader, mut writer) = std::io::pipe().unwrap();
            writer.write_all(&map.as_slice()[(page.0 * 4096) as usize..][..64]).unwrap();
        }
    };
    for round in 0..3 {
        (100..1024).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
        check(pages(10, 30));
        assert_eq!(object.unwire(pages(10, 30)).unwrap(), 0, "round {round}");
        assert_eq!(object.evict(pages(10, 30)).unwrap(), 0);
    }
    drop(first);
    assert_eq!(pool.figures().pinned_pages, 15);
    check(pages(15, 30));
    drop(second);
    assert_eq!(pool.figures().pinned_pages, 0);
    (100..1024).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    assert!(object.pages().iter().take(40).filter(|&page| object.is_resident(page)).count() < 40);
}

#[test]
fn reads_that_never_end_fail_others_after_their_deadline_and_free_frames_serve_again() {
    /// Keeps every request, as long as there is a place for them.
    struct Keeps(Arc<std::sync::Mutex<Option<Vec<prepage_vm::Request>>>>);
    impl Source for Keeps {
        fn len_bytes(&self) -> u64 {
            4 * MIB
        }
        fn begin(&self, request: prepage_vm::Request) {
            match &mut *self.0.lock().unwrap() {
                Some(kept) => kept.push(request),
                None => request.complete(Ok(())),
            }
        }
    }
    let pool = Pool::new(4 * 4096).unwrap();
    let kept = Arc::new(std::sync::Mutex::new(Some(Vec::new())));
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = vm.source("keeps", Keeps(Arc::clone(&kept))).unwrap();
    let map = vm.map(&object, &exact(MapOptions::shared())).unwrap();
    let hasty = VmOptions::default().pool(&pool).read_deadline(std::time::Duration::from_millis(50));
    let hasty = Vm::new(hasty).unwrap();
    let other = words(&hasty, 64);
    let others = hasty.map(&other, &exact(MapOptions::shared())).unwrap();
    std::thread::scope(|scope| {
        // Four touches take all frames for reads that do not end.
        for page in 0..4 {
            let map = &map;
            scope.spawn(move || touch(map, page));
        }
        until(|| kept.lock().unwrap().as_ref().is_some_and(|kept| kept.len() == 4));
        assert_eq!(pool.figures().promised_pages, 4);
        let failed = others.populate(pages(5, 6)).unwrap_err();
        assert!(
            matches!(failed, prepage_vm::AccessError::Unavailable { reason: Reason::NoFrames, .. }),
            "{failed}"
        );
        // Pages may go again before their touch sees them, and are asked for once more.
        let requests = kept.lock().unwrap().take().unwrap();
        requests.into_iter().for_each(|request| request.complete(Ok(())));
        // A busy machine may take longer than it waits.
        until(|| others.populate(pages(5, 6)).is_ok());
    });
    until(|| others.populate(pages(5, 6)).is_ok());
    assert_eq!(touch(&others, 5), word(5 * 4096));
}

#[test]
fn a_source_that_fails_when_it_is_asked_again_fails_its_page_alone() {
    struct Once(AtomicU64);
    impl Source for Once {
        fn len_bytes(&self) -> u64 {
            256 * 4096
        }
        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            // Page 7 is given once.
            if offset_bytes == 7 * 4096 && self.0.fetch_add(1, Ordering::SeqCst) > 0 {
                return Err(SourceError::Other("given once".to_owned()));
            }
            into.fill((offset_bytes / 4096) as u8);
            Ok(())
        }
    }
    let (pool, vm) = limited(32);
    let object = vm.source("once", Once(AtomicU64::new(0))).unwrap();
    let map = vm.map(&object, &exact(MapOptions::shared())).unwrap();
    map.populate(pages(7, 8)).unwrap();
    let first = |page: u64| map.as_slice()[(page * 4096) as usize];
    (8..200).for_each(|page| assert_eq!(first(page), page as u8));
    assert!(!object.is_resident(PageIndex(7)), "{:?}", pool.figures());
    assert!(map.populate(pages(7, 8)).is_err());
    (8..200).for_each(|page| assert_eq!(first(page), page as u8));
}

#[test]
fn memory_is_given_back_when_the_program_asks() {
    let pool = Pool::new(64 * MIB).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = words(&vm, 1024);
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.populate(map.window()).unwrap();
    assert_eq!(pool.reclaim(300), 300);
    assert_eq!(object.resident_pages(), 724);
    (0..1024).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    assert_eq!(pool.reclaim(u64::MAX), 1024);
    assert_eq!((object.resident_pages(), pool.figures().resident_pages), (0, 0));
    // A pool without limit keeps no order; it looks for one then.
    let pool = Pool::new(u64::MAX).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let object = words(&vm, 1024);
    let map = vm.map(&object, &MapOptions::shared().policy("aligned:16".parse().unwrap())).unwrap();
    (0..256).chain(512..1024).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    assert_eq!(pool.reclaim(300), 300);
    assert_eq!(object.resident_pages(), 468);
    (0..1024).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
    assert_eq!(pool.reclaim(u64::MAX), 1024);
}

/// What a process holds is what its pool says: the frames of an object that goes take memory until they are freed.
#[test]
fn frames_of_an_object_that_goes_are_freed_before_they_count_as_free() {
    const LEN: u64 = 37 * 4096;
    let vm = vm();
    let object = vm.file(file(LEN).path()).unwrap();
    vm.map(&object, &MapOptions::shared()).unwrap().populate(object.pages()).unwrap();
    // While it is open somewhere it is not freed by being closed.
    let of_object = memfds().into_iter().filter(|(_, facts)| facts.len() == LEN);
    let held: Vec<_> = of_object.map(|(path, _)| std::fs::File::open(path).unwrap()).collect();
    let blocks =
        || held.iter().map(|memfd| std::os::unix::fs::MetadataExt::blocks(&memfd.metadata().unwrap()));
    assert_eq!(blocks().sum::<u64>(), 37 * 8);
    drop(object);
    until(|| support::frames(&vm) == 0);
    assert_eq!(blocks().sum::<u64>(), 0);
}

/// What maps show of a pool that replaces frames: half of them as a rule, and what may not be unwired. What is touched again before its turn is wired until then.
#[test]
fn under_pressure_few_more_than_half_of_the_frames_are_wired() {
    const LIMIT: u64 = 2048;
    let touches: [(&str, &dyn Fn(u64) -> u64); 2] =
        [("once", &|turn| turn), ("at random", &|turn| (turn.wrapping_mul(0x9e37_79b9) >> 7) % (2 * LIMIT))];
    for (what, next) in touches {
        let (pool, vm) = limited(LIMIT);
        let object = words(&vm, 8 * LIMIT);
        let map = vm.map(&object, &exact(MapOptions::shared())).unwrap();
        let file = file(64 * 4096);
        let writable = vm.file_writable(file.path()).unwrap();
        let written = vm.map(&writable, &exact(MapOptions::writable())).unwrap();
        let pinned = map.pin(pages(100, 164)).unwrap();
        for turn in 0..=6 * LIMIT {
            let page = next(turn);
            assert_eq!(touch(&map, page), word(page * 4096));
            written.write_at(turn % 64 * 4096, &[7]).unwrap();
            if turn >= 2 * LIMIT && turn % LIMIT == 0 {
                let figures = pool.figures();
                assert_eq!(figures.pinned_pages, 64);
                let bound = LIMIT * 6 / 10 + figures.pinned_pages + figures.dirty_pages;
                assert!(figures.wired_pages <= bound, "{what}, {turn}: {bound}, {figures:?}");
            }
        }
        drop(pinned);
    }
}

#[test]
fn memory_and_code_stay_while_there_is_data() {
    let Some(directory) = swap_directory() else { return };
    // Frames, pages of memory and of code, and pages of data that do not fit beside these. Memory that nothing can be written of is stuck.
    let cases = [[512, 128, 64, 350], [96, 16, 8, 80]];
    for (swap_bytes, [limit, of_memory, of_code, of_data]) in
        [64 * MIB, 0].into_iter().flat_map(|swap_bytes| cases.map(|case| (swap_bytes, case)))
    {
        let swap = PoolOptions::default().limit_bytes(limit * 4096).swap(directory, swap_bytes);
        let pool = Pool::with(&swap).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let (memory, code) = (vm.memory(of_memory * 4096).unwrap(), words(&vm, of_code));
        let file = file(4096 * 4096);
        let data = vm.file(file.path()).unwrap();
        let written = vm.map(&memory, &exact(MapOptions::writable())).unwrap();
        let text = vm.map(&code, &exact(MapOptions::shared().executable())).unwrap();
        let map = vm.map(&data, &exact(MapOptions::shared())).unwrap();
        (0..of_memory).for_each(|page| written.write_at(page * 4096, &page.to_le_bytes()).unwrap());
        (0..of_code).for_each(|page| assert_eq!(touch(&text, page), word(page * 4096)));
        // A scan, and then by several threads, each page again and again.
        (0..4096).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
        let map = &map;
        std::thread::scope(|scope| {
            for thread in 0..4 {
                scope.spawn(move || {
                    for turn in 0..20_000 {
                        let page = (turn * 7 + thread * 100) % of_data;
                        assert_eq!(touch(map, page), word(page * 4096));
                    }
                });
            }
        });
        let (counted, figures) = (vm.statistics().counted, pool.figures());
        assert!(counted.pages_reclaimed > 4096 - limit, "{figures:?}");
        assert!(data.resident_pages() > limit / 8, "{figures:?}");
        let stayed = (memory.resident_pages(), code.resident_pages());
        assert_eq!((counted.pages_swapped, stayed), (0, (of_memory, of_code)), "{figures:?}");
    }
}

/// A fault for each page of what reclaim looks at would cost a scan more than its reads.
#[test]
fn touches_in_order_wire_again_what_lies_behind() {
    let (_pool, vm) = limited(1024);
    let object = words(&vm, 256);
    let normal = MapOptions::shared().policy("none".parse().unwrap());
    let scattered = (0..256).map(|at| at * 37 % 256);
    let cases: [(MapOptions, Vec<u64>, std::ops::RangeInclusive<u64>); 3] = [
        (normal.clone(), (0..256).collect(), 16..=18),
        (normal.clone(), scattered.collect(), 256..=256),
        (exact(normal), (0..256).collect(), 256..=256),
    ];
    for (options, touches, faults) in cases {
        let map = vm.map(&object, &options).unwrap();
        map.populate(map.window()).unwrap();
        assert_eq!(object.unwire(object.pages()).unwrap(), 256);
        let before = vm.statistics().counted;
        touches.iter().for_each(|&page| assert_eq!(touch(&map, page), word(page * 4096)));
        let after = vm.statistics().counted;
        assert_eq!((after.pages_rewired - before.pages_rewired, after.hard - before.hard), (256, 0));
        assert!(faults.contains(&(after.soft - before.soft)), "{} faults", after.soft - before.soft);
        assert!((0..256).all(|page| object.is_wired(PageIndex(page))));
    }
}

/// Memory of this process that is in no file, and so none of the frames.
fn anonymous_bytes() -> u64 {
    let status = ProcessStatus::of("self").unwrap();
    let kib =
        status.field("RssAnon").and_then(|field| field.strip_suffix("kB")).expect("the kernel tells it");
    kib.trim().parse::<u64>().unwrap() << 10
}

/// A process whose memory is limited has to know what a pool takes beside its frames.
#[test]
fn long_reads_ahead_take_little_memory_beside_the_frames() {
    if !is_child(&this_test()) {
        return passes_as_child(&["env"]);
    }
    let home = env!("CARGO_TARGET_TMPDIR");
    if !has(Need::DirectReads(home.into())) {
        return;
    }
    let file = tempfile::NamedTempFile::new_in(home).unwrap();
    file.as_file().set_len(64 * MIB).unwrap();
    let (_pool, vm) = limited(16 * MIB / 4096);
    let object = vm.file_direct(file.path()).unwrap();
    let before = anonymous_bytes();
    for advice in [Advice::Normal, Advice::Sequential] {
        let map = vm.map(&object, &MapOptions::shared().policy("linux:ra=256".parse().unwrap())).unwrap();
        map.advise(advice).unwrap();
        (0..object.pages().len()).for_each(|page| assert_eq!(touch(&map, page), 0));
    }
    let taken = anonymous_bytes() - before;
    // The huge page, and less than 256 KiB for each of the buffers that stay warm, of touches and of reads ahead.
    let warm = 2 * std::thread::available_parallelism().map_or(1, usize::from).clamp(4, 64) as u64;
    assert!(taken <= 2 * MIB + warm * MIB / 4 + MIB / 2, "{} KiB", taken >> 10);
}

/// What a populate does not ask for stays unwired, and what touches wire again makes the object whole.
#[test]
fn no_more_is_wired_again_than_is_asked_for() {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = words(&vm, 16);
    let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
    map.populate(map.window()).unwrap();
    assert_eq!(object.unwire(object.pages()).unwrap(), 16);
    assert_eq!(touch(&map, 0), word(0));
    map.populate(pages(1, 4)).unwrap();
    drop(map.pin(pages(4, 6)).unwrap());
    let wired = |object: &Object| (0..16).filter(|&page| object.is_wired(PageIndex(page))).count();
    assert_eq!(wired(&object), 6);
    // The map may be given again by then.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let given = vm.statistics().counted.maps_given;
    assert_eq!(touch(&map, 6), word(6 * 4096));
    assert_eq!(wired(&object), 16);
    until(|| vm.statistics().counted.maps_given == given + 1);
}
