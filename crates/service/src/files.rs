//! What is known of an executed file before the process is looked at: loaders, files without a profile, and programs that were seen to
//! a moment ago, so that their next starts need nothing.
//!
//! A build executes the same few programs a hundred times a second, and to look at one start takes some hundred microseconds.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prepage_sys::file_handle::FileHandle;
use prepage_sys::sync::Anyway;

use crate::fetches::APART;

/// What loads programs is opened with each of them, and is none.
const LOADERS: [&str; 6] = [
    "/lib64/ld-linux-x86-64.so.2",
    "/lib/ld-linux.so.2",
    "/lib/ld-linux-aarch64.so.1",
    "/lib/ld-linux-armhf.so.3",
    "/lib/ld-musl-x86_64.so.1",
    "/lib/ld-musl-aarch64.so.1",
];
/// How their names begin elsewhere; that of musl may be the library itself.
const LOADERS_BEGIN: [&str; 4] = ["ld-", "ld.so", "ld64.so", "libc.so"];
/// Loaders that are found elsewhere: in the images of containers, and where a distribution has a loader for each version of its libraries.
const LOADERS_MAX: usize = 1024;
/// The longest rest, of a program that is started all the time and found in memory each time: what is used so often stays there.
const REST_MAX: Duration = Duration::from_secs(8);
/// Programs that rest at once.
const RESTS_MAX: usize = 1024;
/// Files without a profile that are remembered, and for how long: their programs may be learned meanwhile.
const STRANGERS_MAX: usize = 4096;
const STRANGER: Duration = REST_MAX;

/// Executed files. Lock order: none, there is one lock.
#[derive(Debug, Default)]
pub struct Files(Mutex<State>);

/// Protected by `Files`.
#[derive(Debug, Default)]
struct State {
    loaders: HashSet<FileHandle>,
    /// Those elsewhere.
    other_loaders: HashSet<FileHandle>,
    /// Until when each is taken for one.
    strangers: HashMap<FileHandle, Instant>,
    /// By file and user, and whether of starts elsewhere.
    rests: HashMap<(FileHandle, u32, bool), Rest>,
}

/// The starts of a program need nothing for a while.
#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Instant,
    length: Duration,
}

/// How a program at rest is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resting {
    /// All the time, and it is found in memory each time.
    AllTheTime,
    /// It needs nothing for now.
    ForNow,
    /// Elsewhere, where it needs nothing for now: here it may.
    ElsewhereForNow,
}

impl Rest {
    /// From `now` on. One that follows `last` and finds the program in memory again is twice as long.
    fn after(last: Option<&Self>, is_in_memory: bool, now: Instant) -> Self {
        let is_next = |last: &&Self| is_in_memory && now <= last.until + last.length;
        let length = last.filter(is_next).map_or(APART, |last| (2 * last.length).min(REST_MAX));
        Self { until: now + length, length }
    }
}

impl Files {
    /// Finds the loaders of this machine. May wait for its disk.
    pub fn look_for_loaders(&self) {
        let loaders = LOADERS.iter().filter_map(|path| FileHandle::of(Path::new(path)).ok()).collect();
        self.lock().loaders = loaders;
    }

    pub fn is_loader(&self, file: &FileHandle) -> bool {
        let state = self.lock();
        state.loaders.contains(file) || state.other_loaders.contains(file)
    }

    /// Notes that `file`, which lies at `path`, loads programs where it is called as loaders are. Returns whether it is.
    pub fn note_if_loader(&self, file: &FileHandle, path: &Path) -> bool {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_loader = LOADERS_BEGIN.iter().any(|begin| name.starts_with(begin))
            && (name.ends_with(".so") || name.contains(".so."));
        if is_loader {
            let others = &mut self.lock().other_loaders;
            if others.len() >= LOADERS_MAX {
                others.clear();
            }
            others.insert(file.clone());
        }
        is_loader
    }

    /// There is no profile of the program in `file`.
    pub fn note_stranger(&self, file: FileHandle) {
        let strangers = &mut self.lock().strangers;
        if strangers.len() >= STRANGERS_MAX {
            strangers.clear();
        }
        strangers.insert(file, Instant::now() + STRANGER);
    }

    /// Whether there was no profile of the program in `file` a moment ago.
    pub fn is_stranger(&self, file: &FileHandle) -> bool {
        self.lock().strangers.get(file).is_some_and(|until| *until > Instant::now())
    }

    /// The starts of user `uid` of the program in `file` need nothing for a while: longer, where it was found in memory.
    pub fn begin_rest(&self, file: FileHandle, uid: u32, is_in_memory: bool) {
        self.begin_rest_at((file, uid, false), is_in_memory, Instant::now());
    }

    /// Nor do those elsewhere, in another mount namespace or below another root. A program that is served here (`is_known`) is never one that is
    /// started all the time: the kernel would pass over all of its starts.
    pub fn begin_rest_elsewhere(&self, file: FileHandle, uid: u32, is_known: bool) {
        self.begin_rest_at((file, uid, true), !is_known, Instant::now());
    }

