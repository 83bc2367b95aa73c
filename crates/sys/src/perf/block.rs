//! Requests to block devices, as the tracepoints of the block layer report them.

use super::{FieldPlace, Observed, PerfError, PerfEvent, Setup, Source, Tracefs};

/// A tracepoint of the block layer that reports one request, or one part of it: `block_bio_queue`, `block_rq_issue`.
#[derive(Clone, Copy, Debug)]
pub struct BlockTracepoint {
    id: u64,
    device: FieldPlace,
    sector: FieldPlace,
    sectors: FieldPlace,
    kind: FieldPlace,
}

/// A read that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRequest {
    /// The device, `major << 20 | minor`.
    pub device: u64,
    /// Where, in sectors of 512 bytes.
    pub sector: u64,
    /// How much.
    pub bytes: u64,
    /// Whether a file system reads for itself: inodes, directories, maps (`REQ_META`).
    pub is_metadata: bool,
}

impl BlockTracepoint {
    /// Looks up tracepoint `block:name`.
    ///
    /// # Errors
    /// Where this kernel has no such tracepoint, or not with these fields.
    pub fn of(tracefs: &Tracefs, name: &str) -> Result<Self, PerfError> {
        let tracepoint = tracefs.tracepoint("block", name)?;
        Ok(Self {
            id: tracepoint.id,
            device: tracepoint.field("dev")?,
            sector: tracepoint.field("sector")?,
            sectors: tracepoint.field("nr_sector")?,
            kind: tracepoint.text_field("rwbs")?,
        })
    }

    /// Watches it on `cpu`, for a ring of `ring_bytes` that nobody waits at before it is full.
    ///
    /// # Errors
    /// As [`PerfEvent::open`].
    pub fn watch(&self, observed: Observed, cpu: u32, ring_bytes: usize) -> Result<PerfEvent, PerfError> {
        let setup = Setup { wakeup_bytes: ring_bytes as u32, ..Setup::new(Source::Tracepoint(self.id)) };
        PerfEvent::open(&setup, observed, cpu)
    }

    /// What the raw bytes of a sample say, if it is a read.
    pub fn read(&self, raw: &[u8]) -> Option<BlockRequest> {
        let kind = self.kind.text(raw)?;
        kind.contains(&b'R').then_some(())?;
        Some(BlockRequest {
            device: self.device.read(raw)?,
            sector: self.sector.read(raw)?,
            bytes: self.sectors.read(raw)? * 512,
            is_metadata: kind.contains(&b'M'),
        })
    }
}
