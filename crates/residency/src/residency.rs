//! Which pages of a file are in memory.

use std::io;
use std::os::fd::AsFd;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::cachestat::{self, CacheCounts};
use prepage_sys::mapping::{FileMapping, may_know_residency};
use rustix::io::Errno;

use crate::target::Opened;

/// Pages looked at in one go: 1 GiB of file, a mincore vector of 256 KiB.
const WINDOW_PAGES: u64 = 1 << 18;
/// Into how many parts a longer range is divided, and each of these again, to find the windows that have pages in memory. A file of some EiB
/// has 2^32 windows, and is divided six times; one of 64 GiB, of which all may be in memory, once.
const PARTS: u64 = 64;

/// Why it is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResidencyError {
    /// The kernel answers only the owner, those who may write the file, and root.
    #[error("only the owner and those who may write the file may ask which of its pages are in memory")]
    NotAllowed,
    /// It cannot be mapped or asked about.
    #[error("which pages are in memory cannot be found out")]
    Io(#[source] io::Error),
}

/// Which of the pages that were asked about are in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Residency {
    /// The pages asked about.
    pub asked: Vec<PageRange>,
    /// The runs of those that are in memory, sorted.
    pub resident: Vec<PageRange>,
    /// Their states; `None` before Linux 6.5, and in an overlay (overlayfs).
    pub states: Option<CacheCounts>,
}

impl Residency {
    /// Looks which pages of `opened` are in memory, without reading any.
    ///
    /// # Errors
    /// mincore(2) would answer "all" to those who may not know; this gives [`ResidencyError::NotAllowed`].
    pub fn of(opened: &Opened) -> Result<Self, ResidencyError> {
        let fd = opened.file.as_fd();
        if !may_know_residency(fd).map_err(ResidencyError::Io)? {
            return Err(ResidencyError::NotAllowed);
        }
        let sees = cachestat::sees(fd);
        let states = sees.then(CacheCounts::default);
        let mut residency = Self { asked: opened.ranges.clone(), states, ..Self::default() };
        for range in &opened.ranges {
            residency.look_where_some_are(opened, *range, sees)?;
        }
        Ok(residency)
    }

    /// How many pages are in memory.
    pub fn resident_pages(&self) -> u64 {
        self.resident.iter().map(|range| range.len()).sum()
    }

    /// How many pages were asked about.
    pub fn asked_pages(&self) -> u64 {
        self.asked.iter().map(|range| range.len()).sum()
    }

    /// The runs that were asked about and are not in memory.
    pub fn absent(&self) -> Vec<PageRange> {
        without(&self.asked, &self.resident)
    }

    /// What was asked about, cut into `cells` equal parts: the share (0 to 1) of each that is in memory. Fewer parts
    /// where there are fewer pages.
    pub fn shares(&self, cells: usize) -> Vec<f64> {
        let pages = self.asked_pages();
        let cells = (cells as u64).min(pages);
        let mut counts = vec![0u64; cells as usize];
        let edge = |cell: u64| (u128::from(cell) * u128::from(pages)).div_ceil(u128::from(cells)) as u64;
        // Pages are counted through, without the gaps between the ranges asked about.
        let mut passed = 0;
        let mut resident = self.resident.iter().peekable();
        for asked in &self.asked {
            while let Some(run) = resident.next_if(|run| run.start() < asked.end()) {
                let mut at = passed + (run.start().0 - asked.start().0);
                let end = at + run.len();
                while at < end {
                    let cell = (u128::from(at) * u128::from(cells) / u128::from(pages)) as u64;
                    let next = edge(cell + 1).min(end);
                    counts[cell as usize] += next - at;
                    at = next;
                }
            }
            passed += asked.len();
        }
        let share =
            |(cell, &count): (usize, &u64)| count as f64 / (edge(cell as u64 + 1) - edge(cell as u64)) as f64;
        counts.iter().enumerate().map(share).collect()
    }

    /// Looks at the parts of `range` that have pages in memory; at all of it unless cachestat(2) `sees` the file's pages.
    fn look_where_some_are(
        &mut self,
        opened: &Opened,
        range: PageRange,
        sees: bool,
    ) -> Result<(), ResidencyError> {
        if sees {
            match cachestat::counts(opened.file.as_fd(), range) {
                Ok(counts) if counts.cached > 0 && range.len() > WINDOW_PAGES => {
                    let part_pages = range.len().div_ceil(PARTS).max(WINDOW_PAGES);
                    let mut parts = parts_of(range, part_pages);
                    return parts.try_for_each(|part| self.look_where_some_are(opened, part, sees));
                }
                Ok(counts) => {
                    if let Some(states) = &mut self.states {
                        add(states, &counts);
                    }
                    if counts.cached == 0 {
                        return Ok(());
                    }
                }
                Err(error) if error.raw_os_error() == Some(Errno::PERM.raw_os_error()) => {
                    return Err(ResidencyError::NotAllowed);
                }
                Err(_) => self.states = None,
            }
        }
        let mut windows = parts_of(range, WINDOW_PAGES);
        windows.try_for_each(|window| self.look(opened, window)).map_err(ResidencyError::Io)
    }

