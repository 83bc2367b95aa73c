//! Which boots and sessions are learned. Learning takes time in the very minute that is to be saved: in a boot each page takes a fault of its own. So of
//! those that are known only some are, and beside them those in which something may have changed.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use prepage_core::profile::Profile;
use prepage_profiles::Stores;
use prepage_sys::random::random;

use crate::period::{REPORT, assumed};
use crate::subject::Subject;

/// Two sessions of a user that are learned begin so long after each other, unless the profile asks for more: a machine that another one looks after has
/// one each minute, and while one is learned each open on the machine takes longer.
const SESSIONS_APART: Duration = Duration::from_secs(3600);
/// Boots that are learned at first: one shows what is needed, and another, which waits less, when. What no name leads to both have to miss.
const FIRST_BOOTS: u8 = 2;
/// Of the others one in so many.
const ONE_BOOT_IN: u64 = 8;
/// Directories that change when units come or go, and when one of those is enabled that an administrator mostly enables.
pub(crate) const CHANGED_WITH_UNITS: [&str; 3] =
    ["/etc/systemd/system", "/etc/systemd/system/multi-user.target.wants", "/usr/lib/systemd/system"];

/// Whether what `subject` uses is to be learned, of which so much is `known`.
pub(crate) fn is_due(subject: Subject, stores: &Stores, known: Option<&Profile>) -> bool {
    let Some(known) = known.filter(|known| !known.observation_due(None)) else { return true };
    let learned = || {
        let _assumed = assumed(subject).ok()?;
        let profile = fs::metadata(stores.path_of(&subject.key(), subject.layer()).ok()?).ok()?;
        profile.modified().ok()
    };
    // Of another layer, or of no clock.
    let Some(learned) = learned() else { return true };
    match subject {
        Subject::Boot => {
            let directory = stores.directory(subject.layer());
            let is_new_here = !directory.is_ok_and(|directory| directory.join(REPORT).exists());
            is_new_here || is_boot_due(known, learned, CHANGED_WITH_UNITS.map(Path::new), random())
        }
        Subject::Session(_) => is_session_due(learned),
    }
}

/// Whether a session is to be learned of which another was `learned` before. A clock that was ahead then, and was put right since, says nothing.
fn is_session_due(learned: SystemTime) -> bool {
    learned.elapsed().map_or(true, |ago| ago >= SESSIONS_APART)
}

/// Whether a boot is to be learned that was `learned` before, and is `known`; `random` decides where nothing has changed in the directories `units`.
fn is_boot_due<const N: usize>(known: &Profile, learned: SystemTime, units: [&Path; N], random: u64) -> bool {
    let changed = |units: &Path| fs::metadata(units).ok()?.modified().ok();
    known.history.observations < FIRST_BOOTS
        // What has changed since is not known, by a clock that was ahead.
        || learned > SystemTime::now()
        || units.into_iter().filter_map(changed).any(|changed| changed > learned)
        || random.is_multiple_of(ONE_BOOT_IN)
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::History;

    use super::*;

    #[test]
    fn a_boot_that_is_known_is_learned_now_and_then_and_after_units_have_changed() {
        let units = tempfile::tempdir().unwrap();
        let changed = fs::metadata(units.path()).unwrap().modified().unwrap();
        let none = units.path().join("none");
        let due = |observations, learned, random| {
            let history = History { observations, ..History::default() };
            let known = Profile { history, ..Profile::default() };
            is_boot_due(&known, learned, [&none, units.path()], random)
        };
        assert_eq!([1, 2, 8].map(|observations| due(observations, changed, 1)), [true, false, false]);
        let drawn = (0..80).filter(|&random| due(2, changed, random));
        assert_eq!(drawn.count(), 10);
        assert!(due(2, changed - Duration::from_secs(1), 1), "units have come since");
        assert!(due(2, SystemTime::now() + SESSIONS_APART, 1), "the clock was ahead");
    }

    #[test]
    fn a_session_is_learned_an_hour_after_another_or_where_the_clock_was_ahead_then() {
        let now = SystemTime::now();
        let due = [now, now - SESSIONS_APART, now + SESSIONS_APART].map(is_session_due);
        assert_eq!(due, [false, true, true]);
    }
}
