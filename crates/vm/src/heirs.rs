//! Maps that children of fork(2) keep: this process serves them.
//!
//! ```text
//!   parent ── userfaultfd ──► reader ─┐                    ┌─► faults: as those of any handler
//!     │ fork                          ├─► queue ─► server ─┼─► forks: a child's maps, and a reader for it
//!   child ─── its userfaultfd ► reader ┘                   └─► ends: they go
//! ```
//!
//! Who forks waits, with the locks of the allocator held, until the event of the fork is read. So a reader does nothing but
//! read: it allocates nothing, takes no lock, waits for no room in the queue to put a fork there, and keeps a descriptor in reserve, since the
//! event is one. The server does the rest.
//!
//! Which maps a child has is told by the order of the queue: those that were made, and not dropped, before its fork. A fork returns a moment before
//! its event is in the queue: who makes or drops a map waits for that.
//!
//! A child's page tables are the kernel's copies of its parent's; what is not in them is filled from the same objects at the same
//! addresses. So a child's map is one more [`MapCore`] here, with the child's descriptor.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_queue::ArrayQueue;
use prepage_core::PAGE_SIZE;
use prepage_sys::fork;
use prepage_sys::region::Span;
use prepage_sys::signals::Masked;
use prepage_sys::userfaultfd::{Delivery, Event, Message, Userfaultfd};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::addresses::{Addresses, MapRef};
use crate::error::MapError;
use crate::handler::{Vital, serve_message};
use crate::map::MapCore;
use crate::options::Mode;
use crate::space::Space;
use crate::sync::{Anyway, AtomicU32, AtomicU64, Ordering, spawn, wait, wait_for, wake};
use crate::vm::VmCore;

/// So many messages may wait for the server.
const QUEUE: usize = 4096;
/// And so many forks beyond them. A reader that waits for room reads no fork; who forks keeps the allocator's locks until it is read, and the
/// server, which is to make room, may wait for these. Each takes a descriptor: more than a process may have open, as a rule.
const FORKS: usize = 1024;
/// How often a reader looks whether the process is still there whose faults it reads, where there are none.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// What is tried again where no descriptor, thread or room in the queue is left waits so long.
const PAUSE: Duration = Duration::from_millis(1);

/// What serves the maps that children inherit, here and in children. Its threads end when this is dropped.
#[derive(Debug)]
pub(crate) struct Heirs {
    space: Arc<Space>,
    shared: Arc<Shared>,
}

/// What the threads share.
///
/// Lock legend: (a) atomic; `queue` is one of atomics.
#[derive(Debug)]
struct Shared {
    queue: ArrayQueue<ServerMessage>,
    /// (a) Counts what is put into the queue; the server sleeps on it.
    bell: AtomicU32,
    /// Counts what is taken out of it.
    popped: Count,
    /// (a) 1 once the first reader reads.
    ready: AtomicU32,
    /// Odd while events of this process are read that are not in the queue yet; changes when they are.
    reading: Count,
    /// (a) 1 when the threads have to end.
    stop: AtomicU32,
    /// (a) Bytes of the tables of children, from addresses to maps.
    table_bytes: AtomicU64,
}

/// A number that goes up, and threads that sleep until it does: one scheduled in real time that looked again and again would keep its processor
/// from the thread that it waits for.
///
/// Lock legend: (a) atomic; (f) atomic, slept on.
#[derive(Debug, Default)]
struct Count {
    /// (f)
    number: AtomicU32,
    /// (a) How many sleep.
    sleepers: AtomicU32,
}

/// What the server is told.
#[derive(Debug)]
enum ServerMessage {
    Fault(Arc<Space>, Message),
    Forked(Arc<Space>, Userfaultfd),
    /// The child has ended.
    Ended(Arc<Space>),
    /// Children of this process inherit the map.
    Made(Arc<MapCore>),
    /// The map with this number is none of this process's any more.
    Dropped(u64),
}

/// A child, and its maps.
#[derive(Debug)]
struct Heir {
    space: Arc<Space>,
    /// Of its table.
    bytes: u64,
    maps: Vec<(Arc<MapCore>, MapRef)>,
}

