//! Whose word is followed: that of root and of the user in whose name is read. One rule for stores, sidecars and ELF files.
//!
//! A profile steers reads made in its user's name. What it can do is little: bring pages of files into memory that this
//! user may read anyway. Still nobody else should decide that. So a file is followed that belongs to root or the user and
//! that nobody else may write, and of a directory the same: who puts another directory in its place cannot make it
//! root's or the user's own.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

use crate::bytes::Bytes;

/// A file or directory that somebody else could have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untrusted {
    /// Its owner's user id.
    pub owner: u32,
    /// Its permission bits.
    pub mode: u32,
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could have been written by others (owner {}, mode {:04o})", self.owner, self.mode)
    }
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It, or the directory it lies in, could have been written by others.
    #[error("{} {by}", path.display())]
    Untrusted {
        /// The file or directory.
        path: PathBuf,
        /// By whom.
        by: Untrusted,
    },
    /// A symbolic link stands on the way, or something other than a file at its end.
    #[error("{} is no regular file, or is reached through a symbolic link", path.display())]
    NotRegular {
        /// Where.
        path: PathBuf,
    },
    /// It is larger than what is read of such files.
    #[error("{} is larger than any such file", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{} cannot be read", path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

impl Refused {
    /// The same of a file whose path is `full`, of which only the name was known.
    #[must_use]
    pub fn at(mut self, full: &Path) -> Self {
        match &mut self {
            Self::Untrusted { path, .. }
            | Self::NotRegular { path }
            | Self::TooLarge { path }
            | Self::Io { path, .. } => {
                *path = full.into();
            }
        }
        self
    }
}

/// Whether only root and the user `uid` could have written what is open as `fd`.
///
/// # Errors
/// Who else could.
pub fn is_trusted(fd: impl AsFd, uid: u32) -> io::Result<Result<(), Untrusted>> {
    let stat = rustix::fs::fstat(fd)?;
    Ok(judge(stat.st_uid, stat.st_mode, uid))
}

/// What `owner` and `mode` say of a file.
pub(crate) fn judge(owner: u32, mode: u32, uid: u32) -> Result<(), Untrusted> {
    let mode = mode & 0o7777;
    let is_ours = owner == 0 || owner == uid;
    if is_ours && mode & 0o022 == 0 { Ok(()) } else { Err(Untrusted { owner, mode }) }
}

/// Makes `directory`, and those on the way to it that are missing, with the permissions `mode`, whatever the umask takes away: what
/// all are to read, root's umask must not close.
///
/// # Errors
/// As the file system says.
pub fn create_directory(directory: &Path, mode: u32) -> io::Result<()> {
    Ok(made(directory, Mode::from_raw_mode(mode)).map(drop)?)
}

/// The same; holds each directory open in which another is made, so that what replaces one on the way changes nothing.
fn made(directory: &Path, mode: Mode) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let path = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
    match rustix::fs::open(path, flags | OFlags::PATH, Mode::empty()) {
        Err(Errno::NOENT) => {}
        present => return present,
    }
    let (above, name) = (directory.parent(), directory.components().next_back());
    let (Some(above), Some(name)) = (above, name) else { return Err(Errno::NOENT) };
    let (above, name) = (made(above, mode)?, name.as_os_str());
    match rustix::fs::mkdirat(&above, name, mode) {
        Ok(()) => {}
        Err(Errno::EXIST) => return rustix::fs::openat(above, name, flags | OFlags::PATH, Mode::empty()),
        Err(error) => return Err(error),
    }
    // One that somebody has put in its place by now stays as it is.
    let made = rustix::fs::openat(above, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
    if rustix::fs::fstat(&made)?.st_uid == rustix::process::geteuid().as_raw() {
        rustix::fs::fchmod(&made, mode)?;
    }
    Ok(made)
}

