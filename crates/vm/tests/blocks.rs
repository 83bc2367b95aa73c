//! Blocks of 2 MiB of local files that are read as a whole, into frames that are one huge page where the kernel finds one.
//!
//! One test: it looks at all memfds of the process.

mod support;

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_sys::cachestat;
use prepage_sys::region::is_present;
use prepage_testing::{Need, has, write_pinned};
use prepage_vm::{AccessError, Advice, Map, MapOptions, Object, Pool, Reason, Vm, VmOptions};
use support::{memfd_pages, modes, pages, touch, until, word};

const BLOCK: u64 = 512;
/// 32 MiB; the last page is not whole.
const PAGES: u64 = 16 * BLOCK;
const LEN_BYTES: u64 = PAGES * PAGE_SIZE - 100;

/// Pages of a map that entries for whole blocks show.
fn pages_shown_by_blocks(map: &Map) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let end = map.address() + map.window().bytes();
    let mut is_inside = false;
    let mut kib = 0;
    for line in maps.lines() {
        let start = line.split_once('-').and_then(|(start, _)| u64::from_str_radix(start, 16).ok());
        is_inside = start.map_or(is_inside, |start| (map.address()..end).contains(&start));
        if let Some(field) = line.strip_prefix("ShmemPmdMapped:").filter(|_| is_inside) {
            kib += field.trim().trim_end_matches(" kB").parse::<u64>().unwrap();
        }
    }
    kib * 1024 / PAGE_SIZE
}

/// How often a file system in memory asked for a huge page and got none, of all processes.
fn without_huge_pages() -> u64 {
    let counts = std::fs::read_to_string("/proc/vmstat").unwrap();
    let counts = counts.lines().filter_map(|line| line.strip_prefix("thp_file_fallback")?.split_once(' '));
    counts.map(|(_, count)| count.parse::<u64>().unwrap()).sum()
}

fn open(vm: &Vm, path: &Path, direct: bool) -> Object {
    if direct { vm.file_direct(path) } else { vm.file(path) }.unwrap()
}

