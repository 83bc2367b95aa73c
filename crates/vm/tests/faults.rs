//! What maps show and what faults do, on the real kernel.

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use prepage_core::policy::Policy;
use prepage_core::policy::predicted::Predicted;
use prepage_core::profile::Extent;
use prepage_core::{FaultClass, PageIndex};
use prepage_sys::region::is_present;
use prepage_vm::{Advice, MapOptions, Mode, Vm, VmOptions};
use support::{Words, file, modes, page_bytes, pages, settled, touch, until, vm, word};

#[test]
fn an_object_of_odd_length_ends_where_its_file_does() {
    let file = file(3 * 4096 + 100);
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::private().mode(mode)).unwrap();
        assert_eq!(map.as_slice(), std::fs::read(file.path()).unwrap());
        assert_eq!(map.len_bytes(), 3 * 4096 + 100);
        let tail = vm.map(&object, &MapOptions::shared().mode(mode).window(pages(3, 4))).unwrap();
        assert_eq!(tail.as_slice(), &page_bytes(3)[..100]);
    }
    assert_eq!((object.resident_pages(), support::frames(&vm)), (4, 4));
}

#[test]
fn direct_reads_give_the_same_bytes() {
    if !prepage_testing::has(prepage_testing::Need::DirectReads(std::env::temp_dir())) {
        return;
    }
    let file = file(40 * 4096 + 1);
    let vm = vm();
    let object = vm.file_direct(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.populate(map.window()).unwrap();
    assert_eq!(map.as_slice(), std::fs::read(file.path()).unwrap());
}

#[test]
fn direct_reads_leave_nothing_in_the_page_cache() {
    let directory = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    if !prepage_testing::has(prepage_testing::Need::DirectReads(directory.clone()))
        || !prepage_testing::has(prepage_testing::Need::Eviction(directory.clone()))
    {
        return;
    }
    let mut file = tempfile::NamedTempFile::new_in(directory).unwrap();
    (0..64).for_each(|page| file.write_all(&page_bytes(page)).unwrap());
    file.as_file().sync_all().unwrap();
    prepage_sys::cachestat::evict(file.as_file().as_fd(), Duration::from_secs(1)).unwrap();
    let limited = VmOptions::default().frame_limit_bytes(256 * 4096);
    for options in [VmOptions::default(), limited, VmOptions::default().read_spin(Duration::ZERO)] {
        let vm = Vm::new(options).unwrap();
        let object = vm.file_direct(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
        for page in [5, 40, 6, 63] {
            assert_eq!(touch(&map, page), word(page * 4096));
        }
        let cached = prepage_sys::cachestat::cached_pages(file.as_file().as_fd(), pages(0, 64)).unwrap();
        assert_eq!((object.resident_pages(), cached), (4, 0));
    }
}

#[test]
fn what_is_read_for_a_shared_map_is_mapped_as_its_frame_is_made() {
    if !prepage_testing::has(prepage_testing::Need::DirectReads(std::env::temp_dir())) {
        return;
    }
    let file = file(16 * 4096);
    // Where frames are reclaimed no read goes straight into them.
    let vm = Vm::new(VmOptions::default().explain(false).frame_limit_bytes(256 * 4096)).unwrap();
    let object = vm.file_direct(file.path()).unwrap();
    let options = MapOptions::shared().mode(Mode::Inline).policy("none".parse().unwrap()).every_fault();
    let other = vm.map(&object, &options).unwrap();
    other.populate(other.window()).unwrap();
    for round in 1..4 {
        assert_eq!(object.evict(pages(5, 6)).unwrap(), 1);
        let map = vm.map(&object, &options).unwrap();
        let before = vm.statistics().counted;
        assert_eq!(touch(&map, 5), word(5 * 4096));
        let after = vm.statistics().counted;
        assert_eq!((after.hard - before.hard, after.pages_mapped - before.pages_mapped), (1, 1), "{round}");
        // The frame is the object's: another map shows it without a read. A neighbour brings its neighbours, as ever.
        assert_eq!((touch(&other, 5), touch(&map, 6)), (word(5 * 4096), word(6 * 4096)));
        let last = vm.statistics().counted;
        assert_eq!((last.hard - after.hard, last.soft - after.soft), (0, 2));
        assert!(last.pages_mapped - after.pages_mapped >= 11, "{last:?}");
    }
    assert_eq!((object.resident_pages(), support::frames(&vm)), (16, 16));
}

#[test]
fn private_maps_keep_their_changes_to_themselves() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 64 * 4096, ..Default::default() }).unwrap();
    for mode in modes(&vm, &object) {
        let options = MapOptions::private().mode(mode);
        let mut one = vm.map(&object, &options).unwrap();
        let two = vm.map(&object, &options).unwrap();
        one.as_mut_slice()[8 * 4096..][..8].copy_from_slice(&1_u64.to_le_bytes());
        assert_eq!((touch(&one, 8), touch(&two, 8)), (1, word(8 * 4096)));

        // Taking frames away keeps copies, and clean pages come back.
        let resident = object.resident_pages();
        assert_eq!(object.evict(object.pages()).unwrap(), resident);
        assert_eq!((object.resident_pages(), support::frames(&vm)), (0, 0));
        assert_eq!((touch(&one, 8), touch(&two, 8)), (1, word(8 * 4096)));
        assert_eq!(touch(&one, 9), word(9 * 4096));

        // A discarded copy shows the object again, though the kernel reports the page as present in the frames.
        one.discard(pages(8, 9)).unwrap();
        assert_eq!(touch(&one, 8), word(8 * 4096));
    }
    assert_eq!(vm.statistics().backings, 0);
}

