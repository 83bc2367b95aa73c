//! Pages of a file given another place on the device (EXT4_IOC_MOVE_EXT of fs/ext4/move_extent.c, which e4defrag(8) is made of).
//!
//! What the file holds stays as it is, for everybody who has it open and mapped, and whenever the machine stops: the kernel
//! copies page by page and changes both places in one transaction of the file system's journal. The times of the file stay too.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use prepage_core::{PageIndex, PageRange};

/// `_IOWR('f', 15, struct move_extent)` of fs/ext4/ext4.h.
const EXT4_IOC_MOVE_EXT: libc::c_ulong = 0xc028_660f;

#[repr(C)]
struct MoveExtent {
    reserved: u32,
    donor_fd: u32,
    orig_start_blocks: u64,
    donor_start_blocks: u64,
    len_blocks: u64,
    moved_blocks: u64,
}

// fs/ext4/ext4.h
const _: () = assert!(size_of::<MoveExtent>() == 40);

/// Has `pages` of `file` lie where those of `donor` from `start` on lie, and the donor's where these lay; what the donor holds there is
/// no longer said. Both are open to be written to, on a file system of 4 KiB blocks with a journal. Holes stay, and there is nothing behind the end
/// of the file. Returns how many pages have moved, and holes between them: fewer where the kernel stopped midway.
///
/// # Errors
/// Where none has moved: EOPNOTSUPP or ENOTTY where the file system cannot, or not with this file, EBUSY where a page is being written or lies in a large
/// folio of the page cache, ENODATA where only holes follow or nothing is written yet, ENOSPC where the maps of the files find no room.
pub fn exchange(
    file: BorrowedFd<'_>,
    pages: PageRange,
    donor: BorrowedFd<'_>,
    start: PageIndex,
) -> io::Result<u64> {
    let mut moved = 0;
    while moved < pages.len() {
        let mut request = MoveExtent {
            reserved: 0,
            donor_fd: donor.as_raw_fd() as u32,
            orig_start_blocks: pages.start().0 + moved,
            donor_start_blocks: start.0 + moved,
            len_blocks: pages.len() - moved,
            moved_blocks: 0,
        };
        // SAFETY: the request has the kernel's layout and outlives the call, and both descriptors are open for as long.
        let ended = unsafe { libc::ioctl(file.as_raw_fd(), EXT4_IOC_MOVE_EXT as _, &raw mut request) };
        let error = (ended == -1).then(io::Error::last_os_error);
        moved += request.moved_blocks.min(request.len_blocks);
        match error {
            Some(error) if moved == 0 => return Err(error),
            None if request.moved_blocks > 0 => {}
            _ => break,
        }
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use prepage_core::PAGE_SIZE;
    use prepage_testing::{Need, unless_refused};

    use super::*;
    use crate::extents::place_of;

    #[test]
    fn pages_lie_where_the_donor_s_lay_and_hold_what_they_held() {
        let of_pages = |pages: u8, first: u8| {
            let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
            (0..pages).for_each(|page| {
                file.write_all_at(&[first + page; PAGE_SIZE as usize], u64::from(page) * PAGE_SIZE).unwrap();
            });
            file.sync_all().unwrap();
            file
        };
        let (file, donor) = (of_pages(8, 1), of_pages(4, 100));
        let place = |file: &File, page: u64| place_of(file.as_fd(), page * PAGE_SIZE);
        let refused = |error: &io::Error| {
            matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOTTY | libc::EINVAL))
        };
        let need = Need::Extents(env!("CARGO_MANIFEST_DIR").into());
        let before: Vec<_> = (0..4).map(|page| place(&donor, page).ok().flatten()).collect();
        let ctime = |file: &File| file.metadata().map(|file| (file.ctime(), file.ctime_nsec())).unwrap();
        let changed = ctime(&file);
        let pages = PageRange::new(PageIndex(3), PageIndex(6));
        let moved = exchange(file.as_fd(), pages, donor.as_fd(), PageIndex(1));
        let Some(moved) = unless_refused(moved, need, refused) else { return };
        assert_eq!((moved, ctime(&file)), (3, changed));
        let after: Vec<_> = (3..6).map(|page| place(&file, page).unwrap()).collect();
        assert_eq!(after, before[1..]);
        let mut held = [0; PAGE_SIZE as usize];
        for page in 0..8 {
            file.read_exact_at(&mut held, u64::from(page) * PAGE_SIZE).unwrap();
            assert!(held.iter().all(|&byte| byte == 1 + page), "page {page}");
        }
        let behind = PageRange::new(PageIndex(8), PageIndex(9));
        assert!(exchange(file.as_fd(), behind, donor.as_fd(), PageIndex(0)).is_err(), "there is nothing");
    }
}
