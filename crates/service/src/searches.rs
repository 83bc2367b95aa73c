//! Where users look for programs: whoever starts an expected one goes through the directories of PATH first, and waits for the disk there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prepage_sys::rights::Rights;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::crew::{Crew, Priority};

/// Users whose directories are remembered.
const USERS_MAX: usize = 32;

/// The directories of each user. Lock order: none, there is one lock, never held over a system call.
#[derive(Debug)]
pub struct Searches {
    crew: Crew,
    users: Arc<Mutex<HashMap<u32, Search>>>,
}

#[derive(Debug)]
struct Search {
    /// Those of the user's last start.
    rights: Rights,
    directories: Vec<PathBuf>,
}

impl Default for Searches {
    fn default() -> Self {
        Self { crew: Crew::of_readers("search", 1, 1), users: Arc::default() }
    }
}

impl Searches {
    /// Somebody with `rights` looks for programs in these directories.
    pub fn note(&self, rights: &Rights, directories: &[PathBuf]) {
        let mut users = lock(&self.users);
        if users.len() < USERS_MAX || users.contains_key(&rights.uid) {
            users.insert(rights.uid, Search { rights: rights.clone(), directories: directories.to_vec() });
        }
    }

    /// Forgets user `uid`.
    pub fn forget(&self, uid: u32) {
        lock(&self.users).remove(&uid);
    }

    /// Has the program called `name` looked for as user `uid` looks for it, so that the kernel has the answers in memory. Nobody waits for
    /// that.
    pub fn look_up(&self, uid: u32, name: &str) {
        let name = name.to_owned();
        // Where a directory never answers, nobody asks there again before the user's next start.
        let Some(search) = lock(&self.users).remove(&uid) else { return };
        let users = self.users.clone();
        let look = move || {
            if let Ok(_assumed) = search.rights.assume() {
                let is_there = |directory: &PathBuf| {
                    statx(CWD, directory.join(&name), AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE).is_ok()
                };
                search.directories.iter().any(is_there);
            }
            lock(&users).entry(uid).or_insert(search);
        };
        self.crew.lend(Priority::Guess, Box::new(look));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    /// Waits until nobody looks for user `uid`, and says whether the user is remembered.
    fn is_remembered(searches: &Searches, uid: u32) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while !lock(&searches.users).contains_key(&uid) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        lock(&searches.users).contains_key(&uid)
    }

    #[test]
    fn users_are_remembered_until_they_are_forgotten_and_no_more_than_fit() {
        let own = Rights::of_process(std::process::id()).unwrap();
        let searches = Searches::default();
        searches.note(&own, &["/no/such/directory".into(), "/bin".into()]);
        for name in ["sh", "no-such-program", "", "../bin/sh"] {
            searches.look_up(own.uid, name);
            assert!(is_remembered(&searches, own.uid), "{name}");
        }
        for uid in own.uid + 1..own.uid + 100 {
            searches.note(&Rights { uid, ..own.clone() }, &[]);
        }
        assert_eq!(lock(&searches.users).len(), USERS_MAX);
        searches.forget(own.uid);
        searches.look_up(own.uid, "sh");
        assert!(!lock(&searches.users).contains_key(&own.uid));
    }
}
