//! Objects, the entries that map them, and what touching their pages does.

use std::collections::HashSet;

use super::device::Timeline;
use super::outcome::{ObjectOutcome, Outcome};
use super::pages::{MOST_PAGES, Pages, bit, groups};
use crate::page::{PageIndex, PageRange};
use crate::policy::{Cluster, ClusterPolicy, EntryState, FaultAt, Holes, Neighbours, Policy, Residency};

/// Pages of a superpage: 2 MiB.
const SUPERPAGE_PAGES: u64 = 512;

/// Names an object of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectIndex(pub u32);

/// Names a map entry of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EntryIndex(pub u32);

/// One access to one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// Page of the entry, counted from its start.
    pub page: u64,
    /// The entry it goes through.
    pub entry: EntryIndex,
    /// What the program did since the touch before, in nanoseconds. Only counts where there is a device.
    pub think_ns: u32,
}

impl Touch {
    /// A touch that follows the one before at once.
    pub fn new(entry: EntryIndex, page: u64) -> Self {
        Self { page, entry, think_ns: 0 }
    }
}

/// Where a replay stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Touches until now.
    pub touches: u64,
    /// Hard faults until now.
    pub hard: u64,
    /// Pages read until now.
    pub read: u64,
}

/// Memory, maps and counts under one policy.
///
/// The memory is as large as it must be. Entries of one object share its pages and fault by themselves.
#[derive(Debug, Default)]
pub struct Replay {
    objects: Vec<ObjectMemory>,
    entries: Vec<Entry>,
    timeline: Option<Timeline>,
    /// Whether faults in wholly resident blocks map all of them at once.
    superpages: bool,
    outcome: Outcome,
}

#[derive(Debug)]
struct ObjectMemory {
    pages: u64,
    policy: Policy,
    memory: Memory,
    counts: ObjectOutcome,
    /// Pages that were read and then touched.
    used: u64,
}

/// What is resident of one object.
#[derive(Debug, Default)]
struct Memory {
    groups: Pages<Resident>,
    marks: HashSet<PageIndex>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    resident: u64,
    touched: u64,
    /// Resident from the beginning.
    given: u64,
}

#[derive(Debug)]
struct Entry {
    object: ObjectIndex,
    window: PageRange,
    state: EntryState,
    /// Whether the policy's opening reads were made.
    opened: bool,
    groups: Pages<Mapped>,
    /// Blocks mapped by one superpage.
    superpages: HashSet<u64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mapped {
    mapped: u64,
    touched: u64,
}

impl Residency for Memory {
    fn is_resident(&self, page: PageIndex) -> bool {
        self.groups.get(page).is_some_and(|group| group.resident & bit(page) != 0)
    }

    fn is_marked(&self, page: PageIndex) -> bool {
        self.marks.contains(&page)
    }

    fn resident_in(&self, range: PageRange) -> u64 {
        let resident = |(page, bits): (PageIndex, u64)| {
            self.groups.get(page).map_or(0, |group| u64::from((group.resident & bits).count_ones()))
        };
        groups(range).map(resident).sum()
    }
}

impl Replay {
    /// A replay without objects, without a device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Estimates times as on the timeline's device. To be called before objects are added.
    pub fn with_timeline(mut self, timeline: Timeline) -> Self {
        self.timeline = Some(timeline);
        self
    }

    /// Maps wholly resident blocks of 512 pages by one mapping, as FreeBSD does with full reservations: a soft fault in
    /// one maps it all, and one whose last page gets mapped is promoted. Not under Linux's policies, for Linux does not.
    pub fn with_superpages(mut self) -> Self {
        self.superpages = true;
        self
    }

    /// Adds an object of `pages` pages, none of them resident.
    ///
    /// # Panics
    /// When `pages` is beyond [`MOST_PAGES`].
    pub fn add_object(&mut self, pages: u64, policy: Policy) -> ObjectIndex {
        assert!(pages <= MOST_PAGES, "an object of {pages} pages cannot be mapped");
        let index = ObjectIndex(self.objects.len() as u32);
        if let Some(timeline) = &mut self.timeline {
            timeline.place(pages);
        }
        self.objects.push(ObjectMemory {
            pages,
            policy,
            memory: Memory::default(),
            counts: ObjectOutcome::default(),
            used: 0,
        });
        index
    }

