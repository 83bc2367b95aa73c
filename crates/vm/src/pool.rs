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

impl PoolFigures {
    /// All of them, with their names.
    pub(crate) fn fields_mut(&mut self) -> [(&'static str, &mut u64); 12] {
        [
            ("resident_pages", &mut self.resident_pages),
            ("wired_pages", &mut self.wired_pages),
            ("unwired_pages", &mut self.unwired_pages),
            ("pinned_pages", &mut self.pinned_pages),
            ("dirty_pages", &mut self.dirty_pages),
            ("swap_pages", &mut self.swap_pages),
            ("promised_pages", &mut self.promised_pages),
            ("reserved_pages", &mut self.reserved_pages),
            ("limit_pages", &mut self.limit_pages),
            ("low_pages", &mut self.low_pages),
            ("high_pages", &mut self.high_pages),
            ("beyond_pages_total", &mut self.beyond_pages_total),
        ]
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
    /// back for a second.
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
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::time::Instant;

    use prepage_core::PageIndex;
    use prepage_sys::memory_left::Left;

    use super::*;
    use crate::frame_count::Reserve;
    use crate::{Map, MapOptions, Source, SourceError, Vm, VmOptions};

    /// So many bytes.
    struct Zeros(u64);

    impl Source for Zeros {
        fn len_bytes(&self) -> u64 {
            self.0
        }

        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            into.fill(0);
            Ok(())
        }
    }

    /// A machine that has what it is told to have.
    #[derive(Debug)]
    struct Told(Arc<Mutex<Option<Left>>>);

    /// Look by look, once it has.
    struct Looks(Receiver<Option<bool>>);

    /// Tells both.
    struct Tell {
        left: Arc<Mutex<Option<Left>>>,
        look: SyncSender<Option<bool>>,
    }

    impl Tell {
        /// Of so much there is. Of 64 MiB two are to stay free.
        fn left(&self, available_bytes: i64) {
            let left = Left { limit_bytes: 64 << 20, available_bytes, shmem_bytes: 0 };
            *self.left.lock().unwrap() = Some(left);
        }

        /// Has the pool look; returns once it did.
        fn look(&self, available_bytes: i64, stalled: bool) {
            self.left(available_bytes);
            self.look.send(Some(stalled)).unwrap();
            self.look.send(None).unwrap();
        }
    }

    impl Pressure for Looks {
        fn wait(&mut self, _for_all: bool) -> bool {
            self.0.iter().flatten().next().unwrap_or(false)
        }
    }

    impl Memory for Told {
        fn left(&mut self) -> Vec<Left> {
            self.0.lock().unwrap().into_iter().collect()
        }
    }

    /// A pool that gives back by what it is told, and keeps 64 pages at least.
    fn told(options: PoolOptions) -> (Pool, Tell) {
        let core = Pool::made(&options.gives_back(64 * PAGE_SIZE)).unwrap();
        let (look, looks) = sync_channel(0);
        let tell = Tell { left: Arc::default(), look };
        core.give_back(Told(Arc::clone(&tell.left)), Looks(looks), 64 * PAGE_SIZE).unwrap();
        (Pool { handle: Arc::new(Handle { core }) }, tell)
    }

    /// The same with a map of `pages` pages of a file that are all in memory.
    fn populated(pages: u64) -> (Pool, Vm, Map, Tell) {
        let (pool, tell) = told(PoolOptions::default());
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(pages * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let map = vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared()).unwrap();
        map.populate(map.window()).unwrap();
        (pool, vm, map, tell)
    }

    fn until(pool: &Pool, what: &str, is_so: impl Fn(PoolFigures) -> bool) {
        let began = Instant::now();
        while !is_so(pool.figures()) {
            assert!(began.elapsed() < Duration::from_secs(120), "{what}: {:?}", pool.figures());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_missing_is_given_back_and_taken_again_later() {
        const PAGES: u64 = 1024;
        let (pool, _vm, map, tell) = populated(PAGES);
        assert_eq!(pool.figures().resident_pages, PAGES);
        // 256 pages are missing.
        tell.look(1 << 20, false);
        until(&pool, "too little is given", |now| now.resident_pages <= PAGES - 256);
        assert_eq!(pool.figures().limit_pages, PAGES - 256);
        assert!(pool.figures().resident_pages > PAGES / 2, "more than was missing");
        // Everything can still be touched, in what is left.
        assert!(map.as_slice().iter().all(|&byte| byte == 0));
        let now = pool.figures();
        assert!(now.resident_pages <= PAGES - 256 + now.beyond_pages_total, "{now:?}");
        // The least is kept beside what is pinned, though more is missing than there is.
        let pinned = map.pin(PageRange::new(PageIndex(0), PageIndex(128))).unwrap();
        tell.look(-(1 << 30), false);
        assert_eq!(pool.figures().limit_pages, 128 + 64);
        until(&pool, "it goes", |now| now.resident_pages <= 128 + 64);
        map.populate(PageRange::new(PageIndex(500), PageIndex(516))).unwrap();
        drop(pinned);
        (0..200).for_each(|_| tell.look(64 << 20, false));
        assert!(pool.figures().limit_pages > PAGES);
        map.populate(map.window()).unwrap();
        assert_eq!(pool.figures().resident_pages, PAGES);
    }

    /// Places of pages that are away make room for nobody.
    #[test]
    fn the_least_is_kept_beside_memory_that_cannot_go_to_a_full_swap_file() {
        let directory = tempfile::tempdir().unwrap();
        let (pool, tell) = told(PoolOptions::default().swap(directory.path(), 128 * PAGE_SIZE));
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let memory = vm.memory(512 * PAGE_SIZE).unwrap();
        let map = vm.map(&memory, &MapOptions::writable()).unwrap();
        (0..256).for_each(|page| map.write_at(page * PAGE_SIZE, &[1]).unwrap());
        assert_eq!(pool.reclaim(128), 128);
        assert_eq!((memory.dirty_pages(), pool.figures().swap_pages), (128, 128));
        tell.look(-(1 << 30), false);
        assert_eq!(pool.figures().limit_pages, 128 + 64);
    }

    /// As is told of by PSI before memory is short.
    #[test]
    fn while_tasks_wait_idle_frames_go_though_none_is_missing() {
        const PAGES: u64 = 1024;
        let (pool, vm, _map, tell) = populated(PAGES);
        const SPARE: u64 = 64;
        let look = |stalled| tell.look((2 << 20) + (SPARE * PAGE_SIZE) as i64, stalled);
        // Which are idle is seen from the first look to the second.
        look(true);
        let kept = (PAGES + SPARE / 4, PAGES);
        assert_eq!((pool.figures().limit_pages, pool.figures().resident_pages), kept);
        look(false);
        let due = PAGES / 8 - SPARE;
        assert_eq!(pool.figures().limit_pages, PAGES - due);
        let resident = pool.figures().resident_pages;
        assert!(
            (PAGES * 3 / 4..=PAGES - due).contains(&resident),
            "some more, which are to be free: {resident}"
        );
        // Of those that are seen to be idle by now. Nothing that went has come back.
        look(true);
        let more = resident / 8 - SPARE;
        assert_eq!(pool.figures().limit_pages, resident - more);
        assert!(vm.statistics().counted.pages_reclaimed >= due + more);
    }

    #[test]
    fn no_frame_goes_for_a_snapshot_while_memory_has_room_for_it() {
        const PAGES: u64 = 1024;
        let (_pool, vm, _map, tell) = populated(PAGES);
        // Of 2048 pages to spare the pool takes 512.
        tell.look(10 << 20, false);
        let zeros = vm.anonymous(1000 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        map.as_mut_slice().fill(7);
        let snapshot = map.snapshot().unwrap();
        assert_eq!((snapshot.resident_pages(), vm.statistics().counted.pages_reclaimed), (1000, 0));
    }

    /// What it had to spare was seen up to a second ago.
    #[test]
    fn memory_is_looked_at_again_before_frames_are_taken_away() {
        const PAGES: u64 = 1024;
        let (pool, vm, map, tell) = populated(PAGES);
        tell.look(8 << 20, false);
        assert_eq!(pool.figures().limit_pages, PAGES + 1536 / 4);
        let other = vm.source("more", Zeros(PAGES * PAGE_SIZE)).unwrap();
        let other = vm.map(&other, &MapOptions::shared()).unwrap();
        let read = || assert!(other.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
        tell.left(64 << 20);
        read();
        let grown = (2 * PAGES, 0);
        assert_eq!(
            (pool.figures().resident_pages, vm.statistics().counted.pages_reclaimed),
            grown,
            "{:?}",
            pool.figures()
        );
        // Others took it.
        tell.look(2 << 20, false);
        until(&pool, "some are free", |now| now.resident_pages < 2 * PAGES);
        map.populate(map.window()).unwrap();
        read();
        let now = pool.figures();
        assert!(now.resident_pages <= 2 * PAGES + now.beyond_pages_total, "{now:?}");
    }

    /// It reads on when its pool may take more, or gives up after a while.
    struct Patient(Zeros, Arc<PoolCore>);

    impl Source for Patient {
        fn len_bytes(&self) -> u64 {
            self.0.len_bytes()
        }

        fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
            let began = Instant::now();
            let is_near = || self.1.frames.limit() < self.1.frames.reserved() + 1024;
            while is_near() && began.elapsed() < Duration::from_secs(2) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.0.read(offset_bytes, into)
        }
    }

    /// They take no frame that somebody would have to wait for, and stop where there is no other.
    #[test]
    fn memory_is_looked_at_again_before_reads_ahead_stop() {
        const PAGES: u64 = 8192;
        let (pool, vm, _map, tell) = populated(64);
        tell.look(64 << 20, false);
        let limit = pool.figures().limit_pages;
        assert!(limit < PAGES / 2, "{limit}");
        let object = vm.source("more", Patient(Zeros(PAGES * PAGE_SIZE), Arc::clone(pool.core()))).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        map.advise(crate::Advice::WillNeed(map.window())).unwrap();
        until(&pool, "reads ahead stop", |now| now.resident_pages == 64 + PAGES);
        assert_eq!(vm.statistics().counted.pages_reclaimed, 0);
    }

    /// From the promise on it has its frames, though memory is looked at before they hold anything.
    #[test]
    fn a_look_takes_no_frame_back_that_a_snapshot_was_promised() {
        const PAGES: u64 = 1024;
        let (pool, vm, _map, tell) = populated(PAGES);
        tell.look(10 << 20, false);
        // Half of what is to spare, less what is to be free then.
        let pages = 1000;
        assert!(give_back::makes_room(pool.core(), pages));
        assert_eq!(pool.core().frames.reserve(pages), Reserve::Got);
        tell.look(10 << 20, false);
        assert!(pool.figures().limit_pages >= PAGES + pages, "{:?}", pool.figures());
        assert_eq!(vm.statistics().counted.pages_reclaimed, 0);
        pool.core().frames.release(pages);
    }

    #[test]
    fn while_tasks_wait_what_is_used_now_and_then_stays_though_it_came_first() {
        const PAGES: u64 = 4096;
        let (pool, vm, map, tell) = populated(PAGES);
        // It takes a look for each quarter of the frames. So much is to spare that none goes for the low watermark.
        for _ in 0..6 {
            tell.look((2 << 20) + (512 << 10), true);
            // Frames are unwired ahead where the limit is near, as many as are to be idle.
            let unwired = || pool.figures().unwired_pages;
            while {
                let before = unwired();
                pool.reclaim(0);
                unwired() > before
            } {}
            let busy = map.as_slice()[..(PAGES / 2 * PAGE_SIZE) as usize].iter();
            assert!(busy.step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
        }
        assert!(pool.figures().resident_pages <= PAGES * 7 / 8, "{:?}", pool.figures());
        let again = vm.statistics().counted.pages_read - PAGES;
        assert!(again < 128, "{again} pages were read again, {:?}", pool.figures());
    }

    /// Else an old object would have the number of a new one, and would be lost with it.
    #[test]
    fn numbers_of_objects_do_not_end() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let old = vm.file_writable(file.path()).unwrap();
        let map = vm.map(&old, &MapOptions::writable()).unwrap();
        map.write_at(0, &[7]).unwrap();
        vm.core.pool.core().next_object.store(u32::MAX.into(), Ordering::SeqCst);
        (0..3).for_each(|_| drop(vm.memory(PAGE_SIZE).unwrap()));
        vm.flush().unwrap();
        assert_eq!((old.dirty_pages(), std::fs::read(file.path()).unwrap()[0]), (0, 7));
        assert_eq!(vm.core.pool.objects().len(), 1);
    }

    #[test]
    fn what_is_pinned_is_looked_at_once() {
        const PAGES: u64 = 1024;
        let pool = Pool::new((PAGES + 64) * PAGE_SIZE).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(2 * PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let map = vm.map(&vm.file(file.path()).unwrap(), &MapOptions::shared()).unwrap();
        let pinned = map.pin(PageRange::new(PageIndex(0), PageIndex(PAGES))).unwrap();
        let pass = || assert!(map.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
        let looks = || pool.core().reclaim.lock().unwrap().looks();
        pass();
        let (before, reclaimed) = (looks(), vm.statistics().counted.pages_reclaimed);
        pass();
        let (looks, reclaimed) = (looks() - before, vm.statistics().counted.pages_reclaimed - reclaimed);
        assert!(looks as u64 <= 4 * reclaimed + PAGES, "{looks} looks for {reclaimed} frames");
        drop(pinned);
        pool.reclaim(2 * PAGES);
        assert_eq!(pool.figures().resident_pages, 0);
    }

    #[test]
    fn what_did_not_fit_into_the_list_of_arrivals_is_found_by_the_next_look() {
        let pool = Pool::new(64 * PAGE_SIZE).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(64 * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
        let touch = |page: u64| assert_eq!(map.as_slice()[(page * PAGE_SIZE) as usize], 0);
        let reclaim = pool.core().reclaim.lock().unwrap();
        for _ in 0..3 {
            (0..32).for_each(touch);
            object.evict(object.pages()).unwrap();
        }
        (32..64).step_by(2).for_each(touch);
        drop(reclaim);
        pool.reclaim(0);
        assert_eq!(pool.core().reclaim.lock().unwrap().len(), 16);
    }

    /// Several threads may have put runs there since one looked.
    #[test]
    fn a_list_of_arrivals_that_is_more_than_half_full_is_looked_at() {
        let pool = Pool::new(64 * PAGE_SIZE).unwrap();
        let core = pool.core();
        let arrivals = core.arrivals.as_ref().unwrap();
        let run = Arrival { object: 7, range: PageRange::new(PageIndex(0), PageIndex(1)) };
        until(&pool, "the reclaimer sleeps", |_| core.frames.is_asleep());
        (0..=arrivals.capacity() / 2).for_each(|_| arrivals.push(run).unwrap());
        core.arrived(run.object, run.range);
        until(&pool, "it is called", |_| arrivals.is_empty());
    }

    #[test]
    fn what_is_gone_is_forgotten_though_memory_is_not_short() {
        const PAGES: u64 = 4096;
        let pool = Pool::new(64 * PAGES * PAGE_SIZE).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        for _ in 0..8 {
            let object = vm.file(file.path()).unwrap();
            let map = vm.map(&object, &MapOptions::shared()).unwrap();
            map.populate(map.window()).unwrap();
            pool.reclaim(0);
        }
        // Another thread may hold the last one for a moment.
        let began = std::time::Instant::now();
        while pool.figures().resident_pages > 0 && began.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(pool.reclaim(0), 0);
        let known = pool.core().reclaim.lock().unwrap().len();
        assert!(known <= 1024, "{known} frames that are gone are known");
    }

    /// How many pages of those that are read in turns come back soon after they were reclaimed.
    fn refaulted(pool: &Pool) -> u64 {
        const PAGES: u64 = 4096;
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().pool(pool)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
        for _ in 0..2 {
            assert!(map.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
        }
        vm.statistics().counted.pages_refaulted
    }

    #[test]
    fn what_comes_back_soon_is_told_by_the_limit_of_now() {
        let lowered = Pool::made(&PoolOptions::default().gives_back(64 * PAGE_SIZE)).unwrap();
        lowered.frames.set_limit(512);
        let lowered = Pool { handle: Arc::new(Handle { core: lowered }) };
        // Eight times what fits: nothing comes back before as much was reclaimed as the pool holds, but for what it kept until then.
        let both = [refaulted(&Pool::new(512 * PAGE_SIZE).unwrap()), refaulted(&lowered)];
        assert!(both.iter().all(|&pages| pages <= 512), "{both:?} of 4096");
    }

    #[test]
    fn a_pool_that_gave_memory_back_grows_for_a_snapshot() {
        let core = Pool::made(&PoolOptions::default().gives_back(64 * PAGE_SIZE)).unwrap();
        core.frames.set_limit(64);
        let pool = Pool { handle: Arc::new(Handle { core }) };
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let zeros = vm.anonymous(256 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        map.as_mut_slice().fill(7);
        let snapshot = map.snapshot().unwrap();
        assert_eq!((snapshot.resident_pages(), pool.figures().limit_pages), (256, 64 + 256));
    }
}
