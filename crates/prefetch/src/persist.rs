//! The last of the four steps of a start: what it showed goes into the store.

use prepage_core::profile::observation::{Coverage, Observation};
use prepage_core::profile::{ColdStart, Fingerprint, Profile};
use prepage_profiles::{Layer, ProgramKey, StoreError, Stores};

/// Where a program's first observations are cut short, as in containers that end with it, so many have the next start observed, too.
const CUT_SHORT_MAX: u8 = 3;

/// What a start showed.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// What it used, where it was observed.
    pub observation: Option<Observation>,
    /// What it was worth, where it was cold.
    pub cold_start: Option<ColdStart>,
    /// Files of the profile, by path and what was learned of their content, that hold something else now.
    pub changed: Vec<(String, Fingerprint)>,
}

impl Shown {
    /// Whether there is anything in it that a profile remembers.
    pub fn is_anything(&self) -> bool {
        self.observation.is_some() || self.cold_start.is_some() || !self.changed.is_empty()
    }
}

/// Adds what the start showed to its profile, or begins one. What changes nothing is not written.
///
/// # Errors
/// When the store cannot be read or written; it stays as it was.
pub fn persist(stores: &Stores, key: &ProgramKey, layer: Layer, shown: &Shown) -> Result<(), StoreError> {
    Persisting::new(stores, key, layer).persist(shown)
}

/// One start on its way into the store: what it showed may be written again when more is known, and counts once.
#[derive(Debug)]
pub struct Persisting<'a> {
    stores: &'a Stores,
    key: &'a ProgramKey,
    layer: Layer,
    /// What a later layer knows: a profile of this one begins with it.
    base: Option<&'a Profile>,
    written: Option<Written>,
}

/// What a start wrote last.
#[derive(Debug)]
struct Written {
    /// The profile without it.
    before: Option<Profile>,
    /// The observation of this start that is in there all the same.
    in_before: Option<Observation>,
    /// The profile with it.
    own: Profile,
    /// The observation that is in there.
    observation: Option<Observation>,
    /// The cold start that is in there, as it was recorded.
    start: Option<ColdStart>,
}

impl<'a> Persisting<'a> {
    /// Nothing is written yet.
    pub fn new(stores: &'a Stores, key: &'a ProgramKey, layer: Layer) -> Self {
        Self { stores, key, layer, base: None, written: None }
    }

    /// Goes on with what a later layer knows, `base`, where this one has no profile: from then on it is this one's that is followed.
    #[must_use]
    pub fn upon(self, base: Option<&'a Profile>) -> Self {
        Self { base, ..self }
    }

    /// Writes what the start showed up to now, in place of what was written of it before.
    ///
    /// # Errors
    /// When the store cannot be read or written; it stays as it was.
    pub fn persist(&mut self, shown: &Shown) -> Result<(), StoreError> {
        self.write(shown, true)
    }

    /// The same while the start goes on: whoever observes it, and has programs wait for a moment, does not wait for the disk.
    ///
    /// # Errors
    /// As [`Self::persist`].
    pub fn persist_so_far(&mut self, shown: &Shown) -> Result<(), StoreError> {
        self.write(shown, false)
    }

    fn write(&mut self, shown: &Shown, is_synced: bool) -> Result<(), StoreError> {
        let (key, written) = (self.key, self.written.as_ref());
        let base = || {
            let base = self.base?;
            Some(Profile { history: base.history.for_others(), ..base.clone() })
        };
        let mut now = None;
        let change = |stored| {
            // An earlier call's result was not written, and this one may have none.
            now = None;
            let (before, in_before) = match (written, stored) {
                (Some(written), Some(stored)) if is_as_written(&stored, &written.own) => {
                    (written.before.clone(), written.in_before.clone())
                }
                // Where another start wrote meanwhile, what this one showed before stays in what that one made of it.
                (Some(written), Some(mut stored)) => {
                    if shown.cold_start.is_some() {
                        stored.starts.retain(|start| Some(*start) != written.start);
                    }
                    (Some(stored), written.observation.clone())
                }
                (_, stored) => (stored.or_else(base), None),
            };
            let observation = shown.observation.clone();
            let own = with(before.clone(), key, shown, in_before.as_ref())?;
            let start = shown.cold_start.and(own.starts.last().copied());
            now = Some(Written { before, in_before, own: own.clone(), observation, start });
            Some(own)
        };
        match is_synced {
            true => self.stores.update(key, self.layer, change)?,
            false => self.stores.update_unsynced(key, self.layer, change)?,
        };
        self.written = now.or(self.written.take());
        Ok(())
    }
}

