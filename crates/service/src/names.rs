//! Metadata in memory: what the kernel knows of the files and names of known programs, so that a start waits for data only.
//!
//! Nothing is held: names are looked up again where the kernel was told to forget them, when somebody else than the service has changed profiles (what
//! the service has learned was in use until then), and, unless the machine runs on a battery, now and then; in any case once the machine is quiet. One thread does it, one name after the other, with the rights with which each profile is
//! fetched, and its reads come after those of others: whoever needs the disk waits for one read. Where a file system does not answer, another thread begins
//! anew without it ([`crate::round`]).

use std::collections::HashSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prepage_core::idle::Reading;
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_prefetch::engine::Engine;
use prepage_sys::file_handle::FileHandle;
use prepage_sys::proc_file;
use prepage_sys::rights::Rights;
use prepage_sys::scheduling;
use prepage_sys::sync::Anyway;

use crate::counters::Counters;
use crate::crew::{Crew, Priority};
use crate::known::Known;
use crate::library::Library;
use crate::reading::Sampler;
use crate::round::{HANGING_MAX, Next, Round, Rounds};
use crate::writing::checksum;

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
/// Lock order: `last`, then one of `rounds`, the library's and the crew's.
#[derive(Debug)]
pub struct Names {
    library: Arc<Library>,
    counters: Arc<Counters>,
    crew: Crew,
    /// Whether rounds wait until the machine is quiet, and their reads for those of others.
    is_courteous: bool,
    rounds: Mutex<Rounds>,
    is_wanted: AtomicBool,
    /// About what those of the last round take in the kernel.
    bytes: Arc<AtomicU64>,
    last: Mutex<Last>,
}

/// Protected by `Names::last`.
#[derive(Debug, Default)]
struct Last {
    /// When the last round began, or could not on a battery.
    began: Option<Instant>,
    /// When the kernel was asked last how often names had been forgotten, and what it said.
    asked: Option<Instant>,
    forgotten: Option<u64>,
    /// A round was asked for, or names were forgotten, since that.
    is_wanted: bool,
    /// Looks at the machine while a round is due.
    sampler: Sampler,
}

/// Why a round is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Due {
    /// Names are not known to be in memory.
    Wanted,
    /// Nobody has looked for a long time.
    Timed,
}

impl Last {
    fn due(&mut self, forgotten: impl FnOnce() -> Option<u64>) -> Option<Due> {
        let is_old = |since: Option<Instant>, most| since.is_none_or(|since| since.elapsed() > most);
        if is_old(self.asked, ASKED_EVERY) {
            self.asked = Some(Instant::now());
            let before = std::mem::replace(&mut self.forgotten, forgotten());
            self.is_wanted |= self.forgotten != before;
        }
        match self.is_wanted {
            true => Some(Due::Wanted),
            false => is_old(self.began, ROUND_EVERY).then_some(Due::Timed),
        }
    }
}

impl Names {
    /// A round is wanted from the beginning. Where it is not `is_courteous`, it waits for nobody.
    pub fn new(library: Arc<Library>, counters: Arc<Counters>, is_courteous: bool) -> Self {
        let crew = Crew::of_readers("names", 1 + HANGING_MAX, 1);
        let (rounds, is_wanted, last) = (Mutex::default(), AtomicBool::new(true), Mutex::default());
        Self { library, counters, crew, is_courteous, rounds, is_wanted, bytes: Arc::default(), last }
    }

