//! What one fault maps: its page, and resident neighbours by the same call of the kernel.

use std::io;

use prepage_core::policy::{ClusterPolicy, Neighbours};
use prepage_core::{FaultClass, PAGE_SIZE, PageIndex, PageRange};
use prepage_sys::userfaultfd::Progress;

use crate::fault::Outcome;
use crate::map::MapCore;
use crate::object::{Frames, clip};
use crate::options::Mode;
use crate::pages::Seen;
use crate::reason;
use crate::statistics::Tally;

/// Maps the pages `read` for a fault on `page`.
pub(crate) fn map_hard(
    map: &MapCore,
    frames: &Frames,
    page: PageIndex,
    read: PageRange,
    cpu: usize,
    tally: &mut Tally,
) -> Outcome {
    let (policy, entry) = map.policy();
    let around = match map.neighbours.unwrap_or_else(|| policy.neighbours()) {
        Neighbours::Spiral(_) => read,
        Neighbours::Block(pages) => block(page, pages, map.window),
    };
    match map_resident(map, frames, page, clip(around, map.window), cpu, tally) {
        Ok(0) => Outcome::Repeat(FaultClass::Disk, read.len()),
        Ok(pages) => {
            entry.with(tally, |state| policy.mapped(state, pages));
            Outcome::Mapped(FaultClass::Disk, read.len())
        }
        Err(error) => Outcome::Failed(reason::of_errno(error.raw_os_error())),
    }
}

/// Maps `page`, which is resident, and neighbours; returns how many pages, 0 where it is resident no longer.
pub(crate) fn map_soft(
    map: &MapCore,
    frames: &Frames,
    page: PageIndex,
    cpu: usize,
    tally: &mut Tally,
) -> io::Result<u64> {
    let (policy, entry) = map.policy();
    let around = match map.neighbours.unwrap_or_else(|| policy.neighbours()) {
        Neighbours::Spiral(each_way) => spiral(frames, page, each_way, map.window),
        Neighbours::Block(pages) => block(page, pages, map.window),
    };
    let pages = map_resident(map, frames, page, around, cpu, tally)?;
    if pages > 0 {
        entry.with(tally, |state| policy.mapped(state, pages));
    }
    Ok(pages)
}

/// Maps the run of resident pages in `within` that holds `page`; returns how many pages, 0 where `page` is not resident.
pub(crate) fn map_resident(
    map: &MapCore,
    frames: &Frames,
    page: PageIndex,
    within: PageRange,
    cpu: usize,
    tally: &mut Tally,
) -> io::Result<u64> {
    let _section = frames.grace.enter(cpu);
    // Of the section: to enter it and to leave.
    tally.shared_atomics += 2;
    let Some(run) = frames.pages.resident_run(page, within) else { return Ok(0) };
    map_run(map, run, page, tally)
}

/// Maps `run`, of which the frames are there, passing over pages that are mapped.
fn map_run(map: &MapCore, run: PageRange, page: PageIndex, tally: &mut Tally) -> io::Result<u64> {
    let mut from = run.start();
    let mut shown = 0;
    while from < run.end() {
        let rest = PageRange::new(from, run.end());
        let address = map.address_of(from);
        match map.uffd.map_resident(address, rest.bytes())? {
            Progress::Done => {
                tally.pages_mapped += rest.len();
                shown += rest.len();
                from = run.end();
            }
            Progress::Mapped(bytes) => {
                let mapped = bytes / PAGE_SIZE;
                tally.pages_mapped += mapped;
                from.0 += mapped + 1;
                shown += mapped + 1;
                // Threads that wait for a page that another call mapped are not woken by this one.
                if map.mode == Mode::Handler {
                    map.wake(PageIndex(from.0 - 1));
                }
            }
            Progress::Again(bytes) => {
                let mapped = bytes / PAGE_SIZE;
                tally.pages_mapped += mapped;
                from.0 += mapped;
                shown += mapped;
            }
            // The section keeps frames of published pages.
            Progress::Hole(bytes) => {
                let hole = PageIndex(from.0 + bytes / PAGE_SIZE);
                tally.pages_mapped += hole.0 - from.0;
                return if hole > page { Ok(shown.max(1)) } else { Err(io::Error::from_raw_os_error(NOMEM)) };
            }
        }
    }
    Ok(shown)
}

/// ENOMEM: the kernel had no memory for a page table.
const NOMEM: i32 = 12;

/// The aligned block of `pages` pages that holds `page`, as far as it lies in `window`.
pub(crate) fn block(page: PageIndex, pages: u64, window: PageRange) -> PageRange {
    let start = page.0 - page.0 % pages;
    clip(PageRange::new(PageIndex(start), PageIndex(start.saturating_add(pages))), window)
}

/// Up to `each_way` resident pages on each side, nearest first, ending at the first missing one.
fn spiral(frames: &Frames, page: PageIndex, each_way: u64, window: PageRange) -> PageRange {
    let resident = |page| matches!(frames.pages.see(page), Seen::Resident { marked: false });
    let (mut start, mut end) = (page, PageIndex(page.0 + 1));
    for _ in 0..each_way {
        if start > window.start() {
            if !resident(PageIndex(start.0 - 1)) {
                break;
            }
            start.0 -= 1;
        }
        if end < window.end() {
            if !resident(end) {
                break;
            }
            end.0 += 1;
        }
    }
    PageRange::new(start, end)
}
