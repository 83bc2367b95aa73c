//! The columns of a trace file.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use prepage_core::Object;
use serde::{Deserialize, Serialize};

use super::scan::Wanted;

/// Version of the format. Readers refuse a later one; columns and facts may be added without a new version.
pub const FORMAT_VERSION: u32 = 1;

/// Key of the format version in the file's metadata.
pub(super) const VERSION_KEY: &str = "prepage.format_version";
/// Key of the [`prepage_core::TraceFacts`], as a JSON object.
pub(super) const FACTS_KEY: &str = "prepage.facts";
/// Key of the files that the faults speak of, as a JSON array of [`FileEntry`].
pub(super) const FILES_KEY: &str = "prepage.files";
/// Key of the page size in bytes, the unit of column `page`.
pub(super) const PAGE_BYTES_KEY: &str = "prepage.page_bytes";

/// What the columns have no place for: the build-id of a file, and the inode of one that is only code.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct FileEntry {
    pub path: String,
    pub device: u64,
    pub inode: u64,
    /// In hexadecimal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_bytes: Option<u64>,
}

/// The entries of all files among `objects`.
pub(super) fn file_entries(objects: &[Object]) -> Vec<FileEntry> {
    let entry = |object: &Object| {
        let (device, inode) = object.inode?;
        let build_id = object.build_id.map(|id| id.to_string());
        Some(FileEntry { path: object.path.clone(), device, inode, build_id, size_bytes: object.size_bytes })
    };
    objects.iter().filter_map(entry).collect()
}

/// One column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub name: &'static str,
    pub kind: Kind,
    pub nullable: bool,
    /// Few different values: stored as numbers into a dictionary.
    pub repetitive: bool,
    /// Files of the first prepage lack it. It then reads as null.
    pub added: bool,
    /// It is read where any of this is wanted, and always where this is empty.
    pub part: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    U32,
    U64,
    Text,
}

impl Kind {
    /// As Parquet has it.
    pub fn data_type(self) -> DataType {
        match self {
            Self::U32 => DataType::UInt32,
            Self::U64 => DataType::UInt64,
            Self::Text => DataType::Utf8,
        }
    }

    /// As it is written and decoded: text as numbers into a dictionary, which is how the file has it. To compare text row by
    /// row takes longer than all else together.
    pub fn decoded_type(self) -> DataType {
        match self {
            Self::Text => DataType::Dictionary(Box::new(DataType::UInt32), Box::new(DataType::Utf8)),
            number => number.data_type(),
        }
    }
}

const fn column(name: &'static str, kind: Kind, nullable: bool, repetitive: bool, part: Wanted) -> Column {
    Column { name, kind, nullable, repetitive, added: false, part }
}

const fn added(name: &'static str, kind: Kind, repetitive: bool, part: Wanted) -> Column {
    Column { name, kind, nullable: true, repetitive, added: true, part }
}

/// A constant for each column, and a list of all.
macro_rules! columns {
    ($($(#[$doc:meta])* $name:ident = $column:expr,)*) => {
        $($(#[$doc])* pub(super) const $name: Column = $column;)*

        /// All columns, in the order of the file.
        pub(super) const COLUMNS: [Column; [$($name),*].len()] = [$($name),*];
    };
}

columns! {
    START = column("start_ns", Kind::U64, false, false, Wanted::START),
    COST = column("cost_ns", Kind::U64, true, false, Wanted::empty()),
    PID = column("pid", Kind::U32, false, true, Wanted::THREAD),
    TID = column("tid", Kind::U32, false, true, Wanted::THREAD),
    COMM = column("comm", Kind::Text, false, true, Wanted::THREAD),
    CLASS = column("class", Kind::Text, false, true, Wanted::empty()),
    /// Where no object is known, the code's place is the address.
    IP = column("ip", Kind::U64, false, true, Wanted::IP.union(Wanted::CODE)),
    ADDRESS = column("address", Kind::U64, false, false, Wanted::ADDRESS),
    OBJECT = column("object", Kind::Text, true, true, Wanted::OBJECT),
    DEVICE = column("device", Kind::U64, true, true, Wanted::OBJECT),
    INODE = column("inode", Kind::U64, true, true, Wanted::OBJECT),
    PAGE = column("page", Kind::U64, true, true, Wanted::PAGE),
    PERMISSIONS = added("permissions", Kind::Text, true, Wanted::PERMISSIONS),
    CODE = added("code", Kind::Text, true, Wanted::CODE),
    CODE_OFFSET = added("code_offset", Kind::U64, true, Wanted::CODE),
    FRAME = added("frame", Kind::U64, false, Wanted::FRAME),
    STACK = added("stack", Kind::Text, true, Wanted::STACK),
    CLUSTER = added("cluster_pages", Kind::U32, true, Wanted::CLUSTER),
}

/// Their names.
pub fn column_names() -> [&'static str; COLUMNS.len()] {
    COLUMNS.map(|column| column.name)
}

/// The columns as Arrow knows them.
pub(super) fn schema() -> SchemaRef {
    let field = |column: Column| Field::new(column.name, column.kind.decoded_type(), column.nullable);
    Arc::new(Schema::new(COLUMNS.map(field).to_vec()))
}
