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

const fn column(name: &'static str, kind: Kind, nullable: bool, repetitive: bool, part: Wanted) -> Column {
    Column { name, kind, nullable, repetitive, added: false, part }
}

const fn added(name: &'static str, kind: Kind, repetitive: bool, part: Wanted) -> Column {
    Column { name, kind, nullable: true, repetitive, added: true, part }
}

pub(super) const START: Column = column("start_ns", Kind::U64, false, false, Wanted::START);
pub(super) const COST: Column = column("cost_ns", Kind::U64, true, false, Wanted::empty());
pub(super) const PID: Column = column("pid", Kind::U32, false, true, Wanted::THREAD);
pub(super) const TID: Column = column("tid", Kind::U32, false, true, Wanted::THREAD);
pub(super) const COMM: Column = column("comm", Kind::Text, false, true, Wanted::THREAD);
pub(super) const CLASS: Column = column("class", Kind::Text, false, true, Wanted::empty());
/// Where no object is known, the code's place is the address.
pub(super) const IP: Column = column("ip", Kind::U64, false, true, Wanted::IP.union(Wanted::CODE));
pub(super) const ADDRESS: Column = column("address", Kind::U64, false, false, Wanted::ADDRESS);
pub(super) const OBJECT: Column = column("object", Kind::Text, true, true, Wanted::OBJECT);
pub(super) const DEVICE: Column = column("device", Kind::U64, true, true, Wanted::OBJECT);
pub(super) const INODE: Column = column("inode", Kind::U64, true, true, Wanted::OBJECT);
pub(super) const PAGE: Column = column("page", Kind::U64, true, true, Wanted::PAGE);

pub(super) const PERMISSIONS: Column = added("permissions", Kind::Text, true, Wanted::PERMISSIONS);
pub(super) const CODE: Column = added("code", Kind::Text, true, Wanted::CODE);
pub(super) const CODE_OFFSET: Column = added("code_offset", Kind::U64, true, Wanted::CODE);
pub(super) const FRAME: Column = added("frame", Kind::U64, false, Wanted::FRAME);
pub(super) const STACK: Column = added("stack", Kind::Text, true, Wanted::STACK);
pub(super) const CLUSTER: Column = added("cluster_pages", Kind::U32, true, Wanted::CLUSTER);

/// All columns, in the order of the file.
pub(super) const COLUMNS: [Column; 18] = [
    START,
    COST,
    PID,
    TID,
    COMM,
    CLASS,
    IP,
    ADDRESS,
    OBJECT,
    DEVICE,
    INODE,
    PAGE,
    PERMISSIONS,
    CODE,
    CODE_OFFSET,
    FRAME,
    STACK,
    CLUSTER,
];

/// Their names.
pub fn column_names() -> [&'static str; COLUMNS.len()] {
    COLUMNS.map(|column| column.name)
}

/// The columns as Arrow knows them.
pub(super) fn schema() -> SchemaRef {
    let fields = COLUMNS.map(|column| {
        let data_type = match column.kind {
            Kind::U32 => DataType::UInt32,
            Kind::U64 => DataType::UInt64,
            Kind::Text => DataType::Dictionary(Box::new(DataType::UInt32), Box::new(DataType::Utf8)),
        };
        Field::new(column.name, data_type, column.nullable)
    });
    Arc::new(Schema::new(fields.to_vec()))
}
