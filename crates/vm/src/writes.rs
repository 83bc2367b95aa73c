//! Which pages of a map were written to since its last snapshot, and what keeps writers off pages that are frozen.
//!
//! ```text
//!                                                                ┌─ not in memory ─┐
//!            a write faults           a snapshot protects it     ▼                 │
//!   Clean ───────────────────► Open ────────────────────────► Frozen ──────────► Copying ──► Clean
//!     ▲                          ▲                              ▲                  │
//!     └── kept as it is          └──────── a write faults ──────┼──── Kept ◄───────┘
//!                                                               │     (the snapshot failed)
//!                                     the next snapshot ────────┘
//! ```
//!
//! From the first snapshot on every page of the map that is not Open is write-protected (userfaultfd's mode WP), so that the
//! first write to it is a fault. A snapshot holds those faults, protects the Open pages, and lets the faults go on: that is
//! the pause, and what was written before it is all that was. A thread that writes to a Frozen page copies it into the
//! snapshot first, and then goes on. A handler that would have to bring the page in first leaves it Frozen; the touch is repeated.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use prepage_core::{FaultClass, PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::pagemap::{PageEntry, PageMap};
use prepage_sys::sections::Sections;
use prepage_sys::slot::Slot;

use crate::fault::{Context, Fault, FaultOutcome};
use crate::map::MapCore;
use crate::object::ObjectCore;
use crate::options::Mode;
use crate::pages::{Words, words};
use crate::reason;
use crate::statistics::Account;
use crate::sync::{Anyway, AtomicU32, Mutex, MutexGuard, Ordering, wait, wake};

const STATE: u32 = 0b111;
/// Protected, and as it was frozen last.
const CLEAN: u32 = 0;
/// May be written to.
const OPEN: u32 = 1;
/// Protected, and other than it was frozen last.
const KEPT: u32 = 2;
/// Protected, to be copied.
const FROZEN: u32 = 3;
/// Being copied.
const COPYING: u32 = 4;
/// While Copying: threads sleep on the word.
const WAITED: u32 = 1 << 3;
/// The page is in the snapshot that is being taken.
const COPIED: u32 = 1 << 4;

/// So many pages may lie between pages that are protected by one call: 0.07 µs for each, and 0.35 for a call.
const GAP_PAGES: u64 = 4;
/// Pages that are copied together: who writes to one of them waits for all.
const COPY_PAGES: u64 = 32;
/// Words of pages that are looked at together, or not at all where none of them was written to.
const GROUP_PAGES: u64 = 1024;

/// Whether writes to a map are told, and which.
///
/// Lock legend: (a) atomic; (o) set once.
#[derive(Debug, Default)]
pub(crate) struct WriteTracking {
    /// (a) 0 until the first snapshot; then [`REGISTERED`], once whoever maps a page protects it [`TOLD`], and once what was written
    /// before that is known, [`FOUND`].
    told: AtomicU32,
    /// (o)
    writes: OnceLock<Writes>,
    /// Held by who changes `told`, once.
    beginning: Mutex<()>,
}

const REGISTERED: u32 = 1;
const TOLD: u32 = 2;
const FOUND: u32 = 3;

/// Lock legend: (a) atomic. A page's word is changed by compare-and-swap, from Copying by who made it that alone.
#[derive(Debug)]
struct Writes {
    /// (a) By page of the map.
    words: Words,
    /// (a) By group of pages: 1 once a page of it was anything else than Clean. A look at all words of a large map would take longer
    /// than the rest of a snapshot.
    groups: Words,
    /// (a) 1 while pages are protected: who would write waits on it.
    held: AtomicU32,
    /// Making a page Open.
    opening: Sections,
    /// Where frozen pages go.
    freeze: Slot<Freeze>,
}

#[derive(Debug)]
struct Freeze {
    store: Arc<ObjectCore>,
    /// (a) The first error number.
    failed: AtomicU32,
}

/// While this lives no page becomes Open.
#[derive(Debug)]
pub(crate) struct HeldWrites<'a>(&'a Writes);

impl HeldWrites<'_> {
    /// None of these pages, by index, counts as written to.
    pub(crate) fn forget(&self, pages: Range<u64>) {
        for (_, word) in self.0.used(pages) {
            // Words take memory once they are written to.
            if word.load(Ordering::SeqCst) != CLEAN {
                word.store(CLEAN, Ordering::SeqCst);
            }
        }
    }
}

