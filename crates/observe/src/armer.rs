//! Arming each address space of a process tree, and each mapping in it, as it appears.
//!
//! Most programs bring a userfaultfd with them, by the agent. Those that the agent cannot enter are visited once after their
//! exec ([`prepage_sys::arm::Visit`]), and so are children that go on with their parent's program: a fork inherits no
//! registration. Either way the mappings made later are armed from outside, with that descriptor. All of it ends when the
//! [`Armer`] is dropped, or its process ends.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use prepage_sys::agent::{Ending, FirstTouches, Receiver, Sent};
use prepage_sys::arm::{Visit, VisitError, shares_memory};
use prepage_sys::auxv;
use prepage_sys::clock::now_ns;
use prepage_sys::maps::{Mapped, mappings};
use prepage_sys::pagemap::PageMap;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use crate::armed::{SharedRanges, Since};
use crate::file_systems::FileSystems;
use crate::loading::{LOADING_MAX, Loading};

/// For so long after the exec an agent's word is waited for. It comes later where libraries are loaded from a slow disk, and never where it cannot
/// be sent: in another network namespace the receiver's name means nothing, Landlock may forbid it, or the receiver has no room.
const AGENT_WAIT: Duration = Duration::from_secs(1);

/// How long to wait before looking again whether a program is loaded, or a visited process has stopped, which may wait
/// for the device.
pub(crate) const PAUSE: Duration = Duration::from_micros(50);

/// A visited process that runs stops within this time.
const AT_ONCE: Duration = Duration::from_millis(1);

/// For so long nobody waits for what agents send where it could not be taken: this process has as many files open as it may. Whoever waits at
/// its end waits for 20 ms.
const DEAF: Duration = Duration::from_millis(5);

/// So many mappings of a process are kept until its agent sends word: more than any start is known to make. On a slow disk that takes seconds.
const KEPT_MAX: usize = 1 << 13;

/// A child that has executed nothing for so long will go on with its parent's program. Most execute another within it.
const FORKED_WAIT: Duration = Duration::from_millis(2);

/// For so long a process is tried again that cannot be disturbed. It may wait for input, or have been about to go on.
const BUSY_MAX: Duration = Duration::from_millis(100);

/// A child that has not executed a program yet.
#[derive(Debug)]
struct Forked {
    pid: u32,
    parent: u32,
    time_ns: u64,
    since: Instant,
}

/// Why a process is visited.
#[derive(Debug)]
enum Visited {
    /// It is about to execute a program.
    AtExec,
    /// It was known then to have executed one.
    Executed(Instant),
    Forked(Forked),
}

/// What was armed in a process when its agent sent word.
#[derive(Debug, Default)]
struct Unjudged {
    pid: u32,
    sent_ns: u64,
    /// Whether it is a child that goes on with its parent's program: what it had from there was not armed.
    is_forked: bool,
    mapped: Vec<(Mapped, By)>,
    /// Runs of addresses whose pages were there; `None` where that was not looked at, or the process had ended by then.
    present: Option<Vec<(u64, u64)>>,
    /// Where the kernel has mapped the program and ld.so, which ran before the agent could arm them.
    used_before: Vec<u64>,
}

/// What a process is armed by.
#[derive(Debug, Default)]
struct Space {
    /// Of the start, and of each library that was loaded later.
    touches: Vec<FirstTouches>,
    /// Opened when it is asked for the first time.
    map: Option<PageMap>,
}

