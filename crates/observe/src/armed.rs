//! Which mappings of a process tree are armed, and since when: what tells a page's own fault from one that maps neighbours, too.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use prepage_core::{PageIndex, PageRange};
use prepage_sys::clock::now_ns;
use prepage_sys::maps::Mapped;
use prepage_sys::sync::Anyway;

use crate::elsewhere::Elsewhere;

/// How long what was armed in a process that has ended is remembered: its last faults are read a little later.
pub(crate) const REMEMBERED_NS: u64 = 5_000_000_000;

/// Which mappings were armed when.
#[derive(Debug, Default)]
pub struct ArmedRanges {
    /// By process, oldest program first.
    programs: HashMap<u32, Vec<Program>>,
    /// Processes that have ended, and when.
    ended: VecDeque<(u64, u32)>,
    /// Why programs were not armed, and how many.
    refusals: BTreeMap<String, u32>,
    /// For how many records of mappings and execs the kernel had no room.
    pub(crate) lost_records: u64,
    pub(crate) is_blind: bool,
    /// Pages that were there when their mapping was known to be armed, where times of mappings are known.
    mapped_before: Vec<MappedBefore>,
    /// Whether times are not needed: such pages are then kept like pages that could not be armed, which are kept then alone: each once.
    keeps_pages_only: bool,
    /// Mappings that nobody could arm, where only pages are kept: path, first page and one past the last.
    unarmed: BTreeSet<(Arc<str>, u64, u64)>,
    /// Looked at when the kernel tells of an exec: the process may soon be gone.
    elsewhere: Elsewhere,
}

/// Pages of a file that were mapped before their mapping was known to be armed: touched, or mapped along with one that was. A fault maps the
/// aligned 16 pages around it, and since Linux 6.18 the whole folios of these.
#[derive(Debug)]
pub struct MappedBefore {
    pub time_ns: u64,
    pub mapped: Mapped,
    /// The pages, of the file.
    pub pages: PageRange,
}

#[derive(Debug)]
struct Program {
    executed_ns: u64,
    /// By start: end, and since when. None lies over another.
    ranges: BTreeMap<u64, (u64, u64)>,
}

impl Program {
    /// Forgets what lay where `mapped` lies.
    fn forget(&mut self, mapped: &Mapped) {
        let (start, end) = (mapped.start, mapped.end.max(mapped.start));
        let before = self.ranges.range(..start).next_back().filter(|(_, (end, _))| *end > start);
        let first = before.map_or(start, |(first, _)| *first);
        let over: Vec<_> = self.ranges.range(first..end).map(|(from, range)| (*from, *range)).collect();
        for (from, (to, since_ns)) in over {
            self.ranges.remove(&from);
            // What lies on either side of it is there still.
            let left =
                [(from, start.min(to)), (end.max(from), to)].into_iter().filter(|(from, to)| from < to);
            self.ranges.extend(left.map(|(from, to)| (from, (to, since_ns))));
        }
    }
}

impl ArmedRanges {
    /// Whether what process `pid` maps at `address` was armed at `time_ns`.
    pub fn contains(&self, pid: u32, address: u64, time_ns: u64) -> bool {
        self.since_ns(pid, address, time_ns).is_some_and(|since_ns| since_ns <= time_ns)
    }

    /// Since when what the program that process `pid` runs at `time_ns` maps at `address` is armed; it may be later. Page tables
    /// were read then: what was there is among [`Self::take_mapped_before`].
    pub fn since_ns(&self, pid: u32, address: u64, time_ns: u64) -> Option<u64> {
        let program = self.programs.get(&pid)?.iter().rev().find(|program| program.executed_ns <= time_ns)?;
        let (_, &(end, since_ns)) = program.ranges.range(..=address).next_back()?;
        (address < end).then_some(since_ns)
    }

    /// Why programs were not armed, and how many, a line each.
    pub fn refusals(&self) -> Vec<String> {
        let line = |(why, count): (&String, &u32)| format!("programs seen approximately: {count} ({why})");
        self.refusals.iter().map(line).collect()
    }

    /// Whether there was a program of which nothing may have been seen.
    pub fn is_blind(&self) -> bool {
        self.is_blind
    }

    /// What was mapped before it was armed, and was not taken yet.
    pub fn take_mapped_before(&mut self) -> Vec<MappedBefore> {
        std::mem::take(&mut self.mapped_before)
    }

    /// What could not be armed, and was not taken yet.
    pub(crate) fn take_unarmed(&mut self) -> BTreeSet<(Arc<str>, u64, u64)> {
        std::mem::take(&mut self.unarmed)
    }

    pub(crate) fn unarmed(&mut self, mapped: &Mapped) {
        // Nobody else takes them.
        if !self.keeps_pages_only {
            return;
        }
        let pages = PageRange::covering(mapped.offset_bytes, mapped.end - mapped.start);
        self.unarmed.insert((Arc::clone(&mapped.path), pages.start().0, pages.end().0));
    }

