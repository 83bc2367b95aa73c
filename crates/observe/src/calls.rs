//! Which file a system call asks for: by name, by reading, or by listing.
//!
//! One table serves both ways of seeing calls: the tracer of `prepage learn`, which sees every one, and the
//! stall sampler of `prepage run`, which sees those a thread is asleep in.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use prepage_core::PAGE_SIZE;
use prepage_sys::pagemap::{PageEntry, PageMap};
use prepage_sys::syscalls as nr;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, statx};

use crate::sightings::Inode;

/// What a call wants from the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wants {
    /// Looks up the path at `path` (an address), relative to directory descriptor `directory`.
    Name {
        /// A descriptor or AT_FDCWD.
        directory: i32,
        /// Address of the path in the caller's memory.
        path: u64,
    },
    /// Reads `len_bytes` from `fd`, at its own position or at `offset_bytes`.
    Read {
        /// Descriptor read from.
        fd: i32,
        /// Bytes asked for; `None` where they stand in a vector that is not looked at.
        len_bytes: Option<u64>,
        /// Where; `None` is the descriptor's position.
        offset_bytes: Option<u64>,
    },
    /// Lists the directory open as `fd`.
    List {
        /// Descriptor of the directory.
        fd: i32,
    },
}

/// What system call `number` with `args` wants; `None` for calls that have nothing to do with files' contents
/// or names.
pub fn wants(number: u64, args: &[u64; 6]) -> Option<Wants> {
    let fd = args[0] as i32;
    let name = |path| Wants::Name { directory: nr::AT_FDCWD, path };
    let name_at = |path| Wants::Name { directory: fd, path };
    let read = |len_bytes, offset_bytes| Wants::Read { fd, len_bytes, offset_bytes };
    #[cfg(target_arch = "x86_64")]
    match number {
        nr::OPEN | nr::STAT | nr::LSTAT | nr::ACCESS | nr::READLINK | nr::CHDIR => {
            return Some(name(args[0]));
        }
        _ => {}
    }
    #[cfg(not(target_arch = "x86_64"))]
    if number == nr::CHDIR {
        return Some(name(args[0]));
    }
    Some(match number {
        nr::OPENAT
        | nr::NEWFSTATAT
        | nr::FACCESSAT
        | nr::FACCESSAT2
        | nr::READLINKAT
        | nr::STATX
        | nr::OPENAT2 => name_at(args[1]),
        nr::EXECVE => name(args[0]),
        nr::EXECVEAT => name_at(args[1]),
        nr::READ => read(Some(args[2]), None),
        nr::PREAD64 => read(Some(args[2]), Some(args[3])),
        nr::READV => read(None, None),
        nr::PREADV | nr::PREADV2 => read(None, Some(args[3]).filter(|&offset| offset as i64 != -1)),
        nr::COPY_FILE_RANGE if args[1] == 0 => read(Some(args[4]), None),
        nr::SENDFILE if args[2] == 0 => {
            Wants::Read { fd: args[1] as i32, len_bytes: Some(args[3]), offset_bytes: None }
        }
        nr::GETDENTS64 => Wants::List { fd },
        _ => return None,
    })
}

/// A process whose memory and descriptors are looked at through /proc. Everything fails softly: it may be gone.
#[derive(Clone, Copy, Debug)]
pub struct Peek {
    tid: u32,
}

impl Peek {
    /// Looks at the process of thread `tid`.
    pub fn at(tid: u32) -> Self {
        Self { tid }
    }

    /// The absolute path that a [`Wants::Name`] means, symbolic links unresolved.
    pub fn path(self, directory: i32, path: u64) -> Option<PathBuf> {
        let path = self.string(path)?;
        let path = Path::new(OsStr::from_bytes(&path));
        if path.as_os_str().is_empty() {
            return None;
        }
        if path.is_absolute() {
            return Some(path.into());
        }
        let base = if directory == nr::AT_FDCWD {
            fs::read_link(format!("/proc/{}/cwd", self.tid)).ok()?
        } else {
            self.file(directory)?
        };
        Some(base.join(path))
    }

    /// The path of the file or directory open as `fd`; `None` for pipes, sockets and deleted files.
    pub fn file(self, fd: i32) -> Option<PathBuf> {
        let path = fs::read_link(format!("/proc/{}/fd/{fd}", self.tid)).ok()?;
        let bytes = path.as_os_str().as_bytes();
        (bytes.starts_with(b"/") && !bytes.ends_with(b" (deleted)")).then_some(path)
    }

    /// Whether a regular file or a directory is open as `fd`. No server is asked.
    pub fn is_of_a_file_system(self, fd: i32) -> bool {
        let (path, flags) = (format!("/proc/{}/fd/{fd}", self.tid), AtFlags::STATX_DONT_SYNC);
        let found = statx(CWD, path, flags, StatxFlags::TYPE);
        found.is_ok_and(|found| {
            let kind = FileType::from_raw_mode(found.stx_mode.into());
            matches!(kind, FileType::RegularFile | FileType::Directory)
        })
    }

    /// Device and inode of what is open as `fd`, wherever its name leads.
    pub fn inode(self, fd: i32) -> Option<Inode> {
        let metadata = fs::metadata(format!("/proc/{}/fd/{fd}", self.tid)).ok()?;
        Some((metadata.dev(), metadata.ino()))
    }