#[test]
fn who_maps_a_page_is_told_from_the_backings() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 64 * 4096, ..Default::default() }).unwrap();
    let all = vm.map(&object, &MapOptions::shared()).unwrap();
    let mut part = vm.map(&object, &MapOptions::private().window(pages(16, 32))).unwrap();
    let page = PageIndex(20);
    let found = || {
        let mut maps: Vec<_> = object
            .mappings_of(page)
            .unwrap()
            .into_iter()
            .map(|(address, backing)| (backing.map, address))
            .collect();
        maps.sort_unstable();
        maps
    };
    assert_eq!(found(), []);
    touch(&all, 20);
    assert_eq!(found(), [(all.id(), all.address() + 20 * 4096)]);
    touch(&part, 4);
    assert_eq!(found(), [(all.id(), all.address() + 20 * 4096), (part.id(), part.address() + 4 * 4096)]);
    // A private copy is not the object's frame.
    part.as_mut_slice()[4 * 4096] = 1;
    assert_eq!(found(), [(all.id(), all.address() + 20 * 4096)]);
    all.advise(Advice::DontNeed(pages(0, 64))).unwrap();
    assert_eq!(found(), []);
    assert_eq!(object.backings().len(), 2);
    drop((all, part));
    assert_eq!(object.backings(), []);
}

#[test]
fn maps_are_tracked_by_one_record_each_and_faults_by_none() {
    const MAPS: u64 = 20;
    const PAGES: u64 = 256;
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: PAGES * 4096, ..Default::default() }).unwrap();
    let first = vm.map(&object, &MapOptions::shared()).unwrap();
    first.populate(first.window()).unwrap();
    let before = vm.statistics().counted;
    let options = MapOptions::shared().policy("none".parse().unwrap());
    let options = options.neighbours(prepage_core::policy::Neighbours::Block(1));
    let maps: Vec<_> = (0..MAPS).map(|_| vm.map(&object, &options).unwrap()).collect();
    thread::scope(|scope| {
        for maps in maps.chunks(MAPS as usize / 2) {
            scope.spawn(move || {
                for map in maps {
                    (0..PAGES).for_each(|page| assert_eq!(touch(map, page), word(page * 4096)));
                }
            });
        }
    });
    assert_eq!(vm.statistics().backings, 1 + MAPS);
    drop(maps);
    let after = vm.statistics().counted;
    let faults = after.soft - before.soft;
    assert_eq!(faults, MAPS * PAGES);
    // A record for each page and mapping would be made and taken away again.
    let elsewhere = 2 * (after.pages_mapped - before.pages_mapped);
    assert_eq!(elsewhere, 2 * MAPS * PAGES);
    assert_eq!(elsewhere / (after.backing_operations - before.backing_operations), PAGES);
    assert_eq!(after.shared_atomics - before.shared_atomics, 4 * faults, "to enter and leave, twice");
    assert_eq!((after.lock_waits, after.waits), (before.lock_waits, before.waits));
}

