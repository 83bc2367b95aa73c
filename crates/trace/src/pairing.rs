//! Beginnings and ends of faults, put together.

mod stacks;

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use prepage_core::{
    Fault, FaultClass, Object, PageIndex, Permissions, Stack, Thread, ThreadIndex, TraceFacts,
};
use prepage_sys::proc_file;
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::processes::threads_of;

use crate::event::{Event, EventKind};
use crate::filter::Filters;
use crate::space::{AddressSpaces, Resolved};
use crate::tables::Tables;
use stacks::Stacks;

/// A fault that waits for a file's page begins again after a signal: not later than this, and so often at most. A program that catches SIGBUS may
/// begin at one place for ever.
const RESTART_NS_MAX: u64 = 1_000_000_000;
const RESTARTS_MAX: usize = 8;
/// Where another's clock gave a time, beginnings and ends of a thread may be out of order by less than this: by a round at most.
const DISORDER_NS_MAX: u64 = 1_000_000_000;
/// Threads whose ends may have been lost are looked for only among more than these.
const RUNNING_MIN: usize = 1 << 14;
/// After so many rounds the last events of who was gone have been fed: the kernel had reported them before, the next round reads them, and the
/// one after that is the first that is sure to deliver them ([`crate::Stream::ripe`]).
const LAST_ROUNDS: u32 = 2;

/// Makes [`Fault`]s of a stream's events.
///
/// A thread is in one fault at a time, so what is kept of unfinished ones is bounded by the number of threads.
/// When a thread begins a fault while an earlier one has not ended, then
///
/// - records were lost since the earlier fault began: its end is [`FaultClass::Unseen`];
/// - the same instruction touched the same page of a file within a second, the thread mapped nothing there meanwhile, and this fault ends: a signal
///   came while the thread waited for the page. It is one fault, from the first beginning on;
/// - otherwise the earlier fault ended in a signal or an error: [`FaultClass::Failed`]. In anonymous memory these are mostly signals that a program
///   catches, so a wait for a page in swap that another signal interrupted counts as failed, too.
///
/// What has begun and not ended when the recording ends is [`FaultClass::Unseen`], too.
///
/// After a loss the end of a fault shows its class but not its cost: the end may be that of a later fault. A time that another observer's clock gave
/// ([`Event::is_time_borrowed`]) gives no cost either, and around it no fault of the thread counts as failed: the end may have come before.
///
/// A minor fault of the page that the thread's last fault read from disk, by the same instruction, is the retry after
/// the read: [`FaultClass::Short`].
///
/// The class of a fault that read nothing from a device is a rule of thumb, for the kernel says only "minor":
///
/// - in a file's private writable mapping: [`FaultClass::CopyOnWrite`], since what is written to nearly always
///   faults by being written to; in any other file mapping, shared memory and the vdso: [`FaultClass::Cached`];
/// - in anonymous memory: [`FaultClass::ZeroFill`] when the page is touched for the first time. The next fault on it is
///   [`FaultClass::CopyOnWrite`], and so is the next one of either process behind a fork: a write to what was only read, or to what both
///   have. So is the next one behind a swap-in. Faults behind that are [`FaultClass::ZeroFill`], since a page that is the process's own mostly has none
///   unless it was given back (MADV_DONTNEED); the first fault behind that counts as a copy. What was swapped out and is still in memory, and pages that
///   NUMA balancing or mprotect(2) had the kernel look at again, have faults too, which count as new pages. vfork(2) counts as a fork. A huge page counts as touched only where it was touched first.
#[derive(Debug)]
pub struct Pairing {
    /// Faults' starts are counted from this time of CLOCK_MONOTONIC.
    pub origin_ns: u64,
    /// Only the faults that pass are kept; the others are counted.
    pub filters: Filters,
    /// What is taken off every cost.
    pub probe_cost_ns: u64,
    /// Which ends of faults the events include.
    pub ends: Ends,
    spaces: AddressSpaces,
    /// Observed threads that have not ended, by thread id.
    running: HashMap<u32, Running>,
    threads: Vec<Thread>,
    stacks: Stacks,
    filtered_out: u64,
    /// How often records were lost so far.
    losses: u64,
    /// So many threads make it worth looking which of them are gone.
    look_at: usize,
    /// Who was found to be gone, and in how many rounds since then events were fed.
    gone: Option<(Gone, u32)>,
}

/// Threads and processes that /proc no longer has.
#[derive(Debug)]
struct Gone {
    tids: HashSet<u32>,
    pids: HashSet<u32>,
}

