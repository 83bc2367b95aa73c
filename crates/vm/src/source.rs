//! Where the bytes of an object come from.

use std::any::Any;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::direct_fill::DirectFill;
use prepage_sys::file_system::{TMPFS, kind_of};
use prepage_sys::mapping::FileMapping;
use prepage_sys::regular_file::open_regular;
use rustix::fs::{CWD, OFlags};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::blocks::BLOCK_PAGES;
use crate::pages::Words;
use crate::request::Request;
use crate::spin::{Spin, Tried};
use crate::sync::Ordering;
use crate::uncached::Uncached;

/// Bytes that can be read at any offset.
///
/// Most sources implement [`Source::read`], which runs on threads of the [`Vm`](crate::Vm) and may take as long as it likes.
/// A source that can have many reads under way without a thread for each (a network, io_uring) implements [`Source::begin`]
/// instead.
///
/// Neither runs in the context of a signal handler that interrupted something else, so both may allocate, lock and block. They
/// may touch maps, but no map of the object that they serve. The bytes at an offset must always be the same: if a page
/// comes back different after [`Object::evict`](crate::Object::evict), it fails.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use prepage_vm::{MapOptions, Source, SourceError, Vm, VmOptions};
///
/// /// The squares of all numbers below 2^30: 8 GiB of them, and none is stored.
/// struct Squares;
///
/// impl Source for Squares {
///     fn len_bytes(&self) -> u64 {
///         8 << 30
///     }
///
///     fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
///         for (number, bytes) in (offset_bytes / 8..).zip(into.chunks_exact_mut(8)) {
///             bytes.copy_from_slice(&(number * number).to_le_bytes());
///         }
///         Ok(())
///     }
/// }
///
/// let vm = Vm::new(VmOptions::default().frame_limit_bytes(64 << 20))?;
/// let squares = vm.source("squares", Squares)?;
/// let map = vm.map(&squares, &MapOptions::shared())?;
/// let at = 8 * 1_000_000;
/// assert_eq!(map.as_slice()[at..at + 8], 1_000_000_000_000_u64.to_le_bytes());
/// assert_eq!(squares.resident_pages(), 16);
/// # Ok(())
/// # }
/// ```
pub trait Source: Any + Send + Sync + 'static {
    /// How many bytes there are; constant.
    fn len_bytes(&self) -> u64;

    /// The smallest size in which the source is best read, in bytes: a compressed chunk, an object store's part. A fault has all that is
    /// missing of the aligned grain around its page read by one request, and waits for the frames. Of pages in between that are in memory the
    /// bytes are read again and not used; these pages count as used. Constant, a multiple of the page size; of more than
    /// 64 MiB, 64 MiB are used.
    fn grain_bytes(&self) -> u64 {
        PAGE_SIZE
    }

    /// Reads the bytes at `offset_bytes`, `into.len()` of them; all lie within the length. `into` holds zeros before.
    ///
    /// # Errors
    /// After [`SourceError::Again`] the read is tried again a few times, with growing pauses. Any other error goes to the threads that
    /// need the bytes. A panic is an error too.
    fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), SourceError> {
        let _ = (offset_bytes, into);
        Err(SourceError::Other("the source implements neither read nor begin".to_owned()))
    }

    /// Begins to serve `request`, and may return before it is served. Any thread that has the bytes calls
    /// [`Request::complete`], and may hold what this takes: of a thread of the program that call asks for no other read. A request that is
    /// dropped instead fails.
    fn begin(&self, mut request: Request) {
        let offset_bytes = request.offset_bytes();
        let outcome = self.read(offset_bytes, request.bytes());
        request.complete(outcome);
    }
}

/// Why a source gave no bytes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// It may do so soon.
    #[error("the source asks to try again")]
    Again,
    /// It gave fewer bytes than it says it has.
    #[error("the source ended after {got_bytes} of {wanted_bytes} bytes")]
    Short {
        /// How many came.
        got_bytes: u64,
        /// How many should have come.
        wanted_bytes: u64,
    },
    /// The system's error.
    #[error("the source could not be read")]
    Io(#[from] io::Error),
    /// Anything else, in words.
    #[error("{0}")]
    Other(String),
}

/// A file of this machine, read in any context.
#[derive(Debug)]
pub(crate) struct LocalFile {
    file: File,
    version: FileVersion,
    /// Whether reads go past the page cache.
    pub(crate) direct: bool,
    /// Of a direct one, for short reads that a touch waits for.
    uncached: Option<Uncached>,
    /// Of any other, for these reads.
    spin: Spin,
    /// How the page cache is asked for what it has without waiting for a device; `None` where the file system takes no such call, as overlayfs.
    asks: Option<ReadWriteFlags>,
    /// Of a swap file: 0 for each page that was never written there. It is zeros, and a read would have the kernel keep it in the page cache too.
    places: Option<Arc<Words>>,
}

