//! The file behind a trace being written.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ::parquet::file::reader::Length;
use prepage_sys::new_file::led_to;
use rustix::fs::{
    CWD, FallocateFlags, FlockOperation, OFlags, RenameFlags, fallocate, fcntl_getfl, fcntl_setfl, flock,
    renameat_with,
};
use rustix::io::Errno;

use super::prefix::Prefix;
use super::{TraceFileError, seal};

/// Reserve disk space where the file system cannot.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// For the user alone, as perf.data.
const MODE: u32 = 0o600;
/// Recordings of one name that were killed and are kept at most.
const KEPT_MAX: u32 = 1000;

/// Writes `PATH.partial`, which becomes `PATH` when it is complete; an older `PATH` becomes `PATH.old`. What is no
/// regular file (`/dev/null`, a pipe) is written directly.
#[derive(Debug)]
pub(super) struct Spool {
    file: File,
    written_bytes: u64,
    /// Of what was written.
    checksum: crc32fast::Hasher,
    path: PathBuf,
    /// `None` when written directly, or complete.
    partial: Option<PathBuf>,
    rescued: Option<PathBuf>,
    /// Whether what is written can be read, up to the last footer.
    readable: bool,
    /// Up to where the disk has room for sure.
    reserved_bytes: u64,
}

impl Spool {
    pub(super) fn create(path: &Path) -> Result<Self, TraceFileError> {
        // The target of a link is replaced, not the link; but others' links could have root replace any file.
        let is_followed = !is_link_of_others(path);
        let special = is_followed && fs::metadata(path).is_ok_and(|metadata| !metadata.is_file());
        let path = match is_followed && !special {
            true => led_to(path).map_err(|error| TraceFileError::io(path, "create", error))?,
            false => path.to_owned(),
        };
        let mut rescued = None;
        let partial = (!special).then(|| with_suffix(&path, ".partial"));
        let target = partial.as_ref().unwrap_or(&path);
        let is_pipe = || fs::metadata(target).is_ok_and(|metadata| metadata.file_type().is_fifo());
        let open_once = || {
            let mut options = OpenOptions::new();
            // A trace tells where programs and the kernel have their code and what they do, which is not for all to know.
            options.read(!special).write(true).create(!special).truncate(false).mode(MODE);
            // Others know the name, too, and may have put something there. A pipe that nobody reads is not waited for, with signals held back.
            let flags = if special { OFlags::NONBLOCK } else { OFlags::NOFOLLOW | OFlags::NONBLOCK };
            options.custom_flags(flags.bits() as i32);
            let failed = |source| TraceFileError::io(target, "create", source);
            let file = options.open(target).map_err(|error| match Errno::from_io_error(&error) {
                Some(Errno::NXIO) if is_pipe() => failed(io::Error::other("nobody reads this pipe")),
                _ => failed(error),
            })?;
            if special {
                let flags = fcntl_getfl(&file).map_err(|error| failed(error.into()))?;
                fcntl_setfl(&file, flags - OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
            } else {
                if !file.metadata().map_err(failed)?.is_file() {
                    return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, "no regular file")));
                }
                flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
                    Errno::WOULDBLOCK => TraceFileError::Busy(path.clone()),
                    error => TraceFileError::io(target, "lock", error),
                })?;
            }
            Ok(file)
        };
        // Who had the file locked until then may have completed it: it has another name now, and is not this recording's.
        let open = || -> Result<File, TraceFileError> {
            loop {
                let file = open_once()?;
                if special || is_at(&file, target) {
                    return Ok(file);
                }
            }
        };
        let mut file = open()?;
        if !special {
            let failed = |source| TraceFileError::io(target, "rescue", source);
            rescued = rescue(&file, target).map_err(failed)?;
            let is_old = rescued.is_none() && !is_ours_alone(&file).map_err(failed)?;
            if is_old {
                fs::remove_file(target).map_err(failed)?;
            }
            if is_old || rescued.is_some() {
                file = open()?;
            }
            file.set_len(0).map_err(|source| TraceFileError::io(target, "empty", source))?;
        }
        let checksum = crc32fast::Hasher::new();
        Ok(Self {
            file,
            written_bytes: 0,
            checksum,
            path,
            partial,
            rescued,
            readable: false,
            reserved_bytes: 0,
        })
    }

    /// Where a recording that was killed is kept, whose unfinished file stood in the way.
    pub(super) fn rescued(&self) -> Option<&Path> {
        self.rescued.as_deref()
    }

    /// Notes that a footer was written: from now on an incomplete file is kept, because it can be read.
    pub(super) fn is_readable(&mut self) {
        self.readable = true;
    }

    /// Has nothing stay behind when the file is not completed.
    pub(super) fn discard(&mut self) {
        self.readable = false;
    }

    /// What stays behind when the file is not completed.
    pub(super) fn left_behind(&self) -> Option<&Path> {
        self.partial.as_deref().filter(|_| self.readable)
    }

    /// Reserves disk space for `bytes` more.
    pub(super) fn ensure_room(&mut self, bytes: u64) -> Result<(), TraceFileError> {
        let end = self.written_bytes + bytes;
        if self.partial.is_none() || end <= self.reserved_bytes {
            return Ok(());
        }
        let reserved = match fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.written_bytes, bytes) {
            Err(Errno::OPNOTSUPP) => self.fill(end),
            reserved => reserved.map_err(io::Error::from),
        };
        reserved.map_err(|error| TraceFileError::io(&self.path, "reserve space", error))?;
        self.reserved_bytes = end;
        Ok(())
    }

    /// Reserves disk space up to `end` on a file system that cannot do so by itself: by zeros, which are written over
    /// later.
    fn fill(&self, end: u64) -> io::Result<()> {
        let begin = self.reserved_bytes.max(self.written_bytes);
        let mut at = begin;
        while at < end {
            let len = (end - at).min(ZEROS.len() as u64);
            let filled = self.file.write_all_at(&ZEROS[..len as usize], at);
            // What was filled in vain is given back.
            filled.inspect_err(|_| drop(self.file.set_len(begin)))?;
            at += len;
        }
        // Some servers say only now that they have no room.
        self.file.sync_data().inspect_err(|_| drop(self.file.set_len(begin)))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Puts the complete file in its place.
    pub(super) fn complete(&mut self) -> Result<(), TraceFileError> {
        let Some(partial) = &self.partial else { return Ok(()) };
        let path = self.path.as_path();
        let failed = |action| move |source: io::Error| TraceFileError::io(path, action, source);
        // Gives back what was reserved beyond the end.
        self.file.set_len(self.written_bytes).map_err(failed("set the length"))?;
        seal::seal(&self.file, self.checksum.clone().finalize()).map_err(failed("seal"))?;
        // What the device or server did not take is heard of here, while the older file is still in its place.
        self.file.sync_data().map_err(failed("write to the disk"))?;
        if path.exists() {
            fs::rename(path, with_suffix(path, ".old")).map_err(failed("keep the old one"))?;
        }
        fs::rename(partial, path).map_err(failed("rename the new one"))?;
        self.partial = None;
        Ok(())
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = if self.partial.is_some() {
            self.file.write_at(bytes, self.written_bytes)?
        } else {
            self.file.write(bytes)?
        };
        self.written_bytes += written as u64;
        self.checksum.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Drop for Spool {
    /// Without a footer a file cannot be read: leaves none such behind.
    fn drop(&mut self) {
        if let Some(partial) = self.partial.as_ref().filter(|_| !self.readable) {
            let _ = fs::remove_file(partial);
        }
    }
}

/// Whether `file` is what is at `path`.
fn is_at(file: &File, path: &Path) -> bool {
    let at = |metadata: &fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), fs::symlink_metadata(path)), (Ok(file), Ok(found)) if at(&file) == at(&found))
}

