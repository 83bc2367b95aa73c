//! Reading a trace.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ::parquet::file::metadata::KeyValue;
use arrow_schema::Schema;
use prepage_core::{BuildId, Object, Trace, TraceFacts};

use super::prefix::Prefix;
use super::scan::{TraceFile, Wanted};
use super::schema::{COLUMNS, FACTS_KEY, FILES_KEY, FileEntry, VERSION_KEY};
use super::seal::{self, Seal};
use super::{FORMAT_VERSION, TraceFileError};
use crate::build_id::open_at_once;

const MAGIC: &[u8; 4] = b"PAR1";

/// Reads the trace in file `path` whole. Faults come in the order they began.
///
/// Of a recording that was killed (`FILE.partial`), what was complete by then is read;
/// [`TraceFacts::cut_short`] is then set.
///
/// # Errors
/// A file that is not a trace, is cut short or damaged, lacks a column or comes from a later prepage.
pub fn read_trace(path: &Path) -> Result<Trace, TraceFileError> {
    let file = TraceFile::open(path)?;
    let mut faults = Vec::new();
    let names = file.for_each::<TraceFileError>(Wanted::all(), |batch| {
        faults.extend_from_slice(batch.faults);
        Ok(())
    })?;
    faults.sort_by_key(|fault| fault.start_ns);
    let facts = file.facts().clone();
    Ok(Trace {
        facts,
        objects: names.objects.all(),
        threads: names.threads.all(),
        stacks: names.stacks.all(),
        faults,
    })
}

/// Opens a trace: the whole of a file that is complete, else the part that is.
pub(super) fn open(path: &Path) -> Result<Prefix, TraceFileError> {
    let file = open_at_once(path).map_err(|source| TraceFileError::io(path, "open", source))?;
    let failed = |source| TraceFileError::io(path, "read", source);
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(TraceFileError::NotATrace(path.into(), "no regular file"));
    }
    let len = metadata.len();
    let word = |at| {
        let mut word = [0; 4];
        match file.read_exact_at(&mut word, at) {
            Ok(()) => Ok(Some(word)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(failed(error)),
        }
    };
    if word(0)?.as_ref() != Some(MAGIC) {
        return Err(TraceFileError::NotATrace(path.into(), "no Parquet file"));
    }
    if len < 12 || word(len - 4)?.as_ref() != Some(MAGIC) {
        let readable = Prefix::readable(file).map_err(failed)?;
        return readable.ok_or_else(|| TraceFileError::Truncated(path.into()));
    }
    if seal::check(&file).map_err(failed)? == Seal::Broken {
        return Err(TraceFileError::Damaged(path.into()));
    }
    Prefix::whole(file).map_err(failed)
}

pub(super) fn facts(path: &Path, entries: &[KeyValue]) -> Result<TraceFacts, TraceFileError> {
    let value = |key| value(entries, key);
    let not_a_trace = |reason| TraceFileError::NotATrace(path.into(), reason);
    let version = value(VERSION_KEY).ok_or_else(|| not_a_trace("a Parquet file of another kind"))?;
    let found = version.parse().map_err(|_| not_a_trace("its format version is no number"))?;
    if found > FORMAT_VERSION {
        return Err(TraceFileError::Newer(path.into(), found));
    }
    let facts = value(FACTS_KEY).ok_or_else(|| not_a_trace("it has no facts"))?;
    serde_json::from_str(facts).map_err(|_| not_a_trace("its facts are no facts of a run"))
}

fn value<'a>(entries: &'a [KeyValue], key: &str) -> Option<&'a str> {
    entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.value.as_deref())
}

/// The files of the metadata; none in files of the first prepage.
pub(super) fn files(path: &Path, entries: &[KeyValue]) -> Result<Files, TraceFileError> {
    let not_a_trace = |reason| TraceFileError::NotATrace(path.into(), reason);
    let mut files = Files::default();
    let Some(text) = value(entries, FILES_KEY) else { return Ok(files) };
    let entries: Vec<FileEntry> =
        serde_json::from_str(text).map_err(|_| not_a_trace("its files are no files"))?;
    for FileEntry { path, device, inode, build_id, size_bytes } in entries {
        let build_id = build_id.map(|id| id.parse()).transpose();
        let build_id = build_id.map_err(|_| not_a_trace("one of its build-ids is none"))?;
        let inode = (device, inode);
        files.inodes.entry(path.clone()).or_insert(inode);
        files.known.insert((path, inode), (build_id, size_bytes));
    }
    Ok(files)
}

/// Every column is there, with the type it must have. Columns that the first prepage did not write may be missing.
pub(super) fn check_columns(path: &Path, schema: &Schema) -> Result<(), TraceFileError> {
    for column in COLUMNS {
        let sound = match schema.field_with_name(column.name) {
            Ok(field) => *field.data_type() == column.kind.data_type(),
            Err(_) => column.added,
        };
        if !sound {
            return Err(TraceFileError::Column(path.into(), column.name));
        }
    }
    Ok(())
}

/// What the metadata say of files.
#[derive(Debug, Default)]
pub(super) struct Files {
    known: HashMap<(String, Inode), (Option<BuildId>, Option<u64>)>,
    /// Code is known by path alone: the first of this path.
    inodes: HashMap<String, Inode>,
}

/// Device and inode.
type Inode = (u64, u64);

impl Files {
    pub fn object(&self, path: String, inode: Option<Inode>) -> Object {
        let Some(inode) = inode else { return Object::new(path, None) };
        let key = (path, inode);
        let (build_id, size_bytes) = self.known.get(&key).copied().unwrap_or_default();
        Object { path: key.0, inode: Some(inode), build_id, size_bytes }
    }

    pub fn code(&self, path: String) -> Object {
        let inode = self.inodes.get(&path).copied();
        self.object(path, inode)
    }
}
