//! Touches of pages, read from traces and text files, replayed under many policies and devices at once.
//!
//! ```text
//!  trace file ─┐
//!  text file ──┼─► Input: Layout ─────────────┐
//!  model ──────┘          touches, in parts ──┼─► compare ─► one Simulated for each policy
//!  policies × devices ────────────────────────┘   (a thread a CPU)
//! ```
//!
//! What a replay does stands in [`prepage_core::simulate`]; this crate brings it what it needs.
//!
//! | module         | noun                                                                     |
//! |----------------|--------------------------------------------------------------------------|
//! | [`input`]      | objects, entries and the touches on them                                 |
//! | [`touch_text`] | touches in lines of text                                                 |
//! | [`comparison`] | policies and devices side by side                                        |
//! | [`memory`]     | faults with too little memory                                            |
//! | [`sweep`]      | one policy with a row of sizes                                           |
//! | [`page`]       | a comparison for the browser                                             |
//!
//! ```
//! use prepage_simulate::{Contender, Input, compare};
//!
//! let input = Input::model("code:1".parse()?);
//! let contenders: Vec<Contender> =
//!     ["around:8:7", "aligned:16"].iter().map(|text| Contender::new(text)).collect::<Result<_, _>>()?;
//! let results = compare(&input, &contenders, &Default::default())?;
//! assert_eq!((results[0].outcome.hard, results[1].outcome.hard), (919, 679));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod comparison;
pub mod input;
pub mod memory;
pub mod page;
pub mod sweep;
pub mod touch_text;

pub use comparison::{Contender, Options, Row, Simulated, compare, rows};
pub use input::{Input, InputError, Layout};
pub use sweep::sweep;
