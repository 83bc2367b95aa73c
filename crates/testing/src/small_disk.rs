//! A file system that is soon full.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// A file system in memory, mounted nowhere, until this is dropped. Needs root that may mount: [`Need::Root`](crate::Need::Root) and
/// [`Need::Mounts`](crate::Need::Mounts).
#[derive(Debug)]
pub struct SmallDisk(OwnedFd);

impl SmallDisk {
    /// One with room for `bytes` of files.
    ///
    /// # Panics
    /// When it cannot be made.
    pub fn new(bytes: u64) -> Self {
        let make = || {
            let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            rustix::mount::fsconfig_set_string(context.as_fd(), "size", bytes.to_string())?;
            rustix::mount::fsconfig_create(context.as_fd())?;
            let flags = FsMountFlags::FSMOUNT_CLOEXEC;
            rustix::mount::fsmount(context.as_fd(), flags, MountAttrFlags::empty())
        };
        Self(make().expect("root may mount"))
    }

    /// Its root directory, for this process.
    pub fn path(&self) -> PathBuf {
        format!("/proc/self/fd/{}", self.0.as_raw_fd()).into()
    }
}