impl Drop for HeldWrites<'_> {
    fn drop(&mut self) {
        self.0.held.store(0, Ordering::SeqCst);
        wake(&self.0.held, u32::MAX >> 1);
    }
}

impl WriteTracking {
    /// Whether pages can be protected.
    pub(crate) fn are_told(&self) -> bool {
        self.told.load(Ordering::SeqCst) >= REGISTERED
    }

    /// No writes begin to be told while what this returns lives; `None` where they are already.
    pub(crate) fn stay_untold(&self) -> Option<MutexGuard<'_, ()>> {
        let beginning = self.beginning.lock().anyway();
        (!self.are_told()).then_some(beginning)
    }

    /// Whether pages have to be protected when they are mapped.
    pub(crate) fn must_protect(&self) -> bool {
        self.told.load(Ordering::SeqCst) >= TOLD
    }

    /// Whether all that was written to is known.
    pub(crate) fn are_found(&self) -> bool {
        self.told.load(Ordering::SeqCst) == FOUND
    }
}

impl Writes {
    fn of_pages(count: u64) -> std::io::Result<Self> {
        Ok(Self {
            words: words(count)?,
            groups: words(count.div_ceil(GROUP_PAGES))?,
            held: AtomicU32::new(0),
            opening: Sections::default(),
            freeze: Slot::default(),
        })
    }

    fn word(&self, index: u64) -> &AtomicU32 {
        &self.words[index as usize]
    }

    /// The words of those pages, by index, that may be anything else than Clean.
    fn used(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, &AtomicU32)> {
        let groups = pages.start / GROUP_PAGES..pages.end.div_ceil(GROUP_PAGES);
        let used = groups.filter(|&group| self.groups[group as usize].load(Ordering::SeqCst) != 0);
        used.flat_map(move |group| {
            let first = pages.start.max(group * GROUP_PAGES);
            let end = pages.end.min((group + 1) * GROUP_PAGES);
            (first..end).zip(&self.words[first as usize..end as usize])
        })
    }

    fn all(&self) -> Range<u64> {
        0..self.words.len() as u64
    }

    fn hold(&self) -> HeldWrites<'_> {
        self.held.store(1, Ordering::SeqCst);
        let held = HeldWrites(self);
        // Who did not see it has made its page Open when this returns.
        self.opening.wait();
        held
    }

    /// From one state to another; true where it was in that one. Keeps COPIED.
    fn change(&self, index: u64, from: u32, to: u32) -> bool {
        let word = self.word(index);
        let mut now = word.load(Ordering::SeqCst);
        if from == CLEAN && now & STATE == CLEAN {
            self.groups[(index / GROUP_PAGES) as usize].store(1, Ordering::SeqCst);
        }
        while now & STATE == from {
            match word.compare_exchange(now, now & COPIED | to, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return true,
                Err(other) => now = other,
            }
        }
        false
    }

    /// Ends copying.
    fn copied(&self, index: u64, to: u32) {
        let before = self.word(index).swap(to, Ordering::SeqCst);
        debug_assert_eq!(before & STATE, COPYING, "whoever copies a page alone changes its word");
        if before & WAITED != 0 {
            wake(self.word(index), u32::MAX >> 1);
        }
    }

    fn is_frozen(&self, index: u64) -> bool {
        self.word(index).load(Ordering::SeqCst) & STATE == FROZEN
    }

    /// Sleeps while somebody copies the page.
    fn wait_for_copy(&self, index: u64) {
        let word = self.word(index);
        loop {
            let now = word.load(Ordering::SeqCst);
            if now & STATE != COPYING {
                return;
            }
            let waited = now | WAITED;
            if now == waited || word.compare_exchange(now, waited, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            {
                wait(word, waited);
            }
        }
    }
}

