//! What can be mapped: pages that come from somewhere, in frames that all maps share.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::sync::atomic::AtomicU8;
use std::sync::{Arc, OnceLock};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::memfd::Memfd;
use prepage_sys::pagemap::PageEntry;
use prepage_sys::sections::Sections;
use prepage_sys::signals::Masked;

use crate::backing::{Backing, Backings};
use crate::blocks::LEAST_IN_BLOCKS;
use crate::book::Hold;
use crate::buffers::BUFFER_PAGES;
use crate::dirty::Dirty;
use crate::going::let_go;
use crate::home::Home;
use crate::pages::{Idleness, Pages, Seen};
use crate::pin::Pins;
use crate::pool::PoolCore;
use crate::reason::Reason;
use crate::refill::Sums;
use crate::saved::SavedPages;
use crate::source::{LocalFile, Source};
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, AtomicU32, AtomicU64, Mutex, Ordering};
use crate::vm::VmCore;
use crate::whole::Whole;
use crate::work::Openings;

/// The most bytes of an object: what x86-64 and arm64 give a process.
pub(crate) const MAX_BYTES: u64 = 1 << 47;
/// The most pages of a grain that are heeded: 64 MiB.
const MAX_GRAIN_PAGES: u64 = 1 << 14;
/// Pages that are written at once where nobody waits for them.
const BEHIND_PAGES: u64 = 16;
/// As many messages of a source are kept.
const MESSAGES: usize = 64;

/// Something that can be mapped any number of times; its maps share its frames.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use prepage_vm::{MapOptions, Vm, VmOptions};
///
/// let vm = Vm::new(VmOptions::default())?;
/// let image = vm.file(std::env::current_exe()?)?;
/// // A clone costs a few microseconds and no memory but what is written to it.
/// let mut clones = Vec::new();
/// for _ in 0..50 {
///     clones.push(vm.map(&image, &MapOptions::private())?);
/// }
/// clones[7].as_mut_slice()[0] = 1;
/// assert_eq!((clones[7].as_slice()[0], clones[8].as_slice()[0]), (1, 0x7f));
/// assert_eq!(image.resident_pages(), 16); // one cluster, read once and shown by both
/// # Ok(())
/// # }
/// ```
///
/// A snapshot of a map ([`Map::snapshot`](crate::Map::snapshot)) is an object too. [`Object::resident_pages`],
/// [`Object::evict`] and [`Object::backings`] are about the snapshot's own pages only: those that were frozen for it.
///
/// Cloning gives another handle on the same object. The object is dropped with its last handle and map. What was written to it is written back
/// before the drop of the last of them returns, which waits for as long as the file hangs.
#[derive(Clone, Debug)]
pub struct Object {
    pub(crate) core: Handle,
    /// Of a snapshot: what keeps it as it is.
    pub(crate) hold: Option<Arc<Hold>>,
}

/// What a program holds of an object: with an [`Object`], or with a map. Threads of the VM hold objects for a while too, but do not decide when
/// written bytes are in the file.
#[derive(Debug)]
pub(crate) struct Handle(Arc<ObjectCore>);

impl Handle {
    pub(crate) fn new(object: Arc<ObjectCore>) -> Self {
        object.handles.fetch_add(1, Ordering::Relaxed);
        Self(object)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // Before it looks what is dirty: who makes pages dirty looks for handles afterwards.
        if self.0.handles.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.write_back_last();
        }
    }
}

