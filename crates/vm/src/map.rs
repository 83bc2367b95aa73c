//! An object in this process's memory.

use std::sync::Arc;

use prepage_core::policy::{EntryState, Neighbours, Policy};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange, Permissions};
use prepage_sys::huge_blocks::HugeBlocks;
use prepage_sys::region::{Contents as Shown, Region, Span};
use prepage_sys::signals::Masked;
use prepage_sys::userfaultfd::{Served, Writes};
use prepage_sys::versions::{Used, Versions};

use crate::addresses::MapRef;
use crate::blocks::BLOCK_PAGES;
use crate::book::{Behind, Book, Hold};
use crate::error::{AccessError, MapError};
use crate::going::let_go;
use crate::object::{Contents, Frames, Handle};
use crate::options::{Advice, Exactly, MapOptions, Mode};
use crate::piece::Piece;
use crate::pin::Unpinned;
use crate::poison::Poison;
use crate::policy_memory::PolicyMemory;
use crate::prune::Mapping;
use crate::request::Priority;
use crate::segment::{Install, Segment, Segments, places};
use crate::space::Space;
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::vm::{VmCore, next_map_id};
use crate::whole;
use crate::work::{READERS, Sweep};
use crate::writes::WriteTracking;

/// The policy of maps of code that name none: code is touched in larger runs than data.
const TEXT_POLICY: Policy = Policy::Aligned(64);

/// An object mapped into this process. Dropping it unmaps it.
///
/// A child of fork(2) inherits a map only with [`MapOptions::inherit`]. Otherwise touching the map in the child raises SIGSEGV, and the map's
/// methods return [`AccessError::Forked`].
#[derive(Debug)]
pub struct Map {
    pub(crate) core: Arc<MapCore>,
    pub(crate) at: MapRef,
    pub(crate) region: Region,
    /// Of the first object, the only one that can be written to. Last: it goes once nobody can write there any more.
    pub(crate) handle: Handle,
}

/// What serving a map's faults needs.
///
/// Lock legend: (c) constant; (a) atomic; `poison` and policies' memory have legends of their own.
#[derive(Debug)]
pub(crate) struct MapCore {
    id: u64,
    /// (c)
    pub(crate) vm: Arc<VmCore>,
    /// (c) Where it is: in this process, or, of a child's, in the child.
    pub(crate) span: Arc<Span>,
    /// (c) Who serves it.
    pub(crate) space: Arc<Space>,
    /// (c) What lies there: memfds that the kernel maps, and memory that is copied to or made of zeros.
    pub(crate) laid: Arc<Segments>,
    /// What is behind its pages: another thing than what lies there, once pages were frozen.
    pub(crate) shown: Versions<Segments>,
    /// (c)
    len_bytes: u64,
    /// (c) Snapshots that must stay as they are while the map shows them.
    pub(crate) holds: Box<[Arc<Hold>]>,
    /// The link of its chain that it looks at, once there is one. Held by who takes a snapshot.
    pub(crate) chain: Mutex<Option<Hold>>,
    /// Which of its pages were written to; none is told before the first snapshot.
    pub(crate) writes: WriteTracking,
    /// (a) Whether its pages can be protected for a moment, see `unwire`.
    pub(crate) protects: AtomicU32,
    /// (a) Whether it is left to the kernel. Changed by who holds the lock of its object's [`Whole`](crate::whole::Whole).
    pub(crate) is_kernels: AtomicU32,
    /// (c) Its pages: those of the object, or from 0 on where it is of several pieces.
    pub(crate) window: PageRange,
    /// (c) Whether what is written to it stays in it.
    pub(crate) private: bool,
    /// (c) Whether what is written to it goes to its object.
    pub(crate) writes_through: bool,
    /// (c) Whether the bytes of its object change while it shows them.
    changes: bool,
    /// (c)
    policy: Policy,
    memory: PolicyMemory,
    /// (a) Which policy serves: the map's, or that of an advice.
    advice: AtomicU32,
    /// What the policy of [`Advice::Sequential`] remembers, and that of [`Advice::Random`].
    advised: [PolicyMemory; 2],
    /// (a) The page behind the last that a fault wired again. A hint.
    pub(crate) rewired_to: AtomicU64,
    /// (c) Which neighbours to map, where the program says so.
    pub(crate) neighbours: Option<Exactly>,
    /// (c) Whether the kernel may not serve it.
    pub(crate) every_fault: bool,
    /// (c) Whether it is of code.
    executable: bool,
    /// (c) Whether children of fork(2) keep it.
    pub(crate) inherit: bool,
    /// (c) What the policy reads from the first fault on.
    opening: Option<Arc<Sweep>>,
    /// (a) Whether it does.
    opened: AtomicU32,
    /// (c)
    pub(crate) zero_cluster: u64,
    /// (c) Where the kernel serves what is given to it; of maps of zeros in huge pages.
    pub(crate) blocks: Option<Arc<HugeBlocks>>,
    pub(crate) poison: Poison,
    /// Whether pages may come into it.
    pub(crate) mapping: Mapping,
}

