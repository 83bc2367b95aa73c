//! Perfetto traces: each thread has a track, each fault is a slice on it, named by its class, with its file and page.
//!
//! Field numbers are those of protos/perfetto/trace in <https://github.com/google/perfetto>.

use std::collections::{HashMap, HashSet};
use std::io::{self, Write};

use prepage_core::{Fault, FaultClass, Thread, ThreadIndex, TraceFacts};
use prepage_trace::parquet::{TraceFile, TraceFileError, Wanted};
use rustc_hash::FxHashMap;

use super::ExportError;
use super::process_names::ProcessNames;
use super::protobuf::Message;
use crate::filter::{Filter, Sieve};
use crate::report::UNKNOWN;

/// Packets of one writer belong together by this number.
const SEQUENCE: u64 = 1;
const CLOCK_REALTIME: u64 = 1;
const CLOCK_MONOTONIC: u64 = 3;
const CLOCK_BOOTTIME: u64 = 6;
/// From here on nothing interned before is valid.
const STATE_CLEARED: u64 = 1;
const STATE_NEEDED: u64 = 2;
/// Numbers of the tracks of processes and threads begin here.
const PROCESS_TRACKS: u64 = 1 << 40;
const THREAD_TRACKS: u64 = 2 << 40;
/// The kinds of slices.
const BEGIN: u64 = 1;
const END: u64 = 2;
const INSTANT: u64 = 3;
/// Numbers of the names of the details that a slice shows.
const FILE: u64 = 1;
const PAGE: u64 = 2;
const ADDRESS: u64 = 3;

pub fn write(file: &TraceFile, filter: &Filter, out: &mut dyn Write) -> Result<(), ExportError> {
    let mut trace = Packets {
        out,
        process_names: process_names(file, filter)?,
        tracks: HashMap::new(),
        threads: HashMap::new(),
        processes: HashSet::new(),
        objects: HashSet::new(),
    };
    trace.begin(file.facts())?;
    let wanted =
        filter.wanted() | Wanted::START | Wanted::THREAD | Wanted::ADDRESS | Wanted::OBJECT | Wanted::PAGE;
    let mut sieve = Sieve::new(filter);
    file.for_each::<ExportError>(wanted, |batch| {
        for fault in batch.faults.iter().filter(|fault| sieve.passes(fault, batch.names)) {
            let track = match trace.tracks.get(&fault.thread) {
                Some(&track) => track,
                None => trace.thread(fault.thread, &batch.names.threads.get(fault.thread.0))?,
            };
            let object = fault.object.map_or(0, |id| u64::from(id.0) + 1);
            if trace.objects.insert(object) {
                let path =
                    fault.object.map_or_else(|| UNKNOWN.to_owned(), |id| batch.names.objects.get(id.0).path);
                trace.object(object, &path)?;
            }
            trace.fault(fault, track, object)?;
        }
        Ok(())
    })?;
    Ok(())
}

/// What the processes of the faults that `filter` lets pass are called. Perfetto keeps the first name it meets of a process: it is
/// the last that has to stand there.
fn process_names(file: &TraceFile, filter: &Filter) -> Result<ProcessNames, TraceFileError> {
    let wanted = filter.wanted() | Wanted::START | Wanted::THREAD;
    let new = || (Sieve::new(filter), FxHashMap::<ThreadIndex, u64>::default());
    let (parts, names) = file.fold(wanted, new, |(sieve, last_ns), batch| {
        for fault in batch.faults.iter().filter(|fault| sieve.passes(fault, batch.names)) {
            let last_ns = last_ns.entry(fault.thread).or_default();
            *last_ns = fault.start_ns.max(*last_ns);
        }
    })?;
    let mut process_names = ProcessNames::default();
    for (index, last_ns) in parts.iter().flat_map(|(_, last_ns)| last_ns) {
        process_names.note(&names.threads.get(index.0), *last_ns);
    }
    Ok(process_names)
}

struct Packets<'a> {
    out: &'a mut dyn Write,
    process_names: ProcessNames,
    /// The track of each thread met so far.
    tracks: HashMap<ThreadIndex, u64>,
    /// The same by process and thread id: a thread id that is used again may be another process's.
    threads: HashMap<(u32, u32), u64>,
    /// Processes that have a track, objects that have a name.
    processes: HashSet<u32>,
    objects: HashSet<u64>,
}

