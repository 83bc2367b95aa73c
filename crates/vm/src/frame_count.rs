//! How many frames there are and may be, and how a read waits for one.

use std::time::{Duration, Instant};

use crate::order::NEW_PART;
use crate::sync::{AtomicU32, AtomicU64, Ordering, wait, wait_for, wake, yield_now};

/// How long a read waits for a frame while nothing at all moves in the pool: longer than reads take that are under way. Shorter
/// where [`VmOptions::read_deadline`](crate::VmOptions::read_deadline) is.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Within this long the reclaimer finds frames or says that there are none, on a busy machine too. Where it does neither, what it waits for may wait for the
/// frame: it allocates and frees, and a signal handler that interrupted the allocator may have touched a page.
const SILENCE: Duration = Duration::from_secs(1);
/// So many frames are given out beyond the limit then, one at a time, and as many more for each further second. They come back with all
/// others.
const BEYOND: u64 = 256;
/// So many frames are free when reclaim begins, and twice as many when it ends, or so many more that there are few rounds, up to one in
/// [`SPARE_PART`] (one in 512 costs 0.2 % more misses). A free frame holds nothing that is used: there are no more than is needed for reads not
/// to wait. Twice as many after one did or got less than it asked for, up to one in [`LOW_PART`]; one in [`FALL_PART`] fewer each time that one frame in
/// [`FALL_AFTER_PART`] was taken and none did. So what a few waits raised is down again once a third of all frames was taken: a wait now and then costs
/// less than the misses that as many empty frames would. Where the limit is small, one in [`LEAST_PART`] is free at first.
const LEAST_LOW: u64 = 32;
const LEAST_PART: u64 = 128;
const LEAST_OF_FEW: u64 = 4;
const FALL_AFTER_PART: u64 = 256;
/// Of few frames it falls after so many, and of very many.
const LEAST_FALL_AFTER: u64 = 64;
const MOST_FALL_AFTER: u64 = 2048;
const SPARE: u64 = 128;
const SPARE_PART: u64 = 8192;
const FALL_PART: u64 = 32;
const LOW_PART: u64 = 64;
/// Fewer than one in so many are free when frames are unwired ahead, each time so many more were taken at most: it takes a long
/// watch to tell what is used seldom from what is not used at all. A program that populates a map, and leaves so many frames free, touches it without a fault.
pub(crate) const AHEAD_PART: u64 = 4;
const AHEAD_STEP: u64 = 512;
/// And one in so many of all at least.
const AHEAD_STEP_PART: u64 = 64;
/// The most of these.
const MOST_LOW: u64 = 4096;
/// One read takes no more than one in so many frames.
const READ_PART: u64 = 16;
/// As many frames as are counted: 16 TiB, which nothing limits.
const NO_LIMIT: u64 = u32::MAX as u64;
/// More than are ever reserved.
const NEVER: u64 = u64::MAX;

/// The numbers of a pool.
///
/// Lock legend: (c) constant; (a) atomic; (f) atomic, slept on.
#[derive(Debug)]
pub(crate) struct FrameCount {
    /// (a) Pages reserved for frames: those that hold one and those about to.
    reserved: AtomicU64,
    /// (a) Frames that hold a page, and in the upper half those of them that are unwired. One word: the two are of one moment.
    held: AtomicU64,
    /// (a) The most of `reserved` now.
    limit: AtomicU64,
    /// (a) From so many of `reserved` on memory is looked at again, which may have more to spare than when `limit` was set; [`NEVER`] where it has not.
    look_from: AtomicU64,
    /// (a) The limit before it was lowered, or the fewest that a read which waited has seen reserved since.
    lowered_from: AtomicU64,
    /// (c) And ever.
    most: u64,
    /// (a) The low watermark, as long as the limit allows. Changed by the reclaimer.
    low: AtomicU64,
    /// (a) Whether a read waited, or got less than it asked for, since the reclaimer looked.
    waited: AtomicU32,
    /// (a) Frames taken away since `low` changed. Changed by the reclaimer.
    taken: AtomicU64,
    /// (a) Frames that were given out beyond the limit so far, or could have been.
    beyond: AtomicU64,
    /// (a) Pages that are pinned, in memory or not.
    pinned: AtomicU64,
    /// (a) Reads that wait for frames.
    waiting: AtomicU32,
    /// (a) How many frames these cannot do without, together.
    asked: AtomicU64,
    /// (a) Frames that hold a page and are claimed, to be published or taken away: these can be had soon.
    claimed: AtomicU64,
    /// (f) Changes when frames were given back, or there are none to give.
    freed: AtomicU32,
    /// (a) How often the reclaimer found nothing.
    found_nothing: AtomicU32,
    /// (a) Changes when a read ends or frames go while reads wait.
    moved: AtomicU32,
    /// (f) Changes when the reclaimer has something to look at.
    calls: AtomicU32,
    /// (a) Whether the reclaimer sleeps on `calls`.
    asleep: AtomicU32,
    /// (f) 1 while the reclaimer rests. Set back by who waits for a frame, or for what the reclaimer holds, and by the fault that has done the last that was left to
    /// faults.
    resting: AtomicU32,
}