impl Map {
    pub(crate) fn new(vm: &Arc<VmCore>, pieces: &[Piece], options: &MapOptions) -> Result<Self, MapError> {
        vm.check_process().map_err(|_| MapError::Forked)?;
        let window = match pieces {
            [piece] => piece.pages,
            _ => PageRange::new(PageIndex(0), PageIndex(pieces.iter().map(|piece| piece.pages.len()).sum())),
        };
        if options.zero_cluster == 0 || options.neighbours == Some(Exactly::These(Neighbours::Block(0))) {
            return Err(MapError::NoCluster);
        }
        let policy = options
            .policy
            .clone()
            .unwrap_or_else(|| if options.executable { TEXT_POLICY } else { vm.options.policy.clone() });
        if !policy.has_pages() {
            return Err(MapError::NoCluster);
        }
        let changes = check_writes(pieces, options)?;
        let is_inheritable = options.private && options.mode == Mode::Handler && !options.huge;
        let space = match options.inherit {
            false => vm.space(options.mode)?,
            true if is_inheritable => vm.space_of_heirs()?,
            true => return Err(MapError::Inherit),
        };
        let failed = |error| MapError::Memory { len_bytes: window.bytes(), source: error };
        // A handler would wait for locks that this thread holds.
        let _masked = Masked::asynchronous();
        let mut behind = Behind::new(vm, pieces, window.start());
        let region = lay(vm, &behind, window, options).or_else(|error| {
            // Too many mappings: what lies over a memfd of its own for its density is copied instead.
            behind = behind.thinned_out(vm, pieces, window.start()).ok_or(error)?;
            lay(vm, &behind, window, options)
        });
        let region = region.map_err(failed)?;
        if options.inherit {
            region.let_inherit().map_err(failed)?;
        }
        let first = &behind.shown[0].object;
        let opening = first.openings.pieces(first, policy.opening(), window);
        let opening = (!opening.is_empty() && first.frames().is_some() && behind.is_one())
            .then(|| Sweep::new(opening, Priority::Ahead));
        let entry = |policy: &Policy| entry(policy, window, options.executable);
        let last = pieces.last().expect("a map has a piece");
        let of_last = (last.object.len_bytes - last.pages.start().offset_bytes()).min(last.pages.bytes());
        let is_one = behind.is_one();
        let core = Arc::new(MapCore {
            id: next_map_id(),
            vm: Arc::clone(vm),
            span: Arc::clone(region.span()),
            space,
            shown: Versions::new(behind.shown),
            laid: behind.laid,
            len_bytes: window.bytes() - last.pages.bytes() + of_last,
            holds: behind.holds,
            chain: Mutex::new(behind.chain),
            writes: WriteTracking::default(),
            protects: AtomicU32::new(0),
            is_kernels: AtomicU32::new(0),
            window,
            private: options.private,
            writes_through: options.writable,
            changes,
            memory: entry(&policy),
            advised: [&vm.sequential, &vm.random].map(entry),
            policy,
            advice: AtomicU32::new(OWN),
            rewired_to: AtomicU64::new(u64::MAX),
            neighbours: options.neighbours,
            every_fault: options.every_fault
                || options.writable
                || options.neighbours.is_some()
                || vm.records.is_some()
                || options.inherit,
            executable: options.executable,
            inherit: options.inherit,
            opening,
            opened: AtomicU32::new(0),
            zero_cluster: options.zero_cluster,
            blocks: region.blocks(),
            poison: Poison::default(),
            mapping: Mapping::default(),
        });
        let at = core.space.addresses.insert(&core).ok_or(MapError::TooMany)?;
        if let Some(opening) = &core.opening {
            let _ = opening.into.set(at);
        }
        Behind::made(behind.making, &core);
        // From here on dropping it takes it out of the table again.
        let handle = Handle::new(Arc::clone(&pieces[0].object));
        let map = Self { core, at, region, handle };
        map.enter_backings();
        // Served before it can be touched; shown only then, since what can be read would be filled at once under mlockall(2).
        let registered = match &map.core.laid[..] {
            [only] if is_one => whole::register(&only.object, &map.core, map.at),
            _ => map.core.register(Served::MissingAndUnmapped),
        };
        registered.and_then(|()| map.region.show(options.executable)).map_err(failed)?;
        if options.inherit {
            vm.bequeath(&map.core);
        }
        Ok(map)
    }

