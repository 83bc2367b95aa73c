//! Room in a layer: what its profiles take, when each was last used, and which go first when there are too many.
//!
//! A profile's time of modification says when it was last used, to the day. Where a layer is full, those go first whose program
//! was started once only, then those not used for the longest time, and last of all those of boots and sessions: however many programs somebody tries or builds in a day, what
//! is used day by day stays.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use prepage_core::profile::file::{Glance, PAYLOAD_BYTES_MAX};
use prepage_sys::random::random;
use rustix::fs::{Access, AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, accessat};
use rustix::io::Errno;

use crate::key::is_of_subject;

/// The end of the name of each profile.
pub const SUFFIX: &str = "profile";
/// Profiles of one name that are kept: more than the roles that anybody calls a program in day by day, of an interpreter more than the
/// scripts.
pub const PROFILES_OF_A_NAME_MAX: usize = 256;
/// What the profiles of a layer take at most where nobody says otherwise: some thousand programs.
pub const BYTES_MAX: u64 = 64 << 20;

/// Files of a layer's directory that are looked at to make room: more than there is room for where nobody says otherwise. Whoever puts more
/// there makes nobody who writes for that user look at all of them.
pub(crate) const FILES_MAX: usize = 1 << 16;
/// A used profile is marked as such once in this time.
const MARK_EVERY: Duration = Duration::from_secs(24 * 3600);
/// A layer that takes too much, or has too many profiles of a name, is brought this share below what it may take: else each new profile would have
/// all looked at.
const ROOM_SHARE: u64 = 16;

/// What file systems give a file at once: by that the room in a layer is counted between two looks at it.
const BLOCK_BYTES: u64 = 4096;
/// One in so many profiles that take no more room than before has a layer looked at: it may be allowed less since.
const LOOK_EVERY: u64 = 32;

/// A file of a layer.
pub(crate) struct StoreFile {
    pub(crate) path: PathBuf,
    used: SystemTime,
    pub(crate) bytes: u64,
}

impl StoreFile {
    /// How much its program is used, as far as is known. What makes no sense is of use to nobody.
    fn worth(&self, directory: BorrowedFd<'_>) -> Worth {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let Ok(file) = rustix::fs::openat(directory, self.name(), flags, Mode::empty()) else {
            return Worth::Once;
        };
        let mut bytes = Vec::new();
        let read = File::from(file).take(PAYLOAD_BYTES_MAX).read_to_end(&mut bytes);
        let Some(glance) = read.ok().and_then(|_| Glance::of(&bytes).ok()) else { return Worth::Once };
        if is_of_subject(glance.program, glance.role) {
            return Worth::Subject;
        }
        let past = glance.past;
        let learned = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(past.history.updated_unix_s));
        // Nor does a time that no clock has make sense.
        let Some(learned) = learned else { return Worth::Once };
        // By a clock that was ahead it may have been learned later than it was used.
        let is_used_later = apart(self.used, learned) > MARK_EVERY / 2;
        let is_once = past.history.observations <= 1 && past.starts.is_empty() && !is_used_later;
        if is_once { Worth::Once } else { Worth::Again }
    }

    fn name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    fn is_named_like(&self, name: &str) -> bool {
        is_named_like(self.name(), name)
    }
}

/// What makes room last comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Worth {
    /// Of the boot or of sessions: learned in one, and used once in each.
    Subject,
    /// Of a program that was started more than once.
    Again,
    /// No start was observed or measured since the one that it was learned from, and on no later day was it marked as used.
    Once,
}

/// Whether two names are the same but for the checksum.
pub(crate) fn is_named_like(own: &OsStr, name: &str) -> bool {
    fn stem(name: &str) -> Option<&str> {
        name.strip_suffix(SUFFIX)?.rsplit_once('-').map(|(stem, _checksum)| stem)
    }
    stem(&own.to_string_lossy()).is_some_and(|own| stem(name) == Some(own))
}

/// The files in a layer's directory, `files_max` at most, those used last first.
pub(crate) fn files_of(directory: &Path, files_max: usize) -> Vec<StoreFile> {
    files_named(directory, files_max, |_| true)
}

