//! Whose word is followed: that of root and of the user in whose name is read.
//!
//! A page map or profile steers reads made in its user's name. What it can do is little: bring pages of files into
//! memory that this user may read anyway. Still nobody else should decide that.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags};
use rustix::io::Errno;

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
    /// It, or a directory on the way to it, could have been written by others.
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

/// Whether only root and this user could have written the open file `fd`.
///
/// # Errors
/// Who else could.
pub fn is_trusted(fd: BorrowedFd<'_>) -> io::Result<Result<(), Untrusted>> {
    let statx = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    Ok(judge(&statx, false))
}

/// `sticky_is_safe`: in such a directory others may add names but not take away or replace ours (the bit of /tmp).
fn judge(statx: &Statx, sticky_is_safe: bool) -> Result<(), Untrusted> {
    const STICKY: u32 = 0o1000;
    let (owner, mode) = (statx.stx_uid, u32::from(statx.stx_mode) & 0o7777);
    let ours = owner == 0 || owner == rustix::process::geteuid().as_raw();
    if ours && (mode & 0o022 == 0 || (sticky_is_safe && mode & STICKY != 0)) {
        return Ok(());
    }
    Err(Untrusted { owner, mode })
}

/// Opens `directory` and checks it and every directory above it: whoever may rename one of them decides what is found
/// in it. Symbolic links on the way are followed first, and what they lead to is checked.
///
/// # Errors
/// Which one could be changed by others; `Ok(None)` where it does not exist.
pub fn open_directory(directory: &Path) -> Result<Option<OwnedFd>, Refused> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error: Errno| Refused::Io { path, source: error.into() }
    };
    // Where it is missing, as on most machines, one call tells.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = match rustix::fs::open(directory, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(error) => return Err(io(directory)(error)),
    };
    let path = directory.canonicalize().map_err(|source| Refused::Io { path: directory.into(), source })?;
    let same = |a: &Statx, b: &Statx| {
        (a.stx_dev_major, a.stx_dev_minor, a.stx_ino) == (b.stx_dev_major, b.stx_dev_minor, b.stx_ino)
    };
    let opened =
        rustix::fs::statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map_err(io(&path))?;
    for (up, ancestor) in path.ancestors().enumerate() {
        let statx = rustix::fs::statx(CWD, ancestor, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS);
        let statx = statx.map_err(io(ancestor))?;
        if FileType::from_raw_mode(statx.stx_mode.into()) != FileType::Directory
            || (up == 0 && !same(&statx, &opened))
        {
            return Err(Refused::NotRegular { path: ancestor.into() });
        }
        // What is read must lie in a directory that is ours alone; above it, others may have names of their own.
        judge(&statx, up > 0).map_err(|by| Refused::Untrusted { path: ancestor.into(), by })?;
    }
    Ok(Some(fd))
}

/// Reads the file `name` below `directory`, through no symbolic link, if it is a regular file of at most `limit_bytes`
/// that only root and this user could have written. Never waits for a pipe or a device.
///
/// # Errors
/// Why not; `Ok(None)` where it does not exist.
pub fn read_below(
    directory: BorrowedFd<'_>,
    name: &Path,
    limit_bytes: u64,
) -> Result<Option<Vec<u8>>, Refused> {
    let path = || name.to_owned();
    let io = |source: io::Error| Refused::Io { path: path(), source };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::BENEATH;
    let fd = match rustix::fs::openat2(directory, name, flags, Mode::empty(), resolve) {
        Ok(fd) => fd,
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::LOOP | Errno::NXIO) => return Err(Refused::NotRegular { path: path() }),
        Err(error) => return Err(io(error.into())),
    };
    let statx = rustix::fs::statx(fd.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    let statx = statx.map_err(|error| io(error.into()))?;
    if FileType::from_raw_mode(statx.stx_mode.into()) != FileType::RegularFile {
        return Err(Refused::NotRegular { path: path() });
    }
    judge(&statx, false).map_err(|by| Refused::Untrusted { path: path(), by })?;
    if statx.stx_size > limit_bytes {
        return Err(Refused::TooLarge { path: path() });
    }
    let mut bytes = Vec::with_capacity(statx.stx_size as usize);
    // One byte more than there should be: a file that grows is not read for ever.
    let mut limited = io::Read::take(File::from(fd), statx.stx_size);
    io::Read::read_to_end(&mut limited, &mut bytes).map_err(io)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// A private directory with a file `a/f` in it, below a sticky one as the system's temporary directory is.
    fn place() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("maps/a")).unwrap();
        fs::write(dir.path().join("maps/a/f"), "content").unwrap();
        for name in ["maps", "maps/a"] {
            mode(&dir.path().join(name), 0o755);
        }
        mode(&dir.path().join("maps/a/f"), 0o644);
        let maps = dir.path().join("maps");
        (dir, maps)
    }

    fn read(maps: &Path, name: &str) -> Result<Option<Vec<u8>>, Refused> {
        let directory = open_directory(maps)?.expect("it exists");
        read_below(directory.as_fd(), Path::new(name), 100)
    }

    #[test]
    fn a_file_in_a_chain_of_safe_directories_is_read() {
        let (_dir, maps) = place();
        assert_eq!(read(&maps, "a/f").unwrap().unwrap(), b"content");
        assert!(read(&maps, "a/g").unwrap().is_none());
        assert!(read(&maps, "b/f").unwrap().is_none());
        assert!(open_directory(&maps.join("none")).unwrap().is_none());
    }

    #[test]
    fn a_directory_others_may_change_is_refused_wherever_it_stands() {
        let (dir, maps) = place();
        mode(&maps, 0o777);
        assert!(matches!(read(&maps, "a/f"), Err(Refused::Untrusted { path, .. }) if path == maps));
        mode(&maps, 0o1777);
        assert!(matches!(read(&maps, "a/f"), Err(Refused::Untrusted { .. })), "others could add maps");
        mode(&maps, 0o755);
        mode(dir.path(), 0o777);
        assert!(matches!(read(&maps, "a/f"), Err(Refused::Untrusted { path, .. }) if path == dir.path()));
        mode(dir.path(), 0o1777);
        assert!(read(&maps, "a/f").is_ok(), "above, the sticky bit keeps others from replacing ours");
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

    #[test]
    fn a_file_of_another_user_is_refused() {
        let (_dir, maps) = place();
        if !rustix::process::geteuid().is_root() {
            return eprintln!("SKIPPED: needs root to make a file of another user");
        }
        std::os::unix::fs::chown(maps.join("a/f"), Some(65534), Some(65534)).unwrap();
        assert!(matches!(read(&maps, "a/f"), Err(Refused::Untrusted { by, .. }) if by.owner == 65534));
    }
}
