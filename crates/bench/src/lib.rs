//! The file-access experiments of a page-fault study, repeated and recorded on this machine.
//!
//! The study logged every fault of a program that reads a 45 MB file through mmap, one byte at a time: in random order,
//! in sequence, and in strides of one and of 64 pages, from a cold and from a warm cache.
//!
//! ```text
//! Subject (the file) ─► cold or warm, verified ─► Recorder runs `prepage bench access` ─► faults of the file
//!                                                                                           │
//!                     Published (the study's tables) ─► Tallies side by side, figures ◄─────┘
//! ```
//!
//! | module         | noun                                                                |
//! |----------------|---------------------------------------------------------------------|
//! | [`pattern`]    | an order in which all bytes of a file are read                      |
//! | [`access`]     | the reading itself                                                  |
//! | [`subject`]    | the file that is read, made cold or warm                            |
//! | [`experiment`] | one recorded run                                                    |
//! | [`mapped`]     | how many pages each fault maps (fault-around)                       |
//! | [`published`]  | what the study counted                                              |
//! | [`reasons`]    | why today's kernel counts otherwise                                 |
//! | [`figure`], [`page`] | the study's plots as SVG; all in one HTML file                |
//!
//! ```
//! use prepage_bench::Pattern;
//!
//! let mut order = Vec::new();
//! Pattern::Stride { pages: 2 }.each(4 * 4096, 0, |offset| order.push(offset));
//! assert_eq!(order[..4], [0, 8192, 4096, 12288]); // two sweeps over the pages, then the next byte of each
//! assert_eq!(order.len(), 4 * 4096);
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod experiment;
pub mod figure;
pub mod mapped;
pub mod page;
pub mod pattern;
pub mod published;
pub mod reasons;
pub mod subject;

pub use access::{AccessError, access};
pub use experiment::{Class, Experiment, ExperimentError, FileFault, Run, Tally};
pub use mapped::{MappedPages, mapped_pages};
pub use pattern::Pattern;
pub use published::{Published, published};
pub use subject::{Cache, Subject, SubjectError};

/// Pages of the study's file.
pub const STUDY_PAGES: u64 = 11_300;
