//! The state of each page of an object: one atomic word a page.
//!
//! ```text
//!            claim                publish
//!   Absent ────────► Filling ───────────────► Resident
//!     ▲  ▲              │ │                      │
//!     │  └── release ───┘ └─ fail ─► Failed      │ begin_evict
//!     │                                 │        ▼
//!     └──────── release ── Filling ◄────┘ ◄── (claimed again, by a retry or by who evicts)
//! ```
//!
//! A word changes hands by compare-and-swap: whoever makes it `Filling` owns the page until it publishes, fails or
//! releases it. Nobody else writes the frame meanwhile, and threads that need the page sleep on its word.

use prepage_core::policy::Residency;
use prepage_core::{PageIndex, PageRange};

use crate::sync::{AtomicU32, Ordering, wait, wake};

const STATE: u32 = 0b11;
const ABSENT: u32 = 0;
const FILLING: u32 = 1;
const RESIDENT: u32 = 2;
const FAILED: u32 = 3;
/// While Filling: threads sleep on the word.
const WAITED: u32 = 1 << 2;
/// While Filling: faults of handler mode are kept in the object's list, to be served when the page is there.
const LISTED: u32 = 1 << 3;
/// While Resident: the first fault on the page asks the policy what to read in the background.
const MARKED: u32 = 1 << 4;
/// While Failed: why, above this bit.
const REASON: u32 = 16;

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

/// The words of an object.
#[derive(Debug)]
pub(crate) struct Pages {
    words: Words,
}

#[cfg(not(any(feature = "shuttle", feature = "loom")))]
type Words = prepage_sys::words::Words;
#[cfg(any(feature = "shuttle", feature = "loom"))]
type Words = Box<[AtomicU32]>;

/// Pages that one thread has claimed and not yet published. Dropped, it fails what is left, so that no thread sleeps for
/// ever when a fill panics.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    pages: &'a Pages,
    range: PageRange,
    reason: u16,
}

/// Who has to be told of a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "listed faults sleep until they are served"]
pub(crate) struct Told {
    /// Faults of handler mode are listed for the page.
    pub(crate) listed: bool,
}

impl Pages {
    #[cfg(not(any(feature = "shuttle", feature = "loom")))]
    pub(crate) fn new(count: u64) -> std::io::Result<Self> {
        Ok(Self { words: Words::zeroed(count as usize)? })
    }

    #[cfg(any(feature = "shuttle", feature = "loom"))]
    pub(crate) fn new(count: u64) -> std::io::Result<Self> {
        Ok(Self { words: (0..count).map(|_| AtomicU32::new(ABSENT)).collect() })
    }

    pub(crate) fn see(&self, page: PageIndex) -> Seen {
        seen(self.word(page).load(Ordering::Acquire))
    }

    /// Makes `page` the caller's to fill; `None` where it is not absent. A claim may be made only once the page is taken:
    /// dropping it fails the page.
    pub(crate) fn claim(&self, page: PageIndex) -> Option<Claim<'_>> {
        let range = PageRange::new(page, PageIndex(page.0 + 1));
        self.take(page, ABSENT).then(|| Claim { pages: self, range, reason: 0 })
    }

    /// As [`Self::claim`], for a page that failed with `reason`.
    pub(crate) fn claim_failed(&self, page: PageIndex, reason: u16) -> Option<Claim<'_>> {
        let range = PageRange::new(page, PageIndex(page.0 + 1));
        self.take(page, FAILED | u32::from(reason) << REASON).then(|| Claim { pages: self, range, reason: 0 })
    }

    /// Makes the run of resident pages that begins at `page` and ends before `end` at the latest the caller's, who is
    /// about to take their frames away; `None` where `page` is not resident.
    pub(crate) fn claim_resident(&self, page: PageIndex, end: PageIndex) -> Option<Claim<'_>> {
        let take = |page| self.take(page, RESIDENT) || self.take(page, RESIDENT | MARKED);
        let mut claimed = page;
        while claimed < end && take(claimed) {
            claimed.0 += 1;
        }
        let range = PageRange::new(page, claimed);
        (!range.is_empty()).then(|| Claim { pages: self, range, reason: 0 })
    }

    /// Takes over a claim whose owner let it go with [`Claim::hand_over`].
    pub(crate) fn taken_over(&self, range: PageRange) -> Claim<'_> {
        Claim { pages: self, range, reason: 0 }
    }

    fn take(&self, page: PageIndex, from: u32) -> bool {
        // In one order with the loads of `resident_run` and the counts of `Grace`.
        self.word(page).compare_exchange(from, FILLING, Ordering::SeqCst, Ordering::Acquire).is_ok()
    }

    /// Sleeps while somebody fills `page`; says what became of it.
    pub(crate) fn wait(&self, page: PageIndex) -> Seen {
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
            wait(word, now);
            now = word.load(Ordering::Acquire);
        }
        seen(now)
    }

    /// Has whoever fills `page` report [`Told::listed`]; false where nobody fills it any more.
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
        self.word(page)
            .compare_exchange(RESIDENT | MARKED, RESIDENT, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// The longest run of resident, unmarked pages in `within` that holds `page`, which may be marked itself; `None`
    /// where `page` is not resident.
    pub(crate) fn resident_run(&self, page: PageIndex, within: PageRange) -> Option<PageRange> {
        if self.word(page).load(Ordering::SeqCst) & STATE != RESIDENT {
            return None;
        }
        let plain = |page: u64| self.word(PageIndex(page)).load(Ordering::SeqCst) == RESIDENT;
        let (mut start, mut end) = (page.0, page.0 + 1);
        while start > within.start().0 && plain(start - 1) {
            start -= 1;
        }
        while end < within.end().0 && plain(end) {
            end += 1;
        }
        Some(PageRange::new(PageIndex(start), PageIndex(end)))
    }

    fn word(&self, page: PageIndex) -> &AtomicU32 {
        &self.words[page.0 as usize]
    }

    fn set(&self, page: PageIndex, to: u32) -> Told {
        let word = self.word(page);
        let before = word.swap(to, Ordering::AcqRel);
        debug_assert_eq!(before & STATE, FILLING, "only a claimed page changes by force");
        if before & WAITED != 0 {
            wake(word, u32::MAX >> 1);
        }
        Told { listed: before & LISTED != 0 }
    }
}

