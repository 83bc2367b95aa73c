//! One read of a source, from its beginning to its completion on whichever thread that happens.
//!
//! ```text
//!   begin ─► Source::begin(Request) ─► … ─► Request::complete ─► frames ─► published ─► whoever waited
//!              └─ dropped, or panicked: fails ─┘   └─ Again: once more, later   └─ a run that failed: a part of it
//! ```
//! Who settles the claim is whoever takes the [`Pending`] first: the completion, or the deadline.
//!
//! Every part of a grain costs its source as much as all of it. Where some pages of one are in memory, all that are missing are read together:
//! the request spans them, and what it brings of the others is not used.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::signals::Masked;

use crate::at_work::is_worker;
use crate::buffers::Buffer;
use crate::fault::finish_read;
use crate::fill::{self, Filled, Wanted};
use crate::frame_count::Reserve;
use crate::jobs::Job;
use crate::object::{Bytes, Frames, ObjectCore, clip};
use crate::pages::{Claim, Seen, Waiters};
use crate::reason;
use crate::source::{PAUSES, Source, SourceError};
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, Mutex};
use crate::work::Then;

/// How soon a read is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A guess: nobody asked for it yet.
    Ahead,
    /// Somebody asked for all of it and waits, such as [`Map::populate`](crate::Map::populate).
    Wanted,
    /// A thread sleeps until the page is there, as a rule because it touched it.
    Demand,
}

/// A read for a [`Source`] to serve: fill [`Request::bytes`], then call [`Request::complete`].
#[derive(Debug)]
pub struct Request {
    /// Taken by who completes it.
    reading: Option<Box<Reading>>,
}

/// What a request is about.
#[derive(Debug)]
pub(crate) struct Reading {
    object: Arc<ObjectCore>,
    flight: Arc<Flight>,
    /// What is read.
    range: PageRange,
    buffer: Buffer,
    /// How often the source asked to try again.
    tries: usize,
}

/// A read under way, as far as a deadline needs to know.
///
/// Lock legend: `pending` is a lock of its own, held for a move; the rest is constant.
#[derive(Debug)]
pub(crate) struct Flight {
    object: Arc<ObjectCore>,
    pending: Mutex<Option<Pending>>,
    priority: Priority,
    deadline: Option<Instant>,
}

/// What has to be settled when a read ends.
#[derive(Debug)]
struct Pending {
    claim: Claim,
    /// What else is missing of the same grains: nobody is known to need it.
    beside: Vec<Claim>,
    wanted: Wanted,
    then: Then,
}

impl Request {
    /// The first byte.
    pub fn offset_bytes(&self) -> u64 {
        self.reading().range.start().offset_bytes()
    }

    /// The buffer for the bytes, as long as the read; it holds zeros at first. Empty in a child of fork(2), which
    /// cannot serve its parent's requests.
    pub fn bytes(&mut self) -> &mut [u8] {
        let reading = self.reading.as_mut().expect("until it is completed");
        if reading.is_inherited() {
            return &mut [];
        }
        let valid = valid_bytes(&reading.object, reading.range);
        &mut reading.buffer.pages(reading.range.len())[..valid]
    }

    /// How soon it is needed. That may become sooner while the request waits to be served: a read ahead becomes [`Priority::Demand`]
    /// when a thread comes to sleep for one of its pages. A source that orders its requests asks again; each call takes a lock that completing
    /// the request takes too, and looks at the word of each page.
    pub fn priority(&self) -> Priority {
        let flight = &self.reading().flight;
        // The words of the pages are not in a child of fork(2).
        let may_rise = flight.priority < Priority::Demand && !self.reading().is_inherited();
        // Who asked for it may sleep for it there, as others do for their whole range.
        let is_asked_for =
            |pending: &Pending| flight.priority == Priority::Wanted && matches!(pending.then, Then::Wake);
        let is_raised = |pending: &Pending| !is_asked_for(pending) && pending.has_waiters();
        if may_rise && flight.look(is_raised) == Some(true) { Priority::Demand } else { flight.priority }
    }

    /// The deadline: the waiting threads get an error then.
    pub fn deadline(&self) -> Option<Instant> {
        self.reading().flight.deadline
    }

