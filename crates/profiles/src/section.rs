//! Adding a section to an ELF file, and taking it out again, without touching what is loaded.
//!
//! Behind the file's own bytes, of which four fields of the file header alone change, stand map, undo record, section names and section headers
//! (docs/profile-format.md). Program headers and every byte they load stay where they are, so the program runs as before. The old section headers
//! stay too, unused. The undo record holds the four fields, the old length and a checksum of the old file: taking
//! the section out gives back the very bytes that were there. One read at the end of the file finds everything.

mod undo;

use std::io;

use crate::bytes::Bytes;
use crate::carried::{SECTION_NAME, SECTION_TYPE};
use crate::elf::{Elf, ElfError, Section, SectionTable};
use object::Endianness;
use object::elf::{ET_DYN, ET_EXEC, SHF_ALLOC, SHN_LORESERVE, SHT_NULL, SHT_STRTAB};
use undo::{crc_of, encode_undo, read_undo};

/// Alignment of what is appended.
const ALIGN_BYTES: u64 = 8;
/// The longest table of section names that is written again behind the file.
const NAMES_BYTES_MAX: u64 = 1 << 20;
/// Trailing zeros that may be there for alignment's sake.
const PADDING_BYTES_MAX: u64 = 64;

/// Why a section cannot be added or taken out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SectionError {
    /// No ELF file, or one that contradicts itself.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// An object file, a core, a kernel module.
    #[error("neither an executable nor a shared library")]
    NotLoadable,
    /// There is something behind what its headers speak of: an archive that the program looks for at its end.
    #[error("{bytes} bytes behind its end: the program keeps data there, and would not find it again")]
    Trailing {
        /// How many.
        bytes: u64,
    },
    /// A way of laying out sections that is not understood well enough to be changed.
    #[error("its section headers are laid out in an unusual way ({0})")]
    Unusual(&'static str),
    /// A section of this name that prepage did not add, or that another tool has moved since.
    #[error("its section {SECTION_NAME} was added or moved by another tool")]
    NotOurs,
    /// There is none to take out.
    #[error("has no page map in it")]
    None,
    /// It cannot be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
}

/// A file with changes: its first bytes, its length, and what comes behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Replaces as many bytes at the start of the file.
    pub head: Vec<u8>,
    /// The file is cut to this length.
    pub keep_bytes: u64,
    /// Appended then.
    pub tail: Vec<u8>,
}

/// A file as it is without the section: the file itself where it has none.
#[derive(Clone, Debug)]
pub struct Original<'a, B: ?Sized> {
    bytes: &'a B,
    /// What it begins with: its file header at least.
    head: Vec<u8>,
    /// Its length.
    pub len_bytes: u64,
    /// Its ELF head.
    pub elf: Elf,
}

impl<B: Bytes + ?Sized> Bytes for Original<'_, B> {
    fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<usize> {
        let wanted = self.len_bytes.saturating_sub(offset_bytes).min(into.len() as u64) as usize;
        let read = self.bytes.read_at(offset_bytes, &mut into[..wanted])?;
        if let Some(head) = usize::try_from(offset_bytes).ok().and_then(|at| self.head.get(at..)) {
            let count = head.len().min(read);
            into[..count].copy_from_slice(&head[..count]);
        }
        Ok(read)
    }
}

impl<'a, B: Bytes + ?Sized> Original<'a, B> {
    /// Looks through the section, if there is one, at the file as it was before.
    ///
    /// # Errors
    /// When the file has such a section but was not made by [`append`], or was changed since.
    pub fn of(bytes: &'a B) -> Result<Self, SectionError> {
        let elf = Elf::parse(bytes)?;
        let sections = elf.sections(bytes)?;
        let mut head = vec![0; head_bytes(&elf)];
        bytes.read_at(0, &mut head)?;
        // The last: a header whose name lies past the old names may seem to have the one added behind them.
        let Some(section) = sections.iter().rfind(|section| section.name == SECTION_NAME) else {
            return Ok(Self { bytes, head, len_bytes: bytes.len_bytes(), elf });
        };
        let undo = read_undo(bytes, section)?.ok_or(SectionError::NotOurs)?;
        // Ours end with the section headers; other tools put these elsewhere.
        if elf.section_table.end_bytes() != bytes.len_bytes() || undo.len_bytes > section.offset_bytes {
            return Err(SectionError::NotOurs);
        }
        set_table(&mut head, &elf, undo.table);
        let mut original = Self { bytes, head, len_bytes: undo.len_bytes, elf };
        original.elf.section_table = undo.table;
        if crc_of(&original)? != undo.crc {
            return Err(SectionError::NotOurs);
        }
        Ok(original)
    }

