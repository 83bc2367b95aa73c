//! What becomes of files' pages: who has them read, who uses them, who waits for another's read.

use std::collections::HashMap;
use std::os::fd::AsRawFd;

use prepage_core::{FilePages, PAGE_SIZE, PageCacheFacts, PageIndex, PageRange, ReadWait, Thread};
use prepage_sys::inode::{Mounted, mounted, open_inode};
use rustix::fs::{AtFlags, StatxFlags, statx};

use crate::event::{Event, EventKind};
use crate::pairing::Pairing;

/// How often a file is looked at: one that is read at its end while it grows would be looked at for ever.
const LOOKS_MAX: u32 = 64;

/// Device and inode.
type Inode = (u64, u64);

/// Sums up the events of [`crate::PageCacheEvents::All`], with context switches and faults from beginning to end.
///
/// A fault *waited for a read* when it is on a page that a thread had begun to read before, and the faulting thread
/// slept in it or the kernel calls it a disk fault: the page was in the page cache and not yet filled.
#[derive(Debug, Default)]
pub(crate) struct PageCacheWatch {
    files: HashMap<Inode, File>,
    threads: HashMap<u32, Doing>,
    readers: Vec<Thread>,
    /// Waiter and reader, by their places in `readers`: how often, how long.
    waits: HashMap<(u32, u32), (u64, u64)>,
    probe_cost_ns: u64,
    mounted: Vec<Mounted>,
}

#[derive(Debug, Default)]
struct File {
    known: Known,
    pages: HashMap<u64, Page>,
    read_in: u64,
    by_read: u64,
    untouched: u64,
    mapped_nearby: u64,
    waits: u64,
    wait_ns: u64,
}

/// What a look at a file itself told of it.
#[derive(Debug, Default)]
struct Known {
    /// Times it was looked at.
    looks: u32,
    is_disk: bool,
    path: Option<String>,
    /// Where it ends; `None` where it cannot be looked at.
    end: Option<PageIndex>,
}

/// A page that was read in and is in use, as far as is known.
#[derive(Clone, Copy, Debug)]
struct Page {
    reader: u32,
    since_ns: u64,
    touched: bool,
    mapped: bool,
}

/// What a thread is doing.
#[derive(Debug, Default)]
struct Doing {
    /// Its place in `readers`, under its present name.
    number: Option<u32>,
    fault_since_ns: Option<u64>,
    slept: bool,
    /// What it added to the page cache last.
    added: Option<(Inode, PageRange)>,
    /// What was left of its last read().
    reading: Option<(Inode, PageRange)>,
}

impl PageCacheWatch {
    pub(crate) fn new(probe_cost_ns: u64) -> Self {
        Self { probe_cost_ns, mounted: mounted().unwrap_or_default(), ..Self::default() }
    }

    /// Takes the next event, of which `pairing` knows already.
    pub(crate) fn apply(&mut self, event: &Event, pairing: &Pairing) {
        let tid = event.tid;
        match event.kind {
            EventKind::FaultBegin { .. } => {
                let doing = self.threads.entry(tid).or_default();
                doing.fault_since_ns.get_or_insert(event.time_ns);
                doing.slept = false;
            }
            EventKind::FaultEnd { address, disk, .. } => {
                let doing = self.threads.entry(tid).or_default();
                let (begun_ns, slept) = (doing.fault_since_ns.take(), doing.slept);
                let place = pairing.spaces().resolve(event.pid, address);
                if let Some((inode, page)) = place.and_then(|place| place.object.inode.zip(place.page)) {
                    self.faulted(event, pairing, (inode, page), begun_ns.filter(|_| disk || slept));
                }
            }
            EventKind::Switch { out: true, preempted: false } => {
                self.threads.entry(tid).or_default().slept = true;
            }
            EventKind::PageCached { device, inode, page, pages } => {
                let range = PageRange::new(page, PageIndex(page.0.saturating_add(pages.into())));
                self.added(event, pairing, (device, inode), range);
            }
            EventKind::PagesRead { device, inode, pages } => self.read(tid, (device, inode), pages),
            EventKind::PagesMapped { device, inode, pages } => {
                let Some(file) = self.files.get_mut(&(device, inode)) else { return };
                for page in pages.iter() {
                    if let Some(page) = file.pages.get_mut(&page.0) {
                        page.mapped = true;
                    }
                }
            }
            EventKind::PageDirtied { inode, page } => self.dirtied(tid, inode, page),
            EventKind::Name { .. } => {
                if let Some(doing) = self.threads.get_mut(&tid) {
                    doing.number = None;
                }
            }
            EventKind::Fork { .. } | EventKind::Exit => {
                self.threads.remove(&tid);
            }
            EventKind::Map(_) | EventKind::Switch { .. } | EventKind::Lost { .. } => {}
        }
    }

