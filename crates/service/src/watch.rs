//! The file systems whose execs are seen: all that lie on a device, as they come and go, and those of networks that have the numbers for it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prepage_sys::exec_watch::{ExecWatch, Seen};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::mounts::{Mount, mounts};
use prepage_sys::sync::Anyway;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::askers::{Askers, is_remote};
use crate::crew::{Crew, Priority};

/// File systems whose programs are never cold, and those that a program of some user answers for.
const OTHERS: [&str; 24] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fuse",
    "fuseblk",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tmpfs",
    "tracefs",
];
/// What begins so is answered for by programs too.
const FUSE: &str = "fuse.";
/// Its subvolumes have one device, and each has a number of its own ([`FileHandle::file_system`]), mounted by itself or not. The lower half
/// of all these numbers is the same: the kernel mixes the subvolume's id, below 2^32, into the upper one (btrfs_statfs of fs/btrfs/super.c).
const BTRFS: &str = "btrfs";
/// A network's file system that does not answer holds up one thread; so many may do so.
const THREADS_MAX: usize = 4;
/// One that somebody else waits for is asked again after this long.
const ASKED_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Local file systems answer in microseconds.
const ANSWER_WAIT: Duration = Duration::from_secs(1);
/// File systems of which opens are followed while a start is observed.
const OPENS_MAX: usize = 64;
/// File systems that are looked at; others are passed over without a word.
const FILE_SYSTEMS_MAX: usize = 16_384;

/// What is said of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It has not answered yet.
    Asked,
    /// Its execs are seen.
    Watched,
    /// They are not, and why.
    Refused(String),
}

/// A file system.
#[derive(Clone, Debug)]
pub struct Watched {
    /// The mount by which it was found.
    id: u64,
    pub point: PathBuf,
    pub kind: String,
    /// Whether its execs are seen.
    pub state: State,
    /// What events call it ([`FileHandle::file_system`]), once they are seen.
    number: Option<u64>,
}

impl Watched {
    /// Whether it is watched, and nobody waits for a server there.
    fn is_local(&self) -> bool {
        self.state == State::Watched && !is_remote(&self.kind)
    }

    /// Whether `file` may lie there: mostly its number says so, and on a Btrfs half of it does.
    fn may_have(&self, file: &FileHandle) -> bool {
        let differs_in = self.number.map(|number| number ^ file.file_system);
        differs_in.is_some_and(|bits| bits == 0 || self.kind == BTRFS && bits as u32 == 0)
    }
}

/// The execs of the machine.
#[derive(Debug)]
pub struct Watch {
    execs: Arc<ExecWatch>,
    /// Polled for changes (proc_pid_mountinfo(5)).
    mountinfo: File,
    crew: Crew,
    /// By device.
    file_systems: Arc<Mutex<HashMap<u64, Watched>>>,
}

impl Watch {
    /// Of all file systems that are mounted now, but for those that do not answer within a second.
    ///
    /// # Errors
    /// EPERM without the right to watch.
    pub fn new() -> io::Result<Self> {
        Self::over(ExecWatch::new()?)
    }

