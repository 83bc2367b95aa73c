//! The thread of a VM with snapshots that frees frozen pages which nobody sees any more.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::bell::Bell;
use crate::sync::{Anyway, Mutex, spawn};
use crate::vm::{Vm, VmCore};

/// The thread rests so many times as long as it looked last: who takes snapshots waits for it while it looks.
const REST_PARTS: u32 = 20;

/// When the thread looks.
///
/// Lock legend: `is_there` is held while the thread is started.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    /// Whether there is a thread.
    is_there: Mutex<bool>,
    /// Rings when a map or a snapshot has gone, or something is shadowed.
    pub(crate) bell: Bell,
}

impl Keeper {
    /// A snapshot was taken, which may shadow pages from here on.
    pub(crate) fn snapshot_taken(self: &Arc<Self>, vm: &Arc<VmCore>) {
        let after = vm.options.free_shadowed_after;
        if after == Duration::MAX {
            return;
        }
        {
            let mut is_there = self.is_there.lock().anyway();
            if !*is_there {
                let (keeper, vm) = (Arc::clone(self), Arc::downgrade(vm));
                // Without a thread pages stay until they are freed on request, or the next snapshot finds one.
                *is_there = spawn("prepage-shadowed", move || keeper.work(&vm, after)).is_ok();
            }
        }
        self.bell.call();
    }

    fn work(&self, vm: &Weak<VmCore>, after: Duration) {
        let mut rest = after;
        while self.bell.wait(rest) {
            let Some(core) = vm.upgrade() else { return };
            let began = Instant::now();
            // What the kernel refuses to free is not shown by anybody, and goes with its snapshot.
            let _ = Vm { core }.free_shadowed();
            rest = after.max(began.elapsed() * REST_PARTS);
        }
    }
}
