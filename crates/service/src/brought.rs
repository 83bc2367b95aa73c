//! What was brought into memory for a program that is expected: only pages that were missing, and sent out again where nobody came.
//!
//! Each brought program has a watch of its own on its files: what anybody but prepage has opened or read since then is used,
//! and stays. What is sent out leaves by POSIX_FADV_DONTNEED, which passes over pages that somebody has mapped or changed. Files
//! are not kept open.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use prepage_core::profile::plan::PlanOptions;
use prepage_core::profile::{Extent, Profile, ProfiledFile};
use prepage_core::{PageIndex, PageRange};
use prepage_prefetch::engine::Engine;
use prepage_profiles::identity::{identity_of, open_if_same};
use prepage_sys::cachestat::{self, cached_pages};
use prepage_sys::exec_watch::{OpenWatch, Seen};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::mapping::FileMapping;
use prepage_sys::rights::Rights;
use prepage_sys::scheduling;
use prepage_sys::sync::Anyway;
use rustix::fs::{Advice, fadvise};

use crate::courtesy::{Courtesy, Next, Use};
use crate::device_use::DeviceUse;
use crate::process::is_prepages;
use crate::reading::memory_is_short;
use crate::round::Round;

/// Short reads: who comes meanwhile waits for one.
const PLAN: PlanOptions = PlanOptions { read_pages_max: 16, ..PlanOptions::EXACT };

/// A reader that leaves room for others reads for so long. A program on a slow disk takes minutes, and who has opened what is looked at between two readers:
/// the kernel keeps so many events and no more.
const READER_MAX: Duration = Duration::from_secs(20);

/// The pages brought in for one program.
#[derive(Debug)]
pub struct Brought {
    rights: Rights,
    files: Vec<BroughtFile>,
    watch: Arc<OpenWatch>,
}

#[derive(Debug)]
struct BroughtFile {
    /// Its extents are what was missing.
    profiled: ProfiledFile,
    handle: FileHandle,
    bytes: u64,
    is_used: bool,
    is_watched: bool,
}

/// A file that was seen used: it need not be watched any more.
#[derive(Debug)]
pub struct SeenUsed {
    profiled: ProfiledFile,
    rights: Rights,
    watch: Arc<OpenWatch>,
}

impl SeenUsed {
    /// Has the kernel tell no more of it: it has room for so many events, and for none of other files behind them. Looks the file up in `round`.
    pub fn end(&self, round: &Round) {
        let Some(_looking) = round.look_at(&self.profiled.path) else { return };
        let opened = {
            let Ok(_assumed) = self.rights.assume() else { return };
            open_if_same(&self.profiled)
        };
        // Of what is not found any more the kernel may go on to tell.
        opened.into_iter().for_each(|file| _ = self.watch.remove(file.as_fd()));
    }
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
///
/// Lock order: none, no two locks are held at once, and none over a read.
#[derive(Debug, Default)]
pub struct Reader {
    is_courteous: bool,
    /// Seen by whoever looks whether a file system answers.
    round: Arc<Round>,
    /// When its time is up.
    until: Option<Instant>,
    /// Set under `engine` by who stops the reader, so that no engine begins after that; by its own thread without.
    is_stopped: Arc<AtomicBool>,
    /// What is read now, to be cancelled.
    engine: Mutex<Option<Engine>>,
    /// Of the device of the last file.
    turn: Mutex<Option<Arc<Turn>>>,
}

/// Waits for the moments in which a device may be read from. `courtesy` is held for a look at the clock and its counts, never while
/// the thread rests.
#[derive(Debug)]
struct Turn {
    device: u64,
    /// Where nothing counts how much the device is used, reads take their share of the time alone.
    used: Option<DeviceUse>,
    courtesy: Mutex<Courtesy>,
    began: Instant,
    until: Option<Instant>,
    is_stopped: Arc<AtomicBool>,
    /// Whether the device was left to others.
    is_left: AtomicBool,
    round: Arc<Round>,
}

impl Turn {
    /// Returns whether a read may begin, once it may. Where it may not, nothing more is read.
    fn wait(&self) -> bool {
        self.round.rests();
        let is_over = || {
            let is_time_up = self.until.is_some_and(|until| Instant::now() >= until);
            is_time_up || self.is_stopped.load(Ordering::Relaxed) || memory_is_short()
        };
        while !is_over() {
            // A device that counts no longer is gone.
            let Ok(seen) = self.used.as_ref().map_or(Ok(Use::default()), DeviceUse::look) else { break };
            let mut courtesy = self.courtesy.lock().anyway();
            let next = courtesy.next(self.began.elapsed(), seen);
            drop(courtesy);
            match next {
                Next::Read => {
                    self.round.goes_on();
                    return true;
                }
                Next::Rest(pause) => std::thread::sleep(pause),
                Next::Leave => {
                    self.is_left.store(true, Ordering::Relaxed);
                    break;
                }
            }
        }
        self.is_stopped.store(true, Ordering::Relaxed);
        false
    }
}

impl Reader {
    /// One that reads in `round`; where it `is_courteous`, it leaves devices to whoever else uses them ([`crate::courtesy`]), and stops after a while.
    pub fn new(is_courteous: bool, round: Arc<Round>) -> Self {
        let until = is_courteous.then(|| Instant::now() + READER_MAX);
        Self { is_courteous, round, until, ..Self::default() }
    }

