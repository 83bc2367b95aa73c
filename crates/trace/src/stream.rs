//! The events of a process tree, in the order they happened.

use std::fs;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use prepage_core::PageIndex;
use prepage_sys::perf::{
    FieldPlace, Mmap2, PerfError, PerfEvent, Record, RecordKind, Ring, Sample, Setup, Source, Tracefs,
    online_cpus,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::time::{ClockId, clock_gettime};

use crate::event::{Event, EventKind, Mapped};
use crate::probe::{FaultEvents, Probe};

/// Smallest ring worth having, a CPU.
const RING_BYTES_MIN: usize = 16 << 10;
/// All rings together take at most this, whatever the number of CPUs.
const RINGS_BYTES_MAX: usize = 256 << 20;
/// How long to wait at most for a ring whose first thread has ended: the kernel then no longer says when it fills.
const SILENT_RING_WAIT: Duration = Duration::from_millis(10);

/// The events of a process and all it starts.
///
/// The kernel writes a ring for each CPU; [`Stream::ripe`] merges them. A record may appear in its ring a little
/// later than its time says, so an event is delivered only in the round after the one in which it could first be
/// seen; [`Stream::finish`] delivers the rest.
#[derive(Debug)]
pub struct Stream {
    rings: Vec<CpuRing>,
    /// All events but those that own rings.
    others: Vec<(Source, PerfEvent)>,
    /// Sorted by id.
    sources: Vec<(u64, Source)>,
    page_cache: Option<PageCacheFields>,
    pending: Vec<Event>,
    /// Events older than this are complete in `pending`.
    ripe_before_ns: u64,
    tally: Tally,
    sees_system_calls: bool,
}

#[derive(Debug)]
struct CpuRing {
    cpu: u32,
    ring: Ring,
    source: Source,
    owner: PerfEvent,
    /// The owner's thread ended: it is always "ready" now.
    silent: bool,
}

#[derive(Debug, Default)]
struct Tally {
    lost: u64,
    malformed: u64,
}

/// What the kernel counted, whether or not a record of it found room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Faults that ended without a read from a device.
    pub minor: u64,
    /// Faults that ended after one.
    pub major: u64,
    /// Records that found no room.
    pub lost: u64,
}

#[derive(Clone, Copy, Debug)]
struct PageCacheFields {
    device: FieldPlace,
    inode: FieldPlace,
    page: FieldPlace,
    /// Log2 of the number of pages; missing where the kernel adds one at a time.
    order: Option<FieldPlace>,
}

impl Stream {
    /// Observes process `pid`: its threads as they are now, and all that they start.
    ///
    /// A thread that a not yet observed thread starts in the very moment of attaching can be missed; a process of
    /// one thread, such as one that waits to execute its program, has no such moment.
    ///
    /// # Errors
    /// See [`PerfError`]; [`PerfError::Tracefs`] only with [`Probe::page_cache`].
    pub fn attach(pid: u32, probe: &Probe) -> Result<Self, PerfError> {
        let cpus = online_cpus().map_err(|source| PerfError::Other { action: "listing CPUs", source })?;
        let mut sources = match probe.faults {
            FaultEvents::None => vec![Source::Dummy],
            FaultEvents::DiskOnly => vec![Source::MajorFaults],
            FaultEvents::Ends => vec![Source::MinorFaults, Source::MajorFaults],
            FaultEvents::Costs => vec![Source::PageFaults, Source::MinorFaults, Source::MajorFaults],
        };
        let mut page_cache = None;
        if probe.page_cache {
            let (id, fields) = page_cache_tracepoint()?;
            sources.push(Source::Tracepoint(id));
            page_cache = Some(fields);
        }
        let threads = threads_of(pid)?;
        let mut setup = Setup {
            source: sources[0],
            tracking: true,
            switches: probe.switches,
            start: probe.start,
            exclude_kernel: false,
            wakeup_bytes: 0,
        };
        setup.exclude_kernel = must_exclude_kernel(&setup, threads[0], cpus[0]);
        let largest = probe.ring_bytes.min(RINGS_BYTES_MAX / cpus.len().next_power_of_two());
        let rings = open_rings(&mut setup, threads[0], &cpus, largest.max(RING_BYTES_MIN))?;
        let mut stream = Self {
            rings,
            others: Vec::new(),
            sources: Vec::new(),
            page_cache,
            pending: Vec::new(),
            ripe_before_ns: 0,
            tally: Tally::default(),
            sees_system_calls: !setup.exclude_kernel,
        };
        stream.open_others(&setup, &sources, &threads)?;
        stream.index_sources()?;
        Ok(stream)
    }

    /// Bytes of each CPU's ring.
    pub fn ring_bytes(&self) -> usize {
        self.rings[0].ring.data_bytes()
    }

    /// Whether faults that system calls take on the program's memory are reported; an ordinary user at
    /// `perf_event_paranoid` 2 does not get them.
    pub fn sees_system_calls(&self) -> bool {
        self.sees_system_calls
    }