/// What tells that a file changed. Renaming a file, or changing who may read it, is no change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileVersion {
    pub(crate) len_bytes: u64,
    /// In nanoseconds since 1970.
    pub(crate) modified_ns: i64,
}

impl FileVersion {
    pub(crate) fn of(facts: &Metadata) -> Self {
        let modified_ns = facts.mtime().saturating_mul(1_000_000_000).saturating_add(facts.mtime_nsec());
        Self { len_bytes: facts.len(), modified_ns }
    }
}

/// EINTR
const INTERRUPTED: i32 = 4;
/// EINVAL
const INVALID: i32 = 22;

/// Pauses before a source that asks for it is tried again.
pub(crate) const PAUSES: [Duration; 6] = [
    Duration::from_micros(100),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
    Duration::from_millis(100),
    Duration::from_millis(500),
];

/// How reads of `file`, which is so long, ask what is in the page cache.
fn asks(file: &File, len_bytes: u64) -> Option<ReadWriteFlags> {
    // Behind the end: nothing is read for it.
    let asked = preadv2(file, &mut [io::IoSliceMut::new(&mut [0])], len_bytes, ReadWriteFlags::NOWAIT);
    match asked {
        // What lies in memory is there, but for what was swapped out.
        Err(Errno::OPNOTSUPP) if kind_of(file).is_ok_and(|kind| kind == TMPFS) => {
            Some(ReadWriteFlags::empty())
        }
        Err(Errno::OPNOTSUPP) => None,
        _ => Some(ReadWriteFlags::NOWAIT),
    }
}

impl LocalFile {
    /// Opens `path`; with `direct`, past the page cache.
    pub(crate) fn open(path: &Path, direct: bool) -> io::Result<Self> {
        let flags = if direct { OFlags::DIRECT } else { OFlags::empty() };
        let (file, facts) = open_regular(CWD, path, flags)?;
        Ok(Self::of(file, &facts, direct))
    }

    /// Opens `path` to be written to as well.
    pub(crate) fn open_writable(path: &Path) -> io::Result<Self> {
        let (file, facts) = open_regular(CWD, path, OFlags::RDWR)?;
        Ok(Self::of(file, &facts, false))
    }

    /// A regular file, of which `facts` are.
    pub(crate) fn of(file: File, facts: &Metadata, direct: bool) -> Self {
        // What to read ahead is the policy's to say. A file system that takes no advice reads ahead, which does no harm.
        let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
        let uncached = if direct { Uncached::of(&file) } else { None };
        let asks = if direct { None } else { asks(&file, facts.len()) };
        let version = FileVersion::of(facts);
        Self { file, version, direct, uncached, spin: Spin::default(), asks, places: None }
    }

    /// A swap file, of which `facts` are.
    pub(crate) fn of_swap(file: File, facts: &Metadata, places: Arc<Words>) -> Self {
        Self { places: Some(places), ..Self::of(file, facts, false) }
    }

    /// Whether nothing was ever written to the pages of `len_bytes` at `offset_bytes` of a swap file. The caller has claimed them: nobody writes one
    /// back meanwhile.
    fn is_untouched(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        let has_none = |places: &Arc<Words>| {
            let pages = PageRange::covering(offset_bytes, len_bytes);
            let places = places.get(pages.start().0 as usize..pages.end().0 as usize);
            places.is_some_and(|places| places.iter().all(|place| place.load(Ordering::Relaxed) == 0))
        };
        self.places.as_ref().is_some_and(has_none)
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.version.len_bytes
    }

