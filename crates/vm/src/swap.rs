//! Memory that has no file: its pages are zeros until they are written to, and go to a swap file when their frames are reclaimed.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::clock::now_ns;
use prepage_sys::{file_system, memfd};
use rustix::fs::{Mode, OFlags};

use crate::error::MakeError;
use crate::home::Home;
use crate::object::{Bytes, Contents, Frames, Object};
use crate::pages::{Words, words};
use crate::source::LocalFile;
use crate::sync::{AtomicU64, Ordering};
use crate::vm::Vm;

/// Where a pool's memory goes that has no file.
///
/// Lock legend: (c) constant; (a) atomic.
#[derive(Debug)]
pub(crate) struct Swap {
    /// (c) `None` where there is none.
    directory: Option<PathBuf>,
    /// (c) The most of `used`.
    most_pages: u64,
    /// (a) Pages that have a place in swap files.
    used: AtomicU64,
    /// (a) Until then (CLOCK_MONOTONIC) the disk is taken to be full.
    full_until_ns: AtomicU64,
}

/// So long a disk that was found full is not asked again for more, unless a read would fail.
const FULL_FOR: Duration = Duration::from_secs(1);

/// The swap file of one object: sparse, without a name, as long as the object. A page lies where it lies in the object, and
/// what was never written there reads as zeros.
#[derive(Debug)]
struct SwapFile {
    file: File,
    swap: Arc<Swap>,
    /// Changed by who writes back, one at a time: 1 for a page that has a place here.
    places: Arc<Words>,
    /// (a) How many have one. A child of fork(2) that drops this cannot look at `places`.
    used: AtomicU64,
}

impl Swap {
    pub(crate) fn new(directory: Option<PathBuf>, most_bytes: u64) -> Self {
        let most_pages = if directory.is_some() { most_bytes / PAGE_SIZE } else { 0 };
        Self { directory, most_pages, used: AtomicU64::new(0), full_until_ns: AtomicU64::new(0) }
    }

    pub(crate) fn used_pages(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    fn file(&self) -> Result<File, MakeError> {
        let Some(path) = &self.directory else {
            // Reads as zeros, which is all it is for.
            return Ok(memfd::without_exec("prepage-zeros").map_err(failed)?.into());
        };
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let made = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR);
        let refused = |source| MakeError::File { path: path.clone(), source };
        let made = made.map_err(|errno| refused(errno.into()))?;
        let kind = file_system::kind_of(&made).map_err(refused)?;
        match file_system::without_device(kind) {
            // Disks of unit tests are small, and in memory.
            Some(kind) if !cfg!(test) => Err(MakeError::SwapInMemory { path: path.clone(), kind }),
            _ => Ok(made.into()),
        }
    }

    /// Whether it may have room for a page more.
    pub(crate) fn has_room(&self) -> bool {
        self.used_pages() < self.most_pages && now_ns() >= self.full_until_ns.load(Ordering::Relaxed)
    }

    /// The disk is asked again, though it was found full.
    pub(crate) fn ask_again(&self) {
        self.full_until_ns.store(0, Ordering::Relaxed);
    }

    fn take(&self, pages: u64) -> bool {
        let more = |used: u64| Some(used + pages).filter(|&used| used <= self.most_pages);
        pages == 0
            || self.has_room() && self.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
    }

    fn give(&self, pages: u64) {
        self.used.fetch_sub(pages, Ordering::SeqCst);
    }
}

impl SwapFile {
    fn has_place(&self, page: PageIndex) -> bool {
        self.places[page.0 as usize].load(Ordering::Relaxed) != 0
    }

    /// The pages of `range` that have no place yet.
    fn fresh(&self, range: PageRange) -> impl Iterator<Item = PageIndex> {
        range.iter().filter(move |&page| !self.has_place(page))
    }
}

