//! The control groups that a process is in, versions 1 and 2.

use std::path::{Path, PathBuf};

use crate::mounts::{Mount, mounts};
use crate::proc_file;

/// A process's groups, and where they are mounted.
#[derive(Debug)]
pub struct Memberships {
    /// /proc/PID/cgroup.
    groups: String,
    mounts: Vec<Mount>,
}

/// One group.
#[derive(Clone, Debug)]
pub struct Group {
    /// Where its files are.
    pub directory: PathBuf,
    /// Which files these are.
    pub version: Version,
}

/// The two kinds of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// A tree for each controller.
    One,
    /// One tree.
    Two,
}

impl Memberships {
    /// Those of this process.
    pub fn of_process() -> Self {
        Self { groups: groups_of_process(), mounts: mounts().unwrap_or_default() }
    }

    /// Whether this process is in the same groups now.
    pub fn are_current(&self) -> bool {
        groups_of_process() == self.groups
    }

    /// The groups that `controller` may limit, each from the process's own up to the top of what it may see.
    pub fn of(&self, controller: &str) -> impl Iterator<Item = Group> {
        [Version::One, Version::Two].into_iter().flat_map(move |version| self.levels(version, controller))
    }

    fn levels(&self, version: Version, controller: &str) -> Vec<Group> {
        let membership = self.groups.lines().find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let ours = match version {
                Version::One => controllers.split(',').any(|name| name == controller),
                Version::Two => controllers.is_empty(),
            };
            ours.then_some(path)
        });
        let mount = self.mounts.iter().find(|mount| match version {
            Version::One => mount.kind == "cgroup" && mount.options.split(',').any(|name| name == controller),
            Version::Two => mount.kind == "cgroup2",
        });
        let (Some(membership), Some(Mount { root, point, .. })) = (membership, mount) else {
            return Vec::new();
        };
        // In a container the mount may show a part of the tree only, whose root stands in mountinfo.
        let below = Path::new(membership).strip_prefix(root).unwrap_or(Path::new(""));
        let own = if below == Path::new("") { point.to_owned() } else { point.join(below) };
        let levels = own.ancestors().take_while(|level| level.starts_with(point));
        levels.map(|level| Group { directory: level.into(), version }).collect()
    }
}

fn groups_of_process() -> String {
    proc_file::read_text("/proc/self/cgroup").unwrap_or_default()
}

impl Group {
    /// The number in one of the group's files; `None` where there is none: "max" stands for no limit.
    pub fn number(&self, file: &str) -> Option<u64> {
        proc_file::read_text(self.directory.join(file)).ok()?.trim().parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use crate::mounts::parse_mounts;

    use super::*;

    fn directories(controller: &str, groups: &str, mounts: &str) -> Vec<String> {
        let memberships = Memberships { groups: groups.into(), mounts: parse_mounts(mounts.as_bytes()) };
        memberships.of(controller).map(|group| group.directory.to_str().unwrap().into()).collect()
    }

    #[test]
    fn every_level_up_to_the_mount_counts() {
        const MOUNTS: &str = "\
24 1 0:22 / /proc rw - proc proc rw
35 30 0:30 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 30 0:31 / /sys/fs/cgroup/unified rw,relatime shared:5 - cgroup2 none rw";
        let groups = "5:devices:/x\n4:memory:/jobs/one\n0::/user.slice";
        let expected = [
            "/sys/fs/cgroup/memory/jobs/one",
            "/sys/fs/cgroup/memory/jobs",
            "/sys/fs/cgroup/memory",
            "/sys/fs/cgroup/unified/user.slice",
            "/sys/fs/cgroup/unified",
        ];
        assert_eq!(directories("memory", groups, MOUNTS), expected);
        assert_eq!(directories("pids", groups, MOUNTS), expected[3..]);
        assert_eq!(directories("memory", "0::/", MOUNTS), expected[4..]);
        assert!(directories("memory", "0::/", "").is_empty());
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_tree() {
        let mounts = "36 30 0:31 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw";
        assert_eq!(directories("memory", "0::/docker/abc", mounts), ["/sys/fs/cgroup"]);
        assert_eq!(directories("memory", "0::/docker/abc/in", mounts)[0], "/sys/fs/cgroup/in");
    }
}