/// What came of asking for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserve {
    /// They are the caller's to fill.
    Got,
    /// There are none until others give theirs back.
    Wait,
}

/// Nothing can be reclaimed, and nothing moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Never;

/// One frame that holds a page, in the word of both counts, and one that is unwired.
const RESIDENT: u64 = 1;
const UNWIRED: u64 = 1 << 32;

impl FrameCount {
    pub(crate) fn new(limit: u64) -> Self {
        let limit = limit.min(NO_LIMIT);
        Self {
            reserved: AtomicU64::new(0),
            held: AtomicU64::new(0),
            limit: AtomicU64::new(limit),
            look_from: AtomicU64::new(NEVER),
            lowered_from: AtomicU64::new(0),
            most: limit,
            low: AtomicU64::new(LEAST_LOW),
            waited: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            beyond: AtomicU64::new(0),
            pinned: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            asked: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            freed: AtomicU32::new(0),
            found_nothing: AtomicU32::new(0),
            moved: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            asleep: AtomicU32::new(0),
            resting: AtomicU32::new(0),
        }
    }

    /// Makes sure that there may be `pages` more frames. What does not fit is never counted: others that do fit get theirs.
    pub(crate) fn reserve(&self, pages: u64) -> Reserve {
        match self.reserve_some(self.limit(), pages, pages) {
            Some(_) => Reserve::Got,
            None => Reserve::Wait,
        }
    }

    /// Reserves up to `pages` frames, and `least` or none, of those above the low watermark: the others are left to who cannot do without.
    pub(crate) fn reserve_ahead(&self, least: u64, pages: u64) -> Option<u64> {
        let low = self.low();
        let got = self.reserve_some(self.limit().saturating_sub(low), least, pages);
        if got.is_none() && pages > low {
            self.waited.store(1, Ordering::SeqCst);
        }
        got
    }

    /// As [`Self::reserve`], for who has something else to do than to wait: frames for those who do are left to them.
    pub(crate) fn reserve_spare(&self, pages: u64) -> Reserve {
        match self.reserve_some(self.limit().saturating_sub(self.asked()), pages, pages) {
            Some(_) => Reserve::Got,
            None => Reserve::Wait,
        }
    }

