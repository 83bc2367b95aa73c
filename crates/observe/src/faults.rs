//! The faults of a process tree, where perf is allowed: which pages are used, as they are used.

use std::path::Path;
use std::sync::MutexGuard;
use std::time::Duration;

use prepage_core::{Missing, ObjectId, PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::clock::now_ns;
use prepage_sys::device_number;
use prepage_sys::perf::PerfError;
use prepage_trace::{AddressSpaces, Event, EventKind, FaultEvents, Probe, Resolved, Stream, Target};
use rustc_hash::FxHashMap;

use crate::armed::{ArmedRanges, REMEMBERED_NS};
use crate::armer::Armer;
use crate::arming::{Arming, Entry};
use crate::file_systems::FileSystems;
use crate::page_tables::PageTables;
use crate::sightings::{FileIndex, Inode, Sightings};
use crate::until::Until;

/// Pages that one fault maps at most where they are in memory (`fault_around_bytes`, 64 KiB): an aligned window.
const FAULT_AROUND_PAGES: u64 = 16;

/// A ring is cleared page by page before it can be used, while the program is starting: no larger than needed. This
/// holds the faults of 20 ms at a rate no cold start has.
const RING_BYTES: usize = 512 << 10;

/// Faults, and what makes them exact.
#[derive(Debug)]
pub struct Faults {
    stream: Stream,
    places: Places,
    /// Whether the program was seen to be executed; what came before is this program's own.
    executed: bool,
    /// Faults of what was not armed yet, by process, page of its address space and file: the first of each.
    unarmed: FxHashMap<(u32, u64, FileIndex), Unarmed>,
    /// When these are looked at next, on the clock of [`now_ns`].
    settle_ns: u64,
    has_windows: bool,
    /// Whether all was seen by faults, from the program's first on.
    is_whole: bool,
    /// Whether processes may have been missed.
    is_partial: bool,
    arming: Arming,
}

/// A fault of what was not armed when it was seen. An agent's word that it was comes when all libraries are there; and where it is
/// armed later, page tables tell what the fault has mapped.
#[derive(Debug)]
struct Unarmed {
    time_ns: u64,
    /// What it may have mapped.
    window: PageRange,
}

/// How often it is looked whether [`Unarmed`] was armed.
const SETTLE_NS: u64 = 50_000_000;

/// For how long: on a busy machine an agent's word may take its time. What was armed in a process that has ended is remembered for as long.
const SETTLED_NS: u64 = REMEMBERED_NS - 1_000_000_000;

/// How often a process tree is listed again that grew while perf was attached to it.
const ROUNDS_MAX: usize = 8;

impl Faults {
    /// Watches process `pid`, which is entered as `entry` says.
    pub fn attach(pid: u32, entry: Entry, armer: impl FnOnce() -> Armer) -> Result<Self, PerfError> {
        let stream = listen(vec![pid])?;
        let arming = Arming::begin(Arming::listen(vec![pid])?, pid, entry, armer())?;
        Ok(Self::new(stream, &[pid], entry == Entry::Executed, arming))
    }

    fn new(stream: Stream, pids: &[u32], executed: bool, arming: Arming) -> Self {
        Self {
            stream,
            places: Places::of(pids),
            executed,
            unarmed: FxHashMap::default(),
            settle_ns: 0,
            has_windows: false,
            is_whole: !executed,
            is_partial: false,
            arming,
        }
    }

    /// Goes on where `tables`, which show what was used until now, have looked.
    ///
    /// # Errors
    /// When perf is refused; `tables` go on then.
    pub fn take_over(
        tables: &mut PageTables,
        sightings: &mut Sightings,
        last_touch_ns: &mut u64,
    ) -> Result<Self, PerfError> {
        let mut pids = tables.pids();
        let mut rounds = 1..=ROUNDS_MAX;
        let (stream, mapped) = loop {
            let streams = listen(pids.clone()).and_then(|faults| Ok((faults, Arming::listen(pids.clone())?)));
            let now = tables.pids();
            // Whoever was started meanwhile may be attached to by its parent, or not.
            if now == pids || rounds.next().is_none() {
                break streams?;
            }
            pids = now;
        };
        // From here on the kernel notes what is touched.
        tables.look_at_all(sightings, last_touch_ns);
        let arming = Arming::begin(mapped, pids[0], Entry::Armed, tables.take_armer())?;
        let (has_windows, is_partial) = (tables.has_windows(), rounds.is_empty() || tables.has_missed());
        Ok(Self { has_windows, is_partial, ..Self::new(stream, &pids, true, arming) })
    }

    /// Whether the program was seen to be executed.
    pub fn executed(&self) -> bool {
        self.executed
    }

    /// Waits for faults, at most for `timeout`. Returns whether `until` is over.
    pub fn wait(&mut self, until: &Until, timeout: Duration) -> bool {
        let ends = until.descriptors();
        match self.stream.wait(&ends, Some(timeout.min(until.remaining()))) {
            Ok(ready) => until.note(&ready),
            Err(_) => true,
        }
    }

    /// Notes faults, `all` of them or those whose order is certain. `last_touch_ns` is that of a file's page.
    pub fn look(&mut self, all: bool, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        let events: Vec<Event> =
            if all { self.stream.finish().collect() } else { self.stream.ripe().collect() };
        events.iter().for_each(|event| self.see(event, sightings, last_touch_ns));
        self.look_at_mapped_before(sightings);
        if !all && self.settle_ns <= now_ns() {
            self.settle(sightings, SETTLED_NS);
        }
    }

    /// Notes the windows of faults that are `age_ns` old and for which no mapping was reported as armed.
    fn settle(&mut self, sightings: &mut Sightings, age_ns: u64) {
        let now = now_ns();
        self.settle_ns = now + SETTLE_NS;
        let (ranges, has_windows) = (self.arming.ranges(), &mut self.has_windows);
        self.unarmed.retain(|&(pid, page, place), fault| {
            let is_settled = ranges.since_ns(pid, page * PAGE_SIZE, fault.time_ns).is_some();
            let is_old = now.saturating_sub(fault.time_ns) >= age_ns;
            if is_old && !is_settled {
                *has_windows = true;
                sightings.window(fault.time_ns, place, fault.window);
            }
            !is_old && !is_settled
        });
    }

    fn look_at_mapped_before(&mut self, sightings: &mut Sightings) {
        for before in self.arming.ranges().take_mapped_before() {
            let inode = before.mapped.inode.map(as_stat_shows);
            if let Some(place) = sightings.place(Path::new(&*before.mapped.path), inode) {
                sightings.window(before.time_ns, place, before.pages);
            }
            self.has_windows = true;
        }
    }

    fn see(&mut self, event: &Event, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        self.places.apply(event);
        match &event.kind {
            EventKind::Name { exec: true, .. } if !self.executed => {
                self.executed = true;
                *last_touch_ns = event.time_ns;
            }
            EventKind::FaultEnd { address, .. } if self.executed => {
                let found = self.places.page_at(event.pid, *address, sightings);
                let Some((place, page, found)) = found else { return };
                *last_touch_ns = event.time_ns.max(*last_touch_ns);
                let is_exact = self.arming.ranges().contains(event.pid, *address, event.time_ns);
                let Some(place) = place else { return };
                sightings.touch(event.time_ns, place, page);
                if !is_exact {
                    let key = (event.pid, PageIndex::containing(*address).0, place);
                    let window = window(&found, *address);
                    self.unarmed.entry(key).or_insert(Unarmed { time_ns: event.time_ns, window });
                }
            }
            _ => {}
        }
    }

    /// Whether some faults told windows of pages only.
    pub fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Whether the order of first touches is exact.
    pub fn has_order(&self) -> bool {
        self.is_whole && self.lost() == 0
    }

    /// Whether there was a program of which nothing may have been seen.
    pub fn is_blind(&self) -> bool {
        self.is_partial || self.arming.ranges().is_blind()
    }

    /// Records that the kernel dropped.
    pub fn lost(&self) -> u64 {
        self.stream.counts().map_or(u64::MAX, |counts| counts.lost)
    }

    /// What is armed until now.
    pub fn ranges(&self) -> MutexGuard<'_, ArmedRanges> {
        self.arming.ranges()
    }

    /// Disarms everything. Returns what was not armed, or late, and why.
    pub fn end(&mut self, sightings: &mut Sightings) -> Vec<String> {
        let mut unseen = self.arming.end();
        let records = self.arming.ranges().lost_records;
        unseen.extend((records > 0).then(|| Missing::LostMappings { records }.to_string()));
        self.look_at_mapped_before(sightings);
        self.settle(sightings, 0);
        unseen
    }
}

