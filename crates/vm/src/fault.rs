//! One fault, from the touch to the mapped page.
//!
//! ```text
//!  touch ─► page's word ─┬ Resident ──────────────────────────────────┐
//!                        ├ Filling ── sleep on the word (or be listed) ┤─► one CONTINUE maps the run ─► done
//!                        └ Absent ── policy ─► claim run ─► fill ──────┘
//! ```
//! No lock is held over a read. What another page's fault takes, this one does not, but for the policy's memory (a few
//! instructions, and only for policies that have one).

use std::sync::Arc;

use prepage_core::policy::{ClusterPolicy, FaultAt};
use prepage_core::{FaultClass, PageIndex, PageRange};

use crate::ahead::{ask_to_read_on, read_others};
use crate::buffers::BUFFER_PAGES;
use crate::fill::{Filled, Wanted, fill};
use crate::jobs::Job;
use crate::map::MapCore;
use crate::neighbours::{block, map_hard, map_soft};
use crate::object::{Bytes, Contents, Frames, ObjectCore, clip};
use crate::options::Mode;
use crate::pages::{Claim, Seen};
use crate::reason;
use crate::record::Recorded;
use crate::statistics::Tally;
use crate::table::MapRef;
use crate::zero;

/// An access that found no page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// The page of the object.
    pub(crate) page: PageIndex,
    pub(crate) address: u64,
    pub(crate) ip: u64,
    pub(crate) write: bool,
    pub(crate) tid: u32,
    pub(crate) start_ns: u64,
}

/// Where a fault is served, and so what may be done there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Context {
    /// In the faulting thread's signal handler: may sleep, may not allocate or run code of others.
    Signal,
    /// On a handler thread: may not sleep for another's fill, since that may need this thread.
    Handler,
    /// On a thread that wants the page, or one that works for it: may do anything.
    Thread,
}

/// How a fault ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// So many pages were resolved together.
    Mapped(FaultClass, u64),
    /// The page was brought in and taken away again before it was mapped: the touch is repeated, and faults again.
    Repeat(FaultClass, u64),
    /// Somebody else will end it.
    Later,
    /// The page cannot be had, for the reason of this code.
    Failed(u16),
}

/// Serves `touch` and writes down how it ended.
pub(crate) fn serve(map: &MapCore, at: MapRef, touch: &Touch, context: Context, cpu: usize) -> Outcome {
    // Of the map's slot: to enter it and to leave.
    let mut tally = Tally { shared_atomics: 2, ..Tally::default() };
    let outcome = match &map.object.contents {
        Contents::Zero => zero::resolve(map, touch, &mut tally),
        Contents::Frames(frames) => resolve(map, frames, at, touch, context, cpu, &mut tally),
    };
    finish(map, touch, outcome, cpu, &mut tally);
    outcome
}

/// Writes down how `touch` ended. In handler mode a thread whose page cannot be had gets SIGBUS.
pub(crate) fn finish(map: &MapCore, touch: &Touch, outcome: Outcome, cpu: usize, tally: &mut Tally) {
    let (class, cluster_pages) = match outcome {
        Outcome::Mapped(class, pages) => (class, pages),
        Outcome::Repeat(class, pages) => {
            if map.mode == Mode::Handler {
                // Nothing else wakes the thread: no call has mapped its page.
                map.wake(touch.page);
            }
            (class, pages)
        }
        Outcome::Later => {
            map.object.vm.figures.add(cpu, tally);
            return;
        }
        Outcome::Failed(code) => {
            tally.failed += 1;
            map.object.vm.failures.keep(map.object.id, touch.page, touch.address, code);
            if map.mode == Mode::Handler {
                map.poison(touch.page);
            }
            (FaultClass::Failed, 0)
        }
    };
    let vm = &map.object.vm;
    let cost_ns = now_ns().saturating_sub(touch.start_ns);
    vm.figures.add(cpu, tally);
    vm.figures.fault(cpu, class, cost_ns);
    if let Some(records) = &vm.records {
        records.keep(
            cpu,
            &Recorded {
                start_ns: touch.start_ns,
                cost_ns,
                ip: touch.ip,
                address: touch.address,
                page: touch.page.0,
                object: map.object.id,
                tid: touch.tid,
                class,
                private: map.private,
                cluster_pages: u32::try_from(cluster_pages).unwrap_or(u32::MAX),
            },
        );
    }
}

