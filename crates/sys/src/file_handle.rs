//! A file by its file system and the number that the file system has for it: what fanotify(7) reports of a file, and what
//! name_to_handle_at(2) tells of a path. Neither opens the file.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::given::{check, descriptor};

/// MAX_HANDLE_SZ of include/linux/exportfs.h.
const HANDLE_BYTES_MAX: usize = 128;
/// An identifier that need not lead back to the file (Linux 6.5): every file system can give one, and it is the one of fanotify.
const AT_HANDLE_FID: i32 = 0x200;

/// Which file it is, while this machine runs. Two handles of one file are equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle {
    /// `f_fsid` of statfs(2).
    pub file_system: u64,
    /// How the file system writes [`Self::bytes`].
    pub kind: i32,
    /// Inode number and generation, in most file systems.
    pub bytes: Box<[u8]>,
}

/// How a file system writes which file it is, and what it writes.
pub type Number = (i32, Box<[u8]>);

impl FileHandle {
    /// That of the file at `path`, links followed. It is looked up and not opened.
    ///
    /// # Errors
    /// As name_to_handle_at(2) and statfs(2).
    pub fn of(path: &Path) -> io::Result<Self> {
        let (kind, bytes) = handle(path)?;
        Ok(Self { file_system: rustix::fs::statvfs(path)?.f_fsid, kind, bytes })
    }

    /// What has this handle on the file system that `mount` is open on, as a place only (O_PATH): it is not read, and
    /// whoever watches opens does not see it.
    ///
    /// # Errors
    /// ESTALE where it is gone, EPERM without CAP_DAC_READ_SEARCH.
    pub fn open(&self, mount: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let mut buffer = Buffer {
            handle_bytes: self.bytes.len() as u32,
            handle_type: self.kind,
            bytes: [0; HANDLE_BYTES_MAX],
        };
        buffer
            .bytes
            .get_mut(..self.bytes.len())
            .ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(&self.bytes);
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: the buffer has the layout of `struct file_handle`, says how many bytes it has, and lives until the call returns. The
        // descriptor is new.
        unsafe {
            let mount = mount.as_raw_fd();
            descriptor(libc::syscall(libc::SYS_open_by_handle_at, mount, &raw mut buffer, flags))
        }
    }

    /// Whether the file at `path` has this handle on its own file system, or on the one below where that is an overlay: executions and
    /// opens in overlays are told of the file below. Says nothing about which file system that is, and so waits for no device or server.
    pub fn is_numbered_like(&self, path: &Path) -> io::Result<bool> {
        let (kind, bytes) = handle(path)?;
        Ok(self.is_numbered(kind, &bytes))
    }

    /// How its file system numbers it.
    pub fn number(&self) -> Number {
        (self.kind, self.bytes.clone())
    }

    /// How file systems number what `place` is open on (O_PATH does): its own, and that below where its own is an overlay.
    ///
    /// # Errors
    /// As name_to_handle_at(2).
    pub fn numbers_of(place: BorrowedFd<'_>) -> io::Result<Vec<Number>> {
        let (kind, bytes) = handle(Path::new(&format!("/proc/self/fd/{}", place.as_raw_fd())))?;
        let below = below_overlay(kind, &bytes).map(|(kind, bytes)| (kind, bytes.into()));
        Ok(below.into_iter().chain([(kind, bytes)]).collect())
    }

    fn is_numbered(&self, kind: i32, bytes: &[u8]) -> bool {
        (kind, bytes) == (self.kind, &self.bytes)
            || below_overlay(kind, bytes) == Some((self.kind, &self.bytes))
    }
}

