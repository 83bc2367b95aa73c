//! What a map holds at one moment becomes an object.

use std::sync::Arc;

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::region::try_copy;
use prepage_sys::signals::Masked;

use crate::book::{Base, Book, Hold, moved_up};
use crate::error::{MakeError, SnapshotError};
use crate::frame_count::Reserve;
use crate::give_back;
use crate::map::Map;
use crate::object::{Bytes, Contents, Frames, Handle, Object, ObjectCore};
use crate::pages::Seen;
use crate::reclaim;
use crate::segment::{Install, lookup, placed};
use crate::statistics::{Account, Tally};
use crate::sync::Anyway;
use crate::vm::Vm;

/// Pages that are copied at once from one store to another.
const PIECE_PAGES: u64 = 64;
/// How often room is made for a snapshot: others may take it before it does.
const TRIES: u32 = 4;

/// Why pages cannot be frozen.
enum Lack {
    /// The store has older versions of some, which only this map sees.
    Store,
    /// So many frames are needed, and fewer are free.
    Frames(u64),
}

impl Map {
    /// Makes an object of what a private map holds now. The map goes on above this snapshot. Pages that were written to since the
    /// map's last snapshot are copied, and all others are shared: how long writers wait, and what is copied, depends on the written pages only. The call
    /// itself also takes 0.4 µs and 40 bytes for each run of pages that were frozen before.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use prepage_vm::{MapOptions, Vm, VmOptions};
    ///
    /// let vm = Vm::new(VmOptions::default())?;
    /// let image = vm.file(std::env::current_exe()?)?;
    /// let mut map = vm.map(&image, &MapOptions::private())?;
    /// map.as_mut_slice()[0] = 1;
    /// let snapshot = map.snapshot()?;
    /// map.as_mut_slice()[0] = 2;
    /// let mut clone = vm.map(&snapshot, &MapOptions::private())?;
    /// assert_eq!(&clone.as_slice()[..4], b"\x01ELF");
    /// clone.as_mut_slice()[1] = b'e';
    /// let of_clone = clone.snapshot()?; // of a clone again, as often as one likes
    /// drop((map, snapshot, clone)); // in any order
    /// assert_eq!(&vm.map(&of_clone, &MapOptions::private())?.as_slice()[..4], b"\x01eLF");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Other threads may write meanwhile (through pointers: a mutable slice borrows the map). There is one moment within the call:
    /// everything that was written before it is in the snapshot, and nothing that was written after it. Writers wait until the pages
    /// are protected, and then each for the copy of 32 pages at most, its own among them. If a system call has begun and a device still
    /// writes for it, these bytes may be in the snapshot or not.
    ///
    /// After each snapshot, the first write to a page is a fault that the VM serves. In inline mode, and with
    /// [`VmOptions::user_mode_only`](crate::VmOptions::user_mode_only), a system call that writes to such a page gets EFAULT.
    ///
    /// # Errors
    /// See [`SnapshotError`]. After an error the map is as before, and the next snapshot has what this one would have had.
    pub fn snapshot(&self) -> Result<Object, SnapshotError> {
        let core = &self.core;
        core.vm.check_process().map_err(|_| SnapshotError::Forked)?;
        if !core.private {
            return Err(SnapshotError::Shared);
        }
        if core.inherit {
            return Err(SnapshotError::Inherited);
        }
        if core.blocks.is_some() {
            return Err(SnapshotError::HugePages);
        }
        // A signal handler on this thread that wrote to the map would wait for it.
        let _masked = Masked::asynchronous();
        let mut chain = core.chain.lock().anyway();
        let link = match &*chain {
            Some(hold) => hold.link,
            None => {
                let shown = core.shown.current();
                let base = Base::of(&core.laid, &shown, core.window.start(), core.holds.clone());
                let begun = Book::begin(&core.vm, base);
                core.vm.book.lock().watch_map(core);
                chain.insert(begun).link
            }
        };
        if !core.writes.are_found() {
            core.tell_writes()?;
            self.weed();
        }
        let (is_shared, own, has_room) = {
            let book = core.vm.book.lock();
            let (own, has_room) = book.store(link);
            (book.chains.is_shared(link), own, has_room)
        };
        if core.written().is_empty()
            && let Some(store) = &own
        {
            return Ok(self.handle(store, link));
        }
        let mut store = match own.filter(|_| !is_shared && has_room) {
            Some(own) => own,
            None => self.new_store()?,
        };
        let mut replaced = None;
        let count = &core.vm.pool.core().frames;
        core.protect_ahead()?;
        let mut tries = 0;
        let (frozen, freeze_ns) = loop {
            let room = |frozen: &[PageRange]| {
                if holds_any(&store, frozen) {
                    return Err(Lack::Store);
                }
                let pages = pages_of(frozen);
                if count.reserve(pages) == Reserve::Got { Ok(()) } else { Err(Lack::Frames(pages)) }
            };
            match core.freeze(&store, room)? {
                Ok(frozen) => break frozen,
                // It keeps them: the map shows them again, where it is told to, if this snapshot fails.
                Err(Lack::Store) => replaced = Some(std::mem::replace(&mut store, self.new_store()?)),
                // A part of what memory has to spare may be less than a snapshot needs.
                Err(Lack::Frames(pages))
                    if tries < TRIES && give_back::makes_room(core.vm.pool.core(), pages) =>
                {
                    tries += 1;
                }
                // They are taken back while writers go on.
                Err(Lack::Frames(pages))
                    if tries < TRIES && reclaim::take(core.vm.pool.core(), pages) > 0 =>
                {
                    tries += 1;
                }
                // Where memory was given back, the limit rises again.
                Err(Lack::Frames(pages)) if count.grow(pages) => {}
                Err(Lack::Frames(_)) => return Err(SnapshotError::NoFrames),
            }
        };
        let reserved = pages_of(&frozen);
        let account = Account::here();
        let copied = core.copy_all(&frozen, account.cpu).inspect_err(|_| {
            frozen.iter().for_each(|run| abandon(&store, *run));
            core.vm.release_frames(reserved);
        })?;
        let added: u64 = copied.iter().map(|run| publish(&store, *run)).sum();
        core.vm.release_frames(reserved - added);
        let link = shadow(&core.vm, chain.as_mut().expect("just begun"), is_shared, &store, &copied);
        {
            // What is shown is known to the book as soon as it is found there.
            let book = core.vm.book.lock();
            let wanted = moved_up(book.wanted(link), core.window.start());
            core.shown.replace(&Arc::new(placed(&core.laid, wanted)));
        }
        if let Some(replaced) = replaced {
            // What cannot be freed now is freed later, by who looks for such pages.
            let _ = core.vm.free(copied.iter().map(|run| (&replaced, *run)));
        }
        let pages_frozen = pages_of(&copied);
        let tally = Tally { snapshots: 1, pages_frozen, freeze_ns, ..Tally::default() };
        core.vm.figures.add(account.cpu, &tally);
        core.vm.keeper.snapshot_taken(&core.vm);
        Ok(self.handle(&store, link))
    }

