//! What the threads of a VM do: reads that a fault left to them, and runs of reads ahead or for a whole range.
//!
//! A run is cut into pieces of one read. Who has done one hands in the next behind all others that wait, so that no run keeps
//! a thread to its end; several steps of one run are under way at once.

use std::sync::{Arc, Mutex, OnceLock};

use prepage_core::{PageIndex, PageRange};
use prepage_sys::signals::Endings;
use prepage_sys::slot::Entered;

use crate::addresses::MapRef;
use crate::blocks::BLOCK_PAGES;
use crate::fault::Touch;
use crate::fill::{Wanted, fill_local, give_up};
use crate::jobs::Job;
use crate::map::MapCore;
use crate::object::{Bytes, ObjectCore, clip};
use crate::pages::{Claim, HEED_PERIOD, Seen, Waiters};
use crate::reason;
use crate::request::{self, Priority};
use crate::source::PAUSES;
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, AtomicU32, AtomicUsize, Ordering, wait_for, wake};

/// Steps of a read ahead that are under way at once: enough requests for a disk to order and join.
pub(crate) const READERS: u64 = 8;
/// Of a run of one local file, whose pieces are large: the first ones are waited for, and come the later the more share the disk.
const READERS_IN_ORDER: u64 = 3;

/// What follows a read.
#[derive(Debug)]
pub(crate) enum Then {
    /// Nothing: who needs the pages sleeps on their words.
    Wake,
    /// The fault of handler mode that needs the page is ended.
    Map { at: MapRef, touch: Touch },
    /// The next read of many.
    Step(Step),
}

/// A place in a run of reads.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) object: Arc<ObjectCore>,
    /// What is read by this step.
    piece: PageRange,
    /// So far it is done.
    at: PageIndex,
    /// How often in a row its source asked to try again, of a read ahead.
    tries: usize,
    rest: Rest,
}

/// The pieces that follow.
#[derive(Debug)]
enum Rest {
    /// Every piece that begins `stride` pages after this one, as far as `end`: what a fault asks for, which may not
    /// allocate. `mark` is marked when it is read.
    Strides { end: PageIndex, stride: u64, pages: u64, mark: Option<PageIndex>, map: MapRef },
    /// The next of a list that others work on too.
    Sweep(Arc<Sweep>),
}

/// A list of pieces.
///
/// Lock legend: (c) constant; (a) atomic; `failed` is a lock of its own, held for a move.
#[derive(Debug)]
pub(crate) struct Sweep {
    /// (c)
    pieces: Arc<[PageRange]>,
    /// (c)
    priority: Priority,
    /// The map to map pieces into once they are read; set once.
    pub(crate) into: OnceLock<MapRef>,
    /// (a) The next piece that nobody has begun.
    next: AtomicUsize,
    /// (a) Pieces that are waited for and not done; who waits for all sleeps on it.
    left: AtomicU32,
    /// (a) Not 0 once a read ahead failed, or any took too long: what is not begun is left alone.
    stopped: AtomicU32,
    /// The first page whose read took too long; where there is none, the first that could not be had, and why.
    failed: Mutex<Option<(PageIndex, u16)>>,
}

impl Then {
    /// The map of a fault that waits for this.
    pub(crate) fn enter(&self, cpu: usize) -> Option<Entered<'static, MapCore>> {
        match self {
            Self::Map { at, .. } => at.enter(cpu),
            _ => None,
        }
    }

    /// Whether it was for a map that has gone.
    pub(crate) fn is_void(&self) -> bool {
        match self {
            Self::Wake => false,
            Self::Map { at, .. } => at.enter(0).is_none(),
            Self::Step(step) => step.is_void(),
        }
    }

    /// `wanted`, as a read that failed is wanted: one that nobody waits for any more, and that may have failed for that reason, was a guess, and
    /// leaves its pages to who came to wait for them since.
    pub(crate) fn still(&self, wanted: Wanted) -> Wanted {
        let priority = if self.is_void() { Priority::Ahead } else { wanted.priority };
        Wanted { priority, ..wanted }
    }
}

