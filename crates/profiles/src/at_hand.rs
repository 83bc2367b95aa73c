//! Files as far as they are in memory: whoever asks here waits for no disk and no network. An error says that memory does not answer,
//! and nothing of the file, but for one that [`is_absent`].
//!
//! Only file systems on a device of the machine's own are asked (a device number other than 0:…): what FUSE and network file systems
//! know may be out of date, and asking them may take for ever. So do those without a device that keep their files in memory or have another
//! below them (tmpfs, overlayfs, btrfs).

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use prepage_core::profile::FileIdentity;
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2, readlinkat_raw,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::identity::identity_in;
use crate::trust::judge;

/// A file or directory that is known to be there, not open to read from.
#[derive(Debug)]
pub struct AtHand<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    resolve: ResolveFlags,
    place: OwnedFd,
    statx: Statx,
}

/// What is at `path`; links are followed.
///
/// # Errors
/// See above. Before Linux 5.12 there is always one.
pub fn at_hand(path: &Path) -> Result<AtHand<'_>, Errno> {
    AtHand::below(CWD, path, ResolveFlags::empty())
}

/// Whether an error says that there is no such file.
pub fn is_absent(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR)
}

/// The absolute `path`, which was found in memory, free of symbolic links.
///
/// # Errors
/// As realpath(3). The starter's takes memory of a heap of its own, and two pages of stack: nobody who has no links needs it.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let may_be_link = |path: &Path| readlinkat_raw(CWD, path, &mut [0u8; 1]) != Err(Errno::INVAL);
    let is_upwards = path.components().any(|component| component == Component::ParentDir);
    if is_upwards || path.ancestors().any(may_be_link) {
        path.canonicalize()
    } else {
        Ok(path.components().collect())
    }
}

impl<'a> AtHand<'a> {
    fn below(directory: BorrowedFd<'a>, path: &'a Path, resolve: ResolveFlags) -> Result<Self, Errno> {
        let resolve = resolve | ResolveFlags::CACHED;
        let place = openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
        let statx = statx(&place)?;
        if statx.stx_dev_major == 0 {
            return Err(Errno::AGAIN);
        }
        Ok(Self { directory, path, resolve, place, statx })
    }

