//! One process: its page table, and the files that it has mapped.

use std::path::Path;

use prepage_core::{PageIndex, PageRange};
use prepage_sys::maps::{Mapped, mappings};
use prepage_sys::pagemap::PageMap;

use super::pace::{Pace, Phase, paces};
use crate::armer::Armer;
use crate::faults::as_stat_shows;
use crate::runs::{Run, joined, within, without};
use crate::sightings::{FileIndex, Sightings};

/// How often the mappings of a process are read again that seem to be the same, where nobody tells what it maps.
const READ_NS: u64 = 10_000_000;

/// How often a page table is looked at as a whole, where perf tells what is mapped. The looks between pass over mappings that are not armed: what
/// those show, the process tells at its end.
const WHOLE_NS: u64 = 200_000_000;

/// What the first look found was touched within this time.
const FIRST_NS: u64 = 500_000;

/// Of a larger mapping the page table is not read entry by entry: that would take longer than a program waits at its end.
const READ_BYTES_MAX: u64 = 4 << 30;

/// A process that is looked at.
#[derive(Debug)]
pub(super) struct Process {
    /// What tells one program of a process from the next: its auxiliary vector.
    pub(super) program: Vec<u8>,
    /// Whether it has not executed a program, and so may have its parent's page table.
    pub(super) is_fork: bool,
    pub(super) map: PageMap,
    /// Its mappings of files, when they were read last.
    pub(super) mappings: Vec<Mapping>,
    /// Where anything was mapped then.
    mapped: Vec<Run>,
    /// When they were read.
    read_ns: u64,
    /// When its whole page table was looked at last.
    pub(super) whole_ns: u64,
    /// Whether perf has told since that something else may be mapped there.
    is_remapped: bool,
    /// Pages that were there at some look: noted, if they are to be.
    pub(super) noted: Vec<Run>,
    /// Pages that were there before it was time to note them, by when they were seen first.
    early: Vec<(u64, Vec<Run>)>,
    /// All of them, as the last look saw them.
    seen_early: Vec<Run>,
    /// When it was looked at last, or 0.
    looked_ns: u64,
    /// Whether it was looked at as it ended.
    pub(super) was_seen_last: bool,
}

/// A mapping of a file.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) mapped: Mapped,
    /// `None` where nothing is noted of it.
    pub(super) place: Option<FileIndex>,
}

impl Mapping {
    /// The pages of its file at `run`, which lies in it.
    pub(super) fn pages(&self, run: Run) -> PageRange {
        let page = |address| PageIndex::containing(self.mapped.offset_bytes + (address - self.mapped.start));
        PageRange::new(page(run.0), page(run.1))
    }

    /// What of it lies within `run`.
    fn part(&self, run: Run) -> Option<Self> {
        let (start, end) = (run.0.max(self.mapped.start), run.1.min(self.mapped.end));
        let offset_bytes = self.mapped.offset_bytes + start.saturating_sub(self.mapped.start);
        let mapped = Mapped { start, end, offset_bytes, ..self.mapped.clone() };
        (start < end).then_some(Self { mapped, place: self.place })
    }
}

impl Process {
    /// One of which nothing was looked at yet.
    pub(super) fn new(program: Vec<u8>, is_fork: bool, map: PageMap) -> Self {
        Self {
            program,
            is_fork,
            map,
            mappings: Vec::new(),
            mapped: Vec::new(),
            read_ns: 0,
            whole_ns: 0,
            is_remapped: false,
            noted: Vec::new(),
            early: Vec::new(),
            seen_early: Vec::new(),
            looked_ns: 0,
            was_seen_last: false,
        }
    }

    /// Whether its mappings are to be read: they have not been read yet, or perf has missed a change of them since.
    pub(super) fn is_unread(&self) -> bool {
        self.read_ns == 0 || self.is_remapped
    }

    /// Whether its page table is to be looked at as a whole, though perf tells what it maps.
    pub(super) fn is_whole_due(&self, now: u64) -> bool {
        self.is_unread() || now.saturating_sub(self.whole_ns) >= WHOLE_NS
    }

