//! One open perf event.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use perf_event_open_sys::{self as perf, bindings as abi, ioctls};

use super::{PerfError, Setup};
use crate::bpf::Program;
use crate::call_filter;
use crate::given::descriptor;

/// Whose event it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observed {
    /// This thread's, and that of all threads and processes that it starts from then on.
    Thread(u32),
    /// Everyone's (root, or `perf_event_paranoid` below 1).
    System,
}

/// An event on one CPU. Closed when dropped.
#[derive(Debug)]
pub struct PerfEvent {
    fd: OwnedFd,
    counts_lost: bool,
    /// Whether it has or had a [`super::Ring`].
    pub(super) has_ring: AtomicBool,
}

/// What an event counted, in the observed thread and all that inherited the event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// How often the event happened, whether or not its sample found room in the ring.
    pub times: u64,
    /// For how long it was enabled, while its CPU was online. Of a thread's event: while the thread ran, too.
    pub enabled_ns: u64,
    /// Records of this event that found no room; `None` before Linux 6.0.
    pub lost: Option<u64>,
}

impl PerfEvent {
    /// Opens the event for what happens to `observed` on `cpu`.
    ///
    /// # Errors
    /// See [`PerfError`]. EACCES and EPERM with `exclude_kernel` unset may only mean that it must be set.
    pub fn open(setup: &Setup, observed: Observed, cpu: u32) -> Result<Self, PerfError> {
        if is_deadly() {
            return Err(PerfError::Unavailable { filtered: true });
        }
        let error = match open(setup, observed, cpu, true) {
            // Before Linux 6.0 the request to count lost records is unknown.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                match open(setup, observed, cpu, false) {
                    Err(error) => error,
                    Ok(fd) => return Ok(Self { fd, counts_lost: false, has_ring: AtomicBool::new(false) }),
                }
            }
            Err(error) => error,
            Ok(fd) => return Ok(Self { fd, counts_lost: true, has_ring: AtomicBool::new(false) }),
        };
        Err(PerfError::from_open(error, observed, paranoid_level()))
    }

    /// The number by which samples name this event.
    pub fn id(&self) -> Result<u64, PerfError> {
        let mut id = 0;
        // SAFETY: PERF_EVENT_IOC_ID writes one u64, for which `id` is a valid place.
        let result = unsafe { ioctls::ID(self.fd.as_raw_fd(), &mut id) };
        if result < 0 { Err(last_error("asking for an event's id")) } else { Ok(id) }
    }

    /// Reports through the ring of `owner`, an event of the same CPU, from now on.
    pub fn report_through(&self, owner: &Self) -> Result<(), PerfError> {
        // SAFETY: PERF_EVENT_IOC_SET_OUTPUT takes a descriptor by value; both are open.
        let result = unsafe { ioctls::SET_OUTPUT(self.fd.as_raw_fd(), owner.fd.as_raw_fd()) };
        if result < 0 { Err(last_error("sharing a ring")) } else { Ok(()) }
    }

    /// Stops it, or lets it go on.
    pub fn set_enabled(&self, enabled: bool) -> Result<(), PerfError> {
        // SAFETY: both take a number by value, 0 for this event alone; the descriptor is open.
        let result = unsafe {
            match enabled {
                true => ioctls::ENABLE(self.fd.as_raw_fd(), 0),
                false => ioctls::DISABLE(self.fd.as_raw_fd(), 0),
            }
        };
        if result < 0 { Err(last_error("stopping an event")) } else { Ok(()) }
    }

    /// Has `program` run each time that the event's tracepoint is reached, by anybody and on any CPU, until the event is closed.
    pub fn run(&self, program: &Program) -> Result<(), PerfError> {
        // SAFETY: PERF_EVENT_IOC_SET_BPF takes a descriptor by value; both are open.
        let result = unsafe { ioctls::SET_BPF(self.fd.as_raw_fd(), program.as_fd().as_raw_fd() as u32) };
        if result < 0 { Err(last_error("running a program at a tracepoint")) } else { Ok(()) }
    }

    /// The counts until now.
    pub fn counted(&self) -> Result<Counted, PerfError> {
        let mut bytes = [0; 24];
        let wanted = if self.counts_lost { 24 } else { 16 };
        let got = rustix::io::read(&self.fd, &mut bytes[..wanted])
            .map_err(|error| PerfError::Other { action: "reading a count", source: error.into() })?;
        if got < wanted {
            // End of file: the kernel could not put the event on its CPU. Software events always fit.
            return Err(PerfError::Other {
                action: "reading a count",
                source: io::ErrorKind::UnexpectedEof.into(),
            });
        }
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Ok(Counted { times: word(0), enabled_ns: word(8), lost: self.counts_lost.then(|| word(16)) })
    }
}