impl Fault<'_> {
    /// Lets a write to a protected page happen; `None` where something else keeps the page from being touched.
    pub(crate) fn open(&mut self) -> Option<FaultOutcome> {
        let map = self.map;
        if !self.touch.write || !map.writes.must_protect() {
            return None;
        }
        match self.touch.surely_write.then_some(self.touch.protected) {
            Some(true) => {}
            Some(false) if self.context == Context::Handler => return None,
            // The processor found nothing. A protected copy that the kernel brought in from swap by the same fault is there all the same.
            _ => {
                let mut entry = [PageEntry::default()];
                let address = map.address_of(self.touch.page);
                let entries = map.vm.page_map().and_then(|table| table.entries(address, &mut entry));
                if let Err(error) = entries {
                    return Some(FaultOutcome::Failed(reason::of_errno(error.raw_os_error())));
                }
                if !entry[0].is_present() {
                    return None;
                }
                if !entry[0].is_protected() {
                    return Some(FaultOutcome::Mapped(FaultClass::Cached, 1));
                }
            }
        }
        let opened = map.open(self.touch.page, self.context, &mut self.account);
        Some(match opened {
            Ok(true) => {
                self.account.tally.pages_opened += 1;
                FaultOutcome::Mapped(FaultClass::CopyOnWrite, 1)
            }
            Ok(false) => FaultOutcome::Repeat(FaultClass::CopyOnWrite, 0),
            Err(error) => FaultOutcome::Failed(reason::of_errno(error.raw_os_error())),
        })
    }
}

impl MapCore {
    pub(crate) fn index_of(&self, page: PageIndex) -> u64 {
        page.0 - self.window.start().0
    }

    /// Lets `page` be written to; false where a handler would have to wait for it.
    pub(crate) fn open(
        &self,
        page: PageIndex,
        context: Context,
        account: &mut Account,
    ) -> std::io::Result<bool> {
        let writes = self.writes.writes.get().expect("pages are protected only then");
        let index = self.index_of(page);
        loop {
            let section = account.enter(&writes.opening);
            if writes.held.load(Ordering::SeqCst) != 0 {
                drop(section);
                // Not for a read: pages are protected, and that is all.
                wait(&writes.held, 1);
                continue;
            }
            match writes.word(index).load(Ordering::SeqCst) & STATE {
                now @ (CLEAN | KEPT) => {
                    if !writes.change(index, now, OPEN) {
                        continue;
                    }
                }
                OPEN => {}
                FROZEN => {
                    drop(section);
                    if writes.change(index, FROZEN, COPYING) {
                        let run = PageIndex(index).alone();
                        self.copy_frozen(writes, run, context != Context::Handler, account.cpu);
                    }
                    // One that went meanwhile would be waited for here: the touch brings it back first.
                    if context == Context::Handler && writes.is_frozen(index) {
                        return Ok(false);
                    }
                    continue;
                }
                _ if context == Context::Handler => return Ok(false),
                _ => {
                    drop(section);
                    writes.wait_for_copy(index);
                    continue;
                }
            }
            return self.space.uffd.unprotect(&self.span, self.offset_of(page), PAGE_SIZE).map(|()| true);
        }
    }

    /// `page` counts as written to where that is told, though it is protected.
    pub(crate) fn may_be_written_to(&self, page: PageIndex) {
        if let Some(writes) = self.writes.writes.get() {
            writes.change(self.index_of(page), CLEAN, KEPT);
        }
    }

    /// Copies `run`, by index, which the caller made Copying, into the snapshot that is being taken. Where the caller may not wait, pages that are not in memory stay
    /// Frozen: to read one could be a fault, and the caller may be who answers it.
    fn copy_frozen(&self, writes: &Writes, run: PageRange, may_wait: bool, cpu: usize) {
        let freeze = writes.freeze.enter(cpu).expect("pages are frozen while a snapshot is taken alone");
        // One that is not there cannot be read by the kernel then, and nobody waits for it.
        if self.space.mode == Mode::Inline && self.copy_pages(&freeze, run).is_ok_and(|all| all) {
            return run.iter().for_each(|index| writes.copied(index.0, CLEAN | COPIED));
        }
        let mut entries = [PageEntry::default(); COPY_PAGES as usize];
        let entries = &mut entries[..run.len() as usize];
        let start = self.span.start() + run.start().offset_bytes();
        let known = self.vm.page_map().and_then(|table| table.entries(start, entries));
        let mut outcome = known;
        for (index, entry) in run.iter().zip(&*entries) {
            let mut to = if outcome.is_ok() { CLEAN } else { KEPT };
            // One that is the object's, or none at all, was never written to.
            if outcome.is_ok() && entry.may_be_private() && !entry.is_present() && !may_wait {
                to = FROZEN;
            } else if outcome.is_ok() && entry.may_be_private() {
                (to, outcome) = match self.copy_pages(&freeze, index.alone()) {
                    Ok(true) => (CLEAN | COPIED, Ok(())),
                    Ok(false) => self.after_no_copy(index),
                    Err(error) => (KEPT, Err(error)),
                };
            }
            if let Err(error) = &outcome {
                let number = error.raw_os_error().unwrap_or(EIO) as u32;
                let _ = freeze.failed.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
            }
            writes.copied(index.0, to);
        }
    }

