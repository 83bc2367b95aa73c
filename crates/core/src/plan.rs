//! A profile turned into reads: what to ask the device for, and in which order.
//!
//! Reads follow the order of first use, so that the page needed next is the page asked for next. Runs that lie
//! close together are read as one where the bytes between them cost less than another operation, and no read is
//! longer than what one POSIX_FADV_WILLNEED is sure to load.

use crate::page::{PageIndex, PageRange};
use crate::profile::Profile;

/// The longest single read, in pages. The kernel silently caps one WILLNEED at the larger of the device's
/// max_sectors_kb and read_ahead_kb, which is never below 128 KiB; and short reads keep the queue fair to the
/// program's own faults.
pub const READ_PAGES_MAX: u64 = 32;

/// How reads are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Read over holes of up to this many pages. About bandwidth ÷ operations a second of the device: on local
    /// flash and virtual disks two pages cost less than an operation.
    pub gap_pages_max: u64,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self { gap_pages_max: 2 }
    }
}

/// One read of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Index into the profile's files.
    pub file: usize,
    /// The pages: 1 to [`READ_PAGES_MAX`].
    pub range: PageRange,
}

/// The reads of `profile`, in the order in which they should be made.
pub fn plan(profile: &Profile, options: PlanOptions) -> Vec<Read> {
    let mut ranked: Vec<(u32, Read)> = Vec::new();
    for (file, profiled) in profile.files.iter().enumerate() {
        let mut extents = profiled.extents.iter().filter(|extent| !extent.range.is_empty());
        let Some(first) = extents.next() else { continue };
        let (mut range, mut rank) = (first.range, first.rank);
        for extent in extents {
            if extent.range.start().0 - range.end().0 <= options.gap_pages_max {
                range = PageRange::new(range.start(), extent.range.end());
                rank = rank.min(extent.rank);
            } else {
                split(file, range, rank, &mut ranked);
                (range, rank) = (extent.range, extent.rank);
            }
        }
        split(file, range, rank, &mut ranked);
    }
    ranked.sort_by_key(|&(rank, read)| (rank, read.file, read.range.start()));
    ranked.into_iter().map(|(_, read)| read).collect()
}

fn split(file: usize, range: PageRange, rank: u32, into: &mut Vec<(u32, Read)>) {
    let mut start = range.start().0;
    while start < range.end().0 {
        let end = range.end().0.min(start + READ_PAGES_MAX);
        into.push((rank, Read { file, range: PageRange::new(PageIndex(start), PageIndex(end)) }));
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::profile::{Evidence, FileIdentity, Fingerprint, ProfiledFile, Touches};

    fn profile(files: &[Vec<(u64, u32)>]) -> Profile {
        let files = files
            .iter()
            .enumerate()
            .map(|(at, touched)| {
                let mut touches = Touches::default();
                for &(page, rank) in touched {
                    touches.touch(PageIndex(page), rank, Evidence::Exact);
                }
                ProfiledFile {
                    path: format!("/{at}"),
                    identity: FileIdentity { device: 0, inode: 0, size_bytes: 0, mtime_ns: 0, ctime_ns: 0 },
                    fingerprint: Fingerprint::Ends(0),
                    learned_unix_s: 0,
                    extents: touches.extents(),
                }
            })
            .collect();
        Profile { files, ..Default::default() }
    }

    #[test]
    fn close_runs_join_and_the_first_used_comes_first() {
        let profile = profile(&[vec![(0, 5), (3, 6), (40, 1)], vec![(7, 0)]]);
        let reads = plan(&profile, PlanOptions { gap_pages_max: 2 });
        let shape: Vec<_> = reads.iter().map(|r| (r.file, r.range.start().0, r.range.end().0)).collect();
        assert_eq!(shape, [(1, 7, 8), (0, 40, 41), (0, 0, 4)]);
    }

    proptest! {
        #[test]
        fn every_touched_page_is_read_once_and_holes_stay_small(
            touched in prop::collection::vec((0u64..300, any::<u32>()), 1..120),
            gap_pages_max in 0u64..5,
        ) {
            let profile = profile(std::slice::from_ref(&touched));
            let wanted: BTreeSet<u64> = touched.iter().map(|&(page, _)| page).collect();
            let mut read = BTreeSet::new();
            for r in plan(&profile, PlanOptions { gap_pages_max }) {
                prop_assert!((1..=READ_PAGES_MAX).contains(&r.range.len()));
                for page in r.range.iter() {
                    prop_assert!(read.insert(page.0), "page {} is read twice", page.0);
                }
            }
            prop_assert!(wanted.is_subset(&read));
            for page in read.difference(&wanted) {
                let before = wanted.range(..page).next_back().expect("a hole has an edge");
                let after = wanted.range(page..).next().expect("a hole has an edge");
                prop_assert!(after - before - 1 <= gap_pages_max);
            }
        }
    }
}
