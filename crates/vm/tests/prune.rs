//! Page tables that show nothing any more go, and nothing that was written or is pinned goes with them.

use std::sync::atomic::Ordering;
use std::sync::{Mutex, MutexGuard};

use prepage_core::PAGE_SIZE;
use prepage_sys::sync::Anyway;
use prepage_testing::{Need, has};
use prepage_vm::MapOptions;
use support::{Words, modes, pages, shared_word, touch, vm, word};

mod support;

/// Pages that one table shows.
const TABLE_PAGES: u64 = 512;

/// What page tables take is counted for all of a process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().anyway()
}

/// Whether this kernel frees tables that are empty; those of other processors do not.
fn are_freed() -> bool {
    cfg!(target_arch = "x86_64") && has(Need::Linux(6, 14))
}

#[test]
fn tables_of_evicted_pages_go() {
    const TABLES: u64 = 32;
    let _alone = alone();
    let vm = vm();
    let object =
        vm.source("words", Words { len_bytes: TABLES * TABLE_PAGES * PAGE_SIZE, ..Words::default() });
    let object = object.unwrap();
    let maps = [MapOptions::shared(), MapOptions::private(), MapOptions::private().every_fault()]
        .map(|options| vm.map(&object, &options).unwrap());
    let mut pieced = {
        let half = TABLES * TABLE_PAGES / 2;
        let pieces = [pages(half, 2 * half), pages(0, half)].map(|run| prepage_vm::Piece::new(&object, run));
        vm.map_pieces(&pieces, &MapOptions::private()).unwrap()
    };
    maps.iter().for_each(|map| map.populate(map.window()).unwrap());
    pieced.populate(pieced.window()).unwrap();
    pieced.as_mut_slice()[5] = 77;
    let while_used = vm.prune_page_tables().unwrap();
    object.evict(object.pages()).unwrap();
    let pruned = vm.prune_page_tables().unwrap();
    if are_freed() {
        // One has a page that was written to.
        let empty = (4 * TABLES - 1) * PAGE_SIZE;
        assert!(pruned >= empty * 95 / 100, "{pruned} of {empty} bytes");
    }
    assert_eq!(vm.statistics().counted.table_bytes_pruned, while_used + pruned);
    assert_eq!(pieced.as_slice()[5], 77);
    for page in [0, 511, 512, TABLES * TABLE_PAGES - 1] {
        maps.iter().for_each(|map| assert_eq!(touch(map, page), word(page * PAGE_SIZE)));
    }
}

#[test]
fn what_is_written_meanwhile_stays() {
    const TABLES: u64 = 16;
    const WRITES: u64 = 64;
    let _alone = alone();
    let vm = vm();
    let zeros = vm.anonymous(TABLES * TABLE_PAGES * PAGE_SIZE).unwrap();
    let image = vm.source("words", Words { len_bytes: zeros.len_bytes(), ..Words::default() }).unwrap();
    for mode in modes(&vm, &zeros) {
        for round in 0..8 {
            let of = [&zeros, &image][round % 2];
            let map = vm.map(of, &MapOptions::private().mode(mode)).unwrap();
            let word = &|page: u64| shared_word(&map, page * PAGE_SIZE + 8);
            // Each comes to a table that is empty as often as not.
            let page_of = &|thread: u64, number: u64| {
                let table = number * 7 % TABLES;
                table * TABLE_PAGES + (number / TABLES * 2 + thread) * 31 % TABLE_PAGES
            };
            std::thread::scope(|scope| {
                let writers = [0, 1].map(|thread| {
                    scope.spawn(move || {
                        for number in 0..WRITES {
                            word(page_of(thread, number)).store(number + 1, Ordering::SeqCst);
                        }
                    })
                });
                while writers.iter().any(|writer| !writer.is_finished()) {
                    vm.prune_page_tables().unwrap();
                }
            });
            for (thread, number) in (0..2).flat_map(|thread| (0..WRITES).map(move |number| (thread, number)))
            {
                let found = word(page_of(thread, number)).load(Ordering::SeqCst);
                assert_eq!(found, number + 1, "{mode:?}, round {round}, write {number} of {thread}");
            }
        }
    }
}