    /// The sums. `path` names the files that were mapped.
    pub(crate) fn into_facts(self, path: impl Fn(Inode) -> Option<String>) -> PageCacheFacts {
        let tally = |((device, inode), mut file): (Inode, File)| {
            let pages: Vec<Page> = file.pages.values().copied().collect();
            pages.iter().for_each(|page| file.give_up(page));
            FilePages {
                path: path((device, inode)).or(file.known.path).unwrap_or_default(),
                device,
                inode,
                pages_read_in: file.read_in,
                pages_by_read: file.by_read,
                pages_untouched: file.untouched,
                pages_mapped_nearby: file.mapped_nearby,
                read_waits: file.waits,
                read_wait_ns: file.wait_ns,
            }
        };
        let mut files: Vec<FilePages> = self.files.into_iter().map(tally).collect();
        // Files that were only written to have nothing to tell.
        files.retain(|file| file.pages_read_in + file.pages_by_read + file.read_waits > 0);
        files.sort_by(|a, b| {
            let key = |file: &FilePages| std::cmp::Reverse((file.pages_read_in, file.pages_by_read));
            key(a).cmp(&key(b)).then_with(|| a.path.cmp(&b.path))
        });
        let readers = &self.readers;
        let wait = |((waiter, reader), (count, wait_ns)): ((u32, u32), (u64, u64))| ReadWait {
            waiter: readers[waiter as usize].clone(),
            reader: readers[reader as usize].clone(),
            count,
            wait_ns,
        };
        let mut waits: Vec<ReadWait> = self.waits.into_iter().map(wait).collect();
        waits.sort_by_key(|wait| (std::cmp::Reverse(wait.wait_ns), wait.waiter.tid, wait.reader.tid));
        PageCacheFacts { files, waits }
    }

    fn added(&mut self, event: &Event, pairing: &Pairing, inode: Inode, pages: PageRange) {
        let reader = self.number(event.tid, pairing);
        self.threads.entry(event.tid).or_default().added = Some((inode, pages));
        let file = self.files.entry(inode).or_default();
        if file.known.looks == 0 {
            file.known.look(&self.mounted, inode);
        }
        file.read_in += pages.len();
        // What is being read() was asked for before it was brought in.
        let wanted = match self.threads.get(&event.tid).and_then(|doing| doing.reading) {
            Some((of, wanted)) if of == inode => wanted,
            _ => PageRange::default(),
        };
        for page in pages.iter() {
            // A disk's own pages are for the kernel to use, which nothing tells of.
            let touched = file.known.is_disk || wanted.contains(page);
            let new = Page { reader, since_ns: event.time_ns, touched, mapped: false };
            if let Some(old) = file.pages.insert(page.0, new) {
                file.give_up(&old);
            }
        }
    }

    fn read(&mut self, tid: u32, inode: Inode, pages: PageRange) {
        let doing = self.threads.entry(tid).or_default();
        // A long read is told portion by portion, each time with all that is left of it.
        let goes_on = doing.reading.is_some_and(|(of, left)| {
            of == inode && left.end() == pages.end() && left.start() < pages.start()
        });
        doing.reading = Some((inode, pages));
        if goes_on {
            return;
        }
        let file = self.files.entry(inode).or_default();
        // Programs ask for more than there is, to find the end.
        if file.known.end.is_none_or(|end| end < pages.end()) {
            file.known.look(&self.mounted, inode);
        }
        let end = file.known.end.map_or(pages.end(), |end| end.min(pages.end()).max(pages.start()));
        let pages = PageRange::new(pages.start(), end);
        file.by_read += pages.len();
        for page in pages.iter() {
            if let Some(page) = file.pages.get_mut(&page.0) {
                page.touched = true;
            }
        }
    }

