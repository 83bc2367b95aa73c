//! Dirty pages go to where they belong: when somebody flushes them, before their frames are reclaimed, and after a while.
//!
//! ```text
//!   dirty pages of a range ─► take the marks ─► sections end ─► protect in all maps ─► read ─► write to the file ─► clean
//!                                                                                       └─ fails: dirty again
//!   flush: all of that, then fdatasync. Fails that: what was written since the last one is dirty again
//! ```

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::signals::Masked;
use rangemap::RangeSet;

use crate::buffers::BUFFER_PAGES;
use crate::dirty::Dirty;
use crate::error::FlushError;
use crate::failure::say;
use crate::fill::{Wanted, fill_local};
use crate::object::{Bytes, Frames, Object, ObjectCore, clip};
use crate::pages::Seen;
use crate::pool::Pool;
use crate::reason;
use crate::request::Priority;
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, AtomicU32, Ordering};
use crate::vm::Vm;
use crate::writes::runs_of;

/// Pages that are protected together.
const BATCH_PAGES: usize = 1024;
/// Once writes have failed for so long since one succeeded the rest is refused: it would fail as well, and others wait meanwhile.
const FAILING_MAX: Duration = Duration::from_secs(2);
/// So many pages may lie between pages that are protected by one call, see `writes`.
const GAP_PAGES: u64 = 4;

/// What was written and is not known to be durable, by page.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Since the last sync that succeeded.
    since_sync: RangeSet<u64>,
    /// Before one that failed: to be written once more.
    failed: RangeSet<u64>,
}

/// What came of writing pages, in ascending order.
#[derive(Debug)]
struct Came {
    written: Vec<PageRange>,
    refused: Vec<PageIndex>,
    /// How long the writes took together that failed since one succeeded.
    failing: Duration,
    /// The first error.
    outcome: Result<(), FlushError>,
}

impl Came {
    fn after(failing: Duration) -> Self {
        Self { written: Vec::new(), refused: Vec::new(), failing, outcome: Ok(()) }
    }

    fn has_given_up(&self) -> bool {
        self.failing >= FAILING_MAX
    }

    fn written_pages(&self) -> u64 {
        self.written.iter().map(|part| part.len()).sum()
    }

    fn fail(&mut self, pages: PageRange, error: FlushError) {
        self.refused.extend(pages.iter());
        if self.outcome.is_ok() {
            self.outcome = Err(error);
        }
    }
}

/// `None` of a single page.
fn halves(range: PageRange) -> Option<(PageRange, PageRange)> {
    let middle = PageIndex(range.start().0 + range.len() / 2);
    (range.len() > 1).then(|| (PageRange::new(range.start(), middle), PageRange::new(middle, range.end())))
}

impl Object {
    /// How many of its pages may hold written bytes that were not written back yet. They stay in memory until then. If a program writes in
    /// order, this includes pages ahead of its writes: see [`Self::write_back`]. None in a child of fork(2).
    pub fn dirty_pages(&self) -> u64 {
        let dirty = self.core.dirty().filter(|_| self.core.vm.check_process().is_ok());
        dirty.map_or(0, Dirty::pages)
    }

    /// Writes back what was written to `range` through any map, and makes it durable, as msync(2) with MS_SYNC and fsync(2). Once this has
    /// returned without an error, all writes that happened before the call, by this thread or by others, outlive the process and a crash of the
    /// machine. Threads may go on writing meanwhile; whether their writes are included is decided page by page.
    ///
    /// Pages are written in ascending order. If a page cannot be written the others are still tried, and the first error is
    /// returned. The rest is not tried once writes have failed for two seconds and none has succeeded meanwhile, as where a server does not
    /// answer. Unlike with fsync(2), an error loses nothing: such pages stay dirty and in memory, with the bytes that were written. A later
    /// flush writes them again, and reports what is still wrong then.
    ///
    /// # Errors
    /// See [`FlushError`].
    pub fn flush(&self, range: PageRange) -> Result<(), FlushError> {
        self.written_back(range, |core, frames, dirty, range| match dirty.home.is_swap() {
            true => Err(FlushError::Memory { object: core.name.clone() }),
            false => core.flush(frames, dirty, range),
        })
    }

    /// As [`Self::flush`], but not durable: other readers of the file see what was written. Returns how many pages were written. Pages that
    /// nobody wrote to are left out. Pages of [`Vm::memory`](crate::Vm::memory) go to the swap file.
    ///
    /// # Errors
    /// As `flush`.
    pub fn write_back(&self, range: PageRange) -> Result<u64, FlushError> {
        self.written_back(range, |core, frames, dirty, range| core.write_back(frames, dirty, range))
    }

