//! A start under observation.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use prepage_core::PageIndex;
use prepage_core::profile::observation::{Coverage, Observation, Order};
use prepage_core::quantity::counted;
use prepage_sys::agent::{Last, may_arm};
use prepage_sys::arm::let_go_of_given_up;
use prepage_sys::clock::now_ns;
use prepage_sys::memory_left::Cgroups;
use prepage_sys::perf::{PerfError, online_cpus};
use prepage_sys::rights::Rights;
use prepage_sys::root::Root;
use prepage_sys::scheduling;

use crate::armer::{Armer, PAUSE};
use crate::arming::Entry;
use crate::asks::Ask;
use crate::disk_faults::{Changes, DiskFaults};
use crate::faults::Faults;
use crate::inside::{Inside, entry};
use crate::memory::Memory;
use crate::page_tables::PageTables;
use crate::primer::Primer;
use crate::sightings::{FileIndex, Seen, Sightings};
use crate::silence::Silence;
use crate::stalls::{STALL_PERIOD, Stalls};
use crate::until::Until;

/// The start is over when no file was touched for this long, though the program could ([`Silence`]).
const QUIET: Duration = Duration::from_secs(1);

/// How long to wait at most before what there is is read.
const ROUND: Duration = Duration::from_millis(50);

/// The same where somebody acts on what is used: a slow device takes about as long for a read.
const FOLLOWED_ROUND: Duration = Duration::from_millis(1);

/// For so long an exec is waited for before anything else is done beside the program. Where its file is in memory it takes half a millisecond.
const EXEC_WAIT: Duration = Duration::from_millis(3);

/// When the first observation is handed out early, where the last may never come. The next follow at twice the time each.
const FIRST_EARLY_NS: u64 = 50_000_000;

/// The namespace of process ids that no container has (PROC_PID_INIT_INO of include/linux/proc_ns.h).
const FIRST_NAMESPACE: &str = "pid:[4026531836]";

/// With more CPUs perf is not asked for the order of pages alone. Its two events are opened for each CPU, and each process and thread inherits all: to
/// start one and end it takes 0.09 ms longer with 32 CPUs, and 0.18 with 64.
const CPUS_MAX: usize = 32;

/// How to observe.
#[derive(Clone, Debug, Default)]
pub struct ObserveOptions {
    /// The program that is executed. The agent goes into a program that is known beforehand only.
    pub program: Option<PathBuf>,
    /// The user's own LD_AUDIT, which is kept.
    pub own_audit: Option<OsString>,
    /// The agent; where there is none, the installed one ([`prepage_sys::agent::find_library`]).
    pub agent: Option<PathBuf>,
    /// Whether to do as where perf is forbidden.
    pub without_perf: bool,
    /// As on a machine with so many CPUs; `None`: those that are online.
    pub cpus: Option<usize>,
    /// Whether the program may wait until perf is ready, up to 20 ms: then also what a program touches last that ends before
    /// is seen, and the order of all pages.
    pub is_patient: bool,
    /// Whether the thread that follows leaves the processors to the program where both want them.
    pub gives_way: bool,
    /// The rights with which the files and names that were seen are opened again; without them, those of the calling thread. A
    /// service that runs as root gives the rights of the process: a user could put a link in a file's place.
    pub rights: Option<Rights>,
    /// The root below which the process looks names up, where that is not this process's own.
    pub root: Option<Arc<Root>>,
    /// Who gives leave to ask for the files and names that were seen; where there is nobody, all are asked for.
    pub leave: Option<Ask>,
}

/// Nothing of a start can be observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// The process is gone, or another user's.
    #[error("process {pid} cannot be looked at")]
    Process {
        /// Which.
        pid: u32,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// What observes it would take memory that the program may need.
    #[error("only {} MB of memory are left to the program", available_bytes / 1_000_000)]
    Memory {
        /// What it may still get.
        available_bytes: u64,
    },
}

/// Whoever wants to know of a start while it goes on.
pub trait Follower {
    /// Whether it wants to know of pages as they are used ([`Self::used`]).
    fn wants_pages(&self) -> bool {
        false
    }

