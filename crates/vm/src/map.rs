//! An object in this process's memory.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prepage_core::policy::{ClusterPolicy, Neighbours, Policy};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::huge_blocks::HugeBlocks;
use prepage_sys::region::{Contents as Shown, Region, try_copy};
use prepage_sys::userfaultfd::{Progress, Userfaultfd};

use crate::buffers::BUFFER_PAGES;
use crate::entry::EntryCell;
use crate::error::{AccessError, MapError};
use crate::jobs::{Sweep, read_missing};
use crate::neighbours::map_resident;
use crate::object::{Contents, Object, ObjectCore};
use crate::options::{Advice, MapOptions, Mode};
use crate::pages::Seen;
use crate::statistics::Tally;
use crate::table::{self, MapRef};
use crate::vm::{VmCore, next_map_id};
use crate::zero;

/// An object mapped into this process. Dropping it unmaps it.
///
/// A child of fork(2) does not inherit it: touching it there raises SIGSEGV.
#[derive(Debug)]
pub struct Map {
    core: Arc<MapCore>,
    at: MapRef,
    region: Region,
}

/// What serving a map's faults needs.
#[derive(Debug)]
pub(crate) struct MapCore {
    id: u64,
    start: u64,
    pub(crate) object: Arc<ObjectCore>,
    /// The pages of the object that it shows.
    pub(crate) window: PageRange,
    /// Whether it may be written to.
    pub(crate) private: bool,
    pub(crate) mode: Mode,
    pub(crate) uffd: Arc<Userfaultfd>,
    policy: Policy,
    entry: EntryCell,
    /// Which policy serves: the map's, or that of an advice.
    advice: AtomicU8,
    /// What the policy of [`Advice::Sequential`] remembers, and that of [`Advice::Random`].
    advised: [EntryCell; 2],
    /// Which neighbours to map, where not as the policy says.
    pub(crate) neighbours: Option<Neighbours>,
    /// What the policy reads from the first fault on.
    opening: Option<Arc<Sweep>>,
    opened: AtomicBool,
    pub(crate) zero_cluster: u64,
    /// Where the kernel serves what is given to it; of maps of zeros in huge pages.
    pub(crate) blocks: Option<Arc<HugeBlocks>>,
    /// Pages that raise SIGBUS until they are tried again.
    poisoned: Mutex<Vec<PageIndex>>,
}

impl Map {
    pub(crate) fn new(vm: &Arc<VmCore>, object: &Object, options: &MapOptions) -> Result<Self, MapError> {
        let object = &object.core;
        if !Arc::ptr_eq(&object.vm, vm) {
            return Err(MapError::OtherVm { object: object.name.clone() });
        }
        let window = options.window.unwrap_or(object.pages());
        if window.is_empty() {
            return Err(MapError::Empty { object: object.name.clone() });
        }
        if window.end() > object.pages().end() {
            return Err(MapError::Beyond {
                object: object.name.clone(),
                window,
                pages: object.pages().len(),
            });
        }
        if options.zero_cluster == 0 {
            return Err(MapError::NoCluster);
        }
        if matches!(options.neighbours, Some(Neighbours::Block(0))) {
            return Err(MapError::NoCluster);
        }
        let uffd = vm.userfaultfd(options.mode)?;
        let failed = |error| MapError::Memory { len_bytes: window.bytes(), source: error };
        let offset = window.start().offset_bytes();
        use std::os::fd::AsFd;
        let shown = match &object.contents {
            Contents::Zero if options.huge => vm.zeros.huge(),
            Contents::Zero => Shown::Anonymous,
            Contents::Frames(frames) if options.private => Shown::Private(frames.memfd.as_fd(), offset),
            Contents::Frames(frames) => Shown::Shared(frames.memfd.as_fd(), offset),
        };
        let region = Region::map(window.bytes(), shown).map_err(failed)?;
        uffd.register(region.start(), region.len(), object.frames().is_some()).map_err(failed)?;
        let policy = options.policy.clone().unwrap_or_else(|| vm.policy.clone());
        let opening = Some(Sweep::new(Arc::clone(object), policy.opening(), window));
        let core = Arc::new(MapCore {
            id: next_map_id(),
            start: region.start(),
            object: Arc::clone(object),
            window,
            private: options.private,
            mode: options.mode,
            uffd,
            entry: EntryCell::new(policy.remembers(), policy.entry(window)),
            advised: [&vm.sequential, &vm.random]
                .map(|policy| EntryCell::new(policy.remembers(), policy.entry(window))),
            policy,
            advice: AtomicU8::new(OWN),
            neighbours: options.neighbours,
            opening: opening.filter(|opening| !opening.is_empty() && object.frames().is_some()),
            opened: AtomicBool::new(false),
            zero_cluster: options.zero_cluster,
            blocks: region.blocks(),
            poisoned: Mutex::default(),
        });
        let at = table::insert(&core).ok_or(MapError::TooMany)?;
        object.backings.put(crate::Backing { map: core.id, window, start_address: core.start });
        vm.maps.fetch_add(1, Ordering::AcqRel);
        vm.figures.add(0, &Tally { backing_operations: 1, ..Tally::default() });
        Ok(Self { core, at, region })
    }

