//! What a program without a profile is likely to use: looked up beside its start, which waits for none of it.
//!
//! To read what is known of the executable's other roles takes a cold disk several milliseconds.

use std::mem;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, scope};

use prepage_core::profile::Profile;
use prepage_core::profile::merge::shared;
use prepage_profiles::{ProgramKey, Stores};
use prepage_sys::scheduling;
use prepage_sys::sync::Anyway;

use crate::account::Listener;
use crate::engine::{Engine, device_of};
use crate::first_start::prefetch;
use crate::memory::Budget;

/// The profiles of the same executable in other roles that a start without a profile goes by: those written last, enough to
/// show what most have in common, and soon read.
const RELATIVES_MAX: usize = 8;

/// A guess that is made by threads of its own: what the executable's other roles have in common, and until that is found, what the program and the
/// libraries it is linked to need, with the page maps that came with them. Dropped, it is not waited for.
#[derive(Clone, Debug, Default)]
struct Guess {
    roles: Arc<Mutex<Roles>>,
    /// Atomic: whether the search for libraries and page maps is to end.
    over: Arc<AtomicBool>,
}

/// What the executable's other roles have in common.
#[derive(Debug, Default)]
enum Roles {
    #[default]
    UnderWay,
    /// It is on its way into memory.
    Found(Profile, Engine),
    /// Nothing, or it was taken, or is not wanted any more.
    Over,
}

/// A guess that is being made. Dropped, it comes to nothing but for what was [taken](Self::take).
#[derive(Debug)]
pub(crate) struct Guessing(Guess);

impl Guessing {
    /// Begins to look up what the program of `key` is likely to use, with so many `threads` to spare. Page maps are told to `listener`, where nothing is
    /// known of other roles.
    pub(crate) fn begin(stores: &Stores, key: &ProgramKey, threads: u32, listener: &Listener) -> Self {
        let guess = Guess::default();
        let work = {
            let (guess, stores, key, listener) =
                (guess.clone(), stores.clone(), key.clone(), listener.clone());
            move || guess.make(&stores, &key, threads, &listener)
        };
        // A start without prefetch.
        if let Err(error) = Builder::new().spawn(work) {
            *guess.roles.lock().anyway() = Roles::Over;
            listener.say(&format!("nothing prefetched: cannot start a thread: {error}"));
        }
        Self(guess)
    }

    /// One that is never made.
    #[cfg(test)]
    pub(crate) fn under_way() -> Self {
        Self(Guess::default())
    }

    /// Whether it is not known yet what other roles have in common.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(*self.0.roles.lock().anyway(), Roles::UnderWay)
    }

    /// What other roles have in common, once, when it is known.
    pub(crate) fn take(&self) -> Option<(Profile, Engine)> {
        let mut roles = self.0.roles.lock().anyway();
        match mem::replace(&mut *roles, Roles::Over) {
            Roles::Found(profile, engine) => Some((profile, engine)),
            other => {
                *roles = other;
                None
            }
        }
    }
}

impl Drop for Guessing {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
        if let Roles::Found(_, engine) = mem::replace(&mut *self.0.roles.lock().anyway(), Roles::Over) {
            engine.cancel();
        }
    }
}

impl Guess {
    /// The loader looks for libraries by now: their search does not wait for the profiles of other roles to be read.
    fn make(&self, stores: &Stores, key: &ProgramKey, threads: u32, listener: &Listener) {
        // Whoever started this thread may give way: the program needs what other roles have in common.
        let _ = scheduling::as_others();
        scope(|scope| {
            let follow = || self.follow_roles(stores, key);
            let by_maps = || prefetch(Path::new(&key.program), stores, threads, &self.over);
            match Builder::new().spawn_scoped(scope, follow) {
                Ok(roles) => {
                    let said = by_maps();
                    if roles.join().unwrap_or_default() {
                        listener.say(&said);
                    }
                }
                // One after the other: page maps where roles tell nothing.
                Err(_) if follow() => listener.say(&by_maps()),
                Err(_) => {}
            }
        });
    }

    /// Brings in what other roles have in common, in place of anything else. Returns whether there is nothing, as long as somebody wants to know.
    fn follow_roles(&self, stores: &Stores, key: &ProgramKey) -> bool {
        let profile = shared(&stores.relatives(key, RELATIVES_MAX));
        let engine = (!profile.files.is_empty()).then(|| {
            self.over.store(true, Ordering::Relaxed);
            let mut engine = Engine::new(profile.clone(), &device_of(&profile));
            engine.keep_within(Budget::of_process());
            engine
        });
        let mut roles = self.roles.lock().anyway();
        if !matches!(*roles, Roles::UnderWay) {
            return false;
        }
        *roles = engine.clone().map_or(Roles::Over, |engine| Roles::Found(profile, engine));
        drop(roles);
        // Nobody who asks for it waits for its reads, where there are no threads for these.
        engine.iter().for_each(Engine::start);
        engine.is_none()
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::{Extent, FileIdentity, ProfiledFile};
    use prepage_core::{PAGE_SIZE, PageIndex, PageRange};
    use prepage_profiles::Layer;
    use prepage_testing::wait_until;

    use super::*;

    #[test]
    fn what_other_roles_have_in_common_takes_the_place_of_page_maps() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = |role: &str| ProgramKey { program: "/no/such/tool".into(), role: role.into() };
        let made = || {
            let guessing = Guessing::begin(&stores, &key("tool"), 1, &Listener::to(None));
            wait_until(|| !guessing.is_under_way(), "it is never made");
            let roles = guessing.take().map(|(profile, _)| profile.pages());
            assert!(guessing.take().is_none() && !guessing.is_under_way(), "once");
            (roles, guessing.0.over.load(Ordering::Relaxed))
        };
        assert_eq!(made(), (None, false));
        let pages = PageRange::new(PageIndex(0), PageIndex(3));
        let extents = vec![Extent::new(pages, 0)];
        let identity = FileIdentity { size_bytes: 3 * PAGE_SIZE, ..FileIdentity::default() };
        let path = "/no/such/data".into();
        let file = ProfiledFile { path, identity, extents, ..ProfiledFile::default() };
        let other = Profile {
            program: key("").program,
            role: "tool -x".into(),
            files: vec![file],
            ..Profile::default()
        };
        stores.update(&key("tool -x"), Layer::User, |_| Some(other.clone())).unwrap();
        assert_eq!(made(), (Some(3), true));
    }
}
