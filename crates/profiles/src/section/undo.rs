//! The undo record: what a file was like before a section was added. docs/profile-format.md has its layout.

use std::io;

use object::elf::SHT_NOBITS;

use super::{Original, SectionError};
use crate::bytes::Bytes;
use crate::elf::{Section, SectionTable};

const UNDO_MAGIC: [u8; 8] = *b"PREPUNDO";
const UNDO_BYTES: usize = 40;

/// The file header's fields that name the section headers, and the length of the file they belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undo {
    pub(super) len_bytes: u64,
    pub(super) table: SectionTable,
    pub(super) crc: u32,
}

/// CRC-32 of a whole file.
pub(super) fn crc_of<B: Bytes + ?Sized>(bytes: &B) -> io::Result<u32> {
    let mut hasher = crc32fast::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        match bytes.read_at(at, &mut buffer)? {
            0 => return Ok(hasher.finalize()),
            read => {
                hasher.update(&buffer[..read]);
                at += read as u64;
            }
        }
    }
}

/// The undo record of `original`.
pub(super) fn encode_undo<B: Bytes + ?Sized>(original: &Original<'_, B>) -> Result<Vec<u8>, SectionError> {
    let table = original.elf.section_table;
    let mut bytes = UNDO_MAGIC.to_vec();
    bytes.extend_from_slice(&original.len_bytes.to_le_bytes());
    bytes.extend_from_slice(&table.offset_bytes.to_le_bytes());
    for field in [table.count, table.names, table.entry_bytes, 0] {
        bytes.extend_from_slice(&field.to_le_bytes());
    }
    bytes.extend_from_slice(&crc_of(original)?.to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    Ok(bytes)
}

/// The undo record at the end of `section`, if it has one.
pub(super) fn read_undo<B: Bytes + ?Sized>(bytes: &B, section: &Section) -> io::Result<Option<Undo>> {
    let Some(start) = section.file_end_bytes().checked_sub(UNDO_BYTES as u64) else { return Ok(None) };
    let mut record = [0; UNDO_BYTES];
    if start < section.offset_bytes
        || section.kind == SHT_NOBITS.0
        || bytes.read_at(start, &mut record)? < UNDO_BYTES
    {
        return Ok(None);
    }
    let word = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
    let long = |at: usize| u64::from_le_bytes(record[at..at + 8].try_into().expect("eight bytes"));
    let short = |at: usize| u16::from_le_bytes(record[at..at + 2].try_into().expect("two bytes"));
    if record[..8] != UNDO_MAGIC || crc32fast::hash(&record[..36]) != word(36) {
        return Ok(None);
    }
    let table =
        SectionTable { offset_bytes: long(16), count: short(24), names: short(26), entry_bytes: short(28) };
    Ok(Some(Undo { len_bytes: long(8), table, crc: word(32) }))
}