/// Nanoseconds of CLOCK_MONOTONIC.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn resolve(
    map: &MapCore,
    frames: &Frames,
    at: MapRef,
    touch: &Touch,
    context: Context,
    cpu: usize,
    tally: &mut Tally,
) -> Outcome {
    let page = touch.page;
    let mut waited = false;
    loop {
        match frames.pages.see(page) {
            Seen::Resident { marked } => {
                let read_on = marked && frames.pages.take_mark(page);
                match map_soft(map, frames, page, cpu, tally) {
                    Ok(pages) if pages > 0 => {
                        tally.soft += 1;
                        if read_on {
                            ask_to_read_on(map, frames, page, tally);
                        }
                        return Outcome::Mapped(FaultClass::Cached, pages);
                    }
                    // Its frame was taken away meanwhile.
                    Ok(_) => {}
                    Err(error) => return Outcome::Failed(reason::of_errno(error.raw_os_error())),
                }
            }
            Seen::Filling if context == Context::Handler => {
                frames.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((at, *touch));
                tally.waits += 1;
                if frames.pages.list(page) {
                    return Outcome::Later;
                }
                // Filled meanwhile: whoever takes the entry from the list first serves it.
                let mut listed = frames.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                match listed.iter().position(|(map, entry)| *map == at && entry.page == page) {
                    Some(index) => drop(listed.swap_remove(index)),
                    None => return Outcome::Later,
                }
            }
            Seen::Filling => {
                tally.waits += 1;
                tally.shared_atomics += 1;
                waited = true;
                if let Seen::Failed(code) = frames.pages.wait(page) {
                    return Outcome::Failed(code);
                }
            }
            Seen::Failed(code) if waited => return Outcome::Failed(code),
            Seen::Failed(code) => {
                // A later touch: the source may have recovered.
                if let Some(claim) = frames.pages.claim_failed(page, code) {
                    return hard(map, frames, at, touch, claim, None, context, cpu, tally);
                }
            }
            Seen::Absent => {
                let window = map.window;
                let fault = FaultAt { page, window };
                let (policy, entry) = map.policy();
                let decided = entry.with(tally, |state| {
                    let cluster = policy.hard(state, &fault, &frames.pages);
                    let mut claim = frames.pages.claim(page)?;
                    claim.extend(one_read(page, cluster.within(window)));
                    policy.read(state, &fault, claim.range());
                    Some((claim, cluster))
                });
                let Some((claim, cluster)) = decided else { continue };
                tally.shared_atomics += claim.range().len();
                read_others(map, at, &cluster, claim.range(), tally);
                return hard(map, frames, at, touch, claim, cluster.mark, context, cpu, tally);
            }
        }
    }
}

/// The page is claimed for this fault: fills the claim, or has it filled, and maps it.
#[allow(clippy::too_many_arguments)]
fn hard(
    map: &MapCore,
    frames: &Frames,
    at: MapRef,
    touch: &Touch,
    claim: Claim<'_>,
    mark: Option<PageIndex>,
    context: Context,
    cpu: usize,
    tally: &mut Tally,
) -> Outcome {
    tally.hard += 1;
    tally.reads += 1;
    let vm = &map.object.vm;
    vm.figures.cluster(cpu, claim.range().len());
    if context != Context::Thread && matches!(frames.bytes, Bytes::Custom(_)) {
        vm.figures.add(cpu, &std::mem::take(tally));
        let wanted = claim.hand_over();
        let touch_of_handler = (context == Context::Handler).then_some(*touch);
        let job = Job::Fill {
            object: Arc::clone(&map.object),
            claimed: wanted,
            needed: touch.page,
            mark,
            map: at,
            touch: touch_of_handler,
        };
        if vm.jobs.push(job).is_err() {
            let told = frames.pages.taken_over(wanted).fail(reason::BUSY);
            if told.listed {
                vm.jobs.push_listed(&map.object);
            }
            return Outcome::Failed(reason::BUSY);
        }
        if context == Context::Handler {
            return Outcome::Later;
        }
        return match frames.pages.wait(touch.page) {
            Seen::Failed(code) => Outcome::Failed(code),
            _ => {
                // Pages are published in order; the cluster is mapped when the last of it is there.
                frames.pages.wait(PageIndex(wanted.end().0 - 1));
                map_hard(map, frames, touch.page, wanted, cpu, tally)
            }
        };
    }
    let wanted = Wanted { needed: touch.page, mark, urgent: true };
    let Filled { outcome, told } = fill(&map.object, frames, claim, wanted, cpu, tally);
    let outcome = match outcome {
        Ok(read) => map_hard(map, frames, touch.page, read, cpu, tally),
        Err(code) => Outcome::Failed(code),
    };
    if told.listed {
        match context {
            // Serving them takes a lock that this context may not take.
            Context::Signal => vm.jobs.push_listed(&map.object),
            Context::Handler | Context::Thread => serve_listed(&map.object),
        }
    }
    outcome
}

/// At most so many pages as one read brings in, `page` among them.
fn one_read(page: PageIndex, wanted: PageRange) -> PageRange {
    if wanted.len() <= BUFFER_PAGES {
        return wanted;
    }
    clip(block(page, BUFFER_PAGES, wanted), wanted)
}

/// Serves the listed faults of `object` whose pages nobody fills any more.
pub(crate) fn serve_listed(object: &Arc<ObjectCore>) {
    let Some(frames) = object.frames() else { return };
    let cpu = rustix::thread::sched_getcpu();
    loop {
        let next = {
            let mut listed = frames.listed.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            // Whoever fills a page by now may have claimed it after the fault was listed: it is told again.
            let ready = listed.iter().position(|(_, touch)| !frames.pages.list(touch.page));
            ready.map(|index| listed.swap_remove(index))
        };
        let Some((at, touch)) = next else { return };
        let Some(map) = at.enter(cpu) else { continue };
        match frames.pages.see(touch.page) {
            // It waited for this.
            Seen::Failed(code) => finish(&map, &touch, Outcome::Failed(code), cpu, &mut Tally::default()),
            _ => {
                serve(&map, at, &touch, Context::Handler, cpu);
            }
        }
    }
}
