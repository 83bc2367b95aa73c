//! A file replaced as a whole: a new one is written beside it and renamed over it, all in one directory that is held open, so that
//! nobody who may rename directories can make the writer write elsewhere.
//!
//! Whoever opens the file meanwhile finds the old one or the new one, and never a part. The new one is on the disk before it takes the name: a
//! full disk, or a machine that stops, leaves the old one.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, Mode, OFlags, fchmod, fstat, fsync, open, openat, readlinkat, renameat, stat, unlinkat,
};
use rustix::io::Errno;

/// Names that are tried: more than one where a process of the same number was killed, or runs in another container.
const NAMES_MAX: u32 = 1000;

/// A new file under a name of its own. Dropped before it takes its place, it is removed.
#[derive(Debug)]
pub struct NewFile<'a> {
    directory: BorrowedFd<'a>,
    name: OsString,
    file: File,
    is_placed: bool,
}

impl<'a> NewFile<'a> {
    /// Makes an empty file in `directory`, beside those of other writers, with the permissions `mode` as far as the umask allows.
    ///
    /// # Errors
    /// See openat(2).
    pub fn create(directory: BorrowedFd<'a>, mode: u32) -> io::Result<Self> {
        for number in 0..NAMES_MAX {
            match Self::named(directory, format!(".prepage-{}-{number}", std::process::id()).into(), mode) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made,
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Makes an empty file in `directory` that is to replace the file `name` there, with the permissions `mode` as far as the umask allows. What
    /// a writer of that name that was killed left behind is removed, so writers take turns.
    ///
    /// # Errors
    /// See unlinkat(2) and openat(2).
    pub fn of_only_writer(directory: BorrowedFd<'a>, name: &Path, mode: u32) -> io::Result<Self> {
        let hidden: OsString = [".".as_ref(), name.as_os_str(), ".new".as_ref()].into_iter().collect();
        match unlinkat(directory, &hidden, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Self::named(directory, hidden, mode),
            Err(error) => Err(error.into()),
        }
    }

    fn named(directory: BorrowedFd<'a>, name: OsString, mode: u32) -> io::Result<Self> {
        // EXCL neither follows a link nor opens what somebody put there.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(directory, &name, flags, Mode::from_raw_mode(mode))?.into();
        Ok(Self { directory, name, file, is_placed: false })
    }

    /// The file, open for reading and writing.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives the file, once its bytes are on the disk, the name `name`, which an older file may have.
    ///
    /// # Errors
    /// See fdatasync(2) and rename(2). An older file stays as it was, and the new one is removed.
    pub fn replace(self, name: &Path) -> io::Result<()> {
        let directory = self.directory;
        self.place(name)?;
        // The rename is done; a file system that cannot make it durable by this call does so in its own time.
        let _ = fsync(directory);
        Ok(())
    }

    /// As [`Self::replace`], for who has to know that the new name is on the disk, and syncs the directory.
    ///
    /// # Errors
    /// As `replace`.
    pub fn place(self, name: &Path) -> io::Result<()> {
        self.file.sync_data()?;
        self.take_name(name)
    }

    fn take_name(mut self, name: &Path) -> io::Result<()> {
        renameat(self.directory, &self.name, self.directory, name)?;
        self.is_placed = true;
        Ok(())
    }
}

impl Drop for NewFile<'_> {
    fn drop(&mut self) {
        if !self.is_placed {
            let _ = unlinkat(self.directory, &self.name, AtFlags::empty());
        }
    }
}

/// Where `path` leads, as far as links go.
///
/// # Errors
/// ELOOP where there are too many links, EACCES where somebody else may have put one there: as where the kernel follows links with
/// fs.protected_symlinks (proc_sys_fs(5)).
pub fn led_to(path: &Path) -> Result<PathBuf, Errno> {
    /// The kernel follows no more (path_resolution(7)).
    const LINKS_MAX: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..=LINKS_MAX {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Whoever writes there says why that fails.
        let Ok(link) = open(&path, flags, Mode::empty()) else { return Ok(path) };
        let Ok(to) = readlinkat(&link, "", Vec::new()) else { return Ok(path) };
        let owner = fstat(&link)?.st_uid;
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = stat(parent)?;
        let is_shared = directory.st_mode & 0o1002 == 0o1002;
        if is_shared && owner != rustix::process::geteuid().as_raw() && owner != directory.st_uid {
            return Err(Errno::ACCESS);
        }
        path = parent.join(OsStr::from_bytes(to.to_bytes()));
    }
    Err(Errno::LOOP)
}

/// Replaces the file `name` in `directory` by one of these `bytes`, with the permissions `mode` whatever the umask takes away.
/// Writers take turns.
///
/// # Errors
/// As the file system says; the file is as it was then.
pub fn write_at(directory: BorrowedFd<'_>, name: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    written(directory, name, mode, bytes)?.replace(name)
}

/// The same without waiting for the disk. If the machine stops before the kernel has written the file in its own time, that may be empty or damaged
/// under its new name: for what is checked when it is read, and soon written again.
///
/// # Errors
/// As the file system says; the file is as it was then.
pub fn write_unsynced_at(directory: BorrowedFd<'_>, name: &Path, mode: u32, bytes: &[u8]) -> io::Result<()> {
    written(directory, name, mode, bytes)?.take_name(name)
}

fn written<'a>(directory: BorrowedFd<'a>, name: &Path, mode: u32, bytes: &[u8]) -> io::Result<NewFile<'a>> {
    let mut new = NewFile::of_only_writer(directory, name, mode)?;
    fchmod(&new.file, Mode::from_raw_mode(mode))?;
    new.file.write_all(bytes)?;
    Ok(new)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsFd;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names_in(directory: &Path) -> Vec<OsString> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_old_file_stays_until_the_new_one_takes_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let directory = File::open(dir.path()).unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let begin = || NewFile::create(directory.as_fd(), 0o600).unwrap();
        let (one, other) = (begin(), begin());
        one.file().write_all(b"one").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old");
        one.replace(Path::new("file")).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"one");
        drop(other);
        assert_eq!(names_in(dir.path()), ["file"]);
        // A directory is not replaced by a file.
        fs::create_dir(dir.path().join("sub")).unwrap();
        assert!(begin().replace(Path::new("sub")).is_err());
        assert_eq!(names_in(dir.path()), ["file", "sub"]);
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let directory = File::open(dir.path()).unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::write(path("other"), "mine").unwrap();
        std::os::unix::fs::symlink(path("other"), path(".file.new")).unwrap();
        write_at(directory.as_fd(), Path::new("file"), 0o666, b"new").unwrap();
        assert_eq!(fs::read(path("file")).unwrap(), b"new");
        assert_eq!(fs::metadata(path("file")).unwrap().permissions().mode() & 0o777, 0o666);
        assert_eq!(fs::read(path("other")).unwrap(), b"mine");
        assert_eq!(names_in(dir.path()), ["file", "other"]);
    }

    #[test]
    fn writers_of_names_that_are_not_text_do_not_meet() {
        use std::os::unix::ffi::OsStrExt;
        let dir = tempfile::tempdir().unwrap();
        let directory = File::open(dir.path()).unwrap();
        let [one, other] =
            [b"\xff", b"\xfe"].map(|name: &[u8; 1]| Path::new(std::ffi::OsStr::from_bytes(name)));
        let first = NewFile::of_only_writer(directory.as_fd(), one, 0o600).unwrap();
        write_at(directory.as_fd(), other, 0o600, b"other").unwrap();
        first.replace(one).unwrap();
        assert_eq!(names_in(dir.path()), [other.as_os_str(), one.as_os_str()]);
    }
}
