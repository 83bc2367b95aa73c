//! Threads that write, each beside a plain copy of what must be read: chains of snapshots and clones, maps that children of fork(2) keep,
//! files that can be written to, and memory that goes to a swap file. Every page is full of one number, and all of it is checked.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use prepage_core::random::SplitMix as Random;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::forked::Forked;
use prepage_vm::{Map, MapError, MapOptions, Mode, Object, SnapshotError};

use super::{PAGES, Stress, TICK, word};

/// Pages of a map that snapshots are taken of, and how many maps and snapshots a thread keeps: few, since frozen pages are never reclaimed.
const CHAIN_PAGES: u64 = 20;
/// Of zeros there are more, which nobody touches: huge pages have room there.
const ZERO_PAGES: u64 = 1024;
const MAPS: usize = 2;
const SNAPSHOTS: usize = 3;
/// Pages of the file that is written to.
pub const FILE_PAGES: u64 = 256;
/// Pages of memory, of which half fit under the limit of the test.
const MEMORY_PAGES: u64 = 1024;
const WORDS: usize = PAGE_SIZE as usize / 8;

fn range(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex(start), PageIndex(end))
}

fn mode(random: &mut Random) -> Mode {
    if random.below(2) == 0 { Mode::Handler } else { Mode::Inline }
}

fn page_of(value: u64) -> [u8; PAGE_SIZE as usize] {
    let mut page = [0; PAGE_SIZE as usize];
    page.chunks_mut(8).for_each(|word| word.copy_from_slice(&value.to_le_bytes()));
    page
}

fn assert_full(bytes: &[u8], value: u64, what: &str, page: u64) {
    let wrong = bytes.chunks(8).position(|chunk| chunk != value.to_le_bytes());
    if let Some(wrong) = wrong {
        let found = u64::from_le_bytes(bytes[wrong * 8..][..8].try_into().expect("eight bytes"));
        panic!("{what}: word {wrong} of page {page} is {found:#x} and not {value:#x}");
    }
}

fn check_page(map: &Map, page: u64, value: u64, what: &str) {
    let bytes = std::hint::black_box(map.as_slice());
    assert_full(&bytes[(page * PAGE_SIZE) as usize..][..PAGE_SIZE as usize], value, what, page);
}

fn check_all(map: &Map, expected: &[u64], what: &str) {
    (0..).zip(expected).for_each(|(page, value)| check_page(map, page, *value, what));
}

/// The words of the first `pages` pages of a map, which threads write to without borrowing it.
fn words(map: &Map, pages: usize) -> &[AtomicU64] {
    assert!(pages as u64 <= map.window().len());
    // SAFETY: the pages lie in the map, which is private and writable and lives as long as the slice; meanwhile nobody uses its bytes in
    // another way.
    unsafe { std::slice::from_raw_parts(map.address() as *const AtomicU64, pages * WORDS) }
}

struct Modelled {
    map: Map,
    now: Vec<u64>,
    /// What it shows where it is discarded.
    below: Vec<u64>,
}

/// Maps, snapshots of them, clones of these, and so on.
pub struct Chains {
    zeros: Object,
    maps: Vec<Modelled>,
    snapshots: Vec<(Object, Vec<u64>)>,
    last: u64,
}

impl Chains {
    pub fn new(stress: &Stress, number: usize) -> Self {
        let zeros = stress.vm.anonymous(ZERO_PAGES * PAGE_SIZE).expect("a small object");
        Self { zeros, maps: Vec::new(), snapshots: Vec::new(), last: (number as u64) << 48 }
    }

