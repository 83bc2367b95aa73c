//! The files that a path, a directory or a profile stands for.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use prepage_core::PageRange;
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_profiles::identity::{Skipped, open_if_same};
use rustix::fs::{Mode, OFlags};

use crate::range::{ByteRange, RangeError};

/// A file, and which of its pages are meant. Not opened yet: a directory may hold more files than may be open.
#[derive(Clone, Debug)]
pub struct Spot {
    /// The file.
    pub path: PathBuf,
    wanted: Wanted,
}

#[derive(Clone, Debug)]
enum Wanted {
    Bytes(ByteRange),
    Profiled(ProfiledFile),
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
        Self { path: path.into(), wanted: Wanted::Bytes(ByteRange::default()) }
    }

    /// The files of a learned profile, each with the pages the program needs.
    pub fn of_profile(profile: &Profile) -> Vec<Self> {
        let spot = |file: &ProfiledFile| Self {
            path: PathBuf::from(&file.path),
            wanted: Wanted::Profiled(file.clone()),
        };
        profile.files.iter().map(spot).collect()
    }

    /// Opens the file.
    pub fn open(&self) -> Result<Opened, TargetError> {
        let file = match &self.wanted {
            Wanted::Bytes(_) => open(&self.path)?,
            Wanted::Profiled(profiled) => open_if_same(profiled).map_err(|skipped| match skipped {
                Skipped::Changed => TargetError::Changed,
                Skipped::NotRegular => TargetError::NotRegular,
                Skipped::Missing => TargetError::Open(io::ErrorKind::NotFound.into()),
                Skipped::Denied => TargetError::Open(io::ErrorKind::PermissionDenied.into()),
                Skipped::Failed => TargetError::Open(io::Error::other("no file can be opened at present")),
            })?,
        };
        let metadata = file.metadata().map_err(TargetError::Open)?;
        let size_bytes = metadata.len();
        let mut ranges = match &self.wanted {
            Wanted::Bytes(bytes) => vec![bytes.pages(size_bytes)],
            Wanted::Profiled(profiled) => profiled.extents.iter().map(|extent| extent.range).collect(),
        };
        ranges.retain(|range| !range.is_empty());
        ranges.sort();
        let inode = (metadata.dev(), metadata.ino());
        Ok(Opened { file, path: self.path.clone(), size_bytes, inode, ranges })
    }
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

/// Finds the files below paths. Each file counts once, whatever its names; symbolic links are followed where they are
/// named, not where they are met in a directory.
#[derive(Debug, Default)]
pub struct Walk {
    one_file_system: bool,
    range: ByteRange,
    /// What was found.
    pub spots: Vec<Spot>,
    /// What was not.
    pub passed: Vec<Passed>,
    /// Directories looked into.
    pub directories: u64,
    seen: HashSet<(u64, u64)>,
}

impl Walk {
    /// To find `range` of each file, where no range stands behind the path's last colon; if `one_file_system`, only on
    /// the file system of each path.
    pub fn new(range: ByteRange, one_file_system: bool) -> Self {
        Self { one_file_system, range, ..Self::default() }
    }

