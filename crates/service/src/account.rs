//! What was fetched for a start, and when: what tells afterwards why a start was slow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use prepage_prefetch::engine::Amounts;

/// The account of one prefetch, for whoever is not to hold the files that it has open.
#[derive(Debug)]
pub struct Account {
    executed_at: Instant,
    /// From the exec, as the service saw it, to the first work that was lent to readers.
    after: Duration,
    /// What it came to.
    pub amounts: Arc<Amounts>,
    /// Atomic: from the exec to the end of the last work that was done of it, microseconds.
    last_us: AtomicU64,
}

impl Account {
    /// Of a prefetch that begins now, for a start whose exec was seen at `executed_at`.
    pub fn begin(executed_at: Instant, amounts: Arc<Amounts>) -> Self {
        Self { executed_at, after: executed_at.elapsed(), amounts, last_us: AtomicU64::new(0) }
    }

    /// A thread has done its part.
    pub fn note_end(&self) {
        self.last_us.fetch_max(self.executed_at.elapsed().as_micros() as u64, Ordering::Relaxed);
    }

    /// How long after the exec it began.
    pub fn after(&self) -> Duration {
        self.after
    }

    /// How long it took from then to the end of the last work that was done; zero while none has been.
    pub fn took(&self) -> Duration {
        Duration::from_micros(self.last_us.load(Ordering::Relaxed)).saturating_sub(self.after)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefetch_takes_as_long_as_the_last_of_its_threads() {
        let executed_at = Instant::now();
        std::thread::sleep(Duration::from_millis(2));
        let account = Account::begin(executed_at, Arc::default());
        assert!(account.after() >= Duration::from_millis(2) && account.took() == Duration::ZERO);
        account.note_end();
        std::thread::sleep(Duration::from_millis(3));
        account.note_end();
        assert!(account.took() >= Duration::from_micros(2999), "{:?}", account.took());
    }
}
