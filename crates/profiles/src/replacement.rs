//! A file replaced by a changed copy of itself ([`prepage_sys::new_file`]). The file itself is never opened for writing, so a running
//! program keeps what it runs. Owner, permissions, extended attributes and times go with it; callers learn what could not.

use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use prepage_sys::new_file::NewFile;
use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Gid, Mode, OFlags, StatxAttributes, StatxFlags, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::Errno;

use crate::section::Change;

/// Why a file cannot be replaced. Whatever the reason, it is as it was.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplaceError {
    /// A directory, device, pipe or symbolic link.
    #[error("no regular file")]
    NotRegular,
    /// A changed content would not pass its signature.
    #[error("is signed ({0}): the signature would not fit a changed file")]
    Signed(&'static str),
    /// It belongs to somebody else, and this user cannot give files away.
    #[error("belongs to user {owner}, and its replacement would not")]
    Owner {
        /// The owner's user id.
        owner: u32,
    },
    /// Somebody changed it while it was being copied.
    #[error("was changed or replaced by somebody else in the meantime")]
    Changed,
    /// The system refused.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// Its reason.
        source: io::Error,
    },
}

fn io(what: &'static str) -> impl Fn(io::Error) -> ReplaceError {
    move |source| ReplaceError::Io { what, source }
}

fn errno(what: &'static str) -> impl Fn(Errno) -> ReplaceError {
    move |source| ReplaceError::Io { what, source: source.into() }
}

/// Extended attributes that sign a content.
const SIGNATURES: [&str; 2] = ["security.ima", "security.evm"];
/// Who may use a file beside its owner and group; new files inherit one from the default list of their directory (acl(5)).
const ACCESS_LIST: &CStr = c"system.posix_acl_access";
/// The largest attribute and list of attributes that file systems keep.
const ATTRIBUTE_BYTES_MAX: usize = 64 << 10;

/// A file that is to be replaced.
#[derive(Debug)]
pub struct Original {
    /// Absolute, free of symbolic links.
    pub path: PathBuf,
    /// Open for reading.
    pub file: File,
    directory: OwnedFd,
    metadata: fs::Metadata,
    attributes: Vec<(CString, Vec<u8>)>,
}

/// What a replacement did beside its purpose.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Replaced {
    /// Other names of the old file, which keep it.
    pub other_names: u64,
    /// Extended attributes that the new file could not be given, and why.
    pub lost_attributes: Vec<String>,
}

