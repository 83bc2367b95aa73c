use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::ThreadId;
use std::time::Duration;

use prepage_sys::region::try_copy;
use prepage_sys::signals::Endings;
use prepage_testing::{Doctor, Need, unless_refused};

use super::*;
use crate::error::{AccessError, MapError};
use crate::fault::Touch;
use crate::work::Sweep;
use crate::{MapOptions, Mode, Object, Reason, Vm, VmOptions};

/// Leaves its reads to others, and says which thread drops it.
struct Left {
    len_bytes: u64,
    requests: Sender<Request>,
    dropped: Sender<ThreadId>,
}

impl Source for Left {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), SourceError> {
        unreachable!("it has `begin`")
    }

    fn begin(&self, request: Request) {
        // Who takes them has gone where the test is over.
        let _ = self.requests.send(request);
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.dropped.send(thread::current().id());
    }
}

/// An object of `vm` of so many pages, its requests, and who drops it.
fn left(vm: &Vm, pages: u64) -> (Object, Receiver<Request>, Receiver<ThreadId>) {
    let ((requests, begun), (dropped, drops)) = (channel(), channel());
    (vm.source("left", Left { len_bytes: pages * PAGE_SIZE, requests, dropped }).unwrap(), begun, drops)
}

const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than the tests that have their reads expire themselves.
const LONG: Duration = Duration::from_secs(30);

#[track_caller]
fn until(condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < PATIENCE, "it never comes");
        thread::yield_now();
    }
}

/// As if its deadline were over.
fn expire_now(request: &Request) {
    let flight = &request.reading().flight;
    assert!(flight.expire(flight.deadline.unwrap()) && flight.has_ended());
}

/// The last page of one piece of `object`, and the first of the next: a populate of both has two reads under way.
fn two_pieces(object: &Object) -> PageRange {
    let start = object.core.step_pages();
    PageRange::new(PageIndex(start - 1), PageIndex(start + 1))
}

/// The requests for two pages, in their order.
fn two_of(begun: &Receiver<Request>) -> [Request; 2] {
    let mut two = [(); 2].map(|()| begun.recv_timeout(PATIENCE).unwrap());
    two.sort_by_key(Request::offset_bytes);
    two
}

/// A source that ends its threads as it is dropped would wait for itself.
#[test]
fn a_source_is_not_dropped_by_who_completes_its_last_read() {
    // Where a thread came too late to ask it, it had no read.
    assert!((0..5).any(|_| is_dropped_by_another()));
}

/// Whether it was asked, and dropped so.
fn is_dropped_by_another() -> bool {
    let vm = Vm::new(VmOptions::default().explain(false).read_deadline(Duration::from_millis(10))).unwrap();
    let (object, begun, drops) = left(&vm, 1);
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let failed = map.populate(map.window());
    let is_late = matches!(failed, Err(AccessError::Unavailable { reason: Reason::TimedOut, .. }));
    assert!(is_late, "{failed:?}");
    drop((map, object));
    // The thread that looks after deadlines has let go of it by then.
    thread::sleep(Duration::from_millis(200));
    let Ok(request) = begun.recv_timeout(Duration::from_millis(1)) else { return false };
    let completing = thread::spawn(move || {
        request.complete(Ok(()));
        thread::current().id()
    });
    let completing = completing.join().unwrap();
    let drops = drops.recv_timeout(PATIENCE).unwrap();
    assert_ne!(drops, completing);
    true
}

