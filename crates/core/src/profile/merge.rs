//! Profiles of one program from several hosts made into one.
//!
//! Every host counts the same: a counter of the result is the mean over all hosts, where a host that knows a file's
//! content or was observed without it counts pages it does not have as unused. So what one host of a thousand uses has a
//! probability of one in a thousand, whatever the other hosts' counters are.
//!
//! A profile names its hosts ([`Profile::sources`]), and a merged one weighs as many as it names. Of profiles that
//! share hosts the one with most hosts (of equals, the one updated last, and then the one that knows more) speaks for these, and
//! the others only for the hosts that are theirs alone. So merging the same again changes nothing, and the order of the profiles does not matter.

use std::collections::{BTreeMap, BTreeSet};

use super::counts::Counts;
use super::extent::{known_or, simplified};
use super::start::newest;
use super::{Extent, Fingerprint, History, Lookup, Profile, ProfiledFile};
use crate::page::{PageIndex, PageRange};

/// Of the roles, each counted by how sure it is of a page, at least this share must want what they are said to share.
const SHARE_MIN: f64 = 0.5;

/// One profile of many. Those of different programs or roles make sense to nobody; where it happens, one of the names is
/// kept, the same one in any order.
pub fn merge(profiles: &[&Profile]) -> Profile {
    let mut ordered = profiles.to_vec();
    ordered.sort_by_key(|profile| {
        let History { updated_unix_s, observations, .. } = profile.history;
        // An export of the same leaves out what is private.
        let known = (profile.pages(), profile.lookups.len());
        (profile.sources.len(), updated_unix_s, observations, known, *profile)
    });
    let mut sources = BTreeSet::new();
    let mut voices: Vec<(&Profile, u64)> = Vec::new();
    for profile in ordered.into_iter().rev() {
        let own = profile.sources.iter().filter(|source| sources.insert(**source)).count();
        // Nobody's: made by hand, or guessed from roles. It speaks once.
        let weight = if profile.sources.is_empty() { 1 } else { own };
        voices.extend((weight > 0).then_some((profile, weight as u64)));
    }
    if let [(only, _)] = voices[..] {
        return only.clone();
    }
    let mut merged = weigh(&voices);
    merged.sources = sources.into_iter().collect();
    merged
}

/// What a host has learned itself, `own`, and what it lacks of what `others` know: contents of files, pages of those, and names. It is still the host's.
pub fn supplemented(own: &Profile, others: &Profile) -> Profile {
    let mut all = own.clone();
    let contents = (0..).zip(&own.files).map(|(at, file)| ((&*file.path, &file.fingerprint), at));
    let contents: BTreeMap<(&str, &Fingerprint), usize> = contents.collect();
    for file in &others.files {
        match contents.get(&(&*file.path, &file.fingerprint)) {
            Some(&at) => all.files[at].extents = known_or(&own.files[at].extents, &file.extents),
            None => all.files.push(file.clone()),
        }
    }
    let names: BTreeSet<&str> = own.lookups.iter().map(|name| &*name.path).collect();
    all.lookups.extend(others.lookups.iter().filter(|name| !names.contains(&*name.path)).cloned());
    all
}

/// What most of `roles` want, as a guess for a role that was never seen.
pub fn shared(roles: &[Profile]) -> Profile {
    let mut guess = weigh(&roles.iter().map(|role| (role, 1)).collect::<Vec<_>>());
    let is_shared = |counts: Counts| counts.probability() >= SHARE_MIN;
    guess.files.iter_mut().for_each(|file| file.extents.retain(|extent| is_shared(extent.counts)));
    guess.files.retain(|file| !file.extents.is_empty());
    guess.lookups.retain(|name| is_shared(name.counts));
    Profile { files: guess.files, lookups: guess.lookups, ..Profile::default() }
}

fn weigh(voices: &[(&Profile, u64)]) -> Profile {
    let mut merged = Profile::default();
    for (profile, _) in voices {
        let History { created_unix_s, updated_unix_s, observations, due, rest } = profile.history;
        let history = &mut merged.history;
        let created = [history.created_unix_s, created_unix_s].into_iter().filter(|time| *time > 0).min();
        history.created_unix_s = created.unwrap_or(0);
        history.updated_unix_s = history.updated_unix_s.max(updated_unix_s);
        history.observations = history.observations.max(observations);
        (history.due, history.rest) = (history.due.max(due), history.rest.max(rest));
        merged.program = merged.program.max(profile.program.clone());
        merged.role = merged.role.max(profile.role.clone());
        merged.starts = newest(&merged.starts, &profile.starts);
    }
    merged.files = weigh_files(voices);
    merged.lookups = weigh_names(voices);
    merged
}

/// What the voices say of one thing: sums over those that have it, each as often as it weighs.
#[derive(Clone, Copy, Default)]
struct Sums {
    weight: i128,
    used: i128,
    observed: i128,
    /// What the same voices would count for a thing they do not have.
    absent: i128,
    rank: i128,
    by_read: i128,
}

