//! What a trace says, in tallies: one pass over the file.

use std::cmp::Reverse;
use std::hash::Hash;

use prepage_core::{
    CodePlace, Fault, FaultClass, Object, ObjectId, Permissions, Stack, StackId, Tally, Thread, ThreadIndex,
    TraceFacts,
};
use prepage_trace::parquet::{Batch, TraceFile, TraceFileError, Wanted};
use rustc_hash::FxHashMap;

use crate::by::By;
use crate::costs::Costs;
use crate::filter::{Filter, Sieve};
use crate::symbols::{Symbols, places_of_calls};

/// What to find out.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which faults to look at.
    pub filter: Filter,
    /// How they will be grouped. Classes, files and time slices are always found out.
    pub by: Vec<By>,
    /// Whether percentiles of every group are wanted. Those of the classes always are known.
    pub group_percentiles: bool,
    /// Into how many slices to cut the time.
    pub slices: usize,
    /// How many of the slowest faults to keep.
    pub slowest: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { filter: Filter::default(), by: Vec::new(), group_percentiles: false, slices: 60, slowest: 10 }
    }
}

/// What a trace says.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The run that was recorded.
    pub facts: TraceFacts,
    /// Which faults are counted.
    pub filter: Filter,
    /// How many faults the file holds, counted here or not.
    pub faults_in_file: u64,
    /// Whether the costs of some of these are known, or there are none: then the cost of no faults at all is 0, and else it is not known.
    pub has_costs: bool,
    /// Where the time axis ends, in nanoseconds since the trace's start.
    pub end_ns: u64,
    /// Indexed by [`FaultClass`].
    pub classes: [Costs; FaultClass::ALL.len()],
    /// By object; `None` for memory of no known mapping.
    pub objects: FxHashMap<Option<ObjectId>, Costs>,
    /// By thread; empty unless it was asked for.
    pub threads: FxHashMap<ThreadIndex, Costs>,
    /// By object and what the mapping allowed; empty unless it was asked for.
    pub mappings: FxHashMap<(Option<ObjectId>, Permissions), Costs>,
    /// By place of the instruction that faulted; empty unless it was asked for.
    pub codes: FxHashMap<CodePlace, Costs>,
    /// By call stack; empty unless it was asked for.
    pub stacks: FxHashMap<Option<StackId>, Costs>,
    /// By slice of time and class; with percentiles where those of groups were asked for by time.
    pub slices: Vec<[Costs; FaultClass::ALL.len()]>,
    /// The slowest faults, the slowest first.
    pub slowest: Vec<Fault>,
    /// What the numbers of objects mean.
    pub object_table: Vec<Object>,
    /// What the numbers of threads mean.
    pub thread_table: Vec<Thread>,
    /// What the numbers of stacks mean.
    pub stack_table: Vec<Stack>,
    /// Names of the places in `codes` and `stacks`.
    pub symbols: Symbols,
}

impl Report {
    /// Reads `file`, on all CPUs.
    ///
    /// # Errors
    /// What cannot be read or decoded.
    pub fn read(file: &TraceFile, options: &Options) -> Result<Self, TraceFileError> {
        let end_ns = file.end_ns();
        let (parts, names) =
            file.fold(wanted(options), || Part::new(options, end_ns), |part, batch| part.add(batch))?;
        let mut parts = parts.into_iter();
        let mut whole = parts.next().unwrap_or_else(|| Part::new(options, end_ns));
        parts.for_each(|part| whole.merge(part));
        whole.slowest.compare();
        let (object_table, stack_table) = (names.objects.all(), names.stacks.all());
        let stacks = whole.found.stacks.keys().flatten();
        let in_stacks = stacks.flat_map(|id| places_of_calls(&stack_table[id.index()].places));
        let of_instructions = whole.found.codes.keys().copied().filter(|_| options.by.contains(&By::Symbol));
        let symbols = Symbols::of(&object_table, of_instructions.chain(in_stacks));
        Ok(Self {
            facts: file.facts().clone(),
            filter: options.filter.clone(),
            faults_in_file: file.faults(),
            has_costs: whole.found.has_costs || file.faults() == 0,
            end_ns,
            slowest: whole.slowest.faults,
            object_table,
            thread_table: names.threads.all(),
            stack_table,
            symbols,
            ..whole.found
        })
    }

    /// All faults that are counted.
    pub fn total(&self) -> Costs {
        let mut total = Costs::with_percentiles();
        self.classes.iter().for_each(|tally| total.merge(tally));
        total
    }

    /// Whether it is known what the faults of `tally` cost together.
    pub fn is_timed(&self, tally: &Tally) -> bool {
        tally.is_timed() && self.has_costs
    }

    /// The path of the object that code at `place` is in, or what stands for it where there is none.
    pub fn code_path(&self, place: CodePlace) -> &str {
        place_path(&self.object_table, place)
    }

    /// How long a slice of time is, in nanoseconds.
    pub fn slice_ns(&self) -> f64 {
        self.end_ns as f64 / self.slices.len() as f64
    }

    /// The path of the object a fault touched, or what stands for it where there is none.
    pub fn path(&self, object: Option<ObjectId>) -> &str {
        object.map_or(UNKNOWN, |id| &self.object_table[id.0 as usize].path)
    }
}

/// Stands for memory that is not known to be mapped.
pub const UNKNOWN: &str = "[unknown]";
/// Stands for the kernel's own code, which faults on a program's memory in system calls.
pub const KERNEL: &str = "[kernel]";

/// The path of the one of `objects` that code at `place` is in, or what stands for it where there is none.
pub(crate) fn place_path(objects: &[Object], place: CodePlace) -> &str {
    match place.object {
        Some(id) => &objects[id.0 as usize].path,
        // The upper half of the addresses is the kernel's.
        None if place.offset >> 63 == 1 => KERNEL,
        None => UNKNOWN,
    }
}

