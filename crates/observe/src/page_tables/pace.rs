//! When pages were touched that one look at a page table has found: since the look before. Most likely each mapping was gone through from its first page to
//! its last, and all of them side by side.
//!
//! Until the agent's word comes ld.so links, one file after the other: those that were mapped last first, and the program last. The relocations lie
//! at one place of the file, and what each of them changes at another. So there the time is shared by the files, by the number of their pages.

use super::process::Mapping;
use crate::runs::{Run, within};
use crate::sightings::FileIndex;

/// What a process does between two looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// ld.so works.
    Links,
    /// The program does.
    Runs,
}

/// When the pages of one mapping were touched.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    from_ns: u64,
    took_ns: u64,
    pages: u64,
}

impl Pace {
    /// When the page was touched that came after so many `others` of its mapping.
    pub(super) fn time_ns(self, others: u64) -> u64 {
        self.from_ns + part_of(self.took_ns, others.min(self.pages), self.pages)
    }
}

/// The share that `part` of `all` has of a time; a machine may have been suspended in it.
fn part_of(time_ns: u64, part: u64, all: u64) -> u64 {
    (u128::from(time_ns) * u128::from(part) / u128::from(all)) as u64
}

/// For each of `mappings`, which are in order of addresses: when its pages in `runs` were touched. A look at `until_ns` found them; the look before was at `since_ns`.
pub(super) fn paces(
    mappings: &[Mapping],
    runs: &[Run],
    (since_ns, until_ns): (u64, u64),
    phase: Phase,
) -> Vec<Option<Pace>> {
    let pages = |one: &Mapping| -> u64 {
        let of_mapping = within(runs, (one.mapped.start, one.mapped.end));
        one.place.map_or(0, |_| of_mapping.map(|run| one.pages(run).len()).sum())
    };
    let pages: Vec<u64> = mappings.iter().map(pages).collect();
    let all = pages.iter().sum::<u64>().max(1);
    let took_ns = until_ns.saturating_sub(since_ns);
    let mut paces = vec![None; mappings.len()];
    let mut from_ns = since_ns.min(until_ns);
    let parts = match phase {
        Phase::Runs => vec![(0..mappings.len()).collect()],
        Phase::Links => by_file(mappings),
    };
    for part in parts {
        let took_ns = part_of(took_ns, part.iter().map(|&at| pages[at]).sum(), all);
        for at in part.into_iter().filter(|&at| pages[at] > 0) {
            paces[at] = Some(Pace { from_ns, took_ns, pages: pages[at] });
        }
        from_ns += took_ns;
    }
    paces
}

/// Which mappings each file has, in the order in which ld.so links files: the kernel maps each below the one before it, but for the program.
fn by_file(mappings: &[Mapping]) -> Vec<Vec<usize>> {
    let mut files: Vec<(FileIndex, Vec<usize>)> = Vec::new();
    for (at, place) in mappings.iter().enumerate().filter_map(|(at, one)| Some((at, one.place?))) {
        match files.iter_mut().find(|(known, _)| *known == place) {
            Some((_, of_file)) => of_file.push(at),
            None => files.push((place, vec![at])),
        }
    }
    if !files.is_empty() {
        files.rotate_left(1);
    }
    files.into_iter().map(|(_, of_file)| of_file).collect()
}

#[cfg(test)]
mod tests {
    use prepage_sys::maps::parse_maps_line;

    use super::*;
    use crate::sightings::Sightings;

    /// A program below two libraries of two mappings each.
    fn mapped() -> Vec<Mapping> {
        let mut sightings = Sightings::default();
        [
            "10000-20000 r-xp 00000000 fe:00 7 /program",
            "50000-60000 r--p 00000000 fe:00 8 /last.so",
            "60000-70000 rw-p 00010000 fe:00 8 /last.so",
            "80000-90000 r--p 00000000 fe:00 9 /first.so",
            "90000-a0000 rw-p 00010000 fe:00 9 /first.so",
        ]
        .map(|line| {
            let mapped = parse_maps_line(line).unwrap();
            let place = sightings.place((*mapped.path).as_ref(), None);
            Mapping { mapped, place }
        })
        .into()
    }

    #[test]
    fn files_are_linked_one_after_the_other_and_the_program_last() {
        let mappings = mapped();
        let touched = [(0x10000, 0x12000), (0x50000, 0x54000), (0x61000, 0x63000), (0x80000, 0x88000)];
        let paces = paces(&mappings, &touched, (100, 260), Phase::Links);
        let times =
            |at: usize, pages| (0..pages).map(|page| paces[at].unwrap().time_ns(page)).collect::<Vec<_>>();
        assert_eq!(times(1, 4), [100, 115, 130, 145], "the relocations ...");
        assert_eq!(times(2, 2), [100, 130], "... beside what they change");
        assert_eq!(times(3, 8), [160, 170, 180, 190, 200, 210, 220, 230]);
        assert_eq!(times(0, 2), [240, 250]);
        assert_eq!(paces[4], None);
    }

    #[test]
    fn a_running_program_goes_through_all_side_by_side() {
        let paces = paces(&mapped(), &[(0x10000, 0x12000), (0x50000, 0x54000)], (100, 200), Phase::Runs);
        let of = |at: usize, page| paces[at].unwrap().time_ns(page);
        assert_eq!([of(0, 0), of(0, 1), of(1, 0), of(1, 1), of(1, 3)], [100, 150, 100, 125, 175]);
        assert!(paces[2..].iter().all(Option::is_none));
    }

    #[test]
    fn clocks_that_stand_still_and_nothing_found_are_no_reason_to_fail() {
        assert_eq!(paces(&[], &[], (7, 7), Phase::Links), []);
        assert_eq!(paces(&mapped(), &[], (9, 7), Phase::Runs), [None; 5]);
        let paces = paces(&mapped(), &[(0x10000, 0x12000)], (9, 7), Phase::Links);
        assert_eq!(paces[0].unwrap().time_ns(1), 7);
    }
}
