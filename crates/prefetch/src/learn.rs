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
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use prepage_core::profile::Evidence;
use prepage_core::{PageIndex, PageRange};
use prepage_sys::perf::PerfError;
use prepage_sys::signals::{ENDING, Signals};
use prepage_sys::spawn::spawn_waiting;
use prepage_trace::{AddressSpaces, Event, EventKind, FaultEvents, PageCacheEvents, Probe, Stream};

use crate::cold::{Chill, drop_caches};
use crate::readahead::{self, ReadAhead};
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

/// Whether this user may switch off the read-ahead and drop the caches: what exact learning takes.
pub fn can_be_exact() -> bool {
    Chill::best() == Chill::System && readahead::can_be_set()
}

/// Runs `command` and learns what it needs; `exact` where [`can_be_exact`]. The program's streams are this process's.
///
/// To be called while the process has one thread.
pub fn learn(command: &[OsString], exact: bool) -> Result<Learned, LearnError> {
    let program = command[0].to_string_lossy().into_owned();
    let start = |source| LearnError::Start { program: program.clone(), source };
    let _restored_when_dropped =
        if exact { Some(ReadAhead::set(0).map_err(LearnError::Chill)?) } else { None };
    let waiting = spawn_waiting(command).map_err(start)?;
    // Those that ask this process to end go to the program; what it needed until then is kept.
    let signals = Signals::take_over(&ENDING).map_err(start)?;
    let page_cache = if exact { PageCacheEvents::Added } else { PageCacheEvents::None };
    let probe = Probe { faults: FaultEvents::Ends, page_cache, ..Probe::default() };
    let mut stream = Stream::attach(waiting.pid(), &probe)?;
    if exact {
        drop_caches().map_err(LearnError::Chill)?;
    }

    let sightings = Mutex::new(Sightings::default());
    let (attached, is_attached) = mpsc::sync_channel(1);
    let pid = waiting.pid();
    let (status, lost, not_executed) = std::thread::scope(|scope| {
        // A thread of its own: what it traces is let go when it ends, with the program's first process.
        let tracing = scope.spawn(|| {
            let tracer = Tracer::attach(pid);
            let (tracer, answer) = match tracer {
                Ok(tracer) => (Some(tracer), Ok(())),
                Err(error) => (None, Err(error)),
            };
            let _ = attached.send(answer);
            tracer.map(|tracer| tracer.follow(&sightings))
        });
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        is_attached.recv().unwrap_or_else(|_| Err(gone())).map_err(LearnError::Trace)?;
        let child = waiting.go().map_err(start)?;
        let mut reader = Reader {
            exact,
            spaces: AddressSpaces::new(),
            executed: false,
            sightings: &sightings,
            disks: HashMap::new(),
        };
        while !tracing.is_finished() {
            let _ = stream.wait(&[signals.as_fd()], Some(Duration::from_millis(20)));
            while let Ok(Some(arrived)) = signals.next() {
                // The terminal's own keys reach the program without us.
                if !arrived.by_kernel {
                    let _ = child.signal(arrived.signal);
                }
            }
            reader.read(stream.ripe());
        }
        reader.read(stream.finish());
        let lost = stream.counts().map_or(0, |counts| counts.lost);
        let followed = tracing.join().expect("the tracer does not panic").unwrap_or_else(|| Err(gone()));
        Ok::<_, LearnError>((followed.map_err(LearnError::Trace)?, lost, child.not_executed()))
    })?;
    if let Some(source) = not_executed {
        return Err(start(source));
    }
    let sightings = sightings.into_inner().expect("no holder of the lock panics");
    Ok(Learned { status, findings: sightings.findings(), lost })
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
