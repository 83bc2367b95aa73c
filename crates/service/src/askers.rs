//! Who asks file systems that may never answer, a network's or a program's: one thread at a time, and no other while that one waits in vain.
//!
//! Which mounts lie on the way to a file is known without asking any of them: the kernel lists them, and names of programs' files have no links
//! in them. File systems of local devices are asked by as many threads as there are: where those do not answer, nothing does.

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use prepage_sys::mounts::Mount;
use prepage_sys::sync::Anyway;

use crate::line::Line;

/// Others wait for an answer this long, and then do without the file system until it has come.
const PATIENCE: Duration = Duration::from_millis(100);
/// They look for it this often.
const LOOK: Duration = Duration::from_millis(2);
/// File systems that a server, another machine or a program answers for; those of programs also begin with `fuse.`.
const REMOTE: [&str; 24] = [
    "9p", "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "fuse", "fuseblk", "gfs2", "gpfs", "lustre",
    "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "prl_fs", "pvfs2", "smb3", "vboxsf", "virtiofs", "vmhgfs",
    "wekafs",
];
const OF_PROGRAMS: &str = "fuse.";
/// The kernel's own directories. systemd has an automount below the first on nearly every machine, and no profile names anything in either.
const OF_KERNEL: [&str; 2] = ["/proc", "/sys"];
/// The most such mounts that are kept: each lookup of a file searches all of them.
const POINTS_MAX: usize = 1024;

/// The mounts that may not answer, and who asks them. Lock order: `all`, `points`; an asker's own is taken under `all`.
#[derive(Debug, Default)]
pub struct Askers {
    points: Mutex<Arc<[PathBuf]>>,
    all: Mutex<Vec<Weak<Asker>>>,
    /// In an observation, which is a process of its own: the service knows who asks.
    line: Option<&'static Line>,
}

/// Those of an observation. The service itself has none: nobody waits for it.
static OF_OBSERVATION: OnceLock<Askers> = OnceLock::new();

/// One thread that asks for a file, and then for another. Lock order: there is one lock, never held over a system call.
#[derive(Debug, Default)]
pub struct Asker(Mutex<At>);

/// Protected by `Asker`.
#[derive(Clone, Debug, Default)]
struct At {
    path: PathBuf,
    /// The last of the mounts on the way to it that may not answer. It is taken for the one that is waited for: mounts before it mostly let
    /// through at once who goes on to another, as those of an automounter do.
    point: Option<PathBuf>,
    /// Since when an answer is waited for; `None` while nothing is asked.
    since: Option<Instant>,
    /// Who is told once it is there.
    line: Option<&'static Line>,
}

/// A file is asked for, until this is dropped.
#[derive(Debug)]
pub struct Asking(Arc<Asker>);

/// Somebody waits for the file system in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered;

