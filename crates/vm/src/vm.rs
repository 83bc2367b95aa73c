//! The VM: what all its objects and maps share.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::num::NonZeroU32;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use prepage_core::policy::Policy;
use prepage_core::{
    Fault, ObjectId, PAGE_SIZE, PageIndex, Permissions, Thread, ThreadIndex, Trace, TraceFacts,
};
use prepage_sys::sigbus;
use prepage_sys::userfaultfd::{Delivery, Userfaultfd};

use crate::buffers::Buffers;
use crate::error::{MakeError, MapError};
use crate::failure::{Failure, Failures};
use crate::fault::now_ns;
use crate::handler::Handlers;
use crate::inline;
use crate::jobs::Jobs;
use crate::map::Map;
use crate::object::{Bytes, Contents, Frames, MAX_BYTES, Object, ObjectCore};
use crate::options::{MapOptions, Mode, VmOptions};
use crate::record::Records;
use crate::source::{LocalFile, Source};
use crate::statistics::{Figures, Statistics};
use crate::zero::Zeros;

/// Maps objects into this process and serves their faults.
///
/// Cloning gives another handle on the same VM. Objects and maps keep it alive.
#[derive(Clone, Debug)]
pub struct Vm {
    core: Arc<VmCore>,
}

/// Shared by handles, objects, maps and threads.
#[derive(Debug)]
pub(crate) struct VmCore {
    pub(crate) policy: Policy,
    /// The policies of advice.
    pub(crate) sequential: Policy,
    pub(crate) random: Policy,
    pub(crate) options: VmOptions,
    /// Opened when the first map of its mode is made.
    inline: Mutex<Option<Arc<Userfaultfd>>>,
    handlers: Mutex<Option<Handlers>>,
    pub(crate) jobs: Arc<Jobs>,
    pub(crate) buffers: Buffers,
    pub(crate) zeros: Zeros,
    pub(crate) figures: Figures,
    pub(crate) failures: Failures,
    pub(crate) records: Option<Records>,
    /// Pages reserved for frames: those that hold one and those about to.
    frames: AtomicU64,
    frame_limit: u64,
    pub(crate) objects: AtomicU64,
    pub(crate) maps: AtomicU64,
    next_object: AtomicU32,
    /// Every object there ever was, for records that name it.
    names: Mutex<HashMap<u32, Named>>,
    started_ns: u64,
}

/// What is known of an object after it went.
#[derive(Debug)]
struct Named {
    object: prepage_core::Object,
    core: Weak<ObjectCore>,
}

impl Vm {
    /// Makes a VM.
    ///
    /// # Errors
    /// When no thread or memory is left. Whether userfaultfd is permitted shows when the first map is made.
    pub fn new(options: VmOptions) -> Result<Self, MakeError> {
        let system = |what| move |source| MakeError::System { what, source };
        let records = (options.record_faults > 0).then(|| Records::new(options.record_faults));
        Ok(Self {
            core: Arc::new(VmCore {
                policy: options.policy.clone(),
                sequential: "linux-data:ra=2048".parse().expect("a policy"),
                random: "none".parse().expect("a policy"),
                inline: Mutex::default(),
                handlers: Mutex::default(),
                jobs: Jobs::start(options.fill_threads).map_err(system("a thread"))?,
                buffers: Buffers::new(),
                zeros: Zeros::new().map_err(system("memory for zeros"))?,
                figures: Figures::new(),
                failures: Failures::new(options.explain),
                records,
                frames: AtomicU64::new(0),
                frame_limit: options.frame_limit_bytes / PAGE_SIZE,
                objects: AtomicU64::new(0),
                maps: AtomicU64::new(0),
                next_object: AtomicU32::new(0),
                names: Mutex::default(),
                started_ns: now_ns(),
                options,
            }),
        })
    }

