//! Names as another process has them: below its root, and never out of it.
//!
//! A container has a root of its own, and most of what it looks up there is its own to choose: symbolic links, mounts, file systems that a
//! program answers for. A thread that has [entered](Root::enter) a root looks names up below it with the functions of this module, as after
//! chroot(2). They cross no mount on the way, so whoever made the root's own file system is all that can be waited for, and follow no link of
//! /proc, which would lead out (openat2(2), Linux 5.6). Without a root entered they look names up as ever. All else in the thread, the standard
//! library's functions too, looks names up as ever.

use std::cell::RefCell;
use std::fs::{File, Metadata, read_link};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, Statx, StatxFlags, openat2};
use rustix::io::Errno;

/// What the kernel adds to the name of what has none any more.
const DELETED: &str = " (deleted)";

thread_local! {
    /// The root below which this thread looks names up.
    static ENTERED: RefCell<Option<Arc<Root>>> = const { RefCell::new(None) };
}

/// The root directory of a process. Its mount stays in use until this is dropped.
#[derive(Debug)]
pub struct Root {
    directory: OwnedFd,
    /// What the kernel calls it where it tells names of its file system.
    path: PathBuf,
    /// Device and inode.
    id: (u64, u64),
    owner: u32,
}

impl Root {
    /// That of process `pid`.
    ///
    /// # Errors
    /// Where it is gone, or not this process's to see (CAP_SYS_PTRACE).
    pub fn of_process(pid: u32) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Self::at(rustix::fs::open(format!("/proc/{pid}/root"), flags, Mode::empty())?)
    }

    fn at(directory: OwnedFd) -> io::Result<Self> {
        let path = name_of(directory.as_raw_fd())?;
        let stat = rustix::fs::fstat(&directory)?;
        Ok(Self { directory, path, id: (stat.st_dev, stat.st_ino), owner: stat.st_uid })
    }

    /// Device and inode.
    pub fn id(&self) -> (u64, u64) {
        self.id
    }

    /// Who owns it: whoever is root below it, mostly.
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// Whether it is the root of this process as well, maybe by another mount.
    pub fn is_own(&self) -> bool {
        rustix::fs::stat("/").is_ok_and(|own| (own.st_dev, own.st_ino) == self.id)
    }

    /// The name below this root of what the kernel calls `path` (proc(5)); `None` where it lies outside.
    pub fn name_below(&self, path: &Path) -> Option<PathBuf> {
        path.strip_prefix(&self.path).ok().map(|below| Path::new("/").join(below))
    }

    /// Its directory, of no use but to whoever needs it to stay open.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Has the calling thread look names up below this root, until the answer is dropped.
    pub fn enter(self: &Arc<Self>) -> Entered {
        Entered { before: ENTERED.replace(Some(self.clone())), _thread: PhantomData }
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
        openat2(&self.directory, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }
}

/// The calling thread looks names up below a root.
#[derive(Debug)]
pub struct Entered {
    before: Option<Arc<Root>>,
    /// It belongs to the thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        ENTERED.set(self.before.take());
    }
}

fn entered() -> Option<Arc<Root>> {
    ENTERED.with_borrow(Clone::clone)
}

/// Opens what is at `path`.
///
/// # Errors
/// As open(2); XDEV where a mount lies on the way below the root that was entered.
pub fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    match entered() {
        Some(root) => root.open(path, flags),
        None => rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()),
    }
}

/// What statx(2) tells of `path`, of which `flags` say whether a link at its end is followed.
///
/// # Errors
/// As statx(2), and as [`open`].
pub fn statx(path: &Path, flags: AtFlags, wanted: StatxFlags) -> Result<Statx, Errno> {
    let Some(root) = entered() else { return rustix::fs::statx(CWD, path, flags, wanted) };
    let is_followed = !flags.contains(AtFlags::SYMLINK_NOFOLLOW);
    let place = root.open(path, place_flags(is_followed))?;
    rustix::fs::statx(&place, "", AtFlags::EMPTY_PATH | (flags - AtFlags::SYMLINK_NOFOLLOW), wanted)
}