    /// Stops at the read that it is at, and reads nothing more. Closes no file: that may wait for a program that answers for its file system.
    pub fn stop(&self) {
        let engine = self.engine.lock().anyway();
        self.is_stopped.store(true, Ordering::Relaxed);
        engine.iter().for_each(Engine::cancel);
    }

    /// Whether somebody had it stop, it has left the device to others, or its time is up.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Whether it has stopped because others left no pause on the device: the machine is not idle.
    pub fn has_left(&self) -> bool {
        self.turn.lock().anyway().as_ref().is_some_and(|turn| turn.is_left.load(Ordering::Relaxed))
    }

    fn turn(&self, device: u64) -> Arc<Turn> {
        let mut turn = self.turn.lock().anyway();
        turn.take_if(|turn| turn.device != device);
        let new = || {
            Arc::new(Turn {
                device,
                used: DeviceUse::of(device).ok(),
                courtesy: Mutex::default(),
                began: Instant::now(),
                until: self.until,
                is_stopped: self.is_stopped.clone(),
                is_left: AtomicBool::default(),
                round: self.round.clone(),
            })
        };
        turn.get_or_insert_with(new).clone()
    }

    /// Reads `profile`, a file of `device`, on this thread, one read after the other: whoever else needs the device waits for one at
    /// most. Returns how many bytes were asked for.
    fn read(&self, profile: Profile, device: u64, rights: &Rights) -> u64 {
        let mut engine = Engine::with(profile, PLAN, 1);
        if self.is_courteous {
            // Where the kernel does not know of it, or the device's scheduler does not, pauses do for it.
            let _ = scheduling::read_last();
            let turn = self.turn(device);
            engine.ask_before_reads(Box::new(move || turn.wait()));
        } else {
            let round = self.round.clone();
            engine.ask_before_reads(Box::new(move || {
                round.goes_on();
                true
            }));
        }
        {
            let mut under_way = self.engine.lock().anyway();
            if self.is_stopped() {
                return 0;
            }
            *under_way = Some(engine.clone());
        }
        let mut all = Vec::new();
        engine.start_on(&mut |work| {
            all.push(work);
            true
        });
        if let Ok(_assumed) = rights.assume() {
            all.into_iter().for_each(|work| work());
        }
        // Its file is closed by this thread.
        *self.engine.lock().anyway() = None;
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
        let watch = Arc::new(OpenWatch::new()?);
        let mut brought = Self { rights: rights.clone(), files: Vec::new(), watch };
        brought.go_on(planned, spare_bytes, reader)?;
        Ok((!brought.files.is_empty()).then_some(brought))
    }

