//! The figures of objects, maps and frames are exact at every quiet moment: they are compared with what this process
//! knows, and with what the kernel counts.
//!
//! One test: it counts the mappings and the memfds of the whole process.

mod support;

use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};
use prepage_vm::{Advice, Map, MapOptions, Mode, Object, Vm};
use support::{Words, memfd_pages, modes, pages, random, touch, vm, word};

/// Below what makes neighbouring mappings join.
const PAGES: u64 = 300;

/// Pages that the kernel holds in memfds of the VM, and mappings of them.
fn kernel() -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (memfd_pages(), maps.lines().filter(|line| line.contains("/memfd:prepage")).count() as u64)
}

/// Reads in the background may go on until `quiet`.
fn compare(vm: &Vm, objects: &[Object], maps: &[(usize, Map)], quiet: Instant, after: &str) {
    loop {
        let statistics = vm.statistics();
        let resident = || objects.iter().map(Object::resident_pages).sum::<u64>();
        let one_by_one = objects
            .iter()
            .map(|object| object.pages().iter().filter(|&page| object.is_resident(page)).count() as u64)
            .sum::<u64>();
        let found = [statistics.objects, statistics.maps, statistics.backings];
        let frames = [support::held(&statistics), resident(), one_by_one, kernel().0];
        let expected = [objects.len() as u64, maps.len() as u64, maps.len() as u64];
        if found == expected && frames == [frames[0]; 4] && kernel().1 == maps.len() as u64 {
            return;
        }
        assert!(
            Instant::now() < quiet,
            "after {after}: {found:?} and not {expected:?}; frames {frames:?}; the kernel maps {}",
            kernel().1
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn figures_are_exact_at_every_quiet_moment() {
    let vm = vm();
    let probe = vm.source("probe", Words { len_bytes: 4096, ..Default::default() }).unwrap();
    let modes = modes(&vm, &probe);
    drop(probe);
    if !modes.contains(&Mode::Inline) {
        return;
    }
    let mut random = random();
    let mut objects: Vec<Object> = Vec::new();
    let mut maps: Vec<(usize, Map)> = Vec::new();
    let mut quiet = Instant::now();
    for step in 0..3000 {
        if objects.len() < 3 {
            let len_bytes = (1 + random(PAGES)) * 4096 - random(4096);
            objects.push(vm.source("words", Words { len_bytes, ..Default::default() }).unwrap());
        }
        let which = random(objects.len() as u64) as usize;
        let object = &objects[which];
        let count = object.pages().len();
        let start = random(count);
        let range = pages(start, start + 1 + random(count - start));
        let after = match random(12) {
            0 | 1 if maps.len() < 12 => {
                let policy = ["none", "aligned:16", "around:3:2"][random(3) as usize].parse().unwrap();
                let options = if random(2) == 0 { MapOptions::private() } else { MapOptions::shared() };
                let mode = modes[random(modes.len() as u64) as usize];
                let options = options.mode(mode).policy(policy).window(range);
                maps.push((which, vm.map(object, &options).unwrap()));
                "map"
            }
            2 => {
                object.evict(range).unwrap();
                "evict"
            }
            3 if !maps.is_empty() => {
                drop(maps.swap_remove(random(maps.len() as u64) as usize));
                "unmap"
            }
            4 if step % 5 == 0 => {
                // Maps hold their object: all of them go, and then the handle.
                let gone = objects.remove(which);
                maps.retain(|(of, _)| *of != which);
                maps.iter_mut().for_each(|(of, _)| *of -= usize::from(*of > which));
                drop(gone);
                "drop of an object"
            }
            choice if !maps.is_empty() => {
                let which = random(maps.len() as u64) as usize;
                let (_, map) = &mut maps[which];
                change(map, choice, &mut random)
            }
            _ => "nothing",
        };
        if after == "will need" {
            quiet = Instant::now() + Duration::from_secs(60);
        }
        compare(&vm, &objects, &maps, quiet, after);
    }
    drop(maps);
    compare(&vm, &objects, &[], quiet, "unmapping all");
    drop(objects);
    compare(&vm, &[], &[], quiet, "the end");
    assert_eq!(kernel(), (0, 0));
}

/// Does something with a map; says what.
fn change(map: &mut Map, choice: u64, random: &mut impl FnMut(u64) -> u64) -> &'static str {
    let window = map.window();
    let page = random(window.len());
    let at = window.start().0 + page;
    let range = PageRange::new(PageIndex(at), PageIndex((at + 8).min(window.end().0)));
    let is_private = map.advise(Advice::DontNeed(PageRange::new(PageIndex(at), PageIndex(at)))).is_err();
    match choice {
        5 => {
            map.populate(range).unwrap();
            "populate"
        }
        6 if random(16) == 0 => {
            map.advise(Advice::WillNeed(range)).unwrap();
            "will need"
        }
        7 if is_private => {
            map.discard(range).unwrap();
            "discard"
        }
        7 => {
            map.advise(Advice::DontNeed(range)).unwrap();
            "don't need"
        }
        8 if is_private => {
            let offset = (page * 4096) as usize;
            if offset < map.as_slice().len() {
                map.as_mut_slice()[offset] ^= 1;
                map.as_mut_slice()[offset] ^= 1;
            }
            "write"
        }
        _ => {
            let offset = page * 4096;
            if offset + 8 <= map.len_bytes() {
                assert_eq!(touch(map, page), word(at * 4096));
            }
            "touch"
        }
    }
}
