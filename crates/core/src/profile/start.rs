//! Cold starts as a profile remembers them: what it was worth, on which device, and what observing cost.

use std::collections::BTreeMap;

use minicbor::{Decode, Encode};
use serde::Serialize;

/// Starts of one kind on one device that are kept.
const KEPT_OF_A_KIND: usize = 9;
/// Starts that are kept in all.
pub const KEPT: usize = 48;

/// Observing may take this share of a program's time.
const OBSERVING_SHARE: f64 = 0.005;
/// What an observed cold start costs where too few of either kind are known to tell: what `make bench-learning` measured of the
/// first start of 18 programs. And the least it is taken for.
const OBSERVED_COST: f64 = 0.1;
const OBSERVED_COST_MIN: f64 = 0.02;
/// The most it is taken for: a program whose starts differ by more for other reasons is still observed now and then.
const OBSERVED_COST_MAX: f64 = 0.32;
/// One start in so many is observed of those that find all in memory. Observing takes a quarter of their time on average (ADR 9), and
/// nearly as much as all of it where they take a few milliseconds; no profile knows how much, for only cold starts are remembered.
pub const OBSERVE_WARM_EVERY: u64 = 150;
/// Starts of each kind without which nothing is concluded.
pub const STARTS_MIN: usize = 3;

/// One start from a cold cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode, Serialize)]
#[cbor(map)]
pub struct ColdStart {
    /// When, seconds since 1970. Later starts have larger times, whatever the clock did.
    #[n(0)]
    pub unix_s: u64,
    /// `st_dev` of the file system with the executable: gains are kept for each device.
    #[n(1)]
    pub device: u64,
    /// Whether nothing was prefetched, to see what prefetching is worth.
    #[n(2)]
    pub held_out: bool,
    /// Whether it was observed, which takes time.
    #[n(3)]
    pub observed: bool,
    /// From the exec to the end of the program, microseconds. 0 where that is not known, and where it ran for 5 s and more: longer ones do
    /// other things than to start.
    #[n(4)]
    pub took_us: u32,
    /// Pages that were brought in ahead.
    #[n(5)]
    pub prefetched_pages: u32,
    /// Pages that the program had to wait for.
    #[n(6)]
    pub missed_pages: u32,
    /// Pages that were brought in ahead and not used, where the start was observed.
    #[n(7)]
    pub wasted_pages: u32,
    /// From the exec to the last wait for the device before a second without one, microseconds. 0 where it is not known.
    #[n(8)]
    #[cbor(default)]
    pub waited_us: u32,
}

/// The times of `starts` that can be compared: to the end of the program if they all have one, else to the last wait of each.
pub(crate) fn alike<'a>(starts: impl Iterator<Item = &'a ColdStart> + Clone) -> fn(&ColdStart) -> u32 {
    let mut known = starts.filter(|start| start.took_us.max(start.waited_us) > 0);
    if known.all(|start| start.took_us > 0) { |start| start.took_us } else { |start| start.waited_us }
}

/// A uniform number that decides whether a start is to be observed, and what is known of that start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Draw {
    /// It has to wait for the device, or nobody knows.
    Cold(u64),
    /// It finds all that it needs in memory.
    Warm(u64),
}

impl Draw {
    /// Whether a start is drawn of a program whose cold `starts` were these.
    pub(crate) fn is_drawn(self, starts: &[ColdStart]) -> bool {
        match self {
            Self::Cold(random) => random.is_multiple_of(observe_every(starts)),
            Self::Warm(random) => random.is_multiple_of(OBSERVE_WARM_EVERY),
        }
    }
}

/// The newest starts of both lists, oldest first. Commutative, associative and idempotent.
pub fn newest(one: &[ColdStart], other: &[ColdStart]) -> Vec<ColdStart> {
    let mut all: Vec<ColdStart> = one.iter().chain(other).copied().collect();
    all.sort_unstable_by(|a, b| b.cmp(a));
    all.dedup();
    let mut kinds: BTreeMap<(u64, bool, bool), usize> = BTreeMap::new();
    all.retain(|start| {
        let of_its_kind = kinds.entry((start.device, start.held_out, start.observed)).or_default();
        *of_its_kind += 1;
        *of_its_kind <= KEPT_OF_A_KIND
    });
    all.truncate(KEPT);
    all.reverse();
    all
}

/// One cold start in so many is to be observed: what an observed start costs, as `starts` tell, divided by what observing may
/// take. With 2 % a start that is 1 in 4; with 10 %, taken where nothing is known, 1 in 20.
pub fn observe_every(starts: &[ColdStart]) -> u64 {
    let prefetched = starts.iter().filter(|start| !start.held_out && start.prefetched_pages > 0);
    let time_us = alike(prefetched.clone());
    let median_us = |observed| {
        let same = prefetched.clone().filter(|start| start.observed == observed);
        median(same.map(time_us).filter(|us| *us > 0).collect(), STARTS_MIN)
    };
    let cost = match (median_us(true), median_us(false)) {
        (Some(observed), Some(plain)) => f64::from(observed) / f64::from(plain) - 1.0,
        _ => OBSERVED_COST,
    };
    (cost.clamp(OBSERVED_COST_MIN, OBSERVED_COST_MAX) / OBSERVING_SHARE).round() as u64
}

/// The median; `None` of fewer than `least` values.
pub(crate) fn median(mut values: Vec<u32>, least: usize) -> Option<u32> {
    values.sort_unstable();
    let above = *values.get(values.len() / 2).filter(|_| values.len() >= least)?;
    let below = values[(values.len() - 1) / 2];
    Some(below.midpoint(above))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn starts() -> impl Strategy<Value = Vec<ColdStart>> {
        let start =
            (0u64..40, 0u64..6, any::<bool>(), 0u32..3).prop_map(|(unix_s, device, held_out, took_us)| {
                ColdStart { unix_s, device, held_out, took_us, ..ColdStart::default() }
            });
        prop::collection::vec(start, 0..60)
    }

    proptest! {
        #[test]
        fn keeping_the_newest_is_a_join(a in starts(), b in starts(), c in starts()) {
            let ab = newest(&a, &b);
            prop_assert_eq!(&ab, &newest(&b, &a));
            prop_assert_eq!(&ab, &newest(&ab, &ab));
            prop_assert_eq!(newest(&ab, &c), newest(&a, &newest(&b, &c)));
            prop_assert!(ab.len() <= KEPT);
            prop_assert!(ab.is_sorted());
        }
    }

    #[test]
    fn the_dearer_observing_is_the_rarer_it_gets() {
        let start =
            |observed, took_us| ColdStart { observed, took_us, prefetched_pages: 1, ..ColdStart::default() };
        let starts = |observed_us: u32| [[start(true, observed_us); 3], [start(false, 1000); 3]].concat();
        assert_eq!(observe_every(&[]), 20);
        assert_eq!(observe_every(&starts(1020)), 4);
        assert_eq!(observe_every(&starts(1060)), 12);
        assert_eq!(observe_every(&starts(900)), 4, "never taken for free");
        assert_eq!(observe_every(&starts(1060)[..5]), 20, "two starts tell nothing");
    }
}
