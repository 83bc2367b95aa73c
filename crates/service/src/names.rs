//! Metadata in memory: what the kernel knows of the files and names of known programs, so that a start waits for data only.
//!
//! Nothing is held: names are looked up again where the kernel was told to forget them, when profiles have changed, and now and then. One
//! thread does it, one name after the other, with the rights with which each profile is fetched: whoever needs the disk waits for one read. Where a file
//! system does not answer, another thread begins anew without it ([`crate::round`]).

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prepage_core::profile::{Profile, ProfiledFile};
use prepage_prefetch::engine::Engine;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::proc_file;
use prepage_sys::rights::Rights;
use prepage_sys::sync::Anyway;

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
        let mut rounds = self.rounds.lock().anyway();
        let Next::Begin { round, hangs } = rounds.next(Instant::now()) else { return };
        if hangs {
            self.counters.hung.count();
            self.want();
        }
        let mut last = self.last.lock().anyway();
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
                counters.name_rounds_begun.count();
                look_up_all(&library, &all, &round);
                counters.name_rounds.count();
            }),
        );
    }
}

/// The names of one round, by whose rights they are looked up: programs have many in common.
#[derive(Debug, Default)]
struct Taken(HashSet<(u32, u64)>);

impl Taken {
    /// Whether `path` is to be looked up by the rights of user `uid`: it was not yet. `None` where no more fits into memory.
    fn take(&mut self, uid: u32, path: &str) -> Option<bool> {
        let mut hasher = DefaultHasher::new();
        path.hash(&mut hasher);
        let is_new = self.0.insert((uid, hasher.finish()));
        (NAME_BYTES * self.0.len() as u64 <= BYTES_MAX).then_some(is_new)
    }
}

fn look_up_all(library: &Library, all: &[Arc<Known>], round: &Round) {
    let mut taken = Taken::default();
    for known in all {
        let (planned, uid) = (&known.planned, known.rights.uid);
        let Ok(_assumed) = known.rights.assume() else { continue };
        round.is_for(uid);
        // One at a time, so that what does not answer has a name.
        let mut look_up = |path: &str, one: &dyn Fn() -> Profile| {
            if taken.take(uid, path)?
                && let Some(_looking) = round.look_at(path)
            {
                Engine::new(one(), &known.figures).look_up();
            }
            Some(())
        };
        let looked_up = (|| {
            for file in &planned.files {
                // Where the file lies is all that is asked for.
                let one = || ProfiledFile { extents: Vec::new(), ..file.clone() };
                look_up(&file.path, &|| Profile { files: vec![one()], ..Profile::default() })?;
            }
            for lookup in &planned.lookups {
                look_up(&lookup.path, &|| Profile { lookups: vec![lookup.clone()], ..Profile::default() })?;
            }
            Some(())
        })();
        if looked_up.is_none() {
            break;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_programs_share_is_looked_up_once_by_the_same_rights_and_no_more_than_fits() {
        let mut taken = Taken::default();
        let all = [(7, "/a"), (7, "/b"), (7, "/a"), (8, "/a")].map(|(uid, path)| taken.take(uid, path));
        assert_eq!(all, [Some(true), Some(true), Some(false), Some(true)]);
        let fit = (0..100_000).take_while(|at| taken.take(7, &at.to_string()).is_some()).count() as u64;
        assert!(fit * NAME_BYTES <= BYTES_MAX && (fit + 4) * NAME_BYTES > BYTES_MAX, "{fit}");
    }
}
