//! What a program needs when it starts: which pages of which files, which lookups, in which order.
//!
//! A profile belongs to one program in one role ([`crate::role`]). It is built from [`Touches`], kept on disk
//! in the form of [`crate::profile_file`], and turned into reads by [`crate::plan`].

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use crate::page::{PageIndex, PageRange};

/// How well it is known that the pages of an extent are touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Evidence {
    /// Each page was seen to be brought in for the program alone, with the kernel's read-ahead off.
    Exact,
    /// A fault or a read() named these pages.
    Seen,
    /// Neighbours of a fault. The kernel's fault-around maps up to 16 cached pages at once and hides which of
    /// them the program then touches.
    Near,
}

/// A run of pages of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The pages.
    pub range: PageRange,
    /// Position in the order of first use among all pages of the profile; smaller is earlier.
    pub rank: u32,
    /// How well they are known.
    pub evidence: Evidence,
}

/// Which file it was: equal in every field means that nothing about the file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileIdentity {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// `st_size`.
    pub size_bytes: u64,
    /// Last change of the content, nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Last change of content or inode, nanoseconds since 1970. Cannot be set by a program, so a file replaced
    /// by one of equal size and copied mtime still differs here.
    pub ctime_ns: i64,
}

/// What the file holds: decides when the [`FileIdentity`] differs although the content may not (a package
/// installed again, an image mounted elsewhere).
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Fingerprint {
    /// The ELF build-id.
    BuildId(Vec<u8>),
    /// CRC-32 of the first and the last page, for files without one. Compared together with the size.
    Ends(u32),
}

/// One file of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfiledFile {
    /// Absolute path, free of symbolic links.
    pub path: String,
    /// Which file it was when its pages were last learned.
    pub identity: FileIdentity,
    /// What it held then.
    pub fingerprint: Fingerprint,
    /// Sorted by page, apart from one another.
    pub extents: Vec<Extent>,
}

impl ProfiledFile {
    /// Pages in all extents.
    pub fn pages(&self) -> u64 {
        self.extents.iter().map(|extent| extent.range.len()).sum()
    }

    /// Whether one of the extents holds `page`.
    pub fn contains(&self, page: PageIndex) -> bool {
        let after = self.extents.partition_point(|extent| extent.range.start() <= page);
        after > 0 && self.extents[after - 1].range.contains(page)
    }
}

/// A name the program asks the kernel for. The answer comes from directories and inodes, which are read from
/// the device like any page, and it costs the same when it is "no such file".
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lookup {
    /// Absolute path as the program gave it, symbolic links and all.
    pub path: String,
    /// Whether the program went on to list it as a directory.
    pub list: bool,
}

/// What the profile knows of its own past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct History {
    /// First learned, seconds since 1970.
    pub created_unix_s: u64,
    /// Last changed, seconds since 1970.
    pub updated_unix_s: u64,
    /// Runs of `prepage learn`.
    pub exact_runs: u32,
    /// Runs of `prepage run` that found something new.
    pub refining_runs: u32,
}

/// Everything known about one program in one role.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Absolute path of the executable.
    pub program: String,
    /// How it was called, as [`crate::role::role`] gives it.
    pub role: String,
    /// The command line last learned from.
    pub command: Vec<String>,
    /// Where the knowledge comes from.
    pub history: History,
    /// In order of first use.
    pub files: Vec<ProfiledFile>,
    /// In order of first use, each path once.
    pub lookups: Vec<Lookup>,
}

impl Profile {
    /// Pages in all files.
    pub fn pages(&self) -> u64 {
        self.files.iter().map(ProfiledFile::pages).sum()
    }

    /// The rank that a page learned now gets: after all that are known.
    pub fn next_rank(&self) -> u32 {
        let last = self.files.iter().flat_map(|file| &file.extents).map(|extent| extent.rank).max();
        last.map_or(0, |rank| rank.saturating_add(1))
    }

    /// Adds what a later run touched. Pages already known keep their rank; better evidence replaces worse.
    /// Files and lookups that are new come last. Returns whether anything changed.
    pub fn absorb(&mut self, files: Vec<ProfiledFile>, lookups: Vec<Lookup>) -> bool {
        let mut changed = false;
        let base = self.next_rank();
        let places: HashMap<String, usize> =
            self.files.iter().enumerate().map(|(at, file)| (file.path.clone(), at)).collect();
        for mut file in files {
            for extent in &mut file.extents {
                extent.rank = extent.rank.saturating_add(base);
            }
            match places.get(&file.path) {
                None => {
                    self.files.push(file);
                    changed = true;
                }
                Some(&at) => changed |= self.files[at].absorb(file),
            }
        }
        let mut known: HashMap<String, usize> =
            self.lookups.iter().enumerate().map(|(at, lookup)| (lookup.path.clone(), at)).collect();
        for lookup in lookups {
            if let Some(&at) = known.get(&lookup.path) {
                changed |= lookup.list && !self.lookups[at].list;
                self.lookups[at].list |= lookup.list;
            } else {
                known.insert(lookup.path.clone(), self.lookups.len());
                self.lookups.push(lookup);
                changed = true;
            }
        }
        changed
    }
}

