//! Which pages of its memory a process has touched.

use std::collections::HashMap;
use std::sync::Arc;

use prepage_core::{PageIndex, PageRange};

/// Pages in words of 64, by word number.
type Words = HashMap<u64, Word>;

/// One bit a page. In a layer, `forgotten` hides what older layers say.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    touched: u64,
    forgotten: u64,
}

/// A set of pages that forks cheaply.
///
/// It is a stack of layers: at a fork the newest is frozen and shared by both sides. Layers grow at least twofold
/// from top to bottom (see [`TouchedPages::fork`]), so there are few, however often a process forks.
#[derive(Clone, Debug, Default)]
pub(super) struct TouchedPages {
    own: Words,
    /// Oldest first.
    inherited: Vec<Arc<Words>>,
}

impl TouchedPages {
    /// Adds `page` and says whether it was there.
    pub(super) fn insert(&mut self, page: PageIndex) -> bool {
        let (number, bit) = (page.0 / 64, 1 << (page.0 % 64));
        if self.has(number, bit) {
            return true;
        }
        let word = self.own.entry(number).or_default();
        word.touched |= bit;
        word.forgotten &= !bit;
        false
    }

    /// Removes `pages`.
    pub(super) fn forget(&mut self, pages: PageRange) {
        if pages.is_empty() {
            return;
        }
        let (first, last) = (pages.start().0 / 64, (pages.end().0 - 1) / 64);
        let known = self.own.len() + self.inherited.iter().map(|layer| layer.len()).sum::<usize>();
        // A reservation of gigabytes has more words than were ever touched.
        if last - first < known as u64 {
            (first..=last).for_each(|number| self.forget_in(number, pages));
        } else {
            let layers = self.inherited.iter().map(Arc::as_ref).chain([&self.own]);
            let within = |number: &u64| (first..=last).contains(number);
            let numbers: Vec<u64> = layers.flat_map(|layer| layer.keys().copied().filter(within)).collect();
            numbers.into_iter().for_each(|number| self.forget_in(number, pages));
        }
    }

    /// The same set for a child; both sides go on separately.
    pub(super) fn fork(&mut self) -> Self {
        if !self.own.is_empty() {
            let mut layer = std::mem::take(&mut self.own);
            while let Some(below) = self.inherited.pop_if(|below| below.len() <= 2 * layer.len()) {
                for (&number, old) in below.iter() {
                    let new = layer.entry(number).or_default();
                    new.touched |= old.touched & !new.forgotten;
                    new.forgotten |= old.forgotten & !new.touched;
                }
            }
            self.inherited.push(Arc::new(layer));
        }
        self.clone()
    }

    fn has(&self, number: u64, bit: u64) -> bool {
        let layers = [&self.own].into_iter().chain(self.inherited.iter().rev().map(Arc::as_ref));
        for word in layers.filter_map(|layer| layer.get(&number)) {
            if word.touched & bit != 0 {
                return true;
            }
            if word.forgotten & bit != 0 {
                return false;
            }
        }
        false
    }

    fn forget_in(&mut self, number: u64, pages: PageRange) {
        let first = pages.start().0.saturating_sub(number * 64).min(64);
        let end = (pages.end().0 - number * 64).min(64);
        let mask = (first..end).fold(0, |mask, page| mask | 1 << page);
        let below = self.inherited.iter().any(|layer| layer.contains_key(&number));
        if below {
            let word = self.own.entry(number).or_default();
            word.touched &= !mask;
            word.forgotten |= mask;
        } else if let Some(word) = self.own.get_mut(&number) {
            word.touched &= !mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn pages(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    #[test]
    fn behaves_as_a_plain_set_through_forks() {
        let mut layered = vec![TouchedPages::default()];
        let mut plain = vec![HashSet::new()];
        let mut state = 0x1234_5678_9abc_def1u64;
        let mut next = |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % below
        };
        for _ in 0..20_000 {
            let who = next(layered.len() as u64) as usize;
            match next(20) {
                0 if layered.len() < 40 => {
                    let child = layered[who].fork();
                    layered.push(child);
                    let child = plain[who].clone();
                    plain.push(child);
                }
                1 => {
                    let start = next(1000);
                    let range = pages(start, start + next(300) + 1);
                    layered[who].forget(range);
                    plain[who].retain(|&page| !range.contains(PageIndex(page)));
                }
                _ => {
                    let page = next(1200);
                    assert_eq!(layered[who].insert(PageIndex(page)), !plain[who].insert(page), "{page}");
                }
            }
        }
    }

    #[test]
    fn layers_stay_few_in_a_process_that_forks_for_ever() {
        let mut parent = TouchedPages::default();
        for page in 0..10_000 {
            parent.insert(PageIndex(page * 64));
            parent.fork();
        }
        assert!(parent.inherited.len() <= 16, "{} layers", parent.inherited.len());
    }

    #[test]
    fn forgetting_a_huge_range_is_cheap() {
        let mut touched = TouchedPages::default();
        touched.insert(PageIndex(5));
        touched.forget(pages(0, 1 << 40));
        assert!(!touched.insert(PageIndex(5)));
    }
}
