//! Pages between those that are unwired go with them, where that makes one run of many.
//!
//! ```text
//!   asked for:   x . . w . x . w w . x        x: to be unwired   w: wired   .: in no map
//!   one by one:  ─         ─         ─        each run interrupts the other CPUs on its own
//!   with w:      ─────────────────────        one interrupt; a page w that is used faults once more, and reads nothing
//! ```
//! What goes so is unwired a little early: by the time its own turn comes there is nothing left to do, unless it was touched. A page that was touched since its turn
//! stays wired, or the order of reclaim would take it for idle; it is unmapped all the same.

use prepage_core::{PageIndex, PageRange};

use crate::blocks::BLOCK_PAGES;
use crate::object::Frames;
use crate::pages::Between;

/// Wired pages that go with two others for one interrupt less. An interrupt of a virtual CPU takes 20 µs of one CPU and 5 of the other, a fault that only wires a
/// page again takes 5; and most of these pages are unwired without another interrupt.
const MOST_BETWEEN: usize = 8;

impl Frames {
    /// `pages`, which ascend, and those between them that are to go with them.
    pub(crate) fn with_between(&self, pages: &[PageIndex]) -> Vec<PageIndex> {
        let mut all = Vec::with_capacity(2 * pages.len());
        for pair in pages.windows(2) {
            all.push(pair[0]);
            let (before, mut used) = (all.len(), 0);
            let mut may_go = |page| {
                let between = self.pages.between(page);
                used += usize::from(matches!(between, Between::Wired | Between::Touched));
                all.extend((between == Between::Wired).then_some(page));
                between != Between::Stays && used <= MOST_BETWEEN
            };
            let mut between = (pair[0].0 + 1..pair[1].0).map(PageIndex);
            let may_go = is_one_table(pair[0], pair[1]) && between.all(&mut may_go);
            if !may_go {
                all.truncate(before);
            }
        }
        all.extend(pages.last());
        all
    }

    /// `runs`, which ascend, as one where few pages between them are in a map. These fault once more.
    pub(crate) fn joined(&self, runs: Vec<PageRange>) -> Vec<PageRange> {
        let mut joined: Vec<PageRange> = Vec::new();
        for run in runs {
            let mut used = 0;
            let may_go = |page| {
                let between = self.pages.between(PageIndex(page));
                used += usize::from(between == Between::Touched);
                matches!(between, Between::Unmapped | Between::Touched) && used <= MOST_BETWEEN
            };
            match joined.last_mut() {
                Some(last)
                    if is_one_table(PageIndex(last.end().0 - 1), run.start())
                        && (last.end().0..run.start().0).all(may_go) =>
                {
                    *last = PageRange::new(last.start(), run.end());
                }
                _ => joined.push(run),
            }
        }
        joined
    }
}

/// Whether one page table shows both, where the object lies in a map as its blocks do.
fn is_one_table(page: PageIndex, other: PageIndex) -> bool {
    page.0 / BLOCK_PAGES == other.0 / BLOCK_PAGES
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use prepage_core::PAGE_SIZE;

    use super::*;
    use crate::pages::Unwire;
    use crate::writes::runs_of;
    use crate::{MapOptions, Vm, VmOptions};

    fn pages(of: &[u64]) -> Vec<PageIndex> {
        of.iter().copied().map(PageIndex).collect()
    }

    #[test]
    fn pages_between_go_with_others_where_they_are_few_and_may() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1024 * PAGE_SIZE).unwrap();
        let vm = Vm::new(VmOptions::default().frame_limit_bytes(4096 * PAGE_SIZE)).unwrap();
        let object = vm.file(file.path()).unwrap();
        let map = vm.map(&object, &MapOptions::shared().policy("none".parse().unwrap())).unwrap();
        let populate = |from: u64, to: u64| {
            map.populate(PageRange::new(PageIndex(from), PageIndex(to))).unwrap();
        };
        // Wired: 0 to 3, 100 to 110, 200 to 202, 510 to 513; all else is in no map.
        [(0, 4), (100, 111), (200, 203), (510, 514)].into_iter().for_each(|(from, to)| populate(from, to));
        let frames = object.core.frames().unwrap();
        let joined = |of: &[u64]| {
            let all = frames.with_between(&pages(of));
            for &page in &all {
                assert_eq!(frames.pages.unwire(page, || (), || ()), Unwire::Done);
            }
            let runs = frames.joined(runs_of(all.iter().copied()));
            let runs: Vec<_> = runs.iter().map(|run| (run.start().0, run.end().0)).collect();
            all.iter().for_each(|&page| assert!(frames.pages.rewire(page)));
            (all, runs)
        };
        assert_eq!(joined(&[0, 3]), (pages(&[0, 1, 2, 3]), vec![(0, 4)]));
        assert_eq!(joined(&[3, 100]), (pages(&[3, 100]), vec![(3, 101)]), "no map shows one between");
        assert_eq!(joined(&[101, 110]).0.len(), 10);
        assert_eq!(joined(&[100, 110]).1, [(100, 101), (110, 111)], "nine are too many");
        assert_eq!(joined(&[511, 512]), (pages(&[511, 512]), vec![(511, 513)]), "they follow each other");
        assert_eq!(joined(&[510, 513]), (pages(&[510, 513]), vec![(510, 511), (513, 514)]), "two tables");
        frames.pages.set_pinned(PageIndex(2), true);
        assert_eq!(joined(&[0, 3]), (pages(&[0, 3]), vec![(0, 1), (3, 4)]), "one is pinned");
        frames.pages.set_pinned(PageIndex(2), false);
        frames.pages.watch(PageIndex(2));
        assert_eq!(joined(&[0, 3]), (pages(&[0, 1, 3]), vec![(0, 4)]), "it was touched, which is to be seen");
        frames.pages.end_watch(PageIndex(2));
        assert_eq!(joined(&[0, 3]).0.len(), 4);
        (101..110).for_each(|page| frames.pages.watch(PageIndex(page)));
        assert_eq!(joined(&[100, 110]).1, [(100, 101), (110, 111)], "nine are too many");
        // Pinned, and about to come.
        frames.pages.set_pinned(PageIndex(150), true);
        assert_eq!(joined(&[110, 200]).1, [(110, 111), (200, 201)]);
        frames.pages.set_pinned(PageIndex(150), false);
        assert_eq!(joined(&[110, 200]).1, [(110, 201)]);
        assert!(frames.joined(Vec::new()).is_empty() && frames.with_between(&[]).is_empty());
    }
}
