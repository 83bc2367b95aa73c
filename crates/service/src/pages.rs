//! What is kept of each user: a file for each, that root alone can read.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;

use prepage_profiles::trust::{open_directory, read_below};
use prepage_sys::new_file::write_at;

/// More than the largest file takes.
const BYTES_MAX: u64 = 1 << 20;
/// Root, whom the directory belongs to.
const ROOT: u32 = 0;

/// A user's file to be written; without bytes, one to be removed.
#[derive(Debug)]
pub struct Page {
    /// The user.
    pub uid: u32,
    /// What is to be in it.
    pub bytes: Option<Vec<u8>>,
}

/// A user's file as it was found.
#[derive(Debug)]
pub struct Kept {
    /// The user.
    pub uid: u32,
    /// When it was written, seconds since 1970.
    pub last_unix_s: u64,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Page {
    /// Writes it: whoever reads finds the old file or the new one, whenever the machine stops.
    ///
    /// # Errors
    /// As the file system says; the old file is there then.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let name = self.uid.to_string();
        let Some(bytes) = &self.bytes else {
            return match std::fs::remove_file(directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let opened = open_directory(directory, ROOT).map_err(io::Error::other)?;
        let opened = opened.ok_or(io::ErrorKind::NotFound)?;
        write_at(opened.as_fd(), Path::new(&name), 0o600, bytes)
    }
}

/// The files in `directory`, which need not exist, of at most `users_max` users: those written last. What cannot be read, or others than root may
/// write to, is passed over.
pub fn all_in(directory: &Path, users_max: usize) -> Vec<Kept> {
    let Ok(Some(opened)) = open_directory(directory, ROOT) else { return Vec::new() };
    let mut users = uids_in(directory);
    users.sort_by_key(|(_, written_unix_s)| std::cmp::Reverse(*written_unix_s));
    let read = |(uid, last_unix_s): (u32, u64)| {
        let bytes = read_below(opened.as_fd(), Path::new(&uid.to_string()), BYTES_MAX, ROOT).ok()??;
        Some(Kept { uid, last_unix_s, bytes })
    };
    users.into_iter().take(users_max).filter_map(read).collect()
}

/// The users who have files in `directory`, which need not exist, and when each was written, in seconds since 1970.
pub fn uids_in(directory: &Path) -> Vec<(u32, u64)> {
    if !matches!(open_directory(directory, ROOT), Ok(Some(_))) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let user = |entry: std::fs::DirEntry| {
        let uid = entry.file_name().to_str()?.parse().ok()?;
        Some((uid, entry.metadata().map_or(0, |file| file.mtime().try_into().unwrap_or(0))))
    };
    entries.filter_map(user).collect()
}
