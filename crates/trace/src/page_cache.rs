//! What becomes of files' pages: who has them read, who uses them, who waits for another's read.

mod file;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use indexmap::IndexSet;
use prepage_core::{FilePages, PageCacheFacts, PageIndex, PageRange, ReadWait, Thread};
use prepage_sys::inode::{Mounted, mounted};

use crate::event::{Event, EventKind};
use crate::pairing::Pairing;
use file::{File, Inode, Page};

/// Pages that are watched at most, some 100 MB: 8 GiB of page cache. Of the file that was read longest ago, the pages are
/// then given up.
const PAGES_MAX: usize = 1 << 21;
/// Files, reading threads, and pairs of a waiting and a reading thread that are kept apart at most.
const FILES_MAX: usize = 1 << 14;
const READERS_MAX: usize = 1 << 14;
const WAITS_MAX: usize = 1 << 16;
/// Threads of which the doing is known at most: the ends of some may be lost.
const THREADS_MAX: usize = 1 << 16;
/// The file that stands for all beyond [`FILES_MAX`].
const OTHER_FILES: Inode = (u64::MAX, u64::MAX);
/// The reader that stands for all beyond [`READERS_MAX`].
const OTHER_READERS: u32 = 0;

/// Sums up the events of [`crate::PageCacheEvents::All`], with context switches and faults from beginning to end.
///
/// A fault *waited for a read* when it is on a page that a thread had begun to read before, and the faulting thread
/// slept in it or the kernel calls it a disk fault: the page was in the page cache and not yet filled.
///
/// Files are told apart by the device and the inode that the kernel's events have. Those of two subvolumes of one Btrfs may have the same.
///
/// Its memory is bounded, however long it watches: what is beyond the bounds is summed up as "other".
#[derive(Debug)]
pub(crate) struct PageCacheWatch {
    files: HashMap<Inode, File>,
    /// Pages in all of `files`.
    pages: usize,
    threads: HashMap<u32, Doing>,
    readers: IndexSet<Thread>,
    /// Waiter and reader, by their places in `readers`: how often, how long.
    waits: HashMap<(u32, u32), (u64, u64)>,
    mounted: Vec<Mounted>,
}

/// What a thread is doing.
#[derive(Debug, Default)]
struct Doing {
    /// Its place in `readers`, under its present name.
    number: Option<u32>,
    fault: Option<Begun>,
    slept: bool,
    /// The file of the fault as the page cache has it: mappings have an overlay's own number of a file, the page cache that of the file below.
    cached_as: Option<Inode>,
    /// What it added to the page cache last.
    added: Option<(Inode, PageRange)>,
    /// What was left of its last read().
    reading: Option<(Inode, PageRange)>,
}

/// A fault that has begun. One that ends in a signal is never seen to end.
#[derive(Clone, Copy, Debug)]
struct Begun {
    address: u64,
    /// Where it is by this recorder's clock.
    time_ns: Option<u64>,
}

impl PageCacheWatch {
    pub(crate) fn new() -> Self {
        let other = Thread { pid: 0, tid: 0, comm: "[other threads]".to_owned() };
        Self {
            files: HashMap::new(),
            pages: 0,
            threads: HashMap::new(),
            readers: IndexSet::from([other]),
            waits: HashMap::new(),
            mounted: mounted().unwrap_or_default(),
        }
    }

