//! Reading a trace a part at a time, on every CPU, so that its length is bounded neither by memory nor by patience.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::ColumnChunkMetaData;
use ::parquet::file::statistics::Statistics;
use arrow_schema::{Field, Schema};
use prepage_core::{Fault, TraceFacts};

use super::TraceFileError;
use super::names::Names;
use super::prefix::Prefix;
use super::reader::{Files, check_columns, facts, files, open};
use super::rows::Decoder;
use super::schema::{COLUMNS, START};

/// Rows decoded at once: enough that a batch costs little by itself, few enough to stay in the CPU's cache.
const BATCH_ROWS: usize = 16 << 10;

bitflags::bitflags! {
    /// What of each fault is wanted. The rest is not read from the file and reads as zero or `None`; class and cost always are.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Wanted: u16 {
        /// `start_ns`.
        const START = 1;
        /// `thread`.
        const THREAD = 1 << 1;
        /// `ip`.
        const IP = 1 << 2;
        /// `address`.
        const ADDRESS = 1 << 3;
        /// `object`.
        const OBJECT = 1 << 4;
        /// `page`.
        const PAGE = 1 << 5;
        /// `permissions`.
        const PERMISSIONS = 1 << 6;
        /// `code` and `code_offset`.
        const CODE = 1 << 7;
        /// `stack`.
        const STACK = 1 << 8;
        /// `frame`.
        const FRAME = 1 << 9;
        /// `cluster_pages`.
        const CLUSTER = 1 << 10;
    }
}

/// A trace file, open for reading.
#[derive(Debug)]
pub struct TraceFile {
    path: PathBuf,
    file: Prefix,
    metadata: ArrowReaderMetadata,
    facts: TraceFacts,
    files: Files,
}

/// Faults read together, and where their numbers point.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// The faults, in the order of the file.
    pub faults: &'a [Fault],
    /// How many faults stand before them in the file.
    pub first_row: u64,
    /// What their object, thread and stack numbers mean. They are the same in all batches of a scan.
    pub names: &'a Names,
}

impl TraceFile {
    /// Opens the trace in file `path`.
    ///
    /// # Errors
    /// A file that is not a trace, is cut short or damaged, lacks a column or comes from a later prepage.
    pub fn open(path: &Path) -> Result<Self, TraceFileError> {
        let file = open(path)?;
        let unreadable = |source| TraceFileError::Unreadable(path.into(), source);
        // Types as Parquet has them, so that a file rewritten by other tools reads the same.
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let metadata = ArrowReaderMetadata::load(&file, options).map_err(unreadable)?;
        let columns = metadata.metadata().row_groups().iter().flat_map(|group| group.columns());
        // The Parquet library panics where it reads a column that begins before the file.
        let is_before = |column: &ColumnChunkMetaData| {
            let start = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
            start < 0 || column.compressed_size() < 0
        };
        if columns.into_iter().any(is_before) {
            return Err(TraceFileError::Damaged(path.into()));
        }
        let entries = metadata.metadata().file_metadata().key_value_metadata();
        let entries = entries.map_or([].as_slice(), Vec::as_slice);
        let facts = facts(path, entries)?;
        let files = files(path, entries)?;
        check_columns(path, metadata.schema())?;
        let options = ArrowReaderOptions::new().with_schema(Arc::new(with_dictionaries(metadata.schema())));
        let metadata =
            ArrowReaderMetadata::try_new(Arc::clone(metadata.metadata()), options).map_err(unreadable)?;
        Ok(Self { path: path.to_owned(), file, metadata, facts, files })
    }

    /// Where the trace is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The run it was recorded from.
    pub fn facts(&self) -> &TraceFacts {
        &self.facts
    }

    /// How many faults it holds.
    pub fn faults(&self) -> u64 {
        self.metadata.metadata().file_metadata().num_rows().max(0) as u64
    }

    /// The end of the time axis, in nanoseconds since the trace's start: the run's duration, or the last fault's start
    /// where that is later.
    pub fn end_ns(&self) -> u64 {
        let groups = self.metadata.metadata().row_groups().iter();
        let starts = groups
            .flat_map(|group| group.columns())
            .filter(|column| column.column_path().string() == START.name);
        let last = starts.filter_map(|column| match column.statistics() {
            Some(Statistics::Int64(values)) => values.max_opt().map(|&last| last as u64),
            _ => None,
        });
        last.max().unwrap_or(0).max(self.facts.duration_ns)
    }

