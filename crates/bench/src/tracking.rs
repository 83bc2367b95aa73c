//! What it takes to know who maps which page: measured for maps of one object, beside a record for each page and map.

use std::io::{self, PipeReader, Read, Write};
use std::thread;
use std::time::{Duration, Instant};

use prepage_core::PAGE_SIZE;
use prepage_core::policy::Neighbours;
use prepage_sys::forked::Forked;
use prepage_vm::{
    AccessError, MakeError, Map, MapError, MapOptions, Mode, Object, Source, SourceError, Statistics, Vm,
    VmOptions,
};

/// Bytes of a record for each page and map: DragonFly's pv_entry before its rework, on 64 bits.
pub const RECORD_BYTES: u64 = 80;
/// How long faults that were served are waited for to be counted.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrackingError {
    /// The object cannot be made.
    #[error("cannot make an object")]
    Make(#[from] MakeError),
    /// It cannot be mapped so often.
    #[error("cannot map it")]
    Map(#[from] MapError),
    /// Its pages cannot be had.
    #[error("cannot bring its pages in")]
    Access(#[from] AccessError),
    /// The page tables cannot be read.
    #[error("cannot read /proc/self/pagemap")]
    Read(#[from] io::Error),
    /// A child of fork(2) cannot be made, or ended before it had touched the maps.
    #[error("a child of this process did not touch the maps")]
    Child(#[source] io::Error),
}

/// What is mapped and touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Maps of one object.
    pub maps: u64,
    /// Pages of the object.
    pub pages: u64,
    /// Threads of this process that touch each map at once, each its own share of the pages.
    pub threads: u64,
    /// Children of fork(2) that inherit all maps, and touch all pages of them once more: see [`MapOptions::inherit`].
    pub children: u64,
}

/// What a load took, all pages of all maps touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tracking {
    /// What was mapped and touched.
    pub load: Load,
    /// Faults, one a page, map and process.
    pub faults: u64,
    /// Bytes of backings and of the tables from addresses to maps, one for each process, counted whole.
    pub tracking_bytes: u64,
    /// Records put in and taken out of lists.
    pub list_operations: u64,
    /// The same with a record for each page and map.
    pub record_operations: u64,
    /// Atomic operations of the faults on words that other threads may write, counted by what does them.
    pub fault_atomics: u64,
    /// Locks that the faults found held.
    pub lock_waits: u64,
    /// Maps that the backings tell of a page, verified against the page table: the fewest of any page. Must be all of them.
    pub found: u64,
}

impl Load {
    fn touches(&self) -> u64 {
        self.maps * self.pages * (1 + self.children)
    }
}

impl Tracking {
    /// What a record for each page, map and process takes.
    pub fn record_bytes(&self) -> u64 {
        self.load.touches() * RECORD_BYTES
    }
}

struct Zeros(u64);

impl Source for Zeros {
    fn len_bytes(&self) -> u64 {
        self.0
    }

    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), SourceError> {
        into.fill(1);
        Ok(())
    }
}

/// Maps an object as `load` says, and touches every page of each map.
///
/// # Errors
/// See [`TrackingError`]; a process may have vm.max_map_count maps. Children need CAP_SYS_PTRACE.
///
/// # Panics
/// For no maps, no pages or no threads.
pub fn measure(load: Load) -> Result<Tracking, TrackingError> {
    let Load { maps, pages, threads, children } = load;
    assert!(maps > 0 && pages > 0 && threads > 0, "something to measure");
    let vm = Vm::new(VmOptions::default())?;
    let object = vm.source("tracked", Zeros(pages * PAGE_SIZE))?;
    // By way of a map that goes again, and by this thread: what others count may come later.
    let first = vm.map(&object, &MapOptions::shared().policy("none".parse().expect("a policy")))?;
    touch(&first, 0, 1);
    drop(first);
    let before = vm.statistics();
    let options = MapOptions::private().policy("none".parse().expect("a policy"));
    let options = options.neighbours(Neighbours::Block(1));
    let options = if children > 0 { options.mode(Mode::Handler).inherit(true) } else { options };
    let all = (0..maps).map(|_| vm.map(&object, &options)).collect::<Result<Vec<_>, _>>()?;
    // Before this process has touched anything: they would have its page tables.
    let mut forked = Vec::new();
    for _ in 0..children {
        let (child, mut touched) = fork(&all).map_err(TrackingError::Child)?;
        touched.read_exact(&mut [0]).map_err(TrackingError::Child)?;
        forked.push(child);
    }
    for map in &all {
        thread::scope(|scope| {
            (1..threads).for_each(|thread| drop(scope.spawn(move || touch(map, thread, threads))));
            touch(map, 0, threads);
        });
    }
    let found = found(&object)?;
    // A handler thread counts a fault after it let the thread go on.
    let began = Instant::now();
    let mut mapped = vm.statistics();
    while mapped.counted.soft - before.counted.soft < load.touches() && began.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(1));
        mapped = vm.statistics();
    }
    for child in forked {
        child.kill().map_err(TrackingError::Child)?;
    }
    drop(all);
    let after = vm.statistics().counted;
    Ok(summed(load, &before, &mapped, after.backing_operations, found))
}

