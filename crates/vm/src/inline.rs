//! Faults served by the thread that took them, in its SIGBUS handler.

use prepage_sys::clock::now_ns;
use prepage_sys::sigbus::{BusFault, Verdict};

use crate::addresses::Addresses;
use crate::fault::{Context, Fault, FaultOutcome, Touch};
use crate::statistics::Account;

/// Resolves a fault on a map of any VM of this process.
pub(crate) fn on_fault(fault: &BusFault) -> Verdict {
    Addresses::of_process_now().map_or(Verdict::NotOurs, |addresses| serve(addresses, fault))
}

/// Resolves a fault on one of the maps at `addresses`.
pub(crate) fn serve(addresses: &'static Addresses, fault: &BusFault) -> Verdict {
    let start_ns = now_ns();
    let account = Account { endings: fault.endings, ..Account::here() };
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

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::PAGE_SIZE;
    use prepage_sys::call_filter::When;
    use prepage_sys::signals::Endings;

    use super::*;
    use crate::snapshot::tests::while_failing;
    use crate::{Map, MapOptions, Piece, Reason, Vm, VmOptions};

    const ZEROPAGE: u32 = 0xc020_aa04;
    const COPY: u32 = 0xc028_aa03;
    const CONTINUE: u32 = 0xc020_aa07;
    const EEXIST: i32 = 17;

    /// What there is of the first page's fault on `map`.
    fn serve_first(map: &Map) -> Verdict {
        on_fault(&BusFault {
            address: map.address(),
            ip: 0,
            write: Some(false),
            protected: false,
            endings: Endings::default(),
        })
    }

    /// As where a private copy cannot be read back: the page is not missing, and cannot be read.
    #[test]
    fn what_is_there_and_cannot_be_read_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(4 * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
        let (object, zeros) = (vm.file(file.path()).unwrap(), vm.anonymous(4 * PAGE_SIZE).unwrap());
        let all = vm.map(&object, &MapOptions::shared()).unwrap();
        all.populate(all.window()).unwrap();
        let options = MapOptions::private().every_fault();
        let copied = [Piece::new(&object, object.pages()).copied()];
        let maps = [
            (CONTINUE, vm.map(&object, &options).unwrap()),
            (COPY, vm.map_pieces(&copied, &options).unwrap()),
            (ZEROPAGE, vm.map(&zeros, &options).unwrap()),
        ];
        for (call, map) in maps {
            let is_there = (libc::SYS_ioctl, When::Is(1, call));
            let Some(verdict) = while_failing(EEXIST, is_there, || serve_first(&map)) else { return };
            assert_eq!(verdict, Verdict::Failed, "{call:x}");
            let failures = vm.take_failures();
            assert!(matches!(failures[..], [_]), "{failures:?}");
            assert_eq!(failures[0].reason, Reason::System(5));
            // One that another thread has mapped is no error.
            assert_eq!(map.as_slice()[0], 0);
            assert_eq!(serve_first(&map), Verdict::Resolved);
        }
    }
}
