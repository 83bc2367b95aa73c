//! userfaultfd(2): missing pages of this process's memory, served by the process itself.
//!
//! Over the kernel's calls stands one rule: a call that maps a range says how far it came ([`Progress`]), since a range
//! in which some page is mapped already ends early and that is no error of the caller's. What the descriptor tells is data
//! ([`Event`]).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use prepage_core::PAGE_SIZE;

use crate::given::{check, descriptor, number};
use crate::region::Span;
use crate::userfaultfd_abi::{
    API, Api, EVENT_FORK, EVENT_PAGEFAULT, FEATURE_EVENT_FORK, FEATURE_MINOR_SHMEM, FEATURE_POISON,
    FEATURE_SIGBUS, FEATURE_THREAD_ID, FLAG_PROTECTED, FLAG_WRITE, Fill, IOC_API, IOC_CONTINUE, IOC_COPY,
    IOC_NEW, IOC_POISON, IOC_REGISTER, IOC_UNREGISTER, IOC_WAKE, IOC_WRITE_PROTECT, IOC_ZEROPAGE, MODE_MINOR,
    MODE_MISSING, MODE_WRITE_PROTECT, PROTECT_ON, PROTECT_WAKES_NOBODY, PROTECTED, Range, RawMessage,
    Register, Transfer, USER_MODE_ONLY, WriteProtect,
};

/// How the faults of a descriptor are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The thread that faults gets SIGBUS, resolves the fault and goes on. System calls get EFAULT.
    Signal,
    /// The thread waits; a message can be read from the descriptor. System calls wait too.
    Message,
    /// As `Message`, but system calls get EFAULT: what every user may have.
    MessageUserOnly,
}

/// What the kernel tells.
#[derive(Debug)]
pub enum Event {
    /// A thread touched a page that is not there, and waits.
    Fault(Message),
    /// The process forked; this serves the child. Needs [`Userfaultfd::open_with_forks`].
    Forked(Userfaultfd),
}

/// A fault.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The address, rounded down to its page.
    pub address: u64,
    /// The thread that waits.
    pub tid: u32,
    /// Whether it was a write.
    pub write: bool,
    /// Whether a page was there that is write-protected.
    pub protected: bool,
}

/// How far a call that maps pages came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All pages were mapped.
    Done,
    /// This many bytes, more than 0, and then something in the way: the same call from there tells what.
    Part(u64),
    /// The first page is mapped already. Threads that wait for it were not woken.
    Mapped,
    /// The object does not hold the first page, or there was no memory for it.
    Hole,
    /// The range does not lie in one mapping that is served: the program split it by an advice of its own, or it is gone.
    Split,
    /// The address space is being changed: events wait to be read.
    Changing,
    /// The process has ended.
    Gone,
}

/// Which touches of a range are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// Those of pages that do not exist; pages that the mapped memfd holds are mapped by the kernel, several at once.
    Missing,
    /// Those too of pages that the memfd holds and the range does not show yet.
    MissingAndUnmapped,
}

/// Whether a write to a page is told before it happens. Of pages that are written to as they please nothing is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// They happen.
    Free,
    /// The page is write-protected: a write to it is a fault, until [`Userfaultfd::unprotect`].
    Told,
}

/// A userfaultfd with its features agreed on.
#[derive(Debug)]
pub struct Userfaultfd {
    fd: OwnedFd,
}

/// Why no userfaultfd can be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel is built without it, or a sandbox hides it.
    #[error("this kernel has no userfaultfd (CONFIG_USERFAULTFD)")]
    Missing,
    /// Not allowed.
    #[error(
        "userfaultfd is not permitted; one of these helps: run with CAP_SYS_PTRACE, set the sysctl \
         vm.unprivileged_userfaultfd to 1, or give this user read and write access to /dev/userfaultfd (in a container, \
         its seccomp profile may forbid the call too)"
    )]
    NotPermitted,
    /// The kernel is older than what is asked for.
    #[error("this kernel's userfaultfd lacks {missing}; Linux {needs} has it")]
    TooOld {
        /// What is lacking.
        missing: &'static str,
        /// The first release with it.
        needs: &'static str,
    },
    /// Anything else, such as no free file descriptor.
    #[error("cannot open a userfaultfd")]
    Other(#[source] io::Error),
}

