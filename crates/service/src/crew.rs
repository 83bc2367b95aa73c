//! Threads that wait for work: made on demand, bounded in number, and replaced where one hangs.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use prepage_prefetch::engine::Work;
use prepage_sys::landlock;
use prepage_sys::scheduling;
use prepage_sys::sync::Anyway;

/// A thread without work ends after this long. Waiting, it takes some 20 KB; made anew for a start, time that the start has not.
const IDLE_MAX: Duration = Duration::from_secs(300);
/// A thread that is at one piece of work for this long hangs, and another may be started in its place. Reads of a start take a
/// second or two on the slowest volumes.
pub(crate) const HANGS_AFTER: Duration = Duration::from_secs(20);
/// Enough for a listing's buffer, an observation and their frames.
const STACK_BYTES: usize = 256 << 10;

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// What a program that starts now will need.
    Start,
    /// What it may need, as far as its relatives tell.
    Guess,
}

/// Threads, and the work that waits for them. Clones are handles to the same ones.
#[derive(Clone, Debug)]
pub struct Crew(Arc<Shared>);

/// Lock order: none, there is one lock.
#[derive(Debug)]
struct Shared {
    name: &'static str,
    threads_max: usize,
    waiting_max: usize,
    only_reads: bool,
    state: Mutex<State>,
    /// There is work, or a thread too many.
    wanted: Condvar,
}

/// Protected by `Shared::state`.
#[derive(Default)]
struct State {
    waiting: [VecDeque<Work>; 2],
    /// Threads that wait for work.
    idle: usize,
    /// When each thread at work began what it is at.
    at_work: HashMap<u64, Instant>,
    next_thread: u64,
}

impl State {
    fn waiting(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("idle", &self.idle)
            .field("at_work", &self.at_work)
            .finish_non_exhaustive()
    }
}

impl Crew {
    /// At most `threads_max` threads, and as many again in place of those that hang; at most `waiting_max` pieces of work of each priority wait.
    pub fn new(name: &'static str, threads_max: usize, waiting_max: usize) -> Self {
        Self(Arc::new(Shared::new(name, threads_max, waiting_max, false)))
    }

    /// One whose threads only read: what they are given names files that somebody else chose.
    pub fn of_readers(name: &'static str, threads_max: usize, waiting_max: usize) -> Self {
        Self(Arc::new(Shared::new(name, threads_max, waiting_max, true)))
    }

    /// Has `work` done as soon as a thread can. Returns whether it will be: it is dropped where too much of that priority waits already.
    pub fn lend(&self, priority: Priority, work: Work) -> bool {
        let mut state = self.0.state.lock().anyway();
        // An idle thread that was woken for other work is idle until it runs.
        if state.waiting() >= state.idle && self.0.may_grow(&state) {
            let number = state.next_thread;
            state.next_thread += 1;
            // It is at work until it says otherwise: the next who asks must not count on it.
            state.at_work.insert(number, Instant::now());
            drop(state);
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().name(self.0.name.into()).stack_size(STACK_BYTES);
            let spawned = thread.spawn(move || shared.serve(number));
            state = self.0.state.lock().anyway();
            if spawned.is_err() {
                state.at_work.remove(&number);
            }
        }
        let has_thread = state.idle + state.at_work.len() > 0;
        let waiting = &mut state.waiting[priority as usize];
        if waiting.len() >= self.0.waiting_max || !has_thread {
            return false;
        }
        waiting.push_back(work);
        drop(state);
        self.0.wanted.notify_one();
        true
    }

    /// How many threads there are, and how many of them hang.
    pub fn threads(&self) -> (usize, usize) {
        let state = self.0.state.lock().anyway();
        (state.idle + state.at_work.len(), hanging(&state))
    }
}

impl Shared {
    fn new(name: &'static str, threads_max: usize, waiting_max: usize, only_reads: bool) -> Self {
        let (state, wanted) = (Mutex::default(), Condvar::new());
        Self { name, threads_max, waiting_max, only_reads, state, wanted }
    }

    fn may_grow(&self, state: &State) -> bool {
        let threads = state.idle + state.at_work.len();
        threads < self.threads_max + hanging(state).min(self.threads_max)
    }

    fn serve(&self, number: u64) {
        // Whoever started it may give way to others.
        let _ = scheduling::as_others();
        if self.only_reads {
            // Where the kernel has no Landlock, `prepage status` says so.
            let _ = landlock::only_read();
        }
        let mut state = self.state.lock().anyway();
        loop {
            state.at_work.remove(&number);
            let Some(work) = state.waiting.iter_mut().find_map(VecDeque::pop_front) else {
                state.idle += 1;
                let (after, timeout) = self.wanted.wait_timeout(state, IDLE_MAX).anyway();
                state = after;
                state.idle -= 1;
                if timeout.timed_out() && state.waiting.iter().all(VecDeque::is_empty) {
                    return;
                }
                continue;
            };
            state.at_work.insert(number, Instant::now());
            drop(state);
            // One piece of work that fails takes no thread from the others.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            state = self.state.lock().anyway();
        }
    }
}

fn hanging(state: &State) -> usize {
    state.at_work.values().filter(|began| began.elapsed() > HANGS_AFTER).count()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn what_matters_more_comes_first_and_what_is_too_much_is_refused() {
        let crew = Crew::new("test", 1, 2);
        let (done, results) = channel();
        let (go, gate) = channel::<()>();
        let (at_gate, began) = channel::<()>();
        assert!(crew.lend(
            Priority::Start,
            Box::new(move || {
                at_gate.send(()).unwrap();
                let _ = gate.recv();
            })
        ));
        began.recv().unwrap();
        let say = |text: &'static str| -> Work {
            let done = done.clone();
            Box::new(move || done.send(text).unwrap())
        };
        assert!(crew.lend(Priority::Guess, say("guess")));
        assert!(crew.lend(Priority::Guess, say("another")));
        assert!(!crew.lend(Priority::Guess, say("too much")));
        assert!(crew.lend(Priority::Start, say("start")), "guesses take no room from it");
        assert!(crew.lend(Priority::Start, Box::new(|| panic!("and the thread goes on"))));
        assert!(!crew.lend(Priority::Start, say("too much")));
        assert_eq!(crew.threads(), (1, 0));
        go.send(()).unwrap();
        assert_eq!([(); 3].map(|()| results.recv().unwrap()), ["start", "guess", "another"]);
    }

    #[test]
    fn what_only_reads_writes_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let write = |crew: Crew| {
            let (done, results) = channel();
            let file = file.clone();
            let work = move || done.send(std::fs::write(&file, "").map_err(|error| error.kind())).unwrap();
            assert!(crew.lend(Priority::Start, Box::new(work)));
            results.recv().unwrap()
        };
        assert_eq!(write(Crew::new("test", 1, 1)), Ok(()));
        let refused = write(Crew::of_readers("test", 1, 1));
        let expected = landlock::version().map_or(Ok(()), |_| Err(std::io::ErrorKind::PermissionDenied));
        assert_eq!(refused, expected);
    }

    #[test]
    fn many_pieces_of_work_are_all_done_by_few_threads() {
        let crew = Crew::new("test", 4, 1000);
        let (done, results) = channel();
        for at in 0..1000u32 {
            let done = done.clone();
            assert!(crew.lend(Priority::Start, Box::new(move || done.send(at).unwrap())));
        }
        let mut all: Vec<u32> = results.iter().take(1000).collect();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..1000) && crew.threads().0 <= 4);
    }
}
