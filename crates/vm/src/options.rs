//! How a VM and its maps are to be, and what a program may say of their use.

use std::time::Duration;

use prepage_core::PageRange;
use prepage_core::policy::{Neighbours, Policy};

use crate::pool::Pool;

/// How a [`Vm`](crate::Vm) is to be.
#[derive(Clone, Debug)]
pub struct VmOptions {
    pub(crate) frame_limit_bytes: u64,
    pub(crate) pool: Option<Pool>,
    pub(crate) policy: Policy,
    pub(crate) text_policy: Policy,
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
            policy: "aligned:16".parse().expect("a policy"),
            text_policy: "aligned:64".parse().expect("a policy"),
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
    /// The most memory that frames may take; without limit unless given. Beyond it pages come in the place of others that
    /// are idle: a [`Pool`] of the VM's own. Private copies and zeros are the maps' own and no frames.
    pub fn frame_limit_bytes(self, frame_limit_bytes: u64) -> Self {
        Self { frame_limit_bytes, pool: None, ..self }
    }

    /// Takes frames from `pool`, which other VMs may share.
    pub fn pool(self, pool: &Pool) -> Self {
        Self { pool: Some(pool.clone()), ..self }
    }

    /// The policy of maps that name none; `aligned:16` unless given.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy, ..self }
    }

    /// The policy of maps of code ([`MapOptions::executable`]) that name none; `aligned:64` unless given: code is touched in
    /// larger runs than data.
    pub fn text_policy(self, text_policy: Policy) -> Self {
        Self { text_policy, ..self }
    }

    /// How long a fault on a page of a local file stays awake while the page is read; 200 µs unless given, zero to sleep
    /// at once. A CPU that falls asleep takes long to wake, in a virtual machine above all. The time is offered to others
    /// that want the CPU; where a device is slower than this, few faults try.
    pub fn read_spin(self, read_spin: Duration) -> Self {
        Self { read_spin, ..self }
    }

    /// The most threads that read ahead and for [`Map::populate`](crate::Map::populate); 64 unless given, at least 1. Touches
    /// that wait for a custom source have threads of their own.
    pub fn fill_threads(self, fill_threads: u32) -> Self {
        Self { fill_threads: fill_threads.max(1), ..self }
    }

    /// How long a source may take for a read before whoever waits for it gets an error; for ever unless given. What comes
    /// later is thrown away. Reads that wait for a thread fail too, where no thread became free for so long.
    pub fn read_deadline(self, read_deadline: Duration) -> Self {
        Self { read_deadline: Some(read_deadline), ..self }
    }

    /// Keeps so many faults for each CPU until [`Vm::take_trace`](crate::Vm::take_trace); none unless given. 64 bytes each.
    pub fn record_faults(self, record_faults: usize) -> Self {
        Self { record_faults, ..self }
    }

    /// Lets [`Mode::Handler`] do with what every user may have: system calls that are handed memory that is not mapped
    /// yet get EFAULT.
    pub fn user_mode_only(self) -> Self {
        Self { user_mode_only: true, ..self }
    }

    /// How long what was written to a map of [`Vm::file_writable`](crate::Vm::file_writable) stays in memory alone, at most, where
    /// nobody flushes it; 5 s unless given.
    pub fn write_back_after(self, write_back_after: Duration) -> Self {
        Self { write_back_after, ..self }
    }

    /// How soon after a snapshot was taken or went the frozen pages are freed that nobody sees any more, at the earliest: 1 s unless
    /// given, never by themselves with [`Duration::MAX`]. [`Vm::free_shadowed`](crate::Vm::free_shadowed) does it at once.
    pub fn free_shadowed_after(self, free_shadowed_after: Duration) -> Self {
        Self { free_shadowed_after, ..self }
    }

    /// Whether a touch that ends in SIGBUS is explained on stderr; it is unless told otherwise.
    pub fn explain(self, explain: bool) -> Self {
        Self { explain, ..self }
    }

    /// Whether `prepage vm top` of the same user shows what the VM holds and does, see [`viewed`](crate::viewed): by default it does.
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
    /// By the thread that faults, in a SIGBUS handler: the fastest. A system call that is handed memory of the map which
    /// is not mapped yet gets EFAULT: [`Map::populate`](crate::Map::populate) first. Threads must not block SIGBUS.
    Inline,
    /// By threads of the VM, one on each CPU. System calls wait like any access. Not permitted to every user: the error of the first such
    /// map says what would permit it.
    Handler,
}

