//! The VM: what all its objects and maps share.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use prepage_core::policy::Policy;
use prepage_sys::clock::now_ns;
use prepage_sys::pagemap::PageMap;
use prepage_sys::signals::Masked;
use prepage_sys::userfaultfd::{Delivery, Userfaultfd};
use prepage_sys::{device_number, fork, sigbus};

use crate::addresses::Addresses;
use crate::book::Book;
use crate::buffers::Buffers;
use crate::error::{MakeError, MapError};
use crate::failure::Failures;
use crate::handler::Handlers;
use crate::heirs::Heirs;
use crate::inline;
use crate::jobs::Jobs;
use crate::keeper::Keeper;
use crate::map::Map;
use crate::names::Names;
use crate::object::{Bytes, Contents, Frames, Handle, MAX_BYTES, Object, ObjectCore};
use crate::options::{MapOptions, Mode, VmOptions};
use crate::piece::Piece;
use crate::pool::Pool;
use crate::record::Records;
use crate::show;
use crate::source::{LocalFile, Source};
use crate::space::Space;
use crate::statistics::{Figures, Statistics};
use crate::sync::{Anyway, AtomicU64, Ordering};
use crate::writer::Writer;
use crate::writes::OwnPageMap;
use crate::zero::Zeros;

/// Buffers for the reads that faults do themselves, and for other reads of local files: as many of each can be under way at once.
const READ_BUFFERS: usize = 64;
/// Buffers that are kept for other reads.
const REQUEST_BUFFERS: usize = 128;

/// Maps objects into this process and serves their faults.
///
/// Cloning gives another handle on the same VM. Objects and maps keep it alive.
#[derive(Clone, Debug)]
pub struct Vm {
    pub(crate) core: Arc<VmCore>,
}

/// Shared by handles, objects, maps and threads.
///
/// Lock legend: (c) constant; (a) atomic; `inline`, `handlers` and `heirs` have a lock each, never taken by faults and never together; what is a type of its own has its own legend.
#[derive(Debug)]
pub(crate) struct VmCore {
    /// (c)
    pub(crate) options: VmOptions,
    /// (c) The policies of advice.
    pub(crate) sequential: Policy,
    pub(crate) random: Policy,
    /// Opened when the first map of its mode is made.
    inline: Mutex<Option<Arc<Space>>>,
    pub(crate) handlers: Mutex<Option<Handlers>>,
    /// Opened when the first map is made that children inherit.
    pub(crate) heirs: Mutex<Option<Heirs>>,
    pub(crate) jobs: Arc<Jobs>,
    /// For faults, which allocate nothing.
    pub(crate) buffers: Buffers,
    /// For the reads of local files that no touch waits for, which allocate nothing either: a touch may come to wait for what they have claimed.
    pub(crate) ahead_buffers: Buffers,
    /// For everything else.
    pub(crate) request_buffers: Buffers,
    pub(crate) zeros: Zeros,
    pub(crate) figures: Figures,
    pub(crate) failures: Failures,
    pub(crate) records: Option<Records>,
    pub(crate) pool: Pool,
    /// (a)
    pub(crate) objects: AtomicU64,
    /// (a)
    pub(crate) maps: AtomicU64,
    /// The objects that exist, and those that records name.
    pub(crate) names: Names,
    /// (c)
    pub(crate) started_ns: u64,
    /// (c) The process that it was made in.
    generation: u64,
    /// Shadow chains.
    pub(crate) book: Book,
    /// Writes back what nobody flushes.
    pub(crate) writer: Arc<Writer>,
    /// Frees what snapshots shadow.
    pub(crate) keeper: Arc<Keeper>,
    own_page_map: OwnPageMap,
}

/// This is another process than the one that made the VM.
#[derive(Debug)]
pub(crate) struct OtherProcess;

