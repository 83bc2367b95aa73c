//! Memory without a file, more of it than fits.

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_testing::{Need, SmallDisk, has};
use prepage_vm::{AccessError, FlushError, MapOptions, Pool, PoolOptions, Reason, Vm, VmOptions};
use support::{Words, file, keeps_to, left_in, modes, pages, swap_directory, touch, word};

/// A pool of 64 frames, with a swap file of so many pages, if there can be one.
#[track_caller]
fn with_swap(swap_pages: u64) -> Option<(Pool, Vm)> {
    let options = PoolOptions::default().limit_bytes(64 * PAGE_SIZE);
    let pool = Pool::with(&options.swap(swap_directory()?, swap_pages * PAGE_SIZE)).unwrap();
    let vm = Vm::new(VmOptions::default().explain(false).pool(&pool)).unwrap();
    Some((pool, vm))
}

#[test]
fn more_than_fits_goes_to_the_swap_file_and_comes_back() {
    let Some((pool, vm)) = with_swap(1024) else { return };
    let object = vm.memory(512 * PAGE_SIZE - 5).unwrap();
    for mode in modes(&vm, &object) {
        let map = vm.map(&object, &MapOptions::writable().mode(mode)).unwrap();
        let other = vm.map(&object, &MapOptions::writable().mode(mode)).unwrap();
        for round in 1..4_u8 {
            for page in 0..512 {
                let bytes = &map.as_atomics()[page * PAGE_SIZE as usize..];
                let before = bytes[8].load(Ordering::Relaxed);
                assert_eq!(before, if round == 1 { 0 } else { (page as u8) ^ (round - 1) }, "page {page}");
                bytes[8].store((page as u8) ^ round, Ordering::Relaxed);
            }
            let mut bytes = [0; 2];
            for page in (0..512).rev() {
                other.read_at(page * PAGE_SIZE + 7, &mut bytes).unwrap();
                assert_eq!(bytes, [0, page as u8 ^ round]);
            }
        }
        assert!(keeps_to(64, &vm), "{:?}", pool.figures());
        for page in 0..512 {
            other.write_at(page * PAGE_SIZE + 8, &[0]).unwrap();
        }
    }
    let counted = vm.statistics().counted;
    assert!(counted.pages_swapped >= 3 * (512 - 64) && counted.failed == 0, "{counted:?}");
    assert_eq!(counted.pages_written_back, 0);
    assert!((448..=512).contains(&pool.figures().swap_pages), "a page has one place there");
    assert!(matches!(object.flush(object.pages()), Err(FlushError::Memory { .. })));
    drop(object);
    assert_eq!((left_in(&vm), pool.figures().swap_pages), ((0, 0, 0, 0), 0));
}

/// Each page has its place in the swap file where it lies in the object, so a cluster comes back by one read.
#[test]
fn what_was_swapped_comes_back_in_clusters() {
    let Some((_pool, vm)) = with_swap(1024) else { return };
    let object = vm.memory(512 * PAGE_SIZE).unwrap();
    let map = vm.map(&object, &MapOptions::writable()).unwrap();
    for page in 0..512 {
        map.as_atomics()[page * PAGE_SIZE as usize].store(page as u8 | 1, Ordering::Relaxed);
    }
    let before = vm.statistics().counted;
    for page in 0..512 {
        assert_eq!(map.as_atomics()[page * PAGE_SIZE as usize].load(Ordering::Relaxed), page as u8 | 1);
    }
    let after = vm.statistics().counted;
    let (reads, pages) = (after.reads - before.reads, after.pages_read - before.pages_read);
    // Four pages a read here: where all frames are taken, clusters are cut short.
    assert!(pages >= 512 - 64 && reads * 2 <= pages, "{reads} reads of {pages} pages");
}

