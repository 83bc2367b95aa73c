//! Bringing the pages of a profile into memory while the program starts.
//!
//! ```text
//! Profile ─ plan ─► reads in order of first use ─► up to 32 readers: WILLNEED ≤ 128 KiB, then read its last byte
//!        └─ files and lookups in order of first use ─► up to 8 name threads: open, stat, list
//! ```
//! Each reader waits for its own read before it takes the next: the depth of the device's queue stays bounded,
//! so the program's own faults do not stand behind hundreds of guesses. Asking for everything at once with
//! WILLNEED alone loses for that reason (docs/results.md), except on a device of which calibrate met no limit. Where reads are taken one by one, no reader waits for a file that another
//! thread is opening while there are other reads to be made. All state threads share is three places in lists of work, one slot a file, whose turn it is
//! where the device is to show its depth, and counters of what was done. A file is closed after its last read.
//!
//! Where many small files are read from a device that counts requests, a boot's, what lies side by side there is one request
//! ([`Engine::join_neighbours`]), and so is what has small holes between, where the device is one of the profile's files ([`Engine::give_device`]).
//!
//! A prefetch ends early when it is cancelled, and by itself when memory gets short ([`crate::memory`]). Its threads are
//! detached: one that hangs in a lookup on a dead network file system holds up nobody who does not wait for it.

mod cursor;
mod depth;
mod files;
mod state;

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use prepage_core::profile::plan::{PlanOptions, Read, beside, plan, plan_where};
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_core::{DeviceFigures, PageIndex};
use prepage_profiles::at_hand::at_hand;
use prepage_profiles::identity::Skipped;
use prepage_sys::sync::Anyway;

use crate::calibrate::cache::Cache;
use crate::calibrate::device;
use crate::memory::Budget;
use crate::resident::is_resident;
use depth::Depth;
use files::Files;
pub use state::Amounts;
use state::{AtWork, Device, State};
pub(crate) use state::{Piece, bring_in};

/// Readers at once, whatever the device: fewer leave it idle while they open files, and more have the program's own misses
/// wait behind them. Measured in docs/results.md.
const READERS: std::ops::RangeInclusive<u32> = 8..=32;
/// Memory is looked at again each time this many bytes more have been asked for.
pub(crate) const MEMORY_CHECK_BYTES: u64 = 4 << 20;
/// Threads that open, stat and list: few, for each also burns CPU the program wants.
const NAME_THREADS: u32 = 8;
/// The same where a read takes long and many at once gain: nearly all of them sleep.
const NAME_THREADS_FAR: u32 = 24;
/// How many of them begin before the readers, where that is possible: they wait for the device while this process asks how much memory there is.
const NAMES_FIRST: u32 = 4;
/// Reads probed to tell a warm cache from a cold one, spread over the start. Few, because a warm start is in a hurry:
/// where they are all in memory although other pages are not, the program's disk faults tell soon after.
const PROBES: usize = 8;
/// Entries of a directory are asked for in pieces of this size.
const LISTING_BYTES: usize = 32 << 10;
/// What an entry takes besides its name: inode, offset, length and kind, padded, as getdents64(2) has it and file systems have about the same.
const ENTRY_BYTES: u64 = 24;
/// A listing's buffer and some frames.
const STACK_BYTES: usize = 128 << 10;

/// What a prefetch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefetched {
    /// Bytes asked for. What was in memory already is counted too.
    pub requested_bytes: u64,
    /// Of them, bytes of the device itself ([`Engine::give_device`]).
    pub device_bytes: u64,
    /// Bytes that were left out before the first read, for little memory was left.
    pub left_out_bytes: u64,
    /// Files of the profile that are no longer what was learned, by index.
    pub skipped: Vec<(usize, Skipped)>,
    /// Whether it ended early because memory got short.
    pub memory_was_short: bool,
}

/// How much of what a profile holds is in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// All that was looked at: a warm start.
    All,
    /// More than half.
    Most,
    /// Half or less: a cold start.
    Little,
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
    most.and_then(|&(device, _)| figures_of(profile, device)).unwrap_or_default()
}

/// What was measured of the device that had the number `learned` when `profile` was: after a boot disks may have others. One file tells, the
/// program's own if it lies there, for that is looked up in any case. Where memory does not know it, or what was measured under the device's
/// number now was another device, the number is taken for the same.
fn figures_of(profile: &Profile, learned: u64) -> Option<DeviceFigures> {
    let cache = Cache::of_user()?;
    let lies_there = |file: &&ProfiledFile| file.identity.device == learned;
    let own = profile.files.iter().find(|file| file.path == profile.program).filter(lies_there);
    let file = own.or_else(|| profile.files.iter().find(lies_there));
    let now = file.and_then(|file| {
        let path = Path::new(&file.path);
        let now = at_hand(path).ok()?.identity();
        let is_renumbered = now.device != learned && now.is_same(&file.identity);
        is_renumbered.then(|| cache.load(&device::Device::under(path).ok()?))?
    });
    now.map(|now| now.figures).or_else(|| cache.figures(learned))
}

