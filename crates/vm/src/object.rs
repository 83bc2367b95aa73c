//! What can be mapped: pages that come from somewhere, in frames that all maps share.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use rustix::fs::{FallocateFlags, MemfdFlags};

use crate::backing::{Backing, Backings};
use crate::fault::Touch;
use crate::grace::Grace;
use crate::pages::{Claim, Pages, Seen};
use crate::reason::Reason;
use crate::source::{LocalFile, Source};
use crate::statistics::Tally;
use crate::table::MapRef;
use crate::view::View;
use crate::vm::VmCore;

/// The most bytes of an object: what x86-64 and arm64 give a process.
pub(crate) const MAX_BYTES: u64 = 1 << 47;

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
/// Cloning gives another handle on the same object. The object goes with its last handle and map.
#[derive(Clone, Debug)]
pub struct Object {
    pub(crate) core: Arc<ObjectCore>,
}

/// Shared by the handles, the maps and the work in the background.
#[derive(Debug)]
pub(crate) struct ObjectCore {
    pub(crate) vm: Arc<VmCore>,
    /// Unique in its VM; counted from 0.
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) len_bytes: u64,
    pub(crate) contents: Contents,
    pub(crate) backings: Backings,
    /// What sources said when they failed, by page.
    words: Mutex<HashMap<u64, String>>,
}

#[derive(Debug)]
pub(crate) enum Contents {
    /// Zeros: every map makes its own, and there are no frames.
    Zero,
    /// Bytes of a source, kept in frames.
    Frames(Box<Frames>),
}

/// The frames of an object: a sparse memfd, its pages' states and where their bytes come from.
pub(crate) struct Frames {
    pub(crate) memfd: OwnedFd,
    pub(crate) pages: Pages,
    pub(crate) grace: Grace,
    pub(crate) bytes: Bytes,
    /// Where local files are read to; `None` for other sources, and where there was no room for it.
    pub(crate) view: Option<View>,
    /// Frames that hold a page. Changed by who holds the claim, before the page's word is.
    resident: AtomicU64,
    /// Faults of handler mode on pages that somebody fills.
    pub(crate) listed: Mutex<Vec<(MapRef, Touch)>>,
}

pub(crate) enum Bytes {
    /// Can be read in the context of a signal.
    Local(LocalFile),
    /// Cannot.
    Custom(Box<dyn Source>),
}

impl std::fmt::Debug for Frames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames")
            .field("memfd", &self.memfd)
            .field("resident", &self.resident)
            .finish_non_exhaustive()
    }
}

impl Object {
    /// The object's name: the file's path, or what its maker called it.
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Its length in bytes. The rest of the last page reads as zeros.
    pub fn len_bytes(&self) -> u64 {
        self.core.len_bytes
    }

    /// All its pages.
    pub fn pages(&self) -> PageRange {
        self.core.pages()
    }

    /// How many of its pages are in memory.
    pub fn resident_pages(&self) -> u64 {
        self.core.frames().map_or(0, |frames| frames.resident.load(Ordering::Acquire))
    }

    /// Whether `page` is in memory.
    pub fn is_resident(&self, page: PageIndex) -> bool {
        self.pages().contains(page)
            && self
                .core
                .frames()
                .is_some_and(|frames| matches!(frames.pages.see(page), Seen::Resident { .. }))
    }

    /// The maps of the object: one backing each.
    pub fn backings(&self) -> Vec<Backing> {
        self.core.backings.all()
    }

    /// The maps whose page tables show the object's own frame of `page` now, not a private copy, with the address.
    /// Looks through the backings and asks the page table about those that could.
    ///
    /// # Errors
    /// When /proc/self/pagemap cannot be read.
    pub fn mappings_of(&self, page: PageIndex) -> io::Result<Vec<(u64, Backing)>> {
        let backings = self.core.backings.all();
        let tally = Tally { backings_scanned: backings.len() as u64, ..Tally::default() };
        self.core.vm.figures.add(0, &tally);
        let mut mappings = Vec::new();
        for backing in backings {
            let Some(address) = backing.address_of(page) else { continue };
            if prepage_sys::region::is_of_object(address)? == Some(true) {
                mappings.push((address, backing));
            }
        }
        Ok(mappings)
    }

