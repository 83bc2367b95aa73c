//! What a stream delivers.

use std::sync::Arc;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::maps::Mapped;

/// Something that happened to an observed thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, in nanoseconds of CLOCK_MONOTONIC.
    pub time_ns: u64,
    /// Its process.
    pub pid: u32,
    /// The thread.
    pub tid: u32,
    /// What happened.
    pub kind: EventKind,
    /// Whether the kernel gave the beginning or end of a fault the time of another observer's clock ([`crate::Stream::borrowed_times`]): then
    /// `time_ns` is that of an event before it.
    pub is_time_borrowed: bool,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A page fault began.
    FaultBegin {
        /// Address touched.
        address: u64,
        /// Instruction that touched it.
        ip: u64,
        /// The addresses of the program's calls that led there, innermost first, where they were asked for.
        calls: Option<Box<[u64]>>,
    },
    /// A page fault ended.
    FaultEnd {
        /// Address touched.
        address: u64,
        /// Instruction that touched it.
        ip: u64,
        /// Whether it read from a device.
        disk: bool,
    },
    /// Something was mapped, or a mapping changed.
    Map(Box<Mapped>),
    /// The thread has a new name.
    Name {
        /// The name.
        name: Arc<str>,
        /// Whether it comes from executing a program: all earlier mappings are gone.
        exec: bool,
    },
    /// The thread was started.
    Fork {
        /// Process that started it; the event's own for a thread.
        parent_pid: u32,
        /// Thread that started it.
        parent_tid: u32,
    },
    /// The thread ended.
    Exit,
    /// The thread was put on a CPU or taken off.
    Switch {
        /// Taken off.
        out: bool,
        /// It would have run on.
        preempted: bool,
    },
    /// The thread brought pages of a file into the page cache.
    PageCached {
        /// The file's device (`major << 20 | minor`) and inode.
        file: (u64, u64),
        /// Which.
        pages: PageRange,
    },
    /// The thread asked for pages of a file by read() or the like, whether or not they are in the page cache. A long
    /// read is reported in portions, each with what is left of it. The kernel does not report the portion before a page
    /// that the reader has to wait for (Linux 6.18, mm/filemap.c, `filemap_get_pages`).
    PagesRead {
        /// The file's device (`major << 20 | minor`) and inode.
        file: (u64, u64),
        /// What is left to read. Not cut off at the file's end.
        pages: PageRange,
    },
    /// A fault of the thread had pages around it mapped, those of these that were in the page cache.
    PagesMapped {
        /// The file's device (`major << 20 | minor`) and inode.
        file: (u64, u64),
        /// Which.
        pages: PageRange,
    },
    /// A fault of the thread looks for its page in the page cache, which was not mapped as one around another.
    PageSought {
        /// The file's device (`major << 20 | minor`) and inode. Of a file in an overlay (overlayfs) those of the file below.
        file: (u64, u64),
        /// Which.
        page: PageIndex,
    },
    /// The thread wrote to a page of the page cache that was as on the device until then.
    PageDirtied {
        /// The file's inode, on whatever device.
        inode: u64,
        /// The page, or the first of those that the kernel keeps together with it.
        page: PageIndex,
    },
    /// The kernel found no room for records.
    Lost {
        /// How many.
        records: u64,
    },
}

impl EventKind {
    /// Whether it is the beginning or the end of a fault.
    pub(crate) fn is_of_fault(&self) -> bool {
        matches!(self, Self::FaultBegin { .. } | Self::FaultEnd { .. })
    }
}
