//! How many tasks (processes and threads) the limits leave.

use rustix::process::{Resource, getrlimit};

use prepage_sys::cgroup::{Group, Memberships};

/// The share of them that a prefetch may have: 1 in this. A program that may not fork fails; a prefetch with fewer threads is
/// slower.
const SHARE: u64 = 4;

/// A share of what is left below the nearest limit of a control group, and of all that the user may have: how many those
/// are by now is not told without looking at every process.
pub(super) fn to_spare(memberships: &Memberships) -> u32 {
    let of_user = getrlimit(Resource::Nproc).current;
    let least = memberships.of("pids").filter_map(|group| left(&group)).chain(of_user).min();
    least.map_or(u32::MAX, |tasks| u32::try_from(tasks / SHARE).unwrap_or(u32::MAX))
}

fn left(group: &Group) -> Option<u64> {
    Some(group.number("pids.max")?.saturating_sub(group.number("pids.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use prepage_sys::cgroup::Version;

    #[test]
    fn what_is_left_is_told_where_there_is_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let group = Group { directory: dir.path().into(), version: Version::Two };
        let write = |file: &str, text: &str| std::fs::write(dir.path().join(file), text).unwrap();
        assert_eq!(left(&group), None);
        write("pids.current", "70\n");
        for (max, expected) in [("max\n", None), ("100\n", Some(30)), ("50\n", Some(0))] {
            write("pids.max", max);
            assert_eq!(left(&group), expected, "{max}");
        }
    }
}