    /// Unique among all maps that ever were in this process.
    pub fn id(&self) -> u64 {
        self.core.id
    }

    /// The pages of the object that it shows.
    pub fn window(&self) -> PageRange {
        self.core.window
    }

    /// Its first address, a multiple of 2 MiB.
    pub fn address(&self) -> u64 {
        self.core.start
    }

    /// How many bytes it shows: to the end of its window or of the object, whichever comes first.
    pub fn len_bytes(&self) -> u64 {
        (self.core.object.len_bytes - self.core.window.start().offset_bytes()).min(self.core.window.bytes())
    }

    /// Its bytes. Touching them faults; where a source fails that raises SIGBUS, as with files mapped by the kernel:
    /// [`Map::populate`] and [`Map::read_at`] give errors instead.
    pub fn as_slice(&self) -> &[u8] {
        &self.region.as_slice()[..self.len_bytes() as usize]
    }

    /// Its bytes, to be changed in this map alone.
    ///
    /// # Panics
    /// Where the map is shared.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.core.private, "a shared map is read-only");
        let len = self.len_bytes() as usize;
        &mut self.region.as_mut_slice()[..len]
    }

    /// Reads and maps `range` of the object, so that touching it takes no fault, and system calls can be handed it.
    /// Pages that could not be had before are tried again.
    ///
    /// # Errors
    /// The first page that cannot be had, and why; the others are there.
    pub fn populate(&self, range: PageRange) -> Result<(), AccessError> {
        self.inside(range)?;
        self.forget_poison(range)?;
        let cpu = rustix::thread::sched_getcpu();
        let mut tally = Tally::default();
        let outcome = match &self.core.object.contents {
            Contents::Zero => zero::populate(&self.core, range, &mut tally)
                .map_err(|error| (range.start(), crate::reason::of_errno(error.raw_os_error()))),
            Contents::Frames(frames) => self.populate_frames(frames, range, cpu, &mut tally),
        };
        self.core.object.vm.figures.add(cpu, &tally);
        outcome.map_err(|(page, code)| self.unavailable(page, code))
    }

    fn populate_frames(
        &self,
        frames: &crate::object::Frames,
        range: PageRange,
        cpu: usize,
        tally: &mut Tally,
    ) -> Result<(), (PageIndex, u16)> {
        let mut outcome = read_missing(&self.core.object, frames, range, None, true, cpu, tally);
        let mut page = range.start();
        while page < range.end() {
            let rest = PageRange::new(page, range.end());
            match map_resident(&self.core, frames, page, rest, cpu, tally) {
                Ok(0) => {}
                Ok(mapped) => {
                    page.0 += mapped;
                    continue;
                }
                Err(error) => {
                    outcome = outcome.and(Err((page, crate::reason::of_errno(error.raw_os_error()))));
                    page.0 += 1;
                    continue;
                }
            }
            // Another thread fills it, or it was taken away.
            if frames.pages.see(page) == Seen::Filling {
                frames.pages.wait(page);
                continue;
            }
            let one = PageRange::new(page, PageIndex(page.0 + 1));
            if matches!(outcome, Err((failed, _)) if failed == page) {
                page.0 += 1;
            } else if let Err(failed) = read_missing(&self.core.object, frames, one, None, true, cpu, tally) {
                outcome = outcome.and(Err(failed));
                page.0 += 1;
            }
        }
        outcome
    }

    /// Copies the bytes at `offset_bytes` of the map, private changes included. Raises no signal.
    ///
    /// # Errors
    /// The page that cannot be had, and why; or that the range ends beyond the map.
    pub fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), AccessError> {
        let end = offset_bytes.checked_add(into.len() as u64).filter(|&end| end <= self.len_bytes());
        if end.is_none() {
            return Err(AccessError::Beyond {
                offset_bytes,
                wanted_bytes: into.len(),
                len_bytes: self.len_bytes(),
            });
        }
        let mut done = 0;
        while done < into.len() {
            let at = offset_bytes + done as u64;
            let copied = try_copy(self.core.start + at, &mut into[done..]).map_err(AccessError::System)?;
            done += copied;
            if copied == 0 {
                let page = PageIndex(self.core.window.start().0 + at / PAGE_SIZE);
                let wanted = PageRange::covering(at, (into.len() - done) as u64).len().min(BUFFER_PAGES);
                self.populate(PageRange::new(page, PageIndex(page.0 + wanted))).or_else(|_| {
                    // A later page may be the one that failed.
                    self.populate(PageRange::new(page, PageIndex(page.0 + 1)))
                })?;
            }
        }
        Ok(())
    }

    /// Changes how faults are served, or tells what will be touched.
    ///
    /// # Errors
    /// Ranges outside the map; [`Advice::DontNeed`] for a private map, which would lose what was written to it.
    pub fn advise(&self, advice: Advice) -> Result<(), AccessError> {
        match advice {
            Advice::Normal => self.core.serve_as(OWN),
            Advice::Sequential => self.core.serve_as(SEQUENTIAL),
            Advice::Random => self.core.serve_as(RANDOM),
            Advice::WillNeed(range) => {
                self.inside(range)?;
                if self.core.object.frames().is_some() {
                    let sweep = Sweep::new(Arc::clone(&self.core.object), &[range], self.core.window);
                    let mut tally = Tally::default();
                    self.core.object.vm.jobs.sweep(&sweep, self.at, &mut tally);
                    self.core.object.vm.figures.add(0, &tally);
                }
            }
            Advice::DontNeed(range) => {
                self.inside(range)?;
                if self.core.private {
                    return Err(AccessError::Private);
                }
                let offset = self.core.address_of(range.start()) - self.core.start;
                if self.core.object.frames().is_some() {
                    let mut poisoned = self.core.poisoned();
                    self.region.unmap_shared(offset, range.bytes()).map_err(AccessError::System)?;
                    poisoned.retain(|&page| !range.contains(page));
                }
            }
        }
        Ok(())
    }

    /// Forgets what was written to `range` of the object in this map: it shows the object's bytes again.
    ///
    /// # Errors
    /// Ranges outside the map.
    pub fn discard(&mut self, range: PageRange) -> Result<(), AccessError> {
        self.inside(range)?;
        let offset = self.core.address_of(range.start()) - self.core.start;
        let mut poisoned = self.core.poisoned();
        self.region.discard(offset, range.bytes()).map_err(AccessError::System)?;
        poisoned.retain(|&page| !range.contains(page));
        Ok(())
    }

    fn inside(&self, range: PageRange) -> Result<(), AccessError> {
        let window = self.core.window;
        if range.start() < window.start() || range.end() > window.end() {
            return Err(AccessError::Outside { range, window });
        }
        Ok(())
    }

    /// Pages of `range` that raise SIGBUS do so no longer.
    fn forget_poison(&self, range: PageRange) -> Result<(), AccessError> {
        let mut poisoned = self.core.poisoned();
        // A page whose neighbours were mapped since may be mapped with them, once another map brought it in. Otherwise
        // nobody writes to it: writing takes `&mut`.
        for index in (0..poisoned.len()).rev() {
            if range.contains(poisoned[index]) {
                let offset = self.core.address_of(poisoned[index]) - self.core.start;
                self.region.unpoison(offset).map_err(AccessError::System)?;
                poisoned.swap_remove(index);
            }
        }
        Ok(())
    }

    fn unavailable(&self, page: PageIndex, code: u16) -> AccessError {
        let object = &self.core.object;
        AccessError::Unavailable { object: object.name.clone(), page, reason: object.reason(page, code) }
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // Faults and work in the background end before the region goes.
        table::remove(&self.core, self.at);
        let object = &self.core.object;
        object.backings.remove(self.core.id);
        object.vm.maps.fetch_sub(1, Ordering::AcqRel);
        object.vm.figures.add(0, &Tally { backing_operations: 1, ..Tally::default() });
    }
}

