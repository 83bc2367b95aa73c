//! When something that is wanted again and again is done: at once, and then so seldom that it takes a small share of the time.

use std::time::{Duration, Instant};

/// One in this of the time goes into it.
const SHARE: u32 = 20;

/// When it is to be done next.
#[derive(Debug)]
pub struct Pace {
    is_wanted: bool,
    not_before: Instant,
}

impl Pace {
    /// Nothing is wanted yet.
    pub fn new(now: Instant) -> Self {
        Self { is_wanted: false, not_before: now }
    }

    /// It is to be done.
    pub fn want(&mut self) {
        self.is_wanted = true;
    }

    /// How long from `now` until it is to be done; `None` where nobody wants it.
    pub fn pause(&self, now: Instant) -> Option<Duration> {
        self.is_wanted.then(|| self.not_before.saturating_duration_since(now))
    }

    /// Whether it is to be done now: then whoever asks does it, and calls [`Self::done`].
    pub fn take(&mut self, now: Instant) -> bool {
        let is_due = self.pause(now) == Some(Duration::ZERO);
        self.is_wanted &= !is_due;
        is_due
    }

    /// It was done until `now`, and took `taken`.
    pub fn done(&mut self, now: Instant, taken: Duration) {
        self.not_before = now + taken * SHARE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_all_the_time_takes_a_twentieth_of_it_and_none_is_forgotten() {
        let began = Instant::now();
        let mut pace = Pace::new(began);
        assert_eq!((pace.pause(began), pace.take(began)), (None, false));
        let (mut now, mut times) = (began, 0);
        let took = Duration::from_millis(10);
        while now < began + Duration::from_secs(10) {
            pace.want();
            now += Duration::from_millis(1);
            if pace.take(now) {
                now += took;
                pace.done(now, took);
                times += 1;
            }
        }
        assert!((40..=50).contains(&times), "{times} times 10 ms in 10 s");
        pace.want();
        let pause = pace.pause(now).unwrap();
        assert!(pace.take(now + pause), "the last one is done as well");
        assert_eq!(pace.pause(now + pause), None);
    }
}
