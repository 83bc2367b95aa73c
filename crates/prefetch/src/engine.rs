//! Bringing the pages of a profile into memory while the program starts.
//!
//! ```text
//! Profile ─ plan ─► reads in order of first use ─► 16 readers: WILLNEED ≤ 128 KiB, then read its last byte
//!        └─ files and lookups in order of first use ─► 8 name threads: open, stat, list
//! ```
//! Each reader waits for its own read before it takes the next: the depth of the device's queue stays bounded,
//! so the program's own faults do not stand behind hundreds of guesses. Asking for everything at once with
//! WILLNEED alone loses for that reason (docs/results.md). All state threads share is two counters that hand
//! out work, one set-once slot a file, and counters of what was done.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use prepage_core::plan::{PlanOptions, Read, plan};
use prepage_core::profile::{Lookup, Profile};
use prepage_core::{PAGE_SIZE, PageRange};
use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags, StatxFlags};

use crate::identity::{Skipped, open_if_same};

/// Readers at once. Local disks and flash gain nothing beyond; measured in docs/results.md.
const READERS: usize = 16;
/// Threads that open, stat and list: few, for each also burns CPU the program wants.
const NAME_THREADS: usize = 8;
/// Reads probed to tell a warm cache from a cold one, spread over the start. Few, because a warm start is in a hurry:
/// where they are all in memory although other pages are not, the program's disk faults tell soon after.
const PROBES: usize = 8;
/// A listing's buffer and some frames.
const STACK_BYTES: usize = 128 << 10;

/// What a prefetch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes asked for. What was in memory already is counted too.
    pub requested_bytes: u64,
    /// Files of the profile that are no longer what was learned, by index.
    pub skipped: Vec<(usize, Skipped)>,
}

/// A prefetch in preparation or under way.
pub struct Engine<'a> {
    profile: &'a Profile,
    reads: Vec<Read>,
    files: Vec<OnceLock<Result<File, Skipped>>>,
    next_read: AtomicUsize,
    next_name: AtomicUsize,
    requested_bytes: AtomicU64,
    cancelled: AtomicBool,
}

impl<'a> Engine<'a> {
    /// Plans the reads of `profile`. Nothing is opened yet.
    pub fn new(profile: &'a Profile, options: PlanOptions) -> Self {
        Self {
            profile,
            reads: plan(profile, options),
            files: (0..profile.files.len()).map(|_| OnceLock::new()).collect(),
            next_read: AtomicUsize::new(0),
            next_name: AtomicUsize::new(0),
            requested_bytes: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
        }
    }

    /// Leaves out what is used last, so that all reads together ask for no more bytes than `limit` makes of the number
    /// planned.
    pub fn limit_bytes(&mut self, limit: impl FnOnce(u64) -> u64) {
        let mut left = limit(self.reads.iter().map(|read| read.range.bytes()).sum());
        let kept = self.reads.iter().take_while(|read| {
            let fits = read.range.bytes() <= left;
            left = left.saturating_sub(read.range.bytes());
            fits
        });
        let kept = kept.count();
        self.reads.truncate(kept);
    }

    /// Ends the prefetch early: each thread stops after the read it is at.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether what the profile holds is in memory already, judged by a sample. Pages found missing are on
    /// their way afterwards.
    pub fn is_warm(&self) -> bool {
        let step = (self.reads.len() / PROBES).max(1);
        self.reads.iter().step_by(step).all(|read| match self.file(read.file) {
            Ok(file) => is_resident(file, read.range),
            Err(_) => true,
        })
    }

    /// Prefetches everything. Returns when all is in memory, or when cancelled.
    pub fn run(&self) -> Outcome {
        std::thread::scope(|scope| {
            // A thread that cannot be started is one fewer at work; the first runs here in any case.
            let start = |work: fn(&Self)| {
                let _ = std::thread::Builder::new()
                    .stack_size(STACK_BYTES)
                    .spawn_scoped(scope, move || work(self));
            };
            for thread in 1..READERS {
                if thread <= NAME_THREADS {
                    start(Self::look_up_names);
                }
                start(Self::read_pages);
            }
            self.read_pages();
        });
        Outcome { requested_bytes: self.requested_bytes.load(Ordering::Relaxed), skipped: self.skipped() }
    }

    fn read_pages(&self) {
        while !self.cancelled.load(Ordering::Relaxed) {
            let Some(read) = self.reads.get(self.next_read.fetch_add(1, Ordering::Relaxed)) else { break };
            let Ok(file) = self.file(read.file) else { continue };
            self.requested_bytes.fetch_add(read.range.bytes(), Ordering::Relaxed);
            bring_in(file, read.range);
        }
    }

    /// Opens files and repeats lookups, one of each in turn: both lists are in order of first use.
    fn look_up_names(&self) {
        let (files, lookups) = (self.files.len(), &self.profile.lookups);
        while !self.cancelled.load(Ordering::Relaxed) {
            let at = self.next_name.fetch_add(1, Ordering::Relaxed);
            if at >= files && at >= lookups.len() {
                break;
            }
            if let Some(lookup) = lookups.get(at) {
                look_up(lookup);
            }
            if at < files {
                let _ = self.file(at);
            }
        }
    }

    fn file(&self, at: usize) -> Result<&File, Skipped> {
        let opened = self.files[at].get_or_init(|| {
            let file = open_if_same(&self.profile.files[at])?;
            // Our reads name exactly what is wanted: no read-ahead of the kernel's on top.
            let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
            Ok(file)
        });
        opened.as_ref().map_err(|skipped| *skipped)
    }

