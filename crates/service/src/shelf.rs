//! The profiles in memory for one user, or for all: of each key one, as far as they fit.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use prepage_core::profile::Profile;
use prepage_prefetch::config::Config;
use prepage_profiles::key::is_of_subject;
use prepage_profiles::room::SUFFIX;
use prepage_profiles::store::ReadMax;
use prepage_profiles::{Layer, ProgramKey, Stores};
use prepage_sys::rights::Rights;

use crate::known::Known;

/// The profiles for one user, or for all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf {
    pub(crate) by_key: HashMap<(String, String), Arc<Known>>,
    pub(crate) by_program: HashMap<String, Vec<Arc<Known>>>,
    pub(crate) bytes: u64,
    /// Whether there are more in the store.
    pub(crate) is_cut: bool,
    /// What the directories' versions were.
    pub(crate) version: Version,
    /// What was read of them; nothing of a user's, of whom all is read again.
    pub(crate) files: Arc<Files>,
    pub(crate) looked: Option<Instant>,
    pub(crate) config: Config,
}

/// Profiles as a store has them.
pub(crate) struct OnDisk {
    version: Version,
    profiles: Vec<Profile>,
    is_all: bool,
}

impl OnDisk {
    /// Those of `layers`, as far as `max` lets it, with the rights of the calling thread.
    pub(crate) fn read(stores: &Stores, layers: &[Layer], max: ReadMax) -> Self {
        let mut read = Self { version: version(stores, layers), profiles: Vec::new(), is_all: true };
        let mut see = |(_, profile): (PathBuf, Result<Profile, _>)| {
            read.profiles.extend(profile);
            true
        };
        // A directory that cannot be followed has no profiles.
        read.is_all = layers.iter().all(|layer| stores.each(*layer, max, &mut see).unwrap_or(true));
        read
    }
}

impl Shelf {
    /// The profiles of `layers`, of each key the first, as far as they take at most `bytes_max` in memory. Of those that were `held` is known when
    /// they were used.
    pub(crate) fn load(
        stores: &Stores,
        layers: &[Layer],
        held: &Self,
        rights: &Rights,
        bytes_max: u64,
        max: ReadMax,
    ) -> Self {
        // In this order: what is replaced meanwhile is seen by the next look.
        let version = version(stores, layers);
        let mut shelf = Self { version, files: Arc::new(files_of(stores, layers)), ..Self::default() };
        let mut see = |(_, profile): (PathBuf, Result<Profile, _>)| {
            profile.map_or(true, |profile| shelf.add(&profile, held, rights, bytes_max))
        };
        // A directory that cannot be followed has no profiles. Behind one that does not fit, none of another layer takes its place.
        let all = layers.iter().all(|layer| stores.each(*layer, max, &mut see).unwrap_or(true));
        shelf.is_cut = !all;
        shelf.looked = Some(Instant::now());
        shelf
    }

    /// The same of a user's profiles that were read with the user's rights. With these nobody can look what root knows of devices, so that what is
    /// worth fetching is found out afterwards.
    pub(crate) fn of(read: &OnDisk, held: &Self, rights: &Rights, bytes_max: u64) -> Self {
        let (version, looked) = (read.version.clone(), Some(Instant::now()));
        let mut shelf = Self { version, looked, ..Self::default() };
        let all = read.profiles.iter().all(|profile| shelf.add(profile, held, rights, bytes_max));
        shelf.is_cut = !(all && read.is_all);
        shelf
    }

    /// Adds `profile` where it is a program's, and there is none of its key yet. Returns whether there is room.
    fn add(&mut self, profile: &Profile, held: &Self, rights: &Rights, bytes_max: u64) -> bool {
        if is_of_subject(&profile.program, &profile.role) {
            return true;
        }
        let known = Known::new(profile, rights.clone());
        if self.find(&known.key).is_some() {
            return true;
        }
        let fits = self.bytes + known.bytes <= bytes_max;
        if fits {
            held.find(&known.key).iter().for_each(|before| known.continues(before));
            self.bytes += known.bytes;
            self.put(Arc::new(known));
        }
        fits
    }