    /// Waits until a ring is a quarter full, one of `others` is readable or `timeout` has passed. Returns which of
    /// `others` are readable.
    pub fn wait(&mut self, others: &[BorrowedFd<'_>], timeout: Option<Duration>) -> io::Result<Vec<bool>> {
        let silent = self.rings.iter().any(|ring| ring.silent);
        let timeout = if silent {
            Some(timeout.map_or(SILENT_RING_WAIT, |timeout| timeout.min(SILENT_RING_WAIT)))
        } else {
            timeout
        };
        let timespec = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        let speaking: Vec<usize> = (0..self.rings.len()).filter(|&at| !self.rings[at].silent).collect();
        let mut fds: Vec<PollFd<'_>> =
            others.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)).collect();
        fds.extend(speaking.iter().map(|&at| PollFd::new(&self.rings[at].owner, PollFlags::IN)));
        match poll(&mut fds, timespec.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = fds[..others.len()].iter().map(|fd| !fd.revents().is_empty()).collect();
        let ended: Vec<bool> =
            fds[others.len()..].iter().map(|fd| fd.revents().contains(PollFlags::HUP)).collect();
        for (at, ended) in speaking.into_iter().zip(ended) {
            self.rings[at].silent = ended;
        }
        Ok(ready)
    }

    /// The events that no event yet to come can precede, in order. Empties the rings.
    pub fn ripe(&mut self) -> impl Iterator<Item = Event> + '_ {
        let round_start_ns = now_ns();
        self.collect();
        let ripe = self.pending.partition_point(|event| event.time_ns < self.ripe_before_ns);
        self.ripe_before_ns = round_start_ns;
        self.pending.drain(..ripe)
    }

    /// All events there are until now, in order: for the end, when the observed processes are gone or no longer of
    /// interest.
    pub fn finish(&mut self) -> impl Iterator<Item = Event> + '_ {
        self.collect();
        self.pending.drain(..)
    }

    /// What the kernel counted until now.
    pub fn counts(&self) -> Result<Counts, PerfError> {
        let mut counts = Counts::default();
        let mut lost_known = true;
        let owners = self.rings.iter().map(|ring| (ring.source, &ring.owner));
        for (source, event) in owners.chain(self.others.iter().map(|(source, event)| (*source, event))) {
            let counted = event.counted()?;
            match source {
                Source::MinorFaults => counts.minor += counted.times,
                Source::MajorFaults => counts.major += counted.times,
                Source::PageFaults | Source::Dummy | Source::Tracepoint(_) => {}
            }
            match counted.lost {
                Some(lost) => counts.lost += lost,
                None => lost_known = false,
            }
        }
        if !lost_known {
            // Before Linux 6.0 only the records that say so: the last ones may be missing.
            counts.lost = self.tally.lost;
        }
        counts.lost += self.tally.malformed;
        Ok(counts)
    }

    fn open_others(&mut self, setup: &Setup, sources: &[Source], threads: &[u32]) -> Result<(), PerfError> {
        for (nth_thread, &tid) in threads.iter().enumerate() {
            for (nth_source, &source) in sources.iter().enumerate() {
                if nth_thread == 0 && nth_source == 0 {
                    continue; // these own the rings
                }
                let first = nth_source == 0;
                let setup = Setup { source, tracking: first, switches: first && setup.switches, ..*setup };
                for ring in &self.rings {
                    let event = match PerfEvent::open(&setup, tid, ring.cpu) {
                        // It ended since it was listed.
                        Err(PerfError::NoProcess { .. }) if nth_thread > 0 => break,
                        event => event?,
                    };
                    event.report_through(&ring.owner)?;
                    self.others.push((source, event));
                }
            }
        }
        Ok(())
    }

    fn index_sources(&mut self) -> Result<(), PerfError> {
        for ring in &self.rings {
            self.sources.push((ring.owner.id()?, ring.source));
        }
        for (source, event) in &self.others {
            self.sources.push((event.id()?, *source));
        }
        self.sources.sort_unstable_by_key(|(id, _)| *id);
        Ok(())
    }

    /// Moves all records from the rings to `pending` and sorts it.
    fn collect(&mut self) {
        let Self { rings, sources, page_cache, pending, tally, .. } = self;
        for CpuRing { ring, .. } in rings {
            ring.drain(|bytes| match Record::decode(bytes) {
                Ok(record) => {
                    if let Some(event) = event_of(record, sources, *page_cache, tally) {
                        pending.push(event);
                    }
                }
                Err(_) => tally.malformed += 1,
            });
        }
        // A stable sort that finds the rings' sorted runs and merges them.
        pending.sort_by_key(|event| event.time_ns);
    }
}

