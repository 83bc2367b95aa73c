//! userfaultfd(2): missing pages of this process's memory, served by the process itself.
//!
//! Over the kernel's calls stands one rule: a call that maps a range says how far it came ([`Progress`]), since a range
//! in which some page is mapped already ends early and that is no error of the caller's.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use prepage_core::PAGE_SIZE;

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

/// What the kernel tells of a fault.
#[derive(Default, Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// The address, rounded down to its page.
    pub address: u64,
    /// The thread that waits.
    pub tid: u32,
    /// Whether it was a write.
    pub write: bool,
}

/// How far a call that maps pages came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// All pages were mapped.
    Done,
    /// This many bytes, and then a page that is mapped already. Threads that wait for that page were not woken.
    Mapped(u64),
    /// This many bytes, and then a page that the object does not hold.
    Hole(u64),
    /// This many bytes; the address space was being changed. To be tried again from there.
    Again(u64),
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

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct Register {
    range: Range,
    mode: u64,
    ioctls: u64,
}

/// uffdio_copy.
#[repr(C)]
struct Transfer {
    destination: u64,
    source: u64,
    len: u64,
    mode: u64,
    result: i64,
}

/// uffdio_zeropage, uffdio_continue and uffdio_poison.
#[repr(C)]
struct Fill {
    range: Range,
    mode: u64,
    result: i64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawMessage {
    event: u8,
    reserved: [u8; 7],
    flags: u64,
    address: u64,
    tid: u32,
    rest: u32,
}

// include/uapi/linux/userfaultfd.h
const _: () = assert!(size_of::<Api>() == 24 && size_of::<Range>() == 16 && size_of::<Register>() == 32);
const _: () =
    assert!(size_of::<Transfer>() == 40 && size_of::<Fill>() == 32 && size_of::<RawMessage>() == 32);

const API: u64 = 0xaa;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_THREAD_ID: u64 = 1 << 8;
const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
const FEATURE_POISON: u64 = 1 << 14;
const MODE_MISSING: u64 = 1 << 0;
const MODE_MINOR: u64 = 1 << 2;
const EVENT_PAGEFAULT: u8 = 0x12;
const FLAG_WRITE: u64 = 1 << 0;
const USER_MODE_ONLY: libc::c_int = 1;

const fn request(direction: u64, number: u64, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u64) << 16 | API << 8 | number) as libc::Ioctl
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;
const IOC_NEW: libc::Ioctl = request(0, 0, 0);
const IOC_API: libc::Ioctl = request(READ_WRITE, 0x3f, size_of::<Api>());
const IOC_REGISTER: libc::Ioctl = request(READ_WRITE, 0x00, size_of::<Register>());
const IOC_WAKE: libc::Ioctl = request(READ, 0x02, size_of::<Range>());
const IOC_COPY: libc::Ioctl = request(READ_WRITE, 0x03, size_of::<Transfer>());
const IOC_ZEROPAGE: libc::Ioctl = request(READ_WRITE, 0x04, size_of::<Fill>());
const IOC_CONTINUE: libc::Ioctl = request(READ_WRITE, 0x07, size_of::<Fill>());
const IOC_POISON: libc::Ioctl = request(READ_WRITE, 0x08, size_of::<Fill>());
// The number that linux/userfaultfd.h gives for UFFDIO_COPY.
const _: () = assert!(IOC_COPY == 0xc028_aa03);

