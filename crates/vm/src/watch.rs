//! Which of the threads that answer messages wait for one.
//!
//! ```text
//!            call                       answers alone: steps aside for a message
//!   rests ────────► waits ────────────────────────────────────────────────────────┐
//!     ▲               │  ▲                                                        ▼
//!     │  other CPUs   │  └── own CPU ── asked ◄── each of the others that waits ───┘
//!     └───────────────┴───── other CPU ───┘
//! ```
//! A message wakes every thread that waits, and the sleep in read(2) ends by a message alone. A thread that answers none does not learn that it is
//! woken in vain each time, which takes whoever faults longer than the answer. So a thread that sees faults of its own CPU, and that nobody
//! else answers any, steps aside for one message. Whoever gets that looks where it came from, calls the thread of that CPU, and rests.
//!
//! A thread is started when it is called first: on CPUs without faults there is none. It counts as waiting only once it
//! runs, and the others go on until then: whoever starts it may wait for the allocator, which a thread may hold that waits for an answer.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use prepage_sys::process_stat::CpuOfThread;

use crate::sync::{AtomicU32, Ordering, wait, wait_for, wake};

/// With so many CPUs or fewer there is a thread for each from the beginning, and all wait at first, and where CPUs are busy.
const ALL_WAIT: usize = 4;
/// After so many messages that a thread answers it looks at one, to see where the thread that faulted runs: a look takes half as long as an answer. The
/// answers to a thread that has moved to another CPU meanwhile take several times as long.
const LOOK: u32 = 4;
/// And after so many, once it saw its own CPU [`SURE`] times in a row.
const LOOK_SURE: u32 = 32;
const SURE: u32 = 4;
/// A CPU is busy where a thread waits for it so long for each message.
const BUSY_NS: u64 = 50_000;
/// A thread leaves waiting to others once it saw other CPUs so many times in a row.
const STRAY: u32 = 3;
/// A thread that stepped aside comes back after this time: the others may have to wait for their CPUs.
const ASIDE: Duration = Duration::from_millis(1);

/// A thread is not there.
const NONE: u32 = 0;
/// It is to be started.
const CALLED: u32 = 1;
/// Somebody starts it, and it waits once it runs.
const STARTING: u32 = 2;
/// What it does while it has nothing to answer: nothing.
const RESTS: u32 = 3;
/// It waits for a message.
const WAITS: u32 = 4;
/// It waits, and looks at its next message.
const ASKED: u32 = 5;

/// The threads that answer the messages of one descriptor, by their CPUs, and which of them wait.
///
/// Lock legend: (c) constant; (a) atomic; (f) atomic, slept on.
#[derive(Debug)]
pub(crate) struct Watch {
    /// (c) The CPUs of whoever made the first map: others may be as good.
    usual: Box<[usize]>,
    /// (f) What the thread of each CPU does. Those that rest sleep on it.
    does: Box<[AtomicU32]>,
    /// (f) How many threads run and do not rest; for a moment fewer are counted, never more. Whoever starts the first sleeps on it.
    waiting: AtomicU32,
    /// (a) Messages that were read, by all.
    read: AtomicU32,
    /// (f) Changes when a thread is to be started; whoever starts them sleeps on it.
    called: AtomicU32,
}

/// What one thread saw when it looked where faults happened.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Messages before the next look.
    left: u32,
    /// Messages since the last look, this thread's and of all threads at that time.
    own_read: u32,
    read: u32,
    /// Looks in a row that saw its own CPU, and others.
    own: u32,
    others: u32,
    /// Looks in a row that saw its own CPU while no other thread had a message.
    alone: u32,
    cpus: CpuOfThread,
    /// Where the kernel tells how long this thread has waited for its CPU.
    delay: Option<File>,
    delay_ns: u64,
}

/// Where a thread is that answers messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CpuMatch {
    /// On the CPU of the fault.
    Right,
    /// There, and there are faults nowhere else.
    Alone,
    /// On another.
    Other,
    /// On another time and again.
    Wrong,
    /// On a CPU that it has to wait for.
    Busy,
}

impl Watch {
    /// For CPUs with numbers below `cpus`. The thread of `first` is about to be started.
    pub(crate) fn new(cpus: usize, usual: Box<[usize]>, first: usize) -> Self {
        let watch = Self {
            usual,
            does: (0..cpus).map(|_| AtomicU32::new(NONE)).collect(),
            waiting: AtomicU32::new(0),
            read: AtomicU32::new(0),
            called: AtomicU32::new(0),
        };
        watch.does[first].store(STARTING, Ordering::SeqCst);
        watch
    }

