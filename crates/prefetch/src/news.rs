//! What a start needed that its profile does not hold.

use std::collections::{BTreeSet, HashMap};

use prepage_core::PageIndex;
use prepage_core::extent::{Evidence, Extent, Touches};
use prepage_core::profile::{Profile, ProfiledFile};

use crate::sightings::Findings;
use crate::watch::FAULT_AROUND_PAGES;

/// What of `findings` is not in `profile`.
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
        (!seen.is_empty()).then(|| ProfiledFile { extents: pages.extents(), ..file.clone() })
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
