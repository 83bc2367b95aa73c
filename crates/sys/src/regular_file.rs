//! A file opened where somebody else may have put something else: what is no regular file is not opened.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fcntl_setfl, openat, statat};
use rustix::io::retry_on_intr;

/// Opens the regular file `path` to read it, as [`open_regular`] does.
///
/// # Errors
/// As there.
pub fn open(path: &Path) -> io::Result<(File, Metadata)> {
    // The flag stays: to take it off is one more call, and reads of files on disks do not heed it.
    open_regular(CWD, path, OFlags::NONBLOCK)
}

/// Opens the regular file `path`, from the directory `at` on, as `flags` say. What else stands there is neither waited for nor opened: to
/// open a device may have effects, and a pipe lets go whoever waits at its other end.
///
/// # Errors
/// Those of open(2), and InvalidInput for what is no regular file.
pub fn open_regular(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<(File, Metadata)> {
    let other = || io::Error::new(io::ErrorKind::InvalidInput, "no regular file");
    let found = retry_on_intr(|| statat(at, path, AtFlags::empty()))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(other());
    }
    // It may have been replaced since.
    let at_once = flags | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(retry_on_intr(|| openat(at, path, at_once, Mode::empty()))?);
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(other());
    }
    if !flags.contains(OFlags::NONBLOCK) {
        // File systems may look at the flag in each read.
        fcntl_setfl(&file, flags)?;
    }
    Ok((file, metadata))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;

    use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
    use rustix::fs::{fcntl_getfl, mknodat};

    use super::*;

    #[test]
    fn a_regular_file_is_opened_and_a_fifo_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let opened = File::from(inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap());
        inotify::add_watch(&opened, directory.path(), WatchFlags::OPEN).unwrap();
        mknodat(CWD, directory.path().join("fifo"), FileType::Fifo, 0o600.into(), 0).unwrap();
        let at = File::open("/").unwrap();
        let refused = open_regular(at.as_fd(), &directory.path().join("fifo"), OFlags::empty()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        let read = (&opened).read(&mut [0; 4096]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock, "it was opened");

        std::fs::write(directory.path().join("file"), "12345").unwrap();
        let directory = File::open(directory.path()).unwrap();
        let (file, metadata) = open_regular(directory.as_fd(), "file".as_ref(), OFlags::RDWR).unwrap();
        let flags = fcntl_getfl(&file).unwrap();
        assert_eq!((metadata.len(), flags & (OFlags::RWMODE | OFlags::NONBLOCK)), (5, OFlags::RDWR));
        assert!(open_regular(directory.as_fd(), "none".as_ref(), OFlags::empty()).is_err());
    }
}
