//! A thread that gives up writing: it changes no file and no name, executes nothing, looks at no other process and signals none
//! (landlock(7), Linux 5.13). What it has open already is not concerned, nor is reading.

use std::io;
use std::os::fd::AsRawFd;

use crate::given::{check, descriptor, number};

/// LANDLOCK_CREATE_RULESET_VERSION.
const VERSION: u32 = 1;
/// LANDLOCK_ACCESS_FS_EXECUTE, WRITE_FILE, and all from REMOVE_DIR to MAKE_SYM; READ_FILE (4) and READ_DIR (8) stay out.
const CHANGES: u64 = 0x1ff3;
/// What later versions know: REFER (2), TRUNCATE (3), IOCTL_DEV (5).
const LATER_CHANGES: [(i64, u64); 3] = [(2, 1 << 13), (3, 1 << 14), (5, 1 << 15)];
/// LANDLOCK_ACCESS_NET_BIND_TCP and CONNECT_TCP, of version 4.
const NETWORK: (i64, u64) = (4, 3);
/// LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and SIGNAL, of version 6.
const SCOPES: (i64, u64) = (6, 3);

/// `struct landlock_ruleset_attr`.
#[repr(C)]
struct Ruleset {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

const _: () = assert!(size_of::<Ruleset>() == 24);

/// The version of the kernel's Landlock.
///
/// # Errors
/// ENOSYS, EOPNOTSUPP where it has none, or where Landlock is switched off.
pub fn version() -> io::Result<i64> {
    // SAFETY: the kernel is asked for a number and given none.
    number(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<Ruleset>(), 0, VERSION)
    })
}

/// From now on this thread, and the threads and processes that it starts, only read. Sets no_new_privs.
///
/// # Errors
/// As [`version`]; EPERM where a filter forbids it.
pub fn only_read() -> io::Result<()> {
    let version = version()?;
    let known = |(since, bits): (i64, u64)| if version >= since { bits } else { 0 };
    let ruleset = Ruleset {
        handled_access_fs: CHANGES | LATER_CHANGES.map(known).iter().sum::<u64>(),
        handled_access_net: known(NETWORK),
        scoped: known(SCOPES),
    };
    rustix::thread::set_no_new_privs(true)?;
    // Older kernels take a longer structure whose end is zero.
    // SAFETY: the structure lives until the call returns, and its size is given. The descriptor is new.
    let rules = unsafe {
        let bytes = size_of::<Ruleset>();
        descriptor(libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, bytes, 0))?
    };
    // Without a rule that allows anything, all that the rules handle is refused.
    // SAFETY: takes numbers.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use prepage_testing::{Need, unless_refused};

    use super::*;

    #[test]
    fn a_thread_that_only_reads_changes_nothing_and_the_others_do() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "text").unwrap();
        let other = directory.path().join("other");
        let none = |error: &io::Error| {
            matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EOPNOTSUPP | libc::EPERM))
        };
        let need = Need::Landlock;
        let try_all = || {
            unless_refused(only_read(), need, none)?;
            assert_eq!(fs::read_to_string(&file).unwrap(), "text");
            assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
            let refused = |result: io::Result<()>| result.unwrap_err().kind();
            let tries = [
                fs::write(&file, "changed"),
                fs::write(&other, ""),
                fs::remove_file(&file),
                fs::rename(&file, &other),
                std::process::Command::new("/bin/true").status().map(drop),
            ];
            Some(tries.map(refused))
        };
        let Some(kinds) = std::thread::scope(|scope| scope.spawn(try_all).join().unwrap()) else { return };
        assert_eq!(kinds, [io::ErrorKind::PermissionDenied; 5]);
        fs::rename(&file, &other).unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "text");
    }
}