#[test]
fn a_full_swap_file_fails_those_that_find_no_frame_and_nothing_is_lost() {
    let Some((pool_with_swap, _)) = with_swap(40) else { return };
    for (swap_pages, pool) in [(0, Pool::new(64 * PAGE_SIZE).unwrap()), (40, pool_with_swap)] {
        let vm = Vm::new(VmOptions::default().explain(false).pool(&pool)).unwrap();
        let object = vm.memory(256 * PAGE_SIZE).unwrap();
        let map = vm.map(&object, &MapOptions::writable().policy("none".parse().unwrap())).unwrap();
        let mut written = 0;
        let refused = loop {
            match map.write_at(written * PAGE_SIZE, &[7]) {
                Ok(()) => written += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(refused, AccessError::Unavailable { reason: Reason::NoFrames, .. }), "{refused}");
        let most = 64 + swap_pages + pool.figures().beyond_pages_total;
        assert!((64..=most).contains(&written), "{written}");
        assert_eq!(pool.figures().swap_pages, swap_pages);
        // What was written is there, in memory or not, while there is a frame to read it to.
        let in_memory = (0..written).filter(|&page| object.is_resident(pages(page, page + 1).start()));
        let mut byte = [0];
        for page in in_memory.collect::<Vec<_>>() {
            map.read_at(page * PAGE_SIZE, &mut byte).unwrap();
            assert_eq!(byte, [7]);
        }
        // Others go on as soon as there is room.
        drop((map, object));
        let words = vm.source("words", Words { len_bytes: 200 * PAGE_SIZE, ..Words::default() }).unwrap();
        let map = vm.map(&words, &MapOptions::shared()).unwrap();
        assert!((0..200).all(|page| touch(&map, page) == word(page * PAGE_SIZE)));
        assert_eq!(pool.figures().swap_pages, 0);
    }
}

#[test]
fn files_are_read_in_a_pool_that_is_full_of_memory() {
    // In a swap file that takes nothing, and in one that gets full.
    for swap_pages in [0, 16] {
        let Some((pool, vm)) = with_swap(swap_pages) else { return };
        let object = vm.memory((57 + swap_pages) * PAGE_SIZE).unwrap();
        let memory = vm.map(&object, &MapOptions::writable().policy("none".parse().unwrap())).unwrap();
        (0..57 + swap_pages).for_each(|page| memory.write_at(page * PAGE_SIZE, &[7]).unwrap());
        let file = file(100 * PAGE_SIZE);
        let map =
            vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared().policy("none".parse().unwrap()));
        let map = map.unwrap();
        let mut bytes = [0; 8];
        for page in 0..100 {
            let read = map.read_at(page * PAGE_SIZE, &mut bytes);
            assert!(read.is_ok(), "page {page} beside {swap_pages} in swap: {read:?} {:?}", pool.figures());
            assert_eq!(u64::from_le_bytes(bytes), word(page * PAGE_SIZE));
        }
        assert_eq!(pool.figures().swap_pages, swap_pages);
    }
}

#[test]
fn memory_is_written_to_in_a_pool_that_is_full_of_pages_that_cannot_be_written_back() {
    let Some((pool, vm)) = with_swap(1024) else { return };
    let file = file(40 * PAGE_SIZE);
    let object = vm.file_writable(file.path()).unwrap();
    let dirty = vm.map(&object, &MapOptions::writable()).unwrap();
    (0..40).for_each(|page| dirty.write_at(page * PAGE_SIZE, &[7]).unwrap());
    // Of a file that was truncated nothing can be written.
    file.as_file().set_len(0).unwrap();
    let memory = vm.memory(100 * PAGE_SIZE).unwrap();
    let memory = vm.map(&memory, &MapOptions::writable().policy("none".parse().unwrap())).unwrap();
    for page in 0..100 {
        let written = memory.write_at(page * PAGE_SIZE, &[7]);
        assert!(written.is_ok(), "page {page}: {written:?} {:?}", pool.figures());
    }
    assert_eq!(object.dirty_pages(), 40);
    file.as_file().set_len(40 * PAGE_SIZE).unwrap();
    object.flush(object.pages()).unwrap();
    assert!(std::fs::read(file.path()).unwrap().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 7));
}