    /// Whether work on it would be useless because nobody waits any more: the deadline is over, it was for a map that was dropped or a
    /// range that was given up and no thread sleeps for its pages, or this is a child of fork(2). A source may drop such a request. Who
    /// comes to need one of its pages after all has it read by another request. May cost as much as [`Self::priority`].
    pub fn is_cancelled(&self) -> bool {
        let is_needed = |pending: &Pending| !pending.then.is_void() || pending.has_waiters();
        self.reading().is_inherited() || self.reading().flight.look(is_needed) != Some(true)
    }

    /// Ends the read: the bytes are in place, or there is an error. Does nothing in a child of fork(2).
    pub fn complete(mut self, outcome: Result<(), SourceError>) {
        let reading = self.reading.take().expect("completed once");
        reading.complete(outcome.map_err(|error| match error {
            SourceError::Again => (reason::AGAIN, None),
            SourceError::Short { .. } => (reason::SHORT, None),
            SourceError::Io(error) if error.raw_os_error().is_some() => {
                (reason::of_errno(error.raw_os_error()), None)
            }
            other => (reason::REFUSED, Some(other.to_string())),
        }));
    }

    fn reading(&self) -> &Reading {
        self.reading.as_ref().expect("until it is completed")
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if let Some(reading) = self.reading.take() {
            let code = if thread::panicking() { reason::PANICKED } else { reason::DROPPED };
            reading.complete(Err((code, None)));
        }
    }
}

/// Has the source of `object` begin to read what `claim` holds. Runs code of others.
pub(crate) fn begin(
    object: &Arc<ObjectCore>,
    mut claim: Claim,
    wanted: Wanted,
    then: Then,
    account: &mut Account,
) {
    let mut waiters = Waiters::default();
    let (beside, range, buffer) = match room(object, &mut claim, wanted, &mut waiters, account) {
        Ok(room) => room,
        Err(code) => {
            let failed = fill::give_up(object, claim, wanted, code, waiters, account);
            return end(object, failed, wanted, then, account);
        }
    };
    if waiters.listed {
        object.vm.jobs.serve_listed_soon();
    }
    // A panic on the way leaves the claim failed for this reason.
    claim.will_fail(reason::PANICKED);
    let flight = Arc::new(Flight {
        object: Arc::clone(object),
        priority: wanted.priority,
        deadline: object.vm.jobs.deadline(),
        pending: Mutex::new(Some(Pending { claim, beside, wanted, then })),
    });
    if flight.deadline.is_some() {
        object.vm.jobs.watch(Arc::clone(&flight), account);
    }
    Box::new(Reading { object: Arc::clone(object), flight, range, buffer, tries: 0 }).start();
}

/// Frames for what is left of `claim` and for what else is missing of its grains, which is claimed too; what all of it spans, and a buffer for
/// that.
fn room(
    object: &ObjectCore,
    claim: &mut Claim,
    wanted: Wanted,
    waiters: &mut Waiters,
    account: &mut Account,
) -> Result<(Vec<Claim>, PageRange, Buffer), u16> {
    if wanted.whole_grains {
        keep_grains(object, claim.range());
    }
    fill::reserve(object, claim, wanted, waiters, account)?;
    let beside = if wanted.whole_grains { rest_of_grains(object, claim, waiters) } else { Vec::new() };
    let range = beside.iter().map(Claim::range).fold(claim.range(), |all, more| {
        PageRange::new(all.start().min(more.start()), all.end().max(more.end()))
    });
    match object.vm.request_buffers.take_or_make(range.len()) {
        Ok(buffer) => Ok((beside, range, buffer)),
        Err(error) => {
            object.vm.release_frames(claim.range().len());
            let_be(object, beside, waiters);
            Err(reason::of_errno(error.raw_os_error()))
        }
    }
}

/// The grains that `read` lies in, as far as the object has pages there.
fn grains_around(object: &ObjectCore, read: PageRange) -> PageRange {
    let grain = object.grain_pages;
    let start = PageIndex(read.start().0 - read.start().0 % grain);
    clip(PageRange::new(start, PageIndex(read.end().0.next_multiple_of(grain))), object.pages())
}