    /// What becomes of the page `index`, which is protected and could not be read. Only one that is surely no private copy counts as clean: a
    /// snapshot without another would lack what was written to it.
    fn after_no_copy(&self, index: PageIndex) -> (u32, std::io::Result<()>) {
        let address = self.span.start() + index.offset_bytes();
        let look = || {
            let mut entry = [PageEntry::default()];
            self.vm.page_map().and_then(|table| table.entries(address, &mut entry)).map(|()| entry[0])
        };
        let unreadable = || Err(std::io::Error::from_raw_os_error(EIO));
        let page = PageIndex(self.window.start().0 + index.0);
        let is_poison = || !self.poison.is_nowhere() && self.poison.hold().holds(page);
        match look() {
            Ok(entry) if !entry.may_be_private() => return (CLEAN, Ok(())),
            Ok(entry) if entry.is_present() => return (KEPT, unreadable()),
            Ok(_) if is_poison() => return (CLEAN, Ok(())),
            Ok(_) => {}
            Err(error) => return (KEPT, Err(error)),
        }
        // A copy that a device has, or whose memory is broken, is there without protection too; a mark is not.
        if let Err(error) = self.space.uffd.unprotect(&self.span, index.offset_bytes(), PAGE_SIZE) {
            return (KEPT, Err(error));
        }
        match look() {
            Ok(entry) if entry.may_be_private() => (OPEN, unreadable()),
            // It came before it was unprotected.
            Ok(entry) if entry.is_present() => (OPEN, Ok(())),
            Ok(_) => (CLEAN, Ok(())),
            Err(error) => (OPEN, Err(error)),
        }
    }

    /// Writes the pages `run`, by index, to the snapshot; false where one cannot be read, because it is not there.
    fn copy_pages(&self, freeze: &Freeze, run: PageRange) -> std::io::Result<bool> {
        let frames = freeze.store.frames().expect("a store has frames");
        let at = run.start().offset_bytes();
        Ok(frames.memfd.write_from(&self.span, at, run.bytes(), at)? == run.bytes())
    }

    /// Has writes told from here on, and finds what was written before. Nobody waits for it. After an error it can be tried again.
    pub(crate) fn tell_writes(self: &Arc<Self>) -> std::io::Result<()> {
        let _beginning = self.writes.beginning.lock().anyway();
        if self.writes.are_found() {
            return Ok(());
        }
        let table = self.vm.page_map()?;
        let (start, end) = self.addresses();
        // What this kernel cannot tell is an error before anything has changed.
        table.occupied_in(start..start + PAGE_SIZE)?;
        let writes = Writes::of_pages(self.window.len())?;
        let writes = self.writes.writes.get_or_init(|| writes);
        // What is mapped is protected by who maps it from here on, where the mapping takes that.
        self.writes.told.fetch_max(REGISTERED, Ordering::SeqCst);
        crate::whole::take_back(self)?;
        self.writes.told.fetch_max(TOLD, Ordering::SeqCst);
        // Who maps a page and did not see that has ended, and what it mapped is found below.
        for segment in &self.shown.current()[..] {
            match segment.object.frames() {
                Some(frames) => frames.sections.wait(),
                None => self.vm.zeros.sections.wait(),
            }
        }
        // Also what is on a swap device: protected there, it is when it comes back.
        for (from, to) in table.occupied_in(start..end)? {
            self.space.uffd.protect(&self.span, from - start, to - from)?;
        }
        // Private copies: what was written before it was protected. What others open meanwhile is known already.
        for (from, to) in table.private_in(start..end)? {
            for index in (from - start) / PAGE_SIZE..(to - start) / PAGE_SIZE {
                writes.change(index, CLEAN, KEPT);
            }
        }
        self.writes.told.store(FOUND, Ordering::SeqCst);
        Ok(())
    }

