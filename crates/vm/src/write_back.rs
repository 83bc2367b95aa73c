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
pub(crate) const BATCH_PAGES: usize = 1024;
/// Once writes have failed for so long since one succeeded the rest is refused: it would fail as well, and others wait meanwhile.
pub(crate) const FAILING_MAX: Duration = Duration::from_secs(2);
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
pub(crate) struct Came {
    pub(crate) written: Vec<PageRange>,
    pub(crate) refused: Vec<PageIndex>,
    /// How long the writes took together that failed since one succeeded.
    pub(crate) failing: Duration,
    /// The first error.
    pub(crate) outcome: Result<(), FlushError>,
}

impl Came {
    pub(crate) fn after(failing: Duration) -> Self {
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
    /// This waits for as long as the file hangs. Signals come meanwhile, and handlers may touch maps of the object. A handler must not flush or write
    /// back, nor drop the last handle of a writable object: it would wait for the flush that it interrupted, forever.
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
        how(&self.core, frames, dirty, clip(range, self.pages()))
    }
}

impl Vm {
    /// As [`Object::flush`] of all pages of every object that writes to a file, in the order in which they were made, but last those of which a write is known to
    /// hang: for a program that ends. If one cannot be flushed the others are still tried, and the first error is returned. What was written to objects that are
    /// gone was written back when they went, and is not made durable by this.
    ///
    /// # Errors
    /// As [`Object::flush`]. Objects that take no writes, and [`Vm::memory`], have nothing to flush.
    pub fn flush(&self) -> Result<(), FlushError> {
        self.core.check_process().map_err(|_| FlushError::Forked)?;
        let mut alive = {
            let _masked = Masked::asynchronous();
            self.core.names.alive()
        };
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
        let alive = {
            let _masked = Masked::asynchronous();
            self.core().alive()
        };
        flush_all(alive)
    }
}

/// Tries all `objects`, last those with a write that hangs; gives the first error.
fn flush_all(objects: Vec<Arc<ObjectCore>>) -> Result<(), FlushError> {
    let mut outcome = Ok(());
    let hangs = |object: &Arc<ObjectCore>| object.dirty().is_some_and(Dirty::hangs);
    let (hang, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(hangs);
    for object in others.into_iter().chain(hang) {
        if let Some((frames, dirty)) =
            object.frames().zip(object.dirty().filter(|dirty| !dirty.home.is_swap()))
        {
            outcome = outcome.and(object.flush(frames, dirty, object.pages()));
            // What could not be synced is dirty again, perhaps since the last handle went: no flush comes after this one.
            if !object.has_handle() {
                let _ = object.rescue(frames, dirty);
                object.write_back_last();
            }
        }
        // Nobody else may hold it by now.
        let _masked = Masked::asynchronous();
        object.let_go();
    }
    outcome
}

/// Signals come while files are waited for, as with fsync(2). They do not while this holds what a handler's touch may wait for, at first hand or for a frame:
/// claims, sections, and locks that faults or reclaim take. Of these only [`Dirty::written`] is held while they come: reclaim waits a second for that, and then has others go.
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
            let failed = {
                let masked = Masked::asynchronous();
                account.endings = masked.endings();
                let code = match frames.pages.claim(page) {
                    Some(claim) => {
                        let filled = fill_local(self, frames, file, claim, wanted, None, &mut account);
                        if filled.waiters.listed {
                            self.vm.jobs.serve_listed_soon();
                        }
                        filled.outcome.err()
                    }
                    None => match frames.pages.wait(page, account.endings) {
                        Seen::Failed(code) => Some(code),
                        _ => None,
                    },
                };
                code.map(|code| (code, self.reason(page, code)))
            };
            // What came and went again before it was marked is brought in once more.
            if failed.is_some() || self.mark_again(frames, dirty, page, account.cpu) {
                next = missing.next();
            }
            if let Some((code, reason)) = failed {
                let object = self.name.clone();
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
        let is_marked = {
            let _masked = Masked::asynchronous();
            let _section = frames.sections.enter(cpu);
            dirty.mark(&frames.pages, page).is_some()
        };
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
            let found = dirty.all_in(&frames.pages, PageRange::new(from, range.end()));
            let found = found.inspect(|page| from = PageIndex(page.0 + 1));
            let batch: Vec<_> =
                found.filter(|&page| dirty.begin(&frames.pages, page)).take(BATCH_PAGES).collect();
            if batch.is_empty() {
                break;
            }
            let came = self.write_batch(frames, dirty, &batch, &mut written, failing, None);
            (pages, failing) = (pages + came.written_pages(), came.failing);
            outcome = outcome.and(came.outcome);
        }
        outcome.map(|()| pages)
    }

    /// Writes the dirty ones of `pages`, which ascend, where nobody flushes them. Those that could not be written stay dirty; all of them do
    /// while somebody else writes pages of the object, unless that `is_waited_for`. The writes before it were `failing` for so long. Counts the runs of
    /// pages that were tried in `runs`.
    pub(crate) fn clean(
        &self,
        frames: &Frames,
        pages: &[PageIndex],
        is_waited_for: bool,
        failing: Duration,
        runs: Option<&AtomicU32>,
    ) -> Came {
        let nothing = Came::after(failing);
        let is_clean = |dirty: &&Dirty| pages.iter().all(|&page| dirty.is_clean(&frames.pages, page));
        let Some(dirty) = frames.dirty.as_ref().filter(|dirty| !is_clean(dirty)) else { return nothing };
        let mut written = match dirty.written.try_lock().anyway() {
            Some(written) => written,
            None if is_waited_for => dirty.written.lock().anyway(),
            None => return nothing,
        };
        let may_go = |&page: &PageIndex| dirty.home.takes(page) && dirty.begin(&frames.pages, page);
        let batch: Vec<_> = pages.iter().copied().filter(may_go).collect();
        if batch.is_empty() {
            return nothing;
        }
        self.write_batch(frames, dirty, &batch, &mut written, failing, runs)
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
        let buffer = {
            // Reclaim takes the locks of the sections, the backings and the buffers too, and a handler's touch may wait for the frames that it frees.
            let _masked = Masked::asynchronous();
            // Who let a write happen before the mark was taken has done so when this returns.
            frames.sections.wait();
            self.protect(batch).and_then(|()| self.vm.request_buffers.take_or_make(1))
        };
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
            let _masked = Masked::asynchronous();
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

    /// Pages could not be written back that nobody flushes.
    pub(crate) fn tell_unwritten(&self, error: &FlushError) {
        if self.vm.options.explain {
            say(format_args!("{}; it is tried again", with_cause(error)));
        }
    }

    /// No program can write to the object any more: what was written is written back, or lost with a message. Waits for others that write it back, and
    /// for a file that hangs: with signals where the caller lets them come, so that the program can be ended meanwhile. No handler can touch the object, and wait for this.
    pub(crate) fn write_back_last(&self) {
        let is_to_go = |dirty: &&Dirty| dirty.pages() > 0 && !dirty.home.is_swap();
        let Some((frames, dirty)) = self.frames().zip(self.dirty().filter(is_to_go)) else { return };
        if self.vm.check_process().is_ok()
            && let Err(error) = self.write_back(frames, dirty, self.pages())
            && self.vm.options.explain
        {
            say(format_args!("{} pages are lost: {}", dirty.pages(), with_cause(&error)));
        }
    }
}

/// An error in one line.
fn with_cause(error: &FlushError) -> String {
    match std::error::Error::source(error) {
        Some(cause) => format!("{error}: {cause}"),
        None => error.to_string(),
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests;
