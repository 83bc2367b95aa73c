//! Reading a trace.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use ::parquet::arrow::arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::KeyValue;
use arrow_array::cast::AsArray;
use arrow_array::types::{ArrowPrimitiveType, UInt32Type, UInt64Type};
use arrow_array::{Array, PrimitiveArray, RecordBatch, StringArray};
use arrow_schema::DataType;
use prepage_core::{
    BuildId, Fault, FaultClass, FrameNumber, Object, ObjectId, PageIndex, Permissions, StackId, Thread,
    ThreadIndex, Trace, TraceFacts,
};

use super::prefix::Prefix;
use super::schema::{
    ADDRESS, CLASS, CODE, CODE_OFFSET, COLUMNS, COMM, COST, Column, DEVICE, FACTS_KEY, FILES_KEY, FRAME,
    FileEntry, INODE, IP, Kind, OBJECT, PAGE, PERMISSIONS, PID, STACK, START, TID, VERSION_KEY,
};
use super::seal::{self, Seal};
use super::stack_text::parse_stack;
use super::{FORMAT_VERSION, TraceFileError};

const MAGIC: &[u8; 4] = b"PAR1";

/// Reads the trace in file `path` whole. Faults come in the order they began.
///
/// Of a recording that was killed (`FILE.partial`), what was complete by then is read;
/// [`TraceFacts::cut_short`] tells.
///
/// # Errors
/// A file that is no trace, is cut short or damaged, lacks a column or comes from a later prepage.
pub fn read_trace(path: &Path) -> Result<Trace, TraceFileError> {
    let file = open(path)?;
    let unreadable = |source| TraceFileError::Unreadable { path: path.into(), source };
    // Types as Parquet has them, so that a file rewritten by other tools reads the same.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(unreadable)?;
    let entries = builder.metadata().file_metadata().key_value_metadata();
    let entries = entries.map_or([].as_slice(), Vec::as_slice);
    let facts = facts(path, entries)?;
    let files = files(path, entries)?;
    for column in COLUMNS {
        let data_type = match column.kind {
            Kind::U32 => DataType::UInt32,
            Kind::U64 => DataType::UInt64,
            Kind::Text => DataType::Utf8,
        };
        let sound = match builder.schema().field_with_name(column.name) {
            Ok(field) => *field.data_type() == data_type,
            Err(_) => column.added,
        };
        if !sound {
            return Err(TraceFileError::Column { path: path.into(), column: column.name });
        }
    }
    let mut rows = Rows { trace: Trace { facts, ..Trace::default() }, files, ..Rows::default() };
    for batch in builder.build().map_err(unreadable)? {
        let added = batch.map_err(ParquetError::from).and_then(|batch| rows.add(&batch));
        added.map_err(unreadable)?;
    }
    rows.trace.faults.sort_by_key(|fault| fault.start_ns);
    Ok(rows.trace)
}

/// Opens a trace: the whole of a file that is complete, else the part that is.
fn open(path: &Path) -> Result<Prefix, TraceFileError> {
    let file = File::open(path).map_err(|source| TraceFileError::io(path, "open", source))?;
    let failed = |source| TraceFileError::io(path, "read", source);
    let len = file.metadata().map_err(failed)?.len();
    let word = |at| {
        let mut word = [0; 4];
        match file.read_exact_at(&mut word, at) {
            Ok(()) => Ok(Some(word)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(failed(error)),
        }
    };
    if word(0)?.as_ref() != Some(MAGIC) {
        return Err(TraceFileError::NotATrace { path: path.into(), reason: "no Parquet file" });
    }
    if len < 12 || word(len - 4)?.as_ref() != Some(MAGIC) {
        let readable = Prefix::readable(file).map_err(failed)?;
        return readable.ok_or_else(|| TraceFileError::Truncated { path: path.into() });
    }
    if seal::check(&file).map_err(failed)? == Seal::Broken {
        return Err(TraceFileError::Damaged { path: path.into() });
    }
    Prefix::whole(file).map_err(failed)
}

fn facts(path: &Path, entries: &[KeyValue]) -> Result<TraceFacts, TraceFileError> {
    let value = |key| value(entries, key);
    let not_a_trace = |reason| TraceFileError::NotATrace { path: path.into(), reason };
    let version = value(VERSION_KEY).ok_or_else(|| not_a_trace("a Parquet file of another kind"))?;
    let found = version.parse().map_err(|_| not_a_trace("its format version is no number"))?;
    if found > FORMAT_VERSION {
        return Err(TraceFileError::Newer { path: path.into(), found });
    }
    let facts = value(FACTS_KEY).ok_or_else(|| not_a_trace("it has no facts"))?;
    serde_json::from_str(facts).map_err(|_| not_a_trace("its facts are no facts of a run"))
}

fn value<'a>(entries: &'a [KeyValue], key: &str) -> Option<&'a str> {
    entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.value.as_deref())
}

