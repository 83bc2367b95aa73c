//! Bringing pages into memory.
//!
//! ```text
//! each file: which pages are absent, and no holes ─► pieces of 128 KiB ─► 16 readers ─► look again: what is in memory now
//! ```
//! Of readers there are fewer where no more threads can be made; without any, the caller reads.
//!
//! WILLNEED and readahead(2) cap the length they are given without a word, so every piece is asked for by itself; and
//! each reader waits for its piece, so that an error shows and the device's queue stays bounded.

use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex};

use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
use prepage_prefetch::memory::{Budget, available_kib};
use prepage_sys::sync::Anyway;
use rustix::fs::{Advice, SeekFrom};
use rustix::io::Errno;

use crate::residency::{Residency, ResidencyError, without};
use crate::target::{Passed, Spot, Wanted};

/// Reads at once. Local disks and flash gain nothing beyond (docs/results.md).
const READERS: usize = 16;
/// What one read asks for: the least that kernels take in one WILLNEED by default.
const PIECE_PAGES: u64 = 32;
const PIECE_BYTES: usize = (PIECE_PAGES * PAGE_SIZE) as usize;
/// Pieces waiting for a reader, so that they need not wait for the walk.
const QUEUE: usize = 4 * READERS;
/// How much is read between two looks at the memory that is left.
const CHECK_BYTES: u64 = 32 << 20;
/// Below this part of all memory, what is read drives out what others use.
const RESERVE_SHARE: u64 = 20;

/// Why reading stopped before all was in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// The next piece would exceed the limit.
    Limit {
        /// The limit.
        limit_bytes: u64,
    },
    /// Less memory was left than should be.
    MemoryShort {
        /// What was left.
        available_bytes: u64,
    },
}

/// A file that was to be brought in.
#[derive(Debug)]
pub struct WarmedFile<'a> {
    /// The file.
    pub spot: &'a Spot,
    /// Pages meant, without those of holes.
    pub pages: u64,
    /// Of these, in memory before; `None` where the user may not know, and all were read.
    pub before: Option<u64>,
    /// In memory afterwards; `None` as above.
    pub after: Option<u64>,
    /// Pages meant that are not read: they lie in holes of the file, and memory would fill with zeros.
    pub hole_pages: u64,
    /// Bytes read of it, or asked for where they were in memory unknown to us.
    pub read_bytes: u64,
    /// The first error of reading it.
    pub error: Option<io::Error>,
    /// The `pages`, as the file was found: it may grow while it is read.
    meant: Vec<Wanted>,
}

/// What was done.
#[derive(Debug, Default)]
pub struct Warmed<'a> {
    /// Files, in the order they were given.
    pub files: Vec<WarmedFile<'a>>,
    /// Files passed over.
    pub passed: Vec<Passed>,
    /// Bytes read, or asked for where they were in memory unknown to us.
    pub read_bytes: u64,
    /// Why there is an end before the end.
    pub stopped: Option<Stopped>,
}

/// Reads what is absent of `spots` into memory, at most `limit_bytes`: where `None`, half of the memory available.
/// Then looks whether it is there.
pub fn warm(spots: &[Spot], limit_bytes: Option<u64>) -> Warmed<'_> {
    let limit_bytes = limit_bytes.unwrap_or_else(|| Budget::of_process().of_all_nodes().share_of(u64::MAX));
    let mut warmed = Warmed::default();
    let readers = Readers::default();
    let (pieces, waiting) = sync_channel(QUEUE);
    let waiting = Mutex::new(waiting);
    std::thread::scope(|scope| {
        let begin = || std::thread::Builder::new().spawn_scoped(scope, || readers.work(&waiting));
        let has_readers = (0..READERS).take_while(|_| begin().is_ok()).count() > 0;
        let mut own = vec![0; if has_readers { 0 } else { PIECE_BYTES }];
        let mut read = |piece| match has_readers {
            // Readers take pieces until the queue is closed, so that there is one to take this.
            true => drop(pieces.send(piece)),
            false => readers.read(&piece, &mut own),
        };
        hand_out(spots, limit_bytes, &mut read, &readers, &mut warmed);
        // The readers end when nobody can hand out any more.
        drop(pieces);
    });
    if warmed.stopped.is_none() && readers.skipped.load(Ordering::Relaxed) {
        warmed.stopped = Some(Stopped::MemoryShort { available_bytes: available_bytes() });
    }
    warmed.read_bytes = readers.read_bytes.into_inner();
    for (at, read) in readers.read.into_inner().anyway() {
        let file = &mut warmed.files[at];
        match read {
            Ok(read_bytes) => file.read_bytes += read_bytes,
            Err(error) => drop(file.error.get_or_insert(error)),
        }
    }
    for file in &mut warmed.files {
        let meant = Spot { path: file.spot.path.clone(), wanted: std::mem::take(&mut file.meant) };
        file.after = meant.open().ok().and_then(|opened| Some(Residency::of(&opened).ok()?.resident_pages()));
    }
    warmed
}

