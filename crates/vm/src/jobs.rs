//! Work for threads in the background, and the threads: reads ahead, and reads that a fault may not do where it happens.
//!
//! ```text
//!   urgent   a thread sleeps in a touch    always first, whatever else waits        ┐ prompt threads
//!   wanted   a thread waits for a range    ┐ so many at once as                     ┘
//!   ahead    nobody waits                  ┘ VmOptions::fill_threads says,          ─ background threads
//!                                            in this order; ahead: dropped where there is no room
//! ```
//! Urgent work is pushed from any context, signal handlers too: its queue has no lock and takes no memory, and who finds it
//! full sleeps until there is room. The prompt threads may be more than work for ranges needs, so that sources that hang or
//! touch other maps hold up nobody. Threads are started by one that does nothing else: to start one allocates, and a signal handler that
//! interrupted the allocator may wait for the work. The background threads run at a lower priority: what they do with bytes that came for
//! nobody delays no thread that somebody waits for.
//!
//! Where there is a deadline, one thread more looks after it, which runs no source. It ends reads that take too long, and what waits in a
//! queue from which nothing was taken for so long: all threads hang then. That others come first is no reason to fail.
//!
//! What a source asks to be tried again waits for its time in a queue, and no thread with it. The thread that starts others looks after these queues.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;

use crate::addresses::MapRef;
use crate::at_work::AtWork;
use crate::crew::{Crew, Kind, Slept};
use crate::fault::{Touch, serve_listed};
use crate::fill::Wanted;
use crate::going::Going;
use crate::object::ObjectCore;
use crate::pages::Claim;
use crate::request::{self, Flight, Reading};
use crate::source::PAUSES;
use crate::statistics::Account;
use crate::sync::{Anyway, AtomicU32, Mutex, Ordering, be_patient, priority, spawn, wait, wait_for, wake};
use crate::whole::Became;
use crate::work::{Step, Then, read_claim};

/// Threads that sleep in a signal handler until their work is queued.
const URGENT: usize = 1024;
/// Reads in the background beyond it are dropped.
const AHEAD: usize = 4096;
/// Threads beyond those that read ahead, for urgent work.
const FOR_DEMAND: u32 = 64;
/// How much later than its deadline a read may fail, in parts of the deadline.
const DEADLINE_PARTS: u32 = 8;
/// Deadlines are not looked at more often, for the sake of the processor.
const TICK_MIN: Duration = Duration::from_millis(1);
/// Nor less often: reads that have ended are kept until then.
const TICK_MAX: Duration = Duration::from_secs(1);
/// How long after the kernel refused a thread it is asked again, while all threads of the kind have work.
const REFUSED_PAUSE: Duration = Duration::from_millis(10);

/// One piece of work.
#[derive(Debug)]
pub(crate) enum Job {
    /// Fill what a fault claimed.
    Fill { object: Arc<ObjectCore>, claim: Claim, wanted: Wanted, then: Then },
    /// Ask a source again that asked for patience.
    Again(Box<Reading>),
    /// One read of many.
    Step(Step),
    /// Serve the listed faults.
    Listed,
    /// Leave the maps of an object to the kernel.
    Whole(Became),
    /// Let go of what nobody else holds: sources may go with it.
    Drop(Going),
}