    /// The same file if it began with `head`.
    #[must_use]
    pub fn beginning_with(self, head: Vec<u8>) -> Self {
        Self { head, ..self }
    }
}

/// What makes a file with the section `payload` of the file without it. The section of a file that has one is replaced.
///
/// # Errors
/// When that cannot be done without a doubt.
pub fn append<B: Bytes + ?Sized>(original: &Original<'_, B>, payload: &[u8]) -> Result<Change, SectionError> {
    let elf = &original.elf;
    if ![ET_EXEC.0, ET_DYN.0].contains(&elf.kind) {
        return Err(SectionError::NotLoadable);
    }
    let sections = elf.sections(original)?;
    check_end(original, &sections)?;
    if sections.len() + 2 >= usize::from(SHN_LORESERVE) {
        return Err(SectionError::Unusual("more than 65,000 of them"));
    }
    let names_at = usize::from(elf.section_table.names);
    if let Some(names) = sections.get(names_at)
        && (names.flags & SHF_ALLOC.0 != 0
            || names.kind != SHT_STRTAB.0
            || names.size_bytes > NAMES_BYTES_MAX)
    {
        return Err(SectionError::Unusual("their names are loaded, or longer than 1 MiB"));
    }
    let entry_bytes = if elf.is_64 { 64 } else { 40 };

    // One null entry and the names, where the file has no section headers at all.
    let (mut entries, mut names, names_at) = if sections.is_empty() {
        let null = Entry { name: 0, kind: SHT_NULL.0, offset_bytes: 0, size_bytes: 0, align_bytes: 0 };
        (vec![null.encode(elf); 2].concat(), vec![0], 1)
    } else {
        let table = elf.section_table;
        let mut entries = vec![0; table.bytes() as usize];
        original.read_at(table.offset_bytes, &mut entries)?;
        let section = &sections[names_at];
        let mut names = vec![0; section.size_bytes as usize];
        original.read_at(section.offset_bytes, &mut names)?;
        (entries, names, names_at)
    };
    let own_name = push_name(&mut names, SECTION_NAME);
    let start = original.len_bytes.next_multiple_of(ALIGN_BYTES);
    let mut tail = vec![0; (start - original.len_bytes) as usize];
    tail.extend_from_slice(payload);
    pad(&mut tail, original.len_bytes);
    tail.extend_from_slice(&encode_undo(original)?);
    let own_bytes = original.len_bytes + tail.len() as u64 - start;
    let names_start = original.len_bytes + tail.len() as u64;
    let names_entry = &mut entries[names_at * entry_bytes..(names_at + 1) * entry_bytes];
    if sections.is_empty() {
        let name = push_name(&mut names, ".shstrtab");
        let entry = Entry {
            name,
            kind: SHT_STRTAB.0,
            offset_bytes: names_start,
            size_bytes: names.len() as u64,
            align_bytes: 1,
        };
        names_entry.copy_from_slice(&entry.encode(elf));
    } else {
        move_section(names_entry, elf, names_start, names.len() as u64);
    }
    tail.extend_from_slice(&names);
    pad(&mut tail, original.len_bytes);
    let own = Entry {
        name: own_name,
        kind: SECTION_TYPE,
        offset_bytes: start,
        size_bytes: own_bytes,
        align_bytes: ALIGN_BYTES,
    };
    entries.extend_from_slice(&own.encode(elf));
    let table = SectionTable {
        offset_bytes: original.len_bytes + tail.len() as u64,
        count: (entries.len() / entry_bytes) as u16,
        names: names_at as u16,
        entry_bytes: entry_bytes as u16,
    };
    tail.extend_from_slice(&entries);
    if !elf.is_64 && original.len_bytes + tail.len() as u64 > u64::from(u32::MAX) {
        return Err(SectionError::Unusual("no room in a file of 32 bits"));
    }
    let mut head = original.head.clone();
    set_table(&mut head, elf, table);
    Ok(Change { head, keep_bytes: original.len_bytes, tail })
}

