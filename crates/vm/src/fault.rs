//! One fault, from the touch to the mapped page.
//!
//! ```text
//!  touch ─► lookup ─► page's word ─┬ Resident ──────────────────────────────────┐
//!                                  ├ Filling ── sleep on the word (or be listed) ┤─► install ─► done
//!                                  └ Absent ── policy ─► claim run ─► fill ──────┘
//! ```
//! No lock is held over a read. What another page's fault takes, this one does not, but for the policy's memory, for which
//! nobody waits.

use std::sync::Arc;

use prepage_core::policy::{FaultAt, Holes};
use prepage_core::{FaultClass, PageIndex, PageRange};
use prepage_sys::clock::now_ns;

use crate::addresses::MapRef;
use crate::at_work::is_worker;
use crate::blocks::BLOCK_PAGES;
use crate::fill::{FaultMap, Wanted, fill_at_once, fill_local};
use crate::install::{Shown, block};
use crate::jobs::{Job, Jobs};
use crate::map::MapCore;
use crate::object::{Bytes, Frames, ObjectCore, clip};
use crate::options::Mode;
use crate::pages::{Claim, Seen};
use crate::reason;
use crate::record::Recorded;
use crate::request::{self, Priority};
use crate::segment::{Place, lookup};
use crate::statistics::Account;
use crate::work::Then;

/// An access that found no page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// The page of the map.
    pub(crate) page: PageIndex,
    pub(crate) address: u64,
    pub(crate) ip: u64,
    /// Where it is not known every touch passes for a write.
    pub(crate) write: bool,
    /// It is known to be one.
    pub(crate) surely_write: bool,
    /// A page was there, which may not be written to.
    pub(crate) protected: bool,
    pub(crate) tid: u32,
    pub(crate) start_ns: u64,
}

/// Where a fault is served, and so what may be done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// In the faulting thread's signal handler: may sleep, may not allocate or run code of others.
    Signal,
    /// On a thread that serves others' faults: may not sleep for another's fill, since that may need this thread.
    Handler,
}

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultOutcome {
    /// So many pages were resolved together.
    Mapped(FaultClass, u64),
    /// The page was brought in and taken away again before it was mapped, or a handler would have to wait for its copy: the touch is repeated, and
    /// faults again.
    Repeat(FaultClass, u64),
    /// Somebody else will end it.
    Later,
    /// The page cannot be had, for the reason of this code.
    Failed(u16),
    /// The address space is being changed, as events tell that wait to be read: once more after those.
    Again,
    /// The memory, or the process, is no longer there.
    Gone,
}

/// One fault as it is served: what it needs, borrowed, and what it counted.
#[derive(Debug)]
pub(crate) struct Fault<'a> {
    pub(crate) map: &'a MapCore,
    pub(crate) at: MapRef,
    pub(crate) touch: Touch,
    pub(crate) context: Context,
    pub(crate) account: Account,
    /// Whether it has helped the reclaimer while it waited for the device.
    has_helped: bool,
    /// Whether something was at the touched page before it was mapped.
    pub(crate) was_there: bool,
}

/// How often a page is mapped that is there each time and cannot be read: it may come and go meanwhile.
const UNREADABLE_TRIES: u32 = 8;
/// EIO: what is there cannot be read.
const EIO: i32 = 5;

impl<'a> Fault<'a> {
    pub(crate) fn new(
        map: &'a MapCore,
        at: MapRef,
        touch: Touch,
        context: Context,
        account: Account,
    ) -> Self {
        Self { map, at, touch, context, account, has_helped: false, was_there: false }
    }

