//! The profiles held in memory: those of the machine, and those of each user who starts programs, apart.
//!
//! What is held is what a start needs at once: which pages and names are worth fetching here. What is learned goes through the
//! store ([`prepage_prefetch::persist`]) and comes back from there.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prepage_core::profile::Profile;
use prepage_core::profile::merge::shared;
use prepage_prefetch::calibrate::cache::Cache;
use prepage_prefetch::config::Config;
use prepage_profiles::store::ReadMax;
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, StoreError, Stores};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::rights::Rights;
use prepage_sys::sync::Anyway;

use crate::askers::{Askers, Unanswered};
use crate::homes::of_user;
use crate::known::{Known, Mark};
use crate::place::{file_of, is_of_container};
use crate::process::Process;
use crate::shelf::{Look, OF_USER, OnDisk, Shelf, Version, version, version_of};
use crate::writing::{Writing, checksum, stores_of};

/// What all profiles in memory may take, about.
const BYTES_MAX: u64 = 10 << 20;
/// What those of one user may take of it.
const OF_A_USER_BYTES_MAX: u64 = 2 << 20;
/// What is read for that: profiles that are held take about as much as their files, and some files are of no use.
const OF_A_USER_READ: ReadMax = ReadMax { files: 4096, bytes: 4 * OF_A_USER_BYTES_MAX };
/// Users whose profiles are in memory at once.
const USERS_MAX: usize = 4;
/// Who has started something in this time keeps the own profiles in memory: others than these would have to be read again for each start of each user.
const IN_USE: Duration = Duration::from_secs(60);
/// How old what is known of a user may get: whether the directory has changed is asked with the user's rights, for a start.
const USER_AGE_MAX: Duration = Duration::from_secs(10);
/// What those of containers may take in memory, and which part of what the machine's may take on the disk: whoever is root in a container decides
/// how many there are.
const OF_CONTAINERS_BYTES_MAX: u64 = 2 << 20;
const OF_CONTAINERS_SHARE: u64 = 4;
/// Where those of containers lie below the machine's.
const CONTAINERS: &str = "containers";
/// Known executables: handles are small, and hostile users have many files.
const HANDLES_MAX: usize = 8192;
/// The layers that all users' starts are served from, in this order.
const OF_ALL: [Layer; 2] = [Layer::Machine, Layer::Vendor];
/// Roles of one program that a guess is made of.
const RELATIVES_MAX: usize = 8;

/// All of it. Lock order: none, there is one lock, never held over a system call.
#[derive(Debug)]
pub struct Library {
    layers: Option<Vec<PathBuf>>,
    state: Mutex<State>,
}

/// Protected by `Library::state`.
#[derive(Debug)]
struct State {
    /// Where the machine's profiles are, and what they may take, as the configuration said last.
    machine_stores: Stores,
    machine: Arc<Shelf>,
    /// Those of containers, for all of them.
    containers: Arc<Shelf>,
    users: HashMap<u32, Arc<Shelf>>,
    handles: HashMap<FileHandle, String>,
    /// What was measured of devices, which decides what is worth fetching of all of them.
    measured: Measured,
}

/// Which figures of devices root had at one time.
#[derive(Clone, Debug, Default)]
struct Measured {
    /// Of their directory, in which root's own profiles lie as well: it is listed where that has changed.
    version: Version,
    files: Vec<(OsString, i64, i64)>,
}

impl Measured {
    /// Those that root has now.
    fn now(&self) -> Self {
        let Some(cache) = Cache::of_user() else { return Self::default() };
        let version = vec![version_of(cache.directory())];
        let files = if version == self.version { self.files.clone() } else { cache.version() };
        Self { version, files }
    }
}

impl State {
    /// The profiles for all users that `program` may be among.
    fn of_all(&self, program: &str) -> &Arc<Shelf> {
        if is_of_container(program) { &self.containers } else { &self.machine }
    }

    /// Where those of containers are written: in a store of its own, whose profiles root alone may read.
    fn container_stores(&self) -> Option<Stores> {
        let directory = self.machine_stores.directory(Layer::Machine).ok()?.join(CONTAINERS);
        let bytes_max = self.machine_stores.bytes_max(Layer::Machine)?;
        Some(Stores::at(directory).keeping(bytes_max / OF_CONTAINERS_SHARE))
    }