impl Deref for Handle {
    type Target = Arc<ObjectCore>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// Shared by the handles, the maps and the work in the background.
///
/// Lock legend: (c) constant; (a) atomic; `messages` has a lock of its own, held for a move, as `backings` and `openings`
/// have.
#[derive(Debug)]
pub(crate) struct ObjectCore {
    pub(crate) vm: Arc<VmCore>,
    /// (c) Unique in its pool; counted from 0.
    pub(crate) id: u64,
    /// (a) How many [`Handle`]s there are.
    handles: AtomicU64,
    /// (a) How many maps of code it lies in: where there is one, its frames go last.
    pub(crate) is_code: AtomicU32,
    /// (c)
    pub(crate) name: String,
    /// (c)
    pub(crate) len_bytes: u64,
    /// (c) Pages that its source is best read by.
    pub(crate) grain_pages: u64,
    pub(crate) contents: Contents,
    pub(crate) backings: Backings,
    pub(crate) openings: Openings,
    /// The last messages of its source, with their pages.
    messages: Mutex<VecDeque<(PageIndex, String)>>,
    /// (a) Whether a record names it, see [`crate::vm`].
    mentioned: AtomicU8,
}

#[derive(Debug)]
pub(crate) enum Contents {
    /// Zeros: every map makes its own, and there are no frames.
    Zero,
    /// Bytes of a source, kept in frames.
    Frames(Box<Frames>),
}

/// The frames of an object: a sparse memfd, its pages' states and where their bytes come from.
///
/// Lock legend: (c) constant; (a) atomic; (o) set once. The bytes of a frame are written by who holds its page's claim, and
/// its frame is taken away by them once the sections have ended that began before.
pub(crate) struct Frames {
    pub(crate) memfd: Memfd,
    /// (a) words
    pub(crate) pages: Arc<Pages>,
    /// Mapping a frame.
    pub(crate) sections: Sections,
    /// (c)
    pub(crate) bytes: Bytes,
    /// Held by who writes what nobody waits for.
    behind: Mutex<()>,
    /// (a) Frames that hold a page. Changed by who holds the claim, before the page's word is.
    resident: AtomicU64,
    /// (a) Of these, frames that no map shows. Never behind the words.
    unwired: AtomicU64,
    /// The pinned pages. Held while pages are pinned, unwired and advised away, and while frames of blocks are evicted and reclaimed, so that
    /// none is unmapped that was pinned.
    pub(crate) pins: Mutex<Pins>,
    /// (o) What evicted pages held.
    sums: OnceLock<Sums>,
    pub(crate) whole: Whole,
    /// (c) Of objects that take writes.
    pub(crate) dirty: Option<Dirty>,
}

pub(crate) enum Bytes {
    /// Can be read in the context of a signal.
    Local(LocalFile),
    /// Cannot.
    Custom(Box<dyn Source>),
    /// Nowhere else: what a map held when it was frozen.
    Frozen,
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames")
            .field("memfd", &self.memfd)
            .field("resident", &self.resident)
            .field("unwired", &self.unwired)
            .finish_non_exhaustive()
    }
}

impl Object {
    /// The object's name: the file's path, or what its maker called it.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// The object's length in bytes. The rest of the last page reads as zeros.
    pub fn len_bytes(&self) -> u64 {
        self.core.len_bytes
    }

    /// All pages of the object.
    pub fn pages(&self) -> PageRange {
        self.core.pages()
    }

    /// How many of its pages are in memory. None in a child of fork(2).
    pub fn resident_pages(&self) -> u64 {
        let frames = self.core.frames().filter(|_| self.core.vm.check_process().is_ok());
        frames.map_or(0, Frames::resident)
    }

    /// Whether `page` is in memory. No page is in a child of fork(2).
    pub fn is_resident(&self, page: PageIndex) -> bool {
        self.words_of(page).is_some_and(|pages| matches!(pages.see(page), Seen::Resident { .. }))
    }

    /// Whether `page` is in memory and maps may show it. False for a page that is not in memory.
    pub fn is_wired(&self, page: PageIndex) -> bool {
        self.words_of(page)
            .is_some_and(|pages| pages.idleness(page) == Idleness::Wired || pages.is_pinned(page))
    }

    /// The words among which that of `page` is, in the process that has them.
    fn words_of(&self, page: PageIndex) -> Option<&Pages> {
        let is_here = self.pages().contains(page) && self.core.vm.check_process().is_ok();
        self.core.frames().filter(|_| is_here).map(|frames| &*frames.pages)
    }

    /// The maps of the object: one backing for each map, or for each piece of a map of several. None in a child of fork(2).
    pub fn backings(&self) -> Vec<Backing> {
        if self.core.vm.check_process().is_err() {
            return Vec::new();
        }
        // Reclaim takes the lock too, and a handler's touch may wait for the frames that it frees.
        let _masked = Masked::asynchronous();
        self.core.backings.all()
    }