/// The files of the metadata; none in files of the first prepage.
fn files(path: &Path, entries: &[KeyValue]) -> Result<Files, TraceFileError> {
    let not_a_trace = |reason| TraceFileError::NotATrace { path: path.into(), reason };
    let mut files = Files::default();
    let Some(text) = value(entries, FILES_KEY) else { return Ok(files) };
    let entries: Vec<FileEntry> =
        serde_json::from_str(text).map_err(|_| not_a_trace("its files are no files"))?;
    for FileEntry { path, device, inode, build_id } in entries {
        let build_id = build_id.map(|id| id.parse()).transpose();
        let build_id = build_id.map_err(|_| not_a_trace("one of its build-ids is none"))?;
        let inode = (device, inode);
        files.inodes.entry(path.clone()).or_insert(inode);
        files.build_ids.extend(build_id.map(|id| ((path, inode), id)));
    }
    Ok(files)
}

/// What the metadata say of files.
#[derive(Default)]
struct Files {
    build_ids: HashMap<(String, Inode), BuildId>,
    /// Code is known by path alone: the first of this path.
    inodes: HashMap<String, Inode>,
}

/// Device and inode.
type Inode = (u64, u64);

impl Files {
    fn object(&self, path: String, inode: Option<Inode>) -> Object {
        let Some(inode) = inode else { return Object::new(path, None) };
        let key = (path, inode);
        let build_id = self.build_ids.get(&key).copied();
        Object { path: key.0, inode: Some(inode), build_id }
    }

    fn code(&self, path: String) -> Object {
        let inode = self.inodes.get(&path).copied();
        self.object(path, inode)
    }
}

/// The rows read so far.
#[derive(Default)]
struct Rows {
    trace: Trace,
    files: Files,
    stack_ids: HashMap<String, StackId>,
    object_ids: HashMap<Object, ObjectId>,
    thread_indices: HashMap<Thread, ThreadIndex>,
}

impl Rows {
    fn add(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let u64s = |column| numbers::<UInt64Type>(batch, column);
        let u32s = |column| numbers::<UInt32Type>(batch, column);
        let (start, cost, ip, address) = (u64s(START)?, u64s(COST)?, u64s(IP)?, u64s(ADDRESS)?);
        let (pid, tid) = (u32s(PID)?, u32s(TID)?);
        let (comm, class, object) = (text(batch, COMM)?, text(batch, CLASS)?, text(batch, OBJECT)?);
        let (device, inode, page) = (u64s(DEVICE)?, u64s(INODE)?, u64s(PAGE)?);
        let permissions = if_there(batch, PERMISSIONS, text)?;
        let code = if_there(batch, CODE, text)?;
        let code_offset = if_there(batch, CODE_OFFSET, numbers::<UInt64Type>)?;
        let frame = if_there(batch, FRAME, numbers::<UInt64Type>)?;
        let stack = if_there(batch, STACK, text)?;
        for row in 0..batch.num_rows() {
            let class = FaultClass::from_name(class.value(row))
                .ok_or_else(|| invalid(CLASS, &format!("no class is called {}", class.value(row))))?;
            let thread =
                Thread { pid: pid.value(row), tid: tid.value(row), comm: comm.value(row).to_owned() };
            let thread = intern(&mut self.trace.threads, &mut self.thread_indices, thread, ThreadIndex)?;
            let object = match object.is_valid(row) {
                false => None,
                true => {
                    let inode = optional(device, row).zip(optional(inode, row));
                    Some(self.object_id(self.files.object(object.value(row).to_owned(), inode))?)
                }
            };
            let permissions = match value_of(permissions, row) {
                None => Permissions::NONE,
                Some(text) => Permissions::from_text(text)
                    .ok_or_else(|| invalid(PERMISSIONS, &format!("{text} are no permissions")))?,
            };
            let code = match value_of(code, row) {
                None => None,
                Some(path) => Some(self.object_id(self.files.code(path.to_owned()))?),
            };
            let ip = ip.value(row);
            let code_offset = code_offset.and_then(|column| optional(column, row)).unwrap_or(ip);
            let stack = value_of(stack, row).map(|text| self.stack_id(text)).transpose()?;
            self.trace.faults.push(Fault {
                start_ns: start.value(row),
                cost_ns: optional(cost, row),
                thread,
                ip,
                address: address.value(row),
                object,
                page: optional(page, row).map(PageIndex),
                class,
                permissions,
                code,
                code_offset,
                stack,
                frame: frame.and_then(|column| optional(column, row)).and_then(FrameNumber::new),
            });
        }
        Ok(())
    }

