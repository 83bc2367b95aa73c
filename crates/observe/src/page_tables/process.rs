//! One process: its page table, and the files that it has mapped.

use std::fs;
use std::path::Path;

use prepage_sys::pagemap::{PageEntry, PageMap};
use prepage_trace::Mapped;
use prepage_trace::space::parse_maps_line;

use crate::armer::{Armer, is_of_a_file};
use crate::faults::as_stat_shows;
use crate::runs::{Run, without};
use crate::sightings::{Place, Sightings};

/// How often the mappings of a process are read again that seem to be the same.
const READ_NS: u64 = 10_000_000;

/// A process that is looked at.
#[derive(Debug)]
pub(super) struct Process {
    /// What tells one program of a process from the next: its auxiliary vector.
    pub(super) program: Vec<u8>,
    pub(super) map: PageMap,
    /// Its mappings of files, when they were read last.
    pub(super) mappings: Vec<Mapping>,
    /// How many pages had been mapped, and when they were read.
    mapped_pages: u64,
    read_ns: u64,
    /// Pages that were there at some look: noted, if they are to be.
    pub(super) noted: Vec<Run>,
    /// Whether it was looked at as it ended.
    pub(super) was_seen_last: bool,
}

/// A mapping of a file.
#[derive(Debug)]
pub(super) struct Mapping {
    pub(super) mapped: Mapped,
    /// `None` where nothing is noted of it.
    pub(super) place: Option<Place>,
}

/// How many pages process `pid` has mapped that are not private memory to be written to, as heaps and stacks are: their number
/// changes with most mappings of files.
fn mapped_pages(pid: u32) -> Option<u64> {
    let sizes = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = sizes.split_ascii_whitespace().map(str::parse::<u64>);
    let all = pages.next()?.ok()?;
    Some(all.abs_diff(pages.nth(4)?.ok()?))
}

impl Process {
    /// One of which nothing was looked at yet.
    pub(super) fn new(program: Vec<u8>, map: PageMap) -> Self {
        Self {
            program,
            map,
            mappings: Vec::new(),
            mapped_pages: 0,
            read_ns: 0,
            noted: Vec::new(),
            was_seen_last: false,
        }
    }

    /// Whether process `pid` may have mapped files since its mappings were read. To read them takes ten times as long as to look at its
    /// page tables.
    pub(super) fn may_have_other_mappings(&mut self, pid: u32, now: u64) -> bool {
        let Some(pages) = mapped_pages(pid) else { return false };
        let known = std::mem::replace(&mut self.mapped_pages, pages);
        pages != known || now.saturating_sub(self.read_ns) >= READ_NS
    }

    /// Whether one of the pages at `new` is a file's that no known mapping shows.
    pub(super) fn is_of_unknown_file(&self, new: &[Run]) -> bool {
        let known: Vec<Run> =
            self.mappings.iter().map(|Mapping { mapped, .. }| (mapped.start, mapped.end)).collect();
        without(new, &known).iter().any(|run| {
            let mut entry = [PageEntry::default()];
            self.map.entries(run.0, &mut entry).is_ok() && entry[0].is_of_file()
        })
    }

    /// Reads its mappings, and has those armed that are new.
    pub(super) fn read_mappings(&mut self, pid: u32, now: u64, armer: &mut Armer, sightings: &mut Sightings) {
        self.read_ns = now;
        let known = std::mem::take(&mut self.mappings);
        let mut new = Vec::new();
        for mapped in mappings(pid) {
            // mprotect(2) makes several of one.
            let at = known.partition_point(|one| one.mapped.start <= mapped.start);
            let same = known[..at].last().filter(|one| is_part(&mapped, &one.mapped));
            let place = same.map(|one| one.place).unwrap_or_else(|| {
                armer.mapped(pid, &mapped, 0);
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
    mapped.inode == whole.inode
        && mapped.end <= whole.end
        && mapped.offset_bytes.checked_sub(whole.offset_bytes) == mapped.start.checked_sub(whole.start)
}

fn mappings(pid: u32) -> Vec<Mapped> {
    let maps = fs::read(format!("/proc/{pid}/maps")).unwrap_or_default();
    let maps = String::from_utf8_lossy(&maps);
    let mapped = maps.lines().filter_map(parse_maps_line);
    mapped.filter(|mapped| mapped.inode.is_some() && is_of_a_file(&mapped.path)).collect()
}
