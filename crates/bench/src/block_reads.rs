//! Every read that block devices are given for this process and what it starts, with its size and who asked for it (root).
//!
//! Two tracepoints: `block:block_bio_queue` fires in the thread that asks and is watched in this process and its descendants;
//! `block:block_rq_issue` fires when a request, perhaps of several such, goes to the device, perhaps in another thread, and is
//! watched everywhere. Their first sector ties them together: requests that others asked for are left out.

use std::collections::HashMap;
use std::io;

use prepage_sys::perf::{
    BlockRequest, BlockTracepoint, Observed, PerfError, PerfEvent, Record, RecordKind, Ring, Tracefs,
    online_cpus,
};

/// Room for the reads of one start, a CPU.
const RING_BYTES: usize = 1 << 20;

/// One read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct BlockRead {
    /// When it went to the device, nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Process that asked for it.
    pub pid: u32,
    /// The device, `major << 20 | minor`.
    pub device: u64,
    /// Where, in sectors of 512 bytes.
    pub sector: u64,
    /// How much.
    pub bytes: u64,
}

/// Watches the reads of this process and of what it starts from then on.
#[derive(Debug)]
pub struct BlockReads {
    queued: BlockTracepoint,
    issued: BlockTracepoint,
    cpus: Vec<Cpu>,
}

/// What was read, and how many records found no room.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// In the order they went to the devices.
    pub reads: Vec<BlockRead>,
    /// Records lost: each may be a read that is missing, or one whose asker is not known.
    pub lost: u64,
}

#[derive(Debug)]
struct Cpu {
    ring: Ring,
    /// The numbers by which samples name the two events.
    queued_id: u64,
    issued_id: u64,
    _events: [PerfEvent; 2],
}

impl BlockReads {
    /// Begins to watch.
    ///
    /// To be called while the process has one thread.
    ///
    /// # Errors
    /// Needs root and a kernel with block tracepoints.
    pub fn watch() -> Result<Self, PerfError> {
        let other = |action| move |source: io::Error| PerfError::Other { action, source };
        let tracefs = Tracefs::open().map_err(other("opening tracefs"))?;
        let queued = BlockTracepoint::of(&tracefs, "block_bio_queue")?;
        let issued = BlockTracepoint::of(&tracefs, "block_rq_issue")?;
        let of_cpu = |cpu| -> Result<Cpu, PerfError> {
            let own = queued.watch(Observed::Thread(std::process::id()), cpu, RING_BYTES)?;
            let events = [own, issued.watch(Observed::System, cpu, RING_BYTES)?];
            let ring = Ring::map(&events[0], RING_BYTES).map_err(other("mapping a ring"))?;
            events[1].report_through(&events[0])?;
            Ok(Cpu { ring, queued_id: events[0].id()?, issued_id: events[1].id()?, _events: events })
        };
        let cpus = online_cpus().map_err(other("listing the CPUs"))?;
        let cpus = cpus.into_iter().map(of_cpu).collect::<Result<_, _>>()?;
        Ok(Self { queued, issued, cpus })
    }

    /// What happened since the last call, or since the beginning.
    pub fn take(&mut self) -> Seen {
        let (mut askers, mut seen) = (HashMap::new(), Seen::default());
        for cpu in &mut self.cpus {
            cpu.ring.drain(|bytes| match Record::decode(bytes) {
                Ok(Record { time_ns, pid, kind: RecordKind::Sample(sample), .. }) => {
                    let fields = if sample.id == cpu.issued_id { &self.issued } else { &self.queued };
                    let Some(read) = sample.raw().and_then(|raw| fields.read(raw)) else { return };
                    let BlockRequest { device, sector, bytes, .. } = read;
                    let read = BlockRead { time_ns, pid, device, sector, bytes };
                    if sample.id == cpu.queued_id {
                        askers.insert((read.device, read.sector), pid);
                    } else {
                        seen.reads.push(read);
                    }
                }
                Ok(Record { kind: RecordKind::Lost { records }, .. }) => seen.lost += records,
                _ => {}
            });
        }
        seen.reads.retain_mut(|read| {
            let asker = askers.get(&(read.device, read.sector)).copied();
            read.pid = asker.unwrap_or_default();
            asker.is_some()
        });
        seen.reads.sort_by_key(|read| read.time_ns);
        seen
    }
}
