//! Opening a file of which only device and inode are known (root).
//!
//! A file handle, as NFS servers use them, names a file by inode and generation. ext4 and others of its family take
//! generation 0 for any; file systems that do not refuse it, and the file stays unknown.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};

/// `FILEID_INO32_GEN` of include/linux/exportfs.h: 32 bits of inode, 32 of generation.
const INODE_AND_GENERATION: i32 = 1;

/// `struct file_handle` of open_by_handle_at(2), with room for one of [`INODE_AND_GENERATION`].
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    inode: u32,
    generation: u32,
}

const _: () = assert!(size_of::<Handle>() == 16);

/// A mounted file system on which inodes can be opened.
#[derive(Debug)]
pub struct Mounted {
    /// `major << 20 | minor`.
    device: u64,
    point: OwnedFd,
}

/// All mounted file systems, each once.
pub fn mounted() -> io::Result<Vec<Mounted>> {
    let mut found: Vec<Mounted> = Vec::new();
    for line in fs::read_to_string("/proc/self/mountinfo")?.lines() {
        // `36 35 98:0 /root /mount/point …` (proc_pid_mountinfo(5))
        let mut fields = line.split(' ').skip(2);
        let (Some(device), Some(_), Some(point)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let numbers = device.split_once(':').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
        let Some((major, minor)) = numbers else { continue };
        let (major, minor): (u64, u64) = (major, minor);
        let device = major << 20 | minor;
        if found.iter().any(|mounted| mounted.device == device) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if let Ok(point) = open(unescaped(point), flags, Mode::empty()) {
            found.push(Mounted { device, point });
        }
    }
    Ok(found)
}

/// Opens `inode` of the file system with `device` (`major << 20 | minor`), to look at and not to read. `None` where
/// it is gone, cannot be opened this way or this user may not.
pub fn open_inode(mounted: &[Mounted], device: u64, inode: u64) -> Option<OwnedFd> {
    let mount = mounted.iter().find(|mount| mount.device == device)?;
    let mut handle =
        Handle { bytes: 8, kind: INODE_AND_GENERATION, inode: inode.try_into().ok()?, generation: 0 };
    let handle: *mut Handle = &mut handle;
    // SAFETY: `handle` is laid out as the kernel's struct, says how long it is and outlives the call, which reads it.
    let fd = unsafe {
        libc::open_by_handle_at(mount.point.as_raw_fd(), handle.cast(), libc::O_PATH | libc::O_CLOEXEC)
    };
    // SAFETY: the kernel just returned this descriptor and nothing else owns it.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Spaces, tabs, line ends and backslashes are written `\040` and so on.
fn unescaped(field: &str) -> String {
    let mut text = String::new();
    let mut rest = field;
    while let Some((plain, escape)) = rest.split_once('\\') {
        text.push_str(plain);
        let code = escape.get(..3).and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => text.push(code as char),
            None => text.push('\\'),
        }
        rest = if code.is_some() { &escape[3..] } else { escape };
    }
    text.push_str(rest);
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_is_found_by_its_inode() {
        // A file of the build tree: the system's temporary directory may be in memory.
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let metadata = fs::metadata(&path).expect("there");
        let device = metadata.dev();
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let device = u64::from(major) << 20 | u64::from(minor);
        let Some(fd) = open_inode(&mounted().expect("a list"), device, metadata.ino()) else {
            eprintln!("SKIPPED: needs root and a file system that opens inodes of any generation");
            return;
        };
        let found = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a path");
        assert_eq!(found, path.canonicalize().expect("there"));
    }

    #[test]
    fn mount_points_are_unescaped() {
        assert_eq!(unescaped("/a\\040b\\134c\\"), "/a b\\c\\");
        assert_eq!(unescaped("/ä\\04"), "/ä\\04");
    }
}
