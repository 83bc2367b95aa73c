//! perf events: page faults, mappings and context switches of processes, as the kernel reports them.
//!
//! [`PerfEvent`] is one open event, [`Ring`] the memory it reports through, [`Record::decode`] reads what lies
//! there, and [`Tracefs`] finds tracepoints. The events are opened per process *and* CPU, because only such events
//! may be inherited by children and still be read through a ring (perf_event_open(2), `inherit`).

mod attr;
mod block;
mod error;
mod event;
mod record;
mod ring;
mod tracefs;

pub use attr::{Setup, Source};
pub use block::{BlockRequest, BlockTracepoint};
pub use error::PerfError;
pub use event::{Counted, Observed, PerfEvent, get_ready, online_cpus};
pub use record::{Malformed, Mmap2, Record, RecordKind, Sample};
pub use ring::Ring;
pub use tracefs::{FieldPlace, Tracefs, Tracepoint};
