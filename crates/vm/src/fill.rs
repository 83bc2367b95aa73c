//! Claimed pages get their bytes: source → frames → published; and what becomes of those that get none. Who touched a page in handler mode goes on once its
//! frame is made and mapped, a moment before it is published.
//!
//! Local files are read here, in any context; other sources by requests (`request`).

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::direct_fill::DirectFill;

use crate::addresses::MapRef;
use crate::blocks;
use crate::buffers::{BUFFER_PAGES, Buffer};
use crate::frame_count::{Never, Reserve};
use crate::map::MapCore;
use crate::object::{Frames, ObjectCore};
use crate::pages::{Claim, Waiters};
use crate::reason;
use crate::request::Priority;
use crate::segment::Place;
use crate::source::LocalFile;
use crate::statistics::Account;
use crate::whole;

/// For reads of so many pages a touch waits awake.
const SHORT_PAGES: u64 = 16;

/// Pages that are read ahead of a file are published so many at a time. A processor's cache holds that much between the two copies of
/// it, and who touches pages in order does not wait for the whole read.
pub(crate) const PART_PAGES: u64 = 32;

/// Reads of so many pages ahead of touches go into a huge page. Of a shorter one most of it would be for nobody.
const HUGE_FROM: u64 = BUFFER_PAGES / 2;

/// Direct reads of so many pages share a huge page, which takes 2 MiB from the first of them on. Touches in no order ask for shorter ones.
const LONG_FROM: u64 = BUFFER_PAGES / 4;

/// A longer read ahead takes no fewer frames: what is left of it is worth a read.
const LEAST_AHEAD: u64 = 16;

/// Why a claim is filled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// The page without which the fill has failed.
    pub(crate) needed: PageIndex,
    /// The page to mark.
    pub(crate) mark: Option<PageIndex>,
    pub(crate) priority: Priority,
    /// The map whose touches in order asked for it: it may show more than is touched. So may the map whose touches asked for a read ahead.
    pub(crate) in_order_for: Option<MapRef>,
    /// Whether what else is missing of a source's grains is read with it, as far as there are frames.
    pub(crate) whole_grains: bool,
}

/// The map of a fault, which may show frames as they are made.
#[derive(Debug)]
pub(crate) struct FaultMap<'a> {
    pub(crate) map: &'a MapCore,
    pub(crate) place: &'a Place<'a>,
    pub(crate) cpu: usize,
    /// Whether it shows those that were read.
    pub(crate) shows: bool,
    /// Whether it did a part of the reclaimer's work while the device was busy.
    pub(crate) has_helped: bool,
}

impl FaultMap<'_> {
    /// The device is busy with what the fault needs.
    fn meanwhile(&mut self) {
        self.has_helped = true;
        self.map.vm.pool.core().help(self.map, self.cpu);
    }
}

/// What became of a claim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filled {
    /// The pages that are resident now; or why `needed` is not.
    pub(crate) outcome: Result<PageRange, u16>,
    pub(crate) waiters: Waiters,
}

impl Wanted {
    /// The page without which the fill has failed, alone.
    pub(crate) fn alone(&self) -> PageRange {
        self.needed.alone()
    }

    /// Up to `pages` pages of `range`, which holds the needed page: from that on, and before it where the range ends.
    fn some_of(&self, range: PageRange, pages: u64) -> PageRange {
        let start = self.needed.0.min(range.end().0.saturating_sub(pages)).max(range.start().0);
        PageRange::new(PageIndex(start), PageIndex((start + pages).min(range.end().0)))
    }

    /// Whether a page of `range` is to be marked: its touch has to be a fault, so the call that makes its frame may not map it.
    pub(crate) fn marks_in(&self, range: PageRange) -> bool {
        self.mark.is_some_and(|mark| range.contains(mark))
    }

    /// The page without which a fill of `range` has failed.
    pub(crate) fn needed_in(&self, range: PageRange) -> PageIndex {
        if range.contains(self.needed) { self.needed } else { range.start() }
    }
}