/// The queues and the threads.
///
/// Lock legend: (a) atomic; (c) constant; the queues of `VecDeque` and the lists have a lock each, held for a push, a pop or a
/// walk and never together, by threads that take no signals meanwhile.
#[derive(Debug)]
pub(crate) struct Jobs {
    urgent: ArrayQueue<Job>,
    /// What threads push that may allocate, and handler threads that may not sleep.
    urgent_more: Mutex<VecDeque<Job>>,
    wanted: Mutex<VecDeque<Job>>,
    ahead: ArrayQueue<Job>,
    /// Faults of handler mode on pages that somebody fills.
    pub(crate) listed: Mutex<Vec<(MapRef, Touch)>>,
    /// (a) Whether listed faults may be ready.
    listed_due: AtomicU32,
    /// Reads with a deadline.
    flights: Mutex<Vec<Arc<Flight>>>,
    /// What is to be tried again, and when: a queue for each length of pause, in the order of time.
    later: Mutex<[VecDeque<(Instant, Job)>; PAUSES.len()]>,
    /// Threads for work that somebody waits for.
    prompt: Crew,
    /// And for what nobody does.
    background: Crew,
    /// (f) Changes when a thread is missing, or something is to be done later; who starts threads sleeps on it.
    missed: AtomicU32,
    /// (a) Changes with every pop of urgent work; who found no room sleeps on it.
    popped: AtomicU32,
    /// (a) Changes with every pop of work for ranges.
    begun: AtomicU32,
    /// (a) Threads at work that is not urgent, of both kinds.
    busy: AtomicU32,
    /// (c) The most of these.
    limit: u32,
    /// (c) The priority of who made the VM.
    usual: i32,
    /// (c) How long a read may take; `None` for ever.
    deadline: Option<Duration>,
    /// (f) 1 when the threads have to end.
    stop: AtomicU32,
}

/// What the thread of deadlines saw of a queue.
struct Stuck {
    /// How often something was taken from it.
    taken: u32,
    /// How many waited in it.
    waiting: usize,
    since: Instant,
}

impl Jobs {
    /// Starts the first threads; there will be up to `limit` that read in the background.
    pub(crate) fn start(limit: u32, deadline: Option<Duration>) -> std::io::Result<Arc<Self>> {
        let jobs = Arc::new(Self {
            urgent: ArrayQueue::new(URGENT),
            urgent_more: Mutex::new(VecDeque::with_capacity(URGENT)),
            wanted: Mutex::new(VecDeque::with_capacity(URGENT)),
            ahead: ArrayQueue::new(AHEAD),
            listed: Mutex::new(Vec::with_capacity(URGENT)),
            listed_due: AtomicU32::new(0),
            flights: Mutex::new(Vec::new()),
            later: Mutex::default(),
            prompt: Crew::new(limit.max(1).saturating_add(FOR_DEMAND)),
            background: Crew::new(limit),
            missed: AtomicU32::new(0),
            popped: AtomicU32::new(0),
            begun: AtomicU32::new(0),
            busy: AtomicU32::new(0),
            limit: limit.max(1),
            usual: priority(),
            // One that no clock reaches is none.
            deadline: deadline.filter(|deadline| Instant::now().checked_add(*deadline).is_some()),
            stop: AtomicU32::new(0),
        });
        let started = jobs.start_threads();
        if started.is_err() {
            jobs.stop();
        }
        started.map(|()| jobs)
    }

    fn start_threads(self: &Arc<Self>) -> std::io::Result<()> {
        for kind in [Kind::Prompt, Kind::Background] {
            self.crew(kind).first();
            self.start_thread(kind)?;
        }
        if let Some(deadline) = self.deadline {
            let jobs = Arc::clone(self);
            spawn("prepage-late", move || jobs.look_after(deadline))?;
        }
        let jobs = Arc::clone(self);
        spawn("prepage-crew", move || jobs.start_missing()).map(drop)
    }

    /// Whether reads have a deadline.
    pub(crate) fn has_deadline(&self) -> bool {
        self.deadline.is_some()
    }