    /// Maps `pages` pages of `object` from page `offset` on, as far as it has them.
    pub fn add_entry(&mut self, object: ObjectIndex, offset: u64, pages: u64) -> EntryIndex {
        let index = EntryIndex(self.entries.len() as u32);
        let of = &self.objects[object.0 as usize];
        let start = offset.min(of.pages);
        let end = start.saturating_add(pages).min(of.pages);
        let window = PageRange::new(PageIndex(start), PageIndex(end));
        let state = of.policy.entry(window);
        self.entries.push(Entry {
            object,
            window,
            state,
            opened: false,
            groups: Pages::default(),
            superpages: HashSet::new(),
        });
        index
    }

    /// The same of pages that may be executed.
    pub fn add_executable_entry(&mut self, object: ObjectIndex, offset: u64, pages: u64) -> EntryIndex {
        let index = self.add_entry(object, offset, pages);
        self.entries[index.0 as usize].state.executable = true;
        index
    }

    /// Makes pages of an object resident before the first touch.
    pub fn give(&mut self, object: ObjectIndex, range: PageRange) {
        let memory = &mut self.objects[object.0 as usize].memory;
        memory.groups.change(range, |group, bits| {
            group.resident |= bits;
            group.given |= bits;
        });
    }

    /// Replays touches in order.
    ///
    /// # Panics
    /// When a touch names no entry, or a page that its entry does not have.
    pub fn replay(&mut self, touches: &[Touch]) {
        for &touch in touches {
            self.touch(touch);
        }
    }

    /// Replays one touch.
    ///
    /// # Panics
    /// As [`Replay::replay`].
    #[inline]
    pub fn touch(&mut self, touch: Touch) {
        self.outcome.touches += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.think(touch.think_ns.into());
        }
        let entry = &mut self.entries[touch.entry.0 as usize];
        let page = PageIndex(entry.window.start().0.wrapping_add(touch.page));
        if page < entry.window.end() {
            let group = entry.groups.get_mut(page);
            if group.mapped & group.touched & bit(page) != 0 {
                return;
            }
        }
        self.first_touch(touch.entry, page);
    }

    /// A touch of a page that this entry has not touched since it was mapped.
    #[inline(never)]
    fn first_touch(&mut self, index: EntryIndex, page: PageIndex) {
        let entry = &mut self.entries[index.0 as usize];
        assert!(entry.window.contains(page), "page {page} is past the end of its entry {:?}", entry.window);
        let group = entry.groups.get_mut(page);
        group.touched |= bit(page);
        if group.mapped & bit(page) == 0 {
            self.fault(index, page);
        }
        let object = &mut self.objects[self.entries[index.0 as usize].object.0 as usize];
        let group = object.memory.groups.get_mut(page);
        if group.touched & bit(page) == 0 {
            group.touched |= bit(page);
            self.outcome.touched_pages += 1;
            object.used += u64::from(group.given & bit(page) == 0);
        }
    }

    fn fault(&mut self, index: EntryIndex, page: PageIndex) {
        let entry = &mut self.entries[index.0 as usize];
        let at = FaultAt { page, window: entry.window };
        let mut reader = Reader {
            index: entry.object,
            object: &mut self.objects[entry.object.0 as usize],
            timeline: self.timeline.as_mut(),
            outcome: &mut self.outcome,
        };
        let hard = !reader.object.memory.is_resident(page);
        let read = if hard {
            reader.hard(&mut entry.state, &at)
        } else {
            reader.soft(&mut entry.state, &at);
            PageRange::new(page, PageIndex(page.0 + 1))
        };
        if !std::mem::replace(&mut entry.opened, true) {
            reader.open(&at);
        }
        let (object, timeline) = (&*reader.object, reader.timeline.as_deref());
        let mapped = match object.policy.neighbours() {
            Neighbours::Spiral(_) if hard => entry.map(read),
            Neighbours::Spiral(reach) => entry.map_spiral(page, reach, &object.memory),
            Neighbours::Block(pages) => {
                let arrived = |page| timeline.is_none_or(|timeline| timeline.has_arrived(reader.index, page));
                entry.map_block(page, pages, &object.memory, arrived)
            }
        };
        object.policy.mapped(&mut entry.state, mapped);
        let freebsd = matches!(object.policy.neighbours(), Neighbours::Spiral(_));
        if self.superpages && freebsd && entry.map_superpage(page, &object.memory, !hard) {
            self.outcome.superpages += 1;
        }
    }