impl Userfaultfd {
    /// Opens one whose faults are delivered as `delivery` says. Needs Linux 6.6.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] names what would permit it; [`Delivery::Signal`] and
    /// [`Delivery::MessageUserOnly`] are permitted to every user outside a sandbox, and in one to those who may open /dev/userfaultfd.
    pub fn open(delivery: Delivery) -> Result<Self, OpenError> {
        Self::open_for(delivery, 0)
    }

    /// As [`Self::open`]; also tells of forks ([`Event::Forked`]): children keep the memory that it serves, and whoever reads the
    /// event serves it for them. Who forks waits until that is read, with the locks of the allocator held.
    ///
    /// # Errors
    /// As `open`. Forks are told to those with CAP_SYS_PTRACE alone.
    pub fn open_with_forks(delivery: Delivery) -> Result<Self, OpenError> {
        Self::open_for(delivery, FEATURE_EVENT_FORK)
    }

    fn open_for(delivery: Delivery, events: u64) -> Result<Self, OpenError> {
        let flags = if delivery == Delivery::Message { 0 } else { USER_MODE_ONLY };
        let uffd = match Self::descriptor(flags) {
            Err(OpenError::NotPermitted) => Self { fd: Self::from_device(flags)? },
            opened => Self { fd: opened? },
        };
        let mut features = FEATURE_MINOR_SHMEM | FEATURE_POISON | events;
        features |= if delivery == Delivery::Signal { FEATURE_SIGBUS } else { FEATURE_THREAD_ID };
        let mut api = Api { api: API, features, ioctls: 0 };
        // SAFETY: the struct has the kernel's layout and lives through the call.
        let agreed = check(unsafe { libc::ioctl(uffd.fd.as_raw_fd(), IOC_API, &mut api) });
        agreed.map(|()| uffd).map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => OpenError::NotPermitted,
            Some(libc::EINVAL) => {
                OpenError::TooOld { missing: "minor faults of memfds, or poison", needs: "6.6" }
            }
            _ => OpenError::Other(error),
        })
    }

    pub(crate) fn descriptor(flags: libc::c_int) -> Result<OwnedFd, OpenError> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | flags;
        // SAFETY: userfaultfd takes flags alone, and the descriptor is new.
        let opened = unsafe { descriptor(libc::syscall(libc::SYS_userfaultfd, flags)) };
        opened.map_err(|error| match error.raw_os_error() {
            Some(libc::EPERM) => OpenError::NotPermitted,
            Some(libc::ENOSYS) => OpenError::Missing,
            _ => OpenError::Other(error),
        })
    }

    /// /dev/userfaultfd, for users who may open it.
    fn from_device(flags: libc::c_int) -> Result<OwnedFd, OpenError> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open("/dev/userfaultfd")
            .map_err(|_| OpenError::NotPermitted)?;
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | flags;
        // SAFETY: the request takes flags alone and returns a new descriptor.
        let opened = unsafe { descriptor(libc::ioctl(device.as_raw_fd(), IOC_NEW, flags)) };
        opened.map_err(OpenError::Other)
    }

    /// Serves touches of `span` from here. Says nothing of what was served before: more can be added so, and less takes an
    /// [`Self::unregister`] first.
    ///
    /// # Errors
    /// EINVAL for memory that cannot be served.
    pub fn register(&self, span: &Span, served: Served) -> io::Result<()> {
        self.register_part(span, 0, span.len(), served, Writes::Free)
    }

    /// As [`Self::register`], for `[offset, offset + len)` of `span`. Where writes are to be told, pages can be protected from
    /// here on; until a page is, writes to it happen.
    ///
    /// # Errors
    /// As `register`; EINVAL where the kernel protects no pages of memfds (arm64 before Linux 6.10).
    pub fn register_part(
        &self,
        span: &Span,
        offset: u64,
        len: u64,
        served: Served,
        writes: Writes,
    ) -> io::Result<()> {
        let mut mode = match served {
            Served::Missing => MODE_MISSING,
            Served::MissingAndUnmapped => MODE_MISSING | MODE_MINOR,
        };
        if writes == Writes::Told {
            mode |= MODE_WRITE_PROTECT;
        }
        let range = Range { start: span.at(offset, len) as u64, len };
        let mut register = Register { range, mode, ioctls: 0 };
        // SAFETY: the struct has the kernel's layout and lives through the call, which changes no memory; the span stays
        // mapped meanwhile.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_REGISTER, &mut register) })
    }

    /// Serves touches of `span` no longer; those that wait are repeated.
    ///
    /// # Errors
    /// EINVAL for memory that was never registered.
    pub fn unregister(&self, span: &Span) -> io::Result<()> {
        self.unregister_part(span, 0, span.len())
    }

    /// As [`Self::unregister`], for `[offset, offset + len)` of `span`.
    ///
    /// # Errors
    /// As `unregister`; ENOMEM where that takes more mappings than there may be (vm.max_map_count): then it is served as before.
    pub fn unregister_part(&self, span: &Span, offset: u64, len: u64) -> io::Result<()> {
        let mut range = Range { start: span.at(offset, len) as u64, len };
        // SAFETY: as in `register`.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_UNREGISTER, &mut range) })
    }

    /// Maps pages of `[offset, offset + len)` of `span` that the mapped memfd holds.
    ///
    /// # Errors
    /// ENOMEM and what else keeps a page table from being made.
    pub fn map_resident(&self, span: &Span, offset: u64, len: u64, writes: Writes) -> io::Result<Progress> {
        self.fill(IOC_CONTINUE, span, offset, len, writes)
    }

    /// Maps the kernel's page of zeros, read-only until it is written to, at `[offset, offset + len)` of `span`.
    ///
    /// # Errors
    /// As [`Self::map_resident`].
    pub fn map_zero(&self, span: &Span, offset: u64, len: u64) -> io::Result<Progress> {
        self.fill(IOC_ZEROPAGE, span, offset, len, Writes::Free)
    }

    /// Lets threads that touch `[offset, offset + len)` of `span` get SIGBUS.
    ///
    /// # Errors
    /// As [`Self::map_resident`].
    pub fn poison(&self, span: &Span, offset: u64, len: u64) -> io::Result<Progress> {
        self.fill(IOC_POISON, span, offset, len, Writes::Free)
    }

    fn fill(
        &self,
        request: libc::Ioctl,
        span: &Span,
        offset: u64,
        len: u64,
        writes: Writes,
    ) -> io::Result<Progress> {
        let range = Range { start: span.at(offset, len) as u64, len };
        let mut fill = Fill { range, mode: protected(writes), result: 0 };
        // SAFETY: the struct has the kernel's layout and lives through the call, as the span does. The kernel fills
        // missing pages of ranges registered here only; memory that is in use is never missing.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, &mut fill) };
        progress(result, fill.result)
    }

    /// Fills missing pages of `span` from `offset` on with copies of `bytes`, a whole number of pages.
    ///
    /// # Errors
    /// As [`Self::map_resident`].
    pub fn copy(&self, span: &Span, offset: u64, bytes: &[u8], writes: Writes) -> io::Result<Progress> {
        let mut transfer = Transfer {
            destination: span.at(offset, bytes.len() as u64) as u64,
            source: bytes.as_ptr() as u64,
            len: bytes.len() as u64,
            mode: protected(writes),
            result: 0,
        };
        // SAFETY: as in `fill`; the kernel reads from `bytes` only.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_COPY, &mut transfer) };
        progress(result, transfer.result)
    }

    /// Protects the pages of `[offset, offset + len)` of `span`, which is registered for writes to be told. No write to what is
    /// mapped there happens after this has returned.
    ///
    /// # Errors
    /// ENOENT where part of the range is not registered so; EAGAIN while the address space is being changed, by one that tells of forks
    /// alone, until these are read.
    pub fn protect(&self, span: &Span, offset: u64, len: u64) -> io::Result<()> {
        self.write_protect(span, offset, len, PROTECT_ON)
    }

    /// Lets writes to `[offset, offset + len)` of `span` happen, and wakes threads that wait with one.
    ///
    /// # Errors
    /// As [`Self::protect`].
    pub fn unprotect(&self, span: &Span, offset: u64, len: u64) -> io::Result<()> {
        self.write_protect(span, offset, len, 0)
    }

    /// As [`Self::unprotect`], and wakes nobody.
    ///
    /// # Errors
    /// As [`Self::protect`].
    pub fn unprotect_silently(&self, span: &Span, offset: u64, len: u64) -> io::Result<()> {
        self.write_protect(span, offset, len, PROTECT_WAKES_NOBODY)
    }

    /// Whether the process is gone that has `span` mapped, no page of which was ever protected. Waits for nothing: while the process forks,
    /// which ends when the fork is read here, it is there.
    pub fn has_ended(&self, span: &Span) -> bool {
        let tried = self.write_protect(span, 0, PAGE_SIZE, 0);
        tried.is_err_and(|error| error.raw_os_error() == Some(libc::ESRCH))
    }

    fn write_protect(&self, span: &Span, offset: u64, len: u64, mode: u64) -> io::Result<()> {
        let range = Range { start: span.at(offset, len) as u64, len };
        let mut protect = WriteProtect { range, mode };
        // SAFETY: the struct has the kernel's layout and lives through the call, as the span does; no contents change.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_WRITE_PROTECT, &mut protect) })
    }

    /// Wakes threads that wait for a page of `[start, start + len)`; they touch it again.
    pub fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        let mut range = Range { start, len };
        // SAFETY: the struct has the kernel's layout and lives through the call, which changes no memory.
        check(unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_WAKE, &mut range) })
    }

    /// From here on [`Self::read`] sleeps until there is something to be told. Who sleeps there returns for a message that
    /// no other reader got, and cannot be told otherwise that it is time to end; polling tells nothing any more.
    ///
    /// # Errors
    /// None that is known.
    pub fn sleep_in_reads(&self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.fd)?;
        Ok(rustix::fs::fcntl_setfl(&self.fd, flags - rustix::fs::OFlags::NONBLOCK)?)
    }

    /// Reads what is to be told, as much as there is, up to 16 events, into `events`, which it empties first.
    ///
    /// # Errors
    /// Those of a descriptor that cannot be read. That nothing waits is none.
    pub fn read(&self, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        let mut raw = [RawMessage::default(); 16];
        // SAFETY: `raw` has room for the bytes asked for and any bytes are valid in it.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), raw.as_mut_ptr().cast(), size_of_val(&raw)) };
        let got = match number(got) {
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => 0,
            got => got?,
        };
        events.extend(raw[..got as usize / size_of::<RawMessage>()].iter().filter_map(RawMessage::event));
        Ok(())
    }

    /// As [`Self::read`], of one event, and never sleeps.
    ///
    /// # Errors
    /// WouldBlock where nothing is to be told; EOPNOTSUPP where the kernel's reads sleep always (Linux 6.6).
    pub fn read_one(&self, events: &mut Vec<Event>) -> io::Result<()> {
        events.clear();
        let mut raw = RawMessage::default();
        let to = libc::iovec { iov_base: (&raw mut raw).cast(), iov_len: size_of_val(&raw) };
        // SAFETY: `raw` has room for the bytes asked for and any bytes are valid in it; the vector is read during the call.
        number(unsafe { libc::preadv2(self.fd.as_raw_fd(), &to, 1, -1, libc::RWF_NOWAIT) })?;
        events.extend(raw.event());
        Ok(())
    }
}

