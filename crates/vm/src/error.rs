//! What can go wrong.

use std::io;
use std::path::PathBuf;

use prepage_core::{PageIndex, PageRange};

pub use crate::reason::Reason;
pub use prepage_sys::userfaultfd::OpenError;

/// A VM or an object cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MakeError {
    /// A file cannot be opened or measured.
    #[error("cannot read {path}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The directory for swap files lies in memory: pages that go there would take memory as before, and no limit would count them.
    #[error("{path} lies in memory ({kind}), so swap files there free none")]
    SwapInMemory {
        /// The directory.
        path: PathBuf,
        /// The kind of file system, as tmpfs.
        kind: &'static str,
    },
    /// No memory, descriptor or thread is left, or the kernel is older than Linux 6.6.
    #[error("cannot make {what}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// This is a child of fork(2), and the VM its parent's.
    #[error("the VM belongs to the parent process; a child of fork(2) makes its own")]
    Forked,
    /// The object would be larger than any address space.
    #[error("an object of {len_bytes} bytes cannot be mapped on any machine")]
    TooLarge {
        /// Its length.
        len_bytes: u64,
    },
}

/// An object cannot be mapped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// No userfaultfd could be opened.
    #[error("faults cannot be served")]
    Userfaultfd(#[from] OpenError),
    /// SIGBUS cannot be handled, or handler threads cannot be started.
    #[error("cannot prepare to serve faults")]
    Prepare(#[source] io::Error),
    /// The map would show no page.
    #[error("a map of no pages of {object} cannot be made")]
    Empty {
        /// The object.
        object: String,
    },
    /// The window ends after the object.
    #[error("{object} has {pages} pages; pages {} to {} were asked for", window.start(), window.end())]
    Beyond {
        /// The object.
        object: String,
        /// What was asked for.
        window: PageRange,
        /// How many pages there are.
        pages: u64,
    },
    /// The object belongs to another VM.
    #[error("{object} belongs to another VM")]
    OtherVm {
        /// The object.
        object: String,
    },
    /// [`MapOptions::zero_cluster`](crate::MapOptions::zero_cluster) or a block of [`MapOptions::neighbours`](crate::MapOptions::neighbours)
    /// was 0 pages, or a cluster of its policy.
    #[error("a cluster of 0 pages was asked for; 1 is the smallest")]
    NoCluster,
    /// The kernel gave no address space.
    #[error(
        "cannot map {len_bytes} bytes; a process may have vm.max_map_count mappings and the address space its limits \
         (ulimit -v) allow"
    )]
    Memory {
        /// How much was asked for.
        len_bytes: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// This process has 262,144 maps already.
    #[error("too many maps")]
    TooMany,
    /// 64 processes that had maps in inline mode were forked from one another, this one from the last of them.
    #[error(
        "too many processes with maps were forked from one another: a program that is executed begins anew"
    )]
    TooManyForks,
    /// The program installed a SIGBUS handler after the first map was made: faults would go there.
    #[error(
        "another handler of SIGBUS was installed since the first map was made, so faults cannot be served; install it \
         before the first map: it gets what is not the VM's"
    )]
    SigbusTaken,
    /// A snapshot can only be mapped privately.
    #[error("{object} is a snapshot: its maps must be private")]
    SharedSnapshot {
        /// The snapshot.
        object: String,
    },
    /// Writes to the map have no file or memory to go to.
    #[error("{object} takes no writes: map a Vm::file_writable with MapOptions::writable, or privately")]
    ReadOnly {
        /// The object.
        object: String,
    },
    /// The bytes of the object may change, and a private map must not change by itself.
    #[error("{object} can be written to, so its maps must be shared")]
    Changing {
        /// The object.
        object: String,
    },
    /// Only private maps, served by handlers, in small pages, can be inherited by children.
    #[error("a map that children inherit must be private, of Mode::Handler, and without huge pages")]
    Inherit,
    /// A map of several pieces has to be private.
    #[error("a map of several pieces must be private")]
    Pieces,
    /// This is a child of fork(2), and the VM its parent's.
    #[error("the VM belongs to the parent process; a child of fork(2) makes its own")]
    Forked,
}