/// Sees to it that the pages of `claim` may have frames; where that is too many, those of the needed page and some that
/// follow it. Waits for reclaim where somebody needs them.
pub(crate) fn reserve(
    object: &ObjectCore,
    claim: &mut Claim,
    wanted: Wanted,
    waiters: &mut Waiters,
    account: &mut Account,
) -> Result<(), u16> {
    let pool = object.vm.pool.core();
    let pages = claim.range().len();
    let is_ahead = wanted.priority == Priority::Ahead;
    // A grain is read as a whole or left.
    let least = if is_ahead { pages.min(object.grain_pages.max(LEAST_AHEAD)) } else { pages };
    if let Some(got) = pool.frames.reserve_ahead(least, pages) {
        waiters.listed |= claim.narrow(wanted.some_of(claim.range(), got)).listed;
        return Ok(());
    }
    if is_ahead {
        return Err(reason::NO_FRAMES);
    }
    // Others may need what is claimed, and it takes a while.
    let most = pool.frames.most_at_once();
    waiters.listed |= claim.narrow(wanted.some_of(claim.range(), most)).listed;
    let patience = pool.patience(object.vm.options.read_deadline);
    let pages = claim.range().len();
    // Every part of a grain costs its source as much as all of it.
    let (got, waited) = pool.frames.reserve_or_wait(object.grain_pages.min(pages), pages, patience);
    account.tally.frame_waits += u64::from(waited);
    let keep = match got {
        Ok(frames) => wanted.some_of(claim.range(), frames),
        Err(Never) => wanted.alone(),
    };
    waiters.listed |= claim.narrow(keep).listed;
    got.map(drop).map_err(|Never| reason::NO_FRAMES)
}

/// Ends a claim for which nothing was reserved or read.
pub(crate) fn give_up(
    object: &ObjectCore,
    claim: Claim,
    wanted: Wanted,
    code: u16,
    mut waiters: Waiters,
    account: &mut Account,
) -> Filled {
    waiters.listed |= match wanted.priority {
        Priority::Ahead => claim.release().listed,
        _ => claim.fail(code).listed,
    };
    object.vm.figures.settle(account);
    Filled { outcome: Err(code), waiters }
}

/// The frames of `claim` hold its bytes: publishes them.
pub(crate) fn commit(
    object: &ObjectCore,
    frames: &Frames,
    mut claim: Claim,
    wanted: Wanted,
    mut waiters: Waiters,
    account: &mut Account,
) -> Filled {
    let range = claim.range();
    waiters.listed |= commit_first(object, frames, &mut claim, range.len(), wanted, account).listed;
    Filled { outcome: Ok(range), waiters }
}

/// The frames of the first `pages` pages of `claim` hold their bytes: publishes them.
pub(crate) fn commit_first(
    object: &ObjectCore,
    frames: &Frames,
    claim: &mut Claim,
    pages: u64,
    wanted: Wanted,
    account: &mut Account,
) -> Waiters {
    let start = claim.range().start();
    let pool = object.vm.pool.core();
    pool.frames.claim(pages);
    object.came(frames, pages);
    pool.arrived(object.id, PageRange::new(start, PageIndex(start.0 + pages)));
    account.tally.pages_read += pages;
    // The words of the pages, the limit of frames, their count here and in the pool, twice that of those which are not published, and the buffer taken
    // and given back, by two of its place and one of what is there.
    account.tally.shared_atomics += pages + 5 + 2 * 3;
    // Before others can see the pages: figures are never behind what a thread knows, but for one that a handler's call to make the frame let go on.
    object.vm.figures.settle(account);
    let waiters = claim.publish(pages, wanted.mark, wanted.needed);
    pool.frames.may_go();
    pool.frames.let_go(pages);
    whole::may_be_whole(object, account);
    waiters
}

