//! Which pages of an object hold what is nowhere else, and how that changes hands.
//!
//! ```text
//!            a write faults              who writes back             no write came meanwhile
//!   clean ───────────────────► dirty ────────────────────► written ─────────────────────────► clean
//!                                ▲                            │
//!                                └── a write, or a failure ───┘
//! ```
//! A page that a map lets be written to without a fault is dirty: who lets it marks it first, within one of the object's
//! sections. Who writes a page back takes the mark, waits for the sections that began before, protects the page in all maps, and
//! only then reads it. So what is written later marks the page again, and nothing is lost between the two.
//!
//! Who writes in order is let write to pages ahead of the one that faults. These are dirty too, but marked as *ahead*, with the sum of what they hold: one
//! that still holds the same when it is to be written back was not written to, and does not go to the file, where others may have written.

use std::io;
use std::sync::Arc;

use prepage_core::{PageIndex, PageRange};

use crate::home::Home;
use crate::pages::{AHEAD, DIRTY, MARKED, Pages, RESIDENT, STATE, UNWIRED, WRITING, Words, words};
use crate::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use crate::write_back::Written;

/// Pages whose dirty ones are counted together, so that few words have to be looked at.
const BLOCK_PAGES: u64 = 1024;

/// The dirty pages of an object, and where they go.
///
/// Lock legend: (a) atomic; (c) constant. `syncing` is taken before `written`; neither by faults. Reclaim waits for `written`, for a second.
#[derive(Debug)]
pub(crate) struct Dirty {
    /// (a) Dirty pages of each block; never behind the words of the pages.
    blocks: Words,
    /// (a) Of all blocks, and those being written back.
    pages: AtomicU64,
    /// (a) The same of all objects of the pool.
    of_pool: Arc<AtomicU64>,
    /// (a) How many write backs hang.
    hanging: AtomicU32,
    /// (c)
    pub(crate) home: Box<dyn Home>,
    /// Held by who writes back.
    pub(crate) written: Mutex<Written>,
    /// Held by who makes durable what was written: an error is told once, to one of those who ask.
    pub(crate) syncing: Mutex<()>,
}

impl Dirty {
    /// Of an object of `pages` pages, in a pool that counts its dirty ones in `of_pool`.
    pub(crate) fn new(pages: u64, home: Box<dyn Home>, of_pool: Arc<AtomicU64>) -> io::Result<Self> {
        Ok(Self {
            blocks: words(pages.div_ceil(BLOCK_PAGES))?,
            pages: AtomicU64::new(0),
            of_pool,
            hanging: AtomicU32::new(0),
            home,
            written: Mutex::new(Written::default()),
            syncing: Mutex::new(()),
        })
    }