impl Vm {
    /// Makes a VM.
    ///
    /// # Errors
    /// When no thread or memory is left. Whether userfaultfd is permitted shows when the first map is made.
    ///
    /// A child of fork(2) makes a VM of its own: one that it inherits gives errors.
    pub fn new(options: VmOptions) -> Result<Self, MakeError> {
        let system = |what| move |source| MakeError::System { what, source };
        let pool = match &options.pool {
            Some(pool) if pool.core().is_forked() => return Err(MakeError::Forked),
            Some(pool) => pool.clone(),
            None => Pool::new(options.frame_limit_bytes)?,
        };
        let records = match options.record_faults {
            0 => None,
            faults => Some(Records::new(faults).map_err(system("memory for records of faults"))?),
        };
        let [buffers, ahead_buffers] = Buffers::of_reads(READ_BUFFERS).map_err(system("memory for reads"))?;
        let vm = Self {
            core: Arc::new(VmCore {
                sequential: "linux-data:ra=2048".parse().expect("a policy"),
                random: "none".parse().expect("a policy"),
                inline: Mutex::default(),
                handlers: Mutex::default(),
                heirs: Mutex::default(),
                buffers,
                ahead_buffers,
                request_buffers: Buffers::new(REQUEST_BUFFERS, 0).map_err(system("memory for reads"))?,
                zeros: Zeros::new().map_err(system("memory for zeros"))?,
                figures: Figures::new(),
                failures: Failures::new(options.explain),
                records,
                pool,
                objects: AtomicU64::new(0),
                maps: AtomicU64::new(0),
                names: Names::default(),
                started_ns: now_ns(),
                generation: fork::generation(),
                book: Book::default(),
                writer: Arc::default(),
                keeper: Arc::default(),
                own_page_map: OwnPageMap::default(),
                // Last: what is dropped before the VM is whole stops no thread.
                jobs: Jobs::start(options.fill_threads, options.read_deadline).map_err(system("a thread"))?,
                options,
            }),
        };
        if vm.core.options.shown {
            show::enter(&vm.core);
        }
        Ok(vm)
    }

