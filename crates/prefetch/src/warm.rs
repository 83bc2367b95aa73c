//! Whether a start finds all that it needs in memory, told before anything is begun for it.
//!
//! Most starts of a known program are warm, and to begin something beside them (a process, its memory, a pipe, a word to wait for) takes longer
//! than all else that prepage does for them. So the process that is to become the program asks first, and asks memory alone
//! ([`prepage_profiles::at_hand`]): is there a profile, is no observation due of what is in memory, are pages there that stand for all others
//! ([`Glance::sample`])? What memory does not answer is left to whoever serves the start beside it: nobody waits here for a
//! file system.
//!
//! A start that misses little may be taken for a warm one: docs/adr/0001-the-program-is-the-process.md says how much that is.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

use prepage_core::profile::file::{Glance, Sample};
use prepage_core::profile::start::Draw;
use prepage_profiles::at_hand::{InMemory, at_hand};
use prepage_profiles::identity::content_of;
use prepage_profiles::{StartContextPaths, Stores};
use rustix::fs::{Advice, fadvise};

use crate::config::Config;
use crate::launch::{Found, LaunchOptions, is_wanted};
use crate::resident::are_at_hand;

/// Whether the start that was `found`, of a program called `name`, is to be left alone: the configuration wants that, or the program is known, is not to be
/// observed in this start, and is in memory.
pub(crate) fn needs_nothing(found: &Found, name: &OsStr, options: &LaunchOptions) -> bool {
    let stores = || Stores::for_uid(found.context.uid, &StartContextPaths::of_environment());
    let told = || is_told(found, name, options, &Config::at_hand()?, &stores().ok()?);
    told().unwrap_or(false)
}

/// `None` where memory does not tell.
fn is_told(
    found: &Found,
    name: &OsStr,
    options: &LaunchOptions,
    config: &Config,
    stores: &Stores,
) -> Option<bool> {
    let options = options.within(config);
    // Who wants to hear what is done hears it from whoever serves the start.
    if options.verbose {
        return None;
    }
    if !found.is_wanted_by(config, name) {
        return Some(true);
    }
    let (mut key, mut stored) = (found.context.key.clone(), stores.read_at_hand(&found.context.key).ok()?);
    if stored.is_none() {
        key = found.call.in_the_end_at_hand().ok()??.key_at_hand()?;
        if !is_wanted(config, &key) {
            return Some(true);
        }
        stored = stores.read_at_hand(&key).ok()?;
    }
    let stored = stored?;
    let glance = stored.first_glance().ok()?;
    let is_its_own = (glance.program, glance.role) == (&*key.program, &*key.role);
    let may_wait = stored.was_just_written(options.write_interval);
    let draw = (!may_wait).then_some(Draw::Warm(found.random));
    let is_observed = options.learn && glance.past.observation_due(draw);
    Some(is_its_own && !is_observed && is_in_memory(&glance, found.random))
}

fn is_in_memory(glance: &Glance<'_>, random: u64) -> bool {
    let sample = glance.sample(random);
    // A profile without a sample tells nothing.
    !sample.is_empty() && sample.iter().all(are_there)
}

/// Whether the file of `sample` still holds what was learned, with these pages in memory.
fn are_there(sample: &Sample<'_>) -> bool {
    let Ok(found) = at_hand(Path::new(sample.path)) else { return false };
    let (is_same, size_bytes) = (sample.identity.is_same(&found.identity()), found.size_bytes());
    if is_same && sample.pages.is_empty() {
        return true;
    }
    // Of a file that comes into its place just now, one start misjudges what is in memory.
    let Ok(file) = found.open_unchecked() else { return false };
    (is_same || holds(&file, size_bytes, sample)) && are_at_hand(&file, &sample.pages)
}

