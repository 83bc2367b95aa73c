//! Learns which pages a program needs when it starts, and brings them in beside its next start.
//!
//! ```text
//!  learn ─ one slow run: Tracer (names, reads) ─┐
//!          page-cache events, faults ───────────┼─► Sightings ─► Findings ─► keep ─► Store
//!  run ─── Watch (faults, stalls) ──────────────┘                                     │
//!  run ─── Store ─► Profile ─► Engine (readers, name threads)      ◄──────────────────┘
//!  measure ─ Chill, `prepage run` and the plain program in turn ─► Figures
//! ```
//!
//! | module                      | noun                                                                     |
//! |-----------------------------|--------------------------------------------------------------------------|
//! | [`launch`]                  | `prepage run`: what happens beside the program                           |
//! | [`engine`]                  | a prefetch under way                                                     |
//! | [`exact`]                   | conditions under which every first touch is a fault                      |
//! | [`store`], [`keep`]         | the profiles of a user; adding to them                                   |
//! | [`identity`]                | whether a file is still the one that was learned                         |
//! | [`learn`], [`tracer`]       | one exact run                                                            |
//! | [`watch`], [`calls`]        | a start as it happens; what a system call wants of files                 |
//! | [`sightings`]               | pages and names seen in use                                              |
//! | [`outcome`]                 | what a start shows of the profile it began with                          |
//! | [`readahead`], [`cold`]     | settings and caches of the machine, restored or told                     |
//! | [`measure`], [`statistics`] | figures                                                                  |
//! | [`calibrate`]               | what a device can do, measured and kept                                  |
//! | [`memory`]                  | how much memory and how many threads there are to use                    |
//! | [`mode`], [`study`]         | before or beside the program, pages or whole files, mapped ahead         |
//! | [`first_start`], [`embedded`], [`sidecar`] | page maps that came with a program and its libraries          |
//! | [`elf`], [`note`], [`libraries`] | ELF files; room in them; what a program is linked to                |
//! | [`trust`]                   | whose word is followed                                                   |
//! | [`account`]                 | what a prefetch has to say of itself                                     |
//! | [`program`], [`doctor`]     | which executable a command means; what this machine allows               |
//!
//! ```
//! use prepage_core::profile::Profile;
//! use prepage_prefetch::engine::{Engine, device_of};
//!
//! let profile = Profile::default(); // as Store::load gives it
//! let engine = Engine::new(&profile, &device_of(&profile));
//! if !engine.is_warm() {
//!     let outcome = engine.run();
//!     println!("{} bytes asked for", outcome.requested_bytes);
//! }
//! ```
#![forbid(unsafe_code)]

pub mod account;
mod attempt;
pub mod calibrate;
pub mod calls;
mod cgroup;
pub mod clock;
pub mod cold;
pub mod doctor;
pub mod elf;
pub mod embedded;
pub mod engine;
pub mod exact;
pub mod first_start;
pub mod identity;
pub mod keep;
pub mod launch;
pub mod learn;
pub mod libraries;
pub mod measure;
pub mod memory;
pub mod mode;
mod news;
pub mod note;
pub mod outcome;
pub mod program;
mod random;
pub mod readahead;
mod resident;
pub mod sidecar;
pub mod sightings;
pub mod statistics;
pub mod store;
pub mod study;
pub mod tracer;
pub mod trust;
pub mod watch;
