//! The watch fed with events.

use prepage_core::{PAGE_SIZE, Permissions};

use super::*;
use prepage_sys::maps::Mapped;

const FILE: Inode = (1, 2);

/// Feeds events (time, thread, what) of process 1, which has [`FILE`] mapped at 0x10000.
fn facts(events: Vec<(u64, u32, EventKind)>) -> PageCacheFacts {
    let (mut pairing, mut watch) = (Pairing::new(0), PageCacheWatch::new());
    let map = Mapped {
        start: 0x1_0000,
        end: 0x9_0000,
        offset_bytes: 0,
        inode: Some(FILE),
        permissions: Permissions::from_text("r--p").expect("four letters"),
        path: "/f".into(),
    };
    let map = (0, 1, EventKind::Map(Box::new(map)));
    for (time_ns, tid, kind) in std::iter::once(map).chain(events) {
        let event = Event { time_ns, pid: 1, tid, kind, is_time_borrowed: false };
        pairing.feed(&event, &mut Vec::new());
        watch.apply(&event, &pairing);
    }
    watch.into_facts(|inode| if inode == FILE { vec!["/f".into(), "/g".into()] } else { Vec::new() })
}

fn added(page: u64, count: u64) -> EventKind {
    EventKind::PageCached { file: FILE, pages: pages(page, page + count) }
}

fn pages(start: u64, end: u64) -> PageRange {
    PageRange::new(PageIndex(start), PageIndex(end))
}

fn read(start: u64, end: u64) -> EventKind {
    EventKind::PagesRead { file: FILE, pages: pages(start, end) }
}

fn begin(page: u64) -> EventKind {
    EventKind::FaultBegin { address: 0x1_0000 + page * PAGE_SIZE, ip: 0, calls: None }
}

fn end(page: u64, disk: bool) -> EventKind {
    EventKind::FaultEnd { address: 0x1_0000 + page * PAGE_SIZE, ip: 0, disk }
}

fn asleep() -> EventKind {
    EventKind::Switch { out: true, preempted: false }
}

#[test]
fn pages_are_touched_by_faults_and_reads_and_mapped_by_faults_nearby() {
    let mapped = EventKind::PagesMapped { file: FILE, pages: pages(0, 6) };
    let facts = facts(vec![
        (1, 1, begin(0)),
        (2, 1, added(0, 16)),
        (3, 1, end(0, true)),
        (4, 1, mapped),
        // One read in two portions, then another.
        (5, 1, read(8, 12)),
        (6, 1, read(10, 12)),
        (7, 1, read(8, 10)),
    ]);
    let file = &facts.files[0];
    assert_eq!((file.path.as_str(), file.pages_read_in, file.pages_by_read), ("/f", 16, 6));
    assert_eq!(file.name(), "/f or /g");
    assert_eq!((file.pages_mapped_nearby, file.pages_untouched, file.read_waits), (5, 6, 0));
}

/// The length of a file that cannot be opened by its inode is not known, and any number may be asked for.
#[test]
fn a_read_of_more_than_any_file_has_takes_no_longer_than_the_pages_that_are_there() {
    let facts = facts(vec![(1, 1, added(0, 4)), (2, 1, added(8, 4)), (3, 1, read(2, 1 << 50))]);
    assert_eq!((facts.files[0].pages_untouched, facts.files[0].pages_by_read), (2, (1 << 50) - 2));
}

#[test]
fn who_sleeps_on_a_page_that_another_reads_waits_for_it() {
    let facts = facts(vec![
        (10, 1, begin(0)),
        (11, 1, added(0, 4)),
        (20, 2, begin(1)),
        (21, 2, asleep()),
        (30, 3, begin(2)),
        (31, 3, end(2, false)),
        (50, 1, end(0, true)),
        (60, 2, end(1, false)),
    ]);
    let [wait] = facts.waits.as_slice() else { panic!("{:?}", facts.waits) };
    assert_eq!((wait.waiter.tid, wait.reader.tid, wait.count, wait.wait_ns), (2, 1, 1, 40));
    assert_eq!((facts.files[0].read_waits, facts.files[0].read_wait_ns), (1, 40));
}

/// A fault that ended in a signal has no end.
#[test]
fn a_wait_begins_with_its_own_fault() {
    let facts = facts(vec![
        (100, 1, begin(30)),
        (200, 2, added(0, 8)),
        (300, 1, begin(1)),
        (310, 1, asleep()),
        (400, 1, end(1, false)),
        (500, 1, begin(40)),
        (600, 1, begin(2)),
        (610, 1, asleep()),
        (700, 1, end(2, false)),
    ]);
    assert_eq!((facts.files[0].read_waits, facts.files[0].read_wait_ns), (2, 200));
}