/// What makes the file as it was before the section was added.
///
/// # Errors
/// When there is no section, or the very same bytes cannot be given back.
pub fn take_out<B: Bytes + ?Sized>(bytes: &B) -> Result<Change, SectionError> {
    let original = Original::of(bytes)?;
    if original.len_bytes == bytes.len_bytes() {
        return Err(SectionError::None);
    }
    Ok(Change { head: original.head, keep_bytes: original.len_bytes, tail: Vec::new() })
}

/// A program may look for its data at its own end: nothing may be put behind it then.
fn check_end<B: Bytes + ?Sized>(
    original: &Original<'_, B>,
    sections: &[Section],
) -> Result<(), SectionError> {
    let elf = &original.elf;
    let segments = elf.segments.iter().map(|segment| segment.offset_bytes.saturating_add(segment.file_bytes));
    let described = segments
        .chain(sections.iter().map(Section::file_end_bytes))
        .chain([original.head.len() as u64, elf.segments_end_bytes, elf.section_table.end_bytes()])
        .max()
        .unwrap_or_default();
    if described > original.len_bytes {
        return Err(ElfError::Malformed("a section or segment past the end of the file").into());
    }
    let behind = original.len_bytes - described;
    let mut bytes = vec![0; behind.min(PADDING_BYTES_MAX) as usize];
    original.read_at(described, &mut bytes)?;
    if behind > PADDING_BYTES_MAX || bytes.iter().any(|&byte| byte != 0) {
        return Err(SectionError::Trailing { bytes: behind });
    }
    Ok(())
}

/// A section header to be written.
#[derive(Clone, Copy)]
struct Entry {
    name: u32,
    kind: u32,
    offset_bytes: u64,
    size_bytes: u64,
    align_bytes: u64,
}

impl Entry {
    fn encode(self, elf: &Elf) -> Vec<u8> {
        let [half, own] = [4, word_bytes(elf)];
        let fields = [
            (half, u64::from(self.name)),
            (half, u64::from(self.kind)),
            (own, 0), // flags
            (own, 0), // address
            (own, self.offset_bytes),
            (own, self.size_bytes),
            (half, 0), // link
            (half, 0), // info
            (own, self.align_bytes),
            (own, 0), // size of its entries
        ];
        fields.into_iter().flat_map(|(bytes, value)| number(elf, bytes, value)).collect()
    }
}

/// Gives a section header another place and length.
fn move_section(entry: &mut [u8], elf: &Elf, offset_bytes: u64, size_bytes: u64) {
    let own = word_bytes(elf);
    let place = [offset_bytes, size_bytes].map(|value| number(elf, own, value)).concat();
    // Behind name, kind, flags and address.
    let at = 8 + 2 * own;
    entry[at..at + place.len()].copy_from_slice(&place);
}

/// Sets the four fields of a file header that name the section headers.
fn set_table(head: &mut [u8], elf: &Elf, table: SectionTable) {
    let own = word_bytes(elf);
    // Behind e_ident, kind, machine and version, the entry and the place of the program headers.
    let at = 24 + 2 * own;
    head[at..at + own].copy_from_slice(&number(elf, own, table.offset_bytes));
    let last =
        [table.entry_bytes, table.count, table.names].map(|value| number(elf, 2, value.into())).concat();
    let at = head_bytes(elf) - last.len();
    head[at..at + last.len()].copy_from_slice(&last);
}

/// What addresses and places in the file take.
fn word_bytes(elf: &Elf) -> usize {
    if elf.is_64 { 8 } else { 4 }
}

/// What the file header takes.
fn head_bytes(elf: &Elf) -> usize {
    40 + 3 * word_bytes(elf)
}

/// So many `bytes` of `value`, in the file's byte order.
fn number(elf: &Elf, bytes: usize, value: u64) -> Vec<u8> {
    match elf.endian {
        Endianness::Little => value.to_le_bytes()[..bytes].to_vec(),
        Endianness::Big => value.to_be_bytes()[8 - bytes..].to_vec(),
    }
}

/// Appends a name to a table of names and returns where it stands.
fn push_name(names: &mut Vec<u8>, name: &str) -> u32 {
    if names.last() != Some(&0) {
        names.push(0);
    }
    let at = names.len() as u32;
    names.extend_from_slice(name.as_bytes());
    names.push(0);
    at
}

fn pad(tail: &mut Vec<u8>, before_bytes: u64) {
    let end = (before_bytes + tail.len() as u64).next_multiple_of(ALIGN_BYTES);
    tail.resize((end - before_bytes) as usize, 0);
}

#[cfg(test)]
mod tests;