    fn written_back<T>(
        &self,
        range: PageRange,
        how: impl FnOnce(&ObjectCore, &Frames, &Dirty, PageRange) -> Result<T, FlushError>,
    ) -> Result<T, FlushError> {
        self.core.vm.check_process().map_err(|_| FlushError::Forked)?;
        let frames = self.core.frames();
        let Some((frames, dirty)) = frames.and_then(|frames| Some((frames, frames.dirty.as_ref()?))) else {
            return Err(FlushError::ReadOnly { object: self.name().to_owned() });
        };
        // A signal handler that wrote to a map would wait for what this thread holds.
        let _masked = Masked::asynchronous();
        how(&self.core, frames, dirty, clip(range, self.pages()))
    }
}

impl Vm {
    /// As [`Object::flush`] of all pages of every object that writes to a file, in the order in which they were made: for a program that ends. If one
    /// cannot be flushed the others are still tried, and the first error is returned. What was written to objects that are gone was written back when they
    /// went, and is not made durable by this. An object whose last handle goes at the same moment is missed: it may still be writing back afterwards.
    ///
    /// # Errors
    /// As [`Object::flush`]. Objects that take no writes, and [`Vm::memory`], have nothing to flush.
    pub fn flush(&self) -> Result<(), FlushError> {
        self.core.check_process().map_err(|_| FlushError::Forked)?;
        let _masked = Masked::asynchronous();
        let mut alive = self.core.names.alive();
        alive.sort_unstable_by_key(|object| object.id);
        flush_all(alive)
    }
}

impl Pool {
    /// As [`Vm::flush`], of the objects of all VMs that use the pool.
    ///
    /// # Errors
    /// As [`Vm::flush`].
    pub fn flush(&self) -> Result<(), FlushError> {
        if self.core().is_forked() {
            return Err(FlushError::Forked);
        }
        let _masked = Masked::asynchronous();
        flush_all(self.core().alive())
    }
}

/// Tries all `objects`; gives the first error.
fn flush_all(objects: Vec<Arc<ObjectCore>>) -> Result<(), FlushError> {
    let mut outcome = Ok(());
    for object in objects {
        let Some((frames, dirty)) = object.frames().zip(object.dirty()) else { continue };
        if !dirty.home.is_swap() {
            outcome = outcome.and(object.flush(frames, dirty, object.pages()));
        }
    }
    outcome
}

impl ObjectCore {
    fn flush(&self, frames: &Frames, dirty: &Dirty, range: PageRange) -> Result<(), FlushError> {
        let _one = dirty.syncing.lock().anyway();
        let rescued = self.rescue(frames, dirty);
        let written = self.write_back(frames, dirty, range);
        // Written by others may be what they did not sync.
        let before = std::mem::take(&mut dirty.written.lock().anyway().since_sync);
        let synced = dirty.home.sync();
        if synced.is_err() {
            let mut state = dirty.written.lock().anyway();
            let meanwhile = std::mem::take(&mut state.since_sync);
            state.failed.extend(before);
            state.failed.extend(meanwhile);
            drop(state);
            // Those in memory are dirty again at once; others when they can be had.
            let _ = self.mark_failed(frames, dirty);
        }
        rescued?;
        written?;
        synced.map_err(|source| FlushError::Sync { object: self.name.clone(), source })
    }

    /// Brings in what was written before a sync that failed, to be written once more. What cannot be had for now is left to the next flush.
    fn rescue(&self, frames: &Frames, dirty: &Dirty) -> Result<(), FlushError> {
        let Bytes::Local(file) = &frames.bytes else { return Ok(()) };
        let mut outcome = Ok(());
        let mut missing = self.mark_failed(frames, dirty).into_iter();
        let mut next = missing.next();
        while let Some(page) = next {
            let mut account = Account::here();
            let wanted = Wanted {
                needed: page,
                mark: None,
                priority: Priority::Wanted,
                in_order_for: None,
                whole_grains: true,
            };
            let failed = match frames.pages.claim(page) {
                Some(claim) => {
                    let filled = fill_local(self, frames, file, claim, wanted, None, &mut account);
                    if filled.waiters.listed {
                        self.vm.jobs.serve_listed_soon();
                    }
                    filled.outcome.err()
                }
                None => match frames.pages.wait(page) {
                    Seen::Failed(code) => Some(code),
                    _ => None,
                },
            };
            // What came and went again before it was marked is brought in once more.
            if failed.is_some() || self.mark_again(frames, dirty, page, account.cpu) {
                next = missing.next();
            }
            if let Some(code) = failed {
                let (object, reason) = (self.name.clone(), self.reason(page, code));
                outcome = outcome.and(if matches!(code, reason::CHANGED | reason::SHORT) {
                    // Whoever touches it gets the same error.
                    dirty.written.lock().anyway().failed.remove(page.0..page.0 + 1);
                    Err(FlushError::Lost { object, page, reason })
                } else {
                    Err(FlushError::Unread { object, page, reason })
                });
            }
        }
        outcome
    }

