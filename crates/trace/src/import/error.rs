//! Why a file of perf's cannot be imported.

use std::io;
use std::path::{Path, PathBuf};

/// The perf command that records all that a trace can hold.
pub const PERF_COMMAND: &str = "perf record -e page-faults,minor-faults,major-faults -c 1 -d -- CMD";

/// A file that perf wrote cannot be imported. [`ImportError::remedy`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file cannot be read.
    #[error("{} cannot be read", .0.display())]
    Io(PathBuf, #[source] io::Error),
    /// The file is something else.
    #[error("{} is not a perf.data file", .0.display())]
    NotPerfData(PathBuf),
    /// perf wrote the file to a pipe. In that form a complete file looks like one that was cut off.
    #[error("{} was written to a pipe (perf record -o -)", .0.display())]
    Pipe(PathBuf),
    /// The file ends before its contents do.
    #[error("{} is cut short: {len_bytes} of at least {needed_bytes} bytes", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        len_bytes: u64,
        /// What its header speaks of.
        needed_bytes: u64,
    },
    /// perf did not come to its end.
    #[error("{} was not completed: perf was killed before it could write its end", .0.display())]
    Unfinished(PathBuf),
    /// The file holds samples of these other events, or none.
    #[error("{} holds no page-fault samples, but {}", .0.display(), .1)]
    NoPageFaults(PathBuf, String),
    /// The page-fault samples lack this field, which every fault needs.
    #[error("the page-fault samples in {} have no {}", .0.display(), .1)]
    Lacking(PathBuf, &'static str),
    /// The file contradicts itself, where the parser stopped.
    #[error("{} is damaged, or of an unknown form", .0.display())]
    Malformed(PathBuf, #[source] Box<linux_perf_data::Error>),
}

impl ImportError {
    /// What helps, as one line; `None` where nothing is known to.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Io(..) => None,
            Self::Truncated { .. } | Self::Malformed(..) => {
                Some(format!("copy the file again, or record again: {PERF_COMMAND}"))
            }
            Self::Unfinished(..) => Some(format!("end perf by Ctrl-C or SIGINT: {PERF_COMMAND}")),
            Self::Pipe(..) => Some(format!("perf record -o FILE: {PERF_COMMAND}")),
            Self::NotPerfData(..) | Self::NoPageFaults(..) | Self::Lacking(..) => {
                Some(PERF_COMMAND.to_owned())
            }
        }
    }

    pub(super) fn malformed(path: &Path, source: linux_perf_data::Error) -> Self {
        Self::Malformed(path.to_owned(), Box::new(source))
    }
}
