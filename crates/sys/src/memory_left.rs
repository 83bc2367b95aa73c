//! How much memory the machine has left, and the control groups that a process is in.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{Group, Memberships, Version};

/// `MemAvailable` of /proc/meminfo: what programs could still get without swapping.
pub fn available_kib() -> Option<u64> {
    meminfo("MemAvailable:")
}

/// What the machine has.
pub fn of_machine() -> Option<Left> {
    let [limit, available] = ["MemTotal:", "MemAvailable:"].map(meminfo);
    Some(Left { limit_bytes: limit? * 1024, available_bytes: (available? * 1024) as i64 })
}

fn meminfo(name: &str) -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
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

    /// The line of memory.stat with the file pages, of this group and those in it, that have not been used for a while.
    fn inactive_file(self) -> &'static str {
        match self {
            Self::One => "total_inactive_file ",
            Self::Two => "inactive_file ",
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

    /// What is left below the limit, and half of what could be dropped to make room.
    fn memory_left(&self) -> Option<Left> {
        let limit_bytes = self.limit_bytes()?;
        let used_bytes = self.number(self.version.usage())?;
        let stat = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let idle = stat.lines().find_map(|line| line.strip_prefix(self.version.inactive_file()));
        let idle_bytes: u64 = idle.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        let available_bytes = limit_bytes as i64 - used_bytes as i64 + (idle_bytes / 2) as i64;
        Some(Left { limit_bytes, available_bytes })
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
            ("memory.stat", "anon 5\ninactive_file 100000\n"),
        ];
        let one =
            [("memory.limit_in_bytes", "800000"), ("memory.usage_in_bytes", "790000"), ("memory.stat", "")];
        let free = [("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "1")];
        let left = |group: Group| group.memory_left().map(|left| left.available_bytes);
        assert_eq!(left(group("two", Version::Two, &two)), Some(150_000));
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
