//! The thread of a VM that writes back what nobody flushes.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use prepage_core::{PageIndex, PageRange};

use crate::bell::Bell;
use crate::cleaner::{CLEAN_MOST, Cleaner};
use crate::error::FlushError;
use crate::object::ObjectCore;
use crate::sync::{Anyway, Mutex, spawn};
use crate::write_back::{BATCH_PAGES, FAILING_MAX};

/// What could not be written is not tried again sooner.
const LEAST_PAUSE: Duration = Duration::from_secs(1);

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

/// What is left of an object to be written in one round.
struct Left {
    object: Weak<ObjectCore>,
    from: PageIndex,
    /// How long its writes took together that failed since one succeeded.
    failing: Duration,
    /// The first error.
    outcome: Result<(), FlushError>,
    /// Whether it was passed by because of a write that hangs, or of somebody who writes all of it.
    is_passed_by: bool,
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

    /// A page of `object` may be dirty now, or may be written again. From any context.
    pub(crate) fn call_for(&self, object: &ObjectCore) {
        let is_dirty = || object.dirty().is_some_and(|dirty| dirty.pages() > 0 && !dirty.home.is_swap());
        if !self.bell.is_called() && is_dirty() {
            self.bell.call();
        }
    }

    fn work(&self, after: Duration) {
        let mut cleaner = Cleaner::default();
        let mut rest = after;
        while self.bell.wait(rest) {
            rest = if self.write(&mut cleaner) { after } else { after.max(LEAST_PAUSE) };
        }
    }

    /// Writes what is dirty, a part of each object in turn, so that one that is slow keeps no other waiting; whether all could be written.
    pub(crate) fn write(&self, cleaner: &mut Cleaner) -> bool {
        let objects = self.objects.lock().anyway().clone();
        let mut left: Vec<Left> = objects.into_iter().map(Left::all_of).collect();
        let mut is_all = true;
        while !left.is_empty() {
            left.retain_mut(|object| {
                let has_more = object.write_part(cleaner);
                if !has_more {
                    is_all &= self.end(object);
                }
                has_more
            });
        }
        is_all
    }

    /// No more of `left` is written in this round. Whether all of it could be.
    fn end(&self, left: &Left) -> bool {
        if let Some(object) = left.object() {
            if let Err(error) = &left.outcome {
                object.tell_unwritten(error);
            }
            // Else who ends the write calls.
            if object.dirty().is_some_and(|dirty| !dirty.hangs()) {
                self.call_for(&object);
            }
        }
        left.outcome.is_ok() && !left.is_passed_by
    }
}

impl Left {
    fn all_of(object: Weak<ObjectCore>) -> Self {
        Self { object, from: PageIndex(0), failing: Duration::ZERO, outcome: Ok(()), is_passed_by: false }
    }

    /// `None` once no program holds it: whoever let go of it last writes what is left.
    fn object(&self) -> Option<Arc<ObjectCore>> {
        self.object.upgrade().filter(|object| object.has_handle())
    }

    /// Writes a part; whether there may be another.
    fn write_part(&mut self, cleaner: &mut Cleaner) -> bool {
        let Some(object) = self.object() else { return false };
        let Some((frames, dirty)) = object.frames().zip(object.dirty()) else { return false };
        let rest = PageRange::new(self.from, object.pages().end());
        let part: Vec<_> = dirty.all_in(&frames.pages, rest).take(BATCH_PAGES).collect();
        let Some(last) = part.last() else {
            // Others have all that is dirty, for as long as they like.
            self.is_passed_by = self.from == PageIndex(0) && dirty.pages() > 0;
            return false;
        };
        self.from = PageIndex(last.0 + 1);
        let until = Instant::now() + CLEAN_MOST;
        let Some(came) = cleaner.clean(&object, part, true, self.failing, until) else {
            self.is_passed_by = true;
            return false;
        };
        self.failing = came.failing;
        if self.outcome.is_ok() {
            self.outcome = came.outcome;
        }
        self.failing < FAILING_MAX
    }
}
