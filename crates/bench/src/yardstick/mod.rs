//! Learning a program the slow, exact way: what faster ways to learn are measured by.
//!
//! As root the read-ahead of all devices is 0, all caches are dropped and every system call is traced, for one run: only
//! pages that the program touches come in, one by one, each reported by the kernel. It disturbs the whole machine, so that
//! only benchmarks do it.
//!
//! ```text
//!  spawn, waiting ─► read-ahead 0, caches dropped ─► perf stream attached ─► traced ─► go
//!        traced calls: names, reads ─┐
//!        page-cache events, faults ──┴─► Sightings ─► Observation ─► a profile that knows nothing else
//! ```

mod tracer;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use prepage_core::profile::observation::{Coverage, Observation, Order};
use prepage_observe::faults::as_stat_shows;
use prepage_observe::sightings::Sightings;
use prepage_profiles::program::past_stand_ins;
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_residency::cold::drop_caches;
use prepage_sys::disk_stat::DiskStat;
use prepage_sys::readahead::ReadAhead;
use prepage_sys::signals::{Signals, endings};
use prepage_sys::spawn::spawn_waiting;
use prepage_sys::sync::Anyway;
use prepage_trace::{AddressSpaces, Event, EventKind, FaultEvents, PageCacheEvents, Probe, Stream};

use crate::error::{BenchError, failed};
use tracer::Tracer;

const START: &str = "cannot start the program";
const TRACE: &str = "cannot trace the program's system calls";
const EXACT: &str = "touches cannot be recorded exactly: this user may not change the read-ahead and drop the caches\n  try: as \
    root, outside of a container";

/// What one run showed.
#[derive(Clone, Copy, Debug)]
pub struct Yardstick {
    /// Pages it touched.
    pub pages: u64,
    /// Files they are of.
    pub files: usize,
    /// Names it looked up.
    pub names: usize,
    /// Records the kernel dropped; each may be a page that is missing.
    pub lost: u64,
    /// The program's wait status.
    pub status: i32,
}

/// Runs `command` once and writes what it needed, and nothing else, into the user's store. The program's streams are this
/// process's.
///
/// To be called while the process has one thread.
pub fn learn_exactly(command: &[OsString], stores: &Stores) -> Result<Yardstick, BenchError> {
    let key = ProgramKey::of(command).map_err(failed(START))?;
    stores.room(Layer::User)?;
    let (observation, lost, status) = observe_exactly(command)?;
    stores.update(&key, Layer::User, |_| {
        let mut profile = key.empty_profile();
        profile.observe(&observation);
        Some(profile)
    })?;
    let ranges = observation.files.iter().flat_map(|file| &file.pages);
    Ok(Yardstick {
        pages: ranges.map(|used| used.range.len()).sum(),
        files: observation.files.len(),
        names: observation.names.len(),
        lost,
        status,
    })
}

/// What a run uses, the records lost, and its wait status. To be called while the process has one thread.
pub fn observe_exactly(command: &[OsString]) -> Result<(Observation, u64, i32), BenchError> {
    // A link would have prepage's own pages learned as the program's.
    let waiting = spawn_waiting(&past_stand_ins(command)).map_err(failed(START))?;
    // Those that ask this process to end go to the program; the read-ahead is restored in any case.
    let signals = Signals::take_over(&endings()).map_err(failed(START))?;
    let probe = Probe { faults: FaultEvents::Ends, page_cache: PageCacheEvents::Added, ..Probe::default() };
    let mut stream = Stream::attach(waiting.pid(), &probe)?;
    // Read-ahead brings in pages nobody asked for and fault-around maps those without a fault. Now only pages that were
    // touched are resident, so that nothing around a fault is mapped along but what other programs have mapped.
    let _restored_when_dropped = ReadAhead::set(0).map_err(failed(EXACT))?;
    drop_caches().map_err(failed(EXACT))?;
    let sightings = Mutex::new(Sightings::default());
    let (attached, is_attached) = mpsc::sync_channel(1);
    let pid = waiting.pid();
    let (status, lost) = std::thread::scope(|scope| {
        // A thread of its own: what it traces is let go when it ends, with the program's first process.
        let tracing = scope.spawn(|| {
            let (tracer, answer) = match Tracer::attach(pid) {
                Ok(tracer) => (Some(tracer), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let _ = attached.send(answer);
            tracer.map(|tracer| tracer.follow(&sightings))
        });
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        is_attached.recv().unwrap_or_else(|_| Err(gone())).map_err(failed(TRACE))?;
        let child = waiting.go().map_err(failed(START))?;
        let mut reader = Reader {
            spaces: AddressSpaces::default(),
            executed: false,
            sightings: &sightings,
            disks: HashMap::new(),
        };
        while !tracing.is_finished() {
            let _ = stream.wait(&[signals.as_fd()], Some(Duration::from_millis(20)));
            let _ = signals.pass_on(&child);
            reader.read(stream.ripe());
        }
        reader.read(stream.finish());
        let lost = stream.counts().map_or(0, |counts| counts.lost);
        let followed = tracing.join().expect("the tracer does not panic").unwrap_or_else(|| Err(gone()));
        if let Some(error) = child.not_executed() {
            return Err(failed(START)(error));
        }
        Ok((followed.map_err(failed(TRACE))?, lost))
    })?;
    let mut observation = sightings.into_inner().anyway().observation();
    let coverage = if lost == 0 { Coverage::Exact } else { Coverage::Partial };
    (observation.coverage, observation.reads_coverage) = (coverage, coverage);
    observation.names_coverage = Coverage::Exact;
    observation.order = if lost == 0 { Order::Exact } else { Order::Rough };
    Ok((observation, lost, status))
}

/// Makes sightings of the kernel's events.
struct Reader<'a> {
    spaces: AddressSpaces,
    /// Whether the program was seen to be executed; what came before is this program's own.
    executed: bool,
    sightings: &'a Mutex<Sightings>,
    /// See [`Reader::is_disk`].
    disks: HashMap<(u64, u64), bool>,
}

impl Reader<'_> {
    fn read(&mut self, events: impl Iterator<Item = Event>) {
        let mut sightings = self.sightings.lock().anyway();
        for event in events {
            self.spaces.apply(&event);
            match &event.kind {
                EventKind::Name { exec: true, .. } => self.executed = true,
                EventKind::FaultEnd { address, .. } if self.executed => {
                    let Some(place) = self.spaces.resolve(event.pid, *address) else { continue };
                    // The page may have been in memory for another program's sake: no event tells of it then.
                    if let Some(page) = place.page {
                        let inode = place.object.inode.map(as_stat_shows);
                        if let Some(place) = sightings.place(Path::new(&place.object.path), inode) {
                            sightings.touch(event.time_ns, place, page);
                        }
                    }
                }
                // Directories and inodes, as pages of the disk itself. The lookups bring those in.
                EventKind::PageCached { file, .. } if self.is_disk(*file) => {}
                EventKind::PageCached { file, pages } if self.executed => {
                    sightings.read_inode(event.time_ns, as_stat_shows(*file), *pages);
                }
                _ => {}
            }
        }
    }

    /// Whether an inode is a block device's own.
    fn is_disk(&mut self, inode: (u64, u64)) -> bool {
        let Some(number) = DiskStat::device_of_inode(inode) else { return false };
        *self.disks.entry(inode).or_insert_with(|| DiskStat::directory(number).exists())
    }
}
