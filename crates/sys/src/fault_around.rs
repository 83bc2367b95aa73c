//! Fault-around of the whole machine, switched off for a while.
//!
//! A fault on a mapped file maps the neighbours that are in memory as well (`fault_around_bytes`, 64 KiB), and then the kernel notes all of
//! them as used. Without it each page's first touch is a fault of its own, and what is noted is what was touched. The setting lies in
//! debugfs, which is mounted here for nobody else.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::guarded::Guarded;

const FILE: &str = "fault_around_bytes";
/// One page: no neighbours.
const OFF: &str = "4096";

/// Fault-around is off until this is dropped.
#[derive(Debug)]
pub struct FaultAroundOff(#[expect(dead_code, reason = "it is put back when this goes")] Guarded);

impl FaultAroundOff {
    /// Switches it off, for `at_most` so long.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// EPERM for others than root and where the kernel is locked down, ENODEV or ENOENT where it has no such setting. Nothing is changed then.
    pub fn set(at_most: Duration) -> io::Result<Self> {
        Guarded::set(&[setting()?], OFF, Some(at_most), || ()).map(Self)
    }
}

fn setting() -> io::Result<File> {
    let context = fsopen("debugfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(context.as_fd())?;
    let mount = fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    Ok(openat(mount, FILE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, has};

    use super::*;
    use crate::guarded::read;

    #[test]
    fn it_is_off_for_a_while_and_then_as_it_was() {
        if !has(Need::FaultAround) {
            return;
        }
        let value = || read(&setting().unwrap()).unwrap();
        let before = value();
        let off = FaultAroundOff::set(Duration::from_secs(60)).unwrap();
        assert_eq!(value(), OFF);
        drop(off);
        assert_eq!(value(), before);
    }
}