/// What of each fault the groups that were asked for go by.
fn needed(options: &Options) -> Wanted {
    let of = |by: &By| match by {
        By::Thread | By::Process | By::Comm => Wanted::THREAD,
        By::Mapping => Wanted::PERMISSIONS,
        By::Code | By::Symbol => Wanted::CODE,
        By::Stack => Wanted::STACK,
        By::Class | By::File | By::Time => Wanted::empty(),
    };
    options.by.iter().map(of).collect()
}

fn wanted(options: &Options) -> Wanted {
    let of_slowest = Wanted::THREAD | Wanted::ADDRESS | Wanted::PAGE;
    let slowest = if options.slowest > 0 { of_slowest } else { Wanted::empty() };
    Wanted::START | Wanted::OBJECT | options.filter.wanted() | needed(options) | slowest
}

/// What one worker found out.
struct Part<'a> {
    options: &'a Options,
    sieve: Sieve<'a>,
    needed: Wanted,
    slices_per_ns: f64,
    /// Its groups.
    found: Report,
    slowest: Slowest,
}

impl<'a> Part<'a> {
    fn new(options: &'a Options, end_ns: u64) -> Self {
        let slices = options.slices.max(1);
        let percentiles = options.group_percentiles && options.by.contains(&By::Time);
        Self {
            options,
            sieve: Sieve::new(&options.filter),
            needed: needed(options),
            slices_per_ns: slices as f64 / end_ns.max(1) as f64,
            found: Report {
                classes: std::array::from_fn(|_| Costs::with_percentiles()),
                slices: vec![std::array::from_fn(|_| costs(percentiles)); slices],
                ..Report::default()
            },
            slowest: Slowest { faults: Vec::new(), count: options.slowest, least_ns: 0 },
        }
    }

    fn add(&mut self, batch: &Batch<'_>) {
        let found = &mut self.found;
        let percentiles = self.options.group_percentiles;
        for fault in batch.faults {
            found.has_costs |= fault.cost_ns.is_some();
            if !self.sieve.passes(fault, batch.names) {
                continue;
            }
            found.classes[fault.class as usize].add(fault);
            group(&mut found.objects, fault.object, percentiles).add(fault);
            if self.needed.contains(Wanted::THREAD) {
                group(&mut found.threads, fault.thread, percentiles).add(fault);
            }
            if self.needed.contains(Wanted::PERMISSIONS) {
                group(&mut found.mappings, (fault.object, fault.permissions), percentiles).add(fault);
            }
            if self.needed.contains(Wanted::CODE) {
                group(&mut found.codes, fault.code_place(), percentiles).add(fault);
            }
            if self.needed.contains(Wanted::STACK) {
                group(&mut found.stacks, fault.stack, percentiles).add(fault);
            }
            let slice = (fault.start_ns as f64 * self.slices_per_ns) as usize;
            let slice = slice.min(found.slices.len() - 1);
            found.slices[slice][fault.class as usize].add(fault);
            self.slowest.add(fault);
        }
    }

    fn merge(&mut self, other: Self) {
        let (found, theirs) = (&mut self.found, other.found);
        found.has_costs |= theirs.has_costs;
        found.classes.iter_mut().zip(&theirs.classes).for_each(|(tally, theirs)| tally.merge(theirs));
        merge_groups(&mut found.objects, theirs.objects);
        merge_groups(&mut found.threads, theirs.threads);
        merge_groups(&mut found.mappings, theirs.mappings);
        merge_groups(&mut found.codes, theirs.codes);
        merge_groups(&mut found.stacks, theirs.stacks);
        for (slice, theirs) in found.slices.iter_mut().zip(&theirs.slices) {
            slice.iter_mut().zip(theirs).for_each(|(tally, theirs)| tally.merge(theirs));
        }
        other.slowest.faults.iter().for_each(|fault| self.slowest.add(fault));
    }
}

fn group<K: Eq + Hash>(groups: &mut FxHashMap<K, Costs>, key: K, percentiles: bool) -> &mut Costs {
    groups.entry(key).or_insert_with(|| costs(percentiles))
}

/// Those of a group that has no faults yet.
fn costs(percentiles: bool) -> Costs {
    if percentiles { Costs::with_coarse_percentiles() } else { Costs::default() }
}

fn merge_groups<K: Eq + Hash>(groups: &mut FxHashMap<K, Costs>, others: FxHashMap<K, Costs>) {
    for (key, tally) in others {
        groups.entry(key).or_default().merge(&tally);
    }
}

/// The slowest faults so far, and more that have not been compared yet.
struct Slowest {
    faults: Vec<Fault>,
    count: usize,
    /// The least cost of a fault that may be one of them.
    least_ns: u64,
}

impl Slowest {
    /// So many more are kept until they are compared.
    const WAITING: usize = 1024;

    fn add(&mut self, fault: &Fault) {
        if fault.cost_ns.is_some_and(|cost_ns| cost_ns >= self.least_ns) && self.count > 0 {
            self.faults.push(*fault);
            if self.faults.len() >= self.count.saturating_add(Self::WAITING) {
                self.compare();
            }
        }
    }

    /// Leaves as many as were asked for, the slowest first; of equal ones the earlier counts as slower.
    fn compare(&mut self) {
        self.faults.sort_unstable_by_key(|fault| (Reverse(fault.cost_ns), fault.start_ns));
        self.faults.truncate(self.count);
        if let Some(least) = self.faults.last().filter(|_| self.faults.len() == self.count) {
            self.least_ns = least.cost_ns.unwrap_or(0);
        }
    }
}