/// Pages of the grains around `read` that are in memory count as used: those that are idle would be the next to make room for the others, and
/// each takes a read of the whole grain to come back.
fn keep_grains(object: &ObjectCore, read: PageRange) {
    if object.grain_pages == 1 || !object.vm.pool.core().reclaims() {
        return;
    }
    let frames = object.frames().expect("zeros are never read");
    let kept = grains_around(object, read).iter().filter(|&page| frames.pages.rewire(page)).count();
    object.rewires(frames, kept as u64);
}

/// Claims what is missing of the grains of `claim` and has frames without a wait. A page that failed would fail the others: what lies beyond
/// one stays out.
fn rest_of_grains(object: &ObjectCore, claim: &Claim, waiters: &mut Waiters) -> Vec<Claim> {
    let read = claim.range();
    let whole = grains_around(object, read);
    let frames = object.frames().expect("zeros are never read");
    let failed = |page: &u64| matches!(frames.pages.see(PageIndex(*page)), Seen::Failed(_));
    let start = (whole.start().0..read.start().0).rev().find(failed).map_or(whole.start().0, |page| page + 1);
    let end = (read.end().0..whole.end().0).find(failed).unwrap_or(whole.end().0);
    let whole = PageRange::new(PageIndex(start), PageIndex(end));
    let count = &object.vm.pool.core().frames;
    let mut most = count.most_at_once().saturating_sub(read.len());
    let mut beside = Vec::new();
    for part in [PageRange::new(whole.start(), read.start()), PageRange::new(read.end(), whole.end())] {
        let mut page = part.start();
        while page < part.end() {
            let is_absent = frames.pages.see(page) == Seen::Absent;
            let Some(mut more) = is_absent.then(|| frames.pages.claim(page)).flatten() else {
                page.0 += 1;
                continue;
            };
            more.extend(PageRange::new(page, part.end()));
            page = more.range().end();
            let pages = more.range().len();
            if pages <= most && count.reserve_spare(pages) == Reserve::Got {
                most -= pages;
                beside.push(more);
            } else {
                waiters.listed |= more.release().listed;
            }
        }
    }
    beside
}

/// What was read beside a claim is left to who touches it.
fn let_be(object: &ObjectCore, beside: Vec<Claim>, waiters: &mut Waiters) {
    for more in beside {
        object.vm.release_frames(more.range().len());
        waiters.listed |= more.release().listed;
    }
}

impl Reading {
    /// Whether this is a child of the process whose read it is.
    fn is_inherited(&self) -> bool {
        self.object.vm.check_process().is_err()
    }

    /// Asks the source.
    fn start(mut self: Box<Self>) {
        // What the buffer held belongs to another object: a source that fills less than all publishes zeros.
        self.buffer.pages(self.range.len()).fill(0);
        let object = Arc::clone(&self.object);
        let Some(Bytes::Custom(source)) = object.frames().map(|frames| &frames.bytes) else {
            unreachable!("local files are read without requests")
        };
        let source: &dyn Source = &**source;
        // The request that a panic drops fails.
        let request = Request { reading: Some(self) };
        let _ = catch_unwind(AssertUnwindSafe(|| source.begin(request)));
    }

    /// A source asked for patience; asks it again, unless the deadline is over by now.
    pub(crate) fn try_again(mut self: Box<Self>) {
        if self.flight.has_ended() {
            return self.let_go();
        }
        self.tries += 1;
        self.start();
    }

    /// What was read for `range`.
    fn bytes_of(&mut self, range: PageRange) -> &[u8] {
        let from = (range.start().0 - self.range.start().0) * PAGE_SIZE;
        &self.buffer.pages(self.range.len())[from as usize..][..range.bytes() as usize]
    }

    fn complete(self: Box<Self>, outcome: Result<(), (u16, Option<String>)>) {
        if self.is_inherited() {
            // The buffer is not here, and the frames are the parent's too.
            return std::mem::forget(self);
        }
        // This may be a thread of the program: it holds a claim.
        let _masked = Masked::asynchronous();
        let object = Arc::clone(&self.object);
        self.settle(&object, outcome);
        object.let_go();
    }