    /// Whether it seems to have mapped files since its mappings were read: it was told so, where perf `tells`, or pages of files are at
    /// `of_files` that no known mapping shows. To read its mappings takes ten times as long as to look at its page table.
    pub(super) fn has_other_mappings(&self, now: u64, tells: bool, of_files: &[Run]) -> bool {
        // Nothing may have been touched yet of a new one, or another file may be where one was.
        let may_have = if tells { self.is_unread() } else { now.saturating_sub(self.read_ns) >= READ_NS };
        may_have || !without(of_files, &self.mapped).is_empty()
    }

    /// The runs of addresses whose pages are there in mappings of files that are known, and whether some were too large to be looked at.
    ///
    /// # Errors
    /// ESRCH where the process has ended, or executed another program.
    pub(super) fn present_in_known(&self) -> std::io::Result<(Vec<Run>, bool)> {
        let places = self.mappings.iter().filter(|one| one.place.is_some()).map(|one| &one.mapped);
        let (few, many): (Vec<_>, Vec<_>) = places.partition(|one| one.end - one.start <= READ_BYTES_MAX);
        let runs: Result<Vec<_>, _> = few.iter().map(|one| self.map.present_in(one.start..one.end)).collect();
        Ok((runs?.concat(), !many.is_empty()))
    }

    /// Sees which pages are there at `time_ns`, when it is not known yet which of them are to be noted. What the agent arms only when ld.so has read
    /// it (large tables of relocations) is among them.
    pub(super) fn see_early(&mut self, time_ns: u64) {
        if let Ok(present) = self.map.present() {
            self.note_early(present, time_ns);
        }
    }

    fn note_early(&mut self, present: Vec<Run>, time_ns: u64) {
        let new = without(&present, &self.seen_early);
        // What a fault has mapped along the agent unmaps when it arms that: it comes once more when it is touched.
        let gone = without(&self.seen_early, &present);
        if !gone.is_empty() {
            self.early.iter_mut().for_each(|(_, runs)| *runs = without(runs, &gone));
        }
        match self.early.last_mut() {
            Some((last_ns, found)) if found.is_empty() && new.is_empty() => *last_ns = time_ns,
            _ => self.early.push((time_ns, new)),
        }
        self.seen_early = present;
    }

    /// `runs` by when they were seen to be there first, those that are new at `now`.
    pub(super) fn by_time(&mut self, runs: &[Run], now: u64) -> Vec<(u64, Vec<Run>)> {
        let mut left = runs.to_vec();
        let mut by_time = std::mem::take(&mut self.early);
        for (_, early) in &mut by_time {
            let later = without(&left, early);
            *early = without(&left, &later);
            left = later;
        }
        by_time.push((now, left));
        by_time
    }

    /// All that was touched by `time_ns` was seen.
    pub(super) fn has_looked(&mut self, time_ns: u64) {
        self.looked_ns = time_ns.max(self.looked_ns);
    }

    /// For each look of [`Self::by_time`], the pace of each mapping.
    pub(super) fn paces(&mut self, by_time: &[(u64, Vec<Run>)]) -> Vec<Vec<Option<Pace>>> {
        by_time
            .iter()
            .enumerate()
            .map(|(at, (until_ns, runs))| {
                let since_ns = match self.looked_ns {
                    0 => until_ns.saturating_sub(FIRST_NS),
                    looked_ns => looked_ns,
                };
                self.has_looked(*until_ns);
                let phase = if at + 1 < by_time.len() { Phase::Links } else { Phase::Runs };
                paces(&self.mappings, runs, (since_ns, *until_ns), phase)
            })
            .collect()
    }

