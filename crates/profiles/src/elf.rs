//! ELF files, as far as prefetching needs them: segments, sections, and what an executable is linked to.
//!
//! Nothing is mapped and little is read: the first page, which the kernel reads to execute the file anyway, and the
//! tables it points to. Every number in the file may lie; each is bounded before it is used.

use std::io;

use object::Endianness;
use object::elf::{
    DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, FileHeader32, FileHeader64, PF_W, PF_X,
    PT_DYNAMIC, PT_INTERP, PT_LOAD, SHN_LORESERVE, SHT_NOBITS,
};
use object::pod::slice_from_bytes;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use prepage_core::{PAGE_SIZE, PageRange};

use crate::bytes::Bytes;

/// The largest table of section names, and of dynamic entries. Those of the largest programs are a hundred times
/// smaller.
const TABLE_BYTES_MAX: u64 = 1 << 20;
/// Names of libraries and directories read from one file.
const NAMES_MAX: usize = 256;

/// Why a file cannot be used as an ELF file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// It is none.
    #[error("not an ELF file")]
    Foreign,
    /// It contradicts itself.
    #[error("malformed ELF file: {0}")]
    Malformed(&'static str),
    /// It cannot be read.
    #[error("cannot be read")]
    Io(#[from] io::Error),
}

/// One program header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// `p_type`.
    pub kind: u32,
    /// `p_flags`.
    pub flags: u32,
    /// Where its bytes are in the file.
    pub offset_bytes: u64,
    /// Its address.
    pub address: u64,
    /// Bytes in the file.
    pub file_bytes: u64,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// `p_align`.
    pub align_bytes: u64,
}

impl Segment {
    /// Whether it is loaded to be written to.
    pub const fn is_written(&self) -> bool {
        self.kind == PT_LOAD.0 && self.flags & PF_W.0 != 0
    }
}

/// One section header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// Its name; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// `sh_type`.
    pub kind: u32,
    /// `sh_flags`.
    pub flags: u64,
    /// Its address; 0 where it is not loaded.
    pub address: u64,
    /// Where its bytes are in the file.
    pub offset_bytes: u64,
    /// How many there are.
    pub size_bytes: u64,
}

impl Section {
    /// One past its last byte in the file.
    pub fn file_end_bytes(&self) -> u64 {
        if self.kind == SHT_NOBITS.0 { 0 } else { self.offset_bytes.saturating_add(self.size_bytes) }
    }
}

/// The table of section headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SectionTable {
    /// Where it is in the file.
    pub offset_bytes: u64,
    /// Entries.
    pub count: u16,
    /// Which of them holds the names.
    pub names: u16,
    /// Bytes of one entry.
    pub entry_bytes: u16,
}

impl SectionTable {
    /// Bytes of all entries.
    pub fn bytes(self) -> u64 {
        u64::from(self.count) * u64::from(self.entry_bytes)
    }

    /// One past its last byte; 0 where there is none.
    pub fn end_bytes(self) -> u64 {
        if self.count == 0 { 0 } else { self.offset_bytes.saturating_add(self.bytes()) }
    }
}

/// The head of an ELF file.
#[derive(Clone, Debug)]
pub struct Elf {
    /// Whether it is an ELF file of 64 bits.
    pub is_64: bool,
    /// Its byte order.
    pub endian: Endianness,
    /// `e_type`.
    pub kind: u16,
    /// `e_machine`.
    pub machine: u16,
    /// `e_entry`.
    pub entry: u64,
    /// One past the last byte of the program headers.
    pub segments_end_bytes: u64,
    /// The program headers.
    pub segments: Vec<Segment>,
    /// Where the section headers are.
    pub section_table: SectionTable,
    /// The GNU build-id.
    pub build_id: Option<Vec<u8>>,
}

/// What an executable or library is linked to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links {
    /// The program that loads it (`PT_INTERP`).
    pub interpreter: Option<String>,
    /// Names of libraries (`DT_NEEDED`).
    pub needed: Vec<String>,
    /// Directories to look in first (`DT_RUNPATH`, else `DT_RPATH`), colons between them.
    pub run_path: Option<String>,
}

/// The dynamic table of an executable or library. Without one, as in a static program, nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dynamic {
    /// Where its names stand: offset and size.
    strings: (u64, u64),
    /// Names of libraries, and of directories to look in first: each where it begins among the names.
    needed: Vec<u64>,
    run_path: Option<u64>,
}

/// Symbols and names; larger tables are looked into here and there only.
const TABLES_BYTES_MAX: u64 = 256 << 10;
/// Segments that are written to: linkers make up to three.
const WRITTEN_MAX: usize = 4;
/// Data that relocations change; of what is larger, few starts use all.
const DATA_BYTES_MAX: u64 = 4 << 20;

