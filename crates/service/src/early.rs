//! A boot that is followed from its initramfs on, before the manager of the machine begins: the root file system is mounted somewhere
//! below, and becomes the root of this process before it becomes everybody's.
//!
//! What has to be asked of /proc, /sys and /dev is asked before: they move to the new root some moments later. The process itself
//! stays when the initramfs is emptied, and ends as one of a unit would.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use prepage_prefetch::memory::Budget;
use prepage_sys::exec_watch::ExecWatch;

use crate::blocks::{Device, willneed_pages};

/// What the initramfs still does takes moments; one that never ends leads to no boot either.
const PROC_WAIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The kernel ends whatever else before what the boot needs.
const OOM_SCORE: &str = "500";

/// What is had from the initramfs.
#[derive(Debug)]
pub struct Early {
    /// What there is to fetch with.
    pub budget: Budget,
    /// The root's device, where its file system reads through it.
    pub device: Option<Device>,
    /// What one WILLNEED loads of it ([`willneed_pages`]).
    pub willneed_pages: u64,
    /// All that is opened on the root file system from now on.
    pub opens: io::Result<ExecWatch>,
}

impl Early {
    /// Makes `root` the root directory of this process.
    ///
    /// # Errors
    /// As chroot(2).
    pub fn enter(root: &Path) -> io::Result<Self> {
        // As a unit has it.
        let _ = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE);
        let budget = Budget::of_process();
        let device = Device::of(root).ok().flatten();
        let willneed_pages = willneed_pages(root);
        rustix::process::chroot(root)?;
        std::env::set_current_dir("/")?;
        let opens = ExecWatch::of_opens().and_then(|opens| opens.add(Path::new("/")).map(|()| opens));
        Ok(Self { budget, device, willneed_pages, opens })
    }
}

/// Waits until /proc has moved to the root.
///
/// # Errors
/// TimedOut where it does not.
pub fn wait_for_proc() -> io::Result<()> {
    let until = Instant::now() + PROC_WAIT;
    while !Path::new("/proc/self/mountinfo").exists() {
        if Instant::now() >= until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