    /// Nothing is to be read for it any more. Where the map and the object are gone by now the source goes with this, and not on this thread: it may be one
    /// of the source's own, for whose end the source waits as it is dropped.
    fn let_go(self) {
        let Self { object, flight, buffer, .. } = self;
        object.vm.request_buffers.give(buffer);
        flight.let_go();
        object.let_go();
    }

    fn settle(mut self: Box<Self>, object: &Arc<ObjectCore>, outcome: Result<(), (u16, Option<String>)>) {
        let frames = object.frames().expect("zeros are never read");
        let mut account = Account::here();
        let asks_again = matches!(outcome, Err((reason::AGAIN, _))) && self.tries < PAUSES.len();
        // What is pending stays there meanwhile, so that the deadline finds it. For a read ahead nobody waits so long: its step begins it anew.
        if asks_again && self.flight.priority > Priority::Ahead && !self.flight.has_ended() {
            object.vm.figures.add(account.cpu, &Tally { retries: 1, ..Tally::default() });
            return object.vm.jobs.push_later(self.tries, Job::Again(self));
        }
        let Some(mut pending) = self.flight.take(&mut account) else { return self.let_go() };
        let mut waiters = Waiters::default();
        let priority = pending.wanted.priority;
        let outcome = outcome.and_then(|()| {
            let valid = valid_bytes(object, self.range);
            self.buffer.pages(self.range.len())[valid..].fill(0);
            let range = pending.claim.range();
            write(frames, range, self.bytes_of(range), priority).map_err(|code| (code, None))
        });
        if outcome.is_ok() {
            let (came, not): (Vec<Claim>, Vec<Claim>) = std::mem::take(&mut pending.beside)
                .into_iter()
                .partition(|more| write(frames, more.range(), self.bytes_of(more.range()), priority).is_ok());
            for more in came {
                let wanted = Wanted { mark: None, ..pending.wanted };
                waiters = fill::commit(object, frames, more, wanted, waiters, &mut account).waiters;
            }
            pending.beside = not;
        }
        let_be(object, pending.beside, &mut waiters);
        let range = self.range;
        self.let_go();
        let filled = match outcome {
            Ok(()) => fill::commit(object, frames, pending.claim, pending.wanted, waiters, &mut account),
            Err((code, message)) => {
                pending.wanted = pending.then.still(pending.wanted);
                let (claim, wanted) = (pending.claim, pending.wanted);
                // A bad page beside it does no harm to what is claimed.
                let had_more = range != claim.range() && wanted.priority > Priority::Ahead;
                if let Some(message) = message.filter(|_| !had_more) {
                    object.remember(wanted.needed, message, &mut account);
                }
                let rest = match had_more {
                    true => Some(claim),
                    false => fill::after_failure(object, claim, wanted, code, &mut waiters, &mut account),
                };
                match rest {
                    // It, or a part of it, may be had alone. Its frames are reserved anew.
                    Some(claim) => {
                        object.vm.release_frames(claim.range().len());
                        let needed = pending.wanted.needed_in(claim.range());
                        let wanted = Wanted { needed, whole_grains: false, ..pending.wanted };
                        if waiters.listed {
                            object.vm.jobs.serve_listed_soon();
                        }
                        object.vm.figures.settle(&mut account);
                        return read_later(Arc::clone(object), claim, wanted, pending.then, &mut account);
                    }
                    None => Filled { outcome: Err(code), waiters },
                }
            }
        };
        end(object, filled, pending.wanted, pending.then, &mut account);
    }
}

impl Pending {
    /// Whether a thread or a listed fault waits for a page that is being read.
    fn has_waiters(&self) -> bool {
        std::iter::once(&self.claim).chain(&self.beside).any(Claim::has_waiters)
    }
}

impl Flight {
    /// What `look` finds of what is pending; `None` where the read has ended. This may be a thread of the program: no handler of its signals
    /// may touch a page meanwhile, since the thread that ends late reads takes the lock too.
    fn look<T>(&self, look: impl FnOnce(&Pending) -> T) -> Option<T> {
        let _masked = Masked::asynchronous();
        self.pending.lock().anyway().as_ref().map(look)
    }