    /// The same of what `execs` watches.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn over(execs: ExecWatch) -> io::Result<Self> {
        let watch = Self {
            execs: Arc::new(execs),
            mountinfo: File::open("/proc/self/mountinfo")?,
            crew: Crew::new("mounts", THREADS_MAX, FILE_SYSTEMS_MAX),
            file_systems: Arc::default(),
        };
        watch.look_at_mounts()?;
        let until = Instant::now() + ANSWER_WAIT;
        while watch.file_systems().iter().any(|one| one.state == State::Asked) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(watch)
    }

    /// What is opened from now on, on local file systems that have answered, and whether that is all of them; not on those that are mounted
    /// later. Nobody waits for a server.
    ///
    /// # Errors
    /// EPERM without the right to watch.
    pub fn of_opens(&self) -> io::Result<(Self, bool)> {
        let opens = ExecWatch::of_opens()?;
        let mut all = self.file_systems.lock().anyway().clone();
        all.retain(|_, one| one.is_local());
        let local = all.len();
        // Where most lies has short names.
        let mut by_length: Vec<_> =
            all.iter().map(|(device, one)| (one.point.as_os_str().len(), *device)).collect();
        by_length.sort_unstable();
        by_length.iter().skip(OPENS_MAX).for_each(|(_, device)| drop(all.remove(device)));
        let add =
            |point: &Path| Askers::of_machine().ask(point).is_ok_and(|_asking| opens.add(point).is_ok());
        all.retain(|_, one| add(&one.point));
        let is_whole = all.len() == local;
        let watch = Self {
            execs: Arc::new(opens),
            mountinfo: self.mountinfo.try_clone()?,
            crew: self.crew.clone(),
            file_systems: Arc::new(Mutex::new(all)),
        };
        Ok((watch, is_whole))
    }

    /// How many threads hang that ask file systems.
    pub fn hanging(&self) -> usize {
        self.crew.threads().1
    }

    /// One of them is readable when something was executed.
    pub fn execs(&self) -> [BorrowedFd<'_>; 2] {
        self.execs.fds()
    }

    /// What a process needs that reads them.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.execs().into_iter().chain([self.mounts()]).collect()
    }

    /// Has an error condition (POLLERR, POLLPRI) when something was mounted or unmounted.
    pub fn mounts(&self) -> BorrowedFd<'_> {
        self.mountinfo.as_fd()
    }

    /// Hands what was executed since the last call to `see`. Returns whether there may be more.
    ///
    /// # Errors
    /// As read(2).
    pub fn read(&self, see: &mut dyn FnMut(Seen)) -> io::Result<bool> {
        self.execs.read(see)
    }

    /// Where the file system is mounted that events call `number`.
    pub fn point_of(&self, number: u64) -> Option<PathBuf> {
        self.file_systems
            .lock()
            .anyway()
            .values()
            .find(|one| one.number == Some(number))
            .map(|one| one.point.clone())
    }

    /// Executions of `files` are not seen any more, as far as they lie on local file systems, until [`Self::pass_over_none`].
    pub fn pass_over(&self, files: &[FileHandle]) {
        self.open(files, &mut |opened| {
            let _ = self.execs.pass_over(opened);
        });
    }

    /// The path of `file` as whoever first mounted its file system has it, where that is a local one.
    pub fn path_of(&self, file: &FileHandle) -> Option<PathBuf> {
        let mut path = None;
        self.open(std::slice::from_ref(file), &mut |opened| {
            path = std::fs::read_link(path_in_proc(&opened)).ok();
        });
        path
    }

    /// Hands those of `files` that lie on local file systems to `opened`, open as places only (O_PATH). One that is gone is not executed any more.
    fn open(&self, files: &[FileHandle], opened: &mut dyn FnMut(BorrowedFd<'_>)) {
        let is_meant = |one: &&Watched| one.is_local() && files.iter().any(|file| one.may_have(file));
        let meant: Vec<_> = self.file_systems.lock().anyway().values().filter(is_meant).cloned().collect();
        for one in &meant {
            // It may be mounted within one that does not answer.
            let Ok(_asking) = Askers::of_machine().ask(&one.point) else { continue };
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let Ok(mount) = rustix::fs::open(&one.point, flags, Mode::empty()) else { continue };
            for file in files.iter().filter(|file| one.may_have(file)) {
                let Ok(place) = file.open(mount.as_fd()) else { continue };
                // On another file system these bytes may be another file's.
                if one.number == Some(file.file_system)
                    || FileHandle::of(&path_in_proc(&place)).is_ok_and(|found| found == *file)
                {
                    opened(place.as_fd());
                }
            }
        }
    }

    /// Executions of all files are seen.
    ///
    /// # Errors
    /// None are known.
    pub fn pass_over_none(&self) -> io::Result<()> {
        self.execs.pass_over_none()
    }

    /// Watches what was mounted since the last call. Asking may hang where a server does not answer, and is done elsewhere.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn look_at_mounts(&self) -> io::Result<()> {
        let mut by_device: HashMap<u64, Mount> = HashMap::new();
        let mounts = mounts()?;
        Askers::of_machine().know(&mounts);
        let now: HashSet<(u64, u64)> = mounts.iter().map(|mount| (mount.device, mount.id)).collect();
        for mount in mounts {
            // Of several places any will do.
            by_device.entry(mount.device).or_insert(mount);
        }
        let mut known = self.file_systems.lock().anyway();
        // Another file system may have the number by now. One that is still there is watched twice at no cost.
        known.retain(|&device, watched| now.contains(&(device, watched.id)));
        for (device, Mount { id, point, kind, .. }) in by_device {
            if known.contains_key(&device)
                || known.len() >= FILE_SYSTEMS_MAX
                || OTHERS.contains(&kind.as_str())
                || kind.starts_with(FUSE)
            {
                continue;
            }
            known.insert(
                device,
                Watched { id, point: point.clone(), kind, state: State::Asked, number: None },
            );
            let question = Question {
                askers: Askers::of_machine(),
                execs: self.execs.clone(),
                all: self.file_systems.clone(),
                device,
                id,
                point,
            };
            if !question.put(Priority::Start, &self.crew) {
                known.remove(&device);
            }
        }
        Ok(())
    }

    /// Has all file systems be such as cannot be watched.
    #[cfg(test)]
    pub(crate) fn refuse_all(&self) {
        let refused = State::Refused("EXDEV".into());
        self.file_systems.lock().anyway().values_mut().for_each(|one| one.state = refused.clone());
    }

    /// Where file systems are mounted of which nothing is seen that happens there, and where those of which it is.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn unseen_and_seen(&self) -> io::Result<(Vec<PathBuf>, Vec<PathBuf>)> {
        let mounts = mounts()?;
        let known = self.file_systems.lock().anyway();
        let is_unseen =
            |mount: &Mount| known.get(&mount.device).is_none_or(|one| one.state != State::Watched);
        let (unseen, seen): (Vec<Mount>, Vec<Mount>) = mounts.into_iter().partition(is_unseen);
        let points = |mounts: Vec<Mount>| mounts.into_iter().map(|mount| mount.point).collect();
        Ok((points(unseen), points(seen)))
    }

    /// What is said of each file system, by place.
    pub fn file_systems(&self) -> Vec<Watched> {
        let mut all: Vec<Watched> = self.file_systems.lock().anyway().values().cloned().collect();
        all.sort_by(|a, b| a.point.cmp(&b.point));
        all
    }
}