    /// Begins another run of the program: nothing is mapped and its policies remember nothing, but what is resident stays.
    pub fn next_run(&mut self) {
        for entry in &mut self.entries {
            entry.groups = Pages::default();
            entry.superpages.clear();
            let executable = entry.state.executable;
            let state = self.objects[entry.object.0 as usize].policy.entry(entry.window);
            entry.state = EntryState { executable, ..state };
            entry.opened = false;
        }
    }

    /// Whether `page` of `object` is resident.
    pub fn is_resident(&self, object: ObjectIndex, page: PageIndex) -> bool {
        self.objects[object.0 as usize].memory.is_resident(page)
    }

    /// Where it stands.
    pub fn progress(&self) -> Progress {
        let Outcome { touches, hard, read, .. } = self.outcome;
        Progress { touches, hard, read }
    }

    /// What was counted until now.
    pub fn outcome(&self) -> Outcome {
        let mut outcome = self.outcome.clone();
        for object in &self.objects {
            let counts = ObjectOutcome { never: object.counts.read - object.used, ..object.counts };
            outcome.never += counts.never;
            outcome.full512 += object.memory.full_blocks();
            outcome.objects.push(counts);
        }
        if let Some(timeline) = &self.timeline {
            outcome.time_ns = timeline.now_ns();
        }
        outcome
    }

    /// What was counted.
    pub fn finish(self) -> Outcome {
        self.outcome()
    }

    /// Bytes that page tables take.
    pub fn bytes(&self) -> usize {
        let entries = self.entries.iter().map(|entry| entry.groups.bytes());
        let objects = self.objects.iter().map(|object| object.memory.groups.bytes());
        entries.chain(objects).sum()
    }
}

/// Reads pages of one object, for one fault.
struct Reader<'a> {
    index: ObjectIndex,
    object: &'a mut ObjectMemory,
    timeline: Option<&'a mut Timeline>,
    outcome: &'a mut Outcome,
}

impl Reader<'_> {
    /// Reads what a missing page needs; returns the run that holds it.
    fn hard(&mut self, state: &mut EntryState, at: &FaultAt) -> PageRange {
        self.outcome.hard += 1;
        self.object.counts.hard += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.spend_hard_fault();
        }
        let cluster = self.object.policy.hard(state, at, &self.object.memory);
        let run = cluster.clip(at, &self.object.memory);
        let sizes = self.outcome.clusters.entry(run.len()).or_default();
        *(if run == cluster.range { &mut sizes.full } else { &mut sizes.truncated }) += 1;
        self.bring_in(run);
        if cluster.holes == Holes::Skip {
            self.background(&cluster, at.window);
        }
        self.mark(&cluster, run);
        self.object.policy.read(state, at, run);
        self.wait(at.page);
        run
    }

    fn soft(&mut self, state: &mut EntryState, at: &FaultAt) {
        self.outcome.soft += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.spend_soft_fault();
        }
        let cluster = self.object.policy.soft(state, at, &self.object.memory);
        self.object.memory.marks.remove(&at.page);
        if let Some(cluster) = cluster {
            self.background(&cluster, at.window);
        }
        if self.wait(at.page) {
            self.outcome.late += 1;
        }
    }

    /// What the policy wants from the first fault on.
    fn open(&mut self, at: &FaultAt) {
        let policy = self.object.policy.clone();
        for &range in policy.opening() {
            self.background(&Cluster { range, holes: Holes::Skip, mark: None }, at.window);
        }
    }

    /// Reads the missing pages of `cluster`, run by run, and lets nobody wait for them.
    fn background(&mut self, cluster: &Cluster, window: PageRange) {
        let wanted = cluster.within(window);
        let mut next = wanted.start();
        while let Some(start) = self.object.memory.next(next, wanted.end(), false) {
            let end = self.object.memory.next(start, wanted.end(), true).unwrap_or(wanted.end());
            let run = PageRange::new(start, end);
            self.bring_in(run);
            self.mark(cluster, run);
            self.outcome.background_io += 1;
            next = end;
        }
    }

    fn bring_in(&mut self, run: PageRange) {
        self.outcome.io += 1;
        self.outcome.read += run.len();
        self.object.counts.read += run.len();
        self.object.memory.groups.change(run, |group, bits| group.resident |= bits);
        if let Some(timeline) = &mut self.timeline {
            timeline.read(self.index, run);
        }
    }

    /// Leaves the cluster's mark, if its page was just read.
    fn mark(&mut self, cluster: &Cluster, read: PageRange) {
        if let Some(page) = cluster.mark.filter(|&page| read.contains(page)) {
            self.object.memory.marks.insert(page);
        }
    }

    /// Waits until `page` has arrived; whether there was something to wait for.
    fn wait(&mut self, page: PageIndex) -> bool {
        let Some(timeline) = &mut self.timeline else { return false };
        let waited_ns = timeline.wait(self.index, page);
        self.outcome.stall_ns += waited_ns;
        waited_ns > 0
    }
}

