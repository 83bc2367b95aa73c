//! Pages get into a map: the touched one, and resident neighbours by the same calls of the kernel.
//!
//! A call begins at the touched page and goes on from there, since programs do; what lies before it follows. So a scan in
//! order takes one call a fault.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prepage_core::policy::Neighbours;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::block::BLOCK_BYTES;
use prepage_sys::pagemap::PageEntry;
use prepage_sys::userfaultfd::{Progress, Writes};

use crate::addresses::MapRef;
use crate::map::MapCore;
use crate::object::{Frames, ObjectCore, clip};
use crate::options::{Exactly, Mode};
use crate::pages::Seen;
use crate::segment::{Install, Place, Segment, lookup, places};
use crate::statistics::Account;
use crate::sync::{Ordering, sleep};
use crate::whole;

/// What came of mapping a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// So many pages are there now, the touched one among them.
    Pages(u64),
    /// The same, and the touched one was there before: another thread mapped it, or the kernel cannot read it.
    There(u64),
    /// The page is not resident.
    Away,
    /// Events wait to be read first.
    Changing,
    /// The memory or its process has gone.
    Gone,
}

/// How a fault's neighbours are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Around {
    /// All of them, whatever calls it takes, as the policy or the program says.
    Exactly(Neighbours),
    /// Those of the block of so many pages that three calls reach.
    Near(u64),
}

/// What is mapped around a touch unless the program says otherwise: as much as the kernel maps of files.
const NEAR: u64 = 16;
/// And where pages are touched in order.
const NEAR_IN_ORDER: u64 = 256;
/// Pages that are copied into a map at once.
const COPY_PAGES: u64 = 16;
/// Pages that are mapped in one section: who unwires, writes back or takes frames away waits for the sections of its object, and a fault of the map
/// while an empty page table is freed. As many as a page table has.
const SECTION_PAGES: u64 = 512;
/// Pages that are looked at together in the page table.
const LOOK_PAGES: u64 = 64;
/// While the address space is being changed what cannot be done is tried again after so long at first: a fork takes no less.
const PAUSE: Duration = Duration::from_micros(50);
/// And at last.
const MOST_PAUSE: Duration = Duration::from_millis(1);

/// A wait until the address space is not being changed any more: until the event of a fork is read. To copy large page tables takes seconds.
#[derive(Debug)]
pub(crate) struct Change {
    since: Option<Instant>,
    most: Duration,
    /// What is tried again next waits so long: who is to read the event may need this processor.
    pause: Duration,
}

impl Change {
    pub(crate) fn of(map: &MapCore) -> Self {
        Self { since: None, most: map.vm.pool.core().patience(map.vm.options.read_deadline), pause: PAUSE }
    }

    /// Lets others go on; then what could not be done is tried again.
    ///
    /// # Errors
    /// EAGAIN where nothing could be done for too long.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        if self.since.get_or_insert_with(Instant::now).elapsed() > self.most {
            return Err(io::Error::from_raw_os_error(AGAIN));
        }
        sleep(self.pause);
        self.pause = MOST_PAUSE.min(2 * self.pause);
        Ok(())
    }

    /// Something could be done.
    pub(crate) fn is_over(&mut self) {
        self.since = None;
        self.pause = PAUSE;
    }
}

/// How far a run of calls came.
enum Reached {
    /// Up to `end` pages are there, of which the first `was_there` before.
    To { end: PageIndex, was_there: bool },
    /// Nothing, for this reason.
    No(Shown),
}

impl MapCore {
    fn around(&self) -> Around {
        match self.neighbours {
            Some(Exactly::These(neighbours)) => Around::Exactly(neighbours),
            Some(Exactly::OfPolicy) => Around::Exactly(self.policy().0.neighbours()),
            None if self.is_in_order() => Around::Near(NEAR_IN_ORDER),
            None => Around::Near(NEAR),
        }
    }