fn path_in_proc(file: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into()
}

/// Why a file system is not watched, for people.
fn why(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        // As statfs(2) has it (`fanotify_test_fsid` of fs/notify/fanotify/fanotify_user.c).
        Some(Errno::NODEV) => {
            "it has no number of its own, as most file systems of networks and of FUSE".into()
        }
        Some(Errno::OPNOTSUPP) => {
            "its files have no lasting numbers, as in overlays without nfs_export=on".into()
        }
        _ => error.to_string(),
    }
}

/// A file system that is to be watched and has not answered yet.
struct Question {
    askers: &'static Askers,
    execs: Arc<ExecWatch>,
    all: Arc<Mutex<HashMap<u64, Watched>>>,
    device: u64,
    /// The mount.
    id: u64,
    point: PathBuf,
}

impl Question {
    /// Returns whether the crew has room for it.
    fn put(self, priority: Priority, crew: &Crew) -> bool {
        let again = crew.clone();
        crew.lend(priority, Box::new(move || self.ask(&again)))
    }

    /// While somebody else waits for the file system, others come first, and it is asked again later.
    fn ask(self, crew: &Crew) {
        let Ok(_asking) = self.askers.ask(&self.point) else {
            std::thread::sleep(ASKED_AGAIN_AFTER);
            let (all, device) = (self.all.clone(), self.device);
            if self.is_mounted() && !self.put(Priority::Guess, crew) {
                all.lock().anyway().remove(&device);
            }
            return;
        };
        let (state, number) = match self.execs.add(&self.point) {
            Ok(()) => (State::Watched, rustix::fs::statvfs(&self.point).ok().map(|statvfs| statvfs.f_fsid)),
            Err(error) => (State::Refused(why(&error)), None),
        };
        if let Some(watched) =
            self.all.lock().anyway().get_mut(&self.device).filter(|watched| watched.id == self.id)
        {
            (watched.state, watched.number) = (state, number);
        }
    }

