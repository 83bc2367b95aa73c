//! Touches of pages replayed under a policy, without a kernel and without reading anything.
//!
//! ```text
//!  Touch ─► Replay ── mapped? ── yes ─► nothing happens
//!             │         no
//!             ├─ resident ─► soft fault: maps neighbours ──────────────┐
//!             └─ missing ──► hard fault: Policy ─► Cluster ─► Timeline ┴─► Outcome
//! ```
//!
//! | module          | noun                                                                         |
//! |-----------------|------------------------------------------------------------------------------|
//! | [`replay`]      | objects, entries and what touching their pages does                          |
//! | [`pages`]       | a few bits for each page of an object that may be a terabyte long            |
//! | [`outcome`]     | what happened, counted                                                       |
//! | [`device`]      | what reads cost: disks, flash, network volumes                               |
//! | [`replacement`] | memory that is too small: FIFO, LRU, OPT, working set, DPMIN                 |
//! | [`model`]       | touches that are generated: a compiler's code section, a file read in a pattern |
//!
//! ```
//! use prepage_core::simulate::{Replay, Touch};
//!
//! // The two 12-page clusters that FreeBSD once read, and the third fault between them.
//! let mut replay = Replay::new();
//! let code = replay.add_object(32, "around:8:7".parse()?);
//! let entry = replay.add_entry(code, 0, 32);
//! for page in [4, 28, 16] {
//!     replay.touch(Touch::new(entry, page));
//! }
//! assert_eq!(replay.finish().hard, 3);
//! # Ok::<(), prepage_core::policy::PolicyError>(())
//! ```

pub mod device;
pub mod model;
pub mod outcome;
pub mod pages;
pub mod replacement;
pub mod replay;

pub use device::{Device, Timeline};
pub use outcome::Outcome;
pub use replay::{EntryIndex, ObjectIndex, Progress, Replay, Touch};
