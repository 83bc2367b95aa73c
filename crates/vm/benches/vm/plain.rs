//! A handler as most are written: one thread that polls, and resolves a cluster a fault. At its best: on the CPU of the one
//! thread that touches.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use prepage_sys::memfd::Memfd;
use prepage_sys::region::{Contents, Region};
use prepage_sys::userfaultfd::{Delivery, Event, Served, Userfaultfd, Writes};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

struct Plain {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

/// Runs `touch` on `pages` of `memfd`, served so; with `pinned` on one CPU with its handler.
pub fn plain(memfd: &Memfd, pages: u64, cluster: u64, pinned: bool, touch: impl FnOnce(&[u8]) -> f64) -> f64 {
    let before = sched_getaffinity(None).expect("known");
    if pinned {
        pin();
    }
    let region = Region::map(pages * 4096, Contents::Private(memfd, 0)).expect("address space");
    let plain = Plain::start(&region, cluster);
    let rate = touch(region.as_slice());
    drop(plain);
    sched_setaffinity(None, &before).expect("as it was");
    rate
}

/// Keeps the calling thread, and those that it starts, on the CPU it is on.
fn pin() {
    let mut one = CpuSet::new();
    one.set(rustix::thread::sched_getcpu());
    sched_setaffinity(None, &one).expect("the CPU it runs on");
}

impl Plain {
    fn start(region: &Region, cluster: u64) -> Self {
        let uffd = Userfaultfd::open(Delivery::Message).expect("userfaultfd for root");
        uffd.register(region.span(), Served::MissingAndUnmapped).expect("a memfd");
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"));
        let (span, stopped) = (Arc::clone(region.span()), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut events = Vec::with_capacity(16);
            loop {
                let mut ready = [PollFd::new(&uffd, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
                poll(&mut ready, None).expect("two descriptors");
                if !ready[1].revents().is_empty() {
                    return;
                }
                uffd.read(&mut events).expect("a userfaultfd");
                for event in &events {
                    let Event::Fault(message) = event else { continue };
                    let offset = (message.address - span.start()) & !(cluster * 4096 - 1);
                    uffd.map_resident(&span, offset, cluster * 4096, Writes::Free).expect("it is resident");
                }
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        rustix::io::write(&self.stop, &1u64.to_ne_bytes()).expect("room");
        self.thread.take().map(JoinHandle::join);
    }
}
