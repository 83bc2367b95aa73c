//! Snapshots of maps through real memory: against plain copies of the bytes, with the worked examples of chains, and while others
//! write.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use prepage_core::policy::Policy;
use prepage_core::policy::predicted::Predicted;
use prepage_core::profile::Extent;
use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_vm::{Map, MapError, MapOptions, Mode, Object, SnapshotError, Vm, VmOptions};
use proptest::prelude::*;
use support::{Stop, Words, left_in, modes, of_file, pages, read, shared_word, touch, until, vm, write};

mod support;

fn private(mode: Mode) -> MapOptions {
    MapOptions::private().mode(mode)
}

#[test]
fn a_snapshot_holds_what_the_map_held() {
    let file = support::file(40 * PAGE_SIZE + 100);
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let mut map = vm.map(&object, &private(mode)).unwrap();
        write(&mut map, 3, 7);
        let first = map.snapshot().unwrap();
        assert_eq!((first.len_bytes(), first.resident_pages()), (40 * PAGE_SIZE + 100, 1));
        write(&mut map, 3, 8);
        write(&mut map, 5, 9);
        let second = map.snapshot().unwrap();
        write(&mut map, 5, 10);
        let clone_of = |object: &Object| vm.map(object, &private(mode)).unwrap();
        let (mut one, two) = (clone_of(&first), clone_of(&second));
        assert_eq!([3, 5, 6, 40].map(|page| read(&one, page)), [7, of_file(5), of_file(6), of_file(40)]);
        assert_eq!([3, 5, 6].map(|page| read(&two, page)), [8, 9, of_file(6)]);
        assert_eq!([3, 5, 6].map(|page| read(&map, page)), [8, 10, of_file(6)]);
        // Clones of clones.
        write(&mut one, 6, 11);
        let third = one.snapshot().unwrap();
        drop((map, first, one, second));
        let three = clone_of(&third);
        assert_eq!([3, 5, 6].map(|page| read(&three, page)), [7, of_file(5), 11]);
        assert_eq!([3, 5, 6].map(|page| read(&two, page)), [8, 9, of_file(6)]);
        // A part of one, as a map and as a piece.
        let part = vm.map(&third, &private(mode).window(pages(3, 7))).unwrap();
        assert_eq!([0, 2, 3].map(|page| read(&part, page)), [7, of_file(5), 11]);
        let pieces =
            [prepage_vm::Piece::new(&object, pages(9, 10)), prepage_vm::Piece::new(&third, pages(2, 4))];
        let mut pieced = vm.map_pieces(&pieces, &private(mode)).unwrap();
        assert_eq!([0, 1, 2].map(|page| read(&pieced, page)), [of_file(9), of_file(2), 7]);
        write(&mut pieced, 1, 12);
        let of_pieces = pieced.snapshot().unwrap();
        drop((pieced, third, three));
        let again = clone_of(&of_pieces);
        assert_eq!([0, 1, 2].map(|page| read(&again, page)), [of_file(9), 12, 7]);
    }
    drop(object);
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

/// A store has its own numbers of pages.
#[test]
fn a_profile_is_read_from_the_first_fault_on_the_object_itself_on() {
    let vm = vm();
    let object = vm.source("words", Words { len_bytes: 2000 * PAGE_SIZE, ..Default::default() }).unwrap();
    let extents = [Extent::new(pages(1000, 1001), 0), Extent::new(pages(1500, 1600), 1)];
    let predicted = Policy::Predicted(Predicted::new(&extents, 16));
    let options = MapOptions::private().window(pages(1000, 2000)).policy(predicted);
    let mut map = vm.map(&object, &options).unwrap();
    map.populate(pages(1000, 1008)).unwrap();
    write(&mut map, 5, 7);
    let _snapshot = map.snapshot().unwrap();
    map.discard(pages(1005, 1006)).unwrap();
    // The first fault of the map, on the snapshot's store.
    assert_eq!(read(&map, 5), 7);
    touch(&map, 50);
    until(|| object.is_resident(PageIndex(1599)));
}

