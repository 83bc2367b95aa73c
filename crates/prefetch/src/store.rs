//! The profile store: one small file a program and role, private to its user.
//!
//! `$PREPAGE_STORE`, else `/var/lib/prepage` for root and `$XDG_STATE_HOME/prepage` (`~/.local/state/prepage`)
//! for others. The directory is made 0700 (others must not be able to write to it), files are 0600 and replaced as a whole, so a reader, a crash or a full
//! disk never sees half a profile. Two runs that learn at once take turns at a lock; the later one adds to what
//! the earlier one wrote.
//!
//! Of one name (the first word of the role) at most [`PROFILES_OF_A_NAME_MAX`] profiles are kept: each text after `-c` and
//! each script of a passing name makes a role that may never come again. Where one more is made, those that were not
//! written to for the longest time are removed.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use prepage_core::profile::Profile;
use prepage_core::profile_file::{self, FORMAT_VERSION, PAYLOAD_BYTES_MAX, ProfileFileError};
use rustix::fs::{Access, AtFlags, CWD, FlockOperation};

const SUFFIX: &str = "profile";

/// Profiles of one name that are kept: more than the roles that anybody calls a program in day by day.
pub const PROFILES_OF_A_NAME_MAX: usize = 32;

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Neither `$PREPAGE_STORE`, `$XDG_STATE_HOME` nor `$HOME` says where.
    #[error("no place for profiles: none of PREPAGE_STORE, XDG_STATE_HOME and HOME is set")]
    Nowhere,
    /// The directory or a file in it belongs to somebody else or is open to others.
    #[error("{} could have been written by others (owner {owner}, mode {mode:04o})", path.display())]
    NotPrivate {
        /// Directory or file.
        path: PathBuf,
        /// Its owner's user id.
        owner: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// A file in the store is not a profile that this version reads.
    #[error("{}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: ProfileFileError,
    },
    /// A newer prepage wrote it. It is neither used nor replaced.
    #[error("{} was written by a newer prepage (profile format {version})", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format version.
        version: u32,
    },
    /// The operating system refused.
    #[error("{}", path.display())]
    Io {
        /// What it was about.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
}

impl StoreError {
    /// What helps, as one line.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "prepage learn -- CMD, which replaces it",
            Self::Newer { .. } => "prepage profile rm, or the newer prepage",
            Self::Nowhere | Self::NotPrivate { .. } | Self::Io { .. } => {
                "set PREPAGE_STORE to a directory of your own (mode 0700) on a disk with room"
            }
        }
    }
}

/// A file of the store: the profile in it, or what is wrong with it.
pub type Listed = (PathBuf, Result<Profile, StoreError>);

/// Which profile: the executable and the role it plays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileKey {
    /// Absolute path of the executable, free of symbolic links.
    pub program: String,
    /// See [`prepage_core::role`].
    pub role: String,
}

impl ProfileKey {
    /// The file's name in the store: readable first, then a checksum of program and role that tells equal
    /// names apart.
    fn file_name(&self) -> String {
        let name = self.role.split(' ').next().unwrap_or_default();
        let readable: String =
            name.chars().filter(|c| c.is_ascii_alphanumeric() || "._+-".contains(*c)).take(40).collect();
        let parts = [self.program.as_bytes(), b"\0", self.role.as_bytes()];
        let reversed = [self.role.as_bytes(), b"\0", self.program.as_bytes()];
        format!(
            "{}-{:08x}{:08x}.{SUFFIX}",
            readable.trim_start_matches('.'),
            profile_file::checksum(&parts),
            profile_file::checksum(&reversed)
        )
    }
}

/// A directory of profiles.
#[derive(Clone, Debug)]
pub struct Store {
    directory: PathBuf,
}

impl Store {
    /// The store of the user this process runs as. Nothing is created yet.
    pub fn of_user() -> Result<Self, StoreError> {
        // Made absolute now: what learns beside a program works in another directory.
        let variable = |name| {
            let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
            std::path::absolute(value).ok()
        };
        let directory = if let Some(directory) = variable("PREPAGE_STORE") {
            directory
        } else if rustix::process::geteuid().is_root() {
            PathBuf::from("/var/lib/prepage")
        } else if let Some(state) = variable("XDG_STATE_HOME") {
            state.join("prepage")
        } else {
            variable("HOME").ok_or(StoreError::Nowhere)?.join(".local/state/prepage")
        };
        Ok(Self::at(directory))
    }

