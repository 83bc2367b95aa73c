//! Faults served by threads that read their messages: one on each CPU with faults.
//!
//! A fault is answered on the CPU where it happened, if a thread waits there: to wake another CPU takes ten times as long as
//! all the rest. A message wakes every thread that waits for one, and the first to run gets it, which may be the wrong one: so
//! those stop waiting on whose CPUs no faults were seen lately ([`crate::watch`]). Where CPUs are busy with other work they all wait, for any of
//! them may be the first to be free; one always does. They sleep in read(2) itself, which takes a system call less than
//! polling, and where a message that another got does not end the sleep.
//!
//! The kernel wakes all that sleep there at each message: where several do, each fault would interrupt the CPUs of all others. So there a thread that has answered
//! offers its CPU instead, and the thread that faults has it until its next fault. Then nobody is to be woken.
//!
//! To answer for a page in memory a thread allocates nothing, since who waits for the answer may have been interrupted in the
//! allocator. So they are started, and ended, by one that does nothing else.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use prepage_core::PAGE_SIZE;
use prepage_sys::clock::now_ns;
use prepage_sys::fork;
use prepage_sys::userfaultfd::{Event, Message};
use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

use crate::fault::{Context, Fault, Touch};
use crate::space::Space;
use crate::spin::{Spin, Tried};
use crate::statistics::Account;
use crate::stop_pages::{Stop, StopPages};
use crate::sync::{AtomicU32, Ordering, spawn};
use crate::watch::{Looks, Watch};

/// Threads answer messages on CPUs with lower numbers.
const CPUS: usize = if IS_MODEL { 1 } else { CpuSet::MAX_CPU };
/// A model serves messages itself: its threads may not sleep in the kernel.
const IS_MODEL: bool = cfg!(any(feature = "shuttle", feature = "loom"));

/// For so long a thread offers its CPU to the one that it answered, before it sleeps until the next message: longer than two faults in a row take.
const OFFER: Duration = Duration::from_micros(20);

/// The threads that serve one userfaultfd; they end when this is dropped.
#[derive(Debug)]
pub(crate) struct Handlers {
    space: Arc<Space>,
    shared: Arc<Shared>,
    /// The process that they are in.
    generation: u64,
}

/// What the threads share.
///
/// Lock legend: (a) atomic; each other part has its own.
#[derive(Debug)]
struct Shared {
    stop: Stop,
    watch: Watch,
    /// (a) Threads that were started.
    started: AtomicU32,
}

impl Handlers {
    pub(crate) fn start(space: &Arc<Space>) -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        Self::start_on(space, (0..CPUS).filter(|&cpu| allowed.is_set(cpu)).collect())
    }

    /// A thread for this CPU, and soon one for each of `usual` if they are few; others follow where faults are seen. It is an error if there is none.
    fn start_on(space: &Arc<Space>, usual: Box<[usize]>) -> io::Result<Self> {
        let (stop_pages, stop) = StopPages::new(space, CPUS)?;
        let here = sched_getcpu().min(CPUS - 1);
        let watch = Watch::new(CPUS, usual, here);
        let shared = Arc::new(Shared { stop, watch, started: AtomicU32::new(0) });
        space.uffd.sleep_in_reads()?;
        let handlers = Self { space: Arc::clone(space), shared, generation: fork::generation() };
        let (space, shared) = (Arc::clone(space), Arc::clone(&handlers.shared));
        spawn("prepage-hands", move || start_called(&space, &shared, stop_pages))?;
        if !IS_MODEL {
            start_thread(&handlers.space, &handlers.shared, here)?;
            handlers.shared.watch.call_few();
            handlers.shared.watch.wait_for_first();
        }
        Ok(handlers)
    }

    pub(crate) fn space(&self) -> Arc<Space> {
        Arc::clone(&self.space)
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        if self.generation == fork::generation() {
            self.shared.stop.mean_it();
            self.shared.watch.call_starter();
        }
    }
}

/// Starts the threads that are called, until the end, and has all of them end then: a CPU may be long in coming for one of them.
fn start_called(space: &Arc<Space>, shared: &Arc<Shared>, mut stop_pages: StopPages) {
    let watch = &shared.watch;
    loop {
        let calls = watch.calls();
        while let Some(cpu) = watch.take_called() {
            if start_thread(space, shared, cpu).is_err() {
                watch.could_not_start(cpu);
            }
        }
        if shared.stop.is_meant() {
            break;
        }
        watch.wait_for_calls(calls);
    }
    watch.call_all();
    stop_pages.touch(shared.started.load(Ordering::SeqCst) as usize);
}

fn start_thread(space: &Arc<Space>, shared: &Arc<Shared>, cpu: usize) -> io::Result<()> {
    let (space, of_thread) = (Arc::clone(space), Arc::clone(shared));
    // Made here: a thread may be long in coming to a processor, and then has faults to answer at once.
    let events = Vec::with_capacity(16);
    spawn("prepage-fault", move || work(&space, &of_thread, cpu, events))?;
    shared.started.fetch_add(1, Ordering::SeqCst);
    Ok(())
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

fn work(space: &Space, shared: &Shared, cpu: usize, mut events: Vec<Event>) {
    let _vital = Vital;
    let mut only = CpuSet::new();
    only.set(cpu);
    // A CPU that was taken away since: served from wherever the thread is.
    let _ = sched_setaffinity(None, &only);
    let mut looks = Looks::of_this_thread();
    let offers = Spin::default();
    // Not before: its CPU may be long in coming.
    shared.watch.has_started(cpu);
    loop {
        if !shared.stop.is_meant() && !shared.watch.is_on(cpu) {
            continue;
        }
        if !(shared.watch.others_wait() && offers.offer(OFFER, || try_read(space, &mut events))) {
            // Reading fails only for a descriptor that is none.
            space.uffd.read(&mut events).expect("a userfaultfd can be read");
        }
        let is_alone = matches!(events.first(), Some(Event::Fault(message)) if shared.watch.has_read(cpu, message.tid, &mut looks));
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
            shared.watch.step_aside(cpu);
        }
    }
}