/// A populate of two reads is given up for one of them. `ends` the other once a thread has come to touch its page, which then comes by a read of
/// its own.
fn is_read_anew_once_nobody_needed_it(ends: fn(Request)) {
    let vm = Vm::new(VmOptions::default().fill_threads(2).read_deadline(LONG)).unwrap();
    let (object, begun, _drops) = left(&vm, 2048);
    // A system call touches it, and says where that fails.
    let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
    let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
    let options = MapOptions::shared().mode(Mode::Handler).policy("none".parse().unwrap());
    let Some(map) = unless_refused(vm.map(&object, &options), need, refused) else { return };
    let range = two_pieces(&object);
    thread::scope(|scope| {
        let populates = scope.spawn(|| map.populate(range));
        let [first, late] = two_of(&begun);
        assert!(!first.is_cancelled() && !late.is_cancelled());
        expire_now(&late);
        let error = populates.join().unwrap().unwrap_err();
        assert!(matches!(error, AccessError::Unavailable { reason: Reason::TimedOut, .. }), "{error}");
        assert!(!first.reading().flight.has_ended(), "populate waited for what was given up");
        assert_eq!((first.is_cancelled(), first.priority()), (true, Priority::Wanted));
        let touches = scope.spawn(|| {
            try_copy(map.address() + range.start().offset_bytes(), &mut [0; 8]).map_err(|error| error.kind())
        });
        until(|| !first.is_cancelled());
        assert_eq!(first.priority(), Priority::Demand);
        ends(first);
        while !touches.is_finished() {
            if let Ok(request) = begun.recv_timeout(Duration::from_millis(1)) {
                request.complete(Ok(()));
            }
        }
        assert_eq!(touches.join().unwrap(), Ok(8));
    });
}

#[test]
fn what_nobody_needed_and_was_dropped_is_read_anew_for_who_came_to_need_it() {
    is_read_anew_once_nobody_needed_it(drop);
}

#[test]
fn what_nobody_needed_and_came_too_late_is_read_anew_for_who_came_to_need_it() {
    is_read_anew_once_nobody_needed_it(|request| expire_now(&request));
}

#[test]
fn what_waited_too_long_for_a_thread_fails_only_if_somebody_needs_it() {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let (object, ..) = left(&vm, 1);
    let page = PageIndex(0);
    let gone = vm.map(&object, &MapOptions::shared()).unwrap().at;
    let touch = Touch {
        page,
        address: 0,
        ip: 0,
        write: false,
        surely_write: false,
        protected: false,
        tid: 0,
        start_ns: 0,
    };
    let after = |then| {
        let pages = &object.core.frames().unwrap().pages;
        let wanted = Wanted {
            needed: page,
            mark: None,
            priority: Priority::Demand,
            in_order_for: None,
            whole_grains: true,
        };
        expire(Arc::clone(&object.core), pages.claim(page).unwrap(), wanted, then);
        pages.see(page)
    };
    assert_eq!(after(Then::Map { at: gone, touch }), Seen::Absent);
    assert_eq!(after(Then::Wake), Seen::Failed(reason::TIMED_OUT));
}

/// As where a source drops, as it may, what was given up for a read that was too late.
#[test]
fn what_is_dropped_after_a_read_was_too_late_is_not_why_a_range_fails() {
    let vm = Vm::new(VmOptions::default().read_deadline(LONG)).unwrap();
    let (object, begun, _drops) = left(&vm, 2048);
    let (core, range) = (&object.core, two_pieces(&object));
    let sweep = Sweep::new(Sweep::cut(core, &[range], core.pages()), Priority::Wanted);
    sweep.start(core, 2, &mut Account::here());
    let [first, late] = two_of(&begun);
    expire_now(&late);
    assert!(first.is_cancelled());
    drop(first);
    assert_eq!(sweep.wait(Endings::default()), Err((PageIndex(range.start().0 + 1), reason::TIMED_OUT)));
}

/// Who populates one page begins its read by itself, and sleeps for that.
#[test]
fn what_a_populate_waits_for_is_as_urgent_if_it_is_one_read_as_if_it_is_many() {
    let vm = Vm::new(VmOptions::default()).unwrap();
    let (object, begun, _drops) = left(&vm, 2048);
    let map = vm.map(&object, &MapOptions::shared()).unwrap();
    let one = PageIndex(7).alone();
    for range in [one, two_pieces(&object)] {
        thread::scope(|scope| {
            let populates = scope.spawn(|| map.populate(range));
            for _ in range.iter() {
                let request = begun.recv_timeout(PATIENCE).unwrap();
                let flight = &request.reading().flight;
                until(|| range != one || flight.look(Pending::has_waiters) == Some(true));
                assert_eq!((request.priority(), request.is_cancelled()), (Priority::Wanted, false));
                request.complete(Ok(()));
            }
            populates.join().unwrap().unwrap();
        });
    }
}
