//! Sending pages out of memory.
//!
//! POSIX_FADV_DONTNEED drops clean pages that nobody has mapped. So dirty pages of files the user may write are written
//! back first, and what stays all the same is looked at: dirty, mapped by a process, or locked.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::PathBuf;

use prepage_core::PAGE_SIZE;
use prepage_sys::cachestat::CacheCounts;
use prepage_sys::file_system::{kind_of, without_device};
use prepage_sys::mapping::may_write;
use rustix::fs::Advice;

use crate::residency::Residency;
use crate::target::{Opened, Passed, Spot};
use crate::users::{User, Users};

/// A file whose pages were to be dropped.
#[derive(Debug)]
pub struct EvictedFile {
    /// Where it is.
    pub path: PathBuf,
    /// Pages meant.
    pub pages: u64,
    /// Of these, in memory before; `None` where the user may not know.
    pub before: Option<u64>,
    /// In memory afterwards; `None` as above.
    pub after: Option<u64>,
    /// An error of writing back or dropping.
    pub error: Option<io::Error>,
    /// Why pages stayed, where some did.
    pub stay: Option<Stay>,
}

/// What is known of pages that stayed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stay {
    /// The file system keeps its files in memory and nowhere else.
    pub in_memory_file_system: bool,
    /// Pages by state; `None` where they are not known.
    pub states: Option<CacheCounts>,
    /// Whether other pages of the file were not meant: a page goes only together with those that the kernel keeps it with (a folio).
    pub is_part: bool,
    /// Whether the user may write the file, and so have its dirty pages written back here.
    pub may_write: bool,
    /// Processes that have mapped the file: all of them for root, one's own for others.
    pub users: Vec<User>,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Evicted {
    /// Files, in the order they were given.
    pub files: Vec<EvictedFile>,
    /// Files passed over.
    pub passed: Vec<Passed>,
}

/// Drops the pages of `spots` from memory, and looks what stayed.
pub fn evict(spots: &[Spot]) -> Evicted {
    let mut evicted = Evicted::default();
    let mut users = None;
    for spot in spots {
        let Some(opened) = spot.open_or_pass(&mut evicted.passed) else { continue };
        let residency = || Residency::of(&opened).ok();
        let before = residency();
        let error = drop_pages(&opened, before.as_ref()).err();
        let after = residency();
        let stay = after.as_ref().filter(|after| after.resident_pages() > 0).map(|after| Stay {
            in_memory_file_system: kind_of(&opened.file).is_ok_and(|kind| without_device(kind).is_some()),
            states: after.states,
            is_part: opened.pages() < opened.size_bytes.div_ceil(PAGE_SIZE),
            may_write: may_write(opened.file.as_fd()),
            users: users.get_or_insert_with(Users::now).of(&opened),
        });
        evicted.files.push(EvictedFile {
            pages: opened.pages(),
            path: opened.path,
            before: before.map(|before| before.resident_pages()),
            after: after.map(|after| after.resident_pages()),
            error,
            stay,
        });
    }
    evicted
}

fn drop_pages(opened: &Opened, before: Option<&Residency>) -> io::Result<()> {
    let states = before.and_then(|before| before.states);
    let clean = states.is_some_and(|states| states.dirty == 0 && states.writeback == 0);
    if !clean && may_write(opened.file.as_fd()) {
        rustix::fs::fdatasync(&opened.file)?;
    }
    for range in &opened.ranges {
        // The page at the file's end is dropped only when the range reaches past it.
        let len = NonZeroU64::new(range.bytes());
        rustix::fs::fadvise(&opened.file, range.start().0 * PAGE_SIZE, len, Advice::DontNeed)?;
    }
    Ok(())
}
