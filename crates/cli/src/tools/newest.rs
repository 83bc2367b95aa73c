//! The trace that is meant where none is named: the newest one in the current directory.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use prepage_trace::parquet::{TraceFile, TraceFileError};

/// What `record` writes where no other file is named.
const USUAL: &str = "prepage.parquet";

/// Whether `path` is of a recording that goes on, or whose recorder was killed.
fn is_partial(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".parquet.partial")
}

/// Opens `named`, or the newest trace in the current directory.
///
/// # Errors
/// When the named or newest file cannot be read as a trace, or the directory has no trace.
pub fn open(named: Option<&Path>) -> Result<TraceFile> {
    if let Some(path) = named {
        return Ok(TraceFile::open(path)?);
    }
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(".").context("the current directory cannot be read")?.flatten() {
        let path = PathBuf::from(entry.file_name());
        let is_whole = path.extension().is_some_and(|extension| extension == "parquet");
        if (is_whole || is_partial(&path))
            && let Ok(metadata) = path.metadata()
            && metadata.is_file()
            && let Ok(time) = metadata.modified()
        {
            found.push((time, path));
        }
    }
    found.sort();
    while let Some((_, path)) = found.pop() {
        match TraceFile::open(&path) {
            // Other Parquet files may lie beside traces.
            Err(TraceFileError::NotATrace(..)) => continue,
            // A recording that has saved nothing yet.
            Err(TraceFileError::Truncated(_)) if is_partial(&path) => continue,
            Err(error) => return Err(error.into()),
            Ok(file) => {
                if path != Path::new(USUAL) {
                    say!("prepage: the newest trace here is {}", path.display());
                }
                return Ok(file);
            }
        }
    }
    Ok(TraceFile::open(USUAL.as_ref())?)
}
