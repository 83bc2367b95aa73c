//! Reading ahead of a start of which nothing was learned, by what it has used so far.
//!
//! ```text
//!  the program's file ──────────────────────────┐
//!  Observer ─► used ─► Density of each file ────┴─► chunks of 128 KiB ─► readers
//! ```
//! The program's own file is read whole unless it is large; of other files, what [`Density`] takes for likely. About a third of that
//! is read for nobody, and each read takes its turn at the device: so this is done only where a read keeps a program waiting
//! for long, on volumes behind a network and on disks that turn. On a local flash disk it makes first starts slower.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

use prepage_core::density::{CHUNK_PAGES, Density, pages_of};
use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_observe::sightings::{FileIndex, Seen};
use prepage_profiles::identity::{identity_of, open_to_read};
use prepage_sys::cachestat::cached_pages;
use prepage_sys::proc_file;
use prepage_sys::sync::Anyway;
use rustix::fs::Advice;

use crate::calibrate::cache::Cache;
use crate::engine::{MEMORY_CHECK_BYTES, Piece, bring_in};
use crate::memory::Budget;
use crate::resident::AT_ONCE;

/// A device that reads one page in less keeps nobody waiting for long.
const SLOW: Duration = Duration::from_micros(250);
/// So many of them show that the device is slow: one may have waited for the program's reads.
const SLOW_PROBES: u32 = 4;
/// So many quick ones, before, show that it is not: one may have been on its way already.
const QUICK_PROBES: u32 = 2;
/// Reads at once. The program waits for its own at the same device.
const READERS: u32 = 3;
/// A program that is larger is one with much that few starts use.
const WHOLE_BYTES_MAX: u64 = 32 << 20;
/// Of a larger program the beginning, to try how long a read takes.
const TRIED_PAGES: u64 = 8 * CHUNK_PAGES;
/// What a start is read ahead of at most. Beyond that, a program works on its data.
const BYTES_MAX: u64 = 256 << 20;
const STACK_BYTES: usize = 128 << 10;

/// The reads ahead of one start. Dropped, they end, each reader after the read it is at.
#[derive(Debug)]
pub(crate) struct DenseReads {
    queue: Arc<Queue>,
    /// None of them open: what is on its way is, in the queue.
    files: HashMap<FileIndex, Option<Density>>,
}

/// What the readers share with whoever asks them to read.
///
/// Lock legend: (a) atomic; `limits` is set once; `chunks` is the one lock, held to put in or take out, and slept on with `more`; never over a read.
#[derive(Debug)]
struct Queue {
    /// Set before there are readers.
    limits: OnceLock<Limits>,
    /// What is to be read, the oldest first.
    chunks: Mutex<VecDeque<(Arc<File>, PageRange)>>,
    more: Condvar,
    /// (a) Set for good; who sets it takes `chunks` before it wakes those who sleep.
    over: AtomicBool,
    /// (a) Asked for so far.
    bytes: AtomicU64,
}

/// Asked for only where there is something to read: it takes a dozen files of control groups.
#[derive(Debug)]
struct Limits {
    budget: Budget,
    bytes_max: u64,
}

impl Limits {
    /// `None` where no threads may be started.
    fn of_process() -> Option<Self> {
        let budget = Budget::of_process();
        let bytes_max = budget.share_of(BYTES_MAX);
        (budget.threads() >= READERS).then_some(Self { budget, bytes_max })
    }
}

impl Drop for DenseReads {
    fn drop(&mut self) {
        self.queue.end();
    }
}

impl DenseReads {
    /// Begins with the file of `program`, in a thread of its own. Nothing comes of it where figures that were `measured` say that its device is
    /// quick, or a few reads show that: to be called before the program and others keep the device busy. `None` where there is no thread to spare.
    pub(crate) fn begin(
        program: &Path,
        measured: impl FnOnce() -> Option<Cache> + Send + 'static,
    ) -> Option<Self> {
        let queue = Arc::new(Queue {
            limits: OnceLock::new(),
            chunks: Mutex::default(),
            more: Condvar::new(),
            over: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
        });
        let program = program.to_owned();
        let begun = queue.begin(move |queue| {
            if !queue.is_wanted(&program, measured) {
                return queue.end();
            }
            let Some(limits) = Limits::of_process() else { return queue.end() };
            queue.limits.set(limits).expect("it is set once");
            // One that cannot be started is one fewer at work.
            (1..READERS).for_each(|_| drop(queue.begin(|queue| queue.read())));
            queue.read();
        });
        begun.is_ok().then(|| Self { queue, files: HashMap::new() })
    }

