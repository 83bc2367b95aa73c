//! Frames that private maps show are unwired, and what was written to the maps stays.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};

use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_vm::{MapOptions, Object, Piece, Vm, VmOptions};
use support::{Stop, Words, file, modes, of_file, pages, read, touch, until, vm, word, write};

const PAGES: u64 = 64;

fn words(vm: &Vm) -> Object {
    vm.source("words", Words { len_bytes: PAGES * PAGE_SIZE, ..Words::default() }).unwrap()
}

#[test]
fn what_is_the_objects_own_goes_out_of_private_maps_and_copies_stay() {
    let vm = vm();
    let object = words(&vm);
    for mode in modes(&vm, &object) {
        let mut written = vm.map(&object, &MapOptions::private().mode(mode).every_fault()).unwrap();
        let part = MapOptions::private().mode(mode).every_fault().window(pages(10, 20));
        let part = vm.map(&object, &part).unwrap();
        for map in [&written, &part] {
            map.populate(map.window()).unwrap();
        }
        for page in [3, 12, 13, 63] {
            written.as_mut_slice()[(page * PAGE_SIZE) as usize] = 0xa5;
        }
        assert_eq!(object.mappings_of(PageIndex(12)).unwrap().len(), 1);
        assert_eq!(object.unwire(object.pages()).unwrap(), PAGES);
        assert!((0..PAGES).all(|page| object.mappings_of(PageIndex(page)).unwrap().is_empty()));
        assert_eq!(vm.statistics().pool.unwired_pages, PAGES);
        let rewired = vm.statistics().counted.pages_rewired;
        for page in 0..PAGES {
            let is_written = [3, 12, 13, 63].contains(&page);
            let own = word(page * PAGE_SIZE);
            let seen = touch(&written, page);
            assert_eq!(seen, if is_written { own & !0xff | 0xa5 } else { own });
        }
        // A copy is no use of the frame.
        until(|| vm.statistics().counted.pages_rewired == rewired + PAGES - 4);
        // Nothing is left protected.
        for page in 0..PAGES {
            written.as_mut_slice()[(page * PAGE_SIZE) as usize + 1] = 0x5a;
        }
        assert_eq!(object.evict(object.pages()).unwrap(), PAGES);
        assert!((0..PAGES).all(|page| touch(&written, page) & 0xff00 == 0x5a00));
        assert!((0..10).all(|page| touch(&part, page) == word((page + 10) * PAGE_SIZE)));
        object.evict(object.pages()).unwrap();
    }
}

#[test]
fn no_write_is_lost_while_frames_are_unwired() {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let object = words(&vm);
    for mode in modes(&vm, &object) {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writers: Vec<_> = (0..3)
                .map(|_| {
                    let (vm, object, stop) = (&vm, &object, &stop);
                    scope.spawn(move || {
                        let mut rounds = 0_u64;
                        while !stop.load(Ordering::Relaxed) || rounds < 20 {
                            // Every page is the object's, and then a copy.
                            let mut map = vm.map(object, &MapOptions::private().mode(mode)).unwrap();
                            for step in 0..4 * PAGES {
                                let page = step * 29 % PAGES;
                                let times = step / PAGES;
                                let at = (page * PAGE_SIZE) as usize + 8;
                                let bytes = &mut map.as_mut_slice()[at..at + 8];
                                let found = u64::from_le_bytes(bytes.try_into().unwrap());
                                let first = word(page * PAGE_SIZE + 8);
                                assert_eq!(found, if times == 0 { first } else { times }, "page {page}");
                                bytes.copy_from_slice(&(times + 1).to_le_bytes());
                                assert_eq!(
                                    touch(&map, (page + 7) % PAGES),
                                    word((page + 7) % PAGES * PAGE_SIZE)
                                );
                            }
                            rounds += 1;
                        }
                    })
                })
                .collect();
            for round in 0..400 {
                let start = round * 7 % PAGES;
                object.unwire(pages(start, PAGES)).unwrap();
                if round % 16 == 0 {
                    object.evict(pages(start, PAGES)).unwrap();
                }
            }
            stop.store(true, Ordering::Relaxed);
            writers.into_iter().for_each(|writer| writer.join().unwrap());
        });
        assert_eq!(vm.statistics().counted.failed, 0);
    }
}

