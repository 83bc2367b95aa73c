//! How much memory the machine has left, and the control groups that a process is in.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{Group, Memberships, Version};

/// `MemAvailable` of /proc/meminfo: what programs could still get without swapping.
pub fn available_kib() -> Option<u64> {
    kib(&meminfo()?, "MemAvailable:")
}

/// What the machine has, of one moment.
pub fn of_machine() -> Option<Left> {
    let meminfo = meminfo()?;
    let [limit, available, shmem] = ["MemTotal:", "MemAvailable:", "Shmem:"].map(|name| kib(&meminfo, name));
    Some(Left {
        limit_bytes: limit? * 1024,
        available_bytes: (available? * 1024) as i64,
        shmem_bytes: shmem.unwrap_or(0) * 1024,
    })
}

fn meminfo() -> Option<String> {
    fs::read_to_string("/proc/meminfo").ok()
}

fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse().ok()
}

/// Memory and what is left of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Left {
    /// How much there is.
    pub limit_bytes: u64,
    /// How much can still be had; less than 0 where a limit became lower than what is used.
    pub available_bytes: i64,
    /// How much of it is used by tmpfs, memfds and other shared memory.
    pub shmem_bytes: u64,
}

/// Groups with limits of memory.
#[derive(Clone, Debug, Default)]
pub struct Cgroups {
    groups: Vec<Group>,
}

impl Version {
    /// Files with a limit in bytes: reaching the first makes the group's tasks reclaim, the last one has them killed.
    fn limits(self) -> &'static [&'static str] {
        match self {
            Self::One => &["memory.limit_in_bytes"],
            Self::Two => &["memory.high", "memory.max"],
        }
    }

    fn usage(self) -> &'static str {
        match self {
            Self::One => "memory.usage_in_bytes",
            Self::Two => "memory.current",
        }
    }

    /// Lines of memory.stat, for this group and those in it, with what the kernel can drop: pages of files, and its own caches where they are told of.
    fn droppable(self) -> &'static [&'static str] {
        match self {
            Self::One => &["total_active_file", "total_inactive_file"],
            Self::Two => &["active_file", "inactive_file", "slab_reclaimable"],
        }
    }

    fn shmem(self) -> &'static str {
        match self {
            Self::One => "total_shmem",
            Self::Two => "shmem",
        }
    }
}

impl Cgroups {
    /// Those that have a limit now.
    pub fn of(memberships: &Memberships) -> Self {
        // Most processes are in no group that limits anything, and find that out once.
        Self { groups: memberships.of("memory").filter(|group| group.limit_bytes().is_some()).collect() }
    }

    /// Those that have a limit now and those that may get one.
    pub fn all_of(memberships: &Memberships) -> Self {
        Self { groups: memberships.of("memory").collect() }
    }

    /// A group of version 2 whose files are in `directory`.
    pub fn in_directory(directory: &Path) -> Self {
        Self { groups: vec![Group { directory: directory.into(), version: Version::Two }] }
    }

    /// What each group that has a limit now has left.
    pub fn left(&self) -> impl Iterator<Item = Left> {
        self.groups.iter().filter_map(Group::memory_left)
    }

    /// What the group that is nearest to a limit of its own may still get; `None` where nothing is limited.
    pub fn available_bytes(&self) -> Option<u64> {
        self.left().map(|left| left.available_bytes.max(0) as u64).min()
    }

    /// Where the groups tell how long tasks waited for memory.
    pub fn pressure_files(&self) -> impl Iterator<Item = PathBuf> {
        self.groups
            .iter()
            .filter(|group| group.version == Version::Two)
            .map(|group| group.directory.join("memory.pressure"))
    }
}

impl Group {
    fn limit_bytes(&self) -> Option<u64> {
        /// Version 1 says "no limit" with the largest number of pages there is.
        const NO_LIMIT_BYTES: u64 = 1 << 60;
        let limits = self.version.limits().iter().filter_map(|file| self.number(file));
        limits.filter(|&bytes| bytes < NO_LIMIT_BYTES).min()
    }

    /// What is left below the limit, and half of what could be dropped to make room: for the machine the kernel counts as much at least
    /// (`si_mem_available`).
    fn memory_left(&self) -> Option<Left> {
        let limit_bytes = self.limit_bytes()?;
        let used_bytes = self.number(self.version.usage())?;
        let stat = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let bytes = |name: &str| -> u64 {
            let value = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            value.and_then(|text| text.trim().parse().ok()).unwrap_or(0)
        };
        let droppable_bytes: u64 = self.version.droppable().iter().map(|name| bytes(name)).sum();
        let available_bytes = limit_bytes as i64 - used_bytes as i64 + (droppable_bytes / 2) as i64;
        Some(Left { limit_bytes, available_bytes, shmem_bytes: bytes(self.version.shmem()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_below_the_nearest_limit_is_available() {
        let dir = tempfile::tempdir().unwrap();
        let group = |name: &str, version, files: &[(&str, &str)]| {
            let directory = dir.path().join(name);
            fs::create_dir(&directory).unwrap();
            files.iter().for_each(|(file, text)| fs::write(directory.join(file), text).unwrap());
            Group { directory, version }
        };
        let two = [
            ("memory.max", "max\n"),
            ("memory.high", "1000000\n"),
            ("memory.current", "900000\n"),
            (
                "memory.stat",
                "anon 5\nshmem 7\ninactive_file 60000\nactive_file 30000\nslab_reclaimable 10000\nslab 20000\n",
            ),
        ];
        let one = [
            ("memory.limit_in_bytes", "800000"),
            ("memory.usage_in_bytes", "790000"),
            ("memory.stat", "active_file 9\n"),
        ];
        let free = [("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "1")];
        let left = |group: Group| group.memory_left().map(|left| left.available_bytes);
        let of_two = group("two", Version::Two, &two).memory_left();
        let expected = Left { limit_bytes: 1_000_000, available_bytes: 150_000, shmem_bytes: 7 };
        assert_eq!(of_two, Some(expected), "half of what is cached, used or not");
        assert_eq!(left(group("free", Version::One, &free)), None);
        let over = [("memory.max", "500000"), ("memory.current", "600000")];
        assert_eq!(left(group("over", Version::Two, &over)), Some(-100_000), "the limit shrank");
        let all = Cgroups { groups: vec![group("a", Version::Two, &two), group("b", Version::One, &one)] };
        assert_eq!(all.available_bytes(), Some(10_000));
        assert_eq!(Cgroups::default().available_bytes(), None);
        let of_machine = of_machine().unwrap();
        assert!(0 < of_machine.available_bytes && of_machine.available_bytes < of_machine.limit_bytes as i64);
    }
}