    /// Takes the next event, of which `pairing` knows already.
    pub(crate) fn apply(&mut self, event: &Event, pairing: &Pairing) {
        let tid = event.tid;
        if self.threads.len() > THREADS_MAX {
            self.threads.clear();
        }
        match event.kind {
            EventKind::FaultBegin { address, .. } => {
                let doing = self.threads.entry(tid).or_default();
                // One that a signal interrupted waits since it first began.
                if doing.fault.is_none() || !pairing.is_begun_again(tid) {
                    let time_ns = (!event.is_time_borrowed).then_some(event.time_ns);
                    doing.fault = Some(Begun { address, time_ns });
                    (doing.slept, doing.cached_as) = (false, None);
                }
            }
            EventKind::FaultEnd { address, disk, .. } => {
                let doing = self.threads.entry(tid).or_default();
                let begun = doing.fault.take().filter(|begun| begun.address == address);
                let (begun_ns, slept) = (begun.and_then(|begun| begun.time_ns), doing.slept);
                let is_wait = (disk || slept) && !event.is_time_borrowed;
                let cached_as = doing.cached_as.take();
                let place = pairing.spaces().resolve(event.pid, address);
                if let Some((inode, page)) = place.and_then(|place| place.object.inode.zip(place.page)) {
                    let file = cached_as.unwrap_or(inode);
                    self.faulted(event, pairing, (file, page), begun_ns.filter(|_| is_wait));
                }
            }
            EventKind::Switch { out: true, preempted: false } => {
                self.threads.entry(tid).or_default().slept = true;
            }
            EventKind::PageCached { file, pages } => self.added(event, pairing, file, pages),
            EventKind::PagesRead { file, pages } => self.read(tid, file, pages),
            EventKind::PageSought { file, .. } => {
                self.threads.entry(tid).or_default().cached_as = Some(file);
            }
            EventKind::PagesMapped { file, pages } => {
                self.threads.entry(tid).or_default().cached_as = Some(file);
                let Some(file) = self.files.get_mut(&file) else { return };
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

    /// The sums. `paths` names the files that were mapped.
    pub(crate) fn into_facts(self, mut paths: impl FnMut(Inode) -> Vec<String>) -> PageCacheFacts {
        let tally = |((device, inode), mut file): (Inode, File)| {
            let pages: Vec<Page> = file.pages.values().copied().collect();
            pages.iter().for_each(|page| file.give_up(page));
            let mut paths = match (device, inode) {
                OTHER_FILES => vec!["[other files]".to_owned()],
                inode => paths(inode),
            }
            .into_iter();
            FilePages {
                path: paths.next().or(file.known.path).unwrap_or_default(),
                other_paths: paths.collect(),
                device,
                inode,
                ..file.counts
            }
        };
        let mut files: Vec<FilePages> = self.files.into_iter().map(tally).collect();
        // Files that were only written to are not reported.
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
        while self.pages > 0 && self.pages + pages.len() as usize > PAGES_MAX {
            self.give_up_oldest();
        }
        let inode = self.kept_apart(inode);
        let file = self.files.entry(inode).or_default();
        file.added_ns = event.time_ns;
        file.counts.pages_read_in += pages.len();
        if inode == OTHER_FILES {
            file.counts.pages_forgotten += pages.len();
            return;
        }
        if file.known.looks == 0 {
            file.known.look(&self.mounted, inode);
        }
        // What is being read() was asked for before it was brought in.
        let wanted = match self.threads.get(&event.tid).and_then(|doing| doing.reading) {
            Some((of, wanted)) if of == inode => wanted,
            _ => PageRange::default(),
        };
        for page in pages.iter() {
            // A disk's own pages are for the kernel to use, which no event shows.
            let touched = file.known.is_disk || wanted.contains(page);
            let new = Page { reader, since_ns: event.time_ns, touched, mapped: false };
            match file.pages.insert(page.0, new) {
                Some(old) => file.give_up(&old),
                None => self.pages += 1,
            }
        }
    }

    fn read(&mut self, tid: u32, inode: Inode, pages: PageRange) {
        let doing = self.threads.entry(tid).or_default();
        // A long read is reported portion by portion, each time with all that is left of it.
        let goes_on = doing.reading.is_some_and(|(of, left)| {
            of == inode && left.end() == pages.end() && left.start() < pages.start()
        });
        doing.reading = Some((inode, pages));
        if goes_on {
            return;
        }
        let inode = self.kept_apart(inode);
        let file = self.files.entry(inode).or_default();
        // Programs ask for more than there is, to find the end.
        if file.known.end.is_none_or(|end| end < pages.end()) {
            file.known.look(&self.mounted, inode);
        }
        let end = file.known.end.map_or(pages.end(), |end| end.min(pages.end()).max(pages.start()));
        let pages = PageRange::new(pages.start(), end);
        file.counts.pages_by_read += pages.len();
        // Where the file's length is not known, there may be far fewer pages than were asked for.
        if pages.len() > file.pages.len() as u64 {
            let read = file.pages.iter_mut().filter(|(page, _)| pages.contains(PageIndex(**page)));
            read.for_each(|(_, page)| page.touched = true);
        } else {
            for page in pages.iter() {
                if let Some(page) = file.pages.get_mut(&page.0) {
                    page.touched = true;
                }
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
        let wait_ns = event.time_ns.saturating_sub(begun_ns);
        file.counts.read_waits += 1;
        file.counts.read_wait_ns += wait_ns;
        let waiter = self.number(event.tid, pairing);
        let known = self.waits.len() < WAITS_MAX || self.waits.contains_key(&(waiter, reader));
        let pair = if known { (waiter, reader) } else { (OTHER_READERS, OTHER_READERS) };
        let (count, sum_ns) = self.waits.entry(pair).or_default();
        *count += 1;
        *sum_ns += wait_ns;
    }

    /// A page that is dirty as soon as it is added, and not by a fault, was made by write() and not read.
    fn dirtied(&mut self, tid: u32, inode: u64, page: PageIndex) {
        let Some(doing) = self.threads.get_mut(&tid).filter(|doing| doing.fault.is_none()) else {
            return;
        };
        let Some((of, pages)) = doing.added.take() else { return };
        if of.1 != inode || !pages.contains(page) {
            return;
        }
        let Some(file) = self.files.get_mut(&of) else { return };
        for page in pages.iter() {
            let removed = usize::from(file.pages.remove(&page.0).is_some());
            file.counts.pages_read_in -= removed as u64;
            self.pages -= removed;
        }
    }

    /// `inode`, or the one that stands for all files beyond the bound.
    fn kept_apart(&self, inode: Inode) -> Inode {
        let known = self.files.len() < FILES_MAX || self.files.contains_key(&inode);
        if known { inode } else { OTHER_FILES }
    }

    /// Gives up the pages of the file that was read longest ago.
    fn give_up_oldest(&mut self) {
        let with_pages = self.files.values_mut().filter(|file| !file.pages.is_empty());
        let Some(file) = with_pages.min_by_key(|file| file.added_ns) else { return };
        let pages = std::mem::take(&mut file.pages);
        self.pages -= pages.len();
        file.counts.pages_forgotten += pages.values().filter(|page| !page.touched).count() as u64;
    }

    fn number(&mut self, tid: u32, pairing: &Pairing) -> u32 {
        let readers = &mut self.readers;
        *self.threads.entry(tid).or_default().number.get_or_insert_with(|| {
            let thread = pairing.thread(tid);
            match readers.len() {
                READERS_MAX.. if !readers.contains(&thread) => OTHER_READERS,
                _ => readers.insert_full(thread).0 as u32,
            }
        })
    }
}
