//! Pages that a program asks for before it touches them, or instead of touching them.

use std::io;
use std::sync::Arc;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::region::try_copy;
use prepage_sys::signals::Masked;

use crate::at_work::is_worker;
use crate::error::AccessError;
use crate::install::Change;
use crate::map::Map;
use crate::object::{Bytes, ObjectCore};
use crate::pages::Seen;
use crate::reason;
use crate::request::Priority;
use crate::segment::{Place, places};
use crate::statistics::Account;
use crate::whole;
use crate::work::Sweep;
use crate::zero;

/// Pages that [`Map::populate`] brings in while signals wait: what takes a fast device a quarter of a second, and more than all reads that may be under way at
/// once, so that few of them end with nothing to follow.
const SOME_PAGES: u64 = 1 << 16;
/// Pages that [`Map::read_at`] brings in at once.
const READ_AT_PAGES: u64 = 1 << 14;
/// How often [`Map::read_at`] brings in what then cannot be read. A page may be reclaimed meanwhile, some times in a row.
const TRIES: u32 = 1000;
/// EFAULT
const UNREADABLE: i32 = 14;

/// A page of an object that cannot be had, and why.
type Unavailable = (Arc<ObjectCore>, PageIndex, u16);

impl Map {
    /// Reads and maps `range` of the object. After that, touching it takes no fault, and it can be given to system calls. Up to
    /// [`VmOptions::fill_threads`](crate::VmOptions::fill_threads) reads are under way at once. Pages that failed before are tried
    /// again.
    ///
    /// # Errors
    /// [`AccessError::Unavailable`] names a page that failed, and why; all other pages are there. If a read took longer than
    /// [`VmOptions::read_deadline`](crate::VmOptions::read_deadline), pages that had not been read by then may be missing too. While a child is
    /// forked that inherits the map no page can be mapped: where that lasts for 30 s, or the deadline, the error is EAGAIN.
    pub fn populate(&self, range: PageRange) -> Result<(), AccessError> {
        self.core.vm.check_process().map_err(|_| AccessError::Forked)?;
        self.inside(range)?;
        let mut account = Account::here();
        let mut outcome = Ok(());
        let mut at = range.start();
        // Of all parts: where nothing can be mapped for too long each would wait as long.
        let mut change = Change::of(&self.core);
        while at < range.end() && !matches!(outcome, Err((_, _, reason::TIMED_OUT))) {
            let some = PageRange::new(at, PageIndex((at.0 + SOME_PAGES).min(range.end().0)));
            at = some.end();
            let masked = Masked::asynchronous();
            account.endings = masked.endings();
            self.forget_poison(some)?;
            // Again where frozen pages were freed meanwhile: other versions of them are shown by now.
            let brought = loop {
                let mut freed = false;
                let brought = self.bring(some, &mut freed, &mut change, &mut account);
                if !freed {
                    break brought;
                }
            };
            outcome = outcome.and(brought);
            if range == self.core.window && at == range.end() {
                let _ = whole::give(&self.core, self.at);
            }
            self.core.vm.figures.settle(&mut account);
        }
        outcome.map_err(|(object, page, code)| unavailable(&object, page, code))
    }

    /// `freed` tells of frozen pages that were shown when this began and are no more.
    fn bring(
        &self,
        range: PageRange,
        freed: &mut bool,
        change: &mut Change,
        account: &mut Account,
    ) -> Result<(), Unavailable> {
        let mut outcome = Ok(());
        let mut at = range.start();
        for (place, count) in places(&self.core.shown.current(), range) {
            let run = PageRange::new(at, PageIndex(at.0 + count));
            at = run.end();
            let failed = match place.frames() {
                None => zero::populate(&self.core, run, change, account)
                    .map_err(|error| (place.page, reason::of_errno(error.raw_os_error()))),
                // What was frozen is there as long as it is shown; a snapshot may have replaced what is shown by now.
                Some(_) if place.object.is_frozen() => Ok(()),
                Some(_) => read_all(&place, count, account),
            };
            outcome = outcome.and(failed.map_err(|(page, code)| (Arc::clone(place.object), page, code)));
        }
        // Whoever else brought pages meanwhile, and whoever took some away: what is missing now is read here.
        let mut unread = Ok(());
        let shown = self.core.show_all(range, Some(change), account, |place, page, account| {
            let pages = &place.frames().expect("zeros are never missing").pages;
            let failed = |is_it: &dyn Fn(PageIndex, u16) -> bool| {
                let mut known = [&outcome, &unread].into_iter().filter_map(|outcome| outcome.as_ref().err());
                known.any(|(object, page, code)| Arc::ptr_eq(object, place.object) && is_it(*page, *code))
            };
            // Whatever is still read was given up with what took too long. To wait for it would make its source think it needed.
            if failed(&|_, code| code == reason::TIMED_OUT) {
                return false;
            }
            // Another thread fills it, or it was taken away.
            if pages.see(page) == Seen::Filling {
                pages.wait(page, account.endings);
                return true;
            }
            if place.object.is_frozen() {
                *freed = true;
                return false;
            }
            if failed(&|known, _| known == page) {
                return false;
            }
            let single = Place { page, ..*place };
            match read_all(&single, 1, account) {
                Ok(()) => true,
                Err((page, code)) => {
                    if unread.is_ok() {
                        unread = Err((Arc::clone(place.object), page, code));
                    }
                    false
                }
            }
        });
        let shown =
            shown.map_err(|(object, page, error)| (object, page, reason::of_errno(error.raw_os_error())));
        outcome.and(unread).and(shown)
    }