    fn new_store(&self) -> Result<Arc<ObjectCore>, SnapshotError> {
        let vm = Vm { core: Arc::clone(&self.core.vm) };
        new_store(&vm, self.len_bytes()).map_err(|error| match error {
            MakeError::System { source, .. } => source.into(),
            _ => SnapshotError::Forked,
        })
    }

    fn handle(&self, store: &Arc<ObjectCore>, link: prepage_core::chain::LinkId) -> Object {
        let hold: Hold = Book::hold(&self.core.vm, link);
        Object { core: Handle::new(Arc::clone(store)), hold: Some(Arc::new(hold)) }
    }

    /// Of pages that have been copied into the map, and of zeros that have been made, those count as written to alone that hold
    /// another thing than they were made with.
    fn weed(&self) {
        let core = &self.core;
        let cpu = Account::here().cpu;
        let shown = core.shown.current();
        let mut bytes = [[0; PAGE_SIZE as usize]; 2];
        core.weed(|index| {
            let place = lookup(&shown, PageIndex(core.window.start().0 + index.0));
            let [ours, theirs] = &mut bytes;
            let was = match (place.install, place.frames()) {
                (Install::Continue, _) => return false,
                (Install::Copy, Some(frames)) => {
                    // The frame stays until the section ends. One that is taken away reads as zeros, and a page that the program filled with
                    // zeros would count as not written to.
                    let _section = frames.sections.enter(cpu);
                    if !matches!(frames.pages.see(place.page), Seen::Resident { .. }) {
                        return false;
                    }
                    frames.memfd.read_at(theirs, place.page.offset_bytes())
                }
                _ => {
                    theirs.fill(0);
                    Ok(())
                }
            };
            let address = self.address() + index.offset_bytes();
            was.is_ok() && matches!(try_copy(address, ours), Ok(read) if read == ours.len()) && ours == theirs
        });
    }
}

