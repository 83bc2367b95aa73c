//! How long the service looks away while very many programs are executed and nothing is to be done for any of them: to be woken for each
//! costs more than to look at it.

use std::time::{Duration, Instant};

/// The first start that something is to be done for begins so much later at most. A start from the disk takes ten times that and more.
const LULL: Duration = Duration::from_millis(5);
/// Executions are counted over this time.
const WINDOW: Duration = Duration::from_millis(20);
/// So many in it are very many: 800 a second, of which several come in a lull. Where fewer come, to look away costs as much as it saves.
const MANY: u32 = 16;

/// What was executed lately.
#[derive(Debug)]
pub struct Lull {
    since: Instant,
    count: u32,
    are_many: bool,
}

impl Lull {
    /// Nothing was, until `now`.
    pub fn new(now: Instant) -> Self {
        Self { since: now, count: 0, are_many: false }
    }

    /// `count` executions were looked at until `now`. Returns how long nobody needs to look at others; not at all after one `is_needed`,
    /// which something was to be done for.
    pub fn after(&mut self, now: Instant, count: u32, is_needed: bool) -> Duration {
        if is_needed {
            *self = Self::new(now);
            return Duration::ZERO;
        }
        self.count += count;
        let taken = now.saturating_duration_since(self.since);
        if taken >= WINDOW {
            // What took long was no time of many.
            self.are_many = self.count >= MANY && taken < 2 * WINDOW;
            (self.since, self.count) = (now, 0);
        }
        if self.are_many { LULL } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_looks_away_but_from_many_that_need_nothing() {
        let mut now = Instant::now();
        let mut lull = Lull::new(now);
        // Returns the last answer to so many looks, each at so many executions, so far apart.
        let mut look = |times: u32, count: u32, apart: Duration, is_needed| {
            (0..times).fold(Duration::ZERO, |_, _| {
                now += apart;
                lull.after(now, count, is_needed)
            })
        };
        assert_eq!(look(MANY, 1, Duration::from_millis(1), false), Duration::ZERO, "nobody knows yet");
        assert_eq!(look(4, 1, Duration::from_millis(1), false), LULL);
        assert_eq!(look(100, 5, LULL, false), LULL, "they go on meanwhile");
        assert_eq!(look(1, 1, Duration::ZERO, true), Duration::ZERO);
        assert_eq!(look(1, 1, Duration::ZERO, false), Duration::ZERO, "the first after it");
        assert_eq!(look(100, 2, Duration::from_millis(8), false), Duration::ZERO, "they are few");
        assert_eq!(look(1, 2 * MANY, 2 * WINDOW, false), Duration::ZERO, "a second of few");
    }
}
