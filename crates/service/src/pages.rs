//! What is kept of each user: in memory, and in a file for each, that root alone can read.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use prepage_profiles::trust::{create_directory, open_directory, read_below};
use prepage_sys::new_file::write_at;
use prepage_sys::sync::Anyway;

use crate::counters::Counter;

/// Users of whom something is kept.
pub const USERS_MAX: usize = 32;
/// One of whom nothing was seen for so many seconds makes room for another. Sooner, whoever has many users' numbers at hand would have
/// all others forgotten.
pub const AWAY_S: u64 = 7 * 86_400;
/// What has changed of a user is written after this long.
const WRITE_EVERY: Duration = Duration::from_secs(60);
/// More than the largest file takes.
const BYTES_MAX: u64 = 1 << 20;
/// Root, whom the directory belongs to.
const ROOT: u32 = 0;

/// What is kept of one user.
pub trait Keep: Default {
    /// As its file has it.
    fn encode(&self) -> Vec<u8>;
}

/// What is kept of all users.
#[derive(Debug)]
pub struct Users<T> {
    directory: PathBuf,
    users: HashMap<u32, User<T>>,
    /// Others who have files: they were not understood, or there are too many.
    others: HashSet<u32>,
    /// Users whose files are to be removed.
    forgotten: Vec<u32>,
}

#[derive(Debug, Default)]
struct User<T> {
    kept: T,
    /// When something was last seen of the user, seconds since 1970.
    last_unix_s: u64,
    has_changed: bool,
    written: Option<Instant>,
}

impl<T: Keep> Users<T> {
    /// Those who have files in `directory`, which need not exist. `decode` says what is kept in a file, and when something was last seen of its user. One of
    /// which it makes no sense is passed over, and replaced some day.
    pub fn read(directory: PathBuf, decode: impl Fn(&Kept) -> Option<(T, u64)>) -> Self {
        let user = |file: Kept| {
            let (kept, last_unix_s) = decode(&file)?;
            Some((file.uid, User { kept, last_unix_s, ..User::default() }))
        };
        let users: HashMap<_, _> = all_in(&directory, USERS_MAX).into_iter().filter_map(user).collect();
        let others =
            uids_in(&directory).into_iter().map(|(uid, _)| uid).filter(|uid| !users.contains_key(uid));
        Self { others: others.collect(), directory, users, forgotten: Vec::new() }
    }

    /// What is kept of each.
    pub fn all(&self) -> impl Iterator<Item = (u32, &T)> {
        self.users.iter().map(|(uid, user)| (*uid, &user.kept))
    }

    /// What is kept of user `uid`.
    pub fn get(&self, uid: u32) -> Option<&T> {
        self.users.get(&uid).map(|user| &user.kept)
    }

    /// Whether something may be kept of user `uid`.
    pub fn has_room(&self, uid: u32, now_unix_s: u64) -> bool {
        self.users.len() < USERS_MAX || self.users.contains_key(&uid) || self.away(now_unix_s).is_some()
    }

    /// Who makes room for another.
    fn away(&self, now_unix_s: u64) -> Option<u32> {
        let (uid, oldest) = self.users.iter().min_by_key(|(_, user)| user.last_unix_s)?;
        (now_unix_s.abs_diff(oldest.last_unix_s) > AWAY_S).then_some(*uid)
    }

    /// What is kept of user `uid`, to be changed: something is seen of the user. `None` where there is no room.
    pub fn see(&mut self, uid: u32, now_unix_s: u64) -> Option<&mut T> {
        if self.users.len() >= USERS_MAX && !self.users.contains_key(&uid) {
            self.forget(self.away(now_unix_s)?);
        }
        self.forgotten.retain(|forgotten| *forgotten != uid);
        self.others.remove(&uid);
        let user = self.users.entry(uid).or_default();
        (user.last_unix_s, user.has_changed) = (now_unix_s, true);
        Some(&mut user.kept)
    }

    /// Has `change` change what is kept of each; it returns whether it has.
    pub fn change_all(&mut self, change: impl Fn(&mut T) -> bool) {
        self.users.values_mut().for_each(|user| user.has_changed |= change(&mut user.kept));
    }

    /// Has `change` change what is kept of user `uid`, if anything is.
    pub fn change(&mut self, uid: u32, change: impl FnOnce(&mut T)) {
        let Some(user) = self.users.get_mut(&uid) else { return };
        user.has_changed = true;
        change(&mut user.kept);
    }

    pub fn forget(&mut self, uid: u32) {
        if self.users.remove(&uid).is_some() || self.others.remove(&uid) {
            self.forgotten.push(uid);
        }
    }

