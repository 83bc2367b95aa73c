//! When a read is done, and answering it then.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use prepage_sys::sync::Anyway;

/// How slow. Zero stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pace {
    latency: Duration,
    reads_per_second: u64,
    bytes_per_second: u64,
}

impl Pace {
    /// `MICROSECONDS READS_PER_SECOND MEGABYTES_PER_SECOND`.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_ascii_whitespace().map(|word| word.parse::<u32>().ok());
        let [latency_us, reads_per_second, megabytes_per_second] =
            [numbers.next()??, numbers.next()??, numbers.next()??];
        numbers.next().is_none().then_some(Self {
            latency: Duration::from_micros(latency_us.into()),
            reads_per_second: reads_per_second.into(),
            bytes_per_second: u64::from(megabytes_per_second) * 1_000_000,
        })
    }

    /// How long a read keeps others from being served: the longer of what its being a read and what its bytes take.
    fn service(&self, bytes: u64) -> Duration {
        let per_second = |count: u64, rate: u64| match rate {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(count * 1_000_000_000 / rate),
        };
        per_second(1, self.reads_per_second).max(per_second(bytes, self.bytes_per_second))
    }
}

/// Serves reads one after the other at the rate of a [`Pace`], and answers each its latency later. Nothing is saved up
/// for bursts.
pub struct Server<R> {
    shared: Arc<Shared<R>>,
}

struct Shared<R> {
    state: Mutex<State<R>>,
    earlier: Condvar,
}

struct State<R> {
    pace: Pace,
    /// When the read accepted last has been served.
    free_at: Instant,
    /// Answers by when they are due; the number tells equal times apart.
    order: BinaryHeap<Reverse<(Instant, u64)>>,
    answers: BTreeMap<u64, (R, Vec<u8>)>,
    next: u64,
}

impl<R: Send + 'static> Server<R> {
    /// A server that gives its answers by `give`.
    pub fn new(give: impl Fn(R, &[u8]) + Send + 'static) -> Self {
        let state = State {
            pace: Pace::default(),
            free_at: Instant::now(),
            order: BinaryHeap::new(),
            answers: BTreeMap::new(),
            next: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), earlier: Condvar::new() });
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || theirs.give_answers(give));
        Self { shared }
    }

    /// Another pace, from the next read on.
    pub fn set(&self, pace: Pace) {
        self.shared.state.lock().anyway().pace = pace;
    }

    /// When a read of `bytes` that came at `arrived` is done.
    pub fn due(&self, arrived: Instant, bytes: u64) -> Instant {
        let mut state = self.shared.state.lock().anyway();
        let served = state.free_at.max(arrived) + state.pace.service(bytes);
        state.free_at = served;
        served + state.pace.latency
    }

    /// Answers then.
    pub fn answer_at(&self, due: Instant, to: R, bytes: Vec<u8>) {
        let mut state = self.shared.state.lock().anyway();
        let number = state.next;
        state.next += 1;
        state.order.push(Reverse((due, number)));
        state.answers.insert(number, (to, bytes));
        let is_first = state.order.peek().is_some_and(|Reverse(first)| first.1 == number);
        drop(state);
        if is_first {
            self.shared.earlier.notify_one();
        }
    }
}

impl<R> Shared<R> {
    fn give_answers(&self, give: impl Fn(R, &[u8])) {
        let mut state = self.state.lock().anyway();
        loop {
            let Some(&Reverse((due, number))) = state.order.peek() else {
                state = self.earlier.wait(state).anyway();
                continue;
            };
            let left = due.saturating_duration_since(Instant::now());
            if !left.is_zero() {
                state = self.earlier.wait_timeout(state, left).anyway().0;
                continue;
            }
            state.order.pop();
            let answer = state.answers.remove(&number);
            drop(state);
            if let Some((to, bytes)) = answer {
                give(to, &bytes);
            }
            state = self.state.lock().anyway();
        }
    }
}