    /// What of `by_time` lies in `later`, which is not noted yet, is dated by it when it is.
    pub(super) fn keep_early(&mut self, by_time: Vec<(u64, Vec<Run>)>, later: &[Run]) {
        let within_later = |runs: Vec<Run>| later.iter().flat_map(|&run| within(&runs, run)).collect();
        self.early = by_time.into_iter().map(|(time_ns, runs)| (time_ns, within_later(runs))).collect();
        self.early.retain(|(_, runs)| !runs.is_empty());
    }

    /// It may have mapped anything.
    pub(super) fn may_have_mapped(&mut self) {
        self.is_remapped = true;
    }

    /// Whether its mappings at `time_ns` are known: they were read later.
    pub(super) fn knows(&self, time_ns: u64) -> bool {
        time_ns <= self.read_ns
    }

    /// Perf tells that the process has mapped `file` at `run`, or, if that is `None`, something else than a file. Returns whether this is a new mapping of a
    /// file, to be armed and looked at. If the same file was known there already, it is new if it is not armed (`is_armed`).
    pub(super) fn has_mapped(&mut self, run: Run, file: Option<Mapping>, is_armed: bool) -> bool {
        let first = self.mappings.partition_point(|known| known.mapped.end <= run.0);
        let end = first + self.mappings[first..].partition_point(|known| known.mapped.start < run.1);
        let lies_over = &self.mappings[first..end];
        // mprotect(2) makes several mappings of one, and one of several.
        let is_same =
            |known: &&Mapping| file.as_ref().is_some_and(|file| shows_same(&file.mapped, &known.mapped));
        let same = lies_over.iter().filter(is_same).filter_map(|known| known.part(run));
        if is_armed && same.map(|part| part.mapped.end - part.mapped.start).sum::<u64>() == run.1 - run.0 {
            return false;
        }
        // Mostly this is memory of the process's own where there was such memory before, and nothing changes.
        if within(&self.mapped, run).next() != Some(run) {
            self.mapped = joined(&self.mapped, &[run]);
        }
        let is_file = file.is_some();
        if is_file || !lies_over.is_empty() {
            let before = lies_over.first().and_then(|known| known.part((0, run.0)));
            let behind = lies_over.last().and_then(|known| known.part((run.1, u64::MAX)));
            self.mappings.splice(first..end, before.into_iter().chain(file).chain(behind));
            self.noted = without(&self.noted, &[run]);
        }
        is_file
    }

    /// Reads its mappings, and has those armed that are new.
    pub(super) fn read_mappings(&mut self, pid: u32, now: u64, armer: &mut Armer, sightings: &mut Sightings) {
        let known = std::mem::take(&mut self.mappings);
        self.mapped.clear();
        let mut new = Vec::new();
        let read = armer.take_read_last(pid);
        let is_armed = read.is_some();
        let (read_ns, read) = read.unwrap_or_else(|| (now, mappings(pid).unwrap_or_default()));
        (self.read_ns, self.is_remapped) = (read_ns, false);
        for mapped in read {
            self.mapped.push((mapped.start, mapped.end));
            if !armer.is_of_a_file(pid, &mapped) {
                continue;
            }
            // mprotect(2) makes several of one.
            let at = known.partition_point(|one| one.mapped.start <= mapped.start);
            let same = known[..at].last().filter(|one| is_part(&mapped, &one.mapped));
            let place = same.map(|one| one.place).unwrap_or_else(|| {
                if !is_armed {
                    armer.mapped(pid, &mapped, 0);
                }
                new.push((mapped.start, mapped.end));
                sightings.place(Path::new(&*mapped.path), mapped.inode.map(as_stat_shows))
            });
            self.mappings.push(Mapping { mapped, place });
        }
        // What was noted there was another file's, or is noted once more.
        self.noted = without(&self.noted, &new);
    }
}

/// Whether `mapped` shows what a part of `whole` showed.
fn is_part(mapped: &Mapped, whole: &Mapped) -> bool {
    mapped.end <= whole.end && whole.start <= mapped.start && shows_same(mapped, whole)
}

