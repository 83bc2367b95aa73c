//! Bytes on the device to be measured, read past the page cache.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prepage_core::{PAGE_SIZE, PageIndex};
use rustix::fs::{Advice, OFlags};

use super::CalibrateError;
use crate::resident::is_resident;
use prepage_core::random::SplitMix;
use prepage_sys::file_system::without_device;

/// Largest single read of a [`Sample`].
pub(super) const READ_BYTES_MAX: usize = 1 << 20;
/// How much is read from. Every device has a cache of its own; what matters here is that 64 reads at once lie apart.
const SAMPLE_BYTES: u64 = 64 << 20;
/// With less than this, devices' own read-ahead would be measured.
const SAMPLE_BYTES_MIN: u64 = 8 << 20;
/// Writing the sample to a slow device ends after this time, once there is enough of it.
const WRITING: Duration = Duration::from_secs(2);
/// Directory entries looked at in search of files to read.
const ENTRIES_MAX: usize = 50_000;

/// Files on one device, to be read at random places.
#[derive(Debug)]
pub(super) struct Sample {
    files: Vec<(File, u64)>,
    /// Whether reads go past the page cache. Where the file system cannot do that, pages are sent out of it first.
    direct: bool,
}

impl Sample {
    /// A new file on the file system of `directory`, gone when it is closed, however that comes about; or, where this
    /// user may not write there, the largest files that are there. Of a file, that file.
    pub(super) fn on(path: &Path) -> Result<Self, CalibrateError> {
        let io = |source| CalibrateError::Io { path: path.into(), source };
        let metadata = fs::metadata(path).map_err(io)?;
        let kind = rustix::fs::statfs(path).map_err(|error| io(error.into()))?.f_type as u32;
        if let Some(system) = without_device(kind) {
            return Err(CalibrateError::Memory { path: path.into(), system });
        }
        if metadata.is_file() {
            if has_holes(&metadata) {
                return Err(CalibrateError::Holes { path: path.into() });
            }
            return Self::of_files(&[path.to_owned()]).map_err(io)?.checked(path);
        }
        if !metadata.is_dir() {
            return Err(io(io::ErrorKind::InvalidInput.into()));
        }
        let refused = match Self::written(path) {
            Ok(sample) => return sample.checked(path),
            Err(error) => error,
        };
        let found = Self::of_files(&large_files(path, metadata.dev())).map_err(io)?;
        if found.bytes() < SAMPLE_BYTES_MIN { Err(refused) } else { found.checked(path) }
    }

    /// Bytes in all files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|&(_, bytes)| bytes).sum()
    }

    /// Sends all pages out of the page cache, where reads would find them there.
    pub(super) fn chill(&self) -> io::Result<()> {
        if self.direct {
            return Ok(());
        }
        for (file, _) in &self.files {
            rustix::fs::fadvise(file, 0, None, Advice::Random)?;
            rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        }
        Ok(())
    }

    /// Reads the `at`-th block of `len` bytes, counted over all files.
    pub(super) fn read(&self, at: u64, buffer: &mut Buffer, len: usize) -> io::Result<()> {
        let (mut at, len_bytes) = (at, len as u64);
        for (file, bytes) in &self.files {
            let blocks = bytes / len_bytes;
            if at < blocks {
                return file.read_exact_at(buffer.slice(len), at * len_bytes);
            }
            at -= blocks;
        }
        Err(io::ErrorKind::UnexpectedEof.into())
    }

    /// Whether a second read of the same bytes goes to the device again.
    pub(super) fn may_be_read_again(&self) -> bool {
        self.direct
    }

    /// How many blocks of `len` bytes there are.
    pub(super) fn blocks(&self, len: usize) -> u64 {
        self.files.iter().map(|(_, bytes)| bytes / len as u64).sum()
    }

    fn written(directory: &Path) -> Result<Self, CalibrateError> {
        let io = |source| CalibrateError::Io { path: directory.into(), source };
        let file = unnamed_file(directory).map_err(io)?;
        let space = rustix::fs::fstatvfs(&file).map_err(|error| io(error.into()))?;
        let room_bytes = space.f_bavail.saturating_mul(space.f_frsize);
        if room_bytes < SAMPLE_BYTES {
            return Err(CalibrateError::NoSpace {
                path: directory.into(),
                needed_bytes: SAMPLE_BYTES,
                room_bytes,
            });
        }
        let bytes = fill(&file).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                CalibrateError::NoSpace { path: directory.into(), needed_bytes: SAMPLE_BYTES, room_bytes: 0 }
            }
            _ => io(source),
        })?;
        Self::with(vec![(file, bytes)]).map_err(io)
    }

    fn of_files(paths: &[PathBuf]) -> io::Result<Self> {
        let open = |path: &PathBuf| {
            let file = File::open(path)?;
            let bytes = file.metadata()?.len();
            Ok((file, bytes))
        };
        Self::with(paths.iter().map(open).collect::<io::Result<_>>()?)
    }

    fn with(files: Vec<(File, u64)>) -> io::Result<Self> {
        let reopen = |(file, bytes): &(File, u64)| {
            use std::os::fd::AsRawFd;
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            let direct =
                OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)?;
            // Some file systems take the flag and refuse the read.
            direct.read_exact_at(Buffer::new().slice(PAGE_SIZE as usize), 0)?;
            Ok((direct, *bytes))
        };
        match files.iter().map(reopen).collect::<io::Result<Vec<_>>>() {
            Ok(files) => Ok(Self { files, direct: true }),
            Err(_) => Ok(Self { files, direct: false }),
        }
    }

    /// Itself, if there is enough of it and if its pages leave memory when asked to.
    fn checked(self, path: &Path) -> Result<Self, CalibrateError> {
        let io = |source| CalibrateError::Io { path: path.into(), source };
        if self.bytes() < SAMPLE_BYTES_MIN {
            return Err(CalibrateError::TooSmall {
                path: path.into(),
                bytes: self.bytes(),
                needed_bytes: SAMPLE_BYTES_MIN,
            });
        }
        self.chill().map_err(io)?;
        if !self.direct && self.stays_in_memory() {
            return Err(CalibrateError::StaysInMemory { path: path.into() });
        }
        Ok(self)
    }

    /// Whether many pages are in memory still.
    fn stays_in_memory(&self) -> bool {
        const PROBES: u64 = 32;
        let resident = |(file, bytes): &(File, u64)| {
            let page = |probe| PageIndex(bytes / PROBES * probe / PAGE_SIZE);
            (0..PROBES).filter(|&probe| is_resident(file, page(probe))).count() as u64
        };
        self.files.iter().map(resident).sum::<u64>() > PROBES / 4 * self.files.len() as u64
    }
}

