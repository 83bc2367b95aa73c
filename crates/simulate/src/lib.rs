//! Touches of pages, from traces, text files and models, replayed under many policies, devices and memory sizes.
//!
//! ```text
//!  trace file ─┐
//!  text file ──┼─► Input: Layout ─────────────┐
//!  model ──────┘          touches, in parts ──┼─► compare ─► one Simulated for each policy
//!  policies × devices ────────────────────────┘   (a thread a CPU, each with its Replays)
//!
//!  Touch ─► Replay ── mapped? ── yes ─► nothing happens
//!             │         no
//!             ├─ resident ─► soft fault: maps neighbours ──────────────┐
//!             └─ missing ──► hard fault: Policy ─► Cluster ─► Timeline ┴─► Outcome
//! ```
//!
//! | module          | noun                                                                            |
//! |-----------------|---------------------------------------------------------------------------------|
//! | [`input`], [`touch_text`] | touches, and the text they are read from                                  |
//! | [`model`], [`pattern`] | touches that are generated; orders in which a file is read                   |
//! | [`layout`]      | objects, entries, what is resident at the start                                 |
//! | [`replay`]      | objects, entries and what touching their pages does                             |
//! | [`pages`]       | a few bits for each page of an object that may be a terabyte long               |
//! | [`outcome`]     | what happened, counted                                                          |
//! | [`device`]      | what reads cost: disks, flash, network volumes                                  |
//! | [`comparison`], [`mod@sweep`] | policies and devices side by side; one policy with a row of sizes |
//! | [`cost`]        | faults, reads and pages weighed against each other                              |
//! | [`replacement`], [`memory`] | too little memory: LRU, CLOCK, 2Q, S3-FIFO, dont-need, OPT and more; size by size |
//! | [`page`]        | a comparison for the browser                                                    |
//!
//! ```
//! use prepage_simulate::{Contender, Input, Replay, Touch, compare};
//!
//! // The two 12-page clusters that FreeBSD once read, and the third fault between them.
//! let mut replay = Replay::new();
//! let code = replay.add_object(32);
//! let entry = replay.add_entry(code, 0, 32, "around:8:7".parse()?);
//! replay.replay(&[4, 28, 16].map(|page| Touch::new(entry, page)));
//! let outcome = replay.outcome();
//! assert_eq!((outcome.hard, outcome.full_and_truncated()), (3, (0, 3)));
//!
//! // A compiler's code section under both of FreeBSD's policies.
//! let contenders: Vec<Contender> =
//!     ["around:8:7", "aligned:16"].iter().map(|text| Contender::new(text)).collect::<Result<_, _>>()?;
//! let results = compare(&Input::model("code:1".parse()?), &contenders, &Default::default())?;
//! assert_eq!((results[0].outcome.hard, results[1].outcome.hard), (919, 679));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

#[cfg(feature = "files")]
pub mod comparison;
pub mod cost;
mod description;
pub mod device;
mod entry;
pub mod forks;
#[cfg(feature = "files")]
pub mod input;
pub mod layout;
#[cfg(feature = "files")]
pub mod memory;
pub mod model;
pub mod outcome;
#[cfg(feature = "files")]
pub mod page;
pub mod pages;
pub mod pattern;
pub mod replacement;
pub mod replay;
mod resident;
pub mod sweep;
#[cfg(feature = "files")]
pub mod tables;
pub mod timeline;
pub mod touch_text;
#[cfg(feature = "files")]
mod trace_touches;

#[cfg(feature = "files")]
pub use comparison::{Contender, Options, Row, Simulated, compare, rows};
pub use cost::CostModel;
pub use description::DescriptionError;
pub use device::DeviceModel;
#[cfg(feature = "files")]
pub use input::{Input, InputError};
pub use layout::Layout;
pub use outcome::Outcome;
pub use replay::{EntryIndex, ObjectIndex, Progress, Replay, Touch};
pub use sweep::sweep;
pub use timeline::Timeline;