    /// Marks what was written before a failed sync as dirty; gives the pages that are not in memory.
    fn mark_failed(&self, frames: &Frames, dirty: &Dirty) -> Vec<PageIndex> {
        let failed = dirty.written.lock().anyway().failed.clone();
        let mut missing = Vec::new();
        let cpu = Account::here().cpu;
        for page in failed.iter().flat_map(Clone::clone).map(PageIndex) {
            if !self.mark_again(frames, dirty, page, cpu) {
                missing.push(page);
            }
        }
        missing
    }

    /// The same of one page; false where it is not in memory.
    fn mark_again(&self, frames: &Frames, dirty: &Dirty, page: PageIndex, cpu: usize) -> bool {
        let section = frames.sections.enter(cpu);
        let is_marked = dirty.mark(&frames.pages, page).is_some();
        drop(section);
        if is_marked {
            dirty.written.lock().anyway().failed.remove(page.0..page.0 + 1);
            self.vm.writer.call_for(self);
        }
        is_marked
    }

    /// Writes the dirty pages of `range`; returns how many. Goes on after an error until [`FAILING_MAX`], and gives the first one.
    pub(crate) fn write_back(
        &self,
        frames: &Frames,
        dirty: &Dirty,
        range: PageRange,
    ) -> Result<u64, FlushError> {
        let mut outcome = Ok(());
        let (mut pages, mut failing) = (0, Duration::ZERO);
        let mut from = range.start();
        while failing < FAILING_MAX {
            // For one batch: a frame that is to go waits for no more.
            let mut written = dirty.written.lock().anyway();
            let mut batch = Vec::new();
            while batch.len() < BATCH_PAGES
                && let Some(page) = dirty.first(&frames.pages, PageRange::new(from, range.end()))
            {
                from = PageIndex(page.0 + 1);
                if dirty.begin(&frames.pages, page) {
                    batch.push(page);
                }
            }
            if batch.is_empty() {
                break;
            }
            let came = self.write_batch(frames, dirty, &batch, &mut written, failing, None);
            (pages, failing) = (pages + came.written_pages(), came.failing);
            outcome = outcome.and(came.outcome);
        }
        outcome.map(|()| pages)
    }

    /// Writes the dirty ones of `pages`, which ascend, before their frames are taken away; gives those that could not be written. They stay; all of them do
    /// while somebody else writes pages of the object, unless that `is_waited_for`. Counts the runs of pages that were tried in `runs`.
    pub(crate) fn clean(
        &self,
        frames: &Frames,
        pages: &[PageIndex],
        is_waited_for: bool,
        runs: Option<&AtomicU32>,
    ) -> Vec<PageIndex> {
        let is_clean = |dirty: &&Dirty| pages.iter().all(|&page| dirty.is_clean(&frames.pages, page));
        let Some(dirty) = frames.dirty.as_ref().filter(|dirty| !is_clean(dirty)) else { return Vec::new() };
        let mut written = match dirty.written.try_lock().anyway() {
            Some(written) => written,
            None if is_waited_for => dirty.written.lock().anyway(),
            None => return Vec::new(),
        };
        let may_go = |&page: &PageIndex| dirty.home.takes(page) && dirty.begin(&frames.pages, page);
        let batch: Vec<_> = pages.iter().copied().filter(may_go).collect();
        if batch.is_empty() {
            return batch;
        }
        // Nobody can be told; the next flush tells.
        self.write_batch(frames, dirty, &batch, &mut written, Duration::ZERO, runs).refused
    }

    /// The marks of `batch`, which ascends, were taken: writes it, and says what came of that. The writes before it were `failing` for so long.
    /// Counts the runs of pages that were tried in `runs`, while it is at it.
    fn write_batch(
        &self,
        frames: &Frames,
        dirty: &Dirty,
        batch: &[PageIndex],
        written: &mut Written,
        failing: Duration,
        runs: Option<&AtomicU32>,
    ) -> Came {
        // Who let a write happen before the mark was taken has done so when this returns.
        frames.sections.wait();
        let buffer = self.protect(batch).and_then(|()| self.vm.request_buffers.take_or_make(1));
        let mut all = Came::after(failing);
        let mut buffer = buffer.map_err(|error| all.outcome = Err(FlushError::System(error))).ok();
        for run in batch.chunk_by(|page, next| page.0 + 1 == next.0) {
            for run in run.chunks(BUFFER_PAGES as usize) {
                let run = PageRange::new(run[0], PageIndex(run[0].0 + run.len() as u64));
                let mut came = Came::after(all.failing);
                match &mut buffer {
                    Some(buffer) => self.write_run(frames, dirty, run, buffer.pages(run.len()), &mut came),
                    None => came.refused.extend(run.iter()),
                }
                // What went to a swap file is never synced.
                for part in came.written.iter().filter(|_| !dirty.home.is_swap()) {
                    written.since_sync.insert(part.start().0..part.end().0);
                }
                for page in run.iter() {
                    dirty.end(&frames.pages, page, came.refused.binary_search(&page).is_err());
                }
                if let Some(runs) = runs {
                    runs.fetch_add(1, Ordering::SeqCst);
                }
                all.written.append(&mut came.written);
                all.refused.append(&mut came.refused);
                (all.outcome, all.failing) = (all.outcome.and(came.outcome), came.failing);
            }
        }
        if let Some(buffer) = buffer {
            self.vm.request_buffers.give(buffer);
        }
        if all.refused.len() < batch.len() {
            // Reads may wait for frames that are clean now.
            self.vm.pool.core().frames.may_go();
        }
        let pages = all.written_pages();
        let swapped = if dirty.home.is_swap() { pages } else { 0 };
        let tally = Tally {
            pages_written_back: pages - swapped,
            pages_swapped: swapped,
            write_backs_failed: all.refused.len() as u64,
            ..Tally::default()
        };
        self.vm.figures.add(Account::here().cpu, &tally);
        all
    }