/// What one thread does of a prefetch.
pub type Work = Box<dyn FnOnce() + Send>;

/// Returns whether a read may begin, once it may.
pub type Asks = Box<dyn Fn() -> bool + Send + Sync>;

/// A prefetch in preparation or under way. Clones are handles to the same one.
#[derive(Clone)]
pub struct Engine {
    state: Arc<State>,
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("outcome", &self.outcome()).finish_non_exhaustive()
    }
}

impl Engine {
    /// Plans the reads of `profile` for a device. Nothing is opened yet.
    pub fn new(profile: impl Into<Arc<Profile>>, device: &DeviceFigures) -> Self {
        let options = PlanOptions::for_device(device);
        if !device.is_far() {
            return Self::with(profile, options, device.depth.clamp(*READERS.start(), *READERS.end()));
        }
        // The program's own reads are served beside however many of ours: asking is all there is to do.
        let mut engine = Self::with(profile, options, *READERS.end());
        let state = engine.prepared();
        (state.waits, state.name_threads) = (false, NAME_THREADS_FAR);
        engine
    }

    /// Has [`Self::run`] return only when all is in memory, on any device.
    pub fn wait_for_reads(&mut self) {
        self.prepared().waits = true;
    }

    /// Plans the reads of `profile`, for so many readers at once.
    pub fn with(profile: impl Into<Arc<Profile>>, options: PlanOptions, readers: u32) -> Self {
        let profile = profile.into();
        let (reads, mut files) = (plan(&profile, options), Files::of(&profile));
        files.plan(&reads);
        let state = State {
            reads_end: reads.len().into(),
            planned: reads,
            files,
            profile,
            readers,
            depth: None,
            waits: true,
            bin: None,
            together_pages: 0,
            group_ends: Vec::new(),
            options,
            device: None,
            name_threads: NAME_THREADS,
            names_begun: 0,
            budget: OnceLock::new(),
            asks: None,
            cursor: Mutex::default(),
            next_file: AtomicUsize::new(0),
            next_lookup: AtomicUsize::new(0),
            amounts: Arc::default(),
            device_bytes: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            left_out_bytes: AtomicU64::new(0),
            at_work: Mutex::new(0),
            ended: Condvar::new(),
        };
        Self { state: Arc::new(state) }
    }

    /// Has every so many pages in the order of use brought in by their place on the device, and those that lie side by side asked for
    /// at once: one request for many small files.
    pub fn join_neighbours(&mut self, pages: u64) {
        self.prepared().together_pages = pages;
    }

    /// Has what lies side by side on the device come in together although it is needed at different times ([`beside`]), and apart what lies in
    /// several pieces of a file: `place` says at which page of the device a page of a file lies.
    pub fn bring_neighbours_along(&mut self, place: impl Fn(&ProfiledFile, PageIndex) -> Option<u64>) {
        let state = self.prepared();
        let lies_between = |file: &ProfiledFile, last: PageIndex, next: PageIndex| {
            let (Some(from), Some(to)) = (place(file, last), place(file, next)) else { return true };
            to.checked_sub(from) == Some(next.0 - last.0)
        };
        let reads = plan_where(&state.profile, state.options, lies_between);
        let place = |read: &Read| place(&state.profile.files[read.file], read.range.start());
        let groups = beside(&reads, place, state.options);
        let end = |end: &mut usize, group: &Vec<Read>| {
            *end += group.len();
            Some(*end)
        };
        state.group_ends = groups.iter().scan(0, end).collect();
        state.planned = groups.concat();
        *state.reads_end.get_mut() = state.planned.len();
        state.files.plan(&state.planned);
    }

    /// Has `most` readers ask at once in place of those there were to be, once the device has shown that it answers them all as soon as these: as a volume far
    /// away does, and none that counts requests or bytes.
    pub fn ask_deeper_where_far(&mut self, most: u32) {
        let state = self.prepared();
        (state.depth, state.readers) = (Some(Depth::of(state.readers)), most);
    }

    /// Has pages awaited in a way that the kernel does not note as a use, for whoever asks it later what was used.
    ///
    /// # Errors
    /// Where this process may have no more files open.
    pub fn leave_no_notes(&mut self) -> std::io::Result<()> {
        self.prepared().bin = Some(rustix::fs::memfd_create("awaited", rustix::fs::MemfdFlags::CLOEXEC)?);
        Ok(())
    }