#[test]
fn zeros_come_in_aligned_clusters() {
    let vm = vm();
    let object = vm.anonymous(1000 * 4096).unwrap();
    for mode in modes(&vm, &object) {
        let before = vm.statistics().counted;
        let mut map = vm.map(&object, &MapOptions::private().mode(mode).zero_cluster(64)).unwrap();
        map.as_mut_slice().chunks_mut(4096).for_each(|page| page[0] = 7);
        let faults = || vm.statistics().counted.zero - before.zero;
        until(|| faults() >= 16);
        assert_eq!(faults(), 16, "1000 pages in clusters of 64");
        map.discard(pages(3, 4)).unwrap();
        assert_eq!(touch(&map, 3), 0, "zeros again, not what was there");
        assert_eq!(touch(&map, 4) & 0xff, 7);

        let mut huge = vm.map(&object, &MapOptions::private().mode(mode).huge_pages()).unwrap();
        huge.as_mut_slice().chunks_mut(4096).for_each(|page| page[1] = 9);
        assert!(huge.as_slice().chunks(4096).all(|page| page[..3] == [0, 9, 0]));
    }
    assert_eq!(support::frames(&vm), 0);
}

#[test]
fn huge_pages_are_made_by_the_kernel_once_they_are_given() {
    const BLOCKS: u64 = 20;
    const WHOLE: u64 = BLOCKS * 512;
    let vm = vm();
    let object = vm.anonymous((WHOLE + 3) * 4096).unwrap();
    for mode in modes(&vm, &object) {
        let before = vm.statistics().counted;
        let counted = || {
            let now = vm.statistics().counted;
            (now.pages_given - before.pages_given, now.pages_zeroed - before.pages_zeroed)
        };
        let options = MapOptions::private().mode(mode).huge_pages();
        let mut map = vm.map(&object, &options).unwrap();
        // Two threads write to every page in turn: nothing that one wrote is replaced by the other's fault.
        thread::scope(|scope| {
            let (mut odd, mut even) = (Vec::new(), Vec::new());
            for (index, page) in map.as_mut_slice().chunks_mut(4096).enumerate() {
                if index % 2 == 1 { odd.push(page) } else { even.push(page) }
            }
            for pages in [odd, even] {
                scope.spawn(move || pages.into_iter().for_each(|page| page[1] = 9));
            }
        });
        assert!(map.as_slice().chunks(4096).all(|page| page[..3] == [0, 9, 0]));
        // A handler thread counts after it let the thread go on.
        until(|| counted() >= (WHOLE, 3));
        assert_eq!(counted(), (WHOLE, 3), "all whole blocks, and the rest in small pages");
        map.discard(pages(512, 1024)).unwrap();
        let slice = map.as_slice();
        assert_eq!([511, 512, 1023, 1024].map(|page| slice[page * 4096 + 1]), [9, 0, 0, 9]);

        // What is read shows zeros, and what is populated is there, for system calls too.
        let map = vm.map(&object, &options).unwrap();
        assert_eq!(touch(&map, 700), 0);
        map.populate(pages(600, 700)).unwrap();
        map.populate(pages(WHOLE - 10, WHOLE + 2)).unwrap();
        let at = |page: u64| map.address() + page * 4096;
        assert!([600, 699, WHOLE - 10, WHOLE + 1].iter().all(|&page| is_present(at(page)).unwrap()));
        let mut out = tempfile::tempfile().unwrap();
        out.write_all(&map.as_slice()[600 * 4096..700 * 4096]).unwrap();
        if mode == Mode::Handler {
            let mut map = vm.map(&object, &options).unwrap();
            std::io::Seek::rewind(&mut out).unwrap();
            let whole = map.as_mut_slice();
            whole[5000] = 1;
            assert_eq!(out.read(&mut whole[17 << 20..(17 << 20) + 8192]).unwrap(), 8192);
        }
    }
}

