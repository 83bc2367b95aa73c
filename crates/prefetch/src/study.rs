//! Starts as a study of 2008 made them, to be compared with the usual one: before the program runs, whole files, pages
//! mapped ahead ([`Mode`]). Nothing is learned in them.
//!
//! What only the program itself can do, mapping pages into its own page tables, a small library does that is preloaded
//! into it (`crates/sys/preload/early_fault.c`, which says what it cannot do).

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prepage_core::bounds::bound;
use prepage_core::profile::Profile;
use prepage_sys::beside::run_beside;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::engine::{Engine, device_of};
use crate::memory::Budget;
use crate::mode::Mode;
use crate::program;
use crate::store::{ProfileKey, Store};
use crate::watch::Until;

/// A program waits no longer than this for its prefetch: a device that hangs must not keep it from failing by itself.
const SYNC_WAIT: Duration = Duration::from_secs(120);
/// A prefetch beside the program ends with it, or after this time.
const ASYNC_WINDOW: Duration = Duration::from_secs(30);
/// The preloaded library.
const LIBRARY: &str = "libprepage-early-fault.so";

/// How to start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Study {
    /// What is prefetched, and whether the program waits for it.
    pub mode: Mode,
    /// Whether the program maps the pages of its profile, and fills its .bss, before its first instruction.
    pub early_fault: bool,
}

/// What the program is to be given, and how long preparing it took.
#[derive(Clone, Debug, Default)]
pub struct Prepared {
    /// Environment variables.
    pub variables: Vec<(&'static str, OsString)>,
    /// Finding and reading the profile.
    pub profile_read: Duration,
    /// Prefetching, where the program waits for it.
    pub prefetched: Option<Duration>,
}

/// Why a program is started without.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StudyError {
    /// There is nothing to go by.
    #[error("there is no profile of {role}")]
    NoProfile {
        /// The program, as it was called.
        role: String,
    },
    /// The store cannot be used.
    #[error("the profile cannot be read")]
    Store(#[from] crate::store::StoreError),
    /// The library is not where it belongs.
    #[error("{} is missing", .0.display())]
    NoLibrary(PathBuf),
    /// The operating system refused.
    #[error("the prefetch cannot be started")]
    Io(#[from] io::Error),
}

impl StudyError {
    /// What helps, as one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NoProfile { .. } => "prepage learn -- CMD, or prepage run -- CMD",
            Self::Store(error) => error.remedy(),
            Self::NoLibrary(_) => "make install, or without --early-fault",
            Self::Io(_) => "prepage doctor",
        }
    }
}

impl Study {
    /// Prefetches what `command` needs, before this returns or beside it. The caller then becomes the program.
    pub fn prepare(&self, command: &[OsString]) -> Result<Prepared, StudyError> {
        let began = Instant::now();
        let key = program::key(command)?;
        let store = Store::of_user()?;
        let profile = store.load(&key)?;
        let mut profile = profile.ok_or_else(|| StudyError::NoProfile { role: key.role.clone() })?;
        bound(&mut profile);
        let mut prepared = Prepared { profile_read: began.elapsed(), ..Prepared::default() };
        if self.early_fault {
            prepared.variables = preloaded(&store, &key, &profile)?;
        }
        let began = Instant::now();
        self.prefetch(&profile)?;
        prepared.prefetched = self.mode.is_synchronous().then(|| began.elapsed());
        Ok(prepared)
    }

    fn prefetch(&self, profile: &Profile) -> io::Result<()> {
        let program = Pid::from_raw(std::process::id() as i32);
        let (answer, to_program) = pipe_with(PipeFlags::CLOEXEC)?;
        run_beside(Some(to_program), |to_program| {
            let reads = self.mode.reads(profile);
            let mut engine = Engine::new(&reads, &device_of(profile));
            engine.keep_within(Budget::of_process());
            if self.mode.is_synchronous() {
                engine.wait_for_reads();
                engine.run();
                drop(to_program);
                return;
            }
            drop(to_program);
            let Some(pidfd) = program.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
                return;
            };
            let until = Until::new(pidfd, ASYNC_WINDOW);
            std::thread::scope(|scope| {
                let prefetch = || drop(engine.run());
                if std::thread::Builder::new().spawn_scoped(scope, prefetch).is_ok() {
                    until.wait();
                    engine.cancel();
                }
            });
        })?;
        if self.mode.is_synchronous() {
            // The other end closes when all is in memory, or when its process ended for whatever reason.
            let timeout = Timespec { tv_sec: SYNC_WAIT.as_secs() as i64, tv_nsec: 0 };
            let _ = poll(&mut [PollFd::new(&answer, PollFlags::IN)], Some(&timeout));
        }
        Ok(())
    }
}

/// The variables that have the library preloaded, with a list of the profile's pages beside the profile.
fn preloaded(
    store: &Store,
    key: &ProfileKey,
    profile: &Profile,
) -> Result<Vec<(&'static str, OsString)>, StudyError> {
    let library = library(&std::env::current_exe()?)?;
    let path = store.path_of(key);
    let list = path.with_extension("pages");
    let changed = |path: &Path| fs::metadata(path).and_then(|metadata| metadata.modified());
    if changed(&list).ok() < changed(&path).ok() {
        write_list(&list, profile)?;
    }
    let mut preload = library.into_os_string();
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    Ok(vec![("LD_PRELOAD", preload), ("PREPAGE_EARLY_FAULT", list.into())])
}

/// Beside the binary (a build), or where an installation has it.
fn library(program: &Path) -> Result<PathBuf, StudyError> {
    let directory = program.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(LIBRARY), directory.join("../lib/prepage").join(LIBRARY)];
    let found = places.iter().find(|place| place.exists()).cloned();
    found.ok_or_else(|| StudyError::NoLibrary(places[0].clone()))
}

fn write_list(path: &Path, profile: &Profile) -> io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt;
    let temporary = path.with_extension(format!("{}.new", std::process::id()));
    let mut text = Vec::new();
    for file in &profile.files {
        for extent in &file.extents {
            writeln!(text, "{} {} {}", extent.range.start(), extent.range.end(), file.path)?;
        }
    }
    let file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
    let written = file.and_then(|mut file| file.write_all(&text)).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The failure itself is what is told.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_looked_for_where_builds_and_installations_have_it() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("bin/prepage");
        assert!(matches!(library(&program), Err(StudyError::NoLibrary(_))));
        fs::create_dir_all(dir.path().join("lib/prepage")).unwrap();
        fs::create_dir_all(dir.path().join("bin")).unwrap();
        fs::write(dir.path().join("lib/prepage").join(LIBRARY), "").unwrap();
        assert!(library(&program).unwrap().ends_with(LIBRARY));
    }
}
