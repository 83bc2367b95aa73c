//! What nobody holds any more and is yet to be dropped: an object, or a map whose objects may go with it.
//!
//! Its frames cannot be reclaimed, but they are free soon. So they count as claimed: a read that finds no frame meanwhile waits, where it
//! would be told that all are pinned.

use std::any::Any;
use std::sync::Arc;

use crate::vm::VmCore;

/// One that a thread of its VM drops: with it sources may go, which may take long and touch maps.
#[derive(Debug)]
pub(crate) struct Going {
    last: Option<Box<dyn Any + Send>>,
    vm: Arc<VmCore>,
}

impl Going {
    pub(crate) fn new(last: impl Any + Send, vm: Arc<VmCore>) -> Self {
        vm.pool.core().frames.claim(1);
        Self { last: Some(Box::new(last)), vm }
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
