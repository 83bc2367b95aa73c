//! How many faults cost how much: bins that widen with the cost.

use prepage_core::FaultClass;

use crate::report::Report;

/// Faults that cost about the same.
#[derive(Clone, Debug, PartialEq)]
pub struct CostBin {
    /// They cost at least this, in nanoseconds.
    pub from_ns: f64,
    /// And less than this.
    pub to_ns: f64,
    /// How many there are, indexed by [`FaultClass`].
    pub counts: [u64; FaultClass::ALL.len()],
}

impl CostBin {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Report {
    /// The faults by cost, in `bins_per_octave` bins from each power of two nanoseconds to the next; from the fastest
    /// to the slowest without gaps.
    pub fn cost_bins(&self, bins_per_octave: u32) -> Vec<CostBin> {
        let per_octave = f64::from(bins_per_octave.max(1));
        let bin_of = |cost_ns: u64| ((cost_ns.max(1) as f64).log2() * per_octave + 1e-9).floor() as usize;
        let costs = || {
            self.classes.iter().enumerate().flat_map(|(class, costs)| {
                costs.counts().map(move |(cost_ns, count)| (class, cost_ns, count))
            })
        };
        let used = || costs().map(|(_, cost_ns, _)| bin_of(cost_ns));
        let (Some(first), Some(last)) = (used().min(), used().max()) else { return Vec::new() };
        let edge = |bin: usize| (bin as f64 / per_octave).exp2();
        let mut bins: Vec<CostBin> = (first..=last)
            .map(|bin| CostBin { from_ns: edge(bin), to_ns: edge(bin + 1), counts: Default::default() })
            .collect();
        for (class, cost_ns, count) in costs() {
            bins[bin_of(cost_ns) - first].counts[class] += count;
        }
        bins
    }
}