#[test]
fn a_snapshot_of_nothing_new_is_the_last_one() {
    let vm = vm();
    let zeros = vm.anonymous(8 * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    let empty = map.snapshot().unwrap();
    assert_eq!(empty.resident_pages(), 0);
    write(&mut map, 1, 1);
    let one = map.snapshot().unwrap();
    let again = map.snapshot().unwrap();
    assert_eq!((one.resident_pages(), vm.statistics().counted.pages_frozen), (1, 1));
    drop((map, one));
    assert_eq!(read(&vm.map(&again, &MapOptions::private()).unwrap(), 1), 1);
    assert_eq!(read(&vm.map(&empty, &MapOptions::private()).unwrap(), 1), 0);
}

#[test]
fn what_cannot_be_frozen_says_so_and_goes_on() {
    let file = support::file(64 * PAGE_SIZE);
    let vm = Vm::new(VmOptions::default().frame_limit_bytes(80 * PAGE_SIZE)).unwrap();
    let object = vm.file(file.path()).unwrap();
    let shared = vm.map(&object, &MapOptions::shared()).unwrap();
    assert!(matches!(shared.snapshot(), Err(SnapshotError::Shared)));
    let zeros = vm.anonymous(64 << 20).unwrap();
    let huge = vm.map(&zeros, &MapOptions::private().huge_pages()).unwrap();
    assert!(matches!(huge.snapshot(), Err(SnapshotError::HugePages)));
    // Nothing can be taken back for it.
    let pinned = shared.pin(shared.window()).unwrap();
    let mut map = vm.map(&object, &MapOptions::private()).unwrap();
    map.populate(map.window()).unwrap();
    (0..10).for_each(|page| write(&mut map, page, page));
    let first = map.snapshot().unwrap();
    (0..20).for_each(|page| write(&mut map, page, 100 + page));
    let full = map.snapshot();
    assert!(matches!(full, Err(SnapshotError::NoFrames)));
    assert_eq!((read(&map, 3), support::frames(&vm)), (103, 74), "the map goes on");
    write(&mut map, 3, 203);
    drop(pinned);
    drop(shared);
    let second = map.snapshot().unwrap();
    let clone = vm.map(&second, &MapOptions::private()).unwrap();
    assert_eq!([3, 4, 30].map(|page| read(&clone, page)), [203, 104, of_file(30)]);
    assert_eq!(read(&vm.map(&first, &MapOptions::private()).unwrap(), 3), 3);
    let refused = vm.map(&first, &MapOptions::shared());
    assert!(matches!(refused, Err(MapError::SharedSnapshot { .. })));
}

#[test]
fn what_is_discarded_is_what_was_frozen_last() {
    let file = support::file(16 * PAGE_SIZE);
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let mut map = vm.map(&object, &private(mode)).unwrap();
        write(&mut map, 2, 1);
        let _first = map.snapshot().unwrap();
        write(&mut map, 2, 2);
        write(&mut map, 3, 3);
        map.discard(pages(0, 16)).unwrap();
        assert_eq!([2, 3].map(|page| read(&map, page)), [1, of_file(3)]);
        let second = map.snapshot().unwrap();
        write(&mut map, 3, 4);
        let third = map.snapshot().unwrap();
        let clone_of = |object: &Object| vm.map(object, &private(mode)).unwrap();
        assert_eq!([2, 3].map(|page| read(&clone_of(&second), page)), [1, of_file(3)]);
        assert_eq!([2, 3].map(|page| read(&clone_of(&third), page)), [1, 4]);
    }
}

/// Huge pages are for zeros: where anything was frozen they are not made, and nothing is lost or shown to another map.
#[test]
fn what_was_frozen_is_there_where_huge_pages_are_asked_for() {
    const PAGES: u64 = 1024;
    let vm = vm();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    for mode in modes(&vm, &zeros) {
        let mut map = vm.map(&zeros, &private(mode)).unwrap();
        write(&mut map, 5, 7);
        let snapshot = map.snapshot().unwrap();
        for window in [pages(0, PAGES), pages(4, PAGES)] {
            let first = window.start().0;
            let huge = private(mode).huge_pages().window(window);
            // What is touched first decides who makes the page.
            for order in [[6, 5], [5, 6]] {
                let mut clone = vm.map(&snapshot, &huge).unwrap();
                for page in order {
                    assert_eq!(read(&clone, page - first), if page == 5 { 7 } else { 0 }, "{mode:?} {page}");
                }
                write(&mut clone, 5 - first, 8);
                assert_eq!(read(&vm.map(&snapshot, &huge).unwrap(), 5 - first), 7, "another clone");
                assert_eq!(read(&vm.map(&zeros, &huge).unwrap(), 5 - first), 0, "a map of zeros");
                let again = clone.snapshot().unwrap();
                assert_eq!(read(&vm.map(&again, &private(mode)).unwrap(), 5 - first), 8);
            }
        }
    }
}

