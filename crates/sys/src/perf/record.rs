//! Reading records out of a ring's bytes.

use perf_event_open_sys::bindings as abi;

use super::Source;

/// One record, borrowing from the bytes it was read from.
///
/// The layouts are those of perf_event_open(2) for the sample type that [`super::Setup`] always asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Process it is about: for a fork or an exit, the one that begins or ends; else the one that caused it.
    pub pid: u32,
    /// Thread it is about.
    pub tid: u32,
    /// What it says.
    pub kind: RecordKind<'a>,
}

/// The kinds of record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind<'a> {
    /// The event happened.
    Sample(Sample<'a>),
    /// Something was mapped, or a mapping changed its permissions or size.
    Mmap2(Mmap2<'a>),
    /// The thread has a new name.
    Comm {
        /// The name, without its terminating zero.
        name: &'a [u8],
        /// Whether it comes from executing a program, which replaces all mappings.
        exec: bool,
    },
    /// The record's process or thread was started.
    Fork {
        /// Process that started it; the record's own `pid` for a thread.
        parent_pid: u32,
        /// Thread that started it.
        parent_tid: u32,
    },
    /// The record's thread ended.
    Exit,
    /// The kernel found no room for records.
    Lost {
        /// How many.
        records: u64,
    },
    /// The thread was put on its CPU or taken off.
    Switch {
        /// Taken off.
        out: bool,
        /// It would have run on.
        preempted: bool,
    },
    /// Any other kind, of the type the kernel gave.
    Other(u32),
}

/// One happening of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample<'a> {
    /// Which event: [`super::PerfEvent::id`]. Where another process observes faults of the same thread, the kernel gives
    /// samples of a fault the id of the event that was opened last, whosever it is (do_perf_sw_event() in
    /// kernel/events/core.c fills one sample for all): see [`Sample::fault`].
    pub id: u64,
    /// Instruction.
    pub ip: u64,
    /// Memory address, for page faults.
    pub address: u64,
    /// What only some events have; see [`Sample::raw`] and [`Sample::callchain`].
    rest: &'a [u8],
}

/// Bytes that follow the calls of a fault's sample: weight, data source and transaction.
const AFTER_CALLCHAIN: usize = 24;

impl<'a> Sample<'a> {
    /// Which of the events of faults wrote the sample, if it was one of these; of a tracepoint's sample it means nothing.
    pub fn fault(&self) -> Option<Source> {
        match self.rest.len() {
            0 => Some(Source::PageFaults),
            8 => Some(Source::MinorFaults),
            16 => Some(Source::MajorFaults),
            len => (len > AFTER_CALLCHAIN).then_some(Source::PageFaults),
        }
    }

    /// A tracepoint's fields, if the event is one. `None` when they are cut short.
    pub fn raw(&self) -> Option<&'a [u8]> {
        let mut cursor = Cursor(self.rest);
        let len = cursor.u32()?;
        cursor.take(len as usize)
    }

    /// The addresses of the calls that led there, the instruction itself first, if the event was set up with
    /// [`super::Setup::callchain`]. `None` when they are cut short.
    pub fn callchain(&self) -> Option<impl Iterator<Item = u64> + 'a> {
        let mut cursor = Cursor(self.rest);
        let count = usize::try_from(cursor.u64()?).ok()?;
        let words = cursor.take(count.checked_mul(8)?)?.chunks_exact(8);
        let addresses = words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
        // Markers stand between the parts of a chain (kernel, user, …): numbers no address can have.
        Some(addresses.filter(|&address| address < abi::PERF_CONTEXT_MAX))
    }
}

/// A mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mmap2<'a> {
    /// First address.
    pub address: u64,
    /// Length in bytes.
    pub len: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// The file's device.
    pub device: (u32, u32),
    /// The file's inode, 0 for memory of no file.
    pub inode: u64,
    /// PROT_ flags of mmap(2).
    pub protection: u32,
    /// MAP_ flags of mmap(2).
    pub flags: u32,
    /// The path, or a name such as `//anon`, `[heap]`, without its terminating zero.
    pub path: &'a [u8],
}