/// Reads what `claim` holds, here or wherever its source does.
pub(crate) fn read_claim(
    object: &Arc<ObjectCore>,
    claim: Claim,
    wanted: Wanted,
    then: Then,
    account: &mut Account,
) {
    let frames = object.frames().expect("zeros are never claimed");
    match &frames.bytes {
        Bytes::Local(file) => {
            let filled = fill_local(object, frames, file, claim, wanted, None, account);
            request::end(object, filled, wanted, then, account);
        }
        Bytes::Custom(_) => request::begin(object, claim, wanted, then, account),
        Bytes::Frozen => {
            let filled = give_up(object, claim, wanted, reason::ABANDONED, Waiters::default(), account);
            request::end(object, filled, wanted, then, account);
        }
    }
}

/// Has `range`, which lies in `window` of the object, read ahead for the map `at`, and `mark` marked. From any context.
pub(crate) fn read_ahead(
    object: &Arc<ObjectCore>,
    range: PageRange,
    window: PageRange,
    mark: Option<PageIndex>,
    map: MapRef,
    account: &mut Account,
) {
    let pages = object.step_pages();
    let range = object.in_blocks(range, window, mark);
    if range.is_empty() {
        return;
    }
    let readers = match object.frames().map(|frames| &frames.bytes) {
        Some(Bytes::Local(_)) => READERS_IN_ORDER,
        _ => READERS,
    };
    // Pieces as long as a block begin where one does.
    let before = if pages == BLOCK_PAGES { range.start().0 % pages } else { 0 };
    let first = range.start().0 - before;
    let steps = (range.end().0 - first).div_ceil(pages).min(readers);
    for number in 0..steps {
        let start = PageIndex(first + number * pages);
        let piece = clip(PageRange::new(start, PageIndex(start.0 + pages)), range);
        let step = Step {
            object: Arc::clone(object),
            piece,
            at: piece.start(),
            tries: 0,
            rest: Rest::Strides { end: range.end(), stride: steps * pages, pages, mark, map },
        };
        if !object.vm.jobs.push_ahead(step) {
            account.tally.dropped += 1;
        }
    }
}

impl Sweep {
    /// Cuts `runs`, as far as they lie in `window`, into pieces of one read.
    pub(crate) fn cut(object: &ObjectCore, runs: &[PageRange], window: PageRange) -> Arc<[PageRange]> {
        let most = object.step_pages();
        let mut pieces = Vec::with_capacity(runs.len());
        for run in runs {
            let run = clip(*run, window);
            let mut start = run.start();
            while start < run.end() {
                // Ends at multiples, so that pieces of neighbouring runs do not overlap in blocks.
                let end = PageIndex((start.0 - start.0 % most + most).min(run.end().0));
                pieces.push(PageRange::new(start, end));
                start = end;
            }
        }
        pieces.into()
    }

    pub(crate) fn new(pieces: Arc<[PageRange]>, priority: Priority) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicU32::new(pieces.len() as u32),
            pieces,
            priority,
            into: OnceLock::new(),
            next: AtomicUsize::new(0),
            stopped: AtomicU32::new(0),
            failed: Mutex::new(None),
        })
    }

    /// Has up to `readers` steps of it done at once. Those that are ahead are dropped where there is no room.
    pub(crate) fn start(self: &Arc<Self>, object: &Arc<ObjectCore>, readers: usize, account: &mut Account) {
        for _ in 0..readers.min(self.pieces.len()) {
            let Some(step) = self.next_step(object) else { return };
            match self.priority {
                Priority::Ahead => {
                    account.tally.dropped += u64::from(!object.vm.jobs.push_ahead(step));
                }
                Priority::Wanted | Priority::Demand => object.vm.jobs.push_wanted(step),
            }
        }
    }

    /// Works on it here, until no piece is left that nobody has begun. What cannot be done by waiting for this thread's
    /// equals alone is done so: a thread of the VM may wait for them, and they for it.
    pub(crate) fn work(self: &Arc<Self>, object: &Arc<ObjectCore>, account: &mut Account) {
        while let Some(mut step) = self.next_step(object) {
            while !step.is_void()
                && let Some((claim, wanted)) = step.claim(account)
            {
                let read = claim.range();
                read_claim(object, claim, wanted, Then::Wake, account);
                let frames = object.frames().expect("zeros are never read");
                // Pages are settled in order from the first, which may fail alone.
                let failed = match frames.pages.wait(read.start(), account.endings) {
                    Seen::Failed(code) => Some((read.start(), code)),
                    _ => None,
                };
                step.reached(PageIndex(read.start().0 + 1), failed);
            }
            step.end_piece(account);
        }
    }

    /// Sleeps until all pieces are done, or one took too long, unless one of `endings` ends the process; returns a page that could not be had: one
    /// whose read took too long before all others, then the first.
    pub(crate) fn wait(&self, endings: Endings) -> Result<(), (PageIndex, u16)> {
        loop {
            let left = self.left.load(Ordering::SeqCst);
            if left == 0 {
                break;
            }
            if wait_for(&self.left, left, HEED_PERIOD) {
                endings.heed();
            }
        }
        self.failed.lock().anyway().map_or(Ok(()), Err)
    }

    fn next_step(self: &Arc<Self>, object: &Arc<ObjectCore>) -> Option<Step> {
        let &piece = self.pieces.get(self.next.fetch_add(1, Ordering::SeqCst))?;
        let rest = Rest::Sweep(Arc::clone(self));
        Some(Step { object: Arc::clone(object), piece, at: piece.start(), tries: 0, rest })
    }

    fn done(&self) {
        let one_less = |left: u32| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) == Ok(1) {
            wake(&self.left, u32::MAX >> 1);
        }
    }

    /// A read took too long: nobody waits for the others, which may take as long.
    fn give_up(&self) {
        self.stopped.store(1, Ordering::SeqCst);
        self.left.store(0, Ordering::SeqCst);
        wake(&self.left, u32::MAX >> 1);
    }
}

