//! Sections of mapping frames, and waiting until those that began earlier have ended.
//!
//! A fault looks at a page's word and then has the kernel map its frame. Who takes a frame away claims the page first,
//! so that no new fault maps it, and then waits here for the faults that looked before. Without it a late one could map a
//! frame that is being filled again.

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicU32, Mutex, Ordering, seq_cst, yield_now};

const SHARDS: usize = 4;

/// Counts the sections that run, by the phase in which they began.
#[derive(Debug, Default)]
pub(crate) struct Grace {
    phase: CachePadded<AtomicU32>,
    running: [[CachePadded<AtomicU32>; SHARDS]; 2],
    /// Held by the one who waits.
    waiting: Mutex<()>,
}

/// A section; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Section<'a>(&'a AtomicU32);

impl Grace {
    /// Begins a section. Never waits; `hint` (a CPU's number) spreads the counting.
    pub(crate) fn enter(&self, hint: usize) -> Section<'_> {
        let phase = self.phase.load(Ordering::SeqCst) as usize & 1;
        let running = &self.running[phase][hint % SHARDS];
        running.fetch_add(1, Ordering::SeqCst);
        seq_cst();
        Section(running)
    }

    /// Returns when all sections that had begun before have ended.
    pub(crate) fn wait(&self) {
        let _waiting = self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Twice: a section may have read the phase before the first change and count itself after it.
        for _ in 0..2 {
            let old = self.phase.fetch_add(1, Ordering::SeqCst) as usize & 1;
            seq_cst();
            for running in &self.running[old] {
                while running.load(Ordering::SeqCst) != 0 {
                    yield_now();
                }
            }
        }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
