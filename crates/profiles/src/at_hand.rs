//! Files as far as they are in memory: whoever asks here waits for no disk and no network. An error says that memory does not answer,
//! and nothing of the file, but for one that [`is_absent`].
//!
//! Only file systems of the machine's own are asked: those on a device (a device number other than 0:…), and of the others those that keep their
//! files in memory or on devices below them. What FUSE and network file systems know may be out of date, and asking them may take
//! for ever. An overlay over one of those counts as the machine's own: to open a file in it opens the file below, which is waited for.

use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

use prepage_core::profile::FileIdentity;
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::file_system::{BTRFS, OVERLAYFS, TMPFS};
use prepage_sys::mapping::are_resident;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Statx, StatxFlags, fstatfs, openat2};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use crate::bytes::Bytes;
use crate::identity::identity_in;
use crate::trust::judge;

/// File systems without a device of their own that need nobody to answer.
const LOCAL: [u32; 3] = [OVERLAYFS, TMPFS, BTRFS];

/// Links that lead from one to the other at most, as the kernel has it.
const LINKS_MAX: usize = 40;

/// A file or directory that is known to be there.
#[derive(Debug)]
pub struct AtHand<'a> {
    directory: BorrowedFd<'a>,
    path: &'a Path,
    resolve: ResolveFlags,
    place: OwnedFd,
    /// Whether `place` can be read from.
    is_open: bool,
    statx: Statx,
}

/// What is at `path`; links are followed.
///
/// # Errors
/// See above. Before Linux 5.12 there is always one.
pub fn at_hand(path: &Path) -> Result<AtHand<'_>, Errno> {
    // Most paths lead through no link, and whoever needs to know that need not look again.
    match at_hand_without_links(path) {
        Err(Errno::LOOP) => AtHand::below(CWD, path, ResolveFlags::empty(), OFlags::PATH),
        found => found,
    }
}

/// What is at `path`, where that leads through no symbolic link.
///
/// # Errors
/// As [`at_hand`], and LOOP where there is a link.
pub(crate) fn at_hand_without_links(path: &Path) -> Result<AtHand<'_>, Errno> {
    AtHand::below(CWD, path, ResolveFlags::NO_SYMLINKS, OFlags::PATH)
}

/// Whether an error says that there is no such file.
pub fn is_absent(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::NOTDIR)
}

/// Whether this process may reach `path`. Memory is asked, and for an absolute path one file system: that of the longest part of the path that memory knows
/// and that lies on one of the machine's own, else that of the root directory. Another file system is not asked, for it may not answer. (Before Linux 6.18 an
/// automount on the way to `path` is mounted, and waited for.)
///
/// # Errors
/// As openat2(2), and EAGAIN where another file system would have to tell.
pub fn reach(path: &Path) -> Result<(), Errno> {
    let ask = |directory: BorrowedFd<'_>, path: &Path, how| {
        openat2(directory, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), how)
    };
    let ask_own = || {
        let known = |part| Some((part, at_hand(part).ok()?.place));
        let (known, directory) = match path.ancestors().skip(1).find_map(known) {
            Some(known) => known,
            None => (Path::new("/"), ask(CWD, Path::new("/"), ResolveFlags::empty())?),
        };
        ask(directory.as_fd(), path.strip_prefix(known).unwrap_or(path), ResolveFlags::NO_XDEV).map(drop)
    };
    match if path.is_absolute() { ask_own() } else { Err(Errno::XDEV) } {
        Err(Errno::XDEV) => at_hand(path).map(drop),
        told => told,
    }
}

/// The absolute `path`, which was found in memory, free of symbolic links.
///
/// # Errors
/// As realpath(3), whose memory a starter has no time for.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..LINKS_MAX {
        // What stands behind a link stays as it is: where `..` leads is not known before all links are.
        let link = path.ancestors().find_map(|part| match std::fs::read_link(part) {
            Ok(target) => Some(Ok((part, target))),
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => None,
            Err(error) => Some(Err(error)),
        });
        let Some((part, target)) = link.transpose()? else { return Ok(without_upwards(&path)) };
        let behind = path.strip_prefix(part).unwrap_or(Path::new(""));
        let before = part.parent().unwrap_or(Path::new("/"));
        let target = before.join(target);
        // Nothing would leave a slash at the end.
        path = if behind.as_os_str().is_empty() { target } else { target.join(behind) };
    }
    Err(Errno::LOOP.into())
}

