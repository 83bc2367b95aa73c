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
use prepage_core::{Fault, FaultClass, Object, ObjectId, PageIndex, Thread, ThreadIndex, Trace, TraceFacts};

use super::schema::{
    ADDRESS, CLASS, COLUMNS, COMM, COST, Column, DEVICE, FACTS_KEY, INODE, IP, Kind, OBJECT, PAGE, PID,
    START, TID, VERSION_KEY,
};
use super::seal::{self, Seal};
use super::{FORMAT_VERSION, TraceFileError};

const MAGIC: &[u8; 4] = b"PAR1";

/// Reads the trace in file `path` whole. Faults come in the order they began.
///
/// # Errors
/// A file that is no trace, is cut short or damaged, lacks a column or comes from a later prepage.
pub fn read_trace(path: &Path) -> Result<Trace, TraceFileError> {
    let file = File::open(path).map_err(|source| TraceFileError::io(path, "open", source))?;
    check_frame(path, &file)?;
    if seal::check(&file).map_err(|source| TraceFileError::io(path, "read", source))? == Seal::Broken {
        return Err(TraceFileError::Damaged { path: path.into() });
    }
    let unreadable = |source| TraceFileError::Unreadable { path: path.into(), source };
    // Types as Parquet has them, so that a file rewritten by other tools reads the same.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(unreadable)?;
    let entries = builder.metadata().file_metadata().key_value_metadata();
    let facts = facts(path, entries.map_or(&[], Vec::as_slice))?;
    for column in COLUMNS {
        let data_type = match column.kind {
            Kind::U32 => DataType::UInt32,
            Kind::U64 => DataType::UInt64,
            Kind::Text => DataType::Utf8,
        };
        let found = builder.schema().field_with_name(column.name);
        if !found.is_ok_and(|field| *field.data_type() == data_type) {
            return Err(TraceFileError::Column { path: path.into(), column: column.name });
        }
    }
    let mut rows = Rows { trace: Trace { facts, ..Trace::default() }, ..Rows::default() };
    for batch in builder.build().map_err(unreadable)? {
        let added = batch.map_err(ParquetError::from).and_then(|batch| rows.add(&batch));
        added.map_err(unreadable)?;
    }
    rows.trace.faults.sort_by_key(|fault| fault.start_ns);
    Ok(rows.trace)
}

/// Tells a file that is cut short from one that is something else.
fn check_frame(path: &Path, file: &File) -> Result<(), TraceFileError> {
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
        return Err(TraceFileError::Truncated { path: path.into() });
    }
    Ok(())
}

fn facts(path: &Path, entries: &[KeyValue]) -> Result<TraceFacts, TraceFileError> {
    let value = |key| entries.iter().find(|entry| entry.key == key).and_then(|entry| entry.value.as_deref());
    let not_a_trace = |reason| TraceFileError::NotATrace { path: path.into(), reason };
    let version = value(VERSION_KEY).ok_or_else(|| not_a_trace("a Parquet file of another kind"))?;
    let found = version.parse().map_err(|_| not_a_trace("its format version is no number"))?;
    if found > FORMAT_VERSION {
        return Err(TraceFileError::Newer { path: path.into(), found });
    }
    let facts = value(FACTS_KEY).ok_or_else(|| not_a_trace("it has no facts"))?;
    serde_json::from_str(facts).map_err(|_| not_a_trace("its facts are no facts of a run"))
}

/// The rows read so far.
#[derive(Default)]
struct Rows {
    trace: Trace,
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
        for row in 0..batch.num_rows() {
            let class = FaultClass::from_name(class.value(row))
                .ok_or_else(|| invalid(CLASS, &format!("no class is called {}", class.value(row))))?;
            let thread =
                Thread { pid: pid.value(row), tid: tid.value(row), comm: comm.value(row).to_owned() };
            let thread = intern(&mut self.trace.threads, &mut self.thread_indices, thread, ThreadIndex)?;
            let object = match object.is_valid(row) {
                false => None,
                true => {
                    let path = object.value(row).to_owned();
                    let inode = optional(device, row).zip(optional(inode, row));
                    Some(intern(
                        &mut self.trace.objects,
                        &mut self.object_ids,
                        Object { path, inode },
                        ObjectId,
                    )?)
                }
            };
            self.trace.faults.push(Fault {
                start_ns: start.value(row),
                cost_ns: optional(cost, row),
                thread,
                ip: ip.value(row),
                address: address.value(row),
                object,
                page: optional(page, row).map(PageIndex),
                class,
            });
        }
        Ok(())
    }
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