    /// The store in `directory`.
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the profile of `key` is, or would be.
    pub fn path_of(&self, key: &ProfileKey) -> PathBuf {
        self.directory.join(key.file_name())
    }

    /// The profile of `key`, or `None` where there is none.
    pub fn load(&self, key: &ProfileKey) -> Result<Option<Profile>, StoreError> {
        let Some(profile) = self.load_file(&self.path_of(key))? else { return Ok(None) };
        Ok(is_of(&profile, key).then_some(profile))
    }

    /// The profile in the file `path`, or `None` where there is no such file.
    pub fn load_file(&self, path: &Path) -> Result<Option<Profile>, StoreError> {
        self.read_file(path)?.map(|bytes| decode(path, &bytes)).transpose()
    }

    /// The file of the profile of `key`, checked but not decoded: what a start can afford to wait for.
    pub fn read(&self, key: &ProfileKey) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_file(&self.path_of(key))
    }

    /// Decodes what [`Self::read`] gave.
    pub fn decode(&self, key: &ProfileKey, bytes: &[u8]) -> Result<Option<Profile>, StoreError> {
        decode(&self.path_of(key), bytes).map(|profile| Some(profile).filter(|profile| is_of(profile, key)))
    }

    fn read_file(&self, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
        let io = |source| StoreError::Io { path: path.into(), source };
        let mut file = match File::options().read(true).custom_flags(O_NOFOLLOW_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io(error)),
        };
        let metadata = file.metadata().map_err(io)?;
        // What is followed must have been written by this user: a profile steers reads made in their name.
        check_private(path, &metadata)?;
        // One read of the whole: in pieces, each would wait for the disk by itself.
        let mut bytes = vec![0; metadata.len().min(PAYLOAD_BYTES_MAX + 4096) as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            match file.read(&mut bytes[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(io(error)),
            }
        }
        bytes.truncate(filled);
        match profile_file::check(&bytes) {
            Ok(_) => Ok(Some(bytes)),
            Err(source) => Err(unreadable(path, source)),
        }
    }

    /// Reads the profile of `key`, lets `change` alter it (`None`: there is none, or it cannot be read) and
    /// writes what it returns, unless that is what is there. Others that do the same wait.
    pub fn update(
        &self,
        key: &ProfileKey,
        change: impl FnOnce(Option<Profile>) -> Option<Profile>,
    ) -> Result<(), StoreError> {
        self.create()?;
        let lock_path = self.directory.join("lock");
        let io = |source| StoreError::Io { path: lock_path.clone(), source };
        let lock = File::options().create(true).write(true).truncate(false).mode(0o600).open(&lock_path);
        let lock = lock.map_err(io)?;
        rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(|error| io(error.into()))?;
        let before = match self.load(key) {
            // A damaged or foreign file is of no use to anybody, and the run that learns now is: replaced. One that could
            // not be read this time, or that a newer prepage wrote, stays.
            Err(StoreError::Unreadable { .. }) => None,
            before => before?,
        };
        let unchanged = before.clone();
        match change(before) {
            Some(after) if Some(&after) != unchanged.as_ref() => {
                let path = self.path_of(key);
                let is_one_more = !path.exists();
                self.write(&path, &profile_file::encode(&after))?;
                if is_one_more {
                    self.make_room_for(&path);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Removes what is too much of the name of `written`, and what was made of it: see [`PROFILES_OF_A_NAME_MAX`].
    fn make_room_for(&self, written: &Path) {
        let alike =
            self.named_alike(written).into_iter().map(|(_, path)| path).filter(|path| path != written);
        for path in alike.skip(PROFILES_OF_A_NAME_MAX - 1) {
            // What cannot be removed is one too many, and tried again with the next.
            let _ = fs::remove_file(path.with_extension("pages"));
            let _ = fs::remove_file(path);
        }
    }

    /// Profiles whose files are named like `path` but for the checksum, and when they were written to, the last first.
    fn named_alike(&self, path: &Path) -> Vec<(SystemTime, PathBuf)> {
        fn name(path: &Path) -> Option<&str> {
            let is_profile = path.extension().is_some_and(|end| end == SUFFIX);
            let (name, _checksum) = path.file_name()?.to_str()?.rsplit_once('-')?;
            is_profile.then_some(name)
        }
        let Some(wanted) = name(path) else { return Vec::new() };
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let mut paths: Vec<(SystemTime, PathBuf)> = entries
            .filter(|entry| name(&entry.path()) == Some(wanted))
            .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
            .collect();
        paths.sort_unstable_by(|a, b| b.cmp(a));
        paths
    }

    /// Whether the profile of `key` was written less than `interval` ago. A file from the future is of a clock that was
    /// set back, and says nothing.
    pub fn was_just_written(&self, key: &ProfileKey, interval: Duration) -> bool {
        let modified = fs::metadata(self.path_of(key)).and_then(|metadata| metadata.modified());
        modified.is_ok_and(|modified| modified.elapsed().is_ok_and(|age| age < interval))
    }

    /// Every file of the store, sorted by name.
    pub fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let io = |source| StoreError::Io { path: self.directory.clone(), source };
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io(error)),
        };
        let mut paths = Vec::new();
        for entry in entries {
            let path = entry.map_err(io)?.path();
            if path.extension().is_some_and(|extension| extension == SUFFIX) {
                paths.push(path);
            }
        }
        paths.sort();
        let load = |path: PathBuf| match self.load_file(&path).transpose()? {
            Ok(profile) => Some((path, Ok(profile))),
            Err(error) => Some((path, Err(error))),
        };
        Ok(paths.into_iter().filter_map(load).collect())
    }

    /// Profiles of the same executable in other roles, at most `most`, those written last first. Only files named like
    /// that of `key` are looked at; what cannot be read is passed over.
    pub fn relatives(&self, key: &ProfileKey, most: usize) -> Vec<Profile> {
        let paths = self.named_alike(&self.path_of(key));
        let profiles = paths.iter().filter_map(|(_, path)| self.load_file(path).ok()?);
        profiles
            .filter(|profile| profile.program == key.program && profile.role != key.role)
            .take(most)
            .collect()
    }

    /// Removes one profile.
    pub fn remove(&self, path: &Path) -> Result<(), StoreError> {
        fs::remove_file(path).map_err(|source| StoreError::Io { path: path.into(), source })
    }

    /// Makes the directory where it is missing, and checks that it is this user's alone.
    pub fn create(&self) -> Result<(), StoreError> {
        let io = |source| StoreError::Io { path: self.directory.clone(), source };
        DirBuilder::new().recursive(true).mode(0o700).create(&self.directory).map_err(io)?;
        check_private(&self.directory, &fs::metadata(&self.directory).map_err(io)?)
    }

    /// Makes the directory and checks that a profile can be written to it: for those who will only know later, when
    /// nobody is left to tell, what to write.
    pub fn create_with_room(&self) -> Result<(), StoreError> {
        self.create()?;
        self.has_room()
    }

    /// Checks that a profile could be written, and changes nothing: where the directory is missing, the one in which
    /// it would be made is looked at.
    pub fn has_room(&self) -> Result<(), StoreError> {
        /// More than the profile of any program measured so far takes.
        const PROFILE_BYTES: u64 = 1 << 20;
        let directory =
            self.directory.ancestors().find(|directory| directory.exists()).unwrap_or(&self.directory);
        let io = |source| StoreError::Io { path: directory.into(), source };
        if directory == self.directory {
            check_private(directory, &fs::metadata(directory).map_err(io)?)?;
        }
        rustix::fs::accessat(CWD, directory, Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS)
            .map_err(|error| io(error.into()))?;
        let space = rustix::fs::statvfs(directory).map_err(|error| io(error.into()))?;
        if space.f_bavail.saturating_mul(space.f_frsize) < PROFILE_BYTES {
            return Err(io(rustix::io::Errno::NOSPC.into()));
        }
        Ok(())
    }

    fn write(&self, path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
        let temporary = path.with_extension(format!("{}.new", std::process::id()));
        let io = |source| StoreError::Io { path: path.into(), source };
        let written = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| {
                file.write_all(bytes)?;
                file.sync_data()
            })
            .and_then(|()| fs::rename(&temporary, path));
        written.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            io(error)
        })
    }
}