/// Memory that a read past the page cache accepts: aligned to pages. One a thread.
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    pub(super) fn new() -> Self {
        // Not zeroes that the system provides on the first use: pages must be there before time is taken.
        Self(vec![1; READ_BYTES_MAX + PAGE_SIZE as usize])
    }

    fn slice(&mut self, len: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(PAGE_SIZE as usize);
        &mut self.0[start..start + len]
    }
}

/// A file in `directory` that has no name from the start, or loses it at once.
fn unnamed_file(directory: &Path) -> io::Result<File> {
    let open = || OpenOptions::new().read(true).write(true).mode(0o600).clone();
    match open().custom_flags(OFlags::TMPFILE.bits() as i32).open(directory) {
        Err(error) if [Some(95), Some(21), Some(22)].contains(&error.raw_os_error()) => {}
        result => return result,
    }
    let name = directory.join(format!(".prepage-calibrate-{}", std::process::id()));
    let file = open().create_new(true).open(&name)?;
    fs::remove_file(name)?;
    Ok(file)
}

/// Fills `file` with bytes that no device can shorten, and has them on the device. Returns how many.
fn fill(file: &File) -> io::Result<u64> {
    const STEP: usize = 4 << 20;
    let (began, mut random) = (Instant::now(), SplitMix::new(0x5eed));
    let mut written = 0;
    let mut step = vec![0; STEP];
    while written < SAMPLE_BYTES && (written < SAMPLE_BYTES_MIN || began.elapsed() < WRITING) {
        for word in step.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_ne_bytes());
        }
        file.write_all_at(&step, written)?;
        file.sync_data()?;
        written += STEP as u64;
    }
    Ok(written)
}

fn has_holes(file: &Metadata) -> bool {
    file.blocks() * 512 < file.len()
}

/// Files below `directory` on the same device that this user may read, the largest first, enough for a sample.
fn large_files(directory: &Path, device: u64) -> Vec<PathBuf> {
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    let mut directories = vec![directory.to_owned()];
    let mut entries_left = ENTRIES_MAX;
    while let Some(directory) = directories.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            entries_left = entries_left.saturating_sub(1);
            // Of the entry itself: links are not followed.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.dev() != device {
                continue;
            }
            if metadata.is_dir() {
                directories.push(entry.path());
            } else if metadata.is_file() && metadata.len() >= READ_BYTES_MAX as u64 {
                files.push((metadata.len(), entry.path()));
            }
        }
        if entries_left == 0 {
            break;
        }
    }
    files.sort();
    let mut bytes = 0;
    let enough = |(len, path): (u64, PathBuf)| {
        // One that cannot be opened, or has holes, says nothing.
        let full = File::open(&path).and_then(|file| file.metadata()).is_ok_and(|m| !has_holes(&m));
        full.then_some((len, path))
    };
    files
        .into_iter()
        .rev()
        .filter_map(enough)
        .take_while(|(len, _)| {
            let more = bytes < SAMPLE_BYTES;
            bytes += len;
            more
        })
        .map(|(_, path)| path)
        .collect()
}