    /// Serves the fault and writes down how it ended.
    pub(crate) fn serve(mut self) -> FaultOutcome {
        // Of the map's slot: to enter it and to leave.
        self.account.tally.shared_atomics += 2;
        let map = self.map;
        let shown = map.look(&mut self.account);
        let place = lookup(&shown, self.touch.page);
        let mut tries = 0;
        let outcome = loop {
            self.was_there = false;
            let outcome = match (self.open(), place.frames()) {
                (Some(outcome), _) => outcome,
                (None, None) => self.make_zeros(&place),
                (None, Some(frames)) => match self.write(&place, frames) {
                    Some(outcome) => outcome,
                    None => self.resolve(&place, frames),
                },
            };
            if !self.is_unreadable() {
                break outcome;
            }
            tries += 1;
            if tries == UNREADABLE_TRIES {
                break FaultOutcome::Failed(reason::of_errno(Some(EIO)));
            }
        };
        self.finish(&place, outcome);
        if matches!(outcome, FaultOutcome::Mapped(FaultClass::Disk, _)) && !self.has_helped {
            map.vm.pool.core().help(map, self.account.cpu);
        }
        outcome
    }

    /// Whether the page is there and cannot be read: a copy that a swap device does not give back, or whose memory is broken. The kernel raises SIGBUS for it as for
    /// a page that is missing, whenever it is touched.
    fn is_unreadable(&self) -> bool {
        let map = self.map;
        let asks = self.was_there && self.context == Context::Signal && !map.writes_through;
        asks && !map.span.can_be_read(map.offset_of(self.touch.page))
    }

    fn resolve(&mut self, place: &Place<'_>, frames: &Frames) -> FaultOutcome {
        let page = place.page;
        let mut waited = false;
        loop {
            let seen = frames.pages.see(page);
            // A page that is missing is claimed before that.
            if matches!(seen, Seen::Resident { .. } | Seen::Filling) {
                self.begin_opening(place);
            }
            match seen {
                Seen::Resident { .. } => {
                    match self.map.show_soft(place, frames, &mut self.account) {
                        Ok(shown @ (Shown::Pages(pages) | Shown::There(pages))) => {
                            self.was_there = matches!(shown, Shown::There(_));
                            self.account.tally.soft += 1;
                            if frames.pages.take_mark(page) {
                                self.ask_to_read_on(place, frames);
                            }
                            return FaultOutcome::Mapped(FaultClass::Cached, pages);
                        }
                        // Its frame was taken away meanwhile.
                        Ok(Shown::Away) => {}
                        Ok(Shown::Changing) => return FaultOutcome::Again,
                        Ok(Shown::Gone) => return FaultOutcome::Gone,
                        Err(error) => return FaultOutcome::Failed(reason::of_errno(error.raw_os_error())),
                    }
                }
                Seen::Filling if self.context == Context::Handler => {
                    if self.list(place, frames) {
                        return FaultOutcome::Later;
                    }
                }
                Seen::Filling => {
                    self.account.tally.waits += 1;
                    self.account.tally.shared_atomics += 1;
                    waited = true;
                    if let Seen::Failed(code) = frames.pages.wait(page, self.account.endings) {
                        return FaultOutcome::Failed(code);
                    }
                }
                Seen::Failed(code) if waited => return FaultOutcome::Failed(code),
                // It was shadowed, and forgotten, since this fault looked: the next look finds what is there now.
                Seen::Absent | Seen::Failed(_) if matches!(frames.bytes, Bytes::Frozen) => {
                    return FaultOutcome::Repeat(FaultClass::Cached, 0);
                }
                // Of a page that failed this is a later touch: the source may have recovered.
                Seen::Absent | Seen::Failed(_) => {
                    let fault = FaultAt { page, window: place.window };
                    let (policy, memory) = self.map.policy();
                    let decided = memory.with(&mut self.account.tally, |state| {
                        let mut cluster = policy.hard(state, &fault, &*frames.pages);
                        if self.map.is_in_order() {
                            // Nobody wants what lies before.
                            cluster.range = PageRange::new(page, cluster.range.end());
                            cluster.before_object = 0;
                        }
                        let inside = match cluster.holes {
                            Holes::Stop => cluster.clip(&fault, &*frames.pages),
                            Holes::Skip => cluster.within(place.window),
                        };
                        let wanted = self.map.one_read(place, frames, inside);
                        let mut claim = frames.pages.claim(page)?;
                        claim.extend(wanted);
                        policy.read(state, claim.range());
                        Some((claim, cluster, inside, wanted))
                    });
                    let Some((claim, cluster, inside, wanted)) = decided else { continue };
                    let pages = claim.range().len();
                    self.account.tally.shared_atomics += pages;
                    let truncated = cluster.is_truncated(inside) || claim.range() != wanted;
                    self.map.vm.figures.cluster(self.account.cpu, pages, truncated);
                    // What lies behind pages that are there is wanted only where the policy skips those.
                    let read = if cluster.holes == Holes::Stop { wanted } else { claim.range() };
                    self.begin_opening(place);
                    self.read_others(place, &cluster, inside, read);
                    return self.hard(place, frames, claim, cluster.mark);
                }
            }
        }
    }