    fn begin_rest_at(&self, whose: (FileHandle, u32, bool), is_in_memory: bool, now: Instant) {
        let rests = &mut self.lock().rests;
        let rest = Rest::after(rests.get(&whose), is_in_memory, now);
        if rests.len() >= RESTS_MAX {
            rests.retain(|_, rest| rest.until > now);
        }
        if rests.len() < RESTS_MAX || rests.contains_key(&whose) {
            rests.insert(whose, rest);
        }
    }

    /// Whether a start of user `uid` of the program in `file` needs nothing, and how that is started. Where those elsewhere need nothing,
    /// `is_elsewhere` says whether it is one of them.
    pub fn is_at_rest(
        &self,
        file: &FileHandle,
        uid: u32,
        is_elsewhere: impl FnOnce() -> bool,
    ) -> Option<Resting> {
        let resting = |is_elsewhere| {
            let state = self.lock();
            let rest = state.rests.get(&(file.clone(), uid, is_elsewhere))?;
            (rest.until > Instant::now()).then_some(match rest.length {
                REST_MAX => Resting::AllTheTime,
                _ if is_elsewhere => Resting::ElsewhereForNow,
                _ => Resting::ForNow,
            })
        };
        resting(false).or_else(|| resting(true).filter(|_| is_elsewhere()))
    }

    /// No program rests any more: what is wanted has changed.
    pub fn end_rests(&self) {
        self.lock().rests.clear();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().anyway()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rest_is_of_one_user_and_ends() {
        let [sh, other] = ["/bin/sh", "/bin/true"].map(|path| FileHandle::of(Path::new(path)).unwrap());
        let files = Files::default();
        let later = Instant::now() + Duration::from_secs(3600);
        files.begin_rest_at((sh.clone(), 7, false), true, later);
        let is_at_rest = |file, uid| files.is_at_rest(file, uid, || panic!("nothing rests elsewhere"));
        assert_eq!(is_at_rest(&sh, 7), Some(Resting::ForNow));
        assert!(is_at_rest(&sh, 8).is_none() && is_at_rest(&other, 7).is_none());
        files.begin_rest_at((sh.clone(), 7, false), false, Instant::now() - APART);
        assert!(is_at_rest(&sh, 7).is_none());
        files.begin_rest_at((sh.clone(), 7, true), true, later);
        let elsewhere = [true, false].map(|it_is| files.is_at_rest(&sh, 7, || it_is));
        assert_eq!(elsewhere, [Some(Resting::ElsewhereForNow), None]);
    }

    #[test]
    fn a_rest_gets_longer_while_a_program_is_started_all_the_time_and_found_in_memory() {
        let began = Instant::now();
        let mut rest = Rest::after(None, true, began);
        assert_eq!(rest.length, APART);
        let mut lengths = Vec::new();
        for _ in 0..5 {
            rest = Rest::after(Some(&rest), true, rest.until);
            lengths.push(rest.length.as_secs());
        }
        assert_eq!(lengths, [2, 4, 8, 8, 8]);
        assert_eq!(Rest::after(Some(&rest), false, rest.until).length, APART, "it was fetched");
        let late = rest.until + rest.length + Duration::from_nanos(1);
        assert_eq!(Rest::after(Some(&rest), true, late).length, APART, "it was not started for as long");
    }

    #[test]
    fn a_loader_is_told_by_its_name() {
        let (files, file) = (Files::default(), FileHandle::of(Path::new("/bin/sh")).unwrap());
        for program in ["/usr/bin/ld", "/usr/bin/ld.gold", "/usr/bin/ldd", "/x/ld-solve", "/x/ldap.so"] {
            assert!(!files.note_if_loader(&file, Path::new(program)), "{program}");
        }
        assert!(!files.is_loader(&file));
        for loader in ["ld-linux-aarch64.so.1", "ld-2.31.so", "ld64.so.2", "ld.so.1", "libc.so"] {
            assert!(files.note_if_loader(&file, &Path::new("/nix/store/x").join(loader)), "{loader}");
        }
        assert!(files.is_loader(&file));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let sh = FileHandle::of(Path::new("/bin/sh")).unwrap();
        let files = Files::default();
        // All rest at once, however long a busy machine takes for it.
        let later = Instant::now() + Duration::from_secs(60);
        (0..2 * RESTS_MAX as u32).for_each(|uid| files.begin_rest_at((sh.clone(), uid, false), true, later));
        assert_eq!(files.lock().rests.len(), RESTS_MAX);
        let is_at_rest = |uid| files.is_at_rest(&sh, uid, || false).is_some();
        assert!(is_at_rest(0) && !is_at_rest(RESTS_MAX as u32));
        files.end_rests();
        assert!(!is_at_rest(0));
        for number in 0..16 * STRANGERS_MAX as u32 {
            let file = FileHandle { bytes: number.to_ne_bytes().into(), ..sh.clone() };
            files.note_stranger(file.clone());
            assert!(files.is_stranger(&file) && files.note_if_loader(&file, Path::new("ld.so")));
        }
        assert!(files.lock().strangers.len() <= STRANGERS_MAX);
        assert!(files.lock().other_loaders.len() <= LOADERS_MAX);
    }
}
