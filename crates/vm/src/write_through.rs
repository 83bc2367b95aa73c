//! Writes to maps that go to their object: the first to each page is a fault, which marks the page and lets it be written to; where pages are written to in
//! order, some ahead of it with it.

use std::sync::atomic::AtomicU8;

use prepage_core::{FaultClass, PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::signals::Masked;
use prepage_sys::userfaultfd::{Progress, Writes};

use crate::error::{AccessError, FlushError};
use crate::fault::{Fault, FaultOutcome};
use crate::map::Map;
use crate::object::{Frames, Object, ObjectCore, clip};
use crate::options::Mode;
use crate::reason;
use crate::refill::Sums;
use crate::segment::Place;
use crate::statistics::Account;
use crate::whole;

/// Pages of bytes that [`Map::write_at`] copies and writes at once: a processor's cache holds them in between.
const WRITE_PAGES: u64 = 64;
/// Pages written to in order from which on others are let be written to with the next: as many as were, up to the most. At the end of what is written so no
/// more are looked at in vain than were written to.
const AHEAD_FROM: u64 = if cfg!(any(feature = "shuttle", feature = "loom")) { 1 } else { 4 };
const AHEAD_MOST: u64 = 64;

impl Map {
    /// Its bytes, which other threads and maps may change meanwhile. A load or a store is a touch, as with `as_slice`.
    ///
    /// # Panics
    /// If the map is not [`MapOptions::writable`](crate::MapOptions::writable).
    pub fn as_atomics(&self) -> &[AtomicU8] {
        assert!(self.core.writes_through, "what is written to the map has nowhere to go");
        &self.region.as_atomics()[..self.len_bytes() as usize]
    }

    /// Writes `bytes` at `offset_bytes` of a map that is [`MapOptions::writable`](crate::MapOptions::writable). Raises no signal.
    /// Other threads may see some pages of it before others, and see all of them once this has returned.
    ///
    /// # Errors
    /// [`AccessError::Unavailable`] names the page that failed, and why; bytes before that page were written. [`AccessError::Beyond`] if the
    /// range ends beyond the map.
    pub fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> Result<(), AccessError> {
        let core = &self.core;
        core.vm.check_process().map_err(|_| AccessError::Forked)?;
        if !core.writes_through {
            return Err(AccessError::ReadOnly);
        }
        let (wanted_bytes, len_bytes) = (bytes.len(), self.len_bytes());
        if offset_bytes.checked_add(wanted_bytes as u64).is_none_or(|end| end > len_bytes) {
            return Err(AccessError::Beyond { offset_bytes, wanted_bytes, len_bytes });
        }
        let object = &core.laid[0].object;
        let frames = object.frames().expect("what takes writes has frames");
        let mut buffer = core.vm.request_buffers.take_or_make(WRITE_PAGES).map_err(AccessError::System)?;
        let mut at = core.window.start().offset_bytes() + offset_bytes;
        let mut written = Ok(());
        for bytes in bytes.chunks((WRITE_PAGES * PAGE_SIZE) as usize) {
            // Copied before anything is held: where they lie in a map, to read them may wait for a device, or for a frame that comes once no section lasts.
            let copied = &mut buffer.pages(bytes.len().div_ceil(PAGE_SIZE as usize) as u64)[..bytes.len()];
            copied.copy_from_slice(bytes);
            written = self.write_copied(object, frames, at, copied);
            if written.is_err() {
                break;
            }
            at += bytes.len() as u64;
        }
        core.vm.request_buffers.give(buffer);
        written
    }

    /// Writes `bytes`, which are the VM's own, at byte `at` of the map's object.
    fn write_copied(
        &self,
        object: &ObjectCore,
        frames: &Frames,
        mut at: u64,
        mut bytes: &[u8],
    ) -> Result<(), AccessError> {
        while !bytes.is_empty() {
            let written = {
                let _masked = Masked::asynchronous();
                object.write_resident(frames, at, bytes)?
            };
            if written == 0 {
                let missing = PageRange::covering(at, bytes.len() as u64);
                let some = |pages: u64| PageRange::new(missing.start(), PageIndex(missing.start().0 + pages));
                let most = self.core.vm.pool.core().frames.most_at_once();
                // A later page may be the one that fails.
                self.populate(some(missing.len().min(most))).or_else(|_| self.populate(some(1)))?;
            }
            bytes = &bytes[written..];
            at += written as u64;
        }
        Ok(())
    }

    /// As [`Object::flush`], of pages that the map shows.
    ///
    /// # Errors
    /// As `flush`.
    pub fn flush(&self, range: PageRange) -> Result<(), FlushError> {
        Object { core: self.handle.clone(), hold: None }.flush(clip(range, self.window()))
    }
}

impl ObjectCore {
    /// Writes `bytes`, which begin at byte `at` of the object, up to the first page that is not in memory; returns how much.
    fn write_resident(&self, frames: &Frames, at: u64, bytes: &[u8]) -> Result<usize, AccessError> {
        let wanted = PageRange::covering(at, bytes.len() as u64);
        let mut account = Account::here();
        // Who writes back reads the pages after this has ended, or finds them marked again.
        let section = account.enter(&frames.sections);
        let marked = wanted.iter().take_while(|&page| self.mark(frames, page, &mut account));
        let marked = wanted.start().0 + marked.count() as u64;
        let count = ((marked * PAGE_SIZE).saturating_sub(at)).min(bytes.len() as u64) as usize;
        let written = frames.memfd.write_at(&bytes[..count], at);
        drop(section);
        self.vm.figures.settle(&mut account);
        self.vm.writer.call_for(self);
        written.map(|()| count).map_err(AccessError::System)
    }

    /// `page` is about to be written to, in a section; false where it is not in memory.
    fn mark(&self, frames: &Frames, page: PageIndex, account: &mut Account) -> bool {
        let dirty = frames.dirty.as_ref().expect("it takes writes");
        if frames.pages.rewire(page) {
            self.rewires(frames, 1);
            account.tally.pages_rewired += 1;
            whole::may_be_whole(self, account);
        }
        let marked = dirty.mark(&frames.pages, page);
        account.tally.pages_dirtied += u64::from(marked == Some(true));
        marked.is_some()
    }
}

impl Fault<'_> {
    /// Lets a write to a page in memory happen; `None` for other touches, and for pages that have to be brought in first.
    pub(crate) fn write(&mut self, place: &Place<'_>, frames: &Frames) -> Option<FaultOutcome> {
        if !self.is_write() {
            return None;
        }
        let outcome = self.let_write(place, frames)?;
        self.account.tally.soft += u64::from(matches!(outcome, FaultOutcome::Mapped(..)));
        if frames.pages.take_mark(place.page) {
            self.ask_to_read_on(place, frames);
        }
        Some(outcome)
    }

    /// Maps the page that was brought in for a write so that it can be written to, and what is to be mapped around it; `None` for other touches, and inline, where
    /// more was read or is to be mapped: there one call maps all of it, and the thread waits until [the page is let be written to](Self::write_to_what_came). In
    /// handler mode the thread would go on before, and write in vain.
    pub(crate) fn write_first(
        &mut self,
        place: &Place<'_>,
        frames: &Frames,
        read: PageRange,
    ) -> Option<FaultOutcome> {
        let map = self.map;
        let has_neighbours = map.neighbours.is_some();
        let is_alone = read.len() == 1 && !has_neighbours;
        if !is_alone && map.space.mode == Mode::Inline || !self.touch.surely_write || !self.is_write() {
            return None;
        }
        let mut shown = 1;
        // Where figures have to be exact, all else is there before the thread goes on.
        if has_neighbours {
            shown += map.show_beside(place, frames, read, &mut self.account);
        }
        let outcome = self.let_write(place, frames)?;
        if !matches!(outcome, FaultOutcome::Mapped(..)) {
            return Some(outcome);
        }
        if !is_alone && !has_neighbours {
            shown += map.show_beside(place, frames, read, &mut self.account);
        }
        let (policy, memory) = map.policy();
        memory.with(&mut self.account.tally, |state| policy.mapped(state, shown));
        Some(FaultOutcome::Mapped(FaultClass::Disk, read.len()))
    }

    /// Lets the write happen for which the page was brought in, which the map shows by now: else it would be a fault of its own.
    pub(crate) fn write_to_what_came(&mut self, place: &Place<'_>, frames: &Frames) {
        if self.touch.surely_write && self.is_write() {
            self.touch.protected = true;
            // What fails here is told by the touch, which is repeated.
            let _ = self.let_write(place, frames);
        }
    }

    fn is_write(&self) -> bool {
        self.touch.write && self.map.writes_through
    }

    /// Marks the page of `place`, and those that follow in order, and lets them be written to; `None` where it is not in memory.
    fn let_write(&mut self, place: &Place<'_>, frames: &Frames) -> Option<FaultOutcome> {
        let map = self.map;
        self.account.tally.shared_atomics += 2;
        let section = map.mapping.begin(&frames.sections, self.account.cpu);
        if !place.object.mark(frames, place.page, &mut self.account) {
            return None;
        }
        let run = self.open_ahead(place, frames);
        let mut let_through = self.let_through(place, run);
        if run.len() > 1 && matches!(let_through, Ok(Progress::Split) | Err(_)) {
            // The program split the mapping by an advice of its own: the page alone is in one.
            let_through = self.let_through(place, run.start().alone());
        }
        drop(section);
        let outcome = match let_through {
            Ok(Progress::Done | Progress::Part(_) | Progress::Mapped) => {
                FaultOutcome::Mapped(FaultClass::Cached, 1)
            }
            Ok(Progress::Changing) => FaultOutcome::Again,
            Ok(Progress::Gone | Progress::Split) => FaultOutcome::Gone,
            Ok(Progress::Hole) => FaultOutcome::Failed(reason::NO_MEMORY),
            Err(ref error) => FaultOutcome::Failed(reason::of_errno(error.raw_os_error())),
        };
        self.account.tally.pages_mapped += match let_through {
            Ok(Progress::Done) => run.len(),
            Ok(Progress::Part(bytes)) => bytes / PAGE_SIZE,
            _ => 0,
        };
        map.vm.writer.call_for(place.object);
        Some(outcome)
    }

    /// Lets the pages `run`, which are marked, be written to in the map.
    fn let_through(&self, place: &Place<'_>, run: PageRange) -> std::io::Result<Progress> {
        let (map, at) = (self.map, place.offset_of(run.start()));
        // A page that was there, and has gone meanwhile, is mapped by the next touch.
        let progress = if self.touch.protected && !self.takes_out(place, run) {
            Progress::Mapped
        } else {
            map.space.uffd.map_resident(&map.span, at, run.bytes(), Writes::Free)?
        };
        if matches!(progress, Progress::Mapped | Progress::Part(_)) {
            // Wakes who waits for it, too.
            map.space.uffd.unprotect(&map.span, at, run.bytes())?;
            if run.len() > 1 && map.space.mode == Mode::Inline {
                // For the reason that `takes_out` has: one call takes less than a fault for each page. What it does not reach is left to faults.
                let _ = map.span.make_writable(at, run.bytes());
            }
        }
        Ok(progress)
    }

    /// Takes pages `run` out of the map, if they are many, to be mapped anew: then they can be written to at once. The kernel (6.18) leaves a page of a memfd
    /// that is unprotected read-only in the page table, and its first write is another fault. False where a system call would get EFAULT meanwhile.
    fn takes_out(&self, place: &Place<'_>, run: PageRange) -> bool {
        let map = self.map;
        let calls_wait = map.space.mode == Mode::Handler && !map.vm.options.user_mode_only;
        let is_pinned = |page| place.frames().is_some_and(|frames| frames.pages.is_pinned(page));
        run.len() > 1
            && calls_wait
            && !run.iter().any(is_pinned)
            && map.span.unmap_shared(place.offset_of(run.start()), run.bytes()).is_ok()
    }

    /// The page of `place`, which is marked, and those behind it that are let be written to with it, which are marked as ahead. In a section.
    fn open_ahead(&mut self, place: &Place<'_>, frames: &Frames) -> PageRange {
        let (page, next) = (place.page, PageIndex(place.page.0 + 1));
        let dirty = frames.dirty.as_ref().expect("it takes writes");
        let count = dirty.before(&frames.pages, page, AHEAD_MOST);
        let wanted = if count < AHEAD_FROM { 0 } else { count };
        let wanted = clip(PageRange::new(next, PageIndex(next.0 + wanted)), place.window);
        let marked = wanted.iter().take_while(|&page| dirty.mark_ahead(&frames.pages, page)).count() as u64;
        let ahead = PageRange::new(next, PageIndex(next.0 + marked));
        let sums = frames.sums().expect("made with what takes writes");
        if !sums.know_all(ahead) && !self.keep_sums(frames, sums, ahead) {
            // Without a sum they pass for written to.
            ahead.iter().for_each(|page| {
                let _ = dirty.mark(&frames.pages, page);
            });
        }
        self.account.tally.pages_dirtied += marked;
        PageRange::new(page, ahead.end())
    }

    /// Keeps the sums of `range`; false where that cannot be done now.
    fn keep_sums(&self, frames: &Frames, sums: &Sums, range: PageRange) -> bool {
        let buffers = &self.map.vm.buffers;
        let Some(mut buffer) = buffers.pop() else { return false };
        let bytes = buffer.pages(range.len());
        let read = frames.memfd.read_at(bytes, range.start().offset_bytes());
        if read.is_ok() {
            sums.keep(range.start(), bytes);
        }
        buffers.give(buffer);
        read.is_ok()
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    use prepage_testing::{Doctor, Need, unless_refused};

    use super::*;
    use crate::error::MapError;
    use crate::{MapOptions, Source, SourceError, Vm, VmOptions};

    /// Two pages of zeros, and whether a section of another object lasted as long as one of their reads.
    struct Watching {
        other: Arc<ObjectCore>,
        lasted: Arc<AtomicBool>,
    }

    impl Source for Watching {
        fn len_bytes(&self) -> u64 {
            2 * PAGE_SIZE
        }

        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            into.fill(0);
            let sections = &self.other.frames().expect("it takes writes").sections;
            let (began, mut ended) = (Instant::now(), 0);
            // Once is enough. A thread that has lost the processor in its section goes on after a while.
            while ended != sections.counters() && !self.lasted.load(Ordering::SeqCst) {
                if began.elapsed() > Duration::from_secs(20) {
                    self.lasted.store(true, Ordering::SeqCst);
                    break;
                }
                ended |= sections.ended();
                std::thread::yield_now();
            }
            Ok(())
        }
    }

    #[test]
    fn bytes_that_lie_in_a_map_are_read_before_anything_is_held() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2 * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file_writable(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::writable()).unwrap();
        map.populate(map.window()).unwrap();
        let lasted = Arc::new(AtomicBool::new(false));
        let source = Watching { other: Arc::clone(&object.core), lasted: Arc::clone(&lasted) };
        let watching = vm.source("watching", source).unwrap();
        let options = MapOptions::shared().mode(Mode::Handler).policy("none".parse().unwrap());
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let Some(bytes) = unless_refused(vm.map(&watching, &options), need, refused) else { return };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // As reclaim may at any time.
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    watching.evict(watching.pages()).unwrap();
                }
            });
            for _ in 0..200 {
                map.write_at(0, bytes.as_slice()).unwrap();
            }
            stop.store(true, Ordering::SeqCst);
        });
        assert!(!lasted.load(Ordering::SeqCst), "a write waits for a read with a section open");
    }
}
