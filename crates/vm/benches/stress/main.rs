//! Threads that touch, map, unmap, discard and evict what slow, failing, hostile and nested sources give, in maps of one object
//! and of several, served by the VM and left to the kernel; while signals come whose handlers touch maps too, children are
//! forked that touch and make VMs of their own, whole processes dump core, and mlockall(2) comes and goes. Others write: to maps whose
//! snapshots are taken and cloned, to maps that children inherit, to a file, and to memory that goes to a swap file. Others touch a large file in order,
//! whose blocks of 2 MiB are huge pages, while its pages are pinned, given to system calls, forgotten and taken away. Others need pages of sources that answer
//! requests by and by, some of them after a deadline. Under a watchdog, for
//! SECONDS: by default 600, and 3 as one of the tests; with LOCKED set all of it under mlockall, and with LIMIT_MIB in so much
//! memory for frames (2 MiB for another 3 seconds of the test), whose pages are pinned and unwired too. Every byte is checked; at the
//! end every count must be back where it was. Time in which the whole process was stopped does not count.
//!
//! Ends with status 0 and a line of figures, or aborts saying what was wrong.

mod models;
mod ordered;
mod requests;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use models::{Chains, FILE_PAGES, Shared, fork_with_map};
use ordered::{Alone, Ordered, Reader};
use prepage_core::policy::Neighbours;
use prepage_core::random::SplitMix as Random;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::forked::Forked;
use prepage_sys::signals::Masked;
use prepage_testing::Need;
use prepage_vm::{
    AccessError, Advice, Map, MapOptions, Mode, Object, Piece, Pool, PoolOptions, Reason, Source,
    SourceError, Vm, VmOptions,
};
use rustix::mm::{MlockAllFlags, mlockall, munlockall};
use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

const PAGES: u64 = 2048;
/// What the threads do, by their number: those below `TOUCHERS` touch, those from `DISTURB` on disturb.
const TOUCHERS: u64 = 4;
const ZEROS: u64 = TOUCHERS;
const AGAIN: u64 = TOUCHERS + 1;
const DISTURB: u64 = AGAIN + 2;
const FORK: u64 = DISTURB + 2;
const INTERRUPT: u64 = FORK + 1;
const LOCK: u64 = INTERRUPT + 1;
const CHAINS: u64 = LOCK + 1;
const HEIRS: u64 = CHAINS + 2;
const FILES: u64 = HEIRS + 1;
const MEMORY: u64 = FILES + 2;
const READERS: u64 = MEMORY + 1;
const TAKER: u64 = READERS + 2;
const ALONE: u64 = TAKER + 1;
const REQUESTS: u64 = ALONE + 1;
const THREADS: u64 = REQUESTS + 2;
/// A thread that ended no step for so long is stuck. Long: a machine that is busy with other work may leave this little.
const PATIENCE: Duration = Duration::from_secs(300);
/// How often is looked.
const TICK: Duration = Duration::from_millis(200);
/// Of so many children one is a process of its own that dumps core.
const DUMPS: u64 = 16;
/// A core of a process with [`SPARSE_BYTES`] mapped twice is smaller. The kernel looks for each page of the private map in turn.
const CORE_BYTES: u64 = 64 << 20;
const SPARSE_BYTES: u64 = 256 << 20;
/// How long what signals touch is missing, then there again, in turns.
const LEFT_ALONE: Duration = Duration::from_millis(20);

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

/// Gives the right bytes, late, not at once, after failing, or after writing nonsense into the buffer.
struct Hostile {
    calls: AtomicU64,
}

/// Pages of which the number modulo 64 is this fail now and then.
const BAD: u64 = 11;
const REFUSES: &str = "not today";
/// Pages that could not be read, as should be.
static FAILED: AtomicU64 = AtomicU64::new(0);