    /// Whose profiles make room for those of another user: first of users who have none, as those that only run a service. `None` where all that
    /// there are are in use.
    fn oldest(&self) -> Option<u32> {
        let by_use = |(_, shelf): &(&u32, &Arc<Shelf>)| (!shelf.by_key.is_empty(), shelf.looked);
        let (uid, shelf) = self.users.iter().min_by_key(by_use)?;
        let is_in_use = shelf.looked.is_some_and(|looked| looked.elapsed() < IN_USE);
        (shelf.by_key.is_empty() || !is_in_use).then_some(*uid)
    }

    /// Whether the profiles of user `uid` may be in memory.
    fn has_room(&self, uid: u32) -> bool {
        self.users.len() < USERS_MAX || self.users.contains_key(&uid) || self.oldest().is_some()
    }

    /// Has others make room for them. Returns whether they may be there.
    fn make_room(&mut self, uid: u32) -> bool {
        let has_room = self.has_room(uid);
        if has_room && self.users.len() >= USERS_MAX && !self.users.contains_key(&uid) {
            self.oldest().map(|oldest| self.users.remove(&oldest));
        }
        has_room
    }
}

impl Library {
    /// The machine's profiles, in memory. `layers` are directories to use in place of the usual ones.
    ///
    /// # Errors
    /// Where there is no place for the machine's profiles.
    pub fn open(layers: Option<Vec<PathBuf>>) -> Result<Self, StoreError> {
        let paths = StartContextPaths { layers: layers.clone(), ..StartContextPaths::default() };
        let machine_stores = Stores::for_uid(0, &paths)?;
        machine_stores.directory(Layer::Machine)?;
        let (machine, containers, users, handles) = Default::default();
        let measured = Measured::default().now();
        let state = Mutex::new(State { machine_stores, machine, containers, users, handles, measured });
        let library = Self { layers, state };
        library.reload();
        Ok(library)
    }

    /// Where the machine's profiles are written.
    pub fn machine_stores(&self) -> Stores {
        self.lock().machine_stores.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().anyway()
    }

    /// Reads the machine's profiles again.
    pub fn reload(&self) {
        let (everybody, config) = (Rights::of_everybody(), Config::of_machine());
        let stores = self.machine_stores().keeping(config.store_bytes_max);
        let held = {
            let state = self.lock();
            [&state.machine, &state.containers].map(Arc::clone)
        };
        let mut shelf = Shelf::load(&stores, &OF_ALL, &held[0], &everybody, BYTES_MAX, ReadMax::ALL);
        shelf.config = config;
        let containers = {
            let mut state = self.lock();
            let shelf = shelf.with_newer(&held[0], &state.machine, BYTES_MAX);
            (state.machine, state.machine_stores) = (Arc::new(shelf), stores);
            state.container_stores()
        };
        if let Some(stores) = containers {
            let (most, read) = (OF_CONTAINERS_BYTES_MAX, OF_A_USER_READ);
            let shelf = Shelf::load(&stores, &OF_USER, &held[1], &everybody, most, read);
            // Of these programs the key says which file each is in.
            for program in shelf.by_program.keys() {
                file_of(program).into_iter().for_each(|file| self.note(file, program));
            }
            let mut state = self.lock();
            state.containers = Arc::new(shelf.with_newer(&held[1], &state.containers, most));
        }
    }