    /// Has each file opened when its first page is read, and names looked up by one thread alone: no more requests are under way than readers, and one.
    pub fn open_files_when_read(&mut self) {
        let state = self.prepared();
        // None is left to be opened ahead.
        *state.next_file.get_mut() = state.files.len();
        state.name_threads = 1;
    }

    /// Has file `at` of the profile read by `opened`, whatever lies at its path: it is the device with the number `number` (`st_dev`) itself, and
    /// its pages are the inodes and directories by which the other files are found. So names are left alone, files are opened when their
    /// pages are read and what is to be read of the device at that time has come in, and holes between neighbours on it are read over.
    pub fn give_device(&mut self, at: usize, number: u64, opened: File) {
        let state = self.prepared();
        state.files.give(at, opened);
        (state.device, state.name_threads) = (Some(Device { at, number }), 0);
    }

    /// Has `asks` called before each read, on the thread that is to make it. The prefetch ends where it says no.
    pub fn ask_before_reads(&mut self, asks: Asks) {
        self.prepared().asks = Some(asks);
    }

    /// The state while this is the only handle to it.
    ///
    /// # Panics
    ///
    /// If the prefetch has begun: it cannot be prepared any more.
    fn prepared(&mut self) -> &mut State {
        Arc::get_mut(&mut self.state).expect("a prefetch is prepared before it begins")
    }

    /// Bytes of all reads planned.
    pub fn planned_bytes(&self) -> u64 {
        self.state.planned_bytes()
    }

    /// Leaves memory for others: what is used last is left out where there is not enough for everything, and the rest
    /// where it gets short meanwhile. Leaves tasks for others where there are few.
    pub fn keep_within(&mut self, budget: Budget) {
        self.keep_to_threads(budget.threads());
        self.keep_to_memory(budget);
    }

    /// Has so many threads do all of it.
    fn keep_to_threads(&mut self, threads: u32) {
        let state = self.prepared();
        // The first reader is the thread that starts the others.
        state.name_threads = state.name_threads.min(threads / 2);
        state.readers = state.readers.min((threads - state.name_threads).saturating_add(1));
    }

    /// [`Self::keep_within`] as for memory; not once readers have begun.
    pub(crate) fn keep_to_memory(&self, budget: Budget) {
        self.state.limit_bytes(budget.share_of(self.state.planned_bytes()));
        let is_first = self.state.budget.set(budget).is_ok();
        assert!(is_first, "a prefetch has one budget");
    }

    /// Begins to open files and to look up names with some of so many threads, for what is [started](Self::start) when it is known how much memory
    /// there is. What this returns is to be kept until then. Once it is dropped and they are done, nothing is open any more.
    #[must_use]
    pub(crate) fn start_names(&mut self, threads: u32) -> impl Drop + use<> {
        prepage_sys::heap::share_one();
        self.keep_to_threads(threads);
        let begun = self.state.threads().1.min(NAMES_FIRST);
        self.prepared().names_begun = begun;
        let begins = AtWork::begin(&self.state);
        for thread in 0..begun {
            // What none can be started for is done by who reads.
            spawn(self.work(names_of(thread)));
        }
        begins
    }

    /// Ends the prefetch early: each thread stops after the read it is at.
    pub fn cancel(&self) {
        self.state.cancel();
    }

    /// Whether what the profile holds is in memory already, judged by a sample. Pages found missing are on
    /// their way afterwards. Where it is, nothing stays open.
    pub fn is_warm(&self) -> bool {
        let is_warm = self.state.sample().all(|read| self.state.is_first_resident(read));
        if is_warm {
            self.state.files.close();
        }
        is_warm
    }

    /// How much of what the profile holds is in memory, judged by what [`Self::open_sample`] has opened, with whose rights ever: this opens
    /// nothing. To ask twice may change the answer: where a page has to be read to find out, it is in memory afterwards. Nothing stays open.
    pub fn residency(&self) -> Residency {
        let is_there = |read: &Read| {
            self.state.files.opened(read.file).is_none_or(|file| is_resident(&file, read.range.start()))
        };
        let (missing, all) = self.state.sample().fold((0, 0), |(missing, all), read| {
            let pages = read.range.len();
            (missing + if is_there(read) { 0 } else { pages }, all + pages)
        });
        self.state.files.close();
        match missing {
            0 => Residency::All,
            _ if 2 * missing < all => Residency::Most,
            _ => Residency::Little,
        }
    }

    /// Prefetches everything. Returns when all is in memory (on a far device: on its way), or when cancelled.
    pub fn run(&self) -> Prefetched {
        self.start();
        self.wait()
    }

    /// Begins to prefetch, in threads of its own.
    pub fn start(&self) {
        prepage_sys::heap::share_one();
        self.state.ask_for_first();
        if self.start_on(&mut spawn) == 0 {
            // Where no thread can be had, the caller does what it can by itself.
            let at_work = AtWork::begin(&self.state);
            at_work.0.read_pages();
        }
    }

