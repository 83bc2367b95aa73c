//! Metadata in memory: what the kernel knows of the files and names of known programs, so that a start waits for data only.
//!
//! Nothing is held: names are looked up again where the kernel was told to forget them, when profiles have changed, and now and then. One
//! thread does it, one profile after the other, with the rights with which it is fetched, and leaves the disk to others meanwhile.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prepage_core::profile::{Profile, ProfiledFile};
use prepage_prefetch::engine::Engine;
use prepage_sys::file_handle::FileHandle;

use crate::counters::Counters;
use crate::crew::{Crew, Priority};
use crate::known::Known;
use crate::library::Library;

/// What all names and inodes may take in the kernel.
const BYTES_MAX: u64 = 16 << 20;
/// An inode of ext4 and its name, as slabinfo(5) has them.
const NAME_BYTES: u64 = 1300;
/// However quiet it is, after this long names are looked up again.
const ROUND_EVERY: Duration = Duration::from_secs(600);
/// A profile whose names take longer than this lies on a file system that does not answer.
const HANGS_AFTER: Duration = Duration::from_secs(20);
/// For how long it is left alone then.
const LEFT_ALONE: Duration = Duration::from_secs(600);

/// What is being looked up, and since when.
type At = Mutex<Option<(Arc<Known>, Instant)>>;

/// The names of known programs.
#[derive(Debug)]
pub struct Names {
    library: Arc<Library>,
    counters: Arc<Counters>,
    crew: Crew,
    /// What is being looked up, and since when.
    at: Arc<At>,
    is_wanted: AtomicBool,
    last: Mutex<(Option<Instant>, Option<u64>)>,
}

impl Names {
    /// A round is wanted from the beginning.
    pub fn new(library: Arc<Library>, counters: Arc<Counters>) -> Self {
        let crew = Crew::of_readers("names", 1, 1);
        let (at, is_wanted, last) = (Arc::default(), AtomicBool::new(true), Mutex::default());
        Self { library, counters, crew, at, is_wanted, last }
    }

    /// Has all looked up again.
    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// To be called now and then, while nothing else is to be done: begins a round where one is due.
    pub fn tick(&self) {
        if let Some((known, since)) = &*self.at.lock().unwrap_or_else(PoisonError::into_inner) {
            if since.elapsed() > HANGS_AFTER {
                known.leave_alone(LEFT_ALONE);
            }
            return;
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let forgotten = forgotten();
        let is_due = last.0.is_none_or(|last| last.elapsed() > ROUND_EVERY) || last.1 != forgotten;
        if !self.is_wanted.swap(false, Ordering::Relaxed) && !is_due {
            return;
        }
        *last = (Some(Instant::now()), forgotten);
        let (library, counters, at) = (self.library.clone(), self.counters.clone(), self.at.clone());
        self.crew.lend(
            Priority::Guess,
            Box::new(move || {
                look_up_all(&library, &at);
                counters.name_rounds.count();
            }),
        );
    }
}

fn look_up_all(library: &Library, at: &At) {
    let set = |now| *at.lock().unwrap_or_else(PoisonError::into_inner) = now;
    let mut bytes = 0;
    for known in library.all() {
        let planned = &known.planned;
        bytes += NAME_BYTES * (planned.files.len() + planned.lookups.len()) as u64;
        if bytes > BYTES_MAX {
            break;
        }
        set(Some((known.clone(), Instant::now())));
        if let Ok(_assumed) = known.rights.assume() {
            // Where the files lie is all that is asked for.
            let without_pages = |file: &ProfiledFile| ProfiledFile { extents: Vec::new(), ..file.clone() };
            let files = planned.files.iter().map(without_pages).collect();
            let names = Profile { files, ..(**planned).clone() };
            Engine::new(names, &known.figures).look_up();
            if let Ok(handle) = FileHandle::of(Path::new(&known.key.program)) {
                library.note(handle, &known.key.program);
            }
        }
        set(None);
    }
}

/// How often the kernel was told to forget names, or had to for want of memory. `None` where it does not count.
fn forgotten() -> Option<u64> {
    let vmstat = std::fs::read_to_string("/proc/vmstat").ok()?;
    let line = vmstat.lines().find_map(|line| line.strip_prefix("drop_slab "))?;
    line.trim().parse().ok()
}