    /// An object with the bytes of a local file. It keeps the length that the file has now; bytes are read when they are needed. If the
    /// file changes, pages that were read already show the old bytes; a page that was evicted and comes back different
    /// fails.
    ///
    /// # Errors
    /// When the file cannot be opened, or is no regular file.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<Object, MakeError> {
        self.open_file(path.as_ref(), false)
    }

    /// As [`Self::file`], but reads go past the kernel's page cache: for files that are read once, and when memory is short. Short reads
    /// that a touch waits for go through the page cache and leave nothing there, if the kernel can do that (Linux 6.14); the
    /// thread stays awake for them, for [`VmOptions::read_spin`].
    ///
    /// # Errors
    /// As `file`; also if the file system has no direct reads.
    pub fn file_direct(&self, path: impl AsRef<Path>) -> Result<Object, MakeError> {
        self.open_file(path.as_ref(), true)
    }

    /// As [`Self::file`], for a file that maps made with [`MapOptions::writable`] write to. Written bytes stay in memory
    /// until [`Object::flush`], until their frame is reclaimed, or for [`VmOptions::write_back_after`]. Until then they are lost if the
    /// process ends. All maps of the object are shared. Their bytes change, so there are no slices of them.
    ///
    /// Make one object of a file. Two of them do not see what is written to the other, and each overwrites whole pages. Read nothing into such a
    /// map past the page cache (O_DIRECT): what a device brings after its page was written back is lost.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::atomic::Ordering;
    ///
    /// use prepage_vm::{MapOptions, Vm, VmOptions};
    ///
    /// let file = tempfile::NamedTempFile::new()?;
    /// file.as_file().set_len(1 << 20)?;
    /// let vm = Vm::new(VmOptions::default())?;
    /// let object = vm.file_writable(file.path())?;
    /// let map = vm.map(&object, &MapOptions::writable())?;
    /// map.as_atomics()[4096].store(7, Ordering::Relaxed); // one fault: page 1 is dirty
    /// map.write_at(8192, b"no signal, whatever happens")?;
    /// assert_eq!(object.dirty_pages(), 2);
    /// map.flush(map.window())?; // durable
    /// assert_eq!((object.dirty_pages(), std::fs::read(file.path())?[4096]), (0, 7));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As `file`; also if the file may not be written to, or no thread is left.
    pub fn file_writable(&self, path: impl AsRef<Path>) -> Result<Object, MakeError> {
        let failed = |source| MakeError::File { path: path.as_ref().to_owned(), source };
        let local = LocalFile::open_writable(path.as_ref()).map_err(failed)?;
        let home = local.file().try_clone().map_err(failed)?;
        let object = self.of_file(path.as_ref(), local, |len, local| {
            Frames::written(len, Bytes::Local(local), Box::new(home), self.core.pool.core())
        })?;
        let after = self.core.options.write_back_after;
        let entered = self.core.writer.enter(&object.core, after);
        entered.map_err(|source| MakeError::System { what: "a thread", source })?;
        Ok(object)
    }

    fn open_file(&self, path: &Path, direct: bool) -> Result<Object, MakeError> {
        let failed = |source| MakeError::File { path: path.to_owned(), source };
        let local = LocalFile::open(path, direct).map_err(failed)?;
        self.of_file(path, local, |len, local| Frames::new(len, Bytes::Local(local)))
    }

    fn of_file(
        &self,
        path: &Path,
        local: LocalFile,
        frames: impl FnOnce(u64, LocalFile) -> io::Result<Frames>,
    ) -> Result<Object, MakeError> {
        let failed = |source| MakeError::File { path: path.to_owned(), source };
        let facts = local.file().metadata().map_err(failed)?;
        let device = device_number::of_kernel(facts.dev());
        let len_bytes = local.len_bytes();
        let name = path.to_string_lossy().into_owned();
        self.object(name, len_bytes, Some((device, facts.ino())), |len| {
            frames(len, local).map(|frames| Contents::Frames(Box::new(frames)))
        })
    }

    /// An object with the bytes of `source`, called `name` in errors and traces.
    ///
    /// # Errors
    /// When no memory or descriptor is left.
    pub fn source(&self, name: &str, source: impl Source) -> Result<Object, MakeError> {
        let len_bytes = source.len_bytes();
        self.object(name.to_owned(), len_bytes, None, |len| {
            Frames::new(len, Bytes::Custom(Box::new(source))).map(|frames| Contents::Frames(Box::new(frames)))
        })
    }

    /// An object of `len_bytes` zeros.
    ///
    /// # Errors
    /// When it is too large.
    pub fn anonymous(&self, len_bytes: u64) -> Result<Object, MakeError> {
        self.object("[anon]".to_owned(), len_bytes, None, |_| Ok(Contents::Zero))
    }

    pub(crate) fn object(
        &self,
        name: String,
        len_bytes: u64,
        inode: Option<(u64, u64)>,
        contents: impl FnOnce(u64) -> io::Result<Contents>,
    ) -> Result<Object, MakeError> {
        self.core.check_process().map_err(|_| MakeError::Forked)?;
        if len_bytes > MAX_BYTES {
            return Err(MakeError::TooLarge { len_bytes });
        }
        let contents =
            contents(len_bytes).map_err(|source| MakeError::System { what: "an object", source })?;
        let object = prepage_core::Object::new(name.clone(), inode);
        let core = ObjectCore::new(Arc::clone(&self.core), name, len_bytes, contents);
        let _masked = Masked::asynchronous();
        self.core.names.insert(object, &core);
        if core.frames().is_some() {
            self.core.pool.core().enter(&core);
        }
        Ok(Object { core: Handle::new(core), hold: None })
    }

    /// Maps `object`.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(&self, object: &Object, options: &MapOptions) -> Result<Map, MapError> {
        self.own(&object.core)?;
        let piece = Piece::checked(object, options.window.unwrap_or(object.pages()))?;
        if piece.hold.is_some() && !options.private {
            return Err(MapError::SharedSnapshot { object: object.name().to_owned() });
        }
        Map::new(&self.core, &[piece], options)
    }

    /// Maps pieces of objects, one behind the other, as one private map. Its pages are counted from 0. The options
    /// [`MapOptions::window`] and [`MapOptions::huge_pages`] are ignored.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use prepage_core::{PageIndex, PageRange};
    /// use prepage_vm::{MapOptions, Piece, Vm, VmOptions};
    ///
    /// let vm = Vm::new(VmOptions::default())?;
    /// let image = vm.file(std::env::current_exe()?)?;
    /// let zeros = vm.anonymous(8192)?;
    /// let page = |page| PageRange::new(PageIndex(page), PageIndex(page + 1));
    /// let pieces = [Piece::new(&zeros, page(0)), Piece::new(&image, page(0)), Piece::new(&image, page(1)).copied()];
    /// let map = vm.map_pieces(&pieces, &MapOptions::private())?;
    /// assert_eq!(&map.as_slice()[4095..4100], b"\0\x7fELF");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// See [`MapError`]; all pieces but the last must end with a whole page.
    pub fn map_pieces(&self, pieces: &[Piece], options: &MapOptions) -> Result<Map, MapError> {
        if !options.private {
            return Err(MapError::Pieces);
        }
        let checked: Vec<Piece> = pieces.iter().cloned().map(Piece::check).collect::<Result<_, _>>()?;
        checked.iter().try_for_each(|piece| self.own(&piece.object))?;
        if checked.is_empty() {
            return Err(MapError::Empty { object: "nothing".to_owned() });
        }
        Map::new(&self.core, &checked, &MapOptions { huge: false, ..options.clone() })
    }

    fn own(&self, object: &ObjectCore) -> Result<(), MapError> {
        if Arc::ptr_eq(&object.vm, &self.core) {
            return Ok(());
        }
        Err(MapError::OtherVm { object: object.name.clone() })
    }

    /// What the VM did, and what it holds now. Exact when no fault or background read is under way. Empty in a child of fork(2).
    pub fn statistics(&self) -> Statistics {
        let core = &self.core;
        if core.check_process().is_err() {
            return Statistics::none();
        }
        let _masked = Masked::asynchronous();
        let maps = core.maps.load(Ordering::Acquire);
        let alive = core.names.alive();
        let table = |space: Option<&Space>| space.map_or(0, |space| space.addresses.bytes());
        let inline = core.inline.lock().anyway().clone();
        let handlers = core.handlers.lock().anyway();
        let handled = handlers.as_ref().map(Handlers::space);
        drop(handlers);
        let heirs = core.heirs.lock().anyway();
        let of_heirs = heirs.as_ref().map_or(0, Heirs::table_bytes);
        drop(heirs);
        Statistics {
            counted: core.figures.counted(),
            objects: core.objects.load(Ordering::Acquire),
            maps,
            backings: alive.iter().map(|object| object.backings.all().len() as u64).sum(),
            tracking_bytes: alive.iter().map(|object| object.backings.bytes()).sum::<u64>()
                + table(inline.as_deref())
                + table(handled.as_deref())
                + of_heirs,
            pool: core.pool.figures(),
            costs_ns: core.figures.costs_ns(),
            cluster_pages: core.figures.cluster_pages(),
            clusters: core.figures.clusters(),
        }
    }
}

