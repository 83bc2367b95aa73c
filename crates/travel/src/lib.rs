//! Profiles that travel: in ELF files, beside them, and from machine to machine.
//!
//! ```text
//!  profiles ─ map ─► PageMap ─┬─ embed ─► section of the ELF file (a new file, renamed)   ─┐ read by `prepage run`
//!                             └─ embed ─► sidecar, named by the file's content           ─┘ (prepage_prefetch::embedded)
//!  profiles ─ bundle ─► one file ─► another machine ─ import ─► what fits there ─► its store
//!  verify: what any of these says, against the files that are there
//! ```
//!
//! | module          | noun                                                     |
//! |-----------------|----------------------------------------------------------|
//! | [`map`]         | the page map of a file, from what was learned            |
//! | [`section`]     | a section added to an ELF file, and taken out again      |
//! | [`replacement`] | a file replaced as a whole                               |
//! | [`mod@embed`]   | page maps into files and beside them                     |
//! | [`bundle`]      | several profiles in one file; merging them               |
//! | [`mod@import`]  | profiles from elsewhere, made to fit this machine        |
//! | [`verify`]      | whether they still speak of the files that are there     |
//! | [`names`]       | numbers of ELF headers as people call them               |
#![forbid(unsafe_code)]

pub mod bundle;
pub mod embed;
pub mod import;
pub mod map;
pub mod names;
pub mod replacement;
pub mod section;
pub mod verify;