/// Pages of a map cannot be provided, or the call does not fit the map.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The page's bytes could not be brought in. It will be tried again by the next [`populate`](crate::Map::populate),
    /// and in inline mode by the next touch.
    #[error("page {page} of {object} cannot be brought in: {reason}")]
    Unavailable {
        /// The object.
        object: String,
        /// The page.
        page: PageIndex,
        /// Why.
        reason: Reason,
    },
    /// Pages that the map does not show.
    #[error(
        "pages {} to {} were asked for; the map shows {} to {}",
        range.start(), range.end(), window.start(), window.end()
    )]
    Outside {
        /// What was asked for.
        range: PageRange,
        /// What there is.
        window: PageRange,
    },
    /// Bytes that the map does not show.
    #[error("{wanted_bytes} bytes at {offset_bytes} were asked for; the map ends at {len_bytes}")]
    Beyond {
        /// Where.
        offset_bytes: u64,
        /// How many.
        wanted_bytes: usize,
        /// How many there are.
        len_bytes: u64,
    },
    /// The map's object takes no writes.
    #[error("what is written to the map has nowhere to go")]
    ReadOnly,
    /// A private map would lose what was written to it.
    #[error("a private map keeps its changes; Map::discard drops them")]
    Private,
    /// The kernel refused.
    #[error("the kernel refused")]
    System(#[source] io::Error),
    /// This is a child of fork(2), and the VM its parent's.
    #[error("the VM belongs to the parent process; a child of fork(2) makes its own")]
    Forked,
}

/// No snapshot of a map can be taken. The map and its earlier snapshots are as they were.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The map is shared: it has no changes of its own.
    #[error("a shared map has no changes of its own: use its object instead of a snapshot")]
    Shared,
    /// The map has huge pages, whose faults the kernel serves.
    #[error("a map of huge pages cannot be frozen; map it without them")]
    HugePages,
    /// Children of fork(2) keep the map.
    #[error("no snapshot can be taken of a map that children inherit")]
    Inherited,
    /// The limit of frames is too low.
    #[error("no room for the snapshot: the limit of frames leaves fewer than the map has written pages")]
    NoFrames,
    /// The kernel refused.
    #[error(
        "cannot freeze the map; it takes Linux 6.7 (arm64: 6.10), and memory for the pages that were written to"
    )]
    System(#[from] io::Error),
    /// This is a child of fork(2), and the map its parent's.
    #[error("the map belongs to the parent process")]
    Forked,
}