impl Packets<'_> {
    fn packet(&mut self, packet: Message) -> io::Result<()> {
        let packet = packet.number(10, SEQUENCE);
        self.out.write_all(Message::default().message(1, &packet).as_bytes())
    }

    fn begin(&mut self, facts: &TraceFacts) -> io::Result<()> {
        let clock = |id, ns| Message::default().number(1, id).number(2, ns);
        let clocks = Message::default()
            .message(1, &clock(CLOCK_MONOTONIC, 0))
            .message(1, &clock(CLOCK_BOOTTIME, 0))
            .message(1, &clock(CLOCK_REALTIME, facts.started_unix_ns))
            .number(2, CLOCK_MONOTONIC);
        let mut names = Message::default();
        for class in FaultClass::ALL {
            names = names.message(2, &name(class as u64 + 1, class.name()));
        }
        for (number, text) in [(FILE, "file"), (PAGE, "page"), (ADDRESS, "address")] {
            names = names.message(3, &name(number, text));
        }
        let names = names.message(1, &name(1, "page fault"));
        let defaults = Message::default().number(58, CLOCK_MONOTONIC);
        let first = Message::default()
            .number(13, STATE_CLEARED)
            .number(87, 1)
            .message(59, &defaults)
            .message(12, &names);
        self.packet(first)?;
        self.packet(Message::default().message(6, &clocks))
    }

    /// A thread under another name is the same track: the name it had last stays.
    fn thread(&mut self, index: ThreadIndex, thread: &Thread) -> io::Result<u64> {
        if self.processes.insert(thread.pid) {
            let name = self.process_names.of(thread.pid).as_bytes();
            let process = Message::default().number(1, thread.pid.into()).bytes(6, name);
            let track = Message::default().number(1, process_track(thread)).message(3, &process);
            self.packet(Message::default().message(60, &track))?;
        }
        let descriptor = Message::default()
            .number(1, thread.pid.into())
            .number(2, thread.tid.into())
            .bytes(5, thread.comm.as_bytes());
        let next = THREAD_TRACKS + self.threads.len() as u64;
        let number = *self.threads.entry((thread.pid, thread.tid)).or_insert(next);
        let track =
            Message::default().number(1, number).number(5, process_track(thread)).message(4, &descriptor);
        self.packet(Message::default().message(60, &track))?;
        self.tracks.insert(index, number);
        Ok(number)
    }

    fn object(&mut self, number: u64, path: &str) -> io::Result<()> {
        let names = Message::default().message(29, &name(number + 1, path));
        self.packet(Message::default().number(13, STATE_NEEDED).message(12, &names))
    }

    fn fault(&mut self, fault: &Fault, track: u64, object: u64) -> io::Result<()> {
        let kind = if fault.cost_ns.is_some() { BEGIN } else { INSTANT };
        let mut event = Message::default()
            .number(9, kind)
            .number(11, track)
            .number(3, 1)
            .number(10, fault.class as u64 + 1)
            .message(4, &Message::default().number(1, FILE).number(17, object + 1))
            .message(4, &Message::default().number(1, ADDRESS).number(7, fault.address));
        if let Some(page) = fault.page {
            event = event.message(4, &Message::default().number(1, PAGE).number(3, page.0));
        }
        self.event(fault.start_ns, &event)?;
        match fault.cost_ns {
            Some(cost_ns) => {
                let end = Message::default().number(9, END).number(11, track);
                self.event(fault.start_ns.saturating_add(cost_ns), &end)
            }
            None => Ok(()),
        }
    }

    fn event(&mut self, at_ns: u64, event: &Message) -> io::Result<()> {
        self.packet(Message::default().number(8, at_ns).number(13, STATE_NEEDED).message(11, event))
    }
}

fn name(number: u64, text: &str) -> Message {
    Message::default().number(1, number).bytes(2, text.as_bytes())
}

fn process_track(thread: &Thread) -> u64 {
    PROCESS_TRACKS | u64::from(thread.pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_id_used_again_by_another_process_has_a_track_of_its_own() {
        let mut out = Vec::new();
        let mut packets = Packets {
            out: &mut out,
            process_names: ProcessNames::default(),
            tracks: HashMap::new(),
            threads: HashMap::new(),
            processes: HashSet::new(),
            objects: HashSet::new(),
        };
        let mut track = |index, pid, comm: &str| {
            let thread = Thread { pid, tid: 9, comm: comm.into() };
            packets.thread(ThreadIndex(index), &thread).expect("written")
        };
        let [old, renamed, new] = [track(0, 7, "a"), track(1, 7, "b"), track(2, 8, "c")];
        assert!(old == renamed && old != new, "{old} {renamed} {new}");
    }
}
