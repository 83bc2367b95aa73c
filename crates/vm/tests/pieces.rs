//! Maps of several objects: shown, copied and zeros, in one address range.

mod support;

use prepage_core::PAGE_SIZE;
use prepage_vm::{Map, MapError, MapOptions, Piece};
use support::{Words, file, left_in, modes, page_bytes, pages, read, touch, vm, word, write};

#[test]
fn every_piece_shows_its_object_however_it_is_installed() {
    let vm = vm();
    let words = vm.source("words", Words { len_bytes: 300 * PAGE_SIZE, ..Default::default() }).unwrap();
    let file = file(40 * PAGE_SIZE + 100);
    let local = vm.file(file.path()).unwrap();
    let zeros = vm.anonymous(64 * PAGE_SIZE).unwrap();
    let pieces = [
        Piece::new(&words, pages(100, 180)),
        Piece::new(&zeros, pages(3, 40)),
        Piece::new(&local, pages(8, 20)).copied(),
        Piece::new(&words, pages(7, 9)).copied(),
        Piece::new(&local, pages(30, 41)),
    ];
    // Which page of which bytes stands where.
    let behind: Vec<Option<u64>> = (100..180)
        .map(Some)
        .chain((0..37).map(|_| None))
        .chain((8..20).map(Some))
        .chain((7..9).map(Some))
        .chain((30..41).map(Some))
        .collect();
    let expected = |page: usize| behind[page].map_or(0, |page| word(page * PAGE_SIZE));
    for mode in modes(&vm, &words) {
        let mut map = vm.map_pieces(&pieces, &MapOptions::private().mode(mode)).unwrap();
        assert_eq!(map.window(), pages(0, behind.len() as u64));
        assert_eq!(map.len_bytes(), (behind.len() as u64 - 1) * PAGE_SIZE + 100);
        assert_eq!(words.backings().iter().filter(|backing| backing.map == map.id()).count(), 2);
        // In an order of its own: 61 is prime to the number of pages.
        for turn in 0..behind.len() {
            let page = turn * 61 % behind.len();
            if page + 1 < behind.len() {
                assert_eq!(touch(&map, page as u64), expected(page), "page {page} in {mode:?}");
            }
        }
        let tail = &map.as_slice()[(behind.len() - 1) * PAGE_SIZE as usize..];
        assert_eq!(tail, &page_bytes(40)[..100]);
        // What is written stays, in pages of every kind, when frames go and come back.
        for page in [5, 90, 120, 130] {
            map.as_mut_slice()[page * PAGE_SIZE as usize] ^= 0xff;
        }
        words.evict(words.pages()).unwrap();
        local.evict(local.pages()).unwrap();
        for page in 0..behind.len() as u64 - 1 {
            let changed = if [5, 90, 120, 130].contains(&page) { 0xff } else { 0 };
            assert_eq!(touch(&map, page), expected(page as usize) ^ changed, "page {page} in {mode:?}");
        }
        map.discard(map.window()).unwrap();
        map.populate(map.window()).unwrap();
        for page in 0..behind.len() as u64 - 1 {
            assert_eq!(touch(&map, page), expected(page as usize), "page {page} in {mode:?}");
        }
        let mut bytes = vec![0; 60 * PAGE_SIZE as usize];
        map.read_at(79 * PAGE_SIZE, &mut bytes).unwrap();
        assert_eq!(bytes[..8], expected(79).to_le_bytes());
        assert_eq!(bytes[59 * PAGE_SIZE as usize..][..8], expected(79 + 59).to_le_bytes());
    }
    assert_eq!((vm.statistics().maps, vm.statistics().backings), (0, 0));
    assert!(matches!(vm.map_pieces(&pieces, &MapOptions::shared()), Err(MapError::Pieces)));
    assert!(matches!(vm.map_pieces(&[], &MapOptions::private()), Err(MapError::Empty { .. })));
    let beyond = [Piece::new(&local, pages(40, 42))];
    assert!(matches!(vm.map_pieces(&beyond, &MapOptions::private()), Err(MapError::Beyond { .. })));
}

/// However many there are: each takes memory and no mapping.
#[test]
fn copied_pieces_of_snapshots_take_no_mappings() {
    const PIECES: u64 = 30;
    const LEN: u64 = 20;
    let vm = vm();
    let zeros = vm.anonymous(PIECES * 2 * LEN * PAGE_SIZE).unwrap();
    let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
    (0..PIECES).for_each(|run| (0..LEN).for_each(|page| write(&mut map, 2 * run * LEN + page, run + 1)));
    let snapshot = map.snapshot().unwrap();
    // Each with some zeros at its end.
    let pieces = |range: std::ops::Range<u64>| -> Vec<Piece> {
        let run = |run| pages(2 * run * LEN, (2 * run + 1) * LEN + 3);
        range.map(|number| Piece::new(&snapshot, run(number)).copied()).collect()
    };
    let whole = [Piece::new(&snapshot, snapshot.pages()).copied()];
    for mode in modes(&vm, &zeros) {
        let options = MapOptions::private().mode(mode);
        let memfds = |map: &Map| {
            let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
            let within = |line: &&str| {
                let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
                (map.address()..map.address() + map.len_bytes()).contains(&start)
            };
            maps.lines().filter(within).filter(|line| line.contains("memfd")).count()
        };
        let many = vm.map_pieces(&pieces(0..PIECES), &options).unwrap();
        assert_eq!(memfds(&many), 0, "{mode:?}");
        for run in 0..PIECES {
            let found = [0, LEN - 1, LEN].map(|page| read(&many, run * (LEN + 3) + page));
            assert_eq!(found, [run + 1, run + 1, 0]);
        }
        let mut one = vm.map_pieces(&whole, &options).unwrap();
        assert_eq!(memfds(&one), 0, "{mode:?}");
        write(&mut one, LEN, 9);
        let again = vm.map(&one.snapshot().unwrap(), &options).unwrap();
        assert_eq!([0, LEN - 1, LEN, 2 * LEN].map(|page| read(&again, page)), [1, 1, 9, 2]);
    }
    drop((map, zeros, snapshot, whole));
    assert_eq!(left_in(&vm), (0, 0, 0, 0));
}
