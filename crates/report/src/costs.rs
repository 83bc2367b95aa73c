//! Counts, costs and percentiles of the faults of one kind.

use hdrhistogram::Histogram;
use prepage_core::{Fault, Tally};

/// Digits that percentiles are exact to.
const DIGITS: u8 = 3;
/// The same where there may be thousands of groups: a tenth of the memory.
const COARSE_DIGITS: u8 = 2;

/// Faults of one kind: their tally and, where it was asked for, how many cost how much.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Counts and sums.
    pub tally: Tally,
    histogram: Option<Histogram<u64>>,
}

impl Costs {
    /// No faults yet, of which percentiles will be known within 0.1 %.
    pub fn with_percentiles() -> Self {
        Self::with_digits(DIGITS)
    }

    /// No faults yet, of which percentiles will be known within 1 %.
    pub fn with_coarse_percentiles() -> Self {
        Self::with_digits(COARSE_DIGITS)
    }

    fn with_digits(digits: u8) -> Self {
        let histogram = Histogram::new(digits).expect("a number of digits that the histogram knows");
        Self { tally: Tally::default(), histogram: Some(histogram) }
    }

    /// Counts `fault`.
    pub fn add(&mut self, fault: &Fault) {
        self.tally.add(fault);
        if let (Some(histogram), Some(cost_ns)) = (&mut self.histogram, fault.cost_ns) {
            histogram.record(cost_ns).expect("a histogram that grows takes every value");
        }
    }

    /// Counts the faults of `other` too. Percentiles stay known where both sides know theirs.
    pub fn merge(&mut self, other: &Self) {
        match (&mut self.histogram, &other.histogram) {
            (Some(ours), Some(theirs)) => ours.add(theirs).expect("histograms that grow take every value"),
            (None, Some(theirs)) if self.tally.timed == 0 => self.histogram = Some(theirs.clone()),
            (Some(_), None) if other.tally.timed > 0 => self.histogram = None,
            _ => {}
        }
        self.tally.merge(&other.tally);
    }

    /// The cost that `percent` of the faults do not exceed, in nanoseconds; `None` where no cost or no percentiles are known.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let histogram = self.histogram.as_ref().filter(|histogram| !histogram.is_empty())?;
        Some(histogram.value_at_percentile(percent).min(self.tally.max_ns))
    }

    /// How many faults cost how much: pairs of a cost in nanoseconds, exact to three digits, and a count.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let recorded = self.histogram.iter().flat_map(|histogram| histogram.iter_recorded());
        recorded.map(|value| (value.value_iterated_to(), value.count_at_value()))
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::{FaultClass, ThreadIndex};

    use super::*;

    fn fault(class: FaultClass, cost_ns: Option<u64>) -> Fault {
        Fault { cost_ns, ..Fault::new(0, ThreadIndex(0), 0, class) }
    }

    #[test]
    fn parts_make_the_same_whole() {
        let faults: Vec<Fault> = (0..1000)
            .map(|at| fault(FaultClass::ALL[at % 6], (at % 7 != 0).then_some(at as u64 * at as u64)))
            .collect();
        let tally = |faults: &[Fault]| {
            let mut tally = Costs::with_percentiles();
            faults.iter().for_each(|fault| tally.add(fault));
            tally
        };
        let whole = tally(&faults);
        let mut parts = Costs::default();
        faults.chunks(123).for_each(|part| parts.merge(&tally(part)));
        assert_eq!(whole.tally, parts.tally);
        for percent in [0.0, 50.0, 99.0, 100.0] {
            assert_eq!(whole.percentile_ns(percent), parts.percentile_ns(percent));
        }
        let mut costs: Vec<u64> = faults.iter().filter_map(|fault| fault.cost_ns).collect();
        costs.sort_unstable();
        let median = costs[(costs.len() - 1) / 2] as f64;
        let found = whole.percentile_ns(50.0).expect("costs are known") as f64;
        assert!((found / median - 1.0).abs() < 0.002, "{found} for {median}");
        assert_eq!(whole.counts().map(|(_, count)| count).sum::<u64>(), whole.tally.timed);
    }

    #[test]
    fn costs_beyond_all_reason_do_not_overflow() {
        let mut tally = Costs::with_percentiles();
        tally.add(&fault(FaultClass::Disk, Some(u64::MAX)));
        tally.add(&fault(FaultClass::Disk, Some(u64::MAX)));
        assert_eq!((tally.tally.cost_ns, tally.tally.max_ns), (u64::MAX, u64::MAX));
        assert!(tally.percentile_ns(99.0) > Some(u64::MAX / 2));
    }

    #[test]
    fn without_costs_there_is_no_mean() {
        let mut tally = Costs::with_percentiles();
        tally.add(&fault(FaultClass::Failed, None));
        assert_eq!((tally.tally.mean_ns(), tally.percentile_ns(50.0)), (None, None));
    }
}