    /// Reads those of the machine's profiles again that have changed, or all where figures of devices have, which has those of users read again as well.
    /// Returns whether there is something new: not what was [learned](Self::update).
    pub fn refresh(&self) -> bool {
        let (stores, of_containers, held, measured) = {
            let state = self.lock();
            let held = [&state.machine, &state.containers].map(Arc::clone);
            (state.machine_stores.clone(), state.container_stores(), held, state.measured.clone())
        };
        let now = measured.now();
        let are_measured_anew = now.files != measured.files;
        {
            let mut state = self.lock();
            state.measured = now;
            if are_measured_anew {
                state.users.values_mut().for_each(|shelf| {
                    let (version, looked) = Default::default();
                    *shelf = Arc::new(Shelf { version, looked, ..(**shelf).clone() });
                });
            }
        }
        let everybody = Rights::of_everybody();
        let look = || {
            let of_containers =
                of_containers.map_or(Look::Same, |stores| held[1].look(&stores, &OF_USER, &everybody));
            [held[0].look(&stores, &OF_ALL, &everybody), of_containers]
        };
        let looks = if are_measured_anew { [Look::All, Look::All] } else { look() };
        if looks.iter().any(|look| matches!(look, Look::All)) {
            self.reload();
            return true;
        }
        let mut is_new = false;
        for ((look, held), is_machines) in looks.into_iter().zip(&held).zip([true, false]) {
            let Look::Some(changed) = look else { continue };
            let news = changed.profiles.clone();
            let bytes_max = if is_machines { BYTES_MAX } else { OF_CONTAINERS_BYTES_MAX };
            let shelf = held.with_changed(changed, bytes_max);
            {
                let mut state = self.lock();
                let now = if is_machines { &mut state.machine } else { &mut state.containers };
                // What was learned meanwhile is there. The next look comes soon.
                if !Arc::ptr_eq(now, held) {
                    continue;
                }
                *now = Arc::new(shelf);
            }
            is_new |= !news.is_empty();
            for program in news.iter().map(|known| &known.key.program) {
                file_of(program).into_iter().for_each(|file| self.note(file, program));
            }
        }
        is_new
    }

    /// Where what starts show is written.
    pub(crate) fn writing(&self) -> Writing {
        let state = self.lock();
        let (machine, containers) = (state.machine_stores.clone(), state.container_stores());
        Writing { machine, containers, layers: self.layers.clone(), shelf: state.machine.clone() }
    }

    /// The machine's profile of `key` was written into the store ([`Self::writing`]): reads that one again, and the next start has it at once. The next
    /// [`refresh`](Self::refresh) looks which others have changed meanwhile.
    pub fn take_written(&self, key: &ProgramKey) {
        let stores = self.machine_stores();
        let Ok(path) = stores.path_of(key, Layer::Machine) else { return };
        let Ok(Some(profile)) = stores.at_path(Layer::Machine, &path) else { return };
        let known = learned(&profile, Rights::of_everybody());
        let mut state = self.lock();
        state.machine = Arc::new(state.machine.learning(known, path, BYTES_MAX));
    }

    /// The same of a container's program, in the store of containers' profiles.
    pub fn take_written_of_container(&self, key: &ProgramKey) {
        let Some(stores) = self.lock().container_stores() else { return };
        let Ok(path) = stores.path_of(key, Layer::User) else { return };
        let Ok(Some(profile)) = stores.at_path(Layer::User, &path) else { return };
        let known = learned(&profile, Rights::of_everybody());
        let mut state = self.lock();
        state.containers = Arc::new(state.containers.learning(known, path, OF_CONTAINERS_BYTES_MAX));
    }

    /// Whether the administrator wants process `pid` served, which runs `program` as `name`.
    pub fn is_wanted_by_machine(&self, pid: u32, name: &OsStr, program: &Path) -> bool {
        let machine = self.lock().machine.clone();
        machine.config.wants(name, program) && machine.config.wants_groups_of(pid)
    }

    /// Whether user `uid` wants the same, as far as that can be said without reading the user's files. What is not known is
    /// not wanted yet.
    pub fn is_wanted_by_user(&self, uid: u32, pid: u32, name: &OsStr, program: &Path) -> bool {
        let own = self.lock().users.get(&uid).cloned();
        own.is_some_and(|own| own.config.wants(name, program) && own.config.wants_groups_of(pid))
    }

    pub fn learns(&self) -> bool {
        let machine = self.lock().machine.clone();
        machine.config.enabled && machine.config.learn
    }

    /// What is to be remembered of the starts of user `uid`, as far as the user's configuration is in memory; without a user, what the machine's
    /// administrator wants of everybody.
    pub fn wishes(&self, uid: Option<u32>) -> Wishes {
        let state = self.lock();
        let own = uid.and_then(|uid| state.users.get(&uid));
        Wishes::of(&state.machine.config, own.map(|own| &own.config))
    }

