//! Writing a trace, as it is recorded.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::parquet::arrow::arrow_writer::{
    ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves,
};
use ::parquet::arrow::{ArrowSchemaConverter, add_encoded_arrow_schema_to_metadata};
use ::parquet::basic::{Compression, Encoding, ZstdLevel};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{FileMetaData, KeyValue, ParquetMetaData, ParquetMetaDataWriter};
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::writer::SerializedFileWriter;
use ::parquet::schema::types::ColumnPath;
use arrow_array::ArrayRef;
use arrow_schema::SchemaRef;
use prepage_core::{Fault, PAGE_SIZE, Trace, TraceFacts};
use serde::Serialize;

use super::columns::arrays;
use super::schema::{
    COLUMNS, FACTS_KEY, FILES_KEY, FORMAT_VERSION, PAGE_BYTES_KEY, STACK, VERSION_KEY, file_entries, schema,
};
use super::spool::Spool;
use super::{TraceFileError, seal};
use crate::tables::Tables;

/// Rows of a row group. Compressed it stays in memory until it is complete, and a full disk loses it.
const GROUP_ROWS: usize = 1 << 18;
/// After so many row groups they become twice as long, and so on: after 268 million faults, after 805 million …
const GROUPS_OF_A_SIZE: usize = 1 << 10;
/// How often they double: up to 4 million rows, some 40 MB in memory.
const LARGER_GROUPS: usize = 4;
/// Disk space kept for the end of the file while it grows, so that a full disk still leaves room for a last row
/// group and the footer.
const RESERVE_BYTES: u64 = 1 << 20;
/// What a row group adds to the footer at most.
const FOOTER_GROUP_BYTES: u64 = 4 << 10;
/// What a file adds to the footer, about.
const FILE_BYTES: u64 = 128;
/// How long a row group may take to fill, at the beginning of a recording.
const GROUP_SECONDS_MIN: Duration = Duration::from_secs(5);
/// Texts of the stacks of a row group that are stored once each.
const STACKS_BYTES_MAX: usize = 64 << 20;
/// Rows encoded at once: few, because whoever records must soon look at the rings again.
const BATCH_ROWS: usize = 8 << 10;

/// Writes a trace to a file, a part at a time, so that its length is not bounded by memory.
///
/// The file appears under its name when [`TraceWriter::finish`] has completed it; dropped before, it leaves
/// [`TraceWriter::left_behind`], unless by [`TraceWriter::discard`].
pub struct TraceWriter {
    file: SerializedFileWriter<Spool>,
    columns: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    group: Option<Group>,
    next_group: usize,
    waiting: Vec<Fault>,
    saved: u64,
    taken: u64,
    full: bool,
    began: Instant,
    /// When the last row group was put into the file.
    grouped: Instant,
    /// When the last row group that a footer describes was put into the file.
    described: Instant,
    /// Where the last footer in the file ends.
    footer_end: u64,
}

/// The row group that is being filled.
struct Group {
    columns: Vec<ArrowColumnWriter>,
    rows: usize,
}

impl TraceWriter {
    /// Begins the trace file `path`.
    pub fn create(path: &Path) -> Result<Self, TraceFileError> {
        let mut spool = Spool::create(path)?;
        spool.ensure_room(RESERVE_BYTES)?;
        let path = spool.path().to_owned();
        let schema = schema();
        let properties = Arc::new(properties(&schema));
        let failed = |error| TraceFileError::writing(&path, error);
        let root = ArrowSchemaConverter::new().convert(&schema).map_err(failed)?.root_schema_ptr();
        let file = SerializedFileWriter::new(spool, root, properties).map_err(failed)?;
        let columns = ArrowRowGroupWriterFactory::new(&file, Arc::clone(&schema));
        Ok(Self {
            file,
            columns,
            schema,
            group: None,
            next_group: 0,
            waiting: Vec::new(),
            saved: 0,
            taken: 0,
            full: false,
            began: Instant::now(),
            grouped: Instant::now(),
            described: Instant::now(),
            footer_end: 0,
        })
    }

    /// Where a recording that was killed is kept, whose unfinished file stood in the way.
    pub fn rescued(&self) -> Option<&Path> {
        self.file.inner().rescued()
    }

    /// Where what is in the file until now stays, should it not be completed; `None` while that is nothing.
    pub fn left_behind(&self) -> Option<&Path> {
        self.file.inner().left_behind()
    }

