//! Which of what processes have mapped are files that may lie on a device.

use std::collections::HashMap;

use prepage_sys::mounts::{Mount, parse_mounts};
use prepage_sys::proc_file;

use crate::sightings::{Inode, is_name_of_memory};

/// File systems, as far as it was asked for what is mapped of them.
#[derive(Debug, Default)]
pub(crate) struct FileSystems {
    /// Whether those without a device of the kernel's are in memory, by the number they have for one.
    pub(crate) in_memory: HashMap<u64, bool>,
    /// Whether those that this process sees are in there.
    knows_own_mounts: bool,
}

impl FileSystems {
    /// Whether what process `pid` has mapped, which is called `path` and has this `inode` in the kernel's events, is a file that may lie on a device.
    pub(crate) fn may_hold(&mut self, pid: u32, path: &str, inode: Option<Inode>) -> bool {
        inode.is_some_and(|(device, _)| is_name_of_a_file(path) && !self.is_in_memory(pid, device))
    }

    /// Whether [`Self::may_hold`] has to ask for no mounts.
    pub(crate) fn knows(&self, path: &str, inode: Option<Inode>) -> bool {
        let is_known = |(device, _): Inode| device >> 20 != 0 || self.in_memory.contains_key(&device);
        !is_name_of_a_file(path) || inode.is_none_or(is_known)
    }

    /// Reads the mounts that this process sees, once. To be called before a process stands still.
    pub(crate) fn know_own_mounts(&mut self) {
        if !std::mem::replace(&mut self.knows_own_mounts, true) {
            self.know(&mounts_of("self"));
        }
    }

    fn know(&mut self, mounts: &[Mount]) {
        for mount in mounts {
            self.in_memory.insert(mount.device, matches!(mount.kind.as_str(), "tmpfs" | "hugetlbfs"));
        }
    }

    /// Whether `device` is a tmpfs or a hugetlbfs that process `pid` sees.
    pub(crate) fn is_in_memory(&mut self, pid: u32, device: u64) -> bool {
        if device >> 20 != 0 {
            return false;
        }
        if let Some(&is_in_memory) = self.in_memory.get(&device) {
            return is_in_memory;
        }
        let mut mounts = mounts_of(&pid.to_string());
        // A process that has ended has no mounts any more. This one sees most of them too, but what it does not see may be in memory.
        let has_ended = mounts.is_empty();
        if has_ended {
            mounts = mounts_of("self");
        }
        self.know(&mounts);
        match has_ended {
            true => self.in_memory.get(&device).copied().unwrap_or(false),
            false => *self.in_memory.entry(device).or_insert(false),
        }
    }
}

/// The mounts that a process sees; none where it has ended.
fn mounts_of(process: &str) -> Vec<Mount> {
    parse_mounts(&proc_file::read(format!("/proc/{process}/mountinfo")).unwrap_or_default())
}

/// Whether a mapping with this name may be of a file on a device.
fn is_name_of_a_file(path: &str) -> bool {
    const OTHERS: [&str; 3] = ["/dev/", "/proc/", "/sys/"];
    path.starts_with('/') && !is_name_of_memory(path) && !OTHERS.iter().any(|other| path.starts_with(other))
}
