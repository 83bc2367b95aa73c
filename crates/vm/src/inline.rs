//! Faults served by the thread that took them, in its SIGBUS handler.

use prepage_sys::sigbus::{BusFault, Verdict};

use crate::addresses::Addresses;
use crate::fault::{Context, Fault, FaultOutcome, Touch, now_ns};
use crate::statistics::Account;

/// Resolves a fault on a map of any VM of this process.
pub(crate) fn on_fault(fault: &BusFault) -> Verdict {
    Addresses::of_process_now().map_or(Verdict::NotOurs, |addresses| serve(addresses, fault))
}

/// Resolves a fault on one of the maps at `addresses`.
pub(crate) fn serve(addresses: &'static Addresses, fault: &BusFault) -> Verdict {
    let start_ns = now_ns();
    let account = Account::here();
    let Some((map, at)) = addresses.find(fault.address, account.cpu) else { return Verdict::NotOurs };
    let touch = Touch {
        page: map.page_at(fault.address),
        address: fault.address,
        ip: fault.ip,
        write: fault.write.unwrap_or(true),
        surely_write: fault.write == Some(true),
        protected: fault.protected,
        // Asking takes a system call, which records alone are worth.
        tid: if map.vm.records.is_some() {
            rustix::thread::gettid().as_raw_nonzero().get() as u32
        } else {
            0
        },
        start_ns,
    };
    match Fault::new(&map, at, touch, Context::Signal, account).serve() {
        // Where the memory is served no longer, or is being registered anew, the kernel answers the next touch.
        FaultOutcome::Mapped(..) | FaultOutcome::Repeat(..) | FaultOutcome::Again | FaultOutcome::Gone => {
            Verdict::Resolved
        }
        FaultOutcome::Failed(_) => Verdict::Failed,
        FaultOutcome::Later => unreachable!("the thread waits for its own page"),
    }
}