impl ProfiledFile {
    /// See [`Profile::absorb`]. A file whose content changed starts over with what is known of the new one.
    fn absorb(&mut self, newer: Self) -> bool {
        if self.fingerprint != newer.fingerprint || self.identity.size_bytes != newer.identity.size_bytes {
            *self = newer;
            return true;
        }
        let mut pages = Touches::default();
        for extent in self.extents.iter().chain(&newer.extents) {
            pages.touch_range(extent.range, extent.rank, extent.evidence);
        }
        let extents = pages.extents();
        let changed = extents != self.extents || self.identity != newer.identity;
        self.extents = extents;
        self.identity = newer.identity;
        changed
    }
}

/// The pages of one file that a run touched, while it is being watched.
#[derive(Clone, Debug, Default)]
pub struct Touches {
    pages: BTreeMap<PageIndex, (u32, Evidence)>,
}

impl Touches {
    /// Notes that `page` was used as the `rank`-th of its run. The first use and the best evidence stay.
    pub fn touch(&mut self, page: PageIndex, rank: u32, evidence: Evidence) {
        self.pages
            .entry(page)
            .and_modify(|known| *known = (known.0.min(rank), known.1.min(evidence)))
            .or_insert((rank, evidence));
    }

    /// Notes every page of `range`.
    pub fn touch_range(&mut self, range: PageRange, rank: u32, evidence: Evidence) {
        for page in range.iter() {
            self.touch(page, rank, evidence);
        }
    }

    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// Forgets pages from `end` on: what lies beyond the end of the file.
    pub fn truncate(&mut self, end: PageIndex) {
        self.pages.split_off(&end);
    }

    /// The touched pages as runs: neighbours of the same evidence join, and the earliest use leads.
    pub fn extents(&self) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (&page, &(rank, evidence)) in &self.pages {
            let end = PageIndex(page.0 + 1);
            match extents.last_mut() {
                Some(last) if last.range.end() == page && last.evidence == evidence => {
                    last.range = PageRange::new(last.range.start(), end);
                    last.rank = last.rank.min(rank);
                }
                _ => extents.push(Extent { range: PageRange::new(page, end), rank, evidence }),
            }
        }
        extents
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    fn file(path: &str, fingerprint: u32, ranges: &[(u64, u64, u32)]) -> ProfiledFile {
        ProfiledFile {
            path: path.into(),
            identity: FileIdentity { device: 1, inode: 2, size_bytes: 1 << 20, mtime_ns: 3, ctime_ns: 4 },
            fingerprint: Fingerprint::Ends(fingerprint),
            extents: ranges
                .iter()
                .map(|&(start, end, rank)| Extent {
                    range: range(start, end),
                    rank,
                    evidence: Evidence::Seen,
                })
                .collect(),
        }
    }

    #[test]
    fn touches_join_into_extents_that_keep_the_first_use() {
        let mut touches = Touches::default();
        touches.touch(PageIndex(5), 9, Evidence::Exact);
        touches.touch(PageIndex(4), 12, Evidence::Exact);
        touches.touch(PageIndex(4), 2, Evidence::Near);
        touches.touch(PageIndex(9), 1, Evidence::Exact);
        let extents = touches.extents();
        assert_eq!(extents.len(), 2);
        assert_eq!(extents[0], Extent { range: range(4, 6), rank: 2, evidence: Evidence::Exact });
        assert_eq!(extents[1].rank, 1);
    }

    #[test]
    fn absorbing_the_same_again_changes_nothing() {
        let mut profile =
            Profile { files: vec![file("/a", 1, &[(0, 4, 0), (8, 9, 1)])], ..Default::default() };
        assert!(!profile.absorb(vec![file("/a", 1, &[(1, 3, 0)])], vec![]));
        assert!(profile.absorb(vec![file("/a", 1, &[(4, 6, 0)])], vec![]));
        assert_eq!(profile.files[0].extents[0].range, range(0, 6));
        assert_eq!(profile.files[0].extents[0].rank, 0);
        assert!(profile.files[0].contains(PageIndex(5)) && !profile.files[0].contains(PageIndex(6)));
    }

    #[test]
    fn a_file_with_new_content_starts_over() {
        let mut profile = Profile { files: vec![file("/a", 1, &[(0, 4, 0)])], ..Default::default() };
        assert!(profile.absorb(vec![file("/a", 2, &[(9, 10, 0)])], vec![]));
        assert_eq!(profile.files[0].extents.len(), 1);
        assert_eq!(profile.files[0].extents[0].range, range(9, 10));
    }

    #[test]
    fn a_lookup_stands_once_and_remembers_that_it_was_listed() {
        let mut profile = Profile::default();
        let lookup = |list| vec![Lookup { path: "/usr".into(), list }];
        assert!(profile.absorb(vec![], lookup(false)));
        assert!(profile.absorb(vec![], lookup(true)));
        assert!(!profile.absorb(vec![], lookup(false)));
        assert_eq!(profile.lookups, lookup(true));
    }
}