    /// The same of the user for whom `process` runs, read with the rights of the user and no others. The store had the `versions` of these
    /// [checksums](checksum) before and afterwards.
    pub(crate) fn take_written_of_user(&self, process: &Process, versions: [u64; 2]) {
        let read = |stores: Stores| {
            let now = version(&stores, &OF_USER);
            let path = stores.path_of(&process.context.key, Layer::User);
            (now, path.and_then(|path| stores.at_path(Layer::User, &path)).ok().flatten())
        };
        let Ok((now, written)) = self.as_user(process, read) else { return };
        let rights = &process.rights;
        let known = written.map(|profile| learned(&profile, rights.clone()));
        // That one alone is new, mostly: a start would wait while others are read again. What else has changed in these milliseconds is read with the
        // next change.
        let mut state = self.lock();
        if let Some(shelf) = state.users.get(&rights.uid) {
            let is_own = [checksum(&shelf.version), checksum(&now)] == versions;
            let version = if is_own { now } else { shelf.version.clone() };
            let shelf = match known {
                Some(known) => Shelf { version, ..shelf.with(known, OF_A_USER_BYTES_MAX) },
                None => Shelf { looked: None, ..(**shelf).clone() },
            };
            state.users.insert(rights.uid, Arc::new(shelf));
        }
    }

    /// Whether the own profiles of the user for whom `process` runs could be written, with the rights of the user and no others.
    ///
    /// # Errors
    /// Why not; Nowhere where the user has no place for them.
    pub fn room_of_user(&self, process: &Process) -> Result<(), StoreError> {
        self.as_user(process, |stores| stores.room_by_trial(Layer::User))?
    }

    /// What `act` makes of the own store of the user for whom `process` runs, with the rights of the user and no others.
    ///
    /// # Errors
    /// Nowhere where the user has no place for one, or it does not answer.
    fn as_user<T>(&self, process: &Process, act: impl FnOnce(Stores) -> T) -> Result<T, StoreError> {
        let (stores, home) =
            stores_of(process, self.layers.clone()).ok().flatten().ok_or(StoreError::Nowhere)?;
        let _asking = Askers::of_machine().ask(&home).map_err(|_| StoreError::Nowhere)?;
        let _assumed = process.rights.assume().map_err(|_| StoreError::Nowhere)?;
        Ok(act(stores.only(&OF_USER)))
    }

    /// What the own profiles and configuration of the user for whom `process` runs say for a start; `None` where there is nothing. Everything of
    /// the user's is looked up and read with the rights of the process.
    ///
    /// # Errors
    /// Where the file system of the user's home does not answer.
    fn of_user(&self, process: &Process) -> Result<Option<Arc<Shelf>>, Unanswered> {
        let rights = &process.rights;
        let (held, has_room) = {
            let state = self.lock();
            (state.users.get(&rights.uid).cloned(), state.has_room(rights.uid))
        };
        if let Some(shelf) = &held
            && shelf.looked.is_some_and(|looked| looked.elapsed() < USER_AGE_MAX)
        {
            return Ok(held);
        }
        let Some((stores, home)) = stores_of(process, self.layers.clone())? else { return Ok(None) };
        let (read, config) = {
            let _asking = Askers::of_machine().ask(&home)?;
            let Ok(_assumed) = rights.assume() else { return Ok(None) };
            let is_same = held.as_ref().is_some_and(|held| held.version == version(&stores, &OF_USER));
            let read = (has_room && !is_same).then(|| OnDisk::read(&stores, &OF_USER, OF_A_USER_READ));
            (read, of_user(Config::default(), &home))
        };
        let held = held.unwrap_or_default();
        let mut shelf = match read {
            Some(read) => Shelf::of(&read, &held, rights, OF_A_USER_BYTES_MAX),
            // Each profile is read when it is asked for.
            None if !has_room => Shelf { is_cut: true, ..Shelf::default() },
            None => Shelf { looked: Some(Instant::now()), ..(*held).clone() },
        };
        shelf.config = config;
        let (shelf, mut state) = (Arc::new(shelf), self.lock());
        if has_room && state.make_room(rights.uid) {
            state.users.insert(rights.uid, shelf.clone());
        }
        Ok(Some(shelf))
    }

