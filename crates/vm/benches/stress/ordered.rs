//! Threads that touch a large file in order, so that blocks of it are read into huge pages and mapped at once, while pages of it are pinned, forgotten and
//! taken away: in a VM that records nothing, since records keep faults from showing pages ahead of touches. And a thread that touches it alone under a limit,
//! so that its faults take out what the reclaimer offers.

use std::io::{PipeReader, PipeWriter, Read};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use prepage_core::random::SplitMix as Random;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::memfd::Memfd;
use prepage_testing::write_pinned;
use prepage_vm::{Advice, Map, MapOptions, Mode, Object, Pool, Vm, VmOptions};

use super::{check, fill};

/// Pages of the file: 32 MiB, twice what has blocks.
const LARGE_PAGES: u64 = 8192;
const BLOCK: u64 = 512;
/// A thread alone has so much.
const FEW_BYTES: u64 = 4 << 20;
/// After so many steps of each kind of thread blocks were read and frames reclaimed. After fewer chance may have left that out.
const SURE_AFTER_STEPS: u64 = 300;

/// The file, in a VM that may hold all of it and in one that may not.
pub struct Ordered {
    pool: Pool,
    vm: Vm,
    file: Object,
    /// Whether blocks of the file are read as one.
    has_blocks: bool,
    few: Vm,
    file_of_few: Object,
    /// Steps of readers, of who takes frames away, and of the thread alone.
    steps: [AtomicU64; 3],
}

const READ: usize = 0;
const TAKEN: usize = 1;
const ALONE: usize = 2;

/// What the threads had, to be looked at when they are gone.
pub struct Rest {
    pool: Pool,
    vm: Vm,
    few: Vm,
    has_blocks: bool,
    steps: [u64; 3],
}

/// A thread with a map of its own.
pub struct Reader {
    map: Map,
    mode: Mode,
    pipe: (PipeReader, PipeWriter),
}

fn some(start: u64, pages: u64) -> PageRange {
    PageRange::new(PageIndex(start), PageIndex((start + pages).min(LARGE_PAGES)))
}

fn map(vm: &Vm, file: &Object, random: &mut Random) -> (Map, Mode) {
    let mode = if random.below(4) == 0 { Mode::Handler } else { Mode::Inline };
    let map = vm.map(file, &MapOptions::shared().mode(mode)).expect("userfaultfd is permitted");
    map.advise(Advice::Sequential).expect("a map");
    (map, mode)
}

fn touch_in_order(map: &Map, random: &mut Random) {
    let start = random.below(LARGE_PAGES);
    some(start, 1 + random.below(4 * BLOCK)).iter().for_each(|page| check(map, page.0, false));
}

impl Ordered {
    /// Writes the file.
    pub fn new(path: &Path) -> Self {
        let mut bytes = vec![0; (LARGE_PAGES * PAGE_SIZE) as usize];
        fill(0, &mut bytes);
        std::fs::write(path, &bytes).expect("room for 32 MiB");
        let pool = Pool::new(u64::MAX).expect("a pool");
        let vm = Vm::new(VmOptions::default().pool(&pool)).expect("a VM");
        let few = Vm::new(VmOptions::default().frame_limit_bytes(FEW_BYTES)).expect("a VM");
        let [file, file_of_few] = [&vm, &few].map(|vm| vm.file(path).expect("just written"));
        // As the object of a large file finds it.
        let has_blocks = Memfd::create_with_blocks("probe", BLOCK * PAGE_SIZE).expect("a memfd").has_blocks();
        Self { pool, vm, file, has_blocks, few, file_of_few, steps: Default::default() }
    }

    /// Takes frames away, or out of all maps, in one of the ways there are.
    pub fn take_some(&self, random: &mut Random) {
        self.steps[TAKEN].fetch_add(1, Ordering::Relaxed);
        let range = some(random.below(LARGE_PAGES), 1 + random.below(2 * BLOCK));
        match random.below(8) {
            0 => drop(self.file.evict(self.file.pages()).expect("holes can be punched")),
            1 | 2 => drop(self.file.evict(range).expect("holes can be punched")),
            3 | 4 => drop(self.file.unwire(range).expect("pages can be unmapped")),
            _ => drop(self.pool.reclaim(1 + random.below(LARGE_PAGES / 4))),
        }
        thread::sleep(Duration::from_micros(random.below(3000)));
    }

    /// To be looked at once all threads have ended.
    pub fn rest(&self) -> Rest {
        let steps = self.steps.each_ref().map(|steps| steps.load(Ordering::Relaxed));
        let (pool, vm, few) = (self.pool.clone(), self.vm.clone(), self.few.clone());
        Rest { pool, vm, few, has_blocks: self.has_blocks, steps }
    }
}

