//! What one start of a program used, as far as it was seen: the only thing a profile learns from.
//!
//! ```text
//!  faults of armed mappings, page tables ─┐
//!  names and reads that the agent logged ─┼─► Observation ─► counters of a profile
//!  windows of faults, stalled calls ──────┘
//! ```
//! An observation says nothing about prefetching: a page is in it because the program touched it, whether somebody had
//! brought it in before or not.

use std::path::{Path, PathBuf};

use super::{FileIdentity, Fingerprint};
use crate::page::PageRange;

/// How much of a start, or of one file in it, was seen. It decides what the absence of a page means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Coverage {
    /// Every page used is listed and every page listed was used: a page that is absent was not used.
    Exact,
    /// Every page used is listed, besides neighbours that fault-around hides: a page that is absent was not used.
    Superset,
    /// Pages used may be missing: absence says nothing.
    Partial,
}

/// How well the order of first uses is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Order {
    /// Each first use was seen as it happened.
    Exact,
    /// Each first use was seen to lie between two looks, of which there were several.
    ByLooks,
    /// First uses may have been seen much later.
    Rough,
}

/// Pages of one file that a start used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedPages {
    /// The pages.
    pub range: PageRange,
    /// Position in the order of first use among all pages of the observation; smaller is earlier.
    pub rank: u32,
    /// Whether read() used them rather than a mapping.
    pub by_read: bool,
    /// Whether each of the pages was used; false for the neighbours of a fault, of which some may have been.
    pub is_sure: bool,
}

/// One file that a start used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedFile {
    /// Absolute path, free of symbolic links.
    pub path: String,
    /// Which file it was.
    pub identity: FileIdentity,
    /// What it held.
    pub content: Fingerprint,
    /// How much of its use was seen.
    pub coverage: Coverage,
    /// Sorted by page, apart from one another.
    pub pages: Vec<UsedPages>,
}

/// A name that a start looked up, found or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObservedName {
    /// Absolute path as the program gave it, symbolic links and all.
    pub path: String,
    /// Whether the program went on to list it as a directory.
    pub list: bool,
}

/// What one start used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    /// When it ended, seconds since 1970.
    pub unix_s: u64,
    /// In order of first use.
    pub files: Vec<ObservedFile>,
    /// How well their order, and that of their pages, is known.
    pub order: Order,
    /// In order of first use, each path once.
    pub names: Vec<ObservedName>,
    /// How much of what is mapped was seen: whether a mapped file that is not listed was unused.
    pub coverage: Coverage,
    /// How much of what read() used was seen: whether a file that is not listed was not read.
    pub reads_coverage: Coverage,
    /// How many of the names were seen: whether a name that is not listed was not looked up.
    pub names_coverage: Coverage,
    /// Directories below which nothing could be seen, but for those below [`Self::seen_below`] in turn: absence says nothing there.
    pub unseen_below: Vec<PathBuf>,
    /// Directories below which all could be seen, where they lie below one of the others.
    pub seen_below: Vec<PathBuf>,
    /// What could not be seen and why, a line each, for `-v`.
    pub unseen: Vec<String>,
    /// Whether the start went on when observing ended.
    pub is_cut_short: bool,
}

impl Observation {
    /// How much of one kind of use was seen of the file at `path`, which is not listed: of reads, or as a mapped file.
    pub fn coverage_of(&self, path: &str, by_read: bool) -> Coverage {
        match by_read {
            _ if self.is_unseen(path) => Coverage::Partial,
            true => self.reads_coverage,
            false => self.coverage,
        }
    }

    /// How much was seen of whether the name `path`, which is not listed, was looked up.
    pub fn coverage_of_name(&self, path: &str) -> Coverage {
        if self.is_unseen(path) { Coverage::Partial } else { self.names_coverage }
    }

    fn is_unseen(&self, path: &str) -> bool {
        let deepest = |directories: &[PathBuf]| {
            let around = directories.iter().filter(|directory| Path::new(path).starts_with(directory));
            around.map(|directory| directory.components().count()).max()
        };
        deepest(&self.unseen_below) > deepest(&self.seen_below)
    }

    /// Of a start that used nothing, seen exactly: to be filled.
    pub fn of_nothing(unix_s: u64) -> Self {
        Self {
            unix_s,
            files: Vec::new(),
            order: Order::Rough,
            names: Vec::new(),
            coverage: Coverage::Exact,
            reads_coverage: Coverage::Exact,
            names_coverage: Coverage::Exact,
            unseen_below: Vec::new(),
            seen_below: Vec::new(),
            unseen: Vec::new(),
            is_cut_short: false,
        }
    }

    /// The same of a start that was not seen to its end: absence says nothing.
    pub fn cut_short(mut self) -> Self {
        (self.coverage, self.reads_coverage) = (Coverage::Partial, Coverage::Partial);
        (self.names_coverage, self.is_cut_short) = (Coverage::Partial, true);
        self.files.iter_mut().for_each(|file| file.coverage = Coverage::Partial);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_below_an_unseen_place_may_be_seen() {
        let seen = Observation {
            unseen_below: ["/", "/home/vault"].map(PathBuf::from).to_vec(),
            seen_below: vec!["/home".into()],
            ..Observation::of_nothing(0)
        };
        let paths = ["/usr/lib/a", "/home/a", "/home/vault/a", "/homes/a"];
        let coverages = paths.map(|path| seen.coverage_of(path, false));
        assert_eq!(coverages, [Coverage::Partial, Coverage::Exact, Coverage::Partial, Coverage::Partial]);
    }
}