    /// What is known for a start, and what its user wants.
    pub fn find(&self, process: &Process) -> Found {
        let (found, wishes) = if process.root.is_some() {
            // A container's user is no user of this machine, whatever number the user has.
            let known = self.find_of_container(&process.context.key);
            (Ok(known.map(|known| (known, Layer::User))), self.wishes(None))
        } else if let Ok(own) = self.of_user(process) {
            // Others may make room for other users meanwhile: what was read is asked once.
            let wishes = Wishes::of(&self.lock().machine.config, own.as_ref().map(|own| &own.config));
            (self.find_in(process, own.as_deref()), wishes)
        } else {
            // What the user wants cannot be read then.
            (Err(Unwanted), self.wishes(Some(process.rights.uid)))
        };
        let to_mark = match &found {
            Ok(Some((known, layer))) if known.note_use() == Mark::Due => Some(*layer),
            _ => None,
        };
        Found { known: found.map(|found| Some(found?.0)), to_mark, wishes }
    }

    /// Marks the file of the profile that was found for a start as used, in the layer that [`Found::to_mark`] names. It may wait for a disk: the
    /// start does not wait for that. A profile whose file cannot be marked is used all the same.
    pub fn mark_as_used(&self, process: &Process, layer: Layer) {
        let key = &process.context.key;
        if process.root.is_some() {
            let stores = self.lock().container_stores();
            stores.iter().for_each(|stores| stores.mark_as_used(key, layer));
        } else if layer == Layer::User {
            let _ = self.as_user(process, |stores| stores.mark_as_used(key, layer));
        } else {
            self.machine_stores().mark_as_used(key, layer);
        }
    }

    /// The profile for a start, and its layer: of the user's `own` ones, else the machine's.
    fn find_in(
        &self,
        process: &Process,
        own: Option<&Shelf>,
    ) -> Result<Option<(Arc<Known>, Layer)>, Unwanted> {
        let (pid, key) = (process.context.pid, &process.context.key);
        let name = key.role.split(' ').next().unwrap_or_default();
        if let Some(own) = own {
            let config = &own.config;
            if !config.wants(name.as_ref(), Path::new(&key.program)) || !config.wants_groups_of(pid) {
                return Err(Unwanted);
            }
            if let Some(known) = own.find(key).or_else(|| self.fetch_of_user(process, own)) {
                return Ok(Some((known, Layer::User)));
            }
        }
        let machine = self.lock().machine.clone();
        let known = machine.find(key).or_else(|| self.fetch_of_all(key, &machine));
        Ok(known.map(|known| (known, Layer::Machine)))
    }

    /// A profile of the user's that did not fit into `own`, and is there from now on.
    fn fetch_of_user(&self, process: &Process, own: &Shelf) -> Option<Arc<Known>> {
        if !own.is_cut {
            return None;
        }
        let (rights, key) = (&process.rights, &process.context.key);
        let profile = self.as_user(process, |stores| read(&stores, key, OF_A_USER_READ.bytes)).ok()??;
        let known = Arc::new(Known::new(&profile, rights.clone()));
        // Its file was marked as it was read.
        let _ = known.note_use();
        let mut state = self.lock();
        if let Some(shelf) = state.users.get_mut(&rights.uid) {
            *shelf = Arc::new(shelf.with(known.clone(), OF_A_USER_BYTES_MAX));
        }
        Some(known)
    }

    /// The profile of a container's program.
    fn find_of_container(&self, key: &ProgramKey) -> Option<Arc<Known>> {
        let (containers, stores) = {
            let state = self.lock();
            (state.containers.clone(), state.container_stores())
        };
        containers.find(key).or_else(|| {
            let stores = stores.filter(|_| containers.is_cut)?;
            let profile = read(&stores, key, OF_A_USER_READ.bytes)?;
            let known = Arc::new(Known::new(&profile, Rights::of_everybody()));
            let mut state = self.lock();
            state.containers = Arc::new(state.containers.with(known.clone(), OF_CONTAINERS_BYTES_MAX));
            Some(known)
        })
    }