    pub(crate) fn put(&mut self, known: Arc<Known>) {
        self.by_program.entry(known.key.program.clone()).or_default().push(known.clone());
        self.by_key.insert((known.key.program.clone(), known.key.role.clone()), known);
    }

    fn remove(&mut self, key: &ProgramKey) -> Option<Arc<Known>> {
        let known = self.by_key.remove(&(key.program.clone(), key.role.clone()))?;
        if let Some(of_program) = self.by_program.get_mut(&key.program) {
            of_program.retain(|other| other.key != *key);
            if of_program.is_empty() {
                self.by_program.remove(&key.program);
            }
        }
        self.bytes -= known.bytes;
        Some(known)
    }

    /// The same with `known` in place of what there was of its key. Those that were used longest ago make room, unless it does not fit
    /// by itself.
    pub(crate) fn with(&self, known: Arc<Known>, bytes_max: u64) -> Self {
        let mut shelf = self.clone();
        shelf.remove(&known.key).iter().for_each(|before| known.continues(before));
        shelf.is_cut |= shelf.bytes + known.bytes > bytes_max;
        if known.bytes > bytes_max {
            return shelf;
        }
        while shelf.bytes + known.bytes > bytes_max
            && let Some(oldest) = shelf.by_key.values().min_by_key(|known| known.used_ns()).cloned()
        {
            shelf.remove(&oldest.key);
        }
        shelf.bytes += known.bytes;
        shelf.put(known);
        shelf
    }

    /// The same with what `known` is now, which was just learned and written to the file at `path`. The next look reads it again: others may have
    /// replaced it meanwhile.
    pub(crate) fn learning(&self, known: Arc<Known>, path: PathBuf, bytes_max: u64) -> Self {
        let mut shelf = self.with(known, bytes_max);
        Arc::make_mut(&mut shelf.files).insert(path, UNREAD);
        Self { version: Version::default(), ..shelf }
    }

    /// What has changed in the directories of `layers` since they were read into this one, to be fetched with `rights`.
    pub(crate) fn look(&self, stores: &Stores, layers: &[Layer], rights: &Rights) -> Look {
        let version = version(stores, layers);
        if version == self.version {
            return Look::Same;
        }
        let files = files_of(stores, layers);
        // Another layer's may take the place of what is gone.
        if self.files.keys().any(|path| !files.contains_key(path)) {
            return Look::All;
        }
        let mut profiles = Vec::new();
        for (path, _) in files.iter().filter(|(path, changed)| self.files.get(*path) != Some(changed)) {
            // One of another layer is not read, and it is asked what there is of the first one.
            let Ok(Some(profile)) = stores.at_path(layers[0], path) else { return Look::All };
            let known = Known::new(&profile, rights.clone());
            if !is_of_subject(&profile.program, &profile.role)
                && !self.find(&known.key).is_some_and(|before| known.is_as(&before))
            {
                profiles.push(Arc::new(known));
            }
        }
        Look::Some(Changed { version, files: Arc::new(files), profiles })
    }

    /// The same with what has changed.
    pub(crate) fn with_changed(&self, changed: Changed, bytes_max: u64) -> Self {
        let Changed { version, files, profiles } = changed;
        let shelf = profiles.into_iter().fold(self.clone(), |shelf, known| shelf.with(known, bytes_max));
        Self { version, files, ..shelf }
    }

    /// The same with what was put into `now` since it was `before`: while this one was read others have learned.
    pub(crate) fn with_newer(self, before: &Self, now: &Self, bytes_max: u64) -> Self {
        let is_new =
            |known: &&Arc<Known>| !before.find(&known.key).is_some_and(|before| Arc::ptr_eq(&before, known));
        now.by_key.values().filter(is_new).fold(self, |shelf, known| {
            let name = known.key.file_name();
            let is_its = |path: &&PathBuf| path.ends_with(&name) && now.files[*path] == UNREAD;
            match now.files.keys().find(is_its) {
                Some(path) => shelf.learning(known.clone(), path.clone(), bytes_max),
                None => shelf.with(known.clone(), bytes_max),
            }
        })
    }

    pub(crate) fn find(&self, key: &ProgramKey) -> Option<Arc<Known>> {
        self.by_key.get(&(key.program.clone(), key.role.clone())).cloned()
    }
}