impl Step {
    /// Begins the next read of the piece, or ends the piece.
    pub(crate) fn run(mut self, account: &mut Account) {
        let object = Arc::clone(&self.object);
        if !self.is_void()
            && let Some((claim, wanted)) = self.claim(account)
        {
            return read_claim(&object, claim, wanted, Then::Step(self), account);
        }
        self.end_piece(account);
        object.vm.figures.settle(account);
        if let Some(next) = self.next() {
            next.push();
        }
    }

    /// Nobody came to run it in time.
    pub(crate) fn expire(mut self) {
        let page = self.at;
        self.reached(page, Some((page, reason::TIMED_OUT)));
        self.object.let_go();
    }

    /// A read has ended: all up to `reached` is done, but for the page that failed. A read ahead whose source asks to try again is begun anew after a
    /// pause, during which it holds nothing that a touch could wait for.
    pub(crate) fn go_on(mut self, reached: PageIndex, failed: Option<(PageIndex, u16)>) {
        let asks_again = matches!(failed, Some((_, reason::AGAIN))) && self.priority() == Priority::Ahead;
        let tries = std::mem::take(&mut self.tries);
        if asks_again && tries < PAUSES.len() {
            let object = Arc::clone(&self.object);
            object.vm.figures.add(0, &Tally { retries: 1, ..Tally::default() });
            self.tries = tries + 1;
            return object.vm.jobs.push_later(tries, Job::Step(self));
        }
        self.reached(reached, failed);
        self.push();
    }

    fn reached(&mut self, reached: PageIndex, failed: Option<(PageIndex, u16)>) {
        self.at = reached;
        let Some((page, code)) = failed else { return };
        match &mut self.rest {
            // A source that fails is not asked for more than is needed.
            Rest::Strides { end, .. } => {
                *end = self.piece.start();
                self.at = self.piece.end();
            }
            Rest::Sweep(sweep) => {
                if sweep.priority == Priority::Ahead {
                    sweep.stopped.store(1, Ordering::SeqCst);
                }
                let mut first = sweep.failed.lock().anyway();
                // What fails after a read took too long may do so because nobody waits for it any more.
                let order = |(page, code)| (code != reason::TIMED_OUT, page);
                if first.is_none_or(|known| order((page, code)) < order(known)) {
                    *first = Some((page, code));
                }
                drop(first);
                if code == reason::TIMED_OUT {
                    sweep.give_up();
                }
            }
        }
    }

    /// Claims the next run of missing pages.
    fn claim(&mut self, account: &mut Account) -> Option<(Claim, Wanted)> {
        let frames = self.object.frames().expect("zeros are never read");
        let priority = self.priority();
        while self.at < self.piece.end() {
            let end = self.object.end_of_claim(frames, self.at, self.piece.end());
            let claim = match frames.pages.see(self.at) {
                Seen::Absent => frames.pages.claim(self.at),
                // A page that failed is left to its touch, or to who asks for it.
                Seen::Failed(_) if priority > Priority::Ahead => frames.pages.claim(self.at),
                _ => None,
            };
            let Some(mut claim) = claim else {
                self.at.0 += 1;
                continue;
            };
            claim.extend(PageRange::new(self.at, end));
            account.tally.shared_atomics += claim.range().len();
            account.tally.background_reads += 1;
            self.object.vm.figures.read(account.cpu, claim.range().len());
            let (mark, in_order_for) = match self.rest {
                Rest::Strides { mark, map, .. } => (mark, Some(map)),
                Rest::Sweep(_) => (None, None),
            };
            return Some((
                claim,
                Wanted { needed: self.at, mark, priority, in_order_for, whole_grains: true },
            ));
        }
        None
    }

