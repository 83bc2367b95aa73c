//! The thread of a VM that writes back what nobody flushes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::failure::say;
use crate::object::ObjectCore;
use crate::sync::{Anyway, AtomicU32, Mutex, Ordering, spawn, wait, wait_for, wake};
use crate::write_back::with_cause;

/// What the thread looks at.
///
/// Lock legend: (a) atomic; (f) atomic, slept on; `objects` is held for a look, never by faults.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Objects that take writes; empty before there is a thread.
    objects: Mutex<Vec<Weak<ObjectCore>>>,
    /// (f) 1 while pages may be dirty.
    called: AtomicU32,
    /// (f) 1 when the thread is to end.
    stop: AtomicU32,
}

impl Writer {
    /// `object` is looked at from now on, `after` each such time in which pages are dirty.
    ///
    /// # Errors
    /// Where no thread is left.
    pub(crate) fn enter(self: &Arc<Self>, object: &Arc<ObjectCore>, after: Duration) -> std::io::Result<()> {
        let mut objects = self.objects.lock().anyway();
        objects.retain(|other| other.strong_count() > 0);
        if objects.capacity() == 0 {
            let writer = Arc::clone(self);
            spawn("prepage-write", move || writer.work(after))?;
        }
        objects.push(Arc::downgrade(object));
        Ok(())
    }

    /// A page of `object` may be dirty now. From any context.
    pub(crate) fn call_for(&self, object: &ObjectCore) {
        if self.called.load(Ordering::SeqCst) == 0
            && object.dirty().is_some_and(|dirty| dirty.pages() > 0 && !dirty.home.is_swap())
            && self.called.swap(1, Ordering::SeqCst) == 0
        {
            wake(&self.called, 1);
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.store(1, Ordering::SeqCst);
        self.called.store(1, Ordering::SeqCst);
        wake(&self.called, 1);
        wake(&self.stop, 1);
    }

    fn work(&self, after: Duration) {
        loop {
            while self.called.load(Ordering::SeqCst) == 0 {
                wait(&self.called, 0);
            }
            if self.stop.load(Ordering::SeqCst) == 0 {
                wait_for(&self.stop, 0, after);
            }
            // Before it looks: who marks a page later calls again, and so does who tells it to end.
            self.called.store(0, Ordering::SeqCst);
            if self.stop.load(Ordering::SeqCst) != 0 {
                return;
            }
            let objects = self.objects.lock().anyway().clone();
            for object in objects.iter().filter_map(Weak::upgrade) {
                self.write(&object);
            }
        }
    }

    fn write(&self, object: &ObjectCore) {
        let Some(frames) = object.frames() else { return };
        let Some(dirty) = frames.dirty.as_ref() else { return };
        let outcome = object.write_back(frames, dirty, object.pages());
        if let Err(error) = outcome {
            if object.vm.options.explain {
                say(format_args!("{}; it is tried again", with_cause(&error)));
            }
            self.call_for(object);
        }
    }
}

#[cfg(all(test, feature = "shuttle"))]
mod tests {
    use super::*;

    #[test]
    fn model_the_thread_ends_whenever_it_is_told() {
        let body = || {
            let writer = Arc::new(Writer::default());
            writer.called.store(1, Ordering::SeqCst);
            let working = Arc::clone(&writer);
            let thread = spawn("prepage-write", move || working.work(Duration::ZERO)).unwrap();
            // As time does.
            wake(&writer.stop, 1);
            writer.stop();
            thread.join().unwrap();
        };
        shuttle::check_random(body, 1000);
    }
}
