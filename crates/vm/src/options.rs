//! Options of a VM and of its maps, and advice about their use.

use std::time::Duration;

use prepage_core::PageRange;
use prepage_core::policy::{Neighbours, Policy};

use crate::pool::Pool;

/// Options of a [`Vm`](crate::Vm).
#[derive(Clone, Debug)]
pub struct VmOptions {
    pub(crate) frame_limit_bytes: u64,
    pub(crate) pool: Option<Pool>,
    pub(crate) policy: Policy,
    pub(crate) read_spin: Duration,
    pub(crate) fill_threads: u32,
    pub(crate) read_deadline: Option<Duration>,
    pub(crate) record_faults: usize,
    pub(crate) user_mode_only: bool,
    pub(crate) write_back_after: Duration,
    pub(crate) free_shadowed_after: Duration,
    pub(crate) explain: bool,
    pub(crate) shown: bool,
}

impl Default for VmOptions {
    fn default() -> Self {
        Self {
            frame_limit_bytes: u64::MAX,
            pool: None,
            policy: Policy::Context,
            read_spin: Duration::from_micros(200),
            fill_threads: 64,
            read_deadline: None,
            record_faults: 0,
            user_mode_only: false,
            write_back_after: Duration::from_secs(5),
            free_shadowed_after: Duration::from_secs(1),
            explain: true,
            shown: true,
        }
    }
}

impl VmOptions {
    /// The most memory that frames may take, in bytes; by default there is no limit. The VM gets a [`Pool`] of its own. At the
    /// limit, pages that come in take the place of idle ones. Private copies and zeros belong to the maps: they are not frames, and
    /// do not count.
    pub fn frame_limit_bytes(self, frame_limit_bytes: u64) -> Self {
        Self { frame_limit_bytes, pool: None, ..self }
    }

    /// Takes frames from `pool`, which other VMs may share.
    pub fn pool(self, pool: &Pool) -> Self {
        Self { pool: Some(pool.clone()), ..self }
    }

    /// The policy of maps that name none and are not of code; `context` by default: about 16 pages, and more where pages are touched in order.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// How long a fault on a page of a local file stays awake while the page is read; 200 µs by default, zero to sleep
    /// at once. A CPU that falls asleep takes long to wake up, above all in a virtual machine. Meanwhile the thread offers the CPU to
    /// other threads. If one takes it, or if a device is slower than this, few faults stay awake.
    pub fn read_spin(self, read_spin: Duration) -> Self {
        Self { read_spin, ..self }
    }

    /// The most threads that read ahead and for [`Map::populate`](crate::Map::populate); 64 by default, at least 1. Touches
    /// that wait for a custom source have other threads.
    pub fn fill_threads(self, fill_threads: u32) -> Self {
        Self { fill_threads: fill_threads.max(1), ..self }
    }

    /// How long a source may take for a read before the waiting threads get an error; by default there is no deadline. Bytes that come
    /// later are thrown away. Reads that wait for a thread fail too, if no thread became free for that long.
    pub fn read_deadline(self, read_deadline: Duration) -> Self {
        Self { read_deadline: Some(read_deadline), ..self }
    }

    /// Keeps this many faults for each CPU until [`Vm::take_trace`](crate::Vm::take_trace), 64 bytes each; none by default. Further
    /// faults are counted in `TraceFacts::unrecorded`.
    pub fn record_faults(self, record_faults: usize) -> Self {
        Self { record_faults, ..self }
    }

    /// Makes [`Mode::Handler`] work without special permissions. The price: a system call on memory that is not mapped yet gets
    /// EFAULT.
    pub fn user_mode_only(self) -> Self {
        Self { user_mode_only: true, ..self }
    }

    /// How long bytes that were written to a map of [`Vm::file_writable`](crate::Vm::file_writable) stay only in memory if
    /// nobody flushes them; 5 s by default. What could not be written is tried again after as long, and after a second at least.
    pub fn write_back_after(self, write_back_after: Duration) -> Self {
        Self { write_back_after, ..self }
    }

    /// How long after a snapshot was taken or dropped a thread frees frozen pages that nobody sees any more, at the earliest; 1 s by
    /// default, never with [`Duration::MAX`]. [`Vm::free_shadowed`](crate::Vm::free_shadowed) frees them at once.
    pub fn free_shadowed_after(self, free_shadowed_after: Duration) -> Self {
        Self { free_shadowed_after, ..self }
    }

    /// Whether a touch that ends in SIGBUS is explained on stderr; true by default.
    pub fn explain(self, explain: bool) -> Self {
        Self { explain, ..self }
    }

    /// Whether `prepage vm top` of the same user shows what the VM holds and does, see [`viewed`](crate::viewed); true by default.
    pub fn shown(self, shown: bool) -> Self {
        Self { shown, ..self }
    }
}

/// How a map's faults are served.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::io::{Read, Write};
///
/// use prepage_vm::{MapError, MapOptions, Mode, Vm, VmOptions};
///
/// let vm = Vm::new(VmOptions::default())?;
/// let object = vm.file(std::env::current_exe()?)?;
/// let map = match vm.map(&object, &MapOptions::shared().mode(Mode::Handler)) {
///     // Served by a thread, a fault may come from a system call, which takes a permission.
///     Err(MapError::Userfaultfd(why)) => return Ok(eprintln!("{why}")),
///     made => made?,
/// };
/// // The kernel itself touches the map here, and waits for the page.
/// let (mut from, mut to) = std::io::pipe()?;
/// to.write_all(&map.as_slice()[..4])?;
/// let mut bytes = [0; 4];
/// from.read_exact(&mut bytes)?;
/// assert_eq!(&bytes, b"\x7fELF");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// By the thread that faults, in a SIGBUS handler: the fastest mode. A system call on memory of the map that
    /// is not mapped yet gets EFAULT, so call [`Map::populate`](crate::Map::populate) first. Threads must not block SIGBUS.
    Inline,
    /// By threads of the VM, one on each CPU with faults. System calls wait like any access. Not every user may do this: the error of the first such
    /// map says what is missing.
    Handler,
}

