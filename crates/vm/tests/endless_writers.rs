//! Maps that are snapshotted again and again, by programs that never stop writing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prepage_core::PAGE_SIZE;
use prepage_core::chain::DEPTH_MAX;
use prepage_vm::{MapOptions, Object};
use support::{Stop, left_in, modes, read, shared_word, touch, until, vm, write};

mod support;

/// What is overwritten in later snapshots, beside a page that is not, is given back although the page stays; and what stays of many
/// snapshots is brought together.
#[test]
fn the_last_of_many_snapshots_keeps_what_it_shows_alone() {
    const HOT: u64 = 16;
    const COLD: u64 = 200;
    const ROUNDS: u64 = 500;
    let vm = vm();
    let zeros = vm.anonymous((HOT + COLD) * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    let mut last: Option<Object> = None;
    for round in 0..ROUNDS {
        (0..HOT).for_each(|page| write(&mut map, page, round));
        write(&mut map, HOT + round % COLD, round);
        last = Some(map.snapshot().unwrap());
        assert!(vm.statistics().objects < 80, "{} objects, each with a descriptor", vm.statistics().objects);
    }
    vm.free_shadowed().unwrap();
    assert_eq!(support::frames(&vm), HOT + COLD);
    assert!(vm.chains().depth_max <= DEPTH_MAX);
    let clone = vm.map(last.as_ref().unwrap(), &MapOptions::private()).unwrap();
    (0..HOT).for_each(|page| assert_eq!(read(&clone, page), ROUNDS - 1));
    for round in ROUNDS - COLD..ROUNDS {
        assert_eq!(read(&clone, HOT + round % COLD), round);
    }
    drop((clone, last, map, zeros));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

/// A collapse takes over pages where they are; a clone that is the last to look at such a snapshot writes to them elsewhere.
#[test]
fn what_a_collapse_took_over_is_not_written_to() {
    const PAGES: u64 = 16;
    let vm = vm();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..PAGES).for_each(|page| write(&mut map, page, 100 + page));
    let first = map.snapshot().unwrap();
    let mut clone = vm.map(&first, &MapOptions::private()).unwrap();
    let mut later = Vec::new();
    for round in 0..8 {
        write(&mut map, 0, round);
        later.push(map.snapshot().unwrap());
    }
    let frames = support::frames(&vm);
    assert!(vm.chains().collapse_copies > 0);
    assert_eq!(frames, PAGES + 8, "a collapse copies nothing");
    let last = later.pop().unwrap();
    drop((first, later));
    (0..PAGES).for_each(|page| write(&mut clone, page, 200 + page));
    let of_clone = clone.snapshot().unwrap();
    let row = |snapshot| {
        let map = vm.map(snapshot, &MapOptions::private()).unwrap();
        (0..PAGES).map(|page| read(&map, page)).collect::<Vec<_>>()
    };
    let expected: Vec<u64> = std::iter::once(7).chain((1..PAGES).map(|page| 100 + page)).collect();
    assert_eq!(row(&last), expected);
    assert_eq!(row(&of_clone), (0..PAGES).map(|page| 200 + page).collect::<Vec<_>>());
    vm.free_shadowed().unwrap();
    assert_eq!((row(&last), row(&of_clone)[1]), (expected, 201));
    assert_eq!(support::frames(&vm), 2 * PAGES);
    drop((last, of_clone, map, clone, zeros));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

/// One counts up page after page, and another copies what it has seen there to pages of its own: in each snapshot the row falls by
/// one at most, and no copy is newer than what it is of.
#[test]
fn snapshots_without_a_pause_end_and_let_writers_go_on() {
    const PAGES: u64 = 64;
    const SNAPSHOTS: u64 = 200;
    /// So many are kept: the chain grows and collapses.
    const KEPT: usize = 8;
    let vm = vm();
    let zeros = vm.anonymous(2 * PAGES * PAGE_SIZE).unwrap();
    for mode in modes(&vm, &zeros) {
        let options = MapOptions::private().mode(mode);
        let map = vm.map(&zeros, &options).unwrap();
        let word = |page: u64| shared_word(&map, page * PAGE_SIZE);
        let (stop, counted, copied) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
        let goes_on = |progress: &AtomicU64| {
            // The second round that ends from here on began from here on.
            let now = progress.load(Ordering::SeqCst);
            until(|| progress.load(Ordering::SeqCst) >= now + 2);
        };
        let write = |progress: &AtomicU64, round: &dyn Fn(u64)| {
            for number in 1.. {
                round(number);
                progress.store(number, Ordering::SeqCst);
                if stop.load(Ordering::Relaxed) {
                    break;
                }
            }
        };
        std::thread::scope(|scope| {
            let stopping = Stop(&stop);
            scope.spawn(|| {
                write(&counted, &|round| {
                    (0..PAGES).for_each(|page| word(page).store(round, Ordering::SeqCst))
                });
            });
            scope.spawn(|| {
                let copy =
                    |page| word(PAGES + page).store(word(page).load(Ordering::SeqCst), Ordering::SeqCst);
                write(&copied, &|_| (0..PAGES).for_each(copy));
            });
            goes_on(&counted);
            goes_on(&copied);
            let mut kept = std::collections::VecDeque::new();
            for _ in 0..SNAPSHOTS {
                let before = counted.load(Ordering::SeqCst);
                let snapshot = map.snapshot().unwrap();
                let clone = vm.map(&snapshot, &options).unwrap();
                let row: Vec<u64> = (0..2 * PAGES).map(|page| touch(&clone, page)).collect();
                let (counts, copies) = row.split_at(PAGES as usize);
                assert!(counts.is_sorted_by(|left, right| left >= right), "{mode:?} {row:?}");
                assert!(
                    counts[0] - counts[PAGES as usize - 1] <= 1 && counts[0] >= before,
                    "{mode:?} {row:?}"
                );
                assert!(copies.iter().zip(counts).all(|(copy, count)| copy <= count), "{mode:?} {row:?}");
                kept.push_back(snapshot);
                if kept.len() > KEPT {
                    kept.pop_front();
                }
            }
            goes_on(&counted);
            goes_on(&copied);
            drop(stopping);
        });
        assert!(vm.chains().depth_max <= DEPTH_MAX);
        let _last = map.snapshot().unwrap();
        vm.free_shadowed().unwrap();
        assert!(support::frames(&vm) <= 2 * PAGES, "only the last snapshot is seen");
    }
    drop(zeros);
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}
