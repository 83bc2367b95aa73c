//! What a start needed that its profile does not hold.

use std::collections::{BTreeSet, HashMap};

use prepage_core::PageIndex;
use prepage_core::extent::{Evidence, Extent, Touches};
use prepage_core::profile::{Profile, ProfiledFile};

use crate::sightings::Findings;
use crate::watch::FAULT_AROUND_PAGES;

/// What of `findings` is not in `profile`: pages, names, and that a file is the same in another place (installed again,
/// copied), which is looked into at each start until it is noted.
pub(crate) fn unknown_to(profile: &Profile, findings: &Findings) -> Findings {
    let known_files: HashMap<&str, &ProfiledFile> =
        profile.files.iter().map(|file| (file.path.as_str(), file)).collect();
    let known_names: HashMap<&str, bool> =
        profile.lookups.iter().map(|lookup| (lookup.path.as_str(), lookup.list)).collect();
    let exact = profile.history.exact_runs > 0;
    let news = |file: &ProfiledFile| {
        let known = known_files.get(file.path.as_str()).filter(|known| known.is_same_content(file));
        let is_known = |page: PageIndex| known.is_some_and(|known| known.contains(page));
        let new_pages =
            |extent: &Extent| extent.range.iter().filter(|&page| !is_known(page)).collect::<Vec<_>>();
        let mut pages = Touches::default();
        let mut seen: BTreeSet<PageIndex> = BTreeSet::new();
        for extent in file.extents.iter().filter(|extent| extent.evidence != Evidence::Near) {
            for page in new_pages(extent) {
                seen.insert(page);
                pages.add(page, extent);
            }
        }
        // A fault on a page of the profile only came before its prefetch: its neighbours are no news. Those of a new
        // page are worth a guess where all is guessed, and not where the pages that are touched are known one by one.
        for extent in file.extents.iter().filter(|extent| !exact && extent.evidence == Evidence::Near) {
            for page in new_pages(extent) {
                let from = PageIndex(page.0.saturating_sub(FAULT_AROUND_PAGES - 1));
                if seen.range(from..PageIndex(page.0.saturating_add(FAULT_AROUND_PAGES))).next().is_some() {
                    pages.add(page, extent);
                }
            }
        }
        let elsewhere = known.is_some_and(|known| known.identity != file.identity);
        (elsewhere || !seen.is_empty()).then(|| ProfiledFile { extents: pages.extents(), ..file.clone() })
    };
    Findings {
        files: findings.files.iter().filter_map(news).collect(),
        lookups: findings
            .lookups
            .iter()
            .filter(|lookup| known_names.get(lookup.path.as_str()).is_none_or(|&list| lookup.list && !list))
            .cloned()
            .collect(),
        unnamed_pages: findings.unnamed_pages,
    }
}

/// Pages named by a fault or a read().
pub(crate) fn seen_pages(findings: &Findings) -> u64 {
    let extents = findings.files.iter().flat_map(|file| &file.extents);
    extents.filter(|extent| extent.evidence != Evidence::Near).map(|extent| extent.range.len()).sum()
}

#[cfg(test)]
mod tests {
    use prepage_core::profile::{FileIdentity, Fingerprint};

    use super::*;

    fn file(inode: u64, fingerprint: u32, pages: &[u64]) -> ProfiledFile {
        let mut touches = Touches::default();
        pages.iter().for_each(|&page| touches.touch(PageIndex(page), 0, Evidence::Seen));
        ProfiledFile {
            path: "/a".into(),
            identity: FileIdentity { device: 1, inode, size_bytes: 1 << 20, mtime_ns: 3, ctime_ns: 4 },
            fingerprint: Fingerprint::Ends(fingerprint),
            learned_unix_s: 0,
            extents: touches.extents(),
        }
    }

    #[test]
    fn a_file_that_was_installed_again_is_news_until_that_is_noted() {
        let mut profile = Profile { files: vec![file(1, 7, &[1, 2, 3])], ..Profile::default() };
        let news = |profile: &Profile, seen: ProfiledFile| {
            unknown_to(profile, &Findings { files: vec![seen], ..Findings::default() }).files
        };
        assert_eq!(news(&profile, file(1, 7, &[2])), []);
        assert_eq!(news(&profile, file(1, 7, &[2, 5])), [file(1, 7, &[5])]);
        let moved = news(&profile, file(9, 7, &[2]));
        assert_eq!(moved, [file(9, 7, &[])]);
        assert!(profile.absorb(moved, vec![]));
        assert_eq!(profile.files, [file(9, 7, &[1, 2, 3])]);
        assert_eq!(news(&profile, file(9, 7, &[2])), []);
    }
}