impl Source for Hostile {
    fn len_bytes(&self) -> u64 {
        PAGES * PAGE_SIZE
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let pages = PageRange::covering(offset_bytes, into.len() as u64);
        let bad = pages.iter().any(|page| page.0 % 64 == BAD);
        BAD_ALONE.fetch_add(u64::from(bad && pages.len() == 1), Ordering::Relaxed);
        match call % 97 {
            1 => thread::sleep(Duration::from_millis(2)),
            2 => {
                into.fill(0xee);
                return Err(SourceError::Again);
            }
            3 if bad => {
                into.fill(0xdd);
                return Err(SourceError::Other(REFUSES.to_owned()));
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

/// Reads of a bad page alone. One in fifty of them fails: of fewer than so many, all may go well.
static BAD_ALONE: AtomicU64 = AtomicU64::new(0);
const FAILS_AFTER_READS: u64 = 1000;

const EXPECTED: &str = "a source that panics, as it should in this test";

/// Gives what a map shows: its reads fault in turn.
struct Nested(Map);

impl Source for Nested {
    fn len_bytes(&self) -> u64 {
        PAGES * PAGE_SIZE
    }

    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.copy_from_slice(&self.0.as_slice()[offset_bytes as usize..][..into.len()]);
        Ok(())
    }
}

/// What signal handlers touch: two maps that outlive all signals.
static TOUCHED_BY_SIGNALS: OnceLock<[Map; 2]> = OnceLock::new();
static SIGNALS: AtomicU64 = AtomicU64::new(0);
static WRONG_IN_SIGNAL: AtomicU64 = AtomicU64::new(0);

/// Touches a page of each map, in the middle of whatever its thread does.
extern "C" fn on_signal(_: libc::c_int) {
    let turn = SIGNALS.fetch_add(1, Ordering::Relaxed);
    let page = turn.wrapping_mul(0x9e37_79b9) % PAGES;
    for map in TOUCHED_BY_SIGNALS.get().into_iter().flatten() {
        let found = &std::hint::black_box(map.as_slice())[(page * PAGE_SIZE) as usize..][..8];
        WRONG_IN_SIGNAL.fetch_add(u64::from(found != word(page).to_le_bytes()), Ordering::Relaxed);
    }
}

fn take_signals() {
    // SAFETY: the handler reads memory and counts, which handlers may do.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
}

/// Cores that were found, and turns of mlockall(2).
static CORES: AtomicU64 = AtomicU64::new(0);
static LOCKS: AtomicU64 = AtomicU64::new(0);

/// The variable that tells this program to dump core, and where.
const DUMP: &str = "STRESS_DUMPS_CORE_IN";

/// Has a process with sparse maps of both modes dump core. The core, where the machine writes one to the directory of who
/// crashes, holds what was touched and not what was mapped.
fn dump_one(directory: &std::path::Path) {
    let itself = std::env::current_exe().expect("this program");
    let status = std::process::Command::new(itself).env(DUMP, directory).status().expect("it runs");
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(libc::SIGABRT), "{status}");
    for core in std::fs::read_dir(directory).expect("a directory").flatten() {
        let bytes = std::os::unix::fs::MetadataExt::blocks(&core.metadata().expect("just written")) * 512;
        assert!(bytes < CORE_BYTES, "a core of {bytes} bytes");
        std::fs::remove_file(core.path()).expect("just written");
        CORES.fetch_add(1, Ordering::Relaxed);
    }
}

/// What [`dump_one`] starts.
fn dump_core(directory: &std::ffi::OsStr) {
    struct Sparse;
    impl Source for Sparse {
        fn len_bytes(&self) -> u64 {
            SPARSE_BYTES
        }
        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            fill(offset_bytes, into);
            Ok(())
        }
    }
    std::env::set_current_dir(directory).expect("a directory");
    let vm = Vm::new(VmOptions::default()).expect("a VM");
    let object = vm.source("sparse", Sparse).expect("room");
    let maps = [MapOptions::shared().mode(Mode::Handler), MapOptions::private()]
        .map(|options| vm.map(&object, &options).expect("userfaultfd is permitted"));
    // Zeros, read past the page cache.
    let file = std::fs::File::create("zeros").and_then(|file| file.set_len(SPARSE_BYTES));
    file.expect("a file without data");
    let direct = vm.file_direct("zeros").expect("just made");
    std::fs::remove_file("zeros").expect("just made");
    let direct = vm.map(&direct, &MapOptions::shared()).expect("userfaultfd is permitted");
    direct.populate(PageRange::new(PageIndex(7), PageIndex(100))).expect("zeros");
    let last = SPARSE_BYTES / PAGE_SIZE - 1;
    maps.iter().for_each(|map| [0, last / 2, last].into_iter().for_each(|page| check(map, page, false)));
    let maximum = getrlimit(Resource::Core).maximum;
    setrlimit(Resource::Core, Rlimit { current: maximum, maximum }).expect("below the maximum");
    std::process::abort();
}

/// Has all mappings to come be locked in memory, or no longer any; false where that is forbidden.
fn lock_memory(locked: bool) -> bool {
    match locked {
        true => mlockall(MlockAllFlags::FUTURE).is_ok(),
        false => munlockall().is_ok(),
    }
}

/// What a child of fork(2) does, and how it must end.
fn fork_one(kind: u64, map: &Map, path: &std::path::Path) {
    // It ends with the thread that forked it: whoever watches that thread watches its child.
    let child = Forked::new(|| match kind {
        0 => {
            // Without std's handler: if a thread of the parent was just starting, that spins in the child, and says so on stderr ("deadlock in
            // SIGSEGV handler") before the child dies all the same.
            // SAFETY: what handles a signal by default needs nothing of this program.
            unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
            // The core, where the machine wants one, holds next to nothing.
            std::hint::black_box(std::hint::black_box(map.as_slice())[0]);
            4
        }
        1 => 7 * i32::from(map.populate(map.window()).is_err()),
        _ => {
            let own = Vm::new(VmOptions::default()).and_then(|vm| Ok((vm.file(path)?, vm)));
            let Ok((object, vm)) = own else { return 1 };
            let Ok(own) = vm.map(&object, &MapOptions::shared()) else { return 2 };
            let right = (0..PAGES)
                .step_by(97)
                .all(|page| own.as_slice()[(page * PAGE_SIZE) as usize..][..8] == word(page).to_le_bytes());
            // What it made is not taken apart: it leaves as it is.
            std::mem::forget((own, object, vm));
            if right { 7 } else { 3 }
        }
    });
    let status = child.expect("no more processes").wait().expect("a child of this thread");
    match kind {
        0 => assert_eq!(
            status.terminating_signal(),
            Some(libc::SIGSEGV),
            "a child's touch is loud: {status:?}"
        ),
        _ => assert_eq!(status.exit_status(), Some(7), "a child ended with {status:?}, kind {kind}"),
    }
}

/// No page fails but a bad one, for what its source said or did.
fn assert_bad(error: &AccessError) {
    let AccessError::Unavailable { page, reason, .. } = error else { panic!("{error}") };
    let is_told = match reason {
        Reason::Refused(said) => said.as_ref().is_none_or(|said| said == REFUSES),
        reason => *reason == Reason::Panicked,
    };
    assert!(page.0 % 64 == BAD && is_told, "{error}");
    FAILED.fetch_add(1, Ordering::Relaxed);
}

/// Touches pages of `map`, all of whose bytes must be right. Pages that may fail are touched by copy.
fn check(map: &Map, page: u64, by_copy: bool) {
    let at = page * PAGE_SIZE;
    let expected = word(map.window().start().0 + page).to_le_bytes();
    if by_copy {
        let mut bytes = [0; PAGE_SIZE as usize];
        // A failure is an answer too; wrong bytes are not.
        if let Err(error) = map.read_at(at, &mut bytes) {
            return assert_bad(&error);
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
    path: std::path::PathBuf,
    /// Where cores come to lie.
    cores: std::path::PathBuf,
    /// Good, and read by the faulting thread; hostile; good, by way of other maps.
    file: Object,
    hostile: Object,
    nested: Object,
    /// The file, read past the page cache.
    direct: Object,
    /// Of sources that answer requests by and by; in a VM with a deadline for that, which is of this VM's pool.
    asked: Object,
    late: Vm,
    asked_late: Object,
    /// A file that is written to, and where it lies.
    written: Object,
    written_path: std::path::PathBuf,
    /// A file that is touched in order, in VMs of its own.
    ordered: Ordered,
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
        let object = match random.below(4) {
            _ if hostile => &self.hostile,
            0 => &self.nested,
            1 => &self.direct,
            _ => &self.file,
        };
        if random.below(8) == 0 {
            return self.touch_pieces(random);
        }
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
            match map.populate(window) {
                Err(error) if hostile => assert_bad(&error),
                populated => populated.expect("good pages"),
            }
        }
    }

    /// Maps pieces of objects, and touches all of them.
    fn touch_pieces(&self, random: &mut Random) {
        let mut pieces = Vec::new();
        let mut expected = Vec::new();
        for _ in 0..1 + random.below(5) {
            let start = random.below(PAGES - 64);
            let range = PageRange::new(PageIndex(start), PageIndex(start + 1 + random.below(64)));
            let object = if random.below(2) == 0 { &self.file } else { &self.nested };
            let piece = Piece::new(object, range);
            pieces.push(if random.below(2) == 0 { piece.copied() } else { piece });
            expected.extend(range.iter().map(|page| page.0));
        }
        let mode = if random.below(4) == 0 { Mode::Handler } else { Mode::Inline };
        let map = self.vm.map_pieces(&pieces, &MapOptions::private().mode(mode)).expect("a small map");
        for (index, page) in expected.iter().enumerate() {
            let bytes = &map.as_slice()[index * PAGE_SIZE as usize..][..PAGE_SIZE as usize];
            let expected = word(*page).to_le_bytes();
            assert!(std::hint::black_box(bytes).chunks(8).all(|chunk| chunk == expected), "piece {page}");
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
        let mut written = vec![0; PAGES as usize];
        for _ in 0..128 {
            let page = random.below(PAGES) as usize;
            let at = page * PAGE_SIZE as usize + 8;
            assert_eq!(map.as_slice()[at], written[page], "what was written, or zeros");
            written[page] += 1;
            map.as_mut_slice()[at] = written[page];
        }
    }

    /// Takes frames and mappings away from the others.
    fn disturb(&self, random: &mut Random, long_lived: &[Map]) {
        let start = random.below(PAGES);
        let end = (start + 1 + random.below(256)).min(PAGES);
        let range = PageRange::new(PageIndex(start), PageIndex(end));
        match random.below(8) {
            7 => drop(self.direct.evict(range).expect("holes can be punched")),
            6 => drop(self.file.unwire(range).expect("pages can be unmapped")),
            5 => self.pin(&long_lived[random.below(2) as usize], start),
            4 => drop(self.nested.evict(range).expect("holes can be punched")),
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

    /// Pins a few pages for a moment: they are there, for system calls too.
    fn pin(&self, map: &Map, start: u64) {
        let range = PageRange::new(PageIndex(start), PageIndex((start + 4).min(PAGES)));
        let pinned = map.pin(range).expect("a file that is there");
        for page in range.iter() {
            assert!(self.file.is_resident(page), "page {} is pinned", page.0);
            check(map, page.0, false);
        }
        drop(pinned);
    }

    fn work(&self, number: usize, long_lived: &[Map]) {
        let _masked = (number as u64 == INTERRUPT).then(Masked::asynchronous);
        match number as u64 {
            CHAINS..HEIRS => {
                let mut chains = Chains::new(self, number);
                self.repeat(number, |random| chains.step(self, random));
            }
            HEIRS => self.repeat(number, |random| fork_with_map(self, random)),
            FILES..MEMORY => {
                let mut file = Shared::file(self, number as u64 - FILES);
                self.repeat(number, |random| file.step(self, random));
                file.end();
            }
            MEMORY => {
                let mut memory = Shared::memory(self);
                self.repeat(number, |random| memory.step(self, random));
                memory.end();
            }
            READERS..TAKER => {
                let mut reader = Reader::new(&self.ordered, &mut Random::new(number as u64));
                self.repeat(number, |random| reader.step(&self.ordered, random));
            }
            TAKER => self.repeat(number, |random| self.ordered.take_some(random)),
            ALONE => {
                let mut alone = Alone::new(&self.ordered, &mut Random::new(number as u64));
                self.repeat(number, |random| alone.step(&self.ordered, random));
            }
            REQUESTS.. => {
                let is_late = number as u64 > REQUESTS;
                let (vm, object) =
                    if is_late { (&self.late, &self.asked_late) } else { (&self.vm, &self.asked) };
                self.repeat(number, |random| {
                    let options = self.options(random, false);
                    requests::step(vm, object, is_late, options, random);
                });
            }
            _ => self.repeat(number, |random| self.touch_or_disturb(number as u64, random, long_lived)),
        }
    }

    fn repeat(&self, number: usize, mut step: impl FnMut(&mut Random)) {
        let mut random = Random::new((number as u64 + 1) << 17);
        while !self.stop.load(Ordering::Relaxed) {
            step(&mut random);
            self.steps[number].fetch_add(1, Ordering::Relaxed);
        }
    }

    fn touch_or_disturb(&self, number: u64, random: &mut Random, long_lived: &[Map]) {
        match number {
            number if number < TOUCHERS => self.touch_some(random, long_lived),
            ZEROS => self.zero_some(random),
            AGAIN..DISTURB => {
                let mode = if random.below(8) == 0 { Mode::Handler } else { Mode::Inline };
                self.touch_again(random, mode);
            }
            // The first, too: each run has one.
            FORK if random.below(DUMPS) == 0 || self.steps[number as usize].load(Ordering::Relaxed) == 0 => {
                dump_one(&self.cores);
            }
            LOCK if std::env::var_os("LOCKED").is_none() => {
                LOCKS.fetch_add(u64::from(lock_memory(true)), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(500));
                assert!(lock_memory(false));
                thread::sleep(Duration::from_millis(500));
            }
            LOCK => thread::sleep(TICK),
            FORK => {
                fork_one(random.below(3), &long_lived[random.below(2) as usize], &self.path);
                thread::sleep(Duration::from_millis(20));
            }
            INTERRUPT => {
                kill_process(getpid(), Signal::USR1).expect("a signal to itself");
                thread::sleep(Duration::from_micros(100 + random.below(400)));
            }
            _ => self.disturb(random, long_lived),
        }
    }
}

fn give_up(thread: usize, stress: &Stress) -> ! {
    eprintln!("thread {thread} ended no step for {PATIENCE:?}: {:?}", stress.vm.statistics().counted);
    eprintln!("steps: {:?}", stress.steps);
    // What each thread waits for; where its system call came from a core shows.
    for task in std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let [name, waits, call] = ["comm", "wchan", "syscall"].map(|file| {
            std::fs::read_to_string(task.path().join(file)).unwrap_or_default().trim().to_owned()
        });
        eprintln!("{} {name}: {waits} {call}", task.file_name().display());
    }
    std::process::abort();
}

/// Time as this process lives it: what passes between two ticks counts for a second at most, so that time in which it was
/// stopped is not taken for one in which a thread was stuck.
struct Lived {
    seen: Instant,
    lived: Duration,
}

impl Lived {
    fn from_now() -> Self {
        Self { seen: Instant::now(), lived: Duration::ZERO }
    }

    fn tick(&mut self, tick: Duration) -> Duration {
        thread::sleep(tick);
        self.lived += self.seen.elapsed().min(Duration::from_secs(1));
        self.seen = Instant::now();
        self.lived
    }
}

/// Waits for reads in the background to end.
fn wait_for_objects(vm: &Vm) {
    let mut quiet = Lived::from_now();
    while vm.statistics().objects > 0 && quiet.tick(Duration::from_millis(10)) < PATIENCE {}
}

fn main() {
    if let Some(directory) = std::env::var_os(DUMP) {
        return dump_core(&directory);
    }
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
    let default = if is_bench { 600 } else { 3 };
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seconds = number("SECONDS").unwrap_or(default);
    let limit_bytes = number("LIMIT_MIB").map_or(u64::MAX, |limit| limit << 20);
    assert!(limit_bytes >= 2 << 20, "LIMIT_MIB is 2 at least: what is frozen and pinned stays in memory");
    if !is_bench && limit_bytes == u64::MAX {
        // As a test, once more with too little memory for all of it.
        let itself = std::env::current_exe().expect("this program");
        let limited = std::process::Command::new(itself).args(&arguments).env("LIMIT_MIB", "2").status();
        assert!(limited.expect("it runs").success(), "under a limit of 2 MiB");
    }
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
    let cores = path.with_extension("cores");
    std::fs::create_dir(&cores).expect("a place for cores");

    if std::env::var_os("LOCKED").is_some() {
        mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE).expect("mlockall");
    }
    let may_lock = std::env::var_os("LOCKED").is_none() && lock_memory(true) && lock_memory(false);
    let has_cores = Need::CoreFiles.probe().is_ok() && getrlimit(Resource::Core).maximum != Some(0);
    take_signals();
    let pool = PoolOptions::default().limit_bytes(limit_bytes);
    let directory = env!("CARGO_TARGET_TMPDIR");
    let pool = match Need::Eviction(directory.into()).probe() {
        Ok(()) => pool.swap(directory, 64 << 20),
        Err(found) => {
            eprintln!("without a swap file: {found}");
            pool
        }
    };
    let pool = Pool::with(&pool).expect("a pool");
    let options = VmOptions::default().explain(false).pool(&pool);
    let vm = Vm::new(options.clone().record_faults(4096)).expect("a VM");
    // Maps of a VM that records are never left to the kernel: these are, while all of the file fits.
    let kernels = Vm::new(options).expect("a VM");
    let behind = kernels.file(&path).expect("just written");
    let map_for_signals = |mode| {
        let map = kernels.map(&behind, &MapOptions::shared().mode(mode)).expect("userfaultfd is permitted");
        map.populate(map.window()).expect("a file just written");
        map
    };
    let for_signals = TOUCHED_BY_SIGNALS.get_or_init(|| [Mode::Inline, Mode::Handler].map(map_for_signals));
    let inner = vm.map(&vm.file(&path).expect("just written"), &MapOptions::shared()).expect("a map");
    let [written_path, ordered_path] = ["written", "ordered"].map(|name| path.with_extension(name));
    let zeros = std::fs::File::create(&written_path).and_then(|file| file.set_len(FILE_PAGES * PAGE_SIZE));
    zeros.expect("room for a MiB");
    let late = requests::late_vm(&pool);
    let stress = Arc::new(Stress {
        direct: vm.file_direct(&path).expect("just written"),
        asked: requests::object(&vm, false),
        asked_late: requests::object(&late, true),
        late: late.clone(),
        written: vm.file_writable(&written_path).expect("just made"),
        written_path: written_path.clone(),
        ordered: Ordered::new(&ordered_path),
        path: path.clone(),
        cores: cores.clone(),
        nested: vm.source("nested", Nested(inner)).expect("a small object"),
        file: vm.file(&path).expect("just written"),
        hostile: vm.source("hostile", Hostile { calls: AtomicU64::new(0) }).expect("a small object"),
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

    let mut lived = Lived::from_now();
    let mut moved: Vec<(u64, Duration)> = stress.steps.iter().map(|_| (0, lived.lived)).collect();
    let mut recorded = 0;
    // Taken from the kernel and given back to it while handlers touch.
    let taker_ends = Arc::new(AtomicBool::new(false));
    let (evicted, end) = (behind, Arc::clone(&taker_ends));
    let taking = thread::spawn(move || {
        let mut turns = 0_u64;
        while !end.load(Ordering::Relaxed) {
            evicted.evict(evicted.pages()).expect("holes can be punched");
            thread::sleep(LEFT_ALONE);
            for map in for_signals {
                map.populate(map.window()).expect("a file that is there");
            }
            thread::sleep(LEFT_ALONE);
            turns += 1;
        }
        turns
    });
    // The kernel gives a process's signal to its first thread where it can: it and who sends them leave them to those that touch.
    let _masked = Masked::asynchronous();
    while lived.tick(TICK) < Duration::from_secs(seconds) {
        let trace = stress.vm.take_trace();
        recorded += trace.faults.len() as u64 + trace.facts.unrecorded;
        for (number, (steps, (last, when))) in stress.steps.iter().zip(&mut moved).enumerate() {
            let now = steps.load(Ordering::Relaxed);
            if now != *last {
                (*last, *when) = (now, lived.lived);
            } else if lived.lived - *when > PATIENCE {
                give_up(number, &stress);
            }
        }
    }
    let ran = lived.lived;
    stress.stop.store(true, Ordering::Relaxed);
    taker_ends.store(true, Ordering::Relaxed);
    let mut ending = Lived::from_now();
    for (number, thread) in threads.into_iter().enumerate() {
        while !thread.is_finished() {
            if ending.tick(Duration::from_millis(10)) > PATIENCE {
                give_up(number, &stress);
            }
        }
        thread.join().expect("panics abort");
    }
    drop(long_lived);
    // A last signal may come later: these maps stay.
    let turns = taking.join().expect("panics abort");
    assert!(for_signals.iter().all(|map| map.as_slice()[..8] == word(0).to_le_bytes()));
    assert!(SIGNALS.load(Ordering::Relaxed) > 0 && turns > 0);
    assert_eq!(WRONG_IN_SIGNAL.load(Ordering::Relaxed), 0, "wrong bytes in signal handlers");
    assert!(!may_lock || LOCKS.load(Ordering::Relaxed) > 0, "memory was never locked");
    assert!(!has_cores || CORES.load(Ordering::Relaxed) > 0, "no core was found");
    let (vm, of_ordered) = (stress.vm.clone(), stress.ordered.rest());
    drop(stress);
    of_ordered.check();
    wait_for_objects(&late);
    assert!(late.take_failures().is_empty(), "who copies gets an error");
    wait_for_objects(&vm);
    let trace = vm.take_trace();
    recorded += trace.faults.len() as u64 + trace.facts.unrecorded;
    let statistics = vm.statistics();
    let counted = statistics.counted;
    // A copy out of a map of handler mode is a touch, too.
    for failure in vm.take_failures() {
        assert!(failure.object == "hostile" && failure.page.0 % 64 == BAD, "{failure:?}");
    }
    let failed = FAILED.load(Ordering::Relaxed);
    assert!(failed > 0 || BAD_ALONE.load(Ordering::Relaxed) < FAILS_AFTER_READS, "no bad page failed");
    for now in [&statistics, &late.statistics()] {
        assert_eq!([now.objects, now.maps, now.backings], [0; 3], "objects, maps, backings left");
    }
    // What signals touch is of another VM with the same pool.
    let of_signals = pool.objects().iter().map(|object| object.resident_pages).sum::<u64>();
    let held = statistics.pool.resident_pages + statistics.pool.promised_pages;
    assert_eq!((pool.objects().len(), held), (1, of_signals), "objects and frames left");
    assert_eq!(pool.figures().swap_pages, 0, "places in swap files left");
    let faults: u64 = statistics.costs_ns.iter().map(|costs| costs.len()).sum();
    assert_eq!(faults, recorded, "every fault that was timed was recorded or counted as lost");
    [&path, &written_path, &ordered_path].into_iter().for_each(|path| drop(std::fs::remove_file(path)));
    let _ = std::fs::remove_dir_all(&cores);
    println!(
        "{faults} faults in {:.0} s, all recorded; nothing left, no thread stuck; {failed} reads of bad pages failed, and {} that were too late; {} requests that \
         nobody needed; {} signals; \
         {turns} times taken from the kernel; {} cores; {} times locked; {counted:?}",
        ran.as_secs_f64(),
        requests::TOO_LATE.load(Ordering::Relaxed),
        requests::UNNEEDED.load(Ordering::Relaxed),
        SIGNALS.load(Ordering::Relaxed),
        CORES.load(Ordering::Relaxed),
        LOCKS.load(Ordering::Relaxed)
    );
}
