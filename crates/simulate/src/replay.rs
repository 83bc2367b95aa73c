//! Objects, the entries that map them, and what touching their pages does.

use prepage_core::policy::{Cluster, FaultAt, Holes, Neighbours, Policy, Residency};
use prepage_core::{PageIndex, PageRange};

use crate::entry::Entry;
use crate::outcome::{ObjectOutcome, Outcome};
use crate::pages::{MOST_PAGES, bit};
use crate::resident::Resident;
use crate::timeline::Timeline;

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
    /// How long the program computed since the touch before, in nanoseconds. Counts only where there is a device.
    pub think_ns: u32,
}

impl Touch {
    /// A touch that follows the one before at once.
    pub fn new(entry: EntryIndex, page: u64) -> Self {
        Self { page, entry, think_ns: 0 }
    }
}

/// Counts of a replay under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Touches until now.
    pub touches: u64,
    /// Hard faults until now.
    pub hard: u64,
    /// Pages read until now.
    pub read: u64,
}

/// Memory, maps and counts.
///
/// Memory is as large as it must be. Entries of one object share its pages; each has a policy of its own and faults by
/// itself.
#[derive(Debug, Default)]
pub struct Replay {
    objects: Vec<Object>,
    entries: Vec<Entry>,
    timeline: Option<Timeline>,
    /// Whether faults in wholly resident blocks map all of them at once.
    superpages: bool,
    outcome: Outcome,
}

#[derive(Debug)]
struct Object {
    pages: u64,
    memory: Resident,
    counts: ObjectOutcome,
    /// Pages that were read and then touched.
    used: u64,
}

impl Replay {
    /// A replay without objects, without a device.
    pub fn new() -> Self {
        Self::default()
    }

    /// Estimates times as on the timeline's device.
    pub fn with_timeline(mut self, mut timeline: Timeline) -> Self {
        self.objects.iter().for_each(|object| timeline.place(object.pages));
        self.timeline = Some(timeline);
        self
    }

    /// Maps wholly resident blocks of 512 pages by one mapping, as FreeBSD does with full reservations: a soft fault in
    /// one maps it all, and one whose last page gets mapped is promoted. Linux does not, so neither do its policies.
    pub fn with_superpages(mut self) -> Self {
        self.superpages = true;
        self
    }

    /// Adds an object of `pages` pages, none of them resident.
    ///
    /// # Panics
    /// When `pages` is beyond [`MOST_PAGES`].
    pub fn add_object(&mut self, pages: u64) -> ObjectIndex {
        assert!(pages <= MOST_PAGES, "an object of {pages} pages cannot be mapped");
        let index = ObjectIndex(self.objects.len() as u32);
        if let Some(timeline) = &mut self.timeline {
            timeline.place(pages);
        }
        let (memory, counts) = Default::default();
        self.objects.push(Object { pages, memory, counts, used: 0 });
        index
    }

    /// Maps `pages` pages of `object` from page `offset` on, as far as it has them. `policy` serves the entry's faults.
    pub fn add_entry(&mut self, object: ObjectIndex, offset: u64, pages: u64, policy: Policy) -> EntryIndex {
        let object_pages = self.objects[object.0 as usize].pages;
        let start = offset.min(object_pages);
        let end = start.saturating_add(pages).min(object_pages);
        let window = PageRange::new(PageIndex(start), PageIndex(end));
        self.entries.push(Entry::new(object, window, policy));
        EntryIndex(self.entries.len() as u32 - 1)
    }

