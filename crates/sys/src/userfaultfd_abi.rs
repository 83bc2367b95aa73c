//! What userfaultfd(2) and its ioctls take: include/uapi/linux/userfaultfd.h.

#[repr(C)]
pub(crate) struct Api {
    pub(crate) api: u64,
    pub(crate) features: u64,
    pub(crate) ioctls: u64,
}

#[repr(C)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

#[repr(C)]
pub(crate) struct Register {
    pub(crate) range: Range,
    pub(crate) mode: u64,
    pub(crate) ioctls: u64,
}

/// uffdio_copy.
#[repr(C)]
pub(crate) struct Transfer {
    pub(crate) destination: u64,
    pub(crate) source: u64,
    pub(crate) len: u64,
    pub(crate) mode: u64,
    pub(crate) result: i64,
}

/// uffdio_zeropage, uffdio_continue and uffdio_poison.
#[repr(C)]
pub(crate) struct Fill {
    pub(crate) range: Range,
    pub(crate) mode: u64,
    pub(crate) result: i64,
}

/// uffdio_writeprotect.
#[repr(C)]
pub(crate) struct WriteProtect {
    pub(crate) range: Range,
    pub(crate) mode: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(crate) struct RawMessage {
    pub(crate) event: u8,
    pub(crate) reserved: [u8; 7],
    /// By event: flags, address and thread of a fault; descriptor.
    pub(crate) words: [u64; 3],
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<Range>() == 16 && size_of::<Register>() == 32);
const _: () =
    assert!(size_of::<Transfer>() == 40 && size_of::<Fill>() == 32 && size_of::<RawMessage>() == 32);

const _: () = assert!(size_of::<WriteProtect>() == 24);

pub(crate) const API: u64 = 0xaa;
pub(crate) const FEATURE_EVENT_FORK: u64 = 1 << 1;
pub(crate) const FEATURE_SIGBUS: u64 = 1 << 7;
pub(crate) const FEATURE_THREAD_ID: u64 = 1 << 8;
pub(crate) const FEATURE_MINOR_SHMEM: u64 = 1 << 10;
pub(crate) const FEATURE_POISON: u64 = 1 << 14;
pub(crate) const FEATURE_WP_ASYNC: u64 = 1 << 15;
pub(crate) const MODE_MISSING: u64 = 1 << 0;
pub(crate) const MODE_WRITE_PROTECT: u64 = 1 << 1;
pub(crate) const MODE_MINOR: u64 = 1 << 2;
/// UFFDIO_COPY_MODE_WP and UFFDIO_CONTINUE_MODE_WP.
pub(crate) const PROTECTED: u64 = 1 << 1;
/// UFFDIO_WRITEPROTECT_MODE_WP.
pub(crate) const PROTECT_ON: u64 = 1 << 0;
/// UFFDIO_WRITEPROTECT_MODE_DONTWAKE, of protection that is taken away.
pub(crate) const PROTECT_WAKES_NOBODY: u64 = 1 << 1;
pub(crate) const EVENT_PAGEFAULT: u8 = 0x12;
pub(crate) const EVENT_FORK: u8 = 0x13;
pub(crate) const FLAG_WRITE: u64 = 1 << 0;
pub(crate) const FLAG_PROTECTED: u64 = 1 << 1;
pub(crate) const USER_MODE_ONLY: libc::c_int = 1;

const fn request(direction: u64, number: u64, size: usize) -> libc::Ioctl {
    (direction << 30 | (size as u64) << 16 | API << 8 | number) as libc::Ioctl
}
const READ: u64 = 2;
const READ_WRITE: u64 = 3;
pub(crate) const IOC_NEW: libc::Ioctl = request(0, 0, 0);
pub(crate) const IOC_API: libc::Ioctl = request(READ_WRITE, 0x3f, size_of::<Api>());
pub(crate) const IOC_REGISTER: libc::Ioctl = request(READ_WRITE, 0x00, size_of::<Register>());
pub(crate) const IOC_UNREGISTER: libc::Ioctl = request(READ, 0x01, size_of::<Range>());
pub(crate) const IOC_WAKE: libc::Ioctl = request(READ, 0x02, size_of::<Range>());
pub(crate) const IOC_COPY: libc::Ioctl = request(READ_WRITE, 0x03, size_of::<Transfer>());
pub(crate) const IOC_ZEROPAGE: libc::Ioctl = request(READ_WRITE, 0x04, size_of::<Fill>());
pub(crate) const IOC_WRITE_PROTECT: libc::Ioctl = request(READ_WRITE, 0x06, size_of::<WriteProtect>());
pub(crate) const IOC_CONTINUE: libc::Ioctl = request(READ_WRITE, 0x07, size_of::<Fill>());
pub(crate) const IOC_POISON: libc::Ioctl = request(READ_WRITE, 0x08, size_of::<Fill>());
// The number that linux/userfaultfd.h gives for UFFDIO_COPY.
const _: () = assert!(IOC_COPY as u32 == 0xc028_aa03);
