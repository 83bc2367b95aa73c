//! Threads that touch, map, unmap, discard and evict what slow, failing and hostile sources give, under a watchdog, for
//! SECONDS: by default 600, and 5 as one of the tests. Every byte is checked; at the end every count must be back where
//! it was.
//!
//! Ends with status 0 and a line of figures, or aborts saying what was wrong.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use prepage_core::policy::Neighbours;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_vm::{Advice, Map, MapOptions, Mode, Object, Source, SourceError, Vm, VmOptions};

const PAGES: u64 = 2048;
/// What the threads do, by their number: those below `TOUCHERS` touch, those from `DISTURB` on disturb.
const TOUCHERS: u64 = 4;
const ZEROS: u64 = TOUCHERS;
const AGAIN: u64 = TOUCHERS + 1;
const DISTURB: u64 = TOUCHERS + 2;
const THREADS: u64 = DISTURB + 2;
/// A thread that ended no step for so long is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// What every page begins with.
fn word(page: u64) -> u64 {
    (page + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(offset_bytes: u64, into: &mut [u8]) {
    for (index, bytes) in into.chunks_mut(PAGE_SIZE as usize).enumerate() {
        let word = word(offset_bytes / PAGE_SIZE + index as u64).to_le_bytes();
        bytes.chunks_mut(8).for_each(|chunk| chunk.copy_from_slice(&word[..chunk.len()]));
    }
}

/// A stream of numbers for decisions (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// Gives the right bytes, late, not at once, after failing, or after writing nonsense into the buffer.
struct Hostile {
    calls: AtomicU64,
    /// Pages of which the number modulo 64 is this fail now and then.
    bad: u64,
}

impl Source for Hostile {
    fn len_bytes(&self) -> u64 {
        PAGES * PAGE_SIZE
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let pages = PageRange::covering(offset_bytes, into.len() as u64);
        let bad = pages.iter().any(|page| page.0 % 64 == self.bad);
        match call % 97 {
            1 => thread::sleep(Duration::from_millis(2)),
            2 => {
                into.fill(0xee);
                return Err(SourceError::Again);
            }
            3 if bad => {
                into.fill(0xdd);
                return Err(SourceError::Other("not today".to_owned()));
            }
            5 if bad => {
                into.fill(0xcc);
                panic!("{EXPECTED}");
            }
            _ => {}
        }
        fill(offset_bytes, into);
        Ok(())
    }
}

const EXPECTED: &str = "a source that panics, as it should in this test";

/// Touches pages of `map`, all of whose bytes must be right. Pages that may fail are touched by copy.
fn check(map: &Map, page: u64, by_copy: bool) {
    let at = page * PAGE_SIZE;
    let expected = word(map.window().start().0 + page).to_le_bytes();
    if by_copy {
        let mut bytes = [0; PAGE_SIZE as usize];
        // A failure is an answer too; wrong bytes are not.
        if map.read_at(at, &mut bytes).is_err() {
            return;
        }
        assert!(bytes.chunks(8).all(|chunk| chunk == expected), "wrong bytes in page {page}");
        return;
    }
    let bytes = &map.as_slice()[at as usize..][..PAGE_SIZE as usize];
    assert!(
        std::hint::black_box(bytes).chunks(8).all(|chunk| chunk == expected),
        "wrong bytes in page {page}"
    );
}

struct Stress {
    vm: Vm,
    /// Good, and read by the faulting thread; hostile.
    file: Object,
    hostile: Object,
    stop: AtomicBool,
    /// Steps each thread ended.
    steps: Vec<AtomicU64>,
}

impl Stress {
    fn options(&self, random: &mut Random, private: bool) -> MapOptions {
        let policies = [
            "none",
            "aligned:16",
            "adaptive",
            "linux-data",
            "sequential:63",
            "around:8:7",
            "slurp",
            "linux-exec",
        ];
        let policy = policies[random.below(policies.len() as u64) as usize].parse().expect("a policy");
        let mode = if random.below(4) == 0 { Mode::Handler } else { Mode::Inline };
        let options = if private { MapOptions::private() } else { MapOptions::shared() };
        let options = options.mode(mode).policy(policy);
        if random.below(3) == 0 {
            options.neighbours(Neighbours::Block(1 << random.below(7)))
        } else {
            options
        }
    }

    /// Maps something, touches it in some order, changes and forgets, unmaps.
    fn touch_some(&self, random: &mut Random, long_lived: &[Map]) {
        let hostile = random.below(4) == 0;
        let object = if hostile { &self.hostile } else { &self.file };
        let start = random.below(PAGES - 1);
        let window = PageRange::new(PageIndex(start), PageIndex(start + 1 + random.below(PAGES - start)));
        let private = random.below(2) == 0;
        let mut map = match self.vm.map(object, &self.options(random, private).window(window)) {
            Ok(map) => map,
            Err(error) => panic!("{error}"),
        };
        let pages = window.len();
        for _ in 0..pages.min(1 + random.below(512)) {
            check(&map, random.below(pages), hostile);
            let shared = &long_lived[random.below(2) as usize];
            check(shared, random.below(PAGES), false);
        }
        if private && !hostile {
            let page = random.below(pages);
            let at = (page * PAGE_SIZE) as usize;
            map.as_mut_slice()[at..at + 8].copy_from_slice(&7_u64.to_le_bytes());
            assert_eq!(map.as_slice()[at..at + 8], 7_u64.to_le_bytes());
            let whole =
                PageRange::new(PageIndex(window.start().0 + page), PageIndex(window.start().0 + page + 1));
            map.discard(whole).expect("a page of the map");
            check(&map, page, false);
        }
        if random.below(8) == 0 {
            let _ = map.populate(window);
        }
    }

    /// Touches pages one by one, forgets the mappings and touches them again: many faults that read nothing.
    fn touch_again(&self, random: &mut Random, mode: Mode) {
        let policy = "none".parse().expect("a policy");
        let options = MapOptions::shared().mode(mode).policy(policy).neighbours(Neighbours::Block(1));
        let map = self.vm.map(&self.file, &options).expect("a small map");
        for _ in 0..8 {
            let start = random.below(PAGES - 256);
            (start..start + 256).for_each(|page| check(&map, page, false));
            let range = PageRange::new(PageIndex(start), PageIndex(start + 256));
            map.advise(Advice::DontNeed(range)).expect("a shared map");
        }
    }

    fn zero_some(&self, random: &mut Random) {
        let object = self.vm.anonymous(PAGES * PAGE_SIZE).expect("a small object");
        let mode = if random.below(2) == 0 { Mode::Handler } else { Mode::Inline };
        let mut options = MapOptions::private().mode(mode).zero_cluster(1 << random.below(4));
        if random.below(16) == 0 {
            options = options.huge_pages();
        }
        let mut map = self.vm.map(&object, &options).expect("a small map");
        for _ in 0..128 {
            let at = (random.below(PAGES) * PAGE_SIZE) as usize;
            let before = map.as_slice()[at + 8];
            assert!(before == 0 || before == 1, "zeros, or what was written");
            map.as_mut_slice()[at + 8] = 1;
        }
    }

    /// Takes frames and mappings away from the others.
    fn disturb(&self, random: &mut Random, long_lived: &[Map]) {
        let start = random.below(PAGES);
        let end = (start + 1 + random.below(256)).min(PAGES);
        let range = PageRange::new(PageIndex(start), PageIndex(end));
        match random.below(4) {
            0 => drop(self.file.evict(range).expect("holes can be punched")),
            1 => drop(self.hostile.evict(range).expect("holes can be punched")),
            2 => long_lived[random.below(2) as usize].advise(Advice::DontNeed(range)).expect("a shared map"),
            _ => {
                long_lived[random.below(2) as usize].advise(Advice::WillNeed(range)).expect("a range within")
            }
        }
        for page in [start, end - 1] {
            let mappings = self.file.mappings_of(PageIndex(page)).expect("pagemap");
            assert!(mappings.iter().all(|(_, backing)| backing.window.contains(PageIndex(page))));
        }
        thread::sleep(Duration::from_micros(random.below(300)));
    }

    fn work(&self, number: usize, long_lived: &[Map]) {
        let mut random = Random(0x2545_f491_4f6c_dd1d ^ (number as u64 + 1) << 17);
        while !self.stop.load(Ordering::Relaxed) {
            match number as u64 {
                number if number < TOUCHERS => self.touch_some(&mut random, long_lived),
                ZEROS => self.zero_some(&mut random),
                AGAIN => {
                    let mode = if random.below(8) == 0 { Mode::Handler } else { Mode::Inline };
                    self.touch_again(&mut random, mode);
                }
                _ => self.disturb(&mut random, long_lived),
            }
            self.steps[number].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn give_up(thread: usize, stress: &Stress) -> ! {
    eprintln!("thread {thread} ended no step for {PATIENCE:?}: {:?}", stress.vm.statistics().counted);
    std::process::abort();
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        return println!("stress: test");
    }
    let mut filters = arguments.iter().filter(|argument| !argument.starts_with('-')).peekable();
    if filters.peek().is_some() && !filters.any(|filter| "stress".contains(filter.as_str())) {
        // As a test, and another one was asked for.
        return;
    }
    // What `cargo bench` adds, and `cargo test` does not.
    let is_bench = arguments.iter().any(|argument| argument == "--bench");
    let default = if is_bench { 600 } else { 5 };
    let seconds = std::env::var("SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(default);
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() == Some(&EXPECTED)
            || panic.payload().downcast_ref::<String>().is_some_and(|said| said == EXPECTED)
        {
            return;
        }
        // No thread may go on as if nothing had happened.
        report(panic);
        std::process::abort();
    }));
    let path = std::env::temp_dir().join(format!("prepage-stress-{}", std::process::id()));
    let mut bytes = vec![0; (PAGES * PAGE_SIZE) as usize];
    fill(0, &mut bytes);
    std::fs::write(&path, &bytes).expect("room for 8 MiB");

    let vm = Vm::new(VmOptions::default().record_faults(4096).explain(false)).expect("a VM");
    let stress = Arc::new(Stress {
        file: vm.file(&path).expect("just written"),
        hostile: vm.source("hostile", Hostile { calls: AtomicU64::new(0), bad: 11 }).expect("a small object"),
        vm,
        stop: AtomicBool::new(false),
        steps: (0..THREADS).map(|_| AtomicU64::new(0)).collect(),
    });
    let long_lived: Arc<Vec<Map>> = Arc::new(
        [Mode::Inline, Mode::Handler]
            .map(|mode| {
                let options = MapOptions::shared().mode(mode).policy("aligned:16".parse().expect("a policy"));
                stress.vm.map(&stress.file, &options).expect("userfaultfd is permitted")
            })
            .into(),
    );
    let threads: Vec<_> = (0..stress.steps.len())
        .map(|number| {
            let (stress, long_lived) = (Arc::clone(&stress), Arc::clone(&long_lived));
            thread::spawn(move || stress.work(number, &long_lived))
        })
        .collect();

    let began = Instant::now();
    let mut moved: Vec<(u64, Instant)> = stress.steps.iter().map(|_| (0, began)).collect();
    let mut recorded = 0;
    while began.elapsed() < Duration::from_secs(seconds) {
        thread::sleep(Duration::from_millis(200));
        let trace = stress.vm.take_trace();
        recorded += trace.faults.len() as u64 + trace.facts.lost;
        for (number, (steps, (last, when))) in stress.steps.iter().zip(&mut moved).enumerate() {
            let now = steps.load(Ordering::Relaxed);
            if now != *last {
                (*last, *when) = (now, Instant::now());
            } else if when.elapsed() > PATIENCE {
                give_up(number, &stress);
            }
        }
    }
    stress.stop.store(true, Ordering::Relaxed);
    let stopped = Instant::now();
    for (number, thread) in threads.into_iter().enumerate() {
        while !thread.is_finished() {
            if stopped.elapsed() > PATIENCE {
                give_up(number, &stress);
            }
            thread::sleep(Duration::from_millis(10));
        }
        thread.join().expect("panics abort");
    }
    drop(long_lived);
    // Reads in the background end.
    let vm = stress.vm.clone();
    drop(stress);
    let quiet = Instant::now();
    while vm.statistics().objects > 0 && quiet.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(10));
    }
    let trace = vm.take_trace();
    recorded += trace.faults.len() as u64 + trace.facts.lost;
    let statistics = vm.statistics();
    let counted = statistics.counted;
    let held = [statistics.objects, statistics.maps, statistics.backings, statistics.frames];
    assert_eq!(held, [0; 4], "objects, maps, backings, frames left");
    let faults: u64 = statistics.costs_ns.iter().map(|costs| costs.len()).sum();
    assert_eq!(faults, recorded, "every fault that was timed was recorded or counted as lost");
    let _ = std::fs::remove_file(&path);
    println!(
        "{faults} faults in {:.0} s, all recorded; nothing left, no thread stuck; {counted:?}",
        began.elapsed().as_secs_f64()
    );
}
