//! Page tables that show nothing any more go back to the kernel.
//!
//! ```text
//!   who would map a page waits ─► those that began before end ─► 2 MiB without a page? ─► its table goes ─► they go on
//! ```
//! A page that is mapped between the look and the call would be lost, with what was written to it. All pages of a map come by calls of
//! the VM, in sections; where the kernel maps some by itself ([`crate::whole`]) nothing is pruned. Only frames of shared maps that are
//! mapped as they are made, or ahead of touches in order, are in no section: such a page stays in its object, and costs one fault more.

use std::collections::HashSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use prepage_core::PAGE_SIZE;
use prepage_sys::pagemap::{PageMap, page_table_bytes};
use prepage_sys::region::REGION_ALIGN;
use prepage_sys::sections::{Section, Sections};
use prepage_sys::signals::Masked;

use crate::error::AccessError;
use crate::map::MapCore;
use crate::object::ObjectCore;
use crate::statistics::{Account, Tally};
use crate::sync::{Anyway, AtomicU32, Ordering, wait, wake};
use crate::vm::Vm;

/// Tables that are looked at together: who faults waits for as many to be looked at and to go, a fraction of a millisecond.
const BATCH_TABLES: usize = 64;
const BATCH_BYTES: u64 = BATCH_TABLES as u64 * REGION_ALIGN;

/// Keeps pages from being mapped for a moment.
///
/// Lock legend: (f) atomic, slept on.
#[derive(Debug, Default)]
pub(crate) struct Mapping {
    /// (f) So many keep them from it.
    held: AtomicU32,
}

/// While this lives no page comes into the map.
pub(crate) struct Held<'a>(&'a Mapping);

impl Mapping {
    /// Begins a section in which pages are mapped. Waits while that is held: for no read, and no other section.
    pub(crate) fn begin<'a>(&self, sections: &'a Sections, cpu: usize) -> Section<'a> {
        loop {
            let section = sections.enter(cpu);
            let held = self.held.load(Ordering::SeqCst);
            if held == 0 {
                return section;
            }
            drop(section);
            wait(&self.held, held);
        }
    }

    fn hold(&self) -> Held<'_> {
        self.held.fetch_add(1, Ordering::SeqCst);
        Held(self)
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::SeqCst);
        wake(&self.0.held, u32::MAX >> 1);
    }
}

impl Vm {
    /// Gives empty page tables of the VM's maps back to the kernel, 4 KiB for each 2 MiB of a map. Tables become empty when frames are
    /// evicted or reclaimed. Returns by how many bytes the page tables of this process shrank. Threads that fault meanwhile wait for
    /// a fraction of a millisecond at most. Kernels before Linux 6.14 keep the tables until the map is dropped. Where pages are protected for
    /// snapshots, the tables hold marks of the kernel and stay.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use prepage_vm::{MapOptions, Vm, VmOptions};
    ///
    /// let vm = Vm::new(VmOptions::default())?;
    /// let image = vm.file(std::env::current_exe()?)?;
    /// let map = vm.map(&image, &MapOptions::shared())?;
    /// map.populate(map.window())?;
    /// image.evict(image.pages())?;
    /// println!("{} bytes of page tables went", vm.prune_page_tables()?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When the kernel refuses to tell what is in a page table; in a child of fork(2).
    pub fn prune_page_tables(&self) -> Result<u64, AccessError> {
        self.core.check_process().map_err(|_| AccessError::Forked)?;
        let _masked = Masked::asynchronous();
        let cpu = Account::here().cpu;
        let before = page_table_bytes().map_err(AccessError::System)?;
        let mut seen = HashSet::new();
        let mut outcome = Ok(());
        for object in self.core.names.alive() {
            for (_, at) in object.backings.of_maps() {
                if seen.insert(at.map_id())
                    && let Some(map) = at.enter(cpu)
                {
                    outcome = outcome.and(map.prune());
                }
            }
        }
        let after = page_table_bytes().map_err(AccessError::System)?;
        let pruned = before.saturating_sub(after);
        self.core.figures.add(cpu, &Tally { table_bytes_pruned: pruned, ..Tally::default() });
        outcome.map(|()| pruned).map_err(AccessError::System)
    }
}

impl MapCore {
    fn prune(&self) -> io::Result<()> {
        // Huge pages are the kernel's.
        if self.blocks.is_some() {
            return Ok(());
        }
        // A snapshot would change what is shown; it takes maps back from the kernel with this lock held.
        let _chain = self.chain.lock().anyway();
        let whole = {
            let object = &self.laid[0].object;
            object.frames().map(|frames| frames.whole.keep_from_kernel(self))
        };
        if matches!(whole, Some(None)) {
            return Ok(());
        }
        let table = self.vm.page_map()?;
        let (start, end) = self.addresses();
        // The last table may show what lies behind the map.
        let end = end - end % REGION_ALIGN;
        let mut empty = Vec::new();
        each_empty_block(table, start..end, |block| empty.push(block))?;
        let objects = self.objects_in_use();
        let mut ranges = Vec::with_capacity(BATCH_TABLES);
        for empty in empty {
            for from in empty.clone().step_by(BATCH_BYTES as usize) {
                self.prune_some(table, from..empty.end.min(from + BATCH_BYTES), &objects, &mut ranges)?;
            }
        }
        Ok(())
    }

