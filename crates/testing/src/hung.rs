//! A file system that never answers.

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// A FUSE mount that nobody answers for, until this is dropped. Needs root and `/dev/fuse`.
#[derive(Debug)]
pub struct Hung {
    point: PathBuf,
    /// Whoever answers for it. Once it is closed, all calls that wait fail.
    device: Option<File>,
}

impl Hung {
    /// Mounts one at the directory `point`.
    ///
    /// # Panics
    /// When it cannot be mounted.
    pub fn mount(point: &Path) -> Self {
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("/dev/fuse opens");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).expect("no zero in it");
        mount("hung", point, "fuse", MountFlags::empty(), Some(&*options)).expect("it can be mounted");
        Self { point: point.into(), device: Some(device) }
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        self.device.take();
        let _ = unmount(&self.point, UnmountFlags::DETACH);
    }
}
