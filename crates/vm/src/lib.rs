//! A virtual memory system in user space: maps objects into this process and serves their page faults itself.
//!
//! ```text
//!            Map ── Segment ──► Object ── page states ── frames (memfd) ◄── Source (file, your own)
//!             ▲                    one word a page: Absent → Filling → Resident
//!  touch ─────┤
//!             ├ inline:  SIGBUS ──────────► the faulting thread             ┐
//!             └ handler: message of uffd ─► a thread on the same CPU        ┴► lookup → claim → read → publish → install
//! ```
//!
//! | module        | noun                                                                     |
//! |---------------|--------------------------------------------------------------------------|
//! | `vm`          | the VM: limits, threads, figures; makes objects and maps                  |
//! | `object`      | what is mapped: its frames, its states, its source                        |
//! | `map`, `piece`, `segment` | objects in memory: which page of which object lies where      |
//! | `snapshot`    | what a map holds at one moment becomes an object                         |
//! | `save`, `saved`, [`manifest`] | snapshots in files, what a directory holds, and how it is read  |
//! | `writes`      | which pages of a map were written to, and who is held while they freeze  |
//! | `book`        | chains of snapshots: which object holds which page of a clone            |
//! | `keeper`      | frees what every map above shadows                                       |
//! | `populate`    | pages that are asked for, not touched                                    |
//! | `options`, `pool_options` | how a VM, its maps and its pool are to be                    |
//! | `backing`     | who maps an object: one record a map, none a page                         |
//! | `pages`       | the state words, and who owns a page while it is filled                   |
//! | `fault`       | one fault from touch to mapped page                                       |
//! | `install`, `zero` | how pages get into a map                                             |
//! | `whole`       | maps that are left to the kernel                                         |
//! | `ahead`       | what one fault has read in the background                                |
//! | `policy_memory` | what a policy remembers of a map                                       |
//! | `fill`, `direct_fill`, `uncached`, `request` | claimed pages get their bytes: from files here, from sources by requests |
//! | `source`, `buffers`, `spin` | where bytes come from, what they pass through, who waits for them awake |
//! | `evict`, `refill` | frames go, and come back with the same bytes                         |
//! | `write_through`, `dirty`  | writes to maps that go to their object, and the pages that hold them       |
//! | `swap`         | memory without a file, which goes to a swap file                          |
//! | `write_back`, `home`, `writer` | dirty pages go where they belong: when asked for, before reclaim, after a while |
//! | `pool`, `frame_count` | how many frames there may be and are, whose they are, how a read waits for one |
//! | `give_back`, `allowance` | how the pool shrinks while the machine is short of memory             |
//! | `order`, `reclaim` | which frame goes next, and the thread that takes it                     |
//! | `unwire`, `private_unwire`, `pin` | frames that no map shows, and frames that stay                             |
//! | `prune`       | page tables that show nothing any more                                    |
//! | `space`, `addresses` | a descriptor, and from an address to its map, in signal context   |
//! | `inline`, `handler`, `stop_pages` | the two ways a fault comes in                         |
//! | `heirs`       | maps that children of fork(2) keep, and who serves them                   |
//! | `jobs`, `crew`, `work` | work that waits, the threads for it, and what they do              |
//! | `statistics`, `histogram`, `record`, `failure`, `names` | what happened                   |
//! | [`error`], `reason` | what can go wrong, and why a page could not be brought in           |
//! | [`view`], `show`, [`viewed`] | what a process tells of its pools, to whom, and asking others for it   |
//! | `poison`      | pages that raise SIGBUS                                                  |
//! | [`tracking`]  | what it takes to know who maps which page                                |
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
//! **What runs in signal context.** In inline mode the faulting thread reads local files itself: with pread(2) into the
//! frames, or, if the bytes are in the page cache, into a buffer and with pwrite(2) into the frames. A custom [`Source`] never runs
//! there: a thread of the VM calls it, and the faulting thread sleeps on the page's word. (If a source touches another map of
//! inline mode on a thread of the VM, that map's source is called right there.) A fault allocates no memory and waits for no lock.
//!
//! **Signals and fork.** Threads of the VM take no signals of the program. Threads of the program take none while they hold something that a
//! fault may wait for. In a child of fork(2) all calls on what it inherited return errors, and touching a map is SIGSEGV, unless the map was
//! made with [`MapOptions::inherit`]. A child may make a VM of its own.
//!
//! Needs Linux 6.6 or newer.
#![forbid(unsafe_code)]

// The example of the README is tested too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod addresses;
mod ahead;
mod allowance;
mod backing;
mod book;
mod buffers;
mod crew;
mod direct_fill;
mod dirty;
pub mod error;
mod evict;
mod failure;
mod fault;
mod fill;
mod frame_count;
mod give_back;
mod handler;
mod heirs;
mod histogram;
mod home;
mod inline;
mod install;
mod jobs;
mod keeper;
pub mod manifest;
mod map;
#[cfg(all(test, any(feature = "shuttle", feature = "loom")))]
mod model;
mod names;
mod object;
mod options;
mod order;
mod pages;
mod piece;
mod pin;
mod poison;
mod policy_memory;
mod pool;
mod pool_options;
mod populate;
mod private_unwire;
mod prune;
mod reason;
mod reclaim;
mod record;
mod refill;
mod request;
mod save;
mod saved;
mod segment;
mod show;
mod snapshot;
mod source;
mod space;
mod spin;
mod statistics;
mod stop_pages;
mod swap;
mod sync;
pub mod tracking;
mod uncached;
mod unwire;
pub mod view;
pub mod viewed;
mod vm;
mod whole;
mod work;
mod write_back;
mod write_through;
mod writer;
mod writes;
mod zero;

pub use backing::Backing;
pub use error::{AccessError, FlushError, MakeError, MapError, OpenError, Reason, SavedError, SnapshotError};
pub use failure::Failure;
pub use manifest::Manifest;
pub use map::Map;
pub use object::Object;
pub use options::{Advice, MapOptions, Mode, VmOptions};
pub use order::Replacement;
pub use piece::Piece;
pub use pin::Pinned;
pub use pool::{Pool, PoolFigures, PoolObject};
pub use pool_options::PoolOptions;
pub use request::{Priority, Request};
pub use save::Saved;
pub use source::{Source, SourceError};
pub use statistics::{Counted, Statistics};
pub use view::{PoolView, View};
pub use vm::Vm;