impl Elf {
    /// Reads the head of `bytes`.
    ///
    /// # Errors
    /// When it is no ELF file, contradicts itself or cannot be read.
    pub fn parse<B: Bytes + ?Sized>(bytes: &B) -> Result<Self, ElfError> {
        let mut head = vec![0; PAGE_SIZE as usize];
        let read = bytes.read_at(0, &mut head)?;
        head.truncate(read);
        match head.get(4) {
            Some(&class) if head.starts_with(b"\x7fELF") && class == object::elf::ELFCLASS64.0 => {
                Self::of::<FileHeader64<Endianness>, B>(&head, bytes)
            }
            Some(_) if head.starts_with(b"\x7fELF") => Self::of::<FileHeader32<Endianness>, B>(&head, bytes),
            _ => Err(ElfError::Foreign),
        }
    }

    fn of<H, B>(head: &[u8], bytes: &B) -> Result<Self, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
        B: Bytes + ?Sized,
    {
        let header = H::parse(head).map_err(|_| ElfError::Malformed("file header"))?;
        let endian = header.endian().map_err(|_| ElfError::Malformed("byte order"))?;
        let count = header.e_phnum(endian);
        let offset: u64 = header.e_phoff(endian).into();
        let size = u64::from(count) * size_of::<H::ProgramHeader>() as u64;
        if count > 0 && usize::from(header.e_phentsize(endian)) != size_of::<H::ProgramHeader>() {
            return Err(ElfError::Malformed("size of a program header"));
        }
        if count > 0 && offset < size_of::<H>() as u64 {
            return Err(ElfError::Malformed("program headers within the file header"));
        }
        let table = read_part(bytes, offset, size)?;
        let (headers, _) = slice_from_bytes::<H::ProgramHeader>(&table, usize::from(count))
            .map_err(|()| ElfError::Malformed("program headers"))?;
        let segment = |header: &H::ProgramHeader| Segment {
            kind: header.p_type(endian).0,
            flags: header.p_flags(endian).0,
            offset_bytes: header.p_offset(endian).into(),
            address: header.p_vaddr(endian).into(),
            file_bytes: header.p_filesz(endian).into(),
            memory_bytes: header.p_memsz(endian).into(),
            align_bytes: header.p_align(endian).into(),
        };
        Ok(Self {
            is_64: header.is_type_64(),
            endian,
            kind: header.e_type(endian).0,
            machine: header.e_machine(endian).0,
            entry: header.e_entry(endian).into(),
            segments_end_bytes: offset.saturating_add(size),
            segments: headers.iter().map(segment).collect(),
            section_table: SectionTable {
                offset_bytes: header.e_shoff(endian).into(),
                count: header.e_shnum(endian),
                names: header.e_shstrndx(endian).0,
                entry_bytes: header.e_shentsize(endian),
            },
            build_id: prepage_trace::build_id(head).map(<[u8]>::to_vec),
        })
    }

    /// Reads the section headers; none where the file has none.
    ///
    /// # Errors
    /// When the table contradicts the file or cannot be read.
    pub fn sections<B: Bytes + ?Sized>(&self, bytes: &B) -> Result<Vec<Section>, ElfError> {
        if self.is_64 {
            self.sections_of::<FileHeader64<Endianness>, B>(bytes)
        } else {
            self.sections_of::<FileHeader32<Endianness>, B>(bytes)
        }
    }

    fn sections_of<H, B>(&self, bytes: &B) -> Result<Vec<Section>, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
        B: Bytes + ?Sized,
    {
        let (table, endian) = (self.section_table, self.endian);
        if table.count == 0 && table.offset_bytes == 0 {
            return Ok(Vec::new());
        }
        if table.count == 0 || table.names >= SHN_LORESERVE || table.names >= table.count {
            return Err(ElfError::Malformed("number of sections (or more of them than prepage reads)"));
        }
        if usize::from(table.entry_bytes) != size_of::<H::SectionHeader>() {
            return Err(ElfError::Malformed("size of a section header"));
        }
        let entries = read_part(bytes, table.offset_bytes, table.bytes())?;
        let (headers, _) = slice_from_bytes::<H::SectionHeader>(&entries, usize::from(table.count))
            .map_err(|()| ElfError::Malformed("section headers"))?;
        let names = &headers[usize::from(table.names)];
        let names_bytes: u64 = names.sh_size(endian).into();
        if names_bytes > TABLE_BYTES_MAX {
            return Err(ElfError::Malformed("section names of more than 1 MiB"));
        }
        let names = read_part(bytes, names.sh_offset(endian).into(), names_bytes)?;
        let section = |header: &H::SectionHeader| Section {
            name: string_at(&names, u64::from(header.sh_name(endian))).unwrap_or_default(),
            kind: header.sh_type(endian).0,
            flags: header.sh_flags(endian).0,
            address: header.sh_addr(endian).into(),
            offset_bytes: header.sh_offset(endian).into(),
            size_bytes: header.sh_size(endian).into(),
        };
        Ok(headers.iter().map(section).collect())
    }

