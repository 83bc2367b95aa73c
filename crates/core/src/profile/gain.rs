//! What prefetching was worth on a device, and what follows for the next start.
//!
//! A small share of the cold starts is held out: nothing is prefetched, and how long they take is the other side of the
//! comparison. Medians of the last few, so that neither a slow outlier nor a machine of last year decides.

pub use super::start::STARTS_MIN;
use super::start::{ColdStart, alike, median};

/// One cold start in this many is held out.
const HOLD_OUT_EVERY: u64 = 32;
/// Between two that are held out lie at least this many that are not.
const HOLD_OUT_APART: usize = 8;
/// Where prefetching gains nothing, one cold start in this many is prefetched nevertheless, and another one held out, to see whether that holds.
const TRY_AGAIN_EVERY: u64 = 8;

/// Cold starts with and without prefetch on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gain {
    /// How many with.
    pub prefetched_starts: usize,
    /// How many without.
    pub held_out_starts: usize,
    /// Median time with, microseconds; `None` without such starts.
    pub prefetched_us: Option<u32>,
    /// Median time without, microseconds; `None` without such starts.
    pub held_out_us: Option<u32>,
}

/// What to do with a cold start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Prefetch.
    Prefetch,
    /// Do not, to see what it is worth.
    HoldOut,
    /// Do not: it gains nothing here.
    Off,
}

impl Gain {
    /// The gain on `device`.
    pub fn on(device: u64, starts: &[ColdStart]) -> Self {
        // Observing takes time that is not prefetching's.
        let here = starts.iter().filter(|start| start.device == device && !start.observed);
        let time_us = alike(here.clone());
        let times = |held_out| -> Vec<u32> {
            let same = here.clone().filter(|start| start.held_out == held_out);
            same.map(time_us).filter(|us| *us > 0).collect()
        };
        let (prefetched, held_out) = (times(false), times(true));
        Self {
            prefetched_starts: prefetched.len(),
            held_out_starts: held_out.len(),
            prefetched_us: median(prefetched, 1),
            held_out_us: median(held_out, 1),
        }
    }

    /// Time with prefetch ÷ time without; `None` before enough starts of each kind were seen.
    pub fn ratio(&self) -> Option<f64> {
        let enough = self.prefetched_starts.min(self.held_out_starts) >= STARTS_MIN;
        match (self.prefetched_us, self.held_out_us) {
            (Some(with), Some(without)) if enough && without > 0 => {
                Some(f64::from(with) / f64::from(without))
            }
            _ => None,
        }
    }

    /// Whether it is known that prefetching gains nothing.
    pub fn is_none(&self) -> bool {
        self.ratio().is_some_and(|ratio| ratio >= 1.0)
    }
}

/// What the next cold start on `device` is to be, after `starts`. `random` is a uniform number, `None` where nothing is
/// to be tried out: then what is known alone decides.
pub fn turn(device: u64, starts: &[ColdStart], random: Option<u64>) -> Turn {
    let is_drawn = |one_in: u64| random.is_some_and(|random| random.is_multiple_of(one_in));
    if Gain::on(device, starts).is_none() {
        return match random.map(|random| random % TRY_AGAIN_EVERY) {
            Some(0) => Turn::Prefetch,
            Some(1) => Turn::HoldOut,
            _ => Turn::Off,
        };
    }
    let here = starts.iter().rev().filter(|start| start.device == device);
    let since_last = here.take_while(|start| !start.held_out).count();
    if since_last >= HOLD_OUT_APART && is_drawn(HOLD_OUT_EVERY) { Turn::HoldOut } else { Turn::Prefetch }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starts(prefetched_us: &[u32], held_out_us: &[u32]) -> Vec<ColdStart> {
        let kind = |held_out| {
            move |&took_us: &u32| ColdStart { device: 1, held_out, took_us, ..ColdStart::default() }
        };
        held_out_us.iter().map(kind(true)).chain(prefetched_us.iter().map(kind(false))).collect()
    }

    #[test]
    fn a_gain_is_told_once_there_is_enough_to_tell_it_from() {
        let few = starts(&[50; 9], &[100, 100]);
        assert_eq!(Gain::on(1, &few).ratio(), None);
        let gain = Gain::on(1, &starts(&[40, 50, 60, 900], &[100, 90, 130]));
        assert_eq!((gain.prefetched_us, gain.held_out_us), (Some(55), Some(100)));
        assert_eq!(gain.ratio(), Some(0.55));
        assert_eq!(Gain::on(2, &few), Gain::default(), "another device is another question");
    }

    /// Without prefetch it takes 5.6 s, and waits for the disk until 2 s; with, 4.4 s, and until 1 s.
    #[test]
    fn times_to_the_end_are_never_compared_with_times_to_the_last_wait() {
        let start = |held_out, took_us, waited_us| ColdStart {
            device: 1,
            held_out,
            took_us,
            waited_us,
            ..ColdStart::default()
        };
        let long = [start(true, 0, 2_000_000); 3];
        let short = [start(false, 4_400_000, 1_000_000); 5];
        let gain = |starts: &[ColdStart]| Gain::on(1, starts).ratio();
        assert_eq!(gain(&[&long[..], &short].concat()), Some(0.5));
        assert_eq!(
            gain(&[&[start(true, 4_800_000, 2_000_000); 3][..], &short].concat()),
            Some(4_400_000.0 / 4_800_000.0)
        );
        // Of what was written before last waits were kept, only the times to the end are known, or so it seems.
        assert_eq!(gain(&starts(&[50; 3], &[100; 3])), Some(0.5));
        assert_eq!(gain(&[starts(&[50; 9], &[]), long.to_vec()].concat()), None);
    }

    #[test]
    fn where_nothing_is_gained_it_is_off_and_tried_now_and_then() {
        let none = starts(&[100; 5], &[90; 3]);
        let drawn = |tried| (0..800).filter(|&random| turn(1, &none, Some(random)) == tried).count();
        assert_eq!([Turn::Prefetch, Turn::HoldOut, Turn::Off].map(drawn), [100, 100, 600]);
        assert_eq!(turn(1, &none, None), Turn::Off, "where nothing is tried, not even now and then");
        let better = starts(&[50; 9], &[90; 3]);
        assert!((0..800).all(|random| turn(1, &better, Some(random)) != Turn::Off));
    }

    #[test]
    fn few_starts_are_held_out_and_never_two_in_a_row() {
        let turns = |starts: &[ColdStart]| {
            (0..3200).filter(|&random| turn(1, starts, Some(random)) == Turn::HoldOut).count()
        };
        assert_eq!(turns(&starts(&[50; 9], &[])), 100);
        assert_eq!(turns(&starts(&[50; 7], &[100])), 0);
        assert_eq!(turns(&[]), 0);
    }
}
