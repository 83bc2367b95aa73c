//! The faults of a process tree that waited for a device, where perf is allowed: when pages were used that page tables show.
//!
//! They are few, and the others cost nothing: a perf event for all faults adds 0.7 to 1.2 µs to each, where one that is armed takes 1.3.

use prepage_sys::clock::now_ns;
use prepage_sys::maps::Mapped;
use prepage_sys::perf::PerfError;
use prepage_trace::{EventKind, FaultEvents, Probe, Stream, Target};

use crate::faults::Places;
use crate::sightings::Sightings;

/// Holds the faults of 50 ms, and the mappings that they lie in. What is dropped is dated by the next look at page tables.
const RING_BYTES: usize = 128 << 10;

/// How often the kernel is asked for how many records it had no room: to read an event's count interrupts each processor that runs a thread of
/// the program.
const ASKED_NS: u64 = 200_000_000;

/// Faults that waited for a device.
#[derive(Debug)]
pub struct DiskFaults {
    stream: Stream,
    places: Places,
    /// What processes have mapped since that was taken last.
    mapped: Vec<MappedAt>,
    /// Whether a process was started or has ended since that was taken last.
    has_changed: bool,
    /// Whether the kernel has had no room for records since.
    has_lost: bool,
    /// For how many it had no room when that was asked for last.
    lost: u64,
    /// When that was.
    asked_ns: u64,
}

/// What a process has mapped.
#[derive(Debug)]
pub struct MappedAt {
    pub time_ns: u64,
    pub pid: u32,
    pub mapped: Mapped,
}

/// What perf tells besides.
#[derive(Debug)]
pub struct Changes {
    /// What processes have mapped; `None` where the kernel had no room to tell it.
    pub mapped: Option<Vec<MappedAt>>,
    /// Whether a process was started or has ended.
    pub of_processes: bool,
}

impl DiskFaults {
    /// Those of the processes `pids` and of all that they start, from now on.
    ///
    /// # Errors
    /// When perf is refused.
    pub fn attach(pids: &[u32]) -> Result<Self, PerfError> {
        let probe = Probe { faults: FaultEvents::DiskOnly, ring_bytes: RING_BYTES, ..Probe::default() };
        let stream = Stream::attach_to(&Target::Processes(pids.to_vec()), &probe)?;
        let (places, asked_ns) = (Places::of(pids), now_ns());
        Ok(Self {
            stream,
            places,
            mapped: Vec::new(),
            has_changed: false,
            has_lost: false,
            lost: 0,
            asked_ns,
        })
    }

    /// What has changed since this was called last, as far as [`Self::look`] has seen it.
    pub fn take_changes(&mut self) -> Changes {
        let mapped = std::mem::take(&mut self.mapped);
        let has_lost = std::mem::take(&mut self.has_lost);
        let of_processes = std::mem::take(&mut self.has_changed) || has_lost;
        Changes { mapped: (!has_lost).then_some(mapped), of_processes }
    }

    /// Notes the faults that came since the `last` look, or another. `last_touch_ns` becomes the time of the last one on a page of a file.
    pub fn look(&mut self, last: bool, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        for event in self.stream.finish() {
            self.places.apply(&event);
            let address = match event.kind {
                EventKind::FaultEnd { address, .. } => address,
                EventKind::Map(mapped) => {
                    let (time_ns, pid) = (event.time_ns, event.pid);
                    self.mapped.push(MappedAt { time_ns, pid, mapped: *mapped });
                    continue;
                }
                other => {
                    self.has_changed |= match other {
                        EventKind::Fork { parent_pid, .. } => parent_pid != event.pid,
                        EventKind::Exit => event.pid == event.tid,
                        _ => false,
                    };
                    self.has_lost |= matches!(other, EventKind::Lost { .. });
                    continue;
                }
            };
            let Some((place, page, _)) = self.places.page_at(event.pid, address, sightings) else { continue };
            *last_touch_ns = event.time_ns.max(*last_touch_ns);
            if let Some(place) = place {
                sightings.wait(event.time_ns, place, page);
            }
        }
        // The kernel tells of a loss in front of the next record that finds room: of the last one never.
        if last || now_ns().saturating_sub(self.asked_ns) >= ASKED_NS {
            self.asked_ns = now_ns();
            let lost = self.stream.counts().map_or(self.lost, |counts| counts.lost);
            self.has_lost |= lost != std::mem::replace(&mut self.lost, lost);
        }
    }
}