    /// Reads the name of the program that loads it; `None` of a static program, and of most libraries.
    ///
    /// # Errors
    /// When it lies past the end of the file, or cannot be read.
    pub fn interpreter<B: Bytes + ?Sized>(&self, bytes: &B) -> Result<Option<String>, ElfError> {
        let Some(segment) = self.segment(PT_INTERP.0) else { return Ok(None) };
        let path = read_part(bytes, segment.offset_bytes, segment.file_bytes.min(PAGE_SIZE))?;
        Ok(string_at(&path, 0))
    }

    /// Reads the dynamic table.
    ///
    /// # Errors
    /// When it contradicts the file or cannot be read.
    pub fn dynamic<B: Bytes + ?Sized>(&self, bytes: &B) -> Result<Dynamic, ElfError> {
        if self.is_64 {
            self.dynamic_of::<FileHeader64<Endianness>, B>(bytes)
        } else {
            self.dynamic_of::<FileHeader32<Endianness>, B>(bytes)
        }
    }

    fn dynamic_of<H, B>(&self, bytes: &B) -> Result<Dynamic, ElfError>
    where
        H: FileHeader<Endian = Endianness>,
        B: Bytes + ?Sized,
    {
        let mut found = Dynamic::default();
        let Some(dynamic) = self.segment(PT_DYNAMIC.0) else { return Ok(found) };
        if dynamic.file_bytes > TABLE_BYTES_MAX {
            return Err(ElfError::Malformed("dynamic table of more than 1 MiB"));
        }
        let table = read_part(bytes, dynamic.offset_bytes, dynamic.file_bytes)?;
        let (entries, _) = slice_from_bytes::<H::Dyn>(&table, table.len() / size_of::<H::Dyn>())
            .map_err(|()| ElfError::Malformed("dynamic table"))?;
        let (mut run_path, mut old_path) = (None, None);
        let (mut strings, mut strings_bytes) = (0, 0);
        for entry in entries {
            let value: u64 = entry.d_val(self.endian).into();
            match entry.d_tag(self.endian) {
                DT_NULL => break,
                DT_NEEDED if found.needed.len() < NAMES_MAX => found.needed.push(value),
                DT_RUNPATH => run_path = Some(value),
                DT_RPATH => old_path = Some(value),
                DT_STRTAB => strings = value,
                DT_STRSZ => strings_bytes = value,
                _ => {}
            }
        }
        let Some(strings_at) = self.offset_of(strings) else { return Ok(Dynamic::default()) };
        found.strings = (strings_at, strings_bytes);
        found.run_path = run_path.or(old_path);
        Ok(found)
    }

    /// Reads what the file is linked to, as its `dynamic` table says. The loader reads the same pages.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn links<B: Bytes + ?Sized>(&self, dynamic: &Dynamic, bytes: &B) -> Result<Links, ElfError> {
        let (strings, strings_bytes) = dynamic.strings;
        // Of a table that may be large, only the pages of the names that are wanted.
        let name = |at: u64| {
            let mut text = vec![0; 4096.min(strings_bytes.saturating_sub(at)) as usize];
            let read = bytes.read_at(strings.saturating_add(at), &mut text).ok()?;
            string_at(&text[..read], 0)
        };
        Ok(Links {
            interpreter: self.interpreter(bytes)?,
            needed: dynamic.needed.iter().filter_map(|&at| name(at)).collect(),
            run_path: dynamic.run_path.and_then(name),
        })
    }

    /// Whether `name` is one of the names of the `dynamic` table, which are those of symbols and of versions, too.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn has_name<B: Bytes + ?Sized>(
        &self,
        dynamic: &Dynamic,
        name: &str,
        bytes: &B,
    ) -> Result<bool, ElfError> {
        let (strings, strings_bytes) = dynamic.strings;
        let names = read_part(bytes, strings, strings_bytes.min(TABLES_BYTES_MAX))?;
        Ok(names.split(|&byte| byte == 0).any(|one| one == name.as_bytes()))
    }

    /// Pages of the file that the loader needs to link it: symbols, names and relocations, which linkers put into a segment of their own at the
    /// beginning, and what is loaded to be written to, as data, tables of addresses and the dynamic table are.
    pub fn linked_pages(&self) -> impl Iterator<Item = PageRange> {
        let loaded = || self.segments.iter().filter(|segment| segment.kind == PT_LOAD.0);
        let is_table = |segment: &&Segment| segment.flags & (PF_W.0 | PF_X.0) == 0;
        let is_written = |segment: &&Segment| segment.is_written() && segment.file_bytes <= DATA_BYTES_MAX;
        let tables = loaded().take(1).filter(is_table);
        let pages = |segment: &Segment, bytes| {
            PageRange::covering(segment.offset_bytes, segment.file_bytes.min(bytes))
        };
        let written = self.segments.iter().filter(is_written).take(WRITTEN_MAX);
        tables
            .map(move |segment| pages(segment, TABLES_BYTES_MAX))
            .chain(written.map(move |segment| pages(segment, u64::MAX)))
    }

    fn segment(&self, kind: u32) -> Option<&Segment> {
        self.segments.iter().find(|segment| segment.kind == kind)
    }

    /// Where in the file the byte loaded at `address` is.
    fn offset_of(&self, address: u64) -> Option<u64> {
        let holds = |segment: &&Segment| {
            segment.kind == PT_LOAD.0
                && address.checked_sub(segment.address).is_some_and(|into| into < segment.file_bytes)
        };
        let segment = self.segments.iter().find(holds)?;
        segment.offset_bytes.checked_add(address - segment.address)
    }
}