impl Original {
    /// Opens the file that `path` means, through symbolic links.
    ///
    /// # Errors
    /// When it is none that could be replaced.
    pub fn open(path: &Path) -> Result<Self, ReplaceError> {
        let path = path.canonicalize().map_err(io("cannot be found"))?;
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(ReplaceError::NotRegular);
        };
        let directory = rustix::fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let directory = directory.map_err(errno("its directory cannot be opened"))?;
        let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW);
        if FileType::from_raw_mode(stat.map_err(errno("cannot be looked at"))?.st_mode)
            != FileType::RegularFile
        {
            return Err(ReplaceError::NotRegular);
        }
        let file = rustix::fs::openat(&directory, name, flags, Mode::empty());
        let file = File::from(file.map_err(errno("cannot be opened"))?);
        let metadata = file.metadata().map_err(io("cannot be looked at"))?;
        if !metadata.is_file() {
            return Err(ReplaceError::NotRegular);
        }
        let attributes = attributes(&file).map_err(errno("its extended attributes cannot be read"))?;
        Ok(Self { path, file, directory, metadata, attributes })
    }

    /// Names that other directory entries give it.
    pub fn other_names(&self) -> u64 {
        self.metadata.nlink().saturating_sub(1)
    }

    /// Replaces it by its own content with `change`.
    ///
    /// # Errors
    /// Why it was not; it is as it was then.
    pub fn replace(&self, change: &Change) -> Result<Replaced, ReplaceError> {
        let signed = SIGNATURES
            .iter()
            .find(|name| self.attributes.iter().any(|(n, _)| n.as_bytes() == name.as_bytes()));
        if let Some(signature) = signed {
            return Err(ReplaceError::Signed(signature));
        }
        let statx = rustix::fs::statx(&self.file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS);
        if statx.is_ok_and(|statx| statx.stx_attributes.contains(StatxAttributes::VERITY)) {
            return Err(ReplaceError::Signed("fs-verity"));
        }
        let name = Path::new(self.path.file_name().unwrap_or_default());
        let copy = NewFile::create(self.directory.as_fd(), 0o600);
        let copy = copy.map_err(io("no file can be made in its directory"))?;
        self.fill(copy.file(), change)?;
        let lost_attributes = self.hand_on(copy.file())?;
        copy.file().sync_all().map_err(io("the new file cannot be written"))?;
        let now = rustix::fs::statat(&self.directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let now = now.map_err(errno("cannot be looked at"))?;
        let was = &self.metadata;
        if (now.st_dev, now.st_ino, now.st_size as u64) != (was.dev(), was.ino(), was.len())
            || (now.st_ctime as i64, now.st_ctime_nsec as i64) != (was.ctime(), was.ctime_nsec())
        {
            return Err(ReplaceError::Changed);
        }
        copy.replace(name).map_err(io("the new file cannot be put in its place"))?;
        Ok(Replaced { other_names: self.other_names(), lost_attributes })
    }

    /// Writes the changed content. The space is reserved first: in one piece where there is one, and a full disk is
    /// told before anything is copied.
    fn fill(&self, new: &File, change: &Change) -> Result<(), ReplaceError> {
        let failed = io("the new file cannot be written");
        let len_bytes = change.keep_bytes + change.tail.len() as u64;
        // Shared with the old file where the file system can: its layout stays as it was.
        if rustix::fs::ioctl_ficlone(new, &self.file).is_ok() {
            new.set_len(change.keep_bytes).map_err(&failed)?;
        } else {
            match rustix::fs::fallocate(new, FallocateFlags::empty(), 0, len_bytes.max(1)) {
                Ok(()) | Err(Errno::OPNOTSUPP) => {}
                Err(error) => return Err(failed(error.into())),
            }
            let mut from = &self.file;
            from.seek(SeekFrom::Start(0)).map_err(&failed)?;
            let mut into = new;
            let copied = io::copy(&mut io::Read::take(from, change.keep_bytes), &mut into);
            if copied.map_err(&failed)? != change.keep_bytes {
                return Err(ReplaceError::Changed);
            }
        }
        new.write_all_at(&change.tail, change.keep_bytes).map_err(&failed)?;
        new.write_all_at(&change.head, 0).map_err(&failed)?;
        new.set_len(len_bytes).map_err(failed)
    }

    /// Gives the new file the owner, permissions, attributes and times of the old. Returns the attributes that could not
    /// be given.
    fn hand_on(&self, new: &File) -> Result<Vec<String>, ReplaceError> {
        let (owner, group) = (self.metadata.uid(), self.metadata.gid());
        let mine = new.metadata().map_err(io("cannot be looked at"))?;
        if (mine.uid(), mine.gid()) != (owner, group) {
            let given = rustix::fs::fchown(new, Some(Uid::from_raw(owner)), Some(Gid::from_raw(group)));
            given.map_err(|_| ReplaceError::Owner { owner })?;
        }
        let permissions = errno("the permissions cannot be kept");
        let mut lost = Vec::new();
        let inherited = attributes(new).map_err(&permissions)?;
        let has_list =
            |attributes: &[(CString, Vec<u8>)]| attributes.iter().any(|(name, _)| **name == *ACCESS_LIST);
        if has_list(&inherited) && !has_list(&self.attributes) {
            rustix::fs::fremovexattr(new, ACCESS_LIST).map_err(&permissions)?;
        }
        for (name, value) in self.attributes.iter().filter(|one| !inherited.contains(one)) {
            match rustix::fs::fsetxattr(new, name, value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(error) if **name == *ACCESS_LIST => return Err(permissions(error)),
                Err(error) => lost.push(format!("{} ({})", name.to_string_lossy(), io::Error::from(error))),
            }
        }
        // After the owner, whose change takes away set-user-id bits, and the access list, whose mask these permissions are.
        rustix::fs::fchmod(new, Mode::from_raw_mode(self.metadata.mode() & 0o7777)).map_err(permissions)?;
        let time = |s, ns| Timespec { tv_sec: s, tv_nsec: ns as _ };
        let times = Timestamps {
            last_access: time(self.metadata.atime(), self.metadata.atime_nsec()),
            last_modification: time(self.metadata.mtime(), self.metadata.mtime_nsec()),
        };
        rustix::fs::futimens(new, &times).map_err(errno("the times cannot be kept"))?;
        Ok(lost)
    }
}

