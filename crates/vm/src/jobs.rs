//! Work for threads in the background: reads ahead, and reads that a fault may not do where it happens.
//!
//! Work is pushed from any context, signal handlers too: the queue has no lock and takes no memory. A thread that takes
//! work while no other is idle starts one more, up to a limit, so that sources that hang hold up no others. Threads that
//! were idle for long end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::slot::Entered;
use rustix::thread::futex::{self, Flags, Timespec};

use crate::buffers::BUFFER_PAGES;
use crate::fault::{Outcome, Touch, finish, serve_listed};
use crate::fill::{Wanted, fill};
use crate::map::MapCore;
use crate::neighbours::{map_hard, map_resident};
use crate::object::{Frames, ObjectCore, clip};
use crate::pages::Seen;
use crate::reason;
use crate::statistics::Tally;
use crate::table::MapRef;

/// Work that can wait. Reads in the background beyond it are dropped.
const QUEUE: usize = 4096;
/// How long a thread waits for work before it ends.
const IDLE: Duration = Duration::from_secs(2);
/// Threads that read one list of runs together: enough requests for a disk to order and join.
const READERS: usize = 8;

/// One piece of work.
#[derive(Debug)]
pub(crate) enum Job {
    /// Fill what a fault claimed. In handler mode map it too, and end the fault.
    Fill {
        object: Arc<ObjectCore>,
        claimed: PageRange,
        needed: PageIndex,
        mark: Option<PageIndex>,
        map: MapRef,
        touch: Option<Touch>,
    },
    /// Read what is missing of a range; nobody waits for it.
    Read { object: Arc<ObjectCore>, range: PageRange, mark: Option<PageIndex> },
    /// Read and map a list of runs, together with others who have the same list.
    Sweep { sweep: Arc<Sweep>, map: MapRef },
    /// Serve the listed faults of an object.
    Listed { object: Arc<ObjectCore> },
}

/// Runs of pages to read and map in this order.
#[derive(Debug)]
pub(crate) struct Sweep {
    object: Arc<ObjectCore>,
    runs: Box<[PageRange]>,
    next: AtomicUsize,
}

/// The queue and its threads.
#[derive(Debug)]
pub(crate) struct Jobs {
    queue: ArrayQueue<Job>,
    /// Changes with every push; idle threads sleep on it.
    pushed: AtomicU32,
    idle: AtomicU32,
    threads: AtomicU32,
    limit: u32,
    stop: AtomicBool,
}

impl Job {
    /// The map of a fault that waits for this.
    fn enter(&self) -> Option<Entered<'static, MapCore>> {
        match self {
            Self::Fill { map, .. } => map.enter(rustix::thread::sched_getcpu()),
            _ => None,
        }
    }

    /// The job panicked: nobody may sleep for it.
    fn give_up(&self) {
        let object = match self {
            Self::Fill { object, map, touch, .. } => {
                let cpu = rustix::thread::sched_getcpu();
                if let (Some(touch), Some(map)) = (touch, map.enter(cpu)) {
                    finish(&map, touch, Outcome::Failed(reason::PANICKED), cpu, &mut Tally::default());
                }
                object
            }
            Self::Read { object, .. } | Self::Listed { object } => object,
            Self::Sweep { sweep, .. } => &sweep.object,
        };
        serve_listed(object);
    }
}