    /// Makes frames of `bytes`, which were read for `range`, and maps them: by one call, and without the lock of the memfd. The caller
    /// holds the claim. False where it cannot be done so, or was not for all of them: then the frames are to be written.
    ///
    /// Neighbours are left to faults of their own: where memory is short most are mapped, and each call that finds them so costs as much
    /// as this one.
    pub(crate) fn make_and_show(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        range: PageRange,
        bytes: &[u8],
    ) -> bool {
        let is_here = place.window.start() <= range.start() && range.end() <= place.window.end();
        // Those that were asked for exactly are what was read, or this call is not all.
        let is_all = match self.around() {
            Around::Exactly(Neighbours::Block(pages)) => block(place.page, pages, place.window) == range,
            Around::Exactly(Neighbours::Spiral(_)) | Around::Near(_) => true,
        };
        self.is_plain(place, frames) && is_here && is_all && {
            let copied =
                self.space.uffd.copy(&self.span, place.offset_of(range.start()), bytes, Writes::Free);
            matches!(copied, Ok(Progress::Done))
        }
    }

    /// As [`Self::make_and_show`], of what was read ahead of touches in order: those find it mapped. False too where the program or the
    /// VM asked for less to be mapped, or for every touch to be seen.
    pub(crate) fn make_and_show_ahead(
        &self,
        object: &ObjectCore,
        frames: &Frames,
        range: PageRange,
        bytes: &[u8],
        account: &mut Account,
    ) -> bool {
        let shown = self.look(account);
        let Some(place) = self.place_ahead(&shown, object, range) else { return false };
        let shows = self.make_and_show(&place, frames, range, bytes);
        if shows {
            self.forget_poisoned(&place, range, account);
            self.showed(range.len(), account);
        }
        shows
    }

    /// Maps the frames of `range`, which were read ahead of touches in order, but for that of the page `mark`, whose touch has to be a fault. The caller holds
    /// the claim, and this is the map `at`. Maps nothing where [`Self::make_and_show_ahead`] would not.
    pub(crate) fn show_ahead(
        &self,
        at: MapRef,
        object: &ObjectCore,
        frames: &Frames,
        range: PageRange,
        mark: Option<PageIndex>,
        account: &mut Account,
    ) {
        let shown = self.look(account);
        let Some(place) =
            self.place_ahead(&shown, object, range).filter(|place| self.is_plain(place, frames))
        else {
            return;
        };
        let mark = mark.filter(|&mark| range.contains(mark));
        let before = PageRange::new(range.start(), mark.unwrap_or(range.end()));
        let behind = mark.map(|mark| PageRange::new(PageIndex(mark.0 + 1), range.end()));
        for part in [Some(before), behind].into_iter().flatten().filter(|part| !part.is_empty()) {
            let (offset, bytes) = (place.offset_of(part.start()), part.bytes());
            let is_block = bytes == BLOCK_BYTES && offset.is_multiple_of(BLOCK_BYTES);
            let by_page = || self.space.uffd.map_resident(&self.span, offset, bytes, Writes::Free);
            // What is not mapped is left to its faults.
            if is_block && whole::map_at_once(frames, self, at, offset, bytes)
                || matches!(by_page(), Ok(Progress::Done))
            {
                self.forget_poisoned(&place, part, account);
                self.showed(part.len(), account);
            }
        }
    }

