//! What a program needs when it starts: which pages of which files, which lookups, in which order.
//!
//! A profile belongs to one program in one role ([`crate::role`]). It is built from [`Touches`], kept on disk
//! in the form of [`crate::profile_file`], and turned into reads by [`crate::plan`]. [`crate::counts`] says how sure
//! it is of each page; [`crate::merge`] makes one profile of two.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use crate::cold_start::ColdStart;
use crate::extent::{join, simplified};
use crate::page::PageIndex;

pub use crate::extent::{Evidence, Extent, Touches};

/// Which file it was: equal in every field means that nothing about the file changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
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
    /// When that was, seconds since 1970; 0 where it is not known.
    pub learned_unix_s: u64,
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
        self.extent_of(page).is_some()
    }

    /// The extent that holds `page`.
    pub fn extent_of(&self, page: PageIndex) -> Option<&Extent> {
        let after = self.extents.partition_point(|extent| extent.range.start() <= page);
        self.extents[..after].last().filter(|extent| extent.range.contains(page))
    }

    /// Whether `other` speaks of the same content of the same file.
    pub fn is_same_content(&self, other: &Self) -> bool {
        (&self.path, &self.fingerprint, self.identity.size_bytes)
            == (&other.path, &other.fingerprint, other.identity.size_bytes)
    }

    /// The rank of the page used first.
    pub fn rank(&self) -> u32 {
        self.extents.iter().map(|extent| extent.rank).min().unwrap_or(u32::MAX)
    }
}

/// A name the program asks the kernel for. The answer comes from directories and inodes, which are read from
/// the device like any page, and it costs the same when it is "no such file".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lookup {
    /// Position in the order of first use among all names of the profile; smaller is earlier.
    pub rank: u32,
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
    /// Cold starts to come in which every page fault is to be watched, because the program seems to have changed what
    /// it uses.
    pub looks_due: u32,
    /// Cold starts to come in which no more such looks are asked for: the last ones are just over.
    pub looks_rest: u32,
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
    /// The last cold starts, oldest first: what the profile was worth.
    pub starts: Vec<ColdStart>,
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
        let mut places: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, file) in self.files.iter().enumerate() {
            places.entry(file.path.clone()).or_default().push(at);
        }
        let mut outdated = BTreeSet::new();
        for mut file in files {
            let is_known = |at: &usize| self.files[*at].is_same_content(&file);
            if file.extents.is_empty() && !places.get(&file.path).is_some_and(|at| at.iter().any(is_known)) {
                // That a file is in another place tells nothing of one that is not known.
                continue;
            }
            for extent in &mut file.extents {
                extent.rank = extent.rank.saturating_add(base);
            }
            let Some(contents) = places.get_mut(&file.path) else {
                places.insert(file.path.clone(), vec![self.files.len()]);
                self.files.push(file);
                changed = true;
                continue;
            };
            // What was just seen is what is there; other contents of that file are out of date.
            let same = contents.iter().position(|&at| self.files[at].is_same_content(&file));
            let current = contents.swap_remove(same.unwrap_or(0));
            outdated.extend(contents.drain(..));
            contents.push(current);
            if same.is_some() {
                changed |= self.files[current].absorb(&file);
            } else {
                self.files[current] = file;
                changed = true;
            }
        }
        changed |= !outdated.is_empty();
        let mut at = 0..self.files.len();
        self.files.retain(|_| at.next().is_some_and(|at| !outdated.contains(&at)));
        let mut known: HashMap<String, usize> =
            self.lookups.iter().enumerate().map(|(at, lookup)| (lookup.path.clone(), at)).collect();
        let base = self.lookups.last().map_or(0, |last| last.rank.saturating_add(1));
        for mut lookup in lookups {
            lookup.rank = lookup.rank.saturating_add(base);
            if let Some(&at) = known.get(&lookup.path) {
                changed |= lookup.list && !self.lookups[at].list;
                self.lookups[at].list |= lookup.list;
            } else {
                // Ranks ascend in a profile, whatever the order of what is added.
                lookup.rank = self.lookups.last().map_or(0, |last| last.rank).max(lookup.rank);
                known.insert(lookup.path.clone(), self.lookups.len());
                self.lookups.push(lookup);
                changed = true;
            }
        }
        changed
    }
}