    /// Whether so few CPUs are known that all have a thread.
    fn has_few(&self) -> bool {
        self.usual.len() <= ALL_WAIT && self.threads().count() <= ALL_WAIT
    }

    /// Calls the threads of all usual CPUs, where they are few.
    pub(crate) fn call_few(&self) {
        if self.usual.len() <= ALL_WAIT {
            self.usual.iter().for_each(|&cpu| self.call(cpu));
        }
    }

    /// The CPUs of the threads that are there or about to be.
    fn threads(&self) -> impl Iterator<Item = usize> {
        (0..self.does.len()).filter(|&cpu| self.has_thread(cpu))
    }

    /// Whether the thread of `cpu` is there or about to be.
    pub(crate) fn has_thread(&self, cpu: usize) -> bool {
        self.does[cpu].load(Ordering::SeqCst) != NONE
    }

    /// The CPU of a thread that is to be started. Whoever gets it starts it.
    pub(crate) fn take_called(&self) -> Option<usize> {
        let take =
            |does: &AtomicU32| does.compare_exchange(CALLED, STARTING, Ordering::SeqCst, Ordering::SeqCst);
        self.does.iter().position(|does| take(does).is_ok())
    }

    /// What changes with every call of a thread that is not there.
    pub(crate) fn calls(&self) -> u32 {
        self.called.load(Ordering::SeqCst)
    }

    /// Sleeps until a thread is to be started, unless one was called since `calls` was taken.
    pub(crate) fn wait_for_calls(&self, calls: u32) {
        wait(&self.called, calls);
    }

    /// Wakes whoever starts threads.
    pub(crate) fn call_starter(&self) {
        self.called.fetch_add(1, Ordering::SeqCst);
        wake(&self.called, 1);
    }

    /// The thread of `cpu` could not be started.
    pub(crate) fn could_not_start(&self, cpu: usize) {
        self.does[cpu].store(NONE, Ordering::SeqCst);
    }

    /// The thread of CPU `own`, which was about to be started, runs: it waits for messages.
    pub(crate) fn has_started(&self, own: usize) {
        self.does[own].store(WAITS, Ordering::SeqCst);
        self.waiting.fetch_add(1, Ordering::SeqCst);
        wake(&self.waiting, 1);
    }