/// How an object is mapped: start with [`MapOptions::private`], [`MapOptions::shared`] or [`MapOptions::writable`].
#[derive(Clone, Debug)]
pub struct MapOptions {
    pub(crate) private: bool,
    pub(crate) mode: Mode,
    pub(crate) policy: Option<Policy>,
    pub(crate) neighbours: Option<Exactly>,
    pub(crate) every_fault: bool,
    pub(crate) executable: bool,
    pub(crate) writable: bool,
    pub(crate) window: Option<PageRange>,
    pub(crate) zero_cluster: u64,
    pub(crate) huge: bool,
    pub(crate) inherit: bool,
}

/// Resident pages that a fault maps, all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exactly {
    /// As the program says.
    These(Neighbours),
    /// As the map's policy says.
    OfPolicy,
}

/// Advice about the use of a map, as for madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// No special use: back to the policy that the map was made with.
    Normal,
    /// Pages are touched in order: read far ahead, in the background.
    Sequential,
    /// Pages are touched in no order: read the page alone.
    Random,
    /// These pages of the object will be touched: read and map them in the background.
    WillNeed(PageRange),
    /// These pages will not be touched soon: unmap them. Their frames stay. Pinned pages stay in the map, and those of a local file that share an
    /// aligned block of 2 MiB with one; in other blocks, unmapping one page may unmap the whole block. Only for shared maps: a private map would
    /// lose its copies, see [`Map::discard`](crate::Map::discard).
    DontNeed(PageRange),
}

impl MapOptions {
    /// A writable map of its own: changes stay in the map and do not reach the object.
    pub fn private() -> Self {
        Self {
            private: true,
            mode: Mode::Inline,
            policy: None,
            neighbours: None,
            every_fault: false,
            executable: false,
            writable: false,
            window: None,
            zero_cluster: 64,
            huge: false,
            inherit: false,
        }
    }

    /// A read-only map: all shared maps of an object show the same frames.
    pub fn shared() -> Self {
        Self { private: false, ..Self::private() }
    }

    /// A shared map that writes to its object. The object has to be of [`Vm::file_writable`](crate::Vm::file_writable) or
    /// [`Vm::memory`](crate::Vm::memory). All maps show the same frames.
    pub fn writable() -> Self {
        Self { writable: true, ..Self::shared() }
    }

    /// How faults are served; [`Mode::Inline`] by default.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Which pages a fault reads; by default the VM's policy, and that of [`Self::executable`] for code.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Which resident pages a fault maps, however many system calls that takes. By default a fault maps those of the aligned
    /// block of 16 pages (256 with [`Advice::Sequential`]) that three system calls can map.
    pub fn neighbours(self, neighbours: Neighbours) -> Self {
        Self { neighbours: Some(Exactly::These(neighbours)), ..self }
    }

    /// A fault maps the resident pages that its policy names, as in the simulator.
    pub fn neighbours_of_policy(self) -> Self {
        Self { neighbours: Some(Exactly::OfPolicy), ..self }
    }

    /// The VM sees every fault. Without this, and if the VM does not record faults, maps of an object that is wholly in
    /// memory are left to the kernel, soon after its last page came, unless the pool is three quarters full or they were taken back a short time ago. The kernel maps 16 pages a fault faster than
    /// any handler, and notifies nobody.
    pub fn every_fault(self) -> Self {
        Self { every_fault: true, ..self }
    }

    /// The pages may be executed. Their policy is `aligned:64` by default, because code is touched in larger runs than data.
    pub fn executable(self) -> Self {
        Self { executable: true, ..self }
    }

    /// Which pages of the object to show; all by default.
    pub fn window(self, window: PageRange) -> Self {
        Self { window: Some(window), ..self }
    }

    /// How many pages of zeros a fault makes: an aligned cluster of 64 by default.
    pub fn zero_cluster(self, pages: u64) -> Self {
        Self { zero_cluster: pages, ..self }
    }

    /// Leaves zeros to the kernel's huge pages. A fault gives the 16 MiB around it to the kernel (in maps beyond 64 GiB a 4096th of the
    /// map). There the kernel makes 2 MiB at each first touch, or 4 KiB if it finds no huge page. The VM neither sees nor counts
    /// faults in memory that was given to the kernel. Maps of anything else than zeros, such as snapshots that hold pages, get no huge pages.
    pub fn huge_pages(self) -> Self {
        Self { huge: true, ..self }
    }

    /// Children of fork(2) keep the map as it was at the fork. After that each process changes its own copy. Unchanged pages are shared with
    /// this process, which continues to serve the children's faults. Without this option a child that touches the map gets SIGSEGV.
    ///
    /// Such a map has to be private and of [`Mode::Handler`], and needs CAP_SYS_PTRACE. No snapshots can be taken of it. A child can read and
    /// write the bytes, but cannot use the methods of the map or its VM. Nobody else can serve the children's faults. So when this
    /// process ends, its children and theirs are killed, unless they have executed another program by then.
    pub fn inherit(self, inherit: bool) -> Self {
        Self { inherit, ..self }
    }
}
