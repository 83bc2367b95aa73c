//! Whether a start finds all that it needs in memory, told before anything is begun for it.
//!
//! Most starts of a known program are warm, and to begin something beside them (a process, its memory, a pipe, a word to wait for) takes longer
//! than all else that prepage does for them. So the process that is to become the program asks first, and asks memory alone
//! ([`prepage_profiles::at_hand`]): is there a profile, is no observation due, are pages there that stand for all others
//! ([`Glance::sample`])? What memory does not answer is left to whoever serves the start beside it: nobody waits here for a
//! file system.
//!
//! A start that misses less than what one of these pages stands for may be taken for a warm one.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;

use prepage_core::profile::file::{Glance, Sample};
use prepage_profiles::Stores;
use prepage_profiles::at_hand::{InMemory, at_hand};
use prepage_profiles::identity::content_of;
use rustix::fs::{Advice, fadvise};

use crate::config::Config;
use crate::launch::{Found, LaunchOptions, is_wanted};
use crate::resident::are_at_hand;

/// Whether the start that was `found`, of a program called `name`, is to be left alone: the configuration wants that, or the program is known, is not to be
/// observed in this start, and is in memory.
pub(crate) fn needs_nothing(found: &Found, name: &OsStr, options: &LaunchOptions) -> bool {
    is_told(found, name, options).unwrap_or(false)
}

/// `None` where memory does not tell.
fn is_told(found: &Found, name: &OsStr, options: &LaunchOptions) -> Option<bool> {
    let config = Config::at_hand()?;
    let options = options.within(&config);
    // Who wants to hear what is done hears it from whoever serves the start.
    if options.verbose {
        return None;
    }
    if !found.is_wanted_by(&config, name) {
        return Some(true);
    }
    let stores = Stores::of_user().ok()?;
    let (mut key, mut stored) = (found.context.key.clone(), stores.read_at_hand(&found.context.key).ok()?);
    if stored.is_none() {
        key = found.call.in_the_end_at_hand().ok()??.key_at_hand()?;
        if !is_wanted(&config, &key) {
            return Some(true);
        }
        stored = stores.read_at_hand(&key).ok()?;
    }
    let stored = stored?;
    let glance = stored.glance().ok()?;
    let is_its_own = (glance.program, glance.role) == (&*key.program, &*key.role);
    let may_wait = stored.was_just_written(options.write_interval);
    let is_observed = options.learn && glance.past.observation_due((!may_wait).then_some(found.random));
    Some(is_its_own && !is_observed && is_in_memory(&glance, found.random))
}

fn is_in_memory(glance: &Glance<'_>, random: u64) -> bool {
    let sample = glance.sample(random);
    // A profile without pages tells nothing.
    !sample.is_empty() && sample.iter().all(are_there)
}

/// Whether the file of `sample` still holds what was learned, with these pages in memory.
fn are_there(sample: &Sample<'_>) -> bool {
    let Ok(found) = at_hand(Path::new(sample.path)) else { return false };
    let (identity, size_bytes) = (found.identity(), found.size_bytes());
    let Ok(file) = found.open() else { return false };
    (sample.identity.is_same(&identity) || holds(&file, size_bytes, sample))
        && are_at_hand(&file, &sample.pages)
}

/// Whether `file` holds what was learned: one that was installed again, linked or given other rights since, or came with an image, is another file.
// By itself: its two pages would be on the stack of every start.
#[inline(never)]
fn holds(file: &File, size_bytes: u64, sample: &Sample<'_>) -> bool {
    // A page that is looked for is all that is ever read.
    let _ = fadvise(file, 0, None, Advice::Random);
    content_of(&InMemory { file, size_bytes }).is_ok_and(|found| Some(found) == sample.fingerprint())
}
