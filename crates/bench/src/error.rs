//! Why an experiment has no result.

use std::io;

use prepage_profiles::StoreError;
use prepage_simulate::InputError;
use prepage_sys::perf::PerfError;
use prepage_trace::RecordError;
use prepage_vm::{FlushError, MakeError, MapError};

use crate::subject::SubjectError;

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The file is not in the state it should be in.
    #[error("the file cannot be prepared")]
    Subject(#[from] SubjectError),
    /// The faults cannot be recorded.
    #[error("faults cannot be recorded")]
    Record(#[from] RecordError),
    /// The kernel does not show page faults.
    #[error("cannot watch page faults")]
    Watch(#[from] PerfError),
    /// The VM cannot serve faults.
    #[error("the user-space VM cannot be used")]
    Make(#[from] MakeError),
    /// The VM cannot map the file.
    #[error("the file cannot be mapped")]
    Map(#[from] MapError),
    /// What was written cannot be made durable.
    #[error("a file cannot be flushed")]
    Flush(#[from] FlushError),
    /// The touches cannot be read.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The profile cannot be read or kept.
    #[error("the profile cannot be read or kept")]
    Store(#[from] StoreError),
    /// A file of the experiment cannot be read or written.
    #[error("a file of the experiment cannot be read or written")]
    File(#[from] io::Error),
    /// The system refused this step, named with its file or program.
    #[error("{0}")]
    Step(String, #[source] io::Error),
    /// What was measured means nothing, for this reason.
    #[error("{0}")]
    Void(String),
}

/// For `map_err`: says what could not be done.
pub(crate) fn failed(step: impl Into<String>) -> impl FnOnce(io::Error) -> BenchError {
    let step = step.into();
    move |source| BenchError::Step(step, source)
}