/// What an overlay's handle says of the file below: how the file system below numbers it (`struct ovl_fh` of fs/overlayfs/overlayfs.h; overlays also
/// keep it on disks). `None` of other handles.
fn below_overlay(kind: i32, bytes: &[u8]) -> Option<(i32, &[u8])> {
    /// OVL_FILEID_V1.
    const OVERLAY: i32 = 0xf8;
    const PADDING: usize = 3;
    const MAGIC: u8 = 0xfb;
    /// Version, magic, length, flags, type and a UUID.
    const HEAD: usize = 5 + 16;
    let bytes = bytes.get(PADDING..).filter(|_| kind == OVERLAY)?;
    let &[0, MAGIC, len, _flags, kind, ..] = bytes else { return None };
    Some((kind.into(), bytes.get(HEAD..usize::from(len))?))
}

/// `struct file_handle`, with room for the largest.
#[repr(C)]
struct Buffer {
    handle_bytes: u32,
    handle_type: i32,
    bytes: [u8; HANDLE_BYTES_MAX],
}

const _: () = assert!(size_of::<Buffer>() == 8 + HANDLE_BYTES_MAX);

/// Whether the kernel can tell which file it is of file systems that have no handles, such as those of containers (Linux 6.5).
pub fn knows_all() -> bool {
    let asked = ask(c"/", AT_HANDLE_FID);
    !asked.is_err_and(|error| error.kind() == io::ErrorKind::InvalidInput)
}

fn handle(path: &Path) -> io::Result<Number> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let is_unknown = |error: &io::Error| error.kind() == io::ErrorKind::InvalidInput;
    match ask(&path, AT_HANDLE_FID) {
        Err(error) if is_unknown(&error) => match ask(&path, 0) {
            Err(error) if is_unknown(&error) => Err(io::ErrorKind::Unsupported.into()),
            asked => asked,
        },
        asked => asked,
    }
}

fn ask(path: &CStr, flags: i32) -> io::Result<Number> {
    let mut mount_id = 0i32;
    let mut buffer =
        Buffer { handle_bytes: HANDLE_BYTES_MAX as u32, handle_type: 0, bytes: [0; HANDLE_BYTES_MAX] };
    // SAFETY: the path ends in a zero byte, the buffer is a `struct file_handle` with room for as many bytes as it says, and
    // all three live until the call returns.
    check(unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut buffer,
            &raw mut mount_id,
            libc::AT_SYMLINK_FOLLOW | flags,
        )
    })?;
    let len = (buffer.handle_bytes as usize).min(HANDLE_BYTES_MAX);
    Ok((buffer.handle_type, buffer.bytes[..len].into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_names_of_a_file_have_one_handle_and_two_files_have_two() {
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| directory.path().join(name));
        std::fs::write(&a, "").unwrap();
        std::fs::write(&c, "").unwrap();
        std::fs::hard_link(&a, &b).unwrap();
        let handle = FileHandle::of(&a).unwrap();
        assert_eq!(handle, FileHandle::of(&b).unwrap());
        assert_ne!(handle, FileHandle::of(&c).unwrap());
        assert!(handle.is_numbered_like(&b).unwrap() && !handle.is_numbered_like(&c).unwrap());
        assert!(FileHandle::of(&directory.path().join("none")).is_err());
    }

    /// As Linux 6.18 gives it for a file of ext4 in an overlay.
    #[test]
    fn a_file_in_an_overlay_is_numbered_like_the_file_below() {
        let number = [0x6d, 0xc5, 3, 0, 0, 0, 0, 0];
        let handle = [&[0, 0, 0, 0, 0xfb, 29, 0, 1][..], &[7; 16], &number].concat();
        let file = FileHandle { file_system: 1, kind: 1, bytes: number.into() };
        assert!(file.is_numbered(0xf8, &handle) && file.is_numbered(1, &number));
        assert!(!file.is_numbered(1, &handle) && !file.is_numbered(2, &number));
        let other = FileHandle { bytes: [0; 8].into(), ..file };
        assert!(!other.is_numbered(0xf8, &handle));
        for len in 0..handle.len() {
            assert!(!file.is_numbered(0xf8, &handle[..len]), "{len}");
        }
    }
}
