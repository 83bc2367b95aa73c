//! How often starts used a page or a name, and the probability that follows.
//!
//! ```text
//! probability = (used + 1/2) / (observed + 1)          the Jeffreys prior: of a page never observed it is 1/2
//! each observed start: both counters lose 1/8, observed gains 1, and
//!     if it used the page: used gains 1, or moves halfway to observed where that is more
//!     if it did not:       used moves halfway to 0
//! ```
//! The decay is the ageing: neither counter passes 8. What a program no longer uses falls below the price of any device
//! ([`super::worth`]) in five observed starts, however long it was used before; what it uses every other time, or in one
//! start of four, stays. Where observations agree the counters come to rest, and a profile that has nothing new to say is
//! not written again.

use minicbor::{Decode, Encode};

/// Fixed-point one: counters are in sixteenths.
const ONE: u8 = 16;
/// Each observation takes 1 in this from what was counted before.
const MEMORY: u8 = 8;
/// The largest counter that observations lead to.
const FULL: u8 = ONE * MEMORY;

/// Whether an observed start used something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It did.
    Sure,
    /// One of several neighbours was used: counts half.
    Half,
    /// It did not.
    None,
}

/// In how many starts something was observed, and in how many of them used; later ones count more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct Counts {
    #[n(0)]
    used: u8,
    #[n(1)]
    observed: u8,
}

impl Counts {
    /// Counters in sixteenths. What no observations could have led to is cut down to what they can.
    pub fn from_sixteenths(used: u8, observed: u8) -> Self {
        let observed = observed.min(FULL);
        Self { used: used.min(observed), observed }
    }

    /// `(used, observed)` in sixteenths.
    pub fn sixteenths(self) -> (u8, u8) {
        (self.used, self.observed)
    }

    /// What `starts` starts in a row lead to that did not use it.
    pub fn unused_in(starts: u32) -> Self {
        Self { used: 0, observed: u8::try_from(starts).unwrap_or(u8::MAX).saturating_mul(ONE).min(FULL) }
    }

    /// What one start that used it leads to.
    pub fn once(how: Use) -> Self {
        Self::default().after(how)
    }

    /// The counters after one more observed start.
    #[must_use]
    pub fn after(self, how: Use) -> Self {
        let fade = |count: u8| count - count / MEMORY;
        let observed = fade(self.observed) + ONE;
        let towards = |one: u8, all: u8| (fade(self.used) + one).max(self.used.midpoint(all));
        let used = match how {
            Use::Sure => towards(ONE, observed),
            Use::Half => towards(ONE / 2, observed / 2),
            Use::None => self.used / 2,
        };
        Self { used, observed }
    }

    /// The probability that the next start uses it: 0.06 to 0.94.
    pub fn probability(self) -> f64 {
        let one = f64::from(ONE);
        (f64::from(self.used) + one / 2.0) / (f64::from(self.observed) + one)
    }

    /// Whether that is more than 1/2.
    pub fn is_likely(self) -> bool {
        u16::from(self.used) * 2 > u16::from(self.observed)
    }

    /// Whether no sign of use is left.
    pub fn is_forgotten(self) -> bool {
        self.used == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::worth::threshold;
    use super::*;
    use crate::DeviceFigures;

    fn after(counts: Counts, how: Use, times: usize) -> Counts {
        (0..times).fold(counts, |counts, _| counts.after(how))
    }

    #[test]
    fn what_is_likely_has_more_than_one_chance_in_two() {
        for (used, observed) in
            (0..=FULL).flat_map(|used| (used..=FULL).map(move |observed| (used, observed)))
        {
            let counts = Counts::from_sixteenths(used, observed);
            assert_eq!(counts.is_likely(), counts.probability() > 0.5, "{counts:?}");
        }
    }

    #[test]
    fn one_start_is_believed_and_five_without_use_are_too() {
        let price = threshold(&DeviceFigures { latency_ns: 10_000_000, ..DeviceFigures::default() });
        for before in [1, 3, 50] {
            let used = after(Counts::default(), Use::Sure, before);
            assert!(used.probability() >= 0.75);
            assert!(after(used, Use::None, 2).probability() > price, "one input of two is kept");
            assert!(after(used, Use::None, 5).probability() < price, "{before}");
            assert!(after(used, Use::None, 8).is_forgotten());
        }
    }

    #[test]
    fn agreeing_observations_come_to_rest() {
        for how in [Use::Sure, Use::Half, Use::None] {
            let counts = after(Counts::once(Use::Sure), how, 60);
            assert_eq!(counts, counts.after(how), "{how:?}");
        }
        assert!((0.5..0.6).contains(&after(Counts::default(), Use::Half, 60).probability()));
        assert_eq!(Counts::default().probability(), 0.5);
    }

    #[test]
    fn what_is_used_now_and_then_stays() {
        let price = threshold(&DeviceFigures::default());
        for (used, unused) in [(1, 1), (1, 3), (3, 3)] {
            let mut counts = Counts::default();
            for round in 0..20 {
                counts = after(after(counts, Use::Sure, used), Use::None, unused);
                assert!(counts.probability() > price, "{used} of {unused}, round {round}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_history_and_no_lie_leaves_the_bounds(used: u8, observed: u8, history in prop::collection::vec(0..3, 0..40)) {
            let mut counts = Counts::from_sixteenths(used, observed);
            for how in history {
                counts = counts.after([Use::Sure, Use::Half, Use::None][how as usize]);
                prop_assert!((0.05..=0.95).contains(&counts.probability()));
                prop_assert_eq!(counts, Counts::from_sixteenths(counts.used, counts.observed));
            }
        }
    }
}
