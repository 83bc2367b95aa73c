//! The state of each page of an object: one atomic word a page.
//!
//! ```text
//!            claim                publish
//!   Absent ────────► Filling ───────────────► Resident
//!     ▲  ▲              │ │                      │
//!     │  └── release ───┘ └─ fail ─► Failed      │ claim_resident
//!     │                                 │        ▼
//!     └──────── release ── Filling ◄────┘ ◄── (claimed again, by a retry or by who evicts)
//! ```
//!
//! A word changes hands by compare-and-swap: whoever makes it `Filling` owns the page until it publishes, fails or
//! releases it. Nobody else writes the frame meanwhile, and threads that need the page sleep on its word.
//!
//! ```text
//!   bits  0-1 state   2 waited   3 listed   4 marked   5 unwired   6 pinned   7 queued   8 dirty   9 written
//!        10 ahead   11 watched   12-15 count
//!        16-31 value
//! ```
//! Every change of the state keeps the flags, which belong to whoever gives them a meaning, and compares only the bits that
//! it is about. The value is the reason of a failed page; else value and count are the stamp of a page that was reclaimed, which stays until
//! the page is queued again.

use std::sync::Arc;
use std::time::Duration;

use prepage_core::policy::Residency;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::signals::Endings;

use crate::frame::Frame;
use crate::order::MOST_COUNT;
use crate::reason;
use crate::sync::{AtomicU32, Ordering, wait_for, wake};

/// A program that is asked to end while all its threads wait for sources does so after this long.
pub(crate) const HEED_PERIOD: Duration = Duration::from_secs(1);

pub(crate) const STATE: u32 = 0b11;
const ABSENT: u32 = 0;
const FILLING: u32 = 1;
pub(crate) const RESIDENT: u32 = 2;
const FAILED: u32 = 3;
/// While Filling: threads sleep on the word.
const WAITED: u32 = 1 << 2;
/// While Filling: faults of handler mode are listed, to be served when the page is there.
const LISTED: u32 = 1 << 3;
/// While Resident: the first fault on the page asks the policy what to read in the background.
pub(crate) const MARKED: u32 = 1 << 4;
/// While Resident: no map shows the frame, and its next touch says so ([`Pages::rewire`]).
pub(crate) const UNWIRED: u32 = 1 << 5;
/// The frame may not be taken away or unwired.
const PINNED: u32 = 1 << 6;
/// The pool's order of reclaim has an entry for the page. Changed by who holds the order's lock.
const QUEUED: u32 = 1 << 7;
/// While Resident: the frame holds what is nowhere else. Changed by `dirty`.
pub(crate) const DIRTY: u32 = 1 << 8;
/// While Resident: what it held is being written back. Changed by `dirty`.
pub(crate) const WRITING: u32 = 1 << 9;
/// While Dirty or Writing: nobody is known to have written to it, and its sum is that of what its home has. Changed by `dirty`.
pub(crate) const AHEAD: u32 = 1 << 10;
/// The order of reclaim has unwired the page in its turn, and still has to see whether it was touched since. Changed by whoever holds the order's lock.
const WATCHED: u32 = 1 << 11;
/// The frame may not be taken away or unwired.
const HELD: u32 = PINNED | DIRTY | WRITING;
/// Kept by every change of the state, but for what holds of resident pages alone.
const FLAGS: u32 = 0x0fe0;
/// The value stands above this bit, and the count above this one.
const VALUE: u32 = 16;
const COUNT: u32 = 12;
/// Value and count, where they are a stamp.
const STAMP: u32 = 0xffff << VALUE | 0xf << COUNT;
const _: () = assert!(MOST_COUNT == 0xf);

/// What a page's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Not in memory.
    Absent,
    /// Somebody fills it.
    Filling,
    /// In memory.
    Resident {
        /// Whether its first fault is a sign to read on.
        marked: bool,
    },
    /// It could not be filled; the code says why.
    Failed(u16),
}

/// What came of unwiring a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unwire {
    /// The caller did; whoever maps it by now has to be waited for, and unmapped.
    Done,
    /// It was.
    Already,
    /// It is not in memory, or pinned, or dirty.
    No,
}

/// What a page is that lies between others that are to be unwired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// No map shows it, or one does since a moment ago.
    Unmapped,
    /// It may be unwired too.
    Wired,
    /// As it was touched since it was unwired, which the order of reclaim is to see. It may be unmapped, and stays wired.
    Touched,
    /// It has to stay in maps.
    Stays,
}

