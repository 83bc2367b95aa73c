//! Faults served by the thread that took them, in its SIGBUS handler.

use std::cell::Cell;

use prepage_sys::sigbus::{BusFault, Verdict};

use crate::fault::{Context, Outcome, Touch, now_ns, serve};
use crate::options::Mode;
use crate::table;

thread_local! {
    /// This thread's number, once it is known: asking the kernel at each fault would cost as much as the record of it.
    static TID: Cell<u32> = const { Cell::new(0) };
}

/// Resolves a fault on a map of any VM of this process.
pub(crate) fn on_fault(fault: &BusFault) -> Verdict {
    let start_ns = now_ns();
    let cpu = rustix::thread::sched_getcpu();
    let Some((map, at)) = table::find(fault.address, cpu) else { return Verdict::NotOurs };
    if map.mode != Mode::Inline {
        // Poisoned: the failure was told when it happened.
        return Verdict::NotOurs;
    }
    let touch = Touch {
        page: map.page_at(fault.address),
        address: fault.address,
        ip: fault.ip,
        write: fault.write.unwrap_or(true),
        tid: tid(),
        start_ns,
    };
    match serve(&map, at, &touch, Context::Signal, cpu) {
        Outcome::Mapped(..) | Outcome::Repeat(..) => Verdict::Resolved,
        Outcome::Failed(_) => Verdict::Failed,
        Outcome::Later => unreachable!("the thread waits for its own page"),
    }
}

fn tid() -> u32 {
    TID.with(|known| {
        if known.get() == 0 {
            known.set(rustix::thread::gettid().as_raw_nonzero().get() as u32);
        }
        known.get()
    })
}
