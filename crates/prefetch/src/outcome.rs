//! What a cold start showed of the pages that were not prefetched in it.
//!
//! | what is seen of a page | what it means |
//! |---|---|
//! | a fault or a stalled read() named it | used |
//! | it is not in memory after the start | not used |
//! | it is in memory now, was not before, and no fault near it can have brought it along | used, by a read() |
//! | every fault was watched, none was near it, and no read() is known to use it | not used |
//! | anything else | nothing |

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;

use prepage_core::profile::{Evidence, Extent, Profile, ProfiledFile};
use prepage_core::trial::{Outcome, PageOf};
use prepage_core::{PageIndex, PageRange};
use prepage_sys::cachestat::cached_pages;

use crate::identity::open_if_same;
use crate::resident::is_resident;
use crate::watch::Watched;

/// Extents up to this long are looked at page by page where some of their pages are in memory.
const PAGES_LOOKED_AT_MAX: u64 = 1024;

/// What was tried in a start.
#[derive(Debug)]
pub struct Tried<'a> {
    /// The whole profile.
    pub profile: &'a Profile,
    /// The part of it that was prefetched; no files' extents where nothing was.
    pub planned: &'a Profile,
    /// Pages of that part that were left out.
    pub tests: &'a [PageOf],
    /// For each of these, whether it was missing when the start began; `None` where that is not known.
    pub missing_before: &'a [Option<bool>],
    /// The kernel's read-ahead.
    pub read_ahead_pages: u64,
    /// Whether every fault was watched from the beginning.
    pub looked: bool,
}

/// For each page, whether it is missing in memory, without bringing it in; `None` where this user may not know.
pub fn missing(profile: &Profile, pages: &[PageOf]) -> Vec<Option<bool>> {
    let mut open = OpenFiles::new(profile);
    pages
        .iter()
        .map(|&PageOf { file, page }| open.get(file)?.count(one(page)).map(|cached| cached == 0))
        .collect()
}

impl Tried<'_> {
    /// What `watched` showed of it. `new_pages`, which were not known, are the caller's to count. `is_intact` says, asked
    /// last, whether memory still holds what was read in this start: where somebody dropped it, or needed the room,
    /// that a page is missing afterwards means nothing.
    pub fn outcome(&self, watched: &Watched, new_pages: u64, is_intact: impl FnOnce() -> bool) -> Outcome {
        let (mut outcome, mut absent) = (Outcome::default(), Outcome::default());
        self.look(watched, &mut outcome, &mut absent);
        outcome.new_pages = new_pages;
        if self.kept_what_was_used(watched) && is_intact() {
            outcome.unused.append(&mut absent.unused);
            outcome.tests.append(&mut absent.tests);
        }
        outcome
    }

    /// Whether pages that were waited for are still in memory, judged by a sample. Where nothing was prefetched there is
    /// nothing else to judge by.
    fn kept_what_was_used(&self, watched: &Watched) -> bool {
        const SAMPLE: usize = 8;
        let files = &watched.findings.files;
        let waited: Vec<(usize, PageIndex)> = files
            .iter()
            .enumerate()
            .flat_map(|(at, file)| named(&file.extents).map(move |extent| (at, extent.range.start())))
            .collect();
        let found = Profile { files: files.clone(), ..Profile::default() };
        let mut open = OpenFiles::new(&found);
        let mut sample = waited.iter().step_by((waited.len() / SAMPLE).max(1));
        (!waited.is_empty() || !self.planned.files.is_empty())
            && sample.all(|&(at, page)| open.get(at).is_some_and(|file| is_resident(&file.file, page)))
    }

    /// Notes in `absent` what rests on pages being missing in memory, in `outcome` all else.
    fn look(&self, watched: &Watched, outcome: &mut Outcome, absent: &mut Outcome) {
        let looked = self.looked && watched.lost == 0;
        outcome.looked = looked;
        let found: HashMap<&str, &ProfiledFile> =
            watched.findings.files.iter().map(|file| (file.path.as_str(), file)).collect();
        let found = |known: &ProfiledFile| {
            found.get(known.path.as_str()).copied().filter(|found| found.is_same_content(known))
        };
        let mut open = OpenFiles::new(self.profile);
        let mut counted_devices = HashSet::new();
        for (at, known) in self.profile.files.iter().enumerate() {
            let used = found(known).and_then(|found| named(&found.extents).next());
            if !counted_devices.contains(&known.identity.device)
                && let Some((file, used)) = open.get(at).zip(used)
                && file.counts_are_true(used.range.start())
            {
                counted_devices.insert(known.identity.device);
            }
        }
        for (at, known) in self.profile.files.iter().enumerate() {
            let seen = found(known).map_or(&[][..], |found| &found.extents);
            outcome.used.extend(named(seen).map(|extent| (at, extent.range)));
            let planned = self.planned.files.get(at).map_or(&[][..], |file| &file.extents);
            if looked {
                let by_fault = planned.iter().filter(|extent| !extent.by_read);
                outcome
                    .unused
                    .extend(by_fault.flat_map(|extent| outside(extent.range, seen)).map(|range| (at, range)));
            }
            let left: Vec<PageRange> =
                known.extents.iter().flat_map(|extent| outside(extent.range, planned)).collect();
            if !left.is_empty()
                && counted_devices.contains(&known.identity.device)
                && let Some(file) = open.get(at)
            {
                absent.unused.extend(
                    left.into_iter().flat_map(|range| file.missing_in(range)).map(|range| (at, range)),
                );
            }
        }
        for (&test, &missing_before) in self.tests.iter().zip(self.missing_before) {
            let Some(known) = self.profile.files.get(test.file) else { continue };
            let seen = found(known).map_or(&[][..], |found| &found.extents);
            let is_near = |extent: &Extent| {
                extent.range.start().0 <= test.page.0.saturating_add(self.read_ahead_pages)
                    && test.page.0 < extent.range.end().0.saturating_add(self.read_ahead_pages)
            };
            if named(seen).any(|extent| extent.range.contains(test.page)) {
                outcome.tests.push((test, true));
                continue;
            }
            let Some(file) = open.get(test.file) else { continue };
            let was_missing = missing_before == Some(true);
            match (is_resident(&file.file, test.page), was_missing) {
                (false, true) => absent.tests.push((test, false)),
                // Had a read() used it, nothing would have shown that: no fair sample of others.
                (false, false) => absent.unused.push((test.file, one(test.page))),
                (true, true)
                    if !named(seen).any(is_near) && file.count(one(test.page)).is_some_and(|n| n > 0) =>
                {
                    outcome.tests.push((test, true));
                }
                (true, _) => {}
            }
        }
    }
}