impl Home for SwapFile {
    fn write(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let range = PageRange::covering(offset_bytes, bytes.len() as u64);
        let fresh = self.fresh(range).count() as u64;
        if !self.swap.take(fresh) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write_all_at(bytes, offset_bytes).inspect_err(|error| {
            self.swap.give(fresh);
            // Of several pages some may have room.
            let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
            if is_full && range.len() == 1 {
                let until = now_ns() + FULL_FOR.as_nanos() as u64;
                self.swap.full_until_ns.store(until, Ordering::Relaxed);
            }
        })?;
        self.fresh(range).for_each(|page| self.places[page.0 as usize].store(1, Ordering::Relaxed));
        self.used.fetch_add(fresh, Ordering::Relaxed);
        Ok(())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(u64::MAX)
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn takes(&self, page: PageIndex) -> bool {
        self.swap.has_room() || self.has_place(page)
    }

    fn is_swap(&self) -> bool {
        true
    }
}

impl Drop for SwapFile {
    fn drop(&mut self) {
        self.swap.give(self.used.load(Ordering::Relaxed));
    }
}

impl Vm {
    /// An object of `len_bytes` zeros, shared by all maps of it that are made with [`MapOptions::writable`](crate::MapOptions::writable).
    /// Its pages count as frames of the pool. When frames are short they go to a swap file
    /// ([`PoolOptions::swap`](crate::PoolOptions::swap)), after pages of files and before code. Without a swap file, or if it
    /// is full or fails, the pages stay in memory, and reads that find no frame fail. What the page cache has taken counts as swapped: if its
    /// device fails later, while the kernel writes it out, a touch of the page gets SIGBUS, and calls an error.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use prepage_vm::{MapOptions, Pool, PoolOptions, Vm, VmOptions};
    ///
    /// let options = PoolOptions::default().limit_bytes(1 << 20).swap("/var/tmp", 64 << 20);
    /// let vm = Vm::new(VmOptions::default().pool(&Pool::with(&options)?))?;
    /// let memory = vm.memory(8 << 20)?;
    /// let map = vm.map(&memory, &MapOptions::writable())?;
    /// for at in (0..8 << 20).step_by(4096) {
    ///     map.write_at(at, &at.to_le_bytes())?;
    /// }
    /// let mut bytes = [0; 8];
    /// map.read_at(4 << 20, &mut bytes)?;
    /// assert_eq!(u64::from_le_bytes(bytes), 4 << 20);
    /// assert!(vm.statistics().counted.pages_swapped > 1500); // of 2,048, where 256 fit
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When no file can be made in the directory for swap files, the directory lies in memory (tmpfs, ramfs), or the object is too large.
    pub fn memory(&self, len_bytes: u64) -> Result<Object, MakeError> {
        let swap = Arc::clone(&self.core.pool.core().swap);
        let file = swap.file()?;
        // A process that was forked makes no object, and one that is too large no file of that size.
        self.object("[memory]".to_owned(), len_bytes, None, |len| {
            let pages = PageRange::covering(0, len);
            memfd::check_len(pages.bytes())?;
            file.set_len(pages.bytes())?;
            let places = Arc::new(words(pages.len())?);
            let of_file = Arc::clone(&places);
            let home = SwapFile { file: file.try_clone()?, swap, places, used: AtomicU64::new(0) };
            let facts = file.metadata()?;
            let bytes = Bytes::Local(LocalFile::of_swap(file, &facts, of_file));
            let frames = Frames::written(len, bytes, Box::new(home), self.core.pool.core())?;
            Ok(Contents::Frames(Box::new(frames)))
        })
    }
}

fn failed(source: io::Error) -> MakeError {
    MakeError::System { what: "an object", source }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::os::fd::AsFd;
    use std::path::Path;
    use std::time::Instant;

    use prepage_sys::cachestat;
    use prepage_testing::{Need, SmallDisk, has};

    use super::*;
    use crate::error::{AccessError, FlushError};
    use crate::{Map, MapOptions, Pool, PoolOptions, Reason, VmOptions};

    const EIO: i32 = 5;

    /// What fails with EIO wherever it is read or written, as a disk that was lost: the beginning of this process's address space, where nothing lies.
    fn lost() -> File {
        File::options().read(true).write(true).open("/proc/self/mem").unwrap()
    }

    /// Memory of `pages` pages, half of them written to. Its swap file is read and written by two descriptors.
    fn swapped_by(pages: u64, reads: File, writes: File) -> (Vm, Object, Map) {
        let directory = tempfile::tempdir().unwrap();
        let pool = Pool::with(&PoolOptions::default().swap(directory.path(), pages * PAGE_SIZE)).unwrap();
        let vm = Vm::new(VmOptions::default().explain(false).pool(&pool)).unwrap();
        let plain = tempfile::tempfile().unwrap();
        plain.set_len(pages * PAGE_SIZE).unwrap();
        let memory = vm.object("[memory]".to_owned(), pages * PAGE_SIZE, None, |len| {
            let places = Arc::new(words(pages)?);
            let bytes = Bytes::Local(LocalFile::of_swap(reads, &plain.metadata()?, Arc::clone(&places)));
            let swap = Arc::clone(&pool.core().swap);
            let home = SwapFile { file: writes, swap, places, used: AtomicU64::new(0) };
            Ok(Contents::Frames(Box::new(Frames::written(len, bytes, Box::new(home), pool.core())?)))
        });
        let memory = memory.unwrap();
        let map = vm.map(&memory, &MapOptions::writable()).unwrap();
        (0..pages / 2).for_each(|page| map.write_at(page * PAGE_SIZE, &[page as u8 + 1]).unwrap());
        (vm, memory, map)
    }

    fn first_of(map: &Map, page: u64) -> Result<u8, AccessError> {
        let mut byte = [0];
        map.read_at(page * PAGE_SIZE, &mut byte).map(|()| byte[0])
    }

    #[test]
    fn what_the_disk_of_the_swap_file_refuses_stays_in_memory() {
        const PAGES: u64 = 16;
        let (vm, memory, map) = swapped_by(PAGES, tempfile::tempfile().unwrap(), lost());
        let pool = &vm.core.pool;
        for _ in 0..2 {
            let refused = memory.write_back(memory.pages()).unwrap_err();
            let FlushError::Write { page: PageIndex(0), source, .. } = refused else { panic!("{refused:?}") };
            assert_eq!(source.raw_os_error(), Some(EIO));
        }
        assert_eq!(pool.reclaim(PAGES), 0);
        assert_eq!((memory.dirty_pages(), pool.figures().swap_pages), (PAGES / 2, 0), "no place is taken");
        assert!((0..PAGES / 2).all(|page| first_of(&map, page).unwrap() == page as u8 + 1));
    }

    #[test]
    fn what_the_disk_of_the_swap_file_does_not_give_again_is_an_error_and_the_rest_is_not() {
        const PAGES: u64 = 16;
        let (vm, memory, map) = swapped_by(PAGES, lost(), tempfile::tempfile().unwrap());
        assert_eq!(memory.write_back(memory.pages()).unwrap(), PAGES / 2);
        let away = PageRange::new(PageIndex(0), PageIndex(PAGES / 4));
        assert_eq!(memory.evict(away).unwrap(), PAGES / 4);
        let is_lost = |page: u64, came: Result<(), AccessError>| {
            let failed = came.unwrap_err();
            let AccessError::Unavailable { page: of, reason, .. } = failed else { panic!("{failed:?}") };
            assert_eq!((of, reason), (PageIndex(page), Reason::System(EIO)));
        };
        for page in 0..PAGES / 4 {
            is_lost(page, first_of(&map, page).map(drop));
            is_lost(page, map.write_at(page * PAGE_SIZE, &[0]));
        }
        is_lost(0, map.populate(map.window()));
        assert!((PAGES / 4..PAGES / 2).all(|page| first_of(&map, page).unwrap() == page as u8 + 1));
        assert!((PAGES / 2..PAGES).all(|page| first_of(&map, page).unwrap() == 0));
        assert!(vm.statistics().counted.pages_failed > 0);
    }

    fn small_disk(pages: u64) -> Option<SmallDisk> {
        (has(Need::Root) && has(Need::Mounts)).then(|| SmallDisk::new(pages * PAGE_SIZE))
    }

    /// The disk was full a moment ago.
    #[test]
    fn no_read_fails_for_want_of_frames_while_the_disk_has_room() {
        const PAGES: u64 = 64;
        // More than fit, those included that a slow machine gets beyond the limit.
        const MANY: u64 = 16 * PAGES;
        let Some(disk) = small_disk(PAGES / 2) else { return };
        let filler = File::create(disk.path().join("filler")).unwrap();
        filler.write_all_at(&vec![1; (PAGES / 4 * PAGE_SIZE) as usize], 0).unwrap();
        let options = PoolOptions::default().limit_bytes(PAGES * PAGE_SIZE).swap(disk.path(), 1 << 30);
        let vm = Vm::new(VmOptions::default().explain(false).pool(&Pool::with(&options).unwrap())).unwrap();
        let object = vm.memory(MANY * PAGE_SIZE).unwrap();
        let map = vm.map(&object, &MapOptions::writable()).unwrap();
        let write = |page: u64| map.write_at(page * PAGE_SIZE, &[1]);
        let refused = (0..MANY).find(|&page| write(page).is_err()).expect("the disk is full");
        filler.set_len(0).unwrap();
        write(refused).unwrap();
    }

    /// Who searches for frames would else try all that has no place there, again and again.
    #[test]
    fn a_disk_that_is_full_is_left_alone_for_a_while() {
        const PAGES: u64 = 256;
        let Some(disk) = small_disk(PAGES / 4) else { return };
        let options = PoolOptions::default().swap(disk.path(), 1 << 30);
        let pool = Pool::with(&options).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let object = vm.memory(PAGES * PAGE_SIZE).unwrap();
        let map = vm.map(&object, &MapOptions::writable()).unwrap();
        for page in 0..PAGES {
            map.write_at(page * PAGE_SIZE, &[1]).unwrap();
        }
        let began = Instant::now();
        let reclaimed: u64 = (0..10).map(|_| pool.reclaim(PAGES)).sum();
        let failed = vm.statistics().counted.write_backs_failed;
        assert!((1..=PAGES / 4).contains(&reclaimed) && failed > 0, "{reclaimed}, {failed}");
        let is_slow = began.elapsed() >= FULL_FOR;
        assert!(is_slow || failed <= PAGES, "{reclaimed}, {failed}");
        std::thread::sleep(FULL_FOR);
        pool.reclaim(PAGES);
        assert!(vm.statistics().counted.write_backs_failed > failed, "it is asked again");
    }

    /// Else each page would take memory twice: as a frame, and as zeros in the page cache.
    #[test]
    fn what_was_never_swapped_is_not_read_from_the_swap_file() {
        const PAGES: u64 = 256;
        let home = Path::new(env!("CARGO_MANIFEST_DIR"));
        if !has(Need::Eviction(home.into())) {
            return;
        }
        let directory = tempfile::tempdir_in(home).unwrap();
        let options = PoolOptions::default().limit_bytes(2 * PAGES * PAGE_SIZE);
        let pool = Pool::with(&options.swap(directory.path(), 2 * PAGES * PAGE_SIZE)).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let object = vm.memory(PAGES * PAGE_SIZE).unwrap();
        let map = vm.map(&object, &MapOptions::writable()).unwrap();
        let bytes = map.as_atomics();
        let value = |page: u64| (page % 251 + 1) as u8;
        let at = |page: u64| (page * PAGE_SIZE) as usize;
        (0..PAGES).for_each(|page| bytes[at(page)].store(value(page), Ordering::Relaxed));
        let Some(Bytes::Local(file)) = object.core.frames().map(|frames| &frames.bytes) else {
            panic!("it has a swap file")
        };
        let file = file.file().as_fd();
        if cachestat::sees(file) {
            assert_eq!(cachestat::cached_pages(file, object.pages()).unwrap(), 0);
        }
        // What was written there comes back, and what is touched for the first time beside it is zeros.
        let fresh = vm.memory(PAGES * PAGE_SIZE).unwrap();
        let other = vm.map(&fresh, &MapOptions::writable()).unwrap();
        (0..PAGES)
            .step_by(2)
            .for_each(|page| other.as_atomics()[at(page)].store(value(page), Ordering::Relaxed));
        let (began, mut gone) = (Instant::now(), 0);
        // What takes long to be written is given up, and tried again.
        while gone <= PAGES {
            gone += pool.reclaim(2 * PAGES - gone);
            assert!(began.elapsed() < Duration::from_secs(60), "{gone} pages");
        }
        for page in 0..PAGES {
            assert_eq!(bytes[at(page)].load(Ordering::Relaxed), value(page), "{page}");
            let expected = if page % 2 == 0 { value(page) } else { 0 };
            assert_eq!(other.as_atomics()[at(page)].load(Ordering::Relaxed), expected, "{page}");
        }
    }
}
