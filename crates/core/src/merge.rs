//! Two profiles of one program made into one.
//!
//! Everything is joined by itself: each page of each content of each file, each name, each start. The join of two
//! counters is the larger, of two ranks the earlier, of two times the later. It is commutative, associative and
//! idempotent, so profiles can be merged in any order, again and again, on any number of machines, with one result.
//!
//! A file that two profiles hold with different content stays twice: which of them a machine has shows when it
//! looks ([`Profile::keep_latest_contents`] keeps one). To choose while merging, the one learned later say, could not be
//! associative: with A learned at 1 and at 5 and B learned at 3, it would depend on the order whether what was learned of
//! A at 1 is left.

use std::collections::BTreeMap;

use crate::cold_start::newest;
use crate::extent::join;
use crate::profile::{History, Lookup, Profile, ProfiledFile};

impl Profile {
    /// Everything that either profile knows.
    ///
    /// Merging profiles of different programs or roles makes sense to nobody; where it happens, one of both names is
    /// kept, the same one in any order.
    #[must_use]
    pub fn merge(&self, other: &Self) -> Self {
        let named = |profile: &Self| (profile.program.clone(), profile.role.clone());
        let (program, role) = named(self).max(named(other));
        let called = |profile: &Self| (profile.history.updated_unix_s, profile.command.clone());
        let (_, command) = called(self).max(called(other));
        Self {
            program,
            role,
            command,
            history: self.history.merge(other.history),
            files: merge_files(&self.files, &other.files),
            lookups: merge_lookups(&self.lookups, &other.lookups),
            starts: newest(&self.starts, &other.starts),
        }
    }

    /// Leaves of each file only the content learned last.
    pub fn keep_latest_contents(&mut self) {
        let mut latest: BTreeMap<String, (u64, usize)> = BTreeMap::new();
        for (at, file) in self.files.iter().enumerate() {
            let place = latest.entry(file.path.clone()).or_insert((file.learned_unix_s, at));
            *place = (*place).max((file.learned_unix_s, at));
        }
        let mut at = 0;
        self.files.retain(|file| {
            at += 1;
            latest[&file.path].1 == at - 1
        });
    }
}

impl History {
    fn merge(self, other: Self) -> Self {
        let created = [self.created_unix_s, other.created_unix_s].into_iter().filter(|time| *time > 0).min();
        Self {
            created_unix_s: created.unwrap_or(0),
            updated_unix_s: self.updated_unix_s.max(other.updated_unix_s),
            exact_runs: self.exact_runs.max(other.exact_runs),
            refining_runs: self.refining_runs.max(other.refining_runs),
            looks_due: self.looks_due.max(other.looks_due),
            looks_rest: self.looks_rest.max(other.looks_rest),
        }
    }
}

fn merge_files(one: &[ProfiledFile], other: &[ProfiledFile]) -> Vec<ProfiledFile> {
    let mut contents = BTreeMap::new();
    for file in one.iter().chain(other) {
        let content = (file.path.clone(), file.fingerprint.clone(), file.identity.size_bytes);
        contents
            .entry(content)
            .and_modify(|known: &mut ProfiledFile| {
                known.extents = join(&known.extents, &file.extents);
                (known.learned_unix_s, known.identity) =
                    (known.learned_unix_s, known.identity).max((file.learned_unix_s, file.identity));
            })
            .or_insert_with(|| ProfiledFile { extents: join(&file.extents, &[]), ..file.clone() });
    }
    let mut files: Vec<ProfiledFile> = contents.into_values().collect();
    // Stable: files used at the same time stay in the order of their paths.
    files.sort_by_key(ProfiledFile::rank);
    files
}

fn merge_lookups(one: &[Lookup], other: &[Lookup]) -> Vec<Lookup> {
    let mut names: BTreeMap<&str, (u32, bool)> = BTreeMap::new();
    for lookup in one.iter().chain(other) {
        names
            .entry(&lookup.path)
            .and_modify(|(rank, list)| (*rank, *list) = ((*rank).min(lookup.rank), *list || lookup.list))
            .or_insert((lookup.rank, lookup.list));
    }
    let mut lookups: Vec<Lookup> =
        names.into_iter().map(|(path, (rank, list))| Lookup { rank, path: path.into(), list }).collect();
    lookups.sort_by_key(|lookup| lookup.rank);
    lookups
}
