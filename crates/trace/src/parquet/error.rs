//! Why a trace file could not be written or read.

use std::io;
use std::path::{Path, PathBuf};

use ::parquet::errors::ParquetError;

use super::FORMAT_VERSION;

/// A trace file could not be written or read. [`TraceFileError::remedy`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceFileError {
    /// A system call failed.
    #[error("{}: cannot {action}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The disk has no room for more. What was written before is still readable once the writer is finished.
    #[error("{}: the disk is full", path.display())]
    Full {
        /// The file.
        path: PathBuf,
    },
    /// Another process writes a trace of this name.
    #[error("{}: another recording is being written to it", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The file begins as a Parquet file does and does not end as one.
    #[error("{}: cut short", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{}: not a prepage trace ({reason})", path.display())]
    NotATrace {
        /// The file.
        path: PathBuf,
        /// How that shows.
        reason: &'static str,
    },
    /// A later prepage wrote it.
    #[error("{}: trace format {found}; this prepage reads formats up to {FORMAT_VERSION}", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// A column is missing or of another type.
    #[error("{}: column {column} is missing or has another type", path.display())]
    Column {
        /// The file.
        path: PathBuf,
        /// The column.
        column: &'static str,
    },
    /// The file's checksum is wrong.
    #[error("{}: damaged (its checksum is wrong)", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// The contents contradict themselves.
    #[error("{}: not readable", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// How that shows.
        source: ParquetError,
    },
}

impl TraceFileError {
    /// What to do about it, as one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            // Only what is read is opened; what is written is made.
            Self::Io { action: "open", source, .. } if source.kind() == io::ErrorKind::NotFound => {
                "prepage record -- CMD, or name the trace"
            }
            Self::Io { action: "open", .. } => "the path of a trace that you may read",
            Self::Io { .. } => "another file with -o",
            Self::Full { .. } => "free some space, or another disk with -o",
            Self::Busy { .. } => "wait until it has ended, or another file with -o",
            Self::Truncated { .. } | Self::Damaged { .. } | Self::Unreadable { .. } => {
                "record again, or take another copy of the file"
            }
            Self::NotATrace { .. } => "a file written by prepage record",
            Self::Newer { .. } => "a newer prepage",
            Self::Column { .. } => "a file written by prepage record, with all its columns",
        }
    }

    pub(super) fn io(path: &Path, action: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full { path: path.into() },
            _ => Self::Io { path: path.into(), action, source },
        }
    }

    /// An error of the Parquet writer, which for a sound schema and sound rows is one of the file's.
    pub(super) fn writing(path: &Path, error: ParquetError) -> Self {
        let error = match error {
            ParquetError::External(source) => match source.downcast::<io::Error>() {
                Ok(source) => return Self::io(path, "write", *source),
                Err(source) => ParquetError::External(source),
            },
            error => error,
        };
        Self::Io { path: path.into(), action: "write", source: io::Error::other(error) }
    }
}
