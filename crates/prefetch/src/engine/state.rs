//! What the threads of a prefetch share, and what each of them does.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Instant;

use prepage_core::profile::plan::{PlanOptions, Read};
use prepage_core::profile::{Lookup, Profile};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::Skipped;
use prepage_sys::adjoining::will_need;
use prepage_sys::extents::place_of;
use prepage_sys::mapping::FileMapping;
use prepage_sys::root;
use prepage_sys::sync::Anyway;
use prepage_sys::thread_reads::{are_counted, bytes_read_by_this_thread};
use rustix::fs::{Advice, AtFlags, OFlags, StatxFlags};

use super::cursor::Cursor;
use super::depth::Depth;
use super::files::Files;
use super::{ENTRY_BYTES, LISTING_BYTES, MEMORY_CHECK_BYTES, PROBES};
use crate::memory::Budget;
use crate::resident::is_resident;

/// What the threads of a prefetch share.
///
/// Lock legend: (a) atomic; (o) set once, before the first reader begins; `at_work` is a lock, held to count, and slept on with `ended`; `cursor` is
/// one, held to choose a read; `files` has locks of its own, none of them held over another. Order: `depth` before `cursor`; no lock of `files` is waited for
/// under `cursor`. All else is constant once the prefetch has begun.
pub(super) struct State {
    pub(super) profile: Arc<Profile>,
    /// All that was planned. What is made of them: [`Self::reads`].
    pub(super) planned: Vec<Read>,
    /// (a) How many of them are made, the first ones; lowered before the first reader begins.
    pub(super) reads_end: AtomicUsize,
    pub(super) readers: u32,
    /// How many of them ask at once, where the device is to show it.
    pub(super) depth: Option<Depth>,
    /// Whether each reader waits for its read before it takes the next.
    pub(super) waits: bool,
    /// What awaited pages are touched into where that is to leave no note ([`FileMapping::await_page`]).
    pub(super) bin: Option<OwnedFd>,
    /// A reader takes reads of so many pages from the list, and asks together for those of them that lie side by side on the device.
    pub(super) together_pages: u64,
    /// Where it does not stop before: behind each group of reads that belong to one request.
    pub(super) group_ends: Vec<usize>,
    /// How reads are formed, and requests of those that lie side by side.
    pub(super) options: PlanOptions,
    pub(super) device: Option<Device>,
    pub(super) name_threads: u32,
    /// How many of these have begun before the readers.
    pub(super) names_begun: u32,
    /// (o)
    pub(super) budget: OnceLock<Budget>,
    /// What is asked before each read.
    pub(super) asks: Option<super::Asks>,
    /// The files of the profile.
    pub(super) files: Files,
    /// Which reads no thread has taken.
    pub(super) cursor: Mutex<Cursor>,
    /// (a) The next of the files and of the names that no thread has taken.
    pub(super) next_file: AtomicUsize,
    pub(super) next_lookup: AtomicUsize,
    /// (a)
    pub(super) amounts: Arc<Amounts>,
    /// (a) Bytes asked for of the device itself.
    pub(super) device_bytes: AtomicU64,
    /// (a) Set for good: each thread stops after the read it is at.
    pub(super) cancelled: AtomicBool,
    /// (a) Bytes of reads that were left out from the beginning, for little memory was left.
    pub(super) left_out_bytes: AtomicU64,
    /// Threads at work.
    pub(super) at_work: Mutex<u32>,
    /// A thread has ended.
    pub(super) ended: Condvar,
}

/// The file of the profile that is the device on which others lie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Device {
    pub(super) at: usize,
    /// `st_dev` of what lies on it.
    pub(super) number: u64,
}

/// Pages that lie together in one file, or on the device between two such.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    pub(crate) file: Arc<File>,
    pub(crate) range: PageRange,
    pub(crate) is_hole: bool,
}

impl Piece {
    /// Which device it lies on, and where.
    fn place(&self) -> Option<(u64, u64)> {
        let start = place_of(self.file.as_fd(), self.range.start().offset_bytes()).ok()??;
        Some((rustix::fs::fstat(&self.file).ok()?.st_dev, start))
    }
}

