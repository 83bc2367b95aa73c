//! The thread of a VM that writes back what nobody flushes.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::bell::Bell;
use crate::failure::say;
use crate::object::ObjectCore;
use crate::sync::{Anyway, Mutex, spawn};
use crate::write_back::with_cause;

/// What the thread looks at.
///
/// Lock legend: `objects` is held for a look, never by faults.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    /// Objects that take writes; empty before there is a thread.
    objects: Mutex<Vec<Weak<ObjectCore>>>,
    /// Rings when pages may be dirty.
    pub(crate) bell: Bell,
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
        let is_dirty = || object.dirty().is_some_and(|dirty| dirty.pages() > 0 && !dirty.home.is_swap());
        if !self.bell.is_called() && is_dirty() {
            self.bell.call();
        }
    }

    fn work(&self, after: Duration) {
        while self.bell.wait(after) {
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