impl Memory {
    /// The first page of `[from, end)` whose residency is `resident`.
    fn next(&self, from: PageIndex, end: PageIndex, resident: bool) -> Option<PageIndex> {
        if from >= end {
            return None;
        }
        groups(PageRange::new(from, end)).find_map(|(page, bits)| {
            let there = self.groups.get(page).map_or(0, |group| group.resident);
            let found = bits & if resident { there } else { !there };
            let base = page.0 & !(super::pages::GROUP_PAGES - 1);
            (found != 0).then(|| PageIndex(base + u64::from(found.trailing_zeros())))
        })
    }

    /// Blocks of 512 pages that are wholly resident.
    fn full_blocks(&self) -> u64 {
        let per_block = (SUPERPAGE_PAGES / super::pages::GROUP_PAGES) as usize;
        let full = |block: &&[Resident]| block.iter().all(|group| group.resident == u64::MAX);
        let chunks = self.groups.chunks();
        chunks.map(|(_, groups)| groups.chunks(per_block).filter(full).count() as u64).sum()
    }
}

impl Entry {
    /// Maps resident pages; how many were not mapped before.
    fn map(&mut self, range: PageRange) -> u64 {
        let mut mapped = 0;
        self.groups.change(range, |group, bits| {
            mapped += u64::from((bits & !group.mapped).count_ones());
            group.mapped |= bits;
        });
        mapped
    }

    /// Maps `page` and neighbours up to `reach` away, nearest first, until one is missing.
    fn map_spiral(&mut self, page: PageIndex, reach: u64, memory: &Memory) -> u64 {
        let mut mapped = self.map(PageRange::new(page, PageIndex(page.0 + 1)));
        for distance in 1..=reach {
            let below = page.0.checked_sub(distance);
            for neighbour in below.into_iter().chain([page.0 + distance]).map(PageIndex) {
                if !self.window.contains(neighbour) {
                    continue;
                }
                if !memory.is_resident(neighbour) {
                    return mapped;
                }
                mapped += self.map(PageRange::new(neighbour, PageIndex(neighbour.0 + 1)));
            }
        }
        mapped
    }

    /// Maps `page` and what else is there, unmarked and arrived, of its aligned block of `pages`.
    fn map_block(
        &mut self,
        page: PageIndex,
        pages: u64,
        memory: &Memory,
        arrived: impl Fn(PageIndex) -> bool,
    ) -> u64 {
        let start = PageIndex(page.0 - page.0 % pages).max(self.window.start());
        let end = PageIndex(page.0 - page.0 % pages + pages).min(self.window.end());
        let mut mapped = 0;
        for neighbour in PageRange::new(start, end).iter() {
            let there = memory.is_resident(neighbour) && !memory.is_marked(neighbour) && arrived(neighbour);
            if there || neighbour == page {
                mapped += self.map(PageRange::new(neighbour, PageIndex(neighbour.0 + 1)));
            }
        }
        mapped
    }

    /// Maps the block around `page` by one superpage, if it may be: wholly resident, wholly in the window, and either
    /// asked for by a soft fault or mapped page by page already. Whether it was done.
    fn map_superpage(&mut self, page: PageIndex, memory: &Memory, soft: bool) -> bool {
        let block = page.0 / SUPERPAGE_PAGES;
        let start = PageIndex(block * SUPERPAGE_PAGES);
        let range = PageRange::new(start, PageIndex(start.0 + SUPERPAGE_PAGES));
        if range.start() < self.window.start()
            || range.end() > self.window.end()
            || self.superpages.contains(&block)
            || memory.resident_in(range) < SUPERPAGE_PAGES
        {
            return false;
        }
        let mapped_already = |(page, bits): (PageIndex, u64)| {
            self.groups.get(page).is_some_and(|group| group.mapped & bits == bits)
        };
        if !soft && !groups(range).all(mapped_already) {
            return false;
        }
        self.map(range);
        self.superpages.insert(block)
    }
}
