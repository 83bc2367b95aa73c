//! Metadata in memory: what the kernel knows of the files and names of known programs, so that a start waits for data only.
//!
//! Nothing is held: names are looked up again where the kernel was told to forget them, when profiles have changed, and now and then. One
//! thread does it, one name after the other, with the rights with which each profile is fetched: whoever needs the disk waits for one read. Where a file
//! system does not answer, another thread begins anew without it ([`crate::round`]).

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use prepage_core::profile::{Profile, ProfiledFile};
use prepage_prefetch::engine::Engine;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::proc_file;
use prepage_sys::rights::Rights;

use crate::counters::Counters;
use crate::crew::{Crew, Priority};
use crate::known::Known;
use crate::library::Library;
use crate::round::{HANGING_MAX, Next, Round, Rounds};

/// What all names and inodes may take in the kernel.
const BYTES_MAX: u64 = 16 << 20;
/// An inode of ext4 and its name, as slabinfo(5) has them.
const NAME_BYTES: u64 = 1300;
/// However quiet it is, after this long names are looked up again.
const ROUND_EVERY: Duration = Duration::from_secs(600);
/// How often the kernel is asked whether it has forgotten them: its answer is long.
const ASKED_EVERY: Duration = Duration::from_secs(10);

/// The names of known programs.
///
/// Lock order: `rounds`, `last`, then the library's or the crew's.
#[derive(Debug)]
pub struct Names {
    library: Arc<Library>,
    counters: Arc<Counters>,
    crew: Crew,
    rounds: Mutex<Rounds>,
    is_wanted: AtomicBool,
    last: Mutex<Last>,
}

/// Protected by `Names::last`.
#[derive(Debug, Default)]
struct Last {
    /// When the last round began.
    began: Option<Instant>,
    /// When the kernel was asked last how often names had been forgotten, and what it said.
    asked: Option<Instant>,
    forgotten: Option<u64>,
}

impl Last {
    /// Whether nobody has looked names up for a long time, or since they were forgotten.
    fn is_long_ago(&mut self) -> bool {
        let is_old = |since: Option<Instant>, most| since.is_none_or(|since| since.elapsed() > most);
        if !is_old(self.asked, ASKED_EVERY) {
            return false;
        }
        self.asked = Some(Instant::now());
        let before = std::mem::replace(&mut self.forgotten, forgotten());
        is_old(self.began, ROUND_EVERY) || self.forgotten != before
    }
}

impl Names {
    /// A round is wanted from the beginning.
    pub fn new(library: Arc<Library>, counters: Arc<Counters>) -> Self {
        let crew = Crew::of_readers("names", 1 + HANGING_MAX, 1);
        let (rounds, is_wanted, last) = (Mutex::default(), AtomicBool::new(true), Mutex::default());
        Self { library, counters, crew, rounds, is_wanted, last }
    }

    /// Has all looked up again.
    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// To be called now and then, while nothing else is to be done: begins a round where one is due.
    pub fn tick(&self) {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let Next::Begin { round, hangs } = rounds.next(Instant::now()) else { return };
        if hangs {
            self.counters.hung.count();
            self.want();
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_long_ago();
        if !self.is_wanted.swap(false, Ordering::Relaxed) && !is_due {
            return;
        }
        last.began = Some(Instant::now());
        let (library, counters) = (self.library.clone(), self.counters.clone());
        let mut all = library.all();
        // Users' own are bounded; what names the machine's profiles hold, root has said.
        let everybody = Rights::of_everybody().uid;
        all.retain(|known| known.rights.uid == everybody || !rounds.is_too_much_of(known.rights.uid));
        self.crew.lend(
            Priority::Guess,
            Box::new(move || {
                look_up_all(&library, &all, &round);
                counters.name_rounds.count();
            }),
        );
    }
}

fn look_up_all(library: &Library, all: &[Arc<Known>], round: &Round) {
    let mut bytes = 0;
    for known in all {
        let planned = &known.planned;
        bytes += NAME_BYTES * (planned.files.len() + planned.lookups.len()) as u64;
        if bytes > BYTES_MAX {
            break;
        }
        let Ok(_assumed) = known.rights.assume() else { continue };
        round.is_for(known.rights.uid);
        // One at a time, so that what does not answer has a name.
        let look_up = |path: &str, one: Profile| {
            let _looking = round.look_at(path)?;
            Engine::new(one, &known.figures).look_up();
            Some(())
        };
        for file in &planned.files {
            // Where the file lies is all that is asked for.
            let without_pages = ProfiledFile { extents: Vec::new(), ..file.clone() };
            look_up(&file.path, Profile { files: vec![without_pages], ..Profile::default() });
        }
        for lookup in &planned.lookups {
            look_up(&lookup.path, Profile { lookups: vec![lookup.clone()], ..Profile::default() });
        }
        if let Some(_looking) = round.look_at(&known.key.program)
            && let Ok(handle) = FileHandle::of(Path::new(&known.key.program))
        {
            library.note(handle, &known.key.program);
        }
    }
}

/// How often somebody had the kernel drop names: those it drops for want of memory it does not count there. `None` where it does not count.
fn forgotten() -> Option<u64> {
    let vmstat = proc_file::read_text("/proc/vmstat").ok()?;
    let line = vmstat.lines().find_map(|line| line.strip_prefix("drop_slab "))?;
    line.trim().parse().ok()
}
