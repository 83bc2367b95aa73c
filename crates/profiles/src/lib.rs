//! Where profiles lie, who is believed, and how they travel.
//!
//! ```text
//!  observed starts ─ update ─► store: a user's ─┐ find, relatives   ProgramKey::of(command)
//!  learn, packages ─ update ─► the machine's ───┼─► Profile ─► prefetch
//!                              the vendors' ────┘
//!  profiles ─ embed ─► section or note of an ELF file (a new file, renamed) ─┐ carried: of a program that nobody learned
//!           └ embed ─► sidecar in a layer, named by the file's content ──────┘
//!  profiles ─ bundle ─► one file ─► another machine ─ import ─► what fits there ─► its store
//! ```
//! All of these are one artefact, a [`prepage_core::profile::Profile`], in one format, followed by one rule.
//!
//! Which profile a command means follows one rule, too, whoever asks: **what its process becomes.** That is what a service sees, which
//! knows of no command: the file that the process runs, and its arguments.
//!
//! | command                          | the kernel executes                | program, role                   |
//! |----------------------------------|------------------------------------|---------------------------------|
//! | `gcc -c a.c`, `nice gcc -c a.c`  | the same, behind what runs it      | gcc, `gcc -c *.c`               |
//! | `python3 tool.py`                | the same                           | python3, `python3 tool.py@PLACE` |
//! | `./tool.py`, `#!/bin/python3 -s` | `/bin/python3 -s ./tool.py`        | python3, `python3 -s tool.py@PLACE` |
//! | `./tool.py`, `#!/usr/bin/env python3` | env, then `python3 ./tool.py` | python3, `python3 tool.py@PLACE` |
//! | `./rules`, `#!/usr/bin/make -f`  | `/usr/bin/make -f ./rules`         | make, `make -f rules@PLACE`     |
//! | `./tool`, which `#!./run` runs, which `#!/bin/sh` runs | `/bin/sh ./run ./tool` | sh, `sh run@PLACE tool@PLACE` |
//! | `python3 x.py`, a script of pyenv's that bash runs | `bash /shims/python3 x.py` | bash, `bash python3@PLACE x.py@PLACE` |
//! | `./tool`, without `#!`           | nothing: shells run `sh ./tool`    | sh, `sh tool@PLACE`             |
//!
//! So a script's profile is found by the name of what runs it, whether a shell, a link of `prepage enable` or a user started it. Where the
//! kernel has put the script behind what runs it, the role names it even if nobody knows that program for an interpreter: two scripts
//! never share a role. (What env executes is a command like any other: behind `#!/usr/bin/env X`, of an X that nobody knows, files are
//! told by their kinds alone.) Only its file tells whether a command is a script. So `prepage run` looks for a profile of the command as it
//! stands first, and reads the file if there is none ([`call`]).
//!
//! | module          | noun                                                                |
//! |-----------------|---------------------------------------------------------------------|
//! | [`store`], [`stored`], `store_error` | the stores a user sees; what is found there; what goes wrong |
//! | `layer`, [`room`] | whose knowledge it is, and where; what makes room for more          |
//! | [`key`], [`call`] | which profile a command means; what its process becomes           |
//! | [`program`]     | which executable a command means                                    |
//! | [`script`]      | what runs a script                                                  |
//! | [`identity`]    | whether a file is still the one that was learned                    |
//! | [`mod@at_hand`] | files as far as they are in memory                                  |
//! | `source`  | the number by which a profile names its host                        |
//! | [`trust`]       | whose word is followed                                              |
//! | [`public`]      | what of a profile is for others to have                             |
//! | [`carried`], `libraries` | what came with a program's files                         |
//! | [`mod@embed`], [`sidecar`] | pages into files and beside them                         |
//! | `bytes`, [`elf`], [`elf_names`], `note`, [`section`] | bytes of files; ELF headers, their names; room and sections for pages |
//! | [`replacement`] | a file replaced as a whole                                          |
//! | [`bundle`], [`mod@import`] | several profiles in one file; made to fit this machine   |
//! | [`verify`]      | whether all this still speaks of the files that are there           |
//!
//! ```no_run
//! use prepage_profiles::{ProgramKey, Stores};
//!
//! let key = ProgramKey::of(&["gcc".into(), "-c".into(), "a.c".into()])?;
//! if let Some(found) = Stores::of_user()?.find(&key)? {
//!     println!("{} pages, from the {:?} layer", found.profile.pages(), found.layer);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod at_hand;
pub mod bundle;
mod bytes;
pub mod call;
pub mod carried;
pub mod elf;
pub mod elf_names;
pub mod embed;
pub mod identity;
pub mod import;
pub mod key;
mod layer;
mod libraries;
mod note;
pub mod program;
pub mod public;
pub mod replacement;
pub mod room;
pub mod script;
pub mod section;
pub mod sidecar;
mod source;
pub mod store;
mod store_error;
pub mod stored;
pub mod trust;
pub mod verify;

pub use key::ProgramKey;
pub use layer::{Layer, StartContextPaths};
pub use store::Stores;
pub use store_error::{StoreError, chain};
pub use stored::{FoundProfile, Stored};