/// How an object is to be mapped.
#[derive(Clone, Debug)]
pub struct MapOptions {
    pub(crate) private: bool,
    pub(crate) mode: Mode,
    pub(crate) policy: Option<Policy>,
    pub(crate) neighbours: Option<Neighbours>,
    pub(crate) neighbours_of_policy: bool,
    pub(crate) every_fault: bool,
    pub(crate) executable: bool,
    pub(crate) writable: bool,
    pub(crate) window: Option<PageRange>,
    pub(crate) zero_cluster: u64,
    pub(crate) huge: bool,
    pub(crate) inherit: bool,
}

/// What a program says of its use of a map, as to madvise(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The policy that the map was made with.
    Normal,
    /// Pages are touched in order: read far ahead, in the background.
    Sequential,
    /// Pages are touched in no order: read the page alone.
    Random,
    /// These pages of the object will be touched: read and map them in the background.
    WillNeed(PageRange),
    /// These pages will not be touched soon: unmap them. Their frames stay. For shared maps; a private map loses its
    /// copies by it, see [`Map::discard`](crate::Map::discard).
    DontNeed(PageRange),
}

impl MapOptions {
    /// Writable; what is written stays in the map.
    pub fn private() -> Self {
        Self {
            private: true,
            mode: Mode::Inline,
            policy: None,
            neighbours: None,
            neighbours_of_policy: false,
            every_fault: false,
            executable: false,
            writable: false,
            window: None,
            zero_cluster: 64,
            huge: false,
            inherit: false,
        }
    }

    /// Read-only: all maps show the same frames.
    pub fn shared() -> Self {
        Self { private: false, ..Self::private() }
    }

    /// Writable: all maps show the same frames, and what is written goes to the object, which has to be one that takes it
    /// ([`Vm::file_writable`](crate::Vm::file_writable)).
    pub fn writable() -> Self {
        Self { writable: true, ..Self::shared() }
    }

    /// How faults are served; [`Mode::Inline`] unless given.
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Which pages a fault reads; the VM's policy unless given.
    pub fn policy(self, policy: Policy) -> Self {
        Self { policy: Some(policy), ..self }
    }

    /// Which resident pages a fault maps, whatever calls of the kernel that takes. Unless given, it maps those of the aligned
    /// block of 16 that three calls reach, of 256 where pages are touched in order ([`Advice::Sequential`]).
    pub fn neighbours(self, neighbours: Neighbours) -> Self {
        Self { neighbours: Some(neighbours), ..self }
    }

    /// A fault maps the resident pages that its policy says, as the simulator counts them.
    pub fn neighbours_of_policy(self) -> Self {
        Self { neighbours_of_policy: true, neighbours: None, ..self }
    }

    /// The VM sees every fault. Unless this is asked for, and unless the VM records faults, maps of an object that is wholly in
    /// memory are left to the kernel, which maps 16 pages a fault faster than any handler and tells nobody.
    pub fn every_fault(self) -> Self {
        Self { every_fault: true, ..self }
    }

    /// The pages may be executed. Their policy is [`VmOptions::text_policy`] unless another is given.
    pub fn executable(self) -> Self {
        Self { executable: true, ..self }
    }

    /// Which pages of the object to show; all unless given.
    pub fn window(self, window: PageRange) -> Self {
        Self { window: Some(window), ..self }
    }

    /// How many pages a fault on zeros makes, 64 unless given: those of an aligned cluster.
    pub fn zero_cluster(self, pages: u64) -> Self {
        Self { zero_cluster: pages, ..self }
    }

    /// Leaves zeros to the kernel's huge pages: a fault gives it the 16 MiB around (in maps beyond 64 GiB one in 4096 parts),
    /// of which it makes 2 MiB at the first touch of each, or 4 KiB where it finds no huge page. Of faults in what was
    /// given nothing is seen or counted.
    pub fn huge_pages(self) -> Self {
        Self { huge: true, ..self }
    }
    /// Children of fork(2) keep the map: as it was at the fork, and then each changes its own; what nobody has changed they share with
    /// this process, which goes on serving their faults. Without this a child that touches the map gets SIGSEGV.
    ///
    /// Such a map is private and of [`Mode::Handler`], and takes CAP_SYS_PTRACE. No snapshots are taken of it. A child can read and write its
    /// bytes, but has no use of its methods or of its VM. Since nobody else can serve them, children, and theirs, are killed when
    /// this process ends, unless they executed another program by then.
    pub fn inherit(self, inherit: bool) -> Self {
        Self { inherit, ..self }
    }
}