    fn is_mounted(&self) -> bool {
        self.all.lock().anyway().get(&self.device).is_some_and(|watched| watched.id == self.id)
    }
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Hung, Need, has, unless_refused};

    use super::*;

    #[test]
    fn why_a_file_system_is_not_watched_is_said_in_words() {
        let why = |errno: Errno| why(&errno.into());
        assert!(why(Errno::NODEV).contains("no number") && why(Errno::OPNOTSUPP).contains("nfs_export"));
        assert!(why(Errno::NOSPC).contains("os error 28"), "others are the kernel's");
    }

    #[test]
    fn a_file_system_that_somebody_waits_for_is_watched_once_it_answers() {
        let refused = |error: &io::Error| error.kind() == io::ErrorKind::PermissionDenied;
        let Some(execs) = unless_refused(ExecWatch::new(), Need::Root, refused) else { return };
        let directory = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let point = directory.path().to_owned();
        let askers: &'static Askers =
            Box::leak(Box::new(crate::askers::tests::of(&[("nfs", point.to_str().unwrap())])));
        let waits = askers.ask(&point).unwrap();
        let watched =
            Watched { id: 1, point: point.clone(), kind: "nfs".into(), state: State::Asked, number: None };
        let all = Arc::new(Mutex::new(HashMap::from([(7, watched)])));
        let crew = Crew::new("test", 1, 1);
        let execs = Arc::new(execs);
        let question = |id| {
            let (execs, all, point) = (execs.clone(), all.clone(), point.clone());
            Question { askers, execs, all, device: 7, id, point }
        };
        assert!(question(1).put(Priority::Start, &crew));
        let state = || all.lock().anyway()[&7].state.clone();
        std::thread::sleep(ASKED_AGAIN_AFTER / 2);
        assert_eq!(state(), State::Asked, "it may still answer");
        drop(waits);
        let until = Instant::now() + Duration::from_secs(60);
        while state() == State::Asked && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(state(), State::Watched);
        // By the time that one answers, another may be mounted that has the number.
        all.lock().anyway().entry(7).and_modify(|watched| (watched.id, watched.state) = (2, State::Asked));
        question(1).ask(&crew);
        assert_eq!(state(), State::Asked);
        question(2).ask(&crew);
        assert_eq!(state(), State::Watched);
    }

    #[test]
    fn nobody_is_asked_which_file_system_something_was_opened_on_and_no_other_btrfs_than_its_own() {
        if !has(Need::Root) || !has(Need::Mounts) || !has(Need::Path("/dev/fuse".into())) {
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let _hung = Hung::mount(directory.path());
        let watch = Watch::new().unwrap();
        let dead = Watched {
            id: 1,
            point: directory.path().into(),
            kind: BTRFS.into(),
            state: State::Watched,
            number: Some(5 << 32 | 1),
        };
        watch.file_systems.lock().anyway().insert(1, dead);
        let file = FileHandle { file_system: 5 << 32 | 2, kind: 1, bytes: [0; 8].into() };
        let (done, answers) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send((watch.point_of(u64::MAX), watch.path_of(&file))));
        assert_eq!(answers.recv_timeout(Duration::from_secs(20)).expect("an end"), (None, None));
    }
}
