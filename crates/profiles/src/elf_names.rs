//! Numbers of ELF headers as elf(5) calls them.

use crate::carried::SECTION_TYPE;
use crate::elf::Elf;
use object::elf::{FileType, Machine, ProgramType, SectionFlags, SectionType, machine_names};

/// `ET_DYN` and the like.
pub fn kind(elf: &Elf) -> String {
    named(machine_names(Machine(elf.machine)).et.name(FileType(elf.kind)), u64::from(elf.kind))
}

/// `PT_LOAD` and the like.
pub fn segment(elf: &Elf, kind: u32) -> String {
    named(machine_names(Machine(elf.machine)).pt.name(ProgramType(kind)), u64::from(kind))
}

/// `SHT_PROGBITS` and the like.
pub fn section(elf: &Elf, kind: u32) -> String {
    if kind == SECTION_TYPE {
        return "PREPAGE_MAP".into();
    }
    named(machine_names(Machine(elf.machine)).sht.name(SectionType(kind)), u64::from(kind))
}

/// `r-x` for the low bits of `p_flags`.
pub fn permissions(flags: u32) -> String {
    [(4, 'r'), (2, 'w'), (1, 'x')]
        .map(|(bit, name)| if flags & bit != 0 { name } else { '-' })
        .iter()
        .collect()
}

/// `ALLOC|EXECINSTR` and the like.
pub fn section_flags(elf: &Elf, flags: u64) -> String {
    let mut names = Vec::new();
    let rest = machine_names(Machine(elf.machine)).shf.names(SectionFlags(flags), |_, name| {
        names.push(name.trim_start_matches("SHF_").to_owned());
    });
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    names.join("|")
}

/// Without the prefix that says what kind of number it is.
fn named(name: Option<&'static str>, number: u64) -> String {
    match name {
        Some(name) => name.split_once('_').map_or(name, |(_, short)| short).into(),
        None => format!("{number:#x}"),
    }
}
