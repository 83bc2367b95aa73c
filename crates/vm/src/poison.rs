//! Pages of a map that raise SIGBUS, since they could not be had, until they are tried again: in handler mode, where the
//! thread that touched one sleeps in the kernel.

use std::io;
use std::sync::Arc;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::pagemap::PageEntry;
use prepage_sys::userfaultfd::{Progress, Writes};

use crate::error::AccessError;
use crate::map::{Map, MapCore};
use crate::object::ObjectCore;
use crate::segment::Place;
use crate::statistics::Account;
use crate::sync::{Anyway, AtomicU32, Mutex, MutexGuard, Ordering};

/// The poisoned pages of a map.
///
/// Lock legend: (a) atomic; `pages` is held while poison is laid or taken away, and while pages are unmapped, with which it would go, never in signal handlers.
#[derive(Debug, Default)]
pub(crate) struct Poison {
    pages: Mutex<Vec<PageIndex>>,
    /// (a) How many there are or are about to be; changed under `pages`.
    count: AtomicU32,
}

/// While this lives no poison is laid or taken away by others.
pub(crate) struct Held<'a> {
    pages: MutexGuard<'a, Vec<PageIndex>>,
    count: &'a AtomicU32,
}

impl Poison {
    pub(crate) fn hold(&self) -> Held<'_> {
        let pages = self.pages.lock().anyway();
        Held { pages, count: &self.count }
    }

    /// As [`Self::hold`], of a fault or for one: whether it waited is counted.
    fn hold_by(&self, account: &mut Account) -> Held<'_> {
        Held { pages: account.lock(&self.pages), count: &self.count }
    }

    pub(crate) fn is_nowhere(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
}

impl Held<'_> {
    pub(crate) fn holds(&self, page: PageIndex) -> bool {
        self.pages.contains(&page)
    }

    /// Poison is gone from the pages of which `which` is true.
    pub(crate) fn forget(&mut self, mut which: impl FnMut(PageIndex) -> bool) {
        self.pages.retain(|&page| !which(page));
        self.count.store(self.pages.len() as u32, Ordering::SeqCst);
    }
}

impl Map {
    /// Pages of `range` that raise SIGBUS do so no longer.
    pub(crate) fn forget_poison(&self, range: PageRange) -> Result<(), AccessError> {
        let core = &self.core;
        if core.poison.is_nowhere() {
            return Ok(());
        }
        let table = core.vm.page_map().map_err(AccessError::System)?;
        // A page that is mapped over the poison before that is taken away would be lost, with what was written to it. A snapshot would change
        // which objects are in use.
        let _chain = core.chain.lock().anyway();
        let objects = core.objects_in_use();
        let _held = core.keep_pages_out(objects.iter().map(|object| object.mapping_sections()));
        let mut poisoned = core.poison.hold();
        // Those that were mapped since are no longer in the list: nothing that was written is lost. As in `prune`, nothing is allocated now.
        while let Some(page) = poisoned.pages.iter().copied().find(|&page| range.contains(page)) {
            self.region.unpoison(table, core.offset_of(page)).map_err(AccessError::System)?;
            poisoned.forget(|other| other == page);
        }
        Ok(())
    }
}

impl MapCore {
    /// Lets threads that wait for `page`, and those that touch it, get SIGBUS, until it is tried again.
    pub(crate) fn poison(&self, page: PageIndex, account: &mut Account) {
        let _hurry = self.vm.pool.core().hurry();
        let laid = self.lay_poison(&mut self.poison.hold_by(account), page);
        let laid = match laid {
            Ok(Progress::Mapped) if self.has_marks() => {
                let objects = self.objects_in_use();
                let laid = self.poison_in_place_of_a_mark(page, &objects, account);
                objects.into_iter().for_each(ObjectCore::let_go);
                laid
            }
            laid => laid,
        };
        if !matches!(laid, Ok(Progress::Done)) {
            // It is there after all, or going: the touch is repeated.
            self.wake(page);
        }
    }