#[test]
fn system_calls_wait_in_handler_mode_and_need_populate_in_inline_mode() {
    let file = file(32 * 4096);
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
        let mut out = tempfile::tempfile().unwrap();
        let first = out.write(map.as_slice());
        if mode == Mode::Inline {
            assert_eq!(first.unwrap_err().raw_os_error(), Some(rustix::io::Errno::FAULT.raw_os_error()));
            map.populate(map.window()).unwrap();
            assert_eq!(out.write(map.as_slice()).unwrap(), 32 * 4096);
        } else {
            assert_eq!(first.unwrap(), 32 * 4096);
        }
        // Reads by copy need neither.
        object.evict(object.pages()).unwrap();
        let mut bytes = vec![0; 2 * 4096];
        map.read_at(4096 + 8, &mut bytes).unwrap();
        assert_eq!(bytes[..8], word(4096 + 8).to_le_bytes());
    }
}

#[test]
fn bytes_are_copied_from_one_map_to_another_though_neither_was_touched() {
    const LEN: usize = 150 * 4096 + 100;
    let file = file(200 * 4096);
    let bytes = std::fs::read(file.path()).unwrap();
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    let memory = vm.memory(200 * 4096).unwrap();
    for mode in modes(&vm, &object) {
        let from = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
        let mut to = vm.map(&object, &MapOptions::private().mode(mode)).unwrap();
        from.read_at(7, &mut to.as_mut_slice()[4000..][..LEN]).unwrap();
        assert!(to.as_slice()[4000..][..LEN] == bytes[7..][..LEN]);
        let written = vm.map(&memory, &MapOptions::writable().mode(mode)).unwrap();
        object.evict(object.pages()).unwrap();
        written.write_at(9, &from.as_slice()[3000..][..LEN]).unwrap();
        let mut back = vec![0; LEN];
        written.read_at(9, &mut back).unwrap();
        assert!(back == bytes[3000..][..LEN]);
    }
}

#[test]
fn advice_changes_the_policy_and_brings_pages() {
    let vm = vm();
    let source = Words { len_bytes: 1024 * 4096, ..Default::default() };
    let reads = Arc::clone(&source.reads);
    let object = vm.source("words", source).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.advise(Advice::Random).unwrap();
    touch(&map, 40);
    assert_eq!(object.resident_pages(), 1);
    map.advise(Advice::Normal).unwrap();
    touch(&map, 80);
    assert_eq!(object.resident_pages(), 17);
    map.advise(Advice::WillNeed(pages(512, 1024))).unwrap();
    until(|| object.resident_pages() >= 17 + 512);
    assert_eq!(object.resident_pages(), 17 + 512);
    assert_eq!(reads.load(Ordering::Relaxed), 2 + 2);

    map.advise(Advice::Sequential).unwrap();
    let before = vm.statistics().counted.hard;
    for page in 100..512 {
        assert_eq!(touch(&map, page), word(page * 4096));
    }
    assert!(vm.statistics().counted.hard - before <= 4, "most of it was read ahead in the background");
}

#[test]
fn of_touches_in_order_nothing_is_read_that_lies_before_the_first() {
    const FIRST: u64 = 8192;
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(2 * FIRST * 4096).unwrap();
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    map.advise(Advice::Sequential).unwrap();
    touch(&map, FIRST);
    until(|| object.is_resident(PageIndex(FIRST + 1000)));
    settled(&object);
    assert!((0..FIRST).all(|page| !object.is_resident(PageIndex(page))));
    let read = vm.statistics().clusters.total();
    assert_eq!((read.full, read.truncated), (1, 0));
}

