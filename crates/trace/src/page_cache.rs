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
