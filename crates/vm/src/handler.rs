//! Faults served by threads that read their messages: one on each CPU.
//!
//! A fault is answered on the CPU where it happened, if a thread waits there: to wake another CPU takes ten times as long as
//! all the rest. A message wakes every thread that waits for one, and the first to run gets it, which may be the wrong one: so
//! those stop waiting on whose CPUs no faults were seen lately ([`crate::watch`]). Where CPUs are busy with other work they all wait, for any of
//! them may be the first to be free; one always does. They sleep in read(2) itself, which takes a system call less than
//! polling, and where a message that another got does not end the sleep.
//!
//! To answer for a page in memory a thread allocates nothing, since who waits for the answer may have been interrupted in the
//! allocator.

use std::io;
use std::sync::Arc;

use prepage_core::PAGE_SIZE;
use prepage_sys::userfaultfd::{Event, Message};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::fault::{Context, Fault, Touch, now_ns};
use crate::space::Space;
use crate::statistics::Account;
use crate::stop_pages::{Stop, StopPages};
use crate::sync::spawn;
use crate::watch::{Looks, Watch};

/// The threads that serve one userfaultfd; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Handlers {
    space: Arc<Space>,
    shared: Arc<Shared>,
    /// Taken when this is dropped.
    stop: Option<StopPages>,
    /// Threads that were started.
    started: usize,
}

/// What the threads share: each part has its own lock legend.
#[derive(Debug)]
struct Shared {
    stop: Stop,
    watch: Watch,
}

impl Handlers {
    pub(crate) fn start(space: &Arc<Space>) -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        // A model serves messages itself: its threads may not sleep in the kernel.
        let most = if cfg!(any(feature = "shuttle", feature = "loom")) { 0 } else { CpuSet::MAX_CPU };
        Self::start_on(space, (0..most).filter(|&cpu| allowed.is_set(cpu)).collect())
    }

    /// One thread for each of `cpus`.
    fn start_on(space: &Arc<Space>, cpus: Box<[usize]>) -> io::Result<Self> {
        let (stop_pages, stop) = StopPages::new(space, cpus.len())?;
        let shared = Arc::new(Shared { stop, watch: Watch::new(cpus) });
        space.uffd.sleep_in_reads()?;
        let mut handlers = Self { space: Arc::clone(space), shared, stop: Some(stop_pages), started: 0 };
        for index in 0..handlers.shared.watch.threads() {
            let (space, shared) = (Arc::clone(&handlers.space), Arc::clone(&handlers.shared));
            // Made here: a thread may be long in coming to a processor, and then has faults to answer at once.
            let events = Vec::with_capacity(16);
            spawn("prepage-fault", move || work(&space, &shared, index, events))?;
            handlers.started += 1;
        }
        Ok(handlers)
    }

    pub(crate) fn space(&self) -> Arc<Space> {
        Arc::clone(&self.space)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        let Some(mut stop) = self.stop.take().filter(StopPages::is_here) else { return };
        self.shared.stop.mean_it();
        self.shared.watch.call_all();
        let (space, started) = (Arc::clone(&self.space), self.started);
        // A CPU may be long in coming for one of them: nobody waits for that. Without a thread they stay asleep.
        let _ = spawn("prepage-stop", move || {
            stop.touch(started);
            drop(space);
        });
    }
}

/// Ends the process with a thread that panics: those whose faults it no longer serves would sleep for ever.
pub(crate) struct Vital;

