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
//! | `object`      | what is mapped: its frames, its state words, its source                   |
//! | `map`, `piece`, `segment` | objects in memory: which page of which object lies where      |
//! | `snapshot`    | makes an object of what a map holds at one moment                        |
//! | `save`, `saved`, [`manifest`] | snapshots in files: writing and reading them, and what their directory holds |
//! | `writes`      | which pages of a map were written to; writers that wait while a snapshot freezes them |
//! | `book`        | chains of snapshots: which object holds which page of a clone            |
//! | `keeper`      | a thread that frees frozen pages which nobody sees any more              |
//! | `populate`    | pages that a call brings in before they are touched                      |
//! | `options`, `pool_options` | settings of a VM, of its maps and of its pool                |
//! | `backing`     | who maps an object: one record for each map, none for each page           |
//! | `pages`       | the state words, and the owner of a page while it is filled               |
//! | `fault`       | one fault from touch to mapped page                                       |
//! | `install`, `zero` | ways to put pages into a map                                         |
//! | `whole`       | maps and blocks that are left to the kernel                              |
//! | `ahead`       | reads in the background that a fault asks for                            |
//! | `policy_memory` | what a policy remembers of each map                                    |
//! | `fill`, `uncached`, `request` | how claimed pages get their bytes: reads of files, requests to sources   |
//! | `blocks`      | 2 MiB of a file read in order, into frames that are one huge page        |
//! | `source`, `buffers`, `spin` | where bytes come from, buffers that they pass through, threads that wait for them awake |
//! | `frame`       | the pages of an object that are in memory, one by one                     |
//! | `evict`, `refill` | frames are removed, and come back with the same bytes                |
//! | `write_through`, `dirty`  | writes to maps that go to their object, and the pages that hold them       |
//! | `swap`         | the swap file of memory that has no file                                  |
//! | `write_back`, `home`, `writer` | writes dirty pages to their file: on request, before reclaim, after a while     |
//! | `pool`, `frame_count` | the limit and the number of frames, their objects, reads that wait for a frame |
//! | `give_back`, `allowance` | how the pool shrinks while the machine is short of memory             |
//! | `order`, `reclaim` | which frame is reclaimed next, and the thread that reclaims it          |
//! | `cleaner`     | the thread that writes dirty pages back for reclaim, or for `writer`: a write that hangs holds up no other object |
//! | `unwire`, `between`, `private_unwire`, `pin` | frames that no map shows, and frames that stay                  |
//! | `hiding`       | pages that faults take out of a map for the reclaimer                   |
//! | `prune`       | frees page tables that map nothing                                        |
//! | `space`, `addresses`, `sparse` | a userfaultfd with its maps; from an address to its map, in signal context |
//! | `inline`, `handler`, `watch`, `stop_pages` | the two ways in which faults reach the VM    |
//! | `heirs`       | maps that children of fork(2) keep, and the threads that serve them       |
//! | `at_work`     | which threads are those of a VM                                          |
//! | `jobs`, `crew`, `work` | queues of work, the threads that take it, and what they do         |
//! | `going`       | what nobody holds any more: frames that are free soon                     |
//! | `statistics`, `histogram`, `record`, `failure`, `names` | counts and records of what happened |
//! | [`error`], `reason` | what can go wrong, and why a page could not be brought in           |
//! | [`view`], `show`, [`viewed`] | what a process reports of its pools, to whom, and how to ask other processes |
//! | `poison`      | pages that raise SIGBUS                                                  |
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
//! frames, or, if the read is short and the file is read through the page cache, into a buffer and with pwrite(2) into the frames. A custom [`Source`] never runs
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
mod at_work;
mod backing;
mod bell;
mod between;
mod blocks;
mod book;
mod buffers;
mod cleaner;
#[cfg(all(test, feature = "counted"))]
mod counted;
mod crew;
mod dirty;
pub mod error;
mod evict;
mod failure;
mod fault;
mod fill;
mod frame;
mod frame_count;
mod give_back;
mod going;
mod handler;
mod heirs;
mod hiding;
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
mod sparse;
mod spin;
mod statistics;
mod stop_pages;
mod swap;
mod sync;
mod uncached;
mod unwire;
pub mod view;
pub mod viewed;
mod vm;
mod watch;
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
pub use frame::Frame;
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
