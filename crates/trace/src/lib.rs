//! The page faults of a process tree: streamed from the kernel, put together, recorded, stored.
//!
//! ```text
//!  perf rings ─► Stream ─ Event ─► Pairing (AddressSpaces) ─ Fault ─► TraceWriter ─► Parquet
//!              one order            begin + end, class, file page  └► Summary
//!              of all CPUs
//! ```
//!
//! | module       | noun                                                                        |
//! |--------------|-----------------------------------------------------------------------------|
//! | [`probe`]    | what to observe                                                             |
//! | [`event`]    | what happened to an observed thread                                         |
//! | [`stream`]   | the events of a process tree in the order they happened                     |
//! | [`space`]    | what each process has mapped where                                          |
//! | [`pairing`]  | beginnings and ends of faults, put together                                 |
//! | [`recorder`] | a command that is run and recorded                                          |
//! | [`tables`]   | what the numbers in faults stand for                                        |
//! | [`filter`]   | which faults are kept                                                       |
//! | [`calibrate`] | what observing a fault costs                                               |
//! | [`build_id`](mod@build_id) | the files behind objects: their sizes and build-ids           |
//! | [`summary`]  | a trace in a few numbers                                                    |
//! | `parquet`    | traces in files (feature `parquet`)                                         |
//! | `import`     | traces of perf(1) (feature `import`)                                        |
//!
//! ```no_run
//! use prepage_trace::{EventKind, FaultEvents, Probe, Stream};
//!
//! let probe = Probe { faults: FaultEvents::DiskOnly, ..Probe::default() };
//! let mut stream = Stream::attach(std::process::id(), &probe)?;
//! stream.wait(&[], None)?;
//! for event in stream.ripe() {
//!     if let EventKind::FaultEnd { address, .. } = event.kind {
//!         println!("{}: read from disk for {address:#x}", event.pid);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod build_id;
pub mod calibrate;
pub mod event;
pub mod filter;
mod frames;
#[cfg(feature = "import")]
pub mod import;
mod page_cache;
pub mod pairing;
#[cfg(feature = "parquet")]
pub mod parquet;
pub mod probe;
pub mod recorder;
pub mod space;
pub mod stream;
pub mod summary;
pub mod tables;

pub use build_id::build_id;
pub use calibrate::ProbeCost;
pub use event::{Event, EventKind};
pub use filter::{Filters, NotARange};
pub use pairing::Pairing;
pub use prepage_sys::agent::LIBRARY as AGENT_LIBRARY;
pub use prepage_sys::maps::Mapped;
pub use prepage_sys::perf::PerfError;
pub use probe::{FaultEvents, PageCacheEvents, Probe, Target};
pub use recorder::{
    Callback, ExactSource, LeftRunning, Prepare, RecordError, RecordOptions, Recorded, Recorder, Scope,
};
pub use space::{AddressSpaces, Mapping, Mappings, Resolved};
pub use stream::{KernelCounts, Stream};
pub use summary::Summary;
pub use tables::Tables;