/// A read of all of `claim` failed: what is left to be tried of it. A bad neighbour does no harm to a page that is needed,
/// the bad pages of a range that is wanted are found by halves, and what was a guess is left to the touch that needs it.
pub(crate) fn after_failure(
    object: &ObjectCore,
    mut claim: Claim,
    wanted: Wanted,
    code: u16,
    waiters: &mut Waiters,
    account: &mut Account,
) -> Option<Claim> {
    let range = claim.range();
    let keep = match wanted.priority {
        Priority::Ahead => {
            object.vm.release_frames(range.len());
            waiters.listed |= claim.release().listed;
            object.vm.figures.settle(account);
            return None;
        }
        _ if range.len() == 1 => {
            object.vm.release_frames(1);
            account.tally.pages_failed += 1;
            object.vm.figures.settle(account);
            waiters.listed |= claim.fail(code).listed;
            return None;
        }
        Priority::Demand => wanted.alone(),
        Priority::Wanted => PageRange::new(range.start(), PageIndex(range.start().0 + range.len() / 2)),
    };
    object.vm.release_frames(range.len() - keep.len());
    waiters.listed |= claim.narrow(keep).listed;
    Some(claim)
}

/// Brings in the pages of `claim` of a local file, or of what is left of it after failures, for a fault of `by` if there is one.
/// Nothing here allocates, or waits for a lock that others hold.
pub(crate) fn fill_local(
    object: &ObjectCore,
    frames: &Frames,
    file: &LocalFile,
    mut claim: Claim,
    mut wanted: Wanted,
    mut by: Option<&mut FaultMap<'_>>,
    account: &mut Account,
) -> Filled {
    let mut waiters = Waiters::default();
    if let Err(code) = reserve(object, &mut claim, wanted, &mut waiters, account) {
        return give_up(object, claim, wanted, code, waiters, account);
    }
    // A panic on the way leaves the claim failed for this reason.
    claim.will_fail(reason::PANICKED);
    // Of direct ones what no touches in order asked for goes straight into frames.
    let in_parts = wanted.priority == Priority::Ahead && (!file.direct || wanted.in_order_for.is_some());
    let is_block = blocks::is_block(object, claim.range());
    let has_buffer = in_parts || object.vm.pool.core().reclaims();
    let is_long = file.direct && has_buffer && !is_block && claim.range().len() >= LONG_FROM;
    // What no touch waits for leaves the buffers of touches alone. None is made here: a signal handler that touches what is claimed may have interrupted the
    // allocator. Of either kind there are as many as reads may be under way.
    let buffers =
        if wanted.priority == Priority::Demand { &object.vm.buffers } else { &object.vm.ahead_buffers };
    let mut buffer = if is_long { buffers.take_long() } else { buffers.take() };
    if is_block {
        let block = claim.range();
        match blocks::fill(object, frames, file, claim, wanted, &mut buffer, account) {
            Ok(listed) => {
                waiters.listed |= listed.listed;
                buffers.give(buffer);
                return Filled { outcome: Ok(block), waiters };
            }
            // What came is told. Who goes on by steps comes again for the rest.
            Err((rest, listed))
                if rest.range().start() > block.start() && wanted.priority != Priority::Ahead =>
            {
                let came = PageRange::new(block.start(), rest.range().start());
                object.vm.release_frames(rest.range().len());
                waiters.listed |= listed.listed | rest.release().listed;
                buffers.give(buffer);
                object.vm.figures.settle(account);
                return Filled { outcome: Ok(came), waiters };
            }
            // As pages are, which may fail one by one.
            Err((rest, listed)) => {
                claim = rest;
                waiters.listed |= listed.listed;
                wanted.needed = wanted.needed_in(claim.range());
            }
        }
    }
    let most = if is_long && !in_parts { buffer.part_pages() } else { BUFFER_PAGES };
    if claim.range().len() > most {
        let keep = wanted.some_of(claim.range(), most);
        object.vm.release_frames(claim.range().len() - keep.len());
        waiters.listed |= claim.narrow(keep).listed;
    }
    if in_parts && claim.range().len() > PART_PAGES {
        let mut filled = fill_in_parts(object, frames, file, claim, wanted, &mut buffer, account);
        filled.waiters.listed |= waiters.listed;
        buffers.give(buffer);
        return filled;
    }
    let filled = loop {
        let range = claim.range();
        match read(object, frames, file, range, wanted, by.as_deref_mut(), &mut buffer) {
            Ok(()) => break commit(object, frames, claim, wanted, waiters, account),
            Err(code) => match after_failure(object, claim, wanted, code, &mut waiters, account) {
                Some(rest) => claim = rest,
                None => break Filled { outcome: Err(code), waiters },
            },
        }
        wanted.needed = wanted.needed_in(claim.range());
    };
    buffers.give(buffer);
    filled
}

