//! Counting values in buckets, from any context.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;

/// Buckets to each power of two: values are known to one part in 16.
const STEPS: u64 = 16;
/// Larger values count as the largest.
const LARGEST: u64 = (1 << 41) - 1;
const BUCKETS: usize = ((41 - 3) * STEPS) as usize;

/// Counts values by their size, without a lock.
#[derive(Debug)]
pub(crate) struct Counts {
    buckets: Box<[AtomicU64]>,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self { buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect() }
    }

    pub(crate) fn count(&self, value: u64) {
        self.buckets[bucket(value)].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds what was counted to `histogram`.
    pub(crate) fn add_to(&self, histogram: &mut Histogram<u64>) {
        for (index, count) in self.buckets.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count > 0 {
                histogram.saturating_record_n(middle(index), count);
            }
        }
    }
}

/// An empty histogram with room for all that is counted.
pub(crate) fn empty() -> Histogram<u64> {
    Histogram::new_with_max(LARGEST, 2).expect("a valid range and precision")
}

fn bucket(value: u64) -> usize {
    let value = value.min(LARGEST);
    if value < STEPS {
        return value as usize;
    }
    let power = u64::from(value.ilog2());
    ((power - 3) * STEPS + (value >> (power - 4)) % STEPS) as usize
}

/// A value in the middle of a bucket.
fn middle(index: usize) -> u64 {
    let index = index as u64;
    if index < STEPS {
        return index;
    }
    let shift = index / STEPS - 1;
    ((STEPS + index % STEPS) << shift) + (1 << shift) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_within_a_sixteenth() {
        for value in
            (0..41).flat_map(|power| [1 << power, (1 << power) + (1 << power) / 3, (1 << power) * 2 - 1])
        {
            let back = middle(bucket(value));
            assert!(back.abs_diff(value) <= value / 16, "{value} came back as {back}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }
}