    /// Reserves up to `pages` frames, and `least` or none, where that makes no more than `most` in all; gives how many.
    fn reserve_some(&self, most: u64, least: u64, pages: u64) -> Option<u64> {
        let limit = self.limit();
        // Who waits has counted itself before: in one order with who gives frames back and then looks for that.
        let mut now = self.reserved.load(Ordering::SeqCst);
        loop {
            let got = most.saturating_sub(now).min(pages);
            if got < least {
                return None;
            }
            match self.reserved.compare_exchange(now, now + got, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    let free = limit - (now + got).min(limit);
                    let step = (limit / AHEAD_STEP_PART).clamp(1, AHEAD_STEP);
                    let is_step = (now + got) / step != now / step;
                    // Tested by itself, since no step may lie between here and where reads ahead stop.
                    let from = self.look_from.load(Ordering::SeqCst);
                    let nears = now < from && now + got >= from;
                    if free < self.low() || is_step && free < limit / AHEAD_PART || nears {
                        self.call();
                    }
                    return Some(got);
                }
                Err(other) => now = other,
            }
        }
    }

    /// The most frames for one read.
    pub(crate) fn most_at_once(&self) -> u64 {
        (self.limit() / READ_PART).max(1)
    }

    /// Reserves up to `pages` frames, as many as are free, once there are `least`; gives how many, and whether that took a wait.
    /// While reclaim is at work it is waited for once, since reads of a page each take longer. Where it takes too long, one frame is enough.
    /// From any context.
    pub(crate) fn reserve_or_wait(
        &self,
        least: u64,
        pages: u64,
        patience: Duration,
    ) -> (Result<u64, Never>, bool) {
        if let Some(got) = self.reserve_now(least, pages, self.asked()) {
            if got < pages {
                self.waited.store(1, Ordering::SeqCst);
            }
            return (Ok(got), false);
        }
        let others = self.asked.fetch_add(least, Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.waited.store(1, Ordering::SeqCst);
        self.end_rest();
        let outcome = self.wait_counted(least, pages, others, patience);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        self.asked.fetch_sub(least, Ordering::SeqCst);
        // Others may sleep who left this one frames that are free still.
        let free = self.limit().saturating_sub(self.reserved());
        if self.is_waited_for() && free > 0 {
            self.wake_for(free);
        }
        (outcome, true)
    }

    /// All of `pages` where reclaim is at work, else what is free of them, and `least` at least. Who waits already was woken for the frames
    /// that it needs, or will be: these `others` are left to it.
    fn reserve_now(&self, least: u64, pages: u64, others: u64) -> Option<u64> {
        let limit = self.limit();
        let is_short = limit.saturating_sub(self.reserved()) < self.low();
        self.reserve_some(limit.saturating_sub(others), if is_short { pages } else { least }, pages)
    }

    fn wait_counted(&self, least: u64, pages: u64, others: u64, patience: Duration) -> Result<u64, Never> {
        let mut waited = false;
        let mut nothing_yet = self.found_nothing.load(Ordering::SeqCst);
        let mut moved = self.moved.load(Ordering::SeqCst);
        let began = Instant::now();
        let mut since = began;
        let first = self.reserved();
        let (mut heard, mut heard_at) = (self.freed.load(Ordering::SeqCst), since);
        loop {
            let freed = self.freed.load(Ordering::SeqCst);
            if freed != heard {
                (heard, heard_at) = (freed, Instant::now());
            }
            let reserved = self.reserved();
            let lowered_from = self.lowered_from.fetch_min(reserved, Ordering::SeqCst).min(reserved);
            let got = if waited {
                // Others may take what comes as fast as it does.
                let least = if began.elapsed() < SILENCE { least } else { 1 };
                // Where the limit was lowered by much not all of that has to go first, but more than is taken.
                self.reserve_some(self.limit(), least, pages)
                    .or_else(|| self.reserve_some(first.saturating_sub(least), least, least))
            } else {
                // Of the others some may not wait any more: they said so before they looked for who waits, and this read counts as one by now.
                let others = others.min(self.asked().saturating_sub(least));
                self.reserve_now(least, pages, others)
            };
            if let Some(got) = got {
                return Ok(got);
            }
            waited = true;
            // First: frames that are published meanwhile have moved.
            let under_way = self.reserved() > self.resident() || self.claimed.load(Ordering::SeqCst) > 0;
            let now = self.moved.load(Ordering::SeqCst);
            if now != moved {
                (moved, since) = (now, Instant::now());
                nothing_yet = self.found_nothing.load(Ordering::SeqCst);
            }
            // The second search that found nothing began after the last change.
            let nothing = self.found_nothing.load(Ordering::SeqCst).wrapping_sub(nothing_yet) >= 2;
            if nothing && (!under_way || since.elapsed() >= patience) {
                // What was given back is taken again before anybody gets an error.
                if self.grow(pages) {
                    continue;
                }
                return self.reserve_some(self.limit(), 1, pages).ok_or(Never);
            }
            if !nothing {
                // Reads that end meanwhile are of frames beyond the limit, too.
                let silence = heard_at.elapsed();
                if silence >= SILENCE {
                    // Before it is reserved: nobody sees a frame beyond the limit that does not count as one.
                    self.beyond.fetch_add(1, Ordering::SeqCst);
                    let most = self.limit().max(lowered_from) + BEYOND * silence.as_secs();
                    if let Some(got) = self.reserve_some(most, 1, 1) {
                        return Ok(got);
                    }
                    self.beyond.fetch_sub(1, Ordering::SeqCst);
                }
                self.call();
            }
            wait_for(&self.freed, freed, SILENCE.min(patience));
        }
    }

    /// How many frames reads that wait cannot do without.
    fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Whether reads wait for frames.
    pub(crate) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Frames are given back.
    pub(crate) fn release(&self, pages: u64) {
        self.reserved.fetch_sub(pages, Ordering::SeqCst);
        if self.is_waited_for() {
            self.moved.fetch_add(1, Ordering::SeqCst);
            self.wake_for(pages);
        }
    }

    /// Wakes who may have the `pages` frames that are free.
    fn wake_for(&self, pages: u64) {
        // Each takes one at least, and those that need more may sleep again: then all look.
        let is_one_each = self.asked() <= self.waiting.load(Ordering::SeqCst).into();
        self.wake_waiters(if is_one_each { pages } else { u64::MAX });
    }

    /// So many more frames hold a page.
    pub(crate) fn fill(&self, pages: u64) {
        self.held.fetch_add(pages * RESIDENT, Ordering::SeqCst);
    }

    /// So many that hold a page, or are about to, are claimed by somebody who lets [go](Self::let_go) of them soon.
    pub(crate) fn claim(&self, pages: u64) {
        self.claimed.fetch_add(pages, Ordering::SeqCst);
    }

    /// So many of these are published, or were taken away, or stay because the kernel does not free them. Where that helps who waits, it was
    /// [said](Self::may_go) before.
    pub(crate) fn let_go(&self, pages: u64) {
        self.claimed.fetch_sub(pages, Ordering::SeqCst);
    }

    /// Frames that could not be reclaimed can be now: who waits for one may have these.
    pub(crate) fn may_go(&self) {
        if self.is_waited_for() {
            self.moved.fetch_add(1, Ordering::SeqCst);
            self.call();
        }
    }

    /// So many fewer hold a page.
    pub(crate) fn empty(&self, pages: u64) {
        self.held.fetch_sub(pages * RESIDENT, Ordering::SeqCst);
    }

    /// So many frames are about to be unwired.
    pub(crate) fn unwire(&self, pages: u64) {
        self.held.fetch_add(pages * UNWIRED, Ordering::SeqCst);
    }

    /// So many are wired again, or going.
    pub(crate) fn rewire(&self, pages: u64) {
        self.held.fetch_sub(pages * UNWIRED, Ordering::SeqCst);
    }

    pub(crate) fn pin(&self, pages: u64) {
        self.pinned.fetch_add(pages, Ordering::SeqCst);
    }

    pub(crate) fn unpin(&self, pages: u64) {
        self.pinned.fetch_sub(pages, Ordering::SeqCst);
    }

    pub(crate) fn pinned(&self) -> u64 {
        self.pinned.load(Ordering::SeqCst)
    }

    pub(crate) fn reserved(&self) -> u64 {
        self.reserved.load(Ordering::SeqCst)
    }

    /// Frames that hold a page, and those of them that are unwired.
    pub(crate) fn held(&self) -> (u64, u64) {
        let held = self.held.load(Ordering::SeqCst);
        (held & u64::from(u32::MAX), held >> 32)
    }

    fn resident(&self) -> u64 {
        self.held().0
    }

    /// The most frames there may be now.
    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::SeqCst)
    }

    /// The same, where there is one.
    pub(crate) fn limit_if_any(&self) -> Option<u64> {
        Some(self.limit()).filter(|&limit| limit < NO_LIMIT)
    }

    /// At most so many frames were given out beyond the limit so far.
    pub(crate) fn beyond(&self) -> u64 {
        self.beyond.load(Ordering::SeqCst)
    }

    /// The most there may ever be.
    pub(crate) fn most(&self) -> u64 {
        self.most
    }

    /// There may be so many frames from now on, as far as the pool was made for them; others go.
    pub(crate) fn set_limit(&self, limit: u64) {
        let limit = limit.min(self.most);
        let before = self.limit.swap(limit, Ordering::SeqCst);
        if limit < before {
            self.lowered_from.fetch_max(before, Ordering::SeqCst);
        }
        if limit > before {
            self.moved.fetch_add(1, Ordering::SeqCst);
            self.wake_waiters(u64::MAX);
        }
        // Also where it did not change: what could not go when it was lowered may go by now.
        if limit < before || self.wanted() > 0 {
            self.call();
        }
    }

    /// The same until memory is looked at again, which [may](Self::may_rise) raise it: once half of what reads ahead may have is taken, since these stop
    /// where they find nothing.
    pub(crate) fn set_limit_for_now(&self, limit: u64, may_rise: bool) {
        let reserved = self.reserved();
        let free = limit.saturating_sub(reserved + self.low_of(limit));
        // Rounded up: it is to be crossed.
        let from = if may_rise { reserved + free.div_ceil(2) } else { NEVER };
        self.look_from.store(from, Ordering::SeqCst);
        self.set_limit(limit);
    }

    /// Memory was looked at again in vain.
    pub(crate) fn rises_no_more(&self) {
        self.look_from.store(NEVER, Ordering::SeqCst);
    }

    /// Whether memory is to be looked at before frames are taken away.
    pub(crate) fn may_rise(&self) -> bool {
        self.look_from.load(Ordering::SeqCst) != NEVER
    }

    /// Whether memory is to be looked at before the limit is reached.
    pub(crate) fn is_near(&self) -> bool {
        self.reserved() >= self.look_from.load(Ordering::SeqCst)
    }

    /// Raises a limit that was lowered, so that there may be `pages` more frames than now; false where it cannot be raised.
    pub(crate) fn grow(&self, pages: u64) -> bool {
        let reserved = self.reserved();
        let higher = |limit: u64| (limit < self.most).then(|| (limit.max(reserved) + pages).min(self.most));
        self.limit.fetch_update(Ordering::SeqCst, Ordering::SeqCst, higher).is_ok()
    }

    /// The frames that are free when reclaim begins, and when it ends.
    pub(crate) fn watermarks(&self) -> (u64, u64) {
        self.watermarks_of(self.limit())
    }

    /// The same where the limit is `limit`.
    pub(crate) fn watermarks_of(&self, limit: u64) -> (u64, u64) {
        let low = self.low_of(limit);
        (low, low + low.max(SPARE.min(limit / SPARE_PART)))
    }

    fn low(&self) -> u64 {
        self.low_of(self.limit())
    }

    fn low_of(&self, limit: u64) -> u64 {
        let (least, most) = low_bounds(limit);
        self.low.load(Ordering::Relaxed).clamp(least, most)
    }

    /// The reclaimer took so many frames away: the low watermark is made to fit whether reads waited.
    pub(crate) fn fit_low(&self, taken: u64) {
        let (mut low, mut since) = (self.low(), self.taken.load(Ordering::Relaxed) + taken);
        if self.waited.swap(0, Ordering::SeqCst) != 0 {
            (low, since) = (2 * low, 0);
        }
        // What one round takes may be enough for several steps.
        let after = falls_after(self.limit());
        while since >= after {
            (low, since) = (low - low.div_ceil(FALL_PART), since - after);
        }
        self.low.store(low, Ordering::Relaxed);
        self.taken.store(since, Ordering::Relaxed);
    }

    /// How many frames the reclaimer is to take away now: as many as make the high watermark, once fewer are free than the
    /// low one says or somebody waits.
    pub(crate) fn wanted(&self) -> u64 {
        let (limit, reserved) = (self.limit(), self.reserved());
        let free = limit.saturating_sub(reserved);
        let asked = self.asked();
        let (low, high) = self.watermarks();
        let high = high.max(asked).max(1);
        let is_short = free < low || reserved > limit || free < asked;
        if is_short { (reserved + high).saturating_sub(limit) } else { 0 }
    }

    /// Whether frames are to be unwired ahead: who is to be reclaimed soon is watched by then.
    pub(crate) fn fills_up(&self) -> bool {
        let limit = self.limit();
        !self.may_rise() && limit.saturating_sub(self.reserved()) < limit / AHEAD_PART
    }

    /// Whether so much is free that what comes need not be tried apart.
    pub(crate) fn has_room(&self) -> bool {
        let limit = self.limit();
        limit.saturating_sub(self.reserved()) >= limit / NEW_PART as u64
    }

    /// Has the reclaimer look. From any context.
    pub(crate) fn call(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.is_asleep() {
            wake(&self.calls, 1);
        }
    }

    /// Whether the reclaimer sleeps until it is called. From any context.
    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) != 0
    }

    /// What changes with every call: taken before the reclaimer looks.
    pub(crate) fn calls(&self) -> u32 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Leaves the processor to others for so long, in the middle of reclaim: not while a read waits for a frame, or few are free.
    pub(crate) fn rest(&self, limit: Duration) {
        if self.may_rest() {
            self.rest_until(limit, || false);
        }
    }

    /// Whether so much is free that the reclaimer may leave the processor to others.
    pub(crate) fn may_rest(&self) -> bool {
        self.limit().saturating_sub(self.reserved()) >= self.low().div_ceil(2)
    }

    /// Rests until it `is_over`, for `limit` at most: not while a read waits for a frame.
    pub(crate) fn rest_until(&self, limit: Duration, is_over: impl Fn() -> bool) {
        // Who waits, or ends what is waited for here, says so before it looks for who rests.
        self.resting.store(1, Ordering::SeqCst);
        if !self.is_waited_for() && !is_over() {
            pause(&self.resting, limit);
        }
        self.resting.store(0, Ordering::SeqCst);
    }

    /// Wakes the reclaimer if it rests. From any context.
    pub(crate) fn end_rest(&self) {
        if self.resting.load(Ordering::SeqCst) != 0 {
            self.resting.store(0, Ordering::SeqCst);
            wake(&self.resting, 1);
        }
    }

    /// Sleeps until somebody calls, unless that happened since `calls` was taken.
    pub(crate) fn sleep(&self, calls: u32) {
        self.asleep.store(1, Ordering::SeqCst);
        wait(&self.calls, calls);
        self.asleep.store(0, Ordering::SeqCst);
    }

    /// The reclaimer looked at every frame, and found none to take away.
    pub(crate) fn has_nothing(&self) {
        self.found_nothing.fetch_add(1, Ordering::SeqCst);
        self.wake_waiters(u64::MAX);
    }

    fn wake_waiters(&self, most: u64) {
        self.freed.fetch_add(1, Ordering::SeqCst);
        wake(&self.freed, most.min(u64::from(u32::MAX >> 1)) as u32);
    }
}