    fn object_id(&mut self, object: Object) -> Result<ObjectId, ParquetError> {
        intern(&mut self.trace.objects, &mut self.object_ids, object, ObjectId)
    }

    fn stack_id(&mut self, text: &str) -> Result<StackId, ParquetError> {
        if let Some(&id) = self.stack_ids.get(text) {
            return Ok(id);
        }
        let stack = parse_stack(text, |path| self.object_id(self.files.code(path)).ok());
        let stack = stack.ok_or_else(|| invalid(STACK, &format!("{text} is no stack")))?;
        let number = u32::try_from(self.trace.stacks.len()).ok().filter(|&number| number < u32::MAX);
        let number = number.ok_or_else(|| ParquetError::General("too many stacks".into()))?;
        self.trace.stacks.push(stack);
        self.stack_ids.insert(text.to_owned(), StackId::new(number));
        Ok(StackId::new(number))
    }
}

/// A column that files of the first prepage lack.
fn if_there<'a, T: ?Sized>(
    batch: &'a RecordBatch,
    column: Column,
    read: impl Fn(&'a RecordBatch, Column) -> Result<&'a T, ParquetError>,
) -> Result<Option<&'a T>, ParquetError> {
    batch.column_by_name(column.name).map(|_| read(batch, column)).transpose()
}

fn value_of(column: Option<&StringArray>, row: usize) -> Option<&str> {
    column.filter(|column| column.is_valid(row)).map(|column| column.value(row))
}

fn numbers<T: ArrowPrimitiveType>(
    batch: &RecordBatch,
    column: Column,
) -> Result<&PrimitiveArray<T>, ParquetError> {
    let array = batch.column_by_name(column.name).and_then(|array| array.as_primitive_opt());
    let array = array.ok_or_else(|| invalid(column, "missing"))?;
    no_unexpected_nulls(column, array).map(|()| array)
}

fn text(batch: &RecordBatch, column: Column) -> Result<&StringArray, ParquetError> {
    let array = batch.column_by_name(column.name).and_then(|array| array.as_string_opt());
    let array = array.ok_or_else(|| invalid(column, "missing"))?;
    no_unexpected_nulls(column, array).map(|()| array)
}

fn no_unexpected_nulls(column: Column, array: &dyn Array) -> Result<(), ParquetError> {
    if array.null_count() > 0 && !column.nullable { Err(invalid(column, "has nulls")) } else { Ok(()) }
}

fn optional(array: &PrimitiveArray<UInt64Type>, row: usize) -> Option<u64> {
    array.is_valid(row).then(|| array.value(row))
}

fn intern<T: Clone + Eq + Hash, Id: Copy>(
    table: &mut Vec<T>,
    ids: &mut HashMap<T, Id>,
    entry: T,
    id: fn(u32) -> Id,
) -> Result<Id, ParquetError> {
    if let Some(&id) = ids.get(&entry) {
        return Ok(id);
    }
    let number = u32::try_from(table.len()).map_err(|_| ParquetError::General("too many entries".into()))?;
    table.push(entry.clone());
    ids.insert(entry, id(number));
    Ok(id(number))
}

fn invalid(column: Column, what: &str) -> ParquetError {
    ParquetError::General(format!("column {}: {what}", column.name))
}