    pub fn step(&mut self, stress: &Stress, random: &mut Random) {
        if self.maps.is_empty() {
            return self.map(stress, random);
        }
        let which = random.below(self.maps.len() as u64) as usize;
        match random.below(24) {
            0 | 1 if self.maps.len() < MAPS => self.map(stress, random),
            2 => {
                let gone = self.maps.swap_remove(which);
                check_all(&gone.map, &gone.now, "a map that goes");
            }
            3 | 4 if !self.snapshots.is_empty() => {
                let at = random.below(self.snapshots.len() as u64) as usize;
                let (snapshot, expected) = self.snapshots.swap_remove(at);
                let clone = stress.vm.map(&snapshot, &MapOptions::private()).expect("a small map");
                drop(snapshot);
                check_all(&clone, &expected, "a snapshot that goes");
            }
            5 => drop(stress.vm.free_shadowed().expect("holes can be punched")),
            6 => {
                let modelled = &mut self.maps[which];
                let (start, end) = part(modelled.now.len() as u64, random);
                let first = modelled.map.window().start().0;
                modelled.map.discard(range(first + start, first + end)).expect("pages of the map");
                let discarded = start as usize..end as usize;
                modelled.now[discarded.clone()].copy_from_slice(&modelled.below[discarded]);
            }
            7..10 if self.snapshots.len() < SNAPSHOTS => {
                let modelled = &mut self.maps[which];
                // Pages are brought in meanwhile.
                let taken = thread::scope(|scope| {
                    let map = &modelled.map;
                    let first = map.window().start().0;
                    let pages = range(first, first + modelled.now.len() as u64);
                    scope.spawn(move || map.populate(pages).expect("good pages"));
                    map.snapshot()
                });
                if let Some(snapshot) = kept(taken) {
                    self.snapshots.push((snapshot, modelled.now.clone()));
                    modelled.below.clone_from(&modelled.now);
                }
            }
            10 => self.freeze_while_written(stress, which),
            11..17 => {
                let modelled = &mut self.maps[which];
                let (start, end) = part(modelled.now.len() as u64, random);
                for page in start..end {
                    self.last += 1;
                    let at = (page * PAGE_SIZE) as usize;
                    modelled.map.as_mut_slice()[at..][..PAGE_SIZE as usize]
                        .copy_from_slice(&page_of(self.last));
                    modelled.now[page as usize] = self.last;
                }
            }
            _ => {
                let modelled = &self.maps[which];
                let page = random.below(modelled.now.len() as u64);
                check_page(&modelled.map, page, modelled.now[page as usize], "a map");
            }
        }
    }

    fn map(&mut self, stress: &Stress, random: &mut Random) {
        let options = MapOptions::private().mode(mode(random));
        let (map, now) = match random.below(2 + self.snapshots.len() as u64) {
            0 => {
                let start = random.below(PAGES - CHAIN_PAGES);
                let window = range(start, start + CHAIN_PAGES);
                let map = stress.vm.map(&stress.file, &options.window(window));
                (map, (start..start + CHAIN_PAGES).map(word).collect())
            }
            1 => (stress.vm.map(&self.zeros, &options), vec![0; CHAIN_PAGES as usize]),
            other => {
                let (snapshot, expected) = &self.snapshots[other as usize - 2];
                // In vain where anything was frozen; of maps that have huge pages there are no snapshots.
                let is_frozen = snapshot.resident_pages() > 0;
                let options = if is_frozen && random.below(4) == 0 { options.huge_pages() } else { options };
                if random.below(3) == 0 {
                    let (start, end) = part(expected.len() as u64, random);
                    let map = stress.vm.map(snapshot, &options.window(range(start, end)));
                    (map, expected[start as usize..end as usize].to_vec())
                } else {
                    (stress.vm.map(snapshot, &options), expected.clone())
                }
            }
        };
        let map = map.expect("a small map");
        self.maps.push(Modelled { map, below: now.clone(), now });
    }