/// What a clone shows is not what it lies over: the kernel, which knows only that, must not serve it.
#[test]
fn a_clone_that_was_populated_shows_what_was_frozen_after_a_discard() {
    const PAGES: u64 = 8;
    let file = support::file(PAGES * PAGE_SIZE);
    let vm = vm();
    let object = vm.file(file.path()).unwrap();
    for mode in modes(&vm, &object) {
        let mut map = vm.map(&object, &private(mode).every_fault()).unwrap();
        (0..PAGES).for_each(|page| write(&mut map, page, 100 + page));
        let snapshot = map.snapshot().unwrap();
        let given = vm.statistics().counted.maps_given;
        let mut clone = vm.map(&snapshot, &private(mode)).unwrap();
        clone.populate(clone.window()).unwrap();
        clone.discard(pages(3, 4)).unwrap();
        assert_eq!(read(&clone, 3), 103);
        assert_eq!(vm.statistics().counted.maps_given, given);
    }
}

/// Pages that were written to, frozen and freed while they were populated are looked up anew.
#[test]
fn a_map_can_be_populated_while_snapshots_of_it_come_and_go() {
    const PAGES: u64 = 512;
    let vm = vm();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    for mode in modes(&vm, &zeros) {
        let mut first = vm.map(&zeros, &private(mode)).unwrap();
        (0..PAGES).for_each(|page| write(&mut first, page, page));
        let mut last = first.snapshot().unwrap();
        let map = vm.map(&last, &private(mode)).unwrap();
        drop(first);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let populating = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    map.populate(map.window()).unwrap();
                }
            });
            for round in 0..60_u64 {
                for page in 0..PAGES {
                    shared_word(&map, page * PAGE_SIZE).store(round, Ordering::Relaxed);
                }
                last = map.snapshot().unwrap();
                vm.free_shadowed().unwrap();
                if populating.is_finished() {
                    break;
                }
            }
            stop.store(true, Ordering::Relaxed);
            populating.join().unwrap();
        });
        drop(last);
    }
}

/// The worked examples of shared/vectors, by snapshots and clones of real memory.
struct Forks {
    vm: Vm,
    parent: Map,
    children: Vec<(Map, Vec<u64>)>,
    now: Vec<u64>,
}

impl Forks {
    fn of(vm: Vm, object: &Object) -> Self {
        let parent = vm.map(object, &MapOptions::private()).unwrap();
        let now = (0..object.pages().len()).map(|page| read(&parent, page)).collect();
        Self { vm, parent, children: Vec::new(), now }
    }

    fn anonymous(pages: u64) -> Self {
        let vm = vm();
        let zeros = vm.anonymous(pages * PAGE_SIZE).unwrap();
        let mut forks = Self::of(vm, &zeros);
        (0..pages).for_each(|page| forks.write(page, 1000 + page));
        forks
    }

    fn write(&mut self, page: u64, value: u64) {
        write(&mut self.parent, page, value);
        self.now[page as usize] = value;
    }

    fn fork(&mut self) {
        let snapshot = self.parent.snapshot().unwrap();
        let child = self.vm.map(&snapshot, &MapOptions::private()).unwrap();
        self.children.push((child, self.now.clone()));
    }

    /// Everybody reads what was there at the fork; returns page copies, greatest depth, and collapses.
    fn figures(&self) -> (u64, u32, u64) {
        for (child, then) in &self.children {
            (0..).zip(then).for_each(|(page, then)| assert_eq!(read(child, page), *then, "page {page}"));
        }
        (0..).zip(&self.now).for_each(|(page, now)| assert_eq!(read(&self.parent, page), *now));
        let chains = self.vm.chains();
        (chains.write_copies + chains.collapse_copies, chains.depth_max, chains.collapses)
    }
}