    /// Leaves the fault to whoever fills its page; false where nobody fills it any more.
    fn list(&mut self, place: &Place<'_>, frames: &Frames) -> bool {
        let jobs = &self.map.vm.jobs;
        self.account.lock(&jobs.listed).push((self.at, self.touch));
        self.account.tally.waits += 1;
        if frames.pages.list(place.page) {
            return true;
        }
        // Filled meanwhile: whoever takes the entry from the list first serves it.
        let mut listed = self.account.lock(&jobs.listed);
        let is_this = |(at, touch): &(MapRef, Touch)| {
            at.map_id() == self.at.map_id() && touch.page == self.touch.page && touch.tid == self.touch.tid
        };
        match listed.iter().position(is_this) {
            Some(index) => {
                listed.swap_remove(index);
                false
            }
            None => true,
        }
    }

    /// The page is claimed for this fault: fills the claim, or has it filled, and maps it.
    fn hard(
        &mut self,
        place: &Place<'_>,
        frames: &Frames,
        claim: Claim,
        mark: Option<PageIndex>,
    ) -> FaultOutcome {
        self.account.tally.hard += 1;
        self.account.tally.reads += 1;
        let vm = &self.map.vm;
        let wanted = Wanted {
            needed: place.page,
            mark,
            priority: Priority::Demand,
            in_order_for: self.map.is_in_order().then_some(self.at),
            whole_grains: true,
        };
        let read = claim.range();
        let offset_bytes = read.start().offset_bytes();
        let mut by =
            FaultMap { map: self.map, place, cpu: self.account.cpu, shows: false, has_helped: false };
        let filled = match (&frames.bytes, self.context) {
            (Bytes::Local(file), Context::Signal) => {
                fill_local(place.object, frames, file, claim, wanted, Some(&mut by), &mut self.account)
            }
            // Others may wait for this thread: it waits for no device.
            (Bytes::Local(file), Context::Handler) if file.tells_what_is_cached() => {
                let read = |bytes: &mut [u8]| file.read_cached(offset_bytes, bytes);
                match fill_at_once(place.object, frames, claim, wanted, &mut by, &mut self.account, read) {
                    Ok(filled) => filled,
                    Err(claim) => return self.hand_over(place, claim, wanted),
                }
            }
            (Bytes::Frozen, _) => unreachable!("frozen pages are never claimed to be filled"),
            (Bytes::Local(_) | Bytes::Custom(_), Context::Handler) => {
                return self.hand_over(place, claim, wanted);
            }
            (Bytes::Custom(_), Context::Signal) => 'filled: {
                // No deadline ends a read by this thread.
                let claim = match place.object.saved().filter(|_| !vm.jobs.has_deadline()) {
                    // Its images are files. Whoever else reads one that is damaged can say so.
                    Some(saved) => {
                        let read = |bytes: &mut [u8]| {
                            bytes.fill(0);
                            saved.bring(offset_bytes, bytes).is_ok()
                        };
                        let account = &mut self.account;
                        match fill_at_once(place.object, frames, claim, wanted, &mut by, account, read) {
                            Ok(filled) => break 'filled filled,
                            Err(claim) => claim,
                        }
                    }
                    None => claim,
                };
                vm.figures.settle(&mut self.account);
                let object = Arc::clone(place.object);
                if is_worker() {
                    // A source that touches another map: the threads may all be at this, so the read is done here, as by a
                    // call in the place of the touch.
                    request::begin(&object, claim, wanted, Then::Wake, &mut self.account);
                } else {
                    vm.jobs.push_from_signal(Job::Fill { object, claim, wanted, then: Then::Wake });
                }
                if let Seen::Failed(code) = frames.pages.wait(place.page, self.account.endings) {
                    return FaultOutcome::Failed(code);
                }
                return self.show_hard(place, frames, read);
            }
        };
        self.has_helped = by.has_helped;
        if filled.waiters.listed {
            vm.jobs.serve_listed_soon();
        }
        match filled.outcome {
            // What was unwired again meanwhile faults once more.
            Ok(read) if by.shows => {
                self.map.forget_poisoned(place, read, &mut self.account);
                self.map.showed(read.len(), &mut self.account);
                FaultOutcome::Mapped(FaultClass::Disk, read.len())
            }
            Ok(read) => self.show_hard(place, frames, read),
            Err(code) => FaultOutcome::Failed(code),
        }
    }

    /// Has a thread read what is claimed, and end this fault.
    fn hand_over(&mut self, place: &Place<'_>, claim: Claim, wanted: Wanted) -> FaultOutcome {
        let then = Then::Map { at: self.at, touch: self.touch };
        let job = Job::Fill { object: Arc::clone(place.object), claim, wanted, then };
        self.map.vm.jobs.push_by(job, &mut self.account);
        FaultOutcome::Later
    }

    fn show_hard(&mut self, place: &Place<'_>, frames: &Frames, read: PageRange) -> FaultOutcome {
        if let Some(outcome) = self.write_first(place, frames, read) {
            return outcome;
        }
        match self.map.show_read(place, frames, read, &mut self.account) {
            Ok(shown @ (Shown::Pages(_) | Shown::There(_))) => {
                self.was_there = matches!(shown, Shown::There(_));
                self.write_to_what_came(place, frames);
                FaultOutcome::Mapped(FaultClass::Disk, read.len())
            }
            Ok(Shown::Away) => FaultOutcome::Repeat(FaultClass::Disk, read.len()),
            Ok(Shown::Changing) => FaultOutcome::Again,
            Ok(Shown::Gone) => FaultOutcome::Gone,
            Err(error) => FaultOutcome::Failed(reason::of_errno(error.raw_os_error())),
        }
    }

    /// Writes down how the fault ended. In handler mode a thread whose page cannot be had gets SIGBUS.
    fn finish(&mut self, place: &Place<'_>, outcome: FaultOutcome) {
        let (map, vm, touch) = (self.map, &self.map.vm, &self.touch);
        let by_handler = map.space.mode == Mode::Handler;
        let (class, cluster_pages) = match outcome {
            FaultOutcome::Mapped(class, pages) => (class, pages),
            FaultOutcome::Repeat(class, pages) => {
                if by_handler {
                    // Nothing else wakes the thread: no call has mapped its page.
                    map.wake(touch.page);
                }
                (class, pages)
            }
            FaultOutcome::Later | FaultOutcome::Again | FaultOutcome::Gone => {
                if by_handler && outcome != FaultOutcome::Later {
                    map.wake(touch.page);
                }
                return vm.figures.settle(&mut self.account);
            }
            FaultOutcome::Failed(code) => {
                self.account.tally.failed += 1;
                vm.failures.keep(place.object, place.page, touch.address, code);
                place.object.mention();
                if by_handler {
                    map.poison(touch.page, &mut self.account);
                }
                (FaultClass::Failed, 0)
            }
        };
        let cost_ns = now_ns().saturating_sub(touch.start_ns);
        vm.figures.settle(&mut self.account);
        vm.figures.fault(self.account.cpu, class, cost_ns);
        if let Some(records) = &vm.records {
            place.object.mention();
            records.keep(
                self.account.cpu,
                &Recorded {
                    start_ns: touch.start_ns,
                    cost_ns,
                    ip: touch.ip,
                    address: touch.address,
                    page: place.page.0,
                    object: place.object.id,
                    tid: touch.tid,
                    class,
                    permissions: map.permissions(),
                    cluster_pages: u32::try_from(cluster_pages).unwrap_or(u32::MAX),
                },
            );
        }
    }
}

