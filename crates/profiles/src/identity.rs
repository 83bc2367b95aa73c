//! Telling whether a file is still the one a profile speaks of.
//!
//! The usual case costs one statx: inode, size, mtime and ctime are all as they were, so nothing about the file changed
//! (the device's number may have). Where one differs (installed again, copied into an image, another mount) the content
//! decides: the build-id of an ELF file, else size and checksum of the first and last page.
//!
//! Names are looked up below the root that the thread has entered, if any ([`prepage_sys::root`]).

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use prepage_core::profile::file::checksum;
use prepage_core::profile::{FileIdentity, Fingerprint, ProfiledFile, Touches};
use prepage_core::{PAGE_SIZE, PageIndex};
use prepage_sys::root;
use prepage_trace::build_id;
use rustix::fs::{AtFlags, FileType, OFlags, Statx, StatxFlags};

use crate::bytes::Bytes;

/// Why a file of a profile is not prefetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Skipped {
    /// There is no such file any more.
    #[error("there is no such file")]
    Missing,
    /// Its content is another than the one that was learned.
    #[error("its content differs from what was learned")]
    Changed,
    /// The user may not read it.
    #[error("may not be read")]
    Denied,
    /// A directory, device, pipe or socket stands in its place.
    #[error("no regular file")]
    NotRegular,
    /// No more files may be open at present, in this process or on the machine.
    #[error("too many files are open")]
    TooMany,
    /// It cannot be opened at present (no memory, a device that fails).
    #[error("cannot be opened at present")]
    Failed,
}

/// Identity of the file called `path`, which must be a regular file. Symbolic links are not followed: profiles
/// hold resolved paths.
pub fn identity_at(path: &Path) -> Result<FileIdentity, Skipped> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    regular(&root::statx(path, flags, StatxFlags::BASIC_STATS).map_err(skipped)?)
}

/// Identity of an open file.
pub fn identity_of(file: &File) -> Result<FileIdentity, Skipped> {
    let statx = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
    regular(&statx.map_err(skipped)?)
}

/// Opens a file to read from, without waiting for whatever may stand in its place. See [`identity_of`] for what it is.
pub fn open_to_read(path: &Path) -> Result<File, Skipped> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW;
    Ok(File::from(root::open(path, flags).map_err(skipped)?))
}

/// Opens a directory that somebody else may have put there, to list it or to ask where it lies: nothing else that stands at its name.
///
/// # Errors
/// As open(2).
pub fn open_directory(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW;
    Ok(File::from(root::open(path, flags)?))
}

/// Opens the file of a profile, if it still is that file.
///
/// # Errors
/// Why it is not, or cannot be opened.
pub fn open_if_same(profiled: &ProfiledFile) -> Result<File, Skipped> {
    let path = Path::new(&profiled.path);
    let now = identity_at(path)?;
    if let Fingerprint::Ends { size_bytes, .. } = profiled.fingerprint
        && size_bytes != now.size_bytes
    {
        return Err(Skipped::Changed);
    }
    let file = open_to_read(path)?;
    // What was looked at by name may have been replaced before it was opened.
    if identity_of(&file)? != now {
        return Err(Skipped::Changed);
    }
    if now.is_same(&profiled.identity) {
        return Ok(file);
    }
    // The pages that tell the content, and no read-ahead: what else is in memory is still to be found out.
    let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
    match content_of(&file) {
        Ok(found) if found == profiled.fingerprint => Ok(file),
        _ => Err(Skipped::Changed),
    }
}

/// What a profile has of the file at `path`, as that is now, of which starts use `pages`, in this order.
///
/// # Errors
/// Why it cannot be opened or read.
pub fn profiled(path: &Path, pages: impl IntoIterator<Item = u64>) -> Result<ProfiledFile, Skipped> {
    let file = open_to_read(path)?;
    let mut touches = Touches::default();
    (0..).zip(pages).for_each(|(rank, page)| touches.touch(PageIndex(page), rank));
    Ok(ProfiledFile {
        path: path.to_string_lossy().into_owned(),
        identity: identity_of(&file)?,
        fingerprint: content_of(&file).map_err(|_| Skipped::Failed)?,
        learned_unix_s: 0,
        extents: touches.extents(),
    })
}

