//! Counting values in buckets, from any context.

use std::sync::atomic::{AtomicU64, Ordering};

use hdrhistogram::Histogram;
use prepage_core::policy::cluster::ClusterHistogram;

use crate::buffers::BUFFER_PAGES;

/// Buckets to each power of two: values are known to one part in 16.
const STEPS: u64 = 16;
/// Larger values count as the largest.
const LARGEST: u64 = (1 << 41) - 1;
const BUCKETS: usize = ((41 - 3) * STEPS) as usize;

/// Counts values by their size, without a lock.
#[derive(Debug)]
pub(crate) struct AtomicHistogram {
    buckets: Box<[AtomicU64]>,
}

impl AtomicHistogram {
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

/// Counts the reads of hard faults by their pages, and those apart that were truncated. Exact up to as many pages as a buffer has; larger
/// reads, which only sources of a larger grain have, count as the power of two below.
#[derive(Debug)]
pub(crate) struct Clusters([Box<[AtomicU64]>; 2]);

impl Clusters {
    pub(crate) fn new() -> Self {
        Self([(); 2].map(|()| (0..=cluster_index(u64::MAX)).map(|_| AtomicU64::new(0)).collect()))
    }

    pub(crate) fn count(&self, pages: u64, truncated: bool) {
        self.0[usize::from(truncated)][cluster_index(pages)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_to(&self, histogram: &mut ClusterHistogram) {
        for (counts, truncated) in self.0.iter().zip([false, true]) {
            for (index, count) in counts.iter().enumerate() {
                let count = count.load(Ordering::Relaxed);
                if count > 0 {
                    histogram.add(cluster_pages(index), truncated, count);
                }
            }
        }
    }
}

fn cluster_index(pages: u64) -> usize {
    if pages <= BUFFER_PAGES {
        return pages as usize;
    }
    (BUFFER_PAGES + u64::from(pages.ilog2() - BUFFER_PAGES.ilog2())) as usize
}

fn cluster_pages(index: usize) -> u64 {
    let index = index as u64;
    if index <= BUFFER_PAGES { index } else { BUFFER_PAGES << (index - BUFFER_PAGES) }
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
    fn clusters_of_a_buffer_are_counted_exactly_and_larger_ones_by_their_power_of_two() {
        for (pages, counted) in [(1, 1), (255, 255), (256, 256), (511, 256), (512, 512), (1 << 14, 1 << 14)] {
            assert_eq!(cluster_pages(cluster_index(pages)), counted);
        }
        let clusters = Clusters::new();
        for (pages, truncated) in [(7, true), (7, false), (7, false), (600, true)] {
            clusters.count(pages, truncated);
        }
        let mut histogram = ClusterHistogram::default();
        clusters.add_to(&mut histogram);
        let found: Vec<_> = histogram.iter().map(|(pages, of)| (pages, of.full, of.truncated)).collect();
        assert_eq!(found, [(7, 2, 1), (512, 0, 1)]);
    }

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