    /// An object with the bytes of a local file. Its length is that of now; bytes are read when they are needed, so the
    /// file must not change.
    ///
    /// # Errors
    /// When the file cannot be opened, or is no regular file.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<Object, MakeError> {
        self.open_file(path.as_ref(), false)
    }

    /// As [`Self::file`], read past the kernel's page cache: for files that are read once, and memory that is short.
    ///
    /// # Errors
    /// As `file`; also where the file system has no direct reads.
    pub fn file_direct(&self, path: impl AsRef<Path>) -> Result<Object, MakeError> {
        self.open_file(path.as_ref(), true)
    }

    fn open_file(&self, path: &Path, direct: bool) -> Result<Object, MakeError> {
        let failed = |source| MakeError::File { path: path.to_owned(), source };
        let local = LocalFile::open(path, direct).map_err(failed)?;
        let facts = local.file().metadata().map_err(failed)?;
        let device = facts.dev();
        let device = u64::from(rustix::fs::major(device)) << 20 | u64::from(rustix::fs::minor(device));
        let len_bytes = local.len_bytes();
        let name = path.to_string_lossy().into_owned();
        self.object(name, len_bytes, Some((device, facts.ino())), |len| {
            Frames::new(len, Bytes::Local(local)).map(|frames| Contents::Frames(Box::new(frames)))
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

    fn object(
        &self,
        name: String,
        len_bytes: u64,
        inode: Option<(u64, u64)>,
        contents: impl FnOnce(u64) -> io::Result<Contents>,
    ) -> Result<Object, MakeError> {
        if len_bytes > MAX_BYTES {
            return Err(MakeError::TooLarge { len_bytes });
        }
        let contents =
            contents(len_bytes).map_err(|source| MakeError::System { what: "an object", source })?;
        let id = self.core.next_object.fetch_add(1, Ordering::Relaxed);
        let object = prepage_core::Object::new(name.clone(), inode);
        let core = ObjectCore::new(Arc::clone(&self.core), id, name, len_bytes, contents);
        let mut names = self.core.names.lock().unwrap_or_else(PoisonError::into_inner);
        if self.core.records.is_none()
            && names.len() as u64 > 64 + 2 * self.core.objects.load(Ordering::Relaxed)
        {
            names.retain(|_, named| named.core.strong_count() > 0);
        }
        names.insert(id, Named { object, core: Arc::downgrade(&core) });
        Ok(Object { core })
    }

    /// Maps `object`.
    ///
    /// # Errors
    /// See [`MapError`].
    pub fn map(&self, object: &Object, options: &MapOptions) -> Result<Map, MapError> {
        Map::new(&self.core, object, options)
    }

    /// What the VM did and holds. Exact when no fault or background read is under way.
    pub fn statistics(&self) -> Statistics {
        let core = &self.core;
        let maps = core.maps.load(Ordering::Acquire);
        let names = core.names.lock().unwrap_or_else(PoisonError::into_inner);
        let alive: Vec<Arc<ObjectCore>> = names.values().filter_map(|named| named.core.upgrade()).collect();
        drop(names);
        Statistics {
            counted: core.figures.counted(),
            objects: core.objects.load(Ordering::Acquire),
            maps,
            backings: alive.iter().map(|object| object.backings.all().len() as u64).sum(),
            frames: core.frames.load(Ordering::Acquire),
            frame_limit: core.frame_limit,
            costs_ns: core.figures.costs_ns(),
            cluster_pages: core.figures.cluster_pages(),
        }
    }

    /// The touches that ended in SIGBUS since the last call, the last 256 of them.
    pub fn take_failures(&self) -> Vec<Failure> {
        let names = self.core.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut failures = Vec::new();
        while let Some(kept) = self.core.failures.take() {
            let page = PageIndex(kept.page);
            let named = names.get(&kept.object);
            let alive = named.and_then(|named| named.core.upgrade());
            failures.push(Failure {
                object: named.map_or_else(String::new, |named| named.object.path.clone()),
                page,
                address: kept.address,
                reason: match alive {
                    Some(object) => object.reason(page, kept.code),
                    None => crate::reason::Reason::of(kept.code, None),
                },
            });
        }
        failures
    }

    /// The faults since the last call, as a trace like the recorder's; empty without [`VmOptions::record_faults`]. Faults
    /// beyond its room are counted in `facts.lost`.
    pub fn take_trace(&self) -> Trace {
        let mut trace = Trace {
            facts: TraceFacts {
                kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
                duration_ns: now_ns() - self.core.started_ns,
                ..TraceFacts::default()
            },
            ..Trace::default()
        };
        let Some(records) = &self.core.records else { return trace };
        let (faults, lost) = records.take();
        trace.facts.lost = lost;
        let names = self.core.names.lock().unwrap_or_else(PoisonError::into_inner);
        let mut objects: HashMap<u32, ObjectId> = HashMap::new();
        let mut threads: HashMap<u32, ThreadIndex> = HashMap::new();
        for fault in faults {
            let object = *objects.entry(fault.object).or_insert_with(|| {
                let named = names.get(&fault.object).expect("names are kept while faults are");
                trace.objects.push(named.object.clone());
                ObjectId(trace.objects.len() as u32 - 1)
            });
            let thread = *threads.entry(fault.tid).or_insert_with(|| {
                trace.threads.push(thread(fault.tid));
                ThreadIndex(trace.threads.len() as u32 - 1)
            });
            let is_file = trace.objects[object.0 as usize].is_file();
            let start_ns = fault.start_ns.saturating_sub(self.core.started_ns);
            trace.faults.push(Fault {
                cost_ns: Some(fault.cost_ns),
                ip: fault.ip,
                code_offset: fault.ip,
                object: Some(object),
                page: is_file.then_some(PageIndex(fault.page)),
                permissions: Permissions::READ.with(if fault.private {
                    Permissions::WRITE.with(Permissions::PRIVATE)
                } else {
                    Permissions::SHARED
                }),
                cluster_pages: NonZeroU32::new(fault.cluster_pages),
                ..Fault::new(start_ns, thread, fault.address, fault.class)
            });
        }
        trace
    }
}

/// A thread of this process, by its number; without a name where it has ended.
fn thread(tid: u32) -> Thread {
    let comm = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
    Thread { pid: std::process::id(), tid, comm: comm.trim_end().to_owned() }
}

impl VmCore {
    /// Makes sure that there may be `pages` more frames.
    pub(crate) fn reserve_frames(&self, pages: u64) -> bool {
        let before = self.frames.fetch_add(pages, Ordering::AcqRel);
        if before + pages <= self.frame_limit {
            return true;
        }
        self.frames.fetch_sub(pages, Ordering::AcqRel);
        false
    }

    pub(crate) fn release_frames(&self, pages: u64) {
        self.frames.fetch_sub(pages, Ordering::AcqRel);
    }

    /// Whose faults are served as `mode` says; opened when first asked for.
    pub(crate) fn userfaultfd(&self, mode: Mode) -> Result<Arc<Userfaultfd>, MapError> {
        match mode {
            Mode::Inline => {
                let mut inline = self.inline.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(uffd) = &*inline {
                    return Ok(Arc::clone(uffd));
                }
                let uffd = Arc::new(Userfaultfd::open(Delivery::Signal)?);
                sigbus::install(inline::on_fault).map_err(MapError::Prepare)?;
                *inline = Some(Arc::clone(&uffd));
                Ok(uffd)
            }
            Mode::Handler => {
                let mut handlers = self.handlers.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(handlers) = &*handlers {
                    return Ok(handlers.userfaultfd());
                }
                let delivery =
                    if self.options.user_mode_only { Delivery::MessageUserOnly } else { Delivery::Message };
                let uffd = Arc::new(Userfaultfd::open(delivery)?);
                let started = Handlers::start(&uffd, self.options.handler_threads, self.options.spin);
                *handlers = Some(started.map_err(MapError::Prepare)?);
                Ok(uffd)
            }
        }
    }
}

impl Drop for VmCore {
    fn drop(&mut self) {
        self.jobs.stop();
    }
}

/// A number no other map has.
pub(crate) fn next_map_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
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