    /// Where the map shows all of `range` of `object`, if it maps what is read ahead of touches in order.
    fn place_ahead<'a>(
        &self,
        shown: &'a [Segment],
        object: &ObjectCore,
        range: PageRange,
    ) -> Option<Place<'a>> {
        if self.sees_all() || self.around() != Around::Near(NEAR_IN_ORDER) {
            return None;
        }
        let holds = |segment: &&Segment| {
            let window = segment.of_object();
            std::ptr::eq(&*segment.object, object)
                && window.start() <= range.start()
                && range.end() <= window.end()
        };
        let segment = shown.iter().find(holds)?;
        let page = PageIndex(segment.pages.start().0 + (range.start().0 - segment.first.0));
        Some(lookup(shown, page))
    }

    /// Whether the map shows an object's frames as they are: a private one would get copies of its own, and who is told of writes maps frames that are there.
    fn is_plain(&self, place: &Place<'_>, frames: &Frames) -> bool {
        place.install == Install::Continue && !self.private && frames.dirty.is_none()
    }

    /// The map shows `pages` since their frames were made.
    pub(crate) fn showed(&self, pages: u64, account: &mut Account) {
        account.tally.pages_mapped += pages;
        let (policy, memory) = self.policy();
        memory.with(&mut account.tally, |state| policy.mapped(state, pages));
    }

    /// Maps the pages `read` for a fault.
    pub(crate) fn show_read(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        read: PageRange,
        account: &mut Account,
    ) -> io::Result<Shown> {
        self.show_and_remember(place, frames, self.around_read(place, read), account)
    }

    /// Maps what [`Self::show_read`] would, but for the page of `place`; gives how many pages that are.
    pub(crate) fn show_beside(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        read: PageRange,
        account: &mut Account,
    ) -> u64 {
        let exactly = matches!(self.around(), Around::Exactly(_));
        account.tally.shared_atomics += 2;
        let _section = self.mapping.begin(&frames.sections, account.cpu);
        let around = self.around_read(place, read);
        let Some(run) = frames.pages.resident_run(place.page, around) else { return 0 };
        let before = PageRange::new(run.start(), place.page);
        let behind = PageRange::new(PageIndex(place.page.0 + 1), run.end());
        let show = |part: PageRange| {
            let shown = self.map_beside(place, part, exactly, account);
            let run = PageRange::new(part.start(), PageIndex(part.start().0 + shown));
            self.forget_poisoned(place, run, account);
            shown
        };
        [before, behind].map(show).iter().sum()
    }

    /// What is mapped with the page of `place` once `read` was read.
    fn around_read(&self, place: &Place<'_>, read: PageRange) -> PageRange {
        let around = match self.around() {
            Around::Exactly(Neighbours::Spiral(_)) => read,
            Around::Exactly(Neighbours::Block(pages)) => block(place.page, pages, place.window),
            Around::Near(pages) => {
                let near = block(place.page, pages, place.window);
                PageRange::new(near.start().min(read.start()), near.end().max(read.end()))
            }
        };
        clip(around, place.window)
    }

    /// Maps the page of a fault, which is resident, and neighbours.
    pub(crate) fn show_soft(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        account: &mut Account,
    ) -> io::Result<Shown> {
        let around = match self.around() {
            Around::Exactly(Neighbours::Spiral(each_way)) => {
                spiral(frames, place.page, each_way, place.window)
            }
            Around::Exactly(Neighbours::Block(pages)) | Around::Near(pages) => {
                block(place.page, pages, place.window)
            }
        };
        if frames.whole.is_owed() {
            account.tally.shared_atomics += 1;
            whole::may_be_whole(place.object, account);
        }
        self.show_and_remember(place, frames, around, account)
    }

    fn show_and_remember(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        around: PageRange,
        account: &mut Account,
    ) -> io::Result<Shown> {
        let exactly = matches!(self.around(), Around::Exactly(_));
        let shown = self.show(place, frames, around, exactly, account)?;
        if let Shown::Pages(pages) | Shown::There(pages) = shown {
            let (policy, memory) = self.policy();
            memory.with(&mut account.tally, |state| policy.mapped(state, pages));
        }
        Ok(shown)
    }

    /// Maps the run of resident pages in `around` that holds the page of `place`, all of it where `exactly`.
    pub(crate) fn show(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        around: PageRange,
        exactly: bool,
        account: &mut Account,
    ) -> io::Result<Shown> {
        account.tally.shared_atomics += 2;
        let section = self.mapping.begin(&frames.sections, account.cpu);
        // In the section: who unwires it again waits for this before it is unmapped.
        let rewired = self.rewire(place, frames, around, exactly, account);
        // Neighbours that are wired are mapped as a rule.
        let around = if rewired.is_empty() || exactly { around } else { rewired };
        let Some(run) = frames.pages.resident_run(place.page, around) else { return Ok(Shown::Away) };
        let shown = match place.install {
            Install::Copy => self.copy_run(place, frames, run, account),
            _ => self.map_run(place, run, exactly, account),
        };
        drop(section);
        shown
    }

    /// Says that the page of `place` is wired again if it was unwired, and what follows it in `around` too where touches come in order; gives which pages were.
    fn rewire(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        around: PageRange,
        exactly: bool,
        account: &mut Account,
    ) -> PageRange {
        let page = place.page;
        if !frames.pages.rewire(page) {
            return PageRange::new(page, page);
        }
        // What is touched in no order tells of each page by itself whether it is used.
        let is_next = self.rewired_to.load(Ordering::Relaxed) == page.0;
        let most = if is_next && !exactly && !self.sees_all() { NEAR } else { 1 };
        let most = block(page, most, around).end();
        let mut end = PageIndex(page.0 + 1);
        while end < most && frames.pages.rewire(end) {
            end.0 += 1;
        }
        self.rewired_to.store(end.0, Ordering::Relaxed);
        let rewired = PageRange::new(page, end);
        place.object.rewires(frames, rewired.len());
        account.tally.pages_rewired += rewired.len();
        whole::may_be_whole(place.object, account);
        rewired
    }

    /// Whether the program or the VM asked for every touch to be seen.
    fn sees_all(&self) -> bool {
        self.every_fault || self.vm.records.is_some()
    }

    /// Maps `run`, of which the frames are there, from the touched page on and then what lies before it.
    fn map_run(
        &self,
        place: &Place<'_>,
        run: PageRange,
        exactly: bool,
        account: &mut Account,
    ) -> io::Result<Shown> {
        let page = place.page;
        let before = PageRange::new(run.start(), page);
        let mut shown = 0;
        // The thread goes on as soon as its page is there. Where figures have to be exact, all else is there first: one call that
        // begins with the page would let the thread go on where it meets a page that is mapped, before those behind it are.
        let waits = exactly && self.space.mode == Mode::Handler;
        let behind = PageRange::new(PageIndex(page.0 + 1), run.end());
        if waits {
            shown += self.map_beside(place, before, exactly, account);
            shown += self.map_beside(place, behind, exactly, account);
        }
        let forward = PageRange::new(page, if waits { behind.start() } else { run.end() });
        let (end, was_there) = match self.map_from(place, forward, exactly, account)? {
            Reached::To { end, was_there } => (end, was_there),
            Reached::No(shown) => return Ok(shown),
        };
        if !waits {
            shown += self.map_beside(place, before, exactly, account);
        }
        let mapped = PageRange::new(run.start(), if waits { run.end() } else { end });
        self.forget_poisoned(place, mapped, account);
        let shown = shown + (end.0 - page.0);
        Ok(if was_there { Shown::There(shown) } else { Shown::Pages(shown) })
    }

    /// Maps `run`, in which the touched page does not lie, all of it where `exactly`, else what two calls reach.
    fn map_beside(&self, place: &Place<'_>, run: PageRange, exactly: bool, account: &mut Account) -> u64 {
        let mut start = run.start();
        let mut calls = 0;
        while start < run.end() && (exactly || calls < 2) {
            // Neighbours that cannot be had do no harm.
            let Ok(Reached::To { end: reached, .. }) =
                self.map_from(place, PageRange::new(start, run.end()), exactly, account)
            else {
                break;
            };
            start = reached;
            calls += 1;
        }
        start.0 - run.start().0
    }

    /// Maps `run` from its first page on, passing over pages that are mapped; where that need not be all, over the first.
    fn map_from(
        &self,
        place: &Place<'_>,
        run: PageRange,
        exactly: bool,
        account: &mut Account,
    ) -> io::Result<Reached> {
        let mut from = run.start();
        let mut end = run.end();
        let mut was_there = false;
        while from < end {
            let len = (end.0 - from.0) * PAGE_SIZE;
            match self.space.uffd.map_resident(&self.span, place.offset_of(from), len, self.writes_told())? {
                Progress::Done => {
                    account.tally.pages_mapped += end.0 - from.0;
                    from = end;
                }
                Progress::Part(bytes) => {
                    let mapped = bytes / PAGE_SIZE;
                    account.tally.pages_mapped += mapped;
                    from.0 += mapped;
                    if !exactly {
                        break;
                    }
                }
                Progress::Mapped => {
                    // Threads that wait for a page that another call mapped are not woken by this one.
                    if self.space.mode == Mode::Handler {
                        self.wake_at(place.offset_of(from));
                    }
                    was_there |= from == run.start();
                    from.0 += 1;
                    if !exactly {
                        break;
                    }
                }
                // The program split the mapping by an advice of its own, or the VM does at this moment (`whole::map_at_once`): the page alone is in one.
                Progress::Split if from == run.start() && end.0 - from.0 > 1 => end.0 = from.0 + 1,
                // And in the one that the VM has left to the kernel, which shows it.
                Progress::Split if from == run.start() => {
                    if self.space.mode == Mode::Handler {
                        self.wake_at(place.offset_of(from));
                    }
                    from = end;
                }
                other if from == run.start() => {
                    return match other {
                        Progress::Changing => Ok(Reached::No(Shown::Changing)),
                        Progress::Hole => Err(io::Error::from_raw_os_error(NOMEM)),
                        _ => Ok(Reached::No(Shown::Gone)),
                    };
                }
                // What lies behind is left to its own faults.
                _ => break,
            }
        }
        Ok(Reached::To { end: from, was_there })
    }

    /// Copies the bytes of the page of `place`, and of the next ones of `run`, into the map.
    fn copy_run(
        &self,
        place: &Place<'_>,
        frames: &Frames,
        run: PageRange,
        account: &mut Account,
    ) -> io::Result<Shown> {
        // Who waited for a buffer would wait for a device, with a section open: where none is free, one page goes over the stack.
        let mut buffer = self.vm.buffers.pop();
        let mut on_stack;
        let count = if buffer.is_some() { (run.end().0 - place.page.0).min(COPY_PAGES) } else { 1 };
        let bytes = match &mut buffer {
            Some(buffer) => buffer.pages(count),
            None => {
                on_stack = [0; PAGE_SIZE as usize];
                &mut on_stack[..]
            }
        };
        let read = frames.memfd.read_at(bytes, place.page.offset_bytes());
        let at = place.offset_of(place.page);
        let copied = read.and_then(|()| self.space.uffd.copy(&self.span, at, bytes, self.writes_told()));
        buffer.into_iter().for_each(|buffer| self.vm.buffers.give(buffer));
        let pages = match copied? {
            Progress::Done => count,
            Progress::Part(bytes) => bytes / PAGE_SIZE,
            Progress::Mapped => {
                if self.space.mode == Mode::Handler {
                    self.wake_at(place.offset_of(place.page));
                }
                return Ok(Shown::There(1));
            }
            Progress::Changing => return Ok(Shown::Changing),
            Progress::Hole => return Err(io::Error::from_raw_os_error(NOMEM)),
            Progress::Split | Progress::Gone => return Ok(Shown::Gone),
        };
        account.tally.pages_copied += pages;
        self.forget_poisoned(place, PageRange::new(place.page, PageIndex(place.page.0 + pages)), account);
        Ok(Shown::Pages(pages))
    }

    /// Maps what is resident of `range` of `object`, wherever the map shows it. Waits for nothing.
    pub(crate) fn show_pages_of(&self, object: &Arc<ObjectCore>, range: PageRange, account: &mut Account) {
        for segment in self.shown.current().iter().filter(|segment| Arc::ptr_eq(&segment.object, object)) {
            let range = clip(range, segment.of_object());
            let start = segment.pages.start().0 + (range.start().0 - segment.first.0);
            let shown = PageRange::new(PageIndex(start), PageIndex(start + range.len()));
            // What cannot be mapped is left to its faults.
            let _ = self.show_all(shown, None, account, |_, _, _| false);
        }
    }

    /// Maps all of the map's pages `range` that are resident; `missing` is asked for each that is not, and says whether it came meanwhile. Without a
    /// `change` to wait for it ends where the address space is being changed.
    pub(crate) fn show_all(
        &self,
        range: PageRange,
        mut change: Option<&mut Change>,
        account: &mut Account,
        mut missing: impl FnMut(&Place<'_>, PageIndex, &mut Account) -> bool,
    ) -> Result<(), (Arc<ObjectCore>, PageIndex, io::Error)> {
        let mut outcome = Ok(());
        for (first, count) in places(&self.shown.current(), range) {
            let Some(frames) = first.frames() else { continue };
            let end = PageIndex(first.page.0 + count);
            let mut place = first;
            while place.page < end {
                let rest = PageRange::new(place.page, end.min(PageIndex(place.page.0 + SECTION_PAGES)));
                match self.show(&place, frames, rest, false, account) {
                    Ok(shown @ (Shown::Pages(pages) | Shown::There(pages))) => {
                        change.iter_mut().for_each(|change| change.is_over());
                        place.page.0 += pages.max(1);
                        if matches!(shown, Shown::There(_)) {
                            let behind = PageRange::new(place.page.min(rest.end()), rest.end());
                            place.page.0 += self.mapped(&place, frames, behind, account);
                        }
                        continue;
                    }
                    Ok(Shown::Changing) => match change.as_mut().map(|change| change.wait()) {
                        Some(Ok(())) => continue,
                        // The rest would take as long.
                        Some(Err(error)) => {
                            return outcome.and(Err((Arc::clone(place.object), place.page, error)));
                        }
                        None => return outcome,
                    },
                    Ok(Shown::Gone) => return outcome,
                    Ok(Shown::Away) => {}
                    Err(error) => {
                        outcome = outcome.and(Err((Arc::clone(place.object), place.page, error)));
                        place.page.0 += 1;
                        continue;
                    }
                }
                if !missing(&place, place.page, account) {
                    place.page.0 += 1;
                }
            }
        }
        outcome
    }

    /// How many pages of `run` are mapped already, from the first one on: each of them would take a call of its own to find out. Of a map of this process.
    fn mapped(&self, place: &Place<'_>, frames: &Frames, run: PageRange, account: &mut Account) -> u64 {
        account.tally.shared_atomics += 2;
        // As in `show`: who takes what is resident here out of the map waits for this, and comes after it.
        let _section = self.mapping.begin(&frames.sections, account.cpu);
        let resident = if run.is_empty() { None } else { frames.pages.resident_run(run.start(), run) };
        let mut entries = [PageEntry::default(); LOOK_PAGES as usize];
        let entries = &mut entries[..resident.map_or(0, |run| run.len().min(LOOK_PAGES)) as usize];
        let address = self.span.start() + place.offset_of(run.start());
        let known = self.vm.page_map().and_then(|table| table.entries(address, entries));
        known.map_or(0, |()| entries.iter().take_while(|entry| entry.is_present()).count() as u64)
    }

    /// Whether writes to what is mapped now are to be told. Asked within a section of what is mapped: who begins to have them
    /// told waits for those that began before.
    pub(crate) fn writes_told(&self) -> Writes {
        if self.writes.must_protect() || self.writes_through { Writes::Told } else { Writes::Free }
    }

    fn wake_at(&self, offset: u64) {
        // Fails for addresses that were never mapped alone.
        let _ = self.space.uffd.wake(self.span.start() + offset, PAGE_SIZE);
    }
}