    /// How many pages are dirty, or being written back.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::SeqCst)
    }

    /// Somebody is about to write to `page`: whether it was clean; `None` where it is not in memory. In a section of the object.
    /// From any context.
    pub(crate) fn mark(&self, pages: &Pages, page: PageIndex) -> Option<bool> {
        let word = pages.word(page);
        let mut now = word.load(Ordering::SeqCst);
        if now & (STATE | DIRTY | AHEAD) == RESIDENT | DIRTY {
            return Some(false);
        }
        self.count(page);
        while now & STATE == RESIDENT && now & (DIRTY | AHEAD) != DIRTY {
            match word.compare_exchange(now, now & !AHEAD | DIRTY, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) if now & DIRTY == 0 => return Some(true),
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        self.uncount(page);
        (now & STATE == RESIDENT).then_some(false)
    }

    /// `page` is to be let be written to although nobody is about to: where it is in memory, wired and clean it is dirty from here on, and the caller has
    /// to keep its sum before it lets it. In a section of the object. From any context.
    pub(crate) fn mark_ahead(&self, pages: &Pages, page: PageIndex) -> bool {
        let word = pages.word(page);
        let now = word.load(Ordering::SeqCst);
        if now & (STATE | MARKED | UNWIRED | DIRTY | WRITING) != RESIDENT {
            return false;
        }
        self.count(page);
        let marked = word.compare_exchange(now, now | DIRTY | AHEAD, Ordering::SeqCst, Ordering::SeqCst);
        if marked.is_err() {
            self.uncount(page);
        }
        marked.is_ok()
    }

    /// Whether nobody has written to `page`, whose mark the caller took: it was opened ahead, and holds what it did then if it `is_same`. Asked once it is
    /// protected. If it is not, it counts as written to until it is written back, whatever its sum is by then.
    pub(crate) fn stays_ahead(&self, pages: &Pages, page: PageIndex, is_same: bool) -> bool {
        let word = pages.word(page);
        let before =
            if is_same { word.load(Ordering::SeqCst) } else { word.fetch_and(!AHEAD, Ordering::SeqCst) };
        is_same && before & AHEAD != 0
    }

    /// Whether `page` holds nothing that its home has not.
    pub(crate) fn is_clean(&self, pages: &Pages, page: PageIndex) -> bool {
        pages.word(page).load(Ordering::SeqCst) & (DIRTY | WRITING) == 0
    }

    /// Whether pages wait for a write that does not end, or for many that are slow: see [`crate::cleaner`].
    pub(crate) fn hangs(&self) -> bool {
        self.hanging.load(Ordering::SeqCst) != 0
    }

    /// One write more that hangs, or one fewer.
    pub(crate) fn set_hangs(&self, hangs: bool) {
        if hangs {
            self.hanging.fetch_add(1, Ordering::SeqCst);
        } else {
            self.hanging.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// How many pages directly before `page` are dirty, `most` at most.
    pub(crate) fn before(&self, pages: &Pages, page: PageIndex, most: u64) -> u64 {
        let is_dirty = |page: &u64| pages.word(PageIndex(*page)).load(Ordering::SeqCst) & DIRTY != 0;
        (page.0.saturating_sub(most)..page.0).rev().take_while(is_dirty).count() as u64
    }

    /// Takes the mark of a dirty page, which the caller writes back; false where it is clean. Its frame stays until
    /// [`Self::end`].
    pub(crate) fn begin(&self, pages: &Pages, page: PageIndex) -> bool {
        let word = pages.word(page);
        let mut now = word.load(Ordering::SeqCst);
        while now & DIRTY != 0 {
            let taken = now & !DIRTY | WRITING;
            match word.compare_exchange(now, taken, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    // Of all blocks it counts until it is written.
                    self.block(page).fetch_sub(1, Ordering::SeqCst);
                    return true;
                }
                Err(other) => now = other,
            }
        }
        false
    }

    /// A page is written back, or was not for some reason and is dirty as before.
    pub(crate) fn end(&self, pages: &Pages, page: PageIndex, is_written: bool) {
        let word = pages.word(page);
        if is_written {
            // Nobody opens it ahead while it is Writing.
            word.fetch_and(!(WRITING | AHEAD), Ordering::SeqCst);
            self.count_away(1);
            return;
        }
        self.block(page).fetch_add(1, Ordering::SeqCst);
        let before = word.fetch_or(DIRTY, Ordering::SeqCst);
        if before & DIRTY != 0 {
            self.uncount(page);
        }
        word.fetch_and(!WRITING, Ordering::SeqCst);
    }

    /// The first dirty page of `range`; pages that others mark and write meanwhile may be passed over.
    pub(crate) fn first(&self, pages: &Pages, range: PageRange) -> Option<PageIndex> {
        let mut page = range.start();
        while page < range.end() {
            let block = page.0 / BLOCK_PAGES;
            let end = PageIndex(((block + 1) * BLOCK_PAGES).min(range.end().0));
            if self.blocks[block as usize].load(Ordering::SeqCst) > 0 {
                let of_block = PageRange::new(page, end);
                let is_dirty = |page: &PageIndex| pages.word(*page).load(Ordering::SeqCst) & DIRTY != 0;
                if let Some(found) = of_block.iter().find(is_dirty) {
                    return Some(found);
                }
            }
            page = end;
        }
        None
    }

    /// The dirty pages of `range`, in order; as [`Self::first`].
    pub(crate) fn all_in(&self, pages: &Pages, range: PageRange) -> impl Iterator<Item = PageIndex> {
        let mut from = range.start();
        std::iter::from_fn(move || {
            let page = self.first(pages, PageRange::new(from, range.end()))?;
            from = PageIndex(page.0 + 1);
            Some(page)
        })
    }

    fn count(&self, page: PageIndex) {
        self.pages.fetch_add(1, Ordering::SeqCst);
        self.of_pool.fetch_add(1, Ordering::SeqCst);
        self.block(page).fetch_add(1, Ordering::SeqCst);
    }

    fn uncount(&self, page: PageIndex) {
        self.block(page).fetch_sub(1, Ordering::SeqCst);
        self.count_away(1);
    }

    fn count_away(&self, pages: u64) {
        self.pages.fetch_sub(pages, Ordering::SeqCst);
        self.of_pool.fetch_sub(pages, Ordering::SeqCst);
    }

    fn block(&self, page: PageIndex) -> &AtomicU32 {
        &self.blocks[(page.0 / BLOCK_PAGES) as usize]
    }
}

impl Drop for Dirty {
    /// What could not be written goes with its object.
    fn drop(&mut self) {
        self.count_away(self.pages());
    }
}