impl Askers {
    /// Those of this process, for the mounts that it sees.
    pub fn of_machine() -> &'static Self {
        static MACHINE: std::sync::LazyLock<Askers> = std::sync::LazyLock::new(Askers::default);
        OF_OBSERVATION.get().unwrap_or_else(|| &MACHINE)
    }

    /// From now on this process asks the service by `line` whom it may ask, of the mounts at `points`.
    pub(crate) fn ask_by(line: &'static Line, points: Arc<[PathBuf]>) {
        let of_observation = Self { points: Mutex::new(points), line: Some(line), ..Self::default() };
        let _ = OF_OBSERVATION.set(of_observation);
    }

    /// These mounts may not answer.
    pub(crate) fn know_points(&self, points: Arc<[PathBuf]>) {
        *self.points.lock().anyway() = points;
    }

    /// These are all mounts now.
    pub fn know(&self, mounts: &[Mount]) {
        let may_not_answer = |mount: &&Mount| {
            is_remote(&mount.kind) && !OF_KERNEL.iter().any(|place| mount.point.starts_with(place))
        };
        let points = mounts.iter().filter(may_not_answer).take(POINTS_MAX).map(|mount| mount.point.clone());
        *self.points.lock().anyway() = points.collect();
    }

    /// The mounts that may not answer.
    pub fn points(&self) -> Arc<[PathBuf]> {
        self.points.lock().anyway().clone()
    }

    /// Whether one of the mounts on the way to `path` may not answer.
    pub fn may_not_answer(&self, path: &Path) -> bool {
        self.points.lock().anyway().iter().any(|point| path.starts_with(point))
    }

    /// The mounts on the way to `path` that may not answer.
    fn on_the_way(&self, path: &Path) -> Vec<PathBuf> {
        self.points().iter().filter(|point| path.starts_with(point)).cloned().collect()
    }

    /// Asks for the file at `path` from now on, once nobody else waits for a file system on the way.
    ///
    /// # Errors
    /// Unanswered where somebody goes on waiting.
    pub fn ask(&self, path: &Path) -> Result<Asking, Unanswered> {
        let asker = Arc::new(Asker::default());
        self.ask_as(&asker, path).map(|()| Asking(asker))
    }

    /// The same of an `asker` that is there before and afterwards: it says when it [has an answer](Asker::has_answer).
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_as(&self, asker: &Arc<Asker>, path: &Path) -> Result<(), Unanswered> {
        let points = self.on_the_way(path);
        let point = points.iter().max_by_key(|point| point.as_os_str().len()).cloned();
        let line = self.line.filter(|_| point.is_some());
        let at = |point| At { path: path.to_owned(), point, since: Some(Instant::now()), line };
        if line.is_some_and(|line| !line.may_ask(path)) {
            return Err(Unanswered);
        }
        if point.is_none() || line.is_some() {
            *asker.0.lock().anyway() = at(point);
            return Ok(());
        }
        let until = Instant::now() + PATIENCE;
        loop {
            let mut all = self.all.lock().anyway();
            all.retain(|one| one.strong_count() > 0);
            let others = all.iter().filter_map(Weak::upgrade).filter(|one| !Arc::ptr_eq(one, asker));
            let Some(longest) = others.filter_map(|one| one.waits_for(&points)).min() else {
                all.retain(|one| one.as_ptr() != Arc::as_ptr(asker));
                all.push(Arc::downgrade(asker));
                *asker.0.lock().anyway() = at(point);
                return Ok(());
            };
            drop(all);
            if longest.elapsed() >= PATIENCE || Instant::now() >= until {
                return Err(Unanswered);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Asker {
    /// It has its answer, and asks nothing until it says so.
    pub fn has_answer(&self) {
        let line = {
            let mut at = self.0.lock().anyway();
            at.since = None;
            at.line.take()
        };
        line.into_iter().for_each(Line::has_answer);
    }

    /// It asks for more of the same file.
    pub fn asks_again(&self) {
        self.0.lock().anyway().since = Some(Instant::now());
    }

    /// What it waits for, and since when; `None` where it does not.
    pub fn waits(&self) -> Option<(PathBuf, Instant)> {
        let at = self.0.lock().anyway();
        Some((at.path.clone(), at.since?))
    }

    /// Since when it waits for one of the mounts at `points`.
    fn waits_for(&self, points: &[PathBuf]) -> Option<Instant> {
        let at = self.0.lock().anyway();
        at.since.filter(|_| at.point.as_ref().is_some_and(|point| points.contains(point)))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.has_answer();
    }
}

/// Leave to ask for the file at `path`, as what observes wants it ([`prepage_observe::asks`]).
pub fn leave_to_ask(path: &Path) -> Option<Box<dyn Any>> {
    let askers = Askers::of_machine();
    // As for nearly all of thousands of names.
    if !askers.may_not_answer(path) {
        return Some(Box::new(()));
    }
    askers.ask(path).ok().map(|asking| Box::new(asking) as _)
}

/// Whether a server or a program answers for file systems of this kind.
pub(crate) fn is_remote(kind: &str) -> bool {
    REMOTE.contains(&kind) || kind.starts_with(OF_PROGRAMS)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn of(mounts: &[(&str, &str)]) -> Askers {
        let mount = |(kind, point): &(&str, &str)| Mount {
            id: 1,
            device: 1,
            root: "/".into(),
            point: (*point).into(),
            kind: (*kind).into(),
            source: String::new(),
            options: String::new(),
        };
        let askers = Askers::default();
        askers.know(&mounts.iter().map(mount).collect::<Vec<_>>());
        askers
    }

    #[test]
    fn one_thread_waits_for_a_file_system_and_for_all_below_it_and_others_do_without() {
        let askers = of(&[("ext4", "/"), ("nfs4", "/net"), ("ext4", "/net/local"), ("fuse.sshfs", "/far")]);
        let ask = |path: &str| askers.ask(Path::new(path));
        let waits = ask("/net/a").unwrap();
        for below in ["/net/a", "/net/b/c", "/net/local/file"] {
            assert_eq!(ask(below).unwrap_err(), Unanswered, "{below}");
        }
        // They have waited, and it goes on.
        assert!(waits.0.waits().unwrap().1.elapsed() >= PATIENCE);
        for other in ["/far/a", "/usr/bin/env", "/network"] {
            let (_one, _two) = (ask(other).unwrap(), ask("/usr/bin/env").unwrap());
        }
        drop(waits);
        assert!(ask("/net/local/file").is_ok());
        askers.know(&[]);
        let (_one, _two) = (ask("/net/a").unwrap(), ask("/net/a").unwrap());
    }

    #[test]
    fn a_server_that_is_dead_keeps_nobody_from_others_that_are_mounted_beside_it() {
        let askers = of(&[("autofs", "/net"), ("nfs", "/net/dead"), ("nfs", "/net/well")]);
        let ask = |path: &str| askers.ask(Path::new(path));
        let waits = ask("/net/dead/file").unwrap();
        assert!(ask("/net/well/file").is_ok() && ask("/net/new").is_ok());
        assert_eq!(ask("/net/dead/other").unwrap_err(), Unanswered);
        drop(waits);
        // Who waits for the automounter itself keeps others from all below it: they come by there.
        let _waits = ask("/net/new").unwrap();
        assert_eq!(ask("/net/well/file").unwrap_err(), Unanswered);
    }

    #[test]
    fn of_many_threads_one_at_a_time_asks_and_all_have_their_turn_where_it_answers() {
        let askers = of(&[("nfs", "/net")]);
        let under_way = Mutex::new(0);
        let ask = || {
            // On a busy machine one that is on its way may be waited for in vain.
            let _asking = std::iter::repeat_with(|| askers.ask(Path::new("/net/file"))).find_map(Result::ok);
            *under_way.lock().unwrap() += 1;
            assert_eq!(*under_way.lock().unwrap(), 1);
            *under_way.lock().unwrap() -= 1;
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| (0..4).for_each(|_| ask()))).collect();
            assert!(threads.into_iter().all(|thread| thread.join().is_ok()));
        });
        assert!(askers.all.lock().anyway().len() <= 1);
    }

    #[test]
    fn only_what_may_keep_somebody_waiting_who_fetches_is_asked_by_one_thread() {
        let points = |mounts: &[(&str, &str)]| of(mounts).points().to_vec();
        assert!(points(&[("ext4", "/"), ("autofs", "/proc/sys/fs/binfmt_misc")]).is_empty());
        let remote = [("lustre", "/scratch"), ("vboxsf", "/shared"), ("fuse.sshfs", "/processes")];
        assert_eq!(points(&remote), remote.map(|(_, point)| Path::new(point)));
    }

    #[test]
    fn who_rests_between_two_reads_keeps_nobody_waiting() {
        let askers = of(&[("fuse", "/far")]);
        let (one, path) = (Arc::new(Asker::default()), Path::new("/far/file"));
        askers.ask_as(&one, path).unwrap();
        askers.ask_as(&one, path).unwrap();
        assert!(askers.ask(path).is_err());
        one.has_answer();
        assert!(askers.ask(path).is_ok() && one.waits().is_none());
        one.asks_again();
        assert!(askers.ask(path).is_err());
        assert_eq!(one.waits().unwrap().0, path);
    }
}
