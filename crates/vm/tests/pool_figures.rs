//! What a pool tells of its frames is what the kernel counts, after each of 10,000 random steps under a limit.
//!
//! One test: it counts the memfds of the whole process.

mod support;

use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};
use prepage_vm::{Map, MapOptions, Mode, Object, Pool, Vm, VmOptions};
use support::{Words, memfd_pages, modes, pages, random, touch, word};

const PAGES: u64 = 200;
const LIMIT: u64 = 256;
/// As long as reclaim may take on a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(60);

/// At a moment at which the reclaimer rests, and one comes soon: all ways to count give the same.
fn compare(pool: &Pool, objects: &[Object], after: &str) {
    let began = Instant::now();
    loop {
        let figures = pool.figures();
        let count = |what: &dyn Fn(&Object, PageIndex) -> bool| {
            let of_one = |object: &Object| object.pages().iter().filter(|&page| what(object, page)).count();
            objects.iter().map(of_one).sum::<usize>() as u64
        };
        let resident = count(&|object, page| object.is_resident(page));
        let wired = count(&|object, page| object.is_wired(page));
        let listed = pool.objects();
        let found = [
            figures.resident_pages,
            memfd_pages(),
            objects.iter().map(Object::resident_pages).sum(),
            listed.iter().map(|object| object.resident_pages).sum(),
        ];
        let unwired = listed.iter().map(|object| object.unwired_pages).sum::<u64>();
        let reserved = objects.iter().map(|object| object.pages().len()).sum::<u64>();
        assert!(figures.resident_pages <= LIMIT, "{figures:?}");
        assert_eq!(figures.resident_pages, figures.wired_pages + figures.unwired_pages);
        if found == [resident; 4]
            && [figures.wired_pages, resident - figures.unwired_pages, resident - unwired] == [wired; 3]
            && [figures.promised_pages, figures.reserved_pages] == [0, reserved]
        {
            return;
        }
        assert!(
            began.elapsed() < PATIENCE,
            "after {after}: {found:?} and not {resident}; {wired} wired; {figures:?}"
        );
        std::thread::yield_now();
    }
}

/// No map shows an unwired page, once who unwired it has gone on. The maps are idle: no page becomes wired meanwhile.
fn hidden(object: &Object) {
    for page in object.pages().iter() {
        let began = Instant::now();
        let is_hidden = || object.is_wired(page) || object.mappings_of(page).unwrap().is_empty();
        while !is_hidden() {
            assert!(began.elapsed() < PATIENCE, "page {} is unwired and shown", page.0);
            std::thread::yield_now();
        }
    }
}

#[test]
fn the_pool_counts_what_the_kernel_counts() {
    let pool = Pool::new(LIMIT * 4096).unwrap();
    let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
    let probe = vm.source("probe", Words { len_bytes: 4096, ..Default::default() }).unwrap();
    let modes = modes(&vm, &probe);
    drop(probe);
    if !modes.contains(&Mode::Inline) {
        return;
    }
    let mut random = random();
    let mut objects: Vec<Object> = Vec::new();
    let mut maps: Vec<(usize, Map)> = Vec::new();
    for step in 0..10_000 {
        if objects.len() < 4 {
            let len_bytes = (1 + random(PAGES)) * 4096 - random(4096);
            objects.push(vm.source("words", Words { len_bytes, ..Default::default() }).unwrap());
        }
        let which = random(objects.len() as u64) as usize;
        let object = &objects[which];
        let count = object.pages().len();
        let start = random(count);
        let range = pages(start, start + 1 + random(count - start));
        let after = match random(16) {
            0 | 1 if maps.len() < 10 => {
                let policy = ["none", "aligned:16", "around:3:2"][random(3) as usize].parse().unwrap();
                let options = if random(6) == 0 { MapOptions::private() } else { MapOptions::shared() };
                let mode = modes[random(modes.len() as u64) as usize];
                maps.push((which, vm.map(object, &options.mode(mode).policy(policy).window(range)).unwrap()));
                "map"
            }
            2 => {
                object.evict(range).unwrap();
                "evict"
            }
            3 | 4 => {
                object.unwire(range).unwrap();
                "unwire"
            }
            5 => {
                pool.reclaim(random(32));
                "reclaim"
            }
            6 if maps.len() > 4 => {
                drop(maps.swap_remove(random(maps.len() as u64) as usize));
                "unmap"
            }
            7 if step % 9 == 0 => {
                let gone = objects.remove(which);
                maps.retain(|(of, _)| *of != which);
                maps.iter_mut().for_each(|(of, _)| *of -= usize::from(*of > which));
                drop(gone);
                "drop of an object"
            }
            choice if !maps.is_empty() => {
                let (_, map) = &maps[random(maps.len() as u64) as usize];
                use_map(map, choice, &mut random)
            }
            _ => "nothing",
        };
        compare(&pool, &objects, after);
        if step % 100 == 0 {
            objects.iter().for_each(hidden);
        }
    }
    let counted = vm.statistics().counted;
    assert!(counted.pages_reclaimed > 1000 && counted.pages_rewired > 100, "{counted:?}");
    drop(maps);
    drop(objects);
    let began = Instant::now();
    while !pool.objects().is_empty() || memfd_pages() > 0 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::yield_now();
    }
    compare(&pool, &[], "the end");
}

/// Does something with a map; says what.
fn use_map(map: &Map, choice: u64, random: &mut impl FnMut(u64) -> u64) -> &'static str {
    let window = map.window();
    let page = random(window.len());
    let at = window.start().0 + page;
    let range = PageRange::new(PageIndex(at), PageIndex((at + 8).min(window.end().0)));
    match choice {
        8 => {
            map.populate(range).unwrap();
            "populate"
        }
        9 => {
            let pinned = map.pin(range).unwrap();
            range.iter().for_each(|page| {
                let page = page.0 - window.start().0;
                if (page + 1) * 4096 <= map.len_bytes() {
                    assert_eq!(touch(map, page), word((page + window.start().0) * 4096));
                }
            });
            drop(pinned);
            "pin"
        }
        _ => {
            if page * 4096 + 8 <= map.len_bytes() {
                assert_eq!(touch(map, page), word(at * 4096));
            }
            "touch"
        }
    }
}