    /// A page of a mapping is used for the first time. `place` stands for its `file` throughout the start.
    fn used(&mut self, _place: FileIndex, _file: &Seen, _page: PageIndex) {}

    /// Adds what it has seen itself to what the observer sees, every 50 ms, or 0.1 s later where a visited process is slow to stop; for the `last` time
    /// when all else is there. No program stands still meanwhile that has stopped within 0.1 s.
    fn look(&mut self, _last: bool, _sightings: &mut Sightings) {}

    /// How much of what the start read it adds in [`Self::look`]; asked at the end.
    fn reads_coverage(&self) -> Coverage {
        Coverage::Partial
    }

    /// The same of the names that the start looked up, where no agent tells them.
    fn names_coverage(&self) -> Coverage {
        Coverage::Partial
    }

    /// Whether it wants to know what was seen so far ([`Self::so_far`]): to put that together takes a while each time.
    fn wants_so_far(&self) -> bool {
        false
    }

    /// What was seen so far, at doubling moments, where the end may never be seen: in a container, whose first process takes all
    /// others with it when it ends. Pages that a start cut short did not reach do not count as unused.
    fn so_far(&mut self, _seen: &Observation) {}

    /// The program has ended, or is to be observed no longer ([`Until::or_readable`]). What was seen is put together next, which takes
    /// a while.
    fn ended(&mut self) {}
}

/// Nobody.
impl Follower for () {}

/// A start under observation.
#[derive(Debug)]
pub struct Observer {
    pid: u32,
    pages: Pages,
    stalls: Option<Stalls>,
    inside: Option<Inside>,
    sightings: Sightings,
    /// The last touch of a file in the start; before the first, when observing began.
    last_touch_ns: u64,
    silence: Silence,
    unseen: Vec<String>,
    rights: Option<Rights>,
    root: Option<Arc<Root>>,
    gives_way: bool,
    has_given_way: bool,
    /// Whether perf is still to be asked for: the program need not wait for the thread that does.
    is_to_be_primed: bool,
    memory: Option<Memory>,
}

/// Where pages in use are seen.
#[derive(Debug)]
enum Pages {
    Faults(Box<Faults>),
    /// Until perf is ready, or for good. Then it tells when pages were used that waited for the device.
    Tables(Box<PageTables>, Option<Primer>, Option<Box<DiskFaults>>),
}

impl Observer {
    /// Observes process `pid`, which executes its program about now or runs it already, and all that it starts.
    ///
    /// # Errors
    /// When nothing can be seen. What can be seen only in part is told in [`Observation::unseen`].
    pub fn attach(pid: u32, options: &ObserveOptions) -> Result<Self, ObserveError> {
        let mut unseen = Vec::new();
        let may_be_armed = may_arm().map_err(|error| error.to_string());
        let (inside, receiver) = match Inside::open(pid, options, may_be_armed.is_ok()) {
            Ok((inside, receiver)) => (Some(inside), Some(receiver)),
            Err(why) => {
                unseen.push(format!("names and reads, but for those that waited for the device: {why}"));
                (None, None)
            }
        };
        // A known program did not wait for us. An exec from now on is reported.
        let program = |pid: &str| std::fs::read_link(format!("/proc/{pid}/exe"));
        let of_pid = program(&pid.to_string()).map_err(|source| ObserveError::Process { pid, source })?;
        let executed = program("self").is_ok_and(|own| own != of_pid);
        let receiver = std::cell::Cell::new(receiver);
        let entry = if executed { Entry::Executed } else { entry(options, inside.is_some()) };
        let armer = || Armer::new(receiver.take(), may_be_armed.clone());
        let tables = || Box::new(PageTables::attach(pid, entry, armer()));
        // The program is armed from its beginning: what it touches meanwhile shows in its page tables, and so does what one
        // that runs already has touched before.
        let is_armed = inside.is_some() || entry != Entry::AfterExec;
        let is_to_be_primed = !options.without_perf && !options.is_patient && is_armed;
        // Without an agent perf shows more than their order.
        let cpus = || options.cpus.or_else(|| Some(online_cpus().ok()?.len()));
        let is_dear = is_to_be_primed && inside.is_some() && cpus().is_some_and(|cpus| cpus > CPUS_MAX);
        let pages = if options.without_perf {
            Err(PerfError::Unavailable { filtered: false })
        } else if is_to_be_primed {
            Ok(Pages::Tables(tables(), None, None))
        } else {
            Faults::attach(pid, entry, armer).map(|faults| Pages::Faults(Box::new(faults)))
        };
        let pages = pages.unwrap_or_else(|error| {
            unseen.push(without_perf(&error));
            Pages::Tables(tables(), None, None)
        });
        if let Some(inside) = &inside {
            // Page tables end with the process, and so does what tells where it is armed.
            inside.ask_for(match pages {
                // This process ends with the first one of its namespace.
                Pages::Tables(..) if pid == 1 => Last::TellAndWait,
                Pages::Tables(..) => Last::Tell,
                Pages::Faults(_) if options.is_patient => Last::Wait,
                Pages::Faults(_) => Last::Nothing,
            });
        }
        let with_stalls = inside.is_none() && matches!(pages, Pages::Faults(_));
        let stalls = if with_stalls { stalls_of(vec![pid], &mut unseen) } else { None };
        let mut sightings = Sightings::without(inside.as_ref().map(|inside| inside.library().into()));
        sightings.ask_by(options.leave);
        let (last_touch_ns, rights) = (now_ns(), options.rights.clone());
        let mut observer = Self {
            pid,
            pages,
            stalls,
            inside,
            sightings,
            last_touch_ns,
            silence: Silence::of(pid),
            unseen,
            rights,
            root: options.root.clone(),
            gives_way: options.gives_way,
            has_given_way: false,
            is_to_be_primed,
            memory: None,
        };
        if is_dear {
            observer.leave_out_perf("each process and thread of the program would pay for it with each CPU");
        }
        Ok(observer)
    }