    fn faulted(
        &mut self,
        event: &Event,
        pairing: &Pairing,
        (inode, page): (Inode, PageIndex),
        waited_since_ns: Option<u64>,
    ) {
        let Some(file) = self.files.get_mut(&inode) else { return };
        let Some(page) = file.pages.get_mut(&page.0) else { return };
        page.touched = true;
        let Some(begun_ns) = waited_since_ns.filter(|&begun_ns| page.since_ns < begun_ns) else { return };
        let reader = page.reader;
        let wait_ns = event.time_ns.saturating_sub(begun_ns).saturating_sub(self.probe_cost_ns);
        file.waits += 1;
        file.wait_ns += wait_ns;
        let waiter = self.number(event.tid, pairing);
        let (count, sum_ns) = self.waits.entry((waiter, reader)).or_default();
        *count += 1;
        *sum_ns += wait_ns;
    }

    /// A page that is dirty as soon as it is added, and not by a fault, was made by write() and not read.
    fn dirtied(&mut self, tid: u32, inode: u64, page: PageIndex) {
        let Some(doing) = self.threads.get_mut(&tid).filter(|doing| doing.fault_since_ns.is_none()) else {
            return;
        };
        let Some((of, pages)) = doing.added.take() else { return };
        if of.1 != inode || !pages.contains(page) {
            return;
        }
        let file = self.files.entry(of).or_default();
        for page in pages.iter() {
            file.read_in -= u64::from(file.pages.remove(&page.0).is_some());
        }
    }

    fn number(&mut self, tid: u32, pairing: &Pairing) -> u32 {
        let readers = &mut self.readers;
        *self.threads.entry(tid).or_default().number.get_or_insert_with(|| {
            let thread = pairing.thread(tid);
            let known = readers.iter().position(|known| *known == thread);
            known.unwrap_or_else(|| {
                readers.push(thread);
                readers.len() - 1
            }) as u32
        })
    }
}

impl File {
    /// Counts a page of which no more will be heard.
    fn give_up(&mut self, page: &Page) {
        match page {
            Page { touched: true, .. } => {}
            Page { mapped: true, .. } => self.mapped_nearby += 1,
            Page { .. } => self.untouched += 1,
        }
    }
}

impl Known {
    /// Looks at the file: no event tells the path of one that was not mapped, nor how long any is.
    fn look(&mut self, mounted: &[Mounted], (device, inode): Inode) {
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

/// The disk whose own pages (directories, inodes) these are: they belong to a file on a file system of disks, which has
/// no device, and the file's number is the disk's.
fn disk((device, inode): Inode) -> Option<String> {
    let entry =
        (device >> 20 == 0).then(|| format!("/sys/dev/block/{}:{}", inode >> 20, inode & 0xf_ffff))?;
    let target = std::fs::read_link(entry).ok()?;
    Some(format!("/dev/{}", target.file_name()?.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Mapped;

    const FILE: Inode = (1, 2);

    /// Feeds events (time, thread, what) of process 1, which has [`FILE`] mapped at 0x10000.
    fn facts(events: Vec<(u64, u32, EventKind)>) -> PageCacheFacts {
        let (mut pairing, mut watch) = (Pairing::new(0), PageCacheWatch::default());
        let map = Mapped {
            start: 0x1_0000,
            end: 0x9_0000,
            offset_bytes: 0,
            inode: Some(FILE),
            protection: 1,
            flags: 2,
            path: "/f".into(),
        };
        let map = (0, 1, EventKind::Map(Box::new(map)));
        for (time_ns, tid, kind) in std::iter::once(map).chain(events) {
            let event = Event { time_ns, pid: 1, tid, kind };
            pairing.feed(&event, &mut Vec::new());
            watch.apply(&event, &pairing);
        }
        watch.into_facts(|inode| (inode == FILE).then(|| "/f".into()))
    }

    fn added(page: u64, pages: u32) -> EventKind {
        EventKind::PageCached { device: FILE.0, inode: FILE.1, page: PageIndex(page), pages }
    }

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    fn read(start: u64, end: u64) -> EventKind {
        EventKind::PagesRead { device: FILE.0, inode: FILE.1, pages: pages(start, end) }
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
        let mapped = EventKind::PagesMapped { device: FILE.0, inode: FILE.1, pages: pages(0, 6) };
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
        assert_eq!((file.pages_mapped_nearby, file.pages_untouched, file.read_waits), (5, 6, 0));
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
}