    /// The same of one for all users that did not fit into `machine`.
    fn fetch_of_all(&self, key: &ProgramKey, machine: &Shelf) -> Option<Arc<Known>> {
        if !machine.is_cut {
            return None;
        }
        let stores = self.machine_stores().only(&OF_ALL);
        let known = Arc::new(Known::new(&read(&stores, key, ReadMax::ALL.bytes)?, Rights::of_everybody()));
        let mut state = self.lock();
        state.machine = Arc::new(state.machine.with(known.clone(), BYTES_MAX));
        Some(known)
    }

    /// Whether all users have a profile of `key`.
    pub fn is_for_all(&self, key: &ProgramKey) -> bool {
        let machine = self.lock().machine.clone();
        machine.find(key).or_else(|| self.fetch_of_all(key, &machine)).is_some()
    }

    /// Whether user `uid` has a profile of `key` beside those of all, as far as it is in memory.
    pub fn is_own(&self, key: &ProgramKey, uid: u32) -> bool {
        self.lock().users.get(&uid).is_some_and(|own| own.find(key).is_some())
    }

    /// What the roles of `program` that the machine knows have in common, of a container's program those of containers; nothing where there are
    /// none.
    pub fn guess(&self, program: &str) -> Option<Profile> {
        let shelf = self.lock().of_all(program).clone();
        let roles: Vec<Profile> = shelf
            .by_program
            .get(program)?
            .iter()
            .rev()
            .take(RELATIVES_MAX)
            .map(|known| (*known.planned).clone())
            .collect();
        let guess = shared(&roles);
        (!guess.files.is_empty()).then_some(guess)
    }

    /// The only profile that there is, for user `uid`, of the program in `file`: what a start can begin with before it is known
    /// how the program is called. A user's own is looked for among those in memory.
    pub fn only_role(&self, file: &FileHandle, uid: u32) -> Option<Arc<Known>> {
        let state = self.lock();
        let program = state.handles.get(file)?;
        fn roles_of<'a>(shelf: Option<&'a Arc<Shelf>>, program: &str) -> &'a [Arc<Known>] {
            shelf.and_then(|shelf| shelf.by_program.get(program)).map_or(&[], Vec::as_slice)
        }
        match (roles_of(state.users.get(&uid), program), roles_of(Some(state.of_all(program)), program)) {
            ([own], []) => Some(own.clone()),
            ([], [only]) => Some(only.clone()),
            ([own], [only]) if own.key == only.key => Some(own.clone()),
            _ => None,
        }
    }

    /// Whether [`Self::only_role`] may have an answer for some user.
    pub fn may_have_one_role(&self, file: &FileHandle) -> bool {
        let state = self.lock();
        let roles = |program: &String| state.of_all(program).by_program.get(program).map_or(0, Vec::len);
        state.handles.get(file).is_some_and(|program| roles(program) <= 1)
    }

    /// Whether a start of `program` by user `uid` may be wanted, whatever it is called by, as far as the user's configuration has been read.
    pub fn may_be_wanted(&self, uid: u32, program: &Path) -> bool {
        // What is excluded by a name is called by another name, too.
        let wants = |shelf: &Arc<Shelf>| shelf.config.wants(OsStr::new(""), program);
        let (machine, own) = self.shelves_of(uid);
        wants(&machine) && own.as_ref().is_none_or(wants)
    }

    /// The machine's, and the user's where it is in memory: to compare a program with what a user excludes takes a while, and the lock is not held for that.
    fn shelves_of(&self, uid: u32) -> (Arc<Shelf>, Option<Arc<Shelf>>) {
        let state = self.lock();
        (state.machine.clone(), state.users.get(&uid).cloned())
    }

    /// Whether `file` is a program of which there are profiles.
    pub fn is_known(&self, file: &FileHandle) -> bool {
        self.lock().handles.contains_key(file)
    }

    /// The program in `file`, where there are profiles of it.
    pub fn program_in(&self, file: &FileHandle) -> Option<String> {
        self.lock().handles.get(file).cloned()
    }

    /// Notes that the program of `key` is in `file`, where user `uid` or all have a profile of it by now: it is a stranger no longer.
    pub fn note_learned(&self, file: FileHandle, key: &ProgramKey, uid: u32) {
        let is_of_all = self.lock().of_all(&key.program).find(key).is_some();
        if is_of_all || self.is_own(key, uid) {
            self.note(file, &key.program);
        }
    }

    /// Notes which file a program is in.
    pub fn note(&self, file: FileHandle, program: &str) {
        let mut state = self.lock();
        if state.handles.len() >= HANDLES_MAX {
            state.handles.clear();
        }
        state.handles.insert(file, program.to_owned());
    }

    /// The profile in memory for an expected start of `key` by user `uid`; `None` where no profile is known or prediction is off.
    pub fn expected(&self, key: &ProgramKey, uid: u32) -> Option<Arc<Known>> {
        let (machine, own) = self.shelves_of(uid);
        let name = key.role.split(' ').next().unwrap_or_default();
        let is_wanted = |shelf: &Arc<Shelf>| shelf.config.wants(name.as_ref(), Path::new(&key.program));
        if !is_wanted(&machine) || !own.as_ref().is_none_or(is_wanted) {
            return None;
        }
        own.and_then(|own| own.find(key)).or_else(|| machine.find(key))
    }

    /// All that is in memory and wanted, what was used last first.
    pub fn all(&self) -> Vec<Arc<Known>> {
        let state = self.lock();
        if !state.machine.config.enabled {
            return Vec::new();
        }
        let shelves = std::iter::once(&state.machine).chain(state.users.values());
        let shelves = shelves.filter(|shelf| shelf.config.enabled);
        let mut all: Vec<_> = shelves.flat_map(|shelf| shelf.by_key.values().cloned()).collect();
        all.sort_by_key(|known| std::cmp::Reverse(known.used_ns()));
        all
    }

    /// How many profiles of the machine, of users and of containers are in memory, and about what they take.
    pub fn size(&self) -> ([usize; 3], u64) {
        let state = self.lock();
        let users = state.users.values().map(|shelf| shelf.by_key.len()).sum();
        let shelves = [&state.machine, &state.containers].into_iter().chain(state.users.values());
        let bytes = shelves.map(|shelf| shelf.bytes).sum();
        ([state.machine.by_key.len(), users, state.containers.by_key.len()], bytes)
    }
}