/// The absolute `path`, which leads through no link, in the one way to write it.
pub fn without_upwards(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            component => plain.push(component),
        }
    }
    plain
}

impl<'a> AtHand<'a> {
    fn below(
        directory: BorrowedFd<'a>,
        path: &'a Path,
        resolve: ResolveFlags,
        open: OFlags,
    ) -> Result<Self, Errno> {
        let resolve = resolve | ResolveFlags::CACHED;
        let place = openat2(directory, path, open | OFlags::CLOEXEC, Mode::empty(), resolve)?;
        let statx = statx(&place)?;
        if statx.stx_dev_major == 0 && !LOCAL.contains(&(fstatfs(&place)?.f_type as u32)) {
            return Err(Errno::AGAIN);
        }
        Ok(Self { directory, path, resolve, place, is_open: open == TO_READ, statx })
    }

    /// The file `name` below this directory, reached through no symbolic link. Only for directories that nobody else may write
    /// ([`Self::is_trusted`]): what stands there is opened before it is known to be a file.
    ///
    /// # Errors
    /// As [`at_hand`], and where it may not be read.
    pub fn file<'b>(&'b self, name: &'b Path) -> Result<AtHand<'b>, Errno> {
        let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::BENEATH;
        AtHand::below(self.place.as_fd(), name, resolve, TO_READ)
    }

    /// Whether a symbolic link leads to it.
    pub fn has_links(&self) -> bool {
        !self.resolve.contains(ResolveFlags::NO_SYMLINKS)
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

    /// How many bytes it holds.
    pub fn size_bytes(&self) -> u64 {
        self.statx.stx_size
    }

    /// Opens it to read from.
    ///
    /// # Errors
    /// Where it is no regular file, or may not be read, and where another file has come into its place since it was looked at.
    pub fn open(self) -> Result<File, Errno> {
        let (identity, is_open) = (self.identity(), self.is_open);
        let file = self.open_unchecked()?;
        if !is_open && identity_in(&statx(&file)?) != identity {
            return Err(Errno::AGAIN);
        }
        Ok(file)
    }

    /// The same, whatever has come into its place since it was looked at, for whoever loses little by that: it takes one call less.
    ///
    /// # Errors
    /// Where it is no regular file, or may not be read.
    pub fn open_unchecked(self) -> Result<File, Errno> {
        if !self.is(FileType::RegularFile) {
            return Err(Errno::INVAL);
        }
        if self.is_open {
            return Ok(File::from(self.place));
        }
        let flags = TO_READ | OFlags::CLOEXEC;
        Ok(openat2(self.directory, self.path, flags, Mode::empty(), self.resolve)?.into())
    }

    /// All that it holds, if that is no more than `limit_bytes`.
    ///
    /// # Errors
    /// As [`Self::open`], and where a page of it is not in memory.
    pub fn read(self, limit_bytes: u64) -> Result<Vec<u8>, Errno> {
        if self.size_bytes() > limit_bytes {
            return Err(Errno::FBIG);
        }
        self.read_beginning(limit_bytes)
    }

    /// So many bytes of it, or all where it holds fewer.
    ///
    /// # Errors
    /// As [`Self::open`], and where a page of them is not in memory.
    pub fn read_beginning(self, bytes: u64) -> Result<Vec<u8>, Errno> {
        let size_bytes = self.size_bytes().min(bytes);
        let file = self.open()?;
        let mut bytes = vec![0; size_bytes as usize];
        let count = InMemory { file: &file, size_bytes }.read_at(0, &mut bytes);
        if count.is_ok_and(|count| count == bytes.len()) { Ok(bytes) } else { Err(Errno::AGAIN) }
    }
}

/// An open file, as far as it is in memory.
#[derive(Debug)]
pub struct InMemory<'a> {
    /// The file.
    pub file: &'a File,
    /// How many bytes it holds, as was found before: whoever asks an overlay asks the file system below.
    pub size_bytes: u64,
}

