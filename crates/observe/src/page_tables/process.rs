//! One process: its page table, and the files that it has mapped.

use std::path::Path;

use prepage_sys::pagemap::PageMap;
use prepage_trace::Mapped;

use crate::armer::{Armer, mappings};
use crate::faults::as_stat_shows;
use crate::runs::{Run, without};
use crate::sightings::{FileIndex, Sightings};

/// How often the mappings of a process are read again that seem to be the same, where nobody tells what it maps.
const READ_NS: u64 = 10_000_000;

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
    /// Whether perf has told since that something else may be mapped there.
    is_remapped: bool,
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
    pub(super) place: Option<FileIndex>,
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
            is_remapped: false,
            noted: Vec::new(),
            was_seen_last: false,
        }
    }

    /// Whether it seems to have mapped files since its mappings were read: it was told so, where perf `tells`, or pages of files are at
    /// `of_files` that no known mapping shows. To read its mappings takes ten times as long as to look at its page table.
    pub(super) fn has_other_mappings(&self, now: u64, tells: bool, of_files: &[Run]) -> bool {
        // Nothing may have been touched yet of a new one, or another file may be where one was.
        let may_have = if tells { self.is_remapped } else { now.saturating_sub(self.read_ns) >= READ_NS };
        may_have || !without(of_files, &self.mapped).is_empty()
    }

    /// It has mapped this.
    pub(super) fn has_mapped(&mut self, mapped: &Mapped) {
        let at = self.mappings.partition_point(|known| known.mapped.end <= mapped.start);
        let lies_over = self.mappings.get(at).is_some_and(|known| known.mapped.start < mapped.end);
        // Memory of its own counts where a file was.
        self.is_remapped |= mapped.inode.is_some() || lies_over;
    }

    /// It may have mapped anything.
    pub(super) fn may_have_mapped(&mut self) {
        self.is_remapped = true;
    }

    /// Reads its mappings, and has those armed that are new.
    pub(super) fn read_mappings(&mut self, pid: u32, now: u64, armer: &mut Armer, sightings: &mut Sightings) {
        (self.read_ns, self.is_remapped) = (now, false);
        let known = std::mem::take(&mut self.mappings);
        self.mapped.clear();
        let mut new = Vec::new();
        let read = armer.take_read_last(pid);
        let is_armed = read.is_some();
        for mapped in read.unwrap_or_else(|| mappings(pid)) {
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
    mapped.inode == whole.inode
        && mapped.end <= whole.end
        && mapped.offset_bytes.checked_sub(whole.offset_bytes) == mapped.start.checked_sub(whole.start)
}

#[cfg(test)]
mod tests {
    use prepage_trace::space::parse_maps_line;

    use super::*;

    #[test]
    fn mappings_are_read_again_where_something_else_may_be_mapped() {
        let mapped = |line: &str| parse_maps_line(line).unwrap();
        let file = mapped("10000-20000 r--p 00000000 fe:00 7 /usr/lib/one.so");
        let mut process = Process::new(Vec::new(), false, PageMap::of(std::process::id()).unwrap());
        process.mapped = vec![(file.start, file.end), (0x50000, 0x60000)];
        process.mappings = vec![Mapping { mapped: file, place: None }];
        let known: &[Run] = &[(0x11000, 0x12000)];
        assert!(process.has_other_mappings(READ_NS, false, known), "it is time");
        assert!(!process.has_other_mappings(READ_NS - 1, false, known));
        assert!(
            process.has_other_mappings(1, true, &[(0x30000, 0x31000)]),
            "a page of a file where none was"
        );
        let mut is_told = |line| {
            process.is_remapped = false;
            process.has_mapped(&mapped(line));
            process.has_other_mappings(u64::MAX, true, known)
        };
        assert!(!is_told("30000-40000 rw-p 00000000 00:00 0 "), "memory of its own");
        assert!(!is_told("20000-21000 rw-p 00000000 00:00 0 "), "behind a file");
        assert!(is_told("1f000-21000 rw-p 00000000 00:00 0 "), "over the end of a file");
        assert!(is_told("8000-11000 rw-p 00000000 00:00 0 "), "over its beginning");
        assert!(is_told("30000-40000 r--p 00000000 fe:00 8 /usr/lib/two.so"));
        process.may_have_mapped();
        assert!(process.has_other_mappings(u64::MAX, true, known));
    }
}