/// Arms a process tree.
#[derive(Debug)]
pub struct Armer {
    ranges: SharedRanges,
    receiver: Option<Receiver>,
    /// When something could not be received last.
    refused_at: Option<Instant>,
    /// Why no program is armed, by a visit or an agent; `None` where programs are.
    no_arming: Option<String>,
    visits: Vec<(Visit, Visited)>,
    spaces: HashMap<u32, Space>,
    /// Processes that wait at their end to be looked at.
    endings: Vec<Ending>,
    /// The files that processes mapped which may still get a descriptor, and when. What they mapped after the agent sent its
    /// descriptor is not registered by it, though it is there when that is received.
    mapped_at: HashMap<u32, Vec<(Mapped, u64)>>,
    /// Processes that have ended while word of their agent was waited for. It may have come, and is judged first.
    ended: Vec<u32>,
    /// Whether it is told when something is mapped.
    knows_times: bool,
    /// By process, the mappings that [`Self::go_on`] has read and armed last, and when: whoever wants them right after it need not do either
    /// again.
    read_last: HashMap<u32, (u64, Vec<Mapped>)>,
    unjudged: Vec<Unjudged>,
    /// Programs whose agent has not sent its descriptor yet, and when they were executed; `None` once they were visited all the same.
    expected: HashMap<u32, Option<Instant>>,
    /// Programs whose execution was reported while the kernel still loads them, and since when.
    loading: Vec<(u32, Instant)>,
    /// Whether children are visited that have executed nothing. One that executes a set-user-ID program in the moment of the visit
    /// keeps its rights under a tracer with CAP_SYS_PTRACE only.
    visits_forked: bool,
    /// Children that may come to execute a program.
    forked: Vec<Forked>,
    file_systems: FileSystems,
    /// Mappings of file systems of which that is not known, of processes that were visited: to ask takes as long as there are mounts, and a process
    /// that is visited stands still.
    unknown: Vec<(u32, Vec<Mapped>)>,
    /// Processes visited at their exec of which that, or perf's report of the exec, is still to come: either may be first.
    half_entered: HashSet<u32>,
}

