//! The trace that is meant where none is named: the newest one in the current directory.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use prepage_trace::parquet::TraceFile;

/// What `record` writes where no other file is named.
const USUAL: &str = "prepage.parquet";

/// Opens `named`, or the newest trace in the current directory.
///
/// # Errors
/// When the named file cannot be read as a trace, or the directory has no trace.
pub fn open(named: Option<&Path>) -> Result<TraceFile> {
    if let Some(path) = named {
        return Ok(TraceFile::open(path)?);
    }
    let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in std::fs::read_dir(".").context("the current directory cannot be read")?.flatten() {
        let path = PathBuf::from(entry.file_name());
        let time = entry.metadata().and_then(|metadata| metadata.modified());
        if path.extension().is_some_and(|extension| extension == "parquet")
            && let Ok(time) = time
        {
            found.push((time, path));
        }
    }
    found.sort();
    while let Some((_, path)) = found.pop() {
        // Other Parquet files may lie beside traces.
        if let Ok(file) = TraceFile::open(&path) {
            if path != Path::new(USUAL) {
                say!("prepage: the newest trace here is {}", path.display());
            }
            return Ok(file);
        }
    }
    Ok(TraceFile::open(USUAL.as_ref())?)
}