    /// Whether there is a use in knowing what the program uses.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.over.load(Ordering::Relaxed)
    }

    /// Reads what is likely to be used, now that `page` of `file` was.
    pub(crate) fn used(&mut self, place: FileIndex, file: &Seen, page: PageIndex) {
        let inode = file.inode.map(|(_, inode)| inode);
        let density = self.files.entry(place).or_insert_with(|| {
            let (_, pages, _) = open(&file.path, inode)?;
            Some(Density::of(pages))
        });
        let Some(density) = density else { return };
        // Most pages say nothing of others.
        let mut chunks = density.touch(page).peekable();
        if chunks.peek().is_some()
            && let Some((file, ..)) = open(&file.path, inode)
        {
            self.queue.ask(&file, chunks);
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.queue.bytes.load(Ordering::Relaxed)
    }
}

/// The file at `path`, its length in pages, and its device; `None` where it is not the one with this `inode`.
fn open(path: &Path, inode: Option<u64>) -> Option<(Arc<File>, u64, u64)> {
    let file = open_to_read(path).ok()?;
    let identity = identity_of(&file).ok()?;
    if inode.is_some_and(|inode| inode != identity.inode) {
        return None;
    }
    // Our reads name exactly what is wanted: no read-ahead of the kernel's on top.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
    Some((Arc::new(file), identity.size_bytes.div_ceil(PAGE_SIZE), identity.device))
}

impl Queue {
    fn begin(self: &Arc<Self>, work: impl FnOnce(&Arc<Self>) + Send + 'static) -> std::io::Result<()> {
        let queue = self.clone();
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || work(&queue)).map(drop)
    }

    fn ask(&self, file: &Arc<File>, chunks: impl Iterator<Item = PageRange>) {
        self.chunks.lock().anyway().extend(chunks.map(|chunk| (file.clone(), chunk)));
        self.more.notify_all();
    }

    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        // Whoever waits holds the lock between its look at `over` and its sleep.
        let left = std::mem::take(&mut *self.chunks.lock().anyway());
        self.more.notify_all();
        // Their files are closed.
        drop(left);
    }

    /// The next chunk that is not in memory, once there is one; `None` when all is over.
    fn next(&self) -> Option<(Arc<File>, PageRange)> {
        loop {
            let mut chunks = self.chunks.lock().anyway();
            let (file, chunk) = loop {
                if self.over.load(Ordering::Relaxed) {
                    return None;
                }
                match chunks.pop_front() {
                    Some(next) => break next,
                    None => chunks = self.more.wait(chunks).anyway(),
                }
            };
            drop(chunks);
            if !cached_pages(file.as_fd(), chunk).is_ok_and(|cached| cached >= chunk.len()) {
                return Some((file, chunk));
            }
        }
    }

    /// Whether the device of `program` is slow. Asks for the program.
    fn is_wanted(&self, program: &Path, measured: impl FnOnce() -> Option<Cache>) -> bool {
        let Some((file, pages, device)) = open(program, None) else { return false };
        let figures = measured().and_then(|cache| cache.figures(device));
        let is_known_slow = figures.map(|figures| Duration::from_nanos(figures.latency_ns) >= SLOW);
        if is_known_slow == Some(false) {
            return false;
        }
        let wanted = if pages * PAGE_SIZE <= WHOLE_BYTES_MAX { pages } else { pages.min(TRIED_PAGES) };
        self.ask(&file, (0..wanted.div_ceil(CHUNK_PAGES)).map(pages_of));
        is_known_slow == Some(true) || self.is_slow()
    }

    /// Whether the device takes long to read a page, tried with pages of chunks that are asked for.
    fn is_slow(&self) -> bool {
        let (mut tried, mut slow, mut quick) = (Vec::new(), 0, 0);
        while slow < SLOW_PROBES {
            let Some((file, chunk)) = self.next() else { return false };
            match time_to_read(&file, chunk.start()) {
                Some(time) if time < SLOW => quick += 1,
                Some(_) => slow += 1,
                None => {}
            }
            if quick == QUICK_PROBES {
                return false;
            }
            tried.push((file, chunk));
        }
        self.chunks.lock().anyway().extend(tried);
        true
    }

    fn read(&self) {
        let Limits { budget, bytes_max } = self.limits.get().expect("it is set before there are readers");
        while let Some((file, chunk)) = self.next() {
            bring_in(&[Piece { file, range: chunk, is_hole: false }], true, None);
            let before = self.bytes.fetch_add(chunk.bytes(), Ordering::Relaxed);
            let bytes = before + chunk.bytes();
            // One reader looks, the one that passes the mark.
            let passes_mark = bytes / MEMORY_CHECK_BYTES > before / MEMORY_CHECK_BYTES;
            if bytes >= *bytes_max || passes_mark && budget.is_short_for(MEMORY_CHECK_BYTES) {
                return self.end();
            }
        }
    }
}

