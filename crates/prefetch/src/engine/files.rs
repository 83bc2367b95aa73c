//! The files of a prefetch, each open from the look at it to its last read: whoever holds a file open keeps its file system from being
//! unmounted, and the space of a file that was deleted in use.

use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, TryLockError};
use std::time::Duration;

use prepage_core::profile::plan::Read;
use prepage_core::profile::{Profile, ProfiledFile};
use prepage_profiles::identity::{Skipped, open_if_same};
use prepage_sys::open_files;
use prepage_sys::sync::Anyway;
use rustix::fs::Advice;

/// How often, and after which pauses, a reader tries to open a file where no more may be open: others are done with theirs soon.
const TRIES: u32 = 200;
const TRY_AGAIN: Duration = Duration::from_millis(1);

/// The files of a profile, in its order.
pub(super) struct Files {
    slots: Vec<Slot>,
    /// (a) How many are kept open for reads to come.
    kept: AtomicU64,
    /// (a) And at most. Others are opened to be looked at, which has the kernel know them, and once more to be read.
    kept_max: AtomicU64,
    /// (a) How many were opened so far.
    opened: AtomicU64,
    /// (a) The value of `opened` while a reader waited in vain although nothing was kept.
    in_vain_at: AtomicU64,
}

/// One file.
///
/// Lock legend: (a) atomic; (o) set once; `open` is the lock, held while the file is opened, so that who wants it meanwhile has it as well.
/// Nobody waits for a lookup who only wants to know how far the prefetch is.
#[derive(Default)]
struct Slot {
    open: Mutex<Option<Arc<File>>>,
    /// What is read in its place ([`Files::give`]), open for good.
    given: Option<Arc<File>>,
    /// (o) Whether it was ever opened.
    was_opened: OnceLock<()>,
    /// (o) Why it is not read.
    skipped: OnceLock<Skipped>,
    /// (a) Reads still to come.
    reads_left: AtomicU32,
}

