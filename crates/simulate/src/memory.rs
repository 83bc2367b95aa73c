//! Faults with too little memory, rule by rule and size by size.

use std::collections::BTreeMap;
use std::thread;

use prepage_core::simulate::replacement::{dpmin, fifo, lru, opt, sizes, working_set};

use crate::input::{Input, InputError};

/// The rules, in the order of [`MemoryFaults::faults`]. For the last, a size is a window in touches.
pub const RULES: [&str; 5] = ["fifo", "lru", "opt", "dpmin", "ws"];

/// Faults by memory size.
#[derive(Clone, Debug)]
pub struct MemoryFaults {
    /// Touches replayed.
    pub touches: u64,
    /// Memory in pages, and the faults under each of [`RULES`].
    pub faults: Vec<(u64, [u64; RULES.len()])>,
}

impl MemoryFaults {
    /// For memory of each of `asked` pages; if there are none, of about four sizes for each doubling up to all pages that
    /// are touched.
    ///
    /// Holds all touches in memory.
    ///
    /// # Errors
    /// When the touches cannot be read.
    pub fn of(input: &Input, asked: &[u64]) -> Result<Self, InputError> {
        // One number for a page of any object.
        let mut numbers = BTreeMap::new();
        let mut touches = Vec::with_capacity(input.count as usize);
        for place in input.pages()? {
            let next = numbers.len() as u64;
            touches.push(*numbers.entry(place).or_insert(next));
        }
        let all = if asked.is_empty() { sizes(numbers.len() as u64) } else { asked.to_vec() };
        let (by_lru, by_window) = (lru(&touches), working_set(&touches));
        let one = |size: u64| {
            [
                fifo(&touches, size),
                by_lru.faults(size),
                opt(&touches, size),
                dpmin(&touches, size),
                by_window.faults(size),
            ]
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut faults: Vec<_> = thread::scope(|scope| {
            let part =
                |first| all.iter().skip(first).step_by(threads).map(|&size| (size, one(size))).collect();
            let handles: Vec<_> =
                (0..threads).map(|first| scope.spawn(move || -> Vec<_> { part(first) })).collect();
            let joined = handles.into_iter().map(|handle| handle.join());
            joined.flat_map(|part| part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        });
        faults.sort_unstable();
        Ok(Self { touches: input.count, faults })
    }

    /// The faults by rule, then by size.
    pub fn by_rule(&self) -> BTreeMap<&'static str, BTreeMap<u64, u64>> {
        let of = |at: usize| self.faults.iter().map(move |(size, faults)| (*size, faults[at])).collect();
        RULES.iter().enumerate().map(|(at, rule)| (*rule, of(at))).collect()
    }
}