/// Those of them whose names `is_wanted`; no others are looked at.
pub(crate) fn files_named(
    directory: &Path,
    files_max: usize,
    is_wanted: impl Fn(&OsStr) -> bool,
) -> Vec<StoreFile> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let file = |entry: fs::DirEntry| {
        let metadata = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        let used = time(metadata.mtime(), metadata.mtime_nsec());
        Some(StoreFile { path: entry.path(), used, bytes: metadata.len() })
    };
    let is_profile = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        Path::new(&name).extension().is_some_and(|end| end == SUFFIX) && is_wanted(&name)
    };
    let mut files: Vec<StoreFile> = entries.take(files_max).filter(is_profile).filter_map(file).collect();
    files.sort_by(|a, b| (b.used, &b.path).cmp(&(a.used, &a.path)));
    files
}

/// How many profiles lie in a layer's directory, and how many bytes they take.
pub fn taken_in(directory: &Path) -> (usize, u64) {
    let files = files_of(directory, usize::MAX);
    (files.len(), files.iter().map(|file| file.bytes).sum())
}

/// Whether a layer may be too full once a profile that took `before` bytes, 0 where there was none, takes `after`. Profiles that grow by a little in
/// each write take another block in some writes: between two looks about as much is added as a block holds.
pub(crate) fn is_room_in_question(before: u64, after: u64) -> bool {
    after.div_ceil(BLOCK_BYTES) > before.div_ceil(BLOCK_BYTES) || random().is_multiple_of(LOOK_EVERY)
}

/// Removes profiles until those left take at most `bytes_max`, and those named like `written` are at most
/// [`PROFILES_OF_A_NAME_MAX`]. `written`, which was just written, goes only where it is larger than that by itself. A look at thousands of files takes a
/// cold disk longer than others wait for the lock of the layer: `lock` takes it once it is known what is to go, and what was written or marked as used
/// meanwhile stays. Returns what was removed: nothing where there is no lock to be had.
pub(crate) fn make_room<L>(
    path: &Path,
    directory: BorrowedFd<'_>,
    written: &str,
    bytes_max: u64,
    lock: impl FnOnce() -> Option<L>,
) -> Vec<PathBuf> {
    let mut files = files_of(path, FILES_MAX);
    let mut bytes: u64 = files.iter().map(|file| file.bytes).sum();
    let is_alike = |file: &StoreFile| file.is_named_like(written);
    let mut alike = files.iter().filter(|file| is_alike(file)).count();
    let (are_too_large, are_too_many) = (bytes > bytes_max, alike > PROFILES_OF_A_NAME_MAX);
    if !are_too_large && !are_too_many {
        return Vec::new();
    }
    let below = |max: u64, is_exceeded| if is_exceeded { max - max / ROOM_SHARE } else { max };
    let wanted_bytes = below(bytes_max, are_too_large);
    let wanted_alike = below(PROFILES_OF_A_NAME_MAX as u64, are_too_many) as usize;
    if !are_too_large {
        files.retain(is_alike);
    }
    let now = SystemTime::now();
    // What a clock that was ahead has marked would stay for as long as the clock was ahead, used or not: it ages from now on.
    for file in files.iter_mut().filter(|file| file.used > now && apart(file.used, now) > MARK_EVERY) {
        mark(directory, file.name());
        file.used = stat(directory, file.name()).map_or(now, |found| found.0);
    }
    let is_written = |file: &StoreFile| file.name() == written;
    // The least useful come last. What was marked just now stood first already.
    // So much is read that what had room before is looked at, whatever somebody has put beside it.
    let mut left_bytes = bytes_max.saturating_mul(2);
    files.sort_by_cached_key(|file| {
        let is_looked_at = file.bytes <= left_bytes;
        left_bytes -= if is_looked_at { file.bytes } else { 0 };
        (!is_written(file), if is_looked_at { file.worth(directory) } else { Worth::Once })
    });
    let is_to_go = |file: &StoreFile| {
        let is_too_much = if is_written(file) { bytes > bytes_max } else { bytes > wanted_bytes };
        let is_alike = file.is_named_like(written);
        let is_to_go = is_too_much || (is_alike && alike > wanted_alike);
        if is_to_go {
            bytes -= file.bytes;
            alike -= usize::from(is_alike);
        }
        is_to_go
    };
    let to_go: Vec<StoreFile> = files.into_iter().rev().filter(is_to_go).collect();
    let Some(_lock) = lock() else { return Vec::new() };
    // What cannot be removed is one too many, and tried again with the next.
    let is_removed = |file: &StoreFile| {
        stat(directory, file.name()) == Some((file.used, file.bytes))
            && rustix::fs::unlinkat(directory, file.name(), AtFlags::empty()).is_ok()
    };
    to_go.into_iter().filter(is_removed).map(|file| file.path).collect()
}

