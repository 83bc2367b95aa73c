//! Bringing the pages of a profile into memory while the program starts.
//!
//! ```text
//! Profile ─ plan ─► reads in order of first use ─► 8 to 32 readers: WILLNEED ≤ 128 KiB, then read its last byte
//!        └─ files and lookups in order of first use ─► 8 name threads: open, stat, list
//! ```
//! Each reader waits for its own read before it takes the next: the depth of the device's queue stays bounded,
//! so the program's own faults do not stand behind hundreds of guesses. Asking for everything at once with
//! WILLNEED alone loses for that reason (docs/results.md), except on a device of which calibrate met no limit. All
//! state threads share is three counters that hand out work, one set-once slot a file, and counters of what was done.
//!
//! A prefetch ends early when it is cancelled, and by itself when memory gets short ([`crate::memory`]).

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use prepage_core::plan::{PlanOptions, Read, plan};
use prepage_core::profile::{Lookup, Profile};
use prepage_core::trial::{PageOf, leave_out};
use prepage_core::{DeviceFigures, PAGE_SIZE, PageRange};
use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags, StatxFlags};

use crate::calibrate::cache::Cache;
use crate::identity::{Skipped, open_if_same};
use crate::memory::Budget;
use crate::resident::is_resident;

/// Readers at once, whatever the device: fewer leave it idle while they open files, and more have the program's own misses
/// wait behind them. Measured in docs/results.md.
const READERS: std::ops::RangeInclusive<u32> = 8..=32;
/// Memory is looked at again each time this many bytes more have been asked for.
const MEMORY_CHECK_BYTES: u64 = 4 << 20;
/// Threads that open, stat and list: few, for each also burns CPU the program wants.
const NAME_THREADS: u32 = 8;
/// The same where a read takes long and many at once gain: nearly all of them sleep.
const NAME_THREADS_FAR: u32 = 24;
/// Reads probed to tell a warm cache from a cold one, spread over the start. Few, because a warm start is in a hurry:
/// where they are all in memory although other pages are not, the program's disk faults tell soon after.
const PROBES: usize = 8;
/// A listing's buffer and some frames.
const STACK_BYTES: usize = 128 << 10;

/// What a prefetch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes asked for. What was in memory already is counted too.
    pub requested_bytes: u64,
    /// Files of the profile that are no longer what was learned, by index.
    pub skipped: Vec<(usize, Skipped)>,
    /// Whether it ended early because memory got short.
    pub memory_was_short: bool,
}

/// What is known of the device that most pages of `profile` lie on: measured by `prepage calibrate`, or what most devices
/// can do.
pub fn device_of(profile: &Profile) -> DeviceFigures {
    let mut pages: Vec<(u64, u64)> = Vec::new();
    for file in &profile.files {
        match pages.iter_mut().find(|(device, _)| *device == file.identity.device) {
            Some((_, count)) => *count += file.pages(),
            None => pages.push((file.identity.device, file.pages())),
        }
    }
    let most = pages.iter().max_by_key(|(_, count)| count);
    most.and_then(|&(device, _)| Cache::of_user()?.figures(device)).unwrap_or_default()
}

/// A prefetch in preparation or under way.
pub struct Engine<'a> {
    profile: &'a Profile,
    reads: Vec<Read>,
    readers: u32,
    /// Whether each reader waits for its read before it takes the next.
    waits: bool,
    name_threads: u32,
    budget: Option<Budget>,
    files: Vec<OnceLock<Result<File, Skipped>>>,
    next_read: AtomicUsize,
    next_file: AtomicUsize,
    next_lookup: AtomicUsize,
    requested_bytes: AtomicU64,
    cancelled: AtomicBool,
    memory_was_short: AtomicBool,
}

impl<'a> Engine<'a> {
    /// Plans the reads of `profile` for a device. Nothing is opened yet.
    pub fn new(profile: &'a Profile, device: &DeviceFigures) -> Self {
        let options = PlanOptions::for_device(device);
        if !device.is_far() {
            return Self::with(profile, options, device.depth.clamp(*READERS.start(), *READERS.end()));
        }
        // The program's own reads are served beside however many of ours: asking is all there is to do.
        let engine = Self::with(profile, options, *READERS.end());
        Self { waits: false, name_threads: NAME_THREADS_FAR, ..engine }
    }

    /// Has [`Self::run`] return only when all is in memory, on any device.
    pub fn wait_for_reads(&mut self) {
        self.waits = true;
    }