    /// Lets the tables of `addresses` go that are empty now. Who waits for it may be a signal handler that interrupted the allocator: nothing
    /// is allocated here, and there is room in `ranges` for all.
    fn prune_some(
        &self,
        table: &PageMap,
        addresses: Range<u64>,
        objects: &[Arc<ObjectCore>],
        ranges: &mut Vec<(u64, u64)>,
    ) -> io::Result<()> {
        ranges.clear();
        let _held = self.keep_pages_out(objects.iter().map(|object| object.mapping_sections()));
        let _poison = self.poison.hold();
        each_empty_block(table, addresses, |empty| {
            debug_assert!(ranges.len() < ranges.capacity(), "nothing is allocated now");
            ranges.push((empty.start - self.span.start(), empty.end - empty.start));
        })?;
        #[cfg(feature = "shuttle")]
        crate::sync::yield_now();
        self.span.free_empty_tables(ranges)
    }

    /// No page of the objects that map pages in `sections` comes into the map while what this returns lives. Allocates nothing.
    pub(crate) fn keep_pages_out<'a>(&self, sections: impl IntoIterator<Item = &'a Sections>) -> Held<'_> {
        let held = self.mapping.hold();
        // Who maps a page now sees that it is held; who did not see it has ended when this is done.
        sections.into_iter().for_each(Sections::wait);
        held
    }

    /// The objects whose pages a fault that began before may be mapping, each once.
    pub(crate) fn objects_in_use(&self) -> Vec<Arc<ObjectCore>> {
        let mut seen = HashSet::new();
        let mut objects = Vec::new();
        for shown in self.shown.in_use() {
            for segment in &shown[..] {
                if seen.insert(Arc::as_ptr(&segment.object)) {
                    objects.push(Arc::clone(&segment.object));
                }
            }
        }
        objects
    }
}

impl ObjectCore {
    /// Where its pages are mapped.
    pub(crate) fn mapping_sections(&self) -> &Sections {
        self.frames().map_or(&self.vm.zeros.sections, |frames| &frames.sections)
    }
}

/// Gives `each` the runs of whole page tables of `addresses`, which begin with one, that hold neither a page nor a mark. Allocates nothing.
fn each_empty_block(table: &PageMap, addresses: Range<u64>, each: impl FnMut(Range<u64>)) -> io::Result<()> {
    let mut occupied = between(addresses.start, each);
    table.each_occupied(addresses.clone(), &mut occupied)?;
    occupied(addresses.end, addresses.end);
    Ok(())
}

/// Told of what is occupied from `start` on, run after run, gives `each` the whole page tables between them.
fn between(start: u64, mut each: impl FnMut(Range<u64>)) -> impl FnMut(u64, u64) {
    let mut from = start;
    move |start, end| {
        let gap = from.next_multiple_of(REGION_ALIGN)..start - start % REGION_ALIGN;
        if gap.start < gap.end {
            each(gap);
        }
        from = end;
    }
}

const _: () = assert!(REGION_ALIGN == 512 * PAGE_SIZE, "what one page table shows");

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use super::*;

    #[test]
    fn only_whole_tables_are_empty() {
        const MIB: u64 = 1 << 20;
        let of = |occupied: &[(u64, u64)]| -> Vec<(u64, u64)> {
            let mut gaps = Vec::new();
            let mut told = between(0, |gap| gaps.push((gap.start, gap.end)));
            occupied.iter().chain([&(8 * MIB, 8 * MIB)]).for_each(|&(start, end)| told(start, end));
            drop(told);
            gaps
        };
        assert_eq!(of(&[]), [(0, 8 * MIB)]);
        assert_eq!(of(&[(0, 8 * MIB)]), []);
        assert_eq!(of(&[(3 * MIB, 3 * MIB + 4096)]), [(0, 2 * MIB), (4 * MIB, 8 * MIB)]);
        assert_eq!(of(&[(0, 4096), (2 * MIB - 4096, 2 * MIB)]), [(2 * MIB, 8 * MIB)]);
        assert_eq!(of(&[(4096, 8192), (6 * MIB, 8 * MIB)]), [(2 * MIB, 6 * MIB)]);
        assert_eq!(of(&[(2 * MIB - 4096, 2 * MIB + 4096), (5 * MIB, 7 * MIB)]), []);
    }

    #[test]
    fn who_maps_waits_while_it_is_held() {
        let (mapping, sections) = (Mapping::default(), Sections::default());
        let held = mapping.hold();
        let again = mapping.hold();
        std::thread::scope(|scope| {
            let mapper = scope.spawn(|| drop(mapping.begin(&sections, 0)));
            // One that waits is in no section.
            sections.wait();
            drop(held);
            sections.wait();
            assert!(!mapper.is_finished(), "one more holds it");
            drop(again);
            mapper.join().unwrap();
        });
    }
}