#[test]
fn chains_collapse_as_in_the_worked_examples() {
    // A: children stay, the parent writes one page after each fork.
    let mut forks = Forks::anonymous(8);
    for fork in 1..=20 {
        forks.fork();
        forks.write(0, fork);
    }
    // What was written last is seen by a snapshot alone.
    let _last = forks.parent.snapshot().unwrap();
    assert_eq!(forks.figures(), (41, 5, 3));
    assert_eq!(forks.vm.chains().collapse_copies, 21);
    // B: it writes all pages.
    let mut forks = Forks::anonymous(8);
    for fork in 1..=20 {
        forks.fork();
        (0..8).for_each(|page| forks.write(page, 100 * fork + page));
    }
    let _last = forks.parent.snapshot().unwrap();
    assert_eq!((forks.figures().1, forks.figures().2, forks.vm.chains().collapse_copies), (1, 19, 0));
    // C: children exit before the write.
    let mut forks = Forks::anonymous(8);
    for fork in 1..=20 {
        forks.fork();
        forks.children.clear();
        forks.write(0, fork);
    }
    let _last = forks.parent.snapshot().unwrap();
    assert_eq!(forks.figures(), (0, 0, 0));
    // C': a file of 100 pages stays where it is; written to, all its pages, it is copied up like anything else.
    let file = support::file(100 * PAGE_SIZE);
    for (is_written, copies) in [(false, 24), (true, 210)] {
        let vm = vm();
        let object = vm.file(file.path()).unwrap();
        let mut forks = Forks::of(vm, &object);
        if is_written {
            (0..100).for_each(|page| forks.write(page, 1000 + page));
        }
        // What was written so far is seen by a snapshot alone, and is not counted.
        drop(forks.parent.snapshot().unwrap());
        let before = forks.vm.chains().write_copies;
        for fork in 1..=12 {
            forks.fork();
            forks.write(fork % 10, fork);
        }
        let _last = forks.parent.snapshot().unwrap();
        let (all, depth, _) = forks.figures();
        assert_eq!((all - before, depth), (copies, 5), "{is_written}");
    }
}

/// A snapshot that shortens the chain below it has the link between merged into another map's, while it is given a link of its own.
#[test]
fn what_a_merged_link_held_is_still_found() {
    let vm = vm();
    let zeros = vm.anonymous(4 * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..2).for_each(|page| write(&mut map, page, 10 + page));
    let first = map.snapshot().unwrap();
    let mut clone = vm.map(&first, &MapOptions::private()).unwrap();
    write(&mut clone, 2, 22);
    let of_clone = clone.snapshot().unwrap();
    (0..2).for_each(|page| write(&mut map, page, 30 + page));
    let second = map.snapshot().unwrap();
    drop(first);
    write(&mut map, 0, 40);
    let third = map.snapshot().unwrap();
    let row = |snapshot| {
        let map = vm.map(snapshot, &MapOptions::private()).unwrap();
        [0, 1, 2].map(|page| read(&map, page))
    };
    assert_eq!(row(&of_clone), [10, 11, 22]);
    assert_eq!((row(&second), row(&third)), ([30, 31, 0], [40, 31, 0]));
}

#[test]
fn pages_that_every_map_shadows_are_destroyed() {
    const PAGES: u64 = 512;
    let vm = vm();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..PAGES).for_each(|page| write(&mut map, page, page + 1));
    let base = map.snapshot().unwrap();
    // Two look at it, and both write over most of it.
    let mut clone = vm.map(&base, &MapOptions::private()).unwrap();
    drop(base);
    for (map, value) in [(&mut map, 1 << 20), (&mut clone, 1 << 30)] {
        (0..PAGES - 7).for_each(|page| write(map, page, value + page));
    }
    assert_eq!(vm.free_shadowed().unwrap(), 0, "nobody knows yet");
    let tops = [map.snapshot().unwrap(), clone.snapshot().unwrap()];
    assert_eq!(support::frames(&vm), 3 * PAGES - 14);
    assert_eq!(vm.free_shadowed().unwrap(), PAGES - 7);
    assert_eq!((support::frames(&vm), vm.free_shadowed().unwrap()), (2 * PAGES - 7, 0));
    for (top, value) in tops.iter().zip([1 << 20, 1 << 30]) {
        let map = vm.map(top, &MapOptions::private()).unwrap();
        assert_eq!(
            [0, PAGES - 8, PAGES - 7].map(|page| read(&map, page)),
            [value, value + PAGES - 8, PAGES - 6]
        );
    }
}

