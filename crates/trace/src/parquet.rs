//! Traces in files: Apache Parquet, one row a fault. `docs/trace-format.md` describes it for other readers.

mod columns;
mod error;
mod names;
mod prefix;
mod reader;
mod recording;
mod rows;
mod scan;
mod schema;
mod seal;
mod spool;
mod stack_text;
mod writer;

pub use error::TraceFileError;
pub use names::{Names, Numbered};
pub use reader::read_trace;
#[cfg(feature = "import")]
pub(crate) use recording::bound_tables;
pub use recording::{Notice, Recording, record};
pub use scan::{Batch, TraceFile, Wanted};
pub use schema::{FORMAT_VERSION, column_names};
pub use stack_text::stack_text;
pub use writer::{TraceWriter, write_trace};

#[cfg(test)]
mod tests;