    /// The addresses and maps at which page tables show the object's own frame of `page` now; private copies do not count.
    /// Searches the backings, and asks the page table about each that could show the page. Nothing in a child of fork(2).
    ///
    /// # Errors
    /// When /proc/self/pagemap cannot be read.
    pub fn mappings_of(&self, page: PageIndex) -> io::Result<Vec<(u64, Backing)>> {
        let backings = self.backings();
        let tally = Tally { backings_scanned: backings.len() as u64, ..Tally::default() };
        self.core.vm.figures.add(0, &tally);
        let mut mappings = Vec::new();
        for backing in backings {
            let Some(address) = backing.address_of(page) else { continue };
            let mut entry = [PageEntry::default()];
            self.core.vm.page_map()?.entries(address, &mut entry)?;
            if entry[0].is_of_file() {
                mappings.push((address, backing));
            }
        }
        Ok(mappings)
    }
}

impl ObjectCore {
    pub(crate) fn new(vm: Arc<VmCore>, name: String, len_bytes: u64, contents: Contents) -> Arc<Self> {
        let id = vm.pool.core().next_id();
        // A source may panic, and then there is no object.
        let grain_bytes = match &contents {
            Contents::Frames(frames) => frames.bytes.grain_bytes(),
            Contents::Zero => PAGE_SIZE,
        };
        vm.objects.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self {
            vm,
            id,
            handles: AtomicU64::new(0),
            is_code: AtomicU32::new(0),
            name,
            len_bytes,
            grain_pages: (grain_bytes / PAGE_SIZE).clamp(1, MAX_GRAIN_PAGES),
            contents,
            backings: Backings::default(),
            openings: Openings::default(),
            messages: Mutex::new(VecDeque::new()),
            mentioned: AtomicU8::new(0),
        })
    }

    pub(crate) fn pages(&self) -> PageRange {
        PageRange::covering(0, self.len_bytes)
    }

    /// Whether a program holds it.
    pub(crate) fn has_handle(&self) -> bool {
        self.handles.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn frames(&self) -> Option<&Frames> {
        match &self.contents {
            Contents::Zero => None,
            Contents::Frames(frames) => Some(frames),
        }
    }

    /// What keeps count of its pages that were written to; `None` where it takes no writes.
    pub(crate) fn dirty(&self) -> Option<&Dirty> {
        self.frames().and_then(|frames| frames.dirty.as_ref())
    }

    /// Whether its pages are what maps wrote, and nowhere but in its frames.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frames().is_some_and(|frames| matches!(frames.bytes, Bytes::Frozen))
    }

    /// The saved snapshot whose pages it has, if it is one.
    pub(crate) fn saved(&self) -> Option<&SavedPages> {
        match &self.frames()?.bytes {
            Bytes::Custom(source) => (&**source as &dyn Any).downcast_ref(),
            _ => None,
        }
    }

    /// Whether all its pages are in memory, and none has to be seen when it is touched.
    pub(crate) fn is_whole(&self) -> bool {
        self.frames().is_some_and(|frames| frames.held() == (self.pages().len(), 0))
    }

    /// So many more frames hold a page; they were reserved.
    pub(crate) fn came(&self, frames: &Frames, pages: u64) {
        frames.resident.fetch_add(pages, Ordering::SeqCst);
        self.vm.pool.core().frames.fill(pages);
    }

    /// So many fewer, and they are given back.
    pub(crate) fn went(&self, frames: &Frames, pages: u64) {
        frames.resident.fetch_sub(pages, Ordering::SeqCst);
        let count = &self.vm.pool.core().frames;
        count.empty(pages);
        count.release(pages);
    }

    /// So many frames are about to be unwired.
    pub(crate) fn unwires(&self, frames: &Frames, pages: u64) {
        frames.unwired.fetch_add(pages, Ordering::SeqCst);
        self.vm.pool.core().frames.unwire(pages);
    }

    /// So many frames are wired again.
    pub(crate) fn rewires(&self, frames: &Frames, pages: u64) {
        if pages > 0 {
            frames.unwired.fetch_sub(pages, Ordering::SeqCst);
            self.vm.pool.core().frames.rewire(pages);
        }
    }

    /// Lets go of the object on a thread that others wait for. If nobody else holds it, its source goes, which may take long and touch maps: that
    /// is done by a thread of its VM.
    pub(crate) fn let_go(self: Arc<Self>) {
        let_go(self, |object| Arc::clone(&object.vm));
    }

    /// Pages that are read at once at most: whole grains.
    pub(crate) fn piece_pages(&self) -> u64 {
        if self.grain_pages >= BUFFER_PAGES {
            self.grain_pages
        } else {
            BUFFER_PAGES - BUFFER_PAGES % self.grain_pages
        }
    }

    /// A record names this object: it stays known after it has gone, until the records are taken.
    pub(crate) fn mention(&self) {
        if self.mentioned.load(Ordering::Relaxed) == 0 {
            self.mentioned.store(1, Ordering::Relaxed);
        }
    }

    /// Remembers what a source said of `page`.
    pub(crate) fn remember(&self, page: PageIndex, message: String, account: &mut Account) {
        let mut messages = account.lock(&self.messages);
        messages.retain(|(of, _)| *of != page);
        if messages.len() == MESSAGES {
            messages.pop_front();
        }
        messages.push_back((page, message));
    }

    /// Why `page` failed with `code`.
    pub(crate) fn reason(&self, page: PageIndex, code: u16) -> Reason {
        let messages = self.messages.lock().anyway();
        let of_page = messages.iter().find(|(of, _)| *of == page);
        Reason::of(code, of_page.map(|(_, message)| message.clone()))
    }
}

