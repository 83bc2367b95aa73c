//! Opening the events of a stream.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use prepage_sys::perf::{Observed, PerfError, PerfEvent, Ring, Setup, Source, online_cpus};
use prepage_sys::process_stat::ProcessStat;
use prepage_sys::processes::{living_thread, processes};

use super::clocks::{Clocks, Latest};
use super::decode::{Decoder, PageCacheTracepoint};
use super::watched_cpus::WatchedCpus;
use super::{CpuRing, Stream, Uncounted};
use crate::probe::{FaultEvents, Probe, Target};

/// Smallest ring worth having, a CPU.
const RING_BYTES_MIN: usize = 16 << 10;
/// All rings together take at most this, whatever the number of CPUs.
const RINGS_BYTES_MAX: usize = 256 << 20;
/// How often a process is looked at for threads that were started while its others were attached to.
const THREAD_ROUNDS_MAX: usize = 100;
/// How long a fork that is under way is waited for: it takes some milliseconds a gibibyte, and others may have the processor.
const FORK_MAX: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// What a stream opens for each thread, and for which it did.
struct Opened {
    setup: Setup,
    /// In the order of [`sources`].
    sources: Vec<Source>,
    tids: HashSet<u32>,
}

impl Stream {
    /// Observes process `pid`: its threads as they are now, and all that they start.
    ///
    /// # Errors
    /// See [`PerfError`]; [`PerfError::Tracefs`] only with [`Probe::page_cache`].
    pub fn attach(pid: u32, probe: &Probe) -> Result<Self, PerfError> {
        Self::attach_to(&Target::Processes(vec![pid]), probe)
    }

    /// Observes `target`. Of several processes those after the first may have ended, or be another user's by now: they are left out.
    ///
    /// # Errors
    /// As [`Stream::attach`].
    pub fn attach_to(target: &Target, probe: &Probe) -> Result<Self, PerfError> {
        if *target == Target::System {
            return Self::attach_to_system(probe, |_| ());
        }
        let (mut stream, _) = Self::open(target, probe, true)?;
        stream.index_tracepoints()?;
        Ok(stream)
    }