impl Bytes for InMemory<'_> {
    fn len_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// WouldBlock where memory does not answer.
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            let at = offset_bytes + filled as u64;
            let mut rest = [IoSliceMut::new(&mut into[filled..])];
            match preadv2(self.file, &mut rest, at, ReadWriteFlags::NOWAIT) {
                Ok(0) => break,
                Ok(count) => filled += count,
                // Overlayfs and tmpfs know no such reads, but what is in memory.
                Err(Errno::OPNOTSUPP) => {
                    let end = (offset_bytes + into.len() as u64).min(self.len_bytes());
                    let first = PageIndex::containing(at);
                    let pages = PageRange::new(first, PageIndex(end.div_ceil(PAGE_SIZE)).max(first));
                    let is_there = pages.is_empty() || are_resident(self.file.as_fd(), pages) == Some(true);
                    return match is_there {
                        true => self.file.read_at(offset_bytes, into),
                        false => Err(Errno::AGAIN.into()),
                    };
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(filled)
    }
}

/// Whatever stands there: nobody is waited for.
const TO_READ: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

fn statx(place: impl AsFd) -> Result<Statx, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(place, "", flags, StatxFlags::BASIC_STATS)
}

#[cfg(test)]
mod tests {
    use std::fs;

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
        let directory = at_hand(dir.path()).unwrap();
        assert!(directory.is_directory() && directory.is_trusted(rustix::process::geteuid().as_raw()));
        let found = || [at_hand(&path).unwrap(), directory.file("file".as_ref()).unwrap()];
        for found in found() {
            assert_eq!(found.identity(), crate::identity::identity_of(&file).unwrap());
            assert_eq!(found.read(1 << 20).unwrap(), fs::read(&path).unwrap());
        }
        assert!(found().into_iter().all(|found| found.read(4096) == Err(Errno::FBIG)));
        // What is not there is on its way from then on, and may be there before the answer is.
        let mut answers = (0..100).map(|_| {
            evict(file.as_fd(), Duration::from_secs(60)).unwrap();
            at_hand(&path).unwrap().read(1 << 20).map(drop)
        });
        assert!(answers.any(|answer| answer == Err(Errno::AGAIN)));
        assert_eq!(at_hand(dir.path()).unwrap().open().unwrap_err(), Errno::INVAL);
        // Nobody has asked for that name yet.
        let none = dir.path().join("none");
        assert_eq!(at_hand(&none).unwrap_err(), Errno::AGAIN);
        assert!(!none.exists() && is_absent(at_hand(&none).unwrap_err()));
        // Another file in its place is not the one that was found.
        let found = at_hand(&path).unwrap();
        fs::rename(&path, dir.path().join("old")).unwrap();
        fs::write(&path, "new").unwrap();
        assert_eq!(found.read(1 << 20).unwrap_err(), Errno::AGAIN);
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

    /// It has no device, and knows no reads that wait for nothing.
    #[test]
    fn a_file_in_a_tmpfs_is_in_memory() {
        let shared = Path::new("/dev/shm");
        if !rustix::fs::statfs(shared).is_ok_and(|system| system.f_type as u32 == TMPFS) {
            return skip(Need::Path(shared.into()), "no tmpfs");
        }
        let dir = tempfile::tempdir_in(shared).unwrap();
        fs::write(dir.path().join("file"), vec![7; 2 * 4096 + 1]).unwrap();
        let directory = at_hand(dir.path()).unwrap();
        let file = directory.file("file".as_ref()).unwrap();
        assert_eq!(file.read(1 << 20).unwrap(), vec![7; 2 * 4096 + 1]);
        // What nobody has asked for yet it is asked for, although it is another file system than that of the root directory.
        assert_eq!(reach(&dir.path().join("none")), Err(Errno::NOENT));
        assert_eq!(reach(&dir.path().join("file")), Ok(()));
    }

    /// Whom to ask may be on another machine, and not answer.
    #[test]
    fn other_file_systems_without_a_device_are_not_asked() {
        assert_eq!(at_hand("/proc/self/stat".as_ref()).unwrap_err(), Errno::AGAIN);
        assert_eq!(reach("/proc/none".as_ref()), Err(Errno::AGAIN));
        // The working directory may lie on one of those.
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let relative = Path::new(dir.path().file_name().unwrap()).join("none");
        assert_ne!(reach(&relative), Err(Errno::NOENT), "nobody has asked for it yet");
        assert_eq!(reach(&dir.path().join("none")), Err(Errno::NOENT));
    }
}