/// The bytes are no record, or one cut short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed perf record of type {record_type}")]
pub struct Malformed {
    /// The type it claims.
    pub record_type: u32,
}

/// Bytes of the trailer that every record but a sample ends with: pid, tid, time, id.
const TRAILER_BYTES: usize = 24;

impl<'a> Record<'a> {
    /// Reads the record that fills `bytes`, header included. Any bytes are safe to read.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        let record_type = cursor.u32().unwrap_or(0);
        let malformed = Malformed { record_type };
        let misc = u32::from(cursor.u16().ok_or(malformed)?);
        cursor.u16().ok_or(malformed)?;
        if record_type == abi::PERF_RECORD_SAMPLE {
            sample(cursor).ok_or(malformed)
        } else {
            let body = cursor.0.len().checked_sub(TRAILER_BYTES).ok_or(malformed)?;
            let (body, trailer) = cursor.0.split_at(body);
            side_band(record_type, misc, Cursor(body), Cursor(trailer)).ok_or(malformed)
        }
    }
}

fn sample(mut cursor: Cursor<'_>) -> Option<Record<'_>> {
    let id = cursor.u64()?;
    let ip = cursor.u64()?;
    let (pid, tid) = (cursor.u32()?, cursor.u32()?);
    let time_ns = cursor.u64()?;
    let address = cursor.u64()?;
    Some(Record { time_ns, pid, tid, kind: RecordKind::Sample(Sample { id, ip, address, rest: cursor.0 }) })
}

fn side_band<'a>(
    record_type: u32,
    misc: u32,
    mut body: Cursor<'a>,
    mut trailer: Cursor<'a>,
) -> Option<Record<'a>> {
    let (mut pid, mut tid) = (trailer.u32()?, trailer.u32()?);
    let time_ns = trailer.u64()?;
    let kind = match record_type {
        abi::PERF_RECORD_MMAP2 if misc & abi::PERF_RECORD_MISC_MMAP_BUILD_ID == 0 => {
            (pid, tid) = (body.u32()?, body.u32()?);
            RecordKind::Mmap2(Mmap2 {
                address: body.u64()?,
                len: body.u64()?,
                offset: body.u64()?,
                device: (body.u32()?, body.u32()?),
                inode: body.u64()?,
                protection: {
                    // The inode's generation comes first.
                    body.u64()?;
                    body.u32()?
                },
                flags: body.u32()?,
                path: body.text(),
            })
        }
        abi::PERF_RECORD_COMM => {
            (pid, tid) = (body.u32()?, body.u32()?);
            RecordKind::Comm { name: body.text(), exec: misc & abi::PERF_RECORD_MISC_COMM_EXEC != 0 }
        }
        abi::PERF_RECORD_FORK | abi::PERF_RECORD_EXIT => {
            pid = body.u32()?;
            let parent_pid = body.u32()?;
            tid = body.u32()?;
            let parent_tid = body.u32()?;
            match record_type {
                abi::PERF_RECORD_FORK => RecordKind::Fork { parent_pid, parent_tid },
                _ => RecordKind::Exit,
            }
        }
        abi::PERF_RECORD_LOST => {
            body.u64()?;
            RecordKind::Lost { records: body.u64()? }
        }
        // Of events that observe the whole machine the second, which has the other thread, too.
        abi::PERF_RECORD_SWITCH | abi::PERF_RECORD_SWITCH_CPU_WIDE => RecordKind::Switch {
            out: misc & abi::PERF_RECORD_MISC_SWITCH_OUT != 0,
            preempted: misc & abi::PERF_RECORD_MISC_SWITCH_OUT_PREEMPT != 0,
        },
        other => RecordKind::Other(other),
    };
    Some(Record { time_ns, pid, tid, kind })
}

/// What is left of a record.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_ne_bytes(self.take(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_ne_bytes(self.take(4)?.try_into().ok()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_ne_bytes(self.take(8)?.try_into().ok()?))
    }

    /// Text up to the first zero; the kernel pads to eight bytes.
    fn text(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|&byte| byte == 0).unwrap_or(self.0.len());
        &self.0[..end]
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