impl Userfaultfd {
    /// Opens one whose faults are delivered as `delivery` says. Needs Linux 6.6.
    ///
    /// # Errors
    /// [`OpenError::NotPermitted`] names what would permit it; [`Delivery::Signal`] and
    /// [`Delivery::MessageUserOnly`] are permitted to every user outside a sandbox.
    pub fn open(delivery: Delivery) -> Result<Self, OpenError> {
        let fd = match delivery {
            Delivery::Message => Self::descriptor(0).or_else(|error| match error {
                OpenError::NotPermitted => Self::from_device(),
                other => Err(other),
            })?,
            Delivery::Signal | Delivery::MessageUserOnly => Self::descriptor(USER_MODE_ONLY)?,
        };
        let uffd = Self { fd };
        let mut features = FEATURE_MINOR_SHMEM | FEATURE_POISON;
        features |= if delivery == Delivery::Signal { FEATURE_SIGBUS } else { FEATURE_THREAD_ID };
        let mut api = Api { api: API, features, ioctls: 0 };
        // SAFETY: the struct has the kernel's layout and lives through the call.
        let result = unsafe { libc::ioctl(uffd.fd.as_raw_fd(), IOC_API, &mut api) };
        if result == -1 {
            return Err(match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::EINVAL) => {
                    OpenError::TooOld { missing: "minor faults of memfds, or poison", needs: "6.6" }
                }
                error => OpenError::Other(error),
            });
        }
        Ok(uffd)
    }

    fn descriptor(flags: libc::c_int) -> Result<OwnedFd, OpenError> {
        // SAFETY: userfaultfd takes flags alone.
        let fd = unsafe {
            libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) as i32
        };
        if fd >= 0 {
            // SAFETY: the call just made this descriptor and nobody else owns it.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        Err(match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::EPERM) => OpenError::NotPermitted,
            error if error.raw_os_error() == Some(libc::ENOSYS) => OpenError::Missing,
            error => OpenError::Other(error),
        })
    }

    /// /dev/userfaultfd, for users who may open it.
    fn from_device() -> Result<OwnedFd, OpenError> {
        let device = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_CLOEXEC)
            .open("/dev/userfaultfd")
            .map_err(|_| OpenError::NotPermitted)?;
        // SAFETY: the request takes flags alone and returns a new descriptor.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), IOC_NEW, libc::O_CLOEXEC | libc::O_NONBLOCK) };
        if fd < 0 {
            return Err(OpenError::Other(io::Error::last_os_error()));
        }
        // SAFETY: the call just made this descriptor and nobody else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    /// Serves missing pages of `[start, start + len)` from here, and with `minor` those too that the mapped memfd holds
    /// and this mapping does not show yet.
    ///
    /// # Errors
    /// EINVAL for memory that cannot be served, such as a mapping of a file on a disk.
    pub fn register(&self, start: u64, len: u64, minor: bool) -> io::Result<()> {
        let mode = if minor { MODE_MISSING | MODE_MINOR } else { MODE_MISSING };
        let mut register = Register { range: Range { start, len }, mode, ioctls: 0 };
        // SAFETY: the struct has the kernel's layout and lives through the call. Registering alone changes no memory.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_REGISTER, &mut register) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Maps pages of `[start, start + len)` that the mapped memfd holds.
    pub fn map_resident(&self, start: u64, len: u64) -> io::Result<Progress> {
        self.fill(IOC_CONTINUE, start, len)
    }

    /// Maps the kernel's page of zeros, read-only until it is written to, at `[start, start + len)`.
    pub fn map_zero(&self, start: u64, len: u64) -> io::Result<Progress> {
        self.fill(IOC_ZEROPAGE, start, len)
    }

    /// Lets threads that touch `[start, start + len)` get SIGBUS.
    pub fn poison(&self, start: u64, len: u64) -> io::Result<Progress> {
        self.fill(IOC_POISON, start, len)
    }

    fn fill(&self, request: libc::Ioctl, start: u64, len: u64) -> io::Result<Progress> {
        let mut fill = Fill { range: Range { start, len }, mode: 0, result: 0 };
        // SAFETY: the struct has the kernel's layout and lives through the call. The kernel fills missing pages of
        // ranges registered here only; memory that is in use is never missing.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, &mut fill) };
        progress(result, fill.result)
    }

    /// Fills missing pages at `start` with copies of `bytes`, a whole number of pages.
    pub fn copy(&self, start: u64, bytes: &[u8]) -> io::Result<Progress> {
        let mut transfer = Transfer {
            destination: start,
            source: bytes.as_ptr() as u64,
            len: bytes.len() as u64,
            mode: 0,
            result: 0,
        };
        // SAFETY: as in `fill`; the kernel reads from `bytes` only.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_COPY, &mut transfer) };
        progress(result, transfer.result)
    }

    /// Wakes threads that wait for a page of `[start, start + len)`; they touch it again.
    pub fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        let mut range = Range { start, len };
        // SAFETY: the struct has the kernel's layout and lives through the call, which changes no memory.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), IOC_WAKE, &mut range) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Reads faults that wait, as many as there are and `messages` has room for; 0 where there are none.
    pub fn read(&self, messages: &mut [Message; 16]) -> io::Result<usize> {
        let mut raw = [RawMessage::default(); 16];
        // SAFETY: `raw` has room for the bytes asked for and any bytes are valid in it.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), raw.as_mut_ptr().cast(), size_of_val(&raw)) };
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                _ => Err(error),
            };
        }
        let faults =
            raw[..got as usize / size_of::<RawMessage>()].iter().filter(|raw| raw.event == EVENT_PAGEFAULT);
        let mut count = 0;
        for (message, raw) in messages.iter_mut().zip(faults) {
            let address = raw.address & !(PAGE_SIZE - 1);
            *message = Message { address, tid: raw.tid, write: raw.flags & FLAG_WRITE != 0 };
            count += 1;
        }
        Ok(count)
    }
}

impl AsFd for Userfaultfd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What `result` of a call and the bytes it reports mean.
fn progress(result: libc::c_int, bytes: i64) -> io::Result<Progress> {
    if result == 0 {
        return Ok(Progress::Done);
    }
    let error = io::Error::last_os_error();
    // The result field holds bytes done, or the negative error where none were.
    let done = bytes.max(0) as u64;
    match error.raw_os_error() {
        Some(libc::EEXIST) => Ok(Progress::Mapped(0)),
        Some(libc::EAGAIN) if done > 0 => Ok(Progress::Again(done)),
        Some(libc::EAGAIN) => Ok(Progress::Again(0)),
        // Too little memory, or as yet no page in the memfd.
        Some(libc::EFAULT | libc::ENOENT) => Ok(Progress::Hole(done)),
        _ => Err(error),
    }
}