#[test]
fn a_profile_is_read_from_the_first_fault_on_whatever_that_finds() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 1024 * 4096, ..Default::default() }).unwrap();
    let other = vm.map(&object, &MapOptions::shared()).unwrap();
    other.populate(pages(0, 1)).unwrap();
    let extents = [Extent::new(pages(0, 1), 0), Extent::new(pages(512, 600), 1)];
    let predicted = Policy::Predicted(Predicted::new(&extents, 16));
    let map = vm.map(&object, &MapOptions::shared().policy(predicted)).unwrap();
    assert_eq!(touch(&map, 0), word(0));
    until(|| object.is_resident(PageIndex(599)));
    assert_eq!(vm.statistics().counted.hard, 0);
}

#[test]
fn what_is_read_ahead_of_touches_in_order_is_mapped_before_them() {
    const PAGES: u64 = 8192;
    const TOUCHED: u64 = 1024;
    let file = file(PAGES * 4096);
    let vm = vm();
    let modes = modes(&vm, &vm.file(file.path()).unwrap());
    for mode in modes {
        let plain = MapOptions::shared().mode(mode);
        for (options, is_mapped) in [
            (plain.clone(), true),
            (plain.every_fault(), false),
            // Its pages would be copies.
            (MapOptions::private().mode(mode), false),
        ] {
            let object = vm.file(file.path()).unwrap();
            let map = vm.map(&object, &options).unwrap();
            map.advise(Advice::Sequential).unwrap();
            (0..TOUCHED).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
            let before = settled(&object);
            assert!(before > TOUCHED + 512, "{before} pages were read");
            let is_present = |page: &u64| is_present(map.address() + page * 4096).unwrap();
            // Faults map no pages of the next block of 256.
            let ahead = (TOUCHED..PAGES).filter(is_present).count();
            assert_eq!(ahead > 256, is_mapped, "{mode:?}: {ahead} pages of {before}");
            (TOUCHED..PAGES).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096), "page {page}"));
            // What is mapped by the call that makes it is counted a little later.
            until(|| object.resident_pages() == PAGES);
        }
    }
}

/// Also where the call that makes the frames of a read maps them.
#[test]
fn the_touch_of_a_marked_page_reads_on() {
    let file = file(256 * 4096);
    let vm = vm();
    for mode in modes(&vm, &vm.file(file.path()).unwrap()) {
        let object = vm.file(file.path()).unwrap();
        let options = MapOptions::shared().mode(mode).policy("linux-data".parse().unwrap());
        let map = vm.map(&object, &options).unwrap();
        assert_eq!(touch(&map, 64), word(64 * 4096));
        // Pages 48 to 80, and page 72 is marked.
        until(|| object.resident_pages() == 32);
        assert_eq!(touch(&map, 72), word(72 * 4096));
        until(|| object.is_resident(PageIndex(80)));
    }
}

