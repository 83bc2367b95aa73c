//! Memory without a file, more of it than fits.

mod support;

use std::sync::atomic::Ordering;

use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_vm::{AccessError, FlushError, MapOptions, Pool, PoolOptions, Reason, Vm, VmOptions};
use support::{Words, left_in, modes, pages, touch, word};

/// A pool of 64 frames, with a swap file of so many pages.
fn with_swap(swap_pages: u64) -> (Pool, Vm) {
    let options = PoolOptions::default().limit_bytes(64 * PAGE_SIZE);
    let pool = Pool::with(&options.swap(std::env::temp_dir(), swap_pages * PAGE_SIZE)).unwrap();
    let vm = Vm::new(VmOptions::default().explain(false).pool(&pool)).unwrap();
    (pool, vm)
}

#[test]
fn more_than_fits_goes_to_the_swap_file_and_comes_back() {
    let (pool, vm) = with_swap(1024);
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
        assert!(pool.figures().resident_pages <= 64);
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
    let (_pool, vm) = with_swap(1024);
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
    for (swap_pages, pool, vm) in
        [(0, Pool::new(64 * PAGE_SIZE).unwrap()), (40, with_swap(40).0)].map(|(swap_pages, pool)| {
            let vm = Vm::new(VmOptions::default().explain(false).pool(&pool)).unwrap();
            (swap_pages, pool, vm)
        })
    {
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
        assert!((64..=64 + swap_pages).contains(&written), "{written}");
        assert!(vm.statistics().counted.write_backs_failed > 0);
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
fn pages_that_have_a_place_in_a_full_swap_file_are_written_to_it() {
    let (pool, vm) = with_swap(4);
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