    fn enter_backings(&self) {
        let core = &self.core;
        for (number, segment) in (0..).zip(&core.laid[..]) {
            let start_address = core.address_of(segment.pages.start());
            let backing = crate::Backing { map: core.id, window: segment.of_object(), start_address };
            segment.object.backings.put(number, backing, self.at);
            segment.object.is_code.fetch_add(u32::from(core.executable), Ordering::Relaxed);
        }
        core.vm.maps.fetch_add(1, Ordering::AcqRel);
        let operations = core.laid.len() as u64;
        core.vm.figures.add(0, &Tally { backing_operations: operations, ..Tally::default() });
    }

    /// Unique among all maps that ever were in this process.
    pub fn id(&self) -> u64 {
        self.core.id
    }

    /// The pages of the object that the map shows. For a map of several pieces: all pages of the map, counted from 0.
    pub fn window(&self) -> PageRange {
        self.core.window
    }

    /// The first address of the map, a multiple of 2 MiB.
    pub fn address(&self) -> u64 {
        self.core.span.start()
    }

    /// How many bytes the map shows: up to the end of its window or of the object, whichever comes first.
    pub fn len_bytes(&self) -> u64 {
        self.core.len_bytes
    }

    /// The bytes of the map. Touching them faults. If a source fails, the touch raises SIGBUS, as with files that the kernel maps;
    /// [`Map::populate`] and [`Map::read_at`] return errors instead.
    ///
    /// # Panics
    /// If the object can be written to, since its bytes may change meanwhile: use [`Map::as_atomics`].
    pub fn as_slice(&self) -> &[u8] {
        assert!(
            !self.core.changes,
            "an object that can be written to changes under a slice: as_atomics, read_at"
        );
        &self.region.as_slice()[..self.len_bytes() as usize]
    }