/// Opens each file and has its absent pages `read`.
fn hand_out<'a>(
    spots: &'a [Spot],
    limit_bytes: u64,
    read: &mut dyn FnMut(Piece),
    readers: &Readers,
    warmed: &mut Warmed<'a>,
) {
    let mut left_bytes = limit_bytes;
    for spot in spots {
        let Some(opened) = spot.open_or_pass(&mut warmed.passed) else { continue };
        let (before, absent) = match Residency::of(&opened) {
            Ok(residency) => (Some(residency.resident_pages()), residency.absent()),
            Err(ResidencyError::NotAllowed | ResidencyError::Io(_)) => (None, opened.ranges.clone()),
        };
        let to_read = with_data(&opened.file, &absent);
        let holes = without(&absent, &to_read);
        let meant = without(&opened.ranges, &holes);
        let at = warmed.files.len();
        warmed.files.push(WarmedFile {
            spot,
            pages: pages_of(&meant),
            before,
            after: None,
            hole_pages: pages_of(&holes),
            read_bytes: 0,
            error: None,
            meant: meant.into_iter().map(Wanted::Pages).collect(),
        });
        // Our reads name exactly what is wanted: no read-ahead of the kernel's on top.
        let _ = rustix::fs::fadvise(&opened.file, 0, None, Advice::Random);
        let file = Arc::new(opened.file);
        for pages in to_read.into_iter().flat_map(pieces_of) {
            if pages.bytes() > left_bytes {
                warmed.stopped = Some(Stopped::Limit { limit_bytes });
                return;
            }
            left_bytes -= pages.bytes();
            if readers.skips() {
                return;
            }
            read(Piece { at, file: Arc::clone(&file), pages });
        }
    }
}

