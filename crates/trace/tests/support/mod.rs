//! What the tests share.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::sync::Mutex;
use std::time::Duration;

use prepage_core::Fault;
use prepage_sys::sync::Anyway;
use prepage_testing::{Doctor, Need, unless_refused};
use prepage_trace::{PerfError, Probe, RecordError, RecordOptions, Recorded, Recorder, Scope, Stream};

/// Page faults of one's own programs can be recorded.
pub const FAULTS: Need = Need::Doctor(Doctor::Faults);

/// One recording at a time: some need the machine for themselves.
pub static MACHINE: Mutex<()> = Mutex::new(());

/// Whether the kernel, or a filter in front of it, keeps this user from recording at all.
pub fn is_refused(error: &PerfError) -> bool {
    matches!(error, PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. })
}

/// The same of a recorder.
pub fn is_recording_refused(error: &RecordError) -> bool {
    matches!(error, RecordError::Perf(error) if is_refused(error))
}

/// Whether this process may record its own faults; records a skip where not.
#[track_caller]
pub fn may_record() -> bool {
    unless_refused(Stream::attach(std::process::id(), &Probe::default()), FAULTS, is_refused).is_some()
}

/// The first of a few recordings by `record` that `is_so`, or else the last: on a busy machine who records may get no processor until the rings are full,
/// and what is recorded none for as long as the recording lasts.
pub fn recorded_in_time(
    is_so: impl Fn(&[Fault], &Recorded) -> bool,
    mut record: impl FnMut() -> Option<(Vec<Fault>, Recorded)>,
) -> Option<(Vec<Fault>, Recorded)> {
    for _ in 1..5 {
        let (faults, recorded) = record()?;
        if is_so(&faults, &recorded) {
            return Some((faults, recorded));
        }
        eprintln!("{} faults, {} lost: once more", faults.len(), recorded.facts.lost);
    }
    record()
}

/// Records `scope`, for 0.3 s where the options say nothing else. `None`, counted as a skip, where this user may record nothing.
#[track_caller]
pub fn record_for_a_while(scope: &Scope, options: &RecordOptions) -> Option<(Vec<Fault>, Recorded)> {
    let _machine = MACHINE.lock().anyway();
    let duration = Some(options.duration.unwrap_or(Duration::from_millis(300)));
    let started = Recorder::start(scope, &RecordOptions { duration, ..options.clone() });
    let mut recorder = unless_refused(started, FAULTS, is_recording_refused)?;
    let mut faults = Vec::new();
    while recorder.next_faults(&mut faults).expect("faults") {}
    let recorded = recorder.finish();
    assert!(recorded.failure.is_none(), "{:?}", recorded.failure);
    Some((faults, recorded))
}