impl Sweep {
    /// Cuts `runs` into pieces of one read, as far as they lie in `window`.
    pub(crate) fn new(object: Arc<ObjectCore>, runs: &[PageRange], window: PageRange) -> Arc<Self> {
        let mut pieces = Vec::with_capacity(runs.len());
        for run in runs {
            let run = clip(*run, window);
            let mut start = run.start();
            while start < run.end() {
                // Ends at multiples, so that pieces of neighbouring runs do not overlap in blocks.
                let end = PageIndex((start.0 - start.0 % BUFFER_PAGES + BUFFER_PAGES).min(run.end().0));
                pieces.push(PageRange::new(start, end));
                start = end;
            }
        }
        Arc::new(Self { object, runs: pieces.into(), next: AtomicUsize::new(0) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}

impl Jobs {
    /// Starts the first thread; there will be up to `limit`.
    pub(crate) fn start(limit: u32) -> std::io::Result<Arc<Self>> {
        let jobs = Arc::new(Self {
            queue: ArrayQueue::new(QUEUE),
            pushed: AtomicU32::new(0),
            idle: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            limit: limit.max(1),
            stop: AtomicBool::new(false),
        });
        jobs.start_thread()?;
        Ok(jobs)
    }

    /// Puts `job` into the queue; gives it back when there is no room.
    pub(crate) fn push(&self, job: Job) -> Result<(), Job> {
        self.queue.push(job)?;
        self.pushed.fetch_add(1, Ordering::SeqCst);
        if self.idle.load(Ordering::SeqCst) > 0 {
            let _ = futex::wake(&self.pushed, Flags::PRIVATE, 1);
        }
        Ok(())
    }

    /// Has the listed faults of `object` served, here if need be.
    pub(crate) fn push_listed(&self, object: &Arc<ObjectCore>) {
        if self.push(Job::Listed { object: Arc::clone(object) }).is_err() {
            serve_listed(object);
        }
    }

    /// Has `sweep` read and mapped into `map`.
    pub(crate) fn sweep(&self, sweep: &Arc<Sweep>, map: MapRef, tally: &mut Tally) {
        for _ in 0..READERS.min(sweep.runs.len()) {
            if self.push(Job::Sweep { sweep: Arc::clone(sweep), map }).is_err() {
                tally.dropped += 1;
            }
        }
    }

    /// Lets the threads end when the queue is empty.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        self.pushed.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.pushed, Flags::PRIVATE, u32::MAX >> 1);
    }

    fn start_thread(self: &Arc<Self>) -> std::io::Result<()> {
        let jobs = Arc::clone(self);
        self.threads.fetch_add(1, Ordering::SeqCst);
        let started = thread::Builder::new().name("prepage-fill".to_owned()).spawn(move || jobs.work());
        if started.is_err() {
            self.threads.fetch_sub(1, Ordering::SeqCst);
        }
        started.map(drop)
    }

    fn work(self: &Arc<Self>) {
        while let Some(job) = self.next() {
            let spare =
                self.idle.load(Ordering::SeqCst) == 0 && self.threads.load(Ordering::SeqCst) < self.limit;
            if spare {
                // Without one more thread work waits for this one; no more is lost.
                let _ = self.start_thread();
            }
            // A map that is dropped waits for this, and so for the job's hold on its object: both go together.
            let entered = job.enter();
            // Claims fail when a panic drops them; the thread lives on.
            if catch_unwind(AssertUnwindSafe(|| run(&job))).is_err() {
                let _ = catch_unwind(AssertUnwindSafe(|| job.give_up()));
            }
            // Whoever drops an object last drops its source, which may panic too.
            let _ = catch_unwind(AssertUnwindSafe(move || drop(job)));
            drop(entered);
        }
        self.threads.fetch_sub(1, Ordering::SeqCst);
    }

    /// The next piece of work; `None` when this thread has to end.
    fn next(&self) -> Option<Job> {
        let idle = Timespec { tv_sec: IDLE.as_secs() as i64, tv_nsec: 0 };
        loop {
            if let Some(job) = self.queue.pop() {
                return Some(job);
            }
            let pushed = self.pushed.load(Ordering::SeqCst);
            self.idle.fetch_add(1, Ordering::SeqCst);
            let mut waited = Ok(());
            if self.queue.is_empty() && !self.stop.load(Ordering::SeqCst) {
                waited = futex::wait(&self.pushed, Flags::PRIVATE, pushed, Some(&idle));
            }
            let idle_before = self.idle.fetch_sub(1, Ordering::SeqCst);
            if self.queue.is_empty() {
                let long = waited == Err(rustix::io::Errno::TIMEDOUT) && idle_before > 1;
                if long || self.stop.load(Ordering::SeqCst) {
                    return None;
                }
            }
        }
    }
}

fn run(job: &Job) {
    let cpu = rustix::thread::sched_getcpu();
    let mut tally = Tally::default();
    match job {
        Job::Fill { object, claimed, needed, mark, map, touch } => {
            let frames = object.frames().expect("zeros are never claimed");
            let claim = frames.pages.taken_over(*claimed);
            let wanted = Wanted { needed: *needed, mark: *mark, urgent: false };
            let filled = fill(object, frames, claim, wanted, cpu, &mut tally);
            match (touch, map.enter(cpu)) {
                (Some(touch), Some(map)) => {
                    let outcome = match filled.outcome {
                        Ok(read) => map_hard(&map, frames, *needed, read, cpu, &mut tally),
                        Err(code) => Outcome::Failed(code),
                    };
                    finish(&map, touch, outcome, cpu, &mut tally);
                }
                // The faulting thread maps for itself; or there is nobody to map for.
                _ => object.vm.figures.add(cpu, &tally),
            }
            if filled.told.listed {
                // Not here: they may take long, and a map that is dropped waits for this job.
                object.vm.jobs.push_listed(object);
            }
        }
        Job::Read { object, range, mark } => {
            let frames = object.frames().expect("zeros are never read");
            // A page that failed is tried again when it is touched.
            let _ = read_missing(object, frames, *range, *mark, false, cpu, &mut tally);
            object.vm.figures.add(cpu, &tally);
        }
        Job::Sweep { sweep, map } => {
            let frames = sweep.object.frames().expect("zeros are never read");
            while let Some(&range) = sweep.runs.get(sweep.next.fetch_add(1, Ordering::Relaxed)) {
                // Pages that failed, or are gone again, are left to their faults.
                let _ = read_missing(&sweep.object, frames, range, None, false, cpu, &mut tally);
                let Some(map) = map.enter(cpu) else { break };
                let mut page = range.start();
                while page < range.end() {
                    let rest = PageRange::new(page, range.end());
                    let mapped = map_resident(&map, frames, page, rest, cpu, &mut tally);
                    page.0 += mapped.unwrap_or(0).max(1);
                }
            }
            sweep.object.vm.figures.add(cpu, &tally);
        }
        Job::Listed { object } => serve_listed(object),
    }
}

/// Reads the missing pages of `range`, for somebody who waits where it is `urgent`; returns the first failure.
pub(crate) fn read_missing(
    object: &Arc<ObjectCore>,
    frames: &Frames,
    range: PageRange,
    mark: Option<PageIndex>,
    urgent: bool,
    cpu: usize,
    tally: &mut Tally,
) -> Result<(), (PageIndex, u16)> {
    let mut page = range.start();
    let mut outcome = Ok(());
    while page < range.end() {
        let claim = match frames.pages.see(page) {
            Seen::Absent => frames.pages.claim(page),
            Seen::Failed(code) => frames.pages.claim_failed(page, code),
            Seen::Filling | Seen::Resident { .. } => None,
        };
        let Some(mut claim) = claim else {
            page.0 += 1;
            continue;
        };
        let end = range.end().0.min(page.0 + BUFFER_PAGES);
        claim.extend(PageRange::new(page, PageIndex(end)));
        object.vm.figures.cluster(cpu, claim.range().len());
        tally.background_reads += 1;
        let wanted = Wanted { needed: page, mark, urgent };
        let filled = fill(object, frames, claim, wanted, cpu, tally);
        if filled.told.listed {
            serve_listed(object);
        }
        match filled.outcome {
            Ok(read) => page = read.end(),
            Err(code) => {
                outcome = outcome.and(Err((page, code)));
                page.0 += 1;
            }
        }
    }
    outcome
}