/// Opens `directory` for the user `uid`.
///
/// # Errors
/// When others may write to it; `Ok(None)` where it does not exist.
pub fn open_directory(directory: &Path, uid: u32) -> Result<Option<OwnedFd>, Refused> {
    let path = || directory.to_owned();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(directory, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(Refused::Io { path: path(), source: error.into() }),
    };
    let trusted = is_trusted(&fd, uid).map_err(|source| Refused::Io { path: path(), source })?;
    trusted.map_err(|by| Refused::Untrusted { path: path(), by })?;
    Ok(Some(fd))
}

/// Opens the regular file `name` below `directory`, through no symbolic link, if only root and the user `uid` could have
/// written it. Never waits for a pipe or a device.
///
/// # Errors
/// Why not; `Ok(None)` where it does not exist.
pub fn open_below(directory: BorrowedFd<'_>, name: &Path, uid: u32) -> Result<Option<File>, Refused> {
    let path = || name.to_owned();
    let io = |error: Errno| Refused::Io { path: path(), source: error.into() };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let fd = match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(Refused::NotRegular { path: path() }),
        Err(error) => return Err(io(error)),
    };
    let stat = rustix::fs::fstat(&fd).map_err(io)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Refused::NotRegular { path: path() });
    }
    judge(stat.st_uid, stat.st_mode, uid).map_err(|by| Refused::Untrusted { path: path(), by })?;
    Ok(Some(File::from(fd)))
}

/// Reads what [`open_below`] opens, at most `limit_bytes`.
///
/// # Errors
/// As there, and where the file is larger.
pub fn read_below(
    directory: BorrowedFd<'_>,
    name: &Path,
    limit_bytes: u64,
    uid: u32,
) -> Result<Option<Vec<u8>>, Refused> {
    let Some(file) = open_below(directory, name, uid)? else { return Ok(None) };
    let io = |source: io::Error| Refused::Io { path: name.into(), source };
    let len_bytes = file.metadata().map_err(io)?.len();
    if len_bytes > limit_bytes {
        return Err(Refused::TooLarge { path: name.into() });
    }
    // One read of the whole: in pieces, each would wait for the disk by itself. A file that grows is not read for ever.
    let mut bytes = vec![0; len_bytes as usize];
    let filled = Bytes::read_at(&file, 0, &mut bytes).map_err(io)?;
    bytes.truncate(filled);
    Ok(Some(bytes))
}

