//! Sections of code, and waiting until those that began earlier have ended.
//!
//! Who uses what another may take away enters a section first. Who takes it away first makes sure that no new section
//! finds it, and then waits here for the sections that began before. Frames are taken from maps so, and maps from
//! faults.

use crate::made_once::MadeOnce;
use crate::sync::{Anyway, AtomicU32, Mutex, Ordering, seq_cst, wait, wake, yield_now};

/// At most so many counters a phase: beyond it CPUs share.
const MOST_SHARDS: usize = 16;

/// How often a waiter looks before it sleeps: sections that map pages last a microsecond.
const LOOKS: u32 = 64;

/// Alone on its cache lines.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Counter(AtomicU32);

/// Counts the sections that run, by the phase in which they began.
///
/// Lock legend: (a) atomic, changed by any thread; (w) changed by the holder of `waiting` alone, read by all; (c) constant.
#[derive(Debug)]
pub struct Sections {
    /// (w) Which half of `running` new sections count themselves in.
    phase: AtomicU32,
    /// (w) Whether somebody sleeps until a counter is 0.
    sleeper: AtomicU32,
    /// (a) Two halves of `shards` counters each.
    running: Box<[Counter]>,
    /// (c) A power of two.
    shards: usize,
    /// Held by the one who waits.
    waiting: Mutex<()>,
}

/// A section; it ends when this is dropped.
#[derive(Debug)]
pub struct Section<'a> {
    sections: &'a Sections,
    running: &'a AtomicU32,
}

impl Default for Sections {
    fn default() -> Self {
        Self::new(default_shards())
    }
}

impl Sections {
    fn new(shards: usize) -> Self {
        Self {
            phase: AtomicU32::new(0),
            sleeper: AtomicU32::new(0),
            running: (0..2 * shards).map(|_| Counter::default()).collect(),
            shards,
            waiting: Mutex::new(()),
        }
    }

    /// Begins a section: one atomic operation, and one when it ends. Never waits, and may be called in signal handlers;
    /// `hint` (a CPU's number) spreads the counting.
    pub fn enter(&self, hint: usize) -> Section<'_> {
        let phase = self.phase.load(Ordering::SeqCst) as usize & 1;
        let running = &self.running[phase * self.shards + (hint & (self.shards - 1))].0;
        running.fetch_add(1, Ordering::SeqCst);
        seq_cst();
        Section { sections: self, running }
    }

    /// Returns when all sections that had begun before have ended.
    pub fn wait(&self) {
        let _waiting = self.waiting.lock().anyway();
        // Twice: a section may have read the phase before the first change and count itself after it.
        for _ in 0..2 {
            let old = self.phase.fetch_add(1, Ordering::SeqCst) as usize & 1;
            seq_cst();
            for running in &self.running[old * self.shards..][..self.shards] {
                self.wait_for(&running.0);
            }
        }
    }

    /// The counters, a bit each, whose sections that had begun before have ended. Never waits. Who has seen all of
    /// [`Self::counters`] in looks since some moment knows that all sections that had begun by then have ended, and does sooner
    /// or later, whatever begins meanwhile.
    pub fn ended(&self) -> u32 {
        // A section counts itself where nobody else takes the count away: a counter that is 0 says that all those that began
        // before this look have ended.
        seq_cst();
        let counters = (0..).zip(&self.running);
        let ended = counters.filter(|(_, running)| running.0.load(Ordering::SeqCst) == 0);
        let ended = ended.fold(0, |ended, (at, _)| ended | 1 << at);
        // Who waits changes the phase himself.
        if let Some(_waiting) = self.waiting.try_lock().anyway() {
            let is_first = self.phase.load(Ordering::SeqCst) & 1 == 0;
            let others = ((1 << self.shards) - 1) << if is_first { self.shards } else { 0 };
            if ended & others == others {
                // From here on sections begin there, and those that are counted here end.
                self.phase.fetch_add(1, Ordering::SeqCst);
            }
        }
        ended
    }

    /// All counters.
    pub fn counters(&self) -> u32 {
        u32::MAX >> (u32::BITS as usize - self.running.len())
    }

    fn wait_for(&self, running: &AtomicU32) {
        for _ in 0..if cfg!(any(feature = "shuttle", feature = "loom")) { 0 } else { LOOKS } {
            if running.load(Ordering::SeqCst) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        // The sleeper is known before it looks again, and a section that ends looks for one after it changed the counter:
        // one of the two sees the other.
        self.sleeper.store(1, Ordering::SeqCst);
        seq_cst();
        loop {
            let now = running.load(Ordering::SeqCst);
            if now == 0 {
                break;
            }
            if cfg!(feature = "loom") {
                yield_now();
            } else {
                wait(running, now);
            }
        }
        self.sleeper.store(0, Ordering::SeqCst);
    }

    /// What a section counter takes in memory, in bytes.
    pub fn bytes(&self) -> u64 {
        (size_of::<Self>() + size_of_val(&*self.running)) as u64
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let before = self.running.fetch_sub(1, Ordering::SeqCst);
        seq_cst();
        if before == 1 && self.sections.sleeper.load(Ordering::SeqCst) != 0 {
            wake(self.running, 1);
        }
    }
}

/// As many as CPUs, up to a limit.
fn default_shards() -> usize {
    static SHARDS: MadeOnce<usize> = MadeOnce::new();
    *SHARDS.get_or_make(|| {
        if cfg!(any(feature = "shuttle", feature = "loom")) {
            return 1;
        }
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        cpus.next_power_of_two().min(MOST_SHARDS)
    })
}
