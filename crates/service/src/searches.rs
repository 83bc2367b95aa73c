//! Where users look for programs: whoever starts an expected one goes through the directories of PATH first, and waits for the disk there.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use prepage_sys::rights::Rights;
use prepage_sys::sync::Anyway;
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};

use crate::round::Round;

/// Users whose directories are remembered.
const USERS_MAX: usize = 32;

/// The directories of each user. Lock order: none, there is one lock, never held over a system call.
#[derive(Debug, Default)]
pub struct Searches {
    users: Mutex<HashMap<u32, Search>>,
}

#[derive(Clone, Debug)]
struct Search {
    /// Those of the user's last start.
    rights: Rights,
    directories: Vec<PathBuf>,
    noted: Instant,
}

impl Searches {
    /// Somebody with `rights` looks for programs in these directories. Whoever has started nothing for longest makes room.
    pub fn note(&self, rights: &Rights, directories: &[PathBuf]) {
        let mut users = self.users.lock().anyway();
        if users.len() >= USERS_MAX && !users.contains_key(&rights.uid) {
            let oldest = users.iter().min_by_key(|(_, search)| search.noted).map(|(uid, _)| *uid);
            oldest.map(|uid| users.remove(&uid));
        }
        let (rights, directories) = (rights.clone(), directories.to_vec());
        users.insert(rights.uid, Search { rights, directories, noted: Instant::now() });
    }

    pub fn forget(&self, uid: u32) {
        self.users.lock().anyway().remove(&uid);
    }

    /// Looks for the program called `name` in `round`, as user `uid` looks for it, so that the kernel has the answers in memory. Returns
    /// whether it is there.
    pub fn look_up(&self, uid: u32, name: &str, round: &Round) -> bool {
        let Some(Search { rights, directories, .. }) = self.users.lock().anyway().get(&uid).cloned() else {
            return false;
        };
        let Ok(_assumed) = rights.assume() else { return false };
        directories.iter().any(|directory| {
            let path = directory.join(name);
            let Some(_looking) = round.look_at(&path) else { return false };
            statx(CWD, &path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE).is_ok()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_remembered_until_they_are_forgotten_and_no_more_than_fit() {
        let own = Rights::of_process(std::process::id()).unwrap();
        let searches = Searches::default();
        let of_others = || {
            (own.uid + 1..own.uid + 100).for_each(|uid| searches.note(&Rights { uid, ..own.clone() }, &[]))
        };
        let is_found = |name| searches.look_up(own.uid, name, &Round::default());
        assert!(!is_found("sh"), "nobody has said where");
        of_others();
        searches.note(&own, &["/no/such/directory".into(), "/bin".into()]);
        for (name, is_there) in [("sh", true), ("no-such-program", false), ("../bin/sh", true)] {
            assert_eq!(is_found(name), is_there, "{name}");
        }
        searches.forget(own.uid);
        assert!(!is_found("sh"));
        of_others();
        assert_eq!(searches.users.lock().anyway().len(), USERS_MAX);
    }
}