/// An object for frozen pages.
pub(crate) fn new_store(vm: &Vm, len_bytes: u64) -> Result<Arc<ObjectCore>, MakeError> {
    let frames = |len| Frames::new(len, Bytes::Frozen).map(|frames| Contents::Frames(Box::new(frames)));
    let object = vm.object("[snapshot]".to_owned(), len_bytes, None, frames)?;
    Ok(Arc::clone(&object.core))
}

/// Whether `store` has any page of `runs`.
fn holds_any(store: &ObjectCore, runs: &[PageRange]) -> bool {
    let frames = store.frames().expect("a store has frames");
    let is_there = |page| frames.pages.see(page) != Seen::Absent;
    frames.resident() > 0 && runs.iter().flat_map(|run| run.iter()).any(is_there)
}

fn pages_of(runs: &[PageRange]) -> u64 {
    runs.iter().map(|run| run.len()).sum()
}

/// The frames of `run` hold frozen pages; returns how many did not before.
fn publish(store: &ObjectCore, run: PageRange) -> u64 {
    let frames = store.frames().expect("a store has frames");
    let mut added = 0;
    for page in run.iter() {
        if let Some(mut claim) = frames.pages.claim(page) {
            store.came(frames, 1);
            added += 1;
            // Nobody waits for what no map shows yet.
            let _ = claim.publish(1, None, page);
        }
    }
    added
}

/// Frees what was copied of `run` and is not to be in the store after all: nobody counts it. Pages that were there before stay.
fn abandon(store: &ObjectCore, run: PageRange) {
    let frames = store.frames().expect("a store has frames");
    let mut page = run.start();
    while page < run.end() {
        let Some(mut claim) = frames.pages.claim(page) else {
            page.0 += 1;
            continue;
        };
        claim.extend(PageRange::new(page, run.end()));
        frames.abandon(claim.range());
        page = claim.range().end();
        // Nobody waits for what no map shows.
        let _ = claim.release();
    }
}

/// Enters the pages `copied`, which are in `store`, as written by the map that `hold` is of; a long chain collapses.
fn shadow(
    vm: &Arc<crate::vm::VmCore>,
    hold: &mut Hold,
    is_shared: bool,
    store: &Arc<ObjectCore>,
    copied: &[PageRange],
) -> prepage_core::chain::LinkId {
    let mut book = vm.book.lock();
    let below = hold.link;
    let (mut gone, mut scattered) = (Vec::new(), Vec::new());
    if let Some(home) = book.store(below).0.filter(|home| !Arc::ptr_eq(home, store)) {
        scattered = book.scattered(below);
        for (pages, from) in &scattered {
            // Where there is no room for them they stay where they are. Nobody has had these pages in that store.
            if copy(vm, from, &home, *pages).is_err() {
                break;
            }
            book.bring_home(below, *pages);
        }
    }
    let link = if is_shared {
        let taken = book.collapsing(below);
        let (link, transfers) = book.chains.shadow(below);
        hold.link = link;
        book.lend(below, &transfers.copied, taken);
        book.put(link, below, store);
        gone = book.follow(&transfers);
        link
    } else {
        book.put(below, below, store);
        below
    };
    for page in copied.iter().flat_map(|run| run.iter()) {
        let written = book.chains.write(link, page);
        debug_assert_eq!(written.top, link, "nobody else looks at it");
    }
    copied.iter().for_each(|run| book.bring_home(link, *run));
    drop(book);
    drop((gone, scattered));
    link
}

