//! Maps that children of fork(2) keep: this process serves them.
//!
//! ```text
//!   parent ── userfaultfd ──► reader ─┐                    ┌─► faults: as those of any handler
//!     │ fork                          ├─► queue ─► server ─┼─► forks: a child's maps, and a reader for it
//!   child ─── its userfaultfd ► reader ┘                   └─► ends: they go
//! ```
//!
//! Who forks waits, with the locks of the allocator held, until the event of the fork is read. So a reader does nothing but
//! read: it allocates nothing, takes no lock, and makes no call that fails until all events are read. The server does the rest.
//!
//! A child's page tables are the kernel's copies of its parent's; what is not in them is filled from the same objects at the same
//! addresses. So a child's map is one more [`MapCore`] here, with the child's descriptor.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};

use crossbeam_queue::ArrayQueue;
use prepage_core::PAGE_SIZE;
use prepage_sys::fork;
use prepage_sys::region::Span;
use prepage_sys::signals::Masked;
use prepage_sys::userfaultfd::{Delivery, Event, Message, Userfaultfd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::addresses::{Addresses, MapRef};
use crate::error::MapError;
use crate::handler::{Vital, serve_message};
use crate::map::MapCore;
use crate::options::Mode;
use crate::space::Space;
use crate::sync::{AtomicU32, Mutex, Ordering, spawn, wait, wake, yield_now};
use crate::vm::VmCore;

/// So many messages may wait for the server.
const QUEUE: usize = 4096;
/// How often a reader looks whether the process is still there whose faults it reads, where there are none.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// What serves the maps that children inherit, here and in children. Its threads end when this is dropped.
#[derive(Debug)]
pub(crate) struct Heirs {
    space: Arc<Space>,
    shared: Arc<Shared>,
}

/// What the threads share.
///
/// Lock legend: (a) atomic; `queue` is one of atomics; `maps` is taken by the server and by who makes maps, never by readers.
#[derive(Debug)]
struct Shared {
    queue: ArrayQueue<Told>,
    /// (a) Counts what is put into the queue; the server sleeps on it.
    bell: AtomicU32,
    /// (a) 1 once the first reader reads.
    ready: AtomicU32,
    /// (a) 1 when the threads have to end.
    stop: AtomicU32,
    /// The maps of this process that the next child inherits.
    maps: Mutex<Vec<Arc<MapCore>>>,
}

/// What the server is told.
#[derive(Debug)]
enum Told {
    Fault(Arc<Space>, Message),
    Forked(Arc<Space>, OwnedFd),
    /// The child has ended.
    Ended(Arc<Space>),
    /// The map with this number is none of this process's any more.
    Dropped(u64),
}

/// A child, and its maps.
#[derive(Debug)]
struct Heir {
    space: Arc<Space>,
    maps: Vec<(Arc<MapCore>, MapRef)>,
}

impl VmCore {
    /// Who serves maps that children inherit.
    pub(crate) fn space_of_heirs(&self) -> Result<Arc<Space>, MapError> {
        let _masked = Masked::asynchronous();
        let mut heirs = self.heirs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(heirs) = &*heirs {
            return Ok(Arc::clone(&heirs.space));
        }
        let uffd = Userfaultfd::open_with_forks(Delivery::Message)?;
        fork::end_children_with_this().map_err(MapError::Prepare)?;
        let space = Space::new(uffd, Mode::Handler, Addresses::of_descriptor());
        let shared = Arc::new(Shared {
            queue: ArrayQueue::new(QUEUE),
            bell: AtomicU32::new(0),
            ready: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            maps: Mutex::new(Vec::new()),
        });
        let made = Heirs { space: Arc::clone(&space), shared: Arc::clone(&shared) };
        spawn("prepage-heirs", {
            let (space, shared) = (Arc::clone(&space), Arc::clone(&shared));
            move || serve(&space, &shared)
        })
        .map_err(MapError::Prepare)?;
        spawn("prepage-forks", move || read(&space, &shared, None)).map_err(MapError::Prepare)?;
        // A thread allocates as it begins: whoever forked meanwhile would keep it from that, and wait for it.
        while made.shared.ready.load(Ordering::SeqCst) == 0 {
            wait(&made.shared.ready, 0);
        }
        *heirs = Some(made);
        Ok(Arc::clone(&heirs.as_ref().expect("just made").space))
    }

    /// Children inherit `map` from here on.
    pub(crate) fn bequeath(&self, map: &Arc<MapCore>) {
        self.with_heirs(|shared| {
            shared.maps.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(map));
        });
    }

    /// Children do not inherit the map with the number `id` any more. Those that were forked before keep it.
    pub(crate) fn disinherit(&self, id: u64) {
        self.with_heirs(|shared| shared.tell(Told::Dropped(id)));
    }

    fn with_heirs(&self, act: impl FnOnce(&Shared)) {
        let heirs = self.heirs.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = heirs.as_ref().map(|heirs| Arc::clone(&heirs.shared));
        drop(heirs);
        act(&shared.expect("made before the first map"));
    }
}