impl VmCore {
    /// Whether this is the process that made the VM, and not a child of it.
    pub(crate) fn check_process(&self) -> Result<(), OtherProcess> {
        if fork::generation() == self.generation { Ok(()) } else { Err(OtherProcess) }
    }

    /// The page table of this process.
    pub(crate) fn page_map(&self) -> io::Result<&PageMap> {
        self.own_page_map.get()
    }

    pub(crate) fn release_frames(&self, pages: u64) {
        self.pool.core().frames.release(pages);
    }

    /// Whose faults are served as `mode` says; opened when first asked for.
    pub(crate) fn space(&self, mode: Mode) -> Result<Arc<Space>, MapError> {
        let _masked = Masked::asynchronous();
        match mode {
            Mode::Inline => {
                let mut inline = self.inline.lock().anyway();
                if let Some(space) = &*inline {
                    if !sigbus::is_installed() {
                        return Err(MapError::SigbusTaken);
                    }
                    return Ok(Arc::clone(space));
                }
                let uffd = Userfaultfd::open(Delivery::Signal)?;
                sigbus::install(inline::on_fault).map_err(MapError::Prepare)?;
                if !sigbus::is_installed() {
                    return Err(MapError::SigbusTaken);
                }
                let addresses = Addresses::of_faults_here().ok_or(MapError::TooManyForks)?;
                let space = Space::new(uffd, mode, addresses);
                *inline = Some(Arc::clone(&space));
                Ok(space)
            }
            Mode::Handler => {
                let mut handlers = self.handlers.lock().anyway();
                if let Some(handlers) = &*handlers {
                    return Ok(handlers.space());
                }
                let delivery =
                    if self.options.user_mode_only { Delivery::MessageUserOnly } else { Delivery::Message };
                let space = Space::new(Userfaultfd::open(delivery)?, mode, Addresses::of_descriptor());
                *handlers = Some(Handlers::start(&space).map_err(MapError::Prepare)?);
                Ok(space)
            }
        }
    }
}

impl Drop for VmCore {
    fn drop(&mut self) {
        if self.check_process().is_ok() {
            self.jobs.stop();
            self.writer.bell.stop();
            self.keeper.bell.stop();
        }
    }
}

/// A number no other map has.
pub(crate) fn next_map_id() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

