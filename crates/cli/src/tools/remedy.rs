//! What to do about an error: the `try:` line below it.

use std::error::Error;
use std::fmt;

use prepage_bench::SubjectError;
use prepage_bench::measure::MeasureError;
use prepage_prefetch::calibrate::CalibrateError;
use prepage_prefetch::learn::LearnError;
use prepage_profiles::StoreError;
use prepage_report::export::ExportError;
use prepage_simulate::InputError;
use prepage_trace::PerfError;
use prepage_trace::RecordError;
use prepage_trace::import::ImportError;
use prepage_trace::parquet::TraceFileError;

/// What failed, and what helps. The remedy is no part of the message: a file may have any name, one that ends in a remedy as well.
#[derive(Debug)]
pub struct Remedied {
    what: String,
    remedy: String,
    source: Option<anyhow::Error>,
}

impl Remedied {
    /// That `what` failed, and that `remedy` helps.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into(), source: None }
    }

    /// The same as an error that `cause` led to.
    pub fn because(self, cause: impl Into<anyhow::Error>) -> anyhow::Error {
        Self { source: Some(cause.into()), ..self }.into()
    }
}

impl fmt::Display for Remedied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Remedied {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(AsRef::as_ref)
    }
}

/// What may fail, with what helps then.
pub trait Try<T> {
    /// The value, or what `remedied` says, because of the error that there was.
    fn or_try(self, remedied: impl FnOnce() -> Remedied) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> Try<T> for Result<T, E> {
    fn or_try(self, remedied: impl FnOnce() -> Remedied) -> anyhow::Result<T> {
        self.map_err(|error| remedied().because(error))
    }
}

impl<T> Try<T> for Option<T> {
    fn or_try(self, remedied: impl FnOnce() -> Remedied) -> anyhow::Result<T> {
        self.ok_or_else(|| remedied().into())
    }
}

/// Says on standard error `error` and its causes, after the words `of`, and what helps.
pub fn say(of: &str, error: &anyhow::Error) {
    let causes: Vec<String> = error.chain().map(ToString::to_string).collect();
    say!("prepage: {of}{}", causes.join(": "));
    let own = error.chain().filter_map(|cause| cause.downcast_ref::<Remedied>());
    let own = own.map(|remedied| remedied.remedy.clone());
    own.chain(error.chain().find_map(remedy)).for_each(|remedy| say!("  try: {remedy}"));
}

/// What helps against `cause`, if anything is known to.
fn remedy(cause: &(dyn Error + 'static)) -> Option<String> {
    if let Some(error) = cause.downcast_ref::<ImportError>() {
        return error.remedy();
    }
    fixed_remedy(cause).map(str::to_owned)
}

fn fixed_remedy(cause: &(dyn Error + 'static)) -> Option<&'static str> {
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
    match cause.downcast_ref::<ExportError>() {
        Some(ExportError::Trace(error)) => return Some(error.remedy()),
        Some(ExportError::NoCosts) => return Some("--weight count"),
        _ => {}
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
