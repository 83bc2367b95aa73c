//! The processor time that learning may take: in any hour a thousandth of the machine's, as long as no single piece of work takes more
//! than is there.

use std::time::Duration;

/// It fills at one in this of the processors' time: half of the thousandth. The other half is what it holds.
const RATE: u64 = 2000;
/// What comes in during this time is held at most, and is there at the beginning: some twenty programs for each processor.
const HELD: Duration = Duration::from_secs(3600);

/// One piece of work takes one in this of what is held, where it can be ended: others leave time for it.
const PIECES: u64 = 4;

/// Time that may be spent. It fills with time, up to a limit, and may be overdrawn by work whose length is not known before.
#[derive(Debug)]
pub struct Allowance {
    processors: u64,
    /// Nanoseconds that are there; fewer than none where it was overdrawn.
    left_ns: i64,
    /// When it was filled last, since any time.
    filled: Duration,
}

impl Allowance {
    /// A full one, of a machine with so many processors, at time `now`.
    pub fn new(processors: u64, now: Duration) -> Self {
        let mut allowance = Self { processors, left_ns: 0, filled: now };
        allowance.left_ns = allowance.held_ns();
        allowance
    }

    /// Whether there is any at time `now`.
    pub fn has_some(&mut self, now: Duration) -> bool {
        self.left_ns(now) > 0
    }

    /// Whether more than half of what it holds is there at time `now`: enough for work that can wait.
    pub fn has_plenty(&mut self, now: Duration) -> bool {
        self.left_ns(now) > self.held_ns() / 2
    }

    /// Nanoseconds that are there at time `now`; fewer than none where it was overdrawn.
    pub fn left_ns(&mut self, now: Duration) -> i64 {
        self.fill(now);
        self.left_ns
    }

    /// What one piece of work may take.
    pub fn of_a_piece(&self) -> Duration {
        Duration::from_nanos(self.held_ns().unsigned_abs() / PIECES)
    }

    /// So much was spent until `now`.
    pub fn spend(&mut self, spent_ns: u64, now: Duration) {
        self.fill(now);
        self.left_ns = self.left_ns.saturating_sub_unsigned(spent_ns);
    }

    fn fill(&mut self, now: Duration) {
        let earned_ns = self.earned_ns(now.saturating_sub(self.filled));
        // Less than a nanosecond would be lost again and again.
        if earned_ns > 0 {
            self.left_ns = self.left_ns.saturating_add(earned_ns).min(self.held_ns());
            self.filled = now;
        }
    }

    fn held_ns(&self) -> i64 {
        self.earned_ns(HELD)
    }

    fn earned_ns(&self, time: Duration) -> i64 {
        i64::try_from(time.as_nanos() * u128::from(self.processors) / u128::from(RATE)).unwrap_or(i64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_wait_leaves_half_to_what_cannot() {
        let mut allowance = Allowance::new(2, Duration::ZERO);
        assert!(allowance.has_plenty(Duration::ZERO), "3.6 s");
        assert_eq!(allowance.of_a_piece(), Duration::from_millis(900));
        allowance.spend(1_800_000_000, Duration::ZERO);
        assert!(!allowance.has_plenty(Duration::ZERO) && allowance.has_some(Duration::ZERO));
        assert!(allowance.has_plenty(Duration::from_secs(1)));
    }

    /// Whoever learns whenever it may, 50 ms at a time, also after a night in which nothing was learned.
    #[test]
    fn in_no_hour_more_than_a_thousandth_of_the_processors_is_spent() {
        const PIECE_NS: u64 = 50_000_000;
        let night = Duration::from_secs(12 * 3600);
        for processors in [1, 2, 8] {
            let mut allowance = Allowance::new(processors, Duration::ZERO);
            let mut pieces = Vec::new();
            for second in (0..7200).chain(7200 + night.as_secs()..14_400 + night.as_secs()) {
                let now = Duration::from_secs(second);
                while allowance.has_some(now) {
                    allowance.spend(PIECE_NS, now);
                    pieces.push(second);
                }
            }
            let thousandth_ns = 3600 * 1_000_000 * processors;
            let spent_ns = |from: u64| {
                PIECE_NS * pieces.iter().filter(|at| (from..from + 3600).contains(*at)).count() as u64
            };
            let most = pieces.iter().map(|from| spent_ns(*from)).max().unwrap();
            assert!(most <= thousandth_ns + PIECE_NS, "{most} ns with {processors} processors");
            assert!(most > thousandth_ns * 9 / 10, "{most} ns: it is used");
        }
    }

    #[test]
    fn what_was_overdrawn_is_earned_first() {
        let mut allowance = Allowance::new(2, Duration::ZERO);
        allowance.spend(4_600_000_000, Duration::ZERO);
        // A second more than there was.
        assert!(!allowance.has_some(Duration::from_secs(999)));
        assert!(allowance.has_some(Duration::from_secs(1001)));
        assert_eq!(allowance.left_ns(Duration::from_secs(1500)), 500_000_000);
    }
}
