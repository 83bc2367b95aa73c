//! The frames of one VM or of several: how many there may be, whose they are, and in which order they go.
//!
//! ```text
//!   fault ─► reserve ─┬ got ─► read ─► published ─► arrivals ─┐
//!                     └ none: sleeps on `freed` ◄──┐          ▼
//!            below the low watermark: calls ─► reclaimer: order ─► unwire ─► (touched: rewired by its fault)
//!                                                                   └─► claim ─► punch ─► release
//! ```

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use prepage_core::{PAGE_SIZE, PageRange};
use prepage_sys::fork;
use prepage_sys::signals::Masked;

use crate::allowance::Allowance;
use crate::dirty::Dirty;
use crate::error::MakeError;
use crate::frame_count::{FrameCount, PATIENCE};
use crate::give_back::{self, Giver, Machine, Memory, Pressure, Triggers};
use crate::hiding::Hiding;
use crate::object::ObjectCore;
use crate::pool_options::PoolOptions;
use crate::reclaim::{self, Reclaim};
use crate::statistics::numbers;
use crate::swap::Swap;
use crate::sync::{Anyway, AtomicU32, AtomicU64, Mutex, Ordering};

/// The most runs of pages that came since the reclaimer looked.
const MOST_ARRIVALS: u64 = 1 << 16;

/// Memory for the frames of one VM, or of several that share it: it grows to a limit, and takes frames back from pages that are
/// idle, so that others can come.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use prepage_vm::{MapOptions, Pool, Vm, VmOptions};
///
/// let pool = Pool::new(1 << 20)?;
/// let vm = Vm::new(VmOptions::default().pool(&pool))?;
/// let object = vm.file(std::env::current_exe()?)?;
/// let map = vm.map(&object, &MapOptions::shared())?;
/// // More than fits: pages that are not touched any more make room.
/// let sum = map.as_slice().iter().map(|&byte| u64::from(byte)).sum::<u64>();
/// assert!(sum > 0 && pool.figures().resident_pages <= 256);
/// # Ok(())
/// # }
/// ```
///
/// Cloning gives another handle on the same pool. Its thread ends with the last handle and the last VM.
#[derive(Clone, Debug)]
pub struct Pool {
    handle: Arc<Handle>,
}

numbers! {
    /// What a pool holds at one moment, in pages.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct PoolFigures {
        /// Frames that hold a page, wired and unwired. A frame counts until it is freed.
        pub resident_pages: u64,
        /// Frames that maps may show: touched, pinned, or being reclaimed right now.
        pub wired_pages: u64,
        /// Frames that no map shows: the next touch of one is a fault that reads nothing.
        pub unwired_pages: u64,
        /// Pinned pages. Each is resident, or will be.
        pub pinned_pages: u64,
        /// Pages that may hold written bytes that are in no file or swap file yet.
        pub dirty_pages: u64,
        /// Pages that have a place in swap files, whether they are in memory or not.
        pub swap_pages: u64,
        /// Frames promised to reads under way.
        pub promised_pages: u64,
        /// The lengths of all objects together: as many pages could be resident.
        pub reserved_pages: u64,
        /// The most frames there may be now; `u64::MAX` where nothing limits them. In a pool that gives memory back this is what it may hold until memory is
        /// looked at again.
        pub limit_pages: u64,
        /// The low watermark: reclaim begins when fewer frames are free. Reads ahead leave this many free.
        pub low_pages: u64,
        /// The high watermark: reclaim ends when this many frames are free.
        pub high_pages: u64,
        /// At most this many frames were given out beyond the limit since the pool was made, because reclaim had neither freed frames nor reported that it
        /// cannot for a second. They may have gone since.
        pub beyond_pages_total: u64,
    }
}

/// What one object holds of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolObject {
    /// The object's name.
    pub name: String,
    /// Its pages.
    pub pages: u64,
    /// Frames that hold one.
    pub resident_pages: u64,
    /// Of these, frames that no map shows.
    pub unwired_pages: u64,
    /// Pages that may hold written bytes which were not written back yet, as [`Object::dirty_pages`](crate::Object::dirty_pages).
    pub dirty_pages: u64,
}

/// Lets the thread end.
#[derive(Debug)]
struct Handle {
    core: Arc<PoolCore>,
}