    /// When a read that begins now takes too long.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.deadline.and_then(|deadline| Instant::now().checked_add(deadline))
    }

    /// Has urgent work done, from a signal handler: sleeps until there is room.
    pub(crate) fn push_from_signal(&self, mut job: Job) {
        loop {
            let popped = self.popped.load(Ordering::SeqCst);
            match self.urgent.push(job) {
                Ok(()) => return self.prompt.call_one(),
                Err(back) => job = back,
            }
            wait(&self.popped, popped);
        }
    }

    /// Has urgent work done. Allocates, and never waits for room.
    pub(crate) fn push(&self, job: Job) {
        self.urgent_more.lock().anyway().push_back(job);
        self.prompt.call_one();
    }

    /// As [`Self::push`], by a fault or for one: whether it waited is counted.
    pub(crate) fn push_by(&self, job: Job, account: &mut Account) {
        account.lock(&self.urgent_more).push_back(job);
        self.prompt.call_one();
    }

    /// Has work done that somebody waits for, though no touch.
    pub(crate) fn push_wanted(&self, step: Step) {
        self.wanted.lock().anyway().push_back(Job::Step(step));
        self.prompt.call_one();
    }

    /// Has work done that nobody waits for; false where there is no room for it. From any context.
    pub(crate) fn push_ahead(&self, step: Step) -> bool {
        self.push_background(Job::Step(step))
    }

    /// Has the maps of an object that became whole left to the kernel; false where there is no room for that. From any context.
    pub(crate) fn push_whole(&self, became: Became) -> bool {
        self.push_background(Job::Whole(became))
    }

    fn push_background(&self, job: Job) -> bool {
        let has_room = self.ahead.push(job).is_ok();
        if has_room {
            self.background.call_one();
        }
        has_room
    }

    /// As [`Self::push_wanted`], by a thread of the VM that looks for work next: it calls no other. Who takes other work first leaves this to the one that was called
    /// for that.
    pub(crate) fn leave_wanted(&self, step: Step) {
        self.wanted.lock().anyway().push_back(Job::Step(step));
    }

    /// As [`Self::push_ahead`], by a thread of the VM that looks for work next, as [`Self::leave_wanted`].
    pub(crate) fn leave_ahead(&self, step: Step) -> bool {
        self.ahead.push(Job::Step(step)).is_ok()
    }

    /// Has the listed faults served whose pages are there. From any context.
    pub(crate) fn serve_listed_soon(&self) {
        self.listed_due.store(1, Ordering::SeqCst);
        self.prompt.call_one();
    }

    /// Has `job` done after the pause that follows `tries` tries: a read ahead behind all others, anything else as urgent work.
    pub(crate) fn push_later(&self, tries: usize, job: Job) {
        let due = Instant::now() + PAUSES[tries];
        self.later.lock().anyway()[tries].push_back((due, job));
        self.call_starter();
    }

    /// Pushes what is due by now; returns the time until something else is.
    fn push_due(&self) -> Option<Duration> {
        loop {
            let mut later = self.later.lock().anyway();
            let due = |queue: &&mut VecDeque<(Instant, Job)>| queue.front().map(|&(due, _)| due);
            let next = later.iter_mut().filter(|queue| !queue.is_empty()).min_by_key(due)?;
            let left = due(&next)?.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                return Some(left);
            }
            let (_, job) = next.pop_front()?;
            drop(later);
            match job {
                Job::Step(step) => step.push(),
                other => self.push(other),
            }
        }
    }

    /// Lets `flight` end when its deadline is over.
    pub(crate) fn watch(&self, flight: Arc<Flight>, account: &mut Account) {
        account.lock(&self.flights).push(flight);
    }

    /// Lets the threads end when there is no work left.
    pub(crate) fn stop(&self) {
        self.stop.store(1, Ordering::SeqCst);
        self.prompt.call_all();
        self.background.call_all();
        self.call_starter();
        wake(&self.stop, 1);
    }

    /// Returns when all threads have ended that [`Self::stop`] told to. Nobody but the VM holds this besides them.
    #[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
    pub(crate) fn wait_for_threads(self: &Arc<Self>) {
        while Arc::strong_count(self) > 1 {
            std::thread::yield_now();
        }
    }

    fn crew(&self, kind: Kind) -> &Crew {
        match kind {
            Kind::Prompt => &self.prompt,
            Kind::Background => &self.background,
        }
    }

    /// Starts the threads that are missing, and pushes what is due, until the end.
    fn start_missing(self: &Arc<Self>) {
        loop {
            let missed = self.missed.load(Ordering::SeqCst);
            let mut refused = None;
            for kind in [Kind::Prompt, Kind::Background] {
                let crew = self.crew(kind);
                while crew.take_missing() {
                    if self.start_thread(kind).is_err() {
                        // No thread of the crew may come to look for a long time: all may be in reads that hang.
                        crew.misses_another();
                        // Also where a thread idles: other missing threads are counted already, and nobody else starts them.
                        refused = Some(REFUSED_PAUSE);
                        break;
                    }
                }
            }
            if self.stop.load(Ordering::SeqCst) != 0 {
                return;
            }
            match self.push_due().into_iter().chain(refused).min() {
                Some(left) => _ = wait_for(&self.missed, missed, left),
                None => wait(&self.missed, missed),
            }
        }
    }

    fn call_starter(&self) {
        self.missed.fetch_add(1, Ordering::SeqCst);
        wake(&self.missed, 1);
    }

    /// Starts a thread that its crew counts already.
    fn start_thread(self: &Arc<Self>, kind: Kind) -> std::io::Result<()> {
        let jobs = Arc::clone(self);
        let name = if kind == Kind::Prompt { "prepage-fill" } else { "prepage-ahead" };
        let started = spawn(name, move || jobs.work(kind));
        if started.is_err() {
            self.crew(kind).has_lost_one();
        }
        started.map(drop)
    }

    fn work(self: &Arc<Self>, kind: Kind) {
        let _at_work = AtWork::here();
        if kind == Kind::Background {
            be_patient(self.usual);
        }
        // What is counted between two pieces of work goes with the next one.
        let mut account = Account::here();
        while let Some((job, is_urgent)) = self.next(kind, &mut account) {
            account.cpu = Account::here().cpu;
            if self.crew(kind).misses_another() {
                self.call_starter();
            }
            // Claims fail when a panic drops them; the thread lives on. Whoever drops an object last drops its source, which
            // may panic too.
            if catch_unwind(AssertUnwindSafe(|| self.run(job, &mut account))).is_err() {
                // A claim that is dropped tells nobody of faults that are listed for its pages.
                self.serve_listed_soon();
            }
            if !is_urgent {
                self.leave_place(kind);
            }
        }
        self.crew(kind).has_lost_one();
    }

    fn run(&self, job: Job, account: &mut Account) {
        match job {
            Job::Fill { object, claim, wanted, then } => {
                // A map that is dropped waits for this, and so for the job's hold on its object: both go together.
                let _entered = then.enter(account.cpu);
                read_claim(&object, claim, wanted, then, account);
                drop(object);
            }
            Job::Again(reading) => reading.try_again(),
            Job::Step(step) => step.run(account),
            Job::Listed => serve_listed(self, account),
            Job::Whole(became) => became.give(),
            Job::Drop(going) => drop(going),
        }
    }

    /// The next piece of work, and whether it is urgent; `None` when this thread has to end.
    fn next(&self, kind: Kind, account: &mut Account) -> Option<(Job, bool)> {
        let crew = self.crew(kind);
        loop {
            let calls = crew.calls();
            if let Some(job) = self.pop(kind, account) {
                return Some(job);
            }
            let stopped = self.stop.load(Ordering::SeqCst) != 0;
            if stopped {
                return None;
            }
            if crew.sleep(calls) == Slept::TooLong {
                let last = self.pop(kind, account);
                // Another may have found no place while this one held one to look; it does not look again by itself.
                if last.is_none() && self.has_work(kind) {
                    crew.call_one();
                }
                return last;
            }
        }
    }

    fn pop(&self, kind: Kind, account: &mut Account) -> Option<(Job, bool)> {
        if kind == Kind::Prompt
            && let Some(job) = self.pop_urgent(account)
        {
            return Some((job, true));
        }
        if !self.take_place() {
            return None;
        }
        let job = match kind {
            Kind::Prompt => self.pop_wanted().inspect(|_| {
                self.begun.fetch_add(1, Ordering::SeqCst);
            }),
            Kind::Background if !self.has_work(Kind::Prompt) => self.ahead.pop(),
            Kind::Background => None,
        };
        if job.is_none() {
            self.leave_place(kind);
        }
        job.map(|job| (job, false))
    }

    fn has_work(&self, kind: Kind) -> bool {
        match kind {
            Kind::Prompt => !self.wanted.lock().anyway().is_empty(),
            Kind::Background => !self.ahead.is_empty(),
        }
    }

    /// The next of what somebody waits for. Threads that were called for reads ahead and found some of it sleep again: with the last of it they
    /// are called once more.
    fn pop_wanted(&self) -> Option<Job> {
        let mut wanted = self.wanted.lock().anyway();
        let job = wanted.pop_front()?;
        let is_last = wanted.is_empty();
        drop(wanted);
        if is_last && self.has_work(Kind::Background) {
            self.background.call_all();
        }
        Some(job)
    }

    fn pop_urgent(&self, account: &mut Account) -> Option<Job> {
        if self.listed_due.swap(0, Ordering::SeqCst) != 0 {
            return Some(Job::Listed);
        }
        self.pop_pushed().or_else(|| {
            let before = account.tally;
            let job = account.lock(&self.urgent_more).pop_front();
            match job {
                Some(_) => _ = self.popped.fetch_add(1, Ordering::SeqCst),
                // It works for no fault.
                None => account.tally = before,
            }
            job
        })
    }

    /// The next of what signal handlers pushed.
    fn pop_pushed(&self) -> Option<Job> {
        let job = self.urgent.pop()?;
        self.popped.fetch_add(1, Ordering::SeqCst);
        wake(&self.popped, 1);
        Some(job)
    }

    /// One more at work that is not urgent; false where there are as many as there may be.
    fn take_place(&self) -> bool {
        let has_room = |busy| (busy < self.limit).then_some(busy + 1);
        self.busy.fetch_update(Ordering::SeqCst, Ordering::SeqCst, has_room).is_ok()
    }

    /// One less: the other kind is called where it may have found no place. Threads of this kind need no call: this one
    /// looks again.
    fn leave_place(&self, kind: Kind) {
        self.busy.fetch_sub(1, Ordering::SeqCst);
        let is_wanted = self.has_work(Kind::Prompt);
        match kind {
            Kind::Background if is_wanted => self.prompt.call_one(),
            Kind::Prompt if !is_wanted && self.has_work(Kind::Background) => self.background.call_one(),
            _ => {}
        }
    }

    /// Ends what takes too long, until the end.
    fn look_after(&self, deadline: Duration) {
        let tick = (deadline / DEADLINE_PARTS).clamp(TICK_MIN, TICK_MAX);
        let now = Instant::now();
        let [mut pushed, mut more, mut wanted] = [(); 3].map(|()| Stuck { taken: 0, waiting: 0, since: now });
        let mut account = Account::here();
        while self.stop.load(Ordering::SeqCst) == 0 {
            wait_for(&self.stop, 0, tick);
            let now = Instant::now();
            let flights = std::mem::take(&mut *self.flights.lock().anyway());
            let (ended, left): (Vec<_>, Vec<_>) = flights.into_iter().partition(|flight| flight.expire(now));
            self.flights.lock().anyway().extend(left);
            ended.into_iter().for_each(Flight::let_go);

            let [popped, begun] = [&self.popped, &self.begun].map(|taken| taken.load(Ordering::SeqCst));
            // Where there is a place for it, work for ranges waits for threads that urgent work has taken.
            let has_place = self.busy.load(Ordering::SeqCst) < self.limit;
            let begun = begun.wrapping_add(if has_place { popped } else { 0 });
            let late = pushed.late(popped, self.urgent.len(), now, deadline);
            (0..late).filter_map(|_| self.pop_pushed()).for_each(|job| self.expire(job));
            let late = more.late(popped, self.urgent_more.lock().anyway().len(), now, deadline);
            let next = |_| self.urgent_more.lock().anyway().pop_front();
            (0..late).filter_map(next).for_each(|job| self.expire(job));
            let late = wanted.late(begun, self.wanted.lock().anyway().len(), now, deadline);
            (0..late).filter_map(|_| self.pop_wanted()).for_each(|job| self.expire(job));
            // Faults that were listed for pages which failed by now.
            if self.listed_due.swap(0, Ordering::SeqCst) != 0 {
                account.cpu = Account::here().cpu;
                serve_listed(self, &mut account);
            }
        }
    }

    /// Nobody came to do `job` in time.
    fn expire(&self, job: Job) {
        match job {
            Job::Fill { object, claim, wanted, then } => request::expire(object, claim, wanted, then),
            Job::Step(step) => step.expire(),
            // Nobody waits for it, or it has a deadline of its own.
            other => self.push(other),
        }
    }
}

