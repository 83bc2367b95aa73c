//! Counts, costs and percentiles of the faults of one kind.

use std::borrow::Cow;

use hdrhistogram::Histogram;
use prepage_core::{Fault, Tally};

/// Digits that percentiles are exact to.
const DIGITS: u8 = 3;
/// The same where there may be thousands of groups: a tenth of the memory.
const COARSE_DIGITS: u8 = 2;
/// So many costs are kept one by one before a histogram is made of them, which takes more room than these.
const FEW: usize = 512;

/// Faults of one kind: their tally and, where it was asked for, how many cost how much.
#[derive(Clone, Debug, Default)]
pub struct Costs {
    /// Counts and sums.
    pub tally: Tally,
    /// Digits that percentiles are to be exact to; 0 where none are wanted.
    digits: u8,
    /// Made with the first cost: there may be many thousand kinds without faults.
    distribution: Option<Box<Distribution>>,
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
        Self { digits, ..Self::default() }
    }

    /// Counts `fault`.
    pub fn add(&mut self, fault: &Fault) {
        self.tally.add(fault);
        if let (1.., Some(cost_ns)) = (self.digits, fault.cost_ns) {
            let new = || Box::new(Distribution::Few(Vec::new()));
            self.distribution.get_or_insert_with(new).add(cost_ns, self.digits);
        }
    }

    /// Counts the faults of `other` too. Percentiles stay known where both sides know theirs.
    pub fn merge(&mut self, other: &Self) {
        let is_unknown = |costs: &Self| costs.distribution.is_none() && costs.tally.timed > 0;
        let unknown = is_unknown(self) || is_unknown(other);
        match (&mut self.distribution, &other.distribution) {
            (Some(ours), Some(theirs)) => ours.merge(theirs, self.digits),
            _ if unknown => (self.digits, self.distribution) = (0, None),
            (None, Some(_)) => (self.digits, self.distribution) = (other.digits, other.distribution.clone()),
            (_, None) => {}
        }
        self.tally.merge(&other.tally);
    }

    /// The cost that `percent` of the faults do not exceed, in nanoseconds; `None` where no cost or no percentiles are known.
    pub fn percentile_ns(&self, percent: f64) -> Option<u64> {
        let histogram = self.distribution.as_ref()?.histogram(self.digits);
        Some(histogram.value_at_percentile(percent).min(self.tally.max_ns))
    }

    /// How many faults cost how much: pairs of a cost in nanoseconds, exact to three digits, and a count.
    pub fn counts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.distribution.iter().flat_map(move |distribution| {
            let histogram = distribution.histogram(self.digits);
            let recorded = histogram.iter_recorded();
            recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect::<Vec<_>>()
        })
    }
}

/// How many faults cost how much.
#[derive(Clone, Debug)]
enum Distribution {
    /// The cost of each, in nanoseconds: of a million stacks most have few faults.
    Few(Vec<u64>),
    Many(Box<Histogram<u64>>),
}

impl Distribution {
    fn add(&mut self, cost_ns: u64, digits: u8) {
        match self {
            Self::Few(costs) if costs.len() < FEW => costs.push(cost_ns),
            _ => record(self.many(digits), cost_ns),
        }
    }

    fn merge(&mut self, other: &Self, digits: u8) {
        match other {
            Self::Few(costs) => costs.iter().for_each(|cost_ns| self.add(*cost_ns, digits)),
            Self::Many(theirs) => {
                self.many(digits).add(&**theirs).expect("histograms that grow take every value");
            }
        }
    }

    /// The histogram, from now on in the place of single costs.
    fn many(&mut self, digits: u8) -> &mut Histogram<u64> {
        if let Self::Few(costs) = self {
            *self = Self::Many(Box::new(histogram(costs, digits)));
        }
        let Self::Many(histogram) = self else { unreachable!("it was made") };
        histogram
    }

    fn histogram(&self, digits: u8) -> Cow<'_, Histogram<u64>> {
        match self {
            Self::Few(costs) => Cow::Owned(histogram(costs, digits)),
            Self::Many(histogram) => Cow::Borrowed(histogram),
        }
    }
}

fn histogram(costs: &[u64], digits: u8) -> Histogram<u64> {
    let mut histogram = Histogram::new(digits).expect("a number of digits that the histogram knows");
    costs.iter().for_each(|cost_ns| record(&mut histogram, *cost_ns));
    histogram
}

fn record(histogram: &mut Histogram<u64>, cost_ns: u64) {
    histogram.record(cost_ns).expect("a histogram that grows takes every value");
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
    fn few_costs_and_many_have_the_same_percentiles() {
        let costs = |digits| -> [Costs; 2] {
            let (mut few, mut many) = (Costs::with_digits(digits), Costs::with_digits(digits));
            for at in 0..FEW as u64 {
                few.add(&fault(FaultClass::Cached, Some(at * at * 7)));
                many.add(&fault(FaultClass::Cached, Some(at * at * 7)));
            }
            many.distribution.as_mut().expect("costs are known").many(digits);
            [few, many]
        };
        for [few, many] in [COARSE_DIGITS, DIGITS].map(costs) {
            assert!(matches!(few.distribution.as_deref(), Some(Distribution::Few(_))));
            for percent in [0.0, 12.5, 50.0, 99.0, 100.0] {
                assert_eq!(few.percentile_ns(percent), many.percentile_ns(percent));
            }
            assert!(few.counts().eq(many.counts()));
            let sum = |a: &Costs, b: &Costs| {
                let mut sum = a.clone();
                sum.merge(b);
                sum.percentile_ns(90.0)
            };
            assert_eq!(sum(&few, &few), sum(&many, &few));
            assert_eq!(sum(&few, &many), sum(&many, &many));
        }
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
    fn kinds_without_costs_take_no_histogram() {
        let mut costs = Costs::with_coarse_percentiles();
        costs.add(&fault(FaultClass::Failed, None));
        assert!(costs.distribution.is_none());
        assert!(size_of::<Costs>() <= 64, "{}", size_of::<Costs>());
        costs.add(&fault(FaultClass::Disk, Some(7)));
        let mut sum = Costs::default();
        sum.merge(&costs);
        sum.merge(&Costs::with_percentiles());
        assert_eq!(sum.percentile_ns(50.0), Some(7));
        let mut unknown = Costs::default();
        unknown.add(&fault(FaultClass::Disk, Some(7)));
        for mut sum in [sum, Costs::with_percentiles()] {
            sum.merge(&unknown);
            sum.add(&fault(FaultClass::Disk, Some(7)));
            assert_eq!(sum.percentile_ns(50.0), None, "of one that was added they are not known");
        }
    }

    #[test]
    fn without_costs_there_is_no_mean() {
        let mut tally = Costs::with_percentiles();
        tally.add(&fault(FaultClass::Failed, None));
        assert_eq!((tally.tally.mean_ns(), tally.percentile_ns(50.0)), (None, None));
    }
}
