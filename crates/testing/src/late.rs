//! Tests of what holds for a limited time, on a machine that stops a thread for longer at times.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::{Duration, Instant};

/// How often a test is run again.
const AGAIN_MAX: u32 = 5;

/// Runs `test`, and again if it panics after more than `most`: what it says of the code holds for so long and no longer, and somebody else had
/// the processor meanwhile. A test that fails within that time fails.
///
/// # Panics
/// As `test` does.
pub fn unless_late<T>(most: Duration, test: impl Fn() -> T) -> T {
    for _ in 0..AGAIN_MAX {
        let began = Instant::now();
        match catch_unwind(AssertUnwindSafe(&test)) {
            Err(_) if began.elapsed() > most => eprintln!("it came too late: once more"),
            Err(panic) => resume_unwind(panic),
            Ok(value) => return value,
        }
    }
    test()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_what_fails_late_runs_again_and_not_for_ever() {
        let runs = Cell::new(0);
        let fails_until = |run: u32| {
            runs.set(runs.get() + 1);
            assert!(runs.get() >= run);
            runs.replace(0)
        };
        assert_eq!(unless_late(Duration::ZERO, || fails_until(3)), 3);
        let fails = |most| catch_unwind(AssertUnwindSafe(|| unless_late(most, || fails_until(100)))).is_err();
        assert_eq!((fails(Duration::MAX), runs.replace(0)), (true, 1));
        assert_eq!((fails(Duration::ZERO), runs.get()), (true, AGAIN_MAX + 1));
    }
}
