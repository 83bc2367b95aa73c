//! Files in memory of which blocks of 2 MiB can be huge pages ([`crate::block`]).
//!
//! Whether the kernel makes huge pages of memfds is one setting of the machine (`/sys/kernel/mm/transparent_hugepage/shmem_enabled`), and as a rule it does
//! not. A tmpfs has a setting of its own. The one here is mounted nowhere: who has no descriptor of it or of its files cannot reach them, and with the last of
//! these it is gone. Its files have no name, and nobody has a right to open them.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::thread::UnshareFlags;

use crate::apart::run_apart;
use crate::made_once::MadeOnce;

/// Others of this process may be between making their file and taking away its name.
const TRIES: usize = 1000;

/// The mount, or nothing where there can be none.
type Root = MadeOnce<Option<OwnedFd>>;

/// A new file of no length, called `name` in /proc/PID/maps as a memfd of that name is. `None` where this process may not mount, or the kernel knows no huge pages;
/// also where descriptors, memory or processes are short, until they are not.
pub(crate) fn file(name: &str) -> Option<OwnedFd> {
    static ROOT: Root = Root::new();
    file_in(root_in(&ROOT)?, name)
}

fn file_in(root: BorrowedFd<'_>, name: &str) -> Option<OwnedFd> {
    let name = format!("memfd:{name}");
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    for _ in 0..TRIES {
        let file = rustix::fs::openat(root, &name, flags, Mode::empty());
        // Whoever made the file of that name has it open, and needs the name no longer.
        let _ = rustix::fs::unlinkat(root, &name, AtFlags::empty());
        match file {
            Err(Errno::EXIST) => {}
            file => return file.ok(),
        }
    }
    None
}

/// Threads that come at once each make a mount, and the first stays; so one that finds the limit of user namespaces reached by the others may be told so for
/// all. A child that is forked meanwhile keeps what its parent was making until it executes or ends.
fn root_in(root: &Root) -> Option<BorrowedFd<'_>> {
    let made = root.try_get_or_make(|| match mount() {
        Err(error) if passes(&error) => Err(error),
        mounted => Ok(mounted.ok()),
    });
    made.ok()?.as_ref().map(AsFd::as_fd)
}

/// Whether what failed with `error` may succeed later. Not ENOSPC, though user namespaces may be at their limit only for a while: it is the
/// error too where the administrator permits none (`user.max_user_namespaces` is 0), and then each object would try again.
fn passes(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN))
}

/// By root here, by others in a user namespace of their own, which a process beside this one enters and which is gone with it. Needs Linux 5.2.
fn mount() -> io::Result<OwnedFd> {
    match mount_here() {
        Err(Errno::PERM) => run_apart(|| enter_namespace().and_then(|()| Ok(mount_here()?)))?,
        mounted => Ok(mounted?),
    }
}

fn mount_here() -> rustix::io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let context = context.as_fd();
    // Where the advice of a mapping asks for them.
    rustix::mount::fsconfig_set_string(context, "huge", "advise")?;
    // No limit but those of memory, as for memfds.
    rustix::mount::fsconfig_set_string(context, "size", "0")?;
    rustix::mount::fsconfig_set_string(context, "nr_inodes", "0")?;
    rustix::mount::fsconfig_set_string(context, "mode", "0700")?;
    rustix::mount::fsconfig_create(context)?;
    rustix::mount::fsmount(context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}

/// The calling process, of one thread, may mount from here on. It has the same user and group: others could own no file of what it mounts.
fn enter_namespace() -> io::Result<()> {
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    // SAFETY: the process shares descriptors and memory with others; what it leaves behind is neither.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?;
    std::fs::write("/proc/self/setgroups", "deny")?;
    std::fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    std::fs::write("/proc/self/gid_map", format!("{group} {group} 1"))
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, has};
    use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};

    use super::*;
    use crate::forked::Forked;

    #[test]
    fn a_file_has_no_name_and_nobody_may_open_it() {
        if !has(Need::Root) {
            return;
        }
        let file = file("own").unwrap();
        let facts = rustix::fs::fstat(&file).unwrap();
        assert_eq!((facts.st_nlink, facts.st_mode & 0o7777, facts.st_size), (0, 0, 0));
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
        assert_eq!(shown.unwrap().to_str(), Some("/memfd:own (deleted)"));
    }

    #[test]
    fn a_process_without_descriptors_has_files_once_there_are_some_again() {
        if !has(Need::Root) {
            return;
        }
        let child = Forked::new(|| {
            let root = Root::new();
            let limits = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limits }).unwrap();
            assert!(root_in(&root).is_none());
            setrlimit(Resource::Nofile, limits).unwrap();
            i32::from(root_in(&root).and_then(|root| file_in(root, "own")).is_none())
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
    }

    #[test]
    fn an_ordinary_user_has_files_too() {
        if !has(Need::Root) || !has(Need::UserNamespace) {
            return;
        }
        let child = Forked::new(|| {
            let (user, group) =
                (rustix::process::Uid::from_raw(54321), rustix::process::Gid::from_raw(54321));
            rustix::thread::set_thread_res_gid(group, group, group).unwrap();
            rustix::thread::set_thread_res_uid(user, user, user).unwrap();
            // As a process is that was not root before.
            set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
            assert_eq!(mount_here().unwrap_err(), Errno::PERM);
            let file = mount().ok().and_then(|root| file_in(root.as_fd(), "own"));
            i32::from(file.is_none_or(|file| rustix::fs::ftruncate(file, 1 << 30).is_err()))
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
    }
}