    /// Environment variables to be set for the program when it is executed, last and in this order
    /// ([`prepage_sys::exec::exec_with`] does so), so that more of it is seen. It does not see them itself.
    pub fn program_arguments(&self) -> Vec<(&'static str, OsString)> {
        self.inside.as_ref().map_or_else(Vec::new, |inside| inside.variables().to_vec())
    }

    /// Serves the program's stop at its exec, where it is entered there: it stands still until somebody does. Waits for that a few milliseconds at most, for
    /// the exec may wait for the device, or fail; then [`Self::follow`] serves it. To be called when the program has been let go, by the thread that follows.
    pub fn enter(&mut self) {
        self.give_way(self.is_waited_for());
        let until = Instant::now() + EXEC_WAIT;
        // Nothing else is visited yet.
        while self.is_visiting() && Instant::now() < until {
            std::thread::sleep(PAUSE);
            self.let_visited_go(false);
        }
        self.give_way(self.is_waited_for());
    }

    /// Notes little where the control groups `groups`, whose memory the program and what observes it share, have little left. To be called when
    /// the program has been let go: it takes a tenth of a millisecond to find out.
    ///
    /// # Errors
    /// [`ObserveError::Memory`] where that could have the program killed: then [`Self::end`] ends it.
    pub fn keep_within(&mut self, groups: Cgroups) -> Result<(), ObserveError> {
        let memory = Memory::of(groups);
        let share_bytes =
            memory.share_bytes().map_err(|available_bytes| ObserveError::Memory { available_bytes })?;
        self.inside.iter().for_each(|inside| inside.keep_within(share_bytes));
        self.sightings.keep_within(share_bytes);
        self.memory = Some(memory);
        Ok(())
    }

    /// Starts no thread, for the program needs each task that a limit leaves: perf is not asked for.
    pub fn spare_tasks(&mut self) {
        self.leave_out_perf("the program needs the tasks that are left");
    }

    fn leave_out_perf(&mut self, why: &str) {
        if std::mem::take(&mut self.is_to_be_primed) {
            self.unseen.push(format!("the order of pages, and those touched last: {why}"));
        }
    }

    /// Undoes everything that was set for observing.
    pub fn end(self) {
        self.finish(true, [Coverage::Partial; 2]);
    }

    /// Observes until the start is over: the process has ended, no file was touched for a second, or `until` is over.
    /// Everything that was set for observing is undone then, and descendants run on.
    pub fn follow(self, until: &Until) -> Observation {
        self.follow_with(until, &mut ())
    }