const _: () = {
    /// Maps are used by many threads.
    const fn shared<T: Send + Sync>() {}
    shared::<Map>();
    shared::<Vm>();
    shared::<Object>();
    shared::<File>();
};

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::time::Duration;

    use prepage_core::PageIndex;
    use prepage_sys::forked::Forked;

    use super::*;
    use crate::{FlushError, PoolOptions, SavedError};

    /// What a child may not wait for: locks that threads of its parent held at the fork.
    #[test]
    fn a_child_of_fork_waits_for_no_lock_of_its_parent() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        let pool = Pool::with(&PoolOptions::default().limit_bytes(16 << 20)).unwrap();
        let vm = Vm::new(VmOptions::default().pool(&pool)).unwrap();
        let object = vm.file_writable(file.path()).unwrap();
        let image = vm.file(file.path()).unwrap();
        let memory = vm.memory(1 << 20).unwrap();
        let map = vm.map(&object, &MapOptions::writable()).unwrap();
        let mut private = vm.map(&image, &MapOptions::private()).unwrap();
        private.as_mut_slice()[0] = 1;
        let snapshot = private.snapshot().unwrap();
        let pinned = map.pin(object.pages()).unwrap();
        map.write_at(0, &[1]).unwrap();
        let directory = tempfile::tempdir().unwrap();
        // Dropped in the child by the child, and here once no lock is held any more.
        let mut left = Some((pinned, memory, snapshot));

        let frames = object.core.frames().unwrap();
        let dirty = object.core.dirty().unwrap();
        let _book = vm.core.book.lock();
        let _of_vm =
            (vm.core.inline.lock().unwrap(), vm.core.handlers.lock().unwrap(), vm.core.heirs.lock().unwrap());
        let _of_pool = pool.core().reclaim.lock().unwrap();
        let _of_dirty = (dirty.syncing.lock().unwrap(), dirty.written.lock().unwrap());
        let _of_frames = (frames.pins.lock().unwrap(), private.core.chain.lock().unwrap());
        let _spare = Addresses::locked_spare();
        let _backings = object.core.backings.locked();
        let child = Forked::new(|| {
            // Not the standard library's, whose list of threads may be locked as well.
            let _watching = crate::sync::spawn("watching", || {
                std::thread::sleep(Duration::from_secs(30));
                std::process::abort();
            })
            .unwrap();
            let all = object.pages();
            assert!(object.backings().is_empty() && object.mappings_of(PageIndex(0)).unwrap().is_empty());
            assert_eq!((object.resident_pages(), object.dirty_pages()), (0, 0));
            assert!(!object.is_resident(PageIndex(0)) && !object.is_wired(PageIndex(0)));
            assert!(object.evict(all).is_err() && object.unwire(all).is_err());
            assert!(matches!(object.flush(all), Err(FlushError::Forked)));
            assert!(matches!(object.write_back(all), Err(FlushError::Forked)));
            assert!(matches!(map.flush(all), Err(FlushError::Forked)));
            assert!(matches!(vm.flush(), Err(FlushError::Forked)));
            assert!(map.populate(all).is_err() && map.pin(all).is_err() && map.write_at(0, &[1]).is_err());
            assert!(private.snapshot().is_err());
            assert!(matches!(left.as_ref().unwrap().2.save(directory.path()), Err(SavedError::Forked)));
            assert!(matches!(vm.open_snapshot(directory.path()), Err(SavedError::Forked)));
            assert!(vm.memory(4096).is_err() && vm.file_writable(file.path()).is_err());
            assert!(vm.map(&image, &MapOptions::private()).is_err() && vm.prune_page_tables().is_err());
            assert!(vm.free_shadowed().is_err() && vm.chains() == Default::default());
            assert_eq!(
                (vm.statistics().objects, vm.take_failures().len(), vm.take_trace().faults.len()),
                (0, 0, 0)
            );
            assert_eq!((pool.reclaim(1), pool.objects().len(), pool.figures().resident_pages), (0, 0, 0));
            assert!(format!("{vm:?}{object:?}{map:?}{pool:?}").len() > 1);
            drop(left.take());
            let own = Vm::new(VmOptions::default()).unwrap();
            let image = own.file(file.path()).unwrap();
            for mode in [Mode::Inline, Mode::Handler] {
                if let Ok(map) = own.map(&image, &MapOptions::shared().mode(mode)) {
                    assert_eq!(map.as_slice()[1 << 19], 0);
                }
            }
            drop((image, own));
            7
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(7));
    }
}