impl Sums {
    fn of(counts: Counts, rank: u32, by_read: bool, voice: Voice) -> Self {
        let (used, observed) = counts.sixteenths();
        let weight = voice.weight as i128;
        Self {
            weight,
            used: weight * i128::from(used),
            observed: weight * i128::from(observed),
            absent: weight * i128::from(voice.absent),
            rank: weight * i128::from(rank),
            by_read: weight * i128::from(by_read),
        }
    }

    fn add(&mut self, other: Self, sign: i128) {
        self.weight += sign * other.weight;
        self.used += sign * other.used;
        self.observed += sign * other.observed;
        self.absent += sign * other.absent;
        self.rank += sign * other.rank;
        self.by_read += sign * other.by_read;
    }

    /// The means over all voices of `all`, of which these are a part.
    fn mean(&self, all: &Self) -> Counts {
        let observed = self.observed + all.absent - self.absent;
        let mean = |sum: i128| (sum + all.weight / 2) / all.weight.max(1);
        Counts::from_sixteenths(mean(self.used) as u8, mean(observed) as u8)
    }
}

/// A profile in a merge.
#[derive(Clone, Copy)]
struct Voice {
    weight: u64,
    /// What it counts of a page it does not have, in sixteenths of starts.
    absent: u8,
}

impl Voice {
    fn of((profile, weight): (&Profile, u64)) -> Self {
        Self { weight, absent: Counts::unused_in(profile.history.observations.max(1).into()).sixteenths().1 }
    }
}

/// Each content of each file by itself: a host with another content of the path says nothing of this one.
fn weigh_files(voices: &[(&Profile, u64)]) -> Vec<ProfiledFile> {
    let mut contents: BTreeMap<(&str, &Fingerprint), Vec<(&ProfiledFile, Voice)>> = BTreeMap::new();
    let mut of_path: BTreeMap<&str, Sums> = BTreeMap::new();
    let mut all = Sums::default();
    for &voice in voices {
        let (profile, voice) = (voice.0, Voice::of(voice));
        all.add(Sums::of(Counts::default(), 0, false, voice), 1);
        for file in &profile.files {
            contents.entry((&file.path, &file.fingerprint)).or_default().push((file, voice));
        }
        for path in profile.files.iter().map(|file| file.path.as_str()).collect::<BTreeSet<_>>() {
            of_path.entry(path).or_default().add(Sums::of(Counts::default(), 0, false, voice), 1);
        }
    }
    let merged = contents.into_iter().filter_map(|((path, _), files)| {
        let mut asked = all;
        let mut own = Sums::default();
        files.iter().for_each(|(_, voice)| own.add(Sums::of(Counts::default(), 0, false, *voice), 1));
        asked.add(of_path[path], -1);
        asked.add(own, 1);
        let latest =
            files.iter().map(|(file, _)| *file).max_by_key(|file| (file.learned_unix_s, file.identity))?;
        Some(ProfiledFile { extents: weigh_extents(&files, &asked), ..latest.clone() })
    });
    let mut merged: Vec<ProfiledFile> = merged.filter(|file| !file.extents.is_empty()).collect();
    // Stable: files used at the same time stay in the order of their paths.
    merged.sort_by_key(ProfiledFile::rank);
    merged
}

fn weigh_extents(files: &[(&ProfiledFile, Voice)], asked: &Sums) -> Vec<Extent> {
    let mut edges: Vec<(PageIndex, i128, Sums)> = Vec::new();
    for (file, voice) in files {
        for extent in &file.extents {
            let sums = Sums::of(extent.counts, extent.rank, extent.by_read, *voice);
            edges.push((extent.range.start(), 1, sums));
            edges.push((extent.range.end(), -1, sums));
        }
    }
    edges.sort_by_key(|(page, ..)| *page);
    let mut here = Sums::default();
    let mut extents = Vec::new();
    for (at, &(page, sign, sums)) in edges.iter().enumerate() {
        here.add(sums, sign);
        let Some(&(next, ..)) = edges.get(at + 1).filter(|next| next.0 > page && here.weight > 0) else {
            continue;
        };
        extents.push(Extent {
            range: PageRange::new(page, next),
            rank: (here.rank / here.weight) as u32,
            counts: here.mean(asked),
            by_read: here.by_read > 0,
        });
    }
    extents.retain(|extent| !extent.counts.is_forgotten());
    simplified(&extents)
}

fn weigh_names(voices: &[(&Profile, u64)]) -> Vec<Lookup> {
    let mut names: BTreeMap<&str, (Sums, bool)> = BTreeMap::new();
    let mut all = Sums::default();
    for &voice in voices {
        let (profile, voice) = (voice.0, Voice::of(voice));
        all.add(Sums::of(Counts::default(), 0, false, voice), 1);
        for (rank, name) in (0..).zip(&profile.lookups) {
            let known = names.entry(&name.path).or_default();
            known.0.add(Sums::of(name.counts, rank, false, voice), 1);
            known.1 |= name.list;
        }
    }
    let mut ranked: Vec<(i128, Lookup)> = names
        .into_iter()
        .map(|(path, (sums, list))| {
            (sums.rank / sums.weight.max(1), Lookup { path: path.into(), list, counts: sums.mean(&all) })
        })
        .collect();
    ranked.retain(|(_, name)| !name.counts.is_forgotten());
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, name)| name).collect()
}
