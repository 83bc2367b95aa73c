//! Observe and persist: what programs use that nobody has learned yet, within a share of the processor.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use prepage_core::profile::role::is_private;
use prepage_observe::{ObserveOptions, Observer, Until};
use prepage_prefetch::persist::{Shown, persist};
use prepage_profiles::{Layer, public};
use prepage_trace::{FaultEvents, Probe, Stream};
use rustix::time::{ClockId, clock_gettime};

use crate::allowance::Allowance;
use crate::counters::Counters;
use crate::library::Library;
use crate::process::Process;

/// How long a start is observed at most.
const WINDOW: Duration = Duration::from_secs(30);
/// Starts observed at once.
const OBSERVED_MAX: usize = 2;

/// Learns the machine's programs.
#[derive(Debug)]
pub struct Learner {
    library: Arc<Library>,
    counters: Arc<Counters>,
    began: Instant,
    allowance: Mutex<Allowance>,
    spent_ns: AtomicU64,
    at_work: AtomicUsize,
    /// Readable, by who ends the service, once all observations are to end.
    stop: OwnedFd,
    /// While it is open the kernel is ready for perf events: opening others takes no time.
    ready: Mutex<Option<Stream>>,
}

/// A place among those who observe.
#[derive(Debug)]
pub struct Place(Arc<Learner>);

impl Learner {
    /// One that ends its observations when `stop` is readable.
    pub fn new(library: Arc<Library>, counters: Arc<Counters>, stop: OwnedFd) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |number| number.get() as u64);
        let allowance = Mutex::new(Allowance::new(processors, Duration::ZERO));
        let (began, spent_ns, at_work) = (Instant::now(), AtomicU64::new(0), AtomicUsize::new(0));
        Self { library, counters, began, allowance, spent_ns, at_work, stop, ready: Mutex::new(None) }
    }

    /// Gets the kernel ready for observations. Takes some milliseconds.
    pub fn get_ready(&self) {
        let probe = Probe { faults: FaultEvents::None, ring_bytes: 0, ..Probe::default() };
        // Where perf is refused, page tables are looked at.
        let stream = Stream::attach(std::process::id(), &probe).ok();
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = stream;
    }

    /// Whether there is processor time left to observe with.
    pub fn may_observe(&self) -> bool {
        self.library.learns()
            && self.at_work.load(Ordering::Relaxed) < OBSERVED_MAX
            && self.allowance().has_some(self.began.elapsed())
    }

    fn allowance(&self) -> MutexGuard<'_, Allowance> {
        self.allowance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody observes.
    pub fn is_at_work(&self) -> bool {
        self.at_work.load(Ordering::Relaxed) > 0
    }

    /// Waits until nobody observes, `most` at most.
    pub fn wait(&self, most: Duration) {
        let until = Instant::now() + most;
        while self.is_at_work() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Processor time spent, nanoseconds.
    pub fn spent_ns(&self) -> u64 {
        self.spent_ns.load(Ordering::Relaxed)
    }

    /// A place to observe in, if there is one left.
    pub fn place(self: &Arc<Self>) -> Option<Place> {
        if !self.may_observe() {
            return None;
        }
        let taken = self.at_work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |at_work| {
            (at_work < OBSERVED_MAX).then_some(at_work + 1)
        });
        taken.ok().map(|_| Place(self.clone()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.at_work.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Place {
    /// Observes a start to its end, and writes what it showed into the machine's layer; what is one user's own, with that user's
    /// rights into the user's.
    pub fn learn(&self, process: &Process) {
        let learner = &*self.0;
        let before_ns = processor_ns();
        self.observe(process);
        // What else this process did meanwhile counts too: rather too much than too little.
        let spent_ns = processor_ns() - before_ns;
        learner.spent_ns.fetch_add(spent_ns, Ordering::Relaxed);
        learner.allowance().spend(spent_ns, learner.began.elapsed());
    }

    fn observe(&self, process: &Process) {
        let learner = &*self.0;
        let pid = process.context.pid;
        let (Ok(until), Ok(stop)) = (Until::ended_or(pid, WINDOW), learner.stop.as_fd().try_clone_to_owned())
        else {
            return;
        };
        let options = ObserveOptions { rights: Some(process.rights.clone()), ..ObserveOptions::default() };
        let Ok(observer) = Observer::attach(pid, &options) else { return };
        let observation = observer.follow(&until.or_readable(stop));
        if observation.files.is_empty() {
            return learner.counters.observed.count();
        }
        let shown = Shown { observation: Some(observation), ..Shown::default() };
        let key = &process.context.key;
        let written = if is_for_all(process) {
            learner.library.update(key, |stores| persist(stores, key, Layer::Machine, &shown))
        } else {
            learner.counters.private.count();
            let rights = &process.rights;
            learner.library.update_of_user(rights, |stores| persist(stores, key, Layer::User, &shown))
        };
        match written {
            Ok(()) => learner.counters.learned.count(),
            Err(_) => learner.counters.not_kept.count(),
        }
        learner.counters.observed.count();
    }
}

/// Whether what a start shows may be told to all users of the machine: the program, and the files that its role names.
fn is_for_all(process: &Process) -> bool {
    !is_private(&process.context.key.role)
        && public::is_for_all(process.program())
        && process.places.iter().all(|place| public::is_for_all(place))
}

/// Processor time of this process.
fn processor_ns() -> u64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