/// The thread of a child that is to be started.
#[derive(Debug)]
struct Reader {
    space: Arc<Space>,
    /// One of the child's maps.
    first: Arc<Span>,
}

impl VmCore {
    /// Who serves maps that children inherit.
    pub(crate) fn space_of_heirs(&self) -> Result<Arc<Space>, MapError> {
        let _masked = Masked::asynchronous();
        let mut heirs = self.heirs.lock().anyway();
        if let Some(heirs) = &*heirs {
            return Ok(Arc::clone(&heirs.space));
        }
        let uffd = Userfaultfd::open_with_forks(Delivery::Message)?;
        fork::end_children_with_this().map_err(MapError::Prepare)?;
        let space = Space::new(uffd, Mode::Handler, Addresses::of_descriptor());
        let shared = Arc::new(Shared::new());
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
        self.tell_server(ServerMessage::Made(Arc::clone(map)));
    }

    /// Children do not inherit the map with the number `id` any more. Those that were forked before keep it.
    pub(crate) fn disinherit(&self, id: u64) {
        self.tell_server(ServerMessage::Dropped(id));
    }

    /// Tells of a change after the forks that have returned.
    fn tell_server(&self, change: ServerMessage) {
        let heirs = self.heirs.lock().anyway();
        let shared =
            heirs.as_ref().map(|heirs| Arc::clone(&heirs.shared)).expect("made before the first map");
        drop(heirs);
        shared.tell_after_forks(change);
    }
}

impl Heirs {
    /// Bytes of the tables from addresses to maps, of this process and of its children.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.space.addresses.bytes() + self.shared.table_bytes.load(Ordering::SeqCst)
    }
}

impl Drop for Heirs {
    fn drop(&mut self) {
        self.shared.stop.store(1, Ordering::SeqCst);
        self.shared.ring();
    }
}

impl Count {
    fn now(&self) -> u32 {
        self.number.load(Ordering::SeqCst)
    }

    /// Allocates nothing.
    fn go_up(&self) {
        self.number.fetch_add(1, Ordering::SeqCst);
        // Who is about to sleep is counted, and looks at the number once more.
        if self.sleepers.load(Ordering::SeqCst) != 0 {
            wake(&self.number, u32::MAX >> 1);
        }
    }