/// How long the device takes to read `page`; `None` where the page was in memory, or on its way. What this thread waits for a processor
/// afterwards does not count, where the kernel tells.
fn time_to_read(file: &File, page: PageIndex) -> Option<Duration> {
    let is_cached = cached_pages(file.as_fd(), page.alone()).is_ok_and(|cached| cached > 0);
    let queued_before = queued();
    let began = Instant::now();
    let read = rustix::io::pread(file, &mut [0u8; 1], page.offset_bytes());
    let elapsed = began.elapsed();
    let time = elapsed.saturating_sub(queued().saturating_sub(queued_before));
    (read.is_ok() && !is_cached && time > AT_ONCE).then_some(time)
}

/// For how long this thread has waited for a processor so far, as far as the kernel tells.
fn queued() -> Duration {
    let told = proc_file::read_text("/proc/thread-self/schedstat").ok();
    let field = told.and_then(|told| told.split(' ').nth(1)?.parse().ok());
    field.map_or(Duration::ZERO, Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use prepage_core::DeviceFigures;
    use prepage_observe::sightings::Sightings;
    use prepage_sys::cachestat::evict;
    use prepage_testing::{Need, has, wait_until};

    use super::*;
    use crate::calibrate::Calibration;
    use crate::calibrate::device::Device;

    /// A directory of figures that say how long a read of one page takes there.
    fn measured(directory: &Path, latency_ns: u64) -> Cache {
        let cache = Cache::at(directory.join("figures"));
        let figures = DeviceFigures { latency_ns, ..DeviceFigures::default() };
        let calibration = Calibration { figures, latency_p99_ns: 0, rates: Vec::new(), measured_unix_s: 1 };
        cache.store(&Device::under(directory).unwrap(), &calibration).unwrap();
        cache
    }

    /// A file of so many chunks, none of them in memory.
    fn cold(path: &Path, chunks: u64) -> File {
        std::fs::write(path, vec![1u8; (chunks * CHUNK_PAGES * PAGE_SIZE) as usize]).unwrap();
        let file = File::open(path).unwrap();
        file.sync_all().unwrap();
        evict(file.as_fd(), Duration::from_secs(60)).unwrap();
        file
    }

    fn cached_chunks(file: &File, chunks: u64) -> Vec<u64> {
        let is_cached = |&at: &u64| cached_pages(file.as_fd(), pages_of(at)).unwrap() == CHUNK_PAGES;
        (0..chunks).filter(is_cached).collect()
    }

    #[test]
    fn on_a_slow_device_the_program_is_read_and_what_is_likely_of_other_files() {
        if !has(Need::Eviction(env!("CARGO_MANIFEST_DIR").into())) {
            return;
        }
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let (program, library) = (dir.path().join("program"), dir.path().join("library"));
        let (of_program, of_library) = (cold(&program, 5), cold(&library, 70));
        let figures = measured(dir.path(), 1_000_000);
        let mut reads = DenseReads::begin(&program, || Some(figures)).unwrap();
        let place = Sightings::default().place(&library, None).unwrap();
        let seen = Seen { path: library, inode: None };
        for chunk in [64, 67, 65] {
            reads.used(place, &seen, pages_of(chunk).start());
        }
        let since = Instant::now();
        while reads.bytes() < 8 * CHUNK_PAGES * PAGE_SIZE && since.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(cached_chunks(&of_program, 5), [0, 1, 2, 3, 4]);
        // Nobody really touched those that were said to be.
        assert_eq!(cached_chunks(&of_library, 70), [66, 68, 69]);
    }

    #[test]
    fn nothing_is_read_on_a_device_that_is_known_to_be_quick() {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, [1]).unwrap();
        let figures = measured(dir.path(), 100_000);
        let reads = DenseReads::begin(&program, || Some(figures)).unwrap();
        wait_until(|| reads.is_over(), "it never ends");
        assert_eq!(reads.bytes(), 0);
    }
}