/// Touches one in `threads` pages of `map`, from page `thread` on.
fn touch(map: &Map, thread: u64, threads: u64) {
    for page in map.as_slice().chunks(PAGE_SIZE as usize).skip(thread as usize).step_by(threads as usize) {
        std::hint::black_box(page[0]);
    }
}

/// A child that touches all pages of `maps`, and then tells of it and stays.
fn fork(maps: &[Map]) -> io::Result<(Forked, PipeReader)> {
    let (reader, mut writer) = io::pipe()?;
    let child = Forked::new(|| {
        maps.iter().for_each(|map| touch(map, 0, 1));
        if writer.write_all(&[1]).is_err() {
            return 1;
        }
        loop {
            thread::park();
        }
    })?;
    Ok((child, reader))
}

/// How many maps show a page: the fewest of any page of the object.
fn found(object: &Object) -> io::Result<u64> {
    let mut fewest = u64::MAX;
    for page in object.pages().iter() {
        fewest = fewest.min(object.mappings_of(page)?.len() as u64);
    }
    Ok(fewest)
}

fn summed(load: Load, before: &Statistics, mapped: &Statistics, operations: u64, found: u64) -> Tracking {
    let (was, is) = (&before.counted, &mapped.counted);
    Tracking {
        load,
        faults: is.soft - was.soft,
        // The table keeps what it ever took, so it is counted whole.
        tracking_bytes: mapped.tracking_bytes,
        list_operations: operations - was.backing_operations,
        record_operations: 2 * (is.pages_mapped - was.pages_mapped),
        fault_atomics: is.shared_atomics - was.shared_atomics,
        lock_waits: is.lock_waits - was.lock_waits,
        found,
    }
}

#[cfg(test)]
mod tests {
    use prepage_testing::{Need, unless_refused};

    use super::*;

    #[test]
    fn maps_cost_the_same_however_many_pages_they_show() {
        let load = Load { maps: 20, pages: 1024, threads: 1, children: 0 };
        let [few, many] = [16, 1024].map(|pages| measure(Load { pages, ..load }).unwrap());
        assert_eq!((few.faults, many.faults), (20 * 16, 20 * 1024));
        assert_eq!((few.found, many.found), (20, 20));
        assert_eq!((few.list_operations, many.list_operations), (40, 40));
        assert_eq!(many.record_operations, 2 * 20 * 1024);
        // To enter and leave the map and the object. One that meets the thread of the VM which looks whether maps can be the kernel's takes two more.
        let more = many.fault_atomics - 4 * many.faults;
        assert!(more <= 4, "{more} more for {} faults", many.faults);
        assert_eq!(many.record_bytes(), 20 * 1024 * 80);
        assert!(many.tracking_bytes < many.record_bytes() / 4, "{}", many.tracking_bytes);
    }

    /// One page that one of the maps does not show is enough.
    #[test]
    fn what_is_found_is_the_fewest_of_all_pages() {
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.source("tracked", Zeros(8 * PAGE_SIZE)).unwrap();
        let options = MapOptions::private().policy("none".parse().unwrap()).neighbours(Neighbours::Block(1));
        let [whole, partly] = [0, 1].map(|_| vm.map(&object, &options).unwrap());
        touch(&whole, 0, 1);
        (0..4).chain(5..8).for_each(|page| {
            std::hint::black_box(partly.as_slice()[page * PAGE_SIZE as usize]);
        });
        assert_eq!(found(&object).unwrap(), 1);
        touch(&partly, 0, 1);
        assert_eq!(found(&object).unwrap(), 2);
    }

    #[test]
    fn threads_and_children_touch_every_page_and_each_child_takes_a_table() {
        let load = Load { maps: 10, pages: 64, threads: 3, children: 0 };
        let alone = measure(load).unwrap();
        assert_eq!((alone.faults, alone.found, alone.lock_waits), (10 * 64, 10, 0));
        let measured = [1, 3].map(|children| measure(Load { children, ..load }));
        let [one, three] = measured.map(|measured| {
            unless_refused(measured, Need::Root, |error| {
                matches!(error, TrackingError::Map(MapError::Userfaultfd(_)))
            })
        });
        let (Some(one), Some(three)) = (one, three) else { return };
        assert_eq!((one.faults, three.faults), (2 * 10 * 64, 4 * 10 * 64));
        assert_eq!((one.found, one.list_operations, three.list_operations), (10, 20, 20));
        assert_eq!(three.record_bytes(), 4 * 10 * 64 * 80);
        assert!(alone.tracking_bytes < one.tracking_bytes && one.tracking_bytes < three.tracking_bytes);
    }
}