    /// Copies the bytes at `offset_bytes` of the map, private changes included. Raises no signal.
    ///
    /// # Errors
    /// [`AccessError::Unavailable`] names the page that failed, and why. [`AccessError::Beyond`] if the range ends beyond the map.
    /// [`AccessError::System`] with EFAULT if a page is there and the kernel cannot read it: of broken memory, or of swap that fails.
    pub fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.core.vm.check_process().map_err(|_| AccessError::Forked)?;
        let end = offset_bytes.checked_add(into.len() as u64).filter(|&end| end <= self.len_bytes());
        if end.is_none() {
            return Err(AccessError::Beyond {
                offset_bytes,
                wanted_bytes: into.len(),
                len_bytes: self.len_bytes(),
            });
        }
        let (mut done, mut tries) = (0, 0);
        while done < into.len() {
            let at = offset_bytes + done as u64;
            let copied = try_copy(self.address() + at, &mut into[done..]).map_err(AccessError::System)?;
            done += copied;
            tries = if copied == 0 { tries + 1 } else { 0 };
            if tries > TRIES {
                return Err(AccessError::System(io::Error::from_raw_os_error(UNREADABLE)));
            }
            if copied == 0 {
                let page = PageIndex(self.core.window.start().0 + at / PAGE_SIZE);
                // Where that was in vain once, it is this page.
                let most = if tries > 1 { 1 } else { READ_AT_PAGES };
                let most = most.min(self.core.vm.pool.core().frames.most_at_once());
                let wanted = PageRange::covering(at, (into.len() - done) as u64).len().min(most);
                self.populate(PageRange::new(page, PageIndex(page.0 + wanted))).or_else(|_| {
                    // A later page may be the one that failed.
                    self.populate(page.alone())
                })?;
                // What is copied to may lie in a map as well. In inline mode a touch brings it in, and no system call does.
                let room = &mut into[done..];
                let brought = room.len().min((wanted * PAGE_SIZE) as usize);
                room[..brought].iter_mut().step_by(PAGE_SIZE as usize).for_each(|byte| *byte = 0);
            }
        }
        Ok(())
    }
}

/// Reads what is missing of the `count` pages from that of `place` on; returns the first that cannot be had.
fn read_all(place: &Place<'_>, count: u64, account: &mut Account) -> Result<(), (PageIndex, u16)> {
    let object = place.object;
    let run = PageRange::new(place.page, PageIndex(place.page.0 + count));
    let pieces = Sweep::cut(object, &[run], object.pages());
    let is_short = pieces.len() == 1;
    let sweep = Sweep::new(pieces, Priority::Wanted);
    let by_this_thread = match object.frames().map(|frames| &frames.bytes) {
        // Local reads take a CPU, of which this thread has one.
        Some(Bytes::Local(_)) => true,
        // No deadline ends the wait of a thread that hangs in the source itself.
        _ => is_short && !object.vm.jobs.has_deadline(),
    };
    let needs_no_other = is_worker() || is_short && by_this_thread;
    if !needs_no_other {
        sweep.start(object, object.vm.options.fill_threads as usize, account);
    }
    if by_this_thread || is_worker() {
        sweep.work(object, account);
    }
    sweep.wait(account.endings)
}

fn unavailable(object: &ObjectCore, page: PageIndex, code: u16) -> AccessError {
    AccessError::Unavailable { object: object.name.clone(), page, reason: object.reason(page, code) }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_sys::call_filter::When;

    use super::*;
    use crate::snapshot::tests::while_failing;
    use crate::{MapOptions, Vm, VmOptions};

    #[test]
    fn what_is_there_and_cannot_be_read_is_an_error() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(4 * PAGE_SIZE).unwrap();
        let map = vm.map(&zeros, &MapOptions::private()).unwrap();
        let unreadable = (libc::SYS_process_vm_readv, When::Always);
        let Some(failed) = while_failing(UNREADABLE, unreadable, || map.read_at(0, &mut [0])) else { return };
        let Err(AccessError::System(error)) = failed else { panic!("{failed:?}") };
        assert_eq!(error.raw_os_error(), Some(UNREADABLE));
        map.read_at(0, &mut [0]).unwrap();
    }
}
