//! Faults served by threads that read their messages: one on each CPU.
//!
//! A fault is answered on the CPU where it happened, if a thread waits there: to wake another CPU takes ten times as long as
//! all the rest. A message wakes every thread that waits for one, and the first to run gets it, which may be the wrong one: so
//! those stop waiting on whose CPUs no faults were seen lately. Where CPUs are busy with other work they all wait, for any of
//! them may be the first to be free; one always does. They sleep in read(2) itself, which takes a system call less than
//! polling, and where a message that another got does not end the sleep.
//!
//! To answer for a page in memory a thread allocates nothing, since who waits for the answer may have been interrupted in the
//! allocator.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use prepage_core::PAGE_SIZE;
use prepage_sys::process_stat::cpu_of_thread;
use prepage_sys::userfaultfd::{Event, Message};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::fault::{Context, Fault, Touch, now_ns};
use crate::space::Space;
use crate::statistics::Account;
use crate::stop_pages::{Stop, StopPages};
use crate::sync::{AtomicU32, Ordering, spawn, wait, wake};

/// With so many CPUs or fewer every thread waits at first, and where CPUs are busy.
const ALL_WAIT: usize = 4;
/// Of so many messages that a thread answers it looks at one, to see where the thread that faulted runs: a look takes longer
/// than an answer.
const LOOK: u32 = 8;
/// And of so many, once it saw its own CPU [`SURE`] times in a row.
const LOOK_SURE: u32 = 64;
const SURE: u32 = 4;
/// A CPU is busy where a thread waits for it so long for each message.
const BUSY_NS: u64 = 50_000;
/// A thread leaves waiting to others once it saw other CPUs so many times in a row.
const STRAY: u32 = 3;

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

/// What the threads share.
///
/// Lock legend: (c) constant; (a) atomic.
#[derive(Debug)]
struct Shared {
    stop: Stop,
    /// (c) The CPUs that have a thread.
    cpus: Box<[usize]>,
    /// (a) By thread: 1 where it waits for messages. Those that do not sleep on it.
    waits: Box<[AtomicU32]>,
    /// (a) How many do.
    waiting: AtomicU32,
}

impl Handlers {
    pub(crate) fn start(space: &Arc<Space>) -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        // A model serves messages itself: its threads may not sleep in the kernel.
        let most = if cfg!(any(feature = "shuttle", feature = "loom")) { 0 } else { CpuSet::MAX_CPU };
        let cpus: Box<[usize]> = (0..most).filter(|&cpu| allowed.is_set(cpu)).collect();
        let first = if cpus.len() <= ALL_WAIT { cpus.len() } else { 1 };
        let (stop_pages, stop) = StopPages::new(space, cpus.len())?;
        let shared = Arc::new(Shared {
            stop,
            waits: (0..cpus.len()).map(|index| AtomicU32::new(u32::from(index < first))).collect(),
            waiting: AtomicU32::new(first as u32),
            cpus,
        });
        space.uffd.sleep_in_reads()?;
        let mut handlers = Self { space: Arc::clone(space), shared, stop: Some(stop_pages), started: 0 };
        for index in 0..handlers.shared.cpus.len() {
            let (space, shared) = (Arc::clone(&handlers.space), Arc::clone(&handlers.shared));
            spawn("prepage-fault", move || work(&space, &shared, index))?;
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
        for waits in &self.shared.waits {
            waits.store(1, Ordering::SeqCst);
            wake(waits, u32::MAX >> 1);
        }
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

fn work(space: &Space, shared: &Shared, index: usize) {
    let _vital = Vital;
    let own = shared.cpus[index];
    let mut only = CpuSet::new();
    only.set(own);
    // A CPU that was taken away since: served from wherever the thread is.
    let _ = sched_setaffinity(None, &only);
    let mut events: Vec<Event> = Vec::with_capacity(16);
    let mut looks = Looks { delay: File::open("/proc/thread-self/schedstat").ok(), ..Looks::default() };
    loop {
        if shared.waits[index].load(Ordering::SeqCst) == 0 && !shared.stop.is_meant() {
            wait(&shared.waits[index], 0);
            continue;
        }
        // Reading fails only for a descriptor that is none.
        space.uffd.read(&mut events).expect("a userfaultfd can be read");
        if let Some(Event::Fault(message)) = events.first()
            && shared.cpus.len() > 1
            && looks.is_due()
            && let Some(cpu) = cpu_of_thread(message.tid)
        {
            match looks.saw(cpu == own) {
                CpuMatch::Right => {}
                CpuMatch::Busy if shared.cpus.len() <= ALL_WAIT => {
                    shared.cpus.iter().for_each(|&cpu| shared.call(cpu));
                }
                CpuMatch::Other | CpuMatch::Busy => shared.call(cpu),
                CpuMatch::Wrong => {
                    shared.call(cpu);
                    shared.rest(index);
                }
            }
        }
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
    }
}

/// What a thread saw when it looked where faults happened.
#[derive(Debug, Default)]
struct Looks {
    /// Messages to be answered before the next look.
    left: u32,
    /// Messages since the last look.
    answered: u32,
    /// Looks in a row that saw its own CPU, and others.
    own: u32,
    others: u32,
    /// Where the kernel tells how long this thread has waited for its CPU.
    delay: Option<File>,
    delay_ns: u64,
}

/// Where a thread is that answers messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CpuMatch {
    /// On the CPU of the fault.
    Right,
    /// On another.
    Other,
    /// On another time and again.
    Wrong,
    /// On a CPU that it has to wait for.
    Busy,
}

impl Looks {
    /// Whether it is time for one. A thread that sleeps in its fault is still where that happened; one that was answered may
    /// be anywhere.
    fn is_due(&mut self) -> bool {
        let due = self.left == 0;
        self.answered += 1;
        self.left = if !due {
            self.left - 1
        } else if self.own >= SURE {
            LOOK_SURE
        } else {
            LOOK
        };
        due
    }

