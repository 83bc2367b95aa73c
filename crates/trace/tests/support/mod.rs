//! What the tests share.
#![allow(dead_code, reason = "each test binary uses its part")]

use prepage_testing::{Doctor, Need, unless_refused};
use prepage_trace::{PerfError, Probe, RecordError, Stream};

/// Page faults of one's own programs can be recorded.
pub const FAULTS: Need = Need::Doctor(Doctor::Faults);

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