impl AsFd for PerfEvent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Looks up what is looked up once: to be called before this process is [copied](crate::copied).
pub fn get_ready() {
    is_deadly();
}

/// Whether a seccomp filter kills who asks for an event: where this process is under filters, a child asks first.
fn is_deadly() -> bool {
    static IS_DEADLY: OnceLock<bool> = OnceLock::new();
    *IS_DEADLY.get_or_init(find_whether_deadly)
}

fn find_whether_deadly() -> bool {
    call_filter::is_deadly(|| {
        // SAFETY: there is no event without attributes: the kernel answers EFAULT.
        unsafe { perf::perf_event_open(std::ptr::null_mut(), 0, -1, -1, 0) };
    })
}

/// `kernel.perf_event_paranoid`; `None` where the kernel has no perf events.
fn paranoid_level() -> Option<i32> {
    fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").ok()?.trim().parse().ok()
}

/// The numbers of the CPUs that are online.
pub fn online_cpus() -> io::Result<Vec<u32>> {
    let list = fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpu_list(&list)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("not a list of CPUs: {list:?}")))
}

fn parse_cpu_list(list: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cpus)
}

fn open(setup: &Setup, observed: Observed, cpu: u32, count_lost: bool) -> io::Result<OwnedFd> {
    let (pid, inherit) = match observed {
        // Beyond these are numbers that the kernel takes for everyone or a group.
        Observed::Thread(tid) => {
            let tid = libc::pid_t::try_from(tid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
            (tid, true)
        }
        Observed::System => (-1, false),
    };
    let mut attr = setup.attr(count_lost, inherit);
    let flags = libc::c_ulong::from(abi::PERF_FLAG_FD_CLOEXEC);
    // SAFETY: `attr` is initialised, says its own size and outlives the call. The event only reports: it asks for
    // no signal, no breakpoint and no write to this process. The descriptor is new.
    unsafe { descriptor(perf::perf_event_open(&mut attr, pid, cpu as libc::c_int, -1, flags)) }
}

fn last_error(action: &'static str) -> PerfError {
    PerfError::Other { action, source: io::Error::last_os_error() }
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};

    use super::*;
    use crate::call_filter::kill_for;
    use crate::forked::Forked;

    #[test]
    fn cpu_lists_have_gaps() {
        assert_eq!(parse_cpu_list("0-2,5,8-9\n"), Some(vec![0, 1, 2, 5, 8, 9]));
        assert_eq!(parse_cpu_list("0\n"), Some(vec![0]));
        assert_eq!(parse_cpu_list(""), None);
        assert_eq!(parse_cpu_list("3-x"), None);
    }

    #[test]
    fn where_a_filter_kills_who_asks_nobody_does() {
        let child = Forked::new(|| match kill_for(libc::SYS_perf_event_open) {
            Err(error) => error.raw_os_error().unwrap_or(2),
            Ok(()) => i32::from(!find_whether_deadly()),
        });
        let code = child.unwrap().wait().unwrap().exit_status().expect("it is not killed");
        let filtered = if code == libc::EACCES { Err(io::Error::from_raw_os_error(code)) } else { Ok(code) };
        let denied = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let need = Need::Path("/proc/sys/kernel/seccomp".into());
        assert!(unless_refused(filtered, need, denied).is_none_or(|code| code == 0));
    }

    /// The kernel takes -1 for everyone's.
    #[test]
    fn a_number_that_no_thread_can_have_is_nobodys() {
        for tid in [u32::MAX, 1 << 31] {
            let opened = PerfEvent::open(&Setup::new(crate::perf::Source::Dummy), Observed::Thread(tid), 0);
            assert!(matches!(opened, Err(PerfError::NoProcess { pid }) if pid == tid), "{opened:?}");
        }
    }
}
