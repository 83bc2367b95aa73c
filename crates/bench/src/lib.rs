//! The experiments of two studies, repeated and recorded on this machine.
//!
//! **Reading a file.** The study logged every fault of a program that reads a 45 MB file through mmap, one byte at a time: in random order,
//! in sequence, and in strides of one and of 64 pages, from a cold and from a warm cache.
//!
//! ```text
//! Subject (the file) ─► cold or warm, verified ─► Recorder runs `prepage bench access` ─► faults of the file
//!                                                                                           │
//!                     Published (the study's tables) ─► Tallies side by side, figures ◄─────┘
//! ```
//!
//! **Starting a program.** A study of 2008 gave executables a bitmap of needed pages and read them at exec. Its ways to start
//! a program are compared with today's, in turns from a cold cache:
//!
//! ```text
//! profile ─► HeadStart (reads before or beside it) ─► the program, perhaps with EarlyFault (pages mapped ahead)
//!    │ phase 1     │ phase 2                              │ phase 3
//!    └─────────────┴── Bench::start ─► Measured ◄─────────┴── BlockReads, fault classes
//! ```
//!
//! | module         | noun                                                                |
//! |----------------|---------------------------------------------------------------------|
//! | [`Pattern`]    | an order in which all bytes of a file are read                      |
//! | [`mod@access`] | the reading itself                                                  |
//! | [`subject`]    | the file that is read, made cold or warm                            |
//! | [`experiment`] | one recorded run                                                    |
//! | `mapped`     | how many pages each fault maps (fault-around)                       |
//! | [`mod@published`] | what the study counted                                              |
//! | [`reasons`]    | why today's kernel counts otherwise                                 |
//! | [`clusters`]   | clustering policies in time: the VM's and plain reads of a cold file |
//! | [`drive_cache`] | whether a drive gets faster for what it has read, or reads ahead   |
//! | [`linux`]      | Linux's policies as simulated, against the kernel's own counts      |
//! | [`pool`]       | a file twice as large as memory, by the kernel and by the VM's pool |
//! | [`patterns`]   | a large file, records and small files, written and read in three ways |
//! | [`tracking`]   | what it takes to know who maps which page                           |
//! | [`workload`]   | work like that of compilers, under three ways to manage memory      |
//! | [`rates`]      | starts of programs, pages of zeros and a build, a second            |
//! | [`figure`], [`page`] | the study's plots as SVG; all in one HTML file                |
//! | `mode`, `head_start` | what is prefetched, and when: before or beside the program |
//! | [`early_fault`] | pages mapped before the program's first instruction                |
//! | [`start`]      | one start, measured                                                 |
//! | [`block_reads`] | every read that a block device is given                            |
//! | [`measure`]    | what `prepage measure` tells: starts with and without prefetch      |
//! | [`statistics`] | medians, and ratios with their intervals                            |
//! | [`modes`], [`tuning_sweep`] | starts in many ways in turns; with many readers and holes |
//! | [`yardstick`]  | a program learned the slow, exact way                               |
//! | [`bitmap_study`] | what the study of 2008 printed                                    |
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
pub mod bitmap_study;
pub mod block_reads;
pub mod clusters;
mod direct;
pub mod drive_cache;
pub mod early_fault;
mod error;
pub mod experiment;
pub mod figure;
mod head_start;
pub mod linux;
mod mapped;
pub mod measure;
mod mode;
pub mod modes;
pub mod page;
pub mod patterns;
pub mod pool;
pub mod published;
pub mod rates;
pub mod reasons;
pub mod start;
pub mod statistics;
pub mod subject;
pub mod tracking;
pub mod tuning_sweep;
pub mod workload;
pub mod yardstick;

pub use access::access;
pub use error::BenchError;
pub use experiment::{Experiment, FileFault, Run};
pub use mapped::{MappedPages, mapped_pages};
pub use prepage_simulate::pattern::Pattern;
pub use published::{Published, published};
pub use subject::{Cache, Subject, SubjectError};

pub use prepage_simulate::model::FILE_PAGES as STUDY_PAGES;
