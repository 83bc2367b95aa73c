//! What the VM did, and what it holds.

use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_utils::CachePadded;
use hdrhistogram::Histogram;
use prepage_core::FaultClass;
use prepage_core::policy::cluster::ClusterHistogram;
use prepage_sys::sections::{Section, Sections};
use prepage_sys::signals::Endings;

use crate::histogram::{self, AtomicHistogram, Clusters};
use crate::pool::PoolFigures;
use crate::sync::{Anyway, Mutex, MutexGuard};

/// A struct of numbers that can tell their names.
macro_rules! numbers {
    ($(#[$of_all:meta])* pub struct $all:ident { $($(#[$of_one:meta])+ pub $name:ident: u64),+ $(,)? }) => {
        $(#[$of_all])*
        pub struct $all { $($(#[$of_one])+ pub $name: u64),+ }

        impl $all {
            /// All of them, with their names.
            pub(crate) fn fields_mut(&mut self) -> Vec<(&'static str, &mut u64)> {
                vec![$((stringify!($name), &mut self.$name)),+]
            }
        }
    };
}
pub(crate) use numbers;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident),+ $(,)?) => {
        /// What one fault, or one other action, did; added to the counters when it ends.
        #[derive(Clone, Copy, Debug, Default)]
        pub(crate) struct Tally { $(pub(crate) $name: u64),+ }

        #[derive(Debug, Default)]
        struct Counters { $($name: AtomicU64),+ }

        numbers! {
            /// Counted since the VM was made. Exact at every quiet moment.
            #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
            #[non_exhaustive]
            pub struct Counted { $($(#[doc = $doc])+ pub $name: u64),+ }
        }

        impl Counters {
            fn add(&self, tally: &Tally) {
                $(if tally.$name > 0 { self.$name.fetch_add(tally.$name, Ordering::Relaxed); })+
            }

            fn sum(&self, into: &mut Counted) {
                $(into.$name += self.$name.load(Ordering::Relaxed);)+
            }
        }
    };
}

counters! {
    /// Faults on a page that had to be read, by the fault that read it.
    hard,
    /// Faults on a page that was in memory, or that another fault was reading.
    soft,
    /// Faults that made zeros.
    zero,
    /// Faults that ended in SIGBUS.
    failed,
    /// Reads of sources for a fault that waited, one for each run of pages.
    reads,
    /// Reads of sources in the background.
    background_reads,
    /// Pages read, of both.
    pages_read,
    /// Blocks of 2 MiB of a local file that were read as a whole, into a huge page where the kernel found one.
    blocks_read,
    /// Pages that faults and background reads mapped. A VM with a record for each page and mapping would have made as
    /// many, and taken them away again.
    pages_mapped,
    /// Pages of zeros made.
    pages_zeroed,
    /// Pages of maps of huge pages left to the kernel, which makes those that are touched.
    pages_given,
    /// Pages of which the bytes were copied into a map that does not lie over the object's frames.
    pages_copied,
    /// Pages that a write was let through to, of maps with snapshots: the first write to a page after each.
    pages_opened,
    /// Clean pages that were let be written to, of objects that take writes.
    pages_dirtied,
    /// Pages that were written back.
    pages_written_back,
    /// Pages of [`Vm::memory`](crate::Vm::memory) that were written to the swap file.
    pages_swapped,
    /// Pages that could not be written back, and stay dirty: once for each try.
    write_backs_failed,
    /// Snapshots that were taken.
    snapshots,
    /// Pages that were frozen for snapshots.
    pages_frozen,
    /// Frozen pages that were freed because every map and snapshot above had another version.
    pages_shadowed,
    /// Nanoseconds during which writers to a map were held while pages were frozen.
    freeze_ns,
    /// Frames that were taken away, by [`Object::evict`](crate::Object::evict) and by reclaim.
    pages_evicted,
    /// Of these, those that reclaim took.
    pages_reclaimed,
    /// Pages read again not long after reclaim took them, as [`Replacement::TwoQueues`](crate::Replacement) remembers.
    pages_refaulted,
    /// Frames that were taken out of all maps, and kept.
    pages_unwired,
    /// Of these, those that were touched again, or followed where touches came in order: by faults that read nothing.
    pages_rewired,
    /// Bytes of empty page tables that were given back to the kernel.
    table_bytes_pruned,
    /// Reads that found too few free frames, and waited for reclaim.
    frame_waits,
    /// Maps of objects that are wholly in memory, left to the kernel, whose faults are not seen.
    maps_given,
    /// Waits of a fault for another's read.
    waits,
    /// Locks that a fault, or a thread that works for a fault, found held by another thread and slept for.
    lock_waits,
    /// Times that a fault found another thread using what the map's policy remembers, and decided without it.
    lock_misses,
    /// Reads repeated because a source asked for it.
    retries,
    /// Pages that a source failed to give.
    pages_failed,
    /// Entries put in and taken out of lists of backings: two for each map.
    backing_operations,
    /// Backings that were searched to find who maps a page.
    backings_scanned,
    /// Atomic read-modify-write operations of faults on words that other threads may write too, counted by what does
    /// them.
    shared_atomics,
    /// Background reads dropped because too many waited.
    dropped,
}

/// What one piece of work counts, and on which CPU.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) cpu: usize,
    pub(crate) tally: Tally,
    /// What may end the process while this work sleeps.
    pub(crate) endings: Endings,
}

impl Account {
    pub(crate) fn here() -> Self {
        Self::on(rustix::thread::sched_getcpu())
    }

    pub(crate) fn on(cpu: usize) -> Self {
        Self { cpu, tally: Tally::default(), endings: Endings::default() }
    }

    /// Enters a section; leaving it is counted too.
    pub(crate) fn enter<'a>(&mut self, sections: &'a Sections) -> Section<'a> {
        self.tally.shared_atomics += 2;
        sections.enter(self.cpu)
    }

    /// Takes a lock, and counts whether it was held.
    pub(crate) fn lock<'a, T>(&mut self, lock: &'a Mutex<T>) -> MutexGuard<'a, T> {
        self.tally.shared_atomics += 2;
        lock.try_lock().anyway().unwrap_or_else(|| {
            self.tally.lock_waits += 1;
            lock.lock().anyway()
        })
    }
}