/// Whether two mappings show the same where they lie over each other.
fn shows_same(one: &Mapped, other: &Mapped) -> bool {
    // Stacked file systems have a number of their own in one place, and that of the file system below in another.
    (one.inode == other.inode || one.path == other.path)
        && one.offset_bytes.wrapping_sub(one.start) == other.offset_bytes.wrapping_sub(other.start)
}

#[cfg(test)]
mod tests {
    use prepage_sys::maps::parse_maps_line;

    use super::*;

    #[test]
    fn where_files_are_mapped_pages_are_found_entry_by_entry() {
        let mapped = mappings(std::process::id()).unwrap();
        let code = where_files_are_mapped_pages_are_found_entry_by_entry as *const () as u64;
        let mut process = Process::new(Vec::new(), false, PageMap::of(std::process::id()).unwrap());
        assert_eq!(process.present_in_known().unwrap(), (Vec::new(), false));
        let place = Sightings::default().place(Path::new("/program"), None);
        process.mappings.extend(mapped.into_iter().map(|mapped| Mapping { mapped, place }));
        process.mappings.retain(|one| (one.mapped.start..one.mapped.end).contains(&code));
        let (runs, is_cut) = process.present_in_known().unwrap();
        assert!(runs.iter().any(|run| (run.0..run.1).contains(&code)) && !is_cut, "{runs:x?}");
        process.mappings[0].mapped.end += READ_BYTES_MAX;
        assert_eq!(process.present_in_known().unwrap(), (Vec::new(), true));
    }

    #[test]
    fn mappings_are_read_again_where_something_else_may_be_mapped() {
        let mapped = |line: &str| parse_maps_line(line).unwrap();
        let file = mapped("10000-20000 r--p 00000000 fe:00 7 /usr/lib/one.so");
        let mut process = Process::new(Vec::new(), false, PageMap::of(std::process::id()).unwrap());
        (process.read_ns, process.mapped) = (1, vec![(file.start, file.end), (0x50000, 0x60000)]);
        process.mappings = vec![Mapping { mapped: file, place: None }];
        let known: &[Run] = &[(0x11000, 0x12000)];
        assert!(process.has_other_mappings(1 + READ_NS, false, known), "it is time");
        assert!(!process.has_other_mappings(READ_NS, false, known));
        assert!(
            process.has_other_mappings(1, true, &[(0x30000, 0x31000)]),
            "a page of a file where none was"
        );
        assert!(!process.has_other_mappings(u64::MAX, true, known));
        process.may_have_mapped();
        assert!(process.has_other_mappings(u64::MAX, true, known));
    }

    #[test]
    fn what_is_unmapped_before_it_is_armed_is_dated_by_its_next_touch() {
        let mut process = Process::new(Vec::new(), false, PageMap::of(std::process::id()).unwrap());
        process.note_early(vec![(0, 8)], 1);
        process.note_early(vec![(0, 2), (5, 12)], 2);
        process.note_early(vec![(0, 12)], 3);
        process.note_early(vec![(0, 12)], 4);
        process.note_early(vec![(0, 12)], 5);
        let by_time = process.by_time(&[(0, 13)], 6);
        let looks = [(1, vec![(0, 2), (5, 8)]), (2, vec![(8, 12)]), (3, vec![(2, 5)]), (5, vec![])];
        assert_eq!(by_time[..4], looks);
        assert_eq!(by_time[4..], [(6, vec![(12, 13)])]);
    }

    #[test]
    fn pages_that_are_noted_later_keep_the_time_at_which_they_were_seen() {
        let mut process = Process::new(Vec::new(), false, PageMap::of(std::process::id()).unwrap());
        process.early = vec![(1, vec![(0, 4)]), (2, vec![(6, 8)])];
        let by_time = process.by_time(&[(0, 10)], 3);
        assert_eq!(by_time, [(1, vec![(0, 4)]), (2, vec![(6, 8)]), (3, vec![(4, 6), (8, 10)])]);
        process.keep_early(by_time, &[(2, 4), (8, 10)]);
        let by_time = process.by_time(&[(2, 4), (8, 11)], 4);
        assert_eq!(by_time, [(1, vec![(2, 4)]), (3, vec![(8, 10)]), (4, vec![(10, 11)])]);
        process.keep_early(by_time, &[]);
        assert!(process.early.is_empty());
    }

