//! What one thread may open and look up: as a user, or as anybody could.
//!
//! The user and groups by which the kernel decides about files belong to each thread (setfsuid(2)). A thread of root's that
//! takes on those of another user loses root's rights to pass over permissions with them (capabilities(7)), and has them back
//! afterwards.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::given::check;
use crate::process_status::ProcessStatus;

/// The user and the group that no file belongs to.
const NOBODY: u32 = 65534;
/// "No change" of setfsuid(2) and setfsgid(2), which return what is in force.
const UNCHANGED: u32 = u32::MAX;

/// A user and groups.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Rights {
    /// The user.
    pub uid: u32,
    /// The first group.
    pub gid: u32,
    /// The other groups: 65,536 at most, which whoever keeps the same rights many times shares.
    pub groups: Arc<[u32]>,
}

impl Rights {
    /// What everybody may do, and nobody in particular.
    pub fn of_everybody() -> Self {
        Self { uid: NOBODY, gid: NOBODY, groups: [].into() }
    }

    /// Those of whoever process `pid` runs for. Mostly it opens files by them; one with ids of several, as a set-user-ID program has, has those
    /// that are not root's: what it opens may be the choice of this user.
    ///
    /// # Errors
    /// When there is no such process.
    pub fn of_process(pid: u32) -> io::Result<Self> {
        Self::parse(&ProcessStatus::of(pid)?).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// From real, effective and saved ids, and those for files. Of different ones the first that is not root's counts.
    fn parse(status: &ProcessStatus) -> Option<Self> {
        let numbers = |name: &str| -> Option<Vec<u32>> {
            status.field(name)?.split_ascii_whitespace().map(|number| number.parse().ok()).collect()
        };
        let of_four = |name: &str| {
            let four = numbers(name).filter(|ids| ids.len() == 4)?;
            Some(four.into_iter().find(|id| *id != 0).unwrap_or(0))
        };
        Some(Self { uid: of_four("Uid")?, gid: of_four("Gid")?, groups: numbers("Groups")?.into() })
    }

    /// Gives these rights to the calling thread, and no others, until the answer is dropped.
    ///
    /// # Errors
    /// EPERM where this process may not. The thread is as it was then.
    pub fn assume(&self) -> io::Result<Assumed> {
        let before = Self { uid: set_user(UNCHANGED), gid: set_group(UNCHANGED), groups: groups()? };
        let assumed = Assumed { before, _thread: PhantomData };
        // Dropped on the way out, it takes back what was changed.
        self.take_on()?;
        Ok(assumed)
    }

    /// The user comes last: setting it takes other rights with it.
    fn take_on(&self) -> io::Result<()> {
        set_groups(&self.groups)?;
        set_group(self.gid);
        set_user(self.uid);
        let is_done = set_user(UNCHANGED) == self.uid && set_group(UNCHANGED) == self.gid;
        if is_done { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

/// The calling thread has the rights of others.
#[derive(Debug)]
pub struct Assumed {
    before: Rights,
    /// They belong to the thread.
    _thread: PhantomData<*const ()>,
}

impl Drop for Assumed {
    fn drop(&mut self) {
        set_user(self.before.uid);
        set_group(self.before.gid);
        // Whoever could change them can change them back.
        let _ = set_groups(&self.before.groups);
    }
}

/// Returns the user before.
fn set_user(uid: u32) -> u32 {
    // SAFETY: the call takes and returns numbers.
    unsafe { libc::syscall(libc::SYS_setfsuid, uid) as u32 }
}

/// Returns the group before.
fn set_group(gid: u32) -> u32 {
    // SAFETY: the call takes and returns numbers.
    unsafe { libc::syscall(libc::SYS_setfsgid, gid) as u32 }
}

fn groups() -> io::Result<Arc<[u32]>> {
    Ok(rustix::process::getgroups()?.into_iter().map(|group| group.as_raw()).collect())
}

/// Of this thread alone: libc's own function sets those of all threads.
fn set_groups(groups: &[u32]) -> io::Result<()> {
    if *self::groups()? == *groups {
        return Ok(());
    }
    // SAFETY: the array lives until the call returns, and its length is given.
    check(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn a_thread_opens_what_its_rights_allow_and_no_more() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let file = |name: &str, owner: u32, group: u32, mode: u32| {
            let path = directory.path().join(name);
            fs::write(&path, "x").unwrap();
            std::os::unix::fs::chown(&path, Some(owner), Some(group)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            path
        };
        let (all, own) = (file("all", 0, 0, 0o644), file("own", 7001, 7001, 0o600));
        let (shared, roots) = (file("shared", 0, 7002, 0o640), file("root", 0, 0, 0o600));
        let may = |path: &Path| fs::read(path).is_ok();
        let seen = |rights: &Rights| {
            let _assumed = rights.assume().unwrap();
            [&all, &own, &shared, &roots].map(|path| may(path))
        };
        assert_eq!(seen(&Rights::of_everybody()), [true, false, false, false]);
        let user = Rights { uid: 7001, gid: 7001, groups: [7002].into() };
        assert_eq!(seen(&user), [true, true, true, false]);
        assert_eq!([&all, &own, &shared, &roots].map(|path| may(path)), [true; 4], "and back");
        // Another thread never lost them.
        let _assumed = user.assume().unwrap();
        assert!(std::thread::scope(|scope| scope.spawn(|| may(&own)).join().unwrap()));
    }

    #[test]
    fn those_of_a_process_are_told_by_the_kernel() {
        let of = |uids: &str, gids: &str| {
            let status = format!("Name:\tx\nUid:\t{uids}\nGid:\t{gids}\nFDSize:\t64\nGroups:\t9 10 \n");
            Rights::parse(&ProcessStatus::from(status))
        };
        let expected = |uid, gid| Some(Rights { uid, gid, groups: [9, 10].into() });
        assert_eq!(of("4 4 4 4", "8 8 8 8"), expected(4, 8));
        assert_eq!(of("0 0 0 0", "0 0 0 0"), expected(0, 0));
        assert_eq!(of("4 0 0 0", "8 8 8 8"), expected(4, 8), "a program that runs as root for user 4");
        assert_eq!(of("4 6 6 6", "8 7 7 7"), expected(4, 8));
        assert_eq!(of("0 4 0 4", "0 8 0 8"), expected(4, 8), "one of root's that opens files as user 4");
        assert_eq!(Rights::parse(&ProcessStatus::from("Uid:\t1\n".to_owned())), None);
        let own = Rights::of_process(std::process::id()).unwrap();
        assert_eq!(own.uid, rustix::process::geteuid().as_raw());
        // Nothing to change needs no right to change it.
        own.assume().unwrap();
    }
}