/// As [`std::fs::metadata`].
///
/// # Errors
/// As there, and as [`open`].
pub fn metadata(path: &Path) -> io::Result<Metadata> {
    match entered() {
        Some(root) => File::from(root.open(path, place_flags(true))?).metadata(),
        None => std::fs::metadata(path),
    }
}

/// As [`std::fs::symlink_metadata`].
///
/// # Errors
/// As there, and as [`open`].
pub fn symlink_metadata(path: &Path) -> io::Result<Metadata> {
    match entered() {
        Some(root) => File::from(root.open(path, place_flags(false))?).metadata(),
        None => std::fs::symlink_metadata(path),
    }
}

/// As [`std::fs::canonicalize`].
///
/// # Errors
/// As there, and as [`open`].
pub fn canonicalize(path: &Path) -> io::Result<PathBuf> {
    let Some(root) = entered() else { return std::fs::canonicalize(path) };
    let place = root.open(path, place_flags(true))?;
    let name = name_of(place.as_raw_fd())?;
    root.name_below(&name).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// A place only: it is neither opened nor waited for, whatever it is.
fn place_flags(is_followed: bool) -> OFlags {
    if is_followed { OFlags::PATH } else { OFlags::PATH | OFlags::NOFOLLOW }
}

/// What the kernel calls what descriptor `fd` is open on: its path, free of symbolic links.
///
/// # Errors
/// Without /proc, and where the file has no name any more.
pub fn name_of(fd: i32) -> io::Result<PathBuf> {
    let name = read_link(format!("/proc/self/fd/{fd}"))?;
    if name.to_string_lossy().ends_with(DELETED) { Err(io::ErrorKind::NotFound.into()) } else { Ok(name) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, symlink};

    use super::*;

    /// A root below which this process has put all ways out that a container has.
    #[test]
    fn nothing_leads_out_of_a_root_that_was_entered() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let below = |name: &str| directory.path().join(name);
        std::fs::create_dir_all(below("etc")).unwrap();
        std::fs::create_dir_all(below("proc")).unwrap();
        std::fs::write(below("etc/passwd"), "inside").unwrap();
        symlink("/etc/passwd", below("absolute")).unwrap();
        symlink("../../../../../../../etc/passwd", below("upwards")).unwrap();
        symlink("/proc/self/root/etc/passwd", below("magic")).unwrap();
        let outside = metadata(Path::new("/etc/passwd")).unwrap().ino();
        let inside = std::fs::metadata(below("etc/passwd")).unwrap().ino();
        let root = Arc::new(Root::at(open_root(directory.path())).unwrap());
        let entered = root.enter();
        let ino = |path: &str| metadata(Path::new(path)).map(|found| found.ino());
        for path in ["/etc/passwd", "/absolute", "/upwards", "/../../etc/passwd"] {
            assert_eq!(ino(path).unwrap(), inside, "{path}");
            assert_eq!(canonicalize(Path::new(path)).unwrap(), Path::new("/etc/passwd"), "{path}");
        }
        assert!(ino("/magic").is_err() && symlink_metadata(Path::new("/magic")).unwrap().is_symlink());
        assert!(open(Path::new("/magic"), OFlags::RDONLY).is_err());
        drop(entered);
        assert_eq!(ino("/etc/passwd").unwrap(), outside, "and back");
        // Of this process's own root, links of /proc and mounts are left.
        let root = Arc::new(Root::of_process(std::process::id()).unwrap());
        let _entered = root.enter();
        assert!(root.is_own() && ino("/etc/passwd").unwrap() == outside);
        assert!(ino("/proc/self/root").is_err() && ino("/proc/version").is_err());
    }

    fn open_root(path: &Path) -> OwnedFd {
        rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
    }
}