    fn take(&self, account: &mut Account) -> Option<Pending> {
        account.lock(&self.pending).take()
    }

    fn has_ended(&self) -> bool {
        self.pending.lock().anyway().is_none()
    }

    /// It has ended, and nobody looks after its deadline any more.
    pub(crate) fn let_go(self: Arc<Self>) {
        if let Some(last) = Arc::into_inner(self) {
            last.object.let_go();
        }
    }

    /// Whether it has ended; one that is too late ends now.
    pub(crate) fn expire(&self, now: Instant) -> bool {
        let late = self.deadline.is_some_and(|deadline| deadline <= now);
        if !late {
            return self.has_ended();
        }
        let mut account = Account::here();
        if let Some(mut pending) = self.take(&mut account) {
            let (object, wanted) = (&self.object, pending.then.still(pending.wanted));
            object.vm.release_frames(pending.claim.range().len() - 1);
            let mut waiters = pending.claim.narrow(wanted.alone());
            let_be(object, pending.beside, &mut waiters);
            // The frame of the page itself is given back with the failure.
            let failed = fill::after_failure(
                object,
                pending.claim,
                wanted,
                reason::TIMED_OUT,
                &mut waiters,
                &mut account,
            );
            debug_assert!(failed.is_none(), "one page fails or is released");
            let filled = Filled { outcome: Err(reason::TIMED_OUT), waiters };
            end(object, filled, wanted, pending.then, &mut account);
        }
        true
    }
}

/// Has a source asked again, by another thread: this may be one of the program that holds what the source takes. One of the VM's may not wait
/// for another of them to be free.
fn read_later(object: Arc<ObjectCore>, claim: Claim, wanted: Wanted, then: Then, account: &mut Account) {
    if is_worker() {
        begin(&object, claim, wanted, then, account);
    } else {
        let jobs = Arc::clone(&object.vm.jobs);
        jobs.push(Job::Fill { object, claim, wanted, then });
    }
}

/// What was claimed for a fault waited too long for a thread that reads it.
pub(crate) fn expire(object: Arc<ObjectCore>, mut claim: Claim, wanted: Wanted, then: Then) {
    let mut account = Account::here();
    // See `Jobs::run`.
    let _entered = then.enter(account.cpu);
    let wanted = then.still(wanted);
    let waiters = claim.narrow(wanted.alone());
    let failed = fill::give_up(&object, claim, wanted, reason::TIMED_OUT, waiters, &mut account);
    end(&object, failed, wanted, then, &mut account);
    object.let_go();
}

/// A read has ended: whoever waits for it goes on.
pub(crate) fn end(
    object: &Arc<ObjectCore>,
    filled: Filled,
    wanted: Wanted,
    then: Then,
    account: &mut Account,
) {
    if filled.waiters.listed {
        object.vm.jobs.serve_listed_soon();
    }
    match then {
        Then::Wake => {}
        Then::Map { at, touch } => {
            if let Some(map) = at.enter(account.cpu) {
                account.tally.shared_atomics += 2;
                return finish_read(&map, at, &touch, filled.outcome, account);
            }
        }
        Then::Step(step) => {
            let failed = match filled.outcome {
                Ok(_) => None,
                Err(code) => Some((wanted.needed, code)),
            };
            let reached = filled.outcome.map_or(PageIndex(wanted.needed.0 + 1), |read| read.end());
            object.vm.figures.settle(account);
            return step.go_on(reached, failed);
        }
    }
    object.vm.figures.settle(account);
}

fn write(frames: &Frames, range: PageRange, bytes: &[u8], priority: Priority) -> Result<(), u16> {
    debug_assert!((bytes.len() as u64).is_multiple_of(PAGE_SIZE));
    frames.verify(range.start(), bytes)?;
    match priority {
        Priority::Ahead => frames.write_behind(range, bytes),
        Priority::Wanted | Priority::Demand => frames.write(range, bytes),
    }
}

/// How many bytes of `range` lie before the object's end.
fn valid_bytes(object: &ObjectCore, range: PageRange) -> usize {
    (object.len_bytes - range.start().offset_bytes()).min(range.bytes()) as usize
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests;
