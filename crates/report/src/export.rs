//! Faults in the formats of other tools.

mod csv;
mod firefox;
mod folded;
mod perfetto;
mod process_names;
mod protobuf;

use std::io::{self, Write};

use prepage_trace::parquet::{TraceFile, TraceFileError};

use crate::filter::Filter;

prepage_core::named! {
    /// A format of another tool.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Format {
        /// Perfetto's protobuf: a track for each thread, a slice for each fault. For <https://ui.perfetto.dev>.
        Perfetto = "perfetto",
        /// The Firefox Profiler's processed profile: markers and samples. For <https://profiler.firefox.com>.
        Firefox = "firefox",
        /// A line for each stack, and its weight. For flamegraph.pl, inferno and speedscope.
        Folded = "folded",
        /// A line for each fault, with the trace's columns.
        Csv = "csv",
    }
}

prepage_core::named! {
    /// What a stack weighs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub enum Weight {
        /// The number of its faults.
        #[default]
        Count = "count",
        /// Their cost in nanoseconds: integers, as readers of folded stacks expect, that lose no short fault.
        Cost = "cost",
    }
}

/// Faults could not be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceFileError),
    /// Stacks were to weigh what their faults cost, which is not known of any.
    #[error("the costs of these faults are not known")]
    NoCosts,
    /// The output cannot be written.
    #[error("not exported")]
    Output(#[from] io::Error),
}

/// Writes the faults of `file` that `filter` lets pass. `weight` is that of folded stacks. Returns what share of which
/// faults was written, where it was not all: of more than half a million faults, the Firefox Profiler gets some.
///
/// # Errors
/// What cannot be read or written.
pub fn export(
    file: &TraceFile,
    filter: &Filter,
    format: Format,
    weight: Weight,
    out: &mut dyn Write,
) -> Result<Vec<String>, ExportError> {
    match format {
        Format::Perfetto => perfetto::write(file, filter, out)?,
        Format::Firefox => return firefox::write(file, filter, out),
        Format::Folded => folded::write(file, filter, weight, out)?,
        Format::Csv => csv::write(file, filter, out)?,
    }
    Ok(Vec::new())
}