    /// Adds `faults`, whose indices point into `tables`. `facts` are those of the run so far.
    ///
    /// Were this process killed, what was put into the file until then stays readable: a row group is complete when it
    /// is full, and else after 5 seconds or a tenth of the time that the recording takes already.
    ///
    /// # Errors
    /// [`TraceFileError::Full`] once, when the disk is full: later faults are only counted, as
    /// [`TraceFacts::unsaved`], and [`TraceWriter::finish`] makes what was saved before readable.
    pub fn write(
        &mut self,
        tables: Tables<'_>,
        faults: &[Fault],
        facts: impl Fn() -> TraceFacts,
    ) -> Result<(), TraceFileError> {
        self.taken += faults.len() as u64;
        if self.full {
            return Ok(());
        }
        let mut left = faults;
        while self.waiting.len() + left.len() >= BATCH_ROWS {
            let batch;
            (batch, left) = left.split_at(BATCH_ROWS - self.waiting.len());
            self.waiting.extend_from_slice(batch);
            self.encode(tables)?;
            // After each row group: the next batch begins another, in which no footer may lie.
            self.write_footer(tables, &facts)?;
        }
        self.waiting.extend_from_slice(left);
        if self.grouped.elapsed() >= self.due() && self.taken > self.saved {
            self.encode(tables)?;
            self.close_group(RESERVE_BYTES)?;
        }
        self.write_footer(tables, &facts)
    }

    /// How long what was recorded may stay unreadable, should this process be killed.
    fn due(&self) -> Duration {
        GROUP_SECONDS_MIN.max(self.began.elapsed() / 10)
    }

    /// Encodes all faults that were handed over, so that what their numbers point into is no longer needed.
    pub(crate) fn settle(&mut self, tables: Tables<'_>) -> Result<(), TraceFileError> {
        if self.full { Ok(()) } else { self.encode(tables) }
    }

    /// Between two row groups: puts a footer after those until now, so that they can be read if no more comes. An eighth of the file is
    /// given to these, and more where faults are rare: 51 footers in the first hour and 81 in a day, of some 2 KiB a row group each.
    fn write_footer(
        &mut self,
        tables: Tables<'_>,
        facts: impl Fn() -> TraceFacts,
    ) -> Result<(), TraceFileError> {
        if self.next_group == 0 || self.group.is_some() {
            return Ok(());
        }
        let data_bytes = self.file.bytes_written() as u64 - self.footer_end;
        // The files of a usual recording are few enough not to count.
        let file_bytes = (tables.objects.len() as u64 * FILE_BYTES).saturating_sub(RESERVE_BYTES);
        let is_due = self.described.elapsed() >= self.due();
        let group_bytes = if is_due { 0 } else { self.next_group as u64 * FOOTER_GROUP_BYTES / 8 };
        let footer_bytes = group_bytes + file_bytes;
        if data_bytes == 0 || data_bytes < 8 * footer_bytes {
            return Ok(());
        }
        let mut entries: Vec<KeyValue> =
            self.file.properties().key_value_metadata().cloned().unwrap_or_default();
        let facts = TraceFacts { cut_short: true, ..facts() };
        entries.extend(key_values(json(&facts), json(&file_entries(tables.objects))));
        let schema = Arc::new(self.file.schema_descr().clone());
        let creator = Some(self.file.properties().created_by().to_owned());
        let metadata = FileMetaData::new(1, self.saved as i64, creator, Some(entries), schema, None);
        let metadata = ParquetMetaData::new(metadata, self.file.flushed_row_groups().to_vec());
        let mut footer = Vec::new();
        let written = ParquetMetaDataWriter::new(&mut footer, &metadata).finish();
        written.map_err(|error| self.failure(error))?;
        self.file.inner_mut().ensure_room(footer.len() as u64 + RESERVE_BYTES).inspect_err(|error| {
            self.full = matches!(error, TraceFileError::Full(..));
        })?;
        self.file.write_all(&footer).map_err(|error| self.failure(error.into()))?;
        self.file.flush().map_err(|error| self.failure(error.into()))?;
        self.footer_end = self.file.bytes_written() as u64;
        self.described = self.grouped;
        self.file.inner_mut().is_readable();
        Ok(())
    }

    /// Gives the file up, with what is in it until now.
    pub fn discard(mut self) {
        self.file.inner_mut().discard();
    }

    /// Completes the file. Returns how many of the faults it had no room for.
    pub fn finish(mut self, tables: Tables<'_>, facts: &TraceFacts) -> Result<u64, TraceFileError> {
        let files = json(&file_entries(tables.objects));
        if !self.full {
            let text_bytes = (files.len() + json(facts).len()) as u64;
            let footer_bytes = FOOTER_GROUP_BYTES * (self.next_group as u64 + 2) + text_bytes;
            let last = self.encode(tables);
            match last.and_then(|()| self.close_group(footer_bytes)) {
                Ok(()) | Err(TraceFileError::Full(..)) => {}
                Err(error) => return Err(error),
            }
        }
        let unsaved = self.taken - self.saved;
        let facts = json(&TraceFacts { unsaved, ..facts.clone() });
        for entry in key_values(facts, files) {
            self.file.append_key_value_metadata(entry);
        }
        // Not `into_inner`, whose errors no longer say what the kernel's reason was.
        self.file.finish().map_err(|error| self.failure(error))?;
        self.file.inner_mut().complete().map(|()| unsaved)
    }