/// Reads the file `name` in `directory`, as [`open_directory`] and [`read_below`] do.
///
/// # Errors
/// As there; `Ok(None)` where either does not exist.
pub fn read_in(
    directory: &Path,
    name: &Path,
    limit_bytes: u64,
    uid: u32,
) -> Result<Option<Vec<u8>>, Refused> {
    let Some(opened) = open_directory(directory, uid)? else { return Ok(None) };
    read_below(opened.as_fd(), name, limit_bytes, uid)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::fs::CWD;

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A private directory with a file `a/f` in it.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let maps = dir.path().join("maps");
        fs::create_dir_all(maps.join("a")).unwrap();
        fs::write(maps.join("a/f"), "content").unwrap();
        mode(&maps, 0o755);
        mode(&maps.join("a/f"), 0o644);
        (dir, maps)
    }

    fn read_as(maps: &Path, name: &str, uid: u32) -> Result<Option<Vec<u8>>, Refused> {
        let directory = open_directory(maps, uid)?.expect("it exists");
        read_below(directory.as_fd(), Path::new(name), 100, uid)
    }

    fn read(maps: &Path, name: &str) -> Result<Option<Vec<u8>>, Refused> {
        read_as(maps, name, rustix::process::geteuid().as_raw())
    }

    #[test]
    fn a_file_in_a_safe_directory_is_read() {
        let (_dir, maps) = place();
        assert_eq!(read(&maps, "a/f").unwrap().unwrap(), b"content");
        assert!(read(&maps, "a/g").unwrap().is_none());
        assert!(read(&maps, "b/f").unwrap().is_none());
        assert!(open_directory(&maps.join("none"), 0).unwrap().is_none());
        for unsafe_mode in [0o777, 0o1777, 0o775] {
            mode(&maps, unsafe_mode);
            assert!(matches!(read(&maps, "a/f"), Err(Refused::Untrusted { path, .. }) if path == maps));
        }
    }

    #[test]
    fn missing_directories_are_made_and_others_stay_as_they_are() {
        let (_dir, maps) = place();
        let modes = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        mode(&maps.join("a"), 0o711);
        symlink("a", maps.join("link")).unwrap();
        create_directory(&maps.join("link/b/../b/c"), 0o750).unwrap();
        assert_eq!(["a", "a/b", "a/b/c"].map(|name| modes(&maps.join(name))), [0o711, 0o750, 0o750]);
        create_directory(&maps.join("a/b"), 0o700).unwrap();
        assert_eq!(modes(&maps.join("a/b")), 0o750);
        symlink("nowhere", maps.join("dangling")).unwrap();
        for name in ["a/f", "a/f/d", "dangling", "dangling/d"] {
            assert!(create_directory(&maps.join(name), 0o700).is_err(), "{name}");
        }
        create_directory(Path::new("src"), 0o700).unwrap();
    }

    /// As somebody could whose directory root writes to.
    #[test]
    fn a_directory_on_the_way_that_is_replaced_leads_to_no_other() {
        const NAMES: usize = 1000;
        let dir = tempfile::tempdir().unwrap();
        let [theirs, ours, way] = ["theirs", "ours", "way"].map(|name| dir.path().join(name));
        [&theirs, &ours].into_iter().for_each(|one| fs::create_dir(one).unwrap());
        let names = || (0..NAMES).map(|number| number.to_string());
        for name in names() {
            fs::create_dir(ours.join(&name)).unwrap();
            mode(&ours.join(name), 0o700);
        }
        symlink(&theirs, &way).unwrap();
        let is_done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let next = dir.path().join("next");
                for to in [&ours, &theirs].into_iter().cycle() {
                    symlink(to, &next).unwrap();
                    fs::rename(&next, &way).unwrap();
                    if is_done.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                }
            });
            for name in names() {
                create_directory(&way.join(name), 0o755).unwrap();
            }
            is_done.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        for name in names() {
            assert_eq!(
                fs::metadata(ours.join(&name)).unwrap().permissions().mode() & 0o7777,
                0o700,
                "{name}"
            );
        }
    }

    #[test]
    fn links_pipes_writable_and_large_files_are_refused() {
        let (_dir, maps) = place();
        symlink("f", maps.join("a/link")).unwrap();
        symlink("a", maps.join("b")).unwrap();
        rustix::fs::mkfifoat(CWD, maps.join("a/fifo"), Mode::RUSR).unwrap();
        for name in ["a/link", "b/f", "a/fifo", "a"] {
            assert!(matches!(read(&maps, name), Err(Refused::NotRegular { .. })), "{name}");
        }
        for name in ["../maps/a/f", "/etc/passwd"] {
            assert!(matches!(read(&maps, name), Err(Refused::Io { .. })), "{name}");
        }
        fs::write(maps.join("a/large"), [7; 101]).unwrap();
        assert!(matches!(read(&maps, "a/large"), Err(Refused::TooLarge { .. })));
        mode(&maps.join("a/f"), 0o664);
        assert!(matches!(read(&maps, "a/f"), Err(Refused::Untrusted { .. })));
    }

    /// The rule is that of the user asked about, whoever asks: a service of root's reads for many.
    #[test]
    fn ours_is_what_belongs_to_the_user_that_is_asked_about() {
        let (_dir, maps) = place();
        if !prepage_testing::has(prepage_testing::Need::Root) {
            return;
        }
        chown(maps.join("a/f"), Some(65534), Some(65534)).unwrap();
        assert!(matches!(read_as(&maps, "a/f", 0), Err(Refused::Untrusted { by, .. }) if by.owner == 65534));
        assert!(matches!(read_as(&maps, "a/f", 1000), Err(Refused::Untrusted { .. })));
        assert_eq!(read_as(&maps, "a/f", 65534).unwrap().unwrap(), b"content");
    }
}