impl Reader {
    /// One of the threads that may have all of the file in memory.
    pub fn new(ordered: &Ordered, random: &mut Random) -> Self {
        let (map, mode) = map(&ordered.vm, &ordered.file, random);
        Self { map, mode, pipe: std::io::pipe().expect("two descriptors") }
    }

    pub fn step(&mut self, ordered: &Ordered, random: &mut Random) {
        ordered.steps[READ].fetch_add(1, Ordering::Relaxed);
        match random.below(16) {
            0 => (self.map, self.mode) = map(&ordered.vm, &ordered.file, random),
            1 => {
                // Whoever says so again begins anew.
                let advice = if random.below(2) == 0 { Advice::Random } else { Advice::Sequential };
                self.map.advise(advice).expect("a map");
            }
            2..5 => {
                let range = some(random.below(LARGE_PAGES), 1 + random.below(3 * BLOCK));
                self.map.populate(range).expect("a file that is there");
                check(&self.map, range.start().0, false);
            }
            5 => self.forget(random.below(LARGE_PAGES), random),
            6..11 => self.pin(random),
            _ => touch_in_order(&self.map, random),
        }
    }

    fn forget(&self, start: u64, random: &mut Random) {
        let range = some(start, 1 + random.below(BLOCK));
        self.map.advise(Advice::DontNeed(range)).expect("a shared map");
    }

    /// What is pinned can be given to system calls, whatever is taken away around it.
    fn pin(&self, random: &mut Random) {
        let range = some(random.below(LARGE_PAGES), 1 + random.below(8));
        let pinned = self.map.pin(range).expect("a file that is there");
        let bytes = &self.map.as_slice()[range.start().offset_bytes() as usize..][..range.bytes() as usize];
        for _ in 0..1 + random.below(16) {
            match random.below(4) {
                // Around it, over it, beside it.
                0 => self.forget(range.start().0.saturating_sub(random.below(BLOCK)), random),
                1 => check(&self.map, random.below(LARGE_PAGES), false),
                2 => thread::sleep(Duration::from_micros(random.below(500))),
                _ => {}
            }
            // In handler mode the call would wait for a page that is not there.
            if self.mode == Mode::Inline {
                let mut received = [0; PAGE_SIZE as usize];
                for page in bytes.chunks(received.len()) {
                    write_pinned(&self.pipe.1, page).expect("pinned pages are in the map");
                    (&self.pipe.0).read_exact(&mut received).expect("just written");
                    assert!(received == page, "other bytes than were written");
                }
            }
            range.iter().for_each(|page| check(&self.map, page.0, false));
        }
        drop(pinned);
    }
}

/// The thread that has few frames, and those alone.
pub struct Alone(Map);

impl Alone {
    pub fn new(ordered: &Ordered, random: &mut Random) -> Self {
        Self(map(&ordered.few, &ordered.file_of_few, random).0)
    }

    pub fn step(&mut self, ordered: &Ordered, random: &mut Random) {
        ordered.steps[ALONE].fetch_add(1, Ordering::Relaxed);
        match random.below(8) {
            0 => *self = Self::new(ordered, random),
            1 => (0..256).for_each(|_| check(&self.0, random.below(LARGE_PAGES), false)),
            _ => touch_in_order(&self.0, random),
        }
    }
}

impl Rest {
    /// Nothing is left, and what is to be tested was done. Reads in the background end before.
    pub fn check(&self) {
        let counted = [&self.vm, &self.few].map(|vm| {
            super::wait_for_objects(vm);
            let now = vm.statistics();
            let held =
                [now.objects, now.maps, now.backings, now.pool.resident_pages + now.pool.promised_pages];
            assert_eq!(held, [0; 4], "objects, maps, backings, frames left of the large file");
            assert!(vm.take_failures().is_empty(), "no page fails");
            now.counted
        });
        let figures = self.pool.figures();
        assert_eq!((figures.resident_pages, figures.pinned_pages, figures.promised_pages), (0, 0, 0));
        let are_sure = |kinds: &[usize]| kinds.iter().all(|&kind| self.steps[kind] >= SURE_AFTER_STEPS);
        let [of_all, of_few] = counted;
        let steps = self.steps;
        assert!(of_all.pages_reclaimed > 0 || !are_sure(&[READ, TAKEN]), "nothing was reclaimed: {steps:?}");
        assert!(of_few.pages_reclaimed > 0 || !are_sure(&[ALONE]), "nothing was reclaimed of few: {steps:?}");
        let has_read = of_all.blocks_read > 0 || !self.has_blocks || !are_sure(&[READ, TAKEN]);
        assert!(has_read, "no block was read: {steps:?}");
    }
}
