//! Waiting for what comes by itself.

use std::time::{Duration, Instant};

/// Longer than anything takes in a test, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks: what is waited for may need the processor.
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until `is` is so.
///
/// # Panics
/// With `never`, where that takes longer than a minute.
#[track_caller]
pub fn wait_until(mut is: impl FnMut() -> bool, never: &str) {
    let until = Instant::now() + PATIENCE;
    while !is() {
        assert!(Instant::now() < until, "{never}");
        std::thread::sleep(PAUSE);
    }
}
