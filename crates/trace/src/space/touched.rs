//! Which pages of its memory a process has touched.

use std::sync::Arc;

use prepage_core::{PageIndex, PageRange};
use roaring::RoaringTreemap;

/// A set of pages that forks cheaply: both sides share it until one of them changes it, and what is copied then is compressed.
#[derive(Clone, Debug, Default)]
pub(super) struct TouchedPages(Arc<RoaringTreemap>);

impl TouchedPages {
    /// Adds `page` and says whether it was there.
    pub(super) fn insert(&mut self, page: PageIndex) -> bool {
        self.0.contains(page.0) || !Arc::make_mut(&mut self.0).insert(page.0)
    }

    /// Adds `pages`.
    pub(super) fn add(&mut self, pages: PageRange) {
        Arc::make_mut(&mut self.0).insert_range(pages.start().0..pages.end().0);
    }

    /// Removes `pages`.
    pub(super) fn forget(&mut self, pages: PageRange) {
        if !self.0.is_empty() {
            Arc::make_mut(&mut self.0).remove_range(pages.start().0..pages.end().0);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use prepage_testing::Random;

    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    #[test]
    fn behaves_as_a_plain_set_through_forks() {
        let mut shared = vec![TouchedPages::default()];
        let mut plain = vec![HashSet::new()];
        let mut random = Random::new(0);
        let mut next = |below: u64| random.below(below);
        for _ in 0..20_000 {
            let who = next(shared.len() as u64) as usize;
            match next(20) {
                0 if shared.len() < 40 => {
                    let child = shared[who].clone();
                    shared.push(child);
                    let child = plain[who].clone();
                    plain.push(child);
                }
                1 => {
                    let start = next(1000);
                    let range = pages(start, start + next(300) + 1);
                    shared[who].forget(range);
                    plain[who].retain(|&page| !range.contains(PageIndex(page)));
                }
                _ => {
                    let page = next(1200);
                    assert_eq!(shared[who].insert(PageIndex(page)), !plain[who].insert(page), "{page}");
                }
            }
        }
    }

    #[test]
    fn forgetting_a_huge_range_is_cheap() {
        let mut touched = TouchedPages::default();
        touched.insert(PageIndex(5));
        touched.forget(pages(0, 1 << 40));
        assert!(!touched.insert(PageIndex(5)));
    }
}
