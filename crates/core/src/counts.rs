//! How often pages were seen used and seen unused, and the probability that follows.
//!
//! A page that was prefetched looks used whether anybody used it or not. Evidence therefore comes only from starts in
//! which the page was *not* brought in ahead: it was left out to test it, or was not known yet, or nothing at all was
//! prefetched. Each such start either *touched* the page or *spared* it.
//!
//! ```text
//! probability = (touched + 1/2) / (touched + spared + 1)          the Jeffreys prior: a page nothing is known of has 1/2
//! each observation: both counters lose 1/8, then the observed one gains 1
//! ```
//! The loss is the ageing: neither counter can pass 8, so about the last 8 observations decide, and a program that
//! changed its working set is followed. Where observations agree the counters come to rest, and a profile that has
//! nothing new to say is not written again.

use serde::{Deserialize, Serialize};

/// Fixed-point one: counters are in sixteenths.
const ONE: u8 = 16;
/// Each observation takes 1 in this from what was counted before; no counter passes it.
const MEMORY: u8 = 8;
/// The largest counter that observations lead to.
const FULL: u8 = ONE * MEMORY;
/// The prior counts half an observation either way.
const PRIOR: f64 = 0.5;

/// What tests showed of a page, recent ones counting more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Counts {
    touched: u8,
    spared: u8,
}

impl Counts {
    /// Seen used once.
    pub const SEEN: Self = Self { touched: ONE, spared: 0 };
    /// Seen used in a run that showed each page by itself. Such runs agree on all but one page in a thousand, so one
    /// is worth several others.
    pub const EXACT: Self = Self { touched: 4 * ONE, spared: 0 };

    /// Counters as they are stored, in sixteenths. What no observations could have led to is cut down to what they can.
    pub fn from_sixteenths(touched: u8, spared: u8) -> Self {
        Self { touched: touched.min(FULL), spared: spared.min(FULL) }
    }

    /// `(touched, spared)` in sixteenths.
    pub fn sixteenths(self) -> (u8, u8) {
        (self.touched, self.spared)
    }

    /// Observations that found it used, faded.
    pub fn touched(self) -> f64 {
        f64::from(self.touched) / f64::from(ONE)
    }

    /// Observations that found it unused, faded.
    pub fn spared(self) -> f64 {
        f64::from(self.spared) / f64::from(ONE)
    }

    /// The probability that the next start touches the page: 0.06 to 0.94.
    pub fn probability(self) -> f64 {
        (self.touched() + PRIOR) / (self.touched() + self.spared() + 2.0 * PRIOR)
    }

    /// The counters after `observations` more that found the page used.
    #[must_use]
    pub fn touch(self, observations: u32) -> Self {
        self.observe(observations, |counts| counts.touched += ONE)
    }

    /// The counters after `observations` more that found it unused.
    #[must_use]
    pub fn spare(self, observations: u32) -> Self {
        self.observe(observations, |counts| counts.spared += ONE)
    }

    /// Whether no sign of use is left.
    pub fn is_forgotten(self) -> bool {
        self.touched == 0 && self.spared > 0
    }

    /// The larger of each counter: the evidence of two who may have seen the same starts.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        Self { touched: self.touched.max(other.touched), spared: self.spared.max(other.spared) }
    }

    fn observe(mut self, observations: u32, count: impl Fn(&mut Self)) -> Self {
        /// Beyond this nothing changes any more.
        const ENOUGH: u32 = 64;
        for _ in 0..observations.min(ENOUGH) {
            // Rounded up, so that what is not seen again comes to nothing at last.
            self.touched = self.touched.min(FULL) - self.touched.min(FULL).div_ceil(MEMORY);
            self.spared = self.spared.min(FULL) - self.spared.min(FULL).div_ceil(MEMORY);
            count(&mut self);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn agreeing_observations_come_to_rest() {
        let used = Counts::SEEN.touch(50);
        assert_eq!(used, used.touch(1));
        assert!((0.94..0.95).contains(&used.probability()));
        let unused = used.spare(50);
        assert_eq!(unused, unused.spare(1));
        assert!(unused.is_forgotten() && unused.probability() < 0.06);
    }

    #[test]
    fn the_prior_is_even_and_one_look_moves_it() {
        assert_eq!(Counts::default().probability(), 0.5);
        assert_eq!(Counts::SEEN.probability(), 0.75);
        assert_eq!(Counts::default().spare(1).probability(), 0.25);
        assert_eq!(Counts::EXACT.probability(), 0.9);
        assert!(!Counts::default().is_forgotten());
    }

    proptest! {
        #[test]
        fn no_history_and_no_lie_leaves_the_bounds(touched: u8, spared: u8, history in prop::collection::vec(any::<bool>(), 0..40)) {
            let mut counts = Counts::from_sixteenths(touched, spared);
            for used in history {
                let before = counts.probability();
                counts = if used { counts.touch(1) } else { counts.spare(1) };
                let now = counts.probability();
                let agrees = if used { now >= before } else { now <= before };
                prop_assert!(agrees, "{before} to {now}");
            }
            prop_assert!((0.05..=0.95).contains(&counts.probability()));
            let (touched, spared) = counts.sixteenths();
            prop_assert!(touched <= FULL && spared <= FULL);
        }
    }
}
