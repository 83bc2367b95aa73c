//! The page map of a file, from what was learned of the programs that use it.

use prepage_core::page::PageRange;
use prepage_core::page_map::PageMap;
use prepage_core::profile::{Extent, Fingerprint, Profile, ProfiledFile};
use prepage_core::{PAGE_SIZE, PageIndex};

/// A map and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Made {
    /// The map.
    pub map: PageMap,
    /// Profiles that know the file.
    pub profiles: usize,
}

/// The pages of the file that holds `fingerprint` which any of `profiles` knows to be used, whatever the role, and
/// whatever path they know the file by. `None` where no profile knows the file.
pub fn make(
    profiles: &[Profile],
    path: &str,
    fingerprint: &Fingerprint,
    size_bytes: u64,
    made_unix_s: u64,
) -> Option<Made> {
    let is_it = |file: &&ProfiledFile| match fingerprint {
        Fingerprint::BuildId(_) => file.fingerprint == *fingerprint,
        Fingerprint::Ends(_) => file.fingerprint == *fingerprint && file.identity.size_bytes == size_bytes,
    };
    let knowing: Vec<&ProfiledFile> =
        profiles.iter().filter_map(|profile| profile.files.iter().find(is_it)).collect();
    if knowing.is_empty() {
        return None;
    }
    let end = PageIndex(size_bytes.div_ceil(PAGE_SIZE));
    let extents = knowing.iter().flat_map(|file| &file.extents);
    let pages = union(extents.filter(|extent| !extent.counts.is_forgotten()).map(|extent| cut(extent, end)));
    let map = PageMap { fingerprint: fingerprint.clone(), size_bytes, made_unix_s, path: path.into(), pages };
    Some(Made { map, profiles: knowing.len() })
}

fn cut(extent: &Extent, end: PageIndex) -> PageRange {
    PageRange::new(extent.range.start().min(end), extent.range.end().min(end))
}

/// The pages in any of `ranges`, as runs.
fn union(ranges: impl Iterator<Item = PageRange>) -> Vec<PageRange> {
    let mut ranges: Vec<PageRange> = ranges.filter(|range| !range.is_empty()).collect();
    ranges.sort();
    let mut runs: Vec<PageRange> = Vec::new();
    for range in ranges {
        match runs.last_mut() {
            Some(last) if range.start() <= last.end() => {
                *last = PageRange::new(last.start(), last.end().max(range.end()));
            }
            _ => runs.push(range),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::{Evidence, FileIdentity};

    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    fn profile(path: &str, id: u8, ranges: &[(u64, u64)]) -> Profile {
        let extents = ranges.iter().map(|&(start, end)| Extent::new(range(start, end), 0, Evidence::Seen));
        let file = ProfiledFile {
            path: path.into(),
            identity: FileIdentity {
                device: 1,
                inode: 1,
                size_bytes: 9 * PAGE_SIZE,
                mtime_ns: 0,
                ctime_ns: 0,
            },
            fingerprint: Fingerprint::BuildId(vec![id]),
            learned_unix_s: 0,
            extents: extents.collect(),
        };
        Profile { files: vec![file], ..Profile::default() }
    }

    #[test]
    fn the_pages_of_all_roles_and_no_forgotten_ones_are_in_the_map() {
        let mut third = profile("/x", 1, &[(7, 8)]);
        let forgotten = &mut third.files[0].extents[0].counts;
        *forgotten = forgotten.spare(60);
        let profiles = [
            profile("/x", 1, &[(0, 2), (3, 4)]),
            profile("/moved", 1, &[(1, 3), (8, 20)]),
            profile("/x", 2, &[(6, 7)]),
        ];
        let made =
            |profiles: &[Profile]| make(profiles, "/x", &Fingerprint::BuildId(vec![1]), 9 * PAGE_SIZE, 5);
        let all = made(&profiles).unwrap();
        assert_eq!(all.map.pages, [range(0, 4), range(8, 9)]);
        assert_eq!(all.profiles, 2);
        assert!(third.files[0].extents[0].counts.is_forgotten());
        assert_eq!(made(&[third]).unwrap().map.pages, []);
        assert_eq!(made(&profiles[2..]), None);
    }
}
