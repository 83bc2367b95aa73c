//! What a program needs when it starts: which pages of which files, which names, in which order, how surely.
//!
//! A profile belongs to one program in one [`role`]. It learns from [`observation`]s and from nothing else, travels in the
//! bytes of [`mod@file`], and is turned into reads by [`plan`].
//!
//! ```text
//!  Observation ─ observe ─► Profile: counts of each page and name ─ worth ─► what pays on this device ─ plan ─► reads
//!                             ▲   │
//!   profiles of other hosts ──┘   └─ file ─► bytes: in a store, in an ELF file, beside one, in a bundle
//!           merge
//! ```

pub mod bounds;
pub mod counts;
pub mod extent;
pub mod file;
pub mod gain;
pub mod merge;
pub mod observation;
mod observe;
pub mod plan;
pub mod role;
pub mod start;
pub mod worth;

use minicbor::{Decode, Encode};

use crate::page::PageIndex;

pub use counts::Counts;
pub use extent::{Extent, Touches};
pub use observe::{OBSERVATIONS_MAX, PAGES_A_MISS};
pub use start::ColdStart;

/// Which file it was: equal in every field means that nothing about the file changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub struct FileIdentity {
    /// `st_dev`. It changes when the machine finds its devices in another order, and differs between views of one file
    /// (overlayfs, btrfs subvolumes).
    #[n(0)]
    pub device: u64,
    /// `st_ino`.
    #[n(1)]
    pub inode: u64,
    /// `st_size`.
    #[n(2)]
    pub size_bytes: u64,
    /// Last change of the content, nanoseconds since 1970.
    #[n(3)]
    pub mtime_ns: i64,
    /// Last change of content or inode, nanoseconds since 1970. Cannot be set by a program, so a file replaced
    /// by one of equal size and copied mtime still differs here.
    #[n(4)]
    pub ctime_ns: i64,
}

impl FileIdentity {
    /// Whether `other` is the same file, its device's number aside: inode, size and both times, to the nanosecond, are
    /// never all equal by chance.
    pub fn is_same(&self, other: &Self) -> bool {
        Self { device: other.device, ..*self } == *other
    }
}

/// What a file holds: decides when the [`FileIdentity`] differs although the content may not (a package installed
/// again, an image mounted elsewhere, a page map put into the file).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Encode, Decode)]
pub enum Fingerprint {
    /// The ELF build-id, whatever the size: a file that was stripped loads the same pages.
    #[n(0)]
    BuildId(#[cbor(n(0), with = "minicbor::bytes")] Vec<u8>),
    /// Of files without one.
    #[n(1)]
    Ends {
        /// CRC-32 of the first and the last page.
        #[n(0)]
        crc: u32,
        /// Their size.
        #[n(1)]
        size_bytes: u64,
    },
}

/// The content of no file.
impl Default for Fingerprint {
    fn default() -> Self {
        Self::BuildId(Vec::new())
    }
}

/// One file of a profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(map, context_bound = "AsMut<file::Room>")]
pub struct ProfiledFile {
    /// Absolute path, free of symbolic links; empty in the file itself.
    #[cbor(n(0), with = "file::text", default)]
    pub path: String,
    /// Which file it was when its pages were last learned.
    #[cbor(n(1), default)]
    pub identity: FileIdentity,
    /// What it held then.
    #[cbor(n(2), default)]
    pub fingerprint: Fingerprint,
    /// When that was, seconds since 1970; 0 where it is not known.
    #[cbor(n(3), default)]
    pub learned_unix_s: u64,
    /// Sorted by page, apart from one another.
    #[cbor(n(4), with = "file::extents", default)]
    pub extents: Vec<Extent>,
}

impl ProfiledFile {
    /// Pages in all extents.
    pub fn pages(&self) -> u64 {
        self.extents.iter().map(|extent| extent.range.len()).sum()
    }

    /// Whether one of the extents holds `page`.
    pub fn contains(&self, page: PageIndex) -> bool {
        let after = self.extents.partition_point(|extent| extent.range.start() <= page);
        self.extents[..after].last().is_some_and(|extent| extent.range.contains(page))
    }

    /// The rank of the page used first.
    pub fn rank(&self) -> u32 {
        self.extents.iter().map(|extent| extent.rank).min().unwrap_or(u32::MAX)
    }

    /// The probability of the page most surely used.
    pub fn probability(&self) -> f64 {
        self.extents.iter().map(|extent| extent.counts.probability()).fold(0.0, f64::max)
    }
}

/// A name the program asks the kernel for. The answer comes from directories and inodes, which are read from
/// the device like any page, and it costs the same when it is "no such file".
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lookup {
    /// Absolute path as the program gave it, symbolic links and all.
    pub path: String,
    /// Whether the program went on to list it as a directory.
    pub list: bool,
    /// In how many starts it was looked up.
    pub counts: Counts,
}

/// What the profile knows of its own past.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(map)]
pub struct History {
    /// First learned, seconds since 1970.
    #[n(0)]
    pub created_unix_s: u64,
    /// Last changed, seconds since 1970.
    #[n(1)]
    pub updated_unix_s: u64,
    /// Starts observed, 8 at most: no counter of a page remembers more.
    #[n(2)]
    pub observations: u8,
    /// Starts to come that are to be observed in any case.
    #[n(3)]
    pub due: u8,
    /// Observed starts to come in which signs of change are not followed.
    #[n(4)]
    pub rest: u8,
}

impl History {
    /// The same for whoever makes other starts: which of these are to be observed is for them to find out.
    #[must_use]
    pub fn for_others(self) -> Self {
        Self { due: 0, rest: 0, ..self }
    }
}

/// Everything known about one program in one role.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Encode, Decode)]
#[cbor(map, context_bound = "AsMut<file::Room>")]
pub struct Profile {
    /// Absolute path of the executable.
    #[cbor(n(0), with = "file::text", default)]
    pub program: String,
    /// How it was called, as [`role::role`] gives it.
    #[cbor(n(1), with = "file::text", default)]
    pub role: String,
    /// Where the knowledge comes from.
    #[cbor(n(2), default)]
    pub history: History,
    /// In order of first use.
    #[cbor(n(3), with = "file::list", default)]
    pub files: Vec<ProfiledFile>,
    /// In order of first use, each path once.
    #[cbor(n(4), with = "file::names", default)]
    pub lookups: Vec<Lookup>,
    /// The last cold starts, oldest first: what the profile was worth.
    #[cbor(n(5), with = "file::list", default)]
    pub starts: Vec<ColdStart>,
    /// Who learned it: a number a host and profile; several where it was merged. See [`merge`].
    #[cbor(n(6), with = "file::list", default)]
    pub sources: Vec<u64>,
}

impl Profile {
    /// Pages in all files.
    pub fn pages(&self) -> u64 {
        self.files.iter().map(ProfiledFile::pages).sum()
    }

    /// Whether both know the same, though one of them may have been asked to learn more often or later.
    pub fn knows_as(&self, other: &Self) -> bool {
        (&self.files, &self.lookups, &self.sources) == (&other.files, &other.lookups, &other.sources)
    }
}