    /// Sleeps while the number is `seen`, for `limit` at most.
    fn wait(&self, seen: u32, limit: Option<Duration>) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.now() == seen {
            match limit {
                None => wait(&self.number, seen),
                Some(limit) if wait_for(&self.number, seen, limit) => break,
                Some(_) => {}
            }
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    fn new() -> Self {
        Self {
            queue: ArrayQueue::new(QUEUE + FORKS),
            bell: AtomicU32::new(0),
            popped: Count::default(),
            ready: AtomicU32::new(0),
            reading: Count::default(),
            stop: AtomicU32::new(0),
            table_bytes: AtomicU64::new(0),
        }
    }

    /// Tells of `change` once events that are being read are in the queue.
    fn tell_after_forks(&self, change: ServerMessage) {
        let reading = self.reading.now();
        if !reading.is_multiple_of(2) {
            self.reading.wait(reading, None);
        }
        self.tell(change);
    }

    /// Allocates nothing.
    fn tell(&self, mut message: ServerMessage) {
        loop {
            let popped = self.popped.now();
            let has_room = matches!(message, ServerMessage::Forked(..)) || self.queue.len() < QUEUE;
            message = match if has_room { self.queue.push(message) } else { Err(message) } {
                Ok(()) => return self.ring(),
                // Whoever waits touches once more.
                Err(ServerMessage::Fault(space, message)) => {
                    let _ = space.uffd.wake(message.address, PAGE_SIZE);
                    return;
                }
                Err(other) => other,
            };
            self.ring();
            self.popped.wait(popped, Some(PAUSE));
        }
    }

    fn pop(&self) -> Option<ServerMessage> {
        let message = self.queue.pop()?;
        self.popped.go_up();
        Some(message)
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
    // Not a second descriptor of the child's memory: with a number above that of this process's end of the pipe it would be closed first.
    let reserve = || eventfd(0, EventfdFlags::CLOEXEC).ok();
    let mut spare = reserve();
    shared.ready.store(1, Ordering::SeqCst);
    wake(&shared.ready, 1);
    while !shared.has_to_end() {
        let ready = poll(&mut [PollFd::new(&space.uffd, PollFlags::IN)], Some(&LOOK));
        if matches!(ready, Ok(0)) && child.is_some_and(|span| space.uffd.has_ended(span)) {
            break;
        }
        let is_own = child.is_none();
        if is_own {
            shared.reading.go_up();
        }
        let read = space.uffd.read(&mut events);
        for event in events.drain(..) {
            match event {
                Event::Fault(message) => shared.tell(ServerMessage::Fault(Arc::clone(space), message)),
                Event::Forked(uffd) => shared.tell(ServerMessage::Forked(Arc::clone(space), uffd)),
            }
        }
        if is_own {
            shared.reading.go_up();
        }
        match read {
            Ok(()) => spare = spare.or_else(reserve),
            // The event of a fork stays until there is a descriptor for it.
            Err(_) if spare.take().is_some() => {}
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    shared.tell(ServerMessage::Ended(Arc::clone(space)));
}

fn serve(own: &Arc<Space>, shared: &Arc<Shared>) {
    let _vital = Vital;
    // The maps of this process that the next child inherits.
    let mut maps: Vec<Arc<MapCore>> = Vec::new();
    let mut heirs: Vec<Heir> = Vec::new();
    // Those that no thread reads yet. A child that nobody serves waits.
    let mut unread: Vec<Reader> = Vec::new();
    loop {
        let rung = shared.bell.load(Ordering::SeqCst);
        unread.retain(|reader| reader.start(shared).is_err());
        let Some(message) = shared.pop() else {
            if shared.has_to_end() {
                return;
            }
            if unread.is_empty() {
                wait(&shared.bell, rung);
            } else {
                wait_for(&shared.bell, rung, PAUSE);
            }
            continue;
        };
        match message {
            ServerMessage::Fault(space, message) => serve_message(&space, &message),
            ServerMessage::Forked(parent, uffd) => {
                let of_child;
                let maps = if Arc::ptr_eq(&parent, own) {
                    &maps
                } else {
                    let parent = heirs.iter().find(|heir| Arc::ptr_eq(&heir.space, &parent));
                    of_child = parent.map_or_else(Vec::new, |heir| {
                        heir.maps.iter().map(|(map, _)| Arc::clone(map)).collect()
                    });
                    &of_child
                };
                fork::end_children_before(uffd.as_fd());
                if let Some((heir, reader)) = Heir::new(uffd, maps) {
                    shared.table_bytes.fetch_add(heir.bytes, Ordering::SeqCst);
                    heirs.push(heir);
                    unread.push(reader);
                }
            }
            ServerMessage::Ended(space) => {
                if let Some(at) = heirs.iter().position(|heir| Arc::ptr_eq(&heir.space, &space)) {
                    // A read for it may be under way, for as long as its source likes; others are served meanwhile.
                    let ended = Arc::new(ArrayQueue::new(1));
                    let heir = heirs.swap_remove(at);
                    shared.table_bytes.fetch_sub(heir.bytes, Ordering::SeqCst);
                    let _ = ended.push(heir);
                    let by_thread = Arc::clone(&ended);
                    let end = |ended: &ArrayQueue<Heir>| ended.pop().into_iter().for_each(Heir::end);
                    if spawn("prepage-heir", move || end(&by_thread)).is_err() {
                        end(&ended);
                    }
                }
            }
            ServerMessage::Made(map) => maps.push(map),
            ServerMessage::Dropped(id) => {
                maps.extract_if(.., |map| map.id() == id).for_each(MapCore::let_go);
            }
        }
    }
}

impl Heir {
    /// A child whose faults `uffd` tells, with `maps`, and who is to read them; `None` where there are none.
    fn new(uffd: Userfaultfd, maps: &[Arc<MapCore>]) -> Option<(Self, Reader)> {
        let space = Space::new(uffd, Mode::Handler, Addresses::of_descriptor());
        let maps: Vec<_> = maps
            .iter()
            .map(|map| {
                let heir = map.heir(&space);
                let at = space.addresses.insert(&heir).expect("no more than its parent had");
                (heir, at)
            })
            .collect();
        let first = Arc::clone(&maps.first()?.0.span);
        let bytes = space.addresses.bytes();
        Some((Self { space: Arc::clone(&space), bytes, maps }, Reader { space, first }))
    }

    /// The child has ended, and nobody touches its maps any more.
    fn end(self) {
        for (map, at) in self.maps {
            at.remove(&map);
            map.let_go();
        }
    }
}

impl Reader {
    fn start(&self, shared: &Arc<Shared>) -> std::io::Result<()> {
        let (space, first, shared) = (Arc::clone(&self.space), Arc::clone(&self.first), Arc::clone(shared));
        spawn("prepage-heir", move || read(&space, &shared, Some(&first))).map(drop)
    }
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::time::Instant;

    use prepage_sys::forked::Forked;
    use prepage_sys::processor_time::of_this_thread;
    use prepage_sys::region::{Contents, Region};
    use prepage_sys::userfaultfd::{OpenError, Served};
    use prepage_testing::{Need, is_child, passes_as_child, this_test, unless_refused};

    use super::*;

    /// One that looks again and again, in real time, keeps its processor from the thread that it waits for.
    #[test]
    fn who_waits_for_the_reader_and_for_the_server_sleeps() {
        let shared = Shared::new();
        let tells_after = |ends_the_wait: &dyn Fn()| {
            std::thread::scope(|scope| {
                let telling = scope.spawn(|| {
                    let (began, before) = (Instant::now(), of_this_thread());
                    shared.tell_after_forks(ServerMessage::Dropped(0));
                    (began.elapsed(), of_this_thread() - before)
                });
                std::thread::sleep(Duration::from_millis(200));
                assert!(!telling.is_finished());
                ends_the_wait();
                let (took, computed) = telling.join().unwrap();
                assert!(2 * computed < took, "{computed:?} of {took:?}");
            });
        };
        shared.reading.go_up();
        tells_after(&|| shared.reading.go_up());
        while shared.queue.len() < QUEUE {
            shared.tell(ServerMessage::Dropped(0));
        }
        tells_after(&|| assert!(shared.pop().is_some()));
        assert_eq!(shared.queue.len(), QUEUE);
    }

    #[test]
    fn forks_end_though_the_server_does_nothing() {
        if !is_child(&this_test()) {
            // A fork that nobody reads waits for ever.
            return passes_as_child(&["timeout", "60"]);
        }
        let uffd = Userfaultfd::open_with_forks(Delivery::Message);
        let refused = |error: &OpenError| matches!(error, OpenError::NotPermitted);
        let Some(uffd) = unless_refused(uffd, Need::Root, refused) else { return };
        let space = Space::new(uffd, Mode::Handler, Addresses::of_descriptor());
        let region = Region::map(PAGE_SIZE, Contents::Anonymous).unwrap();
        region.let_inherit().unwrap();
        space.uffd.register(region.span(), Served::Missing).unwrap();
        let shared = Arc::new(Shared::new());
        // Of as many as come where threads are interrupted in their faults, or maps come and go.
        for _ in 0..=QUEUE {
            shared.tell(ServerMessage::Fault(Arc::clone(&space), Message::default()));
        }
        let reader = {
            let (space, shared) = (Arc::clone(&space), Arc::clone(&shared));
            spawn("prepage-forks", move || read(&space, &shared, None)).unwrap()
        };
        // As whoever makes it does: it allocates as it begins.
        while shared.ready.load(Ordering::SeqCst) == 0 {
            wait(&shared.ready, 0);
        }
        // The server may wait for the allocator meanwhile, whose locks who forks has.
        for _ in 0..8 {
            assert_eq!(Forked::new(|| 0).unwrap().wait().unwrap().exit_status(), Some(0));
        }
        shared.stop.store(1, Ordering::SeqCst);
        let forks = || {
            let messages = std::iter::from_fn(|| shared.queue.pop());
            messages.filter(|message| matches!(message, ServerMessage::Forked(..))).count()
        };
        let mut found = forks();
        reader.join().unwrap();
        found += forks();
        assert_eq!(found, 8);
    }
}
