//! What to do about an error: the `try:` line below it.

use prepage_bench::SubjectError;
use prepage_prefetch::calibrate::CalibrateError;
use prepage_prefetch::learn::LearnError;
use prepage_prefetch::measure::MeasureError;
use prepage_profiles::StoreError;
use prepage_report::export::ExportError;
use prepage_simulate::InputError;
use prepage_trace::PerfError;
use prepage_trace::RecordError;
use prepage_trace::import::ImportError;
use prepage_trace::parquet::TraceFileError;

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
    remedies.extend(error.chain().find_map(remedy));
    (what, remedies)
}

/// What helps against `cause`, if anything is known to.
fn remedy(cause: &(dyn std::error::Error + 'static)) -> Option<String> {
    if let Some(error) = cause.downcast_ref::<ImportError>() {
        return error.remedy();
    }
    fixed_remedy(cause).map(str::to_owned)
}

fn fixed_remedy(cause: &(dyn std::error::Error + 'static)) -> Option<&'static str> {
    if let Some(error) = cause.downcast_ref::<RecordError>() {
        return error.remedy();
    }
    if let Some(error) = cause.downcast_ref::<PerfError>() {
        return error.remedy();
    }
    if let Some(error) = cause.downcast_ref::<SubjectError>() {
        return error.remedy();
    }
    if let Some(error) = cause.downcast_ref::<CalibrateError>() {
        return Some(error.remedy());
    }
    if let Some(error) = cause.downcast_ref::<StoreError>() {
        return Some(error.remedy());
    }
    if let Some(error) = cause.downcast_ref::<TraceFileError>() {
        return Some(error.remedy());
    }
    // These errors print as the trace's own, and so do not name it as their cause.
    if let Some(InputError::Trace(error)) = cause.downcast_ref::<InputError>() {
        return Some(error.remedy());
    }
    if let Some(ExportError::Trace(error)) = cause.downcast_ref::<ExportError>() {
        return Some(error.remedy());
    }
    if let Some(LearnError::Observe(_)) = cause.downcast_ref::<LearnError>() {
        return Some("prepage doctor");
    }
    match cause.downcast_ref::<MeasureError>() {
        Some(MeasureError::NotCold { .. }) => Some("end the programs that use the same files, or --warm"),
        Some(MeasureError::Chill(_)) => Some("prepage measure --warm -- CMD"),
        _ => None,
    }
}
