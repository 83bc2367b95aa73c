//! One process: its page table, and the files that it has mapped.

use std::path::Path;

use prepage_sys::pagemap::PageMap;
use prepage_trace::Mapped;

use crate::armer::{Armer, mappings};
use crate::faults::as_stat_shows;
use crate::runs::{Run, without};
use crate::sightings::{FileIndex, Sightings};

/// How often the mappings of a process are read again that seem to be the same.
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
            noted: Vec::new(),
            was_seen_last: false,
        }
    }

    /// Whether it seems to have mapped files since its mappings were read: pages of files are at `of_files` that no known mapping
    /// shows. To read its mappings takes ten times as long as to look at its page table.
    pub(super) fn has_other_mappings(&self, now: u64, of_files: &[Run]) -> bool {
        // Nothing may have been touched yet of a new one, or another file may be where one was.
        now.saturating_sub(self.read_ns) >= READ_NS || !without(of_files, &self.mapped).is_empty()
    }

    /// Reads its mappings, and has those armed that are new.
    pub(super) fn read_mappings(&mut self, pid: u32, now: u64, armer: &mut Armer, sightings: &mut Sightings) {
        self.read_ns = now;
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
