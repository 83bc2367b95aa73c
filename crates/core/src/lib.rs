//! The vocabulary of prepage and the decisions made with it. Pure: no I/O, no threads, no unsafe.
//!
//! ```text
//!  kernel faults ── Fault ──► Trace ──► summary, Parquet (crate trace)
//!  a start ── Observation (crate observe) ──► Profile ──► plan: reads in order ──► crate prefetch
//! ```
//!
//! | module    | noun                                                                      |
//! |-----------|---------------------------------------------------------------------------|
//! | [`page`]  | a 4 KiB unit of an object: [`PageIndex`], [`PageRange`]                   |
//! | [`fault`] | one page fault: when, who, where, class, cost                             |
//! | [`permissions`] | what a mapping allows: `r-xp`                                          |
//! | [`stack`] | where code was when it faulted; which build of it                         |
//! | [`trace`] | a sequence of faults, with the objects and threads that they name         |
//! | [`named!`] | enums whose variants have names                                         |
//! | [`missing`], [`tally`] | what a trace lacks; counts and costs of faults              |
//! | [`profile`] | which pages and names a program needs at its start, with their probabilities |
//! | [`device_figures`] | what a device can do: latency, bandwidth, reads a second         |
//! | [`quantity`] | sizes, times and numbers of things as people write them                  |
//! | [`random`] | numbers that look random and are the same in every run                  |
//! | [`launches`] | which programs a user starts when, and which to expect next               |
//! | [`idle`]  | when to read expected programs ahead, and whether that was worth it         |
//! | [`policy`] | which pages to read together when one is missing                         |
//! | [`density`] | which parts of a file without a profile are likely to be used next       |
//! | [`chain`] | objects that shadow one another: where the pages of a copy-on-write map are |
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

// The example of the README is tested too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod chain;
pub mod density;
pub mod device_figures;
pub mod fault;
pub mod idle;
pub mod launches;
pub mod missing;
mod named;
pub mod page;
pub mod permissions;
pub mod policy;
pub mod profile;
pub mod quantity;
pub mod random;
pub mod stack;
pub mod tally;
pub mod trace;

pub use device_figures::DeviceFigures;
pub use fault::{Fault, FaultClass, FrameNumber};
pub use missing::Missing;
pub use page::{PAGE_SIZE, PageIndex, PageRange};
pub use permissions::Permissions;
pub use stack::{BuildId, CodePlace, Stack, StackId};
pub use tally::Tally;
pub use trace::{
    ExactFacts, FilePages, ImportFacts, Object, ObjectId, PageCacheFacts, ReadWait, Thread, ThreadIndex,
    Trace, TraceFacts,
};
