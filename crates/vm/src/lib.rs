//! A virtual memory system in user space: maps objects into this process and serves their page faults itself.
//!
//! ```text
//!            Map ── Backing ──► Object ── page states ── frames (memfd) ◄── Source (file, your own)
//!             ▲                   one word a page: Absent → Filling → Resident
//!  touch ─────┤
//!             ├ inline:  SIGBUS ──────────► the faulting thread  ┐
//!             └ handler: message of uffd ─► a handler thread     ┴► claim → read → publish → map the cluster by one call
//! ```
//!
//! | module        | noun                                                                     |
//! |---------------|--------------------------------------------------------------------------|
//! | `vm`          | the VM: limits, threads, figures; makes objects and maps                  |
//! | `object`      | what is mapped: its frames, its states, its source                        |
//! | `map`         | an object in memory: slices, populate, advice                             |
//! | `options`     | how a VM and its maps are to be                                          |
//! | `backing`     | who maps an object: one record a map, none a page                         |
//! | `pages`       | the state words, and who owns a page while it is filled                   |
//! | `fault`       | one fault from touch to mapped page                                       |
//! | `neighbours`  | what one fault maps                                                      |
//! | `ahead`       | what one fault has read in the background                                |
//! | `fill`, `view` | claimed pages get their bytes; from local files straight into the frames |
//! | `zero`        | memory of zeros, made in clusters                                         |
//! | `inline`, `handler` | the two ways a fault comes in                                       |
//! | `table`       | from an address to its map, in signal context                             |
//! | `jobs`        | work in the background                                                    |
//! | `grace`       | taking frames away while others map them                                  |
//! | `statistics`, `histogram`, `record`, `failure` | what happened                            |
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use prepage_vm::{MapOptions, Vm, VmOptions};
//!
//! let path = std::env::current_exe()?;
//! let vm = Vm::new(VmOptions::default())?;
//! let object = vm.file(&path)?;
//! let map = vm.map(&object, &MapOptions::shared().policy("aligned:16".parse()?))?;
//! assert_eq!(&map.as_slice()[1..4], b"ELF"); // one fault, one read of 16 pages
//! let counted = vm.statistics().counted;
//! assert_eq!((counted.hard, counted.reads, counted.pages_read), (1, 1, 16));
//! # Ok(())
//! # }
//! ```
//!
//! **What runs in signal context.** In inline mode the faulting thread reads local files itself, with pread(2) into the
//! frames, or for what is in memory already into a buffer and with pwrite(2) into the frames. A custom [`Source`] never runs
//! there: its read goes to a thread of the VM, and the faulting thread sleeps on the page's word. On the way no memory is
//! allocated and no lock is waited for.
//!
//! Needs Linux 6.6.
#![forbid(unsafe_code)]

mod ahead;
mod backing;
mod buffers;
mod entry;
pub mod error;
mod failure;
mod fault;
mod fill;
mod grace;
mod handler;
mod histogram;
mod inline;
mod jobs;
mod map;
#[cfg(all(test, any(feature = "shuttle", feature = "loom")))]
mod model;
mod neighbours;
mod object;
mod options;
mod pages;
mod reason;
mod record;
mod source;
mod statistics;
mod sync;
mod table;
mod view;
mod vm;
mod zero;

pub use backing::Backing;
pub use error::{AccessError, MakeError, MapError, OpenError, Reason};
pub use failure::Failure;
pub use map::Map;
pub use object::Object;
pub use options::{Advice, MapOptions, Mode, VmOptions};
pub use source::{Source, SourceError};
pub use statistics::{Counted, Statistics};
pub use vm::Vm;