    /// Adds what `path` stands for: a file, `FILE:RANGE`, or all regular files below a directory.
    pub fn add(&mut self, path: &Path) {
        let (path, range) = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match split_range(path) {
                Some((file, Ok(range))) => (file, range),
                Some((_, Err(error))) => return self.pass(path, TargetError::Range(error)),
                None => return self.pass(path, TargetError::Open(error)),
            },
            _ => (path, self.range),
        };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                let device = metadata.dev();
                self.descend(path, range, device);
            }
            Ok(metadata) if metadata.is_file() => self.file(path, range, &metadata),
            Ok(_) => self.pass(path, TargetError::NotRegular),
            Err(error) => self.pass(path, TargetError::Open(error)),
        }
    }

    fn descend(&mut self, directory: &Path, range: ByteRange, device: u64) {
        let mut waiting = vec![directory.to_owned()];
        while let Some(directory) = waiting.pop() {
            let entries = fs::read_dir(&directory).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut entries = match entries {
                Ok(entries) => entries,
                Err(error) => {
                    self.pass(&directory, TargetError::Open(error));
                    continue;
                }
            };
            self.directories += 1;
            entries.sort_by_key(fs::DirEntry::file_name);
            let mut below = Vec::new();
            for entry in entries {
                let path = entry.path();
                // Of the entry itself: links are not followed.
                match entry.metadata() {
                    Ok(metadata) if self.one_file_system && metadata.dev() != device => {}
                    Ok(metadata) if metadata.is_dir() => below.push(path),
                    Ok(metadata) if metadata.is_file() => self.file(&path, range, &metadata),
                    Ok(_) => {}
                    Err(error) => self.pass(&path, TargetError::Open(error)),
                }
            }
            waiting.extend(below.into_iter().rev());
        }
    }

    fn file(&mut self, path: &Path, range: ByteRange, metadata: &Metadata) {
        // The same file under a second name has the same pages; other ranges of it are other pages.
        let whole = range == self.range;
        if !whole || self.seen.insert((metadata.dev(), metadata.ino())) {
            self.spots.push(Spot { path: path.to_owned(), wanted: Wanted::Bytes(range) });
        }
    }

    fn pass(&mut self, path: &Path, error: TargetError) {
        self.passed.push(Passed { path: path.to_owned(), error });
    }
}

/// `FILE:RANGE` taken apart, where there is a file of that name.
fn split_range(path: &Path) -> Option<(&Path, Result<ByteRange, RangeError>)> {
    let bytes = path.as_os_str().as_bytes();
    let colon = bytes.iter().rposition(|&byte| byte == b':')?;
    let file = Path::new(OsStr::from_bytes(&bytes[..colon]));
    fs::metadata(file).ok()?;
    Some((file, String::from_utf8_lossy(&bytes[colon + 1..]).parse()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn every_regular_file_below_a_directory_is_found_once() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("b/c")).unwrap();
        for name in ["a", "b/x", "b/c/y"] {
            fs::write(at(name), name).unwrap();
        }
        fs::hard_link(at("a"), at("b/a-again")).unwrap();
        symlink(at("a"), at("link")).unwrap();
        symlink(dir.path(), at("b/loop")).unwrap();
        rustix::fs::mkfifoat(rustix::fs::CWD, at("fifo"), Mode::RUSR).unwrap();
        let mut walk = Walk::default();
        walk.add(dir.path());
        let found: Vec<&Path> = walk.spots.iter().map(|s| s.path.strip_prefix(dir.path()).unwrap()).collect();
        assert_eq!(found, [Path::new("a"), Path::new("b/x"), Path::new("b/c/y")]);
        assert_eq!((walk.directories, walk.passed.len()), (3, 0));
    }

    #[test]
    fn a_range_behind_a_colon_is_taken_where_there_is_no_file_of_the_whole_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("f"), vec![1; 40_960]).unwrap();
        fs::write(at("g:4k-8k"), vec![1; 40_960]).unwrap();
        let pages = |name: &str| {
            let mut walk = Walk::default();
            walk.add(&at(name));
            walk.spots.iter().map(|spot| spot.open().unwrap().pages()).collect::<Vec<_>>()
        };
        assert_eq!(pages("f:4k-12k"), [2]);
        assert_eq!(pages("g:4k-8k"), [10]);
        let mut walk = Walk::default();
        walk.add(&at("f:12k-4k"));
        walk.add(&at("missing:4k-8k"));
        walk.add(Path::new("/dev/null"));
        assert!(matches!(
            walk.passed.iter().map(|passed| &passed.error).collect::<Vec<_>>()[..],
            [TargetError::Range(_), TargetError::Open(_), TargetError::NotRegular]
        ));
    }
}
