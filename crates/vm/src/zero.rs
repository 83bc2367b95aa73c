//! Memory of zeros, made in aligned clusters: one fault for a whole cluster.

use std::io;
use std::sync::{Mutex, TryLockError};

use prepage_core::{FaultClass, PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::region::{Contents, REGION_ALIGN, Region};
use prepage_sys::userfaultfd::{Progress, Userfaultfd};

use crate::fault::{Outcome, Touch};
use crate::map::MapCore;
use crate::neighbours::block;
use crate::options::Mode;
use crate::reason;
use crate::statistics::Tally;

/// Pages in a huge page.
pub(crate) const HUGE_PAGES: u64 = REGION_ALIGN / PAGE_SIZE;

/// What zeros are made from.
#[derive(Debug)]
pub(crate) struct Zeros {
    /// Never written to: all of it is the kernel's one page of zeros, which stays in the nearest cache.
    pages: Region,
    /// Where huge pages are made before they are moved to their place; each for one fault at a time.
    huge: Box<[Mutex<Region>]>,
}

impl Zeros {
    pub(crate) fn new() -> io::Result<Self> {
        let pages = Region::map(REGION_ALIGN, Contents::Anonymous)?;
        // Mapped before signal handlers hand it to the kernel.
        assert!(pages.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
        let places = if Userfaultfd::can_move() {
            std::thread::available_parallelism().map_or(1, usize::from)
        } else {
            0
        };
        let huge = (0..places)
            .map(|_| Region::map(REGION_ALIGN, Contents::AnonymousHuge).map(Mutex::new))
            .collect::<io::Result<_>>()?;
        Ok(Self { pages, huge })
    }
}

/// Makes zeros where `touch` found nothing.
pub(crate) fn resolve(map: &MapCore, touch: &Touch, tally: &mut Tally) -> Outcome {
    match make(map, touch.page, touch.write, tally) {
        Ok(()) => {
            tally.zero += 1;
            Outcome::Mapped(FaultClass::ZeroFill)
        }
        Err(error) => Outcome::Failed(reason::of_errno(error.raw_os_error())),
    }
}

/// Makes the cluster of `page`: memory where it is to be written to, else views of the page of zeros.
fn make(map: &MapCore, page: PageIndex, write: bool, tally: &mut Tally) -> io::Result<()> {
    if map.huge && write {
        let whole = block(page, HUGE_PAGES, map.window);
        if whole.len() == HUGE_PAGES && move_huge(map, whole)? {
            tally.pages_zeroed += HUGE_PAGES;
            return Ok(());
        }
    }
    make_range(map, block(page, map.zero_cluster, map.window), write, tally)
}

/// Makes zeros in what is missing of `range`.
pub(crate) fn make_range(map: &MapCore, range: PageRange, write: bool, tally: &mut Tally) -> io::Result<()> {
    let zeros = map.object.vm.zeros.pages.as_slice();
    let mut from = range.start();
    while from < range.end() {
        let address = map.address_of(from);
        let pages = (range.end().0 - from.0).min(HUGE_PAGES);
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

/// Makes a huge page elsewhere and moves it to `whole`; false where that cannot be done.
fn move_huge(map: &MapCore, whole: PageRange) -> io::Result<bool> {
    for place in &map.object.vm.zeros.huge {
        let mut place = match place.try_lock() {
            Ok(place) => place,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => continue,
        };
        place.populate_write(0, REGION_ALIGN)?;
        // Anything but success (a page of the block is there already, the kernel could not make a huge page) leaves
        // zeros here for the next time and the block to the usual way.
        let address = map.address_of(whole.start());
        return Ok(matches!(map.uffd.move_pages(address, place.as_mut_slice()), Ok(Progress::Done)));
    }
    Ok(false)
}