/// Copies `pages` of one store to another.
fn copy(
    vm: &crate::vm::VmCore,
    from: &Arc<ObjectCore>,
    to: &ObjectCore,
    pages: PageRange,
) -> Result<(), SnapshotError> {
    let frames = to.frames().expect("a store has frames");
    let source = from.frames().expect("a store has frames");
    let mut buffer = vm.request_buffers.take_or_make(1)?;
    let mut start = pages.start();
    let mut outcome = Ok(());
    while start < pages.end() && outcome.is_ok() {
        let run = PageRange::new(start, PageIndex(pages.end().0.min(start.0 + PIECE_PAGES)));
        let bytes = buffer.pages(run.len());
        outcome = if vm.pool.core().frames.reserve(run.len()) == Reserve::Got {
            let copied = source
                .memfd
                .read_at(bytes, run.start().offset_bytes())
                .and_then(|()| frames.memfd.write_at(bytes, run.start().offset_bytes()));
            let added = if copied.is_ok() {
                publish(to, run)
            } else {
                abandon(to, run);
                0
            };
            vm.release_frames(run.len() - added);
            copied.map_err(SnapshotError::from)
        } else {
            Err(SnapshotError::NoFrames)
        };
        start = run.end();
    }
    vm.request_buffers.give(buffer);
    outcome
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
pub(crate) mod tests {
    use std::io::{Error, ErrorKind};
    use std::time::Duration;

    use prepage_sys::call_filter::{When, fail};
    use prepage_sys::sigbus::{BusFault, Verdict};
    use prepage_sys::signals::Endings;
    use prepage_testing::{Doctor, Need, unless_refused};

    use super::*;
    use crate::book::STORES_MOST;
    use crate::error::{AccessError, MapError};
    use crate::fault::Context;
    use crate::inline::on_fault;
    use crate::{MapOptions, Mode, VmOptions};

    /// PAGEMAP_SCAN
    const SCAN: u32 = 0xc060_6610;

    /// The pages that the kernel holds of a memfd.
    fn held(store: &ObjectCore) -> u64 {
        let memfd = &store.frames().unwrap().memfd;
        let runs =
            std::iter::successors(memfd.next_data(0).unwrap(), |(_, end)| memfd.next_data(*end).unwrap());
        runs.map(|(start, end)| (end - start) / PAGE_SIZE).sum()
    }

    /// What comes of `work` in a thread in which `call` fails with `errno`; `None` where that cannot be had.
    pub(crate) fn while_failing<T: Send>(
        errno: i32,
        call: (i64, When),
        work: impl FnOnce() -> T + Send,
    ) -> Option<T> {
        std::thread::scope(|scope| {
            let failing = scope.spawn(|| {
                let denied = |error: &Error| error.kind() == ErrorKind::PermissionDenied;
                let need = Need::Path("/proc/sys/kernel/seccomp".into());
                unless_refused(fail(errno, &[call]), need, denied).map(|()| work())
            });
            failing.join().unwrap()
        })
    }

    /// A snapshot of `map` while nothing can be written to `page` of a store; `None` where that cannot be had.
    fn snapshot_that_fails_at(map: &Map, page: u64) -> Option<Result<Object, SnapshotError>> {
        let write = (libc::SYS_pwrite64, When::Is(3, (page * PAGE_SIZE) as u32));
        while_failing(libc::ENOSPC, write, || map.snapshot())
    }

    fn write(map: &mut Map, page: u64, byte: u8) {
        map.as_mut_slice()[(page * PAGE_SIZE) as usize] = byte;
    }

    fn read(map: &Map, page: u64) -> u8 {
        map.as_slice()[(page * PAGE_SIZE) as usize]
    }

    #[test]
    fn what_was_frozen_before_stays_where_a_snapshot_fails() {
        let vm = Vm::new(VmOptions::default().free_shadowed_after(Duration::MAX)).unwrap();
        let zeros = vm.anonymous(128 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        [5, 6].into_iter().for_each(|page| write(&mut map, page, 1));
        let first = map.snapshot().unwrap();
        // What nobody has any more may take the next one's pages, too.
        let store = Arc::clone(&first.core);
        drop(first);
        [5, 42].into_iter().for_each(|page| write(&mut map, page, 2));
        let Some(failed) = snapshot_that_fails_at(&map, 42) else { return };
        assert!(matches!(failed, Err(SnapshotError::System(_))), "{failed:?}");
        map.discard(PageRange::new(PageIndex(5), PageIndex(6))).unwrap();
        assert_eq!([5, 6, 42].map(|page| read(&map, page)), [1, 1, 2]);
        write(&mut map, 5, 3);
        let second = map.snapshot().unwrap();
        // Nobody sees the older version of page 5.
        assert_eq!((held(&store), vm.core.pool.core().frames.reserved()), (1, 3));
        let clone = vm.map(&second, &MapOptions::private()).unwrap();
        assert_eq!([5, 6, 42].map(|page| read(&clone, page)), [3, 1, 2]);
    }

    #[test]
    fn a_snapshot_that_cannot_read_what_was_written_to_fails() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(128 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        let _first = map.snapshot().unwrap();
        [5, 42].into_iter().for_each(|page| write(&mut map, page, 1));
        let call = (libc::SYS_pwrite64, When::Is(3, 42 * PAGE_SIZE as u32));
        let Some(failed) = while_failing(libc::EFAULT, call, || map.snapshot()) else { return };
        assert!(matches!(failed, Err(SnapshotError::System(_))));
        let clone = vm.map(&map.snapshot().unwrap(), &MapOptions::private()).unwrap();
        assert_eq!([5, 42].map(|page| (read(&map, page), read(&clone, page))), [(1, 1); 2]);
    }

    /// The kernel may not read that, either; but nothing was written to it.
    #[test]
    fn a_page_whose_frame_goes_before_it_is_written_to_fails_no_snapshot() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(128 * PAGE_SIZE).unwrap();
        let object = vm.file(file.path()).unwrap();
        let mut map = vm.map(&object, &MapOptions::private()).unwrap();
        write(&mut map, 5, 1);
        let _first = map.snapshot().unwrap();
        assert_eq!(read(&map, 42), 0);
        let address = map.address() + 42 * PAGE_SIZE;
        let touch =
            BusFault { address, ip: 0, write: Some(true), protected: true, endings: Endings::default() };
        assert_eq!(on_fault(&touch), Verdict::Resolved);
        assert_eq!(map.core.written().len(), 1);
        assert_eq!(object.evict(PageRange::new(PageIndex(42), PageIndex(43))).unwrap(), 1);
        map.snapshot().unwrap();
        write(&mut map, 42, 2);
        let clone = vm.map(&map.snapshot().unwrap(), &MapOptions::private()).unwrap();
        assert_eq!([5, 42].map(|page| read(&clone, page)), [1, 2]);
    }

    /// The kernel brings the copy in and raises SIGBUS by one fault, whose error code says that nothing was there.
    #[test]
    fn a_write_to_a_copy_that_came_back_from_swap_reads_nothing() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(128 * PAGE_SIZE).unwrap();
        let object = vm.file(file.path()).unwrap();
        let mut map = vm.map(&object, &MapOptions::private()).unwrap();
        let _first = map.snapshot().unwrap();
        write(&mut map, 42, 1);
        // Its copy stays as it is, and in no snapshot.
        let Some(failed) = snapshot_that_fails_at(&map, 42) else { return };
        assert!(failed.is_err());
        object.evict(object.pages()).unwrap();
        assert!(!object.is_resident(PageIndex(42)));
        let before = vm.statistics().counted;
        let address = map.address() + 42 * PAGE_SIZE;
        let touch =
            BusFault { address, ip: 0, write: Some(true), protected: false, endings: Endings::default() };
        assert_eq!(on_fault(&touch), Verdict::Resolved);
        let after = vm.statistics().counted;
        assert_eq!((after.hard - before.hard, after.pages_opened - before.pages_opened), (0, 1));
    }

    /// As before Linux 6.7, whose page maps cannot be scanned.
    #[test]
    fn a_first_snapshot_that_the_kernel_cannot_take_changes_nothing() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(128 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        write(&mut map, 5, 1);
        let scan = (libc::SYS_ioctl, When::Is(1, SCAN));
        let Some(failed) = while_failing(libc::ENOTTY, scan, || map.snapshot()) else { return };
        assert!(matches!(failed, Err(SnapshotError::System(_))), "{failed:?}");
        assert!(!map.core.has_marks(), "writes are told from here on");
        let clone = vm.map(&map.snapshot().unwrap(), &MapOptions::private()).unwrap();
        assert_eq!(read(&clone, 5), 1);
    }

    /// The writer has touched the page, and it went before the handler came to copy it.
    #[test]
    fn a_handler_reads_no_frozen_page_that_has_gone() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(128 * PAGE_SIZE).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::private().mode(Mode::Handler));
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let Some(map) = unless_refused(map, need, refused) else { return };
        let _first = map.snapshot().unwrap();
        assert_eq!(read(&map, 42), 0);
        let core = &map.core;
        let page = PageIndex(42);
        let mut account = Account::here();
        // As after a write that has not been tried again yet.
        assert!(core.open(page, Context::Handler, &mut account).unwrap());
        let store = map.new_store().unwrap();
        let (frozen, _) = core.freeze(&store, |_| Ok::<_, ()>(())).unwrap().unwrap();
        assert_eq!(frozen, [PageRange::new(page, PageIndex(43))]);
        assert_eq!(object.evict(frozen[0]).unwrap(), 1);
        assert!(!core.open(page, Context::Handler, &mut account).unwrap(), "the handler has read the page");
        // Who takes the snapshot may wait for it.
        core.copy_all(&frozen, account.cpu).unwrap();
        assert!(core.open(page, Context::Handler, &mut account).unwrap());
    }

    #[test]
    fn what_was_written_to_is_known_still_where_a_discard_fails() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(128 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        let _first = map.snapshot().unwrap();
        [5, 6].into_iter().for_each(|page| write(&mut map, page, 1));
        let range = PageRange::new(PageIndex(4), PageIndex(8));
        let call = (libc::SYS_madvise, When::Is(1, range.bytes() as u32));
        let Some(failed) = while_failing(libc::ENOMEM, call, || map.discard(range)) else { return };
        assert!(matches!(failed, Err(AccessError::System(_))), "{failed:?}");
        write(&mut map, 6, 2);
        let clone = vm.map(&map.snapshot().unwrap(), &MapOptions::private()).unwrap();
        assert_eq!([5, 6].map(|page| (read(&map, page), read(&clone, page))), [(1, 1), (2, 2)]);
    }

    #[test]
    fn a_map_whose_snapshots_go_keeps_its_pages_in_few_stores() {
        const PAGES: u64 = 3 * STORES_MOST as u64;
        let vm = Vm::new(VmOptions::default().free_shadowed_after(Duration::MAX)).unwrap();
        let zeros = vm.anonymous(PAGES * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        for page in 1..PAGES {
            [0, page].into_iter().for_each(|page| write(&mut map, page, page as u8 | 1));
            drop(map.snapshot().unwrap());
        }
        let statistics = vm.statistics();
        assert_eq!(vm.core.pool.core().frames.reserved(), PAGES);
        assert!(statistics.objects <= STORES_MOST as u64 + 3, "{} objects", statistics.objects);
        map.discard(map.window()).unwrap();
        assert!((0..PAGES).all(|page| read(&map, page) == page as u8 | 1));
    }

    /// Also where no clone was there in between.
    #[test]
    fn clones_of_a_snapshot_are_made_of_one_list() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let zeros = vm.anonymous(128 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        (0..64).for_each(|page| write(&mut map, 2 * page, 1));
        let snapshot = map.snapshot().unwrap();
        let made_of = |clone: Map| [&clone.core.laid, &clone.core.shown.current()].map(Arc::downgrade);
        let clone = || vm.map(&snapshot, &MapOptions::private()).unwrap();
        let [first, second] = [(); 2].map(|()| made_of(clone()));
        assert!(first.iter().zip(&second).all(|(first, second)| first.ptr_eq(second)));
        drop(snapshot);
        assert_eq!(first.map(|list| list.strong_count()), [0; 2]);
    }

    #[test]
    fn a_snapshot_that_fails_half_way_leaves_no_frames() {
        let vm = Vm::new(VmOptions::default().free_shadowed_after(Duration::MAX)).unwrap();
        let zeros = vm.anonymous(128 * PAGE_SIZE).unwrap();
        let mut map = vm.map(&zeros, &MapOptions::private()).unwrap();
        map.as_mut_slice()[0] = 1;
        let first = map.snapshot().unwrap();
        // What nobody has any more takes the next one's pages, too.
        let store = Arc::clone(&first.core);
        drop(first);
        map.as_mut_slice()[10 * PAGE_SIZE as usize..74 * PAGE_SIZE as usize].fill(2);
        let Some(failed) = snapshot_that_fails_at(&map, 42) else { return };
        assert!(matches!(failed, Err(SnapshotError::System(_))), "{failed:?}");
        assert_eq!((held(&store), vm.core.pool.core().frames.reserved()), (1, 1));
        let second = map.snapshot().unwrap();
        assert_eq!(
            (held(&store), second.resident_pages(), vm.core.pool.core().frames.reserved()),
            (65, 65, 65)
        );
        let clone = vm.map(&second, &MapOptions::private()).unwrap();
        assert_eq!(
            [0, 9, 10, 50, 73, 74].map(|page| clone.as_slice()[page * PAGE_SIZE as usize]),
            [1, 0, 2, 2, 2, 0]
        );
    }
}