    /// Observes every process of the machine: first their mappings, names, forks and exits alone, then all else. The rings are `meanwhile`'s to
    /// read ([`Stream::collect`]).
    ///
    /// # Errors
    /// As [`Stream::attach`].
    pub(crate) fn attach_to_system(
        probe: &Probe,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Result<Self, PerfError> {
        let (mut stream, opened) = Self::open(&Target::System, probe, true)?;
        meanwhile(&mut stream);
        stream.open_others(&opened, Observed::System, false)?;
        stream.index_tracepoints()?;
        Ok(stream)
    }

    /// Observes `pids`, and also the children that they fork meanwhile with all their events, which takes up to [`FORK_MAX`]. Returns these
    /// too.
    ///
    /// # Errors
    /// As [`Stream::attach`]. When one of the processes does not exist, none is observed.
    pub(crate) fn attach_while_forking(pids: &[u32], probe: &Probe) -> Result<(Self, Vec<u32>), PerfError> {
        let before = processes().collect();
        let (mut stream, mut opened) = Self::open(&Target::Processes(pids.to_vec()), probe, false)?;
        let children = stream.open_new_children(&mut opened, pids, before)?;
        stream.index_tracepoints()?;
        Ok((stream, children))
    }

    /// Opens the rings; of processes also all else, of the machine no more than what owns the rings.
    fn open(target: &Target, probe: &Probe, may_be_gone: bool) -> Result<(Self, Opened), PerfError> {
        let cpus = online_cpus()
            .map_err(|source| PerfError::Proc { path: "/sys/devices/system/cpu/online".into(), source })?;
        let tracepoints = PageCacheTracepoint::of(probe.page_cache)?;
        let mut sources = sources(probe, &tracepoints);
        let is_of_system = *target == Target::System;
        if is_of_system && (sources[0] != Source::Dummy || probe.switches) {
            sources.insert(0, Source::Dummy);
        }
        let mut setup = Setup {
            tracking: true,
            switches: probe.switches && !is_of_system,
            callchain: probe.stacks,
            ..Setup::new(sources[0])
        };
        let first = match target {
            Target::System => Observed::System,
            Target::Processes(pids) => {
                Observed::Thread(first_thread(*pids.first().expect("a target is not empty")))
            }
        };
        setup.exclude_kernel = must_exclude_kernel(&setup, first, cpus[0]);
        let largest = probe.ring_bytes.min(RINGS_BYTES_MAX / cpus.len().next_power_of_two());
        let rings = open_rings(&mut setup, first, &cpus, largest.max(RING_BYTES_MIN), probe.wakeup_bytes)?;
        setup.switches = probe.switches;
        let mut stream = Self {
            rings,
            others: Vec::new(),
            decoder: Decoder { events: Vec::new(), tracepoints, stacks: probe.stacks },
            pending: Vec::new(),
            ripe_before_ns: 0,
            uncounted: Uncounted::default(),
            clocks: Clocks::default(),
            sees_system_calls: !setup.exclude_kernel,
            own_pid: is_of_system.then(std::process::id),
            watched_cpus: WatchedCpus::default(),
        };
        let mut opened = Opened { setup, sources, tids: HashSet::new() };
        if let Target::Processes(pids) = target {
            for (nth, &pid) in pids.iter().enumerate() {
                match stream.open_threads(&mut opened, pid) {
                    Err(error) if may_be_gone && nth > 0 && is_gone(&error) => {}
                    result => result?,
                }
            }
        }
        Ok((stream, opened))
    }

    /// Opens all events of all threads of `pid` that have none yet. A thread that is started meanwhile by one
    /// not yet attached to is found by looking again.
    fn open_threads(&mut self, opened: &mut Opened, pid: u32) -> Result<(), PerfError> {
        let first = first_thread(pid);
        for _ in 0..THREAD_ROUNDS_MAX {
            let threads = threads_of(pid)?;
            let before = opened.tids.len();
            for tid in threads {
                if opened.tids.insert(tid) {
                    self.open_others(opened, Observed::Thread(tid), tid != first)?;
                }
            }
            if opened.tids.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Opens all events of the processes that were started since `before` by `parents`, and by one another, while these had not all of theirs. A
    /// child inherits the events that its parent has as the fork begins, and is seen in /proc as the fork ends. What it inherited and has of its own
    /// it reports twice, as threads do.
    fn open_new_children(
        &mut self,
        opened: &mut Opened,
        parents: &[u32],
        mut before: HashSet<u32>,
    ) -> Result<Vec<u32>, PerfError> {
        // How many forks of each process may have been under way as its last event was opened.
        let under_way = |pid: u32| (pid, threads_of(pid).map_or(0, |threads| threads.len()));
        let mut parents: HashMap<u32, usize> = parents.iter().map(|&pid| under_way(pid)).collect();
        let mut looked_at = HashSet::new();
        let mut children = Vec::new();
        let deadline = Instant::now() + FORK_MAX;
        loop {
            let mut found = Vec::new();
            for child in processes().filter(|pid| !before.contains(pid)) {
                let parent = ProcessStat::of(child).ok().and_then(|stat| parents.get_key_value(&stat.parent));
                found.extend(parent.map(|(&parent, _)| (child, parent)));
            }
            let looked_at_now: Vec<u32> = parents.keys().copied().collect();
            for (child, parent) in found {
                before.insert(child);
                if looked_at.contains(&parent) {
                    let left = parents.get_mut(&parent).expect("it was found there");
                    // Those after it have inherited all.
                    let Some(now_left) = left.checked_sub(1) else { continue };
                    *left = now_left;
                }
                match self.open_threads(opened, child) {
                    Ok(()) => {
                        children.push(child);
                        parents.extend([under_way(child)]);
                    }
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(error),
                }
            }
            looked_at.extend(looked_at_now);
            let is_looked_at = parents.iter().all(|(pid, left)| *left == 0 && looked_at.contains(pid));
            if is_looked_at || Instant::now() >= deadline {
                return Ok(children);
            }
            // The rings are not to overflow meanwhile.
            self.index_tracepoints()?;
            self.collect();
            sleep(LOOK_EVERY);
        }
    }

    /// Opens all events for `observed` on each CPU, but for those that own rings. Context switches come with the first one; of the machine with
    /// the first that is opened here.
    fn open_others(
        &mut self,
        Opened { setup, sources, .. }: &Opened,
        observed: Observed,
        may_be_gone: bool,
    ) -> Result<(), PerfError> {
        for (nth, &source) in sources.iter().enumerate() {
            let first = nth == 0;
            if first && self.rings[0].observed == observed {
                continue;
            }
            let switches = setup.switches && nth == usize::from(observed == Observed::System);
            let setup = Setup { source, tracking: first, switches, ..*setup };
            for ring in &self.rings {
                let event = match PerfEvent::open(&setup, observed, ring.cpu) {
                    // It ended since it was listed.
                    Err(PerfError::NoProcess { .. }) if may_be_gone => return Ok(()),
                    event => event?,
                };
                event.report_through(&ring.owner)?;
                self.others.push((source, event));
            }
        }
        Ok(())
    }

    fn index_tracepoints(&mut self) -> Result<(), PerfError> {
        self.decoder.events.clear();
        for (source, event) in &self.others {
            if let Source::Tracepoint(tracepoint) = *source {
                self.decoder.events.push((event.id()?, tracepoint));
            }
        }
        self.decoder.events.sort_unstable();
        Ok(())
    }
}

/// What to open, in this order: a child that is forked meanwhile inherits the first of them, and its faults are not seen to
/// begin unless they are seen to end.
fn sources(probe: &Probe, tracepoints: &[PageCacheTracepoint]) -> Vec<Source> {
    let mut sources = match probe.faults {
        FaultEvents::None => vec![Source::Dummy],
        FaultEvents::DiskOnly => vec![Source::MajorFaults],
        FaultEvents::Ends => vec![Source::MinorFaults, Source::MajorFaults],
        FaultEvents::Costs => vec![Source::MinorFaults, Source::MajorFaults, Source::PageFaults],
    };
    sources.extend(tracepoints.iter().map(|tracepoint| Source::Tracepoint(tracepoint.id)));
    sources
}

/// The first thread of process `pid` that has not ended, or the process's own number where there is none.
fn first_thread(pid: u32) -> u32 {
    living_thread(pid).unwrap_or(pid)
}

/// The threads of `pid`, itself first.
fn threads_of(pid: u32) -> Result<Vec<u32>, PerfError> {
    let others = prepage_sys::processes::threads_of(pid).map_err(|source| match source.kind() {
        // Without a /proc nothing is found in it.
        io::ErrorKind::NotFound if fs::exists("/proc/self/task").unwrap_or(false) => {
            PerfError::NoProcess { pid }
        }
        _ => PerfError::Proc { path: format!("/proc/{pid}/task"), source },
    })?;
    let mut threads = vec![pid];
    threads.extend(others.filter(|&tid| tid != pid));
    Ok(threads)
}

/// Whether a process has ended, or executes a program whose observation has ended.
fn is_gone(error: &PerfError) -> bool {
    matches!(error, PerfError::NoProcess { .. } | PerfError::NotYours { .. })
}

/// Whether this user gets events only without what happens in system calls. Of a process that has ended meanwhile the kernel says so only
/// where it may be observed in this way: else a user would be told that it is another's. Any other error shows again when the events are opened
/// for good.
fn must_exclude_kernel(setup: &Setup, observed: Observed, cpu: u32) -> bool {
    let refused = matches!(
        PerfEvent::open(setup, observed, cpu),
        Err(PerfError::NotYours { .. } | PerfError::SwitchedOff { .. } | PerfError::Unavailable { .. })
    );
    let without = || PerfEvent::open(&Setup { exclude_kernel: true, ..*setup }, observed, cpu);
    refused && matches!(without(), Ok(_) | Err(PerfError::NoProcess { .. }))
}

/// Opens the first event on each CPU with a ring of at most `bytes`, halving it until the user's limit allows all.
fn open_rings(
    setup: &mut Setup,
    observed: Observed,
    cpus: &[u32],
    mut bytes: usize,
    wakeup_bytes: Option<u32>,
) -> Result<Vec<CpuRing>, PerfError> {
    loop {
        setup.wakeup_bytes = wakeup_bytes.unwrap_or(u32::MAX).min((bytes / 4) as u32);
        let open = |&cpu| {
            let owner = PerfEvent::open(setup, observed, cpu)?;
            let ring = Ring::map(&owner, bytes).map_err(|source| PerfError::Ring { bytes, source })?;
            Ok(CpuRing {
                cpu,
                ring,
                source: setup.source,
                owner,
                observed,
                last: None,
                latest: Latest::default(),
                silent: false,
            })
        };
        match cpus.iter().map(open).collect() {
            Err(PerfError::Ring { .. }) if bytes > RING_BYTES_MIN => bytes /= 2,
            rings => return rings,
        }
    }
}

#[cfg(test)]
mod tests;
