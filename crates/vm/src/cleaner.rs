//! Dirty pages that nobody flushes are written back by a thread apart, before their frames go and after a while: a write may hang (a file system that is
//! frozen for a backup, a server that does not answer), or many may be slow. Whoever asked for it goes on with other objects, and this one's dirty pages stay until the write ends.
//!
//! ```text
//!   who asks: IDLE ─► GIVEN ─┬ done in time ─► IDLE
//!                             └ not ─► LEFT ─► END, done at last: the thread ends; another has taken its place
//! ```

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prepage_core::PageIndex;

use crate::object::ObjectCore;
use crate::sync::{Anyway, AtomicU32, Mutex, Ordering, spawn, wait, wait_for, wake};
use crate::write_back::Came;

/// A write hangs if none of its runs of pages is done within this long, even if it only waits for who flushes the object. The kernel pauses who writes
/// faster than the disk for up to 200 ms at a time (balance_dirty_pages), some times in a run.
const PATIENCE: Duration = Duration::from_secs(1);
/// Who has pages of a file written waits for no longer than this, though one run is done after the other: scattered pages of a slow file take minutes.
pub(crate) const CLEAN_MOST: Duration = Duration::from_secs(4);
/// But for so long at least, which is longer than one such pause: a file whose turn comes late may be a fast one. A write that was
/// paused more often is given up though it ends soon; it is tried again.
const CLEAN_LEAST: Duration = Duration::from_millis(PATIENCE.as_millis() as u64 / 4);
/// How often who waits for a write looks whether a run is done.
const LOOK_PERIOD: Duration = Duration::from_millis(PATIENCE.as_millis() as u64 / 8);
/// The most threads of one cleaner whose writes hang. Beyond these it tries no dirty page until one of them is done.
pub(crate) const MOST_HUNG: usize = 8;

const IDLE: u32 = 0;
const GIVEN: u32 = 1;
const LEFT: u32 = 2;
const END: u32 = 3;

/// The thread that writes dirty pages back for a pool's reclaimer, or for the [writer](crate::writer) of a VM. It ends with this.
#[derive(Debug, Default)]
pub(crate) struct Cleaner {
    /// `None` before the first batch, and after one that hangs.
    desk: Option<Arc<Desk>>,
    /// Those before it, whose write may still hang.
    left: Vec<Arc<Desk>>,
}

/// Where one thread gets its work.
///
/// Lock legend: (a) atomic; (f) atomic, slept on; `work` and `came` are held to put one thing there or take it.
#[derive(Debug, Default)]
struct Desk {
    /// (f)
    state: AtomicU32,
    /// (a) Runs of pages that the thread tried. Those of others, who may write for long, do not count.
    runs: AtomicU32,
    work: Mutex<Option<Work>>,
    came: Mutex<Option<Came>>,
}

#[derive(Debug)]
struct Work {
    object: Arc<ObjectCore>,
    pages: Vec<PageIndex>,
    is_waited_for: bool,
    failing: Duration,
}

impl Cleaner {
    /// As [`ObjectCore::clean`]. If that does not get on, or is not done by `until`, the pages stay, and the object [hangs](crate::dirty::Dirty::hangs) until it is
    /// done. `None` then, and where it is not tried because of writes that hang: of the object, or of too many others that this cleaner tried.
    pub(crate) fn clean(
        &mut self,
        object: &Arc<ObjectCore>,
        pages: Vec<PageIndex>,
        is_waited_for: bool,
        failing: Duration,
        until: Instant,
    ) -> Option<Came> {
        let (frames, dirty) = object.frames().zip(object.dirty())?;
        self.left.retain(|desk| desk.state.load(Ordering::SeqCst) == LEFT);
        if dirty.hangs() || self.left.len() >= MOST_HUNG {
            return None;
        }
        // Nothing hangs in a model.
        let desk = if cfg!(any(feature = "shuttle", feature = "loom")) { None } else { self.desk() };
        // Where no thread is left this one does it.
        let Some(desk) = desk else {
            return Some(object.clean(frames, &pages, is_waited_for, failing, None));
        };
        *desk.work.lock().anyway() = Some(Work { object: Arc::clone(object), pages, is_waited_for, failing });
        desk.state.store(GIVEN, Ordering::SeqCst);
        wake(&desk.state, 1);
        let mut since = Instant::now();
        let until = until.max(since + CLEAN_LEAST);
        let mut runs = desk.runs.load(Ordering::SeqCst);
        let mut now = since;
        while desk.state.load(Ordering::SeqCst) == GIVEN && now < until.min(since + PATIENCE) {
            wait_for(&desk.state, GIVEN, LOOK_PERIOD);
            now = Instant::now();
            let runs_now = desk.runs.load(Ordering::SeqCst);
            if runs_now != runs {
                (runs, since) = (runs_now, now);
            }
        }
        if desk.state.load(Ordering::SeqCst) == GIVEN {
            // Before the thread may take it back.
            hangs(object);
            if desk.state.compare_exchange(GIVEN, LEFT, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                self.left.extend(self.desk.take());
                return None;
            }
            hangs_no_more(object);
        }
        desk.came.lock().anyway().take()
    }

    fn desk(&mut self) -> Option<Arc<Desk>> {
        if self.desk.is_none() {
            let desk = Arc::new(Desk::default());
            let own = Arc::clone(&desk);
            spawn("prepage-clean", move || own.work()).ok()?;
            self.desk = Some(desk);
        }
        self.desk.clone()
    }
}

impl Drop for Cleaner {
    fn drop(&mut self) {
        if let Some(desk) = &self.desk {
            desk.state.store(END, Ordering::SeqCst);
            wake(&desk.state, 1);
        }
    }
}

impl Desk {
    fn work(&self) {
        loop {
            match self.state.load(Ordering::SeqCst) {
                END => return,
                IDLE => {
                    wait(&self.state, IDLE);
                    continue;
                }
                _ => {}
            }
            let Work { object, pages, is_waited_for, failing } =
                self.work.lock().anyway().take().expect("put there before the state says so");
            let frames = object.frames().expect("an object with dirty pages has frames");
            let clean = || object.clean(frames, &pages, is_waited_for, failing, Some(&self.runs));
            // What a panic leaves stays dirty.
            *self.came.lock().anyway() = catch_unwind(AssertUnwindSafe(clean)).ok();
            let done = self.state.compare_exchange(GIVEN, IDLE, Ordering::SeqCst, Ordering::SeqCst);
            match done {
                Ok(_) => wake(&self.state, 1),
                Err(_) => {
                    // Whoever asked has gone on, and hears nothing of it.
                    if let Some(Err(error)) = self.came.lock().anyway().take().map(|came| came.outcome) {
                        object.tell_unwritten(&error);
                    }
                    // Before those are called who count what hangs.
                    self.state.store(END, Ordering::SeqCst);
                    hangs_no_more(&object);
                }
            }
            object.let_go();
            if done.is_err() {
                return;
            }
        }
    }
}

/// One write of `object` more hangs.
fn hangs(object: &ObjectCore) {
    if let Some(dirty) = object.dirty() {
        dirty.set_hangs(true);
    }
    object.vm.pool.core().hung_writes.fetch_add(1, Ordering::SeqCst);
}

/// One fewer. Whoever passed by the object meanwhile is called: its pages are clean, or may be tried again.
fn hangs_no_more(object: &ObjectCore) {
    if let Some(dirty) = object.dirty() {
        dirty.set_hangs(false);
    }
    let pool = object.vm.pool.core();
    pool.hung_writes.fetch_sub(1, Ordering::SeqCst);
    pool.frames.call();
    object.vm.writer.call_for(object);
}