impl Armer {
    /// One that takes what agents send to `receiver`, and visits where no agent goes along, where programs `may_be_armed`
    /// ([`prepage_sys::agent::may_arm`]): where a filter might kill a program for the call, it is not made to call.
    pub fn new(receiver: Option<Receiver>, may_be_armed: Result<(), String>) -> Self {
        let no_arming = may_be_armed.err();
        Self {
            ranges: SharedRanges::default(),
            receiver,
            refused_at: None,
            no_arming,
            visits: Vec::new(),
            spaces: HashMap::new(),
            endings: Vec::new(),
            mapped_at: HashMap::new(),
            ended: Vec::new(),
            knows_times: false,
            read_last: HashMap::new(),
            unjudged: Vec::new(),
            expected: HashMap::new(),
            loading: Vec::new(),
            visits_forked: capabilities(None)
                .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_PTRACE)),
            forked: Vec::new(),
            file_systems: FileSystems::default(),
            unknown: Vec::new(),
            half_entered: HashSet::new(),
        }
    }

    /// From now on [`Self::mapped`] is called for each mapping, with its time.
    pub fn tell_times(&mut self) {
        self.knows_times = true;
    }

    /// What is armed, to be looked at from another thread.
    pub fn ranges(&self) -> SharedRanges {
        self.ranges.clone()
    }

    /// Readable when a process may wait at its end: [`Self::receive`]. `None` for a while after that has failed.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.receiver.as_ref().filter(|_| !self.is_deaf()).map(Receiver::as_fd)
    }

    fn is_deaf(&self) -> bool {
        self.refused_at.is_some_and(|at| at.elapsed() < DEAF)
    }

    /// Whether an agent sent something that was not received yet, and can be.
    pub fn is_sent_something(&self) -> bool {
        !self.is_deaf() && self.receiver.as_ref().is_some_and(Receiver::is_sent_something)
    }

    /// The processes that wait at their end. They go on when these are dropped.
    pub fn take_endings(&mut self) -> Vec<Ending> {
        std::mem::take(&mut self.endings)
    }

    /// Whether what process `pid` maps cannot be judged yet: its agent has armed it, or will, and has not sent word.
    pub fn is_expected(&self, pid: u32) -> bool {
        let is_recent = |since: &Instant| since.elapsed() < AGENT_WAIT;
        self.loading.iter().any(|(loading, since)| *loading == pid && is_recent(since))
            || self.expected.get(&pid).and_then(Option::as_ref).is_some_and(is_recent)
    }

    /// Has agents of which no word came until now judged without.
    pub fn expect_no_more(&mut self) {
        self.expected.clear();
        self.give_up_unarmed();
    }

    /// Whether a program is not loaded yet, or a visited process is about to stop: [`Self::go_on`] soon.
    pub fn is_waiting(&self) -> bool {
        self.is_visiting() || !self.loading.is_empty()
    }

    /// Whether a visited process may stand still: [`Self::end_visits`] soon.
    pub fn is_visiting(&self) -> bool {
        self.visits.iter().any(|(visit, _)| visit.is_soon_over())
    }

    /// Visits process `pid` when it has executed its next program, before that runs. For one without rights of its own, which
    /// no agent enters.
    pub fn visit_at_exec(&mut self, pid: u32) {
        if self.no_arming.is_none() {
            self.file_systems.know_own_mounts();
            // Where it may not be, it is visited afterwards.
            self.visits.extend(Visit::at_exec(pid).map(|visit| (visit, Visited::AtExec)));
        }
    }

    /// Process `pid` executed a program at `time_ns`: whatever was armed in it is gone. What comes of it is for [`Self::go_on`].
    pub fn executed(&mut self, pid: u32, time_ns: u64) {
        let is_visited = self.visits.iter().any(|(visit, _)| visit.pid() == pid);
        // It was entered at this exec, before perf's report was read.
        if !is_visited && self.half_entered.remove(&pid) {
            return;
        }
        // What page tables showed already, perf tells once more.
        if time_ns > 0 && self.ranges.now().last_executed_ns(pid) >= time_ns {
            return;
        }
        self.ranges.now().executed(pid, time_ns);
        self.unknown.retain(|(unknown, _)| *unknown != pid);
        if let Some((visit, why)) = self.visits.iter_mut().find(|(visit, _)| visit.pid() == pid) {
            if visit.is_at_exec() {
                self.half_entered.insert(pid);
            } else {
                // It is this program's now, and so is another where it fails.
                *why = Visited::Executed(Instant::now());
                self.spaces.remove(&pid);
                self.expected.remove(&pid);
            }
            return;
        }
        self.spaces.remove(&pid);
        self.expected.remove(&pid);
        self.mapped_at.remove(&pid);
        self.forked.retain(|forked| forked.pid != pid);
        self.loading.retain(|&(loading, _)| loading != pid);
        self.loading.push((pid, Instant::now()));
    }

    /// Process `parent` forked `pid` at `time_ns`, which has executed nothing yet.
    pub fn forked(&mut self, pid: u32, parent: u32, time_ns: u64) {
        if self.visits_forked && self.no_arming.is_none() {
            self.forked.push(Forked { pid, parent, time_ns, since: Instant::now() });
        }
    }

    /// Visits children that go on with their parent's program, in memory of their own.
    fn look_at_forked(&mut self) {
        let (due, young) = std::mem::take(&mut self.forked)
            .into_iter()
            // Some have an agent that has sent word meanwhile.
            .filter(|child| !self.spaces.contains_key(&child.pid))
            .partition(|child| child.since.elapsed() >= FORKED_WAIT);
        self.forked = young;
        if !due.is_empty() {
            self.file_systems.know_own_mounts();
        }
        for child in due {
            let visit = if shares_memory(child.pid, child.parent) {
                Err(VisitError::Busy)
            } else {
                Visit::begin(child.pid)
            };
            match visit {
                Ok(visit) => self.visits.push((visit, Visited::Forked(child))),
                // Where that is refused, its faults tell windows of pages, as until then.
                Err(error) => drop(self.visit_again(child.pid, error, Visited::Forked(child))),
            }
        }
    }

    /// Has process `pid` visited once more, where it could not be disturbed and may be otherwise soon.
    fn visit_again(&mut self, pid: u32, error: VisitError, why: Visited) -> Result<(), VisitError> {
        if matches!(why, Visited::AtExec) {
            // Perf's report of the exec is not one of an exec that was entered.
            self.half_entered.remove(&pid);
        }
        match (error, why) {
            (VisitError::Busy, Visited::AtExec) => self.loading.push((pid, Instant::now())),
            (VisitError::Busy, Visited::Forked(child)) if child.since.elapsed() < FORKED_WAIT + BUSY_MAX => {
                self.forked.push(child);
            }
            (VisitError::Busy, Visited::Executed(since)) if since.elapsed() < BUSY_MAX => {
                self.loading.push((pid, since));
            }
            (error, _) => return Err(error),
        }
        Ok(())
    }

    /// Waits for the agent of each program that is loaded by now, or visits it.
    fn look_at_loading(&mut self) {
        for (pid, since) in std::mem::take(&mut self.loading) {
            // Its agent has sent word already.
            if self.spaces.contains_key(&pid) {
                continue;
            }
            let loading = Loading::of(pid, since.elapsed());
            match &self.no_arming {
                _ if loading == Loading::UnderWay => self.loading.push((pid, since)),
                // Nor would an agent arm anything, or send word.
                Some(why) => self.ranges.now().refused(why.clone()),
                // One that is late is not waited for again where the visit in its place has to be.
                None if self.receiver.is_some()
                    && loading == Loading::WithAgent
                    && !self.expected.contains_key(&pid) =>
                {
                    self.expected.insert(pid, Some(since));
                }
                None => self.visit(pid, since),
            }
        }
        let is_late = |since: &mut Instant| since.elapsed() >= AGENT_WAIT;
        let late = self.expected.iter_mut().filter_map(|(&pid, since)| since.take_if(is_late).map(|_| pid));
        for pid in late.collect::<Vec<u32>>() {
            if !self.spaces.contains_key(&pid) {
                self.visit(pid, Instant::now());
            }
        }
    }

    /// Process `pid` mapped something at `time_ns`; 0 where that is not known. Returns whether it was still to be armed.
    pub fn mapped(&mut self, pid: u32, mapped: &Mapped, time_ns: u64) -> bool {
        // Memory of no file is not armed.
        if time_ns > 0 && self.no_arming.is_none() && mapped.inode.is_some() {
            let is_to_be_kept = self.may_come_to_be_judged(pid);
            let kept = is_to_be_kept.then(|| self.mapped_at.entry(pid).or_default());
            if let Some(kept) = kept.filter(|kept| kept.len() < KEPT_MAX) {
                kept.push((mapped.clone(), time_ns));
            } else if !self.spaces.contains_key(&pid) {
                self.unarmed(pid, &[(mapped.clone(), time_ns)], 0);
            }
        }
        let by = self.arm(pid, mapped, time_ns);
        if let Some(by) = by.filter(|_| time_ns > 0) {
            let present = self.present_in(pid, mapped);
            let mut ranges = self.ranges.now();
            match present {
                Ok(present) => ranges.mapped_before(mapped, &present, by == By::Agent),
                Err(_) if by == By::Agent => {}
                Err(_) => ranges.forget(pid, mapped),
            }
        }
        by == Some(By::Observer)
    }

    /// The kernel has dropped reports: looks for mappings of known processes that are not armed, and arms them.
    pub fn arm_untold(&mut self) {
        for pid in self.spaces.keys().copied().collect::<Vec<u32>>() {
            let Ok(map) = PageMap::of(pid) else { continue };
            let mut untold = mappings(pid).unwrap_or_default();
            // It runs another program.
            if self.is_replaced(pid) && !untold.is_empty() {
                self.executed(pid, now_ns());
                continue;
            }
            untold.retain(|mapped| {
                self.is_of_a_file(pid, mapped) && !map.is_armed(mapped.start..mapped.end).unwrap_or(true)
            });
            for mapped in &untold {
                // What is known of these addresses is of what lay there before.
                self.ranges.now().forget(pid, mapped);
                self.mapped(pid, mapped, now_ns());
            }
        }
    }

    /// Whether process `pid` has another address space than the one that was armed: it has ended, or its next exec was not reported.
    fn is_replaced(&self, pid: u32) -> bool {
        self.spaces.get(&pid).and_then(|space| space.touches.first()).is_some_and(FirstTouches::is_gone)
    }

    /// The runs of addresses in `mapped`, which process `pid` has mapped, whose pages are there.
    fn present_in(&mut self, pid: u32, mapped: &Mapped) -> io::Result<Vec<(u64, u64)>> {
        let Some(space) = self.spaces.get_mut(&pid) else { return Err(Errno::SRCH.into()) };
        let map = match space.map.take() {
            Some(map) => map,
            None => PageMap::of(pid)?,
        };
        space.map.insert(map).present_in(mapped.start..mapped.end)
    }

    /// Whether it is to be known when process `pid` mapped what: word of its agent was not judged yet or may still come, or a visit is under way.
    fn may_come_to_be_judged(&self, pid: u32) -> bool {
        let is_to_be_armed = || {
            self.loading.iter().any(|(loading, _)| *loading == pid)
                || self.visits.iter().any(|(visit, _)| visit.pid() == pid)
                || self.forked.iter().any(|forked| forked.pid == pid)
        };
        self.unjudged.iter().any(|one| one.pid == pid)
            // However late its word comes, it tells what was armed from the beginning.
            || self.expected.contains_key(&pid)
            || self.ended.contains(&pid)
            || !self.spaces.contains_key(&pid) && is_to_be_armed()
    }

    /// Tells what processes have mapped of which it has turned out since that nobody arms them.
    fn give_up_unarmed(&mut self) {
        let over = |pid: &u32| !self.may_come_to_be_judged(*pid);
        for pid in self.mapped_at.keys().copied().filter(over).collect::<Vec<u32>>() {
            let mapped_at = self.mapped_at.remove(&pid).unwrap_or_default();
            if !self.spaces.contains_key(&pid) {
                self.unarmed(pid, &mapped_at, 0);
            }
        }
    }

    /// Process `pid` has ended.
    pub fn ended(&mut self, pid: u32) {
        let is_loading = self.loading.iter().any(|(loading, _)| *loading == pid);
        self.forked.retain(|forked| forked.pid != pid);
        match self.expected.remove(&pid).is_some() || is_loading {
            true => self.ended.push(pid),
            false => self.let_go(pid),
        }
    }

    /// Forgets process `pid`, which has ended, but for what could not be armed in it.
    fn let_go(&mut self, pid: u32) {
        let mapped_at = self.mapped_at.remove(&pid).unwrap_or_default();
        self.ranges.now().ended(pid);
        if self.spaces.remove(&pid).is_none() && self.no_arming.is_none() {
            self.unarmed(pid, &mapped_at, 0);
        }
    }

    /// Tells what of files process `pid` has mapped after `since_ns`, which nobody could arm.
    fn unarmed(&mut self, pid: u32, mapped_at: &[(Mapped, u64)], since_ns: u64) {
        for (mapped, _) in mapped_at.iter().filter(|(_, time_ns)| *time_ns > since_ns) {
            if self.is_of_a_file(pid, mapped) {
                self.ranges.now().unarmed(mapped);
            }
        }
    }

    /// What agents sent. An agent sends after its program's exec: whoever learns of execs after this call, and tells them
    /// ([`Self::executed`]) before [`Self::go_on`] gets the result, takes no program for the one before it.
    pub fn receive(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        loop {
            match self.receiver.as_mut().map(Receiver::receive) {
                Some(Ok(Some(one))) => sent.push(one),
                Some(Err(_)) => {
                    self.refused_at = Some(Instant::now());
                    return sent;
                }
                Some(Ok(None)) | None => return sent,
            }
        }
    }

    /// Takes in what agents `sent`, and ends visits. Returns whether there is something to [`Self::judge`].
    pub fn go_on(&mut self, sent: Vec<Sent>) -> bool {
        self.read_last.clear();
        for sent in sent {
            let touches = match sent {
                Sent::FirstTouches(touches) => touches,
                Sent::Ending(ending) => {
                    self.expected.remove(&ending.pid());
                    self.endings.push(ending);
                    continue;
                }
            };
            let (pid, sent_ns) = (touches.pid(), touches.sent_ns());
            // Of the program before, which was over before this was read: the one that the process runs by now sends word of its own. What a
            // process has mapped that has ended is judged all the same.
            let is_gone = touches.is_gone();
            if is_gone && mappings(pid).is_ok_and(|mapped| !mapped.is_empty()) {
                continue;
            }
            let is_late = self.expected.remove(&pid).is_some_and(|since| since.is_none());
            let mut unjudged = Unjudged { pid, sent_ns, ..Unjudged::default() };
            if is_gone {
                // Nobody may ever tell of its end: the descriptor, which keeps what is left of its memory, is not kept.
                self.unjudged.push(unjudged);
                continue;
            }
            let is_first = !self.spaces.contains_key(&pid);
            unjudged.is_forked = is_first && !self.ranges.now().knows(pid);
            // The kernel had no room to tell of its exec.
            let is_replaced = self.is_replaced(pid);
            if is_replaced || unjudged.is_forked {
                self.ranges.now().executed(pid, sent_ns);
                self.spaces.remove(&pid);
            }
            self.spaces.entry(pid).or_default().touches.push(touches);
            // A later one is for a library loaded by dlopen(3), which is found armed where it is seen to be mapped.
            if is_first || is_replaced || is_late {
                unjudged.mapped = self.arm_all(pid);
                // Whoever looks at page tables does so right after this.
                if self.knows_times {
                    unjudged.present = PageMap::of(pid).and_then(|map| map.present()).ok();
                    unjudged.used_before = used_before(pid);
                }
                self.unjudged.push(unjudged);
            }
        }
        self.look_at_loading();
        self.look_at_forked();
        self.end_visits();
        self.give_up_unarmed();
        !self.unjudged.is_empty()
    }

    /// Tells which of the mappings armed by [`Self::go_on`] the agent had armed from their beginning: those made before it sent
    /// word. To be called when all that was mapped by then was reported, where that is reported at all.
    pub fn judge(&mut self) {
        // A mapping that was not reported came after all that the agent registers.
        let known_ns = if self.knows_times { 1 } else { 0 };
        for Unjudged { pid, sent_ns, is_forked, mapped, present, used_before } in
            std::mem::take(&mut self.unjudged)
        {
            let is_used_before = |inode| {
                let lies_there = |at: &u64| {
                    mapped.iter().any(|(one, _)| one.inode == inode && (one.start..one.end).contains(at))
                };
                used_before.iter().any(lies_there)
            };
            let mapped_at = self.mapped_at.remove(&pid).unwrap_or_default();
            if mapped.is_empty() {
                // It had ended: the agent has armed what was mapped before it sent word, and nobody the rest.
                self.unarmed(pid, &mapped_at, sent_ns);
            }
            for (mapped, by) in &mapped {
                // What lay there before may have been reported, too.
                let times = mapped_at
                    .iter()
                    .filter(|(before, _)| before.start < mapped.end && mapped.start < before.end);
                let mapped_ns = times.map(|(_, time_ns)| *time_ns).max().unwrap_or(0);
                let is_of_agent = if !is_forked && (known_ns..=sent_ns).contains(&mapped_ns) {
                    self.ranges.now().armed(pid, mapped, Since::Exec);
                    !is_used_before(mapped.inode)
                } else if *by == By::Agent && mapped_ns > 0 {
                    self.ranges.now().armed(pid, mapped, Since::Mapped(mapped_ns));
                    true
                } else {
                    if self.knows_times && present.is_none() {
                        self.ranges.now().forget(pid, mapped);
                    }
                    false
                };
                // What a fault mapped along before the agent came has been used since without another.
                if let Some(present) = &present {
                    self.ranges.now().mapped_before(mapped, present, is_of_agent);
                }
            }
        }
        for pid in std::mem::take(&mut self.ended) {
            self.let_go(pid);
        }
    }

    /// Visits process `pid`, which is known `since` then to have executed its program.
    fn visit(&mut self, pid: u32, since: Instant) {
        let why = Visited::Executed(since);
        self.file_systems.know_own_mounts();
        let begun = match Visit::begin(pid) {
            Ok(visit) => {
                self.visits.push((visit, why));
                Ok(())
            }
            Err(error) => self.visit_again(pid, error, why),
        };
        begun.unwrap_or_else(|error| self.refused(&error));
    }

    /// Ends the visits to processes that have stopped by now.
    pub fn end_visits(&mut self) {
        for (mut visit, why) in std::mem::take(&mut self.visits) {
            let pid = visit.pid();
            let mut unknown = Vec::new();
            let ended = visit.end(|touches| {
                match &why {
                    Visited::AtExec => {
                        if !self.half_entered.remove(&pid) {
                            self.half_entered.insert(pid);
                        }
                        self.ranges.now().executed(pid, now_ns());
                    }
                    Visited::Forked(child) => self.ranges.now().executed(pid, child.time_ns),
                    Visited::Executed(_) => {}
                }
                self.spaces.entry(pid).or_default().touches.push(touches);
                let (read_ns, all) = (now_ns(), mappings(pid).unwrap_or_default());
                let is_known = |mapped: &&Mapped| self.file_systems.knows(&mapped.path, mapped.inode);
                let (known, others): (Vec<&Mapped>, _) = all.iter().partition(is_known);
                unknown = others.into_iter().cloned().collect();
                self.arm_visited(pid, known);
                self.read_last.insert(pid, (read_ns, all));
            });
            if !unknown.is_empty() {
                self.unknown.push((pid, unknown));
            }
            match ended {
                None => self.visits.push((visit, why)),
                Some(Ok(())) => {}
                Some(Err(error)) => {
                    self.visit_again(pid, error, why).unwrap_or_else(|error| self.refused(&error));
                }
            }
        }
        if !self.is_visiting() {
            for (pid, mapped) in std::mem::take(&mut self.unknown) {
                self.arm_visited(pid, mapped.iter().collect());
            }
        }
    }

    /// Arms those `mapped` by process `pid`, which is visited or was, that are of files.
    fn arm_visited(&mut self, pid: u32, mut mapped: Vec<&Mapped>) {
        mapped.retain(|mapped| self.is_of_a_file(pid, mapped));
        let armed = self.arm_each(pid, &mapped);
        // Page tables are looked at before.
        if !self.knows_times || armed.is_empty() {
            return;
        }
        let present = PageMap::of(pid).and_then(|map| map.present());
        let mut ranges = self.ranges.now();
        for (mapped, _) in &armed {
            match &present {
                Ok(present) => ranges.mapped_before(mapped, present, false),
                Err(_) => ranges.forget(pid, mapped),
            }
        }
    }

    /// Ends the visits to processes that stop within [`AT_ONCE`]. Returns whether none is left of a process that may stop at any moment, but at an
    /// exec that is still to come.
    pub fn end_visits_at_once(&mut self) -> bool {
        let until = Instant::now() + AT_ONCE;
        let is_left = |(visit, _): &(Visit, Visited)| !visit.is_at_exec() && visit.is_soon_over();
        self.end_visits();
        while self.visits.iter().any(is_left) {
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(PAUSE);
            self.end_visits();
        }
        true
    }

    /// Waits for the visits that have begun, for as long as programs are given to load, and gives up the others: no process
    /// stays stopped.
    pub fn end_all_visits(&mut self) {
        let until = Instant::now() + LOADING_MAX;
        while !self.visits.is_empty() && Instant::now() < until {
            std::thread::sleep(PAUSE);
            self.end_visits();
        }
        self.visits.clear();
    }

    fn refused(&self, error: &VisitError) {
        if !matches!(error, VisitError::Gone) {
            let mut ranges = self.ranges.now();
            // Of a program with rights of its own perf tells nothing either.
            ranges.is_blind |= matches!(error, VisitError::Refused(_));
            ranges.refused(error.to_string());
        }
    }

    /// Arms what a process has mapped by now. Returns what is armed, and by whom.
    fn arm_all(&mut self, pid: u32) -> Vec<(Mapped, By)> {
        let (read_ns, mapped) = (now_ns(), mappings(pid).unwrap_or_default());
        let of_files: Vec<&Mapped> = mapped.iter().filter(|mapped| self.is_of_a_file(pid, mapped)).collect();
        let armed = self.arm_each(pid, &of_files);
        self.read_last.insert(pid, (read_ns, mapped));
        armed
    }

    /// Arms these mappings of files, in the order of their addresses. Returns what is armed, and by whom.
    pub(crate) fn arm_each(&mut self, pid: u32, of_files: &[&Mapped]) -> Vec<(Mapped, By)> {
        let mut armed = Vec::with_capacity(of_files.len());
        // The parts of a library lie side by side: one call arms them all, but where one of them is another's.
        let is_next = |one: &&Mapped, next: &&Mapped| one.end == next.start && one.inode == next.inode;
        for parts in of_files.chunk_by(is_next) {
            let (start, end) = (parts[0].start, parts[parts.len() - 1].end);
            let touches = self.spaces.get(&pid).and_then(|space| space.touches.first());
            let together =
                parts.len() > 1 && touches.is_some_and(|one| one.register(start, end - start).is_ok());
            for &part in parts {
                let by = if together {
                    self.note_armed(pid, part, By::Observer, 0);
                    Some(By::Observer)
                } else {
                    self.arm(pid, part, 0)
                };
                armed.extend(by.map(|by| (part.clone(), by)));
            }
        }
        armed
    }

    /// Whether mappings of process `pid` can be armed.
    pub(crate) fn arms(&self, pid: u32) -> bool {
        self.spaces.contains_key(&pid)
    }

    /// The mappings of process `pid`, where [`Self::go_on`] has read and armed them last, and when.
    pub(crate) fn take_read_last(&mut self, pid: u32) -> Option<(u64, Vec<Mapped>)> {
        self.read_last.remove(&pid)
    }

    /// Whether process `pid` has mapped a file there that may lie on a device. Of memory it may register mappings itself.
    pub(crate) fn is_of_a_file(&mut self, pid: u32, mapped: &Mapped) -> bool {
        self.file_systems.may_hold(pid, &mapped.path, mapped.inode)
    }

    /// Arms a mapping made at `time_ns`, or at an unknown time (0). Returns who armed it; `None` where nobody did.
    fn arm(&mut self, pid: u32, mapped: &Mapped, time_ns: u64) -> Option<By> {
        if !self.spaces.contains_key(&pid) || !self.is_of_a_file(pid, mapped) {
            return None;
        }
        let touches = self.spaces.get(&pid)?.touches.first()?;
        let by = match touches.register(mapped.start, mapped.end - mapped.start) {
            Ok(()) => By::Observer,
            // By another userfaultfd.
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => By::Agent,
            // The process has ended, and what is known of its mappings is yet to be judged ([`Self::judge`]).
            Err(error)
                if Errno::from_io_error(&error) == Some(Errno::NOMEM)
                    && (time_ns == 0 || self.unjudged.iter().any(|one| one.pid == pid)) =>
            {
                return None;
            }
            // A shared mapping of a file that is not open for writing, seen by windows, or one that is gone already.
            Err(_) => {
                let mut ranges = self.ranges.now();
                ranges.unarmed(mapped);
                // What is known of these addresses is of what lay there before.
                ranges.forget(pid, mapped);
                return None;
            }
        };
        self.note_armed(pid, mapped, by, time_ns);
        Some(by)
    }

    fn note_armed(&self, pid: u32, mapped: &Mapped, by: By, time_ns: u64) {
        // The agent arms what ld.so maps before it is used.
        let since = match by {
            By::Agent if time_ns > 0 => Since::Mapped(time_ns),
            By::Agent if !self.knows_times => Since::Exec,
            By::Agent | By::Observer => Since::Now,
        };
        self.ranges.now().armed(pid, mapped, since);
    }
}

/// Who registered a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The agent, with another userfaultfd than the one for the start.
    Agent,
    /// This process, or the agent with the one for the start.
    Observer,
}

/// Addresses in the program and in the ld.so of process `pid`.
fn used_before(pid: u32) -> Vec<u64> {
    const AT_PHDR: u64 = 3;
    const AT_BASE: u64 = 7;
    let entries = auxv::entries(pid).into_iter().filter(|(kind, _)| matches!(*kind, AT_PHDR | AT_BASE));
    entries.map(|(_, address)| address).collect()
}

#[cfg(test)]
mod tests;