#[test]
fn pages_of_a_snapshot_that_has_gone_are_destroyed_once_its_clone_has_its_own() {
    const PAGES: u64 = 512;
    let vm = vm();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..PAGES).for_each(|page| write(&mut map, page, page + 1));
    let base = map.snapshot().unwrap();
    let mut clone = vm.map(&base, &MapOptions::private()).unwrap();
    drop(map);
    (0..PAGES).for_each(|page| write(&mut clone, page, 1000 + page));
    let top = clone.snapshot().unwrap();
    drop(base);
    assert_eq!((support::frames(&vm), vm.free_shadowed().unwrap()), (2 * PAGES, PAGES));
    assert_eq!((support::frames(&vm), vm.free_shadowed().unwrap()), (PAGES, 0));
    clone.discard(clone.window()).unwrap();
    let again = vm.map(&top, &MapOptions::private()).unwrap();
    (0..PAGES).for_each(|page| assert_eq!([&clone, &again].map(|map| read(map, page)), [1000 + page; 2]));
    drop((clone, again, zeros, top));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

#[test]
fn what_every_map_shadows_goes_by_itself() {
    const PAGES: u64 = 64;
    let options = VmOptions::default().free_shadowed_after(std::time::Duration::from_millis(1));
    let vm = Vm::new(options).unwrap();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..PAGES).for_each(|page| write(&mut map, page, page + 1));
    let base = map.snapshot().unwrap();
    let mut clone = vm.map(&base, &MapOptions::private()).unwrap();
    for (map, value) in [(&mut map, 100), (&mut clone, 200)] {
        (0..PAGES - 7).for_each(|page| write(map, page, value + page));
    }
    let tops = [map.snapshot().unwrap(), clone.snapshot().unwrap()];
    assert_eq!(vm.statistics().counted.pages_shadowed, 0, "the first snapshot shows them all");
    // That one goes is what calls the thread.
    drop(base);
    support::until(|| vm.statistics().counted.pages_shadowed == PAGES - 7);
    support::until(|| support::frames(&vm) == 2 * PAGES - 7);
    for (map, value) in [(&map, 100), (&clone, 200)] {
        assert_eq!(
            [0, PAGES - 8, PAGES - 7].map(|page| read(map, page)),
            [value, value + PAGES - 8, PAGES - 6]
        );
    }
    drop((map, clone, zeros, tops));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}

/// Threads write by pointers while snapshots are taken: one counts up page after page, so that every snapshot shows a row
/// that falls by one at most.
#[test]
fn every_write_is_before_or_after() {
    const PAGES: u64 = 64;
    let vm = vm();
    let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
    for mode in modes(&vm, &zeros) {
        let map = vm.map(&zeros, &private(mode)).unwrap();
        let word = |page: u64| shared_word(&map, page * PAGE_SIZE);
        let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let stopping = Stop(&stop);
            scope.spawn(|| {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    round += 1;
                    (0..PAGES).for_each(|page| word(page * 37 % PAGES).store(round, Ordering::SeqCst));
                    rounds.store(round, Ordering::SeqCst);
                }
            });
            let mut last = 0;
            let mut kept = Vec::new();
            for number in 0..40 {
                while number > 0 && rounds.load(Ordering::SeqCst) == last {
                    std::thread::yield_now();
                }
                last = rounds.load(Ordering::SeqCst);
                let snapshot = map.snapshot().unwrap();
                let clone = vm.map(&snapshot, &private(mode)).unwrap();
                let row: Vec<u64> = (0..PAGES).map(|page| touch(&clone, page * 37 % PAGES)).collect();
                let falls = row.windows(2).filter(|pair| pair[0] != pair[1]).count();
                assert!(
                    falls <= 1 && row[0] - row[PAGES as usize - 1] <= 1 && row[0] >= last,
                    "{mode:?} {row:?}"
                );
                if number % 3 == 0 {
                    kept.push((clone, row));
                }
            }
            drop(stopping);
            for (clone, row) in &kept {
                (0..PAGES).zip(row).for_each(|(page, row)| assert_eq!(touch(clone, page * 37 % PAGES), *row));
            }
        });
    }
}

/// What maps, snapshots and their owners do.
#[derive(Clone, Debug)]
enum Step {
    Map { of: usize, handler: bool },
    Write { map: usize, page: u64, run: u64 },
    Read { map: usize, page: u64 },
    Snapshot { map: usize },
    DropMap { map: usize },
    DropSnapshot { snapshot: usize },
    Discard { map: usize, page: u64, run: u64 },
    Evict { from: u64 },
    Free,
}

