//! The files that paths, directories and profiles stand for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use prepage_core::profile::Profile;
use prepage_profiles::identity::open_if_same;

use crate::range::{ByteRange, RangeError};
use crate::target::{Passed, Spot, TargetError, Wanted};

/// Finds files: those that paths stand for, and those of profiles. Each file counts once, whatever its names and however often
/// it is asked for: what is meant is all that is asked for of it. Symbolic links are followed where they are named, not where they
/// are met in a directory.
#[derive(Debug, Default)]
pub struct Walk {
    one_file_system: bool,
    /// What was found.
    pub spots: Vec<Spot>,
    /// What was not.
    pub passed: Vec<Passed>,
    /// Directories looked into.
    pub directories: u64,
    /// Where in `spots` the file of this `st_dev` and `st_ino` is.
    seen: HashMap<(u64, u64), usize>,
}

impl Walk {
    /// If `one_file_system`, finds files only on the file system of each path.
    pub fn new(one_file_system: bool) -> Self {
        Self { one_file_system, ..Self::default() }
    }

    /// Adds what `path` stands for: a file, or all regular files below a directory; of `PATH:RANGE` these bytes of each.
    pub fn add(&mut self, path: &Path) {
        let (path, range) = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => match split_range(path) {
                Some((file, Ok(range))) => (file, range),
                Some((_, Err(error))) => return self.pass(path, TargetError::Range(error)),
                None => return self.pass(path, TargetError::Open(error)),
            },
            _ => (path, ByteRange::default()),
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

    /// Adds the files of a learned profile, each with the pages that the program needs.
    pub fn add_profile(&mut self, profile: &Profile) {
        for profiled in &profile.files {
            let path = Path::new(&profiled.path);
            match open_if_same(profiled).map_err(TargetError::from).and_then(|file| {
                // Closed again: there may be more files than may be open.
                file.metadata().map_err(TargetError::Open)
            }) {
                Ok(metadata) => {
                    let pages = profiled.extents.iter().map(|extent| Wanted::Pages(extent.range));
                    self.want(path, &metadata, pages);
                }
                Err(error) => self.pass(path, error),
            }
        }
    }

    fn file(&mut self, path: &Path, range: ByteRange, metadata: &Metadata) {
        self.want(path, metadata, [Wanted::Bytes(range)]);
    }

    fn want(&mut self, path: &Path, metadata: &Metadata, wanted: impl IntoIterator<Item = Wanted>) {
        let at = *self.seen.entry((metadata.dev(), metadata.ino())).or_insert_with(|| {
            self.spots.push(Spot { path: path.to_owned(), wanted: Vec::new() });
            self.spots.len() - 1
        });
        self.spots[at].wanted.extend(wanted);
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

    use prepage_core::profile::{Fingerprint, ProfiledFile};
    use prepage_core::{PageIndex, PageRange};
    use prepage_profiles::identity::profiled;
    use rustix::fs::Mode;

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
    fn a_file_that_is_asked_for_twice_is_one_with_all_that_was_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        fs::write(&path, vec![1; 40_960]).unwrap();
        let pages = |ranges: &[&str]| {
            let mut walk = Walk::default();
            ranges.iter().for_each(|range| walk.add(&dir.path().join(format!("f{range}"))));
            walk.spots.iter().map(|spot| spot.open().unwrap().pages()).collect::<Vec<_>>()
        };
        assert_eq!(pages(&["", ":0-8k"]), [10]);
        assert_eq!(pages(&[":0-8k", ":4k-12k", ":16k-20k", ":0-8k"]), [4]);
        let learned = profiled(&path, [2, 3, 6].into_iter().chain(9..99)).unwrap();
        let changed =
            ProfiledFile { fingerprint: Fingerprint::Ends { crc: 1, size_bytes: 2 }, ..learned.clone() };
        let profile = Profile { files: vec![learned.clone(), changed, learned], ..Profile::default() };
        let mut walk = Walk::default();
        walk.add_profile(&profile);
        walk.add(&dir.path().join("f:12k-20k"));
        let asked: Vec<_> = walk.spots.iter().map(|spot| spot.open().unwrap().ranges).collect();
        let range = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
        assert_eq!(asked, [[range(2, 5), range(6, 7), range(9, 10)]]);
        assert!(matches!(walk.passed[..], [Passed { error: TargetError::Changed, .. }]));
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
        fs::create_dir(at("d")).unwrap();
        fs::write(at("d/x"), vec![1; 40_960]).unwrap();
        assert_eq!(pages("d:4k-12k"), [2], "of each file below it");
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