    /// The bytes of the map, for changes in this map only.
    ///
    /// # Panics
    /// If the map is shared.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        assert!(self.core.private, "a shared map is read-only");
        let len = self.len_bytes() as usize;
        &mut self.region.as_mut_slice()[..len]
    }

    /// Changes how faults are served, or says what will be touched.
    ///
    /// # Errors
    /// Ranges outside the map; [`Advice::DontNeed`] for a private map, which would lose what was written to it.
    pub fn advise(&self, advice: Advice) -> Result<(), AccessError> {
        self.core.vm.check_process().map_err(|_| AccessError::Forked)?;
        let _masked = Masked::asynchronous();
        match advice {
            Advice::Normal => self.core.serve_as(OWN),
            Advice::Sequential => self.core.serve_as(SEQUENTIAL),
            Advice::Random => self.core.serve_as(RANDOM),
            Advice::WillNeed(range) => {
                self.inside(range)?;
                let mut account = Account::here();
                for (place, count) in places(&self.core.shown.current(), range) {
                    if place.frames().is_some() {
                        let run = PageRange::new(place.page, PageIndex(place.page.0 + count));
                        let pieces = Sweep::cut(place.object, &[run], place.window);
                        let sweep = Sweep::new(pieces, Priority::Ahead);
                        let _ = sweep.into.set(self.at);
                        sweep.start(place.object, READERS as usize, &mut account);
                    }
                }
                self.core.vm.figures.settle(&mut account);
            }
            Advice::DontNeed(range) => {
                self.inside(range)?;
                if self.core.private {
                    return Err(AccessError::Private);
                }
                let object = &self.core.laid[0].object;
                if let Some(frames) = object.frames() {
                    // Where a part of a block goes the kernel clears the entry of all of it.
                    let unit = if object.has_blocks() { BLOCK_PAGES } else { 1 };
                    self.core.unmap_unpinned(frames, range, unit).map_err(AccessError::System)?;
                }
            }
        }
        Ok(())
    }

    /// Forgets what was written to `range` of the object in this map: it shows the object's bytes again, or, after a snapshot of
    /// the map, those that were frozen last.
    ///
    /// # Errors
    /// Ranges outside the map.
    pub fn discard(&mut self, range: PageRange) -> Result<(), AccessError> {
        self.core.vm.check_process().map_err(|_| AccessError::Forked)?;
        self.inside(range)?;
        let _masked = Masked::asynchronous();
        // Who looked before the last snapshot would show what was behind the page then.
        if self.core.writes.are_told() {
            self.at.settle();
        }
        let core = &self.core;
        let held = core.hold_writes();
        let mut poisoned = core.poison.hold();
        let discarded = self.region.discard(core.offset_of(range.start()), range.bytes());
        if discarded.is_ok() {
            poisoned.forget(|page| range.contains(page));
            // Not before: what is still there after an error counts as written to, for the next snapshot.
            if let Some(held) = &held {
                held.forget(core.index_of(range.start())..core.index_of(range.end()));
            }
        } else {
            // Some may be gone by now, and poison with them: again, one by one, to know which.
            let region = &mut self.region;
            poisoned.forget(|page| {
                range.contains(page) && region.discard(core.offset_of(page), PAGE_SIZE).is_ok()
            });
        }
        discarded.map_err(AccessError::System)
    }

    pub(crate) fn inside(&self, range: PageRange) -> Result<(), AccessError> {
        let window = self.core.window;
        if range.start() < window.start() || range.end() > window.end() {
            return Err(AccessError::Outside { range, window });
        }
        Ok(())
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        let core = &self.core;
        if core.vm.check_process().is_err() {
            // The parent's: nothing of it is here, and who used it at the time of the fork will never end.
            return;
        }
        let _masked = Masked::asynchronous();
        // Faults and work in the background end before the region goes.
        let hurry = core.vm.pool.core().hurry();
        self.at.remove(core);
        drop(hurry);
        for (number, segment) in (0..).zip(&core.laid[..]) {
            segment.object.backings.remove(core.id, number);
            segment.object.is_code.fetch_sub(u32::from(core.executable), Ordering::Relaxed);
        }
        core.vm.maps.fetch_sub(1, Ordering::AcqRel);
        let operations = core.laid.len() as u64;
        core.vm.figures.add(0, &Tally { backing_operations: operations, ..Tally::default() });
        if core.inherit {
            core.vm.disinherit(core.id);
        }
    }
}

/// Whether the bytes of `pieces` may change while a map shows them; who writes to them needs an object that takes it.
fn check_writes(pieces: &[Piece], options: &MapOptions) -> Result<bool, MapError> {
    let takes_writes = |piece: &&Piece| piece.object.dirty().is_some();
    if options.writable
        && let Some(piece) = pieces.iter().find(|piece| options.private || !takes_writes(piece))
    {
        return Err(MapError::ReadOnly { object: piece.object.name.clone() });
    }
    match pieces.iter().find(takes_writes) {
        Some(piece) if options.private => Err(MapError::Changing { object: piece.object.name.clone() }),
        found => Ok(found.is_some()),
    }
}

/// What a policy remembers of a map at first.
fn entry(policy: &Policy, window: PageRange, executable: bool) -> PolicyMemory {
    let state = EntryState { executable, ..policy.entry(window) };
    PolicyMemory::new(policy.remembers(), state)
}