/// All of `[offset, offset + size)`, which must lie in the file.
fn read_part<B: Bytes + ?Sized>(bytes: &B, offset: u64, size: u64) -> Result<Vec<u8>, ElfError> {
    if offset.checked_add(size).is_none_or(|end| end > bytes.len_bytes()) {
        return Err(ElfError::Malformed("a table past the end of the file"));
    }
    // At most 65,535 headers, or what the caller bounded.
    let mut part = vec![0; size as usize];
    if bytes.read_at(offset, &mut part)? < part.len() {
        return Err(ElfError::Malformed("a table past the end of the file"));
    }
    Ok(part)
}

/// The string that begins at `at` and ends with a zero byte.
fn string_at(bytes: &[u8], at: u64) -> Option<String> {
    let from = bytes.get(usize::try_from(at).ok()?..)?;
    let end = from.iter().position(|&byte| byte == 0)?;
    Some(String::from_utf8_lossy(&from[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use prepage_core::PageIndex;

    use super::*;

    #[test]
    fn a_shell_is_linked_to_libc_and_has_text() {
        let file = std::fs::File::open("/bin/sh").unwrap();
        let elf = Elf::parse(&file).unwrap();
        let sections = elf.sections(&file).unwrap();
        let text = sections.iter().find(|section| section.name == ".text").unwrap();
        assert!(text.size_bytes > 1000 && text.address > 0);
        let links = elf.links(&elf.dynamic(&file).unwrap(), &file).unwrap();
        assert!(links.needed.iter().any(|name| name.starts_with("libc.so")), "{links:?}");
        assert!(links.interpreter.unwrap().contains("ld-linux"));
        assert_eq!(elf.build_id.unwrap().len(), 20);
    }

    #[test]
    fn what_the_loader_needs_is_a_part_of_a_large_file() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let elf = Elf::parse(&file).unwrap();
        let linked: Vec<PageRange> = elf.linked_pages().collect();
        let pages: u64 = linked.iter().map(|range| range.len()).sum();
        assert!((2..file.len_bytes() / PAGE_SIZE / 2).contains(&pages), "{linked:?}");
        let page = PageIndex::containing(elf.segment(PT_DYNAMIC.0).unwrap().offset_bytes);
        let holds_table = linked.iter().any(|range| range.contains(page));
        assert!(holds_table, "the loader writes to the dynamic table: {linked:?}");
    }

    #[test]
    fn what_is_no_elf_file_is_told() {
        assert!(matches!(Elf::parse(&b"#!/bin/sh\n"[..]), Err(ElfError::Foreign)));
        assert!(matches!(Elf::parse(&b"\x7fELF\x02"[..]), Err(ElfError::Malformed(_))));
        assert!(matches!(Elf::parse(&b""[..]), Err(ElfError::Foreign)));
    }

    #[test]
    fn tables_past_the_end_are_refused() {
        let whole = std::fs::read("/bin/sh").unwrap();
        let cut = &whole[..whole.len() / 2];
        let elf = Elf::parse(cut).unwrap();
        assert!(matches!(elf.sections(cut), Err(ElfError::Malformed(_))));
        let mut lying = whole[..4096].to_vec();
        // e_phoff
        lying[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(matches!(Elf::parse(&lying[..]), Err(ElfError::Malformed(_))));
        lying[32..40].copy_from_slice(&8u64.to_le_bytes());
        assert!(matches!(Elf::parse(&lying[..]), Err(ElfError::Malformed(_))), "one header within the other");
    }
}
