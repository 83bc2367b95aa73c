//! A profile turned into reads: what to ask the device for, and in which order.
//!
//! Reads follow the order of first use, so that the page needed next is the page asked for next. Runs that lie
//! close together are read as one where the bytes between them cost less than another operation, and no read is
//! longer than what one POSIX_FADV_WILLNEED is sure to load. Which pages are worth it is decided before
//! ([`super::worth::worthwhile`]).

use super::{Profile, ProfiledFile};
use crate::device_figures::DeviceFigures;
use crate::page::{PAGE_SIZE, PageIndex, PageRange};

/// The longest single read, in pages. The kernel silently caps one WILLNEED at the larger of the device's
/// max_sectors_kb and read_ahead_kb, which is never below 128 KiB; and short reads keep the queue fair to the
/// program's own faults.
pub const READ_PAGES_MAX: u64 = 32;

/// The largest hole that is read over for a program, whatever the device: beyond, what is read in vain fills memory.
const GAP_PAGES_MAX: u64 = 8;

/// How reads are formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanOptions {
    /// Read over holes of up to this many pages.
    pub gap_pages_max: u64,
    /// The longest single read, in pages: [`READ_PAGES_MAX`] where nothing else is known of the device.
    pub read_pages_max: u64,
}

impl PlanOptions {
    /// Every page of the profile, and no other.
    pub const EXACT: Self = Self { gap_pages_max: 0, read_pages_max: READ_PAGES_MAX };

    /// What suits a device.
    ///
    /// A hole is read over where its bytes take at most half of what another read takes: they also take memory, and the
    /// processor's time to fill it.
    pub fn for_device(figures: &DeviceFigures) -> Self {
        let gap_pages = figures.bytes_per_read() / PAGE_SIZE / 2;
        Self { gap_pages_max: gap_pages.min(GAP_PAGES_MAX), ..Self::EXACT }
    }
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self::for_device(&DeviceFigures::default())
    }
}

/// One read of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// Index into the profile's files.
    pub file: usize,
    /// The pages: 1 to [`PlanOptions::read_pages_max`].
    pub range: PageRange,
}

/// The reads of `profile`, in the order in which they should be made.
pub fn plan(profile: &Profile, options: PlanOptions) -> Vec<Read> {
    plan_where(profile, options, |_, _, _| true)
}

/// The same, where it is known how files lie on their device: two pages of a file belong to one read only if `lies_between` says that the
/// device has nothing between them but what the file has.
pub fn plan_where(
    profile: &Profile,
    options: PlanOptions,
    lies_between: impl Fn(&ProfiledFile, PageIndex, PageIndex) -> bool,
) -> Vec<Read> {
    let mut ranked: Vec<(u32, Read)> = Vec::new();
    for (file, profiled) in profile.files.iter().enumerate() {
        let mut open: Option<(u32, PageRange)> = None;
        for extent in &profiled.extents {
            let mut start = extent.range.start().0;
            while start < extent.range.end().0 {
                // What is under way goes on where the hole is small and there is room behind it.
                let (rank, first) = match open {
                    Some((rank, range))
                        if start - range.end().0 <= options.gap_pages_max
                            && start - range.start().0 < options.read_pages_max
                            && lies_between(profiled, PageIndex(range.end().0 - 1), PageIndex(start)) =>
                    {
                        (rank.min(extent.rank), range.start().0)
                    }
                    _ => {
                        ranked.extend(open.map(|(rank, range)| (rank, Read { file, range })));
                        (extent.rank, start)
                    }
                };
                let end = extent.range.end().0.min(first + options.read_pages_max);
                open = Some((rank, PageRange::new(PageIndex(first), PageIndex(end))));
                start = end;
            }
        }
        ranked.extend(open.map(|(rank, range)| (rank, Read { file, range })));
    }
    ranked.sort_by_key(|&(rank, read)| (rank, read.file, read.range.start()));
    ranked.into_iter().map(|(_, read)| read).collect()
}

