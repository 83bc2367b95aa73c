//! Rates of a whole machine, as DragonFly's authors published them when they reworked its virtual memory in 2019: starts
//! of programs, new pages of zeros, and a build.

pub mod build;
pub mod starts;
pub mod zeros;

use std::time::Instant;

use crate::statistics::median;

/// A rate measured several times.
#[derive(Clone, Debug, PartialEq)]
pub struct Rate {
    /// What was counted.
    pub what: String,
    /// How many processes or threads did it concurrently.
    pub workers: usize,
    /// Of all of them together, a second; ascending.
    pub per_second: Vec<f64>,
}

impl Rate {
    /// Measures `rounds` times.
    ///
    /// # Errors
    /// Those of `once`, which returns what happened a second.
    ///
    /// # Panics
    /// Without a round.
    pub fn measure<E>(
        what: &str,
        workers: usize,
        rounds: u32,
        mut once: impl FnMut() -> Result<f64, E>,
    ) -> Result<Self, E> {
        assert!(rounds > 0, "a rate is measured at least once");
        let mut per_second = (0..rounds).map(|_| once()).collect::<Result<Vec<_>, E>>()?;
        per_second.sort_by(f64::total_cmp);
        Ok(Self { what: what.to_owned(), workers, per_second })
    }

    /// The middle one, or between the two in the middle.
    pub fn median(&self) -> f64 {
        median(&self.per_second)
    }

    /// Of the middle one, what one of the workers did.
    pub fn per_worker(&self) -> f64 {
        self.median() / self.workers as f64
    }

    /// The least and the greatest.
    pub fn range(&self) -> (f64, f64) {
        (self.per_second[0], self.per_second[self.per_second.len() - 1])
    }
}

/// What was published: of what, on which machine, before and after.
pub const PUBLISHED: [(&str, &str, &str); 9] = [
    ("starts of a shared dynamic program, 64 threads", "6,000 a second", "45,000"),
    ("starts of independent static programs, 64 threads", "", "450,000"),
    ("the same on 4 cores: dynamic, 1 and 8 workers", "3,180 and 15,160", "3,650 and 19,600"),
    ("static, 1 and 8 workers", "10,307 and 60,800", "12,443 and 78,900"),
    ("new pages of zeros, 64 threads", "", "6.4 million a second (25 GB/s)"),
    ("the same on 4 cores, 1 and 8 threads", "550,000 and 1.2 million", "604,000 and 1.7 million"),
    ("faults of one thread", "", "500,000 to 700,000 a second"),
    ("a build: share of system time", "15.6 %", "11.2 %"),
    ("a build on 32 cores: share of system time", "over 20 %", "below 15 %"),
];

/// Seconds that `work` takes.
fn seconds(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_the_middle_of_its_rounds() {
        let mut rates = [5.0, 1.0, 3.0].into_iter();
        let rate = Rate::measure("x", 2, 3, || rates.next().ok_or(())).expect("three rounds");
        assert_eq!((rate.median(), rate.per_worker(), rate.range()), (3.0, 1.5, (1.0, 5.0)));
        let mut rates = [5.0, 1.0, 3.0, 4.0].into_iter();
        let even = Rate::measure("x", 2, 4, || rates.next().ok_or(())).expect("four rounds");
        assert_eq!(even.median(), 3.5);
        let mut rates = [5.0, 1.0, 3.0].into_iter();
        assert_eq!(Rate::measure("x", 2, 4, || rates.next().ok_or(())), Err(()));
    }
}