impl RawMessage {
    fn event(&self) -> Option<Event> {
        let [first, second, third] = self.words;
        match self.event {
            EVENT_PAGEFAULT => Some(Event::Fault(Message {
                address: second & !(PAGE_SIZE - 1),
                tid: third as u32,
                write: first & FLAG_WRITE != 0,
                protected: first & FLAG_PROTECTED != 0,
            })),
            EVENT_FORK => {
                // SAFETY: the kernel opened this descriptor for who reads the event, and the event is read once.
                let fd = unsafe { OwnedFd::from_raw_fd(first as u32 as i32) };
                Some(Event::Forked(Userfaultfd { fd }))
            }
            _ => None,
        }
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The mode of a call that maps pages.
fn protected(writes: Writes) -> u64 {
    match writes {
        Writes::Free => 0,
        Writes::Told => PROTECTED,
    }
}

/// What `result` of a call and the bytes it reports mean.
fn progress(result: libc::c_int, bytes: i64) -> io::Result<Progress> {
    if result == 0 {
        return Ok(Progress::Done);
    }
    let error = io::Error::last_os_error();
    // The result field holds bytes done, or the negative error where none were.
    if bytes > 0 {
        return Ok(Progress::Part(bytes as u64));
    }
    match error.raw_os_error() {
        Some(libc::EEXIST) => Ok(Progress::Mapped),
        Some(libc::EAGAIN) => Ok(Progress::Changing),
        Some(libc::EFAULT) => Ok(Progress::Hole),
        Some(libc::ENOENT) => Ok(Progress::Split),
        Some(libc::ESRCH) => Ok(Progress::Gone),
        _ => Err(error),
    }
}
