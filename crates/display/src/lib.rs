//! How results are shown: the one place that writes HTML, SVG, tables and numbers for `report`, `simulate` and `bench`.
//!
//! ```text
//!  rows of figures ─► table::Table ───► aligned columns on a terminal
//!                  ├► html::Document ─► one file: style, tables, data, scripts
//!                  └► svg::Plot ──────► a picture without scripts
//! ```
//!
//! | module       | noun                                                               |
//! |--------------|--------------------------------------------------------------------|
//! | [`html`]     | a page for the browser that needs neither network nor other files  |
//! | [`svg`]      | plots of dots between two axes                                      |
//! | [`table`]    | rows under headings, for a terminal or a page                      |
//! | [`terminal`] | text that a terminal shows as it is                                |
//! | [`number`]   | times and shares as tables print them                               |
//! | [`run`]      | the recorded run: command line, start, footer                       |
//!
//! ```
//! use prepage_display::html::Document;
//! use prepage_display::table::table;
//!
//! let mut page = Vec::new();
//! let mut document = Document::begin(&mut page, "<demo>", "")?;
//! document.header("prepage demo", "<demo>", &["1 fault".to_owned()])?;
//! let mut faults = table(&["class", "count"], &[1]);
//! faults.add_row(["disk", "1"]);
//! document.table("Faults by class", &faults)?;
//! document.footer(&["made by hand".to_owned()])?;
//! document.end(&serde_json::Value::Null, &[])?;
//! assert!(String::from_utf8_lossy(&page).contains("<h1>&lt;demo&gt;</h1>"));
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

pub mod html;
pub mod number;
pub mod run;
pub mod svg;
pub mod table;
pub mod terminal;