/// What came out of the map after it was protected and looked at comes back without protection, and is written to.
#[test]
fn no_write_is_lost_to_pages_that_were_discarded_while_frames_are_unwired() {
    const PAGES: u64 = 1024;
    let vm = Vm::new(VmOptions::default()).unwrap();
    let file = file(PAGES * PAGE_SIZE);
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let mut map = vm.map(&object, &MapOptions::private().mode(mode).every_fault()).unwrap();
        // Pages between them are copies, so that they are taken out one by one, which takes as long as to write to dozens of them.
        let odd = || (0..PAGES / 2).rev().map(|at| 2 * at + 1);
        (0..PAGES).step_by(2).for_each(|page| write(&mut map, page, page));
        for round in 0..20 {
            odd().for_each(|page| map.discard(pages(page, page + 1)).unwrap());
            assert!(odd().all(|page| read(&map, page) == of_file(page)));
            std::thread::scope(|scope| {
                scope.spawn(|| object.unwire(object.pages()).unwrap());
                for page in odd() {
                    map.discard(pages(page, page + 1)).unwrap();
                    write(&mut map, page, round);
                }
            });
            assert!(odd().all(|page| read(&map, page) == round), "{mode:?}, round {round}");
        }
        assert!((0..PAGES).step_by(2).all(|page| read(&map, page) == page));
        assert_eq!(vm.statistics().counted.failed, 0);
    }
}

/// The same of what was evicted meanwhile.
#[test]
fn no_write_is_lost_while_frames_are_unwired_and_evicted() {
    const PAGES: u64 = 1024;
    let vm = Vm::new(VmOptions::default()).unwrap();
    let file = file(PAGES * PAGE_SIZE);
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let options = MapOptions::private().mode(mode).every_fault();
        beside(
            &[&|| _ = object.unwire(object.pages()).unwrap(), &|| _ = object.evict(object.pages()).unwrap()],
            || {
                for round in 0..60 {
                    let mut map = vm.map(&object, &options).unwrap();
                    for page in 0..PAGES {
                        // The object's own first.
                        assert_eq!(touch(&map, page), word(page * PAGE_SIZE));
                        write(&mut map, page, page);
                    }
                    assert!((0..PAGES).all(|page| read(&map, page) == page), "{mode:?}, round {round}");
                }
            },
        );
        assert_eq!(vm.statistics().counted.failed, 0);
    }
}

/// Does `work` while each of `others` is done again and again by a thread of its own.
fn beside(others: &[&(dyn Fn() + Sync)], work: impl FnOnce()) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _stop = Stop(&is_over);
        for other in others {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    other();
                }
            });
        }
        work();
    });
}

#[test]
fn maps_with_snapshots_keep_their_frames_and_maps_of_pieces_let_them_go() {
    let vm = vm();
    let object = words(&vm);
    let options = MapOptions::private().every_fault();
    let pieces = [
        Piece::new(&object, pages(40, 44)),
        Piece::new(&object, pages(0, 4)),
        Piece::new(&object, pages(4, 8)).copied(),
    ];
    let map = vm.map_pieces(&pieces, &options).unwrap();
    map.populate(map.window()).unwrap();
    assert_eq!(object.unwire(object.pages()).unwrap(), 12);
    let from = |page: u64| [40, 41, 42, 43, 0, 1, 2, 3, 4, 5, 6, 7][page as usize] * PAGE_SIZE;
    assert!((0..12).all(|page| touch(&map, page) == word(from(page))));
    drop(map);
    let mut map = vm.map(&object, &options.window(pages(0, 8))).unwrap();
    map.as_mut_slice()[0] = 1;
    map.populate(map.window()).unwrap();
    let snapshot = map.snapshot().unwrap();
    map.as_mut_slice()[PAGE_SIZE as usize] = 2;
    let all = vm.map(&object, &MapOptions::shared().every_fault()).unwrap();
    all.populate(all.window()).unwrap();
    assert_eq!(object.unwire(object.pages()).unwrap(), PAGES - 8);
    let again = map.snapshot().unwrap();
    let first = |object: &Object, page: usize| {
        vm.map(object, &MapOptions::private()).unwrap().as_slice()[page * PAGE_SIZE as usize]
    };
    assert_eq!((first(&snapshot, 0), first(&snapshot, 1)), (1, word(PAGE_SIZE) as u8));
    assert_eq!((first(&again, 0), first(&again, 1)), (1, 2));
}
