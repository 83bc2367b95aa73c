//! Who maps a page is told from the backings. Here the kernel is asked the other way round, without them: which addresses of
//! this process show which page of which memfd, by /proc/self/maps and /proc/self/pagemap.
//!
//! One test: it looks at all mappings of the process.

mod support;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_vm::{Advice, Map, MapOptions, Object, Piece, Vm};
use support::{Words, memfds, modes, pages, random, touch, vm};

const PAGES: u64 = 200;
const BLOCK: u64 = 512;
/// Longer than anything takes here, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every address at which this process shows a page of a memfd of the VM as it is there: the memfd's inode, the page and the
/// address.
fn shown() -> BTreeSet<(u64, u64, u64)> {
    const PRESENT: u64 = 1 << 63;
    const OF_FILE: u64 = 1 << 61;
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let mut found = BTreeSet::new();
    for line in std::fs::read_to_string("/proc/self/maps").unwrap().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        // No map of this test is shared and writable: what is, is the place that files are read to.
        if fields.get(5) != Some(&"/memfd:prepage") || fields[1] == "rw-s" {
            continue;
        }
        let (start, end) = fields[0].split_once('-').unwrap();
        let [start, end, offset] = [start, end, fields[2]].map(|text| u64::from_str_radix(text, 16).unwrap());
        let inode: u64 = fields[4].parse().unwrap();
        for address in (start..end).step_by(PAGE_SIZE as usize) {
            let mut word = [0; 8];
            pagemap.read_exact_at(&mut word, address / PAGE_SIZE * 8).unwrap();
            let word = u64::from_ne_bytes(word);
            if word & PRESENT != 0 && word & OF_FILE != 0 {
                found.insert((inode, (offset + address - start) / PAGE_SIZE, address));
            }
        }
    }
    found
}

/// What the VM says of all pages of `objects`, with the inodes of their memfds.
fn told(objects: &[(u64, Object)]) -> BTreeSet<(u64, u64, u64)> {
    let mut found = BTreeSet::new();
    for (inode, object) in objects {
        for page in object.pages().iter() {
            for (address, backing) in object.mappings_of(page).unwrap() {
                assert_eq!(backing.address_of(page), Some(address));
                found.insert((*inode, page.0, address));
            }
        }
    }
    found
}

/// A file of which blocks of 2 MiB are read as one, where that is permitted, with the inode of its frames.
fn a_file_in_blocks(vm: &Vm, inodes: &dyn Fn() -> BTreeSet<u64>) -> Option<(u64, Object)> {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8 * BLOCK * PAGE_SIZE).unwrap();
    let before = inodes();
    let object = vm.file(file.path()).unwrap();
    Some((inodes().into_iter().find(|inode| !before.contains(inode))?, object))
}

#[test]
fn the_backings_tell_what_the_page_tables_show() {
    let vm = vm();
    let inodes = || memfds().iter().map(|(_, facts)| facts.ino()).collect::<BTreeSet<u64>>();
    let mut objects: Vec<(u64, Object)> = Vec::new();
    for _ in 0..3 {
        let before = inodes();
        let object =
            vm.source("words", Words { len_bytes: PAGES * PAGE_SIZE, ..Default::default() }).unwrap();
        let inode = inodes().into_iter().find(|inode| !before.contains(inode)).expect("a new memfd");
        objects.push((inode, object));
    }
    let modes = modes(&vm, &objects[0].1);
    if modes.is_empty() {
        return;
    }
    let mut random = random();
    let mut maps: Vec<Map> = Vec::new();
    let mut compared = 0;
    for step in 0..600 {
        let (_, object) = &objects[random(3) as usize];
        let start = random(PAGES - 1);
        let range = pages(start, start + 1 + random(PAGES - start));
        match random(8) {
            0 | 1 if maps.len() < 10 => {
                let options = if random(2) == 0 { MapOptions::private() } else { MapOptions::shared() };
                let options = options.mode(modes[random(modes.len() as u64) as usize]).window(range);
                let options = if random(2) == 0 { options.every_fault() } else { options };
                maps.push(vm.map(object, &options).unwrap());
            }
            2 if maps.len() < 10 => {
                let other = &objects[random(3) as usize].1;
                let pieces =
                    [Piece::new(object, range), Piece::new(other, range), Piece::new(object, range).copied()];
                maps.push(vm.map_pieces(&pieces, &MapOptions::private()).unwrap());
            }
            3 => drop(object.evict(range).unwrap()),
            4 if !maps.is_empty() => drop(maps.swap_remove(random(maps.len() as u64) as usize)),
            _ if !maps.is_empty() => {
                let which = random(maps.len() as u64) as usize;
                let map = &mut maps[which];
                let window = map.window();
                for _ in 0..random(20) {
                    touch(map, random(window.len()));
                }
                let page = PageIndex(window.start().0 + random(window.len()));
                let one = pages(page.0, page.0 + 1);
                if map.advise(Advice::DontNeed(one)).is_err() {
                    let at = ((page.0 - window.start().0) * PAGE_SIZE) as usize;
                    map.as_mut_slice()[at] ^= 1;
                    if random(2) == 0 {
                        map.discard(one).unwrap();
                    } else {
                        map.as_mut_slice()[at] ^= 1;
                    }
                }
            }
            _ => {}
        }
        if step % 10 == 0 {
            // A handler thread maps neighbours after it let the toucher go on.
            let quiet = Instant::now() + PATIENCE;
            let kernel = loop {
                let (said, kernel) = (told(&objects), shown());
                if said == kernel || Instant::now() > quiet {
                    assert_eq!(said, kernel, "after step {step}");
                    break kernel;
                }
            };
            compared += kernel.len();
        }
    }
    assert!(compared > 1000, "{compared} mapped pages compared");
    maps.clear();
    objects.extend(a_file_in_blocks(&vm, &inodes));
    let large = &objects[3].1;
    let maps = [(); 2].map(|()| vm.map(large, &MapOptions::shared()).unwrap());
    maps[0].advise(Advice::Sequential).unwrap();
    large.pages().iter().for_each(|page| _ = touch(&maps[0], page.0));
    maps[1].populate(pages(0, 3 * BLOCK)).unwrap();
    let compare = |what: &str| {
        // What is read ahead may come a while later.
        let quiet = Instant::now() + PATIENCE;
        loop {
            let (said, kernel) = (told(&objects), shown());
            if said == kernel || Instant::now() > quiet {
                assert_eq!(said, kernel, "{what}");
                break;
            }
        }
    };
    compare("in blocks");
    large.evict(pages(BLOCK + 7, BLOCK + 8)).unwrap();
    compare("a page of a block is gone");
    large.unwire(pages(2 * BLOCK - 3, 2 * BLOCK + 3)).unwrap();
    maps[1].advise(Advice::DontNeed(pages(5, 6))).unwrap();
    compare("blocks are out of maps");
    // The comparison can fail: a page that is forgotten behind the VM's back is missed.
    let map = vm.map(&objects[0].1, &MapOptions::shared()).unwrap();
    touch(&map, 0);
    let told_before = told(&objects);
    map.advise(Advice::DontNeed(pages(0, 1))).unwrap();
    assert_ne!(told_before, shown());
}
