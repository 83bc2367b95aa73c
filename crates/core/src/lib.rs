//! The vocabulary of prepage and the decisions made with it. Pure: no I/O, no threads, no unsafe.
//!
//! ```text
//!  kernel faults ── Fault ──► Trace ──► summary, Parquet (crate trace)
//!                                └────► Profile ──► plan of extents (crate prefetch)
//! ```
//!
//! | module    | noun                                                                      |
//! |-----------|---------------------------------------------------------------------------|
//! | [`page`]  | a 4 KiB unit of an object: [`PageIndex`], [`PageRange`]                   |
//! | [`fault`] | one page fault: when, who, where, class, cost                             |
//! | [`permissions`] | what a mapping allows: `r-xp`                                          |
//! | [`stack`] | where code was when it faulted; which build of it                         |
//! | [`trace`] | a sequence of faults with the objects and threads they speak of           |
//! | [`profile`], [`profile_file`] | which pages and names a program needs at its start; as bytes |
//! | [`extent`], [`counts`] | runs of its pages; how sure it is of them                       |
//! | [`page_map`] | which pages of one file are needed, to travel with the file            |
//! | [`bounds`] | what a profile may ask for at most                                         |
//! | [`merge`] | two profiles made into one                                                |
//! | [`cold_start`], [`gain`] | the last starts; what prefetching was worth in them       |
//! | [`trial`], [`ageing`] | what is worth prefetching and how that is found out; simpler ways |
//! | [`role`], [`shared`] | which of its working sets a call of a program uses; what all have in common |
//! | [`plan`]  | a profile turned into reads                                               |
//! | [`device_figures`] | what a device can do                                             |
//! | [`policy`] | which pages to bring in together when one is missing                     |
//!
//! ```
//! use prepage_core::{PageIndex, PageRange};
//!
//! let cluster = PageRange::new(PageIndex(16), PageIndex(32));
//! assert_eq!(cluster.len(), 16);
//! assert_eq!(cluster.bytes(), 16 * 4096);
//! assert!(cluster.contains(PageIndex(31)) && !cluster.contains(PageIndex(32)));
//! ```
#![forbid(unsafe_code)]

pub mod ageing;
pub mod bounds;
pub mod cold_start;
pub mod counts;
pub mod device_figures;
pub mod extent;
pub mod fault;
pub mod gain;
pub mod merge;
pub mod page;
pub mod page_map;
pub mod permissions;
pub mod plan;
pub mod policy;
pub mod profile;
pub mod profile_file;
mod profile_file_v1;
pub mod role;
pub mod shared;
pub mod simulate;
pub mod stack;
pub mod trace;
pub mod trial;

pub use device_figures::DeviceFigures;
pub use fault::{Fault, FaultClass, FrameNumber};
pub use page::{PAGE_SIZE, PageIndex, PageRange};
pub use permissions::Permissions;
pub use stack::{BuildId, CodePlace, Stack, StackId};
pub use trace::{
    ExactFacts, FilePages, ImportFacts, Object, ObjectId, PageCacheFacts, ReadWait, Thread, ThreadIndex,
    Trace, TraceFacts,
};
