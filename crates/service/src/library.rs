//! The profiles held in memory: those of the machine, and those of each user who starts programs, apart.
//!
//! What is held is what a start needs at once: which pages and names are worth fetching here. What is learned goes through the
//! store ([`prepage_prefetch::persist`]) and comes back from there.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use prepage_core::profile::Profile;
use prepage_core::profile::merge::shared;
use prepage_prefetch::config::Config;
use prepage_profiles::store::ReadMax;
use prepage_profiles::{Layer, ProgramKey, StartContextPaths, StoreError, Stores};
use prepage_sys::file_handle::FileHandle;
use prepage_sys::rights::Rights;
use prepage_sys::sync::Anyway;

use crate::askers::{Askers, Unanswered};
use crate::homes::{home, home_told_by, of_user, stores_at};
use crate::known::Known;
use crate::place::{file_of, is_of_container};
use crate::process::Process;
use crate::shelf::{Shelf, version};

/// What all profiles in memory may take, about.
const BYTES_MAX: u64 = 10 << 20;
/// What those of one user may take of it.
const OF_A_USER_BYTES_MAX: u64 = 2 << 20;
/// What is read for that: profiles that are held take about as much as their files, and some files are of no use.
const OF_A_USER_READ: ReadMax = ReadMax { files: 4096, bytes: 4 * OF_A_USER_BYTES_MAX };
/// Users whose profiles are in memory at once.
const USERS_MAX: usize = 4;
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
const OF_USER: [Layer; 1] = [Layer::User];
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

    /// Forgets a user's profiles where there are others of as many users as may be beside user `uid`: first of those who have none, as users
    /// that only run a service.
    fn make_room(&mut self, uid: u32) {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&uid) {
            let oldest = self
                .users
                .iter()
                .min_by_key(|(_, shelf)| (!shelf.by_key.is_empty(), shelf.looked))
                .map(|(uid, _)| *uid);
            oldest.map(|uid| self.users.remove(&uid));
        }
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
        let state = Mutex::new(State { machine_stores, machine, containers, users, handles });
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
        let mut shelf = Shelf::load(&stores, &OF_ALL, &everybody, BYTES_MAX, ReadMax::ALL);
        shelf.config = config;
        let containers = {
            let mut state = self.lock();
            (state.machine, state.machine_stores) = (Arc::new(shelf), stores);
            state.container_stores()
        };
        if let Some(stores) = containers {
            let shelf = Shelf::load(&stores, &OF_USER, &everybody, OF_CONTAINERS_BYTES_MAX, OF_A_USER_READ);
            // Of these programs the key says which file each is in.
            for program in shelf.by_program.keys() {
                file_of(program).into_iter().for_each(|file| self.note(file, program));
            }
            self.lock().containers = Arc::new(shelf);
        }
    }

    /// Reads the machine's profiles again where they have changed. Returns whether they had.
    pub fn refresh(&self) -> bool {
        let (stores, containers, before) = {
            let state = self.lock();
            let versions = [&state.machine, &state.containers].map(|shelf| shelf.version.clone());
            (state.machine_stores.clone(), state.container_stores(), versions)
        };
        let of_containers = containers.map_or(before[1].clone(), |containers| version(&containers, &OF_USER));
        let has_changed = [version(&stores, &OF_ALL), of_containers] != before;
        if has_changed {
            self.reload();
        }
        has_changed
    }

    /// Has `write` change the machine's profile of `key` in the store, and reads that one again.
    pub fn update<E>(&self, key: &ProgramKey, write: impl FnOnce(&Stores) -> Result<(), E>) -> Result<(), E> {
        let stores = self.machine_stores();
        let before = version(&stores, &OF_ALL);
        write(&stores)?;
        let path = stores.path_of(key, Layer::Machine);
        let Ok(Some(profile)) = path.and_then(|path| stores.at_path(Layer::Machine, &path)) else {
            return Ok(());
        };
        let known = Arc::new(Known::new(&profile, Rights::of_everybody()));
        let after = version(&stores, &OF_ALL);
        let mut state = self.lock();
        state.machine = Arc::new(state.machine.with(known, BYTES_MAX).changed(&before, after));
        Ok(())
    }

    /// The same of a container's program, in the store of containers' profiles.
    pub fn update_of_containers(
        &self,
        key: &ProgramKey,
        write: impl FnOnce(&Stores) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let stores = self.lock().container_stores().ok_or(StoreError::Nowhere)?;
        let before = version(&stores, &OF_USER);
        write(&stores)?;
        let path = stores.path_of(key, Layer::User);
        let Ok(Some(profile)) = path.and_then(|path| stores.at_path(Layer::User, &path)) else {
            return Ok(());
        };
        let known = Arc::new(Known::new(&profile, Rights::of_everybody()));
        let after = version(&stores, &OF_USER);
        let mut state = self.lock();
        let shelf = state.containers.with(known, OF_CONTAINERS_BYTES_MAX).changed(&before, after);
        state.containers = Arc::new(shelf);
        Ok(())
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

    /// Whether starts are learned from.
    pub fn learns(&self) -> bool {
        let machine = self.lock().machine.clone();
        machine.config.enabled && machine.config.learn
    }

    /// Whether starts of user `uid` are learned from, as far as the user's configuration has been read.
    pub fn learns_of(&self, uid: u32) -> bool {
        self.lock().users.get(&uid).is_none_or(|own| own.config.learn)
    }

    /// Whether it is measured in starts of user `uid` what fetching gains, as far as the user's configuration has been read.
    pub fn measures(&self, uid: u32) -> bool {
        let state = self.lock();
        let wants = |config: &Config| config.enabled && config.learn && config.hold_outs;
        wants(&state.machine.config) && state.users.get(&uid).is_none_or(|own| wants(&own.config))
    }

    /// Has `write` change the own profiles of the user for whom `process` runs, with the rights of the user and no others.
    ///
    /// # Errors
    /// As `write`; Nowhere where the user has no place for them.
    pub fn update_of_user(
        &self,
        process: &Process,
        write: impl FnOnce(&Stores) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let rights = &process.rights;
        let (stores, home) = self.stores_for(process).ok().flatten().ok_or(StoreError::Nowhere)?;
        let _asking = Askers::of_machine().ask(&home).map_err(|_| StoreError::Nowhere)?;
        let config = self.lock().machine.config.clone();
        let assumed = rights.assume().map_err(|_| StoreError::Nowhere)?;
        let stores = stores.keeping(of_user(config, &home).store_bytes_max);
        let before = version(&stores, &OF_USER);
        write(&stores)?;
        let path = stores.path_of(&process.context.key, Layer::User);
        let written = path.and_then(|path| stores.at_path(Layer::User, &path));
        let after = version(&stores, &OF_USER);
        let known = written.ok().flatten().map(|profile| Known::new(&profile, rights.clone()));
        drop(assumed);
        // That one alone is new: others need not be read again.
        let mut state = self.lock();
        if let Some(shelf) = state.users.get(&rights.uid) {
            let shelf = match known {
                Some(known) => shelf.with(Arc::new(known), OF_A_USER_BYTES_MAX).changed(&before, after),
                None => Shelf { looked: None, ..(**shelf).clone() },
            };
            state.users.insert(rights.uid, Arc::new(shelf));
        }
        Ok(())
    }

    /// Where the own profiles of the user for whom `process` runs lie, and the user's home. Of a user who is not in /etc/passwd the process
    /// says where that is: whoever is asked else may be a server that does not answer.
    ///
    /// # Errors
    /// Where the file system of the home that the process names does not answer.
    fn stores_for(&self, process: &Process) -> Result<Option<(Stores, PathBuf)>, Unanswered> {
        let uid = process.rights.uid;
        let home = match home(uid) {
            Some((home, _)) => Some(home),
            None => home_told_by(process)?,
        };
        Ok(home.and_then(|home| stores_at(uid, self.layers.clone(), home)))
    }

    /// What the own profiles and configuration of the user for whom `process` runs say for a start; `None` where there is nothing. Everything of
    /// the user's is looked up and read with the rights of the process.
    ///
    /// # Errors
    /// Where the file system of the user's home does not answer.
    fn of_user(&self, process: &Process) -> Result<Option<Arc<Shelf>>, Unanswered> {
        let rights = &process.rights;
        let held = self.lock().users.get(&rights.uid).cloned();
        if let Some(shelf) = &held
            && shelf.looked.is_some_and(|looked| looked.elapsed() < USER_AGE_MAX)
        {
            return Ok(held);
        }
        let Some((stores, home)) = self.stores_for(process)? else { return Ok(None) };
        let shelf = {
            let _asking = Askers::of_machine().ask(&home)?;
            let Ok(_assumed) = rights.assume() else { return Ok(None) };
            let is_same = held.as_ref().is_some_and(|held| held.version == version(&stores, &OF_USER));
            let mut shelf = match held {
                Some(held) if is_same => Shelf { looked: Some(Instant::now()), ..(*held).clone() },
                _ => Shelf::load(&stores, &OF_USER, rights, OF_A_USER_BYTES_MAX, OF_A_USER_READ),
            };
            shelf.config = of_user(Config::default(), &home);
            Arc::new(shelf)
        };
        let mut state = self.lock();
        state.make_room(rights.uid);
        state.users.insert(rights.uid, shelf.clone());
        Ok(Some(shelf))
    }

    /// The profile for a start: the user's own, else the machine's. `Err` where the user wants nothing done.
    ///
    /// # Errors
    /// [`Unwanted`].
    pub fn find(&self, process: &Process) -> Result<Option<Arc<Known>>, Unwanted> {
        let (pid, key) = (process.context.pid, &process.context.key);
        // A container's user is no user of this machine, whatever number the user has.
        if process.root.is_some() {
            return Ok(self.find_of_container(key).inspect(|known| known.mark_as_used()));
        }
        let name = key.role.split(' ').next().unwrap_or_default();
        // What the user wants cannot be read then.
        if let Some(own) = self.of_user(process).map_err(|Unanswered| Unwanted)? {
            let config = &own.config;
            if !config.wants(name.as_ref(), Path::new(&key.program)) || !config.wants_groups_of(pid) {
                return Err(Unwanted);
            }
            if let Some(known) = own.find(key).or_else(|| self.fetch_of_user(process, &own)) {
                known.mark_as_used();
                return Ok(Some(known));
            }
        }
        let machine = self.lock().machine.clone();
        let known = machine.find(key).or_else(|| self.fetch_of_all(key, &machine));
        Ok(known.inspect(|known| known.mark_as_used()))
    }

    /// A profile of the user's that did not fit into `own`, and is there from now on.
    fn fetch_of_user(&self, process: &Process, own: &Shelf) -> Option<Arc<Known>> {
        if !own.is_cut {
            return None;
        }
        let rights = &process.rights;
        let (stores, home) = self.stores_for(process).ok().flatten()?;
        let known = {
            let _asking = Askers::of_machine().ask(&home).ok()?;
            let _assumed = rights.assume().ok()?;
            read(&stores.only(&OF_USER), &process.context.key, rights, OF_A_USER_READ.bytes)?
        };
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
            let known = read(&stores, key, &Rights::of_everybody(), OF_A_USER_READ.bytes)?;
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
        let known = read(&stores, key, &Rights::of_everybody(), ReadMax::ALL.bytes)?;
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

    /// Notes which file a program is in.
    pub fn note(&self, file: FileHandle, program: &str) {
        let mut state = self.lock();
        if state.handles.len() >= HANDLES_MAX {
            state.handles.clear();
        }
        state.handles.insert(file, program.to_owned());
    }

    /// Whether the machine and user `uid` want launches remembered, as far as the user's configuration has been read.
    pub fn predicts(&self, uid: u32) -> bool {
        let state = self.lock();
        let machine = &state.machine.config;
        let own = state.users.get(&uid).is_none_or(|own| own.config.enabled && own.config.predict);
        own && machine.enabled && machine.predict
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

    /// All that is in memory and wanted, the machine's first; of the same layer what was used last.
    pub fn all(&self) -> Vec<Arc<Known>> {
        let state = self.lock();
        if !state.machine.config.enabled {
            return Vec::new();
        }
        let shelves = std::iter::once(&state.machine).chain(state.users.values());
        let shelves = shelves.filter(|shelf| shelf.config.enabled);
        let by_use = |shelf: &Arc<Shelf>| {
            let mut all: Vec<_> = shelf.by_key.values().cloned().collect();
            all.sort_by_key(|known| std::cmp::Reverse(known.used_ns()));
            all
        };
        shelves.flat_map(by_use).collect()
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
fn read(stores: &Stores, key: &ProgramKey, rights: &Rights, bytes_max: u64) -> Option<Arc<Known>> {
    let profile =
        stores.read(key).ok()??.decode_within(bytes_max).ok().filter(|profile| key.is_of(profile))?;
    Some(Arc::new(Known::new(&profile, rights.clone())))
}

/// The user wants nothing done for a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unwanted;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_number_of_programs_no_more_files_are_remembered_than_fit() {
        let directory = tempfile::tempdir().unwrap();
        let library = Library::open(Some(vec![directory.path().into()])).unwrap();
        for number in 0..8 * HANDLES_MAX as u32 {
            let file = FileHandle { file_system: 1, kind: 1, bytes: number.to_ne_bytes().into() };
            library.note(file.clone(), "/usr/bin/program");
            assert!(library.is_known(&file));
        }
        assert!(library.lock().handles.len() <= HANDLES_MAX);
    }

    /// A machine has more users that only run a service than may be kept.
    #[test]
    fn a_user_without_profiles_makes_room_for_others_before_those_who_have_some() {
        let directory = tempfile::tempdir().unwrap();
        let library = Library::open(Some(vec![directory.path().into()])).unwrap();
        let mut state = library.lock();
        for uid in 0..2 * USERS_MAX as u32 {
            let mut shelf = Shelf { looked: Some(Instant::now()), ..Shelf::default() };
            if uid == 0 {
                shelf.put(Arc::new(Known::new(&Profile::default(), Rights::of_everybody())));
            }
            state.make_room(uid);
            state.users.insert(uid, Arc::new(shelf));
        }
        assert!(state.users.len() == USERS_MAX && state.users.contains_key(&0), "{:?}", state.users.keys());
    }

    #[test]
    fn where_nothing_is_wanted_there_is_nothing_to_look_up() {
        let directory = tempfile::tempdir().unwrap();
        let library = Library::open(Some(vec![directory.path().into()])).unwrap();
        let all = |machine: bool, user: bool| {
            let shelf = |enabled| {
                let mut shelf = Shelf { config: Config { enabled, ..Config::default() }, ..Shelf::default() };
                shelf.put(Arc::new(Known::new(&Profile::default(), Rights::of_everybody())));
                Arc::new(shelf)
            };
            let mut state = library.lock();
            (state.machine, state.users) = (shelf(machine), HashMap::from([(7, shelf(user))]));
            drop(state);
            library.all().len()
        };
        assert_eq!([all(true, true), all(true, false), all(false, true)], [2, 1, 0]);
    }

    /// To look for it takes a thread.
    #[test]
    fn of_a_program_of_several_roles_none_is_looked_for_before_its_arguments_are_known() {
        let directory = tempfile::tempdir().unwrap();
        let library = Library::open(Some(vec![directory.path().into()])).unwrap();
        let file = FileHandle { file_system: 1, kind: 1, bytes: [1].into() };
        let with = |roles: &[&str]| {
            let mut shelf = Shelf::default();
            for role in roles {
                let profile =
                    Profile { program: "/bin/x".into(), role: (*role).into(), ..Profile::default() };
                shelf.put(Arc::new(Known::new(&profile, Rights::of_everybody())));
            }
            library.lock().machine = Arc::new(shelf);
            (library.may_have_one_role(&file), library.only_role(&file, 7).is_some())
        };
        assert_eq!(with(&["x"]), (false, false), "nobody has said what is in the file");
        library.note(file.clone(), "/bin/x");
        assert_eq!([with(&[]), with(&["x"])], [(true, false), (true, true)], "a user may have one");
        assert_eq!(with(&["x", "x -a"]), (false, false));
    }

    #[test]
    fn what_fetching_gains_is_measured_where_the_machine_and_the_user_want_it() {
        let directory = tempfile::tempdir().unwrap();
        let library = Library::open(Some(vec![directory.path().into()])).unwrap();
        let measures = |machine: &Config, user: &Config| {
            let shelf = |config: &Config| Arc::new(Shelf { config: config.clone(), ..Shelf::default() });
            let mut state = library.lock();
            (state.machine, state.users) = (shelf(machine), HashMap::from([(7, shelf(user))]));
            drop(state);
            (library.measures(7), library.measures(8))
        };
        let yes = Config::default();
        assert_eq!(measures(&yes, &yes), (true, true));
        for no in [
            Config { hold_outs: false, ..Config::default() },
            Config { learn: false, ..Config::default() },
            Config { enabled: false, ..Config::default() },
        ] {
            assert_eq!(measures(&yes, &no), (false, true));
            assert_eq!(measures(&no, &yes), (false, false));
        }
    }
}
