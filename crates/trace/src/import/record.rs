//! Records of perf, as events.

use std::collections::HashMap;
use std::sync::Arc;

use linux_perf_data::linux_perf_event_reader::{
    CommOrExecRecord, EventRecord, ForkOrExitRecord, Mmap2FileId, Mmap2Record, MmapRecord, SampleRecord,
};
use prepage_core::{BuildId, Permissions};
use prepage_sys::maps::Mapped;

use super::samples::{Sample, program_calls};
use crate::event::EventKind;

/// What a record of perf means here.
pub(super) enum Taken {
    Event {
        pid: u32,
        tid: u32,
        kind: EventKind,
    },
    Sample(Sample),
    /// A sample of a process outside the PID namespace that perf ran in, where it has no number.
    Outside,
    /// `by_event`: what perf counted at the end, for each event.
    Lost {
        records: u64,
        by_event: bool,
    },
}

/// What `record` means; `None` for what says nothing of faults. Notes the build-ids of mappings, and numbers files that
/// come without an inode.
pub(super) fn take(
    record: &EventRecord<'_>,
    without_inode: &mut HashMap<Vec<u8>, u64>,
    build_ids: &mut HashMap<String, BuildId>,
) -> Option<Taken> {
    match record {
        // Until its end, and after. The idle task, which is called so too, never faults.
        EventRecord::Sample(SampleRecord { pid: Some(0 | -1), .. }) => Some(Taken::Outside),
        EventRecord::Sample(sample) => owned(sample).map(Taken::Sample),
        EventRecord::Comm(comm) => name(comm),
        EventRecord::Fork(fork) => {
            let (pid, tid) = ids(fork.pid, fork.tid)?;
            let (parent_pid, parent_tid) = ids(fork.ppid, fork.ptid)?;
            Some(Taken::Event { pid, tid, kind: EventKind::Fork { parent_pid, parent_tid } })
        }
        EventRecord::Exit(ForkOrExitRecord { pid, tid, .. }) => {
            let (pid, tid) = ids(*pid, *tid)?;
            Some(Taken::Event { pid, tid, kind: EventKind::Exit })
        }
        EventRecord::Mmap(map) => mapping(map.pid, map.tid, mmap(map, without_inode)),
        EventRecord::Mmap2(map) => mapping(map.pid, map.tid, mmap2(map, without_inode, build_ids)),
        EventRecord::Lost(lost) => Some(Taken::Lost { records: lost.count, by_event: false }),
        _ => None,
    }
}

/// Process and thread; `None` for the kernel's own.
fn ids(pid: i32, tid: i32) -> Option<(u32, u32)> {
    (pid > 0 && tid > 0).then_some((pid as u32, tid as u32))
}

fn owned(sample: &SampleRecord<'_>) -> Option<Sample> {
    let (pid, tid) = ids(sample.pid?, sample.tid?)?;
    let calls = sample.callchain.as_ref().map(|chain| {
        let entries = (0..chain.len()).filter_map(|at| chain.get(at));
        program_calls(entries)
    });
    Some(Sample { pid, tid, address: sample.addr?, ip: sample.ip.unwrap_or(0), calls })
}

fn name(comm: &CommOrExecRecord<'_>) -> Option<Taken> {
    let (pid, tid) = ids(comm.pid, comm.tid)?;
    let name = String::from_utf8_lossy(&comm.name.as_slice()).into();
    Some(Taken::Event { pid, tid, kind: EventKind::Name { name, exec: comm.is_execve } })
}

fn mapping(pid: i32, tid: i32, mapped: Mapped) -> Option<Taken> {
    // Offsets beyond 64 bits are of a damaged file: the kernel makes no such mapping.
    mapped.offset_bytes.checked_add(mapped.end - mapped.start)?;
    let (pid, tid) = ids(pid, tid)?;
    Some(Taken::Event { pid, tid, kind: EventKind::Map(Box::new(mapped)) })
}

fn mmap2(
    map: &Mmap2Record<'_>,
    without_inode: &mut HashMap<Vec<u8>, u64>,
    build_ids: &mut HashMap<String, BuildId>,
) -> Mapped {
    let path = map.path.as_slice();
    let inode = match &map.file_id {
        Mmap2FileId::InodeAndVersion(file) if file.inode != 0 => {
            Some((u64::from(file.major) << 20 | u64::from(file.minor), file.inode))
        }
        Mmap2FileId::InodeAndVersion(_) => None,
        Mmap2FileId::BuildId(id) => {
            let name = String::from_utf8_lossy(&path).into_owned();
            build_ids.extend(BuildId::new(id).map(|id| (name, id)));
            number(&path, without_inode)
        }
    };
    Mapped {
        start: map.address,
        end: map.address.saturating_add(map.length),
        offset_bytes: map.page_offset,
        inode,
        permissions: Permissions::of_mapping(map.protection, map.flags),
        path: text(&path),
    }
}

/// A mapping as perf wrote it before Linux 3.16, and still does where it knows no more.
fn mmap(map: &MmapRecord<'_>, without_inode: &mut HashMap<Vec<u8>, u64>) -> Mapped {
    let execute = if map.is_executable { Permissions::EXECUTE } else { Permissions::NONE };
    let path = map.path.as_slice();
    Mapped {
        start: map.address,
        end: map.address.saturating_add(map.length),
        offset_bytes: map.page_offset,
        inode: number(&path, without_inode),
        permissions: Permissions::READ.with(Permissions::PRIVATE).with(execute),
        path: text(&path),
    }
}

/// Device 0 and a number of its own, for a file whose inode perf did not note: pages of different files stay apart.
fn number(path: &[u8], without_inode: &mut HashMap<Vec<u8>, u64>) -> Option<(u64, u64)> {
    if !path.starts_with(b"/") || path.starts_with(b"//anon") {
        return None;
    }
    let next = without_inode.len() as u64 + 1;
    Some((0, *without_inode.entry(path.to_owned()).or_insert(next)))
}

fn text(path: &[u8]) -> Arc<str> {
    match path {
        b"//anon" => "[anon]".into(),
        path => String::from_utf8_lossy(path).into(),
    }
}