    /// Encodes what waits, a batch at most.
    fn encode(&mut self, tables: Tables<'_>) -> Result<(), TraceFileError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        // They come in the order they ended. Over the whole file the order by start is only nearly kept.
        self.waiting.sort_by_key(|fault| fault.start_ns);
        let columns = arrays(&self.waiting, tables);
        self.waiting.clear();
        self.add(&columns).map_err(|error| self.failure(error))?;
        // The footer has an entry for each row group: the more there are, the longer they get.
        let group_rows = GROUP_ROWS << (self.next_group / GROUPS_OF_A_SIZE).min(LARGER_GROUPS);
        if self.group.as_ref().is_some_and(|group| group.rows >= group_rows) {
            self.close_group(RESERVE_BYTES)?;
        }
        Ok(())
    }

    fn add(&mut self, arrays: &[ArrayRef]) -> Result<(), ParquetError> {
        let group = match self.group.take() {
            Some(group) => group,
            None => {
                let columns = self.columns.create_column_writers(self.next_group)?;
                self.next_group += 1;
                Group { columns, rows: 0 }
            }
        };
        let group = self.group.insert(group);
        group.rows += arrays[0].len();
        for ((writer, field), array) in group.columns.iter_mut().zip(self.schema.fields()).zip(arrays) {
            for leaf in compute_leaves(field, array)? {
                writer.write(&leaf)?;
            }
        }
        Ok(())
    }

    /// Puts the row group into the file, if there is room for all of it and `after_bytes` more.
    fn close_group(&mut self, after_bytes: u64) -> Result<(), TraceFileError> {
        let Some(group) = self.group.take() else { return Ok(()) };
        let chunks = group.columns.into_iter().map(ArrowColumnWriter::close);
        let chunks: Vec<ArrowColumnChunk> =
            chunks.collect::<Result<_, _>>().map_err(|error| self.failure(error))?;
        let bytes: u64 = chunks.iter().map(|chunk| chunk.close().bytes_written).sum();
        if let Err(error) = self.file.inner_mut().ensure_room(bytes + after_bytes) {
            self.full = matches!(error, TraceFileError::Full(..));
            self.waiting.clear();
            return Err(error);
        }
        self.append(chunks).map_err(|error| self.failure(error))?;
        self.saved += group.rows as u64;
        self.grouped = Instant::now();
        Ok(())
    }

    fn append(&mut self, chunks: Vec<ArrowColumnChunk>) -> Result<(), ParquetError> {
        let mut group = self.file.next_row_group()?;
        for chunk in chunks {
            chunk.append_to_row_group(&mut group)?;
        }
        group.close().map(drop)
    }

    fn failure(&mut self, error: ParquetError) -> TraceFileError {
        let error = TraceFileError::writing(self.file.inner().path(), error);
        self.full |= matches!(error, TraceFileError::Full(..));
        error
    }
}

impl std::fmt::Debug for TraceWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TraceWriter").field("file", self.file.inner()).field("taken", &self.taken).finish()
    }
}

/// Writes a whole trace to `path`.
pub fn write_trace(path: &Path, trace: &Trace) -> Result<(), TraceFileError> {
    let mut writer = TraceWriter::create(path)?;
    let tables = Tables::from(trace);
    writer.write(tables, &trace.faults, || trace.facts.clone())?;
    match writer.finish(tables, &trace.facts)? {
        0 => Ok(()),
        _ => Err(TraceFileError::Full(path.into())),
    }
}

fn properties(schema: &SchemaRef) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by(format!("{}{}", seal::CREATOR, env!("CARGO_PKG_VERSION")))
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true);
    for column in COLUMNS.iter().filter(|column| !column.repetitive) {
        let path = ColumnPath::from(column.name);
        properties = properties
            .set_column_dictionary_enabled(path.clone(), false)
            .set_column_encoding(path, Encoding::DELTA_BINARY_PACKED);
    }
    // Stacks are long and alike: written out one by one they would be most of the file.
    let stack = ColumnPath::from(STACK.name);
    let mut properties = properties.set_column_dictionary_page_size_limit(stack, STACKS_BYTES_MAX).build();
    // Makes Arrow readers give the text columns as categories.
    add_encoded_arrow_schema_to_metadata(schema, &mut properties);
    properties
}

/// The metadata of a trace, not yet sealed.
fn key_values(facts: String, files: String) -> impl Iterator<Item = KeyValue> {
    let entries = [
        (VERSION_KEY.to_owned(), FORMAT_VERSION.to_string()),
        (FACTS_KEY.to_owned(), facts),
        (FILES_KEY.to_owned(), files),
        (PAGE_BYTES_KEY.to_owned(), PAGE_SIZE.to_string()),
        (seal::key(), seal::UNSEALED.to_owned()),
    ];
    entries.into_iter().map(|(key, value)| KeyValue::new(key, value))
}

fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("plain numbers and text")
}
