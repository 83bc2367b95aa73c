//! Tests of files in memory, on a machine where others drop caches.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// How often a test is run again.
const AGAIN_MAX: u32 = 20;

/// Runs `test`, and again if it panics and somebody dropped the machine's page cache meanwhile (`drop_pagecache` of
/// /proc/vmstat): a file that the test had brought into memory was cold then, through no fault of the code.
///
/// # Panics
/// As `test` does.
pub fn unless_caches_dropped<T>(test: impl Fn() -> T) -> T {
    unless_changed(cache_drops, test)
}

fn unless_changed<T>(counter: impl Fn() -> u64, test: impl Fn() -> T) -> T {
    for _ in 0..AGAIN_MAX {
        let before = counter();
        match catch_unwind(AssertUnwindSafe(&test)) {
            Err(_) if counter() != before => eprintln!("caches were dropped meanwhile: once more"),
            Err(panic) => resume_unwind(panic),
            Ok(value) => return value,
        }
    }
    test()
}

fn cache_drops() -> u64 {
    let vmstat = std::fs::read_to_string("/proc/vmstat").expect("/proc is mounted");
    let count = vmstat.lines().find_map(|line| line.strip_prefix("drop_pagecache "));
    count.and_then(|count| count.parse().ok()).expect("the kernel counts how often caches were dropped")
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn only_what_failed_while_caches_were_dropped_runs_again() {
        let (drops, runs) = (Cell::new(cache_drops()), Cell::new(0));
        let fails_until = |run: u32, drops_meanwhile: u64| {
            runs.set(runs.get() + 1);
            drops.set(drops.get() + drops_meanwhile);
            assert!(runs.get() >= run);
            runs.replace(0)
        };
        assert_eq!(unless_changed(|| drops.get(), || fails_until(3, 1)), 3);
        assert_eq!(unless_changed(|| drops.get(), || fails_until(1, 1)), 1);
        let undisturbed = || unless_changed(|| drops.get(), || fails_until(3, 0));
        assert!(catch_unwind(AssertUnwindSafe(undisturbed)).is_err());
        assert_eq!(runs.get(), 1);
    }
}