    /// What it saw: a fault on its own CPU or another.
    fn saw(&mut self, own: bool) -> CpuMatch {
        (self.own, self.others) = if own { (self.own + 1, 0) } else { (0, self.others + 1) };
        let answered = std::mem::replace(&mut self.answered, 0);
        if self.waited_ns() > BUSY_NS * u64::from(answered) {
            (self.own, self.others, self.left) = (0, 0, LOOK);
            return CpuMatch::Busy;
        }
        if own {
            return CpuMatch::Right;
        }
        self.left = LOOK;
        if self.others < STRAY {
            return CpuMatch::Other;
        }
        self.others = 0;
        CpuMatch::Wrong
    }

    /// How long the thread has waited for its CPU since the last look; 0 where the kernel does not tell.
    fn waited_ns(&mut self) -> u64 {
        let mut text = [0; 64];
        let Some(Ok(read)) = self.delay.as_ref().map(|file| file.read_at(&mut text, 0)) else { return 0 };
        let told = std::str::from_utf8(&text[..read]).unwrap_or("").split_ascii_whitespace().nth(1);
        let now = told.and_then(|told| told.parse().ok()).unwrap_or(self.delay_ns);
        let before = std::mem::replace(&mut self.delay_ns, now);
        now.saturating_sub(before)
    }
}

impl Shared {
    /// Leaves waiting for messages to the others, unless there are none.
    fn rest(&self, index: usize) {
        if self.waiting.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.waits[index].store(0, Ordering::SeqCst);
        } else {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Has the thread of `cpu` wait for messages too.
    fn call(&self, cpu: usize) {
        let Some(index) = self.cpus.iter().position(|&other| other == cpu) else { return };
        if self.waits[index].swap(1, Ordering::SeqCst) == 0 {
            self.waiting.fetch_add(1, Ordering::SeqCst);
            wake(&self.waits[index], 1);
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
        protected: message.protected,
        tid: message.tid,
        start_ns,
    };
    let _ = Fault { map: &map, at, touch, context: Context::Handler, account }.serve();
}

#[cfg(all(test, not(any(feature = "shuttle", feature = "loom"))))]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use prepage_core::PageIndex;
    use prepage_testing::{Doctor, Need, has, unless_refused};

    use super::*;
    use crate::error::MapError;
    use crate::pages::Seen;
    use crate::{MapOptions, Mode, Vm, VmOptions};

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