/// Figures of one CPU's faults.
#[derive(Debug)]
struct Shard {
    counters: Counters,
    /// Nanoseconds, by class.
    costs: [AtomicHistogram; FaultClass::ALL.len()],
    /// Pages a read.
    reads: AtomicHistogram,
    /// Pages a read of a hard fault.
    clusters: Clusters,
}

/// All figures.
#[derive(Debug)]
pub(crate) struct Figures {
    /// One for each CPU, up to 64.
    shards: Box<[CachePadded<Shard>]>,
}

/// What a VM did and holds, as of one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Statistics {
    /// What it did.
    pub counted: Counted,
    /// Objects that exist: those with a handle or a map.
    pub objects: u64,
    /// Maps that exist.
    pub maps: u64,
    /// Backings that exist: one for each map, and for each piece of a map of several.
    pub backings: u64,
    /// Memory that tells which map shows which pages, in bytes: backings with their tree's nodes, and the table from
    /// addresses to maps with its counters. The table is that of all VMs of the process, and keeps what it ever took.
    /// Each child of fork(2) that keeps maps has one more.
    pub tracking_bytes: u64,
    /// The VM's pool, with the frames of all VMs that share it.
    pub pool: PoolFigures,
    /// What faults cost, in nanoseconds, as seen from inside: the kernel's part before and after is not in it. By
    /// [`FaultClass`], in the order of [`FaultClass::ALL`].
    pub costs_ns: Vec<Histogram<u64>>,
    /// How many pages reads brought in at once.
    pub cluster_pages: Histogram<u64>,
    /// The reads of hard faults by their pages, and how many of them lacked pages that the policy wanted there. A part of a cluster that is
    /// left to a read in the background counts as read. Beyond 256 pages sizes are rounded down to a power of two.
    pub clusters: ClusterHistogram,
}

impl Statistics {
    /// Nothing was done.
    pub(crate) fn none() -> Self {
        Self {
            counted: Counted::default(),
            objects: 0,
            maps: 0,
            backings: 0,
            tracking_bytes: 0,
            pool: PoolFigures::default(),
            costs_ns: vec![histogram::empty(); FaultClass::ALL.len()],
            cluster_pages: histogram::empty(),
            clusters: ClusterHistogram::default(),
        }
    }
}

impl Figures {
    pub(crate) fn new() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from).next_power_of_two().min(64);
        let shard = || {
            CachePadded::new(Shard {
                counters: Counters::default(),
                costs: std::array::from_fn(|_| AtomicHistogram::new()),
                reads: AtomicHistogram::new(),
                clusters: Clusters::new(),
            })
        };
        Self { shards: (0..cpus).map(|_| shard()).collect() }
    }

    fn shard(&self, cpu: usize) -> &Shard {
        &self.shards[cpu & (self.shards.len() - 1)]
    }

    pub(crate) fn add(&self, cpu: usize, tally: &Tally) {
        self.shard(cpu).counters.add(tally);
    }

    /// Adds what `account` counted so far.
    pub(crate) fn settle(&self, account: &mut Account) {
        self.add(account.cpu, &std::mem::take(&mut account.tally));
    }

    pub(crate) fn fault(&self, cpu: usize, class: FaultClass, cost_ns: u64) {
        self.shard(cpu).costs[class as usize].count(cost_ns);
    }

    pub(crate) fn read(&self, cpu: usize, pages: u64) {
        self.shard(cpu).reads.count(pages);
    }

    pub(crate) fn cluster(&self, cpu: usize, pages: u64, truncated: bool) {
        self.read(cpu, pages);
        self.shard(cpu).clusters.count(pages, truncated);
    }

    pub(crate) fn counted(&self) -> Counted {
        let mut sum = Counted::default();
        self.add_to(&mut sum);
        sum
    }

    pub(crate) fn add_to(&self, sum: &mut Counted) {
        self.shards.iter().for_each(|shard| shard.counters.sum(sum));
    }

    pub(crate) fn costs_ns(&self) -> Vec<Histogram<u64>> {
        let mut costs = vec![histogram::empty(); FaultClass::ALL.len()];
        for shard in &self.shards {
            shard.costs.iter().zip(&mut costs).for_each(|(counts, histogram)| counts.add_to(histogram));
        }
        costs
    }

    pub(crate) fn cluster_pages(&self) -> Histogram<u64> {
        let mut sizes = histogram::empty();
        self.shards.iter().for_each(|shard| shard.reads.add_to(&mut sizes));
        sizes
    }

    pub(crate) fn clusters(&self) -> ClusterHistogram {
        let mut clusters = ClusterHistogram::default();
        self.shards.iter().for_each(|shard| shard.clusters.add_to(&mut clusters));
        clusters
    }
}