fn try_read(space: &Space, events: &mut Vec<Event>) -> Tried {
    match space.uffd.read_one(events) {
        Ok(()) => Tried::Read,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Tried::NotYet,
        Err(_) => Tried::Never,
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
    use std::path::Path;
    use std::time::Instant;

    use prepage_core::PageIndex;
    use prepage_sys::userfaultfd::{Delivery, OpenError, Userfaultfd};
    use prepage_testing::{Doctor, Need, has, unless_refused};

    use super::*;
    use crate::addresses::Addresses;
    use crate::error::MapError;
    use crate::pages::Seen;
    use crate::{MapOptions, Mode, Vm, VmOptions};

    /// As on a machine with so many CPUs that one thread waits at first, and calls others.
    #[test]
    fn threads_of_more_cpus_than_wait_serve_all_touches_and_end() {
        const THREADS: usize = 8;
        const PAGES: u64 = 512;
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &OpenError| matches!(error, OpenError::NotPermitted);
        let uffd = Userfaultfd::open(Delivery::Message);
        let Some(uffd) = unless_refused(uffd, need, refused) else { return };
        let space = Space::new(uffd, Mode::Handler, Addresses::of_descriptor());
        *vm.core.handlers.lock().unwrap() = Some(Handlers::start_on(&space, (0..THREADS).collect()).unwrap());
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
    fn faults_of_cpus_that_the_maker_of_the_first_map_may_not_use_are_served_there() {
        const PAGES: u64 = 512;
        let allowed = sched_getaffinity(None).unwrap();
        let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).take(2).collect();
        let &[maker, toucher] = &*cpus else { return };
        let stay_on = |cpu| {
            let mut only = CpuSet::new();
            only.set(cpu);
            sched_setaffinity(None, &only).unwrap();
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), vec![7; (PAGES * PAGE_SIZE) as usize]).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file.path()).unwrap();
        let options = MapOptions::shared().mode(Mode::Handler).every_fault().policy("none".parse().unwrap());
        let make = || {
            stay_on(maker);
            vm.map(&object, &options)
        };
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let made = std::thread::scope(|scope| scope.spawn(make).join().unwrap());
        if unless_refused(made, need, refused).is_none() {
            return;
        }
        let has_thread = || {
            let handlers = vm.core.handlers.lock().unwrap();
            handlers.as_ref().unwrap().shared.watch.has_thread(toucher)
        };
        assert!(!has_thread());
        let touch = || {
            stay_on(toucher);
            let began = Instant::now();
            while !has_thread() {
                assert!(began.elapsed() < Duration::from_secs(60), "no thread serves faults there");
                let map = vm.map(&object, &options).unwrap();
                (0..PAGES).for_each(|page| assert_eq!(map.as_slice()[(page * PAGE_SIZE) as usize], 7));
            }
        };
        std::thread::scope(|scope| scope.spawn(touch).join().unwrap());
    }

    /// Has the fault on a page of a new map of `file` served by a VM in which nobody does what is left to others; `None` where that is not permitted.
    fn serve_alone(file: &Path) -> Option<impl Fn(u64) -> Seen + use<>> {
        std::fs::write(file, vec![7; 1 << 20]).unwrap();
        let vm = Vm::new(VmOptions::default()).unwrap();
        let object = vm.file(file).unwrap();
        let options = MapOptions::shared().mode(Mode::Handler).policy("none".parse().unwrap());
        let need = Need::Doctor(Doctor::ServedFaultsInSystemCalls);
        let refused = |error: &MapError| matches!(error, MapError::Userfaultfd(_));
        let map = unless_refused(vm.map(&object, &options), need, refused)?;
        vm.core.jobs.stop();
        vm.core.jobs.wait_for_threads();
        Some(move |page: u64| {
            let _alive = &vm;
            let address = map.address() + page * PAGE_SIZE;
            serve_message(&map.core.space, &Message { address, tid: 1, write: false, protected: false });
            object.core.frames().unwrap().pages.see(PageIndex(page))
        })
    }

    /// A tmpfs refuses RWF_NOWAIT; it is read all the same.
    #[test]
    fn a_page_of_a_file_in_a_tmpfs_is_left_to_nobody() {
        let memory = Path::new("/dev/shm");
        if !has(Need::Path(memory.into())) {
            return;
        }
        let file = tempfile::NamedTempFile::new_in(memory).unwrap();
        let Some(serve) = serve_alone(file.path()) else { return };
        assert_eq!(serve(3), Seen::Resident { marked: false });
    }

    #[test]
    fn a_page_that_is_not_in_the_page_cache_is_left_to_others() {
        let file = tempfile::NamedTempFile::new().unwrap();
        if !has(Need::Eviction(std::env::temp_dir())) {
            return;
        }
        let Some(serve) = serve_alone(file.path()) else { return };
        assert_eq!(serve(3), Seen::Resident { marked: false });
        file.as_file().sync_all().unwrap();
        // What the kernel reads ahead may come after an eviction.
        let is_left = |page| {
            prepage_sys::cachestat::evict(file.as_file().as_fd(), Duration::from_secs(1)).unwrap();
            serve(page) == Seen::Filling
        };
        assert!((200..210).any(is_left), "the thread waited for the device");
    }
}
