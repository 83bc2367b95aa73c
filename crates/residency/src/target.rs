//! A file and the pages of it that are meant.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_profiles::identity::Skipped;
use rustix::fs::{Mode, OFlags};

use crate::range::{ByteRange, RangeError};

/// A file, and which of its pages are meant. Not opened yet: a directory may hold more files than may be open.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The file.
    pub path: PathBuf,
    /// All that any of these covers.
    pub(crate) wanted: Vec<Wanted>,
}

/// Pages of a file, as they were asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wanted {
    Bytes(ByteRange),
    Pages(PageRange),
}

/// A file that is open, with the pages that are meant.
#[derive(Debug)]
pub struct Opened {
    /// The file, open for reading.
    pub file: File,
    /// Where it was found.
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
    /// `st_dev` and `st_ino`.
    pub inode: (u64, u64),
    /// The pages meant: sorted, apart from one another, within the file.
    pub ranges: Vec<PageRange>,
}

/// Why a path stands for nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It cannot be looked at.
    #[error("cannot be opened")]
    Open(#[source] io::Error),
    /// A device, pipe or socket.
    #[error("no regular file")]
    NotRegular,
    /// The profile speaks of another file.
    #[error("not the file that was learned")]
    Changed,
    /// No file, and no file with a range either.
    #[error("no such file, and no range behind its last colon")]
    Range(#[source] RangeError),
}

impl From<Skipped> for TargetError {
    fn from(skipped: Skipped) -> Self {
        match skipped {
            Skipped::Changed => Self::Changed,
            Skipped::NotRegular => Self::NotRegular,
            Skipped::Missing => Self::Open(io::ErrorKind::NotFound.into()),
            Skipped::Denied => Self::Open(io::ErrorKind::PermissionDenied.into()),
            Skipped::TooMany | Skipped::Failed => {
                Self::Open(io::Error::other("no file can be opened at present"))
            }
        }
    }
}

/// A file that was passed over.
#[derive(Debug)]
pub struct Passed {
    /// Where it is.
    pub path: PathBuf,
    /// Why.
    pub error: TargetError,
}

impl Spot {
    /// All of the file at `path`.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), wanted: vec![Wanted::Bytes(ByteRange::default())] }
    }

    /// Opens the file.
    ///
    /// # Errors
    /// Where it cannot be opened, or is no regular file.
    pub fn open(&self) -> Result<Opened, TargetError> {
        let file = open(&self.path)?;
        let metadata = file.metadata().map_err(TargetError::Open)?;
        let size_bytes = metadata.len();
        let ranges = united(self.wanted.iter().map(|wanted| wanted.within(size_bytes)));
        let inode = (metadata.dev(), metadata.ino());
        Ok(Opened { file, path: self.path.clone(), size_bytes, inode, ranges })
    }

    /// Opens it; where that cannot be done it is `passed` over.
    pub(crate) fn open_or_pass(&self, passed: &mut Vec<Passed>) -> Option<Opened> {
        let pass = |error| passed.push(Passed { path: self.path.clone(), error });
        self.open().map_err(pass).ok()
    }
}

impl Wanted {
    /// The pages of a file of `size_bytes`.
    fn within(self, size_bytes: u64) -> PageRange {
        let end = PageIndex(size_bytes.div_ceil(PAGE_SIZE));
        match self {
            Self::Bytes(bytes) => bytes.pages(size_bytes),
            Self::Pages(pages) => PageRange::new(pages.start().min(end), pages.end().min(end)),
        }
    }
}

/// What `ranges` cover together: sorted, apart from one another.
fn united(ranges: impl Iterator<Item = PageRange>) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = ranges.filter(|range| !range.is_empty()).collect();
    ranges.sort();
    let mut united: Vec<PageRange> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match united.last_mut() {
            Some(last) if range.start() <= last.end() => {
                *last = PageRange::new(last.start(), last.end().max(range.end()));
            }
            _ => united.push(range),
        }
    }
    united
}

impl Opened {
    /// How many pages are meant.
    pub fn pages(&self) -> u64 {
        self.ranges.iter().map(|range| range.len()).sum()
    }
}

/// Opens a regular file without side effects on whatever else may stand there.
fn open(path: &Path) -> Result<File, TargetError> {
    let is_regular = |metadata: io::Result<Metadata>| match metadata {
        Ok(metadata) if metadata.is_file() => Ok(()),
        Ok(_) => Err(TargetError::NotRegular),
        Err(error) => Err(TargetError::Open(error)),
    };
    is_regular(fs::metadata(path))?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let open = |flags| rustix::fs::open(path, flags, Mode::empty());
    // Looking leaves no trace where that is allowed.
    let fd = open(flags | OFlags::NOATIME).or_else(|_| open(flags));
    let file = File::from(fd.map_err(|error| TargetError::Open(error.into()))?);
    is_regular(file.metadata())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_or_meet_are_one() {
        let range = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
        let given =
            [range(8, 9), range(0, 2), range(4, 4), range(1, 3), range(3, 5), range(9, 12), range(20, 21)];
        assert_eq!(united(given.into_iter()), [range(0, 5), range(8, 12), range(20, 21)]);
    }
}
