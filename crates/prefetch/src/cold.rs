//! Making the cache cold, and seeing whether it is.

use std::fs;
use std::io;
use std::os::fd::AsFd;

use prepage_core::plan::{PlanOptions, plan};
use prepage_core::profile::Profile;
use prepage_sys::cachestat::cached_pages;
use rustix::fs::Advice;

use crate::identity::open_if_same;

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

/// How often somebody dropped the page cache since the machine started; 0 where the kernel does not say.
pub fn drops() -> u64 {
    let vmstat = fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = vmstat.lines().find_map(|line| line.strip_prefix("drop_pagecache "));
    count.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The share (0 to 1) of the profile's pages that are in memory; `None` where this user may not know: the kernel
/// tells only those who could write the files, and the rest is sampled without reading only by reading.
pub fn resident_share(profile: &Profile) -> Option<f64> {
    let (mut resident, mut all) = (0, 0);
    let files: Vec<_> = profile.files.iter().map(|file| open_if_same(file).ok()).collect();
    for read in plan(profile, PlanOptions::EXACT) {
        if let Some(file) = &files[read.file] {
            resident += cached_pages(file.as_fd(), read.range).ok()?;
            all += read.range.len();
        }
    }
    (all > 0).then(|| resident as f64 / all as f64)
}