/// Brings in the pages of `claim` ahead of touches, a part at a time: who touches them in order waits for the part alone, and what is
/// copied is still in the processor's cache. The map that is touched in order shows them from then on where it may.
fn fill_in_parts(
    object: &ObjectCore,
    frames: &Frames,
    file: &LocalFile,
    mut claim: Claim,
    wanted: Wanted,
    buffer: &mut Buffer,
    account: &mut Account,
) -> Filled {
    let whole = claim.range();
    // A direct read into a part of the huge page is one request, and so is one that is too short for that.
    let part_pages = if file.direct && whole.len() < LONG_FROM { whole.len() } else { buffer.part_pages() };
    let mut waiters = Waiters::default();
    if !file.direct {
        if whole.len() >= HUGE_FROM && wanted.in_order_for.is_some() {
            file.begin_huge(whole);
        } else {
            file.begin(whole.start().offset_bytes(), whole.bytes());
        }
    }
    while !claim.range().is_empty() {
        let start = claim.range().start();
        let part = PageRange::new(start, PageIndex((start.0 + part_pages).min(whole.end().0)));
        match read_part(object, frames, file, part, wanted, buffer, account) {
            Ok(()) => {
                waiters.listed |=
                    commit_first(object, frames, &mut claim, part.len(), wanted, account).listed;
            }
            Err(code) => {
                after_failure(object, claim, wanted, code, &mut waiters, account);
                return Filled { outcome: Err(code), waiters };
            }
        }
    }
    Filled { outcome: Ok(whole), waiters }
}

fn read_part(
    object: &ObjectCore,
    frames: &Frames,
    file: &LocalFile,
    part: PageRange,
    wanted: Wanted,
    buffer: &mut Buffer,
    account: &mut Account,
) -> Result<(), u16> {
    let bytes = buffer.pages(part.len());
    file.read(part.start().offset_bytes(), bytes)?;
    // The rest of the last page, in which an earlier fill may have left its bytes.
    bytes[valid_bytes(object, part)..].fill(0);
    frames.verify(part.start(), bytes)?;
    let map = wanted.in_order_for.filter(|_| !wanted.marks_in(part)).and_then(|map| map.enter(account.cpu));
    match map {
        Some(map) if map.make_and_show_ahead(object, frames, part, bytes, account) => Ok(()),
        _ => frames.write(part, bytes),
    }
}

/// Brings in all pages of `claim` for a fault of `by`, if `read` gives their bytes, and without a wait for a frame or a buffer; else gives the claim back. Allocates
/// nothing.
pub(crate) fn fill_at_once(
    object: &ObjectCore,
    frames: &Frames,
    mut claim: Claim,
    wanted: Wanted,
    by: &mut FaultMap<'_>,
    account: &mut Account,
    read: impl FnOnce(&mut [u8]) -> bool,
) -> Result<Filled, Claim> {
    let range = claim.range();
    let valid = valid_bytes(object, range);
    let buffers = &object.vm.buffers;
    let is_short = range.len() <= BUFFER_PAGES;
    let Some(mut buffer) = (if is_short { buffers.pop() } else { None }) else { return Err(claim) };
    if object.vm.pool.core().frames.reserve_spare(range.len()) != Reserve::Got {
        buffers.give(buffer);
        return Err(claim);
    }
    claim.will_fail(reason::PANICKED);
    let bytes = buffer.pages(range.len());
    bytes[valid..].fill(0);
    let outcome = read(&mut bytes[..valid]) && make_frames(frames, range, bytes, wanted, Some(by)).is_ok();
    buffers.give(buffer);
    if outcome {
        return Ok(commit(object, frames, claim, wanted, Waiters::default(), account));
    }
    object.vm.release_frames(range.len());
    Err(claim)
}

