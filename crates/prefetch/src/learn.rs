//! Learning a program exactly, in one slow run of it.
//!
//! As root: the read-ahead of all devices is 0 and all caches are dropped, so that only pages the program touches
//! come in, one by one, each reported by the kernel with the thread that caused it. Other users cannot do that;
//! for them the faults and the traced calls name the pages, with the neighbours of a fault in doubt.
//!
//! ```text
//!  spawn, waiting ─► read-ahead 0, caches dropped (root) ─► perf stream attached ─► traced ─► go
//!        traced calls: names, reads ──────┐
//!        page-cache events (root), faults ┴─► Sightings ─► Findings
//! ```

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prepage_core::profile::Evidence;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::perf::PerfError;
use prepage_sys::spawn::spawn_waiting;
use prepage_trace::{AddressSpaces, Event, EventKind, FaultEvents, Probe, Stream};

use crate::cold::drop_caches;
use crate::readahead::ReadAhead;
use crate::sightings::{Findings, Inode, Sightings};
use crate::tracer::Tracer;
use crate::watch::{see_fault, see_page};

/// Why a program could not be learned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LearnError {
    /// The kernel does not show page faults.
    #[error("cannot watch page faults")]
    Watch(#[from] PerfError),
    /// The program could not be started.
    #[error("cannot start {program}")]
    Start {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// It could not be traced.
    #[error("cannot trace the program's system calls")]
    Trace(#[source] io::Error),
    /// Read-ahead could not be switched off or the caches not be dropped.
    #[error("cannot make the cache cold")]
    Chill(#[source] io::Error),
}

/// A program that was learned.
#[derive(Debug)]
pub struct Learned {
    /// What it needed.
    pub findings: Findings,
    /// Its wait status.
    pub status: i32,
    /// Records that the kernel dropped. Each may be a page that is missing in the findings.
    pub lost: u64,
}

/// Runs `command` and learns what it needs; `exact` needs root. The program's streams are this process's.
///
/// To be called while the process has one thread.
pub fn learn(command: &[OsString], exact: bool) -> Result<Learned, LearnError> {
    let program = command[0].to_string_lossy().into_owned();
    let start = |source| LearnError::Start { program: program.clone(), source };
    let _restored_when_dropped =
        if exact { Some(ReadAhead::set(0).map_err(LearnError::Chill)?) } else { None };
    let waiting = spawn_waiting(command).map_err(start)?;
    let probe = Probe { faults: FaultEvents::Ends, page_cache: exact, ..Probe::default() };
    let mut stream = Stream::attach(waiting.pid(), &probe)?;
    let tracer = Tracer::attach(waiting.pid()).map_err(LearnError::Trace)?;
    if exact {
        drop_caches().map_err(LearnError::Chill)?;
    }
    let child = waiting.go().map_err(|source| LearnError::Start { program: program.clone(), source })?;

    let sightings = Mutex::new(Sightings::default());
    let over = AtomicBool::new(false);
    // The rings are emptied beside the tracer: ptrace belongs to one thread, and that one waits for stops.
    let (status, lost) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reader = Reader {
                exact,
                spaces: AddressSpaces::new(),
                executed: false,
                sightings: &sightings,
                disks: HashMap::new(),
            };
            while !over.load(Ordering::Acquire) {
                let _ = stream.wait(&[], Some(Duration::from_millis(20)));
                reader.read(stream.ripe());
            }
            reader.read(stream.finish());
            stream.counts().map_or(0, |counts| counts.lost)
        });
        let status = tracer.follow(&sightings);
        over.store(true, Ordering::Release);
        (status, reader.join().expect("the reader of the rings does not panic"))
    });
    // Its end was reported to the tracer.
    drop(child);
    let sightings = sightings.into_inner().expect("no holder of the lock panics");
    Ok(Learned { status: status.map_err(LearnError::Trace)?, findings: sightings.findings(), lost })
}

/// Makes sightings of the kernel's events.
struct Reader<'a> {
    exact: bool,
    spaces: AddressSpaces,
    /// Whether the program was seen to be executed; what came before is this program's own.
    executed: bool,
    sightings: &'a Mutex<Sightings>,
    /// See [`Reader::is_disk`].
    disks: HashMap<(u64, u64), bool>,
}

impl Reader<'_> {
    fn read(&mut self, events: impl Iterator<Item = Event>) {
        let mut sightings = self.sightings.lock().expect("no holder of the lock panics");
        for event in events {
            self.spaces.apply(&event);
            match &event.kind {
                EventKind::Name { exec: true, .. } => self.executed = true,
                EventKind::Map(map) => {
                    if let Some(inode) = map.inode {
                        sightings.name(as_stat_shows(inode), Path::new(&*map.path));
                    }
                }
                EventKind::FaultEnd { address, .. } if self.executed => {
                    let Some(place) = self.spaces.resolve(event.pid, *address) else { continue };
                    if self.exact {
                        // The page may have been in memory for another program's sake: no event tells of it then.
                        see_page(&mut sightings, event.time_ns, &place);
                    } else {
                        see_fault(&mut sightings, event.time_ns, &place, *address);
                    }
                }
                // Directories and inodes, as pages of the disk itself. The lookups bring those in.
                EventKind::PageCached { device, inode, .. } if self.is_disk(*device, *inode) => {}
                EventKind::PageCached { device, inode, page, pages } if self.executed => {
                    let range = PageRange::new(*page, PageIndex(page.0 + u64::from(*pages)));
                    let inode = as_stat_shows((*device, *inode));
                    sightings.inode_pages(event.time_ns, inode, range, Evidence::Exact);
                }
                _ => {}
            }
        }
    }
}

impl Reader<'_> {
    /// Whether an inode is a block device's own: it lives on a file system without a device (major number 0), and its
    /// number is the device's.
    fn is_disk(&mut self, device: u64, inode: u64) -> bool {
        let (major, minor) = (inode >> 20, inode & 0xf_ffff);
        let is_disk = || Path::new(&format!("/sys/dev/block/{major}:{minor}")).exists();
        device >> 20 == 0 && *self.disks.entry((device, inode)).or_insert_with(is_disk)
    }
}

/// A device as the kernel's events number it, numbered as stat(2) does.
fn as_stat_shows((device, inode): Inode) -> Inode {
    (rustix::fs::makedev((device >> 20) as u32, (device & 0xf_ffff) as u32), inode)
}