    /// Writes what was written to of `run`, whose bytes `bytes` has room for. One page that fails soon keeps no other from being written.
    fn write_run(&self, frames: &Frames, dirty: &Dirty, run: PageRange, bytes: &mut [u8], came: &mut Came) {
        if let Err(source) = frames.memfd.read_at(bytes, run.start().offset_bytes()) {
            let Some((first, rest)) = halves(run) else {
                return came.fail(run, self.write_error(run, source));
            };
            let (first_bytes, rest_bytes) = bytes.split_at_mut(first.bytes() as usize);
            self.write_run(frames, dirty, first, first_bytes, came);
            return self.write_run(frames, dirty, rest, rest_bytes, came);
        }
        let of_page = |page: PageIndex| &bytes[((page.0 - run.start().0) * PAGE_SIZE) as usize..];
        let sums = frames.sums().expect("made with what takes writes");
        // Kept now, while the bytes are at hand: who opens the page ahead of the next writes need not read it.
        let is_same = |page: PageIndex| {
            let is_known = sums.replace(page, &of_page(page)[..PAGE_SIZE as usize]);
            dirty.stays_ahead(&frames.pages, page, is_known)
        };
        for part in runs_of(run.iter().filter(|&page| !is_same(page))) {
            self.write_part(dirty, part, &of_page(part.start())[..part.bytes() as usize], came);
        }
    }

    /// Writes the pages `part`, whose bytes are `bytes`; where that fails, by halves.
    fn write_part(&self, dirty: &Dirty, part: PageRange, bytes: &[u8], came: &mut Came) {
        if came.has_given_up() {
            return came.refused.extend(part.iter());
        }
        let began = Instant::now();
        match (self.write(dirty, part, bytes), halves(part)) {
            (Ok(()), _) => {
                came.failing = Duration::ZERO;
                came.written.push(part);
            }
            (Err(error), halves) => {
                came.failing += began.elapsed();
                let Some((first, rest)) = halves.filter(|_| !came.has_given_up()) else {
                    return came.fail(part, error);
                };
                let (first_bytes, rest_bytes) = bytes.split_at(first.bytes() as usize);
                self.write_part(dirty, first, first_bytes, came);
                self.write_part(dirty, rest, rest_bytes, came);
            }
        }
    }

    fn write(&self, dirty: &Dirty, part: PageRange, bytes: &[u8]) -> Result<(), FlushError> {
        let start = part.start().offset_bytes();
        let wanted = part.bytes().min(self.len_bytes - start);
        let len_bytes = dirty.home.len_bytes().map_err(|source| self.write_error(part, source))?;
        let there = wanted.min(len_bytes.saturating_sub(start));
        dirty.home.write(start, &bytes[..there as usize]).map_err(|source| self.write_error(part, source))?;
        if there < wanted {
            return Err(FlushError::Truncated { object: self.name.clone(), page: part.start(), len_bytes });
        }
        Ok(())
    }

    fn write_error(&self, range: PageRange, source: io::Error) -> FlushError {
        FlushError::Write { object: self.name.clone(), page: range.start(), source }
    }

    /// From here on a write to one of `pages`, which ascend, is told again.
    fn protect(&self, pages: &[PageIndex]) -> io::Result<()> {
        let near = pages.chunk_by(|page, next| next.0 - page.0 <= GAP_PAGES);
        let near: Vec<PageRange> =
            near.map(|run| PageRange::new(run[0], PageIndex(run[run.len() - 1].0 + 1))).collect();
        let cpu = Account::here().cpu;
        // Looked up after the marks were taken: what a map that comes now lets be written to is marked again.
        for (backing, at) in self.backings.of_maps() {
            let Some(map) = at.enter(cpu).filter(|map| map.writes_through) else { continue };
            for run in near.iter().map(|run| clip(*run, backing.window)).filter(|run| !run.is_empty()) {
                let start = map.offset_of(run.start());
                match map.space.uffd.protect(&map.span, start, run.bytes()) {
                    // A map that is just being made shows nothing yet.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    result => result?,
                }
            }
        }
        Ok(())
    }