/// Whether nobody but this process's user can read or write `file`. It may be another's, or of an older version, whose files all could read.
fn is_ours_alone(file: &File) -> io::Result<bool> {
    let found = file.metadata()?;
    Ok(found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o777 & !MODE == 0)
}

/// Whether `path` is a symbolic link of another user's than root and this process's.
fn is_link_of_others(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink() && ![0, own].contains(&found.uid()))
}

/// Makes what a killed recorder left in `partial` a whole file under another name, if any of it is readable.
fn rescue(file: &File, partial: &Path) -> io::Result<Option<PathBuf>> {
    let Some(readable) = Prefix::readable(file.try_clone()?)? else { return Ok(None) };
    readable.file().set_len(readable.len())?;
    // An earlier one that was killed is kept too.
    for number in 1..=KEPT_MAX {
        let suffix = if number == 1 { ".old".to_owned() } else { format!(".old.{number}") };
        let kept = with_suffix(partial, &suffix);
        match renameat_with(CWD, partial, CWD, &kept, RenameFlags::NOREPLACE) {
            Ok(()) => return Ok(Some(kept)),
            Err(Errno::EXIST) => {}
            // A file system that cannot refuse to replace.
            Err(Errno::INVAL) if kept.exists() => {}
            Err(Errno::INVAL) => return fs::rename(partial, &kept).map(|()| Some(kept)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "too many recordings that were killed are kept beside it",
    ))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Two recordings of one name in turns: one begins while the other gives its file the last name.
    #[test]
    fn a_file_that_was_completed_meanwhile_is_left_alone() {
        const FILES: u32 = 4000;
        let directory = tempfile::tempdir().expect("a directory");
        let completed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while completed.load(Ordering::Relaxed) < FILES {
                        let mut spool = match Spool::create(&directory.path().join("t")) {
                            Err(TraceFileError::Busy(_)) => continue,
                            spool => spool.expect("created"),
                        };
                        spool.write_all(b"whole").expect("written");
                        let number = completed.fetch_add(1, Ordering::Relaxed);
                        let partial = spool.partial.take().expect("a regular file");
                        fs::rename(partial, directory.path().join(format!("t.{number}"))).expect("renamed");
                    }
                });
            }
        });
        let files = fs::read_dir(directory.path()).expect("there").flatten();
        let emptied = files.filter(|file| file.metadata().expect("there").len() != 5).count();
        assert_eq!(emptied, 0, "of {} files", completed.into_inner());
    }
}