/// The profile of `key` in `stores`, where it takes at most `bytes_max` in memory.
fn read(stores: &Stores, key: &ProgramKey, bytes_max: u64) -> Option<Profile> {
    stores.read(key).ok()??.decode_within(bytes_max).ok().filter(|profile| key.is_of(profile))
}

/// `profile`, which was just learned in a start.
fn learned(profile: &Profile, rights: Rights) -> Arc<Known> {
    let known = Known::new(profile, rights);
    // Its file was just written.
    let _ = known.note_use();
    Arc::new(known)
}

/// What is known for a start.
#[derive(Debug)]
pub struct Found {
    /// The profile: the user's own, else the machine's; `Err` where the user wants nothing done.
    pub known: Result<Option<Arc<Known>>, Unwanted>,
    /// The layer in which its file is to be marked as used ([`Library::mark_as_used`]), behind the fetch; `None` where it need not be.
    pub to_mark: Option<Layer>,
    /// What is to be remembered of the start.
    pub wishes: Wishes,
}

/// What the machine's administrator and a user want to be remembered of the user's starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wishes {
    pub learns: bool,
    /// Whether starts may be held out, and left alone where fetching gains nothing.
    pub holds_out: bool,
    /// Whether it is measured what fetching gains.
    pub measures: bool,
    /// Whether it is remembered which ones follow which.
    pub predicts: bool,
}

impl Wishes {
    fn of(machine: &Config, own: Option<&Config>) -> Self {
        let all = |wants: fn(&Config) -> bool| wants(machine) && own.is_none_or(wants);
        Self {
            learns: all(|config| config.learn),
            holds_out: all(|config| config.hold_outs),
            measures: all(|config| config.enabled && config.learn && config.hold_outs),
            predicts: all(|config| config.enabled && config.predict),
        }
    }
}

/// The user wants nothing done for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwanted;

#[cfg(test)]
mod tests;