    /// Keeps pages from becoming Open until what is returned is dropped; `None` where writes are not told.
    pub(crate) fn hold_writes(&self) -> Option<HeldWrites<'_>> {
        self.writes.writes.get().map(Writes::hold)
    }

    /// The pages that were written to, by index, in runs. Nobody waits for it.
    pub(crate) fn written(&self) -> Vec<PageRange> {
        let writes = self.writes.writes.get().expect("writes are told");
        runs(writes, |word| matches!(word & STATE, OPEN | KEPT))
    }

    /// Pages that were written to before writes were told are found by what they are, not by a fault: those of which `is_same`
    /// is true were not.
    pub(crate) fn weed(&self, mut is_same: impl FnMut(PageIndex) -> bool) {
        let writes = self.writes.writes.get().expect("writes are told");
        for run in runs(writes, |word| word & STATE == KEPT) {
            for index in run.iter() {
                if is_same(index) {
                    writes.change(index.0, KEPT, CLEAN);
                }
            }
        }
    }

    /// Protects what was written to, while writers go on: so [`Self::freeze`] has to protect alone what is written to between the two.
    pub(crate) fn protect_ahead(&self) -> std::io::Result<()> {
        let writes = self.writes.writes.get().expect("writes are told");
        let open = runs(writes, |word| word & STATE == OPEN);
        for index in open.iter().flat_map(|run| run.iter()) {
            // Until it is protected it may be written to without a fault, and counts as written to either way.
            writes.change(index.0, OPEN, KEPT);
        }
        // Who saw a page Open and is about to unprotect it has done so.
        writes.opening.wait();
        let mut left = near(&open);
        let outcome = left.try_for_each(|run| self.protect(run));
        if outcome.is_err() {
            // What is left open may not pass for protected; what was protected and counts as Open does no harm.
            for index in open.iter().flat_map(|run| run.iter()) {
                writes.change(index.0, KEPT, OPEN);
            }
        }
        outcome
    }

    fn protect(&self, run: PageRange) -> std::io::Result<()> {
        self.space.uffd.protect(&self.span, run.start().offset_bytes(), run.bytes())
    }

    /// Freezes what was written to, in one moment; `room` is asked whether these pages, by index, can go to `store`. Returns their runs,
    /// and how long who writes may have waited; or what `room` says is lacking.
    pub(crate) fn freeze<Lack>(
        &self,
        store: &Arc<ObjectCore>,
        room: impl FnOnce(&[PageRange]) -> Result<(), Lack>,
    ) -> std::io::Result<Result<(Vec<PageRange>, u64), Lack>> {
        let writes = self.writes.writes.get().expect("writes are told");
        // Who waits to write may be a signal handler that interrupted the allocator: while writes are held nothing is allocated.
        let freeze = Arc::new(Freeze { store: Arc::clone(store), failed: AtomicU32::new(0) });
        let mut most = 2 * self.written().len() + GROUP_PAGES as usize;
        let (open, frozen, began, held) = loop {
            let (mut open, mut frozen) = (Runs::with_room(most), Runs::with_room(most));
            let began = prepage_sys::clock::now_ns();
            let held = writes.hold();
            // One look at the words: that takes a part of the pause.
            let had_room =
                writes.used(writes.all()).all(|(index, word)| match word.load(Ordering::SeqCst) & STATE {
                    OPEN => open.add_in_room(PageIndex(index)) && frozen.add_in_room(PageIndex(index)),
                    KEPT => frozen.add_in_room(PageIndex(index)),
                    _ => true,
                });
            if had_room {
                break (open.0, frozen.0, began, held);
            }
            drop(held);
            most *= 2;
        };
        // Where that fails, what is protected already is opened again by who writes to it, and counts as written to.
        near(&open).try_for_each(|run| self.protect(run))?;
        if let Err(lack) = room(&frozen) {
            for index in open.iter().flat_map(|run| run.iter()) {
                writes.change(index.0, OPEN, KEPT);
            }
            return Ok(Err(lack));
        }
        // Before the first page is frozen: a thread that saw a page frozen by the last snapshot, and did not run since, may copy it at once.
        writes.freeze.put(freeze);
        for index in frozen.iter().flat_map(|run| run.iter()) {
            let _ = writes.change(index.0, OPEN, FROZEN) || writes.change(index.0, KEPT, FROZEN);
        }
        drop(held);
        Ok(Ok((frozen, prepage_sys::clock::now_ns() - began)))
    }

    /// Copies what was frozen; returns the runs that are in the snapshot.
    pub(crate) fn copy_all(&self, frozen: &[PageRange], cpu: usize) -> std::io::Result<Vec<PageRange>> {
        let writes = self.writes.writes.get().expect("writes are told");
        for run in frozen {
            let mut from = run.start();
            while from < run.end() {
                let mut to = from;
                while to < run.end() && to.0 - from.0 < COPY_PAGES && writes.change(to.0, FROZEN, COPYING) {
                    to.0 += 1;
                }
                if to > from {
                    self.copy_frozen(writes, PageRange::new(from, to), true, cpu);
                } else {
                    // Who wrote to it copied it, or is about to have done so or left it.
                    writes.wait_for_copy(from.0);
                    to.0 += u64::from(!writes.is_frozen(from.0));
                }
                from = to;
            }
        }
        let freeze = writes.freeze.take().expect("a snapshot is being taken");
        let copied = frozen.iter().flat_map(|run| {
            let is_copied = |index: &PageIndex| writes.word(index.0).load(Ordering::SeqCst) & COPIED != 0;
            runs_of(run.iter().filter(is_copied))
        });
        let copied: Vec<PageRange> = copied.collect();
        let failed = freeze.failed.load(Ordering::SeqCst);
        for index in copied.iter().flat_map(|run| run.iter()) {
            writes.word(index.0).fetch_and(!COPIED, Ordering::SeqCst);
            if failed != 0 {
                writes.change(index.0, CLEAN, KEPT);
            }
        }
        match failed {
            0 => Ok(copied),
            number => Err(std::io::Error::from_raw_os_error(number as i32)),
        }
    }
}

