//! Opening a file of which only device and inode are known (root).
//!
//! A file handle, as NFS servers use them, names a file by inode and generation. ext4 and others of its family take
//! generation 0 for any; file systems that do not refuse it, and the file stays unknown.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

use crate::mounts::mounts;

/// `FILEID_INO32_GEN` of include/linux/exportfs.h: 32 bits of inode, 32 of generation.
const INODE_AND_GENERATION: i32 = 1;

/// `struct file_handle` of open_by_handle_at(2), with room for one of [`INODE_AND_GENERATION`].
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    inode: u32,
    generation: u32,
}

const _: () = assert!(size_of::<Handle>() == 16);

/// A mounted file system on which inodes can be opened.
#[derive(Debug)]
pub struct Mounted {
    /// `major << 20 | minor`.
    device: u64,
    point: OwnedFd,
}

/// All mounted file systems, each once.
pub fn mounted() -> io::Result<Vec<Mounted>> {
    let mut found: Vec<Mounted> = Vec::new();
    for mount in mounts()? {
        if found.iter().any(|mounted| mounted.device == mount.device) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if let Ok(point) = open(&mount.point, flags, Mode::empty()) {
            found.push(Mounted { device: mount.device, point });
        }
    }
    Ok(found)
}

/// Opens `inode` of the file system with `device` (`major << 20 | minor`), to look at and not to read. `None` where
/// it is gone, cannot be opened this way or this user may not.
pub fn open_inode(mounted: &[Mounted], device: u64, inode: u64) -> Option<OwnedFd> {
    let mount = mounted.iter().find(|mount| mount.device == device)?;
    let mut handle =
        Handle { bytes: 8, kind: INODE_AND_GENERATION, inode: inode.try_into().ok()?, generation: 0 };
    let handle: *mut Handle = &mut handle;
    // SAFETY: `handle` is laid out as the kernel's struct, says how long it is and outlives the call, which reads it.
    let fd = unsafe {
        libc::open_by_handle_at(mount.point.as_raw_fd(), handle.cast(), libc::O_PATH | libc::O_CLOEXEC)
    };
    // SAFETY: the kernel just returned this descriptor and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use prepage_testing::{Need, skip};

    use super::*;

    #[test]
    fn a_file_is_found_by_its_inode() {
        // A file of the build tree: the system's temporary directory may be in memory.
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let metadata = fs::metadata(&path).expect("there");
        let device = metadata.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = u64::from(major) << 20 | u64::from(minor);
        let Some(fd) = open_inode(&mounted().expect("a list"), device, metadata.ino()) else {
            return skip(Need::InodeHandles(path), "it cannot be opened by its inode number");
        };
        let found = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a path");
        assert_eq!(found, path.canonicalize().expect("there"));
    }
}