    /// Sleeps until the first thread has started.
    pub(crate) fn wait_for_first(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            wait(&self.waiting, 0);
        }
    }

    /// Whether it is the turn of the thread of CPU `own` to wait for a message; else sleeps for a while.
    pub(crate) fn is_on(&self, own: usize) -> bool {
        let is_on = self.does[own].load(Ordering::SeqCst) != RESTS;
        if !is_on {
            wait(&self.does[own], RESTS);
        }
        is_on
    }

    /// Whether several threads wait for messages.
    pub(crate) fn others_wait(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 1
    }

    /// Has all threads wait for messages.
    pub(crate) fn call_all(&self) {
        self.threads().for_each(|cpu| self.call(cpu));
    }

    /// The thread of CPU `own` has read a message, of a fault of thread `tid`. Says whether it is to step aside once that is answered.
    pub(crate) fn has_read(&self, own: usize, tid: u32, looks: &mut Looks) -> bool {
        let read = self.read.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let is_due = looks.is_due() || self.does[own].load(Ordering::Relaxed) == ASKED;
        let cpu = if is_due { looks.cpus.of(tid) } else { None };
        if is_due && cpu.is_none() {
            // Who cannot be known now is not asked about at each message.
            looks.left = LOOK;
        }
        cpu.is_some_and(|cpu| self.looked(own, cpu, read, looks))
    }

    /// As [`Self::has_read`], of a fault on `cpu`, the message `read` of all.
    fn looked(&self, own: usize, cpu: usize, read: u32, looks: &mut Looks) -> bool {
        let does = &self.does[own];
        let was_asked = does.compare_exchange(ASKED, WAITS, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        match looks.saw(cpu == own, read) {
            CpuMatch::Right => {}
            CpuMatch::Alone => return true,
            CpuMatch::Busy if self.has_few() => self.call_all(),
            CpuMatch::Other if !was_asked => self.call(cpu),
            // Any other may be free first.
            CpuMatch::Busy if cpu == own => self.call_next(own),
            CpuMatch::Busy => self.call(cpu),
            CpuMatch::Other | CpuMatch::Wrong => {
                self.call(cpu);
                self.rest(own);
            }
        }
        false
    }

    /// Leaves the next message to those of the others that wait, if there are any, and has them look at it.
    pub(crate) fn step_aside(&self, own: usize) {
        let others = self.does.iter().enumerate().filter(|(other, _)| *other != own);
        let ask = |does: &AtomicU32| {
            does.compare_exchange(WAITS, ASKED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        if others.filter(|(_, does)| ask(does)).count() > 0 && self.rest(own) {
            wait_for(&self.does[own], RESTS, ASIDE);
            self.call(own);
        }
    }

    /// Leaves waiting for messages to the others; false where there are none.
    fn rest(&self, own: usize) -> bool {
        let all_but_one = |waiting| (waiting > 1).then(|| waiting - 1);
        let has_others = self.waiting.fetch_update(Ordering::SeqCst, Ordering::SeqCst, all_but_one).is_ok();
        if has_others {
            self.does[own].store(RESTS, Ordering::SeqCst);
        }
        has_others
    }

    /// Has the thread of `cpu` wait for messages too, where it is there; else it is to be started. From a thread that may not allocate.
    fn call(&self, cpu: usize) {
        let Some(does) = self.does.get(cpu) else { return };
        let called = |does| match does {
            NONE => Some(CALLED),
            RESTS => Some(WAITS),
            _ => None,
        };
        let Ok(before) = does.fetch_update(Ordering::SeqCst, Ordering::SeqCst, called) else { return };
        if before == NONE {
            self.call_starter();
        } else {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            wake(does, 1);
        }
    }

    /// Has one more thread wait than that of CPU `own`.
    fn call_next(&self, own: usize) {
        let is_known = |cpu: &usize| self.usual.contains(cpu) || self.has_thread(*cpu);
        let next = (own + 1..self.does.len()).chain(0..own).find(is_known);
        next.into_iter().for_each(|cpu| self.call(cpu));
    }
}

impl Looks {
    /// Those of the calling thread.
    pub(crate) fn of_this_thread() -> Self {
        Self { delay: File::open("/proc/thread-self/schedstat").ok(), ..Self::default() }
    }

    /// One message more; whether it is time to look. A thread that sleeps in its fault is still where that happened; one that was answered may
    /// be anywhere.
    fn is_due(&mut self) -> bool {
        self.own_read = self.own_read.wrapping_add(1);
        let is_due = self.left == 0;
        self.left = self.left.saturating_sub(1);
        is_due
    }

    /// What it saw: a fault on its own CPU or another, when all threads had read so many messages.
    fn saw(&mut self, own: bool, read: u32) -> CpuMatch {
        let own_read = std::mem::replace(&mut self.own_read, 0);
        let is_alone = read.wrapping_sub(std::mem::replace(&mut self.read, read)) == own_read;
        self.left = LOOK;
        if self.waited_ns() > BUSY_NS * u64::from(own_read) {
            (self.own, self.others, self.alone) = (0, 0, 0);
            return CpuMatch::Busy;
        }
        (self.own, self.others) = if own { (self.own + 1, 0) } else { (0, self.others + 1) };
        self.alone = if own && is_alone { self.alone + 1 } else { 0 };
        if !own {
            let is_wrong = self.others >= STRAY;
            self.others = if is_wrong { 0 } else { self.others };
            return if is_wrong { CpuMatch::Wrong } else { CpuMatch::Other };
        }
        // While it may be alone it looks more often: the others are woken in vain.
        if self.own >= SURE && !(1..SURE).contains(&self.alone) {
            self.left = LOOK_SURE;
        }
        // What was in vain is tried ever less often.
        if self.alone >= SURE && self.alone.is_power_of_two() { CpuMatch::Alone } else { CpuMatch::Right }
    }

    /// How long the thread has waited for its CPU since the last look; 0 where the kernel does not tell.
    fn waited_ns(&mut self) -> u64 {
        let mut text = [0; 64];
        let Some(Ok(read)) = self.delay.as_ref().map(|file| file.read_at(&mut text, 0)) else { return 0 };
        let told = std::str::from_utf8(&text[..read]).unwrap_or("").split_ascii_whitespace().nth(1);
        let now = told.and_then(|told| told.parse().ok()).unwrap_or(self.delay_ns);
        let before = std::mem::replace(&mut self.delay_ns, now);
        now.saturating_sub(before)
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::random::SplitMix;

    use super::*;

    /// The threads of two CPUs.
    fn two() -> Watch {
        of(2)
    }

    fn of(cpus: usize) -> Watch {
        let watch = Watch::new(cpus, (0..cpus).collect(), 0);
        watch.has_started(0);
        watch.call_few();
        start(&watch);
        watch
    }

    /// As whoever starts those that are called.
    fn start(watch: &Watch) {
        while let Some(cpu) = watch.take_called() {
            watch.has_started(cpu);
        }
    }

    fn waiting(watch: &Watch) -> Vec<bool> {
        let waits = |does: &AtomicU32| [WAITS, ASKED].contains(&does.load(Ordering::SeqCst));
        let waiting: Vec<_> = watch.does.iter().map(waits).collect();
        assert_eq!(
            waiting.iter().filter(|&&waits| waits).count() as u32,
            watch.waiting.load(Ordering::SeqCst)
        );
        waiting
    }

    /// Thread `index` reads `count` messages of faults on `cpu`; at how many it was to step aside.
    fn reads(watch: &Watch, index: usize, looks: &mut Looks, cpu: usize, count: u32) -> u32 {
        (0..count).fold(0, |aside, _| {
            let read = watch.read.fetch_add(1, Ordering::Relaxed) + 1;
            let is_due = looks.is_due() || watch.does[index].load(Ordering::Relaxed) == ASKED;
            aside + u32::from(is_due && watch.looked(index, cpu, read, looks))
        })
    }

    #[test]
    fn who_is_woken_in_vain_rests_after_one_message() {
        let watch = two();
        let [mut first, mut second] = [Looks::default(), Looks::default()];
        assert_eq!(reads(&watch, 0, &mut first, 0, SURE * (LOOK + 1)), 1);
        std::thread::scope(|scope| {
            let aside = scope.spawn(|| watch.step_aside(0));
            while watch.does[1].load(Ordering::SeqCst) != ASKED {
                std::thread::yield_now();
            }
            assert_eq!(reads(&watch, 1, &mut second, 0, 1), 0);
            aside.join().unwrap();
        });
        assert_eq!(waiting(&watch), [true, false]);
        // There is nobody left to ask.
        watch.step_aside(0);
        assert_eq!(waiting(&watch), [true, false]);
        // The thread that faults moves.
        assert_eq!(reads(&watch, 0, &mut first, 1, LOOK_SURE + 1), 0);
        assert_eq!(waiting(&watch), [true, true]);
    }

    #[test]
    fn threads_that_all_have_faults_of_their_own_go_on() {
        let watch = two();
        let mut looks = [Looks::default(), Looks::default()];
        for _ in 0..20 * LOOK_SURE {
            for cpu in [0, 1] {
                assert_eq!(reads(&watch, cpu, &mut looks[cpu], cpu, 1), 0);
            }
        }
        assert_eq!(waiting(&watch), [true, true]);
        // Asked all the same, one that sees its own CPU stays.
        watch.does[1].store(ASKED, Ordering::SeqCst);
        assert_eq!(reads(&watch, 1, &mut looks[1], 1, 1), 0);
        assert_eq!(watch.does[1].load(Ordering::SeqCst), WAITS);
    }

    /// More CPUs than have all their threads wait from the beginning.
    const MANY: [usize; 3] = [5, 8, 64];

    /// The threads of many CPUs, and what each saw.
    struct Threads {
        watch: Watch,
        looks: Vec<Looks>,
        random: SplitMix,
    }

    impl Threads {
        fn of(cpus: usize) -> Self {
            let looks = (0..cpus).map(|_| Looks::default()).collect();
            Self { watch: of(cpus), looks, random: SplitMix::new(7) }
        }

        /// A fault on `cpu`: its thread has the message where it waits, but for one in `strays`, which any that waits may have. Says which had it.
        fn fault(&mut self, cpu: usize, strays: u64) -> usize {
            let waiting = waiting(&self.watch);
            let first: Vec<usize> = (0..waiting.len()).filter(|&index| waiting[index]).collect();
            assert!(!first.is_empty(), "nobody waits for messages");
            let is_own = waiting[cpu] && self.random.below(strays) != 0;
            let any = first[self.random.below(first.len() as u64) as usize];
            let index = if is_own { cpu } else { any };
            if reads(&self.watch, index, &mut self.looks[index], cpu, 1) == 1 {
                self.watch.step_aside(index);
            }
            start(&self.watch);
            index
        }
    }

    #[test]
    fn of_many_threads_that_of_the_cpu_with_the_faults_waits_alone() {
        for cpus in MANY {
            let mut threads = Threads::of(cpus);
            assert_eq!(waiting(&threads.watch).iter().filter(|&&waits| waits).count(), 1);
            for cpu in (0..cpus).rev().chain([cpus / 2]) {
                // Who is sure looks seldom.
                (0..=LOOK_SURE).for_each(|_| _ = threads.fault(cpu, 4));
                assert!(waiting(&threads.watch)[cpu], "{cpus}: {cpu} is not called");
                (0..40 * LOOK_SURE).for_each(|_| _ = threads.fault(cpu, 4));
                let only: Vec<bool> = (0..cpus).map(|index| index == cpu).collect();
                assert_eq!(waiting(&threads.watch), only, "{cpus}: {cpu}");
            }
        }
    }

    #[test]
    fn of_many_threads_all_wait_where_there_are_faults_on_all_cpus() {
        for cpus in MANY {
            let mut threads = Threads::of(cpus);
            // With messages that others got, and then without.
            for strays in [8, u64::MAX] {
                for _ in 0..400 * cpus {
                    let cpu = threads.random.below(cpus as u64) as usize;
                    threads.fault(cpu, strays);
                }
            }
            assert_eq!(waiting(&threads.watch), vec![true; cpus]);
        }
    }

    #[test]
    fn who_waits_for_its_own_cpu_has_others_wait_too() {
        for cpus in [2].into_iter().chain(MANY) {
            for fault in [0, cpus - 1] {
                let mut threads = Threads::of(cpus);
                let file = tempfile::NamedTempFile::new().unwrap();
                threads.looks[0].delay = Some(file.reopen().unwrap());
                let mut by_others = 0;
                for nth in 0..64 * u64::from(LOOK_SURE) {
                    // 10 ms for each message.
                    std::fs::write(file.path(), format!("1 {} 1\n", nth * 10_000_000)).unwrap();
                    by_others += u32::from(threads.fault(fault, 2) != 0);
                }
                assert!(by_others > 8 * LOOK_SURE, "{cpus}, {fault}: {by_others}");
            }
        }
    }

    #[test]
    fn faults_of_a_cpu_without_a_thread_wait_for_no_thread_that_is_not_there() {
        let (watch, mut looks) = (Watch::new(8, [0].into(), 0), Looks::default());
        watch.has_started(0);
        let mut read = || assert_eq!(reads(&watch, 0, &mut looks, 7, STRAY * (LOOK + 1)), 0);
        // Where all of them are on another CPU, its thread alone is to wait, once it is there.
        read();
        assert_eq!((watch.take_called(), watch.take_called()), (Some(7), None));
        read();
        assert_eq!((waiting(&watch)[0], watch.take_called()), (true, None));
        // It is tried once more.
        watch.could_not_start(7);
        read();
        assert_eq!((waiting(&watch)[0], watch.take_called()), (true, Some(7)));
        watch.has_started(7);
        read();
        assert_eq!(waiting(&watch), [false, false, false, false, false, false, false, true]);
    }

    #[test]
    fn who_cannot_be_known_is_not_looked_for_at_each_message() {
        let (watch, mut looks) = (two(), Looks::default());
        assert!(!watch.has_read(0, u32::MAX, &mut looks));
        assert_eq!(looks.left, LOOK);
    }

    #[test]
    fn who_stepped_aside_comes_back_where_nobody_answers() {
        let watch = two();
        watch.step_aside(0);
        assert_eq!(waiting(&watch), [true, true]);
        assert_eq!(watch.does[1].load(Ordering::SeqCst), ASKED);
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod models {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use super::*;
    use crate::sync::{Anyway, Mutex, spawn, yield_now};

    /// A fault of one of two threads, and its CPU; `None` tells whoever reads it to end.
    type Message = Option<(usize, usize)>;

    /// Threads that answer messages, as those of [`crate::handler`] do.
    struct Model {
        watch: Watch,
        messages: Mutex<VecDeque<Message>>,
        sent: AtomicU32,
        /// Of the faults of each thread.
        answered: [AtomicU32; 2],
        /// Whoever starts a thread needs it, and whoever waits for an answer may hold it.
        allocator: Mutex<()>,
        is_over: AtomicU32,
        /// Of the threads that answer.
        ended: AtomicU32,
    }

    impl Model {
        fn send(&self, message: Message) {
            self.messages.lock().anyway().push_back(message);
            self.sent.fetch_add(1, Ordering::SeqCst);
            wake(&self.sent, 1);
        }

        fn read(&self) -> Message {
            loop {
                let sent = self.sent.load(Ordering::SeqCst);
                if let Some(message) = self.messages.lock().anyway().pop_front() {
                    return message;
                }
                wait(&self.sent, sent);
            }
        }

        /// Thread `toucher` has a fault on each of `cpus`, one after the other.
        fn touch(&self, toucher: usize, cpus: &[usize]) {
            let answered = &self.answered[toucher];
            for (before, &cpu) in (0..).zip(cpus) {
                self.send(Some((toucher, cpu)));
                while answered.load(Ordering::SeqCst) == before {
                    wait(answered, before);
                }
            }
        }

        fn work(&self, own: usize) {
            // A thread gives memory back as it begins.
            drop(self.allocator.lock().anyway());
            self.watch.has_started(own);
            loop {
                if self.is_over.load(Ordering::SeqCst) == 0 && !self.watch.is_on(own) {
                    continue;
                }
                let Some((toucher, cpu)) = self.read() else { break };
                // As after many messages: it leaves waiting to others, or steps aside.
                let mut looks = Looks { own: SURE, others: STRAY - 1, alone: SURE - 1, ..Looks::default() };
                let is_alone = self.watch.looked(own, cpu, 0, &mut looks);
                self.answered[toucher].fetch_add(1, Ordering::SeqCst);
                wake(&self.answered[toucher], 1);
                if is_alone {
                    self.watch.step_aside(own);
                }
            }
            self.ended.fetch_add(1, Ordering::SeqCst);
        }

        /// Starts the threads that are called, every other in vain, and ends all.
        fn start_called(self: &Arc<Self>) {
            let start = |own| {
                let model = Arc::clone(self);
                spawn("prepage-fault", move || model.work(own)).unwrap()
            };
            let mut threads = vec![start(0)];
            let mut is_in_vain = false;
            loop {
                let calls = self.watch.calls();
                while let Some(cpu) = self.watch.take_called() {
                    drop(self.allocator.lock().anyway());
                    is_in_vain = !is_in_vain;
                    if is_in_vain {
                        self.watch.could_not_start(cpu);
                    } else {
                        threads.push(start(cpu));
                    }
                }
                if self.is_over.load(Ordering::SeqCst) != 0 {
                    break;
                }
                self.watch.wait_for_calls(calls);
            }
            self.watch.call_all();
            threads.iter().for_each(|_| self.send(None));
            // Time passes for those that stepped aside.
            while self.ended.load(Ordering::SeqCst) as usize != threads.len() {
                wake(&self.ended, 1);
                yield_now();
            }
        }
    }

    #[test]
    fn model_somebody_reads_each_message() {
        let body = || {
            let model = Arc::new(Model {
                watch: Watch::new(3, [0].into(), 0),
                messages: Mutex::default(),
                sent: AtomicU32::new(0),
                answered: [AtomicU32::new(0), AtomicU32::new(0)],
                allocator: Mutex::default(),
                is_over: AtomicU32::new(0),
                ended: AtomicU32::new(0),
            });
            let others = [Model::start_called, |model: &Arc<Model>| model.touch(1, &[2, 1, 2, 0])];
            let others = others.map(|work| {
                let model = Arc::clone(&model);
                spawn("other", move || work(&model)).unwrap()
            });
            model.watch.wait_for_first();
            let held = model.allocator.lock().anyway();
            model.touch(0, &[1, 1, 2]);
            drop(held);
            let [starter, toucher] = others;
            toucher.join().unwrap();
            model.is_over.store(1, Ordering::SeqCst);
            model.watch.call_starter();
            starter.join().unwrap();
        };
        shuttle::check_random(body, 2000);
    }
}