    /// Plans the reads of `profile`, for so many readers at once.
    pub fn with(profile: &'a Profile, options: PlanOptions, readers: u32) -> Self {
        Self {
            profile,
            reads: plan(profile, options),
            readers,
            waits: true,
            name_threads: NAME_THREADS,
            budget: None,
            files: (0..profile.files.len()).map(|_| OnceLock::new()).collect(),
            next_read: AtomicUsize::new(0),
            next_file: AtomicUsize::new(0),
            next_lookup: AtomicUsize::new(0),
            requested_bytes: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            memory_was_short: AtomicBool::new(false),
        }
    }

    /// Bytes of all reads planned.
    pub fn planned_bytes(&self) -> u64 {
        self.reads.iter().map(|read| read.range.bytes()).sum()
    }

    /// Leaves memory for others: what is used last is left out where there is not enough for everything, and the rest
    /// where it gets short meanwhile. Leaves tasks for others where there are few.
    pub fn keep_within(&mut self, budget: Budget) {
        // The first reader is the thread that runs this.
        self.name_threads = self.name_threads.min(budget.threads() / 2);
        self.readers = self.readers.min((budget.threads() - self.name_threads).saturating_add(1));
        self.limit_bytes(budget.share_of(self.planned_bytes()));
        self.budget = Some(budget);
    }

    fn limit_bytes(&mut self, limit: u64) {
        let mut left = limit;
        let kept = self.reads.iter().take_while(|read| {
            let fits = read.range.bytes() <= left;
            left = left.saturating_sub(read.range.bytes());
            fits
        });
        let kept = kept.count();
        self.reads.truncate(kept);
    }

    /// Leaves out pages that this start is to test.
    pub fn leave_out(&mut self, tests: &[PageOf]) {
        self.reads = leave_out(std::mem::take(&mut self.reads), tests);
    }

    /// Ends the prefetch early: each thread stops after the read it is at.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether what the profile holds is in memory already, judged by a sample. Pages found missing are on
    /// their way afterwards.
    pub fn is_warm(&self) -> bool {
        self.probes().all(|resident| resident)
    }

    /// Whether most of what the profile holds is missing in memory, judged by the same sample.
    pub fn is_cold(&self) -> bool {
        let (missing, all) = Self::sample(&self.reads).fold((0, 0), |(missing, all), read| {
            let pages = read.range.len();
            (missing + if self.is_first_resident(read) { 0 } else { pages }, all + pages)
        });
        2 * missing >= all
    }

    /// Whether what was read is still in memory, judged by a sample.
    pub fn is_intact(&self) -> bool {
        // The last ones handed out may never have been made: the prefetch was cancelled before.
        let done = self.next_read.load(Ordering::Relaxed).saturating_sub(self.readers as usize);
        Self::sample(&self.reads[..done.min(self.reads.len())]).all(|read| self.is_first_resident(read))
    }

