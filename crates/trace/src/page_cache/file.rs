//! A file whose pages are watched.

use std::collections::HashMap;
use std::os::fd::AsRawFd;

use prepage_core::{FilePages, PAGE_SIZE, PageIndex};
use prepage_sys::disk_stat::DiskStat;
use prepage_sys::inode::{Mounted, open_inode};
use rustix::fs::{AtFlags, StatxFlags, statx};

/// How often a file is looked at: one that is read at its end while it grows would be looked at for ever.
const LOOKS_MAX: u32 = 64;

/// Device and inode.
pub(super) type Inode = (u64, u64);

#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) known: Known,
    pub(super) pages: HashMap<u64, Page>,
    /// Without the file's name.
    pub(super) counts: FilePages,
    /// When pages were added last.
    pub(super) added_ns: u64,
}

/// What opening a file showed.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Times it was looked at.
    pub(super) looks: u32,
    pub(super) is_disk: bool,
    pub(super) path: Option<String>,
    /// Where it ends; `None` where it cannot be looked at.
    pub(super) end: Option<PageIndex>,
}

/// A page that was read in and is in use, as far as is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) reader: u32,
    pub(super) since_ns: u64,
    pub(super) touched: bool,
    pub(super) mapped: bool,
}

impl File {
    /// Counts a page of which no more will be heard.
    pub(super) fn give_up(&mut self, page: &Page) {
        match page {
            Page { touched: true, .. } => {}
            Page { mapped: true, .. } => self.counts.pages_mapped_nearby += 1,
            Page { .. } => self.counts.pages_untouched += 1,
        }
    }
}

impl Known {
    /// Opens the file for its path and length: no event has the path of a file that was not mapped, nor any length.
    pub(super) fn look(&mut self, mounted: &[Mounted], (device, inode): Inode) {
        self.looks += 1;
        if self.looks > LOOKS_MAX {
            return;
        }
        if let Some(disk) = disk((device, inode)) {
            (self.path, self.is_disk) = (Some(disk), true);
            return;
        }
        let Some(fd) = open_inode(mounted, device, inode) else { return };
        let size = statx(&fd, "", AtFlags::EMPTY_PATH, StatxFlags::SIZE).map(|stat| stat.stx_size);
        self.end = size.ok().map(|size| PageIndex(size.div_ceil(PAGE_SIZE)));
        if self.path.is_none() {
            let path = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            self.path = path.ok().map(|path| path.to_string_lossy().into_owned());
        }
    }
}

/// The disk whose own pages (directories, inodes) these are.
fn disk(inode: Inode) -> Option<String> {
    let target = std::fs::read_link(DiskStat::directory(DiskStat::device_of_inode(inode)?)).ok()?;
    Some(format!("/dev/{}", target.file_name()?.to_string_lossy()))
}