    /// Whether a file of somebody is still to be removed.
    pub fn is_forgetting(&self) -> bool {
        !self.forgotten.is_empty()
    }

    /// What is to be written: all that has changed where `all` says so, else what was not written for a while.
    pub fn pages(&mut self, all: bool) -> Vec<Page> {
        let is_due =
            |user: &User<T>| all || user.written.is_none_or(|written| written.elapsed() > WRITE_EVERY);
        let due = self.users.iter_mut().filter(|(_, user)| user.has_changed && is_due(user));
        let written = due.map(|(uid, user)| {
            (user.has_changed, user.written) = (false, Some(Instant::now()));
            Page { uid: *uid, bytes: Some(user.kept.encode()) }
        });
        let removed = self.forgotten.drain(..).map(|uid| Page { uid, bytes: None });
        written.chain(removed).collect()
    }

    /// A page could not be written: it is tried again.
    pub fn not_written(&mut self, page: &Page) {
        match page.bytes {
            Some(_) => self.users.get_mut(&page.uid).into_iter().for_each(|user| user.has_changed = true),
            None => self.forgotten.push(page.uid),
        }
    }

    /// Where the files lie.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

/// Writes what has changed of the users in `state`, as [`Users::pages`] says. `writing` is held meanwhile, without `state`: whoever writes
/// last, at the end, waits for whoever is at it. What could not be written is counted.
pub fn write_changed<T: Keep>(
    writing: &Mutex<()>,
    state: &Mutex<impl AsMut<Users<T>>>,
    all: bool,
    not_written: &Counter,
) {
    let _writing = writing.lock().anyway();
    let (pages, directory) = {
        let mut state = state.lock().anyway();
        (state.as_mut().pages(all), state.as_mut().directory().to_owned())
    };
    for page in pages {
        if page.write(&directory).is_err() {
            not_written.count();
            state.lock().anyway().as_mut().not_written(&page);
        }
    }
}

/// Removes what is kept in `directory`, which need not exist: nothing of anybody is to be remembered.
pub fn remove_all(directory: &Path) {
    uids_in(directory).into_iter().for_each(|(uid, _)| _ = Page { uid, bytes: None }.write(directory));
}

/// A user's file to be written; without bytes, one to be removed.
#[derive(Debug)]
pub struct Page {
    pub uid: u32,
    /// What is to be in it.
    pub bytes: Option<Vec<u8>>,
}

/// A user's file as it was found.
#[derive(Debug)]
pub struct Kept {
    pub uid: u32,
    /// When it was written, seconds since 1970.
    pub written_unix_s: u64,
    /// What is in it.
    pub bytes: Vec<u8>,
}

impl Page {
    /// Writes it: whoever reads finds the old file or the new one, whenever the machine stops.
    ///
    /// # Errors
    /// As the file system says; the old file is there then.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        let name = self.uid.to_string();
        let Some(bytes) = &self.bytes else {
            return match std::fs::remove_file(directory.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        };
        // All users read the machine's profiles, in the directory above.
        directory.parent().map_or(Ok(()), |above| create_directory(above, 0o755))?;
        create_directory(directory, 0o700)?;
        let opened = open_directory(directory, ROOT).map_err(io::Error::other)?;
        let opened = opened.ok_or(io::ErrorKind::NotFound)?;
        write_at(opened.as_fd(), Path::new(&name), 0o600, bytes)
    }
}

/// The files in `directory`, which need not exist, of at most `users_max` users: those written last. What cannot be read, or others than root may
/// write to, is passed over.
fn all_in(directory: &Path, users_max: usize) -> Vec<Kept> {
    let Ok(Some(opened)) = open_directory(directory, ROOT) else { return Vec::new() };
    let mut users = uids_in(directory);
    users.sort_by_key(|(_, written_unix_s)| std::cmp::Reverse(*written_unix_s));
    let read = |(uid, written_unix_s): (u32, u64)| {
        let bytes = read_below(opened.as_fd(), Path::new(&uid.to_string()), BYTES_MAX, ROOT).ok()??;
        Some(Kept { uid, written_unix_s, bytes })
    };
    users.into_iter().take(users_max).filter_map(read).collect()
}

/// The users who have files in `directory`, which need not exist, and when each was written, in seconds since 1970.
pub fn uids_in(directory: &Path) -> Vec<(u32, u64)> {
    if !matches!(open_directory(directory, ROOT), Ok(Some(_))) {
        return Vec::new();
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let user = |entry: std::fs::DirEntry| {
        let uid = entry.file_name().to_str()?.parse().ok()?;
        Some((uid, entry.metadata().map_or(0, |file| file.mtime().try_into().unwrap_or(0))))
    };
    entries.filter_map(user).collect()
}