/// Which ends of faults the events include, apart from losses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ends {
    /// All: a fault without an end did not end.
    #[default]
    All,
    /// Some kinds only: a fault without an end is [`FaultClass::Unseen`].
    Some,
    /// A sample: the end that follows a beginning need not be the same fault's.
    Sample,
}

#[derive(Debug)]
struct Running {
    pid: u32,
    name: Arc<str>,
    /// Its entry in the table of threads under this name, once it has faulted.
    index: Option<ThreadIndex>,
    begun: Option<Begun>,
    /// Earlier beginnings of the same fault, if it ends: signals interrupted it.
    interrupted: Vec<Begun>,
    /// When the last beginning or end had a time of another's clock.
    borrowed_ns: Option<u64>,
    /// Forked, and nothing was reported of it since, neither a fault nor a name nor a mapping: it may have none of the events.
    is_silent_child: bool,
    /// Page and instruction of the thread's last fault, where it read from disk.
    read: Option<(PageIndex, u64)>,
}

/// A fault that has not ended.
#[derive(Debug)]
struct Begun {
    time_ns: u64,
    is_time_borrowed: bool,
    address: u64,
    ip: u64,
    calls: Option<Box<[u64]>>,
    /// [`Pairing::losses`] at that time.
    losses: u64,
}

/// A fault that is over.
enum Over {
    /// It ended. `cost_ns` is known where its beginning was seen too.
    Ended { cost_ns: Option<u64>, disk: bool },
    /// How it ended was not seen, or it never did.
    NotEnded,
    /// It had not ended when the recording did.
    Running,
}

impl Pairing {
    /// Faults' starts are counted from `origin_ns` of CLOCK_MONOTONIC.
    pub fn new(origin_ns: u64) -> Self {
        Self {
            origin_ns,
            spaces: AddressSpaces::default(),
            running: HashMap::new(),
            threads: Vec::new(),
            stacks: Stacks::default(),
            filters: Filters::default(),
            filtered_out: 0,
            probe_cost_ns: 0,
            ends: Ends::All,
            losses: 0,
            look_at: RUNNING_MIN,
            gone: None,
        }
    }