/// Where pages of what processes have mapped are noted.
#[derive(Debug)]
pub(crate) struct Places {
    spaces: AddressSpaces,
    /// Whether an object is a file that may lie on a device, and where its pages are noted.
    known: FxHashMap<ObjectId, (bool, Option<FileIndex>)>,
    file_systems: FileSystems,
}

impl Places {
    /// What the processes `pids` have mapped by now.
    pub(crate) fn of(pids: &[u32]) -> Self {
        let mut spaces = AddressSpaces::default();
        // Of one that has ended already there is nothing to learn.
        pids.iter().for_each(|&pid| drop(spaces.seed(pid)));
        Self { spaces, known: FxHashMap::default(), file_systems: FileSystems::default() }
    }

    pub(crate) fn apply(&mut self, event: &Event) {
        self.spaces.apply(event);
    }

    /// Where the page at `address` of process `pid` is noted, if it is to be: which page, and what is mapped there. `None` where no file on
    /// a device is: a program that works in shared memory would never have started, and its pages would be taken for those of a start.
    pub(crate) fn page_at(
        &mut self,
        pid: u32,
        address: u64,
        sightings: &mut Sightings,
    ) -> Option<(Option<FileIndex>, PageIndex, Resolved<'_>)> {
        let found = self.spaces.resolve(pid, address)?;
        let (page, object) = (found.page?, found.object);
        let (is_file, place) = *self.known.entry(found.mapping.object).or_insert_with(|| {
            let is_file = self.file_systems.may_hold(pid, &object.path, object.inode);
            let place = || sightings.place(Path::new(&object.path), object.inode.map(as_stat_shows));
            (is_file, is_file.then(place).flatten())
        });
        is_file.then_some((place, page, found))
    }
}