    /// A snapshot of a map that another thread writes to, word after word: it has the first of them, and none of the others.
    fn freeze_while_written(&mut self, stress: &Stress, which: usize) {
        let modelled = &mut self.maps[which];
        self.last += 1;
        let value = self.last;
        let taken = thread::scope(|scope| {
            let words = words(&modelled.map, modelled.now.len());
            scope.spawn(move || words.iter().for_each(|word| word.store(value, Ordering::SeqCst)));
            modelled.map.snapshot()
        });
        if let Some(snapshot) = kept(taken) {
            let clone = stress.vm.map(&snapshot, &MapOptions::private()).expect("a small map");
            let words = clone.as_slice()[..modelled.now.len() * PAGE_SIZE as usize].as_chunks().0;
            let seen: Vec<u64> = words.iter().copied().map(u64::from_le_bytes).collect();
            let written = seen.iter().take_while(|&&seen| seen == value).count();
            for (at, seen) in seen.iter().enumerate().skip(written) {
                assert_eq!(*seen, modelled.now[at / WORDS], "word {at} of a snapshot that has {written}");
            }
        }
        modelled.now.fill(value);
        check_all(&modelled.map, &modelled.now, "a map after a snapshot");
        // What a discard shows is to be a number a page again.
        match kept(modelled.map.snapshot()) {
            Some(_) => modelled.below.clone_from(&modelled.now),
            None => drop(self.maps.swap_remove(which)),
        }
    }
}

/// `None` where there are no frames for it, which is an answer too.
fn kept(snapshot: Result<Object, SnapshotError>) -> Option<Object> {
    match snapshot {
        Ok(snapshot) => Some(snapshot),
        Err(SnapshotError::NoFrames) => None,
        Err(error) => panic!("{error}"),
    }
}

/// A few pages of so many.
fn part(pages: u64, random: &mut Random) -> (u64, u64) {
    let start = random.below(pages);
    let most = if random.below(4) == 0 { pages } else { 4 };
    (start, pages.min(start + 1 + random.below(most)))
}

/// Children that keep a map as it was while both write.
pub fn fork_with_map(stress: &Stress, random: &mut Random) {
    const PAGES_HERE: u64 = 64;
    let start = random.below(PAGES - PAGES_HERE);
    let zeros = stress.vm.anonymous(PAGES_HERE * PAGE_SIZE).expect("a small object");
    let options = MapOptions::private().mode(Mode::Handler).inherit(true);
    let (map, mut now) = match random.below(2) {
        0 => (stress.vm.map(&zeros, &options), vec![0; PAGES_HERE as usize]),
        _ => {
            let window = range(start, start + PAGES_HERE);
            let map = stress.vm.map(&stress.file, &options.window(window));
            (map, (start..start + PAGES_HERE).map(word).collect::<Vec<_>>())
        }
    };
    let mut map = match map {
        Ok(map) => map,
        // Not this user.
        Err(MapError::Userfaultfd(_)) => return thread::sleep(TICK),
        Err(error) => panic!("{error}"),
    };
    let write = |map: &mut Map, now: &mut Vec<u64>, random: &mut Random| {
        for _ in 0..random.below(PAGES_HERE / 2) {
            let (page, value) = (random.below(PAGES_HERE), random.below(u64::MAX));
            let at = (page * PAGE_SIZE) as usize;
            map.as_mut_slice()[at..][..PAGE_SIZE as usize].copy_from_slice(&page_of(value));
            now[page as usize] = value;
        }
    };
    write(&mut map, &mut now, random);
    let child = Forked::new(|| {
        check_all(&map, &now, "a child's map");
        map.as_mut_slice().as_chunks_mut().0.fill(77_u64.to_le_bytes());
        check_all(&map, &[77; PAGES_HERE as usize], "what a child wrote");
        0
    });
    let child = child.expect("no more processes");
    write(&mut map, &mut now, random);
    let status = child.wait().expect("a child of this thread");
    assert_eq!(status.exit_status(), Some(0), "a child with a map of its parent's: {status:?}");
    check_all(&map, &now, "a parent's map");
}

/// Shared memory or a file that threads write to: each to pages of its own.
pub struct Shared {
    object: Object,
    map: Map,
    /// Of the file, if it is one.
    file: Option<File>,
    /// Its own pages are those of which the number is `own` modulo `step`.
    own: u64,
    step: u64,
    now: Vec<u64>,
    last: u64,
}