/// Reads `range` into frames.
fn read(
    object: &ObjectCore,
    frames: &Frames,
    file: &LocalFile,
    range: PageRange,
    wanted: Wanted,
    mut by: Option<&mut FaultMap<'_>>,
    buffer: &mut Buffer,
) -> Result<(), u16> {
    let bytes = buffer.pages(range.len());
    let offset = range.start().offset_bytes();
    let valid = valid_bytes(object, range);
    let short = wanted.priority == Priority::Demand && range.len() <= SHORT_PAGES;
    let mut meanwhile = || {
        if let Some(by) = &mut by {
            by.meanwhile();
        }
    };
    let spin = object.vm.options.read_spin;
    if !(short && file.read_awake(offset, &mut bytes[..valid], spin, &mut meanwhile)) {
        // Where frames are reclaimed, another CPU may have to be interrupted for each that a mapping shows. The last page may end beyond the file.
        let is_straight = file.direct && valid == bytes.len() && !object.vm.pool.core().reclaims();
        // Some memory may have been made for it where it fails.
        let abandon = || frames.abandon(range);
        let make = || DirectFill::make(&frames.memfd, offset, range.bytes()).inspect_err(|_| abandon());
        if is_straight && let Ok(pages) = make() {
            let read = file.read_straight(&pages, range, range);
            return read.and_then(|()| frames.verify_frames(range, bytes)).inspect_err(|_| abandon());
        }
        file.read(offset, bytes)?;
    }
    // The rest of the last page, in which an earlier fill may have left its bytes.
    bytes[valid..].fill(0);
    make_frames(frames, range, bytes, wanted, by)
}

/// Makes frames of `bytes`, which were read for `range`. The map of the fault shows them where one call does both.
fn make_frames(
    frames: &Frames,
    range: PageRange,
    bytes: &[u8],
    wanted: Wanted,
    by: Option<&mut FaultMap<'_>>,
) -> Result<(), u16> {
    debug_assert!((bytes.len() as u64).is_multiple_of(PAGE_SIZE));
    frames.verify(range.start(), bytes)?;
    if let Some(by) = by.filter(|_| !wanted.marks_in(range)) {
        by.shows = by.map.make_and_show(by.place, frames, range, bytes);
        if by.shows {
            return Ok(());
        }
    }
    frames.write(range, bytes)
}

fn valid_bytes(object: &ObjectCore, range: PageRange) -> usize {
    (object.len_bytes - range.start().offset_bytes()).min(range.bytes()) as usize
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Advice, MapOptions, Vm, VmOptions};

    /// As while 64 touches wait for a slow device.
    #[test]
    fn what_nobody_touches_yet_is_read_without_the_buffers_of_touches() {
        const PAGES: u64 = 1024;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let taken: Vec<Buffer> = std::iter::from_fn(|| vm.core.buffers.pop()).collect();
        assert_eq!(taken.len(), 64);
        let [now, soon] = [(0, PAGES / 2), (PAGES / 2, PAGES)]
            .map(|(start, end)| PageRange::new(PageIndex(start), PageIndex(end)));
        let came = std::thread::scope(|scope| {
            map.advise(Advice::WillNeed(soon)).unwrap();
            scope.spawn(|| map.populate(now).unwrap());
            let began = Instant::now();
            while object.resident_pages() < PAGES && began.elapsed() < Duration::from_secs(20) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let came = object.resident_pages();
            taken.into_iter().for_each(|buffer| vm.core.buffers.give(buffer));
            came
        });
        assert_eq!(came, PAGES);
    }
}