    /// Learns the threads and mappings of a process that was running before its events began, and which of its own memory it has
    /// touched.
    ///
    /// # Errors
    /// When the process is gone or its mappings may not be read.
    pub fn seed(&mut self, pid: u32) -> io::Result<()> {
        for tid in threads_of(pid)? {
            let name = proc_file::read_text(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
            self.running.insert(tid, Running::new(pid, name.trim_end_matches('\n').into()));
        }
        self.spaces.seed(pid)?;
        self.spaces.seed_touched(pid);
        Ok(())
    }

    /// As [`Self::feed`], for a fault that is left out, whatever the filters say: later ones depend on it.
    pub fn feed_early(&mut self, event: &Event) {
        let filtered_out = self.filtered_out;
        self.feed(event, &mut Vec::new());
        self.filtered_out = filtered_out;
    }

    /// Takes the next event, in order of time, and appends the fault that it completes, if any, to `faults`.
    pub fn feed(&mut self, event: &Event, faults: &mut Vec<Fault>) {
        match &event.kind {
            EventKind::FaultBegin { address, ip, calls } => {
                let begun = Begun { calls: calls.clone(), ..Begun::new(event, *address, *ip, self.losses) };
                let thread = faulting(&mut self.running, event);
                let is_on_file =
                    || self.spaces.resolve(event.pid, *address).is_some_and(|place| place.page.is_some());
                if self.ends == Ends::All && thread.may_go_on(&begun) && is_on_file() {
                    thread.interrupted.extend(thread.begun.replace(begun));
                } else {
                    let earlier = thread.take_begun();
                    thread.begun = Some(begun);
                    self.not_ended(event.tid, earlier, faults);
                }
            }
            EventKind::FaultEnd { address, ip, disk } => {
                let thread = faulting(&mut self.running, event);
                let (begun, cost_ns) = match thread.begun.take_if(|begun| begun.address == *address) {
                    Some(begun) => {
                        let begun = thread.take_begun().next().unwrap_or(begun);
                        let cost_ns = event.time_ns.saturating_sub(begun.time_ns);
                        let is_known = begun.losses == self.losses
                            && self.ends != Ends::Sample
                            && !(begun.is_time_borrowed || event.is_time_borrowed);
                        (begun, is_known.then(|| cost_ns.saturating_sub(self.probe_cost_ns)))
                    }
                    None => {
                        // The record of its beginning was lost, or none was asked for.
                        let earlier = thread.take_begun();
                        self.not_ended(event.tid, earlier, faults);
                        (Begun::new(event, *address, *ip, self.losses), None)
                    }
                };
                faults.extend(self.over(event.tid, begun, &Over::Ended { cost_ns, disk: *disk }));
            }
            EventKind::Name { name, .. } => {
                let thread = running(&mut self.running, event);
                thread.name = Arc::clone(name);
                thread.index = None;
                thread.is_silent_child = false;
            }
            EventKind::Fork { parent_tid, .. } => {
                let name =
                    self.running.get(parent_tid).map_or_else(unknown, |parent| Arc::clone(&parent.name));
                let is_silent_child = event.pid == event.tid;
                self.running.insert(event.tid, Running { is_silent_child, ..Running::new(event.pid, name) });
            }
            EventKind::Exit => {
                let begun = self.running.get_mut(&event.tid).map(Running::take_begun);
                self.not_ended(event.tid, begun.into_iter().flatten(), faults);
                if self.spaces.is_end(event) {
                    self.running.remove(&event.tid);
                }
            }
            EventKind::Map(mapped) => {
                // Whoever catches a signal and makes the page accessible (mprotect(2) is reported so, too) begins another fault after it.
                let is_there = |begun: &Begun| (mapped.start..mapped.end).contains(&begun.address);
                if let Some(thread) = self.running.get_mut(&event.tid) {
                    thread.is_silent_child = false;
                    if thread.begun.as_ref().is_some_and(is_there) {
                        let begun = thread.take_begun();
                        self.not_ended(event.tid, begun, faults);
                    }
                }
            }
            EventKind::Switch { .. }
            | EventKind::PageCached { .. }
            | EventKind::PagesRead { .. }
            | EventKind::PagesMapped { .. }
            | EventKind::PageSought { .. }
            | EventKind::PageDirtied { .. } => {}
            EventKind::Lost { .. } => self.losses += 1,
        }
        self.spaces.apply(event);
    }

    /// Children that have faulted, as /proc says, and of which nothing was fed: it may be still to come.
    pub(crate) fn silent_children(&self) -> Vec<u32> {
        let has_faulted =
            |pid| ProcessStat::of(pid).is_ok_and(|stat| stat.minor_faults + stat.major_faults > 0);
        let silent = self.running.iter().filter(|(_, thread)| thread.is_silent_child);
        silent.map(|(&pid, _)| pid).filter(|&pid| has_faulted(pid)).collect()
    }

    /// How many of `children` are as silent as before.
    pub(crate) fn still_silent(&self, children: &[u32]) -> u64 {
        children
            .iter()
            .filter_map(|pid| self.running.get(pid))
            .filter(|thread| thread.is_silent_child)
            .count() as u64
    }

    /// Whether the fault that `tid` began last may be one that a signal had interrupted.
    pub(crate) fn is_begun_again(&self, tid: u32) -> bool {
        self.running.get(&tid).is_some_and(|thread| !thread.interrupted.is_empty())
    }

    /// Appends the faults that have begun and not ended: for the end of the record.
    pub fn finish(&mut self, faults: &mut Vec<Fault>) {
        let unfinished: Vec<(u32, Begun)> = self
            .running
            .iter_mut()
            .filter_map(|(&tid, thread)| Some((tid, thread.take_begun().next()?)))
            .collect();
        faults
            .extend(unfinished.into_iter().filter_map(|(tid, begun)| self.over(tid, begun, &Over::Running)));
    }

    /// `facts`, with what was noticed of the run so far.
    pub(crate) fn noticed(&self, facts: TraceFacts) -> TraceFacts {
        TraceFacts {
            filtered_out: self.filtered_out,
            unnamed_mappings: self.spaces.unnamed_mappings(),
            unobserved_programs: self.spaces.unobserved_programs(),
            ..facts
        }
    }

    /// What the faults' numbers mean, so far.
    pub fn tables(&self) -> Tables<'_> {
        Tables { objects: self.spaces.objects(), threads: &self.threads, stacks: self.stacks.all() }
    }

    /// The same, at the end. Notes in `facts` how many files were not looked at ([`AddressSpaces::into_objects`]).
    pub fn into_tables(self, facts: &mut TraceFacts) -> (Vec<Object>, Vec<Thread>, Vec<Stack>) {
        let objects;
        (objects, facts.unanswered_files) = self.spaces.into_objects();
        (objects, self.threads, self.stacks.into_all())
    }