    /// The same, telling `follower` what it wants to know.
    pub fn follow_with(mut self, until: &Until, follower: &mut impl Follower) -> Observation {
        self.prime();
        let _reading = self.inside.as_ref().and_then(Inside::read_here);
        let began_ns = now_ns();
        let mut next_early_ns = (follower.wants_so_far() && is_in_a_container()).then_some(FIRST_EARLY_NS);
        // This process ends with the first one of its namespace.
        let ends_with_it = next_early_ns.is_some() && self.pid == 1;
        loop {
            self.give_way(self.is_waited_for());
            let is_followed = follower.wants_pages();
            self.sightings.keep_new(is_followed);
            let ended = self.wait(until, is_followed);
            let needed_bytes = self.sightings.observation_bytes();
            let is_short = !ended && self.memory.as_mut().is_some_and(|memory| memory.is_short(needed_bytes));
            if until.has_come_to_an_end() {
                follower.ended();
            }
            self.look(ended || is_short);
            let is_last = ended || is_short || self.is_quiet() || self.sightings.is_full();
            // A visited process would stand still while it works; one that took longer than 0.1 s to stop does. What it looks at waits for it.
            if self.let_visited_go(is_last) {
                follower.look(is_last, &mut self.sightings);
            }
            for (place, page) in self.sightings.take_new() {
                follower.used(place, self.sightings.file(place), page);
            }
            if is_last {
                let coverage = [follower.reads_coverage(), follower.names_coverage()];
                if is_short {
                    self.unseen.push("what came when there was next to no memory left".into());
                }
                return self.finish(until.was_stopped() || is_short, coverage);
            }
            // Its end waits until this is dropped, and for visits to end before that.
            let end = match &mut self.pages {
                Pages::Tables(tables, ..) if !(ends_with_it && tables.is_visiting()) => {
                    tables.take_end_of_root().filter(|_| ends_with_it)
                }
                _ => None,
            };
            let is_ending = end.is_some();
            let is_due = |next_ns: &u64| now_ns().saturating_sub(began_ns) >= *next_ns && !self.is_visiting();
            let due_ns = next_early_ns.filter(is_due);
            if is_ending || due_ns.is_some() {
                self.give_way(is_ending || self.is_waited_for());
                follower.so_far(
                    &observation(&self.sightings, self.rights.as_ref(), self.root.as_ref()).cut_short(),
                );
                next_early_ns = due_ns.map(|next_ns| 2 * next_ns).or(next_early_ns);
            }
        }
    }

    /// Begins to wait for perf.
    fn prime(&mut self) {
        let Pages::Tables(_, primer, _) = &mut self.pages else { return };
        if !std::mem::take(&mut self.is_to_be_primed) {
            return;
        }
        match Primer::begin() {
            Ok(begun) => *primer = Some(begun),
            Err(error) => self.unseen.push(without_perf(&error)),
        }
    }

    /// Leaves the processors to the program, unless that waits until this thread lets it go on, in a visit or at the end of a process: on a
    /// busy machine that would take its time.
    fn give_way(&mut self, is_waited_for: bool) {
        let gives_way = self.gives_way && !is_waited_for;
        if gives_way != self.has_given_way {
            self.has_given_way = gives_way;
            // Where that is refused, they share the processors.
            let _ = if gives_way { scheduling::leave_at_once() } else { scheduling::as_others() };
        }
    }

    /// Waits for something to look at. Returns whether `until` is over.
    fn wait(&mut self, until: &Until, is_followed: bool) -> bool {
        let timeout = match &self.stalls {
            _ if is_followed => FOLLOWED_ROUND,
            Some(_) => STALL_PERIOD,
            None => ROUND,
        };
        match &mut self.pages {
            Pages::Faults(faults) => faults.wait(until, timeout),
            Pages::Tables(tables, ..) => tables.wait(until, timeout),
        }
    }

