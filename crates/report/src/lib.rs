//! What a trace of page faults says: tables, an HTML report, exports, comparisons.
//!
//! ```text
//!  TraceFile ─► Report (tallies by class, file, thread …) ─► text, JSON, HTML, Diff
//! ```
//!
//! | module     | noun                                                       |
//! |------------|------------------------------------------------------------|
//! | [`filter`] | which faults are of interest                               |
//! | [`report`] | one pass over a trace, on all CPUs, into tallies           |
//! | [`costs`]    | counts, costs and percentiles of the faults of one kind    |
//! | [`by`]     | the ways to group faults                                   |
//! | `choice`     | which faults stand for all, where all would be too many     |
//! | [`mod@column`] | the figures of a group                                     |
//! | [`cost`]   | how many faults cost how much                              |
//! | [`symbols`] | names for places in code                                  |
//! | [`text`]   | reports for the terminal                                   |
//! | [`diff`]   | two traces compared                                        |
//! | [`export`] | the formats of other tools                                 |
//! | [`html`]   | reports for the browser                                    |
//! | [`json`]   | reports for programs                                       |
//!
//! ```no_run
//! use prepage_report::{By, Options, Report, text};
//! use prepage_trace::parquet::TraceFile;
//!
//! let file = TraceFile::open("prepage.parquet".as_ref())?;
//! let report = Report::read(&file, &Options::default())?;
//! text::grouped(&report, By::File, 10, &text::TABLE_COLUMNS, None, &mut std::io::stdout())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod by;
mod choice;
pub mod column;
pub mod cost;
pub mod costs;
pub mod diff;
pub mod export;
pub mod filter;
pub mod html;
pub mod json;
pub mod page_cache;
pub mod report;
pub mod symbols;
pub mod text;

pub use by::By;
pub use column::Column;
pub use costs::Costs;
pub use diff::{Diff, Measure};
pub use filter::Filter;
pub use report::{Options, Report, UNKNOWN};
