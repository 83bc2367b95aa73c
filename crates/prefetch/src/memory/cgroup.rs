//! The memory limits of the control groups that a process is in.

use std::fs;
use std::path::PathBuf;

use crate::cgroup::{Group, Memberships, Version};

/// The groups with a limit.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
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
    pub(super) fn of(memberships: &Memberships) -> Self {
        // Most processes are in no group that limits anything, and find that out once.
        Self { groups: memberships.of("memory").filter(|group| group.limit_bytes().is_some()).collect() }
    }

    /// What the group that is nearest to a limit of its own may still get; `None` where nothing is limited.
    pub(super) fn available_bytes(&self) -> Option<u64> {
        self.groups.iter().filter_map(Group::available_bytes).min()
    }

    /// Where the groups tell how long tasks waited for memory.
    pub(super) fn pressure_files(&self) -> impl Iterator<Item = PathBuf> {
        self.groups
            .iter()
            .filter(|group| group.version == Version::Two)
            .map(|group| group.directory.join("memory.pressure"))
    }
}

#[cfg(test)]
impl Cgroups {
    /// A group of version 2 whose files are in `directory`.
    pub(super) fn in_directory(directory: &std::path::Path) -> Self {
        Self { groups: vec![Group { directory: directory.into(), version: Version::Two }] }
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
    fn available_bytes(&self) -> Option<u64> {
        let used_bytes = self.number(self.version.usage())?;
        let stat = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let idle = stat.lines().find_map(|line| line.strip_prefix(self.version.inactive_file()));
        let idle_bytes: u64 = idle.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Some(self.limit_bytes()?.saturating_sub(used_bytes).saturating_add(idle_bytes / 2))
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
        assert_eq!(group("two", Version::Two, &two).available_bytes(), Some(150_000));
        assert_eq!(group("free", Version::One, &free).available_bytes(), None);
        let all = Cgroups { groups: vec![group("a", Version::Two, &two), group("b", Version::One, &one)] };
        assert_eq!(all.available_bytes(), Some(10_000));
        assert_eq!(Cgroups::default().available_bytes(), None);
    }
}