    fn skipped(&self) -> Vec<(usize, Skipped)> {
        let failed = |(at, slot): (usize, &OnceLock<Result<File, Skipped>>)| match slot.get() {
            Some(Err(skipped)) => Some((at, *skipped)),
            _ => None,
        };
        self.files.iter().enumerate().filter_map(failed).collect()
    }
}

/// Reads `range` into memory and waits for it.
fn bring_in(file: &File, range: PageRange) {
    let len = std::num::NonZeroU64::new(range.bytes());
    // Failure means that the file system does not know WILLNEED; the read below then brings in its one page,
    // and the program faults on the rest as it would have without us.
    let _ = rustix::fs::fadvise(file, range.start().offset_bytes(), len, Advice::WillNeed);
    let _ = rustix::io::pread(file, &mut [0u8; 1], range.end().offset_bytes() - PAGE_SIZE);
}

/// Whether the first page of `range` is in memory. Works on files the user can merely read, for which mincore
/// and cachestat tell nothing: a read that must not wait succeeds only where there is nothing to wait for.
fn is_resident(file: &File, range: PageRange) -> bool {
    let mut byte = [0u8; 1];
    let mut buffers = [rustix::io::IoSliceMut::new(&mut byte)];
    let offset = range.start().offset_bytes();
    match rustix::io::preadv2(file, &mut buffers, offset, rustix::io::ReadWriteFlags::NOWAIT) {
        Ok(_) => true,
        Err(error) => error != rustix::io::Errno::AGAIN,
    }
}

/// Makes the kernel read the directories and the inode that answer for a name.
fn look_up(lookup: &Lookup) {
    let path = Path::new(&lookup.path);
    if lookup.list {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if let Ok(directory) = rustix::fs::open(path, flags, Mode::empty()) {
            let mut buffer = [std::mem::MaybeUninit::uninit(); 32 << 10];
            let mut entries = rustix::fs::RawDir::new(directory, &mut buffer);
            while let Some(Ok(_)) = entries.next() {}
        }
    } else {
        let _ = rustix::fs::statx(CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use prepage_core::PageIndex;
    use prepage_core::profile::{Evidence, ProfiledFile, Touches};

    use super::*;
    use crate::identity::{fingerprint, identity_of, open_to_read};

    const PAGES: u64 = 512;

    fn file_of_pages(dir: &Path) -> std::path::PathBuf {
        let path = dir.join("object");
        std::fs::write(&path, vec![1u8; (PAGES * PAGE_SIZE) as usize]).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        path
    }

    fn profile(path: &Path, pages: &[u64]) -> Profile {
        let mut touches = Touches::default();
        for (rank, &page) in pages.iter().enumerate() {
            touches.touch(PageIndex(page), rank as u32, Evidence::Exact);
        }
        let file = open_to_read(path).unwrap();
        let identity = identity_of(&file).unwrap();
        let fingerprint = fingerprint(&file, identity.size_bytes).unwrap();
        let path = path.to_str().unwrap().into();
        Profile {
            files: vec![ProfiledFile {
                path,
                identity,
                fingerprint,
                learned_unix_s: 0,
                extents: touches.extents(),
            }],
            ..Default::default()
        }
    }

    /// Evicts the file, prefetches `pages` of it, and says which pages are in memory then.
    fn resident_after(pages: &[u64]) -> Option<Vec<u64>> {
        let dir = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = file_of_pages(dir.path());
        let profile = profile(&path, pages);
        let file = File::open(&path).unwrap();
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed).unwrap();
        let cached = |page| {
            let one = PageRange::new(PageIndex(page), PageIndex(page + 1));
            prepage_sys::cachestat::cached_pages(file.as_fd(), one).map(|count| count > 0)
        };
        if cached(PAGES / 2).ok()? {
            return None;
        }
        let engine = Engine::new(&profile, PlanOptions { gap_pages_max: 0 });
        assert!(!engine.is_warm());
        let outcome = engine.run();
        assert!(outcome.skipped.is_empty());
        assert_eq!(outcome.requested_bytes, pages.len() as u64 * PAGE_SIZE);
        assert!(engine.is_warm(), "a second prefetch would find everything in memory");
        Some((0..PAGES).filter(|&page| cached(page).unwrap()).collect())
    }

    #[test]
    fn exactly_the_pages_of_the_profile_come_in() {
        let pages: Vec<u64> = (0..PAGES).filter(|page| page % 37 == 3 || (100..180).contains(page)).collect();
        match resident_after(&pages) {
            Some(resident) => assert_eq!(resident, pages),
            None => {
                eprintln!("SKIPPED: this file system keeps pages in memory that fadvise was asked to drop")
            }
        }
    }

    #[test]
    fn what_is_used_last_is_left_out_when_memory_is_short() {
        let dir = tempfile::tempdir().unwrap();
        let profile = profile(&file_of_pages(dir.path()), &[400, 10, 200]);
        let mut engine = Engine::new(&profile, PlanOptions { gap_pages_max: 0 });
        engine.limit_bytes(|planned| planned - 1);
        let first_pages: Vec<u64> = engine.reads.iter().map(|read| read.range.start().0).collect();
        assert_eq!(first_pages, [400, 10]);
    }

    #[test]
    fn a_missing_file_and_a_missing_name_are_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        let path = file_of_pages(dir.path());
        let mut profile = profile(&path, &[1, 2]);
        profile.lookups = vec![
            Lookup { rank: 0, path: "/no/such/name".into(), list: false },
            Lookup { rank: 0, path: "/no/such/directory".into(), list: true },
            Lookup { rank: 0, path: "/".into(), list: true },
        ];
        std::fs::remove_file(&path).unwrap();
        let engine = Engine::new(&profile, PlanOptions::default());
        engine.read_pages();
        engine.look_up_names();
        assert_eq!(engine.skipped(), [(0, Skipped::Missing)]);
    }
}