impl Bytes {
    fn grain_bytes(&self) -> u64 {
        match self {
            Self::Local(_) | Self::Frozen => PAGE_SIZE,
            Self::Custom(source) => source.grain_bytes(),
        }
    }
}

impl Frames {
    pub(crate) fn new(len_bytes: u64, bytes: Bytes) -> io::Result<Self> {
        let pages = PageRange::covering(0, len_bytes);
        let has_blocks = matches!(bytes, Bytes::Local(_)) && pages.len() >= LEAST_IN_BLOCKS;
        let make = if has_blocks { Memfd::create_with_blocks } else { Memfd::create };
        let memfd = make("prepage", pages.bytes())?;
        Ok(Self {
            memfd,
            pages: Pages::new(pages.len())?,
            sections: Sections::default(),
            bytes,
            behind: Mutex::new(()),
            resident: AtomicU64::new(0),
            unwired: AtomicU64::new(0),
            pins: Mutex::new(Pins::default()),
            sums: OnceLock::new(),
            whole: Whole::default(),
            dirty: None,
        })
    }

    /// As [`Self::new`], of pages that are written to, and go to `home` then; of an object in `pool`.
    pub(crate) fn written(
        len_bytes: u64,
        bytes: Bytes,
        home: Box<dyn Home>,
        pool: &PoolCore,
    ) -> io::Result<Self> {
        let pages = PageRange::covering(0, len_bytes).len();
        let dirty = Some(Dirty::new(pages, home, Arc::clone(&pool.dirty_pages))?);
        // Faults keep sums, and may not allocate.
        let sums = OnceLock::from(Sums::new(pages)?);
        Ok(Self { dirty, sums, ..Self::new(len_bytes, bytes)? })
    }

    pub(crate) fn resident(&self) -> u64 {
        self.resident.load(Ordering::Acquire)
    }

    /// Frames that hold a page, and those of them that no map shows.
    pub(crate) fn held(&self) -> (u64, u64) {
        (self.resident(), self.unwired.load(Ordering::SeqCst))
    }

    /// Puts whole pages into the frames of `range`, or nothing. Allocates nothing here.
    pub(crate) fn write(&self, range: PageRange, bytes: &[u8]) -> Result<(), u16> {
        self.memfd.write_at(bytes, range.start().offset_bytes()).map_err(|error| {
            self.abandon(range);
            crate::reason::of_errno(error.raw_os_error())
        })
    }