    /// Begins to prefetch, on threads that `lend` finds for each piece of work, at once or later; it returns whether it will
    /// find one. Work that is dropped is not done. Returns how many readers there are.
    pub fn start_on(&self, lend: &mut dyn FnMut(Work) -> bool) -> u32 {
        let (readers, name_threads) = self.state.threads();
        // One that is done before the next one begins is not the last.
        let _begins = AtWork::begin(&self.state);
        let mut readers_started = 0;
        let name_threads = self.state.names_begun..name_threads;
        for thread in 0..readers.max(name_threads.len() as u32) {
            // In turns: the first names are needed before the first pages, and the last ones need not wait for them.
            let of_names = name_threads.start + thread;
            if name_threads.contains(&of_names) && self.state.has_names_left() {
                lend(self.work(names_of(of_names)));
            }
            // The first one there is in any case: whoever finds none does the work by itself.
            if thread == 0 || thread < readers && self.state.has_reads_left() {
                readers_started += u32::from(lend(self.work(State::read_pages)));
            }
        }
        readers_started
    }

    /// Opens the files and looks up the names, and reads no page: what is in memory of them afterwards is what the kernel knows of
    /// them, not what they hold. Returns when that is done, or when cancelled.
    pub fn look_up(&self) {
        self.state.open_files();
        self.state.look_up_names();
    }

    /// A piece of work for one thread, at work from now on until it is done or dropped.
    fn work(&self, work: fn(&State)) -> Work {
        let at_work = AtWork::begin(&self.state);
        Box::new(move || work(&at_work.0))
    }

    /// Waits for the end of the prefetch, or until it is cancelled.
    pub fn wait(&self) -> Prefetched {
        while !self.wait_for(Duration::from_secs(3600)) {}
        self.outcome()
    }

    /// Waits for the same, but no longer than `timeout`. Returns whether it has come.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let at_work = self.state.at_work.lock().anyway();
        let goes_on = |at_work: &mut u32| *at_work > 0 && !self.state.cancelled.load(Ordering::Relaxed);
        let waited = self.state.ended.wait_timeout_while(at_work, timeout, goes_on);
        !waited.anyway().1.timed_out()
    }

    /// Whether any thread is at work on it, cancelled or not.
    pub fn is_at_work(&self) -> bool {
        *self.state.at_work.lock().anyway() > 0
    }

    /// What was done so far.
    pub fn outcome(&self) -> Prefetched {
        Prefetched {
            requested_bytes: self.state.amounts.requested_bytes(),
            device_bytes: self.state.device_bytes.load(Ordering::Relaxed),
            left_out_bytes: self.state.left_out_bytes.load(Ordering::Relaxed),
            skipped: self.state.files.skipped(),
            memory_was_short: self.state.amounts.memory_was_short(),
        }
    }

    /// What it has come to so far, now and later.
    pub fn amounts(&self) -> Arc<Amounts> {
        self.state.amounts.clone()
    }

    /// The device (`st_dev`) that the first open file of the sample lies on, by which [`Self::is_warm`] judges; `None` where none is open.
    pub fn device(&self) -> Option<u64> {
        let file = self.state.sample().find_map(|read| self.state.files.opened(read.file))?;
        Some(rustix::fs::fstat(file).ok()?.st_dev)
    }

    /// Opens the files of the sample by which [`Self::is_warm`] and [`Self::residency`] judge, and reads nothing of them.
    pub fn open_sample(&self) {
        self.state.sample().for_each(|read| _ = self.state.file(read.file));
    }

    /// The same until to open one takes longer than `patience`, for the device had to be waited for. Returns whether none did.
    pub fn open_sample_at_once(&self, patience: Duration) -> bool {
        self.state.sample().all(|read| {
            let began = Instant::now();
            let _ = self.state.file(read.file);
            began.elapsed() < patience
        })
    }

    /// Opens all files, and closes them again. Returns those of the profile that are no longer what was learned, by index.
    pub fn look_at_files(&self) -> Vec<(usize, Skipped)> {
        for at in 0..self.state.files.len() {
            let _ = self.state.file(at);
        }
        self.state.files.close();
        self.state.files.skipped()
    }
}

/// Has a thread of its own do `work`. Returns whether there is one.
fn spawn(work: Work) -> bool {
    std::thread::Builder::new().stack_size(STACK_BYTES).spawn(work).is_ok()
}

/// What name thread `thread` does: half of them begin with either list, and where one list ends, all are on the other.
fn names_of(thread: u32) -> fn(&State) {
    if thread.is_multiple_of(2) {
        |state| {
            state.open_files();
            state.look_up_names();
        }
    } else {
        |state| {
            state.look_up_names();
            state.open_files();
        }
    }
}

#[cfg(test)]
mod tests;