    fn look(&mut self, last: bool) {
        let_go_of_given_up();
        let (sightings, last_touch_ns) = (&mut self.sightings, &mut self.last_touch_ns);
        let told = self.inside.as_mut().map_or_else(Vec::new, |inside| inside.read(last));
        let executed = match &mut self.pages {
            Pages::Faults(faults) => {
                faults.look(last, sightings, last_touch_ns);
                faults.executed()
            }
            Pages::Tables(tables, primer, disk_faults) => {
                tables.take_in(&told, sightings, last_touch_ns);
                if let Some(disk_faults) = disk_faults {
                    disk_faults.look(last, sightings, last_touch_ns);
                    tables.tell(disk_faults.take_changes(), sightings, last_touch_ns);
                }
                tables.look(last, sightings, last_touch_ns);
                let may_begin = tables.executed() && !tables.is_arming();
                let primed = primer.as_ref().filter(|_| may_begin).and_then(Primer::event);
                if let Some(primed) = primed {
                    *primer = None;
                    let with_agent = self.inside.is_some();
                    let begun = match primed {
                        // Processes tell what they have touched: page tables show all.
                        Ok(_kept) if with_agent => DiskFaults::attach(&tables.pids()).map(|begun| {
                            *disk_faults = Some(Box::new(begun));
                            // Nobody says what they had mapped before.
                            tables.tell(
                                Changes { mapped: None, of_processes: true },
                                sightings,
                                last_touch_ns,
                            );
                        }),
                        Ok(_kept) => {
                            let stalls = stalls_of(tables.pids(), &mut self.unseen);
                            Faults::take_over(tables, sightings, last_touch_ns).map(|faults| {
                                self.pages = Pages::Faults(Box::new(faults));
                                self.stalls = stalls;
                            })
                        }
                        Err(error) => Err(error),
                    };
                    if let Err(error) = begun {
                        self.unseen.push(without_perf(&error));
                    }
                    true
                } else {
                    tables.executed()
                }
            }
        };
        if let Some(stalls) = &mut self.stalls
            && !stalls.look(executed, sightings)
        {
            self.stalls = None;
        }
        if let Some(inside) = &mut self.inside {
            let read_ns = match &self.pages {
                Pages::Faults(faults) => inside.look(last, faults.ranges().elsewhere(), sightings),
                Pages::Tables(tables, ..) => inside.look(last, tables.ranges().now().elsewhere(), sightings),
            };
            *last_touch_ns = read_ns.unwrap_or(0).max(*last_touch_ns);
        }
    }

    /// Whether processes wait for this thread to look at them.
    fn is_waited_for(&self) -> bool {
        let waits_at_ends = matches!(&self.pages, Pages::Tables(tables, ..) if tables.are_waiting());
        waits_at_ends || self.is_visiting()
    }

    /// Whether a program may stand still until the next wait: no time to write a file, or to wait for a processor.
    fn is_visiting(&self) -> bool {
        matches!(&self.pages, Pages::Tables(tables, ..) if tables.is_visiting())
    }

    /// Ends visits, as [`PageTables::let_visited_go`] does. Returns whether no visited process is about to stand still.
    fn let_visited_go(&mut self, last: bool) -> bool {
        match &mut self.pages {
            Pages::Tables(tables, ..) => tables.let_visited_go(last),
            Pages::Faults(_) => true,
        }
    }

    fn is_quiet(&mut self) -> bool {
        // Faults are read a round late.
        self.silence.has_lasted(self.last_touch_ns, QUIET + ROUND)
    }