/// Whether `stored` is what was written as `own`: who learned it is added in writing.
fn is_as_written(stored: &Profile, own: &Profile) -> bool {
    (stored.history, &stored.starts, &stored.files, &stored.lookups)
        == (own.history, &own.starts, &own.files, &own.lookups)
}

/// The profile with what `shown` tells, of whose observation that part is counted already that is `in_before`.
fn with(
    before: Option<Profile>,
    key: &ProgramKey,
    shown: &Shown,
    in_before: Option<&Observation>,
) -> Option<Profile> {
    let observation = shown.observation.as_ref();
    // Nothing begins without an observation, or with one that saw nothing of a program that may never have run.
    let is_begin = |seen: &Observation| {
        !(seen.files.is_empty() && seen.names.is_empty() && seen.coverage == Coverage::Partial)
    };
    let mut profile = match before {
        Some(profile) => profile,
        None => observation.is_some_and(is_begin).then(|| key.empty_profile())?,
    };
    if !shown.changed.is_empty() {
        // They are learned anew: what they held will hardly be there again.
        let is_changed =
            |path: &str, content: &Fingerprint| shown.changed.iter().any(|(p, c)| p == path && c == content);
        profile.files.retain(|file| !is_changed(&file.path, &file.fingerprint));
        profile.expect_changed_files();
    }
    match (observation, in_before) {
        (Some(observation), Some(earlier)) if observation != earlier => {
            profile.observe_further(observation, earlier);
        }
        (Some(observation), None) => profile.observe(observation),
        _ => {}
    }
    // What it did not come to shows in the next start.
    if observation.is_some_and(|seen| seen.is_cut_short) && profile.history.observations <= CUT_SHORT_MAX {
        profile.history.due = profile.history.due.max(1);
    }
    // What others had learned is this host's from here on: it may have come with an image, or from other machines, and speaks for these no more.
    if observation.is_some() {
        profile.sources.clear();
    }
    if let Some(start) = shown.cold_start {
        profile.record(start);
    }
    Some(profile)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use prepage_core::profile::History;
    use prepage_core::profile::merge::merge;
    use prepage_core::profile::observation::ObservedName;
    use prepage_profiles::store::remove;
    use prepage_sys::call_filter::{When, refuse};
    use prepage_sys::forked::Forked;
    use prepage_testing::{Need, has};

    use super::*;

    /// In containers what a start has shown so far is written again and again.
    #[test]
    fn starts_that_grow_in_turns_count_once_each() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let known = || stores.find(&key).unwrap().unwrap().profile;
        let counts = |profile: &Profile, name: &str| {
            profile.lookups.iter().find(|lookup| lookup.path == name).map(|lookup| lookup.counts)
        };
        for name in ["/early", "/early"] {
            persist(&stores, &key, Layer::User, &shown(name)).unwrap();
        }
        let twice = counts(&known(), "/early");
        remove(&stores.path_of(&key, Layer::User).unwrap()).unwrap();
        let mut starts = [(); 2].map(|()| Persisting::new(&stores, &key, Layer::User));
        let mut seen = shown("/early");
        for name in ["/late", "/later", "/last"] {
            let observation = seen.observation.take().unwrap().cut_short();
            seen.observation = Some(observation);
            starts.iter_mut().for_each(|start| start.persist(&seen).unwrap());
            let observation = seen.observation.as_mut().unwrap();
            observation.names.push(ObservedName { path: name.into(), list: false });
            (observation.coverage, observation.names_coverage) = (Coverage::Exact, Coverage::Exact);
        }
        starts.iter_mut().for_each(|start| start.persist(&seen).unwrap());
        let profile = known();
        assert_eq!(profile.history.observations, 2);
        for name in ["/early", "/late", "/later", "/last"] {
            assert_eq!(counts(&profile, name), twice, "{name}");
        }
    }

    /// As in containers that end with their program.
    #[test]
    fn a_start_that_was_cut_short_has_the_next_observed_a_few_times() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let due = || stores.find(&key).unwrap().unwrap().profile.history.due;
        let whole = shown("/early");
        let so_far =
            Shown { observation: whole.observation.clone().map(Observation::cut_short), ..Shown::default() };
        let mut first = Persisting::new(&stores, &key, Layer::User);
        first.persist_so_far(&so_far).unwrap();
        assert_eq!(due(), 1);
        first.persist(&whole).unwrap();
        assert_eq!(due(), 0, "it came to its end after all");
        for expected in [1, 1, 0, 0] {
            persist(&stores, &key, Layer::User, &so_far).unwrap();
            assert_eq!(due(), expected);
        }
    }

    /// Else each later start would be drawn for a sample, and none written.
    #[test]
    fn a_start_that_shows_nothing_new_is_as_good_as_written() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let path = stores.path_of(&key, Layer::User).unwrap();
        let is_just_written =
            || stores.read(&key).unwrap().unwrap().was_just_written(Duration::from_secs(60));
        (0..100).for_each(|_| persist(&stores, &key, Layer::User, &shown("/early")).unwrap());
        let before = std::fs::read(&path).unwrap();
        for _ in 0..2 {
            let file = std::fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
            assert!(!is_just_written());
            persist(&stores, &key, Layer::User, &shown("/early")).unwrap();
            assert!(is_just_written());
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }

    /// The observer may have a program wait until it has looked at it.
    #[test]
    fn what_is_written_while_a_start_goes_on_waits_for_no_disk() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let child = Forked::new(|| {
            let syncs = [libc::SYS_fsync, libc::SYS_fdatasync];
            if refuse(&syncs.map(|call| (call, When::Always))).is_err() {
                return 2;
            }
            let mut start = Persisting::new(&stores, &key, Layer::User);
            let so_far = start.persist_so_far(&shown("/early")).is_ok();
            i32::from(!so_far || start.persist(&shown("/late")).is_ok())
        });
        match child.unwrap().wait().unwrap().exit_status() {
            Some(2) => prepage_testing::skip(Need::Path("/proc/sys/kernel/seccomp".into()), "no filters"),
            status => assert_eq!(status, Some(0)),
        }
        assert_eq!(stores.find(&key).unwrap().unwrap().profile.lookups[0].path, "/early");
    }

    #[test]
    fn clones_of_a_store_that_go_on_learning_are_hosts_of_their_own() {
        const ID: &str = "/etc/machine-id";
        // A machine without one cannot tell that it is another one.
        if std::fs::read_to_string(ID).is_ok_and(|id| id.trim().len() != 32) {
            return prepage_testing::skip(Need::Path(ID.into()), "it has no id");
        } else if !has(Need::Path(ID.into())) {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let stores = ["image", "one", "two"].map(|name| Stores::at(dir.path().join(name)));
        let known = |at: usize| stores[at].find(&key).unwrap().unwrap().profile;
        persist(&stores[0], &key, Layer::User, &shown("/early")).unwrap();
        let image = known(0);
        for clone in &stores[1..] {
            clone.update(&key, Layer::User, |_| Some(image.clone())).unwrap();
        }
        assert_eq!((known(1), known(2)), (image.clone(), image), "nothing was learned there");
        for (clone, name) in stores[1..].iter().zip(["/one", "/two"]) {
            persist(clone, &key, Layer::User, &shown(name)).unwrap();
            persist(clone, &key, Layer::User, &shown(name)).unwrap();
        }
        let merged = merge(&[&known(1), &known(2)]);
        assert_eq!(merged.sources.len(), 2);
        let learned = ["/one", "/two"].map(|name| merged.lookups.iter().any(|lookup| lookup.path == name));
        assert_eq!(learned, [true, true], "{:?}", merged.lookups);
    }

    /// As when a fleet's profile is imported, and the fleet's hosts merge what they have learned since.
    #[test]
    fn who_goes_on_with_what_many_learned_speaks_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let known = || stores.find(&key).unwrap().unwrap().profile;
        persist(&stores, &key, Layer::User, &shown("/early")).unwrap();
        let of_many = Profile { sources: (1..=1000).collect(), ..known() };
        stores.update(&key, Layer::User, |_| Some(of_many.clone())).unwrap();
        (0..8).for_each(|_| persist(&stores, &key, Layer::User, &shown("/late")).unwrap());
        assert_eq!(known().sources.len(), 1);
        let merged = merge(&[&of_many, &known()]);
        assert_eq!(merged.sources.len(), 1001);
        let probability = |name: &str| {
            let found = merged.lookups.iter().find(|lookup| lookup.path == name);
            found.map_or(0.0, |lookup| lookup.counts.probability())
        };
        assert!(probability("/early") > 0.7 && probability("/late") < 0.3, "{:?}", merged.lookups);
    }

    /// As of a program that was learned for all users, and not by this one.
    #[test]
    fn what_a_later_layer_knows_is_gone_on_with() {
        let dir = tempfile::tempdir().unwrap();
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let [stores, machine] = ["user", "machine"].map(|name| Stores::at(dir.path().join(name)));
        persist(&machine, &key, Layer::User, &shown("/early")).unwrap();
        let base = machine.find(&key).unwrap().unwrap().profile;
        let start = |unix_s| Shown {
            cold_start: Some(ColdStart { unix_s, ..ColdStart::default() }),
            ..Shown::default()
        };
        persist(&stores, &key, Layer::User, &start(5)).unwrap();
        assert!(stores.find(&key).unwrap().is_none(), "of nothing observed nothing begins");
        let of_machine = Profile { history: History { due: 5, rest: 9, ..base.history }, ..base.clone() };
        let upon = || Persisting::new(&stores, &key, Layer::User).upon(Some(&of_machine));
        let mut first = upon();
        first.persist(&start(5)).unwrap();
        first.persist(&start(5)).unwrap();
        upon().persist(&start(6)).unwrap();
        let known = stores.find(&key).unwrap().unwrap().profile;
        assert_eq!((known.starts.len(), &known.lookups), (2, &base.lookups));
        assert_eq!(known.history, base.history, "what is owed there is not owed here");
    }

    fn shown(name: &str) -> Shown {
        let observation = Observation {
            names: vec![ObservedName { path: name.into(), list: false }],
            ..Observation::of_nothing(1)
        };
        Shown { observation: Some(observation), ..Shown::default() }
    }

    /// An exec that failed, for example.
    #[test]
    fn what_saw_nothing_begins_no_profile() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let mut nothing = shown("/a");
        let observation = nothing.observation.as_mut().unwrap();
        observation.names.clear();
        observation.coverage = Coverage::Partial;
        persist(&stores, &key, Layer::User, &nothing).unwrap();
        assert!(stores.find(&key).unwrap().is_none());
        nothing.observation.as_mut().unwrap().coverage = Coverage::Exact;
        persist(&stores, &key, Layer::User, &nothing).unwrap();
        assert!(stores.find(&key).unwrap().is_some(), "of a static program in memory nothing is on a disk");
    }

    /// In containers how long a start waited is written before it is known how long it took.
    #[test]
    fn a_cold_start_that_is_written_again_counts_once_though_another_wrote_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let mut starts = [(); 2].map(|()| (Persisting::new(&stores, &key, Layer::User), shown("/a")));
        // Both are written at first, and again with more in turns.
        for took_us in [0, 7, 9] {
            for (waited_us, (persisting, shown)) in (3..).zip(&mut starts) {
                shown.cold_start = Some(ColdStart { unix_s: 5, waited_us, took_us, ..ColdStart::default() });
                persisting.persist(shown).unwrap();
            }
        }
        let known = stores.find(&key).unwrap().unwrap().profile.starts;
        let mut known: Vec<_> = known.iter().map(|start| (start.waited_us, start.took_us)).collect();
        known.sort_unstable();
        assert_eq!(known, [(3, 9), (4, 9)]);
    }

    /// How long a start took is known, and written, later than what it used.
    #[test]
    fn starts_that_write_in_turns_count_once_each() {
        let dir = tempfile::tempdir().unwrap();
        let stores = Stores::at(dir.path().join("store"));
        let key = ProgramKey { program: "/usr/bin/x".into(), role: "x".into() };
        let known = || stores.find(&key).unwrap().unwrap().profile;
        let mut starts = ["/a", "/b"].map(|name| (Persisting::new(&stores, &key, Layer::User), shown(name)));
        for (persisting, shown) in &mut starts {
            persisting.persist(shown).unwrap();
        }
        let names = known().lookups;
        for (unix_s, (persisting, shown)) in (5..).zip(&mut starts) {
            shown.cold_start = Some(ColdStart { unix_s, ..ColdStart::default() });
            persisting.persist(shown).unwrap();
        }
        let profile = known();
        assert_eq!((profile.history.observations, profile.starts.len()), (2, 2));
        assert_eq!(profile.lookups, names);
        starts.iter_mut().for_each(|(persisting, shown)| persisting.persist(shown).unwrap());
        assert_eq!(known().history.observations, 2);
        // What was taken away meanwhile begins anew.
        remove(&stores.path_of(&key, Layer::User).unwrap()).unwrap();
        let (persisting, shown) = &mut starts[0];
        persisting.persist(shown).unwrap();
        assert_eq!((known().history.observations, known().starts.len()), (1, 1));
    }
}
