//! Memory of zeros, made in aligned clusters, one fault for a whole cluster; or left to the kernel's huge pages.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use prepage_core::{FaultClass, PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::huge_blocks::HugeBlocks;
use prepage_sys::region::{Contents, REGION_ALIGN, Region};
use prepage_sys::userfaultfd::Progress;
use rustix::fs::MemfdFlags;

use crate::fault::{Outcome, Touch};
use crate::map::MapCore;
use crate::neighbours::block;
use crate::object::MAX_BYTES;
use crate::options::Mode;
use crate::reason;
use crate::statistics::Tally;

/// Pages that one call of the kernel makes at most: as many as there are zeros to copy.
const CALL_PAGES: u64 = REGION_ALIGN / PAGE_SIZE;

/// What zeros are made from.
#[derive(Debug)]
pub(crate) struct Zeros {
    /// Never written to: all of it is the kernel's one page of zeros, which stays in the nearest cache.
    pages: Region,
    /// What stands where huge pages will be: holds nothing, as long as any map.
    stand_in: OwnedFd,
}

impl Zeros {
    pub(crate) fn new() -> io::Result<Self> {
        let pages = Region::map(REGION_ALIGN, Contents::Anonymous)?;
        // Mapped before signal handlers hand it to the kernel.
        assert!(pages.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
        let stand_in = rustix::fs::memfd_create("prepage-blocks", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&stand_in, MAX_BYTES)?;
        Ok(Self { pages, stand_in })
    }

    /// What a map of zeros in huge pages shows.
    pub(crate) fn huge(&self) -> Contents<'_> {
        Contents::HugeBlocks(self.stand_in.as_fd())
    }
}

/// Makes zeros where `touch` found nothing.
pub(crate) fn resolve(map: &MapCore, touch: &Touch, tally: &mut Tally) -> Outcome {
    let before = tally.pages_zeroed + tally.pages_given;
    match make(map, touch.page, touch.write, tally) {
        Ok(()) => {
            tally.zero += 1;
            // None but its own where another fault made them meanwhile.
            let pages = (tally.pages_zeroed + tally.pages_given - before).max(1);
            Outcome::Mapped(FaultClass::ZeroFill, pages)
        }
        Err(error) => Outcome::Failed(reason::of_errno(error.raw_os_error())),
    }
}

/// Makes the cluster of `page`: memory where it is to be written to, else views of the page of zeros. In huge blocks the
/// kernel makes it, when the touch is repeated.
fn make(map: &MapCore, page: PageIndex, write: bool, tally: &mut Tally) -> io::Result<()> {
    if let Some(blocks) = huge_blocks(map, page) {
        give(map, blocks, page, tally)?;
        return Ok(());
    }
    make_range(map, block(page, map.zero_cluster, map.window), write, tally)
}

/// Makes memory of what is missing of `range`.
pub(crate) fn populate(map: &MapCore, range: PageRange, tally: &mut Tally) -> io::Result<()> {
    let mut from = range.start();
    while from < range.end() {
        let Some(blocks) = huge_blocks(map, from) else {
            return make_range(map, PageRange::new(from, range.end()), true, tally);
        };
        let end = give(map, blocks, from, tally)?.min(range.end());
        blocks.populate(map.address_of(from), PageRange::new(from, end).bytes())?;
        from = end;
    }
    Ok(())
}

/// The huge blocks of `map`, if `page` lies in one.
fn huge_blocks(map: &MapCore, page: PageIndex) -> Option<&HugeBlocks> {
    map.blocks.as_deref().filter(|blocks| blocks.hold(map.address_of(page)))
}

/// Leaves the piece of `page` to the kernel; returns its end.
fn give(map: &MapCore, blocks: &HugeBlocks, page: PageIndex, tally: &mut Tally) -> io::Result<PageIndex> {
    let given = blocks.give(map.address_of(page))?;
    if given.now {
        tally.pages_given += given.len / PAGE_SIZE;
    }
    if map.mode == Mode::Handler {
        // Nothing else wakes threads that wait for the piece. Fails only for addresses that are none.
        let _ = map.uffd.wake(given.start, given.len);
    }
    Ok(PageIndex(map.page_at(given.start).0 + given.len / PAGE_SIZE))
}

/// Makes zeros in what is missing of `range`.
fn make_range(map: &MapCore, range: PageRange, write: bool, tally: &mut Tally) -> io::Result<()> {
    let zeros = map.object.vm.zeros.pages.as_slice();
    let mut from = range.start();
    while from < range.end() {
        let address = map.address_of(from);
        let pages = (range.end().0 - from.0).min(CALL_PAGES);
        let progress = if write {
            map.uffd.copy(address, &zeros[..(pages * PAGE_SIZE) as usize])?
        } else {
            map.uffd.map_zero(address, pages * PAGE_SIZE)?
        };
        let (made, passed) = match progress {
            Progress::Done => (pages, 0),
            Progress::Mapped(bytes) => {
                // Threads that wait for a page that another call made are not woken by this one.
                if map.mode == Mode::Handler {
                    map.wake(map.page_at(address + bytes));
                }
                (bytes / PAGE_SIZE, 1)
            }
            Progress::Again(bytes) => (bytes / PAGE_SIZE, 0),
            Progress::Hole(_) => return Err(rustix::io::Errno::NOMEM.into()),
        };
        tally.pages_zeroed += made;
        from.0 += made + passed;
    }
    Ok(())
}
