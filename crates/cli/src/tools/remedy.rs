//! What to do about an error: the `try:` line below it.

use prepage_bench::yardstick::exact::ExactError;
use prepage_prefetch::learn::LearnError;
use prepage_prefetch::measure::MeasureError;
use prepage_profiles::StoreError;
use prepage_trace::PerfError;
use prepage_trace::parquet::{RecordingError, TraceFileError};

/// `error` with its causes, and what helps: a context may name its remedy after the line that says what failed, while the
/// causes follow.
pub fn apart(error: &anyhow::Error) -> (String, Vec<String>) {
    let mut remedies = Vec::new();
    let what = error.chain().map(|cause| {
        let text = cause.to_string();
        match text.split_once("\n  try: ") {
            Some((what, remedy)) => {
                remedies.push(remedy.to_owned());
                what.to_owned()
            }
            None => text,
        }
    });
    let what = what.collect::<Vec<_>>().join(": ");
    remedies.extend(remedy(error).map(str::to_owned));
    (what, remedies)
}

/// What helps against `error`, if anything is known to.
fn remedy(error: &anyhow::Error) -> Option<&'static str> {
    error.chain().find_map(|cause| {
        if let Some(error) = cause.downcast_ref::<RecordingError>() {
            return error.remedy();
        }
        if let Some(error) = cause.downcast_ref::<PerfError>() {
            return error.remedy();
        }
        if cause.is::<ExactError>() {
            return Some("as root, outside of a container; or without --exact");
        }
        if let Some(error) = cause.downcast_ref::<StoreError>() {
            return Some(error.remedy());
        }
        if let Some(error) = cause.downcast_ref::<TraceFileError>() {
            return Some(error.remedy());
        }
        if let Some(LearnError::Observe(error)) = cause.downcast_ref::<LearnError>() {
            return error.remedy();
        }
        match cause.downcast_ref::<MeasureError>() {
            Some(MeasureError::NotCold { .. }) => Some("end the programs that use the same files, or --warm"),
            Some(MeasureError::Chill(_)) => Some("prepage measure --warm -- CMD"),
            _ => None,
        }
    })
}