/// What an open file holds: everywhere in prepage, this says whether two files are the same.
///
/// # Errors
/// When it cannot be read.
pub fn content_of<B: Bytes + ?Sized>(file: &B) -> io::Result<Fingerprint> {
    let mut first = [0; PAGE_SIZE as usize];
    let count = file.read_at(0, &mut first)?;
    let first = &first[..count];
    if let Some(build_id) = build_id(first) {
        return Ok(Fingerprint::BuildId(build_id.to_vec()));
    }
    let size_bytes = file.len_bytes();
    let mut last = [0; PAGE_SIZE as usize];
    let count = file.read_at(size_bytes.saturating_sub(1) / PAGE_SIZE * PAGE_SIZE, &mut last)?;
    Ok(Fingerprint::Ends { crc: checksum(&[first, &last[..count]]), size_bytes })
}

fn regular(statx: &Statx) -> Result<FileIdentity, Skipped> {
    if FileType::from_raw_mode(statx.stx_mode.into()) != FileType::RegularFile {
        return Err(Skipped::NotRegular);
    }
    Ok(identity_in(statx))
}

/// Which file it is that `statx` tells of.
pub(crate) fn identity_in(statx: &Statx) -> FileIdentity {
    let nanoseconds = |time: rustix::fs::StatxTimestamp| {
        time.tv_sec.saturating_mul(1_000_000_000).saturating_add(i64::from(time.tv_nsec))
    };
    FileIdentity {
        device: rustix::fs::makedev(statx.stx_dev_major, statx.stx_dev_minor),
        inode: statx.stx_ino,
        size_bytes: statx.stx_size,
        mtime_ns: nanoseconds(statx.stx_mtime),
        ctime_ns: nanoseconds(statx.stx_ctime),
    }
}

fn skipped(error: rustix::io::Errno) -> Skipped {
    match error {
        rustix::io::Errno::ACCESS | rustix::io::Errno::PERM => Skipped::Denied,
        rustix::io::Errno::LOOP => Skipped::NotRegular,
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::STALE => Skipped::Missing,
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => Skipped::TooMany,
        _ => Skipped::Failed,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn an_elf_file_is_known_by_its_build_id_even_as_a_copy() {
        let elf = fs::canonicalize("/bin/sh").unwrap();
        let mut known = profiled(&elf, []).unwrap();
        assert!(matches!(&known.fingerprint, Fingerprint::BuildId(id) if id.len() >= 8));
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("copy");
        fs::copy(&elf, &copy).unwrap();
        known.path = copy.to_str().unwrap().into();
        assert!(open_if_same(&known).is_ok());
    }

    /// overlayfs, btrfs and NVMe disks give the same file another device number after a remount or a boot.
    #[test]
    fn a_file_is_the_same_when_its_device_gets_another_number() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::write(&path, "content").unwrap();
        let mut known = profiled(&path, []).unwrap();
        known.identity.device += 1;
        known.fingerprint = Fingerprint::BuildId(b"would have to be read".to_vec());
        assert!(open_if_same(&known).is_ok());
    }

    #[test]
    fn a_replaced_file_is_noticed_even_with_equal_size_and_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        fs::write(&path, "one content").unwrap();
        let known = profiled(&path, []).unwrap();
        assert!(open_if_same(&known).is_ok());
        let time = fs::metadata(&path).unwrap().modified().unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, "two content").unwrap();
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        assert_eq!(open_if_same(&known).unwrap_err(), Skipped::Changed);
        fs::remove_file(&path).unwrap();
        assert_eq!(open_if_same(&known).unwrap_err(), Skipped::Missing);
        fs::create_dir(&path).unwrap();
        assert_eq!(open_if_same(&known).unwrap_err(), Skipped::NotRegular);
    }
}