    pub(crate) fn refused(&mut self, why: String) {
        *self.refusals.entry(why).or_default() += 1;
    }

    /// From now on what was mapped before it was armed is told as [what could not be armed](Self::take_unarmed): each page once, however long
    /// nobody takes it.
    pub(crate) fn keep_pages_only(&mut self) {
        self.keeps_pages_only = true;
    }

    pub(crate) fn mapped_before(&mut self, mapped: &Mapped, present: &[(u64, u64)], is_of_agent: bool) {
        // An agent arms a mapping before the program uses it: what was touched since had a fault of its own, and only what a fault of ld.so has
        // mapped along had none.
        if self.keeps_pages_only && is_of_agent {
            return;
        }
        let time_ns = now_ns();
        let from = present.partition_point(|run| run.1 <= mapped.start);
        for &(start, end) in present[from..].iter().take_while(|run| run.0 < mapped.end) {
            let page = |address: u64| PageIndex::containing(mapped.offset_bytes + (address - mapped.start));
            let pages = PageRange::new(page(start.max(mapped.start)), page(end.min(mapped.end)));
            if self.keeps_pages_only {
                self.unarmed.insert((Arc::clone(&mapped.path), pages.start().0, pages.end().0));
            } else {
                self.mapped_before.push(MappedBefore { time_ns, mapped: mapped.clone(), pages });
            }
        }
    }

    /// Processes for which a name means another file than here.
    pub fn elsewhere(&mut self) -> &mut Elsewhere {
        &mut self.elsewhere
    }

    /// Whether it is known which program process `pid` runs.
    pub(crate) fn knows(&self, pid: u32) -> bool {
        self.programs.contains_key(&pid)
    }

    pub(crate) fn last_executed_ns(&self, pid: u32) -> u64 {
        self.programs.get(&pid).and_then(|programs| programs.last()).map_or(0, |last| last.executed_ns)
    }

    pub(crate) fn executed(&mut self, pid: u32, executed_ns: u64) {
        self.elsewhere.executed(pid);
        self.programs.entry(pid).or_default().push(Program { executed_ns, ranges: BTreeMap::new() });
    }

    pub(crate) fn armed(&mut self, pid: u32, mapped: &Mapped, since: Since) {
        let Some(program) = self.programs.get_mut(&pid).and_then(|programs| programs.last_mut()) else {
            return;
        };
        let since_ns = match since {
            Since::Exec => program.executed_ns,
            Since::Mapped(time_ns) => time_ns,
            Since::Now => now_ns(),
        };
        // Armed once more is armed since the first time, if it is the same mapping.
        let known =
            program.ranges.get(&mapped.start).filter(|known| known.0 == mapped.end).map(|known| known.1);
        let since_ns = known.map_or(since_ns, |known| known.min(since_ns));
        program.forget(mapped);
        program.ranges.insert(mapped.start, (mapped.end, since_ns));
    }

    /// A mapping of process `pid` is not known as armed: it took the place of others that were, or the process ended before it was seen what had
    /// been touched of it.
    pub(crate) fn forget(&mut self, pid: u32, mapped: &Mapped) {
        if let Some(program) = self.programs.get_mut(&pid).and_then(|programs| programs.last_mut()) {
            program.forget(mapped);
        }
    }

    /// Whether process `pid` has ended and is forgotten in a while.
    #[cfg(test)]
    pub(crate) fn forgets(&self, pid: u32) -> bool {
        self.ended.iter().any(|(_, ended)| *ended == pid)
    }

    pub(crate) fn ended(&mut self, pid: u32) {
        let now = now_ns();
        self.ended.push_back((now, pid));
        while let Some(&(ended_ns, pid)) = self.ended.front().filter(|(at, _)| at + REMEMBERED_NS < now) {
            self.ended.pop_front();
            // Its number may be another process's by now.
            if self
                .programs
                .get(&pid)
                .and_then(|programs| programs.last())
                .is_some_and(|last| last.executed_ns < ended_ns)
            {
                self.programs.remove(&pid);
            }
        }
    }
}

/// Since when a mapping found armed was so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Since {
    /// The agent arms what ld.so maps before it is used.
    Exec,
    /// The agent arms what dlopen(3) maps before it is used.
    Mapped(u64),
    Now,
}

/// [`ArmedRanges`] that one thread extends while others look.
#[derive(Clone, Debug, Default)]
pub struct SharedRanges(Arc<Mutex<ArmedRanges>>);

impl SharedRanges {
    /// As they are now.
    pub fn now(&self) -> MutexGuard<'_, ArmedRanges> {
        self.0.lock().anyway()
    }
}
