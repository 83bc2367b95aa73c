//! Putting what a run showed into the store.

use std::ffi::OsString;

use prepage_core::profile::Profile;

use crate::clock;
use crate::program::readable;
use crate::sightings::Findings;
use crate::store::{ProfileKey, Store, StoreError};

/// Where findings come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// An exact run. It replaces what was only guessed at, and adds to earlier exact runs: another input of the
    /// program may need other pages.
    Exact,
    /// A start as it happened. It adds to whatever there is.
    Start,
}

/// Adds `findings` to the profile of `key`, or begins one. Nothing is written when there is no news in them.
pub fn keep(
    store: &Store,
    key: &ProfileKey,
    command: &[OsString],
    findings: Findings,
    origin: Origin,
) -> Result<(), StoreError> {
    if findings.files.is_empty() && findings.lookups.is_empty() {
        return Ok(());
    }
    let now = clock::unix_s();
    store.update(key, |before| {
        let kept = before.filter(|profile| origin == Origin::Start || profile.history.exact_runs > 0);
        let mut profile = kept.unwrap_or_else(|| Profile {
            program: key.program.clone(),
            role: key.role.clone(),
            ..Profile::default()
        });
        let changed = profile.absorb(findings.files, findings.lookups);
        let history = &mut profile.history;
        match origin {
            Origin::Exact => history.exact_runs += 1,
            Origin::Start => history.refining_runs += 1,
        }
        if history.created_unix_s == 0 {
            history.created_unix_s = now;
        }
        history.updated_unix_s = now;
        profile.command = readable(command);
        (changed || origin == Origin::Exact).then_some(profile)
    })
}