/// What a look at directories shows.
pub(crate) enum Look {
    /// What was read.
    Same,
    /// That some profiles are to take their places.
    Some(Changed),
    /// That all is to be read again.
    All,
}

/// What has changed in directories.
pub(crate) struct Changed {
    version: Version,
    files: Arc<Files>,
    /// Those that say something else than what was read.
    pub(crate) profiles: Vec<Arc<Known>>,
}

/// Of each profile's file the inode, and when that was changed.
pub(crate) type Files = HashMap<PathBuf, (u64, i64, i64)>;

/// Of a file that is to be read again.
const UNREAD: (u64, i64, i64) = (0, 0, 0);

fn files_of(stores: &Stores, layers: &[Layer]) -> Files {
    let directories = stores.directories().filter(|(layer, _)| layers.contains(layer));
    let entries = directories.flat_map(|(_, directory)| std::fs::read_dir(directory)).flatten().flatten();
    let file = |entry: std::fs::DirEntry| {
        let path = entry.path();
        let is_profile = path.extension().is_some_and(|end| end == SUFFIX);
        let metadata = is_profile.then(|| entry.metadata().ok().filter(std::fs::Metadata::is_file))??;
        Some((path, (metadata.ino(), metadata.ctime(), metadata.ctime_nsec())))
    };
    entries.filter_map(file).collect()
}

/// The layer of a user's own profiles.
pub(crate) const OF_USER: [Layer; 1] = [Layer::User];

/// Device, inode and time of change of each directory that is there.
pub(crate) type Version = Vec<Option<(u64, u64, i64, i64)>>;

/// What changes when a profile in a directory of `layers` is replaced.
pub(crate) fn version(stores: &Stores, layers: &[Layer]) -> Version {
    let directories = stores.directories().filter(|(layer, _)| layers.contains(layer));
    directories.map(|(_, directory)| version_of(directory)).collect()
}

pub(crate) fn version_of(directory: &Path) -> Option<(u64, u64, i64, i64)> {
    let metadata = std::fs::metadata(directory).ok()?;
    Some((metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_takes_its_place_and_that_used_longest_ago_makes_room() {
        let known = |role: &str, name_bytes: usize| {
            let lookup = prepage_core::profile::Lookup {
                path: "x".repeat(name_bytes),
                list: false,
                counts: Default::default(),
            };
            let profile = Profile {
                program: role.into(),
                role: role.into(),
                lookups: vec![lookup; 8],
                ..Profile::default()
            };
            Arc::new(Known::new(&profile, Rights::of_everybody()))
        };
        let key = |role: &str| ProgramKey { program: role.into(), role: role.into() };
        let shelf = Shelf::default().with(known("a", 10), 10_000);
        assert!(shelf.find(&key("a")).is_some() && !shelf.is_cut);
        let bytes = shelf.bytes;
        let shelf = shelf.with(known("a", 10), 10_000);
        assert_eq!(shelf.bytes, bytes);
        let shelf = shelf.with(known("b", 10), 10_000).with(known("a", 10_000), 10_000);
        assert!(shelf.is_cut && shelf.find(&key("a")).is_none() && shelf.find(&key("b")).is_some());
        assert!(shelf.by_program.keys().eq(["b"]), "a program without profiles takes no room");
        assert_eq!(shelf.bytes, bytes);
        let shelf = shelf.with(known("a", 10), 2 * bytes);
        for role in ["b", "a"] {
            let _ = shelf.find(&key(role)).unwrap().note_use();
        }
        shelf.find(&key("a")).unwrap().leave_alone(std::time::Duration::from_secs(3600));
        // It was learned again.
        let shelf = shelf.with(known("a", 10), 2 * bytes);
        assert!(shelf.find(&key("a")).unwrap().is_left_alone());
        let shelf = shelf.with(known("c", 10), 2 * bytes);
        let are_there = ["a", "b", "c"].map(|role| shelf.find(&key(role)).is_some());
        assert_eq!((are_there, shelf.bytes), ([true, false, true], 2 * bytes), "that used last stays");
    }
}