/// Lays the memfds that are behind a map into address space that nobody can use yet.
fn lay(vm: &VmCore, behind: &Behind, window: PageRange, options: &MapOptions) -> std::io::Result<Region> {
    let laid = &behind.laid[..];
    if let [only] = laid {
        let offset = only.first.offset_bytes();
        let shown = match &only.object.contents {
            // Among frozen pages the kernel cannot make zeros by itself.
            Contents::Zero if options.huge && behind.is_one() => vm.zeros.huge()?,
            Contents::Zero => Shown::Anonymous,
            Contents::Frames(frames) if options.private => Shown::Private(&frames.memfd, offset),
            Contents::Frames(frames) if options.writable => Shown::SharedWritable(&frames.memfd, offset),
            Contents::Frames(frames) => Shown::Shared(&frames.memfd, offset),
        };
        return Region::map_hidden(window.bytes(), shown);
    }
    let mut region = Region::map_hidden(window.bytes(), Shown::Anonymous)?;
    for segment in laid {
        if let (Some(frames), Install::Continue) = (segment.object.frames(), segment.install) {
            let at = (segment.pages.start().0 - window.start().0) * PAGE_SIZE;
            let from = segment.first.offset_bytes();
            region.lay_private(at, segment.pages.bytes(), &frames.memfd, from)?;
        }
    }
    Ok(region)
}

const OWN: u32 = 0;
const SEQUENTIAL: u32 = 1;
const RANDOM: u32 = 2;

impl MapCore {
    /// What the program may do with it, as recorded faults have it.
    pub(crate) fn permissions(&self) -> Permissions {
        let (writable, sharing) = match self.private {
            true => (true, Permissions::PRIVATE),
            false => (self.writes_through, Permissions::SHARED),
        };
        let only = |is: bool, permission| if is { permission } else { Permissions::NONE };
        Permissions::READ
            .with(only(writable, Permissions::WRITE))
            .with(only(self.executable, Permissions::EXECUTE))
            .with(sharing)
    }

    /// The same map in a child of fork(2), where `space` serves it.
    pub(crate) fn heir(&self, space: &Arc<Space>) -> Arc<Self> {
        let chain = self.chain.lock().anyway();
        let chain = chain.as_ref().map(|hold| Book::hold(&self.vm, hold.link));
        let entry = |policy: &Policy| entry(policy, self.window, self.executable);
        let heir = Arc::new(Self {
            id: next_map_id(),
            vm: Arc::clone(&self.vm),
            // The parent's mapping goes when the parent drops its map.
            span: Arc::new(self.span.elsewhere()),
            space: Arc::clone(space),
            laid: Arc::clone(&self.laid),
            // No snapshots are taken of it: it shows what it did at the fork.
            shown: Versions::new(self.shown.current()),
            len_bytes: self.len_bytes,
            holds: self.holds.clone(),
            chain: Mutex::new(chain),
            writes: WriteTracking::default(),
            protects: AtomicU32::new(0),
            is_kernels: AtomicU32::new(0),
            window: self.window,
            private: self.private,
            writes_through: self.writes_through,
            changes: self.changes,
            memory: entry(&self.policy),
            advised: [&self.vm.sequential, &self.vm.random].map(entry),
            policy: self.policy.clone(),
            advice: AtomicU32::new(self.advice.load(Ordering::Relaxed)),
            rewired_to: AtomicU64::new(u64::MAX),
            neighbours: self.neighbours,
            every_fault: self.every_fault,
            executable: self.executable,
            inherit: self.inherit,
            opening: None,
            opened: AtomicU32::new(1),
            zero_cluster: self.zero_cluster,
            blocks: None,
            poison: Poison::default(),
            mapping: Mapping::default(),
        });
        self.vm.book.lock().watch_map(&heir);
        heir
    }

    /// As [`ObjectCore::let_go`]: its objects may go with it.
    pub(crate) fn let_go(self: Arc<Self>) {
        let_go(self, |map| Arc::clone(&map.vm));
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn addresses(&self) -> (u64, u64) {
        (self.span.start(), self.span.start() + self.span.len())
    }

    pub(crate) fn holds(&self, address: u64) -> bool {
        let (start, end) = self.addresses();
        start <= address && address < end
    }

    /// Where the map's page `page` is, in bytes from its start.
    pub(crate) fn offset_of(&self, page: PageIndex) -> u64 {
        (page.0 - self.window.start().0) * PAGE_SIZE
    }

    pub(crate) fn address_of(&self, page: PageIndex) -> u64 {
        self.span.start() + self.offset_of(page)
    }

    pub(crate) fn page_at(&self, address: u64) -> PageIndex {
        PageIndex(self.window.start().0 + (address - self.span.start()) / PAGE_SIZE)
    }

    /// What is behind the map's pages now.
    pub(crate) fn look(&self, account: &mut Account) -> Used<'_, Segments> {
        let shown = self.shown.enter(account.cpu);
        account.tally.shared_atomics += 2 * u64::from(shown.is_counted());
        shown
    }