    /// What the tables of threads and stacks take in memory, about. They grow with every thread and stack that is new.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "the starter writes no trace files"))]
    pub(crate) fn table_bytes(&self) -> usize {
        self.stacks.bytes() + self.threads.len() * (size_of::<Thread>() + 16)
    }

    /// Begins the tables of threads and stacks anew: the numbers in earlier faults mean nothing from now on.
    #[cfg_attr(not(feature = "parquet"), allow(dead_code, reason = "the starter writes no trace files"))]
    pub(crate) fn forget_tables(&mut self) {
        self.stacks = Stacks::default();
        self.threads.clear();
        self.running.values_mut().for_each(|running| running.index = None);
    }

    /// Forgets the threads and processes that have ended, where the records of their ends were lost, if there are many more of
    /// them than at the last look. To be called once in each round: who is found to be gone is forgotten in a later one, because its
    /// last events may be still to come.
    pub(crate) fn forget_gone_of_many(&mut self) {
        match &mut self.gone {
            None if self.running.len() >= self.look_at => self.gone = Some((self.find_gone(), 0)),
            None => {}
            Some((_, rounds)) if *rounds + 1 < LAST_ROUNDS => *rounds += 1,
            Some(_) => {
                let (before, _) = self.gone.take().expect("some");
                // Another may have the number by now.
                let mut gone = self.find_gone();
                gone.tids.retain(|tid| before.tids.contains(tid));
                gone.pids.retain(|pid| before.pids.contains(pid));
                self.forget(&gone);
            }
        }
    }

    /// Forgets the threads and processes that /proc no longer has. Their last events were fed.
    pub(crate) fn forget_gone(&mut self) {
        let gone = self.find_gone();
        self.forget(&gone);
    }

    fn find_gone(&self) -> Gone {
        let is_gone = |pid: u32, tid: u32| !Path::new(&format!("/proc/{pid}/task/{tid}")).exists();
        let threads = self.running.iter().filter(|&(&tid, thread)| is_gone(thread.pid, tid));
        Gone {
            tids: threads.map(|(&tid, _)| tid).collect(),
            pids: self.spaces.pids().filter(|&pid| is_gone(pid, pid)).collect(),
        }
    }

    fn forget(&mut self, gone: &Gone) {
        self.running.retain(|tid, _| !gone.tids.contains(tid));
        self.spaces.forget(&gone.pids);
        self.look_at = 2 * self.running.len() + RUNNING_MIN;
    }

    /// The thread `tid` as it is called at the last event.
    pub fn thread(&self, tid: u32) -> Thread {
        let running = self.running.get(&tid);
        let (pid, comm) = running.map_or((tid, "?"), |running| (running.pid, &running.name));
        Thread { pid, tid, comm: comm.to_owned() }
    }

    /// The mappings as of the last event.
    pub fn spaces(&self) -> &AddressSpaces {
        &self.spaces
    }

    /// Appends what `tid` has begun and will not end.
    fn not_ended(&mut self, tid: u32, begun: impl Iterator<Item = Begun>, faults: &mut Vec<Fault>) {
        faults.extend(begun.filter_map(|begun| self.over(tid, begun, &Over::NotEnded)));
    }

    /// Makes a fault of what is over, unless the filters exclude it.
    fn over(&mut self, tid: u32, begun: Begun, over: &Over) -> Option<Fault> {
        let thread = self.running.get_mut(&tid).expect("a thread that faults is known by its event");
        let is_disordered =
            thread.borrowed_ns.is_some_and(|time_ns| time_ns.abs_diff(begun.time_ns) < DISORDER_NS_MAX);
        if is_disordered && !matches!(over, Over::Ended { .. }) && begun.losses == self.losses {
            return None;
        }
        let pid = thread.pid;
        let place = self.spaces.resolve(pid, begun.address);
        let code = self.spaces.code_place(pid, begun.ip);
        let mut fault = Fault {
            ip: begun.ip,
            object: place.map(|place| place.mapping.object),
            page: place.and_then(|place| place.page),
            permissions: place.map_or(Permissions::NONE, |place| place.mapping.permissions),
            code: code.object,
            code_offset: code.offset,
            ..Fault::new(
                begun.time_ns.saturating_sub(self.origin_ns),
                ThreadIndex(0),
                begun.address,
                match over {
                    Over::NotEnded if begun.losses == self.losses && self.ends == Ends::All => {
                        FaultClass::Failed
                    }
                    _ => FaultClass::Unseen,
                },
            )
        };
        let read_before = thread.read.take();
        if let Over::Ended { cost_ns, disk } = *over {
            let memory = Memory::at(place);
            // To be noted also for faults that are read from disk or left out: later ones depend on it.
            let is_copied = match (memory, disk) {
                (Memory::Anonymous, false) => self.spaces.touch(pid, begun.address),
                (Memory::Anonymous, true) => {
                    self.spaces.read_back(pid, begun.address);
                    false
                }
                (Memory::PrivateFile | Memory::SharedFile, _) => false,
            };
            fault.cost_ns = cost_ns;
            let at = (PageIndex::containing(begun.address), begun.ip);
            fault.class = match disk {
                true => FaultClass::Disk,
                false if read_before == Some(at) && fault.page.is_some() => FaultClass::Short,
                false => memory.class(is_copied),
            };
            thread.read = disk.then_some(at);
        }
        if !self.filters.is_empty() && !self.filters.keep(&fault, &thread.name, self.spaces.objects()) {
            self.filtered_out += 1;
            return None;
        }
        fault.thread = *thread.index.get_or_insert_with(|| {
            self.threads.push(Thread { pid, tid, comm: thread.name.as_ref().to_owned() });
            ThreadIndex(self.threads.len() as u32 - 1)
        });
        fault.stack = begun.calls.map(|calls| self.stacks.number(pid, &calls, &self.spaces));
        Some(fault)
    }
}