    /// The file `name` below this directory, reached through no symbolic link.
    ///
    /// # Errors
    /// As [`at_hand`].
    pub fn file<'b>(&'b self, name: &'b Path) -> Result<AtHand<'b>, Errno> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
        AtHand::below(self.place.as_fd(), name, resolve)
    }

    /// Whether only root and the user `uid` could have written it.
    pub fn is_trusted(&self, uid: u32) -> bool {
        judge(self.statx.stx_uid, self.statx.stx_mode.into(), uid).is_ok()
    }

    fn is(&self, kind: FileType) -> bool {
        FileType::from_raw_mode(self.statx.stx_mode.into()) == kind
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.is(FileType::Directory)
    }

    /// When its content changed last.
    pub fn modified(&self) -> SystemTime {
        let seconds = self.statx.stx_mtime.tv_sec.try_into().unwrap_or(0);
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    /// Which file it is.
    pub fn identity(&self) -> FileIdentity {
        identity_in(&self.statx)
    }

    /// Opens it to read from.
    ///
    /// # Errors
    /// Where it is no regular file, or may not be read.
    pub fn open(&self) -> Result<File, Errno> {
        if !self.is(FileType::RegularFile) {
            return Err(Errno::INVAL);
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = File::from(openat2(self.directory, self.path, flags, Mode::empty(), self.resolve)?);
        // What was looked at may have been replaced before it was opened.
        if identity_in(&statx(&file)?) == self.identity() { Ok(file) } else { Err(Errno::AGAIN) }
    }

    /// All that it holds, if that is no more than `limit_bytes`.
    ///
    /// # Errors
    /// As [`Self::open`], and where a page of it is not in memory.
    pub fn read(&self, limit_bytes: u64) -> Result<Vec<u8>, Errno> {
        if self.statx.stx_size > limit_bytes {
            return Err(Errno::FBIG);
        }
        let file = self.open()?;
        let mut bytes = vec![0; self.statx.stx_size as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            let mut rest = [IoSliceMut::new(&mut bytes[filled..])];
            match preadv2(&file, &mut rest, filled as u64, ReadWriteFlags::NOWAIT)? {
                0 => return Err(Errno::AGAIN),
                count => filled += count,
            }
        }
        Ok(bytes)
    }
}

fn statx(place: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(place, "", flags, StatxFlags::BASIC_STATS)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use prepage_sys::cachestat::evict;
    use prepage_testing::{Need, has, skip};

    use super::*;

    #[test]
    fn what_is_in_memory_is_told_and_nothing_else() {
        let here = env!("CARGO_MANIFEST_DIR");
        if !has(Need::Eviction(here.into())) {
            return;
        }
        let dir = tempfile::tempdir_in(here).unwrap();
        let path = dir.path().join("file");
        fs::write(&path, vec![7; 3 * 4096 + 1]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        if fs::metadata(&path).unwrap().dev() >> 8 == 0 {
            return skip(Need::Eviction(here.into()), "no device of its own");
        }
        let directory = at_hand(dir.path()).unwrap();
        assert!(directory.is_directory() && directory.is_trusted(rustix::process::geteuid().as_raw()));
        assert_eq!(directory.open().unwrap_err(), Errno::INVAL);
        let found = directory.file("file".as_ref()).unwrap();
        assert_eq!(found.identity(), crate::identity::identity_of(&file).unwrap());
        assert_eq!(found.read(1 << 20).unwrap(), fs::read(&path).unwrap());
        assert_eq!(found.read(4096).unwrap_err(), Errno::FBIG);
        // What is not there is on its way from then on, and may be there before the answer is.
        let mut answers = (0..100).map(|_| {
            evict(file.as_fd(), Duration::from_secs(1)).unwrap();
            found.read(1 << 20).map(drop)
        });
        assert!(answers.any(|answer| answer == Err(Errno::AGAIN)));
        // Nobody has asked for that name yet.
        let none = dir.path().join("none");
        assert_eq!(at_hand(&none).unwrap_err(), Errno::AGAIN);
        assert!(!none.exists() && is_absent(at_hand(&none).unwrap_err()));
        // Another file in its place is not the one that was found.
        fs::rename(&path, dir.path().join("old")).unwrap();
        fs::write(&path, "new").unwrap();
        assert_eq!(found.open().unwrap_err(), Errno::AGAIN);
        // A pipe would wait for who writes into it, and let that go.
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
        assert_eq!(at_hand(&pipe).unwrap().open().unwrap_err(), Errno::INVAL);
    }

    #[test]
    fn paths_are_resolved_as_realpath_does() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/file"), "").unwrap();
        for (link, target) in
            [("dir", "a/b"), ("link", "a/b/file"), ("twice", "link"), ("long", "a/./b/../b/file")]
        {
            std::os::unix::fs::symlink(target, dir.join(link)).unwrap();
        }
        for path in
            ["a/b/file", "a//b/./file", "a/b/../b/file", "dir/file", "link", "twice", "long", "dir/.."]
        {
            let path = dir.join(path);
            assert_eq!(resolved(&path).unwrap(), path.canonicalize().unwrap(), "{}", path.display());
        }
        assert!(resolved(&dir.join("none")).is_err() && resolved(&dir.join("link/file")).is_err());
        assert_eq!(resolved("/".as_ref()).unwrap(), Path::new("/"));
    }

    /// Whom to ask may be on another machine, and not answer.
    #[test]
    fn file_systems_without_a_device_are_not_asked() {
        assert_eq!(at_hand("/proc/self/stat".as_ref()).unwrap_err(), Errno::AGAIN);
    }
}
