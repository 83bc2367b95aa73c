//! Samples of page faults, put together.

use std::collections::HashMap;
use std::path::Path;

use linux_perf_data::linux_perf_event_reader::{PerfEventType, SampleFormat, SoftwareCounterType};
use linux_perf_data::{AttributeDescription, PerfFile};
use prepage_core::Fault;

use super::ImportError;
use crate::event::{Event, EventKind};
use crate::pairing::Pairing;

/// What an event of perf's counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Faults, when they begin.
    Any,
    /// Faults that ended without a read.
    Minor,
    /// Faults that ended after one.
    Major,
}

/// A sample of a page fault.
#[derive(Debug)]
pub(super) struct Sample {
    pub pid: u32,
    pub tid: u32,
    pub address: u64,
    pub ip: u64,
    /// The addresses of the program's calls, innermost first, where they were recorded.
    pub calls: Option<Box<[u64]>>,
}

/// Faults that have begun, until it is known how they ended.
#[derive(Debug)]
pub(super) struct Samples {
    /// By thread: each is in one fault at a time.
    begun: HashMap<u32, (u64, Sample)>,
}

impl Samples {
    pub fn new() -> Self {
        Self { begun: HashMap::new() }
    }

    /// Takes a sample, and appends the faults that it completes.
    pub fn take(
        &mut self,
        kind: Kind,
        time_ns: u64,
        sample: Sample,
        pairing: &mut Pairing,
        faults: &mut Vec<Fault>,
    ) {
        match kind {
            Kind::Any => {
                self.settle(sample.tid, pairing, faults);
                self.begun.insert(sample.tid, (time_ns, sample));
            }
            Kind::Minor | Kind::Major => {
                let disk = kind == Kind::Major;
                match self.begun.remove(&sample.tid) {
                    Some((begun_ns, begun)) if begun.address == sample.address => {
                        feed(begun_ns, begun, Some(time_ns), disk, pairing, faults);
                    }
                    other => {
                        // The thread's earlier fault ended unseen, and this one began unseen.
                        if let Some((begun_ns, begun)) = other {
                            feed(begun_ns, begun, None, false, pairing, faults);
                        }
                        feed(time_ns, sample, None, disk, pairing, faults);
                    }
                }
            }
        }
    }

    /// Thread `tid` does something else: its fault is over, how is not known.
    pub fn settle(&mut self, tid: u32, pairing: &mut Pairing, faults: &mut Vec<Fault>) {
        if let Some((begun_ns, begun)) = self.begun.remove(&tid) {
            feed(begun_ns, begun, None, false, pairing, faults);
        }
    }

    /// The record ends, and with it every fault.
    pub fn settle_all(&mut self, pairing: &mut Pairing, faults: &mut Vec<Fault>) {
        let mut begun: Vec<(u64, Sample)> = self.begun.drain().map(|(_, begun)| begun).collect();
        begun.sort_by_key(|(begun_ns, _)| *begun_ns);
        for (begun_ns, sample) in begun {
            feed(begun_ns, sample, None, false, pairing, faults);
        }
    }
}

/// Hands a fault on. Its cost is known where its end was seen.
fn feed(
    begun_ns: u64,
    sample: Sample,
    ended_ns: Option<u64>,
    disk: bool,
    pairing: &mut Pairing,
    faults: &mut Vec<Fault>,
) {
    let Sample { pid, tid, address, ip, calls } = sample;
    let event = |time_ns, kind| Event { time_ns, pid, tid, kind };
    let before = faults.len();
    pairing.feed(&event(begun_ns, EventKind::FaultBegin { address, ip, calls }), faults);
    pairing.feed(&event(ended_ns.unwrap_or(begun_ns), EventKind::FaultEnd { address, ip, disk }), faults);
    if ended_ns.is_none() {
        faults[before..].iter_mut().for_each(|fault| fault.cost_ns = None);
    }
}

/// What each event of `file` counts.
///
/// # Errors
/// When there are no page faults among them, or their samples lack what makes a fault.
pub(super) fn kinds(path: &Path, file: &PerfFile) -> Result<Vec<Option<Kind>>, ImportError> {
    let events = file.event_attributes();
    let kinds: Vec<Option<Kind>> = events.iter().map(kind).collect();
    if kinds.iter().all(Option::is_none) {
        let names: Vec<String> = events.iter().map(|event| event_name(event, None)).collect();
        return Err(ImportError::NoPageFaults { path: path.to_owned(), events: names.join(", ") });
    }
    let needed = [
        (SampleFormat::ADDR, "addresses (perf record -d)"),
        (SampleFormat::TID, "threads"),
        (SampleFormat::TIME, "times"),
    ];
    for (event, _) in events.iter().zip(&kinds).filter(|(_, kind)| kind.is_some()) {
        for (format, lacking) in needed {
            if !event.attr.sample_format.contains(format) {
                return Err(ImportError::Lacking { path: path.to_owned(), lacking });
            }
        }
    }
    Ok(kinds)
}

fn kind(event: &AttributeDescription) -> Option<Kind> {
    match event.attr.type_ {
        PerfEventType::Software(SoftwareCounterType::PageFaults) => Some(Kind::Any),
        PerfEventType::Software(SoftwareCounterType::PageFaultsMin) => Some(Kind::Minor),
        PerfEventType::Software(SoftwareCounterType::PageFaultsMaj) => Some(Kind::Major),
        _ => None,
    }
}

/// An event's name, as perf wrote it or as it would.
pub(super) fn event_name(event: &AttributeDescription, kind: Option<Kind>) -> String {
    let usual = match kind {
        Some(Kind::Any) => "page-faults",
        Some(Kind::Minor) => "minor-faults",
        Some(Kind::Major) => "major-faults",
        None => "an event without a name",
    };
    event.name().unwrap_or(usual).to_owned()
}

/// The program's part of a call chain: perf marks where the kernel's and the program's begin by numbers that are no
/// addresses (`enum perf_callchain_context`).
pub(super) fn program_calls(entries: impl Iterator<Item = u64>) -> Box<[u64]> {
    const FIRST_MARK: u64 = -4095i64 as u64;
    const USER_MARK: u64 = -512i64 as u64;
    let mut of_program = true;
    let mut calls = Vec::new();
    for entry in entries {
        if entry >= FIRST_MARK {
            of_program = entry == USER_MARK;
        } else if of_program {
            calls.push(entry);
        }
    }
    calls.into()
}
