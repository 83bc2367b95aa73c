//! Which pages of its memory a process has touched.

use std::sync::Arc;

use prepage_core::{PageIndex, PageRange};
use roaring::RoaringTreemap;

/// The pages that a process has touched, and which of them are its own. Both sides of a fork share the sets until one of
/// them changes its own, and what is copied then is compressed.
#[derive(Clone, Debug, Default)]
pub(super) struct TouchedPages {
    touched: Arc<RoaringTreemap>,
    /// Those of the touched ones that nobody else has: since they were touched, or since the last fork, there was a fault that made them so.
    own: Arc<RoaringTreemap>,
}

impl TouchedPages {
    /// Notes a fault on `page` and says whether it gave the process a copy: of a page that a fork has shared, or, by a write behind
    /// a read, of the kernel's page of zeros. Else the page is taken for new: what is
    /// the process's own mostly has no fault again unless it was given back.
    pub(super) fn touch(&mut self, page: PageIndex) -> bool {
        if !self.touched.contains(page.0) {
            Arc::make_mut(&mut self.touched).insert(page.0);
            return false;
        }
        !self.own.contains(page.0) && Arc::make_mut(&mut self.own).insert(page.0)
    }

    /// Notes that `page` was read back from swap: the kernel may have kept its copy there, and the process may have to make the page its own again.
    pub(super) fn read_back(&mut self, page: PageIndex) {
        if !self.touched.contains(page.0) {
            Arc::make_mut(&mut self.touched).insert(page.0);
        }
        if self.own.contains(page.0) {
            Arc::make_mut(&mut self.own).remove(page.0);
        }
    }

    /// Forks: what was touched is both processes' from now on.
    pub(super) fn fork(&mut self) -> Self {
        self.own = Arc::default();
        self.clone()
    }

    /// Adds `pages` that were touched before anybody looked: other processes may have them too.
    pub(super) fn add(&mut self, pages: PageRange) {
        Arc::make_mut(&mut self.touched).insert_range(pages.start().0..pages.end().0);
    }

    /// Removes `pages`.
    pub(super) fn forget(&mut self, pages: PageRange) {
        for set in [&mut self.touched, &mut self.own] {
            if !set.is_empty() {
                Arc::make_mut(set).remove_range(pages.start().0..pages.end().0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use prepage_core::random::SplitMix;

    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    #[test]
    fn behaves_as_a_plain_set_through_forks() {
        // Of each process: the pages it has touched, and whether they are its own.
        let mut processes = vec![TouchedPages::default()];
        let mut plain = vec![HashMap::<u64, bool>::new()];
        let mut random = SplitMix::new(0);
        let mut next = |below: u64| random.below(below);
        for _ in 0..20_000 {
            let who = next(processes.len() as u64) as usize;
            match next(20) {
                0 if processes.len() < 40 => {
                    let child = processes[who].fork();
                    processes.push(child);
                    plain[who].values_mut().for_each(|is_own| *is_own = false);
                    let child = plain[who].clone();
                    plain.push(child);
                }
                1 => {
                    let start = next(1000);
                    let range = pages(start, start + next(300) + 1);
                    processes[who].forget(range);
                    plain[who].retain(|&page, _| !range.contains(PageIndex(page)));
                }
                2 => {
                    let page = next(1200);
                    processes[who].read_back(PageIndex(page));
                    plain[who].insert(page, false);
                }
                _ => {
                    let page = next(1200);
                    let was_own = plain[who].get(&page).copied();
                    plain[who].insert(page, was_own.is_some());
                    assert_eq!(processes[who].touch(PageIndex(page)), was_own == Some(false), "{page}");
                }
            }
        }
    }

    #[test]
    fn forgetting_a_huge_range_is_cheap() {
        let mut touched = TouchedPages::default();
        touched.add(pages(5, 6));
        touched.forget(pages(0, 1 << 40));
        assert!(!touched.touch(PageIndex(5)));
    }
}