    fn probes(&self) -> impl Iterator<Item = bool> + '_ {
        Self::sample(&self.reads).map(|read| self.is_first_resident(read))
    }

    fn sample(reads: &[Read]) -> impl Iterator<Item = &Read> {
        reads.iter().step_by((reads.len() / PROBES).max(1))
    }

    fn is_first_resident(&self, read: &Read) -> bool {
        match self.file(read.file) {
            Ok(file) => is_resident(file, read.range.start()),
            Err(_) => true,
        }
    }

    /// Prefetches everything. Returns when all is in memory (on a far device: on its way), or when cancelled.
    pub fn run(&self) -> Outcome {
        prepage_sys::heap::share_one();
        std::thread::scope(|scope| {
            // A thread that cannot be started is one fewer at work; the first runs here in any case.
            let start = |work: fn(&Self)| {
                let _ = std::thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, move || work(self));
            };
            for thread in 1..self.readers.max(self.name_threads + 1) {
                // In turns: the first names are needed before the first pages, and the last ones need not wait for them.
                if thread <= self.name_threads {
                    // Half of them on either, and where one list ends, all on the other.
                    start(if thread % 2 == 0 {
                        |engine| {
                            engine.look_up_names();
                            engine.open_files();
                        }
                    } else {
                        |engine| {
                            engine.open_files();
                            engine.look_up_names();
                        }
                    });
                }
                if thread < self.readers {
                    start(Self::read_pages);
                }
            }
            self.read_pages();
        });
        Outcome {
            requested_bytes: self.requested_bytes.load(Ordering::Relaxed),
            skipped: self.skipped(),
            memory_was_short: self.memory_was_short.load(Ordering::Relaxed),
        }
    }

    fn read_pages(&self) {
        while !self.cancelled.load(Ordering::Relaxed) {
            let Some(read) = self.reads.get(self.next_read.fetch_add(1, Ordering::Relaxed)) else { break };
            let Ok(file) = self.file(read.file) else { continue };
            let before = self.requested_bytes.fetch_add(read.range.bytes(), Ordering::Relaxed);
            // One reader looks, the one that passes the mark; the others go on meanwhile.
            if (before + read.range.bytes()) / MEMORY_CHECK_BYTES > before / MEMORY_CHECK_BYTES {
                self.look_at_memory();
            }
            bring_in(file, read.range, self.waits);
        }
    }

    fn look_at_memory(&self) {
        if self.budget.as_ref().is_some_and(|budget| budget.is_short_for(MEMORY_CHECK_BYTES)) {
            self.memory_was_short.store(true, Ordering::Relaxed);
            self.cancel();
        }
    }

    /// Repeats lookups, in order of first use.
    fn look_up_names(&self) {
        while !self.cancelled.load(Ordering::Relaxed) {
            let at = self.next_lookup.fetch_add(1, Ordering::Relaxed);
            let Some(lookup) = self.profile.lookups.get(at) else { break };
            look_up(lookup);
        }
    }

    /// Opens files, in order of first use.
    fn open_files(&self) {
        while !self.cancelled.load(Ordering::Relaxed) {
            let at = self.next_file.fetch_add(1, Ordering::Relaxed);
            if at >= self.files.len() {
                break;
            }
            let _ = self.file(at);
        }
    }

    fn file(&self, at: usize) -> Result<&File, Skipped> {
        let opened = self.files[at].get_or_init(|| {
            let file = open_if_same(&self.profile.files[at])?;
            // Our reads name exactly what is wanted: no read-ahead of the kernel's on top.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
            Ok(file)
        });
        opened.as_ref().map_err(|skipped| *skipped)
    }

    /// Opens all files. Returns those of the profile that are no longer what was learned, by index.
    pub fn look_at_files(&self) -> Vec<(usize, Skipped)> {
        for at in 0..self.files.len() {
            let _ = self.file(at);
        }
        self.skipped()
    }

    fn skipped(&self) -> Vec<(usize, Skipped)> {
        let failed = |(at, slot): (usize, &OnceLock<Result<File, Skipped>>)| match slot.get() {
            Some(Err(skipped)) => Some((at, *skipped)),
            _ => None,
        };
        self.files.iter().enumerate().filter_map(failed).collect()
    }
}

/// Has `range` read into memory, and waits for it where it `waits`.
fn bring_in(file: &File, range: PageRange, waits: bool) {
    let len = std::num::NonZeroU64::new(range.bytes());
    // Failure means that the file system does not know WILLNEED; the read below then brings in its one page,
    // and the program faults on the rest as it would have without us.
    let _ = rustix::fs::fadvise(file, range.start().offset_bytes(), len, Advice::WillNeed);
    if waits {
        let _ = rustix::io::pread(file, &mut [0u8; 1], range.end().offset_bytes() - PAGE_SIZE);
    }
}

