//! Which files are opened to be executed, or at all, on whole file systems, and who opens certain files (fanotify(7),
//! FAN_OPEN_EXEC, Linux 5.1; CAP_SYS_ADMIN).
//!
//! Events name the file and the process and hold nothing: neither a file nor a mount stays in use because of one that is
//! not read yet. Of Btrfs subvolumes the kernel gives no such names (EXDEV): events of executions there have the file open until they
//! are read. No program waits for them. Events that the kernel's queue of 16,384 has no room for are lost, and [`Seen::Lost`] says so.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::OnceLock;

use crate::file_handle::FileHandle;
use crate::given::{check, descriptor};

/// Some 600 events.
const BUFFER_BYTES: usize = 32 << 10;
/// No event is longer: its metadata, one header, a file system, and a handle of MAX_HANDLE_SZ.
const EVENT_BYTES_MAX: usize = 256;

/// `struct fanotify_event_metadata`.
const METADATA_BYTES: usize = 24;
/// `struct fanotify_event_info_header`.
const INFO_HEADER_BYTES: usize = 4;
const INFO_FID: u8 = 1;

/// Something that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Process `pid` is about to execute a file, or has opened what a file that it executes is loaded or interpreted by.
    Exec {
        /// Which process; 0 where it is not to be seen from here.
        pid: u32,
        /// The file.
        file: FileHandle,
    },
    /// Execs were missed: there were more than the kernel keeps, or their files could not be opened for whoever reads of them.
    Lost,
}

/// Execs of the file systems that were added; or all that is opened there, directories too. What it tells is [`Seen::Exec`], whatever
/// was done.
#[derive(Debug)]
pub struct ExecWatch {
    group: Group,
    /// Of execs on file systems that the kernel gives no names of files for.
    by_descriptor: OnceLock<Group>,
    mask: u64,
}

/// Opens and reads of the files that were added: by whom, and of which. What it tells is [`Seen::Exec`], whatever was done.
#[derive(Debug)]
pub struct OpenWatch {
    group: Group,
}

impl OpenWatch {
    /// Of no file yet. Dropped, it lets go of all.
    ///
    /// # Errors
    /// EPERM without the right to watch, EMFILE where a user has too many (128).
    pub fn new() -> io::Result<Self> {
        Group::new(libc::FAN_REPORT_FID).map(|group| Self { group })
    }

    /// Adds a file. Its inode stays in the kernel's memory meanwhile; its file system can be unmounted.
    ///
    /// # Errors
    /// EOPNOTSUPP, ENODEV, EXDEV where a file system has no numbers that tell its files.
    pub fn add(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.group.mark(0, libc::FAN_OPEN | libc::FAN_ACCESS, file.as_raw_fd(), None)
    }

    /// Removes a file: what was seen of it before is still told.
    ///
    /// # Errors
    /// ENOENT where it was not added.
    pub fn remove(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let mask = libc::FAN_OPEN | libc::FAN_ACCESS;
        self.group.change(libc::FAN_MARK_REMOVE, mask, file.as_raw_fd(), None)
    }

    /// As [`ExecWatch::read`].
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&self, see: &mut dyn FnMut(Seen)) -> io::Result<bool> {
        self.group.read(see)
    }
}

impl ExecWatch {
    /// Of no file system yet.
    ///
    /// # Errors
    /// EPERM without the right to watch.
    pub fn new() -> io::Result<Self> {
        // Since Linux 5.13 everybody may have a group that file systems cannot be added to. One without a limit needs the right to add them.
        Self::of(libc::FAN_UNLIMITED_MARKS, libc::FAN_OPEN_EXEC)
    }

    /// Of all that is opened on no file system yet.
    ///
    /// # Errors
    /// EPERM without the right to watch.
    pub fn of_opens() -> io::Result<Self> {
        Self::of(libc::FAN_UNLIMITED_MARKS, libc::FAN_OPEN | libc::FAN_ONDIR)
    }

    fn of(flags: u32, mask: u64) -> io::Result<Self> {
        let group = Group::new(flags | libc::FAN_REPORT_FID)?;
        Ok(Self { group, by_descriptor: OnceLock::new(), mask })
    }

    fn groups(&self) -> impl Iterator<Item = &Group> {
        std::iter::once(&self.group).chain(self.by_descriptor.get())
    }