fn pages_of(ranges: &[PageRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
}

/// The parts of `ranges`, which ascend, in which `file` has data, each page whole. Where its file system does not tell, all of them.
fn with_data(file: &File, ranges: &[PageRange]) -> Vec<PageRange> {
    let mut with_data = Vec::new();
    // The data found last: many ranges may lie in it, and a file system takes its time to find its end.
    let (mut start, mut end) = (PageIndex(0), PageIndex(0));
    for range in ranges {
        let mut at = range.start();
        while at < range.end() {
            if at >= end {
                let data = rustix::fs::seek(file, SeekFrom::Data(at.offset_bytes()));
                (start, end) = match data
                    .and_then(|data| Ok((data, rustix::fs::seek(file, SeekFrom::Hole(data))?)))
                {
                    Ok((data, hole)) => (PageIndex(data / PAGE_SIZE), PageIndex(hole.div_ceil(PAGE_SIZE))),
                    // Only a hole follows.
                    Err(Errno::NXIO) => return with_data,
                    Err(_) => (at, range.end()),
                };
            }
            if start >= range.end() {
                break;
            }
            with_data.push(PageRange::new(start.max(at), end.min(range.end())));
            at = end;
        }
    }
    with_data
}

/// A part of a file to read.
struct Piece {
    /// Which of the files handed out.
    at: usize,
    file: Arc<File>,
    pages: PageRange,
}

/// What readers share: counters, flags set once, and a list behind its lock.
#[derive(Default)]
struct Readers {
    read_bytes: AtomicU64,
    /// Memory is short: nothing more is read.
    short: AtomicBool,
    /// Some piece was not read because of that.
    skipped: AtomicBool,
    /// What came of each piece of file `.0`: bytes, or why not.
    read: Mutex<Vec<(usize, io::Result<u64>)>>,
}

impl Readers {
    fn work(&self, waiting: &Mutex<Receiver<Piece>>) {
        let mut buffer = vec![0; PIECE_BYTES];
        loop {
            let next = waiting.lock().anyway().recv();
            let Ok(piece) = next else { return };
            self.read(&piece, &mut buffer);
        }
    }

    /// Whether memory is too short for one more piece, which is skipped then.
    fn skips(&self) -> bool {
        let skips = self.short.load(Ordering::Relaxed);
        if skips {
            self.skipped.store(true, Ordering::Relaxed);
        }
        skips
    }

    fn read(&self, piece: &Piece, buffer: &mut [u8]) {
        // What waits in the queue is emptied, so that whoever fills it does not wait for ever.
        if self.skips() {
            return;
        }
        let read = bring_in(piece, buffer).map(|()| piece.pages.bytes());
        let is_read = read.is_ok();
        self.read.lock().anyway().push((piece.at, read));
        if !is_read {
            return;
        }
        let before = self.read_bytes.fetch_add(piece.pages.bytes(), Ordering::Relaxed);
        let crossed = before / CHECK_BYTES != (before + piece.pages.bytes()) / CHECK_BYTES;
        if crossed && available_bytes() < total_bytes() / RESERVE_SHARE {
            self.short.store(true, Ordering::Relaxed);
        }
    }
}

/// Asks for the piece as a whole, then reads it: file systems that know no WILLNEED have it afterwards too.
fn bring_in(piece: &Piece, buffer: &mut [u8]) -> io::Result<()> {
    let (start, len) = (piece.pages.start().offset_bytes(), piece.pages.bytes());
    let _ = rustix::fs::fadvise(&*piece.file, start, NonZeroU64::new(len), Advice::WillNeed);
    let mut at = 0;
    while at < len {
        match piece.file.read_at(&mut buffer[..(len - at) as usize], start + at) {
            // The file's last page is not full.
            Ok(0) => break,
            Ok(read) => at += read as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn pieces_of(range: PageRange) -> impl Iterator<Item = PageRange> {
    let starts = (range.start().0..range.end().0).step_by(PIECE_PAGES as usize);
    starts.map(move |start| {
        PageRange::new(PageIndex(start), PageIndex((start + PIECE_PAGES).min(range.end().0)))
    })
}

/// What programs could still get without swapping; without /proc, all there is.
fn available_bytes() -> u64 {
    available_kib().map_or_else(total_bytes, |kib| kib * 1024)
}

fn total_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(info.mem_unit.into())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use prepage_sys::cachestat::evict;
    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn pieces_cover_a_range_without_overlap() {
        let range = PageRange::new(PageIndex(5), PageIndex(5 + 2 * PIECE_PAGES + 3));
        let pieces: Vec<PageRange> = pieces_of(range).collect();
        assert_eq!(pieces.len(), 3);
        assert_eq!((pieces[0].start(), pieces[2].end()), (range.start(), range.end()));
        assert!(pieces.windows(2).all(|pair| pair[0].end() == pair[1].start()));
    }

    #[test]
    fn memory_that_is_short_once_all_is_read_has_stopped_nothing() {
        let place = env!("CARGO_MANIFEST_DIR");
        if !has(Need::Eviction(place.into())) {
            return;
        }
        let file = tempfile::NamedTempFile::new_in(place).unwrap();
        let spots = [Spot::file(file.path())];
        let skipped_of = |pieces: usize| {
            file.as_file().write_all_at(&vec![7; pieces * PIECE_BYTES], 0).unwrap();
            file.as_file().sync_all().unwrap();
            evict(file.as_file().as_fd(), Duration::from_secs(60)).unwrap();
            let readers = Readers::default();
            let mut read = |_| readers.short.store(true, Ordering::Relaxed);
            hand_out(&spots, u64::MAX, &mut read, &readers, &mut Warmed::default());
            readers.skipped.into_inner()
        };
        assert_eq!([1, 2].map(skipped_of), [false, true]);
    }
}