/// Makes the kernel read the directories and the inode that answer for a name.
fn look_up(lookup: &Lookup) {
    let path = Path::new(&lookup.path);
    if lookup.list {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) {
            let mut buffer = [std::mem::MaybeUninit::uninit(); 32 << 10];
            let mut entries = rustix::fs::RawDir::new(directory, &mut buffer);
            while let Some(Ok(_)) = entries.next() {}
        }
    } else {
        let _ = rustix::fs::statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use prepage_core::PageIndex;
    use prepage_core::profile::{Evidence, ProfiledFile, Touches};

    use super::*;
    use crate::identity::{fingerprint, identity_of, open_to_read};

    const PAGES: u64 = 512;

    fn file_of_pages(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("object");
        std::fs::write(&path, vec![1u8; (PAGES * PAGE_SIZE) as usize]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        path
    }

    fn profile(path: &Path, pages: &[u64]) -> Profile {
        let mut touches = Touches::default();
        for (rank, &page) in pages.iter().enumerate() {
            touches.touch(PageIndex(page), rank as u32, Evidence::Exact);
        }
        let file = open_to_read(path).unwrap();
        let identity = identity_of(&file).unwrap();
        let fingerprint = fingerprint(&file, identity.size_bytes).unwrap();
        let path = path.to_str().unwrap().into();
        Profile {
            files: vec![ProfiledFile {
                path,
                identity,
                fingerprint,
                learned_unix_s: 0,
                extents: touches.extents(),
            }],
            ..Default::default()
        }
    }

    /// Evicts the file, prefetches `pages` of it, and says which pages are in memory then.
    fn resident_after(pages: &[u64]) -> Option<Vec<u64>> {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = file_of_pages(dir.path());
        let profile = profile(&path, pages);
        let file = File::open(&path).unwrap();
        prepage_sys::cachestat::evict(file.as_fd(), Duration::from_secs(1)).unwrap();
        let cached = |page| {
            let one = PageRange::new(PageIndex(page), PageIndex(page + 1));
            prepage_sys::cachestat::cached_pages(file.as_fd(), one).map(|count| count > 0)
        };
        if cached(PAGES / 2).ok()? {
            return None;
        }
        let engine = Engine::with(&profile, PlanOptions::EXACT, 16);
        assert!(!engine.is_warm());
        let outcome = engine.run();
        assert!(outcome.skipped.is_empty());
        assert_eq!(outcome.requested_bytes, pages.len() as u64 * PAGE_SIZE);
        assert!(engine.is_warm(), "a second prefetch would find everything in memory");
        Some((0..PAGES).filter(|&page| cached(page).unwrap()).collect())
    }

    #[test]
    fn exactly_the_pages_of_the_profile_come_in() {
        let pages: Vec<u64> = (0..PAGES).filter(|page| page % 37 == 3 || (100..180).contains(page)).collect();
        match resident_after(&pages) {
            Some(resident) => assert_eq!(resident, pages),
            None => {
                eprintln!("SKIPPED: this file system keeps pages in memory that fadvise was asked to drop")
            }
        }
    }

    #[test]
    fn what_is_used_last_is_left_out_when_memory_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let profile = profile(&file_of_pages(dir.path()), &[400, 10, 200]);
        let mut engine = Engine::with(&profile, PlanOptions::EXACT, 16);
        engine.limit_bytes(engine.planned_bytes() - 1);
        let first_pages: Vec<u64> = engine.reads.iter().map(|read| read.range.start().0).collect();
        assert_eq!(first_pages, [400, 10]);
    }

    #[test]
    fn threads_are_kept_within_what_there_is_to_spare() {
        let profile = Profile::default();
        let threads = |to_spare| {
            let mut engine = Engine::new(&profile, &DeviceFigures::default());
            engine.keep_within(Budget::of_threads(to_spare));
            (engine.readers, engine.name_threads)
        };
        assert_eq!(threads(u32::MAX), threads(1000));
        for (to_spare, expected) in [(0, (1, 0)), (1, (2, 0)), (5, (4, 2))] {
            assert_eq!(threads(to_spare), expected);
        }
    }

    #[test]
    fn a_prefetch_ends_where_memory_gets_short_and_when_it_is_cancelled() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("object");
        let pages = 16 * MEMORY_CHECK_BYTES / PAGE_SIZE;
        File::create(&path).unwrap().set_len(pages * PAGE_SIZE).unwrap();
        let profile = profile(&path, &(0..pages).collect::<Vec<_>>());
        std::fs::write(dir.path().join("memory.max"), "1000000000").unwrap();
        std::fs::write(dir.path().join("memory.current"), "0").unwrap();
        let mut engine = Engine::new(&profile, &DeviceFigures::default());
        engine.keep_within(Budget::in_directory(dir.path()));
        assert_eq!(engine.planned_bytes(), pages * PAGE_SIZE);
        // Another program takes what there was.
        std::fs::write(dir.path().join("memory.current"), "999000000").unwrap();
        let outcome = engine.run();
        assert!(outcome.memory_was_short);
        // Each reader may be at a read when the first of them sees it.
        let most = MEMORY_CHECK_BYTES + (32 + 1) * prepage_core::plan::READ_PAGES_MAX * PAGE_SIZE;
        assert!(
            (MEMORY_CHECK_BYTES..=most).contains(&outcome.requested_bytes),
            "{}",
            outcome.requested_bytes
        );
        let engine = Engine::new(&profile, &DeviceFigures::default());
        engine.cancel();
        assert_eq!(engine.run().requested_bytes, 0);
    }

    #[test]
    fn a_missing_file_and_a_missing_name_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = file_of_pages(dir.path());
        let mut profile = profile(&path, &[1, 2]);
        profile.lookups = vec![
            Lookup { rank: 0, path: "/no/such/name".into(), list: false },
            Lookup { rank: 0, path: "/no/such/directory".into(), list: true },
            Lookup { rank: 0, path: "/".into(), list: true },
        ];
        std::fs::remove_file(&path).unwrap();
        let engine = Engine::new(&profile, &DeviceFigures::default());
        engine.read_pages();
        engine.look_up_names();
        assert_eq!(engine.skipped(), [(0, Skipped::Missing)]);
    }
}
