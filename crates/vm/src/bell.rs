//! What calls a thread that looks now and then, and ends it.

use std::time::Duration;

use crate::sync::{AtomicU32, Ordering, wait, wait_for, wake};

/// Calls of one thread, which sleeps until there is one.
///
/// Lock legend: (f) atomic, slept on.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    /// (f) 1 while there may be something to look at.
    called: AtomicU32,
    /// (f) 1 when the thread is to end.
    stop: AtomicU32,
}

impl Bell {
    /// Whether the thread was called and has not looked since.
    pub(crate) fn is_called(&self) -> bool {
        self.called.load(Ordering::SeqCst) != 0
    }

    /// There may be something to look at. From any context.
    pub(crate) fn call(&self) {
        if self.called.swap(1, Ordering::SeqCst) == 0 {
            wake(&self.called, 1);
        }
    }

    /// The thread is to end.
    pub(crate) fn stop(&self) {
        self.stop.store(1, Ordering::SeqCst);
        self.called.store(1, Ordering::SeqCst);
        wake(&self.called, 1);
        wake(&self.stop, 1);
    }

    /// Waits for a call, and then for `rest`. Returns whether to look; false where the thread is to end.
    pub(crate) fn wait(&self, rest: Duration) -> bool {
        while !self.is_called() {
            wait(&self.called, 0);
        }
        if self.stop.load(Ordering::SeqCst) == 0 {
            wait_for(&self.stop, 0, rest);
        }
        // Before the thread looks: who finds something later calls again, and so does who tells it to end.
        self.called.store(0, Ordering::SeqCst);
        self.stop.load(Ordering::SeqCst) == 0
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::sync::spawn;

    #[test]
    fn model_the_thread_ends_whenever_it_is_told() {
        let body = || {
            let bell = Arc::new(Bell::default());
            bell.called.store(1, Ordering::SeqCst);
            let heard = Arc::clone(&bell);
            let thread = spawn("prepage-write", move || while heard.wait(Duration::ZERO) {}).unwrap();
            // As time does.
            wake(&bell.stop, 1);
            bell.stop();
            thread.join().unwrap();
        };
        shuttle::check_random(body, 1000);
    }
}