#[test]
fn faults_are_recorded_like_those_of_the_kernel() {
    let file = file(64 * 4096);
    let vm = Vm::new(VmOptions::default().record_faults(1024)).unwrap();
    let object = vm.file(file.path()).unwrap();
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    for page in [3, 20, 4] {
        touch(&map, page);
    }
    let again = vm.map(&object, &MapOptions::private().neighbours_of_policy()).unwrap();
    touch(&again, 20);
    let trace = vm.take_trace();
    let seen: Vec<_> = trace.faults.iter().map(|fault| (fault.class, fault.page, fault.address)).collect();
    let at = |map: &prepage_vm::Map, page: u64| (Some(PageIndex(page)), map.address() + page * 4096);
    let expected = [
        (FaultClass::Disk, at(&map, 3)),
        (FaultClass::Disk, at(&map, 20)),
        (FaultClass::Cached, at(&again, 20)),
    ];
    assert_eq!(seen, expected.map(|(class, (page, address))| (class, page, address)));
    let permissions: Vec<_> = trace.faults.iter().map(|fault| fault.permissions.text()).collect();
    assert_eq!(permissions, ["r--s", "r--s", "rw-p"]);
    let cluster = |fault: &prepage_core::Fault| fault.cluster_pages.unwrap().get();
    // Two aligned clusters read, and of the second what the policy maps around a page that is there: 4 pages each way.
    assert_eq!(trace.faults.iter().map(cluster).collect::<Vec<_>>(), [16, 16, 9]);
    let read = trace.faults.iter().filter(|fault| fault.class == FaultClass::Disk).map(cluster).sum::<u32>();
    assert_eq!(u64::from(read), vm.statistics().counted.pages_read);
    let zeros = vm.anonymous(40 * 4096).unwrap();
    let mut zeros = vm.map(&zeros, &MapOptions::private().zero_cluster(16)).unwrap();
    zeros.as_mut_slice()[39 * 4096] = 1;
    let of_zeros = vm.take_trace().faults;
    assert_eq!(of_zeros.iter().map(cluster).collect::<Vec<_>>(), [8], "to the end of the map");
    assert_eq!(of_zeros[0].page, None, "each map has its own");
    assert_eq!(trace.objects[0].path, file.path().to_string_lossy());
    use std::os::unix::fs::MetadataExt;
    assert_eq!(trace.objects[0].inode.unwrap().1, file.as_file().metadata().unwrap().ino());
    assert_eq!(trace.threads[0].pid, std::process::id());
    assert!(trace.faults.iter().all(|fault| fault.cost_ns.unwrap() > 0 && fault.ip != 0));
    assert_eq!(vm.take_trace().faults, []);
    let costs = vm.statistics().costs_ns;
    assert_eq!(costs[FaultClass::Disk as usize].len(), 2);
    // Pages of sources have numbers too.
    let words = vm.source("words", Words { len_bytes: 64 * 4096, ..Default::default() }).unwrap();
    touch(&vm.map(&words, &MapOptions::shared().window(pages(16, 64))).unwrap(), 5);
    let of_words = vm.take_trace();
    assert_eq!((of_words.objects[0].path.as_str(), of_words.faults[0].page), ("words", Some(PageIndex(21))));
    let code = vm.map(&object, &MapOptions::shared().executable()).unwrap();
    touch(&code, 40);
    let object = vm.file_writable(file.path()).unwrap();
    let writable = vm.map(&object, &MapOptions::writable()).unwrap();
    writable.as_atomics()[50 * 4096].load(std::sync::atomic::Ordering::Relaxed);
    let permissions: Vec<_> = vm.take_trace().faults.iter().map(|fault| fault.permissions.text()).collect();
    assert_eq!(permissions, ["r-xs", "rw-s"]);
}

#[test]
fn no_touch_is_forgotten_while_frames_are_taken_away() {
    let vm = vm();
    let file = file(64 * 4096);
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let options = MapOptions::shared().mode(mode).policy("aligned:4".parse().unwrap());
        let map = Arc::new(vm.map(&object, &options).unwrap());
        let (stop, (done, ended)) = (Arc::new(AtomicBool::new(false)), std::sync::mpsc::channel());
        let (evictor, until) = (object.clone(), Arc::clone(&stop));
        let evictor = thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                evictor.evict(pages(0, 64)).unwrap();
            }
        });
        thread::spawn(move || {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(2) {
                (0..64).for_each(|page| assert_eq!(touch(&map, page), word(page * 4096)));
            }
            done.send(()).unwrap();
        });
        let outcome = ended.recv_timeout(Duration::from_secs(60));
        stop.store(true, Ordering::Relaxed);
        evictor.join().unwrap();
        assert_eq!(outcome, Ok(()), "in {mode:?} a thread sleeps for ever");
    }
}