/// Shared by handles, VMs and the reclaimer.
///
/// Lock legend: (c) constant; (a) atomic; `objects` is a lock of its own, held for a look; `reclaim` is held by who reclaims,
/// never by faults, and before any other lock but `giver`.
#[derive(Debug)]
pub(crate) struct PoolCore {
    /// (c) Its number in its process, counted from 1 in the order in which pools were made.
    pub(crate) number: u64,
    pub(crate) frames: FrameCount,
    /// Runs of pages that came; `None` where no frame is ever reclaimed.
    arrivals: Option<ArrayQueue<Arrival>>,
    /// (a) Whether some did not fit.
    pub(crate) lost: AtomicU32,
    objects: Mutex<BTreeMap<u64, Weak<ObjectCore>>>,
    /// (a)
    next_object: AtomicU64,
    /// (a) The lengths of all objects, in pages.
    reserved_pages: AtomicU64,
    pub(crate) reclaim: Mutex<Reclaim>,
    pub(crate) hiding: Hiding,
    /// (a) Pages read again soon after they were reclaimed, since somebody looked.
    pub(crate) refaulted: AtomicU64,
    /// `None` where nothing is given back. Held by who looks at memory, while idle frames go too; before `reclaim`.
    pub(crate) giver: Mutex<Option<Giver>>,
    /// Where memory goes that has no file.
    pub(crate) swap: Arc<Swap>,
    /// (a) Writes of dirty pages that hang.
    pub(crate) hung_writes: AtomicU32,
    /// (a) Dirty pages of all objects.
    pub(crate) dirty_pages: Arc<AtomicU64>,
    /// (a)
    stop: AtomicU32,
    /// (c) The process that it was made in.
    generation: u64,
}

/// Pages that came into memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) object: u64,
    pub(crate) range: PageRange,
}

impl Pool {
    /// A pool of `limit_bytes` at most. With `u64::MAX` it has no limit, and reclaims nothing by itself.
    ///
    /// # Errors
    /// When no thread is left.
    pub fn new(limit_bytes: u64) -> Result<Self, MakeError> {
        Self::with(&PoolOptions::default().limit_bytes(limit_bytes))
    }

    /// A pool as `options` say.
    ///
    /// # Errors
    /// As `new`.
    pub fn with(options: &PoolOptions) -> Result<Self, MakeError> {
        // The handle first: it ends the one thread where there is no other.
        let pool = Self { handle: Arc::new(Handle { core: Self::made(options)? }) };
        if let Some(least_bytes) = options.least_bytes {
            pool.core().give_back(Machine::new(), Triggers::new(), least_bytes)?;
        }
        Ok(pool)
    }

    fn made(options: &PoolOptions) -> Result<Arc<PoolCore>, MakeError> {
        let (directory, most_bytes) = options.swap.clone().unzip();
        let most_bytes = most_bytes.unwrap_or(0);
        let frames = FrameCount::new(options.limit_bytes / PAGE_SIZE);
        let is_limited = options.limit_bytes != u64::MAX || options.least_bytes.is_some();
        let arrivals = frames.limit().clamp(64, MOST_ARRIVALS) as usize;
        static POOLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        let core = Arc::new(PoolCore {
            number: POOLS.fetch_add(1, Ordering::Relaxed),
            arrivals: is_limited.then(|| ArrayQueue::new(arrivals)),
            lost: AtomicU32::new(0),
            objects: Mutex::new(BTreeMap::new()),
            next_object: AtomicU64::new(0),
            reserved_pages: AtomicU64::new(0),
            reclaim: Mutex::new(Reclaim::new(options.replacement)),
            hiding: Hiding::new(),
            frames,
            refaulted: AtomicU64::new(0),
            giver: Mutex::new(None),
            swap: Arc::new(Swap::new(directory, most_bytes)),
            hung_writes: AtomicU32::new(0),
            dirty_pages: Arc::new(AtomicU64::new(0)),
            stop: AtomicU32::new(0),
            generation: fork::generation(),
        });
        if is_limited {
            let pool = Arc::clone(&core);
            crate::sync::spawn("prepage-reclaim", move || reclaim::work(&pool))
                .map_err(|source| MakeError::System { what: "a thread", source })?;
        }
        Ok(core)
    }

    /// What it holds now. All zeros in a child of fork(2).
    pub fn figures(&self) -> PoolFigures {
        let core = self.core();
        if fork::generation() != core.generation {
            return PoolFigures::default();
        }
        let _masked = Masked::asynchronous();
        core.figures()
    }

    /// All objects that may hold frames, the oldest first. None in a child of fork(2).
    pub fn objects(&self) -> Vec<PoolObject> {
        if fork::generation() != self.core().generation {
            return Vec::new();
        }
        let _masked = Masked::asynchronous();
        let described = |object: Arc<ObjectCore>| {
            let (resident_pages, unwired_pages) = object.frames().map_or((0, 0), |frames| frames.held());
            let dirty_pages = object.dirty().map_or(0, Dirty::pages);
            let (name, pages) = (object.name.clone(), object.pages().len());
            // Nobody else may hold it by now, and others wait for the thread that shows the pool.
            object.let_go();
            PoolObject { name, pages, resident_pages, unwired_pages, dirty_pages }
        };
        self.core().alive().into_iter().map(described).collect()
    }

    /// Reclaims up to `pages` frames now: those that would be reclaimed next. Returns how many were. For programs that know when they
    /// need memory for something else. Dirty pages of an object stay if none of those that are to go is written
    /// back for a second, or not all are within four.
    pub fn reclaim(&self, pages: u64) -> u64 {
        if fork::generation() != self.core().generation {
            return 0;
        }
        let _masked = Masked::asynchronous();
        reclaim::take(self.core(), pages)
    }