    /// As [`Self::write`], for a read of a source that nobody waits for: one at a time, and a little each time. The kernel
    /// lets one write to a memfd at once, in the order in which they come: one that somebody waits for would come behind as
    /// many as the source serves. (Of local files few are read ahead at once, and this would cost a tenth of their rate.)
    pub(crate) fn write_behind(&self, range: PageRange, bytes: &[u8]) -> Result<(), u16> {
        let _one = self.behind.lock().anyway();
        let chunk = (BEHIND_PAGES * PAGE_SIZE) as usize;
        (range.start().0..).step_by(BEHIND_PAGES as usize).zip(bytes.chunks(chunk)).try_for_each(
            |(page, bytes)| {
                let written = self.memfd.write_at(bytes, PageIndex(page).offset_bytes());
                written.map_err(|error| {
                    self.abandon(range);
                    crate::reason::of_errno(error.raw_os_error())
                })
            },
        )
    }

    /// The runs of pages that the memfd holds, as far as it can be looked through: those in memory, and some that are being filled.
    pub(crate) fn runs(&self) -> impl Iterator<Item = PageRange> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let (start, end) = self.memfd.next_data(at).ok().flatten()?;
            at = end;
            Some(PageRange::new(PageIndex(start / PAGE_SIZE), PageIndex(end.div_ceil(PAGE_SIZE))))
        })
    }

    /// Takes the frames of `range` away.
    pub(crate) fn punch(&self, range: PageRange) -> io::Result<()> {
        self.memfd.punch(range.start().offset_bytes(), range.bytes())
    }

    /// What was written of `range` goes; failing leaves frames that the next fill overwrites.
    pub(crate) fn abandon(&self, range: PageRange) {
        let _ = self.punch(range);
    }

    /// What evicted pages held; made when the first is evicted.
    pub(crate) fn make_sums(&self, pages: u64) -> io::Result<&Sums> {
        if let Some(sums) = self.sums.get() {
            return Ok(sums);
        }
        let made = Sums::new(pages)?;
        Ok(self.sums.get_or_init(|| made))
    }

    pub(crate) fn sums(&self) -> Option<&Sums> {
        self.sums.get()
    }

    /// Whether `bytes`, read for the pages from `at` on, are what these pages held when they were evicted.
    pub(crate) fn verify(&self, at: PageIndex, bytes: &[u8]) -> Result<(), u16> {
        self.sums.get().map_or(Ok(()), |sums| sums.verify(at, bytes))
    }

    /// As [`Self::verify`], of what stands in the frames of `range`; `scratch` has room for it.
    pub(crate) fn verify_frames(&self, range: PageRange, scratch: &mut [u8]) -> Result<(), u16> {
        let Some(sums) = self.sums.get().filter(|sums| sums.knows(range)) else { return Ok(()) };
        let read = self.memfd.read_at(scratch, range.start().offset_bytes());
        read.map_err(|error| crate::reason::of_errno(error.raw_os_error()))?;
        sums.verify(range.start(), scratch)
    }
}

impl Drop for ObjectCore {
    fn drop(&mut self) {
        let count = &self.vm.pool.core().frames;
        // Who looks for a frame meanwhile finds nothing here.
        count.claim(1);
        if let Some(frames) = self.frames() {
            // They take memory until they are freed, and count until then. In a child of fork(2) they are the parent's.
            if self.vm.check_process().is_ok() {
                let _ = frames.punch(self.pages());
            }
            let (resident, unwired) = frames.held();
            self.rewires(frames, unwired);
            self.went(frames, resident);
        }
        count.let_go(1);
        count.may_go();
        self.vm.object_is_gone(self, self.mentioned.load(Ordering::Relaxed) != 0);
        self.vm.objects.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The pages of `range` that lie in `within`.
pub(crate) fn clip(range: PageRange, within: PageRange) -> PageRange {
    let start = range.start().clamp(within.start(), within.end());
    PageRange::new(start, range.end().clamp(start, within.end()))
}