    /// Reads what is `wanted` of every fault, on all CPUs: each of them folds the batches it happens to read with `add`
    /// into a value of its own, which begins as `new()`. The values come back with the names that the faults'
    /// numbers point into.
    ///
    /// # Errors
    /// What cannot be read or decoded.
    pub fn fold<A: Send>(
        &self,
        wanted: Wanted,
        new: impl Fn() -> A + Sync,
        add: impl Fn(&mut A, &Batch<'_>) + Sync,
    ) -> Result<(Vec<A>, Names), TraceFileError> {
        let groups = self.metadata.metadata().num_row_groups();
        let workers = thread::available_parallelism().map_or(1, NonZero::get).min(groups.max(1));
        let names = Names::default();
        let next = AtomicUsize::new(0);
        let work = || {
            let mut value = new();
            let mut decoder = Decoder::new(&self.files, &names);
            loop {
                let group = next.fetch_add(1, Ordering::Relaxed);
                if group >= groups {
                    return Ok(value);
                }
                self.read_group(group, wanted, &names, &mut decoder, &mut |batch| add(&mut value, batch))
                    .inspect_err(|_| next.store(groups, Ordering::Relaxed))?;
            }
        };
        let values: Result<Vec<A>, ParquetError> = thread::scope(|scope| {
            // As many as this user may start.
            let begin = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
            let others: Vec<_> = (1..workers).map_while(begin).collect();
            let mut values = vec![work()];
            values.extend(others.into_iter().map(|other| match other.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
            values.into_iter().collect()
        });
        Ok((values.map_err(|source| self.unreadable(source))?, names))
    }

    /// Reads what is `wanted` of every fault, in the order of the file.
    ///
    /// # Errors
    /// What cannot be read or decoded, and what `each` returns.
    pub fn for_each<E: From<TraceFileError>>(
        &self,
        wanted: Wanted,
        mut each: impl FnMut(&Batch<'_>) -> Result<(), E>,
    ) -> Result<Names, E> {
        let names = Names::default();
        let mut decoder = Decoder::new(&self.files, &names);
        for group in 0..self.metadata.metadata().num_row_groups() {
            let mut outcome = Ok(());
            let read = self.read_group(group, wanted, &names, &mut decoder, &mut |batch| {
                if outcome.is_ok() {
                    outcome = each(batch);
                }
            });
            read.map_err(|source| self.unreadable(source))?;
            outcome?;
        }
        drop(decoder);
        Ok(names)
    }

    fn read_group(
        &self,
        group: usize,
        wanted: Wanted,
        names: &Names,
        decoder: &mut Decoder<'_>,
        each: &mut dyn FnMut(&Batch<'_>),
    ) -> Result<(), ParquetError> {
        let before = &self.metadata.metadata().row_groups()[..group];
        let mut first_row = before.iter().map(|group| group.num_rows().max(0) as u64).sum();
        for batch in self.reader(group, wanted)? {
            let faults = decoder.decode(&batch?)?;
            each(&Batch { faults, first_row, names });
            first_row += faults.len() as u64;
        }
        Ok(())
    }

    fn reader(&self, group: usize, wanted: Wanted) -> Result<ParquetRecordBatchReader, ParquetError> {
        let needed = COLUMNS.iter().filter(|column| column.part.is_empty() || wanted.intersects(column.part));
        let mask = ProjectionMask::columns(self.metadata.parquet_schema(), needed.map(|column| column.name));
        ParquetRecordBatchReaderBuilder::new_with_metadata(self.file.clone(), self.metadata.clone())
            .with_row_groups(vec![group])
            .with_projection(mask)
            .with_batch_size(BATCH_ROWS)
            .build()
    }

    fn unreadable(&self, source: ParquetError) -> TraceFileError {
        TraceFileError::Unreadable(self.path.clone(), source)
    }
}

/// `schema` with the types that our columns are decoded as.
fn with_dictionaries(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| {
        let ours = COLUMNS.iter().find(|column| column.name == field.name());
        let data_type = ours.map_or_else(|| field.data_type().clone(), |column| column.kind.decoded_type());
        Field::clone(field).with_data_type(data_type)
    });
    Schema::new(fields.collect::<Vec<_>>())
}
