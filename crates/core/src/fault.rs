//! One page fault.

use std::num::{NonZeroU32, NonZeroU64};

use crate::named;
use crate::page::PageIndex;
use crate::permissions::Permissions;
use crate::stack::{CodePlace, StackId};
use crate::trace::{ObjectId, ThreadIndex};

/// The number of a physical page of memory. Number 0 belongs to no program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrameNumber(NonZeroU64);

impl FrameNumber {
    /// The frame of this number; `None` for 0.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

named! {
    /// What a fault had to do.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[repr(u8)]
    pub enum FaultClass {
        /// The bytes had to be read from a device ("major").
        Disk = "disk",
        /// The retry right after a disk fault: the same thread touched the same page by the same instruction again, and
        /// the page only had to be mapped. Mostly the kernel maps the page within the disk fault and there is none.
        Short = "short",
        /// The page was in memory and only had to be mapped ("long non-disk").
        Cached = "cached",
        /// A fresh anonymous page of zeros.
        ZeroFill = "zero-fill",
        /// A private copy of a page that is shared.
        CopyOnWrite = "copy-on-write",
        /// The fault began and did not end: it ended in a signal, was interrupted by one, or ended with its thread.
        Failed = "failed",
        /// The fault began, and records were lost or the recording ended before its end could be seen. What it had to do is
        /// not known.
        Unseen = "unseen",
    }
}

/// One page fault: when, who, which address, which page of which object, class, cost.
///
/// Traces hold millions: what only some recorders know is kept small.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it began, in nanoseconds of CLOCK_MONOTONIC since the trace's start.
    pub start_ns: u64,
    /// How long the thread waited for it, without the cost of observing it; `None` when its end was not seen.
    pub cost_ns: Option<u64>,
    /// Who faulted.
    pub thread: ThreadIndex,
    /// Instruction that faulted.
    pub ip: u64,
    /// Address that was touched.
    pub address: u64,
    /// The object mapped there; `None` for memory of no known mapping.
    pub object: Option<ObjectId>,
    /// The page of the object, where the object is a file or what a VM of prepage-vm maps like one.
    pub page: Option<PageIndex>,
    /// What the fault had to do.
    pub class: FaultClass,
    /// What the mapping allowed; empty for memory of no known mapping.
    pub permissions: Permissions,
    /// The object mapped at `ip`; `None` for the kernel's own instructions and memory of no known mapping.
    pub code: Option<ObjectId>,
    /// Where in `code`, as in [`CodePlace::offset`]; `ip` where there is no `code`.
    pub code_offset: u64,
    /// The calls that led to it, where they were recorded.
    pub stack: Option<StackId>,
    /// The frame that held the page soon after the fault, where the recorder could know (root).
    pub frame: Option<FrameNumber>,
    /// The pages resolved together by it, its own among them: read for it, made, or only mapped, as its class says.
    /// `None` where that is not known: the kernel does not report it.
    pub cluster_pages: Option<NonZeroU32>,
}

impl Fault {
    /// A fault of which no more is known than when, who, where and what it had to do.
    pub const fn new(start_ns: u64, thread: ThreadIndex, address: u64, class: FaultClass) -> Self {
        Self {
            start_ns,
            cost_ns: None,
            thread,
            ip: 0,
            address,
            object: None,
            page: None,
            class,
            permissions: Permissions::NONE,
            code: None,
            code_offset: 0,
            stack: None,
            frame: None,
            cluster_pages: None,
        }
    }

    /// The place of the instruction that faulted.
    pub const fn code_place(&self) -> CodePlace {
        CodePlace { object: self.code, offset: self.code_offset }
    }
}

const _: () = assert!(size_of::<Fault>() <= 104);