/// Sleeps while `resting` is 1, for `limit` at most.
fn pause(resting: &AtomicU32, limit: Duration) {
    if cfg!(any(feature = "shuttle", feature = "loom")) {
        // Time does not pass in a model.
        yield_now();
    } else {
        wait_for(resting, 1, limit);
    }
}

/// How many frames are taken from one step down of the low watermark to the next.
fn falls_after(limit: u64) -> u64 {
    (limit / FALL_AFTER_PART).clamp(LEAST_FALL_AFTER, MOST_FALL_AFTER)
}

/// Between which the low watermark of a limit is.
fn low_bounds(limit: u64) -> (u64, u64) {
    let least = (limit / LEAST_PART).clamp(LEAST_OF_FEW, LEAST_LOW).min(limit / READ_PART);
    (least, (limit / LOW_PART).clamp(least, MOST_LOW))
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests;

#[cfg(all(test, feature = "shuttle"))]
mod schedules {
    use shuttle::sync::Arc;
    use shuttle::thread;

    use super::*;

    #[test]
    fn model_reads_that_wait_have_the_frames_that_come() {
        let frames = || {
            let count = Arc::new(FrameCount::new(2));
            assert_eq!(count.reserve(2), Reserve::Got);
            let gives = Arc::clone(&count);
            let gives = thread::spawn(move || gives.release(2));
            // What they get they keep: nothing is said of it again.
            let reads = [(); 2].map(|()| {
                let count = Arc::clone(&count);
                thread::spawn(move || assert_eq!(count.reserve_or_wait(1, 1, PATIENCE).0, Ok(1)))
            });
            gives.join().expect("no panic");
            reads.into_iter().for_each(|read| read.join().expect("no panic"));
        };
        shuttle::check_random(frames, 20_000);
    }
}
