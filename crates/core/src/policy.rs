//! Which pages to bring in together when one is missing.
//!
//! ```text
//!  touch of a missing page ─ FaultAt ─► Policy::hard ─► Cluster ─ clip ─► pages to read, one I/O
//!  touch of a resident one ─ FaultAt ─► Policy::soft ─► Cluster in the background, or nothing
//!  what was read, what was mapped ───► Policy::{read, mapped} ─► EntryState
//! ```
//!
//! A policy is a constant; what it remembers of one map entry between faults is an [`EntryState`], a few words that
//! whoever serves the faults keeps with the entry. Who serves them (the simulator, the user-space VM) also knows what
//! is resident ([`Residency`]) and does the reading and mapping. Nothing here allocates.
//!
//! | module        | noun or policy                                                           |
//! |---------------|--------------------------------------------------------------------------|
//! | [`cluster`]   | what a policy asks for; how often it got all of it                       |
//! | [`choice`]    | any policy, chosen by a string; windows of fixed size                     |
//! | [`adaptive`]  | FreeBSD's: growing windows for sequential faults, else aligned clusters   |
//! | `context`     | prepage's own: aligned blocks that heed what is resident around them      |
//! | [`linux`]     | Linux's two, `linux-data` and `linux-exec`, with mmap_miss and async mark |
//! | [`predicted`] | what a profile says                                                      |
//!
//! ```
//! use prepage_core::policy::{FaultAt, NothingResident, Policy};
//! use prepage_core::{PageIndex, PageRange};
//!
//! let policy: Policy = "aligned:16".parse()?;
//! let fault = FaultAt { page: PageIndex(20), window: PageRange::new(PageIndex(0), PageIndex(30)) };
//! let mut entry = policy.entry(fault.window);
//! let cluster = policy.hard(&mut entry, &fault, &NothingResident);
//! assert_eq!(cluster.clip(&fault, &NothingResident), PageRange::new(PageIndex(16), PageIndex(30)));
//! # Ok::<(), prepage_core::policy::PolicyError>(())
//! ```

pub mod adaptive;
pub mod choice;
pub mod cluster;
mod context;
pub mod linux;
pub mod predicted;

pub use choice::{Policy, PolicyError};
pub use cluster::{Cluster, Holes};

use crate::page::{PageIndex, PageRange};

/// Where a fault happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaultAt {
    /// The page of the object that was touched.
    pub page: PageIndex,
    /// The pages of the object that the map entry shows, ending where the object ends; holds `page`.
    pub window: PageRange,
}

/// What is in memory, as far as a policy may ask.
pub trait Residency {
    /// Whether `page` of the object is resident, or is being read.
    fn is_resident(&self, page: PageIndex) -> bool;

    /// Whether `page` carries the mark that a [`Cluster::mark`] left on it. Only Linux's policies leave marks.
    fn is_marked(&self, page: PageIndex) -> bool {
        let _ = page;
        false
    }

    /// The pages that share the mark of `page`, if it carries one ([`Cluster::mark_pages`]).
    fn marked_folio(&self, page: PageIndex) -> Option<PageRange> {
        self.is_marked(page).then(|| page.alone())
    }

    /// How many pages of `range` are resident.
    fn resident_in(&self, range: PageRange) -> u64 {
        range.iter().filter(|&page| self.is_resident(page)).count() as u64
    }
}

/// An object of which nothing is resident.
#[derive(Clone, Copy, Debug, Default)]
pub struct NothingResident;

impl Residency for NothingResident {
    fn is_resident(&self, _: PageIndex) -> bool {
        false
    }
}

/// What a policy remembers of one map entry. The fields mean what the policy says they mean; a policy without memory
/// leaves them alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryState {
    /// Adaptive: the page a sequential reader faults on next. Linux: first page of the last read-ahead window.
    pub next: PageIndex,
    /// Pages in the last window.
    pub window: u32,
    /// Linux: how many pages before the window's end the next one is asked for.
    pub early: u32,
    /// Linux: its folios have 2^`order` pages.
    pub order: u32,
    /// Linux: faults that had to read, less pages that were found (`mmap_miss`).
    pub misses: u32,
    /// Whether the entry's pages may be executed.
    pub executable: bool,
}

/// Which resident neighbours a fault maps along with its own page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbours {
    /// After a read, the pages read; else up to this many each way, nearest first, ending at the first missing page
    /// (FreeBSD's `vm_fault_prefault`).
    Spiral(u64),
    /// All resident, unmarked pages of the aligned block of this many pages (Linux's fault-around).
    Block(u64),
}
