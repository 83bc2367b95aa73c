//! The last of the four steps of a start: what it showed goes into the store.

use prepage_core::profile::observation::Observation;
use prepage_core::profile::{ColdStart, Fingerprint, Profile};
use prepage_profiles::{Layer, ProgramKey, StoreError, Stores};

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
    /// The profile before this start, and as this start wrote it.
    written: Option<(Option<Profile>, Profile)>,
}

impl<'a> Persisting<'a> {
    /// Nothing is written yet.
    pub fn new(stores: &'a Stores, key: &'a ProgramKey, layer: Layer) -> Self {
        Self { stores, key, layer, written: None }
    }

    /// Writes what the start showed up to now, in place of what was written of it before.
    ///
    /// # Errors
    /// When the store cannot be read or written; it stays as it was.
    pub fn persist(&mut self, shown: &Shown) -> Result<(), StoreError> {
        let (key, written) = (self.key, &mut self.written);
        self.stores.update(key, self.layer, |stored| {
            // Where another start wrote meanwhile, what this one showed before stays in what that one made of it.
            let before = match written.take() {
                Some((before, own)) if stored.as_ref().is_some_and(|stored| is_as_written(stored, &own)) => {
                    before
                }
                _ => stored,
            };
            let after = with(before.clone(), key, shown)?;
            *written = Some((before, after.clone()));
            Some(after)
        })
    }
}

/// Whether `stored` is what was written as `own`: who learned it is added in writing.
fn is_as_written(stored: &Profile, own: &Profile) -> bool {
    let known = |profile: &Profile| (profile.files.clone(), profile.lookups.clone());
    (stored.history, &stored.starts, known(stored)) == (own.history, &own.starts, known(own))
}

fn with(before: Option<Profile>, key: &ProgramKey, shown: &Shown) -> Option<Profile> {
    // Without an observation there is nothing to begin with.
    let mut profile = match before {
        Some(profile) => profile,
        None => shown.observation.is_some().then(|| Profile {
            program: key.program.clone(),
            role: key.role.clone(),
            ..Profile::default()
        })?,
    };
    if !shown.changed.is_empty() {
        // They are learned anew: what they held will hardly be there again.
        let is_changed =
            |path: &str, content: &Fingerprint| shown.changed.iter().any(|(p, c)| p == path && c == content);
        profile.files.retain(|file| !is_changed(&file.path, &file.fingerprint));
        profile.expect_changed_files();
    }
    if let Some(observation) = &shown.observation {
        profile.observe(observation);
    }
    if let Some(start) = shown.cold_start {
        profile.record(start);
    }
    Some(profile)
}