    /// About what the names that were looked up last, and their inodes, take in the kernel.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn hanging(&self) -> usize {
        self.rounds.lock().anyway().all_hanging()
    }

    pub fn want(&self) {
        self.is_wanted.store(true, Ordering::Relaxed);
    }

    /// To be called each second while nothing is fetched: begins a round where one is due and the machine was quiet since the last call.
    pub fn tick(&self) {
        self.tick_by(Sampler::look, forgotten);
    }

    fn tick_by(
        &self,
        look: impl FnOnce(&mut Sampler) -> Option<Reading>,
        forgotten: impl FnOnce() -> Option<u64>,
    ) {
        // Not held for long: the status asks how many hang. Whoever else is told to begin waits as long as `round` is there.
        let next = self.rounds.lock().anyway().next(Instant::now());
        let Next::Begin { round, hangs } = next else { return };
        if hangs {
            self.counters.hung.count();
            self.want();
        }
        let mut last = self.last.lock().anyway();
        last.is_wanted |= self.is_wanted.swap(false, Ordering::Relaxed);
        let Some(due) = last.due(forgotten) else {
            // What the machine did meanwhile says nothing of the second before the next round.
            last.sampler.forget();
            return;
        };
        if self.is_courteous {
            let Some(reading) = look(&mut last.sampler) else { return };
            if due == Due::Timed && reading.is_on_battery {
                // It is looked at again when the next round would be due.
                last.began = Some(Instant::now());
                last.sampler.forget();
                return;
            }
            if reading.busy_at_work().is_some() {
                return;
            }
        }
        last.is_wanted = false;
        last.sampler.forget();
        last.began = Some(Instant::now());
        let (library, counters, bytes) = (self.library.clone(), self.counters.clone(), self.bytes.clone());
        let is_courteous = self.is_courteous;
        let mut all = library.all();
        // Users' own are bounded; what names the machine's profiles hold, root has said.
        let everybody = Rights::of_everybody().uid;
        let rounds = self.rounds.lock().anyway();
        all.retain(|known| known.rights.uid == everybody || !rounds.is_too_much_of(known.rights.uid));
        drop(rounds);
        self.crew.lend(
            Priority::Guess,
            Box::new(move || {
                // Where the kernel does not know of it, or the device's scheduler does not, a quiet machine does for it.
                if is_courteous {
                    let _ = scheduling::read_last();
                }
                counters.name_rounds_begun.count();
                bytes.store(look_up_all(&library, &all, &round).bytes(), Ordering::Relaxed);
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
        let is_new = self.0.insert((uid, checksum(path)));
        (NAME_BYTES * self.0.len() as u64 <= BYTES_MAX).then_some(is_new)
    }

    fn bytes(&self) -> u64 {
        (NAME_BYTES * self.0.len() as u64).min(BYTES_MAX)
    }
}

fn look_up_all(library: &Library, all: &[Arc<Known>], round: &Round) -> Taken {
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
    taken
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

    const IDLE: Reading = Reading {
        disk_busy: 0.0,
        processor_busy: 0.0,
        io_stalled: None,
        memory_stalled: None,
        is_on_battery: false,
        // As the page cache leaves it.
        free_bytes: 1 << 20,
        total_bytes: 1 << 30,
    };

    #[test]
    fn names_are_looked_up_once_the_machine_is_quiet_and_by_the_clock_on_no_battery() {
        let directory = tempfile::tempdir().unwrap();
        let library = Library::open(Some(vec![directory.path().into()])).unwrap();
        let names = Names::new(Arc::new(library), Arc::default(), true);
        let begins = |reading: Option<Reading>, forgotten: u64| {
            names.last.lock().anyway().asked = None;
            let before = names.counters.name_rounds_begun.get();
            names.tick_by(|_| reading, || Some(forgotten));
            while matches!(names.rounds.lock().anyway().next(Instant::now()), Next::Wait) {
                std::thread::sleep(Duration::from_millis(1));
            }
            names.last.lock().anyway().began = Instant::now().checked_sub(2 * ROUND_EVERY);
            names.counters.name_rounds_begun.get() > before
        };
        let busy = [
            Reading { disk_busy: 0.9, ..IDLE },
            Reading { io_stalled: Some(0.2), ..IDLE },
            Reading { processor_busy: 0.9, ..IDLE },
            Reading { memory_stalled: Some(0.2), is_on_battery: true, ..IDLE },
        ];
        let on_battery = Reading { is_on_battery: true, ..IDLE };
        // The first is wanted from the beginning; the next because names were dropped; the last by the clock.
        for (dropped, may_wait_for_power) in [(1, false), (2, false), (2, true)] {
            assert!(!begins(None, dropped), "the first look tells nothing");
            assert!(!busy.iter().any(|reading| begins(Some(*reading), dropped)), "{dropped}");
            assert_eq!(begins(Some(on_battery), dropped), !may_wait_for_power, "{dropped}");
        }
        assert!(begins(Some(IDLE), 2));
    }

    #[test]
    fn a_name_that_programs_share_is_looked_up_once_by_the_same_rights_and_no_more_than_fits() {
        let mut taken = Taken::default();
        let all = [(7, "/a"), (7, "/b"), (7, "/a"), (8, "/a")].map(|(uid, path)| taken.take(uid, path));
        assert_eq!(all, [Some(true), Some(true), Some(false), Some(true)]);
        assert_eq!(taken.bytes(), 3 * NAME_BYTES);
        let fit = (0..100_000).take_while(|at| taken.take(7, &at.to_string()).is_some()).count() as u64;
        assert!(fit * NAME_BYTES <= BYTES_MAX && (fit + 4) * NAME_BYTES > BYTES_MAX, "{fit}");
        assert_eq!(taken.bytes(), BYTES_MAX);
    }
}
