//! Samples of page faults, as events.

use std::path::Path;

use linux_perf_data::linux_perf_event_reader::{
    PerfEventType, SampleFormat, SamplingPolicy, SoftwareCounterType,
};
use linux_perf_data::{AttributeDescription, PerfFile};
use prepage_core::Fault;

use super::ImportError;
use crate::event::{Event, EventKind};
use crate::pairing::{Ends, Pairing};

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

impl Sample {
    /// Hands the sample on to `pairing`. Where only beginnings of faults are recorded, or only ends (`one_sided`), a fault is
    /// over as soon as it begins, after an unknown time.
    pub fn feed(
        self,
        kind: Kind,
        time_ns: u64,
        one_sided: bool,
        pairing: &mut Pairing,
        faults: &mut Vec<Fault>,
    ) {
        let Self { pid, tid, address, ip, calls } = self;
        let before = faults.len();
        let mut feed =
            |kind| pairing.feed(&Event { time_ns, pid, tid, kind, is_time_borrowed: false }, faults);
        if kind == Kind::Any || one_sided {
            feed(EventKind::FaultBegin { address, ip, calls });
        }
        if kind != Kind::Any || one_sided {
            feed(EventKind::FaultEnd { address, ip, disk: kind == Kind::Major });
        }
        if one_sided {
            faults[before..].iter_mut().for_each(|fault| fault.cost_ns = None);
        }
    }
}

/// Which ends of faults a file with samples of these `kinds` includes; `None` for only beginnings.
pub(super) fn ends(kinds: &[Option<Kind>], sampled: bool) -> Option<Ends> {
    let [minor, major] = [Kind::Minor, Kind::Major].map(|kind| kinds.contains(&Some(kind)));
    match (minor, major) {
        (false, false) => None,
        _ if sampled => Some(Ends::Sample),
        (true, true) => Some(Ends::All),
        _ => Some(Ends::Some),
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
        return Err(ImportError::NoPageFaults(path.to_owned(), names.join(", ")));
    }
    let needed = [
        (SampleFormat::ADDR, "addresses (perf record -d)"),
        (SampleFormat::TID, "threads"),
        (SampleFormat::TIME, "times"),
    ];
    for (event, _) in events.iter().zip(&kinds).filter(|(_, kind)| kind.is_some()) {
        for (format, lacking) in needed {
            if !event.attr.sample_format.contains(format) {
                return Err(ImportError::Lacking(path.to_owned(), lacking));
            }
        }
    }
    Ok(kinds)
}

fn kind(event: &AttributeDescription) -> Option<Kind> {
    match event.attr.type_ {
        // Only counted, as the members of a group are whose leader is sampled (`{…}:S`).
        _ if matches!(event.attr.sampling_policy, SamplingPolicy::NoSampling) => None,
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
