//! Making the cache cold, and seeing whether it is.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use prepage_core::PageRange;
use prepage_core::profile::plan::{PlanOptions, plan};
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_profiles::identity::open_if_same;
use prepage_sys::cachestat;
use prepage_sys::mapping::{FileMapping, may_know_residency};
use prepage_sys::maps::mappings;
use prepage_sys::processes::processes;
use rustix::fs::Advice;

/// How the cache is made cold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chill {
    /// Pages, directories and inodes of the whole system (/proc/sys/vm/drop_caches). Needs root.
    System,
    /// The pages of the program's own files, by POSIX_FADV_DONTNEED. Any user; directories and inodes stay warm,
    /// and so do pages that other running programs have mapped.
    OwnFiles,
}

impl Chill {
    /// The stronger of the two that this user may use.
    pub fn best() -> Self {
        let allowed = fs::OpenOptions::new().write(true).open(DROP_CACHES).is_ok();
        if allowed { Self::System } else { Self::OwnFiles }
    }

    /// For tables and reports.
    pub fn in_words(self) -> &'static str {
        match self {
            Self::System => "all caches dropped",
            Self::OwnFiles => "own files evicted",
        }
    }

    /// What cold starts find in memory all the same, and why; `None` where they find nothing.
    pub fn leaves_warm(self) -> Option<&'static str> {
        let why = "only root may drop all caches, and not in every container: only the program's own files are evicted, directories and inodes \
                   stay warm";
        (self == Self::OwnFiles).then_some(why)
    }

    /// Makes the cache cold for the program of `profile`.
    pub fn apply(self, profile: &Profile) -> io::Result<()> {
        match self {
            Self::System => drop_caches(),
            Self::OwnFiles => {
                for file in profile.files.iter().filter_map(|file| open_if_same(file).ok()) {
                    rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)?;
                }
                Ok(())
            }
        }
    }
}

const DROP_CACHES: &str = "/proc/sys/vm/drop_caches";

/// Writes dirty pages back and drops all clean pages, directories and inodes that nobody uses. Needs root.
pub fn drop_caches() -> io::Result<()> {
    rustix::fs::sync();
    fs::write(DROP_CACHES, "3")
}

/// The share (0 to 1) of the profile's pages that are in memory, those of files aside that other programs have mapped: libc
/// stays there for every start. `None` where this user may not know: the kernel tells only those who could write the files,
/// and the rest is sampled without reading only by reading.
pub fn resident_share(profile: &Profile) -> Option<f64> {
    let (mut resident, mut all) = (0, 0);
    let others = mapped_by_others(&profile.program);
    let is_own = |file: &&ProfiledFile| !others.contains(&file.path);
    let files: Vec<_> = profile
        .files
        .iter()
        .map(|file| Some(file).filter(is_own).and_then(|file| open_if_same(file).ok()))
        .collect();
    for read in plan(profile, PlanOptions::EXACT) {
        if let Some(file) = &files[read.file] {
            resident += resident_pages(file.as_fd(), read.range)?;
            all += read.range.len();
        }
    }
    (all > 0).then(|| resident as f64 / all as f64)
}

/// How many pages of `range` are in memory; of a file in an overlay, those of the file below. `None` where this user may not know.
fn resident_pages(file: BorrowedFd<'_>, range: PageRange) -> Option<u64> {
    if cachestat::sees(file) {
        return cachestat::cached_pages(file, range).ok();
    }
    if !may_know_residency(file).ok()? {
        return None;
    }
    let pages = FileMapping::new(file, range).ok()?.resident().ok()?;
    Some(pages.into_iter().filter(|&is_there| is_there).count() as u64)
}

/// Paths that running programs other than `program` have mapped, as far as this user may see.
fn mapped_by_others(program: &str) -> HashSet<String> {
    let is_another = |pid: &u32| {
        let executable = fs::read_link(format!("/proc/{pid}/exe"));
        executable.is_ok_and(|executable| executable != Path::new(program))
    };
    let mapped = processes().filter(is_another).flat_map(|pid| mappings(pid).unwrap_or_default());
    mapped.filter(|one| one.inode.is_some()).map(|one| one.path.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use prepage_core::PAGE_SIZE;
    use prepage_profiles::identity::profiled;

    use super::*;

    #[test]
    fn what_other_programs_keep_in_memory_says_nothing_about_a_cold_start() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let own = dir.path().join("own");
        fs::write(&own, vec![7; 4 * PAGE_SIZE as usize]).unwrap();
        // The program of this process, which is mapped as long as it runs.
        let running = std::env::current_exe().unwrap();
        fs::read(&running).unwrap();
        let files = vec![profiled(&running, 0..100).unwrap(), profiled(&own, 0..4).unwrap()];
        let of =
            |program: &str| Profile { program: program.into(), files: files.clone(), ..Profile::default() };
        // Still in memory, just written.
        assert_eq!(resident_share(&of("/another")), Some(1.0));
        let file = fs::File::open(&own).unwrap();
        prepage_sys::cachestat::evict(file.as_fd(), std::time::Duration::from_secs(60)).unwrap();
        assert_eq!(resident_share(&of("/another")), Some(0.0));
        // Where the program itself runs already, no start of it is cold.
        let share = resident_share(&of(running.to_str().unwrap())).unwrap();
        assert!(share > 0.5, "{share}");
    }
}