#[test]
fn a_wait_that_a_signal_interrupts_is_whole() {
    let facts = facts(vec![
        (10, 2, added(0, 8)),
        (20, 1, begin(1)),
        (21, 1, asleep()),
        (50, 1, begin(1)),
        (52, 1, end(1, false)),
    ]);
    assert_eq!((facts.files[0].read_waits, facts.files[0].read_wait_ns), (1, 32));
}

#[test]
fn a_day_of_reading_is_watched_in_bounded_memory() {
    let (pairing, mut watch) = (Pairing::new(0), PageCacheWatch::new());
    let mut apply = |time_ns, tid, inode, kind: fn(u64) -> EventKind| {
        watch.apply(&Event { time_ns, pid: tid, tid, kind: kind(inode), is_time_borrowed: false }, &pairing);
    };
    const PAGES: u64 = 1 << 8;
    let files = 2 * FILES_MAX as u64;
    for file in 0..files {
        let tid = 1 + file as u32;
        apply(file, tid, file, |inode| EventKind::PageCached {
            file: (1 << 20, inode),
            pages: pages(0, PAGES),
        });
        apply(file, tid, file, |inode| EventKind::PagesRead { file: (1 << 20, inode), pages: pages(0, 1) });
    }
    assert!(watch.pages <= PAGES_MAX && watch.pages > PAGES_MAX / 2, "{}", watch.pages);
    assert_eq!(watch.pages, watch.files.values().map(|file| file.pages.len()).sum::<usize>());
    assert!(watch.files.len() <= FILES_MAX + 1 && watch.readers.len() <= READERS_MAX);
    assert!(watch.threads.len() <= THREADS_MAX + 1);
    let facts = watch.into_facts(|_| Vec::new());
    let sum = |of: fn(&FilePages) -> u64| facts.files.iter().map(of).sum::<u64>();
    assert_eq!(sum(|file| file.pages_read_in), files * PAGES);
    let untouched = sum(|file| file.pages_untouched);
    assert!(untouched > 0 && untouched < PAGES_MAX as u64);
    // Whatever was not read is untouched or no longer known.
    let forgotten = sum(|file| file.pages_forgotten);
    assert!(
        (files * (PAGES - 1)..=files * PAGES).contains(&(untouched + forgotten)),
        "{untouched} {forgotten}"
    );
}

#[test]
fn as_many_files_are_given_up_as_it_takes() {
    let (pairing, mut watch) = (Pairing::new(0), PageCacheWatch::new());
    let mut cached = |inode: u64, count: u64| {
        let kind = EventKind::PageCached { file: (1 << 20, inode), pages: pages(0, count) };
        watch.apply(&Event { time_ns: inode, pid: 1, tid: 1, kind, is_time_borrowed: false }, &pairing);
        assert!(watch.pages <= PAGES_MAX, "{} pages with file {inode}", watch.pages);
    };
    (0..300).for_each(|inode| cached(inode, 1));
    cached(300, PAGES_MAX as u64 - 300);
    (301..303).for_each(|inode| cached(inode, 100));
    assert_eq!((watch.pages, watch.files[&(1 << 20, 300)].pages.len()), (PAGES_MAX, PAGES_MAX - 300));
}

#[test]
fn what_is_written_was_not_read_in() {
    let dirtied = |page| EventKind::PageDirtied { inode: FILE.1, page: PageIndex(page) };
    let written =
        facts(vec![(1, 1, added(0, 2)), (2, 1, dirtied(0)), (3, 1, added(2, 2)), (4, 1, dirtied(2))]);
    assert!(written.files.is_empty(), "{written:?}");
    let by_fault =
        facts(vec![(1, 1, begin(0)), (2, 1, added(0, 2)), (3, 1, dirtied(0)), (4, 1, end(0, true))]);
    assert_eq!(by_fault.files[0].pages_read_in, 2);
}

#[test]
fn who_uses_the_pages_of_a_file_in_an_overlay_is_known_by_the_file_below() {
    const BELOW: Inode = (7, 8);
    let sought = |page| EventKind::PageSought { file: BELOW, page: PageIndex(page) };
    let facts = facts(vec![
        (10, 1, begin(0)),
        (11, 1, sought(0)),
        (12, 1, EventKind::PageCached { file: BELOW, pages: pages(0, 16) }),
        (20, 2, begin(1)),
        (21, 2, sought(1)),
        (22, 2, asleep()),
        (50, 1, end(0, true)),
        (60, 2, end(1, false)),
        (70, 1, begin(5)),
        (71, 1, EventKind::PagesMapped { file: BELOW, pages: pages(4, 8) }),
        (72, 1, end(5, false)),
    ]);
    let [file] = facts.files.as_slice() else { panic!("{:?}", facts.files) };
    assert_eq!((file.device, file.inode, file.pages_read_in), (7, 8, 16));
    assert_eq!((file.pages_untouched, file.pages_mapped_nearby, file.read_waits), (10, 3, 1));
}