fn one(page: PageIndex) -> PageRange {
    PageRange::new(page, PageIndex(page.0.saturating_add(1)))
}

/// Extents whose every page was named by a fault or a read().
fn named(seen: &[Extent]) -> impl Iterator<Item = &Extent> {
    seen.iter().filter(|extent| extent.evidence != Evidence::Near)
}

/// The parts of `range` that none of `extents` (sorted) covers.
fn outside(range: PageRange, extents: &[Extent]) -> Vec<PageRange> {
    let mut start = range.start();
    let mut parts = Vec::new();
    let first = extents.partition_point(|extent| extent.range.end() <= start);
    for extent in extents[first..].iter().take_while(|extent| extent.range.start() < range.end()) {
        parts.push(PageRange::new(start, extent.range.start().max(start)));
        start = start.max(extent.range.end());
    }
    parts.push(PageRange::new(start.min(range.end()), range.end()));
    parts.retain(|part| !part.is_empty());
    parts
}

/// Files of a profile, opened when they are needed.
struct OpenFiles<'a> {
    profile: &'a Profile,
    files: HashMap<usize, Option<OpenFile>>,
}

struct OpenFile {
    file: File,
}

impl<'a> OpenFiles<'a> {
    fn new(profile: &'a Profile) -> Self {
        Self { profile, files: HashMap::new() }
    }

    fn get(&mut self, at: usize) -> Option<&OpenFile> {
        let open = || {
            let file = open_if_same(self.profile.files.get(at)?).ok()?;
            // A page that turns out to be missing shall not bring in others.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random);
            Some(OpenFile { file })
        };
        self.files.entry(at).or_insert_with(open).as_ref()
    }
}

impl OpenFile {
    /// Pages of `range` in memory; `None` where this user may not know.
    fn count(&self, range: PageRange) -> Option<u64> {
        cached_pages(self.file.as_fd(), range).ok()
    }

    /// Whether counts tell of this file system, as `used`, which should be in memory, shows. On one that stacks on
    /// others they may count nothing although all is there.
    fn counts_are_true(&self, used: PageIndex) -> bool {
        is_resident(&self.file, used) && self.count(one(used)).is_some_and(|cached| cached > 0)
    }

    /// The parts of `range` that are not in memory.
    fn missing_in(&self, range: PageRange) -> Vec<PageRange> {
        match self.count(range) {
            Some(0) => vec![range],
            Some(cached) if cached < range.len() && range.len() <= PAGES_LOOKED_AT_MAX => {
                range.iter().map(one).filter(|&page| self.count(page) == Some(0)).collect()
            }
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_extent_covers_is_outside() {
        let range = |start, end| PageRange::new(PageIndex(start), PageIndex(end));
        let extents =
            [(2, 4), (6, 7), (20, 30)].map(|(start, end)| Extent::new(range(start, end), 0, Evidence::Near));
        assert_eq!(outside(range(0, 10), &extents), [range(0, 2), range(4, 6), range(7, 10)]);
        assert_eq!(outside(range(3, 6), &extents), [range(4, 6)]);
        assert_eq!(outside(range(22, 28), &extents), []);
        assert_eq!(outside(range(40, 41), &extents), [range(40, 41)]);
    }
}
