//! Faults with too little memory, rule by rule and size by size.

use std::collections::{BTreeMap, HashMap};
use std::thread;

use crate::input::{Input, InputError};
use crate::replacement::{clock, dont_need, dpmin, fifo, lru, opt, s3_fifo, sizes, two_q, working_set};

prepage_core::named! {
    /// What leaves memory when it is full.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Rule {
        /// The page that came first.
        Fifo = "fifo",
        /// [`clock`].
        Clock = "clock",
        /// [`two_q`].
        TwoQ = "2q",
        /// [`s3_fifo`].
        S3Fifo = "s3-fifo",
        /// [`dont_need`].
        DontNeed = "dont-need",
        /// The page touched longest ago.
        Lru = "lru",
        /// The page needed last: the fewest faults possible.
        Opt = "opt",
        /// [`dpmin`]: the fewest possible where a fault may load many pages.
        Dpmin = "dpmin",
        /// A page not touched for so many touches as the size says: not a memory size but a window.
        WorkingSet = "ws",
    }
}

/// Faults by memory size.
#[derive(Clone, Debug)]
pub struct MemoryFaults {
    /// Touches replayed.
    pub touches: u64,
    /// What was tried.
    pub rules: Vec<Rule>,
    /// Memory in pages, and the faults under each of the rules.
    pub faults: Vec<(u64, Vec<u64>)>,
}

impl MemoryFaults {
    /// For memory of each of `asked` pages; if there are none, of about four sizes for each doubling up to all pages that
    /// are touched.
    ///
    /// Holds all touches in memory. Those of a trace are the first of each page in a process: what its programs use again is not
    /// among them, so that only models and text say what a rule keeps for later.
    ///
    /// # Errors
    /// When the touches cannot be read.
    pub fn of(input: &Input, asked: &[u64], rules: &[Rule]) -> Result<Self, InputError> {
        // One number for a page of any object.
        let mut numbers = HashMap::new();
        let mut touches = Vec::with_capacity(input.count as usize);
        for place in input.pages()? {
            let next = numbers.len() as u64;
            touches.push(*numbers.entry(place).or_insert(next));
        }
        let all = if asked.is_empty() { sizes(numbers.len() as u64) } else { asked.to_vec() };
        drop(numbers);
        let by_lru = rules.contains(&Rule::Lru).then(|| lru(&touches));
        let by_window = rules.contains(&Rule::WorkingSet).then(|| working_set(&touches));
        let one = |rule: &Rule, size: u64| match rule {
            Rule::Fifo => fifo(&touches, size),
            Rule::Clock => clock(&touches, size),
            Rule::TwoQ => two_q(&touches, size),
            Rule::S3Fifo => s3_fifo(&touches, size),
            Rule::DontNeed => dont_need(&touches, size),
            Rule::Lru => by_lru.as_ref().map_or(0, |distances| distances.faults(size)),
            Rule::Opt => opt(&touches, size),
            Rule::Dpmin => dpmin(&touches, size),
            Rule::WorkingSet => by_window.as_ref().map_or(0, |distances| distances.faults(size)),
        };
        let each = |size: u64| rules.iter().map(|rule| one(rule, size)).collect();
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let mut faults: Vec<(u64, Vec<u64>)> = thread::scope(|scope| {
            let part =
                |first| all.iter().skip(first).step_by(threads).map(|&size| (size, each(size))).collect();
            let begin = |first| thread::Builder::new().spawn_scoped(scope, move || -> Vec<_> { part(first) });
            let handles: Vec<_> = (0..threads).map(begin).collect();
            let joined = handles.into_iter().enumerate().map(|(first, handle)| match handle {
                Ok(handle) => handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                // This user may start no more threads.
                Err(_) => part(first),
            });
            joined.flatten().collect()
        });
        faults.sort_unstable();
        Ok(Self { touches: input.count, rules: rules.to_vec(), faults })
    }

    /// The names of the rules.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.rules.iter().map(|rule| rule.name())
    }

    /// The faults by rule, then by size.
    pub fn by_rule(&self) -> BTreeMap<&'static str, BTreeMap<u64, u64>> {
        let of = |at: usize| self.faults.iter().map(move |(size, faults)| (*size, faults[at])).collect();
        self.names().enumerate().map(|(at, rule)| (rule, of(at))).collect()
    }
}