    /// The position of descriptor `fd`.
    pub fn position(self, fd: i32) -> Option<u64> {
        let info = fs::read_to_string(format!("/proc/{}/fdinfo/{fd}", self.tid)).ok()?;
        info.lines().find_map(|line| line.strip_prefix("pos:"))?.trim().parse().ok()
    }

    /// The call that the thread `tid` of this process is asleep in: its number and arguments.
    pub fn sleeping_in(self) -> Option<(u64, [u64; 6])> {
        parse_sleeping(&fs::read_to_string(format!("/proc/{}/syscall", self.tid)).ok()?)
    }

    /// The C string at `address`, at most PATH_MAX long, where it is in memory: the call that sleeps has read it. Whatever else lies there
    /// may be a file's that nobody ever answers for.
    fn string(self, address: u64) -> Option<Vec<u8>> {
        const PATH_BYTES_MAX: usize = 4096;
        let memory = fs::File::open(format!("/proc/{}/mem", self.tid)).ok()?;
        let pages = PageMap::of(self.tid).ok()?;
        let mut string = Vec::new();
        let mut chunk = [0; 256];
        while string.len() < PATH_BYTES_MAX {
            let address = address.checked_add(string.len() as u64)?;
            let mut page = [PageEntry::default()];
            pages.entries(address, &mut page).ok().filter(|()| page[0].is_present())?;
            let in_page = (PAGE_SIZE - address % PAGE_SIZE).min(chunk.len() as u64) as usize;
            let read = memory.read_at(&mut chunk[..in_page], address).ok()?;
            match chunk[..read].iter().position(|&byte| byte == 0) {
                Some(end) => {
                    string.extend_from_slice(&chunk[..end]);
                    return Some(string);
                }
                None if read == 0 => return None,
                None => string.extend_from_slice(&chunk[..read]),
            }
        }
        None
    }
}

/// A line of /proc/PID/syscall (proc_pid_syscall(5)): `0 0x3 0x7ffe… … sp pc`, or `running`, or `-1 sp pc`.
fn parse_sleeping(line: &str) -> Option<(u64, [u64; 6])> {
    let mut fields = line.split_ascii_whitespace();
    let number: u64 = fields.next()?.parse().ok()?;
    let mut args = [0; 6];
    for arg in &mut args {
        *arg = u64::from_str_radix(fields.next()?.strip_prefix("0x")?, 16).ok()?;
    }
    Some((number, args))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::{AsFd, AsRawFd};

    use prepage_core::PageRange;
    use prepage_sys::mapping::FileMapping;

    use super::*;

    #[test]
    fn the_line_of_a_sleeping_thread_is_read() {
        let line = "17 0x3 0x7f00 0x1000 0x2000 0x0 0x0 0x7ffd0 0x7f11\n";
        assert_eq!(parse_sleeping(line), Some((17, [3, 0x7f00, 0x1000, 0x2000, 0, 0])));
        assert_eq!(parse_sleeping("running\n"), None);
        assert_eq!(parse_sleeping("-1 0x7ffd0 0x7f11\n"), None);
        assert_eq!(parse_sleeping("0 0x3\n"), None);
    }

    #[test]
    fn this_process_can_be_looked_at() {
        let me = Peek::at(std::process::id());
        let path = std::ffi::CString::new("/etc/hostname").unwrap();
        assert_eq!(me.path(nr::AT_FDCWD, path.as_ptr() as u64), Some("/etc/hostname".into()));
        assert_eq!(me.path(nr::AT_FDCWD, 8), None, "no memory there");
        let file = fs::File::open(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
        let fd = file.as_raw_fd();
        assert!(me.file(fd).unwrap().ends_with("Cargo.toml"));
        assert_eq!(me.position(fd), Some(0));
        assert!(me.is_of_a_file_system(fd));
        let (pipe, _other_end) = std::io::pipe().unwrap();
        assert!(!me.is_of_a_file_system(pipe.as_raw_fd()));
        let event = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
        assert!(!me.is_of_a_file_system(event.as_raw_fd()));
    }

    /// It may be a file's that nobody answers for: who reads it waits for ever.
    #[test]
    fn a_path_that_is_not_in_memory_is_not_waited_for() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"/etc/hostname\0").unwrap();
        let mapped = FileMapping::new(file.as_fd(), PageRange::covering(0, PAGE_SIZE)).unwrap();
        let me = Peek::at(std::process::id());
        assert_eq!(me.path(nr::AT_FDCWD, mapped.address()), None);
        assert_eq!(mapped.byte(0), b'/');
        assert_eq!(me.path(nr::AT_FDCWD, mapped.address()), Some("/etc/hostname".into()));
    }

    #[test]
    fn reads_and_names_are_told_from_other_calls() {
        let args = [3, 0x10, 100, 8192, 0, 0];
        assert_eq!(
            wants(nr::READ, &args),
            Some(Wants::Read { fd: 3, len_bytes: Some(100), offset_bytes: None })
        );
        assert_eq!(
            wants(nr::PREAD64, &args),
            Some(Wants::Read { fd: 3, len_bytes: Some(100), offset_bytes: Some(8192) })
        );
        assert_eq!(wants(nr::OPENAT, &args), Some(Wants::Name { directory: 3, path: 0x10 }));
        assert_eq!(wants(nr::GETDENTS64, &args), Some(Wants::List { fd: 3 }));
        assert_eq!(wants(1, &args), None, "write");
    }
}