    /// What the file was when it was opened.
    pub(crate) fn version(&self) -> FileVersion {
        self.version
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Whether [`Self::read_cached`] can be true.
    pub(crate) fn tells_what_is_cached(&self) -> bool {
        self.asks.is_some() || self.places.is_some()
    }

    /// Reads all of `into` at `offset_bytes` if it is in the page cache. If not, the kernel begins to read it, where it can.
    pub(crate) fn read_cached(&self, offset_bytes: u64, into: &mut [u8]) -> bool {
        self.try_cached(offset_bytes, into) == Tried::Read
    }

    fn try_cached(&self, offset_bytes: u64, into: &mut [u8]) -> Tried {
        if self.is_untouched(offset_bytes, into.len() as u64) {
            into.fill(0);
            return Tried::Read;
        }
        let Some(flags) = self.asks else { return Tried::Never };
        let wanted = into.len();
        let into = &mut [io::IoSliceMut::new(into)];
        Tried::of(preadv2(&self.file, into, offset_bytes, flags), wanted)
    }

    /// Has the kernel begin to read into the page cache. A file system that takes no advice reads when it is asked.
    pub(crate) fn begin(&self, offset_bytes: u64, len_bytes: u64) {
        if self.is_untouched(offset_bytes, len_bytes) {
            return;
        }
        let len = std::num::NonZeroU64::new(len_bytes);
        let _ = rustix::fs::fadvise(&self.file, offset_bytes, len, rustix::fs::Advice::WillNeed);
    }

    /// As [`Self::begin`], of no more than a huge page's length that is likely read to its end: the huge pages that it lies in come first, and
    /// are waited for.
    pub(crate) fn begin_huge(&self, range: PageRange) {
        if self.is_untouched(range.start().offset_bytes(), range.bytes()) {
            return;
        }
        let ends = [range.start(), PageIndex(range.end().0 - 1)];
        let is_one = ends[0].0 / BLOCK_PAGES == ends[1].0 / BLOCK_PAGES;
        for &page in &ends[..if is_one { 1 } else { 2 }] {
            // What does not come so comes by the call below, or fails where it is read.
            let _ =
                FileMapping::new(self.file.as_fd(), page.alone()).and_then(|mapping| mapping.fetch_huge());
        }
        // Where these pages were in memory already, others of the range may not be.
        self.begin(range.start().offset_bytes(), range.bytes());
    }

    /// Reads all of `into` at `offset_bytes`, and stays awake for `limit`, and does `meanwhile`, while the device is busy; false where that cannot be
    /// done, or the device takes longer. Nothing here allocates.
    pub(crate) fn read_awake(
        &self,
        offset_bytes: u64,
        into: &mut [u8],
        limit: Duration,
        meanwhile: impl FnOnce(),
    ) -> bool {
        if self.direct {
            let uncached = self.uncached.as_ref();
            return uncached.is_some_and(|uncached| uncached.read(offset_bytes, into, limit, meanwhile));
        }
        // What is in the page cache says nothing of the device.
        self.read_cached(offset_bytes, into)
            || self.spin.read(limit, || self.try_cached(offset_bytes, into), meanwhile)
    }

    /// Reads whole pages at `offset_bytes`; what lies past the file's end is left alone. Nothing here allocates.
    pub(crate) fn read(&self, offset_bytes: u64, into: &mut [u8]) -> Result<(), u16> {
        if self.is_untouched(offset_bytes, into.len() as u64) {
            into.fill(0);
            return Ok(());
        }
        let wanted = (self.len_bytes() - offset_bytes).min(into.len() as u64) as usize;
        let mut done = 0;
        while done < wanted {
            // The whole buffer, past the file's end too: direct reads are of whole blocks.
            match self.file.read_at(&mut into[done..], offset_bytes + done as u64) {
                Ok(0) => return Err(crate::reason::SHORT),
                // A direct read goes on at a block alone. What ends within one is the end of the file.
                Ok(bytes) if self.direct && !(bytes as u64).is_multiple_of(PAGE_SIZE) => {
                    return if done + bytes >= wanted { Ok(()) } else { Err(crate::reason::SHORT) };
                }
                Ok(bytes) => done += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(crate::reason::of_errno(error.raw_os_error())),
            }
        }
        Ok(())
    }

    /// Reads `part`, all of which lies before the file's end, to where `pages`, those of `range`, hold it. Nothing here allocates.
    pub(crate) fn read_straight(
        &self,
        pages: &DirectFill,
        range: PageRange,
        part: PageRange,
    ) -> Result<(), u16> {
        let mut offset = part.start().offset_bytes();
        let end = part.end().offset_bytes();
        while offset < end {
            let at = offset - range.start().offset_bytes();
            match pages
                .read(self.file.as_fd(), offset, at, end - offset)
                .map_err(|error| error.raw_os_error())
            {
                Ok(0) => return Err(crate::reason::SHORT),
                Ok(bytes) => offset += bytes as u64,
                Err(Some(INTERRUPTED)) => {}
                // A direct read goes on at a block alone; the rest of a page says that the file was truncated.
                Err(Some(INVALID)) if !offset.is_multiple_of(PAGE_SIZE) => return Err(crate::reason::SHORT),
                Err(error) => return Err(crate::reason::of_errno(error)),
            }
        }
        Ok(())
    }
}