/// Whether `file` holds what was learned: one that was installed again, linked or given other rights since, or came with an image, is another file.
// By itself: its two pages would be on the stack of every start.
#[inline(never)]
fn holds(file: &File, size_bytes: u64, sample: &Sample<'_>) -> bool {
    // A page that is looked for is all that is ever read.
    let _ = fadvise(file, 0, None, Advice::Random);
    content_of(&InMemory { file, size_bytes }).is_ok_and(|found| Some(found) == sample.fingerprint())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, SystemTime};

    use prepage_core::profile::{ColdStart, Extent, History, Profile, ProfiledFile};
    use prepage_core::{PageIndex, PageRange};
    use prepage_profiles::Layer;
    use prepage_profiles::call::Call;
    use prepage_profiles::identity::identity_of;
    use prepage_testing::{Need, has};

    use super::*;
    use crate::start::StartContext;

    /// A program in a directory of its own, as it was found in a start and as it is known after some.
    struct Tool {
        directory: tempfile::TempDir,
        found: Found,
        profile: Profile,
    }

    impl Tool {
        /// `None` where nothing can be told by what is in memory.
        fn new() -> Option<Self> {
            let place = env!("CARGO_MANIFEST_DIR");
            if !has(Need::Eviction(place.into())) {
                return None;
            }
            let directory = tempfile::tempdir_in(place).unwrap();
            let executable = directory.path().canonicalize().unwrap().join("tool");
            std::fs::write(&executable, vec![1; 64 << 10]).unwrap();
            std::fs::set_permissions(&executable, std::fs::Permissions::from_mode(0o755)).unwrap();
            let command = [executable.clone().into_os_string()];
            let call = Call::of_found(&executable, &executable, &command).unwrap();
            let key = call.key();
            let file = ProfiledFile {
                path: key.program.clone(),
                identity: identity_of(&File::open(&executable).unwrap()).unwrap(),
                extents: vec![Extent::new(PageRange::new(PageIndex(0), PageIndex(16)), 0)],
                ..ProfiledFile::default()
            };
            let profile = Profile {
                history: History { observations: 8, ..History::default() },
                files: vec![file],
                ..key.empty_profile()
            };
            let context = StartContext::new(std::process::id(), executable.clone(), key);
            let found = Found { context, call, called: executable, random: 1 };
            Some(Self { directory, found, profile })
        }

        /// The user's layer and the machine's, with `profile` in one of them since an hour.
        fn known_in(&self, layer: Layer, profile: &Profile) -> Stores {
            let [own, of_machine] = ["own", "machine"].map(|name| self.directory.path().join(name));
            let at = Stores::at(if layer == Layer::User { own.clone() } else { of_machine.clone() });
            let key = &self.found.context.key;
            at.update(key, Layer::User, |_| Some(profile.clone())).unwrap();
            let written = File::options().write(true).open(at.path_of(key, Layer::User).unwrap()).unwrap();
            written.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
            let paths = StartContextPaths {
                store: Some(own),
                layers: Some(vec![of_machine]),
                ..StartContextPaths::default()
            };
            let stores = Stores::for_uid(at.uid(), &paths).unwrap();
            // Memory tells what an earlier start has looked up.
            stores.read(key).unwrap();
            stores
        }

        fn is_left_alone(&self, stores: &Stores) -> bool {
            let options = LaunchOptions { quiet: true, ..LaunchOptions::default() };
            is_told(&self.found, "tool".as_ref(), &options, &Config::default(), stores).unwrap_or(false)
        }
    }

    /// Of a program whose cold starts cost little to observe, one cold start in four is drawn.
    #[test]
    fn few_warm_starts_are_observed_however_cheap_cold_ones_are() {
        let Some(mut tool) = Tool::new() else { return };
        let start =
            |observed, took_us| ColdStart { observed, took_us, prefetched_pages: 16, ..ColdStart::default() };
        tool.profile.starts = [[start(true, 1020); 3], [start(false, 1000); 3]].concat();
        let stores = tool.known_in(Layer::User, &tool.profile);
        assert!(tool.is_left_alone(&stores));
        let is_served = |random: &u64| {
            tool.found.random = *random;
            !tool.is_left_alone(&stores)
        };
        assert_eq!((0..4500).filter(is_served).count(), 30, "1 in 150");
    }

    /// Else each user's next start would be observed, and each of a container: they are written to the user's layer, and the machine's would still owe.
    #[test]
    fn what_the_machines_profile_owes_is_not_owed_by_starts_of_a_user() {
        let Some(mut tool) = Tool::new() else { return };
        (tool.profile.history.due, tool.profile.history.rest) = (3, 5);
        assert!(tool.is_left_alone(&tool.known_in(Layer::Machine, &tool.profile)));
        assert!(!tool.is_left_alone(&tool.known_in(Layer::User, &tool.profile)));
    }
}