/// What the order of reclaim leaves in the word of a page that it takes the frame of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// When the page was used last, as far as is known.
    pub(crate) time: u16,
    /// How often the page came and was found touched; not 0.
    pub(crate) count: u8,
}

/// What the order of reclaim has to know of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Idleness {
    /// It is not in memory.
    Missing,
    /// It is being filled.
    Held,
    /// It is pinned.
    Pinned,
    /// It is in memory, and maps may show it.
    Wired,
    /// Nobody touched it since it was unwired.
    Unwired,
}

/// The words of an object.
#[derive(Debug)]
pub(crate) struct Pages {
    words: Words,
}

#[cfg(not(any(feature = "shuttle", feature = "loom", feature = "counted")))]
pub(crate) type Words = prepage_sys::words::Words;
#[cfg(any(feature = "shuttle", feature = "loom", feature = "counted"))]
pub(crate) type Words = Box<[AtomicU32]>;

/// `count` words of zero.
#[cfg(not(any(feature = "shuttle", feature = "loom", feature = "counted")))]
pub(crate) fn words(count: u64) -> std::io::Result<Words> {
    Words::zeroed(count as usize)
}

#[cfg(any(feature = "shuttle", feature = "loom", feature = "counted"))]
pub(crate) fn words(count: u64) -> std::io::Result<Words> {
    Ok((0..count).map(|_| AtomicU32::new(0)).collect())
}

/// Pages that its holder has claimed and not yet settled. It may change threads. Dropped, it fails what is left, so that
/// nobody sleeps for ever when a fill panics.
#[derive(Debug)]
pub(crate) struct Claim {
    pages: Arc<Pages>,
    range: PageRange,
    reason: u16,
}

/// Who waits for a change, and has to be told of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "listed faults sleep until they are served"]
pub(crate) struct Waiters {
    /// Faults of handler mode are listed for the page.
    pub(crate) listed: bool,
}