impl Begun {
    fn new(event: &Event, address: u64, ip: u64, losses: u64) -> Self {
        let &Event { time_ns, is_time_borrowed, .. } = event;
        Self { time_ns, is_time_borrowed, address, ip, calls: None, losses }
    }
}

impl Running {
    fn new(pid: u32, name: Arc<str>) -> Self {
        Self {
            pid,
            name,
            index: None,
            begun: None,
            interrupted: Vec::new(),
            borrowed_ns: None,
            is_silent_child: false,
            read: None,
        }
    }

    /// What has begun, the first beginning first.
    fn take_begun(&mut self) -> impl Iterator<Item = Begun> + use<> {
        std::mem::take(&mut self.interrupted).into_iter().chain(self.begun.take())
    }

    /// Whether `begun` may be the fault that began before it, after a signal.
    fn may_go_on(&self, begun: &Begun) -> bool {
        let place = |begun: &Begun| (begun.address, begun.ip, begun.losses);
        let first = self.interrupted.first().or(self.begun.as_ref());
        self.interrupted.len() < RESTARTS_MAX
            && first.is_some_and(|first| {
                place(first) == place(begun) && begun.time_ns.saturating_sub(first.time_ns) <= RESTART_NS_MAX
            })
    }
}

/// What a minor fault's class depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    PrivateFile,
    SharedFile,
    Anonymous,
}

impl Memory {
    fn at(place: Option<Resolved<'_>>) -> Self {
        let Some(Resolved { mapping, object, .. }) = place else { return Self::Anonymous };
        match object.path.as_str() {
            // Named by the kernel after where they come from: huge pages, and a private mapping of /dev/zero.
            "/anon_hugepage (deleted)" | "/dev/zero" if mapping.is_private() => Self::Anonymous,
            _ if object.is_file() && mapping.is_private() && mapping.is_writable() => Self::PrivateFile,
            _ if object.is_file() => Self::SharedFile,
            "[vdso]" | "[vvar]" | "[vvar_vclock]" => Self::SharedFile,
            _ => Self::Anonymous,
        }
    }

    /// The class of a minor fault here.
    fn class(self, is_copied: bool) -> FaultClass {
        match self {
            Self::PrivateFile => FaultClass::CopyOnWrite,
            Self::SharedFile => FaultClass::Cached,
            Self::Anonymous if is_copied => FaultClass::CopyOnWrite,
            Self::Anonymous => FaultClass::ZeroFill,
        }
    }
}

/// The thread of `event`, which is new here if the record of its start was lost. Its number may have been that of another
/// process's, whose end was lost, too.
fn running<'a>(threads: &'a mut HashMap<u32, Running>, event: &Event) -> &'a mut Running {
    let new = || Running::new(event.pid, unknown());
    let thread = threads.entry(event.tid).or_insert_with(new);
    if thread.pid != event.pid {
        *thread = new();
    }
    thread
}

/// The thread of `event`, which is of a fault.
fn faulting<'a>(threads: &'a mut HashMap<u32, Running>, event: &Event) -> &'a mut Running {
    let thread = running(threads, event);
    thread.is_silent_child = false;
    if event.is_time_borrowed {
        thread.borrowed_ns = Some(event.time_ns);
    }
    thread
}

fn unknown() -> Arc<str> {
    "?".into()
}

#[cfg(test)]
mod tests;