/// `reads` in groups, in the order of need: with each read that is next come those that a device serves by the same request, although they are
/// needed later, because they lie beside it (`place` says at which page of the device a read begins) with holes between that are read over. A
/// group is as long as a read may be, and what is needed first leads it.
pub fn beside(reads: &[Read], place: impl Fn(&Read) -> Option<u64>, options: PlanOptions) -> Vec<Vec<Read>> {
    let mut by_place: Vec<(u64, usize)> =
        reads.iter().enumerate().filter_map(|(at, read)| Some((place(read)?, at))).collect();
    by_place.sort_unstable();
    let mut position = vec![None; reads.len()];
    by_place.iter().enumerate().for_each(|(at, &(_, read))| position[read] = Some(at));
    let mut is_taken = vec![false; reads.len()];
    let mut groups = Vec::new();
    for first in 0..reads.len() {
        if std::mem::replace(&mut is_taken[first], true) {
            continue;
        }
        let mut group = vec![reads[first]];
        if let Some(at) = position[first] {
            let (mut start, mut end) = (by_place[at].0, by_place[at].0 + reads[first].range.len());
            let (mut before, mut behind) = (at, at + 1);
            loop {
                // What the group would begin and end with, and the hole to it.
                let grown = |&(place, read): &(u64, usize)| {
                    let place_end = place + reads[read].range.len();
                    let (from, to) = (start.min(place), end.max(place_end));
                    let hole = place.saturating_sub(end).max(start.saturating_sub(place_end));
                    let fits = hole <= options.gap_pages_max && to - from <= options.read_pages_max;
                    (fits && !is_taken[read]).then_some((hole, from, to, read))
                };
                let next = by_place.get(behind).and_then(grown);
                let last = before.checked_sub(1).and_then(|at| grown(&by_place[at]));
                let nearest = next.into_iter().chain(last).min_by_key(|&(hole, ..)| hole);
                let Some((_, from, to, read)) = nearest else { break };
                if position[read] == Some(behind) {
                    behind += 1
                } else {
                    before -= 1
                }
                (start, end) = (from, to);
                is_taken[read] = true;
                group.push(reads[read]);
            }
        }
        groups.push(group);
    }
    groups
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::super::{FileIdentity, Fingerprint, ProfiledFile, Touches};
    use super::*;

    fn profile(files: &[Vec<(u64, u32)>]) -> Profile {
        let files = files
            .iter()
            .enumerate()
            .map(|(at, touched)| {
                let mut touches = Touches::default();
                for &(page, rank) in touched {
                    touches.touch(PageIndex(page), rank);
                }
                ProfiledFile {
                    path: format!("/{at}"),
                    identity: FileIdentity::default(),
                    fingerprint: Fingerprint::default(),
                    learned_unix_s: 0,
                    extents: touches.extents(),
                }
            })
            .collect();
        Profile { files, ..Default::default() }
    }

    #[test]
    fn close_runs_join_and_the_first_used_comes_first() {
        let profile = profile(&[vec![(0, 5), (3, 6), (40, 1)], vec![(7, 0)]]);
        let reads = plan(&profile, PlanOptions { gap_pages_max: 2, ..PlanOptions::EXACT });
        let shape: Vec<_> = reads.iter().map(|r| (r.file, r.range.start().0, r.range.end().0)).collect();
        assert_eq!(shape, [(1, 7, 8), (0, 40, 41), (0, 0, 4)]);
    }

    /// Of a file in pieces the pages of a hole lie elsewhere: to read over it would be a request more.
    #[test]
    fn pages_that_lie_apart_on_the_device_are_read_apart() {
        let profile = profile(&[vec![(0, 5), (1, 5), (3, 6), (4, 7)]]);
        let options = PlanOptions { gap_pages_max: 2, ..PlanOptions::EXACT };
        let apart = |last: u64, next: u64| {
            let reads = plan_where(&profile, options, |_, from, to| (from.0, to.0) != (last, next));
            reads.iter().map(|read| (read.range.start().0, read.range.end().0)).collect::<Vec<_>>()
        };
        assert_eq!(apart(9, 9), [(0, 5)]);
        assert_eq!(apart(1, 3), [(0, 2), (3, 5)]);
    }

    proptest! {
        #[test]
        fn every_touched_page_is_read_once_and_holes_stay_small(
            touched in prop::collection::vec((0u64..300, any::<u32>()), 1..120),
            gap_pages_max in 0u64..5,
            read_pages_max in 1u64..80,
        ) {
            let profile = profile(std::slice::from_ref(&touched));
            let wanted: BTreeSet<u64> = touched.iter().map(|&(page, _)| page).collect();
            let mut read = BTreeSet::new();
            for r in plan(&profile, PlanOptions { gap_pages_max, read_pages_max }) {
                prop_assert!((1..=read_pages_max).contains(&r.range.len()));
                for page in r.range.iter() {
                    prop_assert!(read.insert(page.0), "page {} is read twice", page.0);
                }
            }
            prop_assert!(wanted.is_subset(&read));
            for page in read.difference(&wanted) {
                let before = wanted.range(..page).next_back().expect("a hole has an edge");
                let after = wanted.range(page..).next().expect("a hole has an edge");
                prop_assert!(after - before - 1 <= gap_pages_max);
            }
        }
    }

    /// The reads of one page each, by number, of files that lie where `places` says.
    fn grouped(places: &[Option<u64>], options: PlanOptions) -> Vec<Vec<usize>> {
        let one = |file| Read { file, range: PageRange::new(PageIndex(0), PageIndex(1)) };
        let reads: Vec<Read> = (0..places.len()).map(one).collect();
        let groups = beside(&reads, |read| places[read.file], options);
        groups.iter().map(|group| group.iter().map(|read| read.file).collect()).collect()
    }

    #[test]
    fn what_lies_beside_a_read_on_the_device_comes_with_it() {
        let options = PlanOptions { gap_pages_max: 2, read_pages_max: 8 };
        let places =
            [Some(100), Some(50), None, Some(103), Some(97), Some(101), Some(108), Some(52), Some(90)];
        let expected = [&[0, 5, 3, 4][..], &[1, 7], &[2], &[6], &[8]];
        assert_eq!(
            grouped(&places, options),
            expected,
            "108 is too much for one request, 90 is too far away"
        );
        let alone = grouped(&places, PlanOptions { read_pages_max: 1, ..options });
        assert!(alone.iter().all(|group| group.len() == 1), "{alone:?}");
    }

    proptest! {
        #[test]
        fn groups_have_each_read_once_are_short_and_are_led_by_what_is_needed_first(
            places in prop::collection::vec(prop::option::of(0u64..200), 1..100),
            gap_pages_max in 0u64..9,
            read_pages_max in 1u64..40,
        ) {
            let groups = grouped(&places, PlanOptions { gap_pages_max, read_pages_max });
            let mut all: Vec<usize> = groups.concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..places.len()).collect::<Vec<_>>());
            prop_assert!(groups.is_sorted_by_key(|group| group[0]));
            for group in groups {
                prop_assert_eq!(group.iter().min(), group.first());
                let mut held: Vec<u64> = group.iter().filter_map(|&read| places[read]).collect();
                prop_assert!(group.len() == 1 || held.len() == group.len());
                held.sort_unstable();
                let holes = held.windows(2).map(|two| (two[1] - two[0]).saturating_sub(1));
                prop_assert!(holes.max().unwrap_or(0) <= gap_pages_max);
                let len = held.last().map_or(0, |last| last + 1 - held[0]);
                prop_assert!(len <= read_pages_max, "{} pages", len);
            }
        }
    }

    #[test]
    fn slower_devices_are_read_in_larger_pieces() {
        let fast = DeviceFigures::default();
        let far = DeviceFigures { latency_ns: 1_000_000, depth: 32, operations_per_second: None, ..fast };
        let counted = DeviceFigures {
            latency_ns: 500_000,
            bytes_per_second: 125_000_000,
            operations_per_second: Some(3_000),
            ..fast
        };
        let gaps = [fast, far, counted].map(|figures| PlanOptions::for_device(&figures).gap_pages_max);
        assert_eq!(gaps, [2, 3, 5]);
    }

    #[test]
    fn a_chain_of_small_holes_does_not_bring_what_is_used_last_to_the_front() {
        let profile = profile(&[(0..40).map(|at| (at * 2, 1000 - at as u32)).collect()]);
        let reads = plan(&profile, PlanOptions { gap_pages_max: 2, ..PlanOptions::EXACT });
        let starts: Vec<u64> = reads.iter().map(|read| read.range.start().0).collect();
        assert_eq!(starts, [64, 32, 0]);
    }
}