#[test]
fn what_cannot_make_room_is_left_alone() {
    const PAGES: u64 = 32;
    let quiet = || VmOptions::default().explain(false).write_back_after(Duration::from_secs(1 << 20));
    let vm = |pool: &Pool| Vm::new(quiet().pool(pool)).unwrap();
    // Memory without a swap file stays open for writes.
    let pool = Pool::new(64 * PAGE_SIZE).unwrap();
    let vm_of_memory = vm(&pool);
    let memory = vm_of_memory.memory(PAGES * PAGE_SIZE).unwrap();
    let map = vm_of_memory.map(&memory, &MapOptions::writable()).unwrap();
    let store = |value: u8| {
        (0..PAGES)
            .for_each(|page| map.as_atomics()[(page * PAGE_SIZE) as usize].store(value, Ordering::Relaxed));
    };
    store(1);
    let before = vm_of_memory.statistics().counted.soft;
    assert_eq!(pool.reclaim(1), 0);
    store(2);
    let counted = vm_of_memory.statistics().counted;
    assert_eq!((counted.soft - before, counted.write_backs_failed), (0, 0));
    // What a file refuses is tried once.
    let pool = Pool::new(64 * PAGE_SIZE).unwrap();
    let vm_of_file = vm(&pool);
    let file = file(PAGES * PAGE_SIZE);
    let object = vm_of_file.file_writable(file.path()).unwrap();
    let map = vm_of_file.map(&object, &MapOptions::writable()).unwrap();
    (0..PAGES).for_each(|page| map.write_at(page * PAGE_SIZE, &[7]).unwrap());
    file.as_file().set_len(0).unwrap();
    assert_eq!(pool.reclaim(1), 0);
    assert_eq!(vm_of_file.statistics().counted.write_backs_failed, PAGES);
}

#[test]
fn pages_that_have_a_place_in_a_full_swap_file_are_written_to_it() {
    let Some((pool, vm)) = with_swap(4) else { return };
    let object = vm.memory(8 * PAGE_SIZE).unwrap();
    let map = vm.map(&object, &MapOptions::writable().policy("none".parse().unwrap())).unwrap();
    let write = |page: u64, byte: u8| map.write_at(page * PAGE_SIZE, &[byte]).unwrap();
    (4..8).for_each(|page| write(page, 1));
    assert_eq!(object.write_back(object.pages()).unwrap(), 4);
    (2..8).for_each(|page| write(page, 2));
    let refused = object.write_back(object.pages());
    assert!(matches!(refused, Err(FlushError::Write { page: PageIndex(2), .. })), "{refused:?}");
    assert_eq!((vm.statistics().counted.pages_swapped, object.dirty_pages()), (8, 2));
    assert_eq!((pool.reclaim(8), pool.figures().swap_pages), (4, 4));
    assert!((2..8).all(|page| map.as_atomics()[(page * PAGE_SIZE) as usize].load(Ordering::Relaxed) == 2));
}

#[test]
fn a_directory_that_takes_no_swap_file_is_an_error() {
    let options = PoolOptions::default().swap("/proc/self/none", 1 << 20);
    let vm = Vm::new(VmOptions::default().pool(&Pool::with(&options).unwrap())).unwrap();
    assert!(matches!(vm.memory(4096), Err(prepage_vm::MakeError::File { .. })));
    assert!(vm.memory(1 << 60).is_err());
}

#[test]
fn a_directory_in_memory_is_refused() {
    if !(has(Need::Root) && has(Need::Mounts)) {
        return;
    }
    let disk = SmallDisk::new(64 * PAGE_SIZE);
    let options = PoolOptions::default().swap(disk.path(), 1 << 20);
    let vm = Vm::new(VmOptions::default().pool(&Pool::with(&options).unwrap())).unwrap();
    let refused = vm.memory(4096).unwrap_err();
    assert!(matches!(refused, prepage_vm::MakeError::SwapInMemory { kind: "tmpfs", .. }), "{refused}");
}
