//! Why a file of perf's cannot be imported.

use std::io;
use std::path::{Path, PathBuf};

/// The perf command that records all that a trace can hold.
pub const PERF_COMMAND: &str = "perf record -e page-faults,minor-faults,major-faults -c 1 -d -- CMD";

/// A file that perf wrote cannot be imported. [`ImportError::remedy`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be read.
    #[error("{} cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is something else.
    #[error("{} is not a perf.data file", path.display())]
    NotPerfData {
        /// The file.
        path: PathBuf,
    },
    /// perf wrote the file to a pipe. In that form a complete file looks like one that was cut off.
    #[error("{} was written to a pipe (perf record -o -)", path.display())]
    Pipe {
        /// The file.
        path: PathBuf,
    },
    /// It ends before its contents do.
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
    #[error("{} was not completed: perf was killed before it could write its end", path.display())]
    Unfinished {
        /// The file.
        path: PathBuf,
    },
    /// It holds other samples, or none.
    #[error("{} holds no page-fault samples, but {events}", path.display())]
    NoPageFaults {
        /// The file.
        path: PathBuf,
        /// The events it holds samples of.
        events: String,
    },
    /// The page-fault samples lack a field that every fault needs.
    #[error("the page-fault samples in {} have no {lacking}", path.display())]
    Lacking {
        /// The file.
        path: PathBuf,
        /// What.
        lacking: &'static str,
    },
    /// It contradicts itself.
    #[error("{} is damaged, or of an unknown form", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where the parser stopped.
        source: Box<linux_perf_data::Error>,
    },
}

impl ImportError {
    /// What helps, as one line; `None` where nothing is known to.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::Io { .. } => None,
            Self::Truncated { .. } | Self::Malformed { .. } => {
                Some(format!("copy the file again, or record again: {PERF_COMMAND}"))
            }
            Self::Unfinished { .. } => Some(format!("end perf by Ctrl-C or SIGINT: {PERF_COMMAND}")),
            Self::Pipe { .. } => Some(format!("perf record -o FILE: {PERF_COMMAND}")),
            Self::NotPerfData { .. } | Self::NoPageFaults { .. } | Self::Lacking { .. } => {
                Some(PERF_COMMAND.to_owned())
            }
        }
    }

    pub(super) fn malformed(path: &Path, source: linux_perf_data::Error) -> Self {
        Self::Malformed { path: path.to_owned(), source: Box::new(source) }
    }
}