/// ENOMEM: the kernel had no memory for a page table.
const NOMEM: i32 = 12;
/// EAGAIN: the address space is being changed.
const AGAIN: i32 = 11;

/// The aligned block of `pages` pages that holds `page`, as far as it lies in `window`.
pub(crate) fn block(page: PageIndex, pages: u64, window: PageRange) -> PageRange {
    let start = page.0 - page.0 % pages;
    clip(PageRange::new(PageIndex(start), PageIndex(start.saturating_add(pages))), window)
}

/// Up to `each_way` resident pages on each side, nearest first, ending at the first missing one.
fn spiral(frames: &Frames, page: PageIndex, each_way: u64, window: PageRange) -> PageRange {
    let resident = |page| matches!(frames.pages.see(page), Seen::Resident { marked: false });
    let (mut start, mut end) = (page, PageIndex(page.0 + 1));
    for _ in 0..each_way.min(window.len()) {
        if start > window.start() {
            if !resident(PageIndex(start.0 - 1)) {
                break;
            }
            start.0 -= 1;
        }
        if end < window.end() {
            if !resident(end) {
                break;
            }
            end.0 += 1;
        }
    }
    PageRange::new(start, end)
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;
    use crate::{MapOptions, Vm, VmOptions};

    /// Each section is entered and left by two atomic operations.
    #[test]
    fn what_is_mapped_at_once_is_mapped_in_short_sections() {
        const SECTIONS: u64 = 4;
        let pages = SECTIONS * SECTION_PAGES;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(pages * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let options = MapOptions::shared().every_fault();
        let map = vm.map(&object, &options).unwrap();
        map.populate(map.window()).unwrap();
        let map = vm.map(&object, &options).unwrap();
        let show_all = || {
            let mut account = Account::here();
            map.core.show_all(map.window(), None, &mut account, |_, _, _| panic!("all are there")).unwrap();
            let Account { tally, .. } = account;
            (tally.pages_mapped, tally.shared_atomics / 2)
        };
        let (mapped, sections) = show_all();
        assert_eq!((mapped, sections), (pages, SECTIONS));
        // Now they are mapped, and looked at together.
        let (mapped, sections) = show_all();
        assert_eq!(mapped, 0);
        assert!(sections <= 2 * pages.div_ceil(LOOK_PAGES), "{sections}");
    }
}