    /// Poison lies in no place where the page table holds anything: neither where a page is, nor where there is a mark of the kernel, that a page
    /// which comes there is protected. So the mark goes first; whoever maps the page protects it where it has to be.
    fn poison_in_place_of_a_mark(
        &self,
        page: PageIndex,
        objects: &[Arc<ObjectCore>],
        account: &mut Account,
    ) -> io::Result<Progress> {
        let table = self.vm.page_map()?;
        // A page that is mapped before it is unprotected could be written to, and nobody would be told.
        let _held = self.keep_pages_out(objects.iter().map(|object| object.mapping_sections()));
        let mut poisoned = self.poison.hold_by(account);
        let mut entry = [PageEntry::default()];
        table.entries(self.address_of(page), &mut entry)?;
        if entry[0].is_present() || !entry[0].may_be_private() || poisoned.holds(page) {
            return Ok(Progress::Mapped);
        }
        // It may be a private copy that came and went to a swap device meanwhile: then it may have been written to by the time it is protected again.
        self.may_be_written_to(page);
        let (uffd, offset) = (&self.space.uffd, self.offset_of(page));
        // Who waits for the page would touch it, and fail, once more.
        uffd.unprotect_silently(&self.span, offset, PAGE_SIZE)?;
        let laid = self.lay_poison(&mut poisoned, page);
        if !matches!(laid, Ok(Progress::Done)) && self.writes_told() == Writes::Told {
            uffd.protect(&self.span, offset, PAGE_SIZE)?;
        }
        laid
    }

    fn lay_poison(&self, poisoned: &mut Held<'_>, page: PageIndex) -> io::Result<Progress> {
        // Known before the poison is laid: whoever maps over it looks here afterwards.
        poisoned.count.store(poisoned.pages.len() as u32 + 1, Ordering::SeqCst);
        let laid = self.space.uffd.poison(&self.span, self.offset_of(page), PAGE_SIZE);
        if matches!(laid, Ok(Progress::Done)) {
            poisoned.pages.push(page);
        } else {
            poisoned.count.store(poisoned.pages.len() as u32, Ordering::SeqCst);
        }
        laid
    }

    /// The object's pages `run` were mapped at `place`: poison that lay there is gone, and what the program writes there from
    /// now on is to stay.
    pub(crate) fn forget_poisoned(&self, place: &Place<'_>, run: PageRange, account: &mut Account) {
        let start = self.page_at(self.span.start() + place.offset_of(run.start()));
        self.forget_poisoned_pages(PageRange::new(start, PageIndex(start.0 + run.len())), account);
    }

    /// The same of the map's pages `mapped`.
    pub(crate) fn forget_poisoned_pages(&self, mapped: PageRange, account: &mut Account) {
        if !self.poison.is_nowhere() {
            self.poison.hold_by(account).forget(|page| mapped.contains(page));
        }
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use prepage_sys::call_filter::When;
    use prepage_sys::region::try_copy;
    use prepage_testing::{Doctor, Need, is_child, passes_as_child, this_test, unless_refused};

    use super::*;
    use crate::error::MapError;
    use crate::snapshot::tests::while_failing;
    use crate::{MapOptions, Mode, Object, Source, SourceError, Vm, VmOptions};

    const PAGES: u64 = 16;

    /// Pages of sevens, once it is well.
    struct Heals(Arc<AtomicBool>);

    impl Source for Heals {
        fn len_bytes(&self) -> u64 {
            PAGES * PAGE_SIZE
        }

        fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
            into.fill(7);
            let is_well = self.0.load(Ordering::SeqCst);
            if is_well { Ok(()) } else { Err(SourceError::Other("not yet".to_owned())) }
        }
    }

    /// A map of which the page `page` has been poisoned, and is well by now; `None` where that is not permitted.
    fn poisoned(page: u64) -> Option<(Object, Map)> {
        let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
        let well = Arc::new(AtomicBool::new(false));
        let object = vm.source("heals", Heals(Arc::clone(&well))).unwrap();
        let options = MapOptions::private().mode(Mode::Handler);
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let map = unless_refused(vm.map(&object, &options), need, refused)?;
        assert_eq!(try_copy(map.address() + page * PAGE_SIZE, &mut [0]).unwrap(), 0);
        assert!(!map.core.poison.is_nowhere());
        well.store(true, Ordering::SeqCst);
        Some((object, map))
    }