/// How far two times are apart, whichever is the later.
fn apart(one: SystemTime, other: SystemTime) -> Duration {
    one.duration_since(other).unwrap_or_else(|earlier| earlier.duration())
}

/// Sets the time of modification to now.
pub(crate) fn mark(directory: BorrowedFd<'_>, name: &OsStr) {
    let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
    let times = Timestamps { last_access: now, last_modification: now };
    // On a read-only store nothing is evicted either.
    let _ = rustix::fs::utimensat(directory, name, &times, AtFlags::SYMLINK_NOFOLLOW);
}

/// Whether [`mark`] may set the time of the file at `path`, as far as can be told: this process may write to it. An owner may set it in any case, but
/// keeps profiles that may be written to.
pub(crate) fn may_be_marked(path: &Path) -> bool {
    let error = accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).err();
    !matches!(error, Some(Errno::ROFS | Errno::ACCESS | Errno::PERM))
}

/// When a file was modified, and its size in bytes.
fn stat(directory: BorrowedFd<'_>, name: &OsStr) -> Option<(SystemTime, u64)> {
    let stat = rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    Some((time(stat.st_mtime, stat.st_mtime_nsec as i64), stat.st_size.try_into().ok()?))
}

/// The time of so many seconds since 1970, or 1970 where it is earlier.
fn time(unix_s: i64, ns: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::new(unix_s.try_into().unwrap_or(0), ns.try_into().unwrap_or(0))
}

/// Sets the time of modification, once a day, without writing the profile. Returns what it was. One that is more than a day ahead was set by
/// a clock that was.
pub(crate) fn mark_as_used(directory: BorrowedFd<'_>, name: &Path) -> Option<SystemTime> {
    let (modified, _) = stat(directory, name.as_os_str())?;
    if !is_marked_as_used(modified, SystemTime::now()) {
        mark(directory, name.as_os_str());
    }
    Some(modified)
}

/// Whether a profile that was `modified` then needs no mark `now`.
pub(crate) fn is_marked_as_used(modified: SystemTime, now: SystemTime) -> bool {
    apart(modified, now) <= MARK_EVERY
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// Another start may learn anew what was about to go.
    #[test]
    fn what_was_written_since_the_look_makes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let names = ["a-1.profile", "b-2.profile", "c-3.profile"];
        names.iter().for_each(|name| fs::write(path(name), [0; 100]).unwrap());
        let opened = File::open(dir.path()).unwrap();
        let room = |lock: &dyn Fn() -> Option<()>| make_room(dir.path(), opened.as_fd(), names[2], 150, lock);
        assert!(room(&|| None).is_empty());
        let written_anew = || {
            fs::write(path("new"), [1; 101]).unwrap();
            fs::rename(path("new"), path(names[0])).ok()
        };
        assert_eq!(room(&written_anew), [path(names[1])]);
        assert_eq!(fs::read(path(names[0])).unwrap(), [1; 101]);
        assert_eq!(room(&|| Some(())), [path(names[0])]);
    }

    #[test]
    fn what_takes_no_more_room_has_a_layer_looked_at_now_and_then() {
        assert!(is_room_in_question(0, 1) && is_room_in_question(4096, 4097));
        let drawn = (0..1000).filter(|_| is_room_in_question(4095, 4096)).count();
        assert!((1..200).contains(&drawn), "{drawn}");
    }
}