    /// One of them is readable when something was seen. The second may be another after [`Self::add`].
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [&self.group, self.by_descriptor.get().unwrap_or(&self.group)].map(|group| group.fd.as_fd())
    }

    /// Adds the file system that is mounted at `point`, a directory, or a file as in containers. May wait for a server where that is a network's.
    ///
    /// # Errors
    /// EOPNOTSUPP, ENODEV where a file system has no numbers that tell its files; EXDEV where opens are watched, and the kernel does not
    /// report them.
    pub fn add(&self, point: &Path) -> io::Result<()> {
        let path = CString::new(point.as_os_str().as_bytes())?;
        let mark =
            |group: &Group| group.mark(libc::FAN_MARK_FILESYSTEM, self.mask, libc::AT_FDCWD, Some(&path));
        match mark(&self.group) {
            // To open whatever else is opened there, pipes among them, would show.
            Err(error) if error.raw_os_error() == Some(libc::EXDEV) && self.mask == libc::FAN_OPEN_EXEC => {
                let other = Group::new(libc::FAN_UNLIMITED_MARKS)?;
                mark(self.by_descriptor.get_or_init(|| other))
            }
            marked => marked,
        }
    }

    /// Passes over the file that `file` is open on (O_PATH does), until [`Self::pass_over_none`] or until somebody writes to it: the kernel makes no
    /// event of it. Its inode stays in the kernel's memory meanwhile; its file system can be unmounted.
    ///
    /// # Errors
    /// ENOSPC where there is no room.
    pub fn pass_over(&self, file: BorrowedFd<'_>) -> io::Result<()> {
        let path = CString::new(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let mark =
            |group: &Group| group.mark(libc::FAN_MARK_IGNORED_MASK, self.mask, libc::AT_FDCWD, Some(&path));
        // The one that watches its file system takes it.
        self.groups().map(mark).reduce(Result::or).unwrap_or(Ok(()))
    }

    /// Passes over no file any more.
    ///
    /// # Errors
    /// None are known.
    pub fn pass_over_none(&self) -> io::Result<()> {
        // All marks of files: those of file systems are others.
        self.groups().try_for_each(|group| group.change(libc::FAN_MARK_FLUSH, 0, libc::AT_FDCWD, None))
    }

    /// Hands what was seen since the last call to `see`, without waiting, at most one buffer full. Returns whether there may be
    /// more.
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&self, see: &mut dyn FnMut(Seen)) -> io::Result<bool> {
        self.groups().try_fold(false, |has_more, group| Ok(group.read(see)? || has_more))
    }
}

/// A notification group.
#[derive(Debug)]
struct Group {
    fd: OwnedFd,
    /// Whether the kernel opens the files of its events.
    opens: bool,
}

impl Group {
    /// Without FAN_REPORT_FID its events have files open.
    fn new(more: u32) -> io::Result<Self> {
        let flags = more | libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        // SAFETY: the call takes numbers only, and the descriptor is new.
        let fd =
            unsafe { descriptor(libc::fanotify_init(flags, (libc::O_RDONLY | libc::O_CLOEXEC) as u32)) }?;
        Ok(Self { fd, opens: more & libc::FAN_REPORT_FID == 0 })
    }

    /// Adds what `path`, or the descriptor itself, stands for.
    fn mark(&self, flags: u32, mask: u64, fd: i32, path: Option<&CStr>) -> io::Result<()> {
        self.change(libc::FAN_MARK_ADD | flags, mask, fd, path)
    }

    fn change(&self, flags: u32, mask: u64, fd: i32, path: Option<&CStr>) -> io::Result<()> {
        let path = path.map_or(std::ptr::null(), CStr::as_ptr);
        // SAFETY: the path is null or ends in a zero byte and lives until the call returns; the rest are numbers.
        check(unsafe { libc::fanotify_mark(self.fd.as_raw_fd(), flags, mask, fd, path) })
    }

