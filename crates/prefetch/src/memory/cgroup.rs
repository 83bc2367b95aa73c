//! The memory limits of the control groups that a process is in, versions 1 and 2.

use std::fs;
use std::path::{Path, PathBuf};

/// The groups from a process's own up to the top of what it may see.
#[derive(Debug, Default)]
pub(super) struct Cgroups {
    groups: Vec<Group>,
}

#[derive(Debug)]
struct Group {
    directory: PathBuf,
    version: Version,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
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
    pub(super) fn of_process() -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        let (memberships, mounts) = (read("/proc/self/cgroup"), read("/proc/self/mountinfo"));
        let groups = [Version::One, Version::Two]
            .into_iter()
            .flat_map(|version| groups(version, &memberships, &mounts));
        // Most processes are in no group that limits anything, and find that out once.
        Self { groups: groups.filter(|group| group.limit_bytes().is_some()).collect() }
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
    pub(super) fn in_directory(directory: &Path) -> Self {
        Self { groups: vec![Group { directory: directory.into(), version: Version::Two }] }
    }
}

impl Group {
    fn limit_bytes(&self) -> Option<u64> {
        /// Version 1 says "no limit" with the largest number of pages there is.
        const NO_LIMIT_BYTES: u64 = 1 << 60;
        let limits = self.version.limits().iter().filter_map(|file| number(&self.directory.join(file)));
        limits.filter(|&bytes| bytes < NO_LIMIT_BYTES).min()
    }

    /// What is left below the limit, and half of what could be dropped to make room.
    fn available_bytes(&self) -> Option<u64> {
        let used_bytes = number(&self.directory.join(self.version.usage()))?;
        let stat = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let idle = stat.lines().find_map(|line| line.strip_prefix(self.version.inactive_file()));
        let idle_bytes: u64 = idle.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        Some(self.limit_bytes()?.saturating_sub(used_bytes).saturating_add(idle_bytes / 2))
    }
}

fn number(file: &Path) -> Option<u64> {
    // "max" stands for no limit.
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// The group of each level, by /proc/PID/cgroup and /proc/PID/mountinfo.
fn groups(version: Version, memberships: &str, mounts: &str) -> Vec<Group> {
    let membership = memberships.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let ours = match version {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => controllers.is_empty(),
        };
        ours.then_some(path)
    });
    let mount = mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut kind = kind.split(' ');
        let (system, options) = (kind.next()?, kind.nth(1)?);
        let ours = match version {
            Version::One => system == "cgroup" && options.split(',').any(|name| name == "memory"),
            Version::Two => system == "cgroup2",
        };
        let mut place = place.split(' ').skip(3);
        ours.then_some((place.next()?, place.next()?))
    });
    let (Some(membership), Some((root, point))) = (membership, mount) else { return Vec::new() };
    // In a container the mount may show a part of the tree only, whose root stands in mountinfo.
    let below = membership.strip_prefix(root.trim_end_matches('/')).unwrap_or("").trim_start_matches('/');
    let point = Path::new(point);
    let own = if below.is_empty() { point.to_owned() } else { point.join(below) };
    let levels = own.ancestors().take_while(|level| level.starts_with(point));
    levels.map(|level| Group { directory: level.into(), version }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
24 1 0:22 / /proc rw - proc proc rw
35 30 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 30 0:31 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 none rw";

    fn directories(groups: &[Group]) -> Vec<&str> {
        groups.iter().map(|group| group.directory.to_str().unwrap()).collect()
    }

    #[test]
    fn every_level_up_to_the_mount_counts() {
        let memberships = "5:devices:/x\n4:memory:/jobs/one\n0::/user.slice/session";
        let one = groups(Version::One, memberships, MOUNTS);
        let expected =
            ["/sys/fs/cgroup/memory/jobs/one", "/sys/fs/cgroup/memory/jobs", "/sys/fs/cgroup/memory"];
        assert_eq!(directories(&one), expected);
        let two = groups(Version::Two, memberships, MOUNTS);
        assert_eq!(directories(&two)[0], "/sys/fs/cgroup/unified/user.slice/session");
        assert!(
            groups(Version::One, "0::/", MOUNTS).is_empty() && groups(Version::Two, "0::/", "").is_empty()
        );
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_tree() {
        let mounts = "36 30 0:31 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw";
        assert_eq!(directories(&groups(Version::Two, "0::/docker/abc", mounts)), ["/sys/fs/cgroup"]);
        assert_eq!(directories(&groups(Version::Two, "0::/docker/abc/in", mounts))[0], "/sys/fs/cgroup/in");
    }

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