#[test]
fn blocks_show_the_bytes_of_the_file_and_pages_of_them_come_and_go() {
    let home = env!("CARGO_TARGET_TMPDIR");
    let mut file = tempfile::NamedTempFile::new_in(home).unwrap();
    let bytes: Vec<u8> = (0..PAGES * 512).flat_map(|index| word(index * 8).to_le_bytes()).collect();
    file.write_all(&bytes[..LEN_BYTES as usize]).unwrap();
    file.as_file().sync_all().unwrap();
    let (path, bytes) = (file.path(), &bytes[..LEN_BYTES as usize]);
    let is_known = has(Need::Root);
    let ways: &[bool] = if has(Need::DirectReads(home.into())) { &[false, true] } else { &[false] };
    let frames = Pool::new(u64::MAX).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&frames)).unwrap();
    let blocks_read = |vm: &Vm| vm.statistics().counted.blocks_read;
    for (mode, &direct) in modes(&vm, &vm.file(path).unwrap())
        .into_iter()
        .flat_map(|mode| ways.iter().map(move |way| (mode, way)))
    {
        let what = format!("{mode:?}, direct: {direct}");
        // From the middle of a block on, so that what the policy asks for begins in the middle of one.
        for first in [0, BLOCK / 2 + 3] {
            cachestat::evict(file.as_file().as_fd(), Duration::from_secs(1)).unwrap();
            let object = open(&vm, path, direct);
            let map = vm.map(&object, &MapOptions::shared().mode(mode)).unwrap();
            map.advise(Advice::Sequential).unwrap();
            let before = vm.statistics().counted;
            let without_before = without_huge_pages();
            (first..PAGES - 1)
                .for_each(|page| assert_eq!(touch(&map, page), word(page * PAGE_SIZE), "{what}: {page}"));
            let counted = vm.statistics().counted;
            let blocks = counted.blocks_read - before.blocks_read;
            // Whoever overtakes what is read ahead reads some of a block himself.
            assert!(!is_known || blocks >= PAGES / BLOCK / 2, "{what}: {blocks} blocks");
            assert!(
                counted.hard - before.hard < PAGES / BLOCK,
                "{what}: {} faults read",
                counted.hard - before.hard
            );
            assert!(map.as_slice() == bytes, "{what}");
            // All but those with a mark, of which the touch has to be a fault, if memory is not too scattered.
            let shown = pages_shown_by_blocks(&map);
            let has_memory = has(Need::MemoryBytes(1 << 30)) && without_huge_pages() == without_before;
            assert!(!is_known || !has_memory || shown >= BLOCK, "{what}: {shown} pages of {blocks} blocks");
            // Whoever reads ahead counts and shows pages before others may take them.
            let are_all_there = || object.pages().iter().all(|page| object.is_resident(page));
            until(|| are_all_there() && object.resident_pages() == PAGES && memfd_pages() == PAGES);

            // Pages of blocks go one by one, and come back.
            for page in [BLOCK, 5 * BLOCK + 7, 9 * BLOCK - 1] {
                assert_eq!(object.evict(pages(page, page + 1)).unwrap(), 1);
                until(|| memfd_pages() == object.resident_pages());
                assert_eq!(touch(&map, page - 1), word((page - 1) * PAGE_SIZE));
                assert!(!object.is_resident(PageIndex(page)));
                assert_eq!(touch(&map, page), word(page * PAGE_SIZE), "{what}: {page} again");
            }
            // So do blocks: their bytes are compared with what they were.
            let some = pages(3 * BLOCK, 6 * BLOCK);
            // Before they go: what was asked for ahead of touches that overtook it may bring one back.
            let before = blocks_read(&vm);
            assert_eq!(object.evict(some).unwrap(), some.len());
            map.populate(some).unwrap();
            assert!(!is_known || blocks_read(&vm) - before == 3, "{what}: {}", blocks_read(&vm) - before);
            assert!(map.as_slice() == bytes, "{what}, after an eviction");
            // A pinned page stays in the map, whatever else goes of its block: else a call could not read it inline.
            until(are_all_there);
            let page = 4 * BLOCK + 9;
            let pinned = map.pin(pages(page, page + 1)).unwrap();
            let is_in_map = |page| is_present(map.address() + page * PAGE_SIZE).unwrap();
            let unwire = || object.unwire(object.pages()).unwrap();
            let evict = || object.evict(object.pages()).unwrap();
            let reclaim = || frames.reclaim(PAGES);
            let forget = |range| map.advise(Advice::DontNeed(range)).unwrap();
            let forget_some = || {
                forget(pages(page + 3, page + 5));
                PAGES - BLOCK
            };
            let forget_all = || {
                forget(map.window());
                assert!(!is_in_map(2 * BLOCK) && !is_in_map(6 * BLOCK), "{what}");
                PAGES - BLOCK
            };
            for take in [&unwire as &dyn Fn() -> u64, &evict, &reclaim, &forget_some, &forget_all] {
                map.populate(map.window()).unwrap();
                let taken = take();
                assert!((PAGES - BLOCK..PAGES).contains(&taken), "{what}: {taken}");
                assert!(is_in_map(page), "{what}");
                let mut received = [0; PAGE_SIZE as usize];
                let (to, mut from) = UnixStream::pair().unwrap();
                let at = (page * PAGE_SIZE) as usize;
                write_pinned(&to, &map.as_slice()[at..][..received.len()]).unwrap();
                from.read_exact(&mut received).unwrap();
                assert!(received == bytes[at..][..received.len()], "{what}");
            }
            drop(pinned);
            assert!(map.as_slice() == bytes, "{what}, after a pin");
            drop((map, object));
            until(|| memfd_pages() == 0);
        }
    }

    // A pool that reclaims takes pages one by one.
    let pool = Vm::new(VmOptions::default().frame_limit_bytes(8 << 20)).unwrap();
    let object = open(&pool, path, false);
    let map = pool.map(&object, &MapOptions::shared()).unwrap();
    map.advise(Advice::Sequential).unwrap();
    (0..PAGES).for_each(|page| assert_eq!(touch(&map, page), word(page * PAGE_SIZE)));
    assert_eq!(blocks_read(&pool), 0);
    drop((map, object));

    // A block in which the file ends by now gives its frames back, but for the pages that are there.
    for (&direct, valid) in ways.iter().flat_map(|direct| [100, 128].map(|valid| (direct, valid))) {
        let object = open(&vm, path, direct);
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let end = 2 * BLOCK + valid;
        file.as_file().set_len(end * PAGE_SIZE).unwrap();
        let beyond = map.populate(pages(BLOCK, 4 * BLOCK));
        let Err(AccessError::Unavailable { page, reason: Reason::Short, .. }) = beyond else {
            panic!("direct: {direct}: {beyond:?}")
        };
        assert_eq!(page, PageIndex(end), "direct: {direct}");
        assert!(
            map.as_slice()[(BLOCK * PAGE_SIZE) as usize..(end * PAGE_SIZE) as usize]
                == bytes[(BLOCK * PAGE_SIZE) as usize..(end * PAGE_SIZE) as usize]
        );
        let began = Instant::now();
        until(|| object.resident_pages() == memfd_pages() || began.elapsed().as_secs() > 30);
        assert_eq!(
            (object.resident_pages(), memfd_pages()),
            (BLOCK + valid, BLOCK + valid),
            "direct: {direct}"
        );
        file.as_file().set_len(0).unwrap();
        file.as_file().set_len(LEN_BYTES).unwrap();
        std::os::unix::fs::FileExt::write_all_at(file.as_file(), bytes, 0).unwrap();
        file.as_file().sync_all().unwrap();
    }
}