    fn read(&self, see: &mut dyn FnMut(Seen)) -> io::Result<bool> {
        // To clear it would take longer than to look at one event.
        let mut buffer = [MaybeUninit::<u8>::uninit(); BUFFER_BYTES];
        match rustix::io::read(&self.fd, &mut buffer[..]) {
            Ok((events, _)) => {
                parse(events, see);
                // The kernel stops where the next one does not fit.
                Ok(events.len() + EVENT_BYTES_MAX > BUFFER_BYTES)
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Ok(false),
            // The kernel has dropped the event whose file it could not open (EMFILE, or what the file system says), and goes on with the next one.
            Err(_) if self.opens => {
                see(Seen::Lost);
                Ok(true)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Events as the kernel has just written them: the descriptors in them are nobody's yet. What is not understood is passed over.
fn parse(mut events: &[u8], see: &mut dyn FnMut(Seen)) {
    while let Some(event_len) = u32_at(events, 0) {
        let Some(event) = events.get(..event_len as usize).filter(|event| event.len() >= METADATA_BYTES)
        else {
            return;
        };
        events = &events[event.len()..];
        let metadata_len = usize::from(u16::from_ne_bytes([event[6], event[7]]));
        let mask = u64::from_ne_bytes(event[8..16].try_into().expect("eight bytes"));
        let (fd, pid) = (u32_at(event, 16).unwrap_or(u32::MAX) as i32, u32_at(event, 20).unwrap_or(0));
        // SAFETY: the kernel has opened it for whoever reads this event, and nobody else has it.
        let opened = (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) });
        if mask & libc::FAN_Q_OVERFLOW != 0 {
            see(Seen::Lost);
        } else if let Some(file) = match opened {
            Some(opened) => FileHandle::of(format!("/proc/self/fd/{}", opened.as_raw_fd()).as_ref()).ok(),
            None => event.get(metadata_len..).and_then(file_of),
        } {
            see(Seen::Exec { pid, file });
        }
    }
}

/// The file among the records that follow an event.
fn file_of(mut infos: &[u8]) -> Option<FileHandle> {
    while infos.len() >= INFO_HEADER_BYTES {
        let len = usize::from(u16::from_ne_bytes([infos[2], infos[3]]));
        let info = infos.get(..len).filter(|info| info.len() >= INFO_HEADER_BYTES)?;
        infos = &infos[len..];
        if info[0] == INFO_FID {
            // The file system in two halves, then `struct file_handle`.
            let file_system = u64::from(u32_at(info, 4)?) | u64::from(u32_at(info, 8)?) << 32;
            let (bytes, kind) = (u32_at(info, 12)? as usize, u32_at(info, 16)?);
            return Some(FileHandle {
                file_system,
                kind: kind as i32,
                bytes: info.get(20..20usize.checked_add(bytes)?)?.into(),
            });
        }
    }
    None
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use prepage_testing::{Need, unless_refused};

    use super::*;

    #[test]
    fn the_program_that_a_process_executes_is_told_with_the_process() {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let Some(watch) = unless_refused(ExecWatch::new(), Need::Root, refused) else { return };
        let program = std::fs::canonicalize("/bin/true").unwrap();
        watch.add(&program.parent().unwrap().ancestors().last().unwrap().join("usr")).unwrap();
        let mut child = Command::new(&program).spawn().unwrap();
        child.wait().unwrap();
        // It is in the queue since before it ran.
        let wanted = Seen::Exec { pid: child.id(), file: FileHandle::of(&program).unwrap() };
        let mut is_seen = false;
        while watch.read(&mut |seen| is_seen |= seen == wanted).unwrap() {}
        assert!(is_seen);
    }

    #[test]
    fn what_is_passed_over_is_not_told_until_it_is_not_or_somebody_writes_to_it() {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let Some(watch) = unless_refused(ExecWatch::new(), Need::Root, refused) else { return };
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let copy = |name: &str| {
            let path = directory.path().join(name);
            assert!(Command::new("cp").arg("/bin/true").arg(&path).status().unwrap().success());
            path
        };
        let [one, other] = ["one", "other"].map(copy);
        watch.add(directory.path()).unwrap();
        let [is_one, is_other] = [&one, &other].map(|path| FileHandle::of(path).unwrap());
        let seen = || {
            let run = |path| assert!(Command::new(path).status().unwrap().success());
            [&one, &other].into_iter().for_each(run);
            let mut all = Vec::new();
            let mut see = |seen| match seen {
                Seen::Exec { file, .. } if file == is_one || file == is_other => all.push(file),
                _ => {}
            };
            while watch.read(&mut see).unwrap() {}
            all
        };
        let both = [is_one.clone(), is_other.clone()];
        assert_eq!(seen(), both);
        let pass_over = || {
            let mount = std::fs::File::open(directory.path()).unwrap();
            watch.pass_over(is_one.open(mount.as_fd()).unwrap().as_fd()).unwrap();
        };
        pass_over();
        assert_eq!((seen(), seen()), (vec![is_other.clone()], vec![is_other.clone()]));
        watch.pass_over_none().unwrap();
        assert_eq!(seen(), both);
        pass_over();
        // In a process of its own: while this one had it open, nobody could execute it.
        assert!(
            Command::new("dd")
                .arg(format!("of={}", one.display()))
                .args(["if=/bin/true", "conv=notrunc", "status=none"])
                .status()
                .unwrap()
                .success()
        );
        assert_eq!(seen(), both);
    }

    #[test]
    fn an_event_whose_file_cannot_be_opened_is_lost_and_the_next_one_is_told() {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let Some(group) = unless_refused(Group::new(0), Need::Root, refused) else { return };
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let programs = ["one", "other"].map(|name| directory.path().join(name));
        let path = CString::new(directory.path().as_os_str().as_bytes()).unwrap();
        let children = libc::FAN_OPEN_EXEC | libc::FAN_EVENT_ON_CHILD;
        for program in &programs {
            assert!(Command::new("cp").arg("/bin/true").arg(program).status().unwrap().success());
        }
        group.mark(0, children, libc::AT_FDCWD, Some(&path)).unwrap();
        let execute = |at: usize| assert!(Command::new(&programs[at]).status().unwrap().success());
        let read = || {
            let mut seen = Vec::new();
            while group.read(&mut |one| seen.push(one)).unwrap() {}
            seen
        };
        // In a process of its own, which has a limit of its own.
        execute(0);
        let child = crate::forked::Forked::new(|| {
            use rustix::process::{Resource, getrlimit, setrlimit};
            let before = getrlimit(Resource::Nofile);
            setrlimit(Resource::Nofile, rustix::process::Rlimit { current: Some(0), ..before }).unwrap();
            let lost = read();
            setrlimit(Resource::Nofile, before).unwrap();
            i32::from(lost != [Seen::Lost])
        });
        assert_eq!(child.unwrap().wait().unwrap().exit_status(), Some(0));
        execute(1);
        assert!(
            matches!(&read()[..], [Seen::Exec { file, .. }] if *file == FileHandle::of(&programs[1]).unwrap())
        );
    }

    #[test]
    fn files_and_directories_that_are_opened_are_told_and_lead_back_to_their_names() {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let Some(watch) = unless_refused(ExecWatch::of_opens(), Need::Root, refused) else { return };
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let directory = directory.path().canonicalize().unwrap();
        let (file, listed) = (directory.join("file"), directory.join("listed"));
        std::fs::write(&file, "text").unwrap();
        std::fs::create_dir(&listed).unwrap();
        watch.add(&directory).unwrap();
        drop(std::fs::File::open(&file).unwrap());
        listed.read_dir().unwrap().count();
        let mut seen = Vec::new();
        let mut note = |one| match one {
            Seen::Exec { pid, file } if pid == std::process::id() => seen.push(file),
            _ => {}
        };
        while watch.read(&mut note).unwrap() {}
        let mount = std::fs::File::open(&directory).unwrap();
        for path in [&file, &listed] {
            let handle = FileHandle::of(path).unwrap();
            let found =
                seen.iter().find(|one| **one == handle).unwrap_or_else(|| panic!("{}", path.display()));
            let opened = found.open(mount.as_fd()).unwrap();
            let name = std::fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
            assert_eq!(name, *path);
        }
    }

    #[test]
    fn who_opens_and_reads_a_file_is_told_and_nothing_of_other_files() {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let Some(watch) = unless_refused(OpenWatch::new(), Need::Root, refused) else { return };
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let [file, other] = ["file", "other"].map(|name| directory.path().join(name));
        std::fs::write(&file, "text").unwrap();
        std::fs::write(&other, "text").unwrap();
        watch.add(std::fs::File::open(&file).unwrap().as_fd()).unwrap();
        let mut child = Command::new("cat").arg(&file).arg(&other).stdout(Stdio::null()).spawn().unwrap();
        child.wait().unwrap();
        let mut seen = Vec::new();
        while watch.read(&mut |one| seen.push(one)).unwrap() {}
        let wanted = Seen::Exec { pid: child.id(), file: FileHandle::of(&file).unwrap() };
        assert!(!seen.is_empty() && seen.iter().all(|one| *one == wanted), "{seen:?}");
    }

    #[test]
    fn what_is_no_event_is_passed_over() {
        let all = |bytes: &[u8]| {
            let mut seen = Vec::new();
            parse(bytes, &mut |one| seen.push(one));
            seen
        };
        let event = |len: u32, mask: u64, rest: &[u8]| {
            let mut event = len.to_ne_bytes().to_vec();
            event.extend([3, 0]);
            event.extend(24u16.to_ne_bytes());
            event.extend(mask.to_ne_bytes());
            event.extend((-1i32).to_ne_bytes());
            event.extend(7u32.to_ne_bytes());
            event.extend(rest);
            event
        };
        let mut file = vec![INFO_FID, 0];
        file.extend(22u16.to_ne_bytes());
        file.extend([1, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 5, 6]);
        let expected = Seen::Exec {
            pid: 7,
            file: FileHandle { file_system: 2 << 32 | 1, kind: 9, bytes: [5, 6].into() },
        };
        assert_eq!(all(&event(46, libc::FAN_OPEN_EXEC, &file)), [expected]);
        assert_eq!(all(&event(24, libc::FAN_Q_OVERFLOW, &[])), [Seen::Lost]);
        file[12] = 200;
        assert_eq!(all(&event(46, libc::FAN_OPEN_EXEC, &file)), [], "longer than its record");
        for cut in 0..46 {
            all(&event(46, libc::FAN_OPEN_EXEC, &file)[..cut]);
            all(&event(cut as u32, libc::FAN_OPEN_EXEC, &file));
        }
        assert_eq!(all(&[]), []);
    }
}