    pub(crate) fn core(&self) -> &Arc<PoolCore> {
        &self.handle.core
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.stop.store(1, Ordering::SeqCst);
        self.core.frames.call();
    }
}

impl PoolCore {
    /// Has a thread give memory back while `memory` is short.
    fn give_back(
        self: &Arc<Self>,
        memory: impl Memory,
        pressure: impl Pressure,
        least_bytes: u64,
    ) -> Result<(), MakeError> {
        let pool = Arc::clone(self);
        let allowance = Allowance::new((least_bytes / PAGE_SIZE).max(1), self.frames.most());
        *self.giver.lock().anyway() = Some(Giver::new(memory, allowance, self));
        crate::sync::spawn("prepage-give", move || give_back::work(&pool, pressure))
            .map(drop)
            .map_err(|source| MakeError::System { what: "a thread", source })
    }

    /// Pages that cannot be taken away as long as they are used: those that are pinned, those of memory that have no place in a swap file, and those of
    /// snapshots, which are nowhere else. A page may be pinned and without a place.
    pub(crate) fn stuck_pages(&self) -> u64 {
        let (mut frozen, mut unplaced) = (0, 0);
        let is_full = !self.swap.has_room();
        for object in self.alive() {
            frozen += object.frames().filter(|_| object.is_frozen()).map_or(0, |frames| frames.held().0);
            let memory = object.dirty().filter(|dirty| is_full && dirty.home.is_swap());
            if let Some((frames, dirty)) = object.frames().zip(memory) {
                let dirty_pages = dirty.all_in(&frames.pages, object.pages());
                unplaced += dirty_pages.filter(|&page| !dirty.home.takes(page)).count() as u64;
            }
            object.let_go();
        }
        frozen + self.frames.pinned().max(unplaced)
    }

    pub(crate) fn take_refaulted(&self) -> u64 {
        self.refaulted.swap(0, Ordering::SeqCst)
    }

    /// Whether this is another process than the one that made it.
    pub(crate) fn is_forked(&self) -> bool {
        fork::generation() != self.generation
    }

    /// Whether frames are ever taken back by themselves.
    pub(crate) fn reclaims(&self) -> bool {
        self.arrivals.is_some()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst) != 0
    }

    /// A number for an object that is being made.
    pub(crate) fn next_id(&self) -> u64 {
        self.next_object.fetch_add(1, Ordering::Relaxed)
    }

    /// `object` may hold frames from now on.
    pub(crate) fn enter(&self, object: &Arc<ObjectCore>) {
        self.reserved_pages.fetch_add(object.pages().len(), Ordering::SeqCst);
        self.objects.lock().anyway().insert(object.id, Arc::downgrade(object));
    }

    /// An object has gone, with its frames.
    pub(crate) fn leave(&self, object: &ObjectCore) {
        self.objects.lock().anyway().remove(&object.id);
        self.reserved_pages.fetch_sub(object.pages().len(), Ordering::SeqCst);
    }

    pub(crate) fn object(&self, id: u64) -> Option<Arc<ObjectCore>> {
        self.objects.lock().anyway().get(&id).and_then(Weak::upgrade)
    }

    /// The objects that exist. Whoever drops one last takes the lock: it is free again while these live.
    pub(crate) fn alive(&self) -> Vec<Arc<ObjectCore>> {
        self.objects.lock().anyway().values().filter_map(Weak::upgrade).collect()
    }

    /// Pages of an object are about to be published, or are not pinned any more. From any context.
    pub(crate) fn arrived(&self, object: u64, range: PageRange) {
        let Some(arrivals) = &self.arrivals else { return };
        if arrivals.push(Arrival { object, range }).is_err() {
            self.lost.store(1, Ordering::SeqCst);
            self.frames.call();
        } else if arrivals.len() >= arrivals.capacity() / 2 && self.frames.is_asleep() {
            self.frames.call();
        }
    }

    pub(crate) fn next_arrival(&self) -> Option<Arrival> {
        self.arrivals.as_ref()?.pop()
    }

    /// How long a read waits while nothing moves.
    pub(crate) fn patience(&self, deadline: Option<Duration>) -> Duration {
        deadline.map_or(PATIENCE, |deadline| deadline.min(PATIENCE))
    }

    fn figures(&self) -> PoolFigures {
        let (resident_pages, unwired_pages) = self.frames.held();
        let (low_pages, high_pages) = self.frames.watermarks();
        PoolFigures {
            resident_pages,
            // The two are counted one after the other.
            wired_pages: resident_pages.saturating_sub(unwired_pages),
            unwired_pages,
            pinned_pages: self.frames.pinned(),
            dirty_pages: self.dirty_pages.load(Ordering::SeqCst),
            swap_pages: self.swap.used_pages(),
            promised_pages: self.frames.reserved().saturating_sub(resident_pages),
            reserved_pages: self.reserved_pages.load(Ordering::SeqCst),
            limit_pages: self.frames.limit_if_any().unwrap_or(u64::MAX),
            low_pages,
            high_pages,
            // After those that it explains, and counted before them.
            beyond_pages_total: self.frames.beyond(),
        }
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests;
