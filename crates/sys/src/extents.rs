//! Where a file's bytes lie on its device (FS_IOC_FIEMAP, Linux Documentation/filesystems/fiemap.rst).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::given::check;

/// `_IOWR('f', 11, struct fiemap)` of include/uapi/linux/fs.h.
const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
/// Write back first: what is only in memory has no place yet.
const FIEMAP_FLAG_SYNC: u32 = 1;
const FIEMAP_EXTENT_LAST: u32 = 1;
/// No place yet, or one whose bytes are not the file's.
const FIEMAP_EXTENT_UNKNOWN: u32 = 2;
const FIEMAP_EXTENT_ENCODED: u32 = 8;
/// Extents asked for in one call.
const BATCH: usize = 64;
/// Extents returned at most: enough to say that a file is scattered.
const EXTENTS_MAX: usize = 1 << 16;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical_bytes: u64,
    physical_bytes: u64,
    len_bytes: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct Request {
    start_bytes: u64,
    len_bytes: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; BATCH],
}

// include/uapi/linux/fiemap.h
const _: () = assert!(size_of::<RawExtent>() == 56 && size_of::<Request>() == 32 + 56 * BATCH);

/// A run of a file's bytes that lies in one piece on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileExtent {
    /// Where it begins in the file.
    pub logical_bytes: u64,
    /// Where it begins on the device; 0 where the file system does not tell.
    pub physical_bytes: u64,
    /// Its length.
    pub len_bytes: u64,
}

/// The extents of `file` in the order of the file; holes are left out. Writes back what is dirty first.
///
/// # Errors
/// EOPNOTSUPP on file systems without a device.
pub fn extents(file: BorrowedFd<'_>) -> io::Result<Vec<FileExtent>> {
    let mut found: Vec<FileExtent> = Vec::new();
    let mut start_bytes = 0;
    while found.len() < EXTENTS_MAX {
        let request = ask(file, start_bytes, u64::MAX - start_bytes, FIEMAP_FLAG_SYNC)?;
        let batch = request.answered();
        let Some(last) = batch.last() else { break };
        found.extend(batch.iter().map(RawExtent::known));
        start_bytes = last.logical_bytes.saturating_add(last.len_bytes);
        if last.flags & FIEMAP_EXTENT_LAST != 0 || last.len_bytes == 0 {
            break;
        }
    }
    Ok(found)
}

/// Where byte `offset_bytes` of `file` lies on its device; `None` in a hole, and where the file system does not tell. Writes nothing back.
///
/// # Errors
/// EOPNOTSUPP on file systems without a device.
pub fn place_of(file: BorrowedFd<'_>, offset_bytes: u64) -> io::Result<Option<u64>> {
    let request = ask(file, offset_bytes, 1, 0)?;
    let holding = |extent: &&RawExtent| {
        extent.flags & (FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_ENCODED) == 0
            && extent.logical_bytes <= offset_bytes
            && offset_bytes - extent.logical_bytes < extent.len_bytes
    };
    let extent = request.answered().first().filter(holding);
    Ok(extent.map(|extent| extent.physical_bytes.saturating_add(offset_bytes - extent.logical_bytes)))
}

fn ask(file: BorrowedFd<'_>, start_bytes: u64, len_bytes: u64, flags: u32) -> io::Result<Request> {
    let mut request = Request {
        start_bytes,
        len_bytes,
        flags,
        mapped: 0,
        count: BATCH as u32,
        reserved: 0,
        extents: [RawExtent::default(); BATCH],
    };
    // SAFETY: the request has the kernel's layout, says how many extents it has room for, and outlives the call.
    check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP as _, &raw mut request) })?;
    Ok(request)
}

impl Request {
    fn answered(&self) -> &[RawExtent] {
        &self.extents[..(self.mapped as usize).min(BATCH)]
    }
}

impl RawExtent {
    fn known(&self) -> FileExtent {
        FileExtent {
            logical_bytes: self.logical_bytes,
            physical_bytes: self.physical_bytes,
            len_bytes: self.len_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use prepage_testing::{Need, unless_refused};

    use super::*;

    #[test]
    fn extents_cover_a_file_and_leave_its_hole_out() {
        // In the build tree: the system's temporary directory may be in memory.
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let write = |file: &File, at| std::os::unix::fs::FileExt::write_all_at(file, &[7; 8192], at).unwrap();
        write(&file, 0);
        write(&file, 1 << 20);
        let need = Need::Extents(env!("CARGO_MANIFEST_DIR").into());
        let unsupported =
            |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY));
        let Some(found) = unless_refused(extents(file.as_fd()), need, unsupported) else { return };
        let bytes: u64 = found.iter().map(|extent| extent.len_bytes).sum();
        assert_eq!(bytes, 2 * 8192, "{found:?}");
        assert_eq!(
            found.last().map(|extent| extent.logical_bytes + extent.len_bytes),
            Some((1 << 20) + 8192)
        );
        let place = |offset_bytes| place_of(file.as_fd(), offset_bytes).unwrap();
        assert_eq!(place(4096), Some(found[0].physical_bytes + 4096));
        assert_eq!(place(64 << 10), None, "a hole");
    }
}
