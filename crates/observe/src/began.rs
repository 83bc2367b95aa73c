//! When sightings began, and what was made since: a name of this run alone tells nothing of the next.

use std::collections::HashSet;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use prepage_sys::root;
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

/// When sightings began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Began {
    /// By the clock that stamps files, nanoseconds since 1970: a few milliseconds coarse, and so never ahead of a file written later.
    file_ns: i64,
    /// By the clock that nobody sets.
    boot_ns: i64,
}

impl Began {
    /// Clocks do not run equally fast.
    const SLACK_NS: i64 = 1_000_000_000;

    pub(crate) fn now() -> Self {
        Self { file_ns: nanoseconds(ClockId::RealtimeCoarse), boot_ns: nanoseconds(ClockId::Boottime) }
    }

    /// The times of change of files that have changed since. Where the clock was wrong, and was set right before or meanwhile, other
    /// files have later times: they are not taken for changed.
    pub(crate) fn until_now(self) -> RangeInclusive<i64> {
        self.until(nanoseconds(ClockId::Boottime))
    }

    fn until(self, boot_ns: i64) -> RangeInclusive<i64> {
        self.file_ns..=self.file_ns + (boot_ns - self.boot_ns) + Self::SLACK_NS
    }
}

fn nanoseconds(clock: ClockId) -> i64 {
    let now = clock_gettime(clock);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Whether a name was made during the run, or looks like one that was and is gone: temporary files have another name
/// in each run. So have files that are named after one of its `processes`.
pub(crate) fn is_of_this_run_only(path: &Path, run: &RangeInclusive<i64>, processes: &HashSet<u32>) -> bool {
    let changed_ns = |path: &Path| {
        let metadata = root::symlink_metadata(path).ok()?;
        let ns = |s: i64, ns: i64| s * 1_000_000_000 + ns;
        Some((ns(metadata.ctime(), metadata.ctime_nsec()), ns(metadata.mtime(), metadata.mtime_nsec())))
    };
    match (changed_ns(path), path.parent().and_then(changed_ns)) {
        (Some((changed, _)), _) if root::metadata(path).is_ok_and(|found| found.is_dir()) => {
            run.contains(&changed) && is_empty_directory(path)
        }
        (Some((changed, _)), _) => run.contains(&changed),
        (None, _) if names_one_of(processes, path) => true,
        (None, Some((_, parent_modified))) => run.contains(&parent_modified),
        (None, None) => false,
    }
}

fn is_empty_directory(path: &Path) -> bool {
    let Ok(directory) = root::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK) else {
        return false;
    };
    rustix::fs::Dir::new(directory).is_ok_and(|entries| {
        let name =
            |entry: rustix::io::Result<rustix::fs::DirEntry>| entry.map(|entry| entry.file_name().to_owned());
        entries.map(name).all(|name| name.is_ok_and(|name| [c".", c".."].contains(&&*name)))
    })
}

/// Whether the last component of `path` has the number of one of the `processes` in it. In containers these have small numbers, as versions do.
fn names_one_of(processes: &HashSet<u32>, path: &Path) -> bool {
    const SMALL: u32 = 100;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let mut numbers =
        name.split(|at: char| !at.is_ascii_digit()).filter_map(|digits| digits.parse::<u32>().ok());
    numbers.any(|number| number >= SMALL && processes.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It was behind when the sightings began, or was set right while they went on.
    #[test]
    fn where_the_clock_was_wrong_files_from_before_are_not_taken_for_changed() {
        const SECOND: i64 = 1_000_000_000;
        let run = Began { file_ns: 5 * SECOND, boot_ns: 100 * SECOND }.until(110 * SECOND);
        assert!(run.contains(&(5 * SECOND)) && run.contains(&(15 * SECOND)));
        assert!(!run.contains(&(4 * SECOND)) && !run.contains(&(1_700_000_000 * SECOND)));
    }
}