impl Stuck {
    /// How many, from the first on, wait while nothing was taken for as long as `deadline`.
    fn late(&mut self, taken: u32, waiting: usize, now: Instant, deadline: Duration) -> usize {
        let is_stuck = taken == self.taken && self.waiting > 0;
        if is_stuck && now - self.since < deadline {
            return 0;
        }
        let late = if is_stuck { self.waiting } else { 0 };
        *self = Self { taken, waiting: waiting.saturating_sub(late), since: now };
        late
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::sync::mpsc;

    use prepage_core::PageIndex;
    use prepage_sys::userfaultfd::Message;
    use prepage_testing::{Doctor, Need, unless_refused};

    use super::*;
    use crate::error::MapError;
    use crate::handler::serve_message;
    use crate::pages::Seen;
    use crate::sync::thread_number;
    use crate::{MapOptions, Mode, Source, SourceError, Vm, VmOptions};

    struct Zeros;

    impl Source for Zeros {
        fn len_bytes(&self) -> u64 {
            prepage_core::PAGE_SIZE
        }

        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            into.fill(0);
            Ok(())
        }
    }

    /// Whether the thread of this number sleeps in the kernel.
    fn sleeps(number: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{number}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('S')
    }

    /// What `work` gives, of which all that can wait waits for `lock`, and does so while the caller holds that: `is_there` tells when.
    fn meets<L, T: Send>(lock: &Mutex<L>, is_there: impl Fn() -> bool, work: impl FnOnce() -> T + Send) -> T
    where
        L: Send,
    {
        std::thread::scope(|scope| {
            let held = lock.lock().anyway();
            let (tell, told) = mpsc::channel();
            let working = scope.spawn(move || {
                tell.send(thread_number()).unwrap();
                work()
            });
            let number = told.recv().unwrap();
            let began = Instant::now();
            // It may sleep for a moment for something else.
            let mut awake = began;
            while awake.elapsed() < Duration::from_millis(20) {
                assert!(began.elapsed() < Duration::from_secs(60), "it does not wait");
                if !is_there() || !sleeps(number) {
                    awake = Instant::now();
                }
                std::thread::yield_now();
            }
            drop(held);
            working.join().unwrap()
        })
    }