/// Ends a fault of handler mode whose read was done by others.
pub(crate) fn finish_read(
    map: &MapCore,
    at: MapRef,
    touch: &Touch,
    outcome: Result<PageRange, u16>,
    account: &mut Account,
) {
    let account = Account { tally: std::mem::take(&mut account.tally), ..Account::on(account.cpu) };
    let mut fault = Fault::new(map, at, *touch, Context::Handler, account);
    let shown = map.look(&mut fault.account);
    let place = lookup(&shown, touch.page);
    let frames = place.frames().expect("zeros are never read");
    let outcome = match outcome {
        Ok(read) => fault.show_hard(&place, frames, read),
        Err(code) => FaultOutcome::Failed(code),
    };
    fault.finish(&place, outcome);
}

impl MapCore {
    /// What a fault reads at once of what is wanted: of touches in order that overtake what is read ahead all of a block that is missing as a whole, as that
    /// would. Not where the policy asks for the page alone.
    fn one_read(&self, place: &Place<'_>, frames: &Frames, wanted: PageRange) -> PageRange {
        let block = block(place.page, BLOCK_PAGES, place.window);
        let is_block = self.is_in_order() && wanted.len() > 1 && place.object.is_missing_block(frames, block);
        if is_block {
            return block;
        }
        // The next block is read as a whole.
        let ends_here = self.is_in_order() && place.object.has_blocks();
        place.object.one_read(place.page, if ends_here { clip(wanted, block) } else { wanted })
    }
}

