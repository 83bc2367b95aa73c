//! The faults of a process tree that waited for a device, where perf is allowed: when pages were used that page tables show.
//!
//! They are few, and the others cost nothing: a perf event for all faults adds 0.7 to 1.2 µs to each, where one that is armed takes 1.3.

use prepage_sys::perf::PerfError;
use prepage_trace::{EventKind, FaultEvents, Mapped, Probe, Stream, Target};

use crate::faults::Places;
use crate::sightings::Sightings;

/// Holds the faults of 50 ms, and the mappings that they lie in. What is dropped is dated by the next look at page tables.
const RING_BYTES: usize = 128 << 10;

/// Faults that waited for a device.
#[derive(Debug)]
pub struct DiskFaults {
    stream: Stream,
    places: Places,
    /// What processes have mapped since that was taken last.
    mapped: Vec<(u32, Mapped)>,
    /// Whether a process was started or has ended since that was taken last.
    has_changed: bool,
    /// Whether the kernel has had no room for records since.
    has_lost: bool,
}

/// What perf tells besides.
#[derive(Debug)]
pub struct Changes {
    /// What processes have mapped; `None` where the kernel had no room to tell it.
    pub mapped: Option<Vec<(u32, Mapped)>>,
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
        Ok(Self { stream, places: Places::of(pids), mapped: Vec::new(), has_changed: false, has_lost: false })
    }

    /// What has changed since this was called last, as far as [`Self::look`] has seen it.
    pub fn take_changes(&mut self) -> Changes {
        let mapped = std::mem::take(&mut self.mapped);
        let has_lost = std::mem::take(&mut self.has_lost);
        let of_processes = std::mem::take(&mut self.has_changed) || has_lost;
        Changes { mapped: (!has_lost).then_some(mapped), of_processes }
    }

    /// Notes the faults that came since the last look. `last_touch_ns` becomes the time of the last one on a page of a file.
    pub fn look(&mut self, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        for event in self.stream.finish() {
            self.places.apply(&event);
            let address = match event.kind {
                EventKind::FaultEnd { address, .. } => address,
                EventKind::Map(mapped) => {
                    self.mapped.push((event.pid, *mapped));
                    continue;
                }
                EventKind::Fork { parent_pid, .. } if parent_pid != event.pid => {
                    self.has_changed = true;
                    continue;
                }
                EventKind::Exit if event.pid == event.tid => {
                    self.has_changed = true;
                    continue;
                }
                // Not asked for: to read an event's count interrupts each processor that runs a thread of the program.
                EventKind::Lost { .. } => {
                    self.has_lost = true;
                    continue;
                }
                _ => continue,
            };
            let Some((place, page, _)) = self.places.page_at(event.pid, address, sightings) else { continue };
            *last_touch_ns = event.time_ns.max(*last_touch_ns);
            if let Some(place) = place {
                sightings.touch(event.time_ns, place, page);
            }
        }
    }
}