    #[test]
    fn who_finds_a_lock_held_for_a_fault_counts_it() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.source("zeros", Zeros).unwrap();
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let options = MapOptions::shared().mode(Mode::Handler);
        let Some(map) = unless_refused(vm.map(&object, &options), need, refused) else { return };
        let jobs = &vm.core.jobs;
        let waits = || vm.statistics().counted.lock_waits;
        assert_eq!(waits(), 0);
        // A fault that is handed over.
        let page = PageIndex(0);
        let is_claimed = || object.core.frames().unwrap().pages.see(page) == Seen::Filling;
        let message = Message { address: map.address(), tid: 1, write: false, protected: false };
        meets(&jobs.urgent_more, is_claimed, || serve_message(&map.core.space, &message));
        assert!(waits() >= 1);
        // And who looks for faults that are listed.
        let account = meets(
            &jobs.listed,
            || true,
            || {
                let mut account = Account::here();
                serve_listed(jobs, &mut account);
                account
            },
        );
        assert_eq!(account.tally.lock_waits, 1);
    }

    #[test]
    fn reads_ahead_begin_with_the_last_work_that_somebody_waits_for() {
        let jobs = Jobs::start(4, None).unwrap();
        jobs.stop();
        jobs.wait_for_threads();
        jobs.wanted.lock().anyway().push_back(Job::Listed);
        assert!((0..2).all(|_| jobs.ahead.push(Job::Listed).is_ok()));
        // A thread that was called for them leaves its place to what is waited for, and sleeps.
        let calls = jobs.background.calls();
        let mut account = Account::here();
        assert!(jobs.pop(Kind::Background, &mut account).is_none());
        assert_eq!(jobs.background.calls(), calls);
        assert!(jobs.pop(Kind::Prompt, &mut account).is_some());
        assert_ne!(jobs.background.calls(), calls, "there are places for them, and nobody takes one");
        assert!((0..2).all(|_| jobs.pop(Kind::Background, &mut account).is_some()));
    }

    /// Asks for patience, always.
    struct Busy;

    const READS: u64 = 300;

    impl Source for Busy {
        fn len_bytes(&self) -> u64 {
            (READS + 1) * prepage_core::PAGE_SIZE
        }

        fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
            Err(SourceError::Again)
        }
    }

    /// As where a store asks for patience after hundreds of reads ahead: they leave the threads, and their pages, to touches.
    #[test]
    fn a_read_that_is_to_be_tried_again_waits_without_a_thread() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.source("busy", Busy).unwrap();
        let map = vm.map(&object, &MapOptions::shared()).unwrap();
        let (jobs, pages) = (&vm.core.jobs, &object.core.frames().unwrap().pages);
        // What is done from here on is done here.
        jobs.stop();
        jobs.wait_for_threads();
        let mut account = Account::here();
        let mut do_all = |kind| {
            let mut done = 0_u64;
            while let Some((job, is_urgent)) = jobs.pop(kind, &mut account) {
                jobs.run(job, &mut account);
                if !is_urgent {
                    jobs.leave_place(kind);
                }
                done += 1;
            }
            done
        };
        for page in 0..READS {
            map.advise(crate::Advice::WillNeed(PageIndex(page).alone())).unwrap();
        }
        assert_eq!(do_all(Kind::Background), READS);
        // And one that is waited for.
        let wanted = Wanted {
            needed: PageIndex(READS),
            mark: None,
            priority: request::Priority::Demand,
            in_order_for: None,
            whole_grains: true,
        };
        let claim = pages.claim(wanted.needed).unwrap();
        jobs.push(Job::Fill { object: Arc::clone(&object.core), claim, wanted, then: Then::Wake });
        assert_eq!(do_all(Kind::Prompt), 1);
        assert_eq!(vm.statistics().counted.retries, READS + 1);
        let are_free = || (0..READS).all(|page| pages.see(PageIndex(page)) == Seen::Absent);
        assert!(are_free() && pages.see(wanted.needed) == Seen::Filling);
        // All are tried as often as they may be.
        loop {
            let left = jobs.push_due();
            let done = [Kind::Background, Kind::Prompt].map(&mut do_all);
            match left {
                Some(left) => std::thread::sleep(left),
                None if done == [0, 0] => break,
                None => {}
            }
        }
        assert_eq!(vm.statistics().counted.retries, (READS + 1) * PAUSES.len() as u64);
        assert!(are_free() && pages.see(wanted.needed) == Seen::Failed(crate::reason::AGAIN));
    }
}
