//! Putting what a run showed into the store.

use std::ffi::OsString;
use std::time::Duration;

use prepage_core::cold_start::{ColdStart, newest};
use prepage_core::profile::Profile;
use prepage_core::trial::{Outcome, settle};

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

/// What a start with a profile showed.
#[derive(Debug)]
pub struct Started<'a> {
    /// The profile it began with.
    pub profile: &'a Profile,
    /// What it needed that was not in that.
    pub news: Findings,
    /// What it showed of the pages in that.
    pub outcome: Outcome,
    /// What is to be remembered of it. Its time is filled in here.
    pub start: Option<ColdStart>,
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
    store.update(key, |before| {
        let kept = before.filter(|profile| origin == Origin::Start || profile.history.exact_runs > 0);
        let mut profile = kept.unwrap_or_else(|| Profile {
            program: key.program.clone(),
            role: key.role.clone(),
            ..Profile::default()
        });
        let changed = absorb(&mut profile, command, findings);
        match origin {
            Origin::Exact => profile.history.exact_runs = profile.history.exact_runs.saturating_add(1),
            Origin::Start => profile.history.refining_runs = profile.history.refining_runs.saturating_add(1),
        }
        (changed || origin == Origin::Exact).then_some(profile)
    })
}

/// Adds what a start showed to the profile of `key`, unless that was written less than `interval` ago: a profile costs
/// at most one write in that time, and of a program started again and again the next start shows the same.
pub fn keep_start(
    store: &Store,
    key: &ProfileKey,
    command: &[OsString],
    started: Started<'_>,
    interval: Duration,
) -> Result<(), StoreError> {
    if store.was_just_written(key, interval) {
        return Ok(());
    }
    store.update(key, |before| {
        let mut profile = before?;
        // Where another start changed it meanwhile, what was tried here was another profile's.
        if profile == *started.profile {
            settle(&mut profile, &started.outcome);
        }
        if absorb(&mut profile, command, started.news) {
            profile.history.refining_runs = profile.history.refining_runs.saturating_add(1);
        }
        if let Some(mut start) = started.start {
            let last = profile.starts.last().map_or(0, |start| start.unix_s);
            start.unix_s = clock::unix_s().max(last.saturating_add(1));
            profile.starts = newest(&profile.starts, &[start]);
        }
        Some(profile)
    })
}

/// Adds findings. Returns whether anything changed; only then is the profile dated.
fn absorb(profile: &mut Profile, command: &[OsString], findings: Findings) -> bool {
    let changed = profile.absorb(findings.files, findings.lookups);
    if changed {
        let now = clock::unix_s();
        if profile.history.created_unix_s == 0 {
            profile.history.created_unix_s = now;
        }
        profile.history.updated_unix_s = now;
        profile.command = readable(command);
    }
    changed
}
