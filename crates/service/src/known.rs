//! A profile in memory: what a start needs at once of it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use prepage_core::DeviceFigures;
use prepage_core::profile::gain::{self, Turn};
use prepage_core::profile::start::newest;
use prepage_core::profile::{ColdStart, Fingerprint, Profile, ProfiledFile};
use prepage_prefetch::choose::Choice;
use prepage_prefetch::launch::LaunchOptions;
use prepage_profiles::ProgramKey;
use prepage_sys::clock::now_ns;
use prepage_sys::rights::Rights;
use prepage_sys::sync::Anyway;

/// What one takes whatever is in it: itself, and its places in the maps that it is found by.
const OWN_BYTES: u64 = 1024;
/// How often files are marked as used.
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;
/// So many observations in a row that are begun because it has changed may show nothing: the next ones would not either.
const TRIES_MAX: u8 = 3;

/// A profile in memory, shared by the threads that fetch.
///
/// Lock order: none, no two locks are held at once, and none over a system call. What has no lock and is not atomic never changes.
#[derive(Debug)]
pub struct Known {
    /// Whose it is.
    pub key: ProgramKey,
    /// With which rights it is fetched.
    pub rights: Rights,
    /// `st_dev` of the file system with the program.
    pub device: u64,
    /// What the device with most of its pages can do.
    pub figures: DeviceFigures,
    /// What is worth fetching.
    pub planned: Arc<Profile>,
    /// The profile's history and starts, and nothing else of it.
    pub past: Profile,
    /// About what it takes in memory, with its user's groups: others may share them, or have other ones.
    pub bytes: u64,
    /// Until when no start fetches it.
    left_alone_until: Mutex<Option<Instant>>,
    /// Since when somebody looks whether its files are in memory.
    looked_at: Mutex<Option<Instant>>,
    /// Files that were found to hold something else, by path and what was learned of their content.
    changed: Mutex<Vec<(String, Fingerprint)>>,
    /// Atomic; set once.
    has_changed: AtomicBool,
    /// Atomic: observations that have shown nothing.
    tries: AtomicU8,
    /// Atomic: when it was last looked for, on the clock of [`now_ns`].
    used_ns: AtomicU64,
    /// Atomic: when its file was last to be marked as used, on the same clock; 0 where it never was.
    marked_ns: AtomicU64,
    /// Atomic: when a start of it was drawn to be observed, seconds since 1970; 0 where none was. What such a start shows may change nothing.
    drawn_unix_s: AtomicU64,
}

/// Whether the file of a profile that is used is to be marked as used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Mark {
    /// By who was told so, and nobody else.
    Due,
    /// It was marked lately, or another thread does so.
    NotDue,
}

impl Known {
    /// `profile`, to be fetched with `rights`.
    pub fn new(profile: &Profile, rights: Rights) -> Self {
        let choice = Choice::new(profile, &LaunchOptions::default(), false);
        let past = Profile { history: profile.history, starts: profile.starts.clone(), ..Profile::default() };
        let key = ProgramKey::of_profile(profile);
        let Choice { device, figures, planned, .. } = choice;
        // What is fetched needs neither.
        let planned = Profile { starts: Vec::new(), sources: Vec::new(), ..Arc::unwrap_or_clone(planned) };
        let bytes = OWN_BYTES + bytes_of(&planned) + bytes_of(&past) + size_of_val(&*rights.groups) as u64;
        let planned = Arc::new(planned);
        let has_changed = AtomicBool::new(false);
        let [used_ns, marked_ns, drawn_unix_s] = [0; 3].map(AtomicU64::new);
        let (changed, tries) = (Mutex::default(), AtomicU8::new(0));
        Self {
            key,
            rights,
            device,
            figures,
            planned,
            past,
            bytes,
            left_alone_until: Mutex::default(),
            looked_at: Mutex::default(),
            changed,
            has_changed,
            tries,
            used_ns,
            marked_ns,
            drawn_unix_s,
        }
    }