    fn finish(mut self, was_stopped: bool, [reads_coverage, names_coverage]: [Coverage; 2]) -> Observation {
        let (mapped, lost, order) = match self.pages {
            Pages::Faults(mut faults) => {
                self.unseen.extend(faults.end(&mut self.sightings));
                let lost = faults.lost();
                let seen = match (lost > 0 || faults.is_blind(), faults.has_windows()) {
                    (true, _) => Coverage::Partial,
                    (false, true) => Coverage::Superset,
                    (false, false) => Coverage::Exact,
                };
                (seen, lost, if faults.has_order() { Order::Exact } else { Order::Rough })
            }
            Pages::Tables(tables, ..) => {
                let seen = tables.coverage();
                self.unseen.extend(tables.end());
                (seen, 0, Order::Rough)
            }
        };
        // The memory is the program's, too.
        let needed_bytes = self.sightings.observation_bytes();
        let has_room = self.memory.as_ref().is_none_or(|memory| memory.holds(needed_bytes));
        if !has_room {
            self.sightings = Sightings::default();
            self.unseen.push("what was noted: there was no memory left to put it together".into());
        }
        // What a program does later, with files that it will not be given again, is no part of its start.
        self.sightings.forget_after(self.last_touch_ns.saturating_add(QUIET.as_nanos() as u64));
        let is_full = self.sightings.is_full();
        let mut observation = observation(&self.sightings, self.rights.as_ref(), self.root.as_ref());
        observation.order = order;
        // Some files may have been passed over.
        let is_partial = is_full || observation.coverage == Coverage::Partial;
        observation.coverage = if is_partial { Coverage::Partial } else { mapped };
        if lost > 0 {
            self.unseen
                .push(format!("the kernel had no room for {} of faults", counted(lost as usize, "record")));
        }
        if is_full {
            self.unseen.push("the start uses more pages or names than are noted".into());
        }
        for file in &mut observation.files {
            // What may be missing in the whole may be missing in each file.
            if observation.coverage == Coverage::Partial {
                file.coverage = Coverage::Partial;
            }
        }
        (observation.reads_coverage, observation.names_coverage) = (reads_coverage, names_coverage);
        if let Some(inside) = &self.inside {
            let (coverage, unseen) = inside.end();
            observation.names_coverage = coverage;
            observation.reads_coverage = coverage.min(reads_coverage);
            self.unseen.extend(unseen);
        }
        if is_partial {
            (observation.reads_coverage, observation.names_coverage) = (Coverage::Partial, Coverage::Partial);
        }
        if observation.reads_coverage == Coverage::Partial {
            for file in observation.files.iter_mut().filter(|file| file.pages.iter().any(|used| used.by_read))
            {
                file.coverage = Coverage::Partial;
            }
        }
        observation.unseen.append(&mut self.unseen);
        if was_stopped || !has_room { observation.cut_short() } else { observation }
    }
}

/// What was seen, looked at again with `rights`, and below `root` where there is one. Without the rights nothing is looked at.
fn observation(sightings: &Sightings, rights: Option<&Rights>, root: Option<&Arc<Root>>) -> Observation {
    let _entered = root.map(Root::enter);
    match rights.map(Rights::assume) {
        Some(Err(_)) => Sightings::default().observation(),
        _assumed => sightings.observation(),
    }
}

/// What sees the waits of `pids` for the device; where the kernel has no room for that, they are among what is not seen.
fn stalls_of(pids: Vec<u32>, unseen: &mut Vec<String>) -> Option<Stalls> {
    let tell = |error| unseen.push(format!("names and reads that waited for the device: {error}"));
    Stalls::attach(pids).map_err(tell).ok()
}

fn without_perf(error: &PerfError) -> String {
    format!("the order of pages, and those touched last: {error}")
}

/// Whether this process ends with the first one of its namespace of process ids.
fn is_in_a_container() -> bool {
    std::fs::read_link("/proc/self/ns/pid").is_ok_and(|namespace| namespace.as_os_str() != FIRST_NAMESPACE)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use prepage_testing::{Need, has};

    use super::*;

    #[test]
    fn what_was_seen_is_looked_at_again_with_the_rights_of_the_process() {
        if !has(Need::Root) {
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let paths = ["open", "secret"].map(|name| directory.path().canonicalize().unwrap().join(name));
        for (path, mode) in paths.iter().zip([0o644, 0o600]) {
            fs::write(path, "text").unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        // What was made meanwhile is left out: the clock of files stands still for some milliseconds.
        std::thread::sleep(Duration::from_millis(50));
        let mut sightings = Sightings::default();
        for (time_ns, path) in (1..).zip(&paths) {
            let place = sightings.place(path, None).unwrap();
            sightings.touch(time_ns, place, PageIndex(0));
        }
        let seen = |rights| {
            observation(&sightings, rights, None)
                .files
                .into_iter()
                .map(|file| file.path.into())
                .collect::<Vec<PathBuf>>()
        };
        assert_eq!(seen(None), paths);
        assert_eq!(seen(Some(&Rights::of_everybody())), paths[..1]);
    }
}
