//! Counts and costs of the faults of one kind.

use hdrhistogram::Histogram;
use prepage_core::{Fault, FaultClass};

/// Digits that percentiles are exact to.
const DIGITS: u8 = 3;
/// The same where there may be thousands of tallies: a tenth of the memory.
const COARSE_DIGITS: u8 = 2;

/// Faults of one kind, together.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// How many.
    pub count: u64,
    /// Of how many the cost is known.
    pub timed: u64,
    /// The cost of those, together.
    pub cost_ns: u64,
    /// The cost of the dearest.
    pub max_ns: u64,
    /// How many read from a device.
    pub disk: u64,
    /// The cost of those that read from a device.
    pub disk_ns: u64,
    costs: Option<Histogram<u64>>,
}

impl Tally {
    /// An empty tally that will know percentiles, within 0.1 %.
    pub fn with_percentiles() -> Self {
        Self::with_digits(DIGITS)
    }

    /// An empty tally that will know percentiles, within 1 %.
    pub fn with_coarse_percentiles() -> Self {
        Self::with_digits(COARSE_DIGITS)
    }

    fn with_digits(digits: u8) -> Self {
        let costs = Histogram::new(digits).expect("a number of digits that the histogram knows");
        Self { costs: Some(costs), ..Self::default() }
    }

    /// Counts `fault`.
    pub fn add(&mut self, fault: &Fault) {
        self.count += 1;
        let disk = fault.class == FaultClass::Disk;
        self.disk += u64::from(disk);
        if let Some(cost_ns) = fault.cost_ns {
            self.timed += 1;
            self.cost_ns = self.cost_ns.saturating_add(cost_ns);
            self.max_ns = self.max_ns.max(cost_ns);
            if disk {
                self.disk_ns = self.disk_ns.saturating_add(cost_ns);
            }
            if let Some(costs) = &mut self.costs {
                costs.record(cost_ns).expect("a histogram that grows takes every value");
            }
        }
    }

    /// Counts the faults of `other` too.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.timed += other.timed;
        self.cost_ns = self.cost_ns.saturating_add(other.cost_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        self.disk += other.disk;
        self.disk_ns = self.disk_ns.saturating_add(other.disk_ns);
        if let Some(theirs) = &other.costs {
            match &mut self.costs {
                Some(ours) => ours.add(theirs).expect("histograms that grow take every value"),
                None if self.timed == other.timed => self.costs = Some(theirs.clone()),
                None => {}
            }
        }
    }

    /// The mean cost in nanoseconds, of those whose cost is known.
    pub fn mean_ns(&self) -> Option<f64> {
        (self.timed > 0).then(|| self.cost_ns as f64 / self.timed as f64)
    }

    /// The cost that `percent` of the faults do not exceed, in nanoseconds; `None` where no cost or no percentiles are known.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let costs = self.costs.as_ref().filter(|costs| !costs.is_empty())?;
        Some(costs.value_at_percentile(percent).min(self.max_ns))
    }

    /// How many faults cost how much: pairs of a cost in nanoseconds, exact to three digits, and a count.
    pub fn costs(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        let recorded = self.costs.iter().flat_map(|costs| costs.iter_recorded());
        recorded.map(|value| (value.value_iterated_to(), value.count_at_value()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::fault;

    #[test]
    fn parts_make_the_same_whole() {
        let faults: Vec<Fault> = (0..1000)
            .map(|at| fault(FaultClass::ALL[at % 6], (at % 7 != 0).then_some(at as u64 * at as u64)))
            .collect();
        let tally = |faults: &[Fault]| {
            let mut tally = Tally::with_percentiles();
            faults.iter().for_each(|fault| tally.add(fault));
            tally
        };
        let whole = tally(&faults);
        let mut parts = Tally::default();
        faults.chunks(123).for_each(|part| parts.merge(&tally(part)));
        let figures = |t: &Tally| (t.count, t.timed, t.cost_ns, t.max_ns, t.disk, t.disk_ns);
        assert_eq!(figures(&whole), figures(&parts));
        for percent in [0.0, 50.0, 99.0, 100.0] {
            assert_eq!(whole.percentile_ns(percent), parts.percentile_ns(percent));
        }
        let mut costs: Vec<u64> = faults.iter().filter_map(|fault| fault.cost_ns).collect();
        costs.sort_unstable();
        let median = costs[(costs.len() - 1) / 2] as f64;
        let found = whole.percentile_ns(50.0).expect("costs are known") as f64;
        assert!((found / median - 1.0).abs() < 0.002, "{found} for {median}");
        assert_eq!(whole.costs().map(|(_, count)| count).sum::<u64>(), whole.timed);
    }

    #[test]
    fn costs_beyond_all_reason_do_not_overflow() {
        let mut tally = Tally::with_percentiles();
        tally.add(&fault(FaultClass::Disk, Some(u64::MAX)));
        tally.add(&fault(FaultClass::Disk, Some(u64::MAX)));
        assert_eq!((tally.cost_ns, tally.max_ns), (u64::MAX, u64::MAX));
        assert!(tally.percentile_ns(99.0) > Some(u64::MAX / 2));
    }

    #[test]
    fn without_costs_there_is_no_mean() {
        let mut tally = Tally::with_percentiles();
        tally.add(&fault(FaultClass::Failed, None));
        assert_eq!((tally.mean_ns(), tally.percentile_ns(50.0)), (None, None));
    }
}