/// The faults of the processes `pids` and of all that they start.
fn listen(pids: Vec<u32>) -> Result<Stream, PerfError> {
    let probe = Probe { faults: FaultEvents::Ends, ring_bytes: RING_BYTES, ..Probe::default() };
    Stream::attach_to(&Target::Processes(pids), &probe)
}

/// The pages that one fault at `address` can map (do_fault_around of mm/memory.c).
fn window(place: &Resolved<'_>, address: u64) -> PageRange {
    let first = PageIndex::containing(place.mapping.offset_bytes(place.addresses.start)).0;
    let at = place.page.map_or(first, |page| page.0);
    let pages_before = at.saturating_sub(first);
    let pages_left = (place.addresses.end - address).div_ceil(PAGE_SIZE);
    let (before, after) = around(PageIndex::containing(address).0, pages_before, pages_left);
    PageRange::new(PageIndex(at - before), PageIndex(at + after))
}

/// How many pages before that at `place` (of the address space), and from it on, a fault can map, where the mapping has so many.
fn around(place: u64, pages_before: u64, pages_left: u64) -> (u64, u64) {
    /// One page table: a fault maps nothing beyond.
    const TABLE_PAGES: u64 = 512;
    // The window begins at a multiple of its length in the address space, or where the mapping begins; it is as long either way.
    let before = (place % FAULT_AROUND_PAGES).min(pages_before);
    let after = (FAULT_AROUND_PAGES - before).min(TABLE_PAGES - place % TABLE_PAGES).min(pages_left);
    (before, after)
}

/// A device as the kernel's events encode it, encoded as stat(2) does; and the inode.
pub fn as_stat_shows((device, inode): Inode) -> Inode {
    (device_number::of_stat(device), inode)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use prepage_sys::maps::mappings;
    use prepage_testing::{Doctor, Need, unless_refused};

    use super::*;

    /// A program that maps, touches and unmaps the same page again and again.
    #[test]
    fn a_fault_of_what_is_not_armed_is_kept_once() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = child.id();
        let armer = || Armer::new(None, Err("refused".into()));
        let is_refused = |error: &PerfError| {
            matches!(error, PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. })
        };
        let attached = Faults::attach(pid, Entry::Executed, armer);
        let faults = unless_refused(attached, Need::Doctor(Doctor::Faults), is_refused);
        let mapped = mappings(pid).unwrap().into_iter().find(|mapped| mapped.inode.is_some()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let Some(mut faults) = faults else { return };
        let (mut sightings, mut last_touch_ns) = (Sightings::default(), 0);
        for time_ns in 1..=100_000 {
            let kind = EventKind::FaultEnd { address: mapped.start + time_ns % 4096, ip: 0, disk: false };
            faults.see(
                &Event { time_ns, pid, tid: pid, kind, is_time_borrowed: false },
                &mut sightings,
                &mut last_touch_ns,
            );
        }
        assert_eq!((sightings.pages(), last_touch_ns), (1, 100_000));
        assert_eq!(faults.unarmed.len(), 1);
    }

    #[test]
    fn a_window_is_clipped_to_its_mapping_and_its_page_table() {
        assert_eq!(around(37, 1000, 1000), (5, 11));
        // A mapping that begins inside a window moves it.
        assert_eq!(around(37, 2, 1000), (2, 14));
        assert_eq!(around(37, 0, 1000), (0, 16));
        assert_eq!(around(37, 1000, 3), (5, 3));
        assert_eq!(around(511, 1, 1000), (1, 1));
    }
}