    /// A page that is not in memory has a mark of the kernel's where pages around it were protected by one call.
    #[test]
    fn a_page_of_a_file_that_cannot_be_had_where_there_is_a_mark_is_an_error() {
        if !is_child(&this_test()) {
            // A touch that is repeated for ever does not end.
            return passes_as_child(&["timeout", "60"]);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
        let object = vm.file_writable(file.path()).unwrap();
        let options = MapOptions::writable().mode(Mode::Handler).policy("none".parse().unwrap());
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let Some(map) = unless_refused(vm.map(&object, &options), need, refused) else { return };
        for page in [2, 4] {
            map.as_atomics()[(page * PAGE_SIZE) as usize].store(1, Ordering::Relaxed);
        }
        assert_eq!(object.write_back(object.pages()).unwrap(), 2);
        assert!(!object.is_resident(PageIndex(3)));
        file.as_file().set_len(3 * PAGE_SIZE).unwrap();
        assert_eq!(try_copy(map.address() + 3 * PAGE_SIZE, &mut [0]).unwrap(), 0);
        assert_eq!(vm.take_failures().len(), 1);
        // It can be had again.
        file.as_file().set_len(PAGES * PAGE_SIZE).unwrap();
        map.populate(map.window()).unwrap();
        assert_eq!(try_copy(map.address() + 3 * PAGE_SIZE, &mut [1]).unwrap(), 1);
        map.as_atomics()[3 * PAGE_SIZE as usize].store(3, Ordering::Relaxed);
        assert_eq!(object.write_back(object.pages()).unwrap(), 1);
    }

    #[test]
    fn a_page_of_a_source_that_cannot_be_had_where_there_is_a_mark_is_an_error() {
        if !is_child(&this_test()) {
            return passes_as_child(&["timeout", "60"]);
        }
        let vm = Vm::new(VmOptions::default().explain(false)).unwrap();
        let well = Arc::new(AtomicBool::new(true));
        let object = vm.source("heals", Heals(Arc::clone(&well))).unwrap();
        let options = MapOptions::private().mode(Mode::Handler).policy("none".parse().unwrap());
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let Some(mut map) = unless_refused(vm.map(&object, &options), need, refused) else { return };
        for round in 0..2 {
            for page in [2, 4] {
                map.as_mut_slice()[(page * PAGE_SIZE) as usize] = round;
            }
            map.snapshot().unwrap();
        }
        well.store(false, Ordering::SeqCst);
        for _ in 0..2 {
            assert_eq!(try_copy(map.address() + 3 * PAGE_SIZE, &mut [0]).unwrap(), 0);
        }
        assert_eq!(vm.take_failures().len(), 1);
        // A snapshot has nothing of it, and what is written once it can be had is told.
        map.snapshot().unwrap();
        well.store(true, Ordering::SeqCst);
        map.populate(map.window()).unwrap();
        map.as_mut_slice()[3 * PAGE_SIZE as usize] = 9;
        let snapshot = vm.map(&map.snapshot().unwrap(), &MapOptions::private()).unwrap();
        assert_eq!([2, 3, 4, 5].map(|page| snapshot.as_slice()[page * PAGE_SIZE as usize]), [1, 9, 1, 7]);
    }

    #[test]
    fn a_neighbours_fault_that_maps_over_poison_forgets_it() {
        let Some((object, map)) = poisoned(5) else { return };
        let other = map.core.vm.clone();
        let other =
            Map::new(&other, &[crate::Piece::new(&object, object.pages())], &MapOptions::shared()).unwrap();
        other.populate(other.window()).unwrap();
        assert!(!map.core.poison.is_nowhere(), "the poison is another map's");
        assert_eq!(try_copy(map.address() + 4 * PAGE_SIZE, &mut [0]).unwrap(), 1);
        // The thread that maps it says so after it has let the other go on.
        let began = std::time::Instant::now();
        while !map.core.poison.is_nowhere() {
            assert!(began.elapsed() < Duration::from_secs(60), "what the program writes there would be lost");
            std::thread::yield_now();
        }
        assert_eq!(map.as_slice()[5 * PAGE_SIZE as usize], 7);
    }

    /// The kernel may have discarded a part by then.
    #[test]
    fn a_discard_that_fails_keeps_no_poison_that_is_gone() {
        let Some((_object, mut map)) = poisoned(5) else { return };
        let window = map.window();
        let whole = (libc::SYS_madvise, When::Is(1, window.bytes() as u32));
        let Some(failed) = while_failing(libc::ENOMEM, whole, || map.discard(window)) else { return };
        assert!(matches!(failed, Err(AccessError::System(_))), "{failed:?}");
        assert!(map.core.poison.is_nowhere(), "what the program writes there would be lost");
        assert_eq!(map.as_slice()[5 * PAGE_SIZE as usize], 7);
    }

    #[test]
    fn no_poison_is_taken_away_while_a_page_is_being_mapped() {
        let Some((object, map)) = poisoned(0) else { return };
        let frames = object.core.frames().unwrap();
        std::thread::scope(|scope| {
            // A fault that maps the page over the poison; the program may write to it at once.
            let section = frames.sections.enter(0);
            let populating = scope.spawn(|| map.populate(map.window()));
            std::thread::sleep(Duration::from_millis(50));
            assert!(!populating.is_finished() && !map.core.poison.is_nowhere());
            drop(section);
            populating.join().unwrap().unwrap();
        });
        assert!(map.core.poison.is_nowhere());
        assert_eq!(map.as_slice()[0], 7);
    }
}