const OWN: u8 = 0;
const SEQUENTIAL: u8 = 1;
const RANDOM: u8 = 2;

impl MapCore {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.start, self.start + self.window.bytes())
    }

    pub(crate) fn holds(&self, address: u64) -> bool {
        let (start, end) = self.addresses();
        start <= address && address < end
    }

    pub(crate) fn address_of(&self, page: PageIndex) -> u64 {
        self.start + (page.0 - self.window.start().0) * PAGE_SIZE
    }

    pub(crate) fn page_at(&self, address: u64) -> PageIndex {
        PageIndex(self.window.start().0 + (address - self.start) / PAGE_SIZE)
    }

    /// The policy that serves, and its memory.
    pub(crate) fn policy(&self) -> (&Policy, &EntryCell) {
        match self.advice.load(Ordering::Relaxed) {
            SEQUENTIAL => (&self.object.vm.sequential, &self.advised[0]),
            RANDOM => (&self.object.vm.random, &self.advised[1]),
            _ => (&self.policy, &self.entry),
        }
    }

    fn serve_as(&self, advice: u8) {
        self.advice.store(advice, Ordering::Relaxed);
        let (policy, entry) = self.policy();
        entry.with(&mut Tally::default(), |state| *state = policy.entry(self.window));
    }

    /// What to read in the background, for the first fault only.
    pub(crate) fn take_opening(&self) -> Option<Arc<Sweep>> {
        let opening = self.opening.as_ref()?;
        let first = !self.opened.load(Ordering::Relaxed) && !self.opened.swap(true, Ordering::Relaxed);
        first.then(|| Arc::clone(opening))
    }

    /// The pages that are poisoned; held while poison is laid or taken away.
    fn poisoned(&self) -> MutexGuard<'_, Vec<PageIndex>> {
        self.poisoned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets threads that wait for `page`, and those that touch it, get SIGBUS, until it is tried again.
    pub(crate) fn poison(&self, page: PageIndex) {
        let address = self.address_of(page);
        let mut poisoned = self.poisoned();
        if matches!(self.uffd.poison(address, PAGE_SIZE), Ok(Progress::Done)) {
            poisoned.push(page);
        } else {
            // It is there after all, or going: the touch is repeated.
            self.wake(page);
        }
    }

    /// Lets threads that wait for `page` repeat their touch.
    pub(crate) fn wake(&self, page: PageIndex) {
        // Fails only for addresses that are none.
        let _ = self.uffd.wake(self.address_of(page), PAGE_SIZE);
    }
}
