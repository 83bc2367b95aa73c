//! What the roles of one executable have in common: a guess for a role that was never seen.

use std::collections::HashMap;

use crate::counts::Counts;
use crate::extent::{Evidence, Extent, simplified};
use crate::page::{PageIndex, PageRange};
use crate::profile::{Lookup, Profile, ProfiledFile};

/// Of the roles, each counted by how sure it is of a page, at least this share must want it.
const SHARE_MIN: f64 = 0.5;

/// The pages and names that most of `roles` want. Nothing is known of them for the role this is a guess for, and that is
/// what their counters say.
pub fn shared(roles: &[Profile]) -> Profile {
    let mut contents: Vec<Vec<&ProfiledFile>> = Vec::new();
    let mut places: HashMap<(&str, u64), Vec<usize>> = HashMap::new();
    for file in roles.iter().flat_map(|role| &role.files) {
        let candidates = places.entry((&file.path, file.identity.size_bytes)).or_default();
        match candidates.iter().find(|&&at| contents[at][0].is_same_content(file)) {
            Some(&at) => contents[at].push(file),
            None => {
                candidates.push(contents.len());
                contents.push(vec![file]);
            }
        }
    }
    let wanted = |files: &Vec<&ProfiledFile>| {
        let extents = shared_extents(files, SHARE_MIN * roles.len() as f64);
        let latest = files.iter().max_by_key(|file| file.learned_unix_s)?;
        (!extents.is_empty()).then(|| ProfiledFile { extents, ..(*latest).clone() })
    };
    let mut files: Vec<ProfiledFile> = contents.iter().filter_map(wanted).collect();
    files.sort_by_key(ProfiledFile::rank);
    Profile { files, lookups: shared_lookups(roles), ..Profile::default() }
}

fn shared_extents(files: &[&ProfiledFile], enough: f64) -> Vec<Extent> {
    let mut cuts: Vec<PageIndex> = files
        .iter()
        .flat_map(|file| &file.extents)
        .flat_map(|extent| [extent.range.start(), extent.range.end()])
        .collect();
    cuts.sort_unstable();
    cuts.dedup();
    let mut extents = Vec::new();
    for cut in cuts.windows(2) {
        let wanting: Vec<&Extent> = files.iter().filter_map(|file| file.extent_of(cut[0])).collect();
        let sum: f64 = wanting.iter().map(|extent| extent.counts.probability()).sum();
        if sum >= enough && !wanting.is_empty() {
            extents.push(Extent {
                range: PageRange::new(cut[0], cut[1]),
                rank: wanting.iter().map(|extent| extent.rank).min().unwrap_or(u32::MAX),
                evidence: Evidence::Near,
                counts: Counts::default(),
                by_read: wanting.iter().any(|extent| extent.by_read),
            });
        }
    }
    simplified(&extents)
}

fn shared_lookups(roles: &[Profile]) -> Vec<Lookup> {
    let mut names: HashMap<&str, (usize, Lookup)> = HashMap::new();
    for lookup in roles.iter().flat_map(|role| &role.lookups) {
        let (count, known) = names.entry(&lookup.path).or_insert_with(|| (0, lookup.clone()));
        *count += 1;
        known.rank = known.rank.min(lookup.rank);
        known.list |= lookup.list;
    }
    let most = names.into_values().filter(|(count, _)| *count as f64 >= SHARE_MIN * roles.len() as f64);
    let mut lookups: Vec<Lookup> = most.map(|(_, lookup)| lookup).collect();
    lookups.sort();
    lookups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{FileIdentity, Fingerprint};

    fn role(content: u32, extents: &[(u64, u64, Counts)], names: &[&str]) -> Profile {
        let extent = |&(start, end, counts)| Extent {
            counts,
            ..Extent::new(PageRange::new(PageIndex(start), PageIndex(end)), start as u32, Evidence::Exact)
        };
        let file = ProfiledFile {
            path: "/lib/x".into(),
            identity: FileIdentity { device: 0, inode: 0, size_bytes: 1 << 20, mtime_ns: 0, ctime_ns: 0 },
            fingerprint: Fingerprint::Ends(content),
            learned_unix_s: 0,
            extents: extents.iter().map(extent).collect(),
        };
        let lookup =
            |(rank, path): (usize, &&str)| Lookup { rank: rank as u32, path: (*path).into(), list: false };
        Profile {
            files: vec![file],
            lookups: names.iter().enumerate().map(lookup).collect(),
            ..Profile::default()
        }
    }

    #[test]
    fn what_most_roles_want_is_shared() {
        let unlikely = Counts::default().spare(9);
        let roles = [
            role(1, &[(0, 10, Counts::EXACT), (20, 30, Counts::EXACT)], &["/a", "/b"]),
            role(1, &[(5, 15, Counts::EXACT), (20, 30, unlikely)], &["/a", "/c"]),
            role(1, &[(8, 9, Counts::EXACT)], &["/a"]),
        ];
        let shared = shared(&roles);
        let ranges: Vec<_> =
            shared.files[0].extents.iter().map(|e| (e.range.start().0, e.range.end().0)).collect();
        assert_eq!(ranges, [(5, 10)]);
        assert_eq!(shared.files[0].extents[0].counts.probability(), 0.5);
        assert_eq!(shared.lookups.len(), 1);
    }

    #[test]
    fn contents_are_not_mixed_and_of_nothing_comes_nothing() {
        let roles = [1, 2, 3].map(|content| role(content, &[(0, 10, Counts::EXACT)], &[]));
        assert!(shared(&roles).files.is_empty());
        assert_eq!(shared(&roles[..1]).pages(), 10);
        assert_eq!(shared(&[]), Profile::default());
    }
}
