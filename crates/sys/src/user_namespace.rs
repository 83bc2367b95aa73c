//! Who is behind the user ids of a user namespace (ioctl_ns(2)).

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use crate::given::{check, descriptor};

/// `_IO(0xb7, 2)` and `_IO(0xb7, 4)` of include/uapi/linux/nsfs.h.
const NS_GET_PARENT: libc::c_ulong = 0xb702;
const NS_GET_OWNER_UID: libc::c_ulong = 0xb704;

/// The user who has made the user namespace that process `pid` is in; where it is in one within others, the outermost below this process's own.
/// `None` where it is in the same as this process.
///
/// # Errors
/// ESRCH or ENOENT where the process is gone, EACCES where it may not be looked at.
pub fn maker_of(pid: u32) -> io::Result<Option<u32>> {
    let path = format!("/proc/{pid}/ns/user");
    let number = || fs::metadata("/proc/self/ns/user").ok().map(|own| own.ino());
    static OWN: OnceLock<Option<u64>> = OnceLock::new();
    let own = OWN.get_or_init(number).ok_or(io::ErrorKind::NotFound)?;
    if fs::metadata(&path)?.ino() == own {
        return Ok(None);
    }
    let mut namespace = File::open(path)?;
    loop {
        // SAFETY: the call takes no argument and returns a new descriptor.
        let parent = unsafe { descriptor(libc::ioctl(namespace.as_raw_fd(), NS_GET_PARENT as _)) };
        let parent = File::from(parent?);
        if parent.metadata()?.ino() == own {
            break;
        }
        namespace = parent;
    }
    let mut uid: libc::uid_t = 0;
    // SAFETY: the kernel writes a user id, and it outlives the call.
    check(unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID as _, &raw mut uid) })?;
    Ok(Some(uid))
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use prepage_testing::{Need, has};

    use super::*;

    /// What a process within says once it runs, and who has made the outermost namespace that it is in.
    fn maker(command: &[&str]) -> Option<Option<u32>> {
        let mut child = Command::new("setpriv")
            .args(command)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let has_begun = child.stdout.as_mut().unwrap().read_exact(&mut [0]).is_ok();
        let maker = maker_of(child.id());
        drop(child.stdin.take());
        child.wait().unwrap();
        has_begun.then(|| maker.unwrap())
    }

    #[test]
    fn who_has_made_a_namespace_is_behind_all_that_is_within() {
        if !has(Need::Root) {
            return;
        }
        const USER: [&str; 3] = ["--reuid=54321", "--clear-groups", "--regid=54321"];
        let run = ["sh", "-c", "echo; read line"];
        let unshare = ["unshare", "--map-root-user"];
        assert_eq!(maker(&[&USER[..], &run].concat()), Some(None));
        if !has(Need::UserNamespace) {
            return;
        }
        assert_eq!(maker(&[&USER[..], &unshare, &run].concat()), Some(Some(54321)));
        assert_eq!(maker(&[&USER[..], &unshare, &unshare, &run].concat()), Some(Some(54321)));
        assert!(maker_of(u32::MAX).is_err());
    }
}
