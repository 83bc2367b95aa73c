//! The stores of profiles: layers of directories, one small file a program and role.
//!
//! The user's own is written by each observed start and read by its user, the machine's by root (`sudo prepage learn`, the service, package scripts)
//! and read by all, the vendors' by packages and read by all. docs/environment.md says where each lies. The first layer that has a profile of a call
//! decides; `PREPAGE_LAYERS` names other directories than the machine's and
//! the vendors'. What lies in them is followed by one rule ([`crate::trust`]) and holds nothing private
//! ([`crate::public`]). Sidecars ([`crate::sidecar`]) lie below the same directories.
//!
//! Files are replaced as a whole, so a reader, a crash or a full disk never sees half a profile. Two runs that learn at
//! once take turns at a lock; the later one adds to what the earlier one wrote. The lock is held for the writing alone. What the layers of users and machines take has a
//! bound ([`crate::room`]); what is in the vendors' is the packages' to say.

use std::fs;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use prepage_core::profile::Profile;
use prepage_core::profile::file::{self, FORMAT_VERSION, HEADER_BYTES, PAYLOAD_BYTES_MAX, ProfileFileError};
use prepage_sys::clock;
use prepage_sys::new_file::{NewFile, write_at, write_unsynced_at};
use rustix::fs::{
    Access, AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, fallocate, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::at_hand::{at_hand, is_absent};
use crate::bytes::Bytes;
use crate::key::ProgramKey;
use crate::layer::{Layer, StartContextPaths};
use crate::public::{for_elsewhere, public};
use crate::room::{
    BYTES_MAX, FILES_MAX, StoreFile, files_named, files_of, is_marked_as_used, is_named_like,
    is_room_in_question, make_room, mark, mark_as_used, may_be_marked,
};
use crate::source::source;
use crate::store_error::StoreError;
use crate::stored::{FoundProfile, Listed, Stored};
use crate::trust;

/// How long a writer waits for others, and begins again where they were faster: longer than any write takes, and not for ever where one of them
/// hangs, or writes again and again.
const LOCK_WAIT: Duration = Duration::from_secs(2);

/// Replaces a file of a directory by one with these permissions and bytes.
type Write = fn(BorrowedFd<'_>, &Path, u32, &[u8]) -> io::Result<()>;

/// What is read of a layer at most: what lies there may be anything, and more than there is memory for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadMax {
    /// Files.
    pub files: usize,
    /// Bytes of all of them, and those that one may take in memory.
    pub bytes: u64,
}

impl ReadMax {
    /// All there is.
    pub const ALL: Self = Self { files: usize::MAX, bytes: u64::MAX };
}

/// The layers that one user sees.
#[derive(Clone, Debug)]
pub struct Stores {
    uid: u32,
    layers: Vec<(Layer, PathBuf)>,
    /// What the profiles of the user's or the machine's layer may take.
    bytes_max: u64,
}

impl Stores {
    /// Those of the user this process runs as. Nothing is created yet.
    ///
    /// # Errors
    /// [`StoreError::Nowhere`].
    pub fn of_user() -> Result<Self, StoreError> {
        Self::for_uid(rustix::process::geteuid().as_raw(), &StartContextPaths::of_environment())
    }

    /// Those of the user `uid`, where `paths` say.
    ///
    /// # Errors
    /// [`StoreError::Nowhere`].
    pub fn for_uid(uid: u32, paths: &StartContextPaths) -> Result<Self, StoreError> {
        let own = match (&paths.store, &paths.state_home, &paths.home) {
            (Some(store), ..) => store.clone(),
            _ if uid == 0 => PathBuf::from("/var/lib/prepage/root"),
            (_, Some(state), _) => state.join("prepage"),
            (.., Some(home)) => home.join(".local/state/prepage"),
            _ => return Err(StoreError::Nowhere),
        };
        let usual = || {
            ["/var/lib/prepage", "/usr/local/share/prepage", "/usr/share/prepage"].map(PathBuf::from).into()
        };
        let others: Vec<PathBuf> = paths.layers.clone().unwrap_or_else(usual);
        let kinds = std::iter::once(Layer::Machine).chain(std::iter::repeat(Layer::Vendor));
        let layers = std::iter::once((Layer::User, own)).chain(kinds.zip(others)).collect();
        Ok(Self { uid, layers, bytes_max: BYTES_MAX })
    }

    /// A user's store in `directory`, and nothing else.
    pub fn at(directory: PathBuf) -> Self {
        let uid = rustix::process::geteuid().as_raw();
        Self { uid, layers: vec![(Layer::User, directory)], bytes_max: BYTES_MAX }
    }

    /// Lets the profiles of the user's layer, and those of the machine's, take so many bytes.
    #[must_use]
    pub fn keeping(self, bytes_max: u64) -> Self {
        Self { bytes_max, ..self }
    }

    /// These `layers` of them.
    #[must_use]
    pub fn only(mut self, layers: &[Layer]) -> Self {
        self.layers.retain(|(layer, _)| layers.contains(layer));
        self
    }

    /// What the profiles of a layer may take; `None` where nothing limits them.
    pub fn bytes_max(&self, layer: Layer) -> Option<u64> {
        (layer != Layer::Vendor).then_some(self.bytes_max)
    }

    /// The user.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// Directories of the layers, in the order in which they are read.
    pub fn directories(&self) -> impl Iterator<Item = (Layer, &Path)> {
        self.layers.iter().map(|(layer, directory)| (*layer, directory.as_path()))
    }

    /// The directory that a layer is written to.
    ///
    /// # Errors
    /// [`StoreError::Nowhere`] where there is none.
    pub fn directory(&self, layer: Layer) -> Result<&Path, StoreError> {
        self.directories().find(|one| one.0 == layer).map(|one| one.1).ok_or(StoreError::Nowhere)
    }

    /// Where the profile of `key` is, or would be.
    pub fn path_of(&self, key: &ProgramKey, layer: Layer) -> Result<PathBuf, StoreError> {
        Ok(self.directory(layer)?.join(key.file_name()))
    }

    /// The profile of `key` in the first layer that has one, checked but not decoded. A user's own is marked as used.
    /// Layers of others that cannot be followed are passed over: [`crate::sidecar::Sidecars::of`] says which.
    ///
    /// # Errors
    /// Why the user's own is not followed.
    pub fn read(&self, key: &ProgramKey) -> Result<Option<Stored>, StoreError> {
        for (layer, directory) in self.directories() {
            let stored = match trust::open_directory(directory, self.uid) {
                Ok(Some(opened)) => self.read_file(opened.as_fd(), layer, &directory.join(key.file_name())),
                Ok(None) => Ok(None),
                Err(refused) => Err(refused.into()),
            };
            match stored {
                Ok(None) => {}
                Err(_) if layer != Layer::User => {}
                stored => return stored,
            }
        }
        Ok(None)
    }

    /// The same for [`Stored::first_glance`] alone: the beginning of the profile, as far as it is in memory ([`crate::at_hand`]), and not checked.
    ///
    /// # Errors
    /// Where [`Self::read`] is to be asked: what there is is not followed, or not in memory. ESTALE where all that is wanted is a mark that it was used.
    pub fn read_at_hand(&self, key: &ProgramKey) -> Result<Option<Stored>, Errno> {
        for (layer, directory) in self.directories() {
            let name = key.file_name();
            let opened = match at_hand(directory) {
                Err(error) if is_absent(error) => continue,
                opened => opened?,
            };
            if !(opened.is_directory() && opened.is_trusted(self.uid)) {
                return Err(Errno::ACCESS);
            }
            let file = match opened.file(name.as_ref()) {
                Err(error) if is_absent(error) => continue,
                file => file?,
            };
            if !file.is_trusted(self.uid) {
                return Err(Errno::ACCESS);
            }
            let (modified, size_bytes) = (file.modified(), file.size_bytes());
            let bytes = file.read_beginning(file::SAMPLE_BYTES as u64)?;
            // What comes behind is for those to check who decode it.
            if !file::encoded_bytes(&bytes).is_ok_and(|total| total == size_bytes) {
                return Err(Errno::INVAL);
            }
            let mut age = None;
            if layer == Layer::User {
                let now = clock::now();
                // Marked as used by who may wait, unless nobody can, as on a read-only store: each start would be left to that one.
                if !is_marked_as_used(modified, now) && may_be_marked(&directory.join(&name)) {
                    return Err(Errno::STALE);
                }
                age = now.duration_since(modified).ok();
            }
            return Ok(Some(Stored { path: directory.join(name), layer, bytes, age }));
        }
        Ok(None)
    }

    /// The profile of `key` in the first layer that has one.
    ///
    /// # Errors
    /// Why that one is not followed.
    pub fn find(&self, key: &ProgramKey) -> Result<Option<FoundProfile>, StoreError> {
        let Some(stored) = self.read(key)? else { return Ok(None) };
        let (profile, _) = stored.decode()?;
        Ok(key.is_of(&profile).then_some(FoundProfile { profile, layer: stored.layer }))
    }

    fn read_file(
        &self,
        directory: BorrowedFd<'_>,
        layer: Layer,
        path: &Path,
    ) -> Result<Option<Stored>, StoreError> {
        let Some(bytes) = self.bytes_of(directory, path)? else { return Ok(None) };
        let stored = checked(path, layer, bytes)?;
        let name = Path::new(path.file_name().unwrap_or_default());
        let used = if layer == Layer::User { mark_as_used(directory, name) } else { None };
        let age = used.and_then(|used| used.elapsed().ok());
        Ok(Some(Stored { age, ..stored }))
    }

    /// What the file at `path` in `directory` holds, whatever that is.
    fn bytes_of(&self, directory: BorrowedFd<'_>, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
        let name = Path::new(path.file_name().unwrap_or_default());
        let limit = PAYLOAD_BYTES_MAX + HEADER_BYTES as u64;
        let bytes = trust::read_below(directory, name, limit, self.uid);
        Ok(bytes.map_err(|refused| refused.at(path))?)
    }

    /// Reads the profile of `key` in `layer`, lets `change` alter it (`None`: there is none, or it cannot be read) and
    /// writes what it returns. Where that is what is there, only the file's time is set to now, as if it were written. Where somebody else has
    /// written it meanwhile, `change` alters what that one wrote, from the beginning. Into layers that all read goes only what is [`public`].
    /// Returns the profiles that were removed to make room.
    ///
    /// # Errors
    /// When the layer cannot be read or written, others keep writing it ([`StoreError::Busy`]), or the profile takes more than all of the layer
    /// may. Nothing is written or removed then.
    pub fn update(
        &self,
        key: &ProgramKey,
        layer: Layer,
        change: impl FnMut(Option<Profile>) -> Option<Profile>,
    ) -> Result<Vec<PathBuf>, StoreError> {
        self.update_by(write_at, key, layer, change)
    }

    /// The same without waiting for the disk: for what is soon written again. Whoever stops the machine meanwhile may leave a profile that cannot
    /// be read, and is learned anew.
    ///
    /// # Errors
    /// As [`Self::update`].
    pub fn update_unsynced(
        &self,
        key: &ProgramKey,
        layer: Layer,
        change: impl FnMut(Option<Profile>) -> Option<Profile>,
    ) -> Result<Vec<PathBuf>, StoreError> {
        self.update_by(write_unsynced_at, key, layer, change)
    }

    fn update_by(
        &self,
        write: Write,
        key: &ProgramKey,
        layer: Layer,
        mut change: impl FnMut(Option<Profile>) -> Option<Profile>,
    ) -> Result<Vec<PathBuf>, StoreError> {
        let directory = self.create(layer)?;
        let (path, name) = (self.path_of(key, layer)?, key.file_name());
        let mut begins_again_until = None;
        loop {
            let found = self.bytes_of(directory.as_fd(), &path)?;
            let decoded = |bytes: &Vec<u8>| Ok(checked(&path, layer, bytes.clone())?.decode()?.0);
            let before = match found.as_ref().map(decoded).transpose() {
                // A damaged or foreign file is of no use to anybody, and the run that learns now is: replaced. One that could
                // not be read this time, or that a newer prepage wrote, stays.
                Err(StoreError::Unreadable { .. }) => None,
                before => before?,
            };
            let before = before.filter(|profile| key.is_of(profile));
            let Some(after) = change(before.clone()) else { return Ok(Vec::new()) };
            let after = self.for_readers(key, layer, before.as_ref(), after)?;
            let bytes = file::encode(&after);
            // Compared as bytes: a profile that was written before a field was known, as the sample, gets it where nothing else is new.
            if Some(&bytes) == found.as_ref() {
                // A start that showed nothing new is one that was written all the same: the next is as far away as behind any other, and it is used.
                mark(directory.as_fd(), name.as_ref());
                return Ok(Vec::new());
            }
            let bytes_max = self.bytes_max(layer).unwrap_or(u64::MAX);
            if bytes.len() as u64 > bytes_max {
                return Err(StoreError::Capped { bytes_max });
            }
            // Take the lock only now: `change` and `public` may wait for file systems that do not answer, and all writers of the layer wait for the
            // lock. Of two who write the same profile, one has to begin again.
            let lock = self.lock(directory.as_fd(), layer)?;
            if self.bytes_of(directory.as_fd(), &path)? != found {
                // From the first round that was lost on: one that takes long is no reason to give up.
                let now = Instant::now();
                if now >= *begins_again_until.get_or_insert(now + LOCK_WAIT) {
                    return Err(StoreError::Busy { path: self.directory(layer)?.to_owned() });
                }
                continue;
            }
            let mode = if layer == Layer::User { 0o600 } else { 0o644 };
            let io = |source| StoreError::Io { path: path.clone(), source };
            write(directory.as_fd(), Path::new(&name), mode, &bytes).map_err(io)?;
            drop(lock);
            if !is_room_in_question(found.map_or(0, |found| found.len() as u64), bytes.len() as u64) {
                return Ok(Vec::new());
            }
            let lock = || self.lock(directory.as_fd(), layer).ok();
            return Ok(make_room(self.directory(layer)?, directory.as_fd(), &name, bytes_max, lock));
        }
    }

    /// `after` without what readers of `layer` must not see. `before`: the stored profile.
    fn for_readers(
        &self,
        key: &ProgramKey,
        layer: Layer,
        before: Option<&Profile>,
        mut after: Profile,
    ) -> Result<Profile, StoreError> {
        if after.sources.is_empty() {
            let known = before.map_or(&[][..], |before| &before.sources);
            after.sources.push(source(self.directory(layer)?, key, known));
        }
        let for_readers = match layer {
            Layer::User => Ok(after),
            Layer::Machine => public(after),
            Layer::Vendor => for_elsewhere(after),
        };
        for_readers.map_err(|why| StoreError::Private { role: key.role.clone(), why })
    }

    /// Marks the profile of `key` in `layer` as used where it is there, once a day: [`Self::read`] does so of a user's own alone, and whoever has
    /// read all of a layer goes on using what is in memory. Where it cannot be marked, as on a read-only store, nothing is removed either.
    pub fn mark_as_used(&self, key: &ProgramKey, layer: Layer) {
        let opened =
            self.directory(layer).ok().and_then(|path| trust::open_directory(path, self.uid).ok()?);
        opened.map(|directory| mark_as_used(directory.as_fd(), Path::new(&key.file_name())));
    }

    /// Replaces the file `name` of the user's own layer, which is no profile.
    ///
    /// # Errors
    /// When the layer cannot be written. What was there stays.
    pub fn put(&self, name: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let directory = self.create(Layer::User)?;
        let _lock = self.lock(directory.as_fd(), Layer::User)?;
        let path = self.directory(Layer::User)?.join(name);
        let io = |source| StoreError::Io { path, source };
        write_at(directory.as_fd(), name, 0o600, bytes).map_err(io)
    }

    /// What [`Self::put`] wrote, at most `limit_bytes`; `None` where it is not there.
    ///
    /// # Errors
    /// Why it is not followed.
    pub fn get(&self, name: &Path, limit_bytes: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(directory) = trust::open_directory(self.directory(Layer::User)?, self.uid)? else {
            return Ok(None);
        };
        Ok(trust::read_below(directory.as_fd(), name, limit_bytes, self.uid)?)
    }

    fn lock(&self, directory: BorrowedFd<'_>, layer: Layer) -> Result<OwnedFd, StoreError> {
        let until = Instant::now() + LOCK_WAIT;
        loop {
            if let Some(lock) = self.try_lock(directory, layer)? {
                return Ok(lock);
            }
            if Instant::now() >= until {
                return Err(StoreError::Busy { path: self.directory(layer)?.to_owned() });
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// `None` where another has it.
    fn try_lock(&self, directory: BorrowedFd<'_>, layer: Layer) -> Result<Option<OwnedFd>, StoreError> {
        let path = self.directory(layer)?;
        let flags = OFlags::RDWR
            | OFlags::CREATE
            | OFlags::NOFOLLOW
            | OFlags::NONBLOCK
            | OFlags::NOCTTY
            | OFlags::CLOEXEC;
        let io = |error: Errno| StoreError::Io { path: path.join("lock"), source: error.into() };
        let lock = rustix::fs::openat(directory, "lock", flags, Mode::from_raw_mode(0o600)).map_err(io)?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(lock)),
            Err(Errno::WOULDBLOCK | Errno::INTR) => Ok(None),
            Err(error) => Err(io(error)),
        }
    }

    /// The profile in the file at `path` of a layer; `None` where there is none.
    ///
    /// # Errors
    /// Why it is not followed.
    pub fn at_path(&self, layer: Layer, path: &Path) -> Result<Option<Profile>, StoreError> {
        let is_its = |one: &(Layer, &Path)| one.0 == layer && path.parent() == Some(one.1);
        let Some((_, directory)) = self.directories().find(is_its) else { return Ok(None) };
        let Some(opened) = trust::open_directory(directory, self.uid)? else { return Ok(None) };
        let stored = self.read_file(opened.as_fd(), Layer::Vendor, path)?;
        stored.map(|stored| Ok(stored.decode()?.0)).transpose()
    }

    /// Every profile of a layer, sorted by name.
    ///
    /// # Errors
    /// When one of its directories cannot be followed.
    pub fn list(&self, layer: Layer) -> Result<Vec<Listed>, StoreError> {
        let mut listed = Vec::new();
        self.each(layer, ReadMax::ALL, &mut |one| {
            listed.push(one);
            true
        })?;
        listed.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(listed)
    }

    /// Hands the files of a layer to `see`, and whose profile each is; `None` where it does not begin like one. Of each only the beginning is
    /// read: that of thousands takes no time that anybody notices.
    ///
    /// # Errors
    /// As [`Self::each`].
    pub fn keys(
        &self,
        layer: Layer,
        mut see: impl FnMut(PathBuf, Option<ProgramKey>),
    ) -> Result<(), StoreError> {
        let in_directory = |directory: &Path, opened: BorrowedFd<'_>| {
            for StoreFile { path, .. } in files_of(directory, FILES_MAX) {
                let name = Path::new(path.file_name().unwrap_or_default());
                let key = trust::open_below(opened, name, self.uid).ok().flatten().and_then(|file| {
                    let mut bytes = vec![0; file::WHOSE_BYTES];
                    let count = Bytes::read_at(&file, 0, &mut bytes).ok()?;
                    let (program, role) = file::whose(&bytes[..count]).ok()?;
                    Some(ProgramKey { program: program.into(), role: role.into() })
                });
                see(path, key);
            }
            true
        };
        self.in_directories(layer, in_directory).map(drop)
    }

    /// Hands each directory of a layer to `see`, until that returns false: one that cannot be followed hides none behind it. Returns whether it has
    /// seen all.
    ///
    /// # Errors
    /// Why the first of those that cannot be followed is not, once the others are seen.
    fn in_directories(
        &self,
        layer: Layer,
        mut see: impl FnMut(&Path, BorrowedFd<'_>) -> bool,
    ) -> Result<bool, StoreError> {
        let mut all = Ok(true);
        for (_, directory) in self.directories().filter(|one| one.0 == layer) {
            match trust::open_directory(directory, self.uid) {
                Ok(Some(opened)) if !see(directory, opened.as_fd()) => return Ok(false),
                Ok(_) => {}
                Err(refused) => all = all.and(Err(refused.into())),
            }
        }
        all
    }

    /// Hands every profile of a layer to `see`, those used last first, one at a time, until that returns false or `max` is reached:
    /// what is damaged counts as well. Files for which there is no room left are passed over. Returns whether it has seen all.
    ///
    /// # Errors
    /// When one of its directories cannot be followed; what is in the others was handed over all the same.
    pub fn each(
        &self,
        layer: Layer,
        max: ReadMax,
        see: &mut dyn FnMut(Listed) -> bool,
    ) -> Result<bool, StoreError> {
        let (mut left_bytes, mut is_all) = (max.bytes, true);
        let in_directory = |directory: &Path, opened: BorrowedFd<'_>| {
            let files = files_of(directory, max.files);
            is_all &= files.len() < max.files;
            for StoreFile { path, bytes, .. } in files {
                if bytes > left_bytes {
                    is_all = false;
                    continue;
                }
                left_bytes -= bytes;
                let read = self.read_file(opened, Layer::Vendor, &path).transpose();
                let Some(read) = read else { continue };
                let profile = read.and_then(|stored| stored.decode_within(max.bytes));
                if !see((path, profile)) {
                    return false;
                }
            }
            true
        };
        Ok(self.in_directories(layer, in_directory)? && is_all)
    }

    /// Profiles of the same executable in other roles, at most `most`, those used last first. Only files named like that of
    /// `key` are looked at; what cannot be read is passed over.
    pub fn relatives(&self, key: &ProgramKey, most: usize) -> Vec<Profile> {
        let (own, mut profiles) = (key.file_name(), Vec::new());
        for (_, directory) in self.directories() {
            let Ok(Some(opened)) = trust::open_directory(directory, self.uid) else { continue };
            for file in files_named(directory, FILES_MAX, |name| is_named_like(name, &own)) {
                if profiles.len() == most {
                    return profiles;
                }
                let read = self.read_file(opened.as_fd(), Layer::Vendor, &file.path).ok().flatten();
                profiles.extend(
                    read.and_then(|stored| stored.decode().ok())
                        .map(|(profile, _)| profile)
                        .filter(|profile| profile.program == key.program && profile.role != key.role),
                );
            }
        }
        profiles
    }

    /// Makes the directory of a layer where it is missing, and checks that nobody else may write to it.
    ///
    /// # Errors
    /// When it cannot be made, or others could write to it.
    pub fn create(&self, layer: Layer) -> Result<OwnedFd, StoreError> {
        let directory = self.directory(layer)?;
        let io = |source| StoreError::Io { path: directory.into(), source };
        let mode = if layer == Layer::User { 0o700 } else { 0o755 };
        // Root's own lies in the machine's, which all may read.
        let parents = if layer == Layer::User && self.uid != 0 { 0o700 } else { 0o755 };
        if let Some(parent) = directory.parent() {
            trust::create_directory(parent, parents).map_err(io)?;
        }
        trust::create_directory(directory, mode).map_err(io)?;
        trust::open_directory(directory, self.uid)?.ok_or_else(|| io(io::ErrorKind::NotFound.into()))
    }

    /// Checks that a profile could be written, as far as that is seen without writing; where the last one could not ([`Self::note_refused`]), as
    /// [`Self::room_by_trial`] does. For starts, which wait for this, and will only know what to write when nobody is left to tell.
    ///
    /// # Errors
    /// Why none could.
    pub fn room(&self, layer: Layer) -> Result<(), StoreError> {
        let Some(directory) = self.place(layer)? else { return Ok(()) };
        if matches!(statat(&directory, REFUSED, AtFlags::SYMLINK_NOFOLLOW), Err(Errno::NOENT)) {
            return Ok(());
        }
        self.try_to_write(layer, directory.as_fd())?;
        let _ = unlinkat(&directory, REFUSED, AtFlags::empty());
        Ok(())
    }

    /// Checks that a profile could be written, and leaves nothing behind: a file of that size is made and removed. Where the directory is missing, the
    /// one in which it would be made is looked at.
    ///
    /// # Errors
    /// Why none could.
    pub fn room_by_trial(&self, layer: Layer) -> Result<(), StoreError> {
        match self.place(layer)? {
            Some(directory) => self.try_to_write(layer, directory.as_fd()),
            None => Ok(()),
        }
    }

    /// Notes that a profile could not be written, for [`Self::room`]: by an empty file, for which there is room where a quota is used up. Where there is
    /// none, nothing is noted.
    pub fn note_refused(&self, layer: Layer) {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let directory =
            self.directory(layer).ok().and_then(|path| trust::open_directory(path, self.uid).ok()?);
        if let Some(directory) = directory {
            let _ = rustix::fs::openat(directory, REFUSED, flags, Mode::from_raw_mode(0o600));
        }
    }

    /// The directory of a layer, where it is there, may be written to, and has space; `None` where it would have to be made.
    fn place(&self, layer: Layer) -> Result<Option<OwnedFd>, StoreError> {
        /// The profiles of most programs are smaller.
        const BYTES_MAX_LEAST: u64 = 64 << 10;
        let wanted = self.directory(layer)?;
        if self.bytes_max(layer).is_some_and(|bytes_max| bytes_max < BYTES_MAX_LEAST) {
            return Err(StoreError::Capped { bytes_max: self.bytes_max });
        }
        let directory = wanted.ancestors().find(|directory| directory.exists()).unwrap_or(wanted);
        // Whoever asks knows the directory that is wanted, not the one in which it would be made.
        let io = |error: Errno| StoreError::Io { path: wanted.into(), source: error.into() };
        if directory.exists() && !directory.is_dir() {
            return Err(io(Errno::NOTDIR));
        }
        let opened = if directory == wanted { trust::open_directory(directory, self.uid)? } else { None };
        rustix::fs::accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
            .map_err(io)?;
        let space = rustix::fs::statvfs(directory).map_err(io)?;
        if space.f_bavail.saturating_mul(space.f_frsize) < PROFILE_BYTES
            || (space.f_favail == 0 && space.f_files > 0)
        {
            return Err(io(Errno::NOSPC));
        }
        // The kernel would send a signal, too.
        if getrlimit(Resource::Fsize).current.is_some_and(|limit| limit < PROFILE_BYTES) {
            return Err(io(Errno::FBIG));
        }
        Ok(opened)
    }

    fn try_to_write(&self, layer: Layer, directory: BorrowedFd<'_>) -> Result<(), StoreError> {
        // Where another has the lock, somebody writes just now.
        let Some(_lock) = self.try_lock(directory, layer)? else { return Ok(()) };
        let path = self.directory(layer)?;
        try_to_write(directory).map_err(|source| StoreError::Io { path: path.into(), source })
    }
}

/// What stands in the file at `path` of `layer`, which holds `bytes`.
fn checked(path: &Path, layer: Layer, bytes: Vec<u8>) -> Result<Stored, StoreError> {
    match file::check(&bytes) {
        Ok(_) => Ok(Stored { path: path.into(), layer, bytes, age: None }),
        Err(ProfileFileError::Version(found)) if found > FORMAT_VERSION => {
            Err(StoreError::Newer { path: path.into(), version: found })
        }
        Err(source) => Err(StoreError::Unreadable { path: path.into(), source }),
    }
}

/// The file that says that a profile could not be written.
const REFUSED: &str = "refused";

/// More than the profile of any program measured so far takes.
const PROFILE_BYTES: u64 = 1 << 20;

/// Takes the room of a profile in `directory`, and gives it back. Quotas, for example, are the file system's own.
fn try_to_write(directory: BorrowedFd<'_>) -> io::Result<()> {
    let new = NewFile::of_only_writer(directory, Path::new("room"), 0o600)?;
    match fallocate(new.file(), FallocateFlags::empty(), 0, PROFILE_BYTES) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => new.file().write_all(&[0; 4096]),
        Err(Errno::INTR) => Ok(()),
        taken => Ok(taken?),
    }
}

/// Removes the file of a profile.
///
/// # Errors
/// As the file system says.
pub fn remove(path: &Path) -> Result<(), StoreError> {
    fs::remove_file(path).map_err(|source| StoreError::Io { path: path.into(), source })
}
