//! Memory of zeros, made in aligned clusters, one fault for a whole cluster; or left to the kernel's huge pages.

use std::io;
use std::sync::OnceLock;

use prepage_core::{FaultClass, PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::huge_blocks::HugeBlocks;
use prepage_sys::memfd::Memfd;
use prepage_sys::region::{Contents, REGION_ALIGN, Region};
use prepage_sys::sections::Sections;
use prepage_sys::userfaultfd::{Progress, Writes};

use crate::fault::{Fault, FaultOutcome};
use crate::install::{Change, block};
use crate::map::MapCore;
use crate::object::MAX_BYTES;
use crate::options::Mode;
use crate::reason;
use crate::segment::Place;
use crate::statistics::{Account, Tally};

/// What came of making zeros.
enum Made {
    /// They are there, and the touched one was before: another thread made it, or the kernel cannot read what is there.
    There,
    /// They are there.
    All,
    /// From this page on events wait to be read first.
    Changing(PageIndex),
    /// The memory of the touched page has gone.
    Gone,
}

/// Pages that one call of the kernel makes at most: as many as there are zeros to copy.
const CALL_PAGES: u64 = REGION_ALIGN / PAGE_SIZE;

/// What zeros are made from.
#[derive(Debug)]
pub(crate) struct Zeros {
    /// Never written to: all of it is the kernel's one page of zeros, which stays in the nearest cache.
    pages: Region,
    /// What stands where huge pages will be: holds nothing, as long as any map. Made with the first map that needs it: a process that may
    /// not make long files (`ulimit -f`) cannot have it.
    stand_in: OnceLock<Memfd>,
    /// Making zeros.
    pub(crate) sections: Sections,
}

impl Zeros {
    pub(crate) fn new() -> io::Result<Self> {
        let pages = Region::map(REGION_ALIGN, Contents::Undumped)?;
        // Mapped before signal handlers hand it to the kernel.
        assert!(pages.as_slice().iter().step_by(PAGE_SIZE as usize).all(|&byte| byte == 0));
        Ok(Self { pages, stand_in: OnceLock::new(), sections: Sections::default() })
    }

    /// What a map of zeros in huge pages shows.
    pub(crate) fn huge(&self) -> io::Result<Contents<'_>> {
        let stand_in = match self.stand_in.get() {
            Some(stand_in) => stand_in,
            None => {
                let made = Memfd::create("prepage-blocks", MAX_BYTES)?;
                self.stand_in.get_or_init(|| made)
            }
        };
        Ok(Contents::HugeBlocks(stand_in))
    }
}

impl Fault<'_> {
    /// Makes zeros where the touch found nothing.
    pub(crate) fn make_zeros(&mut self, place: &Place<'_>) -> FaultOutcome {
        let count = |tally: &Tally| tally.pages_zeroed + tally.pages_given;
        let before = count(&self.account.tally);
        match make(self.map, place, self.touch.page, self.touch.write, &mut self.account) {
            Ok(made @ (Made::All | Made::There)) => {
                self.was_there = matches!(made, Made::There);
                self.account.tally.zero += 1;
                // None but its own where another fault made them meanwhile.
                let pages = (count(&self.account.tally) - before).max(1);
                FaultOutcome::Mapped(FaultClass::ZeroFill, pages)
            }
            Ok(Made::Changing(_)) => FaultOutcome::Again,
            Ok(Made::Gone) => FaultOutcome::Gone,
            Err(error) => FaultOutcome::Failed(reason::of_errno(error.raw_os_error())),
        }
    }
}

/// Makes the cluster of `page`: memory where it is to be written to, else views of the page of zeros. In huge blocks the
/// kernel makes it, when the touch is repeated.
fn make(
    map: &MapCore,
    place: &Place<'_>,
    page: PageIndex,
    write: bool,
    account: &mut Account,
) -> io::Result<Made> {
    if let Some(blocks) = huge_blocks(map, page) {
        return give(map, blocks, page, account).map(|_| Made::All);
    }
    // Clusters are aligned in the object.
    let cluster = block(place.page, map.zero_cluster, place.window);
    let start = PageIndex(page.0 - (place.page.0 - cluster.start().0));
    make_range(map, page, PageRange::new(start, PageIndex(start.0 + cluster.len())), write, account)
}

/// Makes memory of what is missing of the map's pages `range`, which are zeros.
pub(crate) fn populate(
    map: &MapCore,
    range: PageRange,
    change: &mut Change,
    account: &mut Account,
) -> io::Result<()> {
    let mut from = range.start();
    while from < range.end() {
        let Some(blocks) = huge_blocks(map, from) else {
            let made = make_range(map, from, PageRange::new(from, range.end()), true, account)?;
            let Made::Changing(reached) = made else {
                change.is_over();
                return Ok(());
            };
            if reached > from {
                change.is_over();
            }
            from = reached;
            change.wait()?;
            continue;
        };
        let end = give(map, blocks, from, account)?.min(range.end());
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
fn give(map: &MapCore, blocks: &HugeBlocks, page: PageIndex, account: &mut Account) -> io::Result<PageIndex> {
    let given = blocks.give(map.address_of(page))?;
    if given.now {
        account.tally.pages_given += given.len / PAGE_SIZE;
    }
    if map.space.mode == Mode::Handler {
        // Nothing else wakes threads that wait for the piece. Fails only for addresses that are none.
        let _ = map.space.uffd.wake(given.start, given.len);
    }
    Ok(PageIndex(map.page_at(given.start).0 + given.len / PAGE_SIZE))
}

/// Makes zeros in what is missing of `range`, for a touch of `page`.
fn make_range(
    map: &MapCore,
    page: PageIndex,
    range: PageRange,
    write: bool,
    account: &mut Account,
) -> io::Result<Made> {
    let zeros = map.vm.zeros.pages.as_slice();
    let uffd = &map.space.uffd;
    let mut from = range.start();
    let mut was_there = false;
    let mut most = CALL_PAGES;
    while from < range.end() {
        let offset = map.offset_of(from);
        let pages = (range.end().0 - from.0).min(most);
        let section = map.mapping.begin(&map.vm.zeros.sections, rustix::thread::sched_getcpu());
        account.tally.shared_atomics += 2;
        let told = map.writes_told();
        // The kernel's page of zeros cannot be had protected.
        let made = if write || told == Writes::Told {
            uffd.copy(&map.span, offset, &zeros[..(pages * PAGE_SIZE) as usize], told)?
        } else {
            uffd.map_zero(&map.span, offset, pages * PAGE_SIZE)?
        };
        let (made, passed) = match made {
            Progress::Done => (pages, 0),
            Progress::Part(bytes) => (bytes / PAGE_SIZE, 0),
            Progress::Mapped => {
                // Threads that wait for a page that another call made are not woken by this one.
                if map.space.mode == Mode::Handler {
                    map.wake(from);
                }
                was_there |= from == page;
                (0, 1)
            }
            Progress::Changing => return Ok(Made::Changing(from)),
            Progress::Hole => return Err(rustix::io::Errno::NOMEM.into()),
            // The program split the mapping by an advice of its own: a page alone is surely in one.
            Progress::Split if pages > 1 => {
                most = 1;
                continue;
            }
            Progress::Split | Progress::Gone if from == page => return Ok(Made::Gone),
            Progress::Split | Progress::Gone => (0, 1),
        };
        most = CALL_PAGES;
        map.forget_poisoned_pages(PageRange::new(from, PageIndex(from.0 + made)), account);
        drop(section);
        account.tally.pages_zeroed += made;
        from.0 += made + passed;
    }
    Ok(if was_there { Made::There } else { Made::All })
}