impl Files {
    pub(super) fn of(profile: &Profile) -> Self {
        Self {
            slots: profile.files.iter().map(|_| Slot::default()).collect(),
            kept: AtomicU64::new(0),
            kept_max: AtomicU64::new(open_files::for_prefetches()),
            opened: AtomicU64::new(0),
            in_vain_at: AtomicU64::new(u64::MAX),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Takes note of what is to be read of each.
    pub(super) fn plan(&mut self, reads: &[Read]) {
        self.slots.iter_mut().for_each(|slot| *slot.reads_left.get_mut() = 0);
        reads.iter().for_each(|read| *self.slots[read.file].reads_left.get_mut() += 1);
    }

    /// Has `file` read in place of what lies at the path of file `at`.
    pub(super) fn give(&mut self, at: usize, file: File) {
        let slot = &mut self.slots[at];
        (slot.given, slot.was_opened) = (Some(Arc::new(file)), OnceLock::from(()));
    }

    /// File `at`, which `known` describes, opened where it is not. It stays open as long as reads of it are to come, unless too many are.
    ///
    /// # Errors
    /// Why it is not read.
    pub(super) fn open(&self, at: usize, known: &ProfiledFile) -> Result<Arc<File>, Skipped> {
        let slot = &self.slots[at];
        if let Some(given) = &slot.given {
            return Ok(given.clone());
        }
        let mut open = slot.open.lock().anyway();
        if let Some(skipped) = slot.skipped.get() {
            return Err(*skipped);
        }
        if let Some(file) = &*open {
            return Ok(file.clone());
        }
        let file = match open_if_same(known).map(Arc::new) {
            Ok(file) => file,
            // Soon there may be fewer.
            Err(Skipped::TooMany) => return Err(Skipped::TooMany),
            Err(skipped) => {
                let _ = slot.skipped.set(skipped);
                return Err(skipped);
            }
        };
        // Our reads name exactly what is wanted: no read-ahead of the kernel's on top.
        let _ = rustix::fs::fadvise(&file, 0, None, Advice::Random);
        let _ = slot.was_opened.set(());
        self.opened.fetch_add(1, Ordering::Relaxed);
        if slot.reads_left.load(Ordering::Relaxed) > 0 && self.may_keep() {
            *open = Some(file.clone());
        }
        Ok(file)
    }

    /// The same for whoever reads of it now, unless `cancelled`. Where no more files may be open, those that are kept for reads to come make room.
    /// Once somebody has waited in vain although nothing is kept, nobody else waits until one can be opened again.
    ///
    /// # Errors
    /// As [`Self::open`], for good.
    pub(super) fn open_to_read(
        &self,
        at: usize,
        known: &ProfiledFile,
        cancelled: &AtomicBool,
    ) -> Result<Arc<File>, Skipped> {
        let before = self.opened.load(Ordering::Relaxed);
        let mut opened = self.open(at, known);
        for _ in 0..TRIES {
            if !matches!(opened, Err(Skipped::TooMany)) || cancelled.load(Ordering::Relaxed) {
                return opened;
            }
            let kept = self.kept.load(Ordering::Relaxed);
            if kept > 0 {
                self.kept_max.store(kept / 2, Ordering::Relaxed);
                self.close();
            } else if self.in_vain_at.load(Ordering::Relaxed) == self.opened.load(Ordering::Relaxed) {
                break;
            }
            std::thread::sleep(TRY_AGAIN);
            opened = self.open(at, known);
        }
        if matches!(opened, Err(Skipped::TooMany)) && self.kept.load(Ordering::Relaxed) == 0 {
            self.in_vain_at.store(before, Ordering::Relaxed);
        }
        opened.inspect_err(|skipped| _ = self.slots[at].skipped.set(*skipped))
    }

    /// Takes a place among those that are kept open, if there is one.
    fn may_keep(&self) -> bool {
        let max = self.kept_max.load(Ordering::Relaxed);
        let one_more = |kept| (kept < max).then_some(kept + 1);
        self.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// File `at`, if it is open; nobody waits until it is.
    pub(super) fn opened(&self, at: usize) -> Option<Arc<File>> {
        let slot = &self.slots[at];
        slot.given.clone().or_else(|| slot.open.try_lock().ok()?.clone())
    }

    /// Whether somebody is opening file `at` just now: whoever wants it meanwhile would wait.
    pub(super) fn is_being_opened(&self, at: usize) -> bool {
        let slot = &self.slots[at];
        slot.given.is_none() && matches!(slot.open.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Opens file `at` for who will read of it, unless that has been done.
    pub(super) fn look_at(&self, at: usize, known: &ProfiledFile) {
        if self.slots[at].was_opened.get().is_none() {
            let _ = self.open(at, known);
        }
    }

    /// One of the reads of file `at` has been made, or cannot be. After the last one it is closed.
    pub(super) fn note_read(&self, at: usize) {
        if self.is_last_of(at) {
            let file = self.slots[at].open.lock().anyway().take();
            self.kept.fetch_sub(file.is_some().into(), Ordering::Relaxed);
        }
    }

    /// One of the reads of file `at` is not to be made. Nobody is waited for: a file that somebody opens just now may stay open to the end.
    pub(super) fn leave_out(&self, at: usize) {
        if self.is_last_of(at)
            && let Ok(mut open) = self.slots[at].open.try_lock()
        {
            self.kept.fetch_sub(open.take().is_some().into(), Ordering::Relaxed);
        }
    }

    /// Counts a read of file `at`. Returns whether it was the last one.
    fn is_last_of(&self, at: usize) -> bool {
        let one_less = |left: u32| left.checked_sub(1);
        // More than were planned are made by who begins a prefetch twice.
        self.slots[at].reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) == Ok(1)
    }

    /// Closes all but those that somebody opens just now. What is still to be read of them is opened again.
    pub(super) fn close(&self) {
        let open = self.slots.iter().filter_map(|slot| slot.open.try_lock().ok()?.take());
        open.for_each(|file| {
            drop(file);
            self.kept.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Those that are not read, by index.
    pub(super) fn skipped(&self) -> Vec<(usize, Skipped)> {
        let skipped = |(at, slot): (usize, &Slot)| Some((at, *slot.skipped.get()?));
        self.slots.iter().enumerate().filter_map(skipped).collect()
    }

    /// As while somebody opens it, until what this returns is dropped.
    #[cfg(test)]
    pub(super) fn opening(&self, at: usize) -> impl Drop + use<'_> {
        self.slots[at].open.lock().anyway()
    }

    #[cfg(test)]
    pub(super) fn is_open(&self, at: usize) -> bool {
        self.slots[at].open.lock().anyway().is_some()
    }
}