const O_NOFOLLOW_NONBLOCK: i32 =
    (rustix::fs::OFlags::NOFOLLOW.bits() | rustix::fs::OFlags::NONBLOCK.bits()) as i32;

fn decode(path: &Path, bytes: &[u8]) -> Result<Profile, StoreError> {
    profile_file::decode(bytes).map_err(|source| unreadable(path, source))
}

fn unreadable(path: &Path, source: ProfileFileError) -> StoreError {
    match source {
        ProfileFileError::Version { found } if found > FORMAT_VERSION => {
            StoreError::Newer { path: path.into(), version: found }
        }
        source => StoreError::Unreadable { path: path.into(), source },
    }
}

/// Two keys may share their checksums: the file is another program's then.
fn is_of(profile: &Profile, key: &ProfileKey) -> bool {
    profile.program == key.program && profile.role == key.role
}

fn check_private(path: &Path, metadata: &fs::Metadata) -> Result<(), StoreError> {
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != rustix::process::geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(StoreError::NotPrivate { path: path.into(), owner, mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn key(role: &str) -> ProfileKey {
        ProfileKey { program: "/usr/bin/x".into(), role: role.into() }
    }

    fn profile(key: &ProfileKey) -> Profile {
        Profile { program: key.program.clone(), role: key.role.clone(), ..Default::default() }
    }

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::at(dir.path().join("state/prepage"));
        (dir, store)
    }

    #[test]
    fn a_profile_is_private_and_is_found_again() {
        let (_dir, store) = store();
        assert!(store.load(&key("x")).unwrap().is_none());
        assert!(store.list().unwrap().is_empty());
        store.update(&key("x"), |before| before.or_else(|| Some(profile(&key("x"))))).unwrap();
        assert_eq!(store.load(&key("x")).unwrap(), Some(profile(&key("x"))));
        assert!(store.load(&key("x -c")).unwrap().is_none());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(store.directory()), 0o700);
        assert_eq!(mode(&store.path_of(&key("x"))), 0o600);
        assert_eq!(store.list().unwrap().len(), 1);
    }

    #[test]
    fn relatives_are_other_roles_of_the_same_executable() {
        let (_dir, store) = store();
        let other = ProfileKey { program: "/opt/x".into(), role: "x -d".into() };
        for key in [key("x"), key("x -c"), key("xy -c"), other] {
            store.update(&key, |_| Some(profile(&key))).unwrap();
        }
        fs::write(store.directory().join("x-0123456789abcdef.profile"), "damaged").unwrap();
        let roles =
            |key| store.relatives(&key, 9).into_iter().map(|profile| profile.role).collect::<Vec<_>>();
        assert_eq!(roles(key("x")), ["x -c"]);
        assert_eq!(roles(key("x -q")).len(), 2);
        assert_eq!(store.relatives(&key("x -q"), 1).len(), 1);
        assert!(roles(key("y")).is_empty());
    }

    #[test]
    fn what_is_the_same_is_not_written_again() {
        let (_dir, store) = store();
        let key = key("x");
        store.update(&key, |_| Some(profile(&key))).unwrap();
        let inode = |store: &Store| fs::metadata(store.path_of(&key)).unwrap().ino();
        let first = inode(&store);
        store.update(&key, |before| before).unwrap();
        assert_eq!(inode(&store), first, "each write makes a file");
        store.update(&key, |_| Some(Profile { command: vec!["x".into()], ..profile(&key) })).unwrap();
        assert_ne!(inode(&store), first);
    }

    #[test]
    fn of_one_name_those_written_last_are_kept() {
        let (_dir, store) = store();
        let write = |key: &ProfileKey| store.update(key, |_| Some(profile(key))).unwrap();
        let age = |key: &ProfileKey, hours: u64| {
            let file = File::options().write(true).open(store.path_of(key)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(3600 * hours)).unwrap();
        };
        let roles: Vec<ProfileKey> = (0..40).map(|at| key(&format!("sh -c #{at:08x}"))).collect();
        let others = [key("bash -c #0"), key("sh-x -c")];
        others.iter().for_each(write);
        others.iter().for_each(|key| age(key, 1000));
        for (at, key) in roles.iter().enumerate() {
            write(key);
            age(key, 100 - at as u64);
        }
        let is_there = |key: &ProfileKey| store.load(key).unwrap().is_some();
        assert!(roles[8..].iter().all(is_there) && !roles[..8].iter().any(is_there));
        assert!(others.iter().all(is_there), "of another name");
        // Written to again, it is among the last; one more is never at its own cost, whatever the clock says.
        store
            .update(&roles[8], |_| Some(Profile { command: vec!["x".into()], ..profile(&roles[8]) }))
            .unwrap();
        fs::write(store.path_of(&roles[9]).with_extension("pages"), "").unwrap();
        roles[8..].iter().for_each(|key| {
            let file = File::options().write(true).open(store.path_of(key)).unwrap();
            let modified = file.metadata().unwrap().modified().unwrap();
            file.set_modified(modified + Duration::from_secs(1 << 20)).unwrap();
        });
        write(&roles[0]);
        assert!(is_there(&roles[0]) && is_there(&roles[8]) && !is_there(&roles[9]));
        assert_eq!(fs::read_dir(store.directory()).unwrap().count(), 32 + 2 + 1, "and the lock");
    }

    #[test]
    fn a_clock_that_jumps_does_not_stop_the_writing() {
        let (_dir, store) = store();
        let key = key("x");
        let minute = Duration::from_secs(60);
        assert!(!store.was_just_written(&key, minute));
        store.update(&key, |_| Some(profile(&key))).unwrap();
        assert!(store.was_just_written(&key, minute) && !store.was_just_written(&key, Duration::ZERO));
        let file = File::options().write(true).open(store.path_of(&key)).unwrap();
        for written in
            [SystemTime::now() + 100 * minute, SystemTime::now() - 2 * minute, SystemTime::UNIX_EPOCH]
        {
            file.set_modified(written).unwrap();
            assert!(!store.was_just_written(&key, minute), "{written:?}");
        }
    }

    #[test]
    fn a_damaged_profile_is_told_and_replaced_by_the_next_update() {
        let (_dir, store) = store();
        store.update(&key("x"), |_| Some(profile(&key("x")))).unwrap();
        let path = store.path_of(&key("x"));
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert!(matches!(store.load(&key("x")), Err(StoreError::Unreadable { .. })));
        assert!(store.list().unwrap()[0].1.is_err());
        store.update(&key("x"), |_| Some(profile(&key("x")))).unwrap();
        assert!(store.load(&key("x")).unwrap().is_some());
    }

    #[test]
    fn what_others_could_have_written_is_not_followed() {
        let (_dir, store) = store();
        store.update(&key("x"), |_| Some(profile(&key("x")))).unwrap();
        let path = store.path_of(&key("x"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(matches!(store.load(&key("x")), Err(StoreError::NotPrivate { .. })));
        fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(store.load(&key("x")), Err(StoreError::Io { .. })));
        fs::set_permissions(store.directory(), fs::Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(store.create(), Err(StoreError::NotPrivate { .. })));
    }

    #[test]
    fn updates_at_once_lose_nothing() {
        let (_dir, store) = store();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let count = |before: Option<Profile>| {
                        let mut after = before.unwrap_or_else(|| profile(&key("x")));
                        after.history.refining_runs += 1;
                        Some(after)
                    };
                    store.update(&key("x"), count).unwrap();
                });
            }
        });
        assert_eq!(store.load(&key("x")).unwrap().unwrap().history.refining_runs, 8);
    }
}