impl Shared {
    /// One of two threads that write to the file.
    pub fn file(stress: &Stress, own: u64) -> Self {
        let file = File::open(&stress.written_path).expect("just made");
        Self::of(stress, stress.written.clone(), Some(file), own, 2)
    }

    pub fn memory(stress: &Stress) -> Self {
        let memory = stress.vm.memory(MEMORY_PAGES * PAGE_SIZE).expect("a small object");
        Self::of(stress, memory, None, 0, 1)
    }

    fn of(stress: &Stress, object: Object, file: Option<File>, own: u64, step: u64) -> Self {
        let map = stress.vm.map(&object, &MapOptions::writable()).expect("a small map");
        let now = vec![0; object.pages().len() as usize];
        Self { object, map, file, own, step, now, last: own << 48 }
    }

    fn pages(&self) -> impl Iterator<Item = u64> + use<> {
        (self.own..self.object.pages().len()).step_by(self.step as usize)
    }

    pub fn step(&mut self, stress: &Stress, random: &mut Random) {
        let pages = self.object.pages().len();
        let (start, end) = part(pages, random);
        let end = end.min(start + 64);
        let own = self.pages().filter(|page| (start..end).contains(page));
        match random.below(32) {
            0 => {
                let options = MapOptions::writable().mode(mode(random));
                self.map = stress.vm.map(&self.object, &options).expect("a small map");
            }
            1 => drop(self.object.evict(range(start, end)).expect("holes can be punched")),
            2 => drop(self.object.unwire(range(start, end)).expect("pages can be unmapped")),
            3 => drop(self.object.write_back(range(start, end)).expect("there is room")),
            4 => self.flush(range(start, end)),
            5 if self.file.is_none() && random.below(16) == 0 => {
                self.check_all();
                *self = Self::memory(stress);
            }
            6..16 => {
                let by_touch = random.below(2) == 0;
                for page in own {
                    self.last += 1;
                    let (at, bytes) = (page * PAGE_SIZE, page_of(self.last));
                    if by_touch {
                        let touched = &self.map.as_atomics()[at as usize..];
                        touched.iter().zip(bytes).for_each(|(to, byte)| to.store(byte, Ordering::Relaxed));
                    } else {
                        self.map.write_at(at, &bytes).expect("good pages");
                    }
                    self.now[page as usize] = self.last;
                }
            }
            _ => {
                let by_touch = random.below(2) == 0;
                own.for_each(|page| self.check(page, by_touch));
            }
        }
    }

    fn check(&self, page: u64, by_touch: bool) {
        let mut bytes = [0; PAGE_SIZE as usize];
        let at = page * PAGE_SIZE;
        if by_touch {
            let touched = &self.map.as_atomics()[at as usize..];
            bytes.iter_mut().zip(touched).for_each(|(to, byte)| *to = byte.load(Ordering::Relaxed));
        } else {
            self.map.read_at(at, &mut bytes).expect("good pages");
        }
        assert_full(&bytes, self.now[page as usize], self.object.name(), page);
    }

    fn check_all(&self) {
        self.pages().for_each(|page| self.check(page, false));
    }

    /// After it the thread's own pages of `range` are in the file.
    fn flush(&self, range: PageRange) {
        let Some(file) = &self.file else { return };
        self.object.flush(range).expect("there is room");
        for page in self.pages().filter(|&page| range.contains(PageIndex(page))) {
            let mut bytes = [0; PAGE_SIZE as usize];
            file.read_exact_at(&mut bytes, page * PAGE_SIZE).expect("a file of this length");
            assert_full(&bytes, self.now[page as usize], "the file", page);
        }
    }

    /// All of it, once more.
    pub fn end(&self) {
        self.check_all();
        self.flush(self.object.pages());
    }
}
