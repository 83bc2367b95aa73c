//! One page fault.

use crate::page::PageIndex;
use crate::trace::{ObjectId, ThreadIndex};

/// What a fault had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FaultClass {
    /// The bytes had to be read from a device ("major").
    Disk = 0,
    /// The retry right after a disk fault. The kernel's own counters fold it into the disk fault, so only
    /// sources that see both (a model, a user-space pager) give it.
    Short = 1,
    /// The page was in memory and only had to be mapped ("long non-disk").
    Cached = 2,
    /// A fresh anonymous page of zeros.
    ZeroFill = 3,
    /// A private copy of a page that is shared.
    CopyOnWrite = 4,
    /// The fault began and never ended in the record: the thread was killed by it or while in it.
    Failed = 5,
}

impl FaultClass {
    /// Every class, in the order tables list them.
    pub const ALL: [Self; 6] =
        [Self::Disk, Self::Short, Self::Cached, Self::ZeroFill, Self::CopyOnWrite, Self::Failed];

    /// The name used in tables, Parquet and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Disk => "disk",
            Self::Short => "short",
            Self::Cached => "cached",
            Self::ZeroFill => "zero-fill",
            Self::CopyOnWrite => "copy-on-write",
            Self::Failed => "failed",
        }
    }

    /// The class called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.name() == name)
    }
}

/// One page fault: when, who, which address, which page of which object, class, cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// When it began, in nanoseconds of CLOCK_MONOTONIC since the trace's start.
    pub start_ns: u64,
    /// How long the thread waited for it; `None` when its end was not seen.
    pub cost_ns: Option<u64>,
    /// Who faulted.
    pub thread: ThreadIndex,
    /// Instruction that faulted.
    pub ip: u64,
    /// Address that was touched.
    pub address: u64,
    /// The object mapped there; `None` for memory of no known mapping.
    pub object: Option<ObjectId>,
    /// The page of the object, where the object is a file.
    pub page: Option<PageIndex>,
    /// What the fault had to do.
    pub class: FaultClass,
}