/// A snapshot cannot be saved, or a saved one cannot be opened. The directory still holds what it held before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// The object is not a snapshot.
    #[error("{object} is not a snapshot: only those are saved")]
    NotASnapshot {
        /// The object.
        object: String,
    },
    /// Nothing is saved there.
    #[error("no snapshot is saved in {path}")]
    Nothing {
        /// The directory.
        path: PathBuf,
    },
    /// A directory or a file in it cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A directory or a file in it cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file system, a quota, or a limit on the lengths of files (ulimit -f) leaves no room.
    #[error("no room for {path}")]
    NoRoom {
        /// What did not fit.
        path: PathBuf,
        /// Which limit it was.
        #[source]
        source: io::Error,
    },
    /// The directory has no saved snapshot, but a file with the name of an image, which the save would take for its own and remove.
    #[error("{path} is in the way: it is of no snapshot, and has the name of a part of one")]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The manifest is damaged.
    #[error("{path} cannot be used")]
    Manifest {
        /// The manifest.
        path: PathBuf,
        /// Why.
        #[source]
        source: crate::manifest::ManifestError,
    },
    /// An image is damaged.
    #[error("{path} has {found_bytes} bytes where {len_bytes} were saved: it was cut off or overwritten")]
    Image {
        /// The image.
        path: PathBuf,
        /// Its length.
        found_bytes: u64,
        /// What its length was.
        len_bytes: u64,
    },
    /// Pages that are to be saved cannot be read.
    #[error("pages of {object} cannot be read")]
    Unread {
        /// Whose.
        object: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file that the snapshot began on cannot be looked at.
    #[error("cannot look at {name}, which the snapshot began on")]
    Base {
        /// The file.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file that the snapshot began on has a path that is not UTF-8.
    #[error("the path of {name}, which the snapshot began on, is not UTF-8")]
    BaseName {
        /// The file.
        name: String,
    },
    /// A file that the snapshot began on has changed.
    #[error("{path}, which the snapshot began on, was changed since")]
    BaseChanged {
        /// The file.
        path: PathBuf,
    },
    /// A file that the snapshot began on was removed, or another has its name: the snapshot could not be opened again.
    #[error("{name}, which the snapshot began on, was removed or replaced")]
    BaseGone {
        /// The file.
        name: String,
    },
    /// An object that the snapshot began on is not a file, and was not passed to [`Vm::open_snapshot_on`](crate::Vm::open_snapshot_on).
    #[error("the snapshot began on {name}, which is no file: give it to Vm::open_snapshot_on")]
    NoBase {
        /// The object.
        name: String,
    },
    /// Objects that are no files, and that the snapshot began on or that were given for one that it began on, have one name and length.
    #[error(
        "the snapshot began on {name}, and there are two objects of this name and length: each needs a name of its own"
    )]
    BaseTwice {
        /// The name.
        name: String,
    },
    /// An object that was given for what the snapshot began on belongs to another VM.
    #[error("{object} belongs to another VM")]
    OtherVm {
        /// The object.
        object: String,
    },
    /// A file that the snapshot began on cannot be opened, or no memory or descriptor is left.
    #[error(transparent)]
    Make(#[from] MakeError),
    /// This is a child of fork(2), and the snapshot its parent's.
    #[error("the snapshot belongs to the parent process")]
    Forked,
}

/// What was written to an object could not be made durable. Pages that could not be written back stay in memory, are tried again in
/// the background and by the next flush, and show what was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FlushError {
    /// The object takes no writes.
    #[error("{object} takes no writes")]
    ReadOnly {
        /// The object.
        object: String,
    },
    /// The object is memory.
    #[error("{object} has no file that could outlive the process")]
    Memory {
        /// The object.
        object: String,
    },
    /// The file refuses bytes; pages before this one were written.
    #[error("page {page} of {object} cannot be written back")]
    Write {
        /// The object.
        object: String,
        /// The first page that could not be written.
        page: PageIndex,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file ends before what was written to the page: it was truncated, and is not made longer again.
    #[error(
        "page {page} of {object} cannot be written back: the file ends at {len_bytes}; was it truncated?"
    )]
    Truncated {
        /// The object.
        object: String,
        /// The first page that lies beyond the end, or in part.
        page: PageIndex,
        /// Where the file ends.
        len_bytes: u64,
    },
    /// The file took the bytes, but the device failed. All that was written since the last flush will be written once more.
    #[error("{object} cannot be made durable")]
    Sync {
        /// The object.
        object: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A page went to the file and out of memory, then the device failed, and the file no longer gives what was written.
    #[error("page {page} of {object} was written and is lost: {reason}")]
    Lost {
        /// The object.
        object: String,
        /// The first such page.
        page: PageIndex,
        /// Why it cannot be had.
        reason: Reason,
    },
    /// A page went to the file and out of memory, then the device failed, and the page cannot be read now to be written once more. The
    /// next flush tries again.
    #[error("page {page} of {object} cannot be read to be written once more: {reason}")]
    Unread {
        /// The object.
        object: String,
        /// The first such page.
        page: PageIndex,
        /// Why it cannot be had.
        reason: Reason,
    },
    /// The kernel refused to protect pages while they are written back.
    #[error("the kernel refused")]
    System(#[source] io::Error),
    /// This is a child of fork(2), and the VM its parent's.
    #[error("the VM belongs to the parent process; a child of fork(2) makes its own")]
    Forked,
}
