//! Profiles that travel: in ELF files, beside them, and from machine to machine.
#![forbid(unsafe_code)]

pub mod replacement;
pub mod section;