    /// Says that the pages of `entry` may be executed, which Linux reads in another way.
    pub fn make_executable(&mut self, entry: EntryIndex) {
        self.entries[entry.0 as usize].state.executable = true;
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
        self.think(touch.think_ns.into());
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

    /// Lets the program compute for `think_ns`, where there is a device.
    #[inline]
    pub fn think(&mut self, think_ns: u64) {
        if let Some(timeline) = &mut self.timeline {
            timeline.think(think_ns);
        }
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
        let mut reader = Reader {
            index: entry.object,
            at: FaultAt { page, window: entry.window },
            object: &mut self.objects[entry.object.0 as usize],
            timeline: self.timeline.as_mut(),
            outcome: &mut self.outcome,
        };
        let hard = !reader.object.memory.is_resident(page);
        let done = if hard { reader.hard(entry) } else { reader.soft(entry) };
        if !std::mem::replace(&mut entry.opened, true) {
            // What the policy wants read from the first fault on.
            for &range in entry.policy.opening() {
                reader.background(&Cluster::new(range, Holes::Skip));
            }
        }
        let (memory, timeline, object) = (&reader.object.memory, reader.timeline.as_deref(), entry.object);
        let arrived = |range| timeline.is_none_or(|timeline| timeline.has_arrived(object, range));
        let mapped = entry.map_after(page, &done, memory, &arrived);
        entry.policy.mapped(&mut entry.state, mapped);
        if self.superpages && entry.map_superpage(page, memory, &arrived, !hard) {
            self.outcome.superpages += 1;
        }
        // Linux lets go of its locks to wait for a read and begins again: the page is mapped by a second, short fault.
        if (hard || done.waited) && matches!(entry.policy.neighbours(), Neighbours::Block(_)) {
            self.outcome.short += 1;
        }
    }

    /// Begins another run of the program: nothing is mapped and its policies remember nothing, but what is resident stays.
    pub fn next_run(&mut self) {
        for entry in &mut self.entries {
            *entry = entry.unmapped();
        }
    }

    /// Whether `page` of `object` is resident.
    pub fn is_resident(&self, object: ObjectIndex, page: PageIndex) -> bool {
        self.objects[object.0 as usize].memory.is_resident(page)
    }

    /// The counts until now.
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
            (outcome.time_ns, outcome.fault_ns) = (timeline.now_ns(), timeline.fault_ns());
        }
        outcome
    }

    /// Bytes that page tables take.
    pub fn bytes(&self) -> usize {
        let entries = self.entries.iter().map(|entry| entry.groups.bytes());
        let objects = self.objects.iter().map(|object| object.memory.groups.bytes());
        entries.chain(objects).sum()
    }
}

/// What was done for a fault before it maps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Done {
    /// The run that holds the touched page, where it was missing.
    pub read: Option<PageRange>,
    /// The marked pages that the touched one was of.
    pub folio: Option<PageRange>,
    /// Whether the fault waited.
    pub waited: bool,
}

/// Reads pages of one object, for one fault.
struct Reader<'a> {
    index: ObjectIndex,
    at: FaultAt,
    object: &'a mut Object,
    timeline: Option<&'a mut Timeline>,
    outcome: &'a mut Outcome,
}

impl Reader<'_> {
    /// Reads what a missing page needs.
    fn hard(&mut self, entry: &mut Entry) -> Done {
        self.outcome.hard += 1;
        self.object.counts.hard += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.spend_hard_fault();
        }
        let cluster = entry.policy.hard(&mut entry.state, &self.at, &self.object.memory);
        let run = cluster.clip(&self.at, &self.object.memory);
        self.outcome.clusters.add(run.len(), cluster.is_truncated(run), 1);
        self.bring_in(run);
        if cluster.holes == Holes::Skip {
            self.background(&cluster);
        }
        self.mark(&cluster, run);
        entry.policy.read(&mut entry.state, run);
        // Such a fault maps all that it read, Linux's maps what has arrived with its page.
        let waits_for = match entry.policy.neighbours() {
            Neighbours::Spiral(_) => run,
            Neighbours::Block(_) => self.at.page.alone(),
        };
        Done { read: Some(run), folio: None, waited: self.wait(waits_for) }
    }

    /// Reads on in the background where the policy wants it at a resident page.
    fn soft(&mut self, entry: &mut Entry) -> Done {
        self.outcome.soft += 1;
        if let Some(timeline) = &mut self.timeline {
            timeline.spend_soft_fault();
        }
        let cluster = entry.policy.soft(&mut entry.state, &self.at, &self.object.memory);
        let folio = self.object.memory.marked_folio(self.at.page);
        if let Some(folio) = folio {
            self.object.memory.marks.remove(&folio.start());
        }
        if let Some(cluster) = cluster {
            self.background(&cluster);
        }
        let waited = self.wait(self.at.page.alone());
        self.outcome.late += u64::from(waited);
        Done { read: None, folio, waited }
    }

    /// Reads the missing pages of `cluster`, run by run; no fault waits for them.
    fn background(&mut self, cluster: &Cluster) {
        let wanted = cluster.within(self.at.window);
        let mut next = wanted.start();
        while let Some(start) = self.object.memory.next(next, wanted.end(), false) {
            let end = self.object.memory.next(start, wanted.end(), true).unwrap_or(wanted.end());
            let run = PageRange::new(start, end);
            self.bring_in(run);
            self.mark(cluster, run);
            *self.outcome.background.entry(run.len()).or_default() += 1;
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
            self.object.memory.marks.insert(page, PageIndex(page.0 + cluster.mark_pages));
        }
    }

    /// Waits until `range` has arrived; whether there was something to wait for.
    fn wait(&mut self, range: PageRange) -> bool {
        let Some(timeline) = &mut self.timeline else { return false };
        let waited_ns = timeline.wait(self.index, range);
        self.outcome.stall_ns += waited_ns;
        waited_ns > 0
    }
}