/// Nanoseconds of CLOCK_MONOTONIC, the clock of [`Event::time_ns`].
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn event_of(
    record: Record<'_>,
    sources: &[(u64, Source)],
    page_cache: Option<PageCacheFields>,
    tally: &mut Tally,
) -> Option<Event> {
    let kind = match record.kind {
        RecordKind::Sample(sample) => match sample_event(&sample, sources, page_cache) {
            Some(kind) => kind,
            None => {
                tally.malformed += 1;
                return None;
            }
        },
        RecordKind::Mmap2(map) => EventKind::Map(Box::new(mapped(&map))),
        RecordKind::Comm { name, exec } => {
            EventKind::Name { name: String::from_utf8_lossy(name).into(), exec }
        }
        RecordKind::Fork { parent_pid, parent_tid } => EventKind::Fork { parent_pid, parent_tid },
        RecordKind::Exit => EventKind::Exit,
        RecordKind::Lost { records } => {
            tally.lost += records;
            EventKind::Lost { records }
        }
        RecordKind::Switch { out, preempted } => EventKind::Switch { out, preempted },
        RecordKind::Other(_) => return None,
    };
    Some(Event { time_ns: record.time_ns, pid: record.pid, tid: record.tid, kind })
}

fn sample_event(
    sample: &Sample<'_>,
    sources: &[(u64, Source)],
    page_cache: Option<PageCacheFields>,
) -> Option<EventKind> {
    let at = sources.binary_search_by_key(&sample.id, |(id, _)| *id).ok()?;
    let &Sample { address, ip, raw, .. } = sample;
    Some(match sources[at].1 {
        Source::PageFaults => EventKind::FaultBegin { address, ip },
        Source::MinorFaults => EventKind::FaultEnd { address, ip, disk: false },
        Source::MajorFaults => EventKind::FaultEnd { address, ip, disk: true },
        Source::Tracepoint(_) => {
            let fields = page_cache?;
            let order = fields.order.map_or(Some(0), |order| order.read(raw))?;
            EventKind::PageCached {
                device: fields.device.read(raw)?,
                inode: fields.inode.read(raw)?,
                page: PageIndex(fields.page.read(raw)?),
                pages: 1u32.checked_shl(order.try_into().ok()?)?,
            }
        }
        Source::Dummy => return None,
    })
}

fn mapped(map: &Mmap2<'_>) -> Mapped {
    let path = match map.path {
        b"//anon" => "[anon]".into(),
        path => String::from_utf8_lossy(path),
    };
    let device = u64::from(map.device.0) << 20 | u64::from(map.device.1);
    Mapped {
        start: map.address,
        end: map.address.saturating_add(map.len),
        offset_bytes: map.offset,
        inode: (map.inode != 0).then_some((device, map.inode)),
        protection: map.protection,
        flags: map.flags,
        path: path.into(),
    }
}

fn page_cache_tracepoint() -> Result<(u64, PageCacheFields), PerfError> {
    let (system, name) = ("filemap", "mm_filemap_add_to_page_cache");
    let tracefs = Tracefs::open()
        .map_err(|source| PerfError::Tracefs { tracepoint: format!("{system}:{name}"), source })?;
    let tracepoint = tracefs.tracepoint(system, name)?;
    let fields = PageCacheFields {
        device: tracepoint.field("s_dev")?,
        inode: tracepoint.field("i_ino")?,
        page: tracepoint.field("index")?,
        order: tracepoint.field("order").ok(),
    };
    Ok((tracepoint.id, fields))
}

/// The threads of `pid`, itself first.
fn threads_of(pid: u32) -> Result<Vec<u32>, PerfError> {
    let entries = fs::read_dir(format!("/proc/{pid}/task")).map_err(|_| PerfError::NoProcess { pid })?;
    let others = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut threads = vec![pid];
    threads.extend(others.filter(|&tid| tid != pid));
    Ok(threads)
}

/// Whether this user gets events only without what happens in system calls. Any other error shows again when the
/// events are opened for good.
fn must_exclude_kernel(setup: &Setup, tid: u32, cpu: u32) -> bool {
    let refused = matches!(
        PerfEvent::open(setup, tid, cpu),
        Err(PerfError::NotYours { .. } | PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. })
    );
    refused && PerfEvent::open(&Setup { exclude_kernel: true, ..*setup }, tid, cpu).is_ok()
}

/// Opens the first event on each CPU with a ring of at most `bytes`, halving it until the user's limit allows all.
fn open_rings(
    setup: &mut Setup,
    tid: u32,
    cpus: &[u32],
    mut bytes: usize,
) -> Result<Vec<CpuRing>, PerfError> {
    loop {
        setup.wakeup_bytes = (bytes / 4) as u32;
        let open = |&cpu| {
            let owner = PerfEvent::open(setup, tid, cpu)?;
            let ring = Ring::map(&owner, bytes).map_err(|source| PerfError::Ring { bytes, source })?;
            Ok(CpuRing { cpu, ring, source: setup.source, owner, silent: false })
        };
        match cpus.iter().map(open).collect() {
            Err(PerfError::Ring { .. }) if bytes > RING_BYTES_MIN => bytes /= 2,
            rings => return rings,
        }
    }
}