    /// Notes that a start needs it now. Says whether its file is to be marked as used as well, for others than this process: once a day.
    pub fn note_use(&self) -> Mark {
        let (now, marked) = (now_ns(), self.marked_ns.load(Ordering::Relaxed));
        self.used_ns.store(now, Ordering::Relaxed);
        let is_due = marked == 0 || now.saturating_sub(marked) > DAY_NS;
        // Of threads that find it due at once, one marks it.
        let marks = is_due
            && self.marked_ns.compare_exchange(marked, now, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if marks { Mark::Due } else { Mark::NotDue }
    }

    /// When it was last looked for: comparable with that of others, 0 where it never was.
    pub fn used_ns(&self) -> u64 {
        self.used_ns.load(Ordering::Relaxed)
    }

    /// Whether it says what `other` does.
    pub fn is_as(&self, other: &Self) -> bool {
        let of = |known: &Self| (known.rights.clone(), known.device, known.figures);
        of(self) == of(other) && (&self.planned, &self.past) == (&other.planned, &other.past)
    }

    /// It takes the place of the one `before`: it was used, marked and drawn when that was, and is left alone as long. Where nothing was learned since, it
    /// has changed as that has.
    pub fn continues(&self, before: &Self) {
        self.used_ns.fetch_max(before.used_ns(), Ordering::Relaxed);
        self.marked_ns.fetch_max(before.marked_ns.load(Ordering::Relaxed), Ordering::Relaxed);
        self.drawn_unix_s.store(before.drawn_unix_s.load(Ordering::Relaxed), Ordering::Relaxed);
        let until = *before.left_alone_until.lock().anyway();
        {
            let mut own = self.left_alone_until.lock().anyway();
            *own = until.max(*own);
        }
        if self.past.history == before.past.history && before.has_changed() {
            self.mark_as_changed(before.changes());
            self.tries.store(before.tries.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// What is done for its next cold start, after those of its own and the `seen` ones: gains belong to a user and a device, and the profile
    /// may be everybody's. `random` is as in [`gain::turn`].
    pub fn turn(&self, seen: &[ColdStart], random: Option<u64>) -> Turn {
        gain::turn(self.device, &newest(&self.past.starts, seen), random)
    }

    /// Whether it is not to be fetched now: a file system did not answer.
    pub fn is_left_alone(&self) -> bool {
        let until = *self.left_alone_until.lock().anyway();
        until.is_some_and(|until| until > Instant::now())
    }

    /// Has `look` open some of its files, unless somebody waits for them already: one thread is enough to find out that a file system
    /// does not answer.
    ///
    /// # Errors
    /// Since when somebody waits.
    pub fn look_at<T>(&self, look: impl FnOnce() -> T) -> Result<T, Instant> {
        let now = Instant::now();
        let since = *self.looked_at.lock().anyway().get_or_insert(now);
        if since != now {
            return Err(since);
        }
        let _looking = Looking(self);
        Ok(look())
    }

    /// Leaves it alone for `pause`.
    pub fn leave_alone(&self, pause: Duration) {
        *self.left_alone_until.lock().anyway() = Some(Instant::now() + pause);
    }

    /// `files` of it, by path and what was learned of their content, were found to hold something else; where there are none, a start of it waited much
    /// longer than usual.
    pub fn mark_as_changed(&self, files: Vec<(String, Fingerprint)>) {
        if !files.is_empty() {
            *self.changed.lock().anyway() = files;
        }
        self.has_changed.store(true, Ordering::Relaxed);
    }

    /// Whether that was found.
    pub fn has_changed(&self) -> bool {
        self.has_changed.load(Ordering::Relaxed)
    }

    /// Whether a start is to be observed because of it: not where signs of change are not followed for now ([`Profile::expect_changed_files`]).
    pub fn is_change_due(&self) -> bool {
        if !self.has_changed() || self.tries.load(Ordering::Relaxed) >= TRIES_MAX {
            return false;
        }
        if self.changed.lock().anyway().is_empty() {
            return self.past.history.rest == 0;
        }
        let mut past = Profile { history: self.past.history, ..Profile::default() };
        past.expect_changed_files();
        past.observation_due(None)
    }

    /// Whether that is the first sign of change after a while: it does not wait until there is plenty of time.
    pub fn is_new_change(&self) -> bool {
        self.is_change_due() && self.past.history.rest == 0
    }

    /// The files that were found to hold something else.
    pub fn changes(&self) -> Vec<(String, Fingerprint)> {
        self.changed.lock().anyway().clone()
    }

    /// A start of it was observed, and showed nothing.
    pub fn note_in_vain(&self) {
        let _ = self.tries.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |tries| tries.checked_add(1));
    }

    /// Whether it was learned from a moment ago, or a start of it was drawn for that. By a clock that was ahead it may have been in the future.
    pub fn was_just_learned(&self, now_unix_s: u64) -> bool {
        const APART_S: u64 = 60;
        let drawn_unix_s = self.drawn_unix_s.load(Ordering::Relaxed);
        [self.past.history.updated_unix_s, drawn_unix_s].iter().any(|&at| now_unix_s.abs_diff(at) <= APART_S)
    }

    /// A start of it is drawn to be observed.
    pub fn mark_as_drawn(&self, now_unix_s: u64) {
        self.drawn_unix_s.store(now_unix_s, Ordering::Relaxed);
    }
}

/// About what it takes in memory.
fn bytes_of(profile: &Profile) -> u64 {
    const NAME_BYTES: usize = 64;
    let content = |content: &Fingerprint| match content {
        Fingerprint::BuildId(id) => id.len(),
        Fingerprint::Ends { .. } => 0,
    };
    let file = |file: &ProfiledFile| {
        let own = size_of::<ProfiledFile>() + file.path.len() + content(&file.fingerprint);
        own + size_of_val(&file.extents[..]) + NAME_BYTES
    };
    let files: usize = profile.files.iter().map(file).sum();
    let names: usize = profile.lookups.iter().map(|name| name.path.len() + NAME_BYTES).sum();
    (files + names + size_of_val(&profile.starts[..]) + profile.program.len() + profile.role.len()) as u64
}

/// Somebody looks at its files, until this is dropped, be it by a panic.
struct Looking<'a>(&'a Known);

impl Drop for Looking<'_> {
    fn drop(&mut self) {
        *self.0.looked_at.lock().anyway() = None;
    }
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::observation::{Coverage, Observation, ObservedFile, UsedPages};
    use prepage_core::profile::{ColdStart, FileIdentity, History};
    use prepage_core::{PageIndex, PageRange};
    use prepage_prefetch::persist::{Shown, persist};
    use prepage_profiles::{Layer, StartContextPaths, Stores};

    use super::*;

    /// A user's file may hold much of anything.
    #[test]
    fn what_is_kept_is_counted_and_what_no_start_needs_is_not_kept() {
        let many = 10_000;
        let file =
            ProfiledFile { fingerprint: Fingerprint::BuildId(vec![1; many]), ..ProfiledFile::default() };
        let profile = Profile {
            sources: vec![1; many],
            starts: vec![ColdStart::default(); many],
            files: vec![file],
            ..Profile::default()
        };
        let known = Known::new(&profile, Rights::of_everybody());
        assert_eq!(known.past, Profile { starts: profile.starts, ..Profile::default() });
        assert!(known.planned.sources.is_empty() && known.planned.starts.is_empty());
        let content = known.planned.files.len() * many;
        assert!(known.bytes as usize >= many * size_of::<ColdStart>() + content, "{}", known.bytes);
    }

    /// A user has as many groups as the user has numbers of groups to give away (subgid(5)).
    #[test]
    fn a_small_profile_of_a_user_with_many_groups_is_counted_with_them() {
        let bytes = |groups: u32| {
            let rights = Rights { groups: (0..groups).collect::<Vec<_>>().into(), ..Rights::of_everybody() };
            Known::new(&Profile::default(), rights).bytes
        };
        assert!(bytes(0) as usize >= size_of::<Known>() + 2 * size_of::<Profile>(), "{}", bytes(0));
        assert_eq!(bytes(1 << 16) - bytes(0), 4 << 16);
    }

    #[test]
    fn what_it_gains_is_judged_by_the_starts_of_the_user_and_those_of_the_profile() {
        let starts = |held_out, took_us| {
            let start = |unix_s| ColdStart { unix_s, held_out, took_us, ..ColdStart::default() };
            (1..4).map(start).collect::<Vec<_>>()
        };
        let profile = Profile { starts: starts(true, 100), ..Profile::default() };
        let known = Known::new(&profile, Rights::of_everybody());
        assert_eq!(known.turn(&[], None), Turn::Prefetch);
        assert_eq!(known.turn(&starts(false, 50), None), Turn::Prefetch);
        assert_eq!(known.turn(&starts(false, 200), None), Turn::Off);
    }

    #[test]
    fn what_was_learned_by_a_clock_that_was_ahead_is_learned_from_again() {
        const LEARNED: u64 = 1_900_000_000;
        let mut profile = Profile::default();
        profile.history.updated_unix_s = LEARNED;
        let known = Known::new(&profile, Rights::of_everybody());
        assert!([LEARNED - 5, LEARNED, LEARNED + 60].into_iter().all(|now| known.was_just_learned(now)));
        assert!([61, LEARNED - 61, LEARNED + 61].into_iter().all(|now| !known.was_just_learned(now)));
        // What it showed may change nothing.
        known.mark_as_drawn(LEARNED + 100);
        let next = Known::new(&profile, Rights::of_everybody());
        next.continues(&known);
        assert!([known, next].iter().all(|known| known.was_just_learned(LEARNED + 160)));
    }

    /// A program whose data file is written between all of its starts.
    #[test]
    fn what_holds_something_else_in_each_start_is_observed_once_between_two_others() {
        [Layer::User, Layer::Machine].into_iter().for_each(observed_once_between_two_others);
    }

    fn observed_once_between_two_others(layer: Layer) {
        const STARTS: u64 = 100;
        let directory = tempfile::tempdir().unwrap();
        let [store, machine] = ["store", "machine"].map(|name| directory.path().join(name));
        let paths = StartContextPaths {
            store: Some(store),
            layers: Some(vec![machine]),
            ..StartContextPaths::default()
        };
        let stores = Stores::for_uid(rustix::process::geteuid().as_raw(), &paths).unwrap();
        let key = ProgramKey { program: "/bin/x".into(), role: "x".into() };
        let seen = |content: u64| {
            let range = PageRange::new(PageIndex(0), PageIndex(16));
            let file = ObservedFile {
                path: "/data".into(),
                identity: FileIdentity::default(),
                content: Fingerprint::BuildId(content.to_le_bytes().to_vec()),
                pages: vec![UsedPages { range, rank: 0, by_read: true, is_sure: true }],
                coverage: Coverage::Exact,
            };
            Observation { files: vec![file], ..Observation::of_nothing(content) }
        };
        let (mut observed, mut at_once) = (Vec::new(), Vec::new());
        for start in 0..STARTS {
            let known =
                stores.find(&key).unwrap().map(|found| Known::new(&found.profile, Rights::of_everybody()));
            if let Some(known) = &known {
                let [file] = &known.planned.files[..] else { panic!("{known:?}") };
                known.mark_as_changed(vec![(file.path.clone(), file.fingerprint.clone())]);
                at_once.extend(known.is_new_change().then_some(start));
            }
            // Each tenth start is of the sample.
            if known.as_ref().is_none_or(|known| known.is_change_due() || start % 10 == 0) {
                let changed = known.as_ref().map(Known::changes).unwrap_or_default();
                let shown = Shown { observation: Some(seen(start)), changed, ..Shown::default() };
                persist(&stores, &key, layer, &shown).unwrap();
                observed.push(start);
            }
        }
        assert!(observed.len() <= 26, "{layer:?}: {observed:?}");
        assert_eq!(at_once, [1], "{layer:?}: the first change is one that nobody has seen");
    }

    #[test]
    fn a_change_of_which_observations_show_nothing_does_not_have_each_start_observed() {
        let profile =
            Profile { history: History { observations: 8, ..History::default() }, ..Profile::default() };
        let known = Known::new(&profile, Rights::of_everybody());
        assert!(!known.is_change_due());
        known.mark_as_changed(vec![("/data".into(), Fingerprint::BuildId(vec![1]))]);
        let due = [(); 5].map(|()| {
            let is_due = known.is_change_due();
            known.note_in_vain();
            is_due
        });
        assert_eq!(due, [true, true, true, false, false]);
        assert!(known.has_changed());
    }

    #[test]
    fn a_look_that_panics_keeps_nobody_from_the_next() {
        let known = Known::new(&Profile::default(), Rights::of_everybody());
        let look = || known.look_at(|| panic!("a defect"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(look)).is_err());
        assert_eq!(known.look_at(|| known.look_at(|| 1).is_err()), Ok(true), "somebody looks already");
        assert_eq!(known.look_at(|| 2), Ok(2));
    }
}