impl Drop for Heirs {
    fn drop(&mut self) {
        self.shared.stop.store(1, Ordering::SeqCst);
        self.shared.ring();
    }
}

impl Shared {
    /// Allocates nothing.
    fn tell(&self, told: Told) {
        let mut told = told;
        while let Err(back) = self.queue.push(told) {
            told = match back {
                // Whoever waits touches once more.
                Told::Fault(space, message) => {
                    let _ = space.uffd.wake(message.address, PAGE_SIZE);
                    return;
                }
                other => other,
            };
            self.ring();
            yield_now();
        }
        self.ring();
    }

    fn ring(&self) {
        self.bell.fetch_add(1, Ordering::SeqCst);
        wake(&self.bell, 1);
    }

    fn has_to_end(&self) -> bool {
        self.stop.load(Ordering::SeqCst) != 0
    }
}

/// Reads what `space` tells, for as long as the child is there that has `child` mapped; of this process where there is none.
fn read(space: &Arc<Space>, shared: &Arc<Shared>, child: Option<&Arc<Span>>) {
    let _vital = Vital;
    let mut events: Vec<Event> = Vec::with_capacity(16);
    shared.ready.store(1, Ordering::SeqCst);
    wake(&shared.ready, 1);
    while !shared.has_to_end() {
        let ready = poll(&mut [PollFd::new(&space.uffd, PollFlags::IN)], Some(&LOOK));
        // Nothing of it is served by this: it was never protected. It tells whether there is somebody.
        if matches!(ready, Ok(0))
            && let Some(span) = child
            && let Err(error) = space.uffd.unprotect(span, 0, PAGE_SIZE)
            && rustix::io::Errno::from_io_error(&error) == Some(rustix::io::Errno::SRCH)
        {
            break;
        }
        // Fails for a descriptor that cannot be read alone.
        space.uffd.read(&mut events).expect("a userfaultfd can be read");
        for event in events.drain(..) {
            match event {
                Event::Fault(message) => shared.tell(Told::Fault(Arc::clone(space), message)),
                Event::Forked(fd) => shared.tell(Told::Forked(Arc::clone(space), fd)),
                _ => {}
            }
        }
    }
    shared.tell(Told::Ended(Arc::clone(space)));
}

fn serve(own: &Arc<Space>, shared: &Arc<Shared>) {
    let _vital = Vital;
    let mut heirs: Vec<Heir> = Vec::new();
    loop {
        let rung = shared.bell.load(Ordering::SeqCst);
        let Some(told) = shared.queue.pop() else {
            if shared.has_to_end() {
                return;
            }
            wait(&shared.bell, rung);
            continue;
        };
        match told {
            Told::Fault(space, message) => serve_message(&space, &message),
            Told::Forked(parent, fd) => {
                let maps: Vec<Arc<MapCore>> = if Arc::ptr_eq(&parent, own) {
                    shared.maps.lock().unwrap_or_else(PoisonError::into_inner).clone()
                } else {
                    let parent = heirs.iter().find(|heir| Arc::ptr_eq(&heir.space, &parent));
                    parent.map_or_else(Vec::new, |heir| {
                        heir.maps.iter().map(|(map, _)| Arc::clone(map)).collect()
                    })
                };
                heirs.extend(Heir::new(fd, &maps, shared));
            }
            Told::Ended(space) => {
                if let Some(at) = heirs.iter().position(|heir| Arc::ptr_eq(&heir.space, &space)) {
                    drop(heirs.swap_remove(at));
                }
            }
            Told::Dropped(id) => {
                let mut maps = shared.maps.lock().unwrap_or_else(PoisonError::into_inner);
                let at = maps.iter().position(|map| map.id() == id);
                let gone = at.map(|at| maps.swap_remove(at));
                drop(maps);
                drop(gone);
            }
        }
    }
}

impl Heir {
    /// A child whose faults `fd` tells, with `maps`; `None` where there are none.
    fn new(fd: OwnedFd, maps: &[Arc<MapCore>], shared: &Arc<Shared>) -> Option<Self> {
        let space = Space::new(Userfaultfd::of_child(fd), Mode::Handler, Addresses::of_descriptor());
        let maps: Vec<_> = maps
            .iter()
            .map(|map| {
                let heir = map.heir(&space);
                let at = space.addresses.insert(&heir).expect("no more than its parent had");
                (heir, at)
            })
            .collect();
        let first = Arc::clone(&maps.first()?.0.span);
        let heir = Self { space: Arc::clone(&space), maps };
        let shared = Arc::clone(shared);
        // Without a thread nobody would serve the child, and what it touches would read as zeros.
        spawn("prepage-heir", move || read(&space, &shared, Some(&first))).expect("a thread for a child");
        Some(heir)
    }
}

impl Drop for Heir {
    fn drop(&mut self) {
        for (map, at) in &self.maps {
            at.remove(map);
        }
    }
}