    /// The object goes: what was written to it is written back, or lost with a message.
    pub(crate) fn write_back_last(&self, frames: &Frames) {
        let is_to_go = |dirty: &&Dirty| dirty.pages() > 0 && !dirty.home.is_swap();
        let Some(dirty) = frames.dirty.as_ref().filter(is_to_go) else { return };
        if self.vm.check_process().is_ok()
            && let Err(error) = self.write_back(frames, dirty, self.pages())
            && self.vm.options.explain
        {
            say(format_args!("{} pages are lost: {}", dirty.pages(), with_cause(&error)));
        }
    }
}

/// An error in one line.
pub(crate) fn with_cause(error: &FlushError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::fs::File;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::cleaner::Cleaner;
    use crate::home::Home;
    use crate::object::Contents;
    use crate::source::LocalFile;
    use crate::{AccessError, Map, MapOptions, Reason, VmOptions};

    /// A file that fails when it is told to; as a device that was lost, it takes back what was not synced.
    #[derive(Debug)]
    struct Failing {
        file: File,
        writes_fail: AtomicBool,
        /// Of all pages but these writes succeed.
        refused: Mutex<Vec<PageIndex>>,
        /// How long writes take.
        write_ms: AtomicU64,
        tries: AtomicU64,
        /// Held, writes wait.
        writes: Mutex<()>,
        syncs_fail: AtomicBool,
    }

    impl Home for Arc<Failing> {
        fn write(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
            drop(self.writes.lock().anyway());
            self.tries.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(self.write_ms.load(Ordering::SeqCst)));
            if self.writes_fail.load(Ordering::SeqCst) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let range = PageRange::covering(offset_bytes, bytes.len() as u64);
            if self.refused.lock().unwrap().iter().any(|&page| range.contains(page)) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.file.write(offset_bytes, bytes)
        }

        fn len_bytes(&self) -> io::Result<u64> {
            self.file.len_bytes()
        }

        fn sync(&self) -> io::Result<()> {
            // Once, as the kernel tells of it.
            if self.syncs_fail.swap(false, Ordering::SeqCst) {
                return Err(io::Error::from_raw_os_error(5));
            }
            Ok(())
        }
    }

    const PAGES: u64 = 8;

    fn failing() -> (tempfile::NamedTempFile, Arc<Failing>, Object, Map) {
        failing_in(VmOptions::default())
    }

    fn failing_in(options: VmOptions) -> (tempfile::NamedTempFile, Arc<Failing>, Object, Map) {
        failing_with(options, PAGES)
    }

    fn failing_with(options: VmOptions, pages: u64) -> (tempfile::NamedTempFile, Arc<Failing>, Object, Map) {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(pages * PAGE_SIZE).unwrap();
        let home = Arc::new(Failing {
            file: file.reopen().unwrap(),
            writes_fail: AtomicBool::new(false),
            refused: Mutex::default(),
            write_ms: AtomicU64::new(0),
            tries: AtomicU64::new(0),
            writes: Mutex::default(),
            syncs_fail: AtomicBool::new(false),
        });
        let options = options.explain(false).write_back_after(Duration::from_secs(1 << 20));
        let vm = Vm::new(options).unwrap();
        let local = LocalFile::open_writable(file.path()).unwrap();
        let taken = Box::new(Arc::clone(&home));
        let object = vm.object("failing".to_owned(), pages * PAGE_SIZE, None, |len| {
            let frames = Frames::written(len, Bytes::Local(local), taken, vm.core.pool.core())?;
            Ok(Contents::Frames(Box::new(frames)))
        });
        let object = object.unwrap();
        let map = vm.map(&object, &MapOptions::writable()).unwrap();
        (file, home, object, map)
    }

    #[test]
    fn what_cannot_be_written_stays_and_is_written_later() {
        let (file, home, object, map) = failing();
        map.populate(map.window()).unwrap();
        home.writes_fail.store(true, Ordering::SeqCst);
        map.write_at(2 * PAGE_SIZE, &[2; 2 * PAGE_SIZE as usize]).unwrap();
        map.write_at(6 * PAGE_SIZE, &[6]).unwrap();
        let failed = object.flush(object.pages()).unwrap_err();
        assert!(matches!(failed, FlushError::Write { page: PageIndex(2), .. }), "{failed}");
        assert_eq!(object.dirty_pages(), 3);
        assert_eq!(object.core.vm.figures.counted().write_backs_failed, 3);
        assert_eq!(object.core.vm.pool.reclaim(PAGES), PAGES - 3, "what is nowhere else stays");
        // A write meanwhile is not lost either.
        map.write_at(6 * PAGE_SIZE, &[7]).unwrap();
        home.writes_fail.store(false, Ordering::SeqCst);
        object.flush(object.pages()).unwrap();
        assert_eq!(object.dirty_pages(), 0);
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!([2 * PAGE_SIZE, 4 * PAGE_SIZE - 1, 6 * PAGE_SIZE].map(|at| bytes[at as usize]), [2, 2, 7]);
    }

    #[test]
    fn neighbours_of_pages_that_cannot_be_written_are_written() {
        let (file, home, object, map) = failing();
        *home.refused.lock().unwrap() = vec![PageIndex(2), PageIndex(3)];
        map.write_at(0, &[1; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let failed = object.flush(object.pages()).unwrap_err();
        assert!(matches!(failed, FlushError::Write { page: PageIndex(2), .. }), "{failed}");
        assert_eq!(object.dirty_pages(), 2);
        let firsts = || {
            let bytes = std::fs::read(file.path()).unwrap();
            bytes.iter().copied().step_by(PAGE_SIZE as usize).collect::<Vec<_>>()
        };
        assert_eq!(firsts(), [1, 1, 0, 0, 1, 1, 1, 1]);
        let counted = object.core.vm.figures.counted();
        assert_eq!((counted.pages_written_back, counted.write_backs_failed), (PAGES - 2, 2));
        home.refused.lock().unwrap().clear();
        object.flush(object.pages()).unwrap();
        assert_eq!((firsts(), object.dirty_pages()), (vec![1; PAGES as usize], 0));
    }

    /// Each try may take as long as a dead server is waited for.
    #[test]
    fn who_does_not_answer_is_not_asked_for_long() {
        const MANY: u64 = 2 * BATCH_PAGES as u64;
        let (_file, home, object, map) = failing_with(VmOptions::default(), MANY);
        map.write_at(0, &vec![1; (MANY * PAGE_SIZE) as usize]).unwrap();
        let fails = |fails, write_ms| {
            home.writes_fail.store(fails, Ordering::SeqCst);
            home.write_ms.store(write_ms, Ordering::SeqCst);
        };
        fails(true, 300);
        object.flush(object.pages()).unwrap_err();
        let (tries, failed) =
            (home.tries.load(Ordering::SeqCst), object.core.vm.figures.counted().write_backs_failed);
        assert!((1..=7).contains(&tries), "{tries} times 0.3 s");
        assert_eq!((failed, object.dirty_pages()), (BATCH_PAGES as u64, MANY), "the rest is left alone");
        fails(false, 0);
        object.flush(object.pages()).unwrap();
        assert_eq!(object.dirty_pages(), 0);
    }

    #[test]
    fn pages_before_the_end_of_a_file_that_was_cut_are_written() {
        let (file, home, object, map) = failing();
        map.write_at(0, &[1; (PAGES * PAGE_SIZE) as usize]).unwrap();
        home.file.set_len(5 * PAGE_SIZE).unwrap();
        let failed = object.flush(object.pages()).unwrap_err();
        assert!(matches!(failed, FlushError::Truncated { page: PageIndex(5), .. }), "{failed}");
        assert_eq!(object.dirty_pages(), PAGES - 5);
        assert_eq!(std::fs::read(file.path()).unwrap(), [1; 5 * PAGE_SIZE as usize]);
    }

    #[test]
    fn what_a_failed_sync_makes_dirty_again_is_written_in_the_background() {
        let (_file, home, object, map) = failing();
        let writer = &object.core.vm.writer;
        writer.enter(&object.core, Duration::from_millis(5)).unwrap();
        map.write_at(0, &[1]).unwrap();
        let is_clean_soon = || {
            (0..2000).any(|_| {
                std::thread::sleep(Duration::from_millis(5));
                object.dirty_pages() == 0
            })
        };
        assert!(is_clean_soon());
        home.syncs_fail.store(true, Ordering::SeqCst);
        assert!(matches!(object.flush(object.pages()), Err(FlushError::Sync { .. })));
        assert!(is_clean_soon());
    }

    #[test]
    fn what_was_written_without_a_fault_and_could_not_be_written_back_is_written_later() {
        let (file, home, object, map) = failing();
        map.populate(map.window()).unwrap();
        for value in 1..4 {
            let before = object.core.vm.figures.costs_ns()[prepage_core::FaultClass::Cached as usize].len();
            for page in 0..PAGES {
                map.as_atomics()[(page * PAGE_SIZE) as usize].store(value, Ordering::Relaxed);
            }
            let faults =
                object.core.vm.figures.costs_ns()[prepage_core::FaultClass::Cached as usize].len() - before;
            assert_eq!(faults, 5, "pages 5 to 7 were opened with page 4");
            home.writes_fail.store(true, Ordering::SeqCst);
            (0..2).for_each(|_| drop(object.flush(object.pages()).unwrap_err()));
            home.writes_fail.store(false, Ordering::SeqCst);
            object.flush(object.pages()).unwrap();
            let bytes = std::fs::read(file.path()).unwrap();
            assert!(bytes.iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == value), "{value}");
        }
    }

    #[test]
    fn reclaim_waits_for_what_others_write_back() {
        let (_file, home, object, map) = failing();
        map.write_at(0, &[1; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let written = home.writes.lock().unwrap();
        let frames = object.core.frames().unwrap();
        let dirty = object.core.dirty().unwrap();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| object.write_back(object.pages()).unwrap());
            while dirty.first(&frames.pages, object.pages()).is_some() {
                std::thread::yield_now();
            }
            let reclaiming = scope.spawn(|| {
                // A write that takes long is not waited for.
                let mut reclaimed = 0;
                while reclaimed < PAGES {
                    reclaimed += object.core.vm.pool.reclaim(PAGES - reclaimed);
                }
            });
            // It has looked by then.
            std::thread::sleep(Duration::from_millis(50));
            drop(written);
            assert_eq!(writing.join().unwrap(), PAGES);
            reclaiming.join().unwrap();
        });
    }

    /// As on a file system that is frozen for a backup, or where a server does not answer.
    #[test]
    fn a_write_that_hangs_holds_up_no_other_page_of_the_pool() {
        const LIMIT: u64 = 256;
        const DIRTY: u64 = LIMIT / 2;
        let (file, home, object, map) =
            failing_with(VmOptions::default().frame_limit_bytes(LIMIT * PAGE_SIZE), DIRTY);
        map.write_at(0, &vec![7; (DIRTY * PAGE_SIZE) as usize]).unwrap();
        let others = tempfile::NamedTempFile::new().unwrap();
        others.as_file().set_len(4 * LIMIT * PAGE_SIZE).unwrap();
        let vm = Vm { core: Arc::clone(&object.core.vm) };
        let options = MapOptions::shared().policy("none".parse().unwrap());
        let others = vm.map(&vm.file(others.path()).unwrap(), &options).unwrap();
        let is_hung = || object.core.dirty().unwrap().hangs();
        std::thread::scope(|scope| {
            let hangs = home.writes.lock().unwrap();
            scope.spawn(|| vm.core.pool.reclaim(LIMIT));
            let began = Instant::now();
            let mut reads = 0;
            while reads < 4 * LIMIT || !is_hung() {
                assert!(began.elapsed() < Duration::from_secs(30), "{reads} pages were read");
                assert_eq!(others.as_slice()[(reads % (4 * LIMIT) * PAGE_SIZE) as usize], 0);
                reads += 1;
            }
            assert_eq!(object.dirty_pages(), DIRTY);
            drop(hangs);
        });
        object.flush(object.pages()).unwrap();
        assert!(std::fs::read(file.path()).unwrap().iter().all(|&byte| byte == 7));
        while is_hung() {
            std::thread::yield_now();
        }
        vm.core.pool.reclaim(2 * LIMIT);
        assert_eq!((vm.core.pool.figures().resident_pages, object.dirty_pages()), (0, 0));
    }

    /// As where the kernel holds up who writes faster than the disk.
    #[test]
    fn writes_that_are_slow_are_waited_for() {
        const RUNS: u64 = 8;
        let (_file, home, object, map) = failing_with(VmOptions::default(), 2 * RUNS);
        (0..RUNS).for_each(|run| map.write_at(2 * run * PAGE_SIZE, &[7]).unwrap());
        home.write_ms.store(200, Ordering::SeqCst);
        let reclaimed = object.core.vm.pool.reclaim(RUNS);
        assert_eq!((reclaimed, object.dirty_pages()), (RUNS, 0));
    }

    #[test]
    fn a_flush_that_goes_on_does_not_keep_who_reclaims() {
        let (_file, _home, object, map) = failing();
        map.write_at(3 * PAGE_SIZE, &[9]).unwrap();
        let frames = object.core.frames().unwrap();
        let dirty = frames.dirty.as_ref().unwrap();
        let is_over = AtomicBool::new(false);
        let took = std::thread::scope(|scope| {
            let mut written = dirty.written.lock().unwrap();
            let cleans = scope.spawn(|| {
                let began = Instant::now();
                let refused = Cleaner::default().clean(&object.core, vec![PageIndex(3)], true);
                is_over.store(true, Ordering::SeqCst);
                assert_eq!(refused, []);
                began.elapsed()
            });
            // One batch after the other, as of a large file.
            let began = Instant::now();
            while !is_over.load(Ordering::SeqCst) && began.elapsed() < Duration::from_secs(20) {
                map.write_at(0, &[7]).unwrap();
                assert!(dirty.begin(&frames.pages, PageIndex(0)));
                object.core.write_batch(frames, dirty, &[PageIndex(0)], &mut written, Duration::ZERO, None);
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(dirty.hangs() && is_over.load(Ordering::SeqCst), "it waits for the flush");
            drop(written);
            cleans.join().unwrap()
        });
        assert!(took < Duration::from_secs(10), "{took:?}");
        // What was left to the other thread is done.
        let began = Instant::now();
        while (dirty.hangs() || object.dirty_pages() > 0) && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((dirty.hangs(), object.dirty_pages()), (false, 0));
    }

    #[test]
    fn no_read_fails_while_all_that_could_go_waits_for_a_write_that_hangs() {
        const LIMIT: u64 = 64;
        let (file, home, object, map) =
            failing_with(VmOptions::default().frame_limit_bytes(LIMIT * PAGE_SIZE), LIMIT + 3);
        let hangs = home.writes.lock().unwrap();
        (0..LIMIT + 3).for_each(|page| map.write_at(page * PAGE_SIZE, &[7]).unwrap());
        drop(hangs);
        object.flush(object.pages()).unwrap();
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(bytes.iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 7));
    }

    #[test]
    fn a_pool_reclaims_though_a_thread_panicked_while_it_wrote() {
        let (_file, _home, object, map) = failing();
        map.write_at(3 * PAGE_SIZE, &[9]).unwrap();
        let frames = object.core.frames().unwrap();
        let dirty = frames.dirty.as_ref().unwrap();
        std::thread::scope(|scope| {
            let panics = scope.spawn(|| {
                let _held = dirty.written.lock().unwrap();
                panic!("in the middle");
            });
            assert!(panics.join().is_err());
        });
        object.core.clean(frames, &[PageIndex(3)], false, None);
        assert_eq!(object.dirty_pages(), 0);
    }

    #[test]
    fn what_could_not_be_made_durable_is_written_again() {
        let (file, home, object, map) = failing();
        map.write_at(0, &[1]).unwrap();
        object.flush(object.pages()).unwrap();
        for page in [3, 4] {
            map.write_at(page * PAGE_SIZE, &[9]).unwrap();
        }
        // One goes by the background, and out of memory; the other is in the flush that fails.
        let page = |page| PageRange::new(PageIndex(page), PageIndex(page + 1));
        assert_eq!(object.write_back(page(3)).unwrap(), 1);
        assert_eq!(object.evict(page(3)).unwrap(), 1);
        home.syncs_fail.store(true, Ordering::SeqCst);
        let failed = object.flush(page(4)).unwrap_err();
        assert!(matches!(failed, FlushError::Sync { .. }), "{failed}");
        assert_eq!(object.dirty_pages(), 1, "page 0 was durable before, page 3 is not here");
        let written = object.core.vm.figures.counted().pages_written_back;
        object.flush(object.pages()).unwrap();
        assert_eq!(object.core.vm.figures.counted().pages_written_back, written + 2);
        let bytes = std::fs::read(file.path()).unwrap();
        assert_eq!([3, 4].map(|page| bytes[page * PAGE_SIZE as usize]), [9, 9]);
    }

    #[test]
    fn what_the_device_lost_is_an_error_and_not_what_was_there_before() {
        let (_file, home, object, map) = failing();
        map.write_at(3 * PAGE_SIZE, &[9]).unwrap();
        assert_eq!(object.write_back(object.pages()).unwrap(), 1);
        object.evict(object.pages()).unwrap();
        home.syncs_fail.store(true, Ordering::SeqCst);
        assert!(matches!(object.flush(object.pages()), Err(FlushError::Sync { .. })));
        home.file.write(3 * PAGE_SIZE, &[0]).unwrap();
        let lost = object.flush(object.pages()).unwrap_err();
        let is_lost = matches!(lost, FlushError::Lost { page: PageIndex(3), reason: Reason::Changed, .. });
        assert!(is_lost, "{lost}");
        let mut bytes = [0];
        let read = map.read_at(3 * PAGE_SIZE, &mut bytes);
        assert!(matches!(read, Err(AccessError::Unavailable { reason: Reason::Changed, .. })));
        // All else goes on.
        map.write_at(4 * PAGE_SIZE, &[1]).unwrap();
        object.flush(object.pages()).unwrap();
    }

    #[test]
    fn what_cannot_be_read_for_now_is_written_by_a_later_flush() {
        let (_file, home, object, map) = failing_in(VmOptions::default().frame_limit_bytes(64 * PAGE_SIZE));
        [3, 5].into_iter().for_each(|page| map.write_at(page * PAGE_SIZE, &[9]).unwrap());
        assert_eq!(object.write_back(object.pages()).unwrap(), 2);
        object.evict(object.pages()).unwrap();
        home.syncs_fail.store(true, Ordering::SeqCst);
        assert!(matches!(object.flush(object.pages()), Err(FlushError::Sync { .. })));
        let others = tempfile::NamedTempFile::new().unwrap();
        others.as_file().set_len(64 * PAGE_SIZE).unwrap();
        let vm = Vm { core: Arc::clone(&object.core.vm) };
        let others = vm.map(&vm.file(others.path()).unwrap(), &MapOptions::shared()).unwrap();
        let pinned = others.pin(others.window()).unwrap();
        for _ in 0..2 {
            let unread = object.flush(object.pages()).unwrap_err();
            let is_kept =
                matches!(unread, FlushError::Unread { page: PageIndex(3), reason: Reason::NoFrames, .. });
            assert!(is_kept, "{unread}");
        }
        drop(pinned);
        object.flush(object.pages()).unwrap();
        assert_eq!(object.core.vm.figures.counted().pages_written_back, 4);
    }
}
