//! What nobody holds any more and is yet to be dropped: an object, or a map whose objects may go with it.
//!
//! Its frames cannot be reclaimed, but they are free soon. So they count as claimed: a read that finds no frame meanwhile waits, where it
//! would be told that all are pinned.

use std::any::Any;
use std::sync::Arc;

use crate::jobs::Job;
use crate::vm::VmCore;

/// One that a thread of its VM drops: with it sources may go, which may take long and touch maps.
#[derive(Debug)]
pub(crate) struct Going {
    last: Option<Box<dyn Any + Send>>,
    vm: Arc<VmCore>,
}

/// Lets go of what is `held` on a thread that others wait for: where nobody else holds it, a thread of its VM drops it.
pub(crate) fn let_go<T: Any + Send>(held: Arc<T>, vm: impl FnOnce(&T) -> Arc<VmCore>) {
    if let Some(last) = Arc::into_inner(held) {
        let vm = vm(&last);
        vm.pool.core().frames.claim(1);
        // The VM may go with it.
        let jobs = Arc::clone(&vm.jobs);
        jobs.push(Job::Drop(Going { last: Some(Box::new(last)), vm }));
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        drop(self.last.take());
        let frames = &self.vm.pool.core().frames;
        frames.let_go(1);
        frames.may_go();
    }
}