/// What is asked for at once.
type Request = Vec<Piece>;

/// What a prefetch has come to so far: for somebody who is not to hold the files that it has open.
///
/// All of it is atomic.
#[derive(Debug, Default)]
pub struct Amounts {
    requested_bytes: AtomicU64,
    read_bytes: AtomicU64,
    /// What the entries of listed directories take.
    listed_bytes: AtomicU64,
    /// Reads that were looked at just before, and those of them whose pages were not in memory.
    sampled_bytes: AtomicU64,
    missing_bytes: AtomicU64,
    /// Set for good.
    memory_was_short: AtomicBool,
}

impl Amounts {
    /// Bytes asked for. What was in memory already is counted too.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes.load(Ordering::Relaxed)
    }

    /// Of them, bytes that devices have read for it; 0 where the kernel does not count them.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Whether it ended early because memory got short.
    pub(crate) fn memory_was_short(&self) -> bool {
        self.memory_was_short.load(Ordering::Relaxed)
    }

    /// Whether half of what was looked at before it was read was not in memory, or more. Nothing is looked at once the kernel has counted a read.
    pub(crate) fn were_missing(&self) -> bool {
        let [sampled, missing] =
            [&self.sampled_bytes, &self.missing_bytes].map(|bytes| bytes.load(Ordering::Relaxed));
        sampled > 0 && 2 * missing >= sampled
    }

    /// So many bytes were looked at before they were read, of which `missing_bytes` were not in memory.
    pub(crate) fn sample(&self, bytes: u64, missing_bytes: u64) {
        self.sampled_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.missing_bytes.fetch_add(missing_bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Amounts {
    /// Of a prefetch that has asked for so many bytes, of which the kernel counted none as read.
    pub(crate) fn uncounted(requested_bytes: u64) -> Self {
        Self { requested_bytes: requested_bytes.into(), ..Self::default() }
    }
}

/// One thread at work, or soon.
pub(super) struct AtWork(pub(super) Arc<State>);

impl AtWork {
    pub(super) fn begin(state: &Arc<State>) -> Self {
        *state.at_work.lock().anyway() += 1;
        Self(state.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        let left = {
            let mut at_work = self.0.at_work.lock().anyway();
            *at_work -= 1;
            *at_work
        };
        self.0.ended.notify_all();
        // Who waits for the end does not wait for a file system that is slow to let files go.
        if left == 0 {
            self.0.files.close();
        }
    }
}

impl State {
    /// The reads to be made, in order.
    pub(super) fn reads(&self) -> &[Read] {
        &self.planned[..self.reads_end.load(Ordering::Relaxed)]
    }

    pub(super) fn planned_bytes(&self) -> u64 {
        self.reads().iter().map(|read| read.range.bytes()).sum()
    }

    /// Leaves out what comes behind so many bytes.
    pub(super) fn limit_bytes(&self, limit: u64) {
        let reads = self.reads();
        let mut left = limit;
        let kept = reads.iter().take_while(|read| {
            let fits = read.range.bytes() <= left;
            left = left.saturating_sub(read.range.bytes());
            fits
        });
        let (kept, left_out) = reads.split_at(kept.count());
        self.reads_end.store(kept.len(), Ordering::Relaxed);
        let bytes = left_out.iter().map(|read| read.range.bytes()).sum();
        self.left_out_bytes.fetch_add(bytes, Ordering::Relaxed);
        left_out.iter().for_each(|read| self.files.leave_out(read.file));
    }

    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
        // Whoever waits holds the lock between its look at `cancelled` and its sleep.
        drop(self.at_work.lock());
        self.ended.notify_all();
        self.depth.iter().for_each(Depth::wake);
    }

    pub(super) fn sample(&self) -> impl Iterator<Item = &Read> {
        self.reads().iter().step_by(self.sample_step())
    }

    fn sample_step(&self) -> usize {
        self.reads().len().div_ceil(PROBES).max(1)
    }

    /// Looks whether what is read next is in memory, where it is one of the sample and the kernel has counted no read yet.
    fn look_before_read(&self, is_of_sample: bool, next: &[Piece]) {
        if let ([piece], true, 0) = (next, is_of_sample, self.amounts.read_bytes()) {
            let is_missing = !is_resident(&piece.file, piece.range.start());
            let bytes = piece.range.bytes();
            self.amounts.sample(bytes, if is_missing { bytes } else { 0 });
        }
    }

    pub(super) fn is_first_resident(&self, read: &Read) -> bool {
        match self.file(read.file) {
            Ok(file) => is_resident(&file, read.range.start()),
            Err(_) => true,
        }
    }

    /// How many readers there are to be, and how many threads for names, for what there is to do.
    pub(super) fn threads(&self) -> (u32, u32) {
        let at_most = |threads: u32, things: usize| threads.min(things as u32);
        let names = self.files.len() + self.profile.lookups.len();
        (at_most(self.readers, self.reads().len()), at_most(self.name_threads, names))
    }

    pub(super) fn has_reads_left(&self) -> bool {
        self.cursor.lock().anyway().has_left(self.reads().len())
    }

    pub(super) fn has_names_left(&self) -> bool {
        self.next_file.load(Ordering::Relaxed) < self.files.len()
            || self.next_lookup.load(Ordering::Relaxed) < self.profile.lookups.len()
    }

    /// Asks for first reads of files that are open by now, as many as there will be readers: the device has something to do while threads begin, which
    /// takes a millisecond or two. Readers then begin with the first reads of all, so that twice as many may be under way at first. Where nobody counts
    /// reads, pages are to be looked at before anybody asks for them.
    pub(super) fn ask_for_first(&self) {
        if self.asks.is_some() || self.cancelled.load(Ordering::Relaxed) || !are_counted() {
            return;
        }
        let open = self.reads().iter().filter_map(|read| Some((self.files.opened(read.file)?, read.range)));
        for (file, range) in open.take(self.threads().0 as usize) {
            let before = bytes_read_by_this_thread();
            // To look may read, too. Once a read was counted, there is nothing to look for.
            let is_missing =
                self.amounts.read_bytes.load(Ordering::Relaxed) == 0 && !is_resident(&file, range.start());
            bring_in(&[Piece { file, range, is_hole: false }], false, None);
            let read_bytes = bytes_read_by_this_thread() - before;
            // The kernel counts reads, but not those of this file system.
            if is_missing && read_bytes == 0 {
                self.amounts.sample(range.bytes(), range.bytes());
                return;
            }
            self.amounts.read_bytes.fetch_add(read_bytes, Ordering::Relaxed);
        }
    }

    pub(super) fn read_pages(&self) {
        let mut read_before = bytes_read_by_this_thread();
        let depth = self.depth.as_ref().map(|depth| (depth, depth.number()));
        let is_something_to_do = || self.has_reads_left() && !self.cancelled.load(Ordering::Relaxed);
        let may_ask = || depth.is_none_or(|(depth, number)| depth.may_ask(number, is_something_to_do));
        while may_ask()
            && let Some((first, reads)) = self.take()
        {
            // A boot is not compared with others.
            let is_of_sample = self.together_pages == 0 && first.is_multiple_of(self.sample_step());
            let is_of_device = |read: &Read| self.device.is_some_and(|device| device.at == read.file);
            let (of_device, of_files): (Vec<Read>, Vec<Read>) =
                reads.iter().partition(|read| is_of_device(read));
            let device_bytes = of_device.iter().map(|read| read.range.bytes()).sum();
            self.device_bytes.fetch_add(device_bytes, Ordering::Relaxed);
            // Files are found by what is read of the device.
            for reads in [of_device, of_files] {
                for neighbours in self.side_by_side(&reads) {
                    if self.asks.as_ref().is_some_and(|may_read| !may_read()) {
                        self.cancel();
                    }
                    if self.cancelled.load(Ordering::Relaxed) {
                        return;
                    }
                    let wanted = neighbours.iter().filter(|piece| !piece.is_hole);
                    let bytes = wanted.map(|piece| piece.range.bytes()).sum::<u64>();
                    let before = self.amounts.requested_bytes.fetch_add(bytes, Ordering::Relaxed);
                    // One reader looks, the one that passes the mark; the others go on meanwhile.
                    if (before + bytes) / MEMORY_CHECK_BYTES > before / MEMORY_CHECK_BYTES {
                        self.look_at_memory();
                    }
                    self.look_before_read(is_of_sample, &neighbours);
                    let turn = self.turn().map(|turn| (turn, Instant::now(), bytes_read_by_this_thread()));
                    bring_in(&neighbours, self.waits, self.bin.as_ref());
                    let read_by_now = bytes_read_by_this_thread();
                    self.amounts.read_bytes.fetch_add(read_by_now - read_before, Ordering::Relaxed);
                    // What was in memory says nothing of the device.
                    if let (Some((turn, began, before)), Some((depth, number))) = (turn, depth)
                        && read_by_now > before
                    {
                        depth.note(number, turn, began.elapsed());
                    }
                    read_before = read_by_now;
                }
                reads.iter().for_each(|read| self.files.note_read(read.file));
            }
        }
        // Who waits for a turn has nothing to do any more.
        self.depth.iter().for_each(Depth::wake);
    }

    /// Which turn of its readers it is, where the device is to show how many may ask.
    fn turn(&self) -> Option<u32> {
        self.depth.as_ref()?.turn()
    }

    /// The next reads, for the thread that asks: one, or as many as may be asked for together, and which the first of them is. `None` at the end.
    fn take(&self) -> Option<(usize, &[Read])> {
        if self.cancelled.load(Ordering::Relaxed) {
            return None;
        }
        // Who takes much has requests left when the turn of many readers is over.
        let together_pages = if self.turn().is_some() { 0 } else { self.together_pages };
        let (reads, mut cursor) = (self.reads(), self.cursor.lock().anyway());
        let (first, end) = if self.together_pages > 0 || !self.group_ends.is_empty() {
            cursor.take(reads.len(), |first| self.end_of_group(first, together_pages))?
        } else {
            // Whoever took a read of a file that somebody is opening would sleep until that is open.
            let is_ready = |read: usize| !self.files.is_being_opened(reads[read].file);
            let read = cursor.take_ready(reads.len(), is_ready)?;
            (read, read + 1)
        };
        Some((first, &reads[first..end]))
    }

    /// Where the reads end that are asked for together, from `first` on: so many pages at most.
    fn end_of_group(&self, first: usize, together_pages: u64) -> usize {
        let (reads, mut pages) = (self.reads(), 0);
        let more = reads[first..].iter().take_while(|read| {
            pages += read.range.len();
            pages <= together_pages
        });
        let end = first + more.count().max(1);
        let group = self.group_ends.partition_point(|&group| group < end);
        self.group_ends.get(group).map_or(end, |&group| group.min(reads.len()))
    }

    /// `reads` of files that are there, apart but for those that lie side by side on the device, or with a hole between them that is read over.
    fn side_by_side(&self, reads: &[Read]) -> Vec<Request> {
        let there = |read: &Read| {
            Some(Piece { file: self.file_to_read(read.file).ok()?, range: read.range, is_hole: false })
        };
        let there = reads.iter().filter_map(there);
        if reads.len() == 1 {
            return there.map(|piece| vec![piece]).collect();
        }
        let mut placed: Vec<_> = there.map(|piece| (piece.place(), piece)).collect();
        placed.sort_by_key(|(place, _)| *place);
        let mut all: Vec<Request> = Vec::new();
        // Where the last of them ends, and how many pages it has.
        let (mut end, mut pages) = (None, 0);
        for (place, piece) in placed {
            let hole = self.hole(end, place);
            let range = piece.range;
            let with_hole = hole.as_ref().map_or(0, |hole| hole.range.len()) + range.len();
            let is_next = place.is_some() && (place == end || hole.is_some());
            pages = if is_next && pages + with_hole <= self.options.read_pages_max {
                all.last_mut().expect("it has an end").extend(hole.into_iter().chain([piece]));
                pages + with_hole
            } else {
                all.push(vec![piece]);
                range.len()
            };
            end = place.map(|(device, start)| (device, start + range.bytes()));
        }
        all
    }

    /// What lies on the device from `end` to `start`, where it is small enough to be read over.
    fn hole(&self, end: Option<(u64, u64)>, start: Option<(u64, u64)>) -> Option<Piece> {
        let ((before, end), (after, start)) = (end?, start?);
        let device = self.device.filter(|device| [before, after] == [device.number; 2])?;
        let file = self.file(device.at).ok()?;
        let is_whole = end % PAGE_SIZE == 0 && start % PAGE_SIZE == 0 && end < start;
        let range = is_whole.then(|| PageRange::covering(end, start - end))?;
        (range.len() <= self.options.gap_pages_max).then_some(Piece { file, range, is_hole: true })
    }

    fn look_at_memory(&self) {
        if self.budget.get().is_some_and(|budget| budget.is_short_for(MEMORY_CHECK_BYTES)) {
            self.amounts.memory_was_short.store(true, Ordering::Relaxed);
            self.cancel();
        }
    }

    /// Repeats lookups, in order of first use.
    pub(super) fn look_up_names(&self) {
        while !self.cancelled.load(Ordering::Relaxed) {
            let at = self.next_lookup.fetch_add(1, Ordering::Relaxed);
            let Some(lookup) = self.profile.lookups.get(at) else { break };
            self.look_up(lookup);
        }
    }

    /// Makes the kernel read the directories and the inode that answer for a name.
    fn look_up(&self, lookup: &Lookup) {
        let path = Path::new(&lookup.path);
        if !lookup.list {
            let _ = root::statx(path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE);
            return;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
        let Ok(directory) = root::open(path, flags) else { return };
        let mut buffer = [std::mem::MaybeUninit::uninit(); LISTING_BYTES];
        let mut entries = rustix::fs::RawDir::new(directory, &mut buffer);
        let mut bytes = 0;
        while !self.cancelled.load(Ordering::Relaxed)
            && let Some(Ok(entry)) = entries.next()
        {
            bytes += ENTRY_BYTES + entry.file_name().to_bytes().len() as u64;
            // What was listed fills memory with names.
            if entries.is_buffer_empty() {
                let before = self.amounts.listed_bytes.fetch_add(bytes, Ordering::Relaxed);
                if before / MEMORY_CHECK_BYTES < (before + bytes) / MEMORY_CHECK_BYTES {
                    self.look_at_memory();
                }
                bytes = 0;
            }
        }
    }

    /// Opens files, in order of first use.
    pub(super) fn open_files(&self) {
        while !self.cancelled.load(Ordering::Relaxed) {
            let at = self.next_file.fetch_add(1, Ordering::Relaxed);
            if at >= self.files.len() {
                break;
            }
            self.files.look_at(at, &self.profile.files[at]);
        }
    }

    pub(super) fn file(&self, at: usize) -> Result<Arc<File>, Skipped> {
        self.files.open(at, &self.profile.files[at])
    }

    fn file_to_read(&self, at: usize) -> Result<Arc<File>, Skipped> {
        self.files.open_to_read(at, &self.profile.files[at], &self.cancelled)
    }
}

/// Has `pieces` read into memory, and waits for them where it `waits`: with a `bin`, without a note that they were used.
pub(crate) fn bring_in(pieces: &[Piece], waits: bool, bin: Option<&OwnedFd>) {
    let wanted = || pieces.iter().filter(|piece| !piece.is_hole);
    let together = || pieces.iter().map(|piece| (piece.file.as_fd(), piece.range)).collect::<Vec<_>>();
    if pieces.len() == 1 || will_need(&together()).is_err() {
        for Piece { file, range, .. } in wanted() {
            let len = std::num::NonZeroU64::new(range.bytes());
            // Failure means that the file system does not know WILLNEED; the read below then brings in its one page,
            // and the program faults on the rest as it would have without us.
            let _ = rustix::fs::fadvise(file, range.start().offset_bytes(), len, Advice::WillNeed);
        }
    }
    if waits {
        for Piece { file, range, .. } in wanted() {
            let last = PageIndex(range.end().0 - 1);
            let awaited = bin.map(|bin| FileMapping::await_page(file.as_fd(), last, bin.as_fd()));
            if !matches!(awaited, Some(Ok(()))) {
                let _ = rustix::io::pread(file, &mut [0u8; 1], last.offset_bytes());
            }
        }
    }
}
