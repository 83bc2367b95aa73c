//! What one start of a program uses, observed in passing: exactly, from a cold or a warm cache, by any user.
//!
//! ```text
//!  agent, visit ─► Armer ─ arms mappings from outside ─┐ which were armed when
//!  perf: faults ────────────► Faults, or DiskFaults ───┤
//!  page tables ─────────────► PageTables, Endings ─────┼─► Sightings ─► Observation
//!  the agent's log ─────────► Inside (names, reads) ───┤
//!  stalled calls, where no agent goes ─► Stalls ───────┤
//!  what a Follower sees (the service: opened files) ───┘
//! ```
//! An armed mapping ([`prepage_sys::agent`], [`prepage_sys::arm`]) takes one fault for each page's first touch, so that its
//! faults are the pages used, in order. Where a process may not be armed (setuid, sandboxed, traced), its faults name
//! windows of pages, and the observation says so.
//!
//! Page tables show what programs with an agent touch, and each process tells its own as it ends; perf tells when it waited for a
//! device. No program waits for perf, which takes up to 20 ms to be ready (`primer`). Where no agent goes, faults show what is touched.
//!
//! | module          | noun                                                                    |
//! |-----------------|-------------------------------------------------------------------------|
//! | `observer`    | a start under observation, and who follows it (`Follower`)              |
//! | `until`, `silence` | when it is over                                                  |
//! | `armer`       | arming each address space and mapping as it appears                     |
//! | `file_systems`  | what is a file on a device, of all that is mapped                       |
//! | `loading`       | a program that is being set up                                          |
//! | `loads`         | what is touched of programs and libraries before they are armed          |
//! | `armed`       | what was armed when                                                     |
//! | `arming`      | the thread that does it, where perf tells of mappings                   |
//! | `disk_faults` | when pages were used, as perf tells of faults that wait for a device     |
//! | [`faults`]      | pages in use, as perf tells them, where no agent goes                    |
//! | `primer`        | the wait for perf                                                       |
//! | `page_tables` | pages in use, where an agent goes or perf is forbidden                   |
//! | `endings`       | what processes tell before their page tables go                         |
//! | `runs`          | sets of addresses                                                       |
//! | `inside`      | names and reads, as the agent tells them                                |
//! | `target`        | which programs an agent goes into                                       |
//! | `stalls`, [`calls`] | names and reads that threads are found asleep in                  |
//! | [`elsewhere`]   | processes for which a name means another file                             |
//! | [`asks`]        | file systems that may never answer                                      |
//! | `began`         | what was made during the start, and is of no use to the next            |
//! | [`sightings`]   | all of it, made into an [`prepage_core::profile::observation::Observation`]      |
//! | `exact`       | a command whose every first touch is a fault, for recorders             |
//!
//! ```no_run
//! use std::time::Duration;
//! use prepage_observe::{ObserveOptions, Observer, Until};
//!
//! let pid = 1234; // waits for leave to execute its program
//! let observer = Observer::attach(pid, &ObserveOptions::default())?;
//! let until = Until::ended_or(pid, Duration::from_secs(30))?;
//! let observation = observer.follow(&until);
//! println!("{} files, {:?}", observation.files.len(), observation.coverage);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod armed;
mod armer;
mod arming;
pub mod asks;
mod began;
pub mod calls;
mod disk_faults;
pub mod elsewhere;
mod endings;
mod exact;
pub mod faults;
mod file_systems;
mod inside;
mod loading;
mod loads;
mod memory;
mod observer;
mod page_tables;
mod primer;
mod runs;
pub mod sightings;
mod silence;
mod stalls;
mod target;
mod until;

pub use exact::Exact;
pub use observer::{Follower, ObserveError, ObserveOptions, Observer};
pub use silence::Silence;
pub use until::Until;