    /// The policy that serves, and its memory.
    pub(crate) fn policy(&self) -> (&Policy, &PolicyMemory) {
        match self.advice.load(Ordering::Relaxed) {
            SEQUENTIAL => (&self.vm.sequential, &self.advised[0]),
            RANDOM => (&self.vm.random, &self.advised[1]),
            _ => (&self.policy, &self.memory),
        }
    }

    /// Whether the program said that pages are touched in order.
    pub(crate) fn is_in_order(&self) -> bool {
        self.advice.load(Ordering::Relaxed) == SEQUENTIAL
    }

    /// Takes the object's pages `range` out of the shared map, but for those in aligned runs of `unit` pages in which one is pinned.
    fn unmap_unpinned(&self, frames: &Frames, range: PageRange, unit: u64) -> std::io::Result<()> {
        let mut left = Unpinned::default();
        let _hurry = self.vm.pool.core().hurry();
        // What is pinned from here on is mapped afterwards.
        let pins = frames.hold_pins(&mut left);
        pins.leave_out(range, unit, &mut left);
        left.places.extend(left.free.iter().map(|run| (self.offset_of(run.start()), run.bytes())));
        let mut poisoned = self.poison.hold();
        let unmapped = self.span.unmap_shared_ranges(&left.places);
        if unmapped.is_ok() {
            poisoned.forget(|page| left.free.iter().any(|run| run.contains(page)));
        } else {
            // Some may be out of the map by now, and their poison with them: again, one by one, to know which.
            for (run, place) in left.free.iter().zip(&left.places) {
                if self.span.unmap_shared_ranges(std::slice::from_ref(place)).is_ok() {
                    poisoned.forget(|page| run.contains(page));
                }
            }
        }
        unmapped
    }

    fn serve_as(&self, advice: u32) {
        self.advice.store(advice, Ordering::Relaxed);
        let (policy, memory) = self.policy();
        memory.with(&mut Tally::default(), |state| *state = policy.entry(self.window));
    }

    /// What to read in the background, for the first fault only.
    pub(crate) fn take_opening(&self) -> Option<Arc<Sweep>> {
        let opening = self.opening.as_ref()?;
        let first = self.opened.load(Ordering::Relaxed) == 0 && self.opened.swap(1, Ordering::Relaxed) == 0;
        first.then(|| Arc::clone(opening))
    }

    /// Lets threads that wait for `page` repeat their touch.
    pub(crate) fn wake(&self, page: PageIndex) {
        // Fails for addresses that were never mapped alone.
        let _ = self.space.uffd.wake(self.address_of(page), PAGE_SIZE);
    }

    /// Whether pages of it are protected at times, and so the kernel may keep marks of that where there is none.
    pub(crate) fn has_marks(&self) -> bool {
        self.writes.are_told() || self.writes_through || self.protects.load(Ordering::SeqCst) != 0
    }

    /// Has its faults served: those of unmapped pages too, where `served` says so and where frames lie there.
    pub(crate) fn register(&self, served: Served) -> std::io::Result<()> {
        let writes = if self.has_marks() { Writes::Told } else { Writes::Free };
        let uffd = &self.space.uffd;
        let served = |segment: &Segment| match segment.install {
            Install::Zero => Served::Missing,
            // Among others there is memory of the map's own, and alone the object's.
            Install::Copy if self.laid.len() > 1 => Served::Missing,
            Install::Copy | Install::Continue => served,
        };
        self.laid.chunk_by(|segment, next| served(segment) == served(next)).try_for_each(|alike| {
            let pages = PageRange::new(alike[0].pages.start(), alike[alike.len() - 1].pages.end());
            let offset = self.offset_of(pages.start());
            uffd.register_part(&self.span, offset, pages.bytes(), served(&alike[0]), writes)
        })
    }
}