    #[test]
    fn what_a_process_is_told_to_have_mapped_takes_the_place_of_what_was_there() {
        let mut process = Process::new(Vec::new(), false, PageMap::of(std::process::id()).unwrap());
        let mut is_new = |line: &str, is_file: bool, is_armed: bool| {
            let mapped = parse_maps_line(line).unwrap();
            let run = (mapped.start, mapped.end);
            process.noted = joined(&process.noted, &[run]);
            let is_new =
                process.has_mapped(run, is_file.then_some(Mapping { mapped, place: None }), is_armed);
            (is_new, process.noted.clone())
        };
        // As ld.so maps a library: a page for what follows, and the parts over that.
        let whole = "10000-20000 r--p 00000000 fe:00 7 /usr/lib/one.so";
        assert_eq!(is_new(whole, true, false), (true, vec![]));
        assert!(!is_new("14000-18000 r-xp 00004000 fe:00 7 /usr/lib/one.so", true, true).0, "the same");
        assert!(is_new("18000-1c000 rw-p 00007000 fe:00 7 /usr/lib/one.so", true, false).0);
        assert!(!is_new("1e000-20000 rw-p 00000000 00:00 0 ", false, false).0, "memory of its own");
        let protected = is_new("16000-18000 r--p 00006000 00:2d 9 /usr/lib/one.so", true, true);
        assert!(!protected.0, "in an overlay the file's number is another");
        assert_eq!(protected.1, [(0x14000, 0x18000)], "and its pages are noted still");
        let again = is_new("16000-18000 r--p 00006000 fe:00 7 /usr/lib/one.so", true, false);
        assert_eq!(
            again,
            (true, vec![(0x14000, 0x16000)]),
            "the same once more, of which nothing is mapped yet"
        );
        assert!(is_new("1a000-1b000 r--p 00000000 fe:00 8 /usr/lib/two.so", true, false).0);
        let mappings: Vec<_> = process.mappings.iter().map(|one| &one.mapped).collect();
        let shown: Vec<_> = mappings.iter().map(|one| (one.start, one.end, one.offset_bytes)).collect();
        let one: [(u64, u64, u64); 6] = [
            (0x10000, 0x16000, 0),
            (0x16000, 0x18000, 0x6000),
            (0x18000, 0x1a000, 0x7000),
            (0x1a000, 0x1b000, 0),
            (0x1b000, 0x1c000, 0xa000),
            (0x1c000, 0x1e000, 0xc000),
        ];
        assert_eq!(shown, one);
        assert_eq!(&*mappings[3].path, "/usr/lib/two.so");
        assert_eq!(process.mapped, [(0x10000, 0x20000)]);
    }

    #[test]
    fn pages_are_dated_between_the_look_that_found_them_and_the_one_before() {
        let mapped = parse_maps_line("10000-20000 r--p 00000000 fe:00 7 /usr/lib/one.so").unwrap();
        let place = Sightings::default().place(Path::new("/usr/lib/one.so"), None);
        let mut process = Process::new(Vec::new(), false, PageMap::of(std::process::id()).unwrap());
        process.mappings = vec![Mapping { mapped, place }];
        process.has_looked(100);
        process.has_looked(900);
        let mut times = |looks: &[(u64, Vec<Run>)]| -> Vec<u64> {
            process.paces(looks).iter().map(|paces| paces[0].unwrap().time_ns(1)).collect()
        };
        let of_two_pages = vec![(0x10000, 0x12000)];
        assert_eq!(times(&[(1000, of_two_pages.clone())]), [950]);
        // The first was kept from an earlier look.
        assert_eq!(times(&[(500, of_two_pages.clone()), (1200, of_two_pages)]), [500, 1100]);
    }
}