impl Drop for Vital {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn work(space: &Space, shared: &Shared, index: usize, mut events: Vec<Event>) {
    let _vital = Vital;
    let mut only = CpuSet::new();
    only.set(shared.watch.cpu(index));
    // A CPU that was taken away since: served from wherever the thread is.
    let _ = sched_setaffinity(None, &only);
    let mut looks = Looks::of_this_thread();
    loop {
        if !shared.stop.is_meant() && !shared.watch.is_on(index) {
            continue;
        }
        // Reading fails only for a descriptor that is none.
        space.uffd.read(&mut events).expect("a userfaultfd can be read");
        let is_alone = matches!(events.first(), Some(Event::Fault(message)) if shared.watch.has_read(index, message.tid, &mut looks));
        let mut has_to_end = false;
        for event in events.drain(..) {
            let Event::Fault(message) = event else { continue };
            if shared.stop.answer(space, message.address) {
                has_to_end |= shared.stop.is_meant();
            } else {
                serve_message(space, &message);
            }
        }
        if has_to_end {
            return;
        }
        if is_alone {
            shared.watch.step_aside(index);
        }
    }
}

/// Serves the fault that `message` tells of. Where the address space is being changed, the thread is woken and touches once
/// more: nobody here waits for the change to be over.
pub(crate) fn serve_message(space: &Space, message: &Message) {
    let start_ns = now_ns();
    let account = Account::here();
    let Some((map, at)) = space.addresses.find(message.address, account.cpu) else {
        // Unmapped meanwhile: whoever waits gets SIGSEGV on its next try.
        let _ = space.uffd.wake(message.address, PAGE_SIZE);
        return;
    };
    let touch = Touch {
        page: map.page_at(message.address),
        address: message.address,
        ip: 0,
        write: message.write,
        surely_write: message.write,
        protected: message.protected,
        tid: message.tid,
        start_ns,
    };
    let _ = Fault::new(&map, at, touch, Context::Handler, account).serve();
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    use prepage_core::PageIndex;
    use prepage_sys::userfaultfd::{Delivery, OpenError, Userfaultfd};
    use prepage_testing::{Doctor, Need, has, unless_refused};

    use super::*;
    use crate::addresses::Addresses;
    use crate::error::MapError;
    use crate::pages::Seen;
    use crate::{MapOptions, Mode, Vm, VmOptions};

    /// As on a machine with more CPUs than have all their threads wait: one waits at first, and calls others.
    #[test]
    fn threads_of_more_cpus_than_wait_serve_all_touches_and_end() {
        const THREADS: usize = 8;
        const PAGES: u64 = 512;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let allowed = sched_getaffinity(None).unwrap();
        let here: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(2).collect();
        let cpus: Box<[usize]> = here.iter().copied().cycle().take(THREADS).collect();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &OpenError| matches!(error, OpenError::NotPermitted);
        let uffd = Userfaultfd::open(Delivery::Message);
        let Some(uffd) = unless_refused(uffd, need, refused) else { return };
        let space = Space::new(uffd, Mode::Handler, Addresses::of_descriptor());
        *vm.core.handlers.lock().unwrap() = Some(Handlers::start_on(&space, cpus).unwrap());
        let object = vm.file(file.path()).unwrap();
        let options = MapOptions::private().mode(Mode::Handler).every_fault().policy("none".parse().unwrap());
        let options = options.neighbours(prepage_core::policy::Neighbours::Block(1));
        for _ in 0..8 {
            let map = vm.map(&object, &options).unwrap();
            std::thread::scope(|scope| {
                for first in 0..THREADS as u64 {
                    let map = &map;
                    scope.spawn(move || {
                        for page in (first..PAGES).step_by(THREADS) {
                            assert_eq!(map.as_slice()[(page * PAGE_SIZE) as usize], 7);
                        }
                    });
                }
            });
        }
        let stopped = Arc::downgrade(&space);
        drop((object, vm, space));
        let began = Instant::now();
        while stopped.strong_count() > 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "threads are left");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_page_that_is_not_in_the_page_cache_is_left_to_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        if !has(Need::Eviction(std::env::temp_dir())) {
            return;
        }
        std::fs::write(file.path(), vec![7; 1 << 20]).unwrap();
        file.as_file().sync_all().unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let options = MapOptions::shared().mode(Mode::Handler).policy("none".parse().unwrap());
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let Some(map) = unless_refused(vm.map(&object, &options), need, refused) else { return };
        // From here on nobody does what is left to others.
        vm.core.jobs.stop();
        vm.core.jobs.wait_for_threads();
        let serve = |page: u64| {
            let address = map.address() + page * PAGE_SIZE;
            serve_message(&map.core.space, &Message { address, tid: 1, write: false, protected: false });
            object.core.frames().unwrap().pages.see(PageIndex(page))
        };
        assert_eq!(serve(3), Seen::Resident { marked: false });
        // What the kernel reads ahead may come after an eviction.
        let is_left = |page| {
            prepage_sys::cachestat::evict(file.as_file().as_fd(), Duration::from_secs(1)).unwrap();
            serve(page) == Seen::Filling
        };
        assert!((200..210).any(is_left), "the thread waited for the device");
    }
}