impl Pages {
    pub(crate) fn new(count: u64) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Self { words: words(count)? }))
    }

    pub(crate) fn see(&self, page: PageIndex) -> Seen {
        seen(self.word(page).load(Ordering::Acquire))
    }

    /// Makes `page` the caller's to fill; `None` where it is neither absent nor failed.
    pub(crate) fn claim(self: &Arc<Self>, page: PageIndex) -> Option<Claim> {
        let is_missing = |word| word & STATE == ABSENT || word & STATE == FAILED;
        self.take(page, is_missing).is_some().then(|| self.claimed(page.alone()))
    }

    /// Makes the run of resident pages that begins at `page` and ends before `end` at the latest the caller's, who is
    /// about to take their frames away; with how many of them were unwired. `None` where `page` is not resident, pinned or dirty.
    pub(crate) fn claim_resident(self: &Arc<Self>, page: PageIndex, end: PageIndex) -> Option<(Claim, u64)> {
        let mut claimed = page;
        let mut unwired = 0;
        while claimed < end
            && let Some(word) = self.take(claimed, |word| word & (STATE | HELD) == RESIDENT)
        {
            unwired += u64::from(word & UNWIRED != 0);
            claimed.0 += 1;
        }
        let range = PageRange::new(page, claimed);
        (!range.is_empty()).then(|| (self.claimed(range), unwired))
    }

    /// As [`Self::claim_resident`], of one page that nobody touched since it was unwired.
    pub(crate) fn claim_unwired(self: &Arc<Self>, page: PageIndex) -> Option<Claim> {
        let taken = self.take(page, |word| word & (STATE | HELD | UNWIRED) == RESIDENT | UNWIRED);
        taken.is_some().then(|| self.claimed(page.alone()))
    }

    /// The pages must be the caller's.
    fn claimed(self: &Arc<Self>, range: PageRange) -> Claim {
        Claim { pages: Arc::clone(self), range, reason: reason::ABANDONED }
    }

    /// Claims `page` if its word `may` be; gives the word as it was.
    fn take(&self, page: PageIndex, may: impl Fn(u32) -> bool) -> Option<u32> {
        let word = self.word(page);
        let mut now = word.load(Ordering::Acquire);
        while may(now) {
            // The value of a page that failed is no stamp.
            let kept = if now & STATE == FAILED { FLAGS } else { FLAGS | STAMP };
            // In one order with the loads of `resident_run` and the counts of `Sections`.
            let claimed = now & kept & !(MARKED | UNWIRED) | FILLING;
            match word.compare_exchange(now, claimed, Ordering::SeqCst, Ordering::Acquire) {
                Ok(before) => return Some(before),
                Err(other) => now = other,
            }
        }
        None
    }

    /// Says that no map shows a resident page any more, so that its next touch tells. `counted` is called before that
    /// is said, and `uncounted` where it cannot be: what is counted is never behind.
    pub(crate) fn unwire(&self, page: PageIndex, counted: impl FnOnce(), uncounted: impl FnOnce()) -> Unwire {
        let word = self.word(page);
        let may = |word: u32| match word & (STATE | HELD | UNWIRED) {
            RESIDENT => None,
            word if word == RESIDENT | UNWIRED => Some(Unwire::Already),
            _ => Some(Unwire::No),
        };
        let mut now = word.load(Ordering::Acquire);
        if let Some(other) = may(now) {
            return other;
        }
        counted();
        loop {
            // The mark was for a touch that never came.
            match word.compare_exchange(now, now & !MARKED | UNWIRED, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return Unwire::Done,
                Err(other) => now = other,
            }
            if let Some(other) = may(now) {
                uncounted();
                return other;
            }
        }
    }

    /// What `page` is to who unwires pages on both sides of it. Who holds the object's pins knows that nobody pins it meanwhile.
    pub(crate) fn between(&self, page: PageIndex) -> Between {
        match self.word(page).load(Ordering::SeqCst) {
            // Also one that is about to come: it is mapped once, and then stays.
            word if word & PINNED != 0 => Between::Stays,
            word if word & (STATE | UNWIRED | MARKED) != RESIDENT => Between::Unmapped,
            word if word & HELD != 0 => Between::Stays,
            word if word & WATCHED != 0 => Between::Touched,
            _ => Between::Wired,
        }
    }

    /// Somebody needs `page`: true for the one caller who found it unwired, and so made it wired.
    pub(crate) fn rewire(&self, page: PageIndex) -> bool {
        let word = self.word(page);
        let mut now = word.load(Ordering::SeqCst);
        while now & (STATE | UNWIRED) == RESIDENT | UNWIRED {
            match word.compare_exchange(now, now & !UNWIRED, Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Whether the frame of `page` is pinned from now on; true where that changes.
    pub(crate) fn set_pinned(&self, page: PageIndex, pinned: bool) -> bool {
        let before = if pinned {
            self.word(page).fetch_or(PINNED, Ordering::SeqCst)
        } else {
            self.word(page).fetch_and(!PINNED, Ordering::SeqCst)
        };
        (before & PINNED != 0) != pinned
    }

    /// The order of reclaim has an entry for `page` from now on; gives its stamp if it has one. `None` where there is an entry
    /// already, or no frame.
    pub(crate) fn queue(&self, page: PageIndex) -> Option<Option<Stamp>> {
        self.queue_if(page, |_| true)
    }

    /// As [`Self::queue`], of a page that the order of reclaim knew until now; says whether there is an entry. There is none for a page that was taken
    /// away and has come back: its stamp is for the entry that follows from that.
    pub(crate) fn queue_again(&self, page: PageIndex) -> bool {
        self.queue_if(page, |word| Stamp::of(word).is_none()).is_some()
    }

    fn queue_if(&self, page: PageIndex, may: impl Fn(u32) -> bool) -> Option<Option<Stamp>> {
        let word = self.word(page);
        let mut now = word.load(Ordering::Acquire);
        while now & QUEUED == 0 && matches!(now & STATE, FILLING | RESIDENT) && may(now) {
            match word.compare_exchange(
                now,
                now & !(STAMP | WATCHED) | QUEUED,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(before) => return Some(Stamp::of(before)),
                Err(other) => now = other,
            }
        }
        None
    }

    /// The order of reclaim has no entry for `page` any more.
    pub(crate) fn unqueue(&self, page: PageIndex) {
        self.word(page).fetch_and(!(QUEUED | WATCHED), Ordering::AcqRel);
    }

    /// The order of reclaim unwired `page` in its turn: that it is wired, from now on, says that it was touched.
    pub(crate) fn watch(&self, page: PageIndex) {
        self.word(page).fetch_or(WATCHED, Ordering::AcqRel);
    }

    /// The order of reclaim knows that `page` was touched.
    pub(crate) fn end_watch(&self, page: PageIndex) {
        self.word(page).fetch_and(!WATCHED, Ordering::AcqRel);
    }

    /// Whether `page` is in memory and pinned there.
    pub(crate) fn is_pinned(&self, page: PageIndex) -> bool {
        self.word(page).load(Ordering::Acquire) & (STATE | PINNED) == RESIDENT | PINNED
    }

    /// What is told of `page` where it is in memory.
    pub(crate) fn frame(&self, page: PageIndex) -> Option<Frame> {
        let word = self.word(page).load(Ordering::Acquire);
        let is_pinned = word & PINNED != 0;
        (word & STATE == RESIDENT).then_some(Frame {
            page,
            is_wired: is_pinned || word & UNWIRED == 0,
            is_pinned,
            is_dirty: word & (DIRTY | WRITING) != 0,
        })
    }

    pub(crate) fn idleness(&self, page: PageIndex) -> Idleness {
        let word = self.word(page).load(Ordering::Acquire);
        match word & STATE {
            ABSENT | FAILED => Idleness::Missing,
            FILLING => Idleness::Held,
            _ if word & PINNED != 0 => Idleness::Pinned,
            _ if word & UNWIRED != 0 => Idleness::Unwired,
            _ => Idleness::Wired,
        }
    }

    /// Sleeps while somebody fills `page`, unless one of `endings` ends the process; says what became of it.
    pub(crate) fn wait(&self, page: PageIndex, endings: Endings) -> Seen {
        let word = self.word(page);
        let mut now = word.load(Ordering::Acquire);
        while now & STATE == FILLING {
            if now & WAITED == 0 {
                match word.compare_exchange(now, now | WAITED, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => now |= WAITED,
                    Err(other) => {
                        now = other;
                        continue;
                    }
                }
            }
            if wait_for(word, now, HEED_PERIOD) {
                endings.heed();
            }
            now = word.load(Ordering::Acquire);
        }
        seen(now)
    }

    /// Has whoever fills `page` report [`Waiters::listed`]; false where nobody fills it any more.
    pub(crate) fn list(&self, page: PageIndex) -> bool {
        let word = self.word(page);
        let mut now = word.load(Ordering::Acquire);
        while now & STATE == FILLING {
            match word.compare_exchange(now, now | LISTED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Takes the mark from a resident page; true for the one caller who got it.
    pub(crate) fn take_mark(&self, page: PageIndex) -> bool {
        let word = self.word(page);
        let mut now = word.load(Ordering::Acquire);
        while now & (STATE | MARKED) == RESIDENT | MARKED {
            match word.compare_exchange(now, now & !MARKED, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// The longest run of resident, wired, unmarked pages in `within` that holds `page`, which may be marked itself; `None`
    /// where `page` is not resident and wired.
    pub(crate) fn resident_run(&self, page: PageIndex, within: PageRange) -> Option<PageRange> {
        if self.word(page).load(Ordering::SeqCst) & (STATE | UNWIRED) != RESIDENT {
            return None;
        }
        let plain = |page: u64| {
            self.word(PageIndex(page)).load(Ordering::SeqCst) & (STATE | MARKED | UNWIRED) == RESIDENT
        };
        let (mut start, mut end) = (page.0, page.0 + 1);
        while start > within.start().0 && plain(start - 1) {
            start -= 1;
        }
        while end < within.end().0 && plain(end) {
            end += 1;
        }
        Some(PageRange::new(PageIndex(start), PageIndex(end)))
    }

    pub(crate) fn word(&self, page: PageIndex) -> &AtomicU32 {
        &self.words[page.0 as usize]
    }

    /// Settles a page that the caller has claimed.
    fn set(&self, page: PageIndex, to: u32) -> Waiters {
        let word = self.word(page);
        // The value of a failed page is its reason, which may be 0.
        let has_value = to & STATE == FAILED || to & STAMP != 0;
        let kept = if has_value { FLAGS } else { FLAGS | STAMP };
        let mut before = word.load(Ordering::Relaxed);
        while let Err(other) =
            word.compare_exchange(before, before & kept | to, Ordering::AcqRel, Ordering::Relaxed)
        {
            before = other;
        }
        debug_assert_eq!(before & STATE, FILLING, "only a claimed page changes by force");
        if before & WAITED != 0 {
            wake(word, u32::MAX >> 1);
        }
        Waiters { listed: before & LISTED != 0 }
    }
}

impl Residency for Pages {
    fn is_resident(&self, page: PageIndex) -> bool {
        self.words
            .get(page.0 as usize)
            .is_some_and(|word| matches!(word.load(Ordering::Acquire) & STATE, FILLING | RESIDENT))
    }

    fn is_marked(&self, page: PageIndex) -> bool {
        self.words
            .get(page.0 as usize)
            .is_some_and(|word| word.load(Ordering::Acquire) & (STATE | MARKED) == RESIDENT | MARKED)
    }
}

impl Claim {
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Adds absent pages each way as far as `within`, nearest first, ending at the first that is not absent. Pages that
    /// failed stay out: they would fail their neighbours.
    pub(crate) fn extend(&mut self, within: PageRange) {
        let is_absent = |word| word & STATE == ABSENT;
        while self.range.start() > within.start() {
            let page = PageIndex(self.range.start().0 - 1);
            if self.pages.take(page, is_absent).is_none() {
                break;
            }
            self.range = PageRange::new(page, self.range.end());
        }
        while self.range.end() < within.end() && self.pages.take(self.range.end(), is_absent).is_some() {
            self.range = PageRange::new(self.range.start(), PageIndex(self.range.end().0 + 1));
        }
    }

    /// Whether threads sleep for one of its pages, or faults are listed for one.
    pub(crate) fn has_waiters(&self) -> bool {
        let is_waited_for = |page| self.pages.word(page).load(Ordering::Acquire) & (WAITED | LISTED) != 0;
        self.range.iter().any(is_waited_for)
    }

    /// What is left of the claim when it is dropped fails with this reason.
    pub(crate) fn will_fail(&mut self, reason: u16) {
        self.reason = reason;
    }

    /// The first `count` pages are in memory; `mark` marks one of them. `needed`, if it is one of them, is published last: who waits for it
    /// finds all.
    pub(crate) fn publish(&mut self, count: u64, mark: Option<PageIndex>, needed: PageIndex) -> Waiters {
        let published = PageRange::new(self.range.start(), PageIndex(self.range.start().0 + count));
        self.range = PageRange::new(published.end(), self.range.end());
        let last = published.contains(needed).then_some(needed);
        let mut waiters = Waiters::default();
        for page in published.iter().filter(|page| Some(*page) != last).chain(last) {
            let to = if mark == Some(page) { RESIDENT | MARKED } else { RESIDENT };
            waiters.listed |= self.pages.set(page, to).listed;
        }
        waiters
    }

    /// All pages that are left are absent again.
    pub(crate) fn release(mut self) -> Waiters {
        self.settle(self.range.len(), |_| ABSENT)
    }

    /// As [`Self::release`], and remembers `stamp` until the pages are queued again.
    pub(crate) fn release_stamped(&mut self, stamp: Option<Stamp>) -> Waiters {
        self.settle(self.range.len(), |_| ABSENT | stamp.map_or(0, Stamp::bits))
    }

    /// Keeps `keep` alone, and releases the rest.
    pub(crate) fn narrow(&mut self, keep: PageRange) -> Waiters {
        let mut waiters = self.settle(keep.start().0 - self.range.start().0, |_| ABSENT);
        while self.range.end() > keep.end() {
            let last = PageIndex(self.range.end().0 - 1);
            self.range = PageRange::new(self.range.start(), last);
            waiters.listed |= self.pages.set(last, ABSENT).listed;
        }
        waiters
    }

    /// Fails all pages that are left.
    pub(crate) fn fail(mut self, reason: u16) -> Waiters {
        self.reason = reason;
        self.settle_all()
    }

    fn settle_all(&mut self) -> Waiters {
        let to = FAILED | u32::from(self.reason) << VALUE;
        self.settle(self.range.len(), |_| to)
    }

    fn settle(&mut self, count: u64, to: impl Fn(PageIndex) -> u32) -> Waiters {
        let mut waiters = Waiters::default();
        for _ in 0..count {
            let page = self.range.start();
            // Given up first: another thread may claim the page as soon as it is settled.
            self.range = PageRange::new(PageIndex(page.0 + 1), self.range.end());
            waiters.listed |= self.pages.set(page, to(page)).listed;
        }
        waiters
    }
}

impl Stamp {
    fn of(word: u32) -> Option<Self> {
        let count = (word >> COUNT & 0xf) as u8;
        (count != 0).then_some(Self { time: (word >> VALUE) as u16, count })
    }

    fn bits(self) -> u32 {
        u32::from(self.time) << VALUE | u32::from(self.count) << COUNT
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let _ = self.settle_all();
    }
}

fn seen(word: u32) -> Seen {
    match word & STATE {
        ABSENT => Seen::Absent,
        FILLING => Seen::Filling,
        RESIDENT => Seen::Resident { marked: word & MARKED != 0 },
        _ => Seen::Failed((word >> VALUE) as u16),
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    const PAGE: PageIndex = PageIndex(0);
    const FLAG: u32 = WATCHED;

    #[test]
    fn flags_of_others_outlive_every_change() {
        let pages = Pages::new(1).unwrap();
        let flagged = || pages.word(PAGE).load(Ordering::Relaxed) & FLAGS & !MARKED == FLAG;
        pages.word(PAGE).fetch_or(FLAG, Ordering::Relaxed);
        assert_eq!(pages.claim(PAGE).unwrap().fail(9), Waiters::default());
        assert!(flagged() && pages.see(PAGE) == Seen::Failed(9));
        let mut claim = pages.claim(PAGE).unwrap();
        assert!(pages.list(PAGE) && claim.publish(1, Some(PAGE), PAGE).listed);
        assert!(flagged() && pages.is_marked(PAGE) && pages.take_mark(PAGE) && !pages.take_mark(PAGE));
        assert_eq!(pages.resident_run(PAGE, PageRange::new(PAGE, PageIndex(1))).unwrap().len(), 1);
        assert_eq!(pages.claim_resident(PAGE, PageIndex(1)).unwrap().0.release(), Waiters::default());
        assert!(flagged() && pages.see(PAGE) == Seen::Absent);
    }

    #[test]
    fn a_stamp_stays_until_the_page_is_queued_again() {
        let pages = Pages::new(1).unwrap();
        // Time 0 is a time.
        for (time, count) in [(0, 1), (u16::MAX, MOST_COUNT), (7, 8)] {
            let stamp = Some(Stamp { time, count });
            assert_eq!(pages.claim(PAGE).unwrap().publish(1, None, PAGE), Waiters::default());
            pages.queue(PAGE);
            pages.unqueue(PAGE);
            assert!(!pages.claim_resident(PAGE, PageIndex(1)).unwrap().0.release_stamped(stamp).listed);
            // Also over a read that finds no frame.
            assert_eq!(pages.claim(PAGE).unwrap().release(), Waiters::default());
            assert_eq!((pages.see(PAGE), pages.queue(PAGE)), (Seen::Absent, None));
            assert_eq!(pages.claim(PAGE).unwrap().publish(1, None, PAGE), Waiters::default());
            assert!(!pages.queue_again(PAGE));
            assert_eq!(pages.queue(PAGE), Some(stamp));
            pages.unqueue(PAGE);
            assert!(pages.queue_again(PAGE));
            pages.unqueue(PAGE);
            assert_eq!(pages.queue(PAGE), Some(None));
            pages.unqueue(PAGE);
            // A reason is no stamp.
            let claim = pages.claim_resident(PAGE, PageIndex(1)).unwrap().0;
            assert_eq!((claim.fail(u16::MAX), pages.see(PAGE)), (Waiters::default(), Seen::Failed(u16::MAX)));
            let mut claim = pages.claim(PAGE).unwrap();
            assert_eq!((claim.publish(1, None, PAGE), pages.queue(PAGE)), (Waiters::default(), Some(None)));
            pages.unqueue(PAGE);
            assert_eq!(pages.claim_resident(PAGE, PageIndex(1)).unwrap().0.release(), Waiters::default());
        }
    }

    #[test]
    fn a_claim_changes_threads_and_one_that_is_dropped_fails() {
        let pages = Pages::new(4).unwrap();
        let mut claim = pages.claim(PageIndex(1)).unwrap();
        claim.extend(PageRange::new(PAGE, PageIndex(4)));
        let thread = std::thread::spawn(move || claim.publish(2, None, PAGE));
        assert_eq!(thread.join().unwrap(), Waiters::default());
        let seen: Vec<Seen> = (0..4).map(|page| pages.see(PageIndex(page))).collect();
        let [resident, failed] = [Seen::Resident { marked: false }, Seen::Failed(reason::ABANDONED)];
        assert_eq!(seen, [resident, resident, failed, failed]);
    }
}
