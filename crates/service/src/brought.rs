//! What was brought into memory for a program that is expected: only pages that were missing, and sent out again where nobody came.
//!
//! Each brought program has a watch of its own on its files: what anybody but this process has opened or read since then is used,
//! and stays. What is sent out leaves by POSIX_FADV_DONTNEED, which passes over pages that somebody has mapped or changed. Files
//! are not kept open.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use prepage_core::profile::plan::PlanOptions;
use prepage_core::profile::{Extent, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};
use prepage_prefetch::engine::Engine;
use prepage_profiles::identity::open_if_same;
use prepage_sys::cachestat::cached_pages;
use prepage_sys::exec_watch::{OpenWatch, Seen};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::rights::Rights;
use rustix::fs::{Advice, fadvise};

/// The pages brought in for one program.
#[derive(Debug)]
pub struct Brought {
    rights: Rights,
    files: Vec<BroughtFile>,
    watch: OpenWatch,
}

#[derive(Debug)]
struct BroughtFile {
    /// Its extents are what was missing.
    profiled: ProfiledFile,
    handle: FileHandle,
    bytes: u64,
    is_used: bool,
}

/// What became of what was brought in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// Bytes of files that somebody has opened or read.
    pub used_bytes: u64,
    /// Bytes of files that nobody has.
    pub unused_bytes: u64,
    /// Of the unused bytes, those that were sent out.
    pub sent_out_bytes: u64,
}

/// Who reads for a guess, so that a start can have it stop.
#[derive(Debug, Default)]
pub struct Reader {
    state: Mutex<ReaderState>,
}

/// Protected by `Reader::state`.
#[derive(Debug, Default)]
struct ReaderState {
    engine: Option<Engine>,
    is_stopped: bool,
}

impl Reader {
    /// Stops at the read that it is at, and reads nothing more.
    pub fn stop(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.is_stopped = true;
        state.engine.take().inspect(Engine::cancel);
    }

    /// Whether somebody had it stop.
    pub fn is_stopped(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_stopped
    }

    /// Reads `profile` on this thread, one read after the other: whoever else needs the device waits for one at most. Returns
    /// how many bytes were asked for.
    fn read(&self, profile: Profile, rights: &Rights) -> u64 {
        let engine = Engine::with(profile, PlanOptions::EXACT, 1);
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.is_stopped {
                return 0;
            }
            state.engine = Some(engine.clone());
        }
        let mut all = Vec::new();
        engine.start_on(&mut |work| {
            all.push(work);
            true
        });
        if let Ok(_assumed) = rights.assume() {
            all.into_iter().for_each(|work| work());
        }
        engine.outcome().requested_bytes
    }
}

impl Brought {
    /// Brings in what `planned` lists and is missing, with `rights`, as far as it fits `spare_bytes`. `None` where nothing was.
    ///
    /// # Errors
    /// Where files cannot be watched.
    pub fn bring(
        planned: &Profile,
        rights: &Rights,
        spare_bytes: u64,
        reader: &Reader,
    ) -> io::Result<Option<Self>> {
        let watch = OpenWatch::new()?;
        let mut files = Vec::new();
        let mut left_bytes = spare_bytes;
        for profiled in &planned.files {
            let opened = {
                let _assumed = rights.assume()?;
                open_if_same(profiled)
            };
            // What has changed, cannot be watched, or does not say what is missing of it, is left to its start.
            let Ok(file) = opened else { continue };
            let Ok(handle) = handle_of(&file) else { continue };
            if watch.add(file.as_fd()).is_err() {
                continue;
            }
            let mut extents = Vec::new();
            let is_known = profiled.extents.iter().all(|extent| {
                missing(file.as_fd(), extent.range, &mut |range| extents.push(Extent { range, ..*extent }))
                    .is_ok()
            });
            let profiled = ProfiledFile { extents, ..profiled.clone() };
            let wanted_bytes = profiled.pages() * prepage_core::PAGE_SIZE;
            if !is_known || wanted_bytes == 0 || wanted_bytes > left_bytes {
                continue;
            }
            let bytes = reader.read(Profile { files: vec![profiled.clone()], ..Profile::default() }, rights);
            left_bytes = left_bytes.saturating_sub(bytes);
            if bytes > 0 {
                files.push(BroughtFile { profiled, handle, bytes, is_used: false });
            }
        }
        Ok((!files.is_empty()).then(|| Self { rights: rights.clone(), files, watch }))
    }

    /// Bytes brought in.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Takes account of who has opened what.
    fn look(&mut self) {
        let own = std::process::id();
        let files = &mut self.files;
        let mut see = |seen: Seen| match seen {
            Seen::Exec { pid, file } if pid != own => {
                files.iter_mut().filter(|one| one.handle == file).for_each(|one| one.is_used = true);
            }
            Seen::Exec { .. } => {}
            // Anybody may have opened anything.
            Seen::Lost => files.iter_mut().for_each(|one| one.is_used = true),
        };
        while self.watch.read(&mut see).unwrap_or(false) {}
    }

    /// Says what was used. What was not is sent out where `keep` does not say otherwise.
    pub fn settle(mut self, keep: bool) -> Settled {
        self.look();
        let mut settled = Settled::default();
        for file in &self.files {
            if file.is_used {
                settled.used_bytes += file.bytes;
                continue;
            }
            settled.unused_bytes += file.bytes;
            if !keep && self.send_out(file).is_ok() {
                settled.sent_out_bytes += file.bytes;
            }
        }
        settled
    }

    fn send_out(&self, file: &BroughtFile) -> io::Result<()> {
        let _assumed = self.rights.assume()?;
        let opened = open_if_same(&file.profiled).map_err(|_| io::ErrorKind::NotFound)?;
        for extent in &file.profiled.extents {
            let (offset, len) = (extent.range.start().offset_bytes(), extent.range.bytes());
            fadvise(&opened, offset, std::num::NonZeroU64::new(len), Advice::DontNeed)?;
        }
        Ok(())
    }
}

fn handle_of(file: &File) -> io::Result<FileHandle> {
    FileHandle::of(Path::new(&format!("/proc/self/fd/{}", file.as_raw_fd())))
}

/// Hands the parts of `range` that are not in memory to `see`.
fn missing(file: BorrowedFd<'_>, range: PageRange, see: &mut dyn FnMut(PageRange)) -> io::Result<()> {
    let cached = cached_pages(file, range)?;
    if cached >= range.len() {
        return Ok(());
    }
    if cached == 0 {
        see(range);
        return Ok(());
    }
    let middle = PageIndex(range.start().0.midpoint(range.end().0));
    missing(file, PageRange::new(range.start(), middle), see)?;
    missing(file, PageRange::new(middle, range.end()), see)
}

/// Handles to the one who reads now, for those who stop it.
#[derive(Clone, Debug, Default)]
pub struct Current(Arc<Mutex<Option<Arc<Reader>>>>);

impl Current {
    /// The next reader.
    pub fn next(&self) -> Arc<Reader> {
        let reader = Arc::<Reader>::default();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(reader.clone());
        reader
    }

    /// Stops whoever reads.
    pub fn stop(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take().inspect(|reader| reader.stop());
    }
}

#[cfg(test)]
mod tests;