    fn priority(&self) -> Priority {
        match &self.rest {
            Rest::Strides { .. } => Priority::Ahead,
            Rest::Sweep(sweep) => sweep.priority,
        }
    }

    /// Whether what is not begun is to be left alone.
    fn is_void(&self) -> bool {
        match &self.rest {
            Rest::Strides { map, .. } => map.enter(0).is_none(),
            Rest::Sweep(sweep) => {
                let gone = || {
                    sweep.priority == Priority::Ahead
                        && sweep.into.get().is_some_and(|into| into.enter(0).is_none())
                };
                sweep.stopped.load(Ordering::SeqCst) != 0 || gone()
            }
        }
    }

    /// Maps the piece, where that is asked for. Pages that failed, or are gone again, are left to their faults.
    fn end_piece(&self, account: &mut Account) {
        let Rest::Sweep(sweep) = &self.rest else { return };
        if let Some(map) = sweep.into.get().and_then(|into| into.enter(account.cpu)) {
            map.show_pages_of(&self.object, self.piece, account);
        }
        sweep.done();
    }

    fn next(self) -> Option<Self> {
        match &self.rest {
            Rest::Strides { end, stride, pages, .. } => {
                // The first of all may begin behind that.
                let before = if *pages == BLOCK_PAGES { self.piece.start().0 % pages } else { 0 };
                let start = PageIndex((self.piece.start().0 - before).saturating_add(*stride));
                let piece = PageRange::new(start, PageIndex((start.0 + pages).min(end.0).max(start.0)));
                (start < *end).then(|| Self { piece, at: start, ..self })
            }
            Rest::Sweep(sweep) => sweep.next_step(&self.object),
        }
    }

    /// Hands in what is left, behind all else that waits.
    pub(crate) fn push(self) {
        let object = Arc::clone(&self.object);
        let jobs = &object.vm.jobs;
        // A local file is read where its step runs: that thread looks for work next. To call another for each step would have it wake for nothing.
        let is_here = matches!(object.frames().map(|frames| &frames.bytes), Some(Bytes::Local(_)));
        let has_room = match self.priority() {
            Priority::Ahead if is_here => jobs.leave_ahead(self),
            Priority::Ahead => jobs.push_ahead(self),
            Priority::Wanted | Priority::Demand => {
                if is_here {
                    jobs.leave_wanted(self)
                } else {
                    jobs.push_wanted(self)
                }
                true
            }
        };
        if !has_room {
            object.vm.figures.add(0, &Tally { dropped: 1, ..Tally::default() });
        }
        // Where nobody else holds it by now, its source goes on a thread that may wait for that.
        object.let_go();
    }
}

/// What a policy reads first, the window it was made for, and its pieces.
type Opening = (Arc<[PageRange]>, PageRange, Arc<[PageRange]>);

/// The pieces of a policy's opening, kept for the maps of an object that follow.
#[derive(Debug, Default)]
pub(crate) struct Openings {
    last: Mutex<Option<Opening>>,
    empty: OnceLock<Arc<[PageRange]>>,
}

impl Openings {
    /// `runs` of `object` as far as they lie in `window`, in pieces.
    pub(crate) fn pieces(
        &self,
        object: &ObjectCore,
        runs: &[PageRange],
        window: PageRange,
    ) -> Arc<[PageRange]> {
        if runs.is_empty() {
            return Arc::clone(self.empty.get_or_init(|| [].into()));
        }
        let mut last = self.last.lock().anyway();
        match &*last {
            Some((of, within, pieces)) if **of == *runs && *within == window => Arc::clone(pieces),
            _ => {
                let pieces = Sweep::cut(object, runs, window);
                *last = Some((runs.into(), window, Arc::clone(&pieces)));
                pieces
            }
        }
    }
}