    /// Brings in what is still missing of `planned`, as far as it fits `spare_bytes`: the last time something came between.
    ///
    /// # Errors
    /// Where the rights with which it was begun cannot be taken on.
    pub fn go_on(&mut self, planned: &Profile, spare_bytes: u64, reader: &Reader) -> io::Result<()> {
        let Self { rights, files, watch } = self;
        let mut left_bytes = spare_bytes;
        for profiled in &planned.files {
            if reader.is_stopped() {
                break;
            }
            let Some(_looking) = reader.round.look_at(&profiled.path) else { continue };
            let opened = {
                let _assumed = rights.assume()?;
                open_if_same(profiled)
            };
            // What has changed, cannot be watched, or does not say what is missing of it, is left to its start.
            let Ok(file) = opened else { continue };
            let Ok(handle) = handle_of(&file) else { continue };
            // The profile may have been learned on another disk.
            let Ok(device) = identity_of(&file).map(|identity| identity.device) else { continue };
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
            // Of files that are in memory already, as all programs use them, the kernel would tell more than it has room for.
            let is_used = files.iter().any(|file| file.handle == handle && file.is_used);
            if !is_used && watch.add(file.as_fd()).is_err() {
                continue;
            }
            let bytes =
                reader.read(Profile { files: vec![profiled.clone()], ..Profile::default() }, device, rights);
            left_bytes = left_bytes.saturating_sub(bytes);
            match files.iter_mut().find(|file| file.handle == handle) {
                _ if bytes == 0 => {}
                Some(file) => {
                    file.profiled.extents.extend(profiled.extents);
                    file.bytes += bytes;
                }
                None => files.push(BroughtFile { profiled, handle, bytes, is_used: false, is_watched: true }),
            }
        }
        Ok(())
    }

    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Takes account of who has opened what: a boot or a session that is followed opens all that the last ones needed. Whoever is gone by now counts
    /// as anybody. Returns the files that were not seen used before.
    pub fn look(&mut self) -> Vec<SeenUsed> {
        self.see();
        let (rights, watch) = (&self.rights, &self.watch);
        let is_new = |one: &mut BroughtFile| one.is_used && std::mem::take(&mut one.is_watched);
        let seen = |one: &mut BroughtFile| {
            let (profiled, rights, watch) = (one.profiled.clone(), rights.clone(), watch.clone());
            SeenUsed { profiled, rights, watch }
        };
        self.files.iter_mut().filter_map(|one| is_new(one).then(|| seen(one))).collect()
    }

    fn see(&mut self) {
        let own = std::process::id();
        let files = &mut self.files;
        let mut see = |seen: Seen| match seen {
            Seen::Exec { pid, file } => {
                let unused = files.iter_mut().find(|one| one.handle == file && !one.is_used);
                if let Some(one) = unused.filter(|_| pid != own && !is_prepages(pid)) {
                    one.is_used = true;
                }
            }
            // Anybody may have opened anything.
            Seen::Lost => files.iter_mut().for_each(|one| one.is_used = true),
        };
        while self.watch.read(&mut see).unwrap_or(false) {}
    }

    /// Says what was used. What was not is sent out in `round` where `keep` does not say otherwise.
    pub fn settle(mut self, keep: bool, round: &Round) -> Settled {
        self.see();
        let mut settled = Settled::default();
        for file in &self.files {
            if file.is_used {
                settled.used_bytes += file.bytes;
                continue;
            }
            settled.unused_bytes += file.bytes;
            let sends_out = || {
                let _looking = round.look_at(&file.profiled.path)?;
                self.send_out(file).ok()
            };
            if !keep && sends_out().is_some() {
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
    if cachestat::sees(file) { missing_here(file, range, see) } else { missing_below(file, range, see) }
}

fn missing_here(file: BorrowedFd<'_>, range: PageRange, see: &mut dyn FnMut(PageRange)) -> io::Result<()> {
    let cached = cached_pages(file, range)?;
    if cached >= range.len() {
        return Ok(());
    }
    if cached == 0 {
        see(range);
        return Ok(());
    }
    let middle = PageIndex(range.start().0.midpoint(range.end().0));
    missing_here(file, PageRange::new(range.start(), middle), see)?;
    missing_here(file, PageRange::new(middle, range.end()), see)
}

fn missing_below(file: BorrowedFd<'_>, range: PageRange, see: &mut dyn FnMut(PageRange)) -> io::Result<()> {
    let mut start = range.start();
    for run in FileMapping::new(file, range)?.resident()?.chunk_by(|one, next| one == next) {
        let end = PageIndex(start.0 + run.len() as u64);
        if !run[0] {
            see(PageRange::new(start, end));
        }
        start = end;
    }
    Ok(())
}

/// Leads to the one who reads now, for those who stop it: the lock guards which, and is let go before the reader's own is taken. It keeps neither the reader nor its round from ending.
#[derive(Clone, Debug, Default)]
pub struct Current(Arc<Mutex<Weak<Reader>>>);

impl Current {
    /// `reader` is the next one.
    pub fn set(&self, reader: Reader) -> Arc<Reader> {
        let reader = Arc::new(reader);
        *self.0.lock().anyway() = Arc::downgrade(&reader);
        reader
    }

    pub fn stop(&self) {
        let reader = self.0.lock().anyway().upgrade();
        reader.inspect(|reader| reader.stop());
    }
}

#[cfg(test)]
mod tests;