/// `open`, and what lies between where that is little: what is protected by one call.
fn near(open: &[PageRange]) -> impl Iterator<Item = PageRange> {
    let near = |run: &PageRange, next: &PageRange| next.start().0 - run.end().0 <= GAP_PAGES;
    open.chunk_by(near).map(|runs| PageRange::new(runs[0].start(), runs[runs.len() - 1].end()))
}

/// The runs of pages, by index, of whose words `which` is true.
fn runs(writes: &Writes, which: impl Fn(u32) -> bool) -> Vec<PageRange> {
    let is_one = |(_, word): &(u64, &AtomicU32)| which(word.load(Ordering::SeqCst));
    runs_of(writes.used(writes.all()).filter(is_one).map(|(index, _)| PageIndex(index)))
}

/// Pages that come in order, as runs.
#[derive(Debug, Default)]
struct Runs(Vec<PageRange>);

impl Runs {
    fn with_room(runs: usize) -> Self {
        Self(Vec::with_capacity(runs))
    }

    /// As [`Self::add`], where that allocates nothing; else false.
    fn add_in_room(&mut self, page: PageIndex) -> bool {
        let has_room = self.0.len() < self.0.capacity();
        if has_room {
            self.add(page);
        }
        has_room
    }

    fn add(&mut self, page: PageIndex) {
        let next = PageIndex(page.0 + 1);
        match self.0.last_mut() {
            Some(last) if last.end() == page => *last = PageRange::new(last.start(), next),
            _ => self.0.push(PageRange::new(page, next)),
        }
    }
}

/// The runs of `pages`, which ascend.
pub(crate) fn runs_of(pages: impl Iterator<Item = PageIndex>) -> Vec<PageRange> {
    let mut runs = Runs::default();
    pages.for_each(|page| runs.add(page));
    runs.0
}

/// EIO: what an error without a number counts as.
const EIO: i32 = 5;

/// The page table of this process.
#[derive(Debug, Default)]
pub(crate) struct OwnPageMap(OnceLock<PageMap>);

impl OwnPageMap {
    pub(crate) fn get(&self) -> std::io::Result<&PageMap> {
        if let Some(map) = self.0.get() {
            return Ok(map);
        }
        let opened = PageMap::of(std::process::id())?;
        Ok(self.0.get_or_init(|| opened))
    }
}