impl ObjectCore {
    /// What a fault on `page` reads at once: so much of what is wanted, in whole grains, as one read brings in, from the touched grain on, and before it where
    /// what is wanted ends.
    pub(crate) fn one_read(&self, page: PageIndex, wanted: PageRange) -> PageRange {
        let (piece, grain) = (self.piece_pages(), self.grain_pages);
        let down = |page: PageIndex| page.0 - page.0 % grain;
        let end = wanted.end().0.next_multiple_of(grain);
        let start = down(page).min(end.saturating_sub(piece)).max(down(wanted.start()));
        clip(PageRange::new(PageIndex(start), PageIndex(end.min(start + piece))), self.pages())
    }
}

/// Serves the listed faults whose pages nobody fills any more. What each of them counts has what was counted before it in `account`.
pub(crate) fn serve_listed(jobs: &Jobs, account: &mut Account) {
    loop {
        let next = {
            let mut listed = account.lock(&jobs.listed);
            // Whoever fills a page by now may have claimed it after the fault was listed: it is told again.
            let ready = listed.iter().position(|(at, touch)| {
                at.enter(account.cpu).is_none_or(|map| {
                    let shown = map.look(account);
                    let place = lookup(&shown, touch.page);
                    !place.frames().is_some_and(|frames| frames.pages.list(place.page))
                })
            });
            ready.map(|index| listed.swap_remove(index))
        };
        let Some((at, touch)) = next else { return };
        let Some(map) = at.enter(account.cpu) else { continue };
        let shown = map.look(account);
        let place = lookup(&shown, touch.page);
        let account = Account { tally: std::mem::take(&mut account.tally), ..Account::on(account.cpu) };
        let mut fault = Fault::new(&map, at, touch, Context::Handler, account);
        match place.frames().map(|frames| frames.pages.see(place.page)) {
            // It waited for this.
            Some(Seen::Failed(code)) => fault.finish(&place, FaultOutcome::Failed(code)),
            _ => drop(fault.serve()),
        }
    }
}
