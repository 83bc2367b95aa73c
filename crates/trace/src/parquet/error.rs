//! Why a trace file could not be written or read.

use std::io;
use std::path::{Path, PathBuf};

use ::parquet::errors::ParquetError;

use super::FORMAT_VERSION;

/// A trace file could not be written or read. [`TraceFileError::remedy`] says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceFileError {
    /// A system call failed: the file, what was tried, and the kernel's reason.
    #[error("{}: cannot {}", .0.display(), .1)]
    Io(PathBuf, &'static str, #[source] io::Error),
    /// The disk has no room for more. What was written before is still readable once the writer is finished.
    #[error("{}: the disk is full", .0.display())]
    Full(PathBuf),
    /// Another process writes a trace of this name.
    #[error("{}: another recording is being written to it", .0.display())]
    Busy(PathBuf),
    /// The file begins as a Parquet file does and does not end as one.
    #[error("{}: cut short", .0.display())]
    Truncated(PathBuf),
    /// The file is something else, which shows so.
    #[error("{}: not a prepage trace ({})", .0.display(), .1)]
    NotATrace(PathBuf, &'static str),
    /// A later prepage wrote the file, in a format of this version.
    #[error("{}: trace format {}; this prepage reads formats up to {FORMAT_VERSION}", .0.display(), .1)]
    Newer(PathBuf, u32),
    /// This column is missing or of another type.
    #[error("{}: column {} is missing or has another type", .0.display(), .1)]
    Column(PathBuf, &'static str),
    /// The file's checksum is wrong.
    #[error("{}: damaged (its checksum is wrong)", .0.display())]
    Damaged(PathBuf),
    /// The contents contradict themselves.
    #[error("{}: not readable", .0.display())]
    Unreadable(PathBuf, #[source] ParquetError),
}

impl TraceFileError {
    /// What to do about it, as one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            // Only what is read is opened; what is written is made.
            Self::Io(_, "open", source) if source.kind() == io::ErrorKind::NotFound => {
                "prepage record -- CMD, or name the trace"
            }
            Self::Io(_, "open", source) if source.kind() == io::ErrorKind::PermissionDenied => {
                "the same as the user who recorded it (with sudo: root), or sudo chown $USER FILE"
            }
            Self::Io(_, "open", _) => "the path of a trace that you may read",
            Self::Io(..) => "another file with -o",
            Self::Full(..) => "free some space, or another disk with -o",
            Self::Busy(..) => "wait until it has ended, or another file with -o",
            Self::Truncated(..) | Self::Damaged(..) | Self::Unreadable(..) => {
                "record again, or take another copy of the file"
            }
            Self::NotATrace(..) => "a file written by prepage record",
            Self::Newer(..) => "a newer prepage",
            Self::Column(..) => "a file written by prepage record, with all its columns",
        }
    }

    pub(super) fn io(path: &Path, action: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::Full(path.into()),
            _ => Self::Io(path.into(), action, source),
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
        Self::Io(path.into(), "write", io::Error::other(error))
    }
}
