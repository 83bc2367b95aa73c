//! Which pages of files are in memory, bringing them in, and sending them out.
//!
//! ```text
//!  paths, directories, profiles ─► Walk ─ Spot ─► Opened ─► Residency (mincore, cachestat)
//!                                                   ├─► warm:  absent pages, 16 readers ─► Residency again
//!                                                   └─► evict: write back, drop ─► Residency again ─► why not
//! ```
//!
//! | module        | noun                                                     |
//! |---------------|----------------------------------------------------------|
//! | [`range`]     | sizes and byte ranges as people write them               |
//! | [`walk`]      | the files that paths, directories and profiles stand for |
//! | [`target`]    | a file and the pages of it that are meant                |
//! | [`residency`] | which pages of a file are in memory                      |
//! | [`mod@warm`]  | bringing pages in                                        |
//! | [`mod@evict`] | sending pages out                                        |
//! | [`cold`]      | the cache made cold for a program, and whether it is     |
//! | [`users`]     | the processes that keep a file's pages in memory         |
//!
//! ```
//! use prepage_residency::{Residency, Spot};
//!
//! let opened = Spot::file("/proc/self/exe").open()?;
//! let residency = Residency::of(&opened)?;
//! println!("{} of {} pages are in memory", residency.resident_pages(), opened.pages());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod cold;
pub mod evict;
pub mod range;
pub mod residency;
pub mod target;
pub mod users;
pub mod walk;
pub mod warm;

pub use evict::{Evicted, evict};
pub use range::{ByteRange, RangeError, parse_size};
pub use residency::{Residency, ResidencyError};
pub use target::{Opened, Passed, Spot, TargetError};
pub use users::{User, Users};
pub use walk::Walk;
pub use warm::{Stopped, Warmed, warm};
