//! Opening a file of which only device and inode are known (root).
//!
//! A file handle, as NFS servers use them, names a file by inode and generation. ext4 and others of its family take
//! generation 0 for any; file systems that do not refuse it, and the file stays unknown. Those of that family lie on block devices, so that
//! no others are opened: a server may be gone that they would wait for, and some are mounted by being opened.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

use crate::file_handle::FileHandle;
use crate::mounts::{Mount, mounts};

/// `FILEID_INO32_GEN` of include/linux/exportfs.h: 32 bits of inode, 32 of generation.
const INODE_AND_GENERATION: i32 = 1;

/// A mounted file system on which inodes can be opened.
#[derive(Debug)]
pub struct Mounted {
    /// `major << 20 | minor`.
    device: u64,
    point: OwnedFd,
}

/// All mounted file systems of block devices, each once.
pub fn mounted() -> io::Result<Vec<Mounted>> {
    // `fuseblk` has a device, and a server as well.
    let is_of_block_device = |mount: &Mount| mount.device >> 20 != 0 && !mount.kind.starts_with("fuse");
    let mut found: Vec<Mounted> = Vec::new();
    for mount in mounts()?.into_iter().filter(is_of_block_device) {
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
    let (inode, generation) = (u32::try_from(inode).ok()?.to_ne_bytes(), [0; 4]);
    let bytes = [inode, generation].concat().into();
    FileHandle { file_system: 0, kind: INODE_AND_GENERATION, bytes }.open(mount.point.as_fd()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use prepage_testing::{Need, skip};

    use super::*;

    #[test]
    fn a_file_is_found_by_its_inode() {
        // A file of the build tree: the system's temporary directory may be in memory.
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let metadata = fs::metadata(&path).expect("there");
        let device = crate::device_number::of_kernel(metadata.dev());
        let Some(fd) = open_inode(&mounted().expect("a list"), device, metadata.ino()) else {
            return skip(Need::InodeHandles(path), "it cannot be opened by its inode number");
        };
        let found = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a path");
        assert_eq!(found, path.canonicalize().expect("there"));
    }

    #[test]
    fn no_file_system_is_opened_that_may_wait_for_a_server_or_is_mounted_by_that() {
        assert!(mounted().expect("a list").iter().all(|mounted| mounted.device >> 20 != 0));
    }
}