    fn look(&mut self, opened: &Opened, window: PageRange) -> io::Result<()> {
        let pages = FileMapping::new(opened.file.as_fd(), window)?.resident()?;
        let mut at = 0;
        while at < pages.len() {
            let end =
                pages[at..].iter().position(|&page| page != pages[at]).map_or(pages.len(), |len| at + len);
            if pages[at] {
                self.push(PageRange::new(
                    PageIndex(window.start().0 + at as u64),
                    PageIndex(window.start().0 + end as u64),
                ));
            }
            at = end;
        }
        Ok(())
    }

    fn push(&mut self, run: PageRange) {
        match self.resident.last_mut() {
            Some(last) if last.end() == run.start() => *last = PageRange::new(last.start(), run.end()),
            _ => self.resident.push(run),
        }
    }
}

/// The runs of `all` that are in none of `some`, which lie within them. Both are sorted.
pub(crate) fn without(all: &[PageRange], some: &[PageRange]) -> Vec<PageRange> {
    let mut left = Vec::new();
    let mut some = some.iter().peekable();
    for range in all {
        let mut at = range.start();
        while let Some(next) = some.next_if(|next| next.start() < range.end()) {
            if at < next.start() {
                left.push(PageRange::new(at, next.start()));
            }
            at = next.end();
        }
        if at < range.end() {
            left.push(PageRange::new(at, range.end()));
        }
    }
    left
}

fn parts_of(range: PageRange, part_pages: u64) -> impl Iterator<Item = PageRange> {
    let starts = (range.start().0..range.end().0).step_by(part_pages as usize);
    starts.map(move |start| {
        PageRange::new(PageIndex(start), PageIndex((start + part_pages).min(range.end().0)))
    })
}

fn add(sum: &mut CacheCounts, counts: &CacheCounts) {
    sum.cached += counts.cached;
    sum.dirty += counts.dirty;
    sum.writeback += counts.writeback;
    sum.evicted += counts.evicted;
    sum.recently_evicted += counts.recently_evicted;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(PageIndex(start), PageIndex(end))
    }

    #[test]
    fn shares_are_of_what_was_asked_about() {
        let residency = Residency {
            asked: vec![range(10, 14), range(20, 24)],
            resident: vec![range(11, 13), range(20, 24)],
            states: None,
        };
        assert_eq!(residency.shares(2), [0.5, 1.0]);
        assert_eq!(residency.shares(4), [0.5, 0.5, 1.0, 1.0]);
        assert_eq!(residency.shares(100), [0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(residency.absent(), [range(10, 11), range(13, 14)]);
        assert!(Residency::default().shares(5).is_empty());
    }

    proptest! {
        /// Against the plain way: a flag for each page.
        #[test]
        fn runs_cells_and_gaps_agree_with_single_pages(
            pages in prop::collection::vec((any::<bool>(), any::<bool>()), 1..200), cells in 1..40usize
        ) {
            let runs = |wanted: &dyn Fn(&(bool, bool)) -> bool| {
                let mut runs: Vec<PageRange> = Vec::new();
                for (at, _) in pages.iter().enumerate().filter(|(_, page)| wanted(page)) {
                    match runs.last_mut() {
                        Some(last) if last.end().0 == at as u64 => *last = range(last.start().0, at as u64 + 1),
                        _ => runs.push(range(at as u64, at as u64 + 1)),
                    }
                }
                runs
            };
            let residency = Residency {
                asked: runs(&|page| page.0), resident: runs(&|page| page.0 && page.1), states: None,
            };
            prop_assert_eq!(residency.absent(), runs(&|page| page.0 && !page.1));
            let asked: Vec<bool> = pages.iter().filter(|page| page.0).map(|page| page.1).collect();
            let shares = residency.shares(cells);
            let cells = cells.min(asked.len());
            prop_assert_eq!(shares.len(), cells);
            let mut expected = vec![(0u32, 0u32); cells];
            for (at, &resident) in asked.iter().enumerate() {
                let cell = &mut expected[at * cells / asked.len()];
                *cell = (cell.0 + u32::from(resident), cell.1 + 1);
            }
            for (share, (resident, all)) in shares.iter().zip(expected) {
                prop_assert!((share - f64::from(resident) / f64::from(all)).abs() < 1e-9);
            }
        }
    }
}