    /// Takes the frames of resident pages of `range` away; returns how many pages that were. Maps read them again when
    /// they are touched; private copies stay.
    ///
    /// # Errors
    /// When the kernel refuses to free frames; those pages stay.
    pub fn evict(&self, range: PageRange) -> io::Result<u64> {
        let Some(frames) = self.core.frames() else { return Ok(0) };
        let range = clip(range, self.pages());
        let mut claims: Vec<Claim<'_>> = Vec::new();
        let mut page = range.start();
        while page < range.end() {
            match frames.pages.claim_resident(page, range.end()) {
                Some(claim) => {
                    page = claim.range().end();
                    claims.push(claim);
                }
                None => page.0 += 1,
            }
        }
        if claims.is_empty() {
            return Ok(0);
        }
        frames.grace.wait();
        let mut evicted = 0;
        let mut outcome = Ok(());
        let mut listed = false;
        for mut claim in claims {
            let run = claim.range();
            // One call a run: each makes the kernel interrupt the CPUs that may know the pages.
            match frames.punch(run) {
                Ok(()) => {
                    frames.resident.fetch_sub(run.len(), Ordering::AcqRel);
                    self.core.vm.release_frames(run.len());
                    evicted += run.len();
                    listed |= claim.release(run.len()).listed;
                }
                Err(error) => {
                    outcome = Err(error);
                    listed |= claim.publish(run.len(), None).listed;
                }
            }
        }
        self.core.vm.figures.add(0, &Tally { pages_evicted: evicted, ..Tally::default() });
        if listed {
            crate::fault::serve_listed(&self.core);
        }
        outcome.map(|()| evicted)
    }
}

impl ObjectCore {
    pub(crate) fn new(
        vm: Arc<VmCore>,
        id: u32,
        name: String,
        len_bytes: u64,
        contents: Contents,
    ) -> Arc<Self> {
        vm.objects.fetch_add(1, Ordering::AcqRel);
        Arc::new(Self {
            vm,
            id,
            name,
            len_bytes,
            contents,
            backings: Backings::default(),
            words: Mutex::default(),
        })
    }

    pub(crate) fn pages(&self) -> PageRange {
        PageRange::covering(0, self.len_bytes)
    }

    pub(crate) fn frames(&self) -> Option<&Frames> {
        match &self.contents {
            Contents::Zero => None,
            Contents::Frames(frames) => Some(frames),
        }
    }

    /// Remembers what a source said of `page`.
    pub(crate) fn remember(&self, page: PageIndex, words: String) {
        self.words().insert(page.0, words);
    }

    /// Why `page` failed with `code`.
    pub(crate) fn reason(&self, page: PageIndex, code: u16) -> Reason {
        Reason::of(code, self.words().get(&page.0).cloned())
    }

    fn words(&self) -> MutexGuard<'_, HashMap<u64, String>> {
        self.words.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Frames {
    pub(crate) fn new(len_bytes: u64, bytes: Bytes) -> io::Result<Self> {
        let pages = PageRange::covering(0, len_bytes);
        let memfd = rustix::fs::memfd_create("prepage", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&memfd, pages.bytes())?;
        let view = match &bytes {
            Bytes::Local(_) => View::new(memfd.as_fd(), pages),
            Bytes::Custom(_) => None,
        };
        Ok(Self {
            memfd,
            pages: Pages::new(pages.len())?,
            grace: Grace::default(),
            bytes,
            view,
            resident: AtomicU64::new(0),
            listed: Mutex::default(),
        })
    }

    /// Puts whole pages into the frames from `at` on. Allocates nothing here.
    pub(crate) fn write(&self, at: PageIndex, bytes: &[u8]) -> Result<(), u16> {
        let mut done = 0;
        while done < bytes.len() {
            match rustix::io::pwrite(&self.memfd, &bytes[done..], at.offset_bytes() + done as u64) {
                Ok(written) => done += written,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(crate::reason::of_errno(Some(error.raw_os_error()))),
            }
        }
        self.count(bytes.len() as u64 / PAGE_SIZE);
        Ok(())
    }

    /// So many more frames hold a page.
    pub(crate) fn count(&self, pages: u64) {
        self.resident.fetch_add(pages, Ordering::AcqRel);
    }

    /// Takes the frames of `range` away.
    pub(crate) fn punch(&self, range: PageRange) -> io::Result<()> {
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.memfd, punch, range.start().offset_bytes(), range.bytes())?)
    }
}

impl Drop for ObjectCore {
    fn drop(&mut self) {
        if let Some(frames) = self.frames() {
            self.vm.release_frames(frames.resident.load(Ordering::Acquire));
        }
        self.vm.objects.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The pages of `range` that lie in `within`.
pub(crate) fn clip(range: PageRange, within: PageRange) -> PageRange {
    let start = range.start().clamp(within.start(), within.end());
    PageRange::new(start, range.end().clamp(start, within.end()))
}
