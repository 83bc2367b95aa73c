//! The page tables of a process tree: which pages are there, looked at in growing intervals.
//!
//! In an armed mapping only pages that were touched are there. Order is known as far as the intervals tell. A process with an agent
//! tells what it has touched between the last look and its end (`endings`).

mod pace;
mod process;
pub(crate) mod tree;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use prepage_core::profile::observation::Coverage;
use prepage_sys::agent::{Ending, Record, Sent};
use prepage_sys::clock::now_ns;
use prepage_sys::maps::Mapped;
use prepage_sys::pagemap::PageMap;
use prepage_sys::{proc_file, processor_time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::armed::SharedRanges;
use crate::armer::{Armer, By, PAUSE};
use crate::arming::Entry;
use crate::disk_faults::{Changes, MappedAt};
use crate::endings::Endings;
use crate::faults::as_stat_shows;
use crate::loading::has_vector;
use crate::runs::{Run, joined, within, without};
use crate::sightings::Sightings;
use crate::until::Until;
use process::{Mapping, Process};
use tree::Tree;

/// Shortest and longest interval between rounds; between these, a tenth of the time since the beginning. In a round it is asked what agents
/// and perf tell, and page tables are looked at if it is time for that.
const INTERVAL_MIN: Duration = Duration::from_micros(500);
const INTERVAL_MAX: Duration = Duration::from_millis(50);

/// As many times as long as a look at page tables keeps a processor, none is looked at: the program wants the processor, and does not get to
/// map anything while its page table is walked. Where perf tells what is mapped, and what waited for the device, the looks only date the rest. They
/// do so too until an agent has sent word, but then nothing else tells the order.
const REST_A_LOOK: u32 = 10;
const REST_A_LOOK_TOLD: u32 = 25;
/// No longer than this all the same: nobody else tells what is mapped ...
const REST_MAX: Duration = Duration::from_millis(50);
/// ... or perf does, but a start ends with a second in which nothing is touched.
const REST_MAX_TOLD: Duration = Duration::from_millis(250);

/// Page tables, and what was seen in them.
#[derive(Debug)]
pub struct PageTables {
    root: u32,
    tree: Tree,
    armer: Armer,
    /// What agents have sent since the last look.
    sent: Vec<Sent>,
    /// When the next round is.
    next: Instant,
    /// When page tables are looked at again.
    rests_until: Instant,
    /// Whether perf tells what processes map.
    tells_mapped: bool,
    executed: bool,
    began_ns: u64,
    processes: HashMap<u32, Process>,
    has_windows: bool,
    endings: Endings,
    /// Whether a process has waited at its end because it could not tell what it has touched: others will. Of process 1 that does not show, which
    /// waits in any case.
    are_waiting: bool,
    /// The end of the first process of all, which waits until this is dropped.
    end_of_root: Option<Ending>,
    unreadable: u32,
    /// Whether some mapping was too large to be looked at.
    is_cut: bool,
}

impl PageTables {
    /// Looks at process `pid`, which is entered as `entry` says, and all that it starts. To be used by this thread alone.
    pub fn attach(pid: u32, entry: Entry, mut armer: Armer) -> Self {
        if entry == Entry::AtExec {
            armer.visit_at_exec(pid);
        }
        Self {
            root: pid,
            tree: Tree::of(pid),
            armer,
            sent: Vec::new(),
            next: Instant::now(),
            rests_until: Instant::now(),
            tells_mapped: false,
            executed: entry == Entry::Executed,
            began_ns: now_ns(),
            processes: HashMap::new(),
            has_windows: false,
            endings: Endings::default(),
            are_waiting: false,
            end_of_root: None,
            unreadable: 0,
            is_cut: false,
        }
    }

    /// Waits for the next look, or for a process that waits at its end, `most` at most, and ends visits meanwhile. Returns whether `until` is
    /// over.
    pub fn wait(&mut self, until: &Until, most: Duration) -> bool {
        let most = Instant::now() + most;
        if self.next <= Instant::now() {
            let since = Duration::from_nanos(now_ns().saturating_sub(self.began_ns));
            // What is being loaded was not looked at, and runs on.
            let interval = match self.armer.is_waiting() {
                true => INTERVAL_MIN,
                false => (since / 10).clamp(INTERVAL_MIN, INTERVAL_MAX),
            };
            self.next = Instant::now() + interval;
        }
        // A program that stands at its exec has done so for a while.
        self.armer.end_visits();
        loop {
            let ends = until.descriptors();
            let all = ends.iter().copied().chain(self.armer.descriptor());
            let mut fds: Vec<PollFd<'_>> =
                all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
            let pause = if self.armer.is_visiting() { PAUSE } else { INTERVAL_MAX };
            let next = self.next.min(most);
            let left = next.saturating_duration_since(Instant::now()).min(until.remaining()).min(pause);
            let _ = poll(&mut fds, Timespec::try_from(left).ok().as_ref());
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            if ready.get(ends.len()) == Some(&true) {
                self.sent.extend(self.armer.receive());
            }
            // Their pages were looked at when they were begun.
            self.armer.end_visits();
            if until.note(&ready[..ends.len()]) {
                self.next = Instant::now();
                return true;
            }
            // What agents have armed can wait: word of it comes with each library that is loaded.
            let is_waited_for = self.sent.iter().any(|sent| matches!(sent, Sent::Ending(_)));
            if is_waited_for || next <= Instant::now() {
                return false;
            }
        }
    }

    /// Looks at every process there is, if it is time for that, or for the `last` time; else at those that wait at their end.
    pub fn look(&mut self, last: bool, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        let mut is_due = last || self.next <= Instant::now();
        let looks = is_due && (last || self.rests_until <= Instant::now());
        let began = looks.then(processor_time::of_this_thread);
        loop {
            self.sent.extend(self.armer.receive());
            let sent = std::mem::take(&mut self.sent);
            // Whoever sends has executed a program, and has to be known for that before it is armed.
            sent.iter().for_each(|sent| self.tree.belongs(sent.pid()));
            let tree = self.tree.look().to_vec();
            let tree: Vec<u32> = tree
                .into_iter()
                .filter(|&(pid, parent)| self.notice(pid, parent, last_touch_ns))
                .map(|(pid, _)| pid)
                .collect();
            // Children that go on with their parent's program, and are armed from now on.
            let is_new =
                |pid: &u32| self.processes.get(pid).is_some_and(|one| one.is_fork) && !self.armer.arms(*pid);
            let touches = sent.iter().filter(|one| matches!(one, Sent::FirstTouches(_)));
            let new: Vec<u32> = touches.map(Sent::pid).filter(is_new).collect();
            self.armer.go_on(sent);
            self.armer.judge();
            for pid in new {
                if let Some(process) = self.processes.get_mut(&pid) {
                    process.read_mappings(pid, now_ns(), &mut self.armer, sightings);
                }
                self.arm(pid, &[(0, u64::MAX)], sightings, last_touch_ns);
            }
            let endings = self.armer.take_endings();
            let (ending, others): (Vec<u32>, Vec<u32>) =
                tree.into_iter().partition(|&pid| endings.iter().any(|ending| ending.pid() == pid));
            // These wait for it.
            for pid in ending {
                self.look_at(pid, true, sightings, last_touch_ns);
            }
            let has_waited = !endings.is_empty();
            self.are_waiting |= endings.iter().any(|ending| ending.pid() != 1);
            for ending in endings {
                // One that lives still was looked at while it waited.
                match self.processes.get_mut(&ending.pid()).filter(|process| process.map.is_alive()) {
                    Some(process) => process.was_seen_last = true,
                    None => self.endings.missed(),
                }
                if ending.pid() == self.root {
                    self.end_of_root = Some(ending);
                }
            }
            let is_unread = |pid: &u32| self.processes.get(pid).is_some_and(Process::is_unread);
            let due: Vec<u32> =
                others.into_iter().filter(|pid| is_due && (looks || is_unread(pid))).collect();
            for pid in due {
                self.look_at(pid, last, sightings, last_touch_ns);
            }
            self.processes.retain(|&pid, process| {
                let lives = process.map.is_alive();
                if !lives {
                    if !process.was_seen_last {
                        self.endings.unseen(pid);
                    }
                    self.armer.ended(pid);
                }
                lives
            });
            // Others may have waited meanwhile.
            if !has_waited {
                break;
            }
            is_due = false;
        }
        if let Some(began) = began {
            let (rest, most) = match self.tells_mapped {
                true => (REST_A_LOOK_TOLD, REST_MAX_TOLD),
                false => (REST_A_LOOK, REST_MAX),
            };
            let took = processor_time::of_this_thread().saturating_sub(began);
            self.rests_until = Instant::now() + (rest * took).min(most);
        }
    }

    /// Perf tells from now on what changes: up to now, this. Has what was mapped armed.
    pub fn tell(&mut self, changes: Changes, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        self.tells_mapped = true;
        self.tree.tell_changed(changes.of_processes);
        let Some(mapped) = changes.mapped else {
            return self.processes.values_mut().for_each(Process::may_have_mapped);
        };
        let mut new: HashMap<u32, Vec<Run>> = HashMap::new();
        for MappedAt { time_ns, pid, mapped } in mapped {
            // Its mappings are still to be read, were read since, or it has executed another program since. The kernel tells of a mapping once it
            // is in place: over one that was read, older news would lay what is gone by now.
            let is_news = |process: &&mut Process| {
                !process.is_unread() && !process.knows(time_ns) && process.map.is_alive()
            };
            let Some(process) = self.processes.get_mut(&pid).filter(is_news) else { continue };
            let run = (mapped.start, mapped.end);
            let file = self.armer.is_of_a_file(pid, &mapped).then(|| {
                let place = sightings.place(Path::new(&*mapped.path), mapped.inode.map(as_stat_shows));
                Mapping { mapped, place }
            });
            let is_armed = file.is_some() && process.map.is_armed(run.0..run.1).unwrap_or(false);
            if let Some(file) = file.as_ref().filter(|_| !is_armed) {
                // What was armed there is gone.
                self.armer.ranges().now().forget(pid, &file.mapped);
            }
            if process.has_mapped(run, file, is_armed) {
                let new = new.entry(pid).or_default();
                *new = joined(new, &[run]);
            }
        }
        for (pid, new) in new {
            self.arm(pid, &new, sightings, last_touch_ns);
        }
    }

    /// Arms what process `pid` has mapped at `new`, and notes what may have been touched there before.
    fn arm(&mut self, pid: u32, new: &[Run], sightings: &mut Sightings, last_touch_ns: &mut u64) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let is_new = |one: &&Mapping| within(new, (one.mapped.start, one.mapped.end)).next().is_some();
        let mappings: Vec<&Mapping> = process.mappings.iter().filter(is_new).collect();
        let of_files: Vec<&Mapped> = mappings.iter().map(|one| &one.mapped).collect();
        let now = now_ns();
        let mut noted = Vec::new();
        // An agent arms what it does before it is used.
        let armed = self.armer.arm_each(pid, &of_files).into_iter().filter(|(_, by)| *by == By::Observer);
        for (mapped, _) in armed {
            match process.map.present_in(mapped.start..mapped.end) {
                Ok(present) => noted.extend(present),
                Err(_) => self.armer.ranges().now().forget(pid, &mapped),
            }
        }
        for (mapping, place) in mappings.iter().filter_map(|one| Some((one, one.place?))) {
            for run in within(&noted, (mapping.mapped.start, mapping.mapped.end)) {
                self.has_windows = true;
                if sightings.window(now, place, mapping.pages(run)) {
                    *last_touch_ns = now.max(*last_touch_ns);
                }
            }
        }
        process.noted = joined(&process.noted, &noted);
    }

    /// Whether `pid` is a process to look at; one that executes another program than before is known by it afterwards.
    fn notice(&mut self, pid: u32, parent: u32, last_touch_ns: &mut u64) -> bool {
        // A child of vfork(2) has its parent's address space, which lives on when it executes another program.
        let known = self.processes.get_mut(&pid).filter(|known| !known.is_fork && known.map.is_alive());
        if let Some(known) = known {
            if !has_vector(&known.program) {
                // The kernel was still setting it up. Forks of it are known by having the same vector.
                known.program = proc_file::read(format!("/proc/{pid}/auxv")).unwrap_or_default();
            }
            return true;
        }
        let known = self.processes.get(&pid);
        let Ok(program) = proc_file::read(format!("/proc/{pid}/auxv")) else { return false };
        if program.is_empty() {
            return false;
        }
        if known.is_some_and(|known| known.program == program) {
            return true;
        }
        if !self.executed {
            // The starter, as long as it is what this process is.
            self.executed = proc_file::read("/proc/self/auxv").is_ok_and(|own| own != program);
            if !self.executed {
                return false;
            }
            *last_touch_ns = now_ns();
        }
        // A child that has not executed anything uses what its parent uses, but is not armed with it.
        let is_fork =
            pid != self.root && self.processes.get(&parent).is_some_and(|known| known.program == program);
        let Ok(map) = PageMap::of(pid) else {
            self.unreadable += 1;
            return false;
        };
        let before = self.processes.insert(pid, Process::new(program, is_fork, map));
        self.endings.begun(pid);
        // What a fork had was its parent's, mostly.
        if before.is_some_and(|before| !before.is_fork && !before.was_seen_last) {
            self.endings.unseen(pid);
        }
        match is_fork {
            true => self.armer.forked(pid, parent, now_ns()),
            false => self.armer.executed(pid, now_ns()),
        }
        true
    }

    /// Looks at the page table of process `pid`: as a whole, or at armed mappings alone where that shows all that matters until the process tells
    /// the rest at its end.
    fn look_at(&mut self, pid: u32, last: bool, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        // Its pages stay where they are until it is known since when they are armed. For their order it matters when they came.
        if self.armer.is_expected(pid) {
            if self.rests_until <= Instant::now()
                && let Some(process) = self.processes.get_mut(&pid)
            {
                process.see_early(now_ns());
            }
            return;
        }
        // What is armed from now on may have been touched before.
        let now = now_ns();
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let is_whole = last || !self.tells_mapped || !self.armer.arms(pid) || process.is_whole_due(now);
        let found = match is_whole {
            true => process.map.present_and_of_files(),
            false => process.map.present_and_armed().map(|present| (present, Vec::new())),
        };
        let found = match found {
            // Linux before 6.7 does not walk page tables for others: they are read where files are mapped.
            Err(error) if error.raw_os_error() == Some(Errno::NOTTY.raw_os_error()) => {
                if last || process.has_other_mappings(now, self.tells_mapped, &[]) {
                    process.read_mappings(pid, now, &mut self.armer, sightings);
                }
                process.present_in_known().map(|(present, is_cut)| {
                    self.is_cut |= is_cut;
                    (present, Vec::new())
                })
            }
            found => found,
        };
        let Ok((present, of_files)) = found else { return };
        if is_whole {
            process.whole_ns = now;
        }
        if process.has_other_mappings(now, self.tells_mapped, &of_files) {
            process.read_mappings(pid, now, &mut self.armer, sightings);
        }
        let new = without(&present, &process.noted);
        if new.is_empty() {
            process.has_looked(now);
            return;
        }
        // An agent sends word of a mapping before the program touches it: what is not armed may have been by now.
        let may_be_armed = self.armer.is_sent_something();
        let ranges = self.armer.ranges();
        let ranges = ranges.now();
        let mut later = Vec::new();
        let by_time = process.by_time(&new, now);
        let paces = process.paces(&by_time);
        let places = process.mappings.iter().enumerate().filter_map(|(at, one)| Some((at, one, one.place?)));
        for ((at, mapping, place), ((time_ns, runs), paces)) in
            places.flat_map(|place| by_time.iter().zip(&paces).map(move |runs| (place, runs)))
        {
            let pace = paces.get(at).copied().flatten();
            let mut before = 0;
            for run in within(runs, (mapping.mapped.start, mapping.mapped.end)) {
                let is_armed = ranges.contains(pid, run.0, now);
                let pages = mapping.pages(run);
                before += pages.len();
                if !is_armed && may_be_armed {
                    later.push(run);
                    continue;
                }
                let is_new = if is_armed {
                    let first = before - pages.len();
                    let about = |at: u64| pace.map_or(*time_ns, |pace| pace.time_ns(first + at))..=*time_ns;
                    (0..).zip(pages.iter()).fold(false, |is_new, (at, page)| {
                        sightings.touch_about(about(at), place, page) | is_new
                    })
                } else {
                    self.has_windows = true;
                    sightings.window(*time_ns, place, pages)
                };
                if is_new {
                    *last_touch_ns = now;
                }
            }
        }
        later.sort_unstable();
        process.keep_early(by_time, &later);
        process.noted = joined(&process.noted, &without(&new, &later));
    }

    /// Notes what processes told of the pages that they have touched.
    pub fn take_in(&mut self, told: &[Record], sightings: &mut Sightings, last_touch_ns: &mut u64) {
        let touched_ns = self.endings.take_in(told, sightings);
        *last_touch_ns = touched_ns.unwrap_or(0).max(*last_touch_ns);
    }

    /// The process and its descendants, itself first.
    pub fn pids(&mut self) -> Vec<u32> {
        self.tree.look_anew().iter().map(|(pid, _)| *pid).collect()
    }

    /// Whether some program is not armed yet that will be.
    pub fn is_arming(&self) -> bool {
        self.armer.is_waiting() || self.armer.is_expected(self.root)
    }

    /// Whether processes wait at their end until they were looked at, as far as is known.
    pub fn are_waiting(&self) -> bool {
        self.are_waiting || self.end_of_root.is_some()
    }

    /// What lets the first process of all end, where that waits and all of it was looked at.
    pub fn take_end_of_root(&mut self) -> Option<Ending> {
        self.end_of_root.take()
    }

    /// Whether a process may stand still until [`Self::wait`] lets it go.
    pub fn is_visiting(&self) -> bool {
        self.armer.is_visiting()
    }

    /// Ends visits to processes that have stopped, or do so at once; after the `last` look all, however they end. Returns whether no process that
    /// runs is visited any more.
    pub fn let_visited_go(&mut self, last: bool) -> bool {
        if last {
            self.armer.end_all_visits();
        }
        self.armer.end_visits_at_once()
    }

    /// Looks at every process there is, as far as it is armed by now.
    pub fn look_at_all(&mut self, sightings: &mut Sightings, last_touch_ns: &mut u64) {
        self.armer.expect_no_more();
        self.look(true, sightings, last_touch_ns);
    }

    /// Hands over what arms; nothing is armed from here any more. Visits end before: only the thread that began one can.
    pub fn take_armer(&mut self) -> Armer {
        self.armer.end_all_visits();
        let none = Armer::new(None, Err("not armed from here any more".into()));
        std::mem::replace(&mut self.armer, none)
    }

    /// Whether neighbours of pages are taken for used.
    pub fn has_windows(&self) -> bool {
        self.has_windows || self.endings.has_windows()
    }

    /// Whether pages may have been used that were not seen, in processes that have ended or may not be looked at.
    pub fn has_missed(&self) -> bool {
        let is_known = |process: &Process| process.was_seen_last || process.map.is_alive();
        let is_missed =
            !self.executed || !self.processes.values().all(is_known) || self.unreadable > 0 || self.is_cut;
        is_missed || self.endings.has_missed()
    }

    /// Whether the program was seen to be executed.
    pub fn executed(&self) -> bool {
        self.executed
    }

    /// What the absence of a page means.
    pub fn coverage(&self) -> Coverage {
        match (self.has_missed(), self.has_windows()) {
            (true, _) => Coverage::Partial,
            (false, true) => Coverage::Superset,
            (false, false) => Coverage::Exact,
        }
    }

    /// What is armed until now.
    pub fn ranges(&self) -> SharedRanges {
        self.armer.ranges()
    }

    /// Disarms everything. Returns what could not be seen.
    pub fn end(self) -> Vec<String> {
        let mut unseen = self.armer.ranges().now().refusals();
        if self.unreadable > 0 {
            unseen.push(format!("processes whose page tables this user may not read: {}", self.unreadable));
        }
        if self.is_cut {
            unseen.push("pages of mappings larger than 4 GiB, of which Linux 6.7 or newer tells".into());
        }
        unseen
    }
}