impl ProfiledFile {
    /// See [`Profile::absorb`].
    fn absorb(&mut self, newer: &Self) -> bool {
        let extents = simplified(&join(&self.extents, &newer.extents));
        let changed = extents != self.extents || self.identity != newer.identity;
        self.extents = extents;
        self.identity = newer.identity;
        self.learned_unix_s = self.learned_unix_s.max(newer.learned_unix_s);
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::page::PageRange;
    use crate::profile_file;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    fn file(path: &str, fingerprint: u32, ranges: &[(u64, u64, u32)]) -> ProfiledFile {
        ProfiledFile {
            path: path.into(),
            identity: FileIdentity { device: 1, inode: 2, size_bytes: 1 << 20, mtime_ns: 3, ctime_ns: 4 },
            fingerprint: Fingerprint::Ends(fingerprint),
            learned_unix_s: 5,
            extents: ranges
                .iter()
                .map(|&(start, end, rank)| Extent::new(range(start, end), rank, Evidence::Seen))
                .collect(),
        }
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
    fn a_file_without_pages_is_taken_for_the_same_elsewhere_or_not_at_all() {
        let known = Profile { files: vec![file("/a", 1, &[(0, 4, 0)])], ..Profile::default() };
        let mut profile = known.clone();
        assert!(!profile.absorb(vec![file("/a", 2, &[]), file("/b", 1, &[])], vec![]));
        assert_eq!(profile, known);
        let mut moved = file("/a", 1, &[]);
        moved.identity.inode = 9;
        assert!(profile.absorb(vec![moved], vec![]));
        assert_eq!((profile.files[0].identity.inode, profile.files[0].extents.len()), (9, 1));
    }

    #[test]
    fn of_several_contents_the_one_that_is_there_stays() {
        let files =
            vec![file("/a", 1, &[(0, 4, 0)]), file("/b", 1, &[(0, 1, 2)]), file("/a", 2, &[(7, 9, 1)])];
        let mut profile = Profile { files, ..Profile::default() };
        assert!(profile.absorb(vec![file("/a", 2, &[(7, 8, 0)])], vec![]));
        assert_eq!(profile.files, [file("/b", 1, &[(0, 1, 2)]), file("/a", 2, &[(7, 9, 1)])]);
    }

    #[test]
    fn a_lookup_stands_once_and_remembers_that_it_was_listed() {
        let mut profile = Profile::default();
        let lookup = |list| vec![Lookup { rank: 0, path: "/usr".into(), list }];
        assert!(profile.absorb(vec![], lookup(false)));
        assert!(profile.absorb(vec![], lookup(true)));
        assert!(!profile.absorb(vec![], lookup(false)));
        assert_eq!(profile.lookups, lookup(true));
    }

    #[test]
    fn names_in_any_order_make_a_profile_that_is_read_as_it_was_written() {
        let lookup = |rank, path: &str| Lookup { rank, path: path.into(), list: false };
        let mut profile = Profile::default();
        profile.absorb(vec![], vec![lookup(0, "/a"), lookup(7, "/b"), lookup(2, "/c"), lookup(0, "/d")]);
        profile.absorb(vec![], vec![lookup(3, "/e"), lookup(1, "/f")]);
        assert_eq!(profile.lookups[0].path, "/a");
        assert!(profile.lookups.is_sorted_by_key(|lookup| lookup.rank), "{:?}", profile.lookups);
        assert_eq!(profile_file::decode(&profile_file::encode(&profile)), Ok(profile));
    }
}