const PAGES: u64 = 80;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let map = any::<usize>;
    let step = prop_oneof![
        4 => (any::<usize>(), any::<bool>()).prop_map(|(of, handler)| Step::Map { of, handler }),
        12 => (map(), 0..PAGES, prop_oneof![9 => 1..4_u64, 1 => 16..40_u64])
            .prop_map(|(map, page, run)| Step::Write { map, page, run }),
        6 => (map(), 0..PAGES).prop_map(|(map, page)| Step::Read { map, page }),
        8 => map().prop_map(|map| Step::Snapshot { map }),
        2 => map().prop_map(|map| Step::DropMap { map }),
        3 => any::<usize>().prop_map(|snapshot| Step::DropSnapshot { snapshot }),
        1 => (map(), 0..PAGES, 1..20_u64).prop_map(|(map, page, run)| Step::Discard { map, page, run }),
        2 => (0..PAGES).prop_map(|from| Step::Evict { from }),
        1 => Just(Step::Free),
    ];
    prop::collection::vec(step, 1..120)
}

struct Modelled {
    map: Map,
    now: Vec<u64>,
    /// What it shows where nothing was written.
    below: Vec<u64>,
}

fn check(map: &Map, expected: &[u64]) -> Result<(), TestCaseError> {
    for (page, expected) in (0..).zip(expected) {
        prop_assert_eq!(read(map, page), *expected, "page {}", page);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn maps_read_what_they_wrote(steps in steps()) {
        let file = support::file(PAGES * PAGE_SIZE);
        // What is shadowed is freed beside all of it.
        let options = VmOptions::default().free_shadowed_after(std::time::Duration::from_micros(200));
        let vm = Vm::new(options).unwrap();
        let object = vm.file(file.path()).unwrap();
        let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
        let modes = modes(&vm, &object);
        let mut snapshots: Vec<(Object, Vec<u64>)> = vec![
            (object.clone(), (0..PAGES).map(of_file).collect()),
            (zeros, vec![0; PAGES as usize]),
        ];
        let mut maps: Vec<Modelled> = Vec::new();
        for (now, step) in (1_u64..).zip(steps) {
            let count = maps.len().max(1);
            match step {
                Step::Map { of, handler } => {
                    let (snapshot, bytes) = &snapshots[of % snapshots.len()];
                    let mode = modes[usize::from(handler) % modes.len()];
                    let map = vm.map(snapshot, &private(mode)).unwrap();
                    maps.push(Modelled { map, now: bytes.clone(), below: bytes.clone() });
                }
                Step::Write { map, page, run } if !maps.is_empty() => {
                    let modelled = &mut maps[map % count];
                    for page in page..(page + run).min(PAGES) {
                        write(&mut modelled.map, page, 1000 * now + page);
                        modelled.now[page as usize] = 1000 * now + page;
                    }
                }
                Step::Read { map, page } if !maps.is_empty() => {
                    let modelled = &maps[map % count];
                    prop_assert_eq!(read(&modelled.map, page), modelled.now[page as usize]);
                }
                Step::Snapshot { map } if !maps.is_empty() => {
                    let modelled = &mut maps[map % count];
                    snapshots.push((modelled.map.snapshot().unwrap(), modelled.now.clone()));
                    modelled.below.clone_from(&modelled.now);
                }
                Step::DropMap { map } if !maps.is_empty() => {
                    let gone = maps.swap_remove(map % count);
                    check(&gone.map, &gone.now)?;
                }
                Step::DropSnapshot { snapshot } if snapshots.len() > 2 => {
                    let at = 2 + snapshot % (snapshots.len() - 2);
                    snapshots.swap_remove(at);
                }
                Step::Discard { map, page, run } if !maps.is_empty() => {
                    let modelled = &mut maps[map % count];
                    let end = (page + run).min(PAGES);
                    modelled.map.discard(pages(page, end)).unwrap();
                    let range = page as usize..end as usize;
                    modelled.now[range.clone()].copy_from_slice(&modelled.below[range]);
                }
                Step::Evict { from } => {
                    object.evict(pages(from, PAGES)).unwrap();
                    for (snapshot, _) in &snapshots[2..] {
                        prop_assert_eq!(snapshot.evict(snapshot.pages()).unwrap(), 0);
                    }
                }
                Step::Free => drop(vm.free_shadowed().unwrap()),
                _ => {}
            }
        }
        for (snapshot, bytes) in &snapshots {
            check(&vm.map(snapshot, &MapOptions::private()).unwrap(), bytes)?;
        }
        for modelled in &maps {
            check(&modelled.map, &modelled.now)?;
        }
        drop((maps, snapshots, object));
        prop_assert_eq!(left_in(&vm), (0, 0, 0, 0));
    }
}