impl Residency for Pages {
    fn is_resident(&self, page: PageIndex) -> bool {
        self.words
            .get(page.0 as usize)
            .is_some_and(|word| matches!(word.load(Ordering::Acquire) & STATE, FILLING | RESIDENT))
    }

    fn is_marked(&self, page: PageIndex) -> bool {
        self.words.get(page.0 as usize).is_some_and(|word| word.load(Ordering::Acquire) & MARKED != 0)
    }
}

impl Claim<'_> {
    pub(crate) fn range(&self) -> PageRange {
        self.range
    }

    /// Adds absent pages each way as far as `within`, nearest first, ending at the first that is not absent.
    pub(crate) fn extend(&mut self, within: PageRange) {
        while self.range.start() > within.start() {
            let page = PageIndex(self.range.start().0 - 1);
            if !self.pages.take(page, ABSENT) {
                break;
            }
            self.range = PageRange::new(page, self.range.end());
        }
        while self.range.end() < within.end() && self.pages.take(self.range.end(), ABSENT) {
            self.range = PageRange::new(self.range.start(), PageIndex(self.range.end().0 + 1));
        }
    }

    /// What is left of the claim fails with this reason.
    pub(crate) fn will_fail(&mut self, reason: u16) {
        self.reason = reason;
    }

    /// The first `count` pages are in memory; `mark` marks one of them.
    pub(crate) fn publish(&mut self, count: u64, mark: Option<PageIndex>) -> Told {
        self.settle(count, |page| if mark == Some(page) { RESIDENT | MARKED } else { RESIDENT })
    }

    /// The first `count` pages are absent again.
    pub(crate) fn release(&mut self, count: u64) -> Told {
        self.settle(count, |_| ABSENT)
    }

    /// Keeps `keep` alone, and releases the rest.
    pub(crate) fn narrow(&mut self, keep: PageRange) -> Told {
        let mut told = self.release(keep.start().0 - self.range.start().0);
        while self.range.end() > keep.end() {
            let last = PageIndex(self.range.end().0 - 1);
            self.range = PageRange::new(self.range.start(), last);
            told.listed |= self.pages.set(last, ABSENT).listed;
        }
        told
    }

    /// Fails all pages that are left.
    pub(crate) fn fail(mut self, reason: u16) -> Told {
        self.reason = reason;
        self.settle_all()
    }

    /// Leaves the pages claimed; somebody else will call [`Pages::taken_over`].
    pub(crate) fn hand_over(mut self) -> PageRange {
        let range = self.range;
        self.range = PageRange::default();
        range
    }

    fn settle_all(&mut self) -> Told {
        let to = FAILED | u32::from(self.reason) << REASON;
        self.settle(self.range.len(), |_| to)
    }

    fn settle(&mut self, count: u64, to: impl Fn(PageIndex) -> u32) -> Told {
        let mut told = Told::default();
        for _ in 0..count {
            let page = self.range.start();
            // Given up first: a page that is settled is not this claim's any more, whatever panics.
            self.range = PageRange::new(PageIndex(page.0 + 1), self.range.end());
            told.listed |= self.pages.set(page, to(page)).listed;
        }
        told
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let _ = self.settle_all();
    }
}

fn seen(word: u32) -> Seen {
    match word & STATE {
        ABSENT => Seen::Absent,
        FILLING => Seen::Filling,
        RESIDENT => Seen::Resident { marked: word & MARKED != 0 },
        _ => Seen::Failed((word >> REASON) as u16),
    }
}