/// All extended attributes that the user may see; none on file systems without.
fn attributes(file: &File) -> Result<Vec<(CString, Vec<u8>)>, Errno> {
    let mut names = vec![0; ATTRIBUTE_BYTES_MAX];
    let count = match rustix::fs::flistxattr(file, &mut names[..]) {
        Ok(count) => count,
        Err(Errno::OPNOTSUPP) => 0,
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    let mut value = vec![0; ATTRIBUTE_BYTES_MAX];
    for name in names[..count].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let name = CString::new(name).expect("names are split at zero bytes");
        match rustix::fs::fgetxattr(file, &name, &mut value[..]) {
            Ok(len) => found.push((name, value[..len].to_vec())),
            // Removed since it was listed, or not this user's to read.
            Err(Errno::NODATA | Errno::PERM | Errno::ACCESS) => {}
            Err(error) => return Err(error),
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    use super::*;

    fn change() -> Change {
        Change { head: b"HEAD".to_vec(), keep_bytes: 10, tail: b"tail".to_vec() }
    }

    fn file(dir: &Path) -> PathBuf {
        let path = dir.join("file");
        fs::write(&path, "0123456789").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        let hour_ago = SystemTime::now() - Duration::from_secs(3600);
        File::options().write(true).open(&path).unwrap().set_modified(hour_ago).unwrap();
        path
    }

    #[test]
    fn everything_but_the_content_stays() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = file(dir.path());
        let open = File::open(&path).unwrap();
        let attribute = rustix::fs::fsetxattr(&open, "user.note", b"kept", XattrFlags::empty());
        if rustix::process::geteuid().is_root() {
            rustix::fs::fchown(&open, Some(Uid::from_raw(65534)), Some(Gid::from_raw(65534))).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
        }
        let before = fs::metadata(&path).unwrap();
        let replaced = Original::open(&path).unwrap().replace(&change()).unwrap();
        assert_eq!(replaced, Replaced::default());
        assert_eq!(fs::read(&path).unwrap(), b"HEAD456789tail");
        let after = fs::metadata(&path).unwrap();
        let kept = |metadata: &fs::Metadata| {
            (metadata.mode(), metadata.uid(), metadata.gid(), metadata.mtime(), metadata.mtime_nsec())
        };
        assert_eq!(kept(&after), kept(&before));
        assert_ne!(after.ino(), before.ino());
        if attribute.is_ok() {
            let mut value = [0; 9];
            let len = rustix::fs::getxattr(&path, "user.note", &mut value[..]).unwrap();
            assert_eq!(&value[..len], b"kept");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
        use std::io::Read;
        let mut old = String::new();
        (&open).read_to_string(&mut old).unwrap();
        assert_eq!(old, "0123456789", "who has it open keeps it");
    }

    /// What a file inherits from the default list of its directory is not what the old file allowed.
    #[test]
    fn access_stays_what_it_was_where_the_directory_has_a_default_list() {
        const LISTS: [&str; 2] = ["system.posix_acl_access", "system.posix_acl_default"];
        // include/uapi/linux/posix_acl_xattr.h: the version, then tag, permissions and id of each entry. The owner; user 1000; the
        // group; the mask of both; others.
        let list = |user: u16, group: u16| {
            let entries = [
                (1, 6, u32::MAX),
                (2, user, 1000),
                (4, group, u32::MAX),
                (16, user, u32::MAX),
                (32, 0, u32::MAX),
            ];
            let entry = |(tag, may, id): (u16, u16, u32)| {
                [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat()
            };
            [2u32.to_le_bytes().to_vec(), entries.map(entry).concat()].concat()
        };
        for own in [None, Some(list(4, 0))] {
            let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            let path = file(dir.path());
            fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
            let set = own.as_ref().map(|own| rustix::fs::setxattr(&path, LISTS[0], own, XattrFlags::empty()));
            let default = rustix::fs::setxattr(dir.path(), LISTS[1], &list(7, 7), XattrFlags::empty());
            if [set.unwrap_or(Ok(())), default].contains(&Err(Errno::OPNOTSUPP)) {
                prepage_testing::skip(
                    prepage_testing::Need::Path("a file system with access lists".into()),
                    "none here",
                );
                return;
            }
            let access = || {
                let mut value = [0; 256];
                let len = rustix::fs::getxattr(&path, LISTS[0], &mut value[..]);
                (fs::metadata(&path).unwrap().mode(), len.map(|len| value[..len].to_vec()))
            };
            let before = access();
            assert_eq!(before.1, own.ok_or(Errno::NODATA));
            Original::open(&path).unwrap().replace(&change()).unwrap();
            assert_eq!(access(), before);
        }
    }

    #[test]
    fn other_names_and_links_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path());
        fs::hard_link(&path, dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        let replaced = Original::open(&dir.path().join("link")).unwrap().replace(&change()).unwrap();
        assert_eq!(replaced.other_names, 1);
        assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"0123456789");
        assert_eq!(fs::read(dir.path().join("link")).unwrap(), b"HEAD456789tail");
        assert!(fs::symlink_metadata(dir.path().join("link")).unwrap().is_symlink());
    }

    #[test]
    fn a_file_changed_meanwhile_stays_as_it_was_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path());
        let original = Original::open(&path).unwrap();
        fs::write(&path, "abcdefghij changed").unwrap();
        assert!(matches!(original.replace(&change()), Err(ReplaceError::Changed)));
        assert_eq!(fs::read(&path).unwrap(), b"abcdefghij changed");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
    }

    /// A user-writable directory is moved away, and another put in its place, while root works in it.
    #[test]
    fn a_directory_exchanged_meanwhile_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, moved) = (dir.path().join("ours"), dir.path().join("moved"));
        fs::create_dir(&ours).unwrap();
        let original = Original::open(&file(&ours)).unwrap();
        fs::rename(&ours, &moved).unwrap();
        fs::create_dir(&ours).unwrap();
        fs::write(ours.join("file"), "0123456789").unwrap();
        original.replace(&change()).unwrap();
        assert_eq!(fs::read(ours.join("file")).unwrap(), b"0123456789");
        assert_eq!(fs::read(moved.join("file")).unwrap(), b"HEAD456789tail");
    }

    #[test]
    fn what_is_no_regular_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let fifo = dir.path().join("fifo");
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, Mode::RUSR).unwrap();
        assert!(matches!(Original::open(&fifo), Err(ReplaceError::NotRegular)));
        assert!(matches!(Original::open(dir.path()), Err(ReplaceError::NotRegular)));
    }
}
